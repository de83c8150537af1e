-- The servers whose tool definitions were recorded when they were connected for the first time.
CREATE TABLE pinned_servers (
    server TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- The definitions of upstream tools. `seen` is the hash of the definition that was first seen, and `accepted` is the hash
-- of the definition that a reviewer accepted. `definition` is the text of the accepted definition, or else of the one that
-- was first seen.
CREATE TABLE tool_pins (
    server      TEXT NOT NULL,
    tool        TEXT NOT NULL,
    seen        TEXT,
    accepted    TEXT,
    accepted_by TEXT,
    accepted_at TEXT,
    definition  TEXT,
    PRIMARY KEY (server, tool)
) STRICT, WITHOUT ROWID;

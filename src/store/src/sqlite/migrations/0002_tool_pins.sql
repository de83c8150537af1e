-- Servers whose tools were recorded when they were first connected.
CREATE TABLE pinned_servers (
    server TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- Definitions of upstream tools by hash: as first seen, and as a reviewer accepted it. `definition` is the text of the
-- accepted one, else of the one that was seen.
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

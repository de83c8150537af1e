-- Whose a key is, where that is somebody else than its name says.
ALTER TABLE api_keys ADD COLUMN owner TEXT;

-- What changes are searched by. Beside them, because a row of theirs holds a whole body and this is read from end to
-- end. `call_hash` is of who asked for what, to mark twins; `needle` is text in lower case.
CREATE TABLE change_search (
    no         INTEGER PRIMARY KEY REFERENCES changes (no) ON DELETE CASCADE,
    provider   TEXT    NOT NULL,
    tool       TEXT    NOT NULL,
    created_ms INTEGER NOT NULL,
    call_hash  TEXT,
    needle     TEXT    NOT NULL
) STRICT;
INSERT INTO change_search (no, provider, tool, created_ms, needle)
SELECT no, body ->> '$.provider', body ->> '$.tool',
       CAST(round(unixepoch(body ->> '$.createdAt', 'subsec') * 1000) AS INTEGER),
       lower(id || char(10) || (body ->> '$.provider') || char(10) || (body ->> '$.tool') || char(10) ||
             principal || char(10) || (body ->> '$.target.label') || char(10) || (body ->> '$.summary'))
FROM changes;

-- The person to whom the key belongs, if this is not the person in `name`.
ALTER TABLE api_keys ADD COLUMN owner TEXT;

-- The columns by which changes are searched. They have a table of their own, because a search reads all rows, and the rows
-- of `changes` contain whole bodies. `call_hash` identifies the proposer, the tool and the arguments, to detect repeated
-- calls. `needle` is the searchable text in lower case.
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

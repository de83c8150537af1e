-- Which change has which target: while it runs, and, where its outcome is unknown, until `taken_ms` (milliseconds of the Unix
-- epoch) or until a person has settled it.
CREATE TABLE claims (
    change_id TEXT PRIMARY KEY REFERENCES changes (id) ON DELETE CASCADE,
    target    TEXT NOT NULL UNIQUE,
    taken_ms  INTEGER
) STRICT, WITHOUT ROWID;

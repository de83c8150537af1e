-- The changes that hold a target. A change holds its target while it runs. If its outcome is unknown, it holds the target
-- until `taken_ms` (milliseconds of the Unix epoch), or until a person settles it.
CREATE TABLE claims (
    change_id TEXT PRIMARY KEY REFERENCES changes (id) ON DELETE CASCADE,
    target    TEXT NOT NULL UNIQUE,
    taken_ms  INTEGER
) STRICT, WITHOUT ROWID;

-- `finished_at` is the time in seconds of the Unix epoch at which the change became final; it is null before. `redacted` is
-- 1 once the arguments, diffs and results of the change were removed. With both, old changes are found without reading
-- their bodies.
ALTER TABLE changes ADD COLUMN finished_at INTEGER;
ALTER TABLE changes ADD COLUMN redacted INTEGER NOT NULL DEFAULT 0;
UPDATE changes SET finished_at = CAST(strftime('%s', json_extract(body, '$.updatedAt')) AS INTEGER)
    WHERE state IN ('applied', 'failed', 'rejected', 'expired', 'withdrawn');
CREATE INDEX changes_by_end ON changes (redacted, finished_at) WHERE finished_at IS NOT NULL;

-- Facts about the store as a whole. `backup_of` is the time of the backup that this database was restored from, until a
-- gateway has started on it.
CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

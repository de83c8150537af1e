-- When a change became final (seconds of the Unix epoch; none while it is not), and whether its arguments, diffs and
-- results have been taken out since: what is pruned is found without reading any change.
ALTER TABLE changes ADD COLUMN finished_at INTEGER;
ALTER TABLE changes ADD COLUMN redacted INTEGER NOT NULL DEFAULT 0;
UPDATE changes SET finished_at = CAST(strftime('%s', json_extract(body, '$.updatedAt')) AS INTEGER)
    WHERE state IN ('applied', 'failed', 'rejected', 'expired', 'withdrawn');
CREATE INDEX changes_by_end ON changes (redacted, finished_at) WHERE finished_at IS NOT NULL;

-- What the store knows of itself: `backup_of` is when a backup was taken, until a gateway has started on it.
CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Finished changes that still have their contents and are large: some of them lose those sooner, and are found without
-- looking at the others. 65536 is the least that `changes.retention.large_bytes` may be.
CREATE INDEX changes_large ON changes (finished_at)
    WHERE redacted = 0 AND finished_at IS NOT NULL AND octet_length(body) > 65536;

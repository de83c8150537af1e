-- The index finds large finished changes that still have their contents, because some of them lose their contents earlier
-- than other changes. The setting `changes.retention.large_bytes` is at least 65536.
CREATE INDEX changes_large ON changes (finished_at)
    WHERE redacted = 0 AND finished_at IS NOT NULL AND octet_length(body) > 65536;

-- Deliveries get their own numbers, because only events about changes have a number in the feed (`seq`). `key` identifies
-- the event within its webhook: the number in the feed, or a generated text. `subject` is the id of the change or of the
-- standing rule that the event is about, or another text. Events with the same subject are sent in order. The other
-- columns stay the same.
CREATE TABLE deliveries (
    id         INTEGER PRIMARY KEY,
    webhook    TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    seq        INTEGER,
    kind       TEXT    NOT NULL,
    subject    TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    attempts   INTEGER NOT NULL,
    status     INTEGER,
    error      TEXT,
    taken_ms   INTEGER NOT NULL,
    last_ms    INTEGER,
    event      TEXT,
    UNIQUE (webhook, key)
) STRICT;
INSERT INTO deliveries (webhook, key, seq, kind, subject, state, attempts, status, error, taken_ms, last_ms, event)
    SELECT webhook, CAST(seq AS TEXT), seq, kind, change_id, state, attempts, status, error, taken_ms, last_ms, event
    FROM webhook_deliveries ORDER BY seq;
DROP TABLE webhook_deliveries;
ALTER TABLE deliveries RENAME TO webhook_deliveries;
CREATE INDEX webhook_deliveries_listed ON webhook_deliveries (webhook, id);
CREATE INDEX webhook_deliveries_open ON webhook_deliveries (webhook, state, id) WHERE state <> 'delivered';

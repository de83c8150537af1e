-- Deliveries get numbers of their own, since not everything that goes out has one in the feed. `key` is what tells an
-- event from others of its webhook: its number in the feed, or something made. `subject` is what it is about, and what is
-- about the same goes out in order: the id of a change or of a standing rule, or words for something else. `seq` is the
-- number in the feed, of events of changes. Otherwise as before.
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

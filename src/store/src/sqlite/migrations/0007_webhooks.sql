-- The webhooks. The events of the feed up to `position` were read, and those that a webhook wants have rows below, which
-- are written in the same transaction.
CREATE TABLE webhooks (
    name     TEXT    PRIMARY KEY,
    position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The events that are sent to webhooks, and the latest ones that were delivered. `state` is `waiting`, `delivered` or
-- `given_up`. Times are in milliseconds of the Unix epoch. `event` is the JSON to send, which is deleted after the
-- delivery.
CREATE TABLE webhook_deliveries (
    webhook    TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    change_id  TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    attempts   INTEGER NOT NULL,
    status     INTEGER,
    error      TEXT,
    taken_ms   INTEGER NOT NULL,
    last_ms    INTEGER,
    event      TEXT,
    PRIMARY KEY (webhook, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_deliveries_open ON webhook_deliveries (webhook, state, seq) WHERE state <> 'delivered';

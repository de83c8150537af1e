-- How far each webhook has taken in the feed. What it has taken in has a row below, in the same transaction.
CREATE TABLE webhooks (
    name     TEXT    PRIMARY KEY,
    position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Events on their way to webhooks, and the latest of those that are through. `state` is waiting, delivered or given_up;
-- times are milliseconds of the Unix epoch; `event` is what goes out, gone once it is delivered.
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

-- Several gateways serve one database. A node is one of them; its lease is measured by the server's clock alone.
CREATE TABLE nodes (
    id            TEXT        PRIMARY KEY,
    -- Rises whenever it joins, after a restart or after its lease ran out.
    epoch         BIGINT      NOT NULL,
    -- The epoch with which its process began: what an earlier one has claimed cannot be under way any more.
    process_epoch BIGINT      NOT NULL,
    process       TEXT        NOT NULL,
    -- The lowest of those that live leads.
    joined        BIGINT      NOT NULL UNIQUE,
    lease_until   TIMESTAMPTZ NOT NULL,
    started_ms    BIGINT      NOT NULL,
    url           TEXT        NOT NULL,
    version       TEXT        NOT NULL,
    configuration TEXT        NOT NULL
);

-- What runs, and by whom. Of what a node that is gone had claimed, `lapsed_until` is the last moment at which its call may
-- still go out: then nobody may settle it yet, and others may run.
CREATE TABLE claims (
    change_id    TEXT        PRIMARY KEY REFERENCES changes (id) ON DELETE CASCADE,
    target       TEXT        NOT NULL,
    node         TEXT        NOT NULL,
    epoch        BIGINT      NOT NULL,
    lapsed_until TIMESTAMPTZ
);
-- One at a time to each target, whoever runs it.
CREATE UNIQUE INDEX claims_by_target ON claims (target) WHERE lapsed_until IS NULL;

-- Rises with each record (pins, standing rules), so that other nodes read them anew.
ALTER TABLE heads ADD COLUMN records BIGINT NOT NULL DEFAULT 0;

DELETE FROM facts WHERE name = 'served_by';

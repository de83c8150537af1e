-- The calls that each rule of the policy decided on all nodes, by hour. `hour_ms` is the beginning of the hour in milliseconds
-- of the Unix epoch.
CREATE TABLE rule_counts (
    hour_ms  BIGINT NOT NULL,
    rule     TEXT   NOT NULL,
    allowed  BIGINT NOT NULL,
    reviewed BIGINT NOT NULL,
    denied   BIGINT NOT NULL,
    PRIMARY KEY (hour_ms, rule)
);

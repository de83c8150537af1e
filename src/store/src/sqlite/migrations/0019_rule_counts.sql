-- The calls that each rule of the policy decided, by hour. `hour_ms` is the beginning of the hour in milliseconds of the Unix
-- epoch.
CREATE TABLE rule_counts (
    hour_ms  INTEGER NOT NULL,
    rule     TEXT    NOT NULL,
    allowed  INTEGER NOT NULL,
    reviewed INTEGER NOT NULL,
    denied   INTEGER NOT NULL,
    PRIMARY KEY (hour_ms, rule)
) STRICT, WITHOUT ROWID;

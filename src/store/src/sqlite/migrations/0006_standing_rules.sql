-- The standing rules. `body` is the whole rule as JSON. `over` is 1 for rules that were revoked or have expired.
CREATE TABLE standing_rules (
    no   INTEGER PRIMARY KEY,
    id   TEXT    NOT NULL UNIQUE,
    over INTEGER NOT NULL,
    body TEXT    NOT NULL
) STRICT;

-- Standing rules: `body` is the whole rule as JSON; `over` tells those that were revoked or have expired.
CREATE TABLE standing_rules (
    no   INTEGER PRIMARY KEY,
    id   TEXT    NOT NULL UNIQUE,
    over INTEGER NOT NULL,
    body TEXT    NOT NULL
) STRICT;

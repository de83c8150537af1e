-- Accounts at servers that require OAuth. `holder` is the name of a person, or empty for the gateway, and `sealed` contains the
-- encrypted tokens. `version` begins with a random number. While a node renews the tokens, `refreshing_ms` is set, and
-- `refresh_id` identifies the attempt. Times are in milliseconds of the Unix epoch.
CREATE TABLE accounts (
    server        TEXT    NOT NULL,
    holder        TEXT    NOT NULL,
    target        TEXT    NOT NULL,
    issuer        TEXT    NOT NULL,
    sealed        TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    refreshing_ms INTEGER,
    refresh_id    TEXT,
    connected_ms  INTEGER NOT NULL,
    PRIMARY KEY (server, holder)
) STRICT, WITHOUT ROWID;
-- The gateway's registrations at authorization servers, encrypted.
CREATE TABLE registrations (
    issuer TEXT PRIMARY KEY,
    sealed TEXT NOT NULL
) STRICT, WITHOUT ROWID;

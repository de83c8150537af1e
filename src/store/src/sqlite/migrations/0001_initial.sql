-- Changes. `no` is the order of creation; `body` is the whole change as JSON, the columns beside it are what is
-- searched or compared. `bytes` counts against the proposer's bound and is fixed at creation.
CREATE TABLE changes (
    no              INTEGER PRIMARY KEY,
    id              TEXT    NOT NULL UNIQUE,
    version         INTEGER NOT NULL,
    state           TEXT    NOT NULL,
    principal       TEXT    NOT NULL,
    idempotency_key TEXT,
    bytes           INTEGER NOT NULL,
    expires_at      TEXT    NOT NULL,
    body            TEXT    NOT NULL
) STRICT;
CREATE INDEX changes_by_state ON changes (state, no);
CREATE INDEX changes_by_principal ON changes (principal, state, no);
CREATE UNIQUE INDEX changes_by_idempotency_key ON changes (principal, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

-- The feed: gapless, one event for each transition; `data` is the JSON that goes out.
CREATE TABLE events (
    seq       INTEGER PRIMARY KEY,
    kind      TEXT NOT NULL,
    change_id TEXT NOT NULL,
    data      TEXT NOT NULL
) STRICT;

-- The audit trail: append only, each entry holds the hash of the one before.
CREATE TABLE audit (
    seq        INTEGER PRIMARY KEY,
    at         TEXT NOT NULL,
    change_id  TEXT NOT NULL,
    event      TEXT NOT NULL,
    from_state TEXT,
    to_state   TEXT NOT NULL,
    actor      TEXT NOT NULL,
    details    TEXT NOT NULL,
    prev_hash  BLOB NOT NULL,
    hash       BLOB NOT NULL
) STRICT;
CREATE INDEX audit_by_change ON audit (change_id, seq);

-- API keys, by the SHA-256 of their secret only.
CREATE TABLE api_keys (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    role         TEXT NOT NULL,
    hash         BLOB NOT NULL UNIQUE,
    created_at   TEXT NOT NULL,
    last_used_at TEXT,
    revoked_at   TEXT
) STRICT, WITHOUT ROWID;

-- One-time codes for signing in to the dashboard, by their SHA-256 only.
CREATE TABLE sign_in_codes (
    hash       BLOB PRIMARY KEY,
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    used_at    TEXT
) STRICT, WITHOUT ROWID;

-- Written after a commit of unknown outcome, so that what it may have left in the log is overwritten.
CREATE TABLE fence (
    n INTEGER NOT NULL
) STRICT;
INSERT INTO fence (n) VALUES (0);

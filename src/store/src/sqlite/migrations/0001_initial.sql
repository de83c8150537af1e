-- The changes. `no` follows the order of creation. `body` is the whole change as JSON, and the other columns repeat the
-- parts of it that are searched or compared. `bytes` counts against the proposer's limit and never changes.
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

-- The feed: one event for each transition, with numbers without gaps. `data` is the JSON that subscribers receive.
CREATE TABLE events (
    seq       INTEGER PRIMARY KEY,
    kind      TEXT NOT NULL,
    change_id TEXT NOT NULL,
    data      TEXT NOT NULL
) STRICT;

-- The audit trail. Entries are only appended, and each contains the hash of the entry before it.
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

-- The API keys. `hash` is the SHA-256 hash of the secret, which is not stored.
CREATE TABLE api_keys (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    role         TEXT NOT NULL,
    hash         BLOB NOT NULL UNIQUE,
    created_at   TEXT NOT NULL,
    last_used_at TEXT,
    revoked_at   TEXT
) STRICT, WITHOUT ROWID;

-- One-time codes for signing in to the dashboard, as SHA-256 hashes.
CREATE TABLE sign_in_codes (
    hash       BLOB PRIMARY KEY,
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    used_at    TEXT
) STRICT, WITHOUT ROWID;

-- The writer changes this number after a commit with an unknown outcome, which overwrites what the commit may have left in
-- the write-ahead log.
CREATE TABLE fence (
    n INTEGER NOT NULL
) STRICT;
INSERT INTO fence (n) VALUES (0);

-- Browsers that are signed in, by hashes of their two secrets.
CREATE TABLE sign_ins (
    id           BLOB    PRIMARY KEY,
    cookie       BLOB    NOT NULL,
    key          BLOB,
    name         TEXT    NOT NULL,
    role         TEXT    NOT NULL,
    key_id       TEXT,
    owner        TEXT,
    last_used_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

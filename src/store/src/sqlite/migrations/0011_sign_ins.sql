-- The browsers that are signed in. `id` is the hash of the page's secret, `cookie` is the hash of the browser's cookie, and
-- `key` is the hash of the API key that was used to sign in, if any.
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

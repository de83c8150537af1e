-- Times are in milliseconds. Existing codes are dropped, because codes are valid only for minutes.
DROP TABLE sign_in_codes;
CREATE TABLE sign_in_codes (
    hash       BLOB PRIMARY KEY,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    used_ms    INTEGER
) STRICT, WITHOUT ROWID;

-- Times in milliseconds. Codes are valid for minutes, so that those before are not kept.
DROP TABLE sign_in_codes;
CREATE TABLE sign_in_codes (
    hash       BLOB PRIMARY KEY,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    used_ms    INTEGER
) STRICT, WITHOUT ROWID;

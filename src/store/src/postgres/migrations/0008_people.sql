-- The people of an identity provider who have signed in or were revoked. `name` is ISSUER#SUBJECT, `role` is null for people
-- who have no entry, and `claims` is what the provider last said, as JSON.
CREATE TABLE people (
    name       TEXT   PRIMARY KEY,
    role       TEXT,
    claims     TEXT   NOT NULL,
    updated_ms BIGINT NOT NULL,
    revoked_ms BIGINT
);
-- `session` is the session at the provider as JSON, and `refreshed_ms` the time of the last question to the provider, if the
-- gateway can ask it.
ALTER TABLE sign_ins ADD COLUMN session TEXT, ADD COLUMN refreshed_ms BIGINT;
ALTER TABLE sign_in_codes ADD COLUMN session TEXT;
-- Hashes of tokens of the provider that count once.
CREATE TABLE used_tokens (
    hash       BYTEA  PRIMARY KEY,
    expires_ms BIGINT NOT NULL
);

-- What each node says of the servers behind it, as JSON, and how often it has said something else.
ALTER TABLE nodes ADD COLUMN servers TEXT NOT NULL DEFAULT '{}', ADD COLUMN servers_no BIGINT NOT NULL DEFAULT 0;

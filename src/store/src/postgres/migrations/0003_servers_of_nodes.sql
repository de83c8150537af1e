-- `servers` is the state of the node's upstream servers as JSON, and `servers_no` increases with each change of it.
ALTER TABLE nodes ADD COLUMN servers TEXT NOT NULL DEFAULT '{}', ADD COLUMN servers_no BIGINT NOT NULL DEFAULT 0;

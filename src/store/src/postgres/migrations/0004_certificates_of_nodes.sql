-- By which the others know a node with TLS of its own; a node of a version before says none.
ALTER TABLE nodes ADD COLUMN certificate TEXT NOT NULL DEFAULT '';

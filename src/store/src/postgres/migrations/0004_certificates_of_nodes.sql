-- The certificate by which other nodes recognize a node that uses TLS. Nodes of older versions leave it empty.
ALTER TABLE nodes ADD COLUMN certificate TEXT NOT NULL DEFAULT '';

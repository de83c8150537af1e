-- The policy that the node has in force, as JSON, which it reads after a restart. The newest policy of all nodes is a fact.
ALTER TABLE nodes ADD COLUMN policy TEXT NOT NULL DEFAULT '';

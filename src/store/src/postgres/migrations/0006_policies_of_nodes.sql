-- The policy that each node has in force, as JSON, to be found again after a restart. The newest is a fact.
ALTER TABLE nodes ADD COLUMN policy TEXT NOT NULL DEFAULT '';

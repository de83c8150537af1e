-- The names of the person who created the key, and of those who created that person's key, as a JSON array. Null if the key was
-- created at the machine.
ALTER TABLE api_keys ADD COLUMN created_by TEXT;

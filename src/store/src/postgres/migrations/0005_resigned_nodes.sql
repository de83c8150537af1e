-- A node that is shutting down resigns. It keeps its lease for the changes that it still runs, but its process never leads
-- again.
ALTER TABLE nodes ADD COLUMN resigned BOOLEAN NOT NULL DEFAULT false;

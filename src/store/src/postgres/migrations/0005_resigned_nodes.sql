-- It ends: it keeps its lease for what it still runs, and never leads again in this life.
ALTER TABLE nodes ADD COLUMN resigned BOOLEAN NOT NULL DEFAULT false;

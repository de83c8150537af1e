-- Absences. `person` is the folded name of the absent person, and `body` is JSON.
CREATE TABLE absences (
    person TEXT PRIMARY KEY,
    body   TEXT NOT NULL
);

-- Migration 1. Times are UTC text with milliseconds, so that they sort as text. Clients see UUIDs as ids, and never row
-- numbers.

-- The people and agents to whom issues can be assigned.
CREATE TABLE people (
    id         INTEGER PRIMARY KEY,
    uuid       TEXT NOT NULL UNIQUE,
    name       TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('person', 'agent')),
    -- The principal who writes as this person; NULL for people whom only the configuration names.
    principal  TEXT UNIQUE,
    created_at TEXT NOT NULL
) STRICT;

-- The projects. Triggers keep the counts of issues.
CREATE TABLE projects (
    id          INTEGER PRIMARY KEY,
    uuid        TEXT NOT NULL UNIQUE,
    key         TEXT NOT NULL UNIQUE,
    name        TEXT NOT NULL,
    description TEXT NOT NULL,
    -- Numbers of issues are never reused, not even after a deletion.
    next_number INTEGER NOT NULL DEFAULT 1,
    issue_count INTEGER NOT NULL DEFAULT 0,
    open_count  INTEGER NOT NULL DEFAULT 0,
    created_at  TEXT NOT NULL,
    created_by  TEXT NOT NULL
) STRICT;

-- The issues. `key` is the key of the project with `number`, such as `CORE-12`.
CREATE TABLE issues (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid            TEXT NOT NULL UNIQUE,
    project         INTEGER NOT NULL REFERENCES projects (id),
    number          INTEGER NOT NULL,
    key             TEXT NOT NULL UNIQUE,
    type            TEXT NOT NULL,
    title           TEXT NOT NULL,
    description     TEXT NOT NULL,
    status          TEXT NOT NULL,
    priority        TEXT NOT NULL,
    assignee        INTEGER REFERENCES people (id),
    -- A parent that has children cannot be deleted.
    parent          INTEGER REFERENCES issues (id),
    estimated_hours REAL CHECK (estimated_hours >= 0),
    -- The version increases with every change of a field, but not with comments.
    version         INTEGER NOT NULL DEFAULT 1,
    created_at      TEXT NOT NULL,
    created_by      TEXT NOT NULL,
    updated_at      TEXT NOT NULL,
    CHECK (type <> 'Task' OR parent IS NOT NULL),
    UNIQUE (project, number)
) STRICT;
CREATE INDEX issues_by_project ON issues (project, id);
CREATE INDEX issues_by_status ON issues (project, status, id);
CREATE INDEX issues_by_assignee ON issues (assignee, id);
CREATE INDEX issues_by_parent ON issues (parent, id);

-- The comments of issues. `author` is the name of the principal, and `change_id` is the change that added the comment.
CREATE TABLE comments (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid       TEXT NOT NULL UNIQUE,
    issue      INTEGER NOT NULL REFERENCES issues (id) ON DELETE CASCADE,
    author     TEXT NOT NULL,
    person     INTEGER REFERENCES people (id),
    content    TEXT NOT NULL CHECK (content <> ''),
    change_id  TEXT,
    created_at TEXT NOT NULL
) STRICT;
CREATE INDEX comments_by_issue ON comments (issue, id);

-- History entries outlive their issues, so they have no foreign keys.
CREATE TABLE history (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    project    INTEGER NOT NULL,
    issue_uuid TEXT,
    issue_key  TEXT,
    at         TEXT NOT NULL,
    actor      TEXT NOT NULL,
    change_id  TEXT,
    action     TEXT NOT NULL,
    -- JSON: [{"field", "before", "after"}]
    changes    TEXT NOT NULL
) STRICT;
CREATE INDEX history_by_issue ON history (issue_uuid, id);
CREATE INDEX history_by_key ON history (issue_key, id);

-- Approved changes that have run, with their answers. Running a change again returns its answer and does nothing.
CREATE TABLE runs (
    change_id  TEXT PRIMARY KEY,
    tool       TEXT NOT NULL,
    at         TEXT NOT NULL,
    content    TEXT NOT NULL,
    structured TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The full-text indexes, which the triggers below keep up to date.
CREATE VIRTUAL TABLE issue_fts USING fts5 (
    key, title, description, content = 'issues', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);
CREATE VIRTUAL TABLE comment_fts USING fts5 (
    content, content = 'comments', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);

CREATE TRIGGER issue_inserted AFTER INSERT ON issues BEGIN
    INSERT INTO issue_fts (rowid, key, title, description) VALUES (new.id, new.key, new.title, new.description);
    UPDATE projects SET issue_count = issue_count + 1, open_count = open_count + (new.status NOT IN ('Done', 'Cancelled'))
    WHERE id = new.project;
END;
CREATE TRIGGER issue_deleted AFTER DELETE ON issues BEGIN
    INSERT INTO issue_fts (issue_fts, rowid, key, title, description)
    VALUES ('delete', old.id, old.key, old.title, old.description);
    UPDATE projects SET issue_count = issue_count - 1, open_count = open_count - (old.status NOT IN ('Done', 'Cancelled'))
    WHERE id = old.project;
END;
CREATE TRIGGER issue_text_updated AFTER UPDATE OF title, description ON issues BEGIN
    INSERT INTO issue_fts (issue_fts, rowid, key, title, description)
    VALUES ('delete', old.id, old.key, old.title, old.description);
    INSERT INTO issue_fts (rowid, key, title, description) VALUES (new.id, new.key, new.title, new.description);
END;
CREATE TRIGGER issue_status_updated AFTER UPDATE OF status ON issues BEGIN
    UPDATE projects
    SET open_count = open_count + (new.status NOT IN ('Done', 'Cancelled')) - (old.status NOT IN ('Done', 'Cancelled'))
    WHERE id = new.project;
END;
CREATE TRIGGER comment_inserted AFTER INSERT ON comments BEGIN
    INSERT INTO comment_fts (rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER comment_deleted AFTER DELETE ON comments BEGIN
    INSERT INTO comment_fts (comment_fts, rowid, content) VALUES ('delete', old.id, old.content);
END;

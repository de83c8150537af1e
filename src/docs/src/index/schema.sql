-- What is known of the files of one folder. All of it can be made anew from them.
CREATE TABLE documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    summary TEXT NOT NULL,
    doc_type TEXT,
    date TEXT,
    level INTEGER NOT NULL,
    char_count INTEGER NOT NULL,
    front_matter INTEGER NOT NULL,
    -- What of it does not fit the document's type.
    fault TEXT,
    links TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    read_at_ns INTEGER NOT NULL,
    hash BLOB NOT NULL
) STRICT;
CREATE INDEX documents_by_type ON documents (doc_type);
CREATE INDEX documents_by_level ON documents (level) WHERE level > 0;

CREATE TABLE chunks (
    id INTEGER PRIMARY KEY,
    document INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    header_path TEXT NOT NULL,
    first_line INTEGER NOT NULL,
    last_line INTEGER NOT NULL,
    -- That of the document, always.
    level INTEGER NOT NULL
) STRICT;
CREATE INDEX chunks_by_document ON chunks (document);

-- `id` is the document's, times 4,096, and a number from 0: what a passage belongs to is known from its id alone.
CREATE TABLE passages (
    id INTEGER PRIMARY KEY,
    chunk INTEGER NOT NULL REFERENCES chunks (id) ON DELETE CASCADE,
    first_line INTEGER NOT NULL,
    last_line INTEGER NOT NULL,
    text TEXT NOT NULL,
    -- Little-endian f32, of length 1; none until it is embedded, and after the model has changed.
    vector BLOB,
    model TEXT
) STRICT;
CREATE INDEX passages_by_chunk ON passages (chunk);
CREATE INDEX passages_without_vector ON passages (id) WHERE vector IS NULL;

-- By the ids of passages. Its text is `passages` with identifiers taken apart, and stands here only as an index.
CREATE VIRTUAL TABLE words USING fts5 (
    title, heading, body,
    content = '', contentless_delete = 1, detail = 'full',
    tokenize = "porter unicode61 remove_diacritics 2"
);

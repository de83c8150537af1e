-- The documents of one folder. All data can be derived again from the files.
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
    -- The mismatches between the front matter and the type.
    fault TEXT,
    links TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    read_at_ns INTEGER NOT NULL,
    hash BLOB NOT NULL
) STRICT;
CREATE INDEX documents_by_type ON documents (doc_type);
CREATE INDEX documents_by_level ON documents (level) WHERE level > 0;

-- One row: the digest of the types that the documents were checked against.
CREATE TABLE types (digest BLOB NOT NULL) STRICT;

CREATE TABLE chunks (
    id INTEGER PRIMARY KEY,
    document INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    header_path TEXT NOT NULL,
    first_line INTEGER NOT NULL,
    last_line INTEGER NOT NULL,
    -- The level of the document.
    level INTEGER NOT NULL
) STRICT;
CREATE INDEX chunks_by_document ON chunks (document);

-- `id` is the id of the document times 4,096 plus a number from 0, so that it identifies the document.
CREATE TABLE passages (
    id INTEGER PRIMARY KEY,
    chunk INTEGER NOT NULL REFERENCES chunks (id) ON DELETE CASCADE,
    first_line INTEGER NOT NULL,
    last_line INTEGER NOT NULL,
    text TEXT NOT NULL,
    -- A vector of length 1 in little-endian f32; NULL until the passage is embedded.
    vector BLOB,
    model TEXT
) STRICT;
CREATE INDEX passages_by_chunk ON passages (chunk);
CREATE INDEX passages_without_vector ON passages (id) WHERE vector IS NULL;

-- The full-text index, by the ids of passages. Identifiers are split into words, and only the index is stored.
CREATE VIRTUAL TABLE words USING fts5 (
    title, heading, body,
    content = '', contentless_delete = 1, detail = 'full',
    tokenize = "porter unicode61 remove_diacritics 2"
);

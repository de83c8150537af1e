//! Writes documents to an index, and reads their metadata.

use std::collections::{BTreeMap, HashMap};

use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use strum::VariantArray as _;

use super::{
    storage::{Index, IndexError},
    vectors::{self, PassageId},
    words,
};
use crate::model::{Document, Level};

/// The number of passage ids that belong to one document, which is also the maximum number of its passages; further
/// passages are not indexed. The ids are stored, so another number needs a new version of the schema.
const PASSAGE_IDS_PER_DOCUMENT: i64 = 4096;

/// Returns the id of the document that a passage belongs to.
pub(super) const fn document_of(passage: PassageId) -> i64 {
    passage / PASSAGE_IDS_PER_DOCUMENT
}

/// Returns the id of a document's first passage.
pub(super) const fn first_passage_of(document: i64) -> PassageId {
    document * PASSAGE_IDS_PER_DOCUMENT
}

/// The state of a file when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    pub size: u64,
    pub mtime_ns: i64,
    /// The time of reading, in nanoseconds by the clock of `mtime_ns`.
    pub read_at_ns: i64,
    /// SHA-256 of its bytes.
    pub hash: [u8; 32],
}

/// The numbers of indexed documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DocumentCounts {
    pub documents: usize,
    pub by_type: BTreeMap<Option<String>, usize>,
}

impl DocumentCounts {
    pub fn count_of_type(&self, name: &str) -> usize {
        self.by_type.get(&Some(name.to_owned())).copied().unwrap_or_default()
    }
}

/// The numbers of documents by the state of their front matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrontMatterStats {
    pub documents: usize,
    pub without_front_matter: usize,
    /// Documents whose front matter does not match their type.
    pub faulty: usize,
    /// The first faulty documents, by path, each with its faults.
    pub faults: Vec<(String, String)>,
}

/// The metadata of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentMetadata {
    pub path: String,
    pub title: String,
    pub summary: String,
    pub doc_type: Option<String>,
    pub char_count: usize,
    pub links: Vec<String>,
    pub chunks: usize,
}

const METADATA_QUERY: &str = "SELECT path, title, summary, doc_type, char_count, links,
    (SELECT count(*) FROM chunks WHERE document = documents.id) FROM documents";

/// Reads a level, which is stored as its position.
pub(super) fn read_level(row: &Row<'_>, column: usize) -> rusqlite::Result<Level> {
    Ok(Level::VARIANTS.get(row.get::<_, usize>(column)?).copied().unwrap_or_default())
}

fn read_metadata(row: &Row<'_>) -> rusqlite::Result<DocumentMetadata> {
    let links: String = row.get(5)?;
    Ok(DocumentMetadata {
        path: row.get(0)?,
        title: row.get(1)?,
        summary: row.get(2)?,
        doc_type: row.get(3)?,
        char_count: row.get(4)?,
        links: serde_json::from_str(&links).unwrap_or_default(),
        chunks: row.get(6)?,
    })
}

impl Index {
    /// Writes documents in one transaction. Each replaces the document with its path.
    pub fn put(&self, documents: &[(FileStamp, Document)]) -> Result<(), IndexError> {
        self.write(
            |tx| {
                let mut removed_passages = Vec::new();
                for (stamp, document) in documents {
                    removed_passages.extend(delete_document(tx, &document.path)?);
                    insert_document(tx, stamp, document)?;
                }
                Ok(removed_passages)
            },
            Self::remove_vectors,
        )
    }

    /// Removes documents.
    pub fn remove(&self, paths: &[String]) -> Result<(), IndexError> {
        self.write(
            |tx| {
                let mut removed_passages = Vec::new();
                for path in paths {
                    removed_passages.extend(delete_document(tx, path)?);
                }
                Ok(removed_passages)
            },
            Self::remove_vectors,
        )
    }

    /// Removes the vectors of removed passages from memory.
    fn remove_vectors(&self, removed_ids: Vec<PassageId>) {
        if let Some(matrix) = &mut *self.matrix.write() {
            removed_ids.into_iter().for_each(|id| matrix.remove(id));
        }
    }

    /// Updates the stamps of files whose content is unchanged.
    pub fn update_stamps(&self, files: &[(String, FileStamp)]) -> Result<(), IndexError> {
        self.write(
            |tx| {
                let mut statement = tx
                    .prepare_cached("UPDATE documents SET size = ?2, mtime_ns = ?3, read_at_ns = ?4 WHERE path = ?1")?;
                for (path, stamp) in files {
                    statement.execute(params![path, stamp.size, stamp.mtime_ns, stamp.read_at_ns])?;
                }
                Ok(())
            },
            |_, ()| (),
        )
    }

    /// Resets the stamps of all files if they were checked against other types than those with this digest, so that no file
    /// counts as unchanged.
    pub fn reset_outdated_stamps(&self, types_digest: &[u8; 32]) -> Result<(), IndexError> {
        self.write(
            |tx| {
                let stored: Option<[u8; 32]> =
                    tx.query_row("SELECT digest FROM types", [], |row| row.get(0)).optional()?;
                if stored.as_ref() != Some(types_digest) {
                    tx.execute("UPDATE documents SET read_at_ns = mtime_ns, hash = zeroblob(32)", [])?;
                    tx.execute("DELETE FROM types", [])?;
                    tx.execute("INSERT INTO types (digest) VALUES (?1)", params![types_digest])?;
                }
                Ok(())
            },
            |_, ()| (),
        )
    }

    /// Returns the stamp of each file by its path.
    pub fn stamps(&self) -> Result<HashMap<String, FileStamp>, IndexError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached("SELECT path, size, mtime_ns, read_at_ns, hash FROM documents")?;
            let rows = statement.query_map([], |row| {
                let stamp =
                    FileStamp { size: row.get(1)?, mtime_ns: row.get(2)?, read_at_ns: row.get(3)?, hash: row.get(4)? };
                Ok((row.get(0)?, stamp))
            })?;
            rows.collect()
        })
    }

    /// Counts the documents, also by type.
    pub fn counts(&self) -> Result<DocumentCounts, IndexError> {
        self.read(|conn| {
            let mut counts = DocumentCounts::default();
            let mut statement = conn.prepare_cached("SELECT doc_type, count(*) FROM documents GROUP BY doc_type")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let count: usize = row.get(1)?;
                counts.documents += count;
                counts.by_type.insert(row.get(0)?, count);
            }
            Ok(counts)
        })
    }

    /// Returns the state of the documents' front matter, with at most `limit` faults.
    pub fn front_matter_stats(&self, limit: usize) -> Result<FrontMatterStats, IndexError> {
        self.read(|conn| {
            let sql = "SELECT count(*), count(*) - coalesce(sum(front_matter), 0), count(fault) FROM documents";
            let mut stats = conn.prepare_cached(sql)?.query_row([], |row| {
                let (documents, without_front_matter, faulty) = (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok(FrontMatterStats { documents, without_front_matter, faulty, faults: Vec::new() })
            })?;
            let sql = "SELECT path, fault FROM documents WHERE fault IS NOT NULL ORDER BY path LIMIT ?1";
            let mut statement = conn.prepare_cached(sql)?;
            let faults = statement.query_map([limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
            stats.faults = faults.collect::<rusqlite::Result<_>>()?;
            Ok(stats)
        })
    }

    /// Returns the metadata of a document, if it is indexed.
    pub fn document(&self, path: &str) -> Result<Option<DocumentMetadata>, IndexError> {
        self.read(|conn| {
            conn.prepare_cached(&format!("{METADATA_QUERY} WHERE path = ?1"))?
                .query_row([path], read_metadata)
                .optional()
        })
    }

    /// Returns at most `limit` documents whose paths have the prefix, in the order of paths, and the number of all such
    /// documents.
    pub fn list(&self, prefix: &str, limit: usize) -> Result<(Vec<DocumentMetadata>, usize), IndexError> {
        self.read(|conn| {
            let condition = "WHERE path >= ?1 AND substr(path, 1, length(?1)) = ?1";
            let mut statement = conn.prepare_cached(&format!("{METADATA_QUERY} {condition} ORDER BY path LIMIT ?2"))?;
            let entries =
                statement.query_map(params![prefix, limit], read_metadata)?.collect::<rusqlite::Result<_>>()?;
            let count = format!("SELECT count(*) FROM documents {condition}");
            let total = conn.prepare_cached(&count)?.query_row([prefix], |row| row.get(0))?;
            Ok((entries, total))
        })
    }

    /// Returns passages with larger ids than `after` that have no vector of this model, in the order of their ids, with
    /// the text to embed: title, headings and content.
    pub fn unembedded_passages(
        &self,
        model: &str,
        after: PassageId,
        limit: usize,
    ) -> Result<Vec<(PassageId, String)>, IndexError> {
        let condition = "passages.id > ?2 ORDER BY passages.id LIMIT ?3";
        self.passages_without_vector(condition, params![model, after, limit])
    }

    /// Returns the passages of one document that have no vector of this model.
    pub fn unembedded_passages_of(&self, path: &str, model: &str) -> Result<Vec<(PassageId, String)>, IndexError> {
        self.passages_without_vector("documents.path = ?2", params![model, path])
    }

    /// Returns the passages that fulfil the condition and have no vector of the model, which is the first parameter.
    fn passages_without_vector(
        &self,
        condition: &str,
        parameters: &[&dyn rusqlite::ToSql],
    ) -> Result<Vec<(PassageId, String)>, IndexError> {
        let sql = format!(
            "SELECT passages.id, documents.title, chunks.header_path, passages.text FROM passages
             JOIN chunks ON chunks.id = passages.chunk JOIN documents ON documents.id = chunks.document
             WHERE (vector IS NULL OR model <> ?1) AND {condition}"
        );
        self.read(|conn| {
            let mut statement = conn.prepare_cached(&sql)?;
            let rows = statement.query_map(parameters, |row| {
                let (title, header, text): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
                let heading = if header.is_empty() { title } else { format!("{title} — {header}") };
                Ok((row.get(0)?, format!("{heading}\n{text}")))
            })?;
            rows.collect()
        })
    }

    /// Stores vectors of passages that still exist. Vectors that are not finite, or consist of zeros, are skipped.
    pub fn set_vectors(&self, model: &str, vectors: &[(PassageId, Vec<f32>)]) -> Result<(), IndexError> {
        let normalized: Vec<(PassageId, Vec<f32>)> =
            vectors.iter().filter_map(|(id, vector)| Some((*id, vectors::normalize(vector)?))).collect();
        self.write(
            |tx| {
                let mut existing = Vec::new();
                let mut statement = tx.prepare_cached("UPDATE passages SET vector = ?2, model = ?3 WHERE id = ?1")?;
                for (id, vector) in &normalized {
                    existing.push(statement.execute(params![id, vectors::vector_to_bytes(vector), model])? > 0);
                }
                Ok(existing)
            },
            |index, exists| {
                if let Some(matrix) = &mut *index.matrix.write() {
                    for ((id, vector), _) in normalized.iter().zip(exists).filter(|(_, exists)| *exists) {
                        matrix.insert(*id, model, vector);
                    }
                }
            },
        )
    }
}

/// Deletes a document if it exists, and returns the ids of its passages.
fn delete_document(tx: &Transaction<'_>, path: &str) -> rusqlite::Result<Vec<PassageId>> {
    let id: Option<i64> = tx
        .prepare_cached("SELECT id FROM documents WHERE path = ?1")?
        .query_row([path], |row| row.get(0))
        .optional()?;
    let Some(id) = id else { return Ok(Vec::new()) };
    let (start, end) = (first_passage_of(id), first_passage_of(id + 1));
    let passages: Vec<PassageId> = tx
        .prepare_cached("SELECT id FROM passages WHERE id >= ?1 AND id < ?2")?
        .query_map([start, end], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut words = tx.prepare_cached("DELETE FROM words WHERE rowid = ?1")?;
    for passage in &passages {
        words.execute([passage])?;
    }
    tx.prepare_cached("DELETE FROM documents WHERE id = ?1")?.execute([id])?;
    Ok(passages)
}

fn insert_document(tx: &Transaction<'_>, stamp: &FileStamp, document: &Document) -> rusqlite::Result<()> {
    let links = serde_json::to_string(&document.links).unwrap_or_else(|_| "[]".to_owned());
    let level = document.level as i64;
    tx.prepare_cached(
        "INSERT INTO documents (path, title, summary, doc_type, date, level, char_count, links, size, mtime_ns, read_at_ns,
         hash, front_matter, fault) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    )?
    .execute(params![
        document.path,
        document.title,
        document.summary,
        document.doc_type,
        document.date,
        level,
        document.char_count,
        links,
        stamp.size,
        stamp.mtime_ns,
        stamp.read_at_ns,
        stamp.hash,
        document.has_front_matter,
        document.fault,
    ])?;
    let id = tx.last_insert_rowid();
    // The summary and the path may contain words that the text does not.
    let title = words::index_text(&format!("{} {} {}", document.title, document.summary, document.path));
    let mut chunks = tx.prepare_cached(
        "INSERT INTO chunks (document, header_path, first_line, last_line, level) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let mut passages =
        tx.prepare_cached("INSERT INTO passages (id, chunk, first_line, last_line, text) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    let mut words = tx.prepare_cached("INSERT INTO words (rowid, title, heading, body) VALUES (?1, ?2, ?3, ?4)")?;
    let mut next_id = first_passage_of(id);
    for chunk in &document.chunks {
        chunks.execute(params![id, chunk.header_path, chunk.first_line, chunk.last_line, level])?;
        let chunk_id = tx.last_insert_rowid();
        let heading = words::index_text(&chunk.header_path);
        for passage in &chunk.passages {
            if next_id >= first_passage_of(id + 1) {
                tracing::warn!(path = %document.path, "a document has more passages than are indexed");
                return Ok(());
            }
            passages.execute(params![next_id, chunk_id, passage.first_line, passage.last_line, passage.text])?;
            words.execute(params![next_id, title, heading, words::index_text(&passage.text)])?;
            next_id += 1;
        }
    }
    Ok(())
}

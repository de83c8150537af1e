//! Updates an index from a folder: reads changed files and removes missing ones. Each batch is stored, so that an
//! interrupted synchronization resumes where it stopped.

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::files::{FileEntry, Files};
use crate::{
    index::{FileStamp, Index, IndexError},
    model::Document,
    text::{self, DocTypes},
};

/// The maximum number of documents of one transaction.
const BATCH_DOCUMENTS: usize = 64;
/// The bytes of documents after which a transaction is committed.
const BATCH_BYTES: usize = 4 << 20;
/// The minimum age of a timestamp that proves a file unchanged. A younger file may have been written again within the
/// same timestamp.
const MIN_STAMP_AGE_NS: i64 = 2_000_000_000;

/// The changes of an index.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct IndexChanges {
    pub updated: Vec<String>,
    pub added: Vec<String>,
    pub removed: Vec<String>,
}

impl IndexChanges {
    pub fn merge(&mut self, other: Self) {
        self.updated.extend(other.updated);
        self.added.extend(other.added);
        self.removed.extend(other.removed);
    }
}

/// Returns `true` if a file is unchanged since it was read.
fn is_unchanged(stamp: &FileStamp, found: &FileEntry) -> bool {
    stamp.size == found.size
        && stamp.mtime_ns == found.mtime_ns
        && stamp.read_at_ns.saturating_sub(stamp.mtime_ns) > MIN_STAMP_AGE_NS
}

/// A folder with its index.
pub(super) struct FolderIndex<'a> {
    pub files: &'a Files,
    pub index: &'a Index,
    pub types: &'a DocTypes,
}

impl FolderIndex<'_> {
    /// Synchronizes the whole folder. `progress` gets the number of files done and the total, and returns `false` to stop.
    pub fn synchronize_all(&self, progress: &mut dyn FnMut(usize, usize) -> bool) -> Result<IndexChanges, IndexError> {
        let listing = self.files.walk().map_err(|source| IndexError::Io { path: self.files.folder_path(), source })?;
        if listing.is_truncated {
            tracing::warn!("a folder has more documents than are indexed");
        }
        self.files.remove_leftovers(&listing.leftovers);
        self.index.reset_outdated_stamps(&self.types.digest())?;
        let mut indexed_stamps = self.index.stamps()?;
        let mut changes = IndexChanges::default();
        let total = listing.files.len();
        let mut pending = Vec::new();
        let mut unchanged = 0;
        for found in listing.files {
            match indexed_stamps.remove(&found.path) {
                Some(stamp) if is_unchanged(&stamp, &found) => unchanged += 1,
                stamp => pending.push((found.path, stamp)),
            }
        }
        let removed_paths: Vec<String> = indexed_stamps.into_keys().collect();
        for batch in removed_paths.chunks(BATCH_DOCUMENTS) {
            self.index.remove(batch)?;
        }
        changes.removed = removed_paths;
        let mut indexed_documents = unchanged;
        for batch in pending.chunks(BATCH_DOCUMENTS) {
            if !progress(indexed_documents, total) {
                return Ok(changes);
            }
            changes.merge(self.synchronize_batch(batch)?);
            indexed_documents += batch.len();
        }
        progress(indexed_documents, total);
        Ok(changes)
    }

    /// Synchronizes these files, whether they exist or not. Skips those that [`Files::walk`] leaves out because of their path.
    pub fn synchronize_files(&self, paths: &[String]) -> Result<IndexChanges, IndexError> {
        let mut changes = IndexChanges::default();
        let mut indexed_stamps = self.index.stamps()?;
        let is_document = |path: &&String| self.files.check_path(path).is_ok();
        let paths: Vec<(String, Option<FileStamp>)> =
            paths.iter().filter(is_document).map(|path| (path.clone(), indexed_stamps.remove(path))).collect();
        for batch in paths.chunks(BATCH_DOCUMENTS) {
            changes.merge(self.synchronize_batch(batch)?);
        }
        Ok(changes)
    }

    /// Synchronizes these files, each with its stamp in the index.
    fn synchronize_batch(&self, files: &[(String, Option<FileStamp>)]) -> Result<IndexChanges, IndexError> {
        let mut changes = IndexChanges::default();
        let mut parsed: Vec<(FileStamp, Document)> = Vec::new();
        let mut restamped = Vec::new();
        let mut removed_paths = Vec::new();
        let mut bytes = 0;
        for (path, before) in files {
            let Some((stamp, text)) = self.read_file(path) else {
                removed_paths.extend(before.is_some().then(|| path.clone()));
                continue;
            };
            if before.as_ref().is_some_and(|before| before.hash == stamp.hash) {
                restamped.push((path.clone(), stamp));
                continue;
            }
            let Ok(document) = text::parse(path, &text, self.types) else {
                tracing::warn!(path, "a file is left out of the index: it takes too long to read");
                removed_paths.extend(before.is_some().then(|| path.clone()));
                continue;
            };
            match before {
                Some(_) => changes.updated.push(path.clone()),
                None => changes.added.push(path.clone()),
            }
            bytes += text.len();
            parsed.push((stamp, document));
            if bytes > BATCH_BYTES {
                self.index.put(&std::mem::take(&mut parsed))?;
                bytes = 0;
            }
        }
        if !parsed.is_empty() {
            self.index.put(&parsed)?;
        }
        if !restamped.is_empty() {
            self.index.update_stamps(&restamped)?;
        }
        if !removed_paths.is_empty() {
            self.index.remove(&removed_paths)?;
        }
        changes.removed = removed_paths;
        Ok(changes)
    }

    /// Reads a file; `None` if it cannot be read or is not UTF-8. The caller then removes the document from the index.
    fn read_file(&self, path: &str) -> Option<(FileStamp, String)> {
        let read_at_ns = i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
        let (bytes, found) = match self.files.attempt_read(path) {
            Ok(read) => read,
            Err(error) => {
                if error.kind() != std::io::ErrorKind::NotFound {
                    tracing::warn!(path, %error, "a file is left out of the index");
                }
                return None;
            }
        };
        let hash: [u8; 32] = Sha256::digest(&bytes).into();
        match String::from_utf8(bytes) {
            Ok(text) => Some((FileStamp { size: found.size, mtime_ns: found.mtime_ns, read_at_ns, hash }, text)),
            Err(_) => {
                tracing::warn!(path, "a file is left out of the index: it is not UTF-8");
                None
            }
        }
    }
}

//! Brings an index up to date with a folder: what has changed is read, what is gone is removed. What was done is stored batch
//! by batch, so that whoever is stopped goes on where it was.

use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};

use super::files::{Files, Found};
use crate::{
    index::{Index, IndexError, Stamp},
    model::Document,
    text::{self, DocTypes},
};

/// Documents, and bytes of them, of one transaction.
const BATCH: usize = 64;
const BATCH_BYTES: usize = 4 << 20;
/// A file that was written so shortly before it was read may have been written again without a sign of it.
const RACE_NS: i64 = 2_000_000_000;

/// What changed in the index.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    pub updated: Vec<String>,
    pub added: Vec<String>,
    pub removed: Vec<String>,
}

impl Changed {
    pub fn merge(&mut self, other: Self) {
        self.updated.extend(other.updated);
        self.added.extend(other.added);
        self.removed.extend(other.removed);
    }
}

/// Why it ended before it was done.
#[derive(Debug, thiserror::Error)]
pub(super) enum SyncError {
    #[error("{0}")]
    Index(#[from] IndexError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

pub(super) fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Whether a file is as it was read.
fn is_known(stamp: &Stamp, found: &Found) -> bool {
    stamp.size == found.size
        && stamp.mtime_ns == found.mtime_ns
        && stamp.read_at_ns.saturating_sub(stamp.mtime_ns) > RACE_NS
}

/// One folder and its index.
pub(super) struct Pair<'a> {
    pub files: &'a Files,
    pub index: &'a Index,
    pub types: &'a DocTypes,
}

impl Pair<'_> {
    /// The whole folder. `progress` is told how many of how many files were looked at, and says whether to go on.
    pub fn all(&self, progress: &mut dyn FnMut(usize, usize) -> bool) -> Result<Changed, SyncError> {
        let walked = self.files.walk()?;
        if walked.cut {
            tracing::warn!("a folder has more documents than are indexed");
        }
        self.files.sweep(&walked.leftovers);
        let mut known = self.index.stamps()?;
        let mut changed = Changed::default();
        let total = walked.files.len();
        let mut waiting = Vec::new();
        let mut unchanged = 0;
        for found in walked.files {
            match known.remove(&found.path) {
                Some(stamp) if is_known(&stamp, &found) => unchanged += 1,
                stamp => waiting.push((found.path, stamp)),
            }
        }
        let gone: Vec<String> = known.into_keys().collect();
        for batch in gone.chunks(BATCH) {
            self.index.remove(batch)?;
        }
        changed.removed = gone;
        let mut done = unchanged;
        for batch in waiting.chunks(BATCH) {
            if !progress(done, total) {
                return Ok(changed);
            }
            changed.merge(self.batch(batch)?);
            done += batch.len();
        }
        progress(done, total);
        Ok(changed)
    }

    /// These files, whether they are there or not.
    pub fn some(&self, paths: &[String]) -> Result<Changed, SyncError> {
        let mut changed = Changed::default();
        let mut known = self.index.stamps()?;
        let paths: Vec<(String, Option<Stamp>)> = paths.iter().map(|path| (path.clone(), known.remove(path))).collect();
        for batch in paths.chunks(BATCH) {
            changed.merge(self.batch(batch)?);
        }
        Ok(changed)
    }

    fn batch(&self, files: &[(String, Option<Stamp>)]) -> Result<Changed, SyncError> {
        let mut changed = Changed::default();
        let mut read: Vec<(Stamp, Document)> = Vec::new();
        let mut same = Vec::new();
        let mut gone = Vec::new();
        let mut bytes = 0;
        for (path, before) in files {
            let Some((stamp, text)) = self.read(path) else {
                gone.extend(before.is_some().then(|| path.clone()));
                continue;
            };
            if before.as_ref().is_some_and(|before| before.hash == stamp.hash) {
                same.push((path.clone(), stamp));
                continue;
            }
            let Ok(document) = text::parse(path, &text, self.types) else {
                tracing::warn!(path, "a file is left out of the index: it takes too long to read");
                gone.extend(before.is_some().then(|| path.clone()));
                continue;
            };
            match before {
                Some(_) => changed.updated.push(path.clone()),
                None => changed.added.push(path.clone()),
            }
            bytes += text.len();
            read.push((stamp, document));
            if bytes > BATCH_BYTES {
                self.index.put(&std::mem::take(&mut read))?;
                bytes = 0;
            }
        }
        if !read.is_empty() {
            self.index.put(&read)?;
        }
        if !same.is_empty() {
            self.index.touch(&same)?;
        }
        if !gone.is_empty() {
            self.index.remove(&gone)?;
        }
        changed.removed = gone;
        Ok(changed)
    }

    /// None for what is not there, or no document.
    fn read(&self, path: &str) -> Option<(Stamp, String)> {
        let read_at_ns = now_ns();
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
            Ok(text) => Some((Stamp { size: found.size, mtime_ns: found.mtime_ns, read_at_ns, hash }, text)),
            Err(_) => {
                tracing::warn!(path, "a file is left out of the index: it is not UTF-8");
                None
            }
        }
    }
}

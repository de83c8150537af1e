//! Caches vectors by the hash of their text, because models are slow and may cost money. A damaged file is recreated,
//! because the cache can be filled again.

use std::path::Path;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, params};
use sha2::{Digest as _, Sha256};

use crate::index::{open_derived_data, vector_from_bytes, vector_to_bytes};

/// The maximum number of vectors. The least recently used vectors are removed.
const MAX_VECTORS: usize = 500_000;
/// The number of written vectors between two evictions.
const EVICTION_INTERVAL: usize = 5000;

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS vectors (
    key BLOB PRIMARY KEY, vector BLOB NOT NULL, used INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS vectors_by_use ON vectors (used);";

/// The hash of the text and model of a vector.
pub(super) type VectorKey = [u8; 32];

/// The cache of vectors, a file of its own.
pub(super) struct VectorCache {
    conn: Mutex<Connection>,
    /// The number of vectors written since the last eviction.
    written_count: Mutex<usize>,
    capacity: usize,
}

/// Returns the key of a text that is sent to this model.
pub(super) fn vector_key(url: &str, model: &str, text: &str) -> VectorKey {
    let mut hasher = Sha256::new();
    for part in [url, model, text] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}

impl VectorCache {
    /// Opens the cache.
    ///
    /// # Errors
    /// Fails if the file can neither be read nor created.
    pub fn open(path: &Path) -> rusqlite::Result<Self> {
        Self::with_capacity(path, MAX_VECTORS)
    }

    fn with_capacity(path: &Path, capacity: usize) -> rusqlite::Result<Self> {
        let conn = Mutex::new(open_derived_data(path, SCHEMA)?);
        Ok(Self { conn, written_count: Mutex::default(), capacity })
    }

    /// Returns the cached vector of each key. Errors count as misses.
    pub fn get(&self, keys: &[VectorKey], now: i64) -> Vec<Option<Vec<f32>>> {
        let conn = self.conn.lock();
        let read = || -> rusqlite::Result<Vec<Option<Vec<f32>>>> {
            let tx = conn.unchecked_transaction()?;
            let mut find = tx.prepare_cached("SELECT vector, used FROM vectors WHERE key = ?1")?;
            let mut touch = tx.prepare_cached("UPDATE vectors SET used = ?2 WHERE key = ?1")?;
            let mut all = Vec::new();
            for key in keys {
                let entry = find
                    .query_row([key], |row| {
                        let vector = vector_from_bytes(row.get_ref(0)?.as_blob()?);
                        Ok((vector, row.get::<_, i64>(1)?))
                    })
                    .optional()?;
                // Use is recorded to the day, which is precise enough to evict the least recently used.
                if entry.as_ref().is_some_and(|(_, used)| now - used > 86_400) {
                    touch.execute(params![key, now])?;
                }
                all.push(entry.map(|(vector, _)| vector));
            }
            drop((find, touch));
            tx.commit()?;
            Ok(all)
        };
        read().unwrap_or_else(|error| {
            tracing::warn!(%error, "the cache of embeddings cannot be read");
            vec![None; keys.len()]
        })
    }

    /// Stores vectors, and evicts the least recently used ones from time to time.
    pub fn put(&self, vectors: &[(VectorKey, Vec<f32>)], now: i64) {
        let conn = self.conn.lock();
        let write = || -> rusqlite::Result<()> {
            let tx = conn.unchecked_transaction()?;
            let mut insert =
                tx.prepare_cached("INSERT OR REPLACE INTO vectors (key, vector, used) VALUES (?1, ?2, ?3)")?;
            for (key, vector) in vectors {
                insert.execute(params![key, vector_to_bytes(vector), now])?;
            }
            drop(insert);
            let mut written_count = self.written_count.lock();
            *written_count += vectors.len();
            if *written_count >= EVICTION_INTERVAL.min(self.capacity) {
                *written_count = 0;
                let eviction =
                    "DELETE FROM vectors WHERE key IN (SELECT key FROM vectors ORDER BY used DESC LIMIT -1 OFFSET ?1)";
                tx.execute(eviction, [self.capacity])?;
            }
            tx.commit()
        };
        if let Err(error) = write() {
            tracing::warn!(%error, "embeddings could not be cached");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_survive_restart_and_oldest_are_evicted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.db");
        let cache_entry = |number: usize| (vector_key("u", "m", &number.to_string()), vec![number as f32, 1.0]);
        let cache = VectorCache::with_capacity(&path, 3).unwrap();
        for number in 0..3 {
            cache.put(&[cache_entry(number)], number as i64);
        }
        drop(cache);
        let cache = VectorCache::with_capacity(&path, 3).unwrap();
        assert_eq!(cache.get(&[cache_entry(1).0, vector_key("u", "other", "1")], 3), [Some(vec![1.0, 1.0]), None]);
        // The vector is used now, so that another one is the oldest.
        cache.get(&[cache_entry(0).0], 1_000_000);
        cache.put(&[cache_entry(3), cache_entry(4), cache_entry(5)], 500);
        let cached = cache.get(
            &[
                cache_entry(0).0,
                cache_entry(1).0,
                cache_entry(2).0,
                cache_entry(3).0,
                cache_entry(4).0,
                cache_entry(5).0,
            ],
            1_000_000,
        );
        assert!(cached[0].is_some() && cached[1].is_none() && cached[2].is_none());
        assert_eq!(cached.iter().flatten().count(), 3);
    }

    #[test]
    fn damaged_cache_is_recreated_as_private() {
        use std::{fs, os::unix::fs::PermissionsExt as _};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.db");
        fs::write(&path, "no database at all, but a text of some length to be read as one").unwrap();
        let cache = VectorCache::open(&path).unwrap();
        cache.put(&[(vector_key("u", "m", "t"), vec![1.0])], 0);
        assert_eq!(cache.get(&[vector_key("u", "m", "t")], 0), [Some(vec![1.0])]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0);
    }

    #[test]
    fn keys_separate_their_parts() {
        assert_ne!(vector_key("a", "bc", "d"), vector_key("ab", "c", "d"));
    }
}

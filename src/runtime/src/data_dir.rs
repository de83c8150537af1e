//! The data directory, and the lock that lets one gateway at a time use it: an exclusive lock on `<data>/lock`, which the
//! kernel releases when the holder ends. Commands that only read, or only add keys, do not take the lock.

use std::{
    fs::{self, File, TryLockError},
    io::{Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::files::none_if_missing;

/// The name of the lock file in the data directory.
pub const LOCK_FILE: &str = "lock";

/// The lock of a data directory, which is held until this value is dropped.
#[derive(Debug)]
pub struct DataLock {
    file: File,
}

/// The error of a data directory or of a file in it. `path` is the one that cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot use the data directory: {path}: {source}")]
pub struct DataDirError {
    pub path: PathBuf,
    pub source: Arc<std::io::Error>,
}

/// The reason why the lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another gateway serves the directory. The text describes that gateway.
    #[error("another gateway serves this data directory ({0})")]
    Held(String),
    #[error(transparent)]
    DataDir(#[from] DataDirError),
}

/// Maximum number of attempts to take the lock, because [`is_locked`] holds it for a moment.
const MAX_LOCK_ATTEMPTS: u32 = 20;
/// The pause between two attempts.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(2);

/// Takes the lock without waiting for its holder, and records this process in the file as the holder. Warns if others have
/// access to the directory.
///
/// # Errors
/// [`LockError::Held`] if another process holds the lock, or this process holds it already.
pub fn lock_data_dir(dir: &Path) -> Result<DataLock, LockError> {
    ensure_data_dir(dir)?;
    let path = dir.join(LOCK_FILE);
    let to_error = |source| DataDirError { path: path.clone(), source: Arc::new(source) };
    let mode = fs::metadata(dir).map_err(to_error)?.permissions().mode();
    if mode & 0o077 != 0 {
        // Other programs may use the directory too, so its mode is not changed.
        tracing::warn!(dir = %dir.display(), mode = format!("{:o}", mode & 0o777), "the data directory is open to others; chmod 700 it");
    }
    let mut attempts = 0;
    loop {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(to_error)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) if attempts < MAX_LOCK_ATTEMPTS => {
                attempts += 1;
                std::thread::sleep(LOCK_RETRY_DELAY);
                continue;
            }
            Err(TryLockError::WouldBlock) => return Err(LockError::Held(read_holder(&file))),
            Err(TryLockError::Error(source)) => return Err(to_error(source).into()),
        }
        // If the file was removed in between, the next process would create and lock a new file.
        let locked = file.metadata().map_err(to_error)?;
        if fs::metadata(&path).is_ok_and(|current| (current.dev(), current.ino()) == (locked.dev(), locked.ino())) {
            let mut lock = DataLock { file };
            lock.describe(&format!("pid {}", std::process::id())).map_err(to_error)?;
            return Ok(lock);
        }
    }
}

/// Returns `true` if a process holds the lock.
///
/// # Errors
/// The lock file cannot be used.
pub fn is_locked(dir: &Path) -> Result<bool, DataDirError> {
    let path = dir.join(LOCK_FILE);
    let to_error = |source| DataDirError { path: path.clone(), source: Arc::new(source) };
    let Some(file) = none_if_missing(File::open(&path)).map_err(to_error)? else { return Ok(false) };
    match file.try_lock_shared() {
        Ok(()) => file.unlock().map(|()| false).map_err(to_error),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(source)) => Err(to_error(source)),
    }
}

/// Reads the holder's description from the file.
fn read_holder(file: &File) -> String {
    let mut holder = String::new();
    // The text may be empty or incomplete, because the holder may be writing it now.
    let _ = file.take(4096).read_to_string(&mut holder);
    let holder = holder.trim();
    if holder.is_empty() { "unknown".into() } else { holder.to_owned() }
}

impl DataLock {
    /// Replaces the description of the holder, such as its pid and URL, with one short line.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn describe(&mut self, holder: &str) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        writeln!(self.file, "{holder}")?;
        self.file.flush()
    }
}

impl Drop for DataLock {
    /// Unlocks explicitly, because a child that another thread has just forked keeps the file open until it calls
    /// exec.
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::warn!(%error, "the lock of the data directory could not be released");
        }
    }
}

/// Creates the directory with mode 0700 if it does not exist.
///
/// # Errors
/// [`DataDirError`]
pub fn ensure_data_dir(dir: &Path) -> Result<(), DataDirError> {
    let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    created.map_err(|source| DataDirError { path: dir.to_owned(), source: Arc::new(source) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn lock_is_taken_while_others_check_it() {
        let dir = tempfile::tempdir().unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    is_locked(dir.path()).unwrap();
                }
            });
            let all = (0..200).all(|_| lock_data_dir(dir.path()).is_ok());
            is_done.store(true, Ordering::Relaxed);
            assert!(all);
        });
    }

    #[test]
    fn second_lock_is_refused_with_holder() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = lock_data_dir(dir.path()).unwrap();
        first.describe("pid 7 at http://127.0.0.1:1").unwrap();
        let Err(LockError::Held(holder)) = lock_data_dir(dir.path()) else { panic!("two holders") };
        assert_eq!(holder, "pid 7 at http://127.0.0.1:1");
        assert!(is_locked(dir.path()).unwrap());
        drop(first);
        assert!(!is_locked(dir.path()).unwrap());
        lock_data_dir(dir.path()).unwrap();
    }

    #[test]
    fn removed_lock_file_is_created_again() {
        let dir = tempfile::tempdir().unwrap();
        drop(lock_data_dir(dir.path()).unwrap());
        std::fs::remove_file(dir.path().join(LOCK_FILE)).unwrap();
        let _held = lock_data_dir(dir.path()).unwrap();
        assert!(matches!(lock_data_dir(dir.path()), Err(LockError::Held(_))));
    }
}

//! One gateway for one data directory: an exclusive lock on `<data>/lock` that the kernel gives back when its
//! holder ends, however it ends. Command-line tools that only add keys or read do not take it.

use std::{
    fs::{self, File, TryLockError},
    io::{Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
};

use super::{StoreError, open::ensure_data_dir};

/// The file in the data directory.
pub const LOCK_FILE: &str = "lock";

/// Held as long as this value lives.
#[derive(Debug)]
pub struct DataLock {
    file: File,
}

/// Why the lock was not given.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another gateway serves the directory; the text is what it said of itself.
    #[error("another gateway serves this data directory ({0})")]
    Held(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Takes the lock without waiting, and notes this process as its holder.
///
/// # Errors
/// [`LockError::Held`] if another process (or another lock of this one) has it.
pub fn lock_data_dir(dir: &Path) -> Result<DataLock, LockError> {
    ensure_data_dir(dir)?;
    let path = dir.join(LOCK_FILE);
    let fail = |source| StoreError::DataDir { path: path.clone(), source: Arc::new(source) };
    let mut file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(fail)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The holder may be writing its note right now: an empty or cut note is no error.
            let _ = (&mut file).take(4096).read_to_string(&mut holder);
            let holder = holder.trim();
            return Err(LockError::Held(if holder.is_empty() { "unknown".into() } else { holder.to_owned() }));
        }
        Err(TryLockError::Error(source)) => return Err(fail(source).into()),
    }
    let mut lock = DataLock { file };
    lock.describe(&format!("pid {}", std::process::id())).map_err(fail)?;
    Ok(lock)
}

impl DataLock {
    /// Replaces what others read of the holder, such as its pid and URL. One short line.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = lock_data_dir(dir.path()).unwrap();
        first.describe("pid 7 at http://127.0.0.1:1").unwrap();
        let Err(LockError::Held(holder)) = lock_data_dir(dir.path()) else { panic!("two holders") };
        assert_eq!(holder, "pid 7 at http://127.0.0.1:1");
        drop(first);
        lock_data_dir(dir.path()).unwrap();
    }
}

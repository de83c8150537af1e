//! Reads and replaces the text of the configuration file.
//!
//! A save replaces the file only if nobody changed it since it was read, and keeps the previous text beside it as `FILE.bak`.

use std::{
    fs::{self, File, Metadata, TryLockError},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use countersign_domain::changes::digest::PartHasher;
use countersign_runtime::files::{replace_file, replace_file_like};

/// The time limit for another program to save the file.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(2);
/// The pause between two attempts to lock the folder.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The reason why the file could not be read or saved.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is not a file of text in UTF-8", .0.display())]
    NotText(PathBuf),
    #[error("{} was changed in the meantime", .0.display())]
    Changed(PathBuf),
    #[error("another program is saving {}", .0.display())]
    Busy(PathBuf),
    #[error("{} cannot be written: {reason}", path.display())]
    ReadOnly { path: PathBuf, reason: String },
}

/// The configuration file, which need not exist yet.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// The path with symbolic links resolved, unless there is no file yet.
    path: PathBuf,
    /// `None` if there is no file yet.
    text: Option<String>,
}

impl ConfigFile {
    /// Reads the file at this path, if there is one.
    ///
    /// # Errors
    /// [`FileError::Unreadable`], [`FileError::NotText`]
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
        if fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(Self { path: path.to_owned(), text: None });
        }
        let path = path.canonicalize().map_err(unreadable)?;
        let text = read_text(&path)?;
        Ok(Self { path, text: Some(text) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text, which is empty if there is no file.
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Returns the hash of the text. An edit names it, so that it is refused if the file has changed.
    pub fn version(&self) -> String {
        let mut hasher = PartHasher::new("countersign.config-file.1");
        hasher.add_optional(self.text.as_deref());
        hasher.finish()
    }

    /// Returns the path at which a save keeps the previous text.
    pub fn backup_path(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".bak");
        name.into()
    }

    /// Replaces the text of the file, and keeps its mode and owner. Only its owner may read a new file.
    ///
    /// # Errors
    /// [`FileError::Changed`] if the file has changed since it was read, [`FileError::Busy`], or [`FileError::ReadOnly`]. The file
    /// then stays as it is.
    pub fn save(&self, text: &str) -> Result<(), FileError> {
        let read_only = |reason: String| FileError::ReadOnly { path: self.path.clone(), reason };
        let to_read_only = |error: io::Error| read_only(error.to_string());
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if self.text.is_none() {
            fs::create_dir_all(folder).map_err(to_read_only)?;
        }
        // The lock is held until the end of this function, so that the gateway and its command line save one after the other.
        let locked_folder = File::open(folder).map_err(to_read_only)?;
        self.lock(&locked_folder)?;
        let current = Self::read(&self.path)?;
        if current.text != self.text {
            return Err(FileError::Changed(self.path.clone()));
        }
        let Some(old) = &self.text else {
            return replace_file(&self.path, text.as_bytes(), 0o600).map_err(to_read_only);
        };
        let metadata: Metadata = fs::metadata(&self.path).map_err(to_read_only)?;
        // Renaming would replace a read-only file, but somebody protected it on purpose.
        if metadata.permissions().readonly() {
            return Err(read_only("it is read-only".to_owned()));
        }
        replace_file_like(&self.backup_path(), old.as_bytes(), &metadata).map_err(to_read_only)?;
        replace_file_like(&self.path, text.as_bytes(), &metadata).map_err(to_read_only)
    }

    /// Locks the folder of the file against other programs that save it.
    fn lock(&self, folder: &File) -> Result<(), FileError> {
        let deadline = Instant::now() + MAX_LOCK_WAIT;
        loop {
            match folder.try_lock() {
                Ok(()) => return Ok(()),
                // Some file systems have no locks. There, the comparison of the text still finds most conflicts.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return Ok(()),
                Err(_) if Instant::now() >= deadline => return Err(FileError::Busy(self.path.clone())),
                Err(_) => std::thread::sleep(LOCK_POLL_INTERVAL),
            }
        }
    }
}

/// Reads a file of limited size.
fn read_text(path: &Path) -> Result<String, FileError> {
    let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
    let meta = fs::metadata(path).map_err(unreadable)?;
    if !meta.is_file() || meta.len() > countersign_config::load::MAX_FILE_BYTES {
        return Err(FileError::NotText(path.to_owned()));
    }
    String::from_utf8(fs::read(path).map_err(unreadable)?).map_err(|_| FileError::NotText(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn save_keeps_mode_and_previous_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        fs::write(&path, "old").unwrap();
        set_mode(&path, 0o640);
        let file = ConfigFile::read(&path).unwrap();
        file.save("new").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("new", 0o640));
        let backup = dir.path().canonicalize().unwrap().join("c.yaml.bak");
        assert_eq!(file.backup_path(), backup);
        assert_eq!((fs::read_to_string(&backup).unwrap().as_str(), mode(&backup)), ("old", 0o640));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn file_that_changed_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        let missing = ConfigFile::read(&path).unwrap();
        fs::write(&path, "old").unwrap();
        let file = ConfigFile::read(&path).unwrap();
        assert_ne!(file.version(), missing.version());
        assert!(matches!(missing.save("new"), Err(FileError::Changed(_))));
        fs::write(&path, "other").unwrap();
        assert!(matches!(file.save("new"), Err(FileError::Changed(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "other");
    }

    #[test]
    fn new_file_is_private_and_its_folder_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c.yaml");
        let file = ConfigFile::read(&path).unwrap();
        assert_eq!(file.text(), "");
        file.save("new").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("new", 0o600));
        assert!(!file.backup_path().exists());
    }

    #[test]
    fn link_stays_and_its_target_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("real.yaml"), dir.path().join("c.yaml"));
        fs::write(&target, "old").unwrap();
        symlink(&target, &link).unwrap();
        ConfigFile::read(&link).unwrap().save("new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        // Neither a protected target nor a link to nothing is replaced.
        set_mode(&target, 0o444);
        assert!(matches!(ConfigFile::read(&link).unwrap().save("x"), Err(FileError::ReadOnly { .. })));
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        fs::remove_file(&target).unwrap();
        assert!(matches!(ConfigFile::read(&link), Err(FileError::Unreadable { .. })));
    }

    #[test]
    fn backup_does_not_follow_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("c.yaml"), dir.path().join("other"));
        fs::write(&path, "old").unwrap();
        fs::write(&other, "kept").unwrap();
        symlink(&other, dir.path().join("c.yaml.bak")).unwrap();
        ConfigFile::read(&path).unwrap().save("new").unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
    }

    #[test]
    fn folders_and_other_bytes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(ConfigFile::read(dir.path()), Err(FileError::NotText(_))));
        let path = dir.path().join("c.yaml");
        fs::write(&path, b"\xff").unwrap();
        assert!(matches!(ConfigFile::read(&path), Err(FileError::NotText(_))));
    }

    #[test]
    fn lock_of_another_program_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        fs::write(&path, "old").unwrap();
        let folder = File::open(dir.path()).unwrap();
        folder.lock().unwrap();
        let file = ConfigFile::read(&path).unwrap();
        assert!(matches!(file.save("new"), Err(FileError::Busy(_))));
        folder.unlock().unwrap();
        file.save("new").unwrap();
    }
}

//! Replaces files so that readers find the old or the whole new content, even after a crash, and creates private files.

use std::{
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown},
    path::Path,
};

/// Creates an empty file with mode 0600, or revokes the access of the group and others to an existing one. Never opens an
/// existing file: SQLite may have it open in this process, and closing any descriptor of a file releases the process's locks
/// on it.
///
/// # Errors
/// Those of the file system.
pub fn ensure_private_file(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = match fs::metadata(path) {
                // The path is a symbolic link to a file that does not exist yet, so nobody has it open.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(drop);
                }
                found => found?,
            };
            if found.is_file() && found.mode() & 0o077 != 0 {
                fs::set_permissions(path, Permissions::from_mode(0o600))?;
            }
            Ok(())
        }
        created => created.map(drop),
    }
}

/// Returns `None` in place of the error that a file does not exist.
///
/// # Errors
/// All other errors of the result.
pub fn none_if_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Writes a file durably, in place of an existing one. Its mode is `mode` without the bits of the umask.
///
/// # Errors
/// Those of the file system. The old file remains, unless only the sync of its folder failed.
pub fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    write_and_rename(path, bytes, mode, |_| Ok(()))
}

/// Writes a file durably, in place of an existing one, with the mode and the owner of `like`.
///
/// # Errors
/// Those of the file system, and of a change of the owner that is not permitted. The old file remains, unless only the sync of
/// its folder failed.
pub fn replace_file_like(path: &Path, bytes: &[u8], like: &Metadata) -> io::Result<()> {
    write_and_rename(path, bytes, 0o600, |file| {
        let own_metadata = file.metadata()?;
        if (own_metadata.uid(), own_metadata.gid()) != (like.uid(), like.gid()) {
            fchown(file, Some(like.uid()), Some(like.gid()))?;
        }
        // A change of the owner may clear bits of the mode.
        file.set_permissions(Permissions::from_mode(like.mode() & 0o7777))
    })
}

/// Writes a temporary file, completes it with `complete`, and renames it to `path`.
fn write_and_rename(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    complete: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(mode)).tempfile_in(folder)?;
    file.write_all(bytes)?;
    complete(file.as_file())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_file_is_created_or_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        ensure_private_file(&path).unwrap();
        assert_eq!(mode(), 0o600);
        fs::write(&path, "content").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        ensure_private_file(&path).unwrap();
        assert_eq!((mode(), fs::read(&path).unwrap().as_slice()), (0o600, &b"content"[..]));
        fs::rename(&path, dir.path().join("target")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("target"), &path).unwrap();
        for _ in 0..2 {
            ensure_private_file(&path).unwrap();
            assert_eq!(mode(), 0o600);
            let _ = fs::remove_file(dir.path().join("target"));
        }
    }

    #[test]
    fn file_is_replaced_with_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        replace_file(&path, b"new", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn file_gets_the_mode_of_the_given_metadata() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        // The umask would clear these bits of a new file.
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let like = fs::metadata(&path).unwrap();
        replace_file_like(&path, b"new", &like).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    }

    #[test]
    fn failure_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("folder");
        fs::create_dir(&path).unwrap();
        assert!(replace_file(&path, b"new", 0o600).is_err(), "a folder has the name");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

//! Replaces files so that readers find the old or the whole new content, even after a crash.

use std::{
    fs::{File, Metadata, Permissions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown},
    path::Path,
};

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
    use std::fs;

    use super::*;

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

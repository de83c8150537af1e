//! Accesses the files of one folder. No path or symbolic link leads out of the folder, not even a link that is swapped
//! in between a check and its use.

use std::{
    io::{Error, ErrorKind as IoErrorKind, Read as _, Write as _},
    os::unix::fs::fchown,
    path::{Path, PathBuf},
};

use cap_std::{
    ambient_authority,
    fs::{Dir, File, Metadata, MetadataExt as _, OpenOptions, OpenOptionsExt as _},
};
use rustix::fs::{FlockOperation, OFlags, flock};

use super::paths::{self, MAX_DEPTH, file_error, stale_error, unsynced_error};
use crate::text::has_markdown_extension;
use countersign_protocol::McpError;
use countersign_provider::text::invalid_argument;
use countersign_runtime::files::none_if_missing;

/// The maximum size of a document.
pub(crate) const MAX_FILE_BYTES: usize = 2 << 20;
/// The maximum number of files of one folder.
const MAX_FILES: usize = 200_000;
/// The prefix and the suffix of the names of incomplete files.
const TEMPORARY_NAME: (&str, &str) = (".countersign-", ".tmp");

/// The files of one folder. The folder is opened for each step, so that a moved or recreated one is noticed.
#[derive(Debug)]
pub(crate) struct Files {
    root: PathBuf,
    /// The path below the root, or an empty text for the root itself.
    folder: String,
    /// A folder below this one that belongs to another collection.
    excluded: Option<String>,
}

/// A file that may be a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileEntry {
    pub path: String,
    pub size: u64,
    pub mtime_ns: i64,
}

/// The files in a folder.
#[derive(Debug, Default)]
pub(crate) struct FolderListing {
    pub files: Vec<FileEntry>,
    /// Files that an interrupted write left behind.
    pub leftovers: Vec<String>,
    /// `true` if there were more files than the maximum.
    pub is_truncated: bool,
}

/// Returns `true` if a file with these bytes may be replaced or removed. Receives `None` if the file does not exist.
pub(crate) type ContentCheck<'a> = &'a dyn Fn(Option<&[u8]>) -> bool;

fn mtime_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

/// Returns options that follow no link and never block on the other end of a pipe. The caller must check that the file
/// is a regular one.
fn read_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.read(true).custom_flags(i32::try_from(flags.bits()).unwrap_or_default());
    options
}

impl Files {
    /// Creates access to a folder below the root. Files below `excluded`, another folder of the root, are left out.
    pub fn new(root: &Path, folder: &str, excluded: Option<&str>) -> Self {
        let relative_to_folder = |excluded: &str| match folder {
            "" => Some(excluded.to_owned()),
            folder => excluded.strip_prefix(folder)?.strip_prefix('/').map(str::to_owned),
        };
        let excluded = excluded.and_then(relative_to_folder).filter(|excluded| !excluded.is_empty());
        Self { root: root.to_owned(), folder: folder.to_owned(), excluded }
    }

    /// Returns the path of the folder, for a watcher.
    pub fn folder_path(&self) -> PathBuf {
        self.root.join(&self.folder)
    }

    fn open(&self) -> std::io::Result<Dir> {
        self.open_after(|_| Ok(()))
    }

    /// Opens the folder after `prepare` was called with its root, unless the folder is the root itself.
    fn open_after(&self, prepare: impl FnOnce(&Dir) -> std::io::Result<()>) -> std::io::Result<Dir> {
        let root = Dir::open_ambient_dir(&self.root, ambient_authority()).map_err(missing_root_error)?;
        if self.folder.is_empty() {
            return Ok(root);
        }
        reject_links(&root, &self.folder)?;
        prepare(&root)?;
        root.open_dir(&self.folder)
    }

    /// Checks the path of a document, and returns it.
    ///
    /// # Errors
    /// `VALIDATION_FAILED` if it is not the path of a document of this folder.
    pub fn check_path(&self, path: &str) -> Result<String, McpError> {
        let path = paths::check_path(path)?;
        if self.is_excluded(path) {
            return Err(invalid_argument(
                "/path",
                "path",
                "This folder holds the reference documentation, which is only read.",
            ));
        }
        Ok(path.to_owned())
    }

    fn is_excluded(&self, path: &str) -> bool {
        let contains = |excluded: &String| {
            path.strip_prefix(excluded.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.excluded.as_ref().is_some_and(contains)
    }

    /// Returns the bytes of a document; `None` if it does not exist.
    ///
    /// # Errors
    /// `FILE_SYSTEM_ERROR`
    pub fn read(&self, path: &str) -> Result<Option<Vec<u8>>, McpError> {
        match none_if_missing(self.attempt_read(path)) {
            Ok(found) => Ok(found.map(|(bytes, _)| bytes)),
            Err(error) => Err(file_error("read", path, &error)),
        }
    }

    /// Returns the bytes of a file, and its state when it was opened.
    pub(super) fn attempt_read(&self, path: &str) -> std::io::Result<(Vec<u8>, FileEntry)> {
        let folder = self.open()?;
        reject_links(&folder, path)?;
        let (bytes, metadata) = read_within(&folder, path)?;
        Ok((bytes, FileEntry { path: path.to_owned(), size: metadata.len(), mtime_ns: mtime_ns(&metadata) }))
    }

    /// Returns the paths of all documents of the folder, in order.
    ///
    /// # Errors
    /// `FILE_SYSTEM_ERROR`
    pub fn documents(&self) -> Result<Vec<String>, McpError> {
        let listing = self.walk().map_err(|error| file_error("read", "the folder", &error))?;
        Ok(listing.files.into_iter().map(|found| found.path).collect())
    }

    /// Writes a document atomically: readers see the old or the new content, even after a crash. Creates missing
    /// folders. `is_expected` checks the content that is about to be replaced.
    ///
    /// # Errors
    /// `FILE_SYSTEM_ERROR`, and `CHANGE_STALE` if the content was not expected; the file is unchanged then, unless
    /// `data.outcome` is `unknown`.
    pub fn write(&self, path: &str, bytes: &[u8], is_expected: ContentCheck<'_>) -> Result<(), McpError> {
        match self.attempt_write(path, bytes, is_expected) {
            Ok(Some(parent)) => sync_folder(&parent).map_err(|error| unsynced_error("written", path, &error)),
            Ok(None) => Err(stale_error(path)),
            Err(error) => Err(file_error("written", path, &error)),
        }
    }

    /// Writes the file and returns its folder, which is not synced yet; returns `None` if the file had unexpected content.
    fn attempt_write(&self, path: &str, bytes: &[u8], is_expected: ContentCheck<'_>) -> std::io::Result<Option<Dir>> {
        let folder = self.open_after(|root| root.create_dir_all(&self.folder))?;
        let (parent_path, name) = path.rsplit_once('/').unwrap_or(("", path));
        if !parent_path.is_empty() {
            reject_links(&folder, parent_path)?;
            folder.create_dir_all(parent_path)?;
        }
        // From here on, paths are relative to the open folder, because its own path may lead to another folder later.
        let parent = if parent_path.is_empty() { folder } else { folder.open_dir(parent_path)? };
        let replaced = none_if_missing(parent.symlink_metadata(name))?;
        if replaced.as_ref().is_some_and(|metadata| !metadata.is_file()) {
            return Err(Error::new(IoErrorKind::InvalidInput, "something other than a file has this name"));
        }
        let temporary = format!("{}{}{}", TEMPORARY_NAME.0, nanoid::nanoid!(), TEMPORARY_NAME.1);
        let write = || -> std::io::Result<bool> {
            let mut file = create_locked(&parent, &temporary)?;
            if let Some(replaced) = &replaced {
                keep_owner(&file, replaced);
                file.set_permissions(replaced.permissions())?;
            }
            file.write_all(bytes)?;
            file.sync_all()?;
            let present = none_if_missing(read_within(&parent, name))?;
            if !is_expected(present.as_ref().map(|(bytes, _)| bytes.as_slice())) {
                return Ok(false);
            }
            parent.rename(&temporary, &parent, name).map(|()| true)
        };
        match write() {
            Ok(true) => Ok(Some(parent)),
            outcome => {
                let _ = parent.remove_file(&temporary);
                outcome.map(|_| None)
            }
        }
    }

    /// Removes a document, if it exists. `is_expected` checks its content just before.
    ///
    /// # Errors
    /// `FILE_SYSTEM_ERROR`, and `CHANGE_STALE` if the content was not expected; the file still exists then, unless
    /// `data.outcome` is `unknown`.
    pub fn remove(&self, path: &str, is_expected: ContentCheck<'_>) -> Result<(), McpError> {
        let attempt = || -> std::io::Result<Option<Dir>> {
            let folder = self.open()?;
            reject_links(&folder, path)?;
            let (parent_path, name) = path.rsplit_once('/').unwrap_or(("", path));
            let parent = if parent_path.is_empty() { folder } else { folder.open_dir(parent_path)? };
            let (bytes, _) = read_within(&parent, name)?;
            if !is_expected(Some(&bytes)) {
                return Ok(None);
            }
            parent.remove_file(name)?;
            Ok(Some(parent))
        };
        match attempt() {
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(()),
            Ok(Some(parent)) => sync_folder(&parent).map_err(|error| unsynced_error("removed", path, &error)),
            Ok(None) => Err(stale_error(path)),
            Err(error) => Err(file_error("removed", path, &error)),
        }
    }

    /// Lists the folder without following symbolic links; empty if it does not exist.
    pub fn walk(&self) -> std::io::Result<FolderListing> {
        let mut listing = FolderListing::default();
        if let Some(folder) = none_if_missing(self.open())? {
            self.walk_into(&folder, "", 0, &mut listing)?;
        }
        listing.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(listing)
    }

    fn walk_into(&self, folder: &Dir, path: &str, depth: usize, listing: &mut FolderListing) -> std::io::Result<()> {
        for entry in folder.entries()? {
            if listing.files.len() >= MAX_FILES {
                listing.is_truncated = true;
                return Ok(());
            }
            let entry = entry?;
            // A name that is not UTF-8 cannot be the path of a document.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            // A file that disappears in the meantime is skipped.
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_file() && name.starts_with(TEMPORARY_NAME.0) && name.ends_with(TEMPORARY_NAME.1) {
                listing.leftovers.push(path);
                continue;
            }
            if name.starts_with('.') || self.is_excluded(&path) {
                continue;
            }
            if kind.is_dir() && depth < MAX_DEPTH {
                match entry.open_dir() {
                    Ok(inner) => self.walk_into(&inner, &path, depth + 1, listing)?,
                    Err(error) => tracing::debug!(path, %error, "a folder of documents cannot be read"),
                }
            } else if kind.is_file() && has_markdown_extension(&name) && paths::check_path(&path).is_ok() {
                let Ok(metadata) = entry.metadata() else { continue };
                listing.files.push(FileEntry { path, size: metadata.len(), mtime_ns: mtime_ns(&metadata) });
            }
        }
        Ok(())
    }

    /// Removes files that an interrupted write left behind, but not those of a write that still runs.
    pub(super) fn remove_leftovers(&self, leftovers: &[String]) {
        let Ok(folder) = self.open() else { return };
        for path in leftovers {
            if let Err(error) = remove_unlocked(&folder, path) {
                tracing::debug!(path, %error, "a temporary file cannot be removed");
            }
        }
    }

    /// Returns the schemas of the project's own types, with their paths. A text longer than `max_bytes` is cut to one byte
    /// more, so that it is still too long.
    pub(super) fn schemas(&self, max_bytes: usize) -> Vec<(String, String)> {
        let mut all = Vec::new();
        let Ok(folder) = self.open().and_then(|folder| folder.open_dir("schemas")) else { return all };
        let Ok(entries) = folder.entries() else { return all };
        for entry in entries.flatten().take(1000) {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if ![".schema.yaml", ".schema.yml", ".schema.json"].iter().any(|suffix| name.ends_with(suffix)) {
                continue;
            }
            let Ok(file) = folder.open_with(&name, &read_options()) else { continue };
            let mut text = String::new();
            let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
            if is_file && file.take(max_bytes as u64 + 1).read_to_string(&mut text).is_ok() {
                all.push((format!("schemas/{name}"), text));
            }
        }
        all.sort();
        all
    }
}

/// Returns the error for a root that cannot be opened. A missing root must not look like missing documents, because it does not
/// mean that they were removed.
fn missing_root_error(error: Error) -> Error {
    match error.kind() {
        IoErrorKind::NotFound => Error::other("the root of the project does not exist"),
        _ => error,
    }
}

/// Reads a regular file of the folder, and returns its state when it was opened.
fn read_within(folder: &Dir, path: &str) -> std::io::Result<(Vec<u8>, Metadata)> {
    let file = folder.open_with(path, &read_options())?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Error::new(IoErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(Error::from(IoErrorKind::FileTooLarge));
    }
    Ok((bytes, metadata))
}

/// Creates a temporary file and locks it while it is open, so that [`Files::remove_leftovers`] does not remove it, not even
/// in another process.
fn create_locked(folder: &Dir, name: &str) -> std::io::Result<File> {
    loop {
        let file = folder.open_with(name, OpenOptions::new().write(true).create_new(true))?;
        // A file system without locks keeps all leftovers.
        let is_locked = flock(&file, FlockOperation::LockExclusive).is_ok();
        // The file may have been removed before it was locked.
        if !is_locked || file.metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// Gives a new file the owner and the group of the file that it replaces, as far as the gateway may do so: its mode alone could
/// lock out those who could use the old file.
fn keep_owner(file: &File, replaced: &Metadata) {
    if fchown(file, Some(replaced.uid()), Some(replaced.gid())).is_err() {
        let _ = fchown(file, None, Some(replaced.gid()));
    }
}

/// Removes a file unless it is locked.
fn remove_unlocked(folder: &Dir, path: &str) -> std::io::Result<()> {
    let file = folder.open_with(path, &read_options())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    folder.remove_file(path)
}

/// Syncs the folder, so that its entries survive a crash.
fn sync_folder(folder: &Dir) -> std::io::Result<()> {
    // The existing handle may be opened with `O_PATH`, which cannot be synced.
    folder.open(".")?.sync_all()
}

/// Fails if a part of the path is a symbolic link, so that each file has only one path.
fn reject_links(folder: &Dir, path: &str) -> std::io::Result<()> {
    let ends = path.match_indices('/').map(|(offset, _)| offset).chain([path.len()]);
    for end in ends {
        let Some(metadata) = none_if_missing(folder.symlink_metadata(path.get(..end).unwrap_or(path)))? else { break };
        if metadata.is_symlink() {
            return Err(Error::new(IoErrorKind::InvalidInput, "a symbolic link is on its path"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use countersign_protocol::ErrorKind;

    /// Replaces and removes a file whose folder cannot be synced, because nothing more can be opened. This takes a process of
    /// its own, because the limit applies to all threads.
    #[test]
    fn unsynced_change_has_an_unknown_outcome() {
        const ROOT: &str = "DOCS_UNSYNCED_ROOT";
        let Some(root) = std::env::var_os(ROOT) else {
            let root = tempfile::tempdir().unwrap();
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "library::files::tests::unsynced_change_has_an_unknown_outcome"])
                .env(ROOT, root.path())
                .output()
                .unwrap();
            assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
            return;
        };
        let files = Files::new(Path::new(&root), "know", None);
        let limit = getrlimit(Resource::Nofile);
        let forbid_opening = |_: Option<&[u8]>| {
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
            true
        };
        let written = files.write("new/a.md", b"content", &forbid_opening);
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(files.read("new/a.md").unwrap().unwrap(), b"content");
        let removed = files.remove("new/a.md", &forbid_opening);
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(files.read("new/a.md").unwrap(), None);
        for outcome in [written, removed] {
            let error = outcome.unwrap_err();
            assert_eq!((error.kind, &error.data["outcome"]), (ErrorKind::FileSystem, &"unknown".into()));
        }
    }

    #[test]
    fn missing_root_is_not_a_missing_document() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(&root.path().join("gone"), "know", None);
        let accept_any = |_: Option<&[u8]>| true;
        for outcome in [files.read("a.md").map(drop), files.remove("a.md", &accept_any), files.documents().map(drop)] {
            let error = outcome.unwrap_err();
            assert!(error.message.ends_with("the root of the project does not exist"), "{error}");
        }
        // The folder of the documents may be created later.
        assert_eq!(Files::new(root.path(), "know", None).read("a.md").unwrap(), None);
    }

    #[test]
    fn running_write_keeps_its_temporary_file() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), "know", None);
        // The content is checked while the temporary file exists, and a scan may come at any time.
        let scan = |_: Option<&[u8]>| {
            let walked = files.walk().unwrap();
            files.remove_leftovers(&walked.leftovers);
            walked.leftovers.len() == 1
        };
        files.write("new/a.md", b"content", &scan).unwrap();
        assert_eq!(files.read("new/a.md").unwrap().unwrap(), b"content");
        assert!(files.walk().unwrap().leftovers.is_empty());
    }
}

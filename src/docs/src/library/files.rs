//! The files of one folder. Nothing leads out of it: neither a path nor a symbolic link, nor one that is put there between a
//! look and a step.

use std::{
    io::{Error, ErrorKind as Io, Read as _, Write as _},
    path::{Path, PathBuf},
};

use cap_std::{
    ambient_authority,
    fs::{Dir, Metadata, MetadataExt as _, OpenOptions, OpenOptionsExt as _},
};
use rustix::fs::OFlags;

use super::paths::{self, MAX_DEPTH, failed, is_document, moved};
use countersign_protocol::McpError;
use countersign_provider::text::invalid_argument;

/// Bytes of a document.
pub(crate) const MAX_FILE: usize = 2 << 20;
/// Files of one folder that are looked at.
const MAX_FILES: usize = 200_000;
/// What files are called that are not whole yet.
const TEMPORARY: (&str, &str) = (".countersign-", ".tmp");

/// See the module's page. Opened anew for each step, so that a folder that was moved or made anew is the one that is there.
#[derive(Debug)]
pub(crate) struct Files {
    root: PathBuf,
    /// Below the root; empty for the root itself.
    folder: String,
    /// A folder below this one that belongs to others.
    except: Option<String>,
}

/// A file that may be a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub path: String,
    pub size: u64,
    pub mtime_ns: i64,
}

/// What a folder has.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub files: Vec<Found>,
    /// Files that were left behind while they were written.
    pub leftovers: Vec<String>,
    /// There were more than are looked at.
    pub cut: bool,
}

/// Whether these bytes may be replaced or removed; `None` is that nothing is there.
pub(crate) type Expected<'a> = &'a dyn Fn(Option<&[u8]>) -> bool;

fn mtime_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

/// Only a regular file, and never waiting for the other end of something that is none.
fn plain() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.read(true).custom_flags(i32::try_from(flags.bits()).unwrap_or_default());
    options
}

impl Files {
    /// `other` is a folder of the same root whose files are not of this one.
    pub fn new(root: &Path, folder: &str, other: Option<&str>) -> Self {
        let within = |other: &str| match folder {
            "" => Some(other.to_owned()),
            folder => other.strip_prefix(folder)?.strip_prefix('/').map(str::to_owned),
        };
        let except = other.and_then(within).filter(|other| !other.is_empty());
        Self { root: root.to_owned(), folder: folder.to_owned(), except }
    }

    /// Where it is, for whoever watches it.
    pub fn location(&self) -> PathBuf {
        self.root.join(&self.folder)
    }

    fn open(&self) -> std::io::Result<Dir> {
        let root = Dir::open_ambient_dir(&self.root, ambient_authority())?;
        if self.folder.is_empty() {
            return Ok(root);
        }
        no_links(&root, &self.folder)?;
        root.open_dir(&self.folder)
    }

    /// As [`Files::open`], and makes it where it is not there.
    fn open_or_make(&self) -> std::io::Result<Dir> {
        let root = Dir::open_ambient_dir(&self.root, ambient_authority())?;
        if self.folder.is_empty() {
            return Ok(root);
        }
        no_links(&root, &self.folder)?;
        root.create_dir_all(&self.folder)?;
        root.open_dir(&self.folder)
    }

    /// A path in the one way in which it is written.
    ///
    /// # Errors
    /// `VALIDATION_FAILED` for whatever is not the path of a document of this folder.
    pub fn check(&self, path: &str) -> Result<String, McpError> {
        let path = paths::checked(path)?;
        if self.is_except(&path) {
            return Err(invalid_argument(
                "/path",
                "path",
                "This folder holds the reference documentation, which is only read.",
            ));
        }
        Ok(path)
    }

    fn is_except(&self, path: &str) -> bool {
        let within = |except: &String| {
            path.strip_prefix(except.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.except.as_ref().is_some_and(within)
    }

    /// The bytes of a document; none where it is not there.
    ///
    /// # Errors
    /// `FILE_SYSTEM_ERROR`
    pub fn read(&self, path: &str) -> Result<Option<Vec<u8>>, McpError> {
        match self.attempt_read(path) {
            Err(error) if error.kind() == Io::NotFound => Ok(None),
            Err(error) => Err(failed("read", path, &error)),
            Ok((bytes, _)) => Ok(Some(bytes)),
        }
    }

    /// The bytes of a file, and what it was like when it was opened.
    pub(super) fn attempt_read(&self, path: &str) -> std::io::Result<(Vec<u8>, Found)> {
        let folder = self.open()?;
        no_links(&folder, path)?;
        let (bytes, metadata) = read_within(&folder, path)?;
        Ok((bytes, Found { path: path.to_owned(), size: metadata.len(), mtime_ns: mtime_ns(&metadata) }))
    }

    /// The paths of all documents of the folder, in order.
    ///
    /// # Errors
    /// `FILE_SYSTEM_ERROR`
    pub fn documents(&self) -> Result<Vec<String>, McpError> {
        let walked = self.walk().map_err(|error| failed("read", "the folder", &error))?;
        Ok(walked.files.into_iter().map(|found| found.path).collect())
    }

    /// Writes a document as a whole: whoever reads it sees it as it was or as it is, also after the machine has stopped in
    /// between. Makes the folders that it lies in. `is_expected` is asked about what the new bytes are about to replace, just
    /// before they do.
    ///
    /// # Errors
    /// `FILE_SYSTEM_ERROR`, and `CHANGE_STALE` where that is not what was expected; the file is as it was then.
    pub fn write(&self, path: &str, bytes: &[u8], is_expected: Expected<'_>) -> Result<(), McpError> {
        match self.attempt_write(path, bytes, is_expected) {
            Ok(true) => Ok(()),
            Ok(false) => Err(moved(path)),
            Err(error) => Err(failed("written", path, &error)),
        }
    }

    /// Whether it was written: it was not if something else was there than was expected.
    fn attempt_write(&self, path: &str, bytes: &[u8], is_expected: Expected<'_>) -> std::io::Result<bool> {
        let folder = self.open_or_make()?;
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if !parent.is_empty() {
            no_links(&folder, parent)?;
            folder.create_dir_all(parent)?;
        }
        // From here on by the folder itself: what its path leads to may change.
        let within = if parent.is_empty() { folder } else { folder.open_dir(parent)? };
        let permissions = match within.symlink_metadata(name) {
            Ok(metadata) if metadata.is_file() => Some(metadata.permissions()),
            Ok(_) => return Err(Error::new(Io::InvalidInput, "something else than a file has its name")),
            Err(error) if error.kind() == Io::NotFound => None,
            Err(error) => return Err(error),
        };
        let temporary = format!("{}{}{}", TEMPORARY.0, nanoid::nanoid!(), TEMPORARY.1);
        let written = || -> std::io::Result<bool> {
            let mut options = OpenOptions::new();
            let mut file = within.open_with(&temporary, options.write(true).create_new(true))?;
            if let Some(permissions) = permissions {
                file.set_permissions(permissions)?;
            }
            file.write_all(bytes)?;
            file.sync_all()?;
            let present = match read_within(&within, name) {
                Ok((bytes, _)) => Some(bytes),
                Err(error) if error.kind() == Io::NotFound => None,
                Err(error) => return Err(error),
            };
            if !is_expected(present.as_deref()) {
                return Ok(false);
            }
            within.rename(&temporary, &within, name).map(|()| true)
        };
        let outcome = written();
        match outcome {
            Ok(true) => durable(&within).map(|()| true),
            _ => {
                let _ = within.remove_file(&temporary);
                outcome
            }
        }
    }

    /// Removes a document; one that is not there is removed. `is_expected` is asked about its bytes just before.
    ///
    /// # Errors
    /// `FILE_SYSTEM_ERROR`, and `CHANGE_STALE` where they are not what was expected; the file is there then.
    pub fn remove(&self, path: &str, is_expected: Expected<'_>) -> Result<(), McpError> {
        let attempt = || -> std::io::Result<bool> {
            let folder = self.open()?;
            no_links(&folder, path)?;
            let (bytes, _) = read_within(&folder, path)?;
            if !is_expected(Some(&bytes)) {
                return Ok(false);
            }
            folder.remove_file(path)?;
            match path.rsplit_once('/') {
                Some((parent, _)) => durable(&folder.open_dir(parent)?)?,
                None => durable(&folder)?,
            }
            Ok(true)
        };
        match attempt() {
            Err(error) if error.kind() == Io::NotFound => Ok(()),
            Ok(true) => Ok(()),
            Ok(false) => Err(moved(path)),
            Err(error) => Err(failed("removed", path, &error)),
        }
    }

    /// What the folder has; nothing where it is not there. Follows no symbolic link.
    pub fn walk(&self) -> std::io::Result<Walked> {
        let mut walked = Walked::default();
        // A root that is away says nothing about what it has.
        Dir::open_ambient_dir(&self.root, ambient_authority())?;
        match self.open() {
            Ok(folder) => self.walk_into(&folder, "", 0, &mut walked)?,
            Err(error) if error.kind() == Io::NotFound => {}
            Err(error) => return Err(error),
        }
        walked.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(walked)
    }

    fn walk_into(&self, folder: &Dir, path: &str, depth: usize, walked: &mut Walked) -> std::io::Result<()> {
        for entry in folder.entries()? {
            if walked.files.len() >= MAX_FILES {
                walked.cut = true;
                return Ok(());
            }
            let entry = entry?;
            // A name that is no text can be no path of a document.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            // What goes away meanwhile is not there.
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_file() && name.starts_with(TEMPORARY.0) && name.ends_with(TEMPORARY.1) {
                walked.leftovers.push(path);
            } else if name.starts_with('.') || self.is_except(&path) {
            } else if kind.is_dir() && depth < MAX_DEPTH {
                match entry.open_dir() {
                    Ok(inner) => self.walk_into(&inner, &path, depth + 1, walked)?,
                    Err(error) => tracing::debug!(path, %error, "a folder of documents cannot be read"),
                }
            } else if kind.is_file() && is_document(&name) && paths::checked(&path).is_ok_and(|checked| checked == path)
            {
                let Ok(metadata) = entry.metadata() else { continue };
                walked.files.push(Found { path, size: metadata.len(), mtime_ns: mtime_ns(&metadata) });
            }
        }
        Ok(())
    }

    /// Removes what was left behind while it was written.
    pub(super) fn sweep(&self, leftovers: &[String]) {
        let Ok(folder) = self.open() else { return };
        for path in leftovers {
            if let Err(error) = folder.remove_file(path) {
                tracing::debug!(path, %error, "a temporary file cannot be removed");
            }
        }
    }

    /// The schemas of the project's own types, with their paths.
    pub(super) fn schemas(&self, max: usize) -> Vec<(String, String)> {
        let mut all = Vec::new();
        let Ok(folder) = self.open().and_then(|folder| folder.open_dir("schemas")) else { return all };
        let Ok(entries) = folder.entries() else { return all };
        for entry in entries.flatten().take(1000) {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if ![".schema.yaml", ".schema.yml", ".schema.json"].iter().any(|end| name.ends_with(end)) {
                continue;
            }
            let Ok(file) = folder.open_with(&name, &plain()) else { continue };
            let mut text = String::new();
            let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
            if is_file && file.take(max as u64 + 1).read_to_string(&mut text).is_ok() {
                all.push((format!("schemas/{name}"), text));
            }
        }
        all.sort();
        all
    }
}

/// Reads a regular file of the folder, and what it was like when it was opened.
fn read_within(folder: &Dir, path: &str) -> std::io::Result<(Vec<u8>, Metadata)> {
    let file = folder.open_with(path, &plain())?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Error::new(Io::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    // It may grow while it is read.
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_FILE {
        return Err(Error::from(Io::FileTooLarge));
    }
    Ok((bytes, metadata))
}

/// What the folder says of its files outlives a stop of the machine.
fn durable(folder: &Dir) -> std::io::Result<()> {
    // Its own handle may only lead to others.
    folder.open(".")?.sync_all()
}

/// No part of the path is a symbolic link: one file has one path.
fn no_links(folder: &Dir, path: &str) -> std::io::Result<()> {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    for end in ends {
        match folder.symlink_metadata(path.get(..end).unwrap_or(path)) {
            Ok(metadata) if metadata.is_symlink() => {
                return Err(Error::new(Io::InvalidInput, "a symbolic link is on its path"));
            }
            Ok(_) => {}
            Err(error) if error.kind() == Io::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

//! Copies the databases of a data directory while the gateway runs. Each copy is one snapshot, which is written to a
//! temporary file, checked, and then renamed. Writers are not blocked.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags, backup::Backup};
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};

use super::{
    open::{database_path, open_reader},
    sql::{has_table, run},
    verify::verify_connection,
};
use crate::{
    StoreError, VerifiedTrail, VerifyError,
    statements::facts::{self, BACKUP_FACT},
};

/// The file name of the built-in tracker's database, and the suffix of its copy.
const TRACKER_FILE: &str = "tracker.db";
const TRACKER_SUFFIX: &str = ".tracker";

/// The result of a backup.
#[derive(Debug)]
pub struct BackupReport {
    pub trail: VerifiedTrail,
    /// The size of the store's copy in bytes.
    pub bytes: u64,
    /// The tracker's copy, if there is a tracker.
    pub tracker: Option<PathBuf>,
}

/// The reason why no backup was made. An existing file at the destination is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{0} exists; choose another name, or give --force to replace it")]
    Exists(PathBuf),
    #[error("{0} is not a regular file; choose another name")]
    NotAFile(PathBuf),
    #[error("{0} is in the data directory; choose a destination outside of it")]
    Inside(PathBuf),
    #[error("the backup {path} cannot be written: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("the copy is damaged and was removed ({0}); check the disks and try again")]
    Bad(String),
    #[error("the copy was removed, because its audit trail is broken: {0}")]
    Trail(#[from] countersign_domain::changes::audit::TrailError),
    #[error(
        "the store is in PostgreSQL; back it up with pg_dump or a base backup \
         (docs/postgresql.md#backup-and-restore)"
    )]
    Server,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the path of the tracker's copy beside the store's copy.
pub fn tracker_copy(to: &Path) -> PathBuf {
    let mut name = to.as_os_str().to_owned();
    name.push(TRACKER_SUFFIX);
    name.into()
}

/// Copies the store of the data directory to `to` (mode 0600), and the tracker's database, if any, beside it
/// ([`tracker_copy`]). Checks each page of the copies and each entry of the audit trail, and syncs the files. The copy
/// is marked, so that a gateway that starts on it knows that it is a backup.
///
/// # Errors
/// [`BackupError`]
pub fn backup(dir: &Path, to: &Path, replace: bool, now: Timestamp) -> Result<BackupReport, BackupError> {
    let tracker = dir.join(TRACKER_FILE);
    let copy = tracker_copy(to);
    let has_tracker = tracker.exists();
    check_destination(dir, to)?;
    for destination in [Some(to), has_tracker.then_some(copy.as_path())].into_iter().flatten() {
        // A link counts as what it is, because the copy would replace it and not the file that it leads to.
        match fs::symlink_metadata(destination) {
            Ok(found) if !found.is_file() => return Err(BackupError::NotAFile(destination.to_owned())),
            Ok(_) if !replace => return Err(BackupError::Exists(destination.to_owned())),
            Ok(_) | Err(_) => {}
        }
    }
    // The store is copied first. The tracker's copy may then contain later writes, which a gateway on the copy
    // expects.
    let store = TemporaryCopy::new(to)?;
    let source = open_reader(dir)?;
    let conn = store.copy_from(&source)?;
    let trail = match verify_connection(&conn, None) {
        Ok(trail) => trail,
        Err(VerifyError::Broken(broken)) => return Err(broken.into()),
        Err(VerifyError::Store(error)) => return Err(error.into()),
    };
    mark_as_backup(&conn, now)?;
    drop(conn);
    let mut tracker_draft = None;
    if has_tracker {
        let draft = TemporaryCopy::new(&copy)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let source = Connection::open_with_flags(&tracker, flags).map_err(StoreError::from)?;
        drop(draft.copy_from(&source)?);
        tracker_draft = Some(draft);
    }
    let bytes = store.move_into_place(replace)?;
    let tracker = tracker_draft.map(|draft| draft.move_into_place(replace).map(|_| copy)).transpose()?;
    Ok(BackupReport { trail, bytes, tracker })
}

/// Refuses a destination in the data directory or below it, because the backup could overwrite the live database, and would be
/// lost with the directory.
fn check_destination(dir: &Path, to: &Path) -> Result<(), BackupError> {
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let real = |path: &Path| fs::canonicalize(path).ok();
    let data = real(dir);
    let inside = real(parent).is_some_and(|parent| parent.ancestors().any(|folder| data.as_deref() == Some(folder)))
        || real(to).is_some_and(|to| real(&database_path(dir)) == Some(to));
    if inside { Err(BackupError::Inside(to.to_owned())) } else { Ok(()) }
}

/// Marks the copy as a backup, so that a gateway knows that approved changes may have been run since.
fn mark_as_backup(conn: &Connection, now: Timestamp) -> Result<(), StoreError> {
    if has_table(conn, "facts")? {
        run(facts::set(conn, BACKUP_FACT, Some(&now.to_string())))?;
    }
    Ok(())
}

/// Gives the file a new name, unless a file of that name was created meanwhile. Its old name may remain, too.
fn move_to_new_file(path: &Path, to: &Path) -> io::Result<()> {
    // Unlike a plain rename, a link never replaces a file.
    match fs::hard_link(path, to) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => rename_to_new_file(path, to),
        linked => linked,
    }
}

/// Renames the file, unless a file of the new name exists. Unlike a link, this also works on FAT, exFAT and some network
/// shares.
fn rename_to_new_file(path: &Path, to: &Path) -> io::Result<()> {
    renameat_with(CWD, path, CWD, to, RenameFlags::NOREPLACE).map_err(|error| match error {
        Errno::INVAL | Errno::NOSYS | Errno::NOTSUP | Errno::PERM => io::Error::other(format!(
            "{error}; the file system may be unable to rename a file without replacing another one, so give --force, which \
             replaces a file of this name"
        )),
        error => error.into(),
    })
}

/// A copy in a temporary file, which is removed on drop.
struct TemporaryCopy {
    path: PathBuf,
    to: PathBuf,
}

impl TemporaryCopy {
    fn new(to: &Path) -> Result<Self, BackupError> {
        let mut name = to.as_os_str().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let path = PathBuf::from(name);
        let created = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        created.map_err(|source| BackupError::Write { path: path.clone(), source })?;
        Ok(Self { path, to: to.to_owned() })
    }

    /// Copies one snapshot of the source, and checks the copy.
    fn copy_from(&self, source: &Connection) -> Result<Connection, BackupError> {
        let failed = |error: rusqlite::Error| {
            let source = match StoreError::from(error) {
                StoreError::Database(error) => io::Error::other(error.to_string()),
                StoreError::DiskFull => io::ErrorKind::StorageFull.into(),
                other => return other.into(),
            };
            BackupError::Write { path: self.path.clone(), source }
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut conn = Connection::open_with_flags(&self.path, flags).map_err(failed)?;
        // One step copies all pages. In WAL mode the copy blocks nobody, and a copy in several steps would restart at
        // every write.
        Backup::new(source, &mut conn).and_then(|backup| backup.step(-1)).map_err(failed)?;
        // The copy is a single file, without a write-ahead log.
        conn.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).map_err(failed)?;
        conn.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
        let verdict: String = conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(failed)?;
        if verdict != "ok" {
            return Err(BackupError::Bad(verdict));
        }
        Ok(conn)
    }

    /// Moves the copy to its destination, durably. Returns its size in bytes.
    fn move_into_place(self, replace: bool) -> Result<u64, BackupError> {
        let failed = |source: io::Error| BackupError::Write { path: self.to.clone(), source };
        let file = fs::File::open(&self.path).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        if replace {
            fs::rename(&self.path, &self.to).map_err(failed)?;
        } else {
            move_to_new_file(&self.path, &self.to).map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => BackupError::Exists(self.to.clone()),
                _ => failed(source),
            })?;
        }
        let parent = self.to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(parent).and_then(|dir| dir.sync_all()).map_err(failed)?;
        Ok(bytes)
    }
}

impl Drop for TemporaryCopy {
    fn drop(&mut self) {
        // After a rename, the temporary file is already gone.
        let _ = fs::remove_file(&self.path);
        let mut journal = self.path.clone().into_os_string();
        journal.push("-journal");
        let _ = fs::remove_file(journal);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::{
        Store as _, StoreBackend as _,
        drafts::{created_draft, write},
        sqlite::{SqliteStore, verify::verify_audit},
    };

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    #[tokio::test]
    async fn backup_of_running_store_opens_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let out = tempfile::tempdir().unwrap();
        let to = out.path().join("copy");
        let store = SqliteStore::open(dir.path()).unwrap();
        for id in ["a", "b"] {
            write(&store, created_draft(id)).await.unwrap();
        }
        let report = backup(dir.path(), &to, false, now()).unwrap();
        assert_eq!((report.trail.entries, report.trail.changes, report.tracker), (2, 2, None));
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&to).unwrap().len(), report.bytes);
        let left: Vec<_> = fs::read_dir(out.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["copy"], "no temporary file is left");
        // The source store still accepts writes.
        write(&store, created_draft("c")).await.unwrap();
        store.close();

        let other = tempfile::tempdir().unwrap();
        fs::copy(&to, database_path(other.path())).unwrap();
        let restored = SqliteStore::open(other.path()).unwrap();
        assert!(restored.get("b").await.unwrap().is_some());
        assert!(restored.get("c").await.unwrap().is_none(), "the change was written after the backup");
        assert_eq!(write(&restored, created_draft("d")).await.unwrap().seq, 3);
        restored.close();
        verify_audit(other.path(), Some(report.trail.head)).unwrap();
    }

    #[test]
    fn backup_replaces_files_only_with_force() {
        let dir = tempfile::tempdir().unwrap();
        let out = tempfile::tempdir().unwrap();
        SqliteStore::open(dir.path()).unwrap().close();
        let to = out.path().join("copy");
        fs::write(&to, "precious").unwrap();
        assert!(matches!(backup(dir.path(), &to, false, now()), Err(BackupError::Exists(_))));
        assert_eq!(fs::read(&to).unwrap(), b"precious");
        backup(dir.path(), &to, true, now()).unwrap();
        assert!(fs::read(&to).unwrap().starts_with(b"SQLite format 3"));
        let own_database = database_path(dir.path());
        assert!(matches!(backup(dir.path(), &own_database, true, now()), Err(BackupError::Inside(_))));
        assert!(matches!(backup(dir.path(), &dir.path().join("x"), false, now()), Err(BackupError::Inside(_))));
        fs::create_dir_all(dir.path().join("backups/daily")).unwrap();
        let below = dir.path().join("backups/daily/x");
        assert!(matches!(backup(dir.path(), &below, false, now()), Err(BackupError::Inside(_))));
        assert!(matches!(backup(&out.path().join("none"), &to, true, now()), Err(BackupError::Store(_))));
        assert!(matches!(
            backup(dir.path(), &out.path().join("no/such"), false, now()),
            Err(BackupError::Write { .. })
        ));
    }

    #[test]
    fn file_is_renamed_unless_the_new_name_exists() {
        let dir = tempfile::tempdir().unwrap();
        let [path, to] = ["copy.part", "copy"].map(|name| dir.path().join(name));
        fs::write(&path, "new").unwrap();
        rename_to_new_file(&path, &to).unwrap();
        assert!(!path.exists() && fs::read(&to).unwrap() == b"new");
        fs::write(&path, "newer").unwrap();
        let refused = rename_to_new_file(&path, &to).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{refused}");
        assert_eq!((fs::read(&path).unwrap(), fs::read(&to).unwrap()), (b"newer".to_vec(), b"new".to_vec()));
    }

    #[test]
    fn backup_replaces_nothing_but_regular_files() {
        let dir = tempfile::tempdir().unwrap();
        let out = tempfile::tempdir().unwrap();
        SqliteStore::open(dir.path()).unwrap().close();
        fs::write(dir.path().join(TRACKER_FILE), "").unwrap();
        let path = |name: &str| out.path().join(name);
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        fs::write(path("target"), "precious").unwrap();
        std::os::unix::fs::symlink(path("target"), path("link")).unwrap();
        fs::create_dir(path("copy.tracker")).unwrap();
        for (name, refused) in [("socket", "socket"), ("folder", "folder"), ("link", "link"), ("copy", "copy.tracker")]
        {
            for replace in [false, true] {
                let outcome = backup(dir.path(), &path(name), replace, now());
                assert!(
                    matches!(&outcome, Err(BackupError::NotAFile(found)) if *found == path(refused)),
                    "{outcome:?}"
                );
            }
        }
        assert!(!path("copy").exists() && path("link").is_symlink());
    }

    #[tokio::test]
    async fn backup_of_tampered_store_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        write(&store, created_draft("a")).await.unwrap();
        store.close();
        crate::sqlite::open::open_writer(dir.path()).unwrap().execute("UPDATE audit SET actor = 'x'", []).unwrap();
        let to = out.path().join("copy");
        assert!(matches!(backup(dir.path(), &to, false, now()), Err(BackupError::Trail(_))));
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    }
}

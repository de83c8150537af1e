//! Copies the databases of a data directory while their gateway runs: one snapshot of each, written beside its
//! place, proved, and only then put there. Nothing that writes is held up.

use std::{
    fs,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags, backup::Backup};

use super::{
    open::{database_path, open_reader},
    verify::verify_connection,
};
use crate::{StoreError, VerifiedTrail, VerifyError};

/// The built-in tracker's database in a data directory, and what its copy's name ends with.
const TRACKER_FILE: &str = "tracker.db";
const TRACKER_SUFFIX: &str = ".tracker";

/// The result of a backup.
#[derive(Debug)]
pub struct BackupReport {
    pub trail: VerifiedTrail,
    /// Bytes of the store's copy.
    pub bytes: u64,
    /// The tracker's copy, if there is a tracker.
    pub tracker: Option<PathBuf>,
}

/// The reason why there is no backup. An earlier file at its place is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{0} exists; choose another name, or give --force to replace it")]
    Exists(PathBuf),
    #[error("{0} belongs to the data directory itself; choose a place outside of it")]
    Inside(PathBuf),
    #[error("the backup {path} cannot be written: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("the copy cannot be trusted and was not kept: {0}")]
    Bad(String),
    #[error("the copy was not kept, since its audit trail does not hold: {0}")]
    Trail(#[from] countersign_domain::changes::audit::TrailError),
    #[error(
        "the store is in PostgreSQL, whose own tools back it up: pg_dump, or a base backup \
         (docs/postgresql.md#backup-and-restore)"
    )]
    Server,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the name of the tracker's copy beside the store's.
#[must_use]
pub fn tracker_copy(to: &Path) -> PathBuf {
    let mut name = to.as_os_str().to_owned();
    name.push(TRACKER_SUFFIX);
    name.into()
}

/// Copies the store of the data directory to `to` (mode 0600), and the tracker's database, if there is one, beside it
/// ([`tracker_copy`]). Each copy is checked page by page, the audit trail entry by entry, and is on the disk when this
/// returns. A gateway that starts on the copy knows that it is one.
///
/// # Errors
/// [`BackupError`]
pub fn backup(dir: &Path, to: &Path, replace: bool, now: Timestamp) -> Result<BackupReport, BackupError> {
    let tracker = dir.join(TRACKER_FILE);
    let copy = tracker_copy(to);
    let tracked = tracker.exists();
    check_place(dir, to)?;
    for place in [Some(to), tracked.then_some(copy.as_path())].into_iter().flatten() {
        if !replace && place.exists() {
            return Err(BackupError::Exists(place.to_owned()));
        }
    }
    // The store first: what the tracker has done since is in its copy too, and the store's says that it is older.
    let store = Draft::new(to)?;
    let source = open_reader(dir)?;
    let conn = store.copy(&source)?;
    let trail = match verify_connection(&conn, None) {
        Ok(trail) => trail,
        Err(VerifyError::Broken(broken)) => return Err(broken.into()),
        Err(VerifyError::Store(error)) => return Err(error.into()),
    };
    mark(&conn, now)?;
    drop(conn);
    let other = if tracked {
        let draft = Draft::new(&copy)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let source = Connection::open_with_flags(&tracker, flags).map_err(StoreError::from)?;
        drop(draft.copy(&source)?);
        Some(draft)
    } else {
        None
    };
    let bytes = store.keep(replace)?;
    let tracker = other.map(|draft| draft.keep(replace).map(|_| copy)).transpose()?;
    Ok(BackupReport { trail, bytes, tracker })
}

/// A backup over the live database would destroy it.
fn check_place(dir: &Path, to: &Path) -> Result<(), BackupError> {
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let real = |path: &Path| fs::canonicalize(path).ok();
    let inside = real(parent).is_some_and(|parent| real(dir) == Some(parent))
        || real(to).is_some_and(|to| real(&database_path(dir)) == Some(to));
    if inside { Err(BackupError::Inside(to.to_owned())) } else { Ok(()) }
}

/// Marks the copy as a backup, so that a gateway knows that approved changes may have run since.
fn mark(conn: &Connection, now: Timestamp) -> Result<(), BackupError> {
    let known = "SELECT count(*) FROM sqlite_schema WHERE name = 'facts'";
    let known: i64 = conn.query_row(known, [], |row| row.get(0)).map_err(StoreError::from)?;
    if known > 0 {
        conn.execute("INSERT OR REPLACE INTO facts (name, value) VALUES ('backup_of', ?1)", [now.to_string()])
            .map_err(StoreError::from)?;
    }
    Ok(())
}

/// A copy that is not at its place yet. It is removed unless it is kept.
struct Draft {
    path: PathBuf,
    to: PathBuf,
}

impl Draft {
    fn new(to: &Path) -> Result<Self, BackupError> {
        let mut name = to.as_os_str().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let path = PathBuf::from(name);
        let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        made.map_err(|source| BackupError::Write { path: path.clone(), source })?;
        Ok(Self { path, to: to.to_owned() })
    }

    /// Copies one snapshot of the source, and checks the copy.
    fn copy(&self, source: &Connection) -> Result<Connection, BackupError> {
        let failed = |error: rusqlite::Error| match StoreError::from(error) {
            StoreError::Database(error) => {
                let source = std::io::Error::other(error.to_string());
                BackupError::Write { path: self.path.clone(), source }
            }
            StoreError::DiskFull => {
                let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
                BackupError::Write { path: self.path.clone(), source }
            }
            other => other.into(),
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut conn = Connection::open_with_flags(&self.path, flags).map_err(failed)?;
        // All in one step: in WAL mode a reader holds up nobody, and a copy in pieces would begin anew at every write.
        Backup::new(source, &mut conn).and_then(|backup| backup.step(-1)).map_err(failed)?;
        // One file, without a log beside it.
        conn.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).map_err(failed)?;
        conn.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
        let verdict: String = conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(failed)?;
        if verdict != "ok" {
            return Err(BackupError::Bad(verdict));
        }
        Ok(conn)
    }

    /// Moves the copy to its place, durably.
    fn keep(self, replace: bool) -> Result<u64, BackupError> {
        let failed = |source: std::io::Error| BackupError::Write { path: self.to.clone(), source };
        let file = fs::File::open(&self.path).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        if replace {
            fs::rename(&self.path, &self.to).map_err(failed)?;
        } else {
            // Unlike a rename, a link never takes the place of a file that somebody put there meanwhile.
            fs::hard_link(&self.path, &self.to).map_err(|source| match source.kind() {
                std::io::ErrorKind::AlreadyExists => BackupError::Exists(self.to.clone()),
                _ => failed(source),
            })?;
        }
        let parent = self.to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(parent).and_then(|dir| dir.sync_all()).map_err(failed)?;
        Ok(bytes)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone already where it was renamed.
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
        drafts::{created, write},
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
            write(&store, created(id)).await.unwrap();
        }
        let done = backup(dir.path(), &to, false, now()).unwrap();
        assert_eq!((done.trail.entries, done.trail.changes, done.tracker), (2, 2, None));
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&to).unwrap().len(), done.bytes);
        let left: Vec<_> = fs::read_dir(out.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["copy"], "nothing else is left behind");
        // The one that was copied goes on.
        write(&store, created("c")).await.unwrap();
        store.close();

        let other = tempfile::tempdir().unwrap();
        fs::copy(&to, database_path(other.path())).unwrap();
        let restored = SqliteStore::open(other.path()).unwrap();
        assert!(restored.get("b").await.unwrap().is_some());
        assert!(restored.get("c").await.unwrap().is_none(), "it was written later");
        assert_eq!(write(&restored, created("d")).await.unwrap().seq, 3);
        restored.close();
        verify_audit(other.path(), Some(done.trail.head)).unwrap();
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
        let own = database_path(dir.path());
        assert!(matches!(backup(dir.path(), &own, true, now()), Err(BackupError::Inside(_))));
        assert!(matches!(backup(dir.path(), &dir.path().join("x"), false, now()), Err(BackupError::Inside(_))));
        assert!(matches!(backup(&out.path().join("none"), &to, true, now()), Err(BackupError::Store(_))));
        assert!(matches!(
            backup(dir.path(), &out.path().join("no/such"), false, now()),
            Err(BackupError::Write { .. })
        ));
    }

    #[tokio::test]
    async fn backup_of_tampered_store_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        write(&store, created("a")).await.unwrap();
        store.close();
        crate::sqlite::open::open_writer(dir.path()).unwrap().execute("UPDATE audit SET actor = 'x'", []).unwrap();
        let to = out.path().join("copy");
        assert!(matches!(backup(dir.path(), &to, false, now()), Err(BackupError::Trail(_))));
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    }
}

//! Opens the database of a data directory: file modes, settings, checks and migrations.
//!
//! Refuses files of other programs, newer schemas and damaged databases. Never repairs anything silently.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use rustix::fs::Access;

use super::trail;
use crate::StoreError;
use countersign_runtime::{
    data_dir::{LOCK_FILE, ensure_data_dir},
    files::ensure_private_file,
};

/// The name of the database file in the data directory.
pub const DATABASE_FILE: &str = "countersign.db";

/// The id of our databases, `CSGN` in ASCII (`PRAGMA application_id`).
const APPLICATION_ID: i64 = 0x4353_474e;

/// The migrations in order; the schema version is the number of those that have run (`PRAGMA user_version`).
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_initial.sql"),
    include_str!("migrations/0002_tool_pins.sql"),
    include_str!("migrations/0003_pinned_targets.sql"),
    include_str!("migrations/0004_people.sql"),
    include_str!("migrations/0005_retention.sql"),
    include_str!("migrations/0006_standing_rules.sql"),
    include_str!("migrations/0007_webhooks.sql"),
    include_str!("migrations/0008_deliveries.sql"),
    include_str!("migrations/0009_trail_covers.sql"),
    include_str!("migrations/0010_large_changes.sql"),
    include_str!("migrations/0011_sign_ins.sql"),
    include_str!("migrations/0012_claims.sql"),
    include_str!("migrations/0013_sign_in_codes.sql"),
    include_str!("migrations/0014_people.sql"),
    include_str!("migrations/0015_accounts.sql"),
    include_str!("migrations/0016_plans.sql"),
    include_str!("migrations/0017_key_creators.sql"),
    include_str!("migrations/0018_absences.sql"),
    include_str!("migrations/0019_rule_counts.sql"),
];

/// The maximum wait for a write of another process, such as `countersign keys create` beside the gateway.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The size to which the log is truncated after a checkpoint.
const MAX_LOG_BYTES: i64 = 16 << 20;

/// Returns the path of the database in the directory.
pub fn database_path(dir: &Path) -> PathBuf {
    dir.join(DATABASE_FILE)
}

/// Returns the path of the write-ahead log. SQLite keeps it beside the file to which a symbolic link leads.
pub(super) fn log_path(dir: &Path) -> PathBuf {
    let database = database_path(dir);
    let mut path = fs::canonicalize(&database).unwrap_or(database).into_os_string();
    path.push("-wal");
    path.into()
}

/// Returns the path of the lock file in the directory.
pub(super) fn lock_path(dir: &Path) -> PathBuf {
    dir.join(LOCK_FILE)
}

/// Returns the device and the inode of a file.
///
/// # Errors
/// Those of the file system.
pub(super) fn file_id(path: &Path) -> std::io::Result<(u64, u64)> {
    let file = fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Opens the database for reading and writing, and creates or migrates it if needed. Other processes may do the same
/// at the same time.
///
/// # Errors
/// Every [`StoreError`] about files, or foreign, newer or damaged databases.
pub fn open_writer(dir: &Path) -> Result<Connection, StoreError> {
    open_database(dir, true)
}

/// Opens the database as [`open_writer`] does, but refuses one of an older version, because only a gateway may migrate it.
///
/// # Errors
/// As [`open_writer`]; [`StoreError::OlderFile`].
pub(super) fn open_current(dir: &Path) -> Result<Connection, StoreError> {
    open_database(dir, false)
}

fn open_database(dir: &Path, may_migrate: bool) -> Result<Connection, StoreError> {
    ensure_data_dir(dir)?;
    let path = database_path(dir);
    // Creating the file here sets its mode, which SQLite copies to the log files.
    ensure_private_file(&path).map_err(|source| StoreError::data_dir(&path, source))?;
    // SQLite would not name the reason, and would open a file that is not writable for reading only.
    rustix::fs::access(&path, Access::READ_OK | Access::WRITE_OK)
        .map_err(|error| StoreError::data_dir(&path, error.into()))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        let mut conn = Connection::open_with_flags(&path, flags).map_err(|e| add_path(&path, e.into()))?;
        match configure(&mut conn, &path, may_migrate) {
            Ok(()) => return Ok(conn),
            // SQLite does not wait where waiting could deadlock, such as for a change of the journal mode.
            Err(StoreError::Locked) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(add_path(&path, error)),
        }
    }
}

/// Opens an existing database for reading only.
///
/// # Errors
/// As [`open_writer`].
pub fn open_reader(dir: &Path) -> Result<Connection, StoreError> {
    let path = database_path(dir);
    if let Err(source) = fs::metadata(&path) {
        return Err(StoreError::data_dir(&path, source));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(&path, flags).map_err(|e| add_path(&path, e.into()))?;
    let ready = || -> Result<(), StoreError> {
        conn.busy_timeout(BUSY_TIMEOUT)?;
        check_identity(&conn, &path)?;
        conn.pragma_update(None, "query_only", true)?;
        conn.set_prepared_statement_cache_capacity(32);
        Ok(())
    };
    ready().map_err(|error| add_path(&path, error))?;
    Ok(conn)
}

fn configure(conn: &mut Connection, path: &Path, may_migrate: bool) -> Result<(), StoreError> {
    conn.busy_timeout(BUSY_TIMEOUT)?;
    if may_migrate {
        check_identity(conn, path)?;
    } else {
        read_current_version(conn, path)?;
    }
    configure_file_size(conn)?;
    conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0))?;
    // FULL means that a commit is on the disk when it returns, and survives a crash of the machine.
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "trusted_schema", false)?;
    // The unit is KiB. The upper pages of the indexes stay in memory while many changes are written.
    conn.pragma_update(None, "cache_size", -8192)?;
    conn.set_prepared_statement_cache_capacity(64);
    migrate(conn, path)?;
    Ok(())
}

/// Lets a new database shrink (see `space.rs`). Setting this in an existing database would write on every opening.
fn configure_file_size(conn: &Connection) -> rusqlite::Result<()> {
    let pages: i64 = conn.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    if pages == 0 {
        conn.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    conn.query_row(&format!("PRAGMA journal_size_limit = {MAX_LOG_BYTES}"), [], |_| Ok(()))
}

/// Refuses another program's database and a newer schema, before anything is written.
fn check_identity(conn: &Connection, path: &Path) -> Result<i64, StoreError> {
    // One snapshot is needed, because another process may be migrating the database.
    let _snapshot = if conn.is_autocommit() { Some(conn.unchecked_transaction()?) } else { None };
    let application: i64 = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let version: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let objects: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application != APPLICATION_ID && (application != 0 || objects > 0) {
        return Err(StoreError::Foreign { path: path.to_owned(), found: application });
    }
    let known_version = known_version();
    if version > known_version {
        return Err(StoreError::NewerFile { path: path.to_owned(), found: version, known: known_version });
    }
    Ok(version)
}

/// Returns the version of the schema after refusing another version than that of this program; 0 for a new database.
pub(super) fn read_current_version(conn: &Connection, path: &Path) -> Result<i64, StoreError> {
    let (version, known) = (check_identity(conn, path)?, known_version());
    if (1..known).contains(&version) {
        return Err(StoreError::OlderFile { path: path.to_owned(), found: version, known });
    }
    Ok(version)
}

/// Returns the schema version of this program.
pub(crate) fn known_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

fn migrate(conn: &mut Connection, path: &Path) -> Result<(), StoreError> {
    if check_identity(conn, path)? == known_version() {
        return Ok(());
    }
    // The version is read again under the write lock, because another process may have migrated the database.
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version = usize::try_from(check_identity(&tx, path)?).unwrap_or(0);
    for (number, sql) in MIGRATIONS.iter().enumerate().skip(version) {
        tracing::debug!(migration = number + 1, path = %path.display(), "migrating the database");
        tx.execute_batch(sql)?;
    }
    trail::anchor_existing_rows(&tx)?;
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", known_version())?;
    tx.commit()?;
    if version > 0 {
        tracing::info!(from = version, to = known_version(), path = %path.display(), "the database was migrated");
    }
    Ok(())
}

/// Creates a database with the schema of an older version, which had the given number of migrations.
#[cfg(test)]
pub(crate) fn create_with_migrations(dir: &Path, migrations: usize) -> Connection {
    let conn = Connection::open(database_path(dir)).unwrap();
    for sql in &MIGRATIONS[..migrations] {
        conn.execute_batch(sql).unwrap();
    }
    conn.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
    conn.pragma_update(None, "user_version", i64::try_from(migrations).unwrap()).unwrap();
    conn
}

/// Adds the file to an error of opening it.
pub(super) fn add_path(path: &Path, error: StoreError) -> StoreError {
    match error {
        StoreError::Damaged(detail) => StoreError::Corrupt { path: path.to_owned(), detail },
        StoreError::Database(error) => StoreError::data_dir(path, std::io::Error::other(error.to_string())),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use jiff::Timestamp;

    use super::*;
    use crate::{
        moving::MoveError,
        sqlite::open_deliveries,
        webhooks::{Deliveries as _, PendingDelivery},
    };

    #[test]
    fn new_database_is_private_and_reopens() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("a/b");
        drop(open_writer(&data).unwrap());
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&data), 0o700);
        assert_eq!(mode(&database_path(&data)), 0o600);
        let conn = open_writer(&data).unwrap();
        assert_eq!(mode(&log_path(&data)), 0o600);
        let version: i64 = conn.query_row("PRAGMA user_version", [], |r| r.get(0)).unwrap();
        assert_eq!(version, known_version());
        assert!(open_reader(&data).unwrap().execute("DELETE FROM changes", []).is_err(), "readers cannot write");
    }

    #[test]
    fn sqlite_cannot_load_extensions() {
        // The settings are in `.cargo/config.toml`.
        let conn = Connection::open_in_memory().unwrap();
        let is_set = |option: &str| -> bool {
            conn.query_row("SELECT sqlite_compileoption_used(?1)", [option], |row| row.get(0)).unwrap()
        };
        assert!(is_set("OMIT_LOAD_EXTENSION") && is_set("ENABLE_FTS5"));
        assert!(!is_set("ENABLE_FTS3") && !is_set("ENABLE_RTREE"));
        assert!(conn.query_row("SELECT load_extension('x')", [], |_| Ok(())).is_err());
    }

    #[test]
    fn unusable_databases_are_refused_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let conn = open_writer(dir.path()).unwrap();
        conn.pragma_update(None, "user_version", 99).unwrap();
        drop(conn);
        assert!(matches!(open_writer(dir.path()), Err(StoreError::NewerFile { found: 99, .. })));
        assert!(matches!(open_reader(dir.path()), Err(StoreError::NewerFile { .. })));

        let dir = tempfile::tempdir().unwrap();
        let conn = Connection::open(database_path(dir.path())).unwrap();
        conn.execute_batch("CREATE TABLE theirs (a)").unwrap();
        drop(conn);
        assert!(matches!(open_writer(dir.path()), Err(StoreError::Foreign { .. })));

        let dir = tempfile::tempdir().unwrap();
        fs::write(database_path(dir.path()), b"this is not a database, but long enough to look like one").unwrap();
        assert!(matches!(open_writer(dir.path()), Err(StoreError::Corrupt { .. })));
        assert!(fs::read(database_path(dir.path())).unwrap().starts_with(b"this is not"));
    }

    #[test]
    fn older_database_is_migrated_only_by_its_gateway() {
        let dir = tempfile::tempdir().unwrap();
        drop(create_with_migrations(dir.path(), 8));
        let old = fs::read(database_path(dir.path())).unwrap();
        for refused in
            [crate::sqlite::open_keys(dir.path()).err(), crate::sqlite::read_reviewer_records(dir.path()).err()]
        {
            assert!(matches!(refused, Some(StoreError::OlderFile { found: 8, .. })), "{refused:?}");
        }
        let refused = crate::sqlite::moving::OfflineDirectory::take(dir.path(), false).err();
        assert!(matches!(refused, Some(MoveError::Store(StoreError::OlderFile { found: 8, .. }))), "{refused:?}");
        assert_eq!(fs::read(database_path(dir.path())).unwrap(), old);
        drop(open_writer(dir.path()).unwrap());
        crate::sqlite::open_keys(dir.path()).unwrap();
    }

    #[test]
    fn concurrent_creation_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| open_writer(dir.path()).map(drop))).collect();
            for thread in threads {
                thread.join().unwrap().unwrap();
            }
        });
    }

    #[test]
    fn deliveries_of_older_schema_are_migrated() {
        let dir = tempfile::tempdir().unwrap();
        let old = create_with_migrations(dir.path(), 7);
        old.execute_batch(
            "INSERT INTO webhooks VALUES ('a', 12);
             INSERT INTO webhook_deliveries VALUES
                 ('a', 12, 'change.created', 'chg_0', 'waiting', 2, 500, 'no', 1800000000000, 1800000001000, '{}'),
                 ('a', 9, 'change.created', 'chg_1', 'delivered', 1, 200, NULL, 1800000000000, 1800000001000, NULL);",
        )
        .unwrap();
        drop(old);
        let store = open_deliveries(dir.path()).unwrap();
        assert_eq!(store.position("a", 99).unwrap(), 12);
        assert_eq!(store.pending("a").unwrap(), [pending_delivery(2)]);
        assert_eq!(store.enqueue("a", 12, &[pending_delivery(0)]).unwrap(), [2]);
        assert_eq!(store.deliveries("a", None, 9).unwrap().len(), 2);
    }

    fn pending_delivery(id: u64) -> PendingDelivery {
        PendingDelivery {
            id,
            key: "12".into(),
            seq: Some(12),
            kind: "change.created".into(),
            subject: "chg_0".into(),
            event: "{}".into(),
            attempts: if id == 0 { 0 } else { 2 },
            since: Timestamp::from_second(1_800_000_000).unwrap(),
        }
    }
}

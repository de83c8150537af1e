//! Stores the data in tables on a database server. The gateways write one after another, and each announces its writes
//! to the other gateways.
//!
//! Statements block, so they run on the blocking pool.

use std::{
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{Announce, ReadKind, TrackerError, unknown_outcome};
use crate::{
    db::{Db, DbError, DbResult, internal_error, unwritten_error, values},
    uri::ChangedResources,
};
use countersign_protocol::McpError;
use countersign_store::{
    StoreError,
    tables::{Session, Tables},
};

/// Schema changes in order. Never change one that was released.
const MIGRATIONS: &[&str] = &[include_str!("schema_server.sql")];
const MODULE: &str = "tracker";
/// The number of concurrent slow reads. The other connections are for quick reads and for the writer.
pub(super) const MAX_SLOW_READS: usize = 3;
/// The interval at which the announcements of other gateways are read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The time without a successful poll after which announcements may have been missed. They are kept for twice as long.
const MAX_POLL_GAP: Duration = Duration::from_secs(300);
/// The time limit for looking up the outcome of a commit.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause between two attempts to look up the outcome of a commit.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);

/// Begins a read. It may be idle for longer than a write, because no other gateway waits for it.
const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 10000;
    SET LOCAL idle_in_transaction_session_timeout = '30s'";
/// Begins a write. Other writers wait for the lock, and readers do not.
const BEGIN_WRITE: &str = "BEGIN; LOCK TABLE tracker_touched IN SHARE ROW EXCLUSIVE MODE";
/// Begins a copy, which is idle while rows of the other database are read.
const BEGIN_COPY: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s';
    LOCK TABLE tracker_touched IN SHARE ROW EXCLUSIVE MODE";

pub(super) struct PostgresDatabase {
    tables: Arc<Tables>,
    /// The name under which this gateway announces its writes.
    gateway: String,
    /// Dropping it ends the thread that follows the other gateways.
    _end: mpsc::Sender<()>,
    _follower: JoinHandle<()>,
}

impl PostgresDatabase {
    /// Opens or creates the tables, as [`super::Storage::open`] does.
    pub fn open(
        tables: Arc<Tables>,
        announce: Arc<Announce>,
        fill: impl FnOnce(Db<'_>, bool) -> DbResult<()>,
    ) -> Result<Self, TrackerError> {
        let mut session = tables.wait_for_session()?;
        migrate(&mut session, fill)?;
        session.commit()?;
        let gateway = uuid::Uuid::new_v4().simple().to_string();
        let mut follower = Follower { tables: Arc::clone(&tables), announce, gateway: gateway.clone(), last_id: 0 };
        follower.last_id = follower.newest()?;
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("tracker-follow".into());
        let thread = thread.spawn(move || follower.run(&ended));
        let thread = thread.map_err(|error| StoreError::Unreachable(error.to_string()))?;
        Ok(Self { tables, gateway, _end: end, _follower: thread })
    }

    /// Runs a read, in a transaction unless it is a single statement.
    pub async fn read<T: Send + 'static>(
        &self,
        kind: ReadKind,
        read: impl FnOnce(Db<'_>) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        let mut session = self.tables.session().await.map_err(DbError::from)?;
        let task = tokio::task::spawn_blocking(move || {
            if kind == ReadKind::Statement {
                return read(Db::Postgres(&session));
            }
            session.begin(BEGIN_READ).map_err(DbError::from)?;
            let result = read(Db::Postgres(&session));
            // A connection whose transaction could not be ended is closed.
            let _ = session.commit();
            result
        });
        task.await.map_err(|_| internal_error())?
    }

    /// Runs one transaction, and blocks.
    pub fn write<T>(
        &self,
        write: impl FnOnce(Db<'_>) -> Result<(T, ChangedResources), McpError>,
    ) -> Result<(T, ChangedResources), McpError> {
        let mut session = self.tables.wait_for_session().map_err(unwritten_error)?;
        session.begin(BEGIN_WRITE).map_err(unwritten_error)?;
        let (value, changed_resources) = write(Db::Postgres(&session))?;
        let announcement = self.announce(Db::Postgres(&session), &changed_resources).map_err(unwritten_error)?;
        if let Err(error) = session.commit() {
            // A commit that the server refused was not made. If the connection ended, the outcome has to be looked up.
            let StoreError::Unreachable(_) = error else { return Err(unwritten_error(error)) };
            match self.is_announced(announcement) {
                Some(true) => {}
                Some(false) => return Err(unwritten_error(error)),
                None => return Err(unknown_outcome(&error)),
            }
        }
        Ok((value, changed_resources))
    }

    pub fn copy_within<T>(&self, copy: impl FnOnce(Db<'_>) -> Result<T, TrackerError>) -> Result<T, TrackerError> {
        let mut session = self.tables.wait_for_session()?;
        session.begin(BEGIN_COPY)?;
        let value = copy(Db::Postgres(&session))?;
        session.commit()?;
        Ok(value)
    }

    /// Announces changes to the other gateways in the transaction of the write, and returns the id of the announcement.
    fn announce(&self, db: Db<'_>, changed_resources: &ChangedResources) -> DbResult<i64> {
        db.execute("DELETE FROM tracker_touched WHERE at < now() - interval '10 minutes'", &[])?;
        let uris = serde_json::to_string(changed_resources.uris())?;
        let sql = "INSERT INTO tracker_touched (gateway, uris, listed) VALUES (?1, ?2, ?3) RETURNING id";
        db.query_one(sql, values![&self.gateway, &uris, changed_resources.list_changed], |row| row.get(0))
    }

    /// Waits until the transaction with this announcement has ended, and returns `true` if it was committed. Returns
    /// `None` if the outcome cannot be determined.
    fn is_announced(&self, announcement: i64) -> Option<bool> {
        let look_up = || -> DbResult<bool> {
            let mut session = self.tables.wait_for_session()?;
            session.begin(BEGIN_WRITE)?;
            let sql = "SELECT 1 FROM tracker_touched WHERE id = ?1 AND gateway = ?2";
            let found = Db::Postgres(&session).query_optional(sql, values![announcement, &self.gateway], |_| Ok(()))?;
            // No other announcement gets this id meanwhile, because this gateway writes nothing.
            let _ = session.commit();
            Ok(found.is_some())
        };
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            match look_up() {
                Ok(is_made) => return Some(is_made),
                Err(error) if Instant::now() > deadline => {
                    tracing::error!(%error, "tracker: the outcome of a commit cannot be determined");
                    return None;
                }
                Err(_) => std::thread::sleep(SETTLE_INTERVAL),
            }
        }
    }
}

/// Migrates the schema in a transaction that the caller commits.
fn migrate(session: &mut Session, fill: impl FnOnce(Db<'_>, bool) -> DbResult<()>) -> Result<(), TrackerError> {
    // The transaction is idle while an imported file is read.
    session.begin("BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s'")?;
    session.lock_migrations()?;
    session.batch(
        "SET LOCAL client_min_messages = warning;
         CREATE TABLE IF NOT EXISTS countersign_modules (name TEXT PRIMARY KEY, version BIGINT NOT NULL)",
    )?;
    let db = Db::Postgres(session);
    let known = MIGRATIONS.len();
    let version = "SELECT version FROM countersign_modules WHERE name = ?1";
    let found: Option<usize> = db.query_optional(version, values![MODULE], |row| row.get(0))?;
    let found = found.unwrap_or(0);
    if found > known {
        return Err(TrackerError::NewerTables { found, known });
    }
    for sql in MIGRATIONS.iter().skip(found) {
        session.batch(sql)?;
    }
    fill(db, found == 0)?;
    let set_version = "INSERT INTO countersign_modules (name, version) VALUES (?1, ?2)
                       ON CONFLICT (name) DO UPDATE SET version = excluded.version";
    db.execute(set_version, values![MODULE, known])?;
    Ok(())
}

/// Polls the announcements of other gateways, and passes them on to subscribers of this one.
struct Follower {
    tables: Arc<Tables>,
    announce: Arc<Announce>,
    gateway: String,
    /// The id of the last announcement that was read.
    last_id: i64,
}

impl Follower {
    fn newest(&self) -> DbResult<i64> {
        let session = self.tables.wait_for_session()?;
        Db::Postgres(&session).query_one("SELECT COALESCE(MAX(id), 0) FROM tracker_touched", &[], |row| row.get(0))
    }

    fn run(mut self, ended: &mpsc::Receiver<()>) {
        let mut polled_at = Instant::now();
        while ended.recv_timeout(POLL_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
            match self.poll() {
                Ok(()) => {
                    if polled_at.elapsed() > MAX_POLL_GAP {
                        (self.announce)(ChangedResources::all());
                    }
                    polled_at = Instant::now();
                }
                Err(error) => tracing::debug!(%error, "tracker: the writes of other gateways cannot be read"),
            }
        }
    }

    fn poll(&mut self) -> DbResult<()> {
        let session = self.tables.wait_for_session()?;
        let sql = "SELECT id, gateway, uris, listed FROM tracker_touched WHERE id > ?1 ORDER BY id";
        let announcements: Vec<(i64, String, String, bool)> =
            Db::Postgres(&session).query_all(sql, values![self.last_id], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?;
        drop(session);
        for (id, gateway, uris, list_changed) in announcements {
            self.last_id = id;
            if gateway != self.gateway {
                (self.announce)(ChangedResources::from_announcement(serde_json::from_str(&uris)?, list_changed));
            }
        }
        Ok(())
    }
}

//! Stores the data in tables of PostgreSQL. The nodes write one after another, and each announces its writes to
//! the other nodes.
//!
//! Statements block, so they run on the blocking pool.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use tokio::sync::broadcast;

use super::{ReadKind, TrackerError, announce, unknown_outcome};
use crate::{
    db::{Db, DbError, DbResult, internal_error, unwritten_error, values},
    uri::ChangedResources,
};
use countersign_protocol::McpError;
use countersign_provider::ProviderEvent;
use countersign_runtime::background;
use countersign_store::{
    StoreError,
    tables::{ModuleConnection, Tables, repeat_look_up},
};

/// Schema changes in order. Never change one that was released.
const MIGRATIONS: &[&str] = &[include_str!("schema_postgres.sql")];
const MODULE: &str = "tracker";
/// The maximum number of concurrent slow reads. It leaves connections for short reads and for the writer.
pub(super) const MAX_SLOW_READS: usize = 3;
/// The interval at which the announcements of other nodes are read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The time without a successful poll after which announcements count as missed. They are kept for twice as long.
const MAX_POLL_GAP: Duration = Duration::from_secs(300);

/// Begins a read. It may be idle for longer than a write, because no other node waits for it.
const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 10000;
    SET LOCAL idle_in_transaction_session_timeout = '30s'";
/// Begins a write. Other writers wait for the lock, but readers do not.
const BEGIN_WRITE: &str = "BEGIN; LOCK TABLE tracker_touched IN SHARE ROW EXCLUSIVE MODE";
/// Begins a copy, which is idle while rows of the other database are read.
const BEGIN_COPY: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s';
    LOCK TABLE tracker_touched IN SHARE ROW EXCLUSIVE MODE";

pub(super) struct PostgresDatabase {
    tables: Arc<Tables>,
    /// The name under which this node announces its writes.
    node: String,
    /// Dropping it stops the thread of the [`Follower`].
    _stop_follower: mpsc::Sender<()>,
}

impl PostgresDatabase {
    /// Opens or creates the tables, as [`super::Storage::open`] does.
    pub fn open(
        tables: Arc<Tables>,
        events: broadcast::Sender<ProviderEvent>,
        fill: impl FnOnce(Db<'_>, bool) -> DbResult<()>,
    ) -> Result<Self, TrackerError> {
        let mut connection = tables.wait_for_connection()?;
        migrate(&mut connection, fill)?;
        let newest_id = "SELECT COALESCE(MAX(id), 0) FROM tracker_touched";
        let last_id = Db::Postgres(&connection).query_one(newest_id, &[], |row| row.get(0))?;
        connection.commit()?;
        let node = uuid::Uuid::new_v4().simple().to_string();
        let follower = Follower { tables: Arc::clone(&tables), events, node: node.clone(), last_id };
        let (stop_follower, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("tracker-follow".into());
        thread.spawn(move || follower.run(&stopped)).map_err(|error| StoreError::Unreachable(error.to_string()))?;
        Ok(Self { tables, node, _stop_follower: stop_follower })
    }

    /// Runs a read, in a transaction unless it is a single statement.
    pub async fn read<T: Send + 'static>(
        &self,
        kind: ReadKind,
        read: impl FnOnce(Db<'_>) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        let mut connection = self.tables.connection().await.map_err(DbError::from)?;
        let task = background::spawn_blocking(move || {
            if kind == ReadKind::Statement {
                return read(Db::Postgres(&connection));
            }
            connection.begin(BEGIN_READ).map_err(DbError::from)?;
            let result = read(Db::Postgres(&connection));
            // A connection whose transaction could not be ended is closed.
            let _ = connection.commit();
            result
        });
        task.await.map_err(|_| internal_error())?
    }

    /// Waits for earlier writes of all nodes, then writes in one transaction on this thread.
    pub fn write<T>(
        &self,
        write: impl FnOnce(Db<'_>) -> Result<(T, ChangedResources), McpError>,
    ) -> Result<(T, ChangedResources), McpError> {
        let mut connection = self.tables.wait_for_connection().map_err(unwritten_error)?;
        connection.begin(BEGIN_WRITE).map_err(unwritten_error)?;
        let (value, changed_resources) = write(Db::Postgres(&connection))?;
        let announcement = self.announce(Db::Postgres(&connection), &changed_resources).map_err(unwritten_error)?;
        if let Err(error) = connection.commit() {
            // A commit that the server refused was not made. If the connection ended, the outcome must be looked up.
            let StoreError::Unreachable(_) = error else { return Err(unwritten_error(error)) };
            match repeat_look_up(|| self.is_committed(announcement)) {
                Ok(true) => {}
                Ok(false) => return Err(unwritten_error(error)),
                Err(lookup_error) => {
                    tracing::error!(error = %lookup_error, "tracker: the outcome of a commit cannot be determined");
                    return Err(unknown_outcome(&error));
                }
            }
        }
        Ok((value, changed_resources))
    }

    /// Runs one transaction of [`super::Storage::with_transaction`].
    pub fn with_transaction<T>(&self, run: impl FnOnce(Db<'_>) -> Result<T, TrackerError>) -> Result<T, TrackerError> {
        let mut connection = self.tables.wait_for_connection()?;
        connection.begin(BEGIN_COPY)?;
        let value = run(Db::Postgres(&connection))?;
        connection.commit()?;
        Ok(value)
    }

    /// Announces changed resources to the other nodes in the transaction of the write. Returns the id of the
    /// announcement.
    fn announce(&self, db: Db<'_>, changed_resources: &ChangedResources) -> DbResult<i64> {
        db.execute("DELETE FROM tracker_touched WHERE at < now() - interval '10 minutes'", &[])?;
        let uris = serde_json::to_string(&changed_resources.uris)?;
        let sql = "INSERT INTO tracker_touched (gateway, uris, listed) VALUES (?1, ?2, ?3) RETURNING id";
        db.query_one(sql, values![&self.node, &uris, changed_resources.list_changed], |row| row.get(0))
    }

    /// Returns `true` if the transaction with this announcement was committed, and waits until it has ended.
    fn is_committed(&self, announcement: i64) -> DbResult<bool> {
        let mut connection = self.tables.wait_for_connection()?;
        connection.begin(BEGIN_WRITE)?;
        // After a failover, the server may use the id again, but only for another node: this one writes nothing
        // meanwhile.
        let sql = "SELECT 1 FROM tracker_touched WHERE id = ?1 AND gateway = ?2";
        let row = Db::Postgres(&connection).query_optional(sql, values![announcement, &self.node], |_| Ok(()))?;
        let _ = connection.commit();
        Ok(row.is_some())
    }
}

/// Migrates the schema in a transaction that the caller commits.
fn migrate(
    connection: &mut ModuleConnection,
    fill: impl FnOnce(Db<'_>, bool) -> DbResult<()>,
) -> Result<(), TrackerError> {
    // The transaction is idle while the rows of an imported file are read.
    connection.begin("BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s'")?;
    connection.lock_migrations()?;
    connection.batch(
        "SET LOCAL client_min_messages = warning;
         CREATE TABLE IF NOT EXISTS countersign_modules (name TEXT PRIMARY KEY, version BIGINT NOT NULL)",
    )?;
    let db = Db::Postgres(connection);
    let known_version = MIGRATIONS.len();
    let version = "SELECT version FROM countersign_modules WHERE name = ?1";
    let found_version: Option<usize> = db.query_optional(version, values![MODULE], |row| row.get(0))?;
    let found_version = found_version.unwrap_or(0);
    if found_version > known_version {
        return Err(TrackerError::NewerTables { found: found_version, known: known_version });
    }
    for sql in MIGRATIONS.iter().skip(found_version) {
        connection.batch(sql)?;
    }
    fill(db, found_version == 0)?;
    let set_version = "INSERT INTO countersign_modules (name, version) VALUES (?1, ?2)
                       ON CONFLICT (name) DO UPDATE SET version = excluded.version";
    db.execute(set_version, values![MODULE, known_version])?;
    Ok(())
}

/// Polls the announcements of other nodes, and passes them on to subscribers of this one.
struct Follower {
    tables: Arc<Tables>,
    events: broadcast::Sender<ProviderEvent>,
    node: String,
    /// The id of the last announcement that was read.
    last_id: i64,
}

impl Follower {
    fn run(mut self, stopped: &mpsc::Receiver<()>) {
        let mut polled_at = Instant::now();
        while stopped.recv_timeout(POLL_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
            match self.poll() {
                Ok(()) => {
                    if polled_at.elapsed() > MAX_POLL_GAP {
                        // The changes are not known, so clients read the list of resources again.
                        announce(&self.events, ChangedResources { uris: Vec::new(), list_changed: true });
                    }
                    polled_at = Instant::now();
                }
                Err(error) => tracing::debug!(%error, "tracker: the writes of other nodes cannot be read"),
            }
        }
    }

    fn poll(&mut self) -> DbResult<()> {
        let connection = self.tables.wait_for_connection()?;
        let sql = "SELECT id, gateway, uris, listed FROM tracker_touched WHERE id > ?1 ORDER BY id";
        let announcements: Vec<(i64, String, String, bool)> =
            Db::Postgres(&connection).query_all(sql, values![self.last_id], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?;
        drop(connection);
        for (id, node, uris, list_changed) in announcements {
            self.last_id = id;
            if node != self.node {
                announce(&self.events, ChangedResources { uris: serde_json::from_str(&uris)?, list_changed });
            }
        }
        Ok(())
    }
}

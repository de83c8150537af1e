//! Tables in the database of a server: writes of all gateways one after the other, each told to the others.
//!
//! Statements are waited for on the blocking pool.

use std::{
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{Announce, TrackerError, busy, cancelled, certainly_aborted, shutting_down, unknown};
use crate::{
    db::{Db, Sql, failed, internal, not_written, values},
    uri::Touched,
};
use countersign_protocol::McpError;
use countersign_store::{
    StoreError,
    tables::{Session, Tables},
};

/// Schema changes in order. Never alter one that was released.
const MIGRATIONS: &[&str] = &[include_str!("schema_server.sql")];
const MODULE: &str = "tracker";
/// Slow reads at a time: the connections that are left are for quick ones and for the writer.
const SLOW_READS: usize = 3;
/// For a turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often other gateways' writes are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Without a look for longer than that, something may have been missed: it is kept for twice as long.
const MISSED: Duration = Duration::from_secs(300);
/// How long it is tried to find out what came of a commit.
const SETTLING: Duration = Duration::from_secs(20);

/// It may stand still longer than what others wait for.
const READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 10000;
    SET LOCAL idle_in_transaction_session_timeout = '30s'";
/// Others that write wait for that, and nobody that reads.
const WRITE: &str = "BEGIN; LOCK TABLE tracker_touched IN SHARE ROW EXCLUSIVE MODE";
/// As [`WRITE`], of what reads something else in between.
const COPY: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s';
    LOCK TABLE tracker_touched IN SHARE ROW EXCLUSIVE MODE";

/// See the module.
pub struct Server {
    tables: Arc<Tables>,
    /// As which its writes are told.
    gateway: String,
    /// Writers wait here, not on a thread of the blocking pool.
    write_turn: Arc<Semaphore>,
    slow_turn: Arc<Semaphore>,
    announce: Arc<Announce>,
    /// Dropped, it ends the thread that follows others.
    _end: mpsc::Sender<()>,
    _follower: JoinHandle<()>,
}

impl Server {
    /// See [`super::Storage::open`].
    pub fn open(
        tables: Arc<Tables>,
        announce: Announce,
        fill: impl FnOnce(Db<'_>, bool) -> Sql<()>,
    ) -> Result<Arc<Self>, TrackerError> {
        let mut session = tables.wait_for_session()?;
        prepare(&mut session, fill)?;
        session.commit()?;
        let announce = Arc::new(announce);
        let gateway = uuid::Uuid::new_v4().simple().to_string();
        let mut follower = Follower {
            tables: Arc::clone(&tables),
            announce: Arc::clone(&announce),
            gateway: gateway.clone(),
            last: 0,
        };
        follower.last = follower.newest()?;
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("tracker-follow".into());
        let thread = thread.spawn(move || follower.run(&ended));
        let thread = thread.map_err(|error| StoreError::Unreachable(error.to_string()))?;
        Ok(Arc::new(Self {
            tables,
            gateway,
            write_turn: Arc::new(Semaphore::new(1)),
            slow_turn: Arc::new(Semaphore::new(SLOW_READS)),
            announce,
            _end: end,
            _follower: thread,
        }))
    }

    async fn with<T: Send + 'static>(
        &self,
        f: impl FnOnce(Session) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        let session = self.tables.session().await.map_err(|error| failed(&error))?;
        tokio::task::spawn_blocking(move || f(session)).await.map_err(|_| internal())?
    }

    pub async fn read<T: Send + 'static>(
        &self,
        f: impl FnOnce(Db<'_>) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        self.with(move |session| f(Db::Server(&session))).await
    }

    pub async fn read_whole<T: Send + 'static>(
        &self,
        f: impl FnOnce(Db<'_>) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        self.with(move |mut session| {
            session.begin(READ).map_err(|error| failed(&error))?;
            let result = f(Db::Server(&session));
            // A transaction that failed ends like any other; a connection that did not end it goes with it.
            let _ = session.commit();
            result
        })
        .await
    }

    pub async fn read_slow<T: Send + 'static>(
        &self,
        cancel: &CancellationToken,
        f: impl FnOnce(Db<'_>) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        let turn = Arc::clone(&self.slow_turn).acquire_owned();
        tokio::select! {
            turn = tokio::time::timeout(PATIENCE, turn) => {
                let turn = turn.map_err(|_| busy())?.map_err(|_| shutting_down())?;
                // The server ends by itself what nobody waits for any more, in its time.
                tokio::select! {
                    done = self.read_whole(move |db| { let _turn = turn; f(db) }) => done,
                    () = cancel.cancelled() => Err(cancelled()),
                }
            }
            () = cancel.cancelled() => Err(cancelled()),
        }
    }

    pub async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        f: impl FnOnce(Db<'_>) -> Result<(T, Touched), McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        let turn = Arc::clone(&self.write_turn).acquire_owned().await.map_err(|_| shutting_down())?;
        let mut session = self.tables.session().await.map_err(|error| not_written(&error))?;
        let server = Arc::clone(self);
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            session.begin(WRITE).map_err(|error| not_written(&error))?;
            // Whatever fails in here ends with the transaction.
            let (value, touched) = f(Db::Server(&session)).map_err(certainly_aborted)?;
            let told = server.tell(Db::Server(&session), &touched).map_err(|error| not_written(&error))?;
            if let Err(error) = session.commit() {
                // What the server refused was not made; where the connection ended, nobody has said.
                let StoreError::Unreachable(_) = error else { return Err(not_written(&error)) };
                match server.was_told(told) {
                    Some(true) => {}
                    Some(false) => return Err(not_written(&error)),
                    None => return Err(unknown(&error)),
                }
            }
            (server.announce)(touched);
            Ok(value)
        });
        task.await.map_err(|_| internal().with("outcome", "unknown"))?
    }

    /// As [`Self::write`], on this thread, telling nobody.
    pub fn blocking<T>(&self, f: impl FnOnce(Db<'_>) -> Result<T, TrackerError>) -> Result<T, TrackerError> {
        let mut session = self.tables.wait_for_session()?;
        session.begin(COPY)?;
        let value = f(Db::Server(&session))?;
        session.commit()?;
        Ok(value)
    }

    /// In the transaction of the write. Its number.
    fn tell(&self, db: Db<'_>, touched: &Touched) -> Sql<i64> {
        db.execute("DELETE FROM tracker_touched WHERE at < now() - interval '10 minutes'", &[])?;
        let uris = serde_json::to_string(touched.uris())?;
        let sql = "INSERT INTO tracker_touched (gateway, uris, listed) VALUES (?1, ?2, ?3) RETURNING id";
        db.one(sql, values![&self.gateway, &uris, touched.list_changed], |row| row.get(0))
    }

    /// Whether the write with that number was made, as soon as it is known: no earlier than it has ended.
    fn was_told(&self, number: i64) -> Option<bool> {
        let look = || -> Sql<bool> {
            let mut session = self.tables.wait_for_session()?;
            session.begin(WRITE)?;
            let sql = "SELECT 1 FROM tracker_touched WHERE id = ?1 AND gateway = ?2";
            let found = Db::Server(&session).find(sql, values![number, &self.gateway], |_| Ok(()))?;
            // Its numbers are not used again while this gateway writes nothing.
            let _ = session.commit();
            Ok(found.is_some())
        };
        let end = Instant::now() + SETTLING;
        loop {
            match look() {
                Ok(made) => return Some(made),
                Err(error) if Instant::now() > end => {
                    tracing::error!(%error, "tracker: what came of a commit cannot be found out");
                    return None;
                }
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }
}

/// Brings the schema up to date, in a transaction that the caller ends.
fn prepare(session: &mut Session, fill: impl FnOnce(Db<'_>, bool) -> Sql<()>) -> Result<(), TrackerError> {
    // What is taken over is read from a file meanwhile.
    session.begin("BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s'")?;
    session.migrating()?;
    session.batch(
        "SET LOCAL client_min_messages = warning;
         CREATE TABLE IF NOT EXISTS countersign_modules (name TEXT PRIMARY KEY, version BIGINT NOT NULL)",
    )?;
    let db = Db::Server(session);
    let known = MIGRATIONS.len();
    let version = "SELECT version FROM countersign_modules WHERE name = ?1";
    let found: Option<i64> = db.find(version, values![MODULE], |row| row.get(0))?;
    let found = usize::try_from(found.unwrap_or(0)).unwrap_or(usize::MAX);
    if found > known {
        return Err(TrackerError::NewerTables { found, known });
    }
    for sql in MIGRATIONS.iter().skip(found) {
        session.batch(sql)?;
    }
    fill(db, found == 0)?;
    let told = "INSERT INTO countersign_modules (name, version) VALUES (?1, ?2)
                ON CONFLICT (name) DO UPDATE SET version = excluded.version";
    db.execute(told, values![MODULE, known])?;
    Ok(())
}

/// Hears what other gateways wrote.
struct Follower {
    tables: Arc<Tables>,
    announce: Arc<Announce>,
    gateway: String,
    last: i64,
}

impl Follower {
    fn newest(&self) -> Result<i64, StoreError> {
        let session = self.tables.wait_for_session()?;
        Db::Server(&session).one("SELECT COALESCE(MAX(id), 0) FROM tracker_touched", &[], |row| row.get(0))
    }

    fn run(mut self, ended: &mpsc::Receiver<()>) {
        let mut looked = Instant::now();
        while ended.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
            match self.look() {
                Ok(()) => {
                    if looked.elapsed() > MISSED {
                        (self.announce)(Touched::all());
                    }
                    looked = Instant::now();
                }
                Err(error) => tracing::debug!(%error, "tracker: what others wrote cannot be read"),
            }
        }
    }

    fn look(&mut self) -> Sql<()> {
        let session = self.tables.wait_for_session()?;
        let sql = "SELECT id, gateway, uris, listed FROM tracker_touched WHERE id > ?1 ORDER BY id";
        let told: Vec<(i64, String, String, bool)> = Db::Server(&session)
            .all(sql, values![self.last], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
        drop(session);
        for (number, gateway, uris, listed) in told {
            self.last = number;
            if gateway != self.gateway {
                (self.announce)(Touched::told(serde_json::from_str(&uris)?, listed));
            }
        }
        Ok(())
    }
}

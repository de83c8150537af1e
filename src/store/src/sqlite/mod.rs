//! The SQLite backend: one writing thread, a few reading ones, in WAL mode, so that neither waits for the other.

pub mod backup;
mod claims;
mod error;
#[cfg(test)]
mod faults;
pub(crate) mod keys;
pub(crate) mod moving;
pub mod open;
mod policies;
mod reader;
mod rows;
pub(crate) mod said;
mod search;
mod space;
pub mod sql;
pub(crate) mod trail;
pub(crate) mod verify;
pub(crate) mod webhooks;
mod witness;
mod writer;

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
};

use jiff::Timestamp;

use self::{
    open::open_writer,
    reader::Readers,
    sql::run,
    witness::Witness,
    writer::{CommitFn, Writer, plain_commit},
};
use crate::{
    AuditSearch, Done, Draft, Followed, FoundEntries, Heads, ListQuery, Listing, LiveChange, Nodes, Occupant, Old,
    OldBefore, PolicySnapshot, PolicySnapshots, Proposed, Pruning, Record, Store, StoreError, StoreFuture, StoredEvent,
    health::Health,
    identity::{STORE_ID, new_id},
    nodes::Alone,
    queue::{Command, Intake, Offer, QUEUE, Work},
    statements::{
        self,
        changes::{self, Body},
        facts, pins, retention, standing_rules,
    },
};
use countersign_domain::{
    changes::{Change, ChangeState, audit::AuditEntry},
    policy::{Pins, StandingRule},
};

/// The id of the store in the directory, which it gets now where it has none.
///
/// # Errors
/// See [`open_writer`].
pub(crate) fn store_id(dir: &Path) -> Result<String, StoreError> {
    let conn = open_writer(dir)?;
    conn.execute("INSERT OR IGNORE INTO facts (name, value) VALUES (?1, ?2)", [STORE_ID, new_id().as_str()])?;
    run(facts::get(&conn, STORE_ID))?.ok_or_else(|| StoreError::BadRecord("the store has no id".to_owned()))
}

/// How the backend is sized.
#[derive(Clone, Copy, Debug)]
pub struct SqliteOptions {
    /// See [`QUEUE`].
    pub queue: usize,
    /// Reading threads.
    pub readers: usize,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { queue: QUEUE, readers: 2 }
    }
}

/// See the module.
pub struct SqliteStore {
    intake: Intake<SyncSender<Command>>,
    closing: Arc<AtomicBool>,
    writer: Mutex<Option<JoinHandle<()>>>,
    readers: Readers,
    health: Arc<Health>,
    /// What was executing when it was opened: by nobody any more.
    left: Arc<[String]>,
    nodes: Arc<Alone>,
    dir: Arc<Path>,
}

impl SqliteStore {
    /// Opens or creates the database of the data directory. Hold [`crate::lock_data_dir`] while it is open.
    ///
    /// # Errors
    /// See [`open_writer`].
    pub fn open(dir: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        Self::open_with(dir, options, plain_commit())
    }

    pub(super) fn open_with(dir: &Path, options: SqliteOptions, commit: CommitFn) -> Result<Self, StoreError> {
        let conn = open_writer(dir)?;
        run(facts::check_moved(&conn))?;
        check_pages(&conn, dir)?;
        check_writable(&conn, dir)?;
        let heads = rows::heads(&conn)?;
        let left = rows::executing(&conn)?.into();
        Witness::check(dir, &conn, heads.audit)?;
        space::prepare(&conn, dir)?;
        let health = Arc::new(Health::default());
        let readers = Readers::start(dir, options.readers, &health)?;
        let (commands, queue) = sync_channel(options.queue);
        let intake = Intake::new(commands);
        let closing = Arc::new(AtomicBool::new(false));
        let writer = Writer {
            conn,
            dir: dir.to_owned(),
            heads,
            version: None,
            queue,
            meter: intake.meter(),
            closing: Arc::clone(&closing),
            commit,
            health: Arc::clone(&health),
            witness: Witness::new(dir),
        };
        let thread = std::thread::Builder::new()
            .name("store-write".into())
            .spawn(move || writer.run())
            .map_err(|e| StoreError::DataDir { path: dir.to_owned(), source: Arc::new(e) })?;
        Ok(Self {
            intake,
            closing,
            writer: Mutex::new(Some(thread)),
            readers,
            health,
            left,
            nodes: Alone::new(),
            dir: dir.into(),
        })
    }
}

impl Offer for SyncSender<Command> {
    fn offer(&self, command: Command) -> Option<(StoreError, Command)> {
        self.try_send(command).err().map(|refused| match refused {
            TrySendError::Full(command) => (StoreError::QueueFull, command),
            TrySendError::Disconnected(command) => (StoreError::Closed, command),
        })
    }
}

impl Store for SqliteStore {
    fn submit(&self, draft: Draft, done: Done) {
        self.intake.send(Work::Transition(draft), done);
    }

    fn submit_record(&self, record: Record, done: Done) {
        self.intake.send(Work::Record(record), done);
    }

    fn submit_restored(&self, record: Record, done: Done) {
        self.intake.send(Work::Restored(record), done);
    }

    fn submit_pruning(&self, pruning: Pruning, done: Done) {
        self.intake.send(Work::Prune(pruning), done);
    }

    fn old(&self, before: OldBefore) -> StoreFuture<Old> {
        self.readers.read(move |db| run(retention::find_old(db, before)))
    }

    fn backup_of(&self) -> StoreFuture<Option<Timestamp>> {
        self.readers.read(|db| run(facts::backup_of(db)))
    }

    fn pins(&self) -> StoreFuture<Pins> {
        self.readers.read(|db| run(pins::load(db)))
    }

    fn standing_rules(&self) -> StoreFuture<Vec<StandingRule>> {
        self.readers.read(|db| run(standing_rules::load(db)))
    }

    fn policies(&self) -> StoreFuture<PolicySnapshots> {
        self.readers.read(policies::load)
    }

    fn save_policy(&self, snapshot: PolicySnapshot, _: bool) -> StoreFuture<()> {
        if self.closing.load(Ordering::Acquire) {
            return Box::pin(std::future::ready(Err(StoreError::Closed)));
        }
        policies::save_aside(&self.dir, snapshot)
    }

    fn get(&self, id: &str) -> StoreFuture<Option<Arc<Change>>> {
        let id = id.to_owned();
        self.readers.read(move |db| Body::parse(run(changes::get(db, &id))?))
    }

    fn find_idempotent(&self, principal: &str, key: &str) -> StoreFuture<Option<Arc<Change>>> {
        let (principal, key) = (principal.to_owned(), key.to_owned());
        self.readers.read(move |db| Body::parse(run(changes::find_idempotent(db, &principal, &key))?))
    }

    fn list(&self, query: ListQuery) -> StoreFuture<Listing> {
        self.readers.read(move |db| run(changes::list(db, &query))?.parse())
    }

    fn live(&self) -> StoreFuture<Vec<LiveChange>> {
        self.readers.read(|db| run(changes::list_live(db)))
    }

    fn proposed_since(&self, since: Timestamp) -> StoreFuture<Vec<Proposed>> {
        self.readers.read(move |conn| rows::proposed_since(conn, since))
    }

    fn voted(&self) -> StoreFuture<Vec<String>> {
        self.readers.read(|db| run(changes::list_voted(db)))
    }

    fn counts(&self) -> StoreFuture<Vec<(ChangeState, u64)>> {
        self.readers.read(|db| run(changes::count_by_state(db)))
    }

    fn events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<StoredEvent>> {
        self.readers.read(move |db| run(changes::events_after(db, after, limit)))
    }

    fn followed(&self, after: u64, limit: usize) -> StoreFuture<Vec<Followed>> {
        self.readers.read(move |conn| rows::followed(conn, after, limit))
    }

    fn orphans(&self) -> StoreFuture<Vec<String>> {
        if self.left.is_empty() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        let left = Arc::clone(&self.left);
        self.readers.read(move |conn| {
            let executing = rows::executing(conn)?;
            Ok(executing.into_iter().filter(|id| left.contains(id)).collect())
        })
    }

    fn held_until(&self, _: &str) -> StoreFuture<Option<Timestamp>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn occupants(&self, targets: Vec<String>, now: Timestamp) -> StoreFuture<Vec<Occupant>> {
        self.readers.read(move |conn| claims::occupants(conn, &targets, now))
    }

    fn tell(&self, _: &str, _: &str, _: String) -> StoreFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn heard(&self) -> StoreFuture<Vec<(String, String)>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn nodes(&self) -> Arc<dyn Nodes> {
        Arc::clone(&self.nodes) as _
    }

    fn audit_page(&self, change: Option<String>, before: Option<u64>, limit: usize) -> StoreFuture<Vec<AuditEntry>> {
        self.readers.read(move |db| run(statements::trail::page(db, change.as_deref(), before, limit)))
    }

    fn search_audit(&self, search: AuditSearch, before: Option<u64>, limit: usize) -> StoreFuture<FoundEntries> {
        self.readers.read(move |db| {
            let newest = rows::heads(db)?.audit.seq;
            run(statements::trail::search(db, &search, newest, before, limit))
        })
    }

    fn heads(&self) -> StoreFuture<Heads> {
        self.readers.read(rows::heads)
    }

    fn trouble(&self) -> Option<StoreError> {
        self.health.trouble()
    }

    fn is_open(&self) -> bool {
        self.intake.is_open()
            && self.writer.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|t| !t.is_finished())
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.intake.close();
        self.readers.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writing thread of the store had panicked");
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// Finds out at the start, and not with the first change, that somebody else holds the lock or that nothing can be
/// written. Writes nothing.
fn check_writable(conn: &rusqlite::Connection, dir: &Path) -> Result<(), StoreError> {
    let tried = conn.execute_batch("BEGIN IMMEDIATE; ROLLBACK").map_err(StoreError::from);
    tried.map_err(|error| match error {
        StoreError::Database(error) => {
            let source = Arc::new(std::io::Error::other(error.to_string()));
            StoreError::DataDir { path: open::database_path(dir), source }
        }
        other => other,
    })
}

/// Databases up to this size are checked page by page whenever they are opened.
const CHECK_BYTES: u64 = 32 << 20;

/// Finds damage before anything is built on it. A larger database is checked only if its last process did not close
/// it; what is damaged in its depth is found when it is read.
fn check_pages(conn: &rusqlite::Connection, dir: &Path) -> Result<(), StoreError> {
    let path = open::database_path(dir);
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let mut log = path.clone().into_os_string();
    log.push("-wal");
    let unclean = size(Path::new(&log)) > 0;
    if size(&path) > CHECK_BYTES && !unclean {
        return Ok(());
    }
    let verdict: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" { Ok(()) } else { Err(StoreError::Corrupt { path, detail: verdict }) }
}

//! The PostgreSQL backend: one writing connection with a thread of its own, and a pool for what is read. Nothing is answered
//! before the commit.
//!
//! A row holds where the feed and the trail end; a transaction takes it last, so that numbers have no gaps and their order
//! is that of the commits, whoever writes. Any number of gateways serve a database: `nodes` says which of them live, and the
//! claims of what they run stand beside the changes.

mod claims;
mod clock;
mod connect;
mod error;
#[cfg(test)]
mod faults;
mod keys;
mod moving;
mod node_rows;
mod nodes;
mod policies;
mod rows;
mod said;
#[cfg(test)]
mod side_by_side;
mod silence;
mod sql;
pub mod tables;
mod trail;
mod verify;
mod webhooks;
mod writer;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::mpsc::{Sender, channel, error::TrySendError};
use tokio_postgres::Config;

pub(crate) use self::connect::Ground;
use self::{nodes::Membership, writer::Writer};
use crate::{
    AuditSearch, Done, Draft, Followed, FoundEntries, Heads, ListQuery, Listing, LiveChange, Nodes, Occupant, Old,
    OldBefore, PolicySnapshot, PolicySnapshots, Proposed, Pruning, Record, Said, Store, StoreError, StoreFuture,
    StoredEvent, Verified, VerifyError,
    identity::{self, Backend, FoundStore, IDENTITY_FILE, STORE_ID, StoreIdentity},
    keys::Credentials,
    nodes::Name,
    queue::{Command, Intake, Offer, QUEUE, Work},
    statements::{
        self,
        changes::{self, Body},
        facts, pins, retention, standing_rules,
    },
    webhooks::Deliveries,
};
use countersign_domain::{
    changes::{
        Change, ChangeState,
        audit::{AuditEntry, AuditHead},
    },
    policy::{Pins, StandingRule},
};

/// How long a gateway that starts waits for what keeps it out: one of an older version, or a move of the store.
const SUCCESSION: Duration = Duration::from_secs(10);

/// A database, connected to or not.
pub(crate) struct Server {
    config: Config,
    authorities: Option<PathBuf>,
    /// Of the node that opens it.
    node: Name,
    /// Shared by whatever is open.
    ground: Mutex<Weak<Ground>>,
    keys: Mutex<Weak<keys::Keys>>,
}

impl Server {
    /// # Errors
    /// [`StoreError::Unreachable`] where this is no address.
    pub fn new(url: &str, authorities: Option<PathBuf>, node: Name) -> Result<Self, StoreError> {
        let config = connect::parse(url)?;
        Ok(Self { config, authorities, node, ground: Mutex::default(), keys: Mutex::default() })
    }

    fn ground(&self) -> Result<Arc<Ground>, StoreError> {
        let mut shared = self.ground.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ground) = shared.upgrade() {
            return Ok(ground);
        }
        let ground = Ground::start(&self.config, self.authorities.as_ref())?;
        *shared = Arc::downgrade(&ground);
        Ok(ground)
    }

    /// With the data directory that opens it, if one does, belonging to this database.
    fn own(&self) -> Result<Arc<Ground>, StoreError> {
        let ground = self.ground()?;
        if let Some(dir) = self.dir().filter(|dir| dir.join(IDENTITY_FILE).exists()) {
            let asked = ground.wait(|client| async move {
                Ok(match connect::schema(&client).await? {
                    None => FoundStore::Empty,
                    Some(_) => FoundStore::Store(facts::get(&**client, STORE_ID).await?),
                })
            });
            identity::check_server(dir, &asked?)?;
        }
        Ok(ground)
    }

    /// The id of the store, which it gets now where it has none: that which the data directory knows, of one that was
    /// restored from before.
    pub fn store_id(&self) -> Result<String, StoreError> {
        let known = self.dir().map(StoreIdentity::read).transpose()?.flatten();
        let id =
            known.filter(|known| known.backend == Backend::Postgres).map_or_else(identity::new_id, |known| known.id);
        self.migrated()?.write(move |client| async move {
            let sql = "INSERT INTO facts (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
            rows::write(&client, sql, &[&STORE_ID, &id]).await?;
            let found = facts::get(&**client, STORE_ID).await?;
            found.ok_or_else(|| StoreError::BadRecord("the store has no id".to_owned()))
        })
    }

    /// With the schema as this program knows it: looked at once for all that is opened of it.
    fn migrated(&self) -> Result<Arc<Ground>, StoreError> {
        let ground = self.own()?;
        let migrating = Arc::clone(&ground);
        ground.block(async move { migrating.migrated.get_or_try_init(|| migrating.migrate()).await.copied() })?;
        Ok(ground)
    }

    pub fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(PostgresStore::begin(self.migrated()?, self.node.read()?, SUCCESSION)?))
    }

    pub fn credentials(&self) -> Result<Arc<dyn Credentials>, StoreError> {
        let ground = self.migrated()?;
        ground.wait(|client| async move { facts::check_moved(&**client).await })?;
        let mut shared = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = shared.upgrade() {
            return Ok(keys);
        }
        let keys = Arc::new(keys::Keys::open(ground));
        *shared = Arc::downgrade(&keys);
        Ok(keys)
    }

    pub fn deliveries(&self) -> Result<Arc<dyn Deliveries>, StoreError> {
        Ok(Arc::new(webhooks::WebhookStore::open(self.migrated()?)))
    }

    pub fn verify_audit(&self, expected: Option<AuditHead>) -> Result<Verified, VerifyError> {
        let ground = self.own()?;
        let reading = Arc::clone(&ground);
        ground.block(async move { verify::verify(&reading, expected).await })
    }

    pub fn read_audit<E: From<StoreError>>(&self, each: impl FnMut(&AuditEntry) -> Result<(), E>) -> Result<(), E> {
        verify::read_audit(&self.own()?, each)
    }

    /// For a module's own tables.
    pub fn tables(&self) -> Result<tables::Tables, StoreError> {
        tables::Tables::new(self.ground()?)
    }

    /// The data directory of the node that opens it, where it has one.
    pub fn dir(&self) -> Option<&Path> {
        match &self.node {
            Name::Of(dir) => Some(dir),
            Name::Fresh(_) => None,
        }
    }

    /// See [`crate::moving`].
    pub fn shelf(&self, new: bool) -> Result<moving::Closed, StoreError> {
        moving::Closed::take(if new { self.migrated()? } else { self.ground()? })
    }

    pub fn said(&self) -> Result<Option<Said>, StoreError> {
        let ground = self.own()?;
        let reading = Arc::clone(&ground);
        ground.block(async move { said::read(&reading).await })
    }
}

/// See the module.
pub(crate) struct PostgresStore {
    intake: Intake<Sender<Command>>,
    closing: Arc<AtomicBool>,
    writer: Mutex<Option<JoinHandle<()>>>,
    membership: Arc<Membership>,
    node: Mutex<Option<JoinHandle<()>>>,
    ground: Arc<Ground>,
    /// Numbers of what other nodes have told this one, and was handed out, but may still be there.
    words: Arc<Mutex<BTreeSet<i64>>>,
    /// The digest of the newest policy as this node found it first, where it had none of its own.
    began_with: Arc<OnceLock<String>>,
}

impl PostgresStore {
    /// Serves the database as this node; waits so long for what keeps it out.
    fn begin(ground: Arc<Ground>, node: String, patience: Duration) -> Result<Self, StoreError> {
        let (commands, queue) = channel(QUEUE);
        let (intake, closing) = (Intake::new(commands), Arc::new(AtomicBool::new(false)));
        let membership = Membership::new(Arc::clone(&ground), node);
        let beside = Arc::clone(&membership);
        let writer = Writer::new(Arc::clone(&ground), beside, queue, intake.meter(), Arc::clone(&closing));
        let thread = connect::on_thread("store-write", move |ready| writer.run(patience, ready))?;
        let writer = Mutex::new(Some(thread));
        let store = Self {
            intake,
            closing,
            writer,
            membership,
            node: Mutex::default(),
            ground,
            words: Arc::default(),
            began_with: Arc::default(),
        };
        // Where it cannot join, what is dropped ends the writer.
        let node = store.membership.start()?;
        *store.node.lock().unwrap_or_else(PoisonError::into_inner) = Some(node);
        Ok(store)
    }

    fn read<T, F, Fut>(&self, query: F) -> StoreFuture<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<deadpool_postgres::Object>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, StoreError>> + Send,
    {
        if self.closing.load(Ordering::Acquire) {
            return Box::pin(async { Err(StoreError::Closed) });
        }
        self.ground.ask(query)
    }

    /// As [`Self::read`], of a small write beside the queue: where nobody answers in time, its outcome is unknown.
    fn write<T, F, Fut>(&self, work: F) -> StoreFuture<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<deadpool_postgres::Object>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, StoreError>> + Send,
    {
        if self.closing.load(Ordering::Acquire) {
            return Box::pin(async { Err(StoreError::Closed) });
        }
        self.ground.ask_to_write(work)
    }
}

impl Offer for Sender<Command> {
    fn offer(&self, command: Command) -> Option<(StoreError, Command)> {
        self.try_send(command).err().map(|refused| match refused {
            TrySendError::Full(command) => (StoreError::QueueFull, command),
            TrySendError::Closed(command) => (StoreError::Closed, command),
        })
    }
}

impl Store for PostgresStore {
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
        self.read(move |client| async move { retention::find_old(&**client, before).await })
    }

    fn backup_of(&self) -> StoreFuture<Option<Timestamp>> {
        self.read(|client| async move { facts::backup_of(&**client).await })
    }

    fn pins(&self) -> StoreFuture<Pins> {
        self.read(|client| async move { pins::load(&**client).await })
    }

    fn standing_rules(&self) -> StoreFuture<Vec<StandingRule>> {
        self.read(|client| async move { standing_rules::load(&**client).await })
    }

    fn policies(&self) -> StoreFuture<PolicySnapshots> {
        let node = self.membership.id.clone();
        let began_with = Arc::clone(&self.began_with);
        self.read(move |client| async move {
            let known = policies::load(&client, &node).await?;
            if let PolicySnapshots { here: None, newest: Some(newest), .. } = &known {
                began_with.get_or_init(|| newest.digest.clone());
            }
            Ok(known)
        })
    }

    fn save_policy(&self, snapshot: PolicySnapshot, by_consent: bool) -> StoreFuture<()> {
        let node = self.membership.id.clone();
        let began_with = self.began_with.get().cloned();
        self.write(move |client| async move {
            policies::save(&client, &node, &snapshot, by_consent, began_with.as_deref()).await
        })
    }

    fn get(&self, id: &str) -> StoreFuture<Option<Arc<Change>>> {
        let id = id.to_owned();
        let body = self.read(move |client| async move { changes::get(&**client, &id).await });
        Box::pin(async move { Body::parse(body.await?) })
    }

    fn find_idempotent(&self, principal: &str, key: &str) -> StoreFuture<Option<Arc<Change>>> {
        let (principal, key) = (principal.to_owned(), key.to_owned());
        let body = self.read(move |client| async move { changes::find_idempotent(&**client, &principal, &key).await });
        Box::pin(async move { Body::parse(body.await?) })
    }

    fn list(&self, query: ListQuery) -> StoreFuture<Listing> {
        let found = self.read(move |client| async move { changes::list(&**client, &query).await });
        Box::pin(async move { found.await?.parse() })
    }

    fn live(&self) -> StoreFuture<Vec<LiveChange>> {
        self.read(|client| async move { changes::list_live(&**client).await })
    }

    fn proposed_since(&self, since: Timestamp) -> StoreFuture<Vec<Proposed>> {
        self.read(move |client| async move { rows::proposed_since(&client, since).await })
    }

    fn voted(&self) -> StoreFuture<Vec<String>> {
        self.read(|client| async move { changes::list_voted(&**client).await })
    }

    fn counts(&self) -> StoreFuture<Vec<(ChangeState, u64)>> {
        self.read(|client| async move { changes::count_by_state(&**client).await })
    }

    fn events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<StoredEvent>> {
        self.read(move |client| async move { changes::events_after(&**client, after, limit).await })
    }

    fn followed(&self, after: u64, limit: usize) -> StoreFuture<Vec<Followed>> {
        let node = Arc::clone(&self.membership);
        self.read(move |client| async move { node.followed(&client, after, limit).await })
    }

    fn orphans(&self) -> StoreFuture<Vec<String>> {
        self.read(|client| async move { claims::orphans(&client).await })
    }

    fn held_until(&self, id: &str) -> StoreFuture<Option<Timestamp>> {
        let id = id.to_owned();
        self.read(move |client| async move { claims::held_until(&client, &id).await })
    }

    fn occupants(&self, targets: Vec<String>, _: Timestamp) -> StoreFuture<Vec<Occupant>> {
        self.read(move |client| async move { claims::occupants(&client, targets).await })
    }

    fn tell(&self, node: &str, change: &str, body: String) -> StoreFuture<()> {
        let (node, change, own) = (node.to_owned(), change.to_owned(), self.membership.id.clone());
        self.write(move |client| async move { node_rows::tell(&client, &own, &node, &change, &body).await })
    }

    fn heard(&self) -> StoreFuture<Vec<(String, String)>> {
        let (own, taken, ground) = (self.membership.id.clone(), Arc::clone(&self.words), Arc::clone(&self.ground));
        let reading = self.read(move |client| async move { node_rows::heard(&client, &own).await });
        Box::pin(async move {
            let told = reading.await?;
            if told.is_empty() {
                return Ok(Vec::new());
            }
            let ids: Vec<i64> = told.iter().map(|(id, _)| *id).collect();
            let heard = {
                let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
                taken.retain(|id| ids.contains(id));
                told.into_iter().filter(|(id, _)| taken.insert(*id)).map(|(_, word)| word).collect()
            };
            // It is known here by now: an answer that is lost loses nothing.
            if let Err(error) = ground.ask(move |client| async move { node_rows::forget(&client, ids).await }).await {
                tracing::debug!(%error, "what other nodes have told could not be taken out yet");
            }
            Ok(heard)
        })
    }

    fn nodes(&self) -> Arc<dyn Nodes> {
        Arc::clone(&self.membership) as _
    }

    fn audit_page(&self, change: Option<String>, before: Option<u64>, limit: usize) -> StoreFuture<Vec<AuditEntry>> {
        self.read(
            move |client| async move { statements::trail::page(&**client, change.as_deref(), before, limit).await },
        )
    }

    fn search_audit(&self, search: AuditSearch, before: Option<u64>, limit: usize) -> StoreFuture<FoundEntries> {
        self.read(move |client| async move {
            let newest = rows::heads(&client).await?.audit.seq;
            statements::trail::search(&**client, &search, newest, before, limit).await
        })
    }

    fn heads(&self) -> StoreFuture<Heads> {
        self.read(|client| async move { rows::heads(&client).await })
    }

    fn trouble(&self) -> Option<StoreError> {
        self.ground.health.trouble()
    }

    fn is_open(&self) -> bool {
        self.intake.is_open()
            && !self.membership.is_replaced()
            && self.writer.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|t| !t.is_finished())
    }

    fn close(&self) {
        self.intake.close();
        self.closing.store(true, Ordering::Release);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writing thread of the store had panicked");
        }
        self.membership.close();
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).take();
        if node.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of this node's lease had panicked");
        }
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.close();
    }
}

//! The durable store of changes, their audit trail, feed events, keys, pins, standing rules, policies and webhook
//! deliveries.
//!
//! It decides nothing about changes, because [`countersign_domain::changes::machine`] decides before what may happen.
//! It never answers before the commit, and never guesses how a commit ended.
//!
//! [`Place`] is the location of a store, and the only way to open it; a [`Room`] is the storage of a module. The traits
//! [`Store`], [`keys::Credentials`] and [`webhooks::Deliveries`] are the interfaces. Each backend, `sqlite` or
//! `postgres`, writes transitions in its own way; everything else is implemented once, with the `statements` over the
//! trait `sql::Sql`.

mod coverage;
#[cfg(test)]
mod drafts;
pub mod error;
mod health;
mod identity;
pub mod keys;
pub mod lock;
mod moving;
pub mod nodes;
mod pins;
mod place;
mod policy_snapshots;
mod postgres;
mod queries;
mod queue;
mod retention;
mod reviewer_records;
mod rows;
mod search;
#[cfg(any(test, feature = "testing"))]
pub mod servers;
pub mod sql;
pub mod sqlite;
pub mod standing_rules;
mod statements;
#[cfg(test)]
mod suite;
mod verify;
pub mod webhooks;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};
use jiff::Timestamp;
use tokio::sync::oneshot;

use countersign_domain::{
    changes::{
        Change, ChangeState, Claimant,
        audit::{AuditEntry, AuditHead},
        machine::EventKind,
    },
    policy::{Pins, StandingRule},
};

pub use coverage::CoveredCounts;
pub use error::StoreError;
pub use identity::StoreIdentity;
pub use lock::{DataLock, LockError, lock_data_dir};
pub use moving::{MoveError, MoveModules, Progress};
pub use nodes::Nodes;
pub use pins::{PinStore, PinWrite};
pub use place::{Place, Room};
pub use policy_snapshots::{PolicySnapshot, PolicySnapshots};
pub use postgres::tables;
pub use retention::{Deletion, PrunableRecords, Pruning, PruningCutoffs, Redaction};
pub use reviewer_records::ReviewerRecords;
pub use search::{AuditSearch, ChangeCriteria, FoundEntries, FoundEntry};
pub use verify::{VerifiedTrail, VerifyError};

/// A transition that is ready to be written. The caller has serialized its JSON, so that the store's thread need not.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The change after the transition.
    pub change: Arc<Change>,
    /// The version that it replaces; `None` for a new change.
    pub expected: Option<u64>,
    /// The whole change as JSON.
    pub body: String,
    pub kind: EventKind,
    pub from: Option<ChangeState>,
    pub at: Timestamp,
    pub actor: String,
    /// The audit entry's details: a JSON object.
    pub details: String,
    /// The feed event's members after `type` and `seq`, with the closing brace.
    pub event_tail: String,
    /// Ends the claim of a node that is gone, and not one of this node.
    pub orphan: bool,
    /// For a new change, the hash of its proposer, tool and arguments, which detects a repeated call.
    pub call_hash: Option<String>,
}

/// An audit entry that is no transition: about a server's definitions, standing rules, a policy or a late call.
#[derive(Clone, Debug)]
pub struct Record {
    /// The id of the change in whose timeline it stands, or an empty string.
    pub change: String,
    pub server: String,
    pub pins: Vec<PinWrite>,
    /// The new state of rules.
    pub rules: Vec<StandingRule>,
    /// The outcome of a call that came after its node's lease had run out.
    pub late: Option<LateCall>,
    /// The event, for example `definitions_accepted`.
    pub event: &'static str,
    pub at: Timestamp,
    pub actor: String,
    /// The audit entry's details: a JSON object.
    pub details: String,
}

impl Record {
    /// Returns a record about no change, server or rule. `details` is a JSON object.
    #[must_use]
    pub fn new(event: &'static str, at: Timestamp, actor: &str, details: String) -> Self {
        Self {
            change: String::new(),
            server: String::new(),
            pins: Vec::new(),
            rules: Vec::new(),
            late: None,
            event,
            at,
            actor: actor.to_owned(),
            details,
        }
    }
}

/// A call that ended after its node was thought to be gone. No other call of that claim can still go out.
#[derive(Clone, Debug)]
pub struct LateCall {
    pub by: Claimant,
    /// The time until which the change's target stays taken, if the outcome is unknown all the same.
    pub taken_until: Option<Timestamp>,
}

/// A change that has a target to itself, so that other changes wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// The hash of the target ([`Change::target_hash`]).
    pub target: String,
    pub change: String,
    /// The time until which an unknown outcome keeps the target, unless a person settles it before; `None` while the
    /// change runs.
    pub until: Option<Timestamp>,
}

/// A write that is durable.
#[derive(Clone, Debug, Default)]
pub struct CommittedWrite {
    /// The number of a transition's feed event; other writes have no event, and 0.
    pub seq: u64,
    /// The JSON of the feed event, or nothing.
    pub event: Bytes,
}

/// The reason why a write was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// The change is not at the expected version.
    #[error("the change has another version")]
    Conflict,
    /// There is a change with this id, or with this idempotency key of the same principal.
    #[error("there is such a change already")]
    Duplicate,
    /// Another change has the target, because it runs on some node or its outcome is unknown.
    #[error("another change has the same target")]
    Busy,
    /// This node's lease has run out since the change was claimed, or the lease of the claim's node has not run out
    /// yet.
    #[error("the claim does not hold")]
    Fenced,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Receives the outcome of a write, in commit order and on the store's thread, so it must be quick and never block. The
/// flag is set if the outcome of another transition follows at once, so that a listener may pass on several together.
pub type WriteCallback = Box<dyn FnOnce(Result<CommittedWrite, WriteError>, bool) + Send>;

/// The data of a live change that limits and expiry need.
#[derive(Clone, Debug)]
pub struct LiveChange {
    pub id: String,
    pub state: ChangeState,
    pub principal: String,
    pub bytes: u64,
    pub expires_at: Timestamp,
    /// The hash of the call ([`Draft::call_hash`]); older changes have none.
    pub call_hash: Option<String>,
}

/// A proposal: its principal, its time, and its size then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposalRecord {
    pub principal: String,
    pub bytes: u64,
    pub at: Timestamp,
}

/// A stored feed event.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    pub seq: u64,
    /// The type, for example `change.created`.
    pub kind: String,
    pub data: String,
}

/// A stored feed event, with data of its change.
#[derive(Clone, Debug)]
pub struct RemoteEvent {
    pub event: StoredEvent,
    /// The size of a created change when it was proposed; 0 if it is deleted.
    pub bytes: u64,
    /// See [`Draft::call_hash`].
    pub call_hash: Option<String>,
}

/// A query for changes, newest first.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Empty means any.
    pub states: Vec<ChangeState>,
    /// Empty means any.
    pub principals: Vec<String>,
    pub narrow: ChangeCriteria,
    /// Only those created before the one with this number.
    pub before: Option<u64>,
    pub limit: usize,
}

/// A page of changes with their numbers.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    pub items: Vec<(u64, Arc<Change>)>,
    /// Older changes match too.
    pub more: bool,
}

/// Submits a write, and returns its outcome. It is written even if the caller stops waiting.
pub fn write(store: &dyn Store, request: WriteRequest) -> impl Future<Output = Result<(), WriteError>> + Send + use<> {
    let (reply, answer) = oneshot::channel();
    store.submit(request, Box::new(move |written, _| drop(reply.send(written.map(drop)))));
    async move { answer.await.unwrap_or(Err(WriteError::Store(StoreError::Closed))) }
}

/// The maximum bytes of changes in a page, which always has at least one change.
pub const MAX_PAGE_BYTES: usize = 8 << 20;

/// The ends of the feed and of the audit trail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    pub event: u64,
    pub audit: AuditHead,
}

/// A future answer of the store.
pub type StoreFuture<T> = BoxFuture<'static, Result<T, StoreError>>;

/// A write for [`Store::submit`].
#[derive(Clone, Debug)]
pub enum WriteRequest {
    Transition(Draft),
    /// A record with its pins and rules, all or nothing.
    Record(Record),
    /// A record after which the store is no backup any more ([`Store::backup_time`]). It ends the rules that allow.
    Restored(Record),
    /// A transaction of pruning. A change that is not as it was read is left alone.
    Prune(Pruning),
}

/// The operations of a store that differ between the backends.
pub trait StoreBackend: Send + Sync + 'static {
    /// Returns the recorded policies, of this node and the newest of all nodes.
    fn policies(&self) -> StoreFuture<PolicySnapshots>;
    /// Records the policy that this node has in force. It also becomes the newest policy if there is none, if the newest is
    /// the one that this node had before or began with, or if a reviewer's consent put it into force.
    fn save_policy(&self, snapshot: PolicySnapshot, by_consent: bool) -> StoreFuture<()>;
    /// Returns feed events above `after`, in order, at most `limit`, for a node that follows what others write.
    fn remote_events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<RemoteEvent>>;
    /// Returns executing changes whose node is gone, or was an earlier process of this one.
    fn orphaned_changes(&self) -> StoreFuture<Vec<String>>;
    /// Returns the time, by the store's clock, until which a node that seems to be gone may still send a call of the change.
    fn in_flight_until(&self, _id: &str) -> StoreFuture<Option<Timestamp>> {
        Box::pin(ready(Ok(None)))
    }
    /// Sends a message about a change to the node that runs it, durably.
    fn send_to_node(&self, _node: &str, _change: &str, _body: String) -> StoreFuture<()> {
        Box::pin(ready(Ok(())))
    }
    /// Returns the messages of other nodes to this one, as changes and texts: each once, and in order.
    fn receive_messages(&self) -> StoreFuture<Vec<(String, String)>> {
        Box::pin(ready(Ok(Vec::new())))
    }
    /// Returns this gateway among the nodes of the store.
    fn nodes(&self) -> Arc<dyn Nodes>;
    /// Returns the error that keeps the store from working now, such as a full disk, a foreign lock or damage. The store
    /// notices by itself when it works again.
    fn current_error(&self) -> Option<StoreError>;
    /// Returns `true` while the store's threads live and it takes writes.
    fn is_open(&self) -> bool;
    /// Refuses further writes, finishes the queued ones, and closes the files. Blocks, and may be called twice.
    fn close(&self);
}

/// A store. Writes are answered in commit order, and reads see everything that was answered before they began.
///
/// To add a backend:
/// 1. Implement `sql::Sql` and `sql::Database` for its connections, [`StoreBackend`] and `queries::Queries` for the store,
///    and `moving::OfflineStore`, in a folder beside `src/store/src/sqlite`. A failure tells whether it certainly did nothing
///    ([`StoreError::certainly_aborted`]).
/// 2. Let `src/store/src/place.rs` open it: nothing else names a backend. The compiler tells what is missing.
/// 3. Add a line `suite!(…)` at the end of `src/store/src/suite.rs`. `every_backend_is_in_the_suite` fails without it.
/// 4. Let `scripts/crash-proof` run on it.
pub trait Store: StoreBackend {
    /// Queues a write, and never blocks. Many writes share a commit. `done` is always called; if the queue is full or the
    /// store is closed, at once and on this thread. A failure tells whether the write certainly did nothing
    /// ([`StoreError::certainly_aborted`]).
    fn submit(&self, request: WriteRequest, done: WriteCallback);

    /// Returns what is older than these times, oldest first, as much as one transaction prunes.
    fn find_prunable(&self, before: PruningCutoffs) -> StoreFuture<PrunableRecords>;
    /// Returns the time of the backup that this store is, if no gateway has started on it since.
    fn backup_time(&self) -> StoreFuture<Option<Timestamp>>;
    /// Returns all pins of tool definitions.
    fn pins(&self) -> StoreFuture<Pins>;
    /// Returns all standing rules, also ended ones, oldest first.
    fn standing_rules(&self) -> StoreFuture<Vec<StandingRule>>;
    /// Returns the change with the id.
    fn get(&self, id: &str) -> StoreFuture<Option<Arc<Change>>>;
    /// Returns the change that the principal proposed with the idempotency key.
    fn find_idempotent(&self, principal: &str, key: &str) -> StoreFuture<Option<Arc<Change>>>;
    /// Returns changes, newest first, at most [`MAX_PAGE_BYTES`] of them.
    fn list(&self, query: ListQuery) -> StoreFuture<Listing>;
    /// Returns all changes that are not final.
    fn live_changes(&self) -> StoreFuture<Vec<LiveChange>>;
    /// Returns the proposals since that time whose changes are still stored, in whatever state, oldest first.
    fn proposals_since(&self, since: Timestamp) -> StoreFuture<Vec<ProposalRecord>>;
    /// Returns the ids of pending and approved changes that have votes.
    fn changes_with_votes(&self) -> StoreFuture<Vec<String>>;
    /// Returns the number of changes by state. States without changes may be missing.
    fn count_by_state(&self) -> StoreFuture<Vec<(ChangeState, u64)>>;
    /// Returns feed events above `after`, in order, at most `limit`.
    fn events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<StoredEvent>>;
    /// Returns the changes that occupy these targets ([`Change::target_hash`]). A free target has none.
    fn occupants(&self, targets: Vec<String>, now: Timestamp) -> StoreFuture<Vec<Occupant>>;
    /// Returns audit entries below `before`, newest first.
    fn audit_page(&self, change: Option<String>, before: Option<u64>, limit: usize) -> StoreFuture<Vec<AuditEntry>>;
    /// Returns a page of the matching audit entries below `before`, newest first.
    fn search_audit(&self, search: AuditSearch, before: Option<u64>, limit: usize) -> StoreFuture<FoundEntries>;
    /// Returns where the feed and the audit trail end.
    fn heads(&self) -> StoreFuture<Heads>;
}

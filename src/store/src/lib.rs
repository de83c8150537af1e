//! The durable store of changes, their audit trail, feed events, keys, accounts at servers, pins, standing rules, policies
//! and webhook deliveries.
//!
//! The store decides nothing about changes; [`countersign_domain::changes::machine`] decides which transitions are
//! legal. The store never answers before the commit, and never guesses how a commit ended.
//!
//! [`StoreLocation`] is the only way to open a store, and [`ModuleStorage`] is the storage of a module. The traits
//! [`Store`], [`keys::Credentials`], [`people::People`], [`accounts::AccountStore`], [`rule_counts::RuleCountStore`] and
//! [`webhooks::Deliveries`] are the interfaces. Each backend, `sqlite` or `postgres`, writes transitions in its own way;
//! everything else is implemented once, over the trait `sql::Sql`.

pub mod accounts;
mod coverage;
mod delivery_store;
#[cfg(test)]
mod drafts;
pub mod error;
mod health;
mod identity;
pub mod keys;
mod location;
mod moving;
pub mod nodes;
pub mod people;
mod pins;
mod policy_snapshots;
mod postgres;
mod queries;
mod queue;
mod retention;
mod reviewer_records;
mod rows;
pub mod rule_counts;
mod schema_versions;
mod search;
pub mod sql;
pub mod sqlite;
mod statements;
mod stored_keys;
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
        Change, ChangeState, Claimant, PlanStep,
        audit::{AuditEntry, AuditHead},
        machine::{EventKind, SYSTEM},
        plan::StepState,
    },
    policy::{Pins, StandingRule},
};

pub use coverage::CoveredCounts;
pub use error::{ReadAuditError, StoreError, unread_result_error};
pub use identity::StoreIdentity;
pub use location::{ModuleStorage, StoreLocation};
pub use moving::{MoveError, MoveModules, Progress};
pub use nodes::Nodes;
pub use pins::{PinStore, PinWrite};
pub use policy_snapshots::{PolicySnapshot, PolicySnapshots};
pub use postgres::tables;
pub use retention::{PrunableRecords, PrunedChange, Pruning, PruningCutoffs};
pub use reviewer_records::ReviewerRecords;
pub use schema_versions::SchemaVersions;
pub use search::{AuditSearch, ChangeCriteria, FoundEntries, FoundEntry, find_newest_entry};
pub use statements::standing_rules::{MAX_ENDED_RULES, RULE_USED};
pub use verify::{VerifiedTrail, VerifyError};

/// A transition that is ready to be written. The caller serializes the JSON, which keeps that work off the store's
/// thread.
#[derive(Clone, Debug)]
pub struct TransitionDraft {
    /// The change after the transition.
    pub change: Arc<Change>,
    /// The version that the transition replaces; `None` for a new change.
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
    /// The transition ends the claim of a node that is gone, instead of a claim of this node.
    pub ends_orphaned_claim: bool,
    /// For a new change, the hash of its proposer, tool and arguments, which detects a repeated call.
    pub call_hash: Option<String>,
}

impl TransitionDraft {
    /// Returns the place of a step whose approval a person undoes. Such a transition is refused while a step of the plan runs.
    fn plan_of_undone_step(&self) -> Option<&PlanStep> {
        let is_undo = self.kind == EventKind::Unapproved && self.from == Some(ChangeState::Approved);
        // The system removes approvals that are void, whatever runs.
        self.change.plan.as_ref().filter(|_| is_undo && self.actor != SYSTEM)
    }
}

/// An audit entry that is no transition: about a server's definitions, standing rules, a policy or a late call.
#[derive(Clone, Debug)]
pub struct AuditRecord {
    /// The id of the change whose timeline shows the entry, or an empty string.
    pub change: String,
    pub server: String,
    pub pins: Vec<PinWrite>,
    /// The new state of rules.
    pub rules: Vec<StandingRule>,
    /// The outcome of a call that arrived after the lease of its node had expired.
    pub late: Option<LateCall>,
    /// The record is refused with [`WriteError::Conflict`] if the timeline of the change has an entry with this event already.
    pub once: bool,
    /// The event, for example `definitions_accepted`.
    pub event: &'static str,
    pub at: Timestamp,
    pub actor: String,
    /// The audit entry's details: a JSON object.
    pub details: String,
}

impl AuditRecord {
    /// Returns a record about no change, server or rule. `details` is a JSON object.
    pub fn new(event: &'static str, at: Timestamp, actor: &str, details: String) -> Self {
        Self {
            change: String::new(),
            server: String::new(),
            pins: Vec::new(),
            rules: Vec::new(),
            late: None,
            once: false,
            event,
            at,
            actor: actor.to_owned(),
            details,
        }
    }
}

/// A call that ended after its node was considered gone. No other call of that claim can still be sent.
#[derive(Clone, Debug)]
pub struct LateCall {
    pub claimant: Claimant,
    /// The time until which the change keeps its target, if the outcome is still unknown.
    pub taken_until: Option<Timestamp>,
}

/// A change that holds a target, so that other changes of this target have to wait.
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
    /// The number of a transition's feed event, or 0 for writes without an event.
    pub seq: u64,
    /// The JSON of the feed event, or nothing.
    pub event: Bytes,
}

/// The reason why a write was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// The change is not at the expected version, or its contents were removed.
    #[error("the change has another version, or its contents were removed")]
    Conflict,
    /// A change with this id exists, or one of the same principal with this idempotency key.
    #[error("a change with this id or idempotency key exists already")]
    Duplicate,
    /// Another change holds the target, because it is running on some node or its outcome is unknown. Or the plan of the change
    /// does not let it run yet.
    #[error("another change holds the same target, or the plan of the change does not let it run yet")]
    Busy,
    /// The lease of this node has expired since the change was claimed, or the lease of the claiming node has not
    /// expired yet.
    #[error("the claim of the change is not valid")]
    Fenced,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Receives the outcome of a write, in commit order and on the store's thread, so it must be quick and never block.
/// The flag is set if the outcome of another transition follows at once, which lets a listener forward several
/// together.
pub type WriteCallback = Box<dyn FnOnce(Result<CommittedWrite, WriteError>, bool) + Send>;

/// The data of a live change that limits and expiry need.
#[derive(Clone, Debug)]
pub struct LiveChange {
    pub id: String,
    pub state: ChangeState,
    pub principal: String,
    pub bytes: u64,
    pub expires_at: Timestamp,
    /// The hash of the call ([`TransitionDraft::call_hash`]); older changes have none.
    pub call_hash: Option<String>,
    /// The plan of which it is a step.
    pub plan: Option<String>,
}

/// A proposal as it was made: its principal, its size and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposalRecord {
    pub principal: String,
    pub bytes: u64,
    pub at: Timestamp,
}

/// A proposal with the current state of its change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredProposal {
    pub id: String,
    pub state: ChangeState,
    pub principal: String,
    pub provider: String,
    pub tool: String,
    /// The time of the proposal.
    pub at: Timestamp,
}

/// A transition of a change, with what the overview counts by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitionRecord {
    pub at: Timestamp,
    pub change_id: String,
    /// The state before; `None` for the proposal.
    pub from: Option<ChangeState>,
    pub to: ChangeState,
    /// The proposer of the change.
    pub principal: String,
    pub provider: String,
    pub tool: String,
    /// The time of the proposal.
    pub created_at: Timestamp,
}

/// The transitions and waiting changes that the overview counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverviewRecords {
    /// The transitions, newest first.
    pub transitions: Vec<TransitionRecord>,
    /// The times of the proposals that wait for a decision, oldest first.
    pub waiting_since: Vec<Timestamp>,
    /// `false` if there were too many transitions or waiting changes to read all of them.
    pub is_complete: bool,
}

/// A stored feed event.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    pub seq: u64,
    /// The type, for example `change.created`.
    pub kind: String,
    pub data: String,
}

/// A stored feed event, with data of the change that it is about.
#[derive(Clone, Debug)]
pub struct RemoteEvent {
    pub event: StoredEvent,
    /// The size of the change when it was proposed, for `change.created`; 0 for other events or if the change was
    /// deleted.
    pub bytes: u64,
    /// See [`TransitionDraft::call_hash`].
    pub call_hash: Option<String>,
}

/// A query for changes, newest first.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Empty means any.
    pub states: Vec<ChangeState>,
    /// Empty means any.
    pub principals: Vec<String>,
    pub criteria: ChangeCriteria,
    /// Only changes with a lower number, which were created earlier.
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

/// Submits a write and returns its outcome. The store completes the write even if the caller stops waiting.
pub fn write(store: &dyn Store, request: WriteRequest) -> impl Future<Output = Result<(), WriteError>> + Send + use<> {
    let (reply, answer) = oneshot::channel();
    store.submit(request, Box::new(move |written, _| drop(reply.send(written.map(drop)))));
    async move { answer.await.unwrap_or(Err(WriteError::Store(StoreError::Closed))) }
}

/// The maximum bytes of the changes in a page. A page contains at least one change, however large.
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
    Transition(TransitionDraft),
    /// A record with its pins and rules, in one transaction.
    Record(AuditRecord),
    /// Records that a gateway has started on a store restored from a backup ([`Store::backup_time`]), and ends all
    /// rules that allow calls.
    Restored(AuditRecord),
    /// One transaction of pruning, which skips changes that were modified since they were read.
    Prune(Pruning),
}

/// The operations of a store that differ between the backends.
pub trait StoreBackend: Send + Sync + 'static {
    /// Returns the recorded policy of this node, and the newest policy of all nodes.
    fn policies(&self) -> StoreFuture<PolicySnapshots>;
    /// Records the policy that this node has in force. It also becomes the newest policy if there is none yet, if this
    /// node had or began with the present newest policy, or if a reviewer's consent put it into force.
    fn save_policy(&self, snapshot: PolicySnapshot, by_consent: bool) -> StoreFuture<()>;
    /// Returns at most `limit` feed events above `after`, in order, for a node that follows the writes of other nodes.
    fn remote_events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<RemoteEvent>>;
    /// Returns executing changes that no live process runs: their node is gone, or was an earlier process of this
    /// node.
    fn orphaned_changes(&self) -> StoreFuture<Vec<String>>;
    /// Returns the time, by the store's clock, until which a node that is considered gone may still send a call of the
    /// change.
    fn in_flight_until(&self, _id: &str) -> StoreFuture<Option<Timestamp>> {
        Box::pin(ready(Ok(None)))
    }
    /// Sends a message about a change to the node that runs it, durably.
    fn send_to_node(&self, _node: &str, _change: &str, _body: String) -> StoreFuture<()> {
        Box::pin(ready(Ok(())))
    }
    /// Returns the messages of other nodes to this node, as pairs of change id and text. Each message is returned
    /// once, and in order.
    fn receive_messages(&self) -> StoreFuture<Vec<(String, String)>> {
        Box::pin(ready(Ok(Vec::new())))
    }
    /// Returns the view that this gateway has of the nodes of the store.
    fn nodes(&self) -> Arc<dyn Nodes>;
    /// Returns the error that currently keeps the store from working, such as a full disk, a foreign lock or damage.
    /// The store detects on its own when it works again.
    fn current_error(&self) -> Option<StoreError>;
    /// Returns `true` while the store's threads are running and it accepts writes.
    fn is_open(&self) -> bool;
    /// Refuses further writes, finishes the queued ones, and closes the files. Blocks. A second call has no effect.
    fn close(&self);
}

/// A store. Writes are answered in commit order, and a read sees every write that was answered before the read began.
///
/// To add a backend:
/// 1. Implement `sql::Sql` and `sql::Database` for its connections, [`StoreBackend`] and `queries::Queries` for the
///    store, `queue::BatchWriter` for its writes, and `moving::OfflineStore`, in a folder beside `src/store/src/sqlite`.
///    Each error must say whether the write certainly changed nothing ([`StoreError::is_certainly_aborted`]). If several
///    gateways can share the store, also implement all methods of [`Nodes`], whose defaults are for a single gateway;
///    otherwise use `nodes::SingleNode`.
/// 2. Open it in `src/store/src/location.rs`, the only file that names backends, and give modules their tables with
///    [`ModuleStorage`], on which the tracker matches. The compiler reports what is missing.
/// 3. Add a line `suite!(…)` at the end of `src/store/src/suite.rs`. `every_backend_is_in_the_suite` fails without it.
/// 4. Run `scripts/crash-proof` on it.
pub trait Store: StoreBackend {
    /// Queues a write without blocking; many writes share a commit. `callback` is always called. If the queue is full or
    /// the store is closed, `callback` is called at once and on this thread. An error says whether the write certainly
    /// changed nothing ([`StoreError::is_certainly_aborted`]).
    fn submit(&self, request: WriteRequest, callback: WriteCallback);

    /// Returns the oldest records that are older than the cutoffs, as many as one transaction prunes.
    fn find_prunable(&self, before: PruningCutoffs) -> StoreFuture<PrunableRecords>;
    /// Returns the time of the backup that this store was restored from, until a gateway has started on it.
    fn backup_time(&self) -> StoreFuture<Option<Timestamp>>;
    /// Returns all pins of tool definitions.
    fn pins(&self) -> StoreFuture<Pins>;
    /// Returns all standing rules, including ended ones, oldest first.
    fn standing_rules(&self) -> StoreFuture<Vec<StandingRule>>;
    /// Returns the change with the id.
    fn get(&self, id: &str) -> StoreFuture<Option<Arc<Change>>>;
    /// Returns the change that the principal proposed with the idempotency key.
    fn find_by_idempotency_key(&self, principal: &str, key: &str) -> StoreFuture<Option<Arc<Change>>>;
    /// Returns a page of changes, newest first, of at most [`MAX_PAGE_BYTES`].
    fn list(&self, query: ListQuery) -> StoreFuture<Listing>;
    /// Returns all changes that are not final.
    fn live_changes(&self) -> StoreFuture<Vec<LiveChange>>;
    /// Returns the proposals since the given time whose changes are still stored, in any state, oldest first.
    fn proposals_since(&self, since: Timestamp) -> StoreFuture<Vec<ProposalRecord>>;
    /// Returns the transitions of changes since the given time, and the changes that wait for a decision. Both are bounded.
    fn overview(&self, since: Timestamp) -> StoreFuture<OverviewRecords>;
    /// Returns the proposals in any state since a day before the oldest that waits for a decision, oldest first, without the
    /// steps of plans. Their number is bounded.
    fn bundle_candidates(&self) -> StoreFuture<Vec<StoredProposal>>;
    /// Returns the changes that are the steps of a plan, in its order.
    fn plan(&self, plan: &str) -> StoreFuture<Vec<Arc<Change>>>;
    /// Returns the states of the steps of a plan, in its order.
    fn plan_states(&self, plan: &str) -> StoreFuture<Vec<StepState>>;
    /// Returns the ids of the plans with steps that wait for a decision or for their turn.
    fn open_plans(&self) -> StoreFuture<Vec<String>>;
    /// Returns the ids of pending and approved changes that have votes.
    fn changes_with_votes(&self) -> StoreFuture<Vec<String>>;
    /// Returns the number of changes by state. States without changes may be missing.
    fn count_by_state(&self) -> StoreFuture<Vec<(ChangeState, u64)>>;
    /// Returns feed events above `after`, in order, at most `limit`.
    fn events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<StoredEvent>>;
    /// Returns the changes that hold the given targets ([`Change::target_hash`]). Free targets are left out.
    fn occupants(&self, targets: Vec<String>, now: Timestamp) -> StoreFuture<Vec<Occupant>>;
    /// Returns audit entries above `after`, in order, at most `limit`.
    fn audit_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<AuditEntry>>;
    /// Returns a page of the matching audit entries below `before`, newest first.
    fn search_audit(&self, search: AuditSearch, before: Option<u64>, limit: usize) -> StoreFuture<FoundEntries>;
    /// Returns where the feed and the audit trail end.
    fn heads(&self) -> StoreFuture<Heads>;
}

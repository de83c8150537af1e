//! The `PendingChanges` actor is the only writer of transitions. It limits the open changes of each principal, passes
//! transitions to the store in the order of their arrival, and announces them once they are durable.
//!
//! It never waits: replies go through oneshots, and the store answers through a channel.

pub mod change_outline;
pub mod daily_volume;
pub mod deadlines;
pub mod duplicate_calls;
pub mod indexes;
pub mod ledger;
pub mod order;
pub mod proposal_rate;
pub mod remote_transition;
pub mod state_counts;
pub mod watch;

use std::{sync::Arc, time::Duration};

use actix::{Actor, Context, Handler, Message, StreamHandler};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot};

use self::{
    change_outline::ChangeOutline, daily_volume::DailyVolume, indexes::ChangeIndexes, ledger::Ledger,
    order::AnnouncementOrder, remote_transition::RemoteTransition,
};
use countersign_domain::changes::{
    Change, ChangeState,
    machine::{EventKind, IllegalTransition},
};
use countersign_feed::{Feed, FeedEvent};
use countersign_protocol::McpError;
use countersign_runtime::{background, crash::crash_point};
use countersign_store::{CommittedWrite, ProposalRecord, Store, StoreError, TransitionDraft, WriteError, WriteRequest};
use countersign_telemetry::metrics as telemetry;

/// The reason why a transition was not made.
#[derive(Debug)]
pub(crate) enum TransitionError {
    Illegal(IllegalTransition),
    /// The change has moved to another version, or its contents were removed.
    Conflict,
    /// A new change has an id or idempotency key that already exists.
    Duplicate,
    /// See [`WriteError::Busy`]. For an undo of an approval: a step of the plan is running.
    Busy,
    /// The claim is not valid: this node's lease has expired, or the lease of the change's node has not expired yet.
    Fenced,
    /// Refused before the store was asked; the error goes to the client unchanged.
    Refused(McpError),
    Store(StoreError),
}

impl From<WriteError> for TransitionError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Conflict => Self::Conflict,
            WriteError::Duplicate => Self::Duplicate,
            WriteError::Busy => Self::Busy,
            WriteError::Fenced => Self::Fenced,
            WriteError::Store(error) => Self::Store(error),
        }
    }
}

/// The change as it was stored, or the reason why the transition was not made.
pub(crate) type TransitionResult = Result<Arc<Change>, TransitionError>;

/// The right to write one transition: a place in the write queue and a share of its bytes. It is released when the transition
/// was announced or has failed.
pub(crate) type WriteSlot = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// Stores a new change, or takes a change to its next state if it is still at the version the draft was made from. Sent
/// by `transition_writer.rs`; the reply is the stored change, [`TransitionError::Refused`] over a limit of its principal, or
/// the error of the store.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct WriteChange {
    pub draft: TransitionDraft,
    pub write_slot: WriteSlot,
    pub reply: oneshot::Sender<TransitionResult>,
}

/// Announces transitions that `follow.rs` read from the feed, unless this node has announced them before.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AnnounceRemote {
    pub transitions: Vec<RemoteTransition>,
}

/// The store's answer to a write; sent by the store's thread in commit order.
pub(crate) struct WriteOutcome {
    result: Result<CommittedWrite, WriteError>,
    pending: PendingWrite,
}

/// A transition that the store is writing, with the reply channel of its caller.
pub(crate) struct PendingWrite {
    change: Arc<Change>,
    kind: EventKind,
    bytes: u64,
    _write_slot: WriteSlot,
    reply: oneshot::Sender<TransitionResult>,
}

/// An approved change, for the Executor.
#[derive(Clone, Debug)]
pub(crate) struct ApprovedChange {
    pub id: String,
    /// The version after its approval.
    pub version: u64,
    /// The key of the Executor's queue for the changes of one target. It contains the provider, because two providers may use the
    /// same lock key for different targets.
    pub queue_key: String,
    /// The delay before this node tries to run it, in which its approval can be undone or another node may run it.
    pub delay: Duration,
    /// Set if another node approved it and should run it: the delay before this node checks again.
    pub handover_backoff: Option<Duration>,
}

impl ApprovedChange {
    /// The time that the approving node has to claim the change before other nodes try.
    pub(crate) const HANDOVER_DELAY: Duration = Duration::from_secs(3);

    /// Returns an approved change, to be run when its approval can no longer be undone.
    pub(crate) fn new(change: &ChangeOutline<'_>, now: Timestamp) -> Self {
        // If the clock was set back, the delay is still not longer than the rule allows.
        let delay = delay_until(change.run_after, now).min(Duration::from_secs(change.terms.undo_for));
        Self {
            id: change.id.to_string(),
            version: change.version,
            queue_key: format!("{}\0{}", change.provider, change.target.lock_key),
            delay,
            handover_backoff: None,
        }
    }

    /// Returns a step of a plan, to be run no earlier than `at`.
    pub(crate) fn for_step(step: &Change, at: Option<Timestamp>, now: Timestamp) -> Self {
        Self { delay: delay_until(at, now), ..Self::new(&ChangeOutline::from(step), now) }
    }

    /// Delays the change, because another node may have approved it and should run it.
    pub(crate) fn with_handover_delay(self) -> Self {
        let delay = self.delay + Self::HANDOVER_DELAY;
        Self { delay, handover_backoff: Some(Self::HANDOVER_DELAY), ..self }
    }
}

/// Returns the time from now until `at`, or zero if that has passed.
fn delay_until(at: Option<Timestamp>, now: Timestamp) -> Duration {
    at.and_then(|at| Duration::try_from(at.duration_since(now)).ok()).unwrap_or_default()
}

/// A changed state of a step, for `upkeep::plans`. Another step of the plan may run now, or the plan stops.
#[derive(Debug)]
pub(crate) struct PlanUpdate {
    /// The id of the plan.
    pub plan: String,
    /// `true` if this node made the transition. It then also runs the next step.
    pub is_own: bool,
}

pub(crate) struct PendingChanges {
    pub store: Arc<dyn Store>,
    pub feed: Feed,
    pub indexes: Arc<ChangeIndexes>,
    pub ledger: Ledger,
    pub daily_volume: DailyVolume,
    pub clock: crate::Clock,
    /// Bounded by the number of changes that are not final.
    pub approved: mpsc::UnboundedSender<ApprovedChange>,
    /// Changed states of steps. Bounded like `approved`, because equal entries are read together.
    pub plan_updates: mpsc::UnboundedSender<PlanUpdate>,
    /// Bounded by the write slots.
    pub outcomes: mpsc::UnboundedSender<Vec<WriteOutcome>>,
    /// Outcomes of the current commit, collected by the store's thread so that it wakes the actor once.
    pub collected: Arc<Mutex<Vec<WriteOutcome>>>,
    pub announcements: AnnouncementOrder<DurableTransition>,
    /// Notified when the feed must be read, because a transition is missing or the outcome of a write is unknown.
    pub feed_gap: Arc<Notify>,
    pub metrics: Metrics,
}

/// A durable transition that waits to be announced.
pub(crate) enum DurableTransition {
    Own(CommittedWrite, PendingWrite),
    Remote(Box<RemoteTransition>),
}

pub(crate) struct Metrics {
    proposed: metrics::Counter,
    refused: metrics::Counter,
    /// The counters in the order of [`EventKind::VARIANTS`].
    transitions: Vec<metrics::Counter>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            proposed: metrics::counter!(telemetry::CHANGES_PROPOSED),
            refused: metrics::counter!(telemetry::CHANGES_REFUSED),
            transitions: EventKind::VARIANTS
                .iter()
                .map(|kind| metrics::counter!(telemetry::CHANGE_TRANSITIONS, "event" => kind.as_str()))
                .collect(),
        }
    }

    fn count_transition(&self, kind: EventKind) {
        if kind == EventKind::Created {
            self.proposed.increment(1);
        }
        if let Some(counter) = self.transitions.get(kind as usize) {
            counter.increment(1);
        }
    }
}

impl Actor for PendingChanges {
    type Context = Context<Self>;
}

impl Handler<WriteChange> for PendingChanges {
    type Result = ();

    fn handle(&mut self, WriteChange { draft, write_slot, reply }: WriteChange, _: &mut Self::Context) {
        let (principal, bytes) = (&draft.change.proposer.principal, draft.body.len() as u64);
        if draft.kind == EventKind::Created {
            let reserved = self.ledger.reserve(principal, bytes).and_then(|()| {
                let admitted = self.daily_volume.admit(principal, bytes, draft.at);
                admitted.inspect_err(|_| self.ledger.release(principal, bytes))
            });
            if let Err(error) = reserved {
                self.metrics.refused.increment(1);
                self.indexes.duplicates.remove(&draft.change.id);
                let _ = reply.send(Err(TransitionError::Refused(error)));
                return;
            }
        }
        let pending =
            PendingWrite { change: Arc::clone(&draft.change), kind: draft.kind, bytes, _write_slot: write_slot, reply };
        self.announcements.begin_write((pending.change.id.clone(), pending.change.version));
        let outcomes = self.outcomes.clone();
        let collected = Arc::clone(&self.collected);
        self.store.submit(
            WriteRequest::Transition(draft),
            Box::new(move |result, more_follow| {
                let mut collected = collected.lock();
                collected.push(WriteOutcome { result, pending });
                if !more_follow {
                    let _ = outcomes.send(std::mem::take(&mut *collected));
                }
            }),
        );
    }
}

impl StreamHandler<Vec<WriteOutcome>> for PendingChanges {
    fn handle(&mut self, outcomes: Vec<WriteOutcome>, _: &mut Self::Context) {
        for WriteOutcome { result, pending } in outcomes {
            let id = (pending.change.id.clone(), pending.change.version);
            match result {
                Ok(written) => {
                    self.announcements.end_write(&id, Some((written.seq, DurableTransition::Own(written, pending))))
                }
                Err(error) => {
                    self.announcements.end_write(&id, None);
                    self.reject_write(error, pending);
                }
            }
        }
        self.announce_ready();
    }
}

impl Handler<AnnounceRemote> for PendingChanges {
    type Result = ();

    fn handle(&mut self, AnnounceRemote { transitions }: AnnounceRemote, _: &mut Self::Context) {
        self.announcements.add_remote(transitions.into_iter().map(|transition| {
            (transition.seq, transition.transition_id(), DurableTransition::Remote(Box::new(transition)))
        }));
        self.announce_ready();
    }
}

impl PendingChanges {
    fn announce_ready(&mut self) {
        while let Some((seq, transition)) = self.announcements.next() {
            match transition {
                DurableTransition::Own(written, PendingWrite { change, kind, bytes, _write_slot, reply }) => {
                    crash_point("between_commit_and_announce");
                    self.metrics.count_transition(kind);
                    tracing::info!(
                        change = %change.id, event = kind.as_str(), version = change.version, seq,
                        provider = %change.provider, tool = %change.tool, principal = %change.proposer.principal,
                        "a transition was stored"
                    );
                    let event = FeedEvent::from_committed(&written, kind.feed_type(), &change);
                    self.announce(event, &ChangeOutline::from(&*change), bytes, Some(&change));
                    crash_point("after_announce");
                    let _ = reply.send(Ok(change));
                }
                DurableTransition::Remote(transition) => {
                    let RemoteTransition { event, change, bytes, call_hash, .. } = *transition;
                    tracing::debug!(change = %change.id, seq, "a transition was read from the feed");
                    if is_creation(&event) && self.ledger.state_of(&change.id).is_none() {
                        self.count_remote_proposal(&change, bytes, call_hash.as_deref());
                    }
                    self.announce(event, &change, bytes, None);
                }
            }
        }
        if self.announcements.has_gap() {
            self.feed_gap.notify_one();
        }
    }

    /// Counts a proposal of another node like the actor counts one of this node before it writes the change.
    fn count_remote_proposal(&mut self, change: &ChangeOutline<'_>, bytes: u64, call_hash: Option<&str>) {
        let principal = &change.proposer.principal;
        self.ledger.add_usage(principal, bytes);
        let proposal = ProposalRecord { principal: principal.clone(), bytes, at: change.created_at };
        self.daily_volume.count_remote(proposal, (self.clock)());
        if let Some(call_hash) = call_hash {
            self.indexes.duplicates.add(call_hash, &change.id);
        }
    }

    /// Announces a transition, whichever node made it. `bytes` is the size of a new change. `own_change` is the whole change if
    /// this node wrote the transition.
    fn announce(&mut self, event: FeedEvent, change: &ChangeOutline<'_>, bytes: u64, own_change: Option<&Arc<Change>>) {
        let (id, state, now) = (&*change.id, change.state, (self.clock)());
        let previous_state = self.ledger.state_of(id);
        let is_new = previous_state.is_none() && is_creation(&event);
        if is_new {
            self.ledger.insert(id, &change.proposer.principal, bytes, state);
        }
        // A step of a plan may get more time when it is reviewed again.
        if is_new || (change.plan.is_some() && event.kind == EventKind::Edited.feed_type()) {
            self.indexes.deadlines.insert(id, change.expires_at, now);
        }
        // A change that was final when this node started is already counted.
        if (previous_state.is_some() || is_new) && previous_state != Some(state) {
            self.indexes.counts.record_transition(previous_state, state);
            self.ledger.set_state(id, state);
        }
        if state.is_final() {
            self.ledger.close(id);
            self.indexes.duplicates.remove(id);
        }
        if state.is_final() || matches!(state, ChangeState::Executing | ChangeState::OutcomeUnknown) {
            self.indexes.deadlines.remove(id);
        }
        self.indexes.schedule_notices(change, now);
        self.feed.publish(event);
        match own_change {
            Some(change) => self.indexes.watchers.announce(change),
            None if self.indexes.watchers.has_watchers(id) => {
                let (watchers, store) = (Arc::clone(&self.indexes.watchers), Arc::clone(&self.store));
                background::spawn(watch::announce_from_store(watchers, store, id.to_owned()));
            }
            None => {}
        }
        let is_own = own_change.is_some();
        if let Some(plan) = &change.plan {
            // The next step to run may be another one. An error means that the gateway ends.
            let _ = self.plan_updates.send(PlanUpdate { plan: plan.id.clone(), is_own });
        } else if state == ChangeState::Approved {
            let approved = ApprovedChange::new(change, now);
            // An error means that the Executor has stopped; the next start runs the change.
            let _ = self.approved.send(if is_own { approved } else { approved.with_handover_delay() });
        }
    }

    fn reject_write(&mut self, error: WriteError, pending: PendingWrite) {
        if matches!(error, WriteError::Store(StoreError::OutcomeUnknown)) {
            self.feed_gap.notify_one();
        }
        if pending.kind == EventKind::Created {
            let change = &pending.change;
            self.ledger.release(&change.proposer.principal, pending.bytes);
            self.daily_volume.release(&change.proposer.principal, pending.bytes, change.created_at);
            self.indexes.duplicates.remove(&change.id);
        }
        let _ = pending.reply.send(Err(error.into()));
    }
}

fn is_creation(event: &FeedEvent) -> bool {
    event.kind == EventKind::Created.feed_type()
}

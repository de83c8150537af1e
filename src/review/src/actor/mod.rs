//! The `PendingChanges` actor: the only writer of changes. It bounds what a principal may have open, hands
//! transitions to the store in the order they come, and announces them once they are durable.
//!
//! It never waits: replies go through oneshots, and the store answers through a channel.

pub mod daily;
pub mod duplicate_calls;
pub mod ledger;
pub mod proposal_rate;
pub mod watch;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use actix::{Actor, AsyncContext, Context, Handler, Message, StreamHandler};
use jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use self::{
    daily::Daily,
    duplicate_calls::Twins,
    ledger::{Counts, Deadlines, Ledger},
    watch::Watchers,
};
use crate::feed::{Feed, FeedEvent};
use countersign_domain::changes::{Change, ChangeState, machine::EventKind};
use countersign_protocol::McpError;
use countersign_store::{Draft, Store, WriteError, Written, crash::crash_point};
use countersign_telemetry::metrics as telemetry;

/// Why a transition did not happen.
#[derive(Debug)]
pub(crate) enum WriteFailure {
    /// Over a bound, before the store was asked.
    Refused(McpError),
    Write(WriteError),
}

pub(crate) type Reply = oneshot::Sender<Result<Arc<Change>, WriteFailure>>;

/// A place in the queue, given back when the transition is announced or has failed.
#[derive(Debug)]
pub(crate) struct Admission {
    pub _place: OwnedSemaphorePermit,
    pub _bytes: OwnedSemaphorePermit,
}

/// Stores a new change. Sent by [`crate::Changes::propose`]; the reply is the stored change, or
/// [`WriteFailure::Refused`] over a bound of its principal, or what the store says.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ProposeChange {
    pub draft: Draft,
    pub admission: Admission,
    pub reply: Reply,
}

/// Takes a change to its next state, if it is still at the version the draft was made from. Sent by the
/// [`crate::Changes`] handle for people's decisions, and by the Executor and the expiry.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AdvanceChange {
    pub draft: Draft,
    pub admission: Admission,
    pub reply: Reply,
}

/// What the store said of a transition; from its thread, in commit order.
pub(crate) struct StoreAnswered {
    result: Result<Written, WriteError>,
    step: Step,
}

/// What is remembered of a transition while the store writes it.
struct Step {
    change: Arc<Change>,
    kind: EventKind,
    from: Option<ChangeState>,
    bytes: u64,
    _admission: Admission,
    reply: Reply,
}

/// An approved change, for the Executor.
#[derive(Clone, Debug)]
pub(crate) struct Approved {
    pub id: String,
    /// At its approval.
    pub version: u64,
    pub lock_key: String,
    /// How long it waits before it may run.
    pub grace: Option<Duration>,
}

impl Approved {
    pub(crate) fn of(change: &Change, now: Timestamp) -> Self {
        let left = change.run_after.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
        // A clock that was set back makes nobody wait longer than the rule says.
        let grace = left.map(|left| left.min(Duration::from_secs(change.terms.undo_for)));
        // Two providers may use the same key for different things.
        let lock_key = format!("{}\0{}", change.provider, change.target.lock_key);
        Self { id: change.id.clone(), version: change.version, lock_key, grace: grace.filter(|left| !left.is_zero()) }
    }
}

pub(crate) struct PendingChanges {
    pub store: Arc<dyn Store>,
    pub feed: Feed,
    pub watchers: Arc<Watchers>,
    pub ledger: Ledger,
    pub daily: Daily,
    pub counts: Arc<Counts>,
    pub deadlines: Arc<Deadlines>,
    pub twins: Arc<Twins>,
    pub clock: crate::Clock,
    /// Bounded by how many changes are not final.
    pub approved: mpsc::UnboundedSender<Approved>,
    /// Bounded by the admissions.
    pub outcomes: (mpsc::UnboundedSender<Vec<StoreAnswered>>, Option<mpsc::UnboundedReceiver<Vec<StoreAnswered>>>),
    /// What the store's thread collects of one commit, to wake the actor once.
    pub collected: Arc<Mutex<Vec<StoreAnswered>>>,
    pub metrics: Metrics,
}

pub(crate) struct Metrics {
    proposed: metrics::Counter,
    refused: metrics::Counter,
    transitions: [metrics::Counter; EventKind::ALL.len()],
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            proposed: metrics::counter!(telemetry::CHANGES_PROPOSED),
            refused: metrics::counter!(telemetry::CHANGES_REFUSED),
            transitions: EventKind::ALL
                .map(|kind| metrics::counter!(telemetry::CHANGE_TRANSITIONS, "event" => kind.as_str())),
        }
    }
}

impl Metrics {
    fn transition(&self, kind: EventKind) {
        if let Some(counter) = EventKind::ALL.iter().position(|k| *k == kind).and_then(|i| self.transitions.get(i)) {
            counter.increment(1);
        }
    }
}

impl Actor for PendingChanges {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if let Some(mut outcomes) = self.outcomes.1.take() {
            ctx.add_stream(futures_util::stream::poll_fn(move |cx| outcomes.poll_recv(cx)));
        }
    }
}

impl Handler<ProposeChange> for PendingChanges {
    type Result = ();

    fn handle(&mut self, message: ProposeChange, _: &mut Self::Context) {
        let ProposeChange { draft, admission, reply } = message;
        let bytes = draft.body.len() as u64;
        let principal = &draft.change.proposer.principal;
        let reserved = self.ledger.reserve(principal, bytes).and_then(|()| {
            let admitted = self.daily.admit(principal, bytes, draft.at);
            admitted.inspect_err(|_| self.ledger.release(principal, bytes))
        });
        if let Err(error) = reserved {
            self.metrics.refused.increment(1);
            self.twins.remove(&draft.change.id);
            let _ = reply.send(Err(WriteFailure::Refused(error)));
            return;
        }
        self.write(draft, bytes, admission, reply);
    }
}

impl Handler<AdvanceChange> for PendingChanges {
    type Result = ();

    fn handle(&mut self, message: AdvanceChange, _: &mut Self::Context) {
        let AdvanceChange { draft, admission, reply } = message;
        let bytes = draft.body.len() as u64;
        self.write(draft, bytes, admission, reply);
    }
}

impl StreamHandler<Vec<StoreAnswered>> for PendingChanges {
    fn handle(&mut self, outcomes: Vec<StoreAnswered>, _: &mut Self::Context) {
        for StoreAnswered { result, step } in outcomes {
            match result {
                Ok(written) => self.announce(&written, step),
                Err(error) => self.failed(error, step),
            }
        }
    }

    /// The store is gone; the actor is stopped by whoever closed it.
    fn finished(&mut self, _: &mut Self::Context) {}
}

impl PendingChanges {
    fn write(&mut self, draft: Draft, bytes: u64, admission: Admission, reply: Reply) {
        let step = Step {
            change: Arc::clone(&draft.change),
            kind: draft.kind,
            from: draft.from,
            bytes,
            _admission: admission,
            reply,
        };
        let outcomes = self.outcomes.0.clone();
        let collected = Arc::clone(&self.collected);
        self.store.submit(
            draft,
            Box::new(move |result, more| {
                let mut collected = collected.lock().unwrap_or_else(PoisonError::into_inner);
                collected.push(StoreAnswered { result, step });
                if !more {
                    let _ = outcomes.send(std::mem::take(&mut *collected));
                }
            }),
        );
    }

    fn announce(&mut self, written: &Written, step: Step) {
        let Step { change, kind, from, bytes, _admission, reply } = step;
        crash_point("between_commit_and_announce");
        self.counts.moved(from, change.state);
        self.metrics.transition(kind);
        if kind == EventKind::Created {
            self.metrics.proposed.increment(1);
            self.ledger.opened(&change.id, &change.proposer.principal, bytes);
            self.deadlines.insert(&change.id, change.expires_at, (self.clock)());
        }
        if change.state.is_final() {
            self.ledger.closed(&change.id);
            self.twins.remove(&change.id);
        }
        if change.state.is_final() || matches!(change.state, ChangeState::Executing | ChangeState::OutcomeUnknown) {
            self.deadlines.remove(&change.id);
        }
        tracing::info!(
            change = %change.id, event = kind.as_str(), version = change.version, seq = written.seq,
            provider = %change.provider, tool = %change.tool, principal = %change.proposer.principal, "change"
        );
        self.feed.publish(FeedEvent::committed(written, kind.feed_type(), &change));
        self.watchers.announce(&change);
        if change.state == ChangeState::Approved {
            // An error means that the Executor has stopped: the next start runs it.
            let _ = self.approved.send(Approved::of(&change, (self.clock)()));
        }
        crash_point("after_announce");
        let _ = reply.send(Ok(change));
    }

    fn failed(&mut self, error: WriteError, step: Step) {
        if step.kind == EventKind::Created {
            self.ledger.release(&step.change.proposer.principal, step.bytes);
            self.daily.release(&step.change.proposer.principal, step.bytes);
            self.twins.remove(&step.change.id);
        }
        let _ = step.reply.send(Err(WriteFailure::Write(error)));
    }
}

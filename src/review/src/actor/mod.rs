//! The `PendingChanges` actor: the only writer of changes. It bounds what a principal may have open, hands
//! transitions to the store in the order they come, and announces them once they are durable.
//!
//! It never waits: replies go through oneshots, and the store answers through a channel.

pub mod daily;
pub mod duplicate_calls;
pub mod ledger;
pub mod order;
pub mod others;
pub mod proposal_rate;
pub mod watch;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use actix::{Actor, AsyncContext, Context, Handler, Message, StreamHandler};
use jiff::Timestamp;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot};

use self::{
    daily::Daily,
    duplicate_calls::DuplicateCalls,
    ledger::{Counts, Deadlines, Ledger},
    order::Order,
    others::Other,
    watch::Watchers,
};
use countersign_domain::changes::{Change, ChangeState, Target, Terms, machine::EventKind};
use countersign_feed::{Feed, FeedEvent};
use countersign_protocol::McpError;
use countersign_runtime::crash::crash_point;
use countersign_store::{Draft, Store, StoreError, WriteError, Written};
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

/// What was read of the feed that is not announced yet, as it seems. Sent by `follow`.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ReadOthers {
    pub others: Vec<Other>,
}

/// What the store said of a transition; from its thread, in commit order.
pub(crate) struct StoreAnswered {
    result: Result<Written, WriteError>,
    step: Step,
}

/// What is remembered of a transition while the store writes it.
pub(crate) struct Step {
    change: Arc<Change>,
    kind: EventKind,
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
    /// Another node approved it and is to run it; how long until this one looks again.
    pub handed_over: Option<Duration>,
}

impl Approved {
    /// How long the node that approved a change has to take it before others do.
    pub(crate) const HANDOVER: Duration = Duration::from_secs(3);

    /// As one that another node approved, if any was.
    pub(crate) fn left_by_others(self, others: bool) -> Self {
        if !others {
            return self;
        }
        Self { grace: Some(self.grace.unwrap_or_default() + Self::HANDOVER), handed_over: Some(Self::HANDOVER), ..self }
    }

    pub(crate) fn of(change: &Change, now: Timestamp) -> Self {
        let (target, terms) = (&change.target, &change.terms);
        Self::at((&change.id, change.version), (&change.provider, target), (change.run_after, terms), now)
    }

    fn at(
        (id, version): (&str, u64),
        (provider, target): (&str, &Target),
        (run_after, terms): (Option<Timestamp>, &Terms),
        now: Timestamp,
    ) -> Self {
        let left = run_after.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
        // A clock that was set back makes nobody wait longer than the rule says.
        let grace = left.map(|left| left.min(Duration::from_secs(terms.undo_for)));
        // Two providers may use the same key for different things.
        let lock_key = format!("{provider}\0{}", target.lock_key);
        Self { id: id.to_owned(), version, lock_key, grace: grace.filter(|left| !left.is_zero()), handed_over: None }
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
    pub duplicates: Arc<DuplicateCalls>,
    pub clock: crate::Clock,
    /// Bounded by how many changes are not final.
    pub approved: mpsc::UnboundedSender<Approved>,
    /// Bounded by the admissions.
    pub outcomes: (mpsc::UnboundedSender<Vec<StoreAnswered>>, Option<mpsc::UnboundedReceiver<Vec<StoreAnswered>>>),
    /// What the store's thread collects of one commit, to wake the actor once.
    pub collected: Arc<Mutex<Vec<StoreAnswered>>>,
    pub order: Order<Announced>,
    /// The store knows something that is to be announced and that nobody here wrote.
    pub gap: Arc<Notify>,
    pub metrics: Metrics,
}

/// A transition that is durable.
pub(crate) enum Announced {
    Own(Written, Step),
    Other(Box<Other>),
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
            self.duplicates.remove(&draft.change.id);
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
            let which = (step.change.id.clone(), step.change.version);
            match result {
                Ok(written) => self.order.end(&which, Some((written.seq, Announced::Own(written, step)))),
                Err(error) => {
                    self.order.end(&which, None);
                    self.failed(error, step);
                }
            }
        }
        self.announce_all();
    }

    /// The store is gone; the actor is stopped by whoever closed it.
    fn finished(&mut self, _: &mut Self::Context) {}
}

impl Handler<ReadOthers> for PendingChanges {
    type Result = ();

    fn handle(&mut self, ReadOthers { others }: ReadOthers, _: &mut Self::Context) {
        self.order.read(others.into_iter().map(|other| (other.seq, other.which(), Announced::Other(Box::new(other)))));
        self.announce_all();
    }
}

impl PendingChanges {
    fn announce_all(&mut self) {
        while let Some((_, announced)) = self.order.next() {
            match announced {
                Announced::Own(written, step) => self.announce(&written, step),
                Announced::Other(other) => self.announce_other(*other),
            }
        }
        if self.order.has_gap() {
            self.gap.notify_one();
        }
    }

    fn write(&mut self, draft: Draft, bytes: u64, admission: Admission, reply: Reply) {
        let step = Step { change: Arc::clone(&draft.change), kind: draft.kind, bytes, _admission: admission, reply };
        self.order.begin((step.change.id.clone(), step.change.version));
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
        let Step { change, kind, bytes, _admission, reply } = step;
        crash_point("between_commit_and_announce");
        self.counts.moved(self.ledger.state(&change.id), change.state);
        self.ledger.moved(&change.id, change.state);
        self.metrics.transition(kind);
        if kind == EventKind::Created {
            self.metrics.proposed.increment(1);
            self.ledger.opened(&change.id, &change.proposer.principal, bytes, change.state);
            self.deadlines.insert(&change.id, change.expires_at, (self.clock)());
        }
        if change.state.is_final() {
            self.ledger.closed(&change.id);
            self.duplicates.remove(&change.id);
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

    /// What another node did: it is accounted for and told of as if it were done here.
    fn announce_other(&mut self, other: Other) {
        let (id, principal, state) = (&other.change.id, &other.change.proposer.principal, other.change.state);
        let before = self.ledger.state(id);
        let now = (self.clock)();
        if other.is_new && before.is_none() {
            self.ledger.restore(id, principal, other.bytes, state);
            self.daily.count(principal, other.bytes, other.change.created_at);
            self.deadlines.insert(id, other.change.expires_at, now);
            if let Some(call) = &other.call_hash {
                self.duplicates.add(call, id);
            }
        }
        // Of one that was final when this node began, everything is counted already.
        if (before.is_some() || other.is_new) && before != Some(state) {
            self.counts.moved(before, state);
            self.ledger.moved(id, state);
        }
        if state.is_final() {
            self.ledger.closed(id);
            self.duplicates.remove(id);
        }
        if state.is_final() || matches!(state, ChangeState::Executing | ChangeState::OutcomeUnknown) {
            self.deadlines.remove(id);
        }
        if state == ChangeState::Approved {
            let _ = self.approved.send(other.approved());
        }
        if self.watchers.are_there(id) {
            actix::spawn(watch::tell(Arc::clone(&self.watchers), Arc::clone(&self.store), id.clone()));
        }
        tracing::debug!(change = %id, seq = other.seq, "a change of another node");
        self.feed.publish(other.event);
    }

    fn failed(&mut self, error: WriteError, step: Step) {
        if matches!(error, WriteError::Store(StoreError::OutcomeUnknown)) {
            self.gap.notify_one();
        }
        if step.kind == EventKind::Created {
            self.ledger.release(&step.change.proposer.principal, step.bytes);
            self.daily.release(&step.change.proposer.principal, step.bytes);
            self.duplicates.remove(&step.change.id);
        }
        let _ = step.reply.send(Err(WriteFailure::Write(error)));
    }
}

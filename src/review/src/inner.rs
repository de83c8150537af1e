//! The state shared by all [`super::Changes`] handles, the Executor and the upkeep tasks.

use std::{
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Instant,
};

use actix::{Addr, ArbiterHandle};
use jiff::{SignedDuration, Timestamp, Unit};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    PendingConfig,
    actor::{
        PendingChanges,
        duplicate_calls::DuplicateCalls,
        ledger::{Counts, Deadlines},
        proposal_rate::ProposalRate,
        watch::Watchers,
    },
    inquiries::Inquiries,
};
use countersign_domain::changes::Change;
use countersign_feed::Feed;
use countersign_provider::ProviderDirectory;
use countersign_store::{Nodes, Store};

/// Addresses, limits and cancellation tokens of the running review of changes.
pub(super) struct Inner {
    pub config: PendingConfig,
    pub store: Arc<dyn Store>,
    pub directory: Arc<dyn ProviderDirectory>,
    /// The only sender to the actor: each clone of an address would add its own mailbox capacity.
    pub addr: Addr<PendingChanges>,
    /// The thread of the Executor, of rechecks and of expiry.
    pub executor: ArbiterHandle,
    pub writer: ArbiterHandle,
    pub feed: Feed,
    pub watchers: Arc<Watchers>,
    pub counts: Arc<Counts>,
    pub deadlines: Arc<Deadlines>,
    pub duplicates: Arc<DuplicateCalls>,
    pub proposal_rate: ProposalRate,
    pub nodes: Arc<dyn Nodes>,
    /// Notified when the store has transitions to announce that this node did not write.
    pub gap: Arc<Notify>,
    /// Cancelled when nothing more will be announced.
    pub stop_following: CancellationToken,
    pub inquiries: Inquiries,
    pub queue_slots: Arc<Semaphore>,
    pub queue_kibibytes: Arc<Semaphore>,
    pub started: Instant,
    /// Set when endpoints may start no new work.
    pub closing: AtomicBool,
    /// Cancelled when no new change may be claimed.
    pub stop: CancellationToken,
    /// Cancelled to end running calls.
    pub kill: CancellationToken,
    /// Cancelled to give up recording outcomes.
    pub abandon: CancellationToken,
    pub executor_ended: Mutex<Option<oneshot::Receiver<()>>>,
    /// Cancelled when the Executor has ended, even if it panicked.
    pub executor_gone: CancellationToken,
}

impl Inner {
    /// Returns the time of the wall clock, to the millisecond.
    pub(super) fn now(&self) -> Timestamp {
        let now = (self.config.clock)();
        now.round(Unit::Millisecond).unwrap_or(now)
    }

    /// Returns `true` if the change's deadline has passed.
    pub(super) fn is_expired(&self, change: &Change) -> bool {
        change.expires_at.duration_since(self.now()) <= SignedDuration::ZERO
    }
}

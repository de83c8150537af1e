//! What all handles of [`super::Changes`] and the gateway's own work on changes share.

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
        proposal_rate::Flood,
        watch::Watchers,
    },
    inquiries::Inquiries,
};
use countersign_domain::changes::Change;
use countersign_feed::Feed;
use countersign_provider::ProviderDirectory;
use countersign_store::{Nodes, Store};

/// See the module's page.
pub(super) struct Inner {
    pub config: PendingConfig,
    pub store: Arc<dyn Store>,
    pub directory: Arc<dyn ProviderDirectory>,
    /// The one sender to the actor: an address clone would bring its own mailbox capacity.
    pub addr: Addr<PendingChanges>,
    /// The thread of the Executor, of rechecks and of the expiry.
    pub executor: ArbiterHandle,
    pub writer: ArbiterHandle,
    pub feed: Feed,
    pub watchers: Arc<Watchers>,
    pub counts: Arc<Counts>,
    pub deadlines: Arc<Deadlines>,
    pub duplicates: Arc<DuplicateCalls>,
    pub flood: Flood,
    pub nodes: Arc<dyn Nodes>,
    /// See [`PendingChanges::gap`].
    pub gap: Arc<Notify>,
    /// Nothing is announced any more.
    pub followed: CancellationToken,
    pub inquiries: Inquiries,
    pub places: Arc<Semaphore>,
    pub place_bytes: Arc<Semaphore>,
    pub started: Instant,
    /// No new work from endpoints.
    pub closing: AtomicBool,
    /// No new claims.
    pub stop: CancellationToken,
    /// Running calls are ended.
    pub kill: CancellationToken,
    /// Outcomes that cannot be recorded are given up.
    pub abandon: CancellationToken,
    pub executor_ended: Mutex<Option<oneshot::Receiver<()>>>,
    /// The Executor has ended, in order or not.
    pub executor_gone: CancellationToken,
}

impl Inner {
    /// The wall clock, to the millisecond.
    pub(super) fn now(&self) -> Timestamp {
        let now = (self.config.clock)();
        now.round(Unit::Millisecond).unwrap_or(now)
    }

    /// Whether the change's time is over.
    pub(super) fn expired(&self, change: &Change) -> bool {
        change.expires_at.duration_since(self.now()) <= SignedDuration::ZERO
    }
}

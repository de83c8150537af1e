//! Helpers for the tests of several modules.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::WebhookContext;
use countersign_domain::changes::Claimant;
use countersign_store::{
    Nodes, StoreFuture,
    nodes::{Introduction, Node, ServerStates, StoreUpdates},
    webhooks::{Deliveries, PendingDelivery},
};

/// Returns a delivery that was not attempted yet. The store gives a new delivery another id.
pub fn pending_delivery(id: u64, subject: &str) -> PendingDelivery {
    PendingDelivery {
        id,
        key: id.to_string(),
        seq: Some(id),
        kind: "change.created".into(),
        subject: subject.into(),
        event: "{}".into(),
        attempts: 0,
        since: Timestamp::UNIX_EPOCH,
    }
}

/// Returns the context of workers on the current thread.
pub fn webhook_context(
    store: Arc<dyn Deliveries>,
    nodes: Arc<dyn Nodes>,
    shutdown: &CancellationToken,
) -> WebhookContext {
    let (thread, shutdown) = (actix::Arbiter::current(), shutdown.clone());
    WebhookContext { store, nodes, thread, dashboard_url: "".into(), shutdown }
}

/// A fake view of a store, in which the test controls the leadership and the other nodes.
#[derive(Default)]
pub struct FakeNodes {
    pub leads: AtomicBool,
    /// The claimant of a node that shares its store.
    pub claimant: Mutex<Option<Claimant>>,
    /// The number of other live nodes.
    pub other_count: AtomicUsize,
    /// The store's time; `None` uses the clock of this machine.
    pub now: Mutex<Option<Timestamp>>,
    pub list: Mutex<Vec<Node>>,
}

impl Nodes for FakeNodes {
    fn now(&self) -> Timestamp {
        self.now.lock().unwrap().unwrap_or_else(Timestamp::now)
    }
    fn claimant(&self) -> Option<Claimant> {
        self.claimant.lock().unwrap().clone()
    }
    fn is_leader(&self) -> bool {
        self.leads.load(Ordering::SeqCst)
    }
    fn live_count(&self) -> usize {
        1 + self.other_count.load(Ordering::SeqCst)
    }
    fn subscribe_updates(&self) -> watch::Receiver<StoreUpdates> {
        watch::channel(StoreUpdates::default()).1
    }
    fn introduce(&self, _: Introduction) {}
    fn set_server_states(&self, _: ServerStates) {}
    fn list(&self) -> StoreFuture<Vec<Node>> {
        let list = self.list.lock().unwrap().clone();
        Box::pin(async { Ok(list) })
    }
}

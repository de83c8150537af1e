//! Tests of the set of webhooks.

use std::sync::atomic::Ordering;

use super::*;
use crate::testing::{FakeNodes, webhook_context};
use countersign_domain::changes::Claimant;
use countersign_store::{
    StoreLocation,
    webhooks::{AttemptResult, DeliveryState, PendingDelivery},
};

/// A store whose handles for a leader delete no webhooks, because another node has become the leader.
pub(super) struct HandedOverStore {
    pub store: Arc<dyn Deliveries>,
    pub is_for_leader: bool,
}

impl Deliveries for HandedOverStore {
    fn for_leader(&self, _: &Claimant) -> Arc<dyn Deliveries> {
        Arc::new(Self { store: Arc::clone(&self.store), is_for_leader: true })
    }

    fn retain_only(&self, names: &[String]) -> Result<(), StoreError> {
        if self.is_for_leader { Err(StoreError::HandedOver) } else { self.store.retain_only(names) }
    }

    fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError> {
        self.store.position(webhook, head)
    }

    fn enqueue(&self, webhook: &str, position: u64, events: &[PendingDelivery]) -> Result<Vec<u64>, StoreError> {
        self.store.enqueue(webhook, position, events)
    }

    fn pending(&self, webhook: &str) -> Result<Vec<PendingDelivery>, StoreError> {
        self.store.pending(webhook)
    }

    fn record_attempt(
        &self,
        webhook: &str,
        id: u64,
        state: DeliveryState,
        attempt: &AttemptResult,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        self.store.record_attempt(webhook, id, state, attempt, at)
    }

    fn requeue_given_up(
        &self,
        webhook: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<(usize, Vec<PendingDelivery>), StoreError> {
        self.store.requeue_given_up(webhook, limit, now)
    }

    fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError> {
        self.store.deliveries(webhook, below, limit)
    }
}

#[actix::test]
async fn former_leader_deletes_no_webhook_of_another_node() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::directory(dir.path());
    let (feed, store) = (Feed::new(location.open().unwrap(), 0, 1), location.deliveries().unwrap());
    store.position("other", 7).unwrap();
    let nodes = Arc::new(FakeNodes::default());
    *nodes.claimant.lock().unwrap() = Some(Claimant { node: "own".into(), epoch: 1 });
    // This node does not know yet that another one has become the leader.
    nodes.leads.store(true, Ordering::SeqCst);
    let handed_over: Arc<dyn Deliveries> =
        Arc::new(HandedOverStore { store: Arc::clone(&store), is_for_leader: false });
    let webhooks = Arc::new(Webhooks::new(feed));
    let shutdown = CancellationToken::new();
    webhooks.start(webhook_context(handed_over, nodes, &shutdown), &WebhooksConfig::default()).await.unwrap();
    webhooks.apply(&WebhooksConfig::default()).await.unwrap();
    assert_eq!(store.position("other", 9).unwrap(), 7, "the webhook keeps its position");
    shutdown.cancel();
}

#[actix::test]
async fn disabled_webhook_keeps_its_rows_until_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::directory(dir.path());
    let (feed, store) = (Feed::new(location.open().unwrap(), 0, 1), location.deliveries().unwrap());
    store.position("hook", 7).unwrap();
    let nodes = Arc::new(FakeNodes::default());
    nodes.leads.store(true, Ordering::SeqCst);
    let webhooks = Arc::new(Webhooks::new(feed));
    let shutdown = CancellationToken::new();
    let disabled = WebhooksConfig { disabled: vec!["hook".to_owned()], ..WebhooksConfig::default() };
    webhooks.start(webhook_context(Arc::clone(&store), nodes, &shutdown), &disabled).await.unwrap();
    webhooks.apply(&disabled).await.unwrap();
    assert_eq!(store.position("hook", 9).unwrap(), 7);
    assert_eq!(*webhooks.names.lock(), ["hook"], "a new leader keeps it too");
    webhooks.apply(&WebhooksConfig::default()).await.unwrap();
    assert_eq!(store.position("hook", 9).unwrap(), 9, "it counts as new");
    shutdown.cancel();
}

#[actix::test]
async fn command_to_stopped_webhook_may_be_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::directory(dir.path());
    let (feed, store) = (Feed::new(location.open().unwrap(), 0, 1), location.deliveries().unwrap());
    let nodes = Arc::new(FakeNodes::default()) as Arc<dyn Nodes>;
    let webhooks = Arc::new(Webhooks::new(feed));
    let enabled = WebhooksConfig { enabled: vec![WebhookConfig::sample("hook")], ..WebhooksConfig::default() };
    let shutdown = CancellationToken::new();
    webhooks.start(webhook_context(store, nodes, &shutdown), &enabled).await.unwrap();
    shutdown.cancel();
    webhooks.drain().await;
    let refused = webhooks.retry("hook").await.unwrap_err();
    assert_eq!((refused.kind, refused.data["retryAfter"].as_u64()), (ErrorKind::ShuttingDown, Some(1)));
}

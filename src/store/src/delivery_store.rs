//! Implements the deliveries of webhooks for both backends with the same statements.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    StoreError,
    sql::{BACKGROUND_TIMEOUT, Database},
    statements::webhooks,
    webhooks::{AttemptResult, Deliveries, Delivery, DeliveryState, PendingDelivery},
};
use countersign_domain::changes::Claimant;

/// The deliveries of a database.
pub(crate) struct DeliveryStore<D> {
    db: Arc<D>,
    /// The node that must be the leader for a [`Self::transaction`] to succeed; `None` does not check.
    leader: Option<Claimant>,
}

impl<D: Database> DeliveryStore<D> {
    pub fn new(db: D) -> Self {
        Self { db: Arc::new(db), leader: None }
    }

    /// Runs a transaction, which fails if `leader` is no longer the leader.
    fn transaction<T>(&self, work: impl AsyncFnOnce(&D::Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.db.transaction(async |db| {
            if let Some(leader) = &self.leader {
                webhooks::check_leader(db, leader).await?;
            }
            work(db).await
        })
    }
}

impl<D: Database> Deliveries for DeliveryStore<D> {
    fn for_leader(&self, claimant: &Claimant) -> Arc<dyn Deliveries> {
        Arc::new(Self { db: Arc::clone(&self.db), leader: Some(claimant.clone()) })
    }

    fn retain_only(&self, names: &[String]) -> Result<(), StoreError> {
        self.transaction(async |db| webhooks::retain_only(db, names).await)
    }

    fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError> {
        self.db.write(async |db| webhooks::position(db, webhook, head).await)
    }

    fn enqueue(&self, webhook: &str, position: u64, events: &[PendingDelivery]) -> Result<Vec<u64>, StoreError> {
        self.transaction(async |db| webhooks::enqueue(db, webhook, position, events).await)
    }

    fn pending(&self, webhook: &str) -> Result<Vec<PendingDelivery>, StoreError> {
        self.db.read(BACKGROUND_TIMEOUT, async |db| webhooks::list_pending(db, webhook).await)
    }

    fn record_attempt(
        &self,
        webhook: &str,
        id: u64,
        state: DeliveryState,
        attempt: &AttemptResult,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        self.transaction(async |db| webhooks::record_attempt(db, webhook, id, state, attempt, at).await)
    }

    fn requeue_given_up(
        &self,
        webhook: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<(usize, Vec<PendingDelivery>), StoreError> {
        self.db.write(async |db| webhooks::requeue_given_up(db, webhook, limit, now).await)
    }

    fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError> {
        self.db.read(BACKGROUND_TIMEOUT, async |db| webhooks::deliveries(db, webhook, below, limit).await)
    }
}

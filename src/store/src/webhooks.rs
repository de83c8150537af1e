//! The positions of webhooks in the feed, and their deliveries.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::{
    StoreError,
    sql::{BACKGROUND_TIMEOUT, Database},
    statements::webhooks,
};
use countersign_domain::changes::Claimant;

/// The number of finished deliveries that are kept for each webhook.
pub const KEPT: u64 = 1000;

/// The state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    Waiting,
    Delivered,
    /// It was tried for too long, and goes out again only on request.
    GivenUp,
}

impl DeliveryState {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::GivenUp => "given_up",
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        [Self::Waiting, Self::Delivered, Self::GivenUp]
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| StoreError::BadRecord(format!("unknown state {text:?} of a delivery")))
    }
}

/// An event that waits to be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The number of the delivery, which rises; 0 until it is stored.
    pub id: u64,
    /// The key of the event within its webhook: its number in the feed, or a generated one.
    pub key: String,
    /// The number in the feed of a change's event.
    pub seq: Option<u64>,
    /// The type, for example `change.created`.
    pub kind: String,
    /// The subject: the id of a change or of a standing rule, or a description.
    pub subject: String,
    /// The feed event's JSON.
    pub event: String,
    /// The number of attempts so far.
    pub attempts: u32,
    /// The time since which it waits.
    pub since: Timestamp,
}

/// The result of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptResult {
    pub attempts: u32,
    /// The HTTP status of the receiver's answer, if there was one.
    pub status: Option<u16>,
    pub error: Option<String>,
}

/// A delivery as the API lists it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    pub id: u64,
    /// The event's number in the feed, if it is about a change.
    pub seq: Option<u64>,
    #[serde(rename = "type")]
    pub kind: String,
    pub subject: String,
    /// The subject, if it is a change.
    pub change_id: Option<String>,
    pub state: DeliveryState,
    pub attempts: u32,
    pub status: Option<u16>,
    pub error: Option<String>,
    pub taken_at: Timestamp,
    pub last_attempt_at: Option<Timestamp>,
}

/// The webhooks and deliveries of a store. Calls block for one small write, so they must be made on a thread that may
/// block.
pub trait Deliveries: Send + Sync + 'static {
    /// Returns the deliveries for the node that leads. Its writes fail with [`StoreError::HandedOver`] once another
    /// node may lead, and the next leader begins after all of them.
    fn for_leader(&self, by: &Claimant) -> Arc<dyn Deliveries>;

    /// Deletes webhooks that are not configured any more. One that comes back later begins anew.
    ///
    /// # Errors
    /// Those of the database.
    fn retain_only(&self, names: &[String]) -> Result<(), StoreError>;

    /// Returns the last feed event that the webhook has processed; a new webhook begins at `head`.
    ///
    /// # Errors
    /// Those of the database.
    fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError>;

    /// Stores events for delivery, and records that the feed was processed up to `position`. Returns their ids.
    ///
    /// # Errors
    /// Those of the database; then nothing was taken in.
    fn enqueue(&self, webhook: &str, position: u64, events: &[Waiting]) -> Result<Vec<u64>, StoreError>;

    /// Returns the deliveries that are not finished, in order.
    ///
    /// # Errors
    /// Those of the database.
    fn pending(&self, webhook: &str) -> Result<Vec<Waiting>, StoreError>;

    /// Records an attempt and the state of the delivery after it.
    ///
    /// # Errors
    /// Those of the database.
    fn record_attempt(
        &self,
        webhook: &str,
        id: u64,
        state: DeliveryState,
        tried: &AttemptResult,
        at: Timestamp,
    ) -> Result<(), StoreError>;

    /// Queues at most `limit` deliveries again that were given up, oldest first. Returns their number and all waiting
    /// deliveries.
    ///
    /// # Errors
    /// Those of the database.
    fn requeue_given_up(
        &self,
        webhook: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<(usize, Vec<Waiting>), StoreError>;

    /// Returns deliveries below a number, newest first.
    ///
    /// # Errors
    /// Those of the database.
    fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError>;
}

/// The deliveries of a database.
pub(crate) struct DeliveryStore<D> {
    db: Arc<D>,
    /// The leader that writes; `None` writes whoever leads.
    leader: Option<Claimant>,
}

impl<D: Database> DeliveryStore<D> {
    pub fn new(db: D) -> Self {
        Self { db: Arc::new(db), leader: None }
    }

    /// Runs a transaction, unless another node leads by now.
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
    fn for_leader(&self, by: &Claimant) -> Arc<dyn Deliveries> {
        Arc::new(Self { db: Arc::clone(&self.db), leader: Some(by.clone()) })
    }

    fn retain_only(&self, names: &[String]) -> Result<(), StoreError> {
        self.transaction(async |db| webhooks::retain_only(db, names).await)
    }

    fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError> {
        self.db.write(async |db| webhooks::position(db, webhook, head).await)
    }

    fn enqueue(&self, webhook: &str, position: u64, events: &[Waiting]) -> Result<Vec<u64>, StoreError> {
        self.transaction(async |db| webhooks::enqueue(db, webhook, position, events).await)
    }

    fn pending(&self, webhook: &str) -> Result<Vec<Waiting>, StoreError> {
        self.db.read(BACKGROUND_TIMEOUT, async |db| webhooks::list_waiting(db, webhook).await)
    }

    fn record_attempt(
        &self,
        webhook: &str,
        id: u64,
        state: DeliveryState,
        tried: &AttemptResult,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        self.transaction(async |db| webhooks::note_attempt(db, webhook, id, state, tried, at).await)
    }

    fn requeue_given_up(
        &self,
        webhook: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<(usize, Vec<Waiting>), StoreError> {
        self.db.write(async |db| webhooks::retry_given_up(db, webhook, limit, now).await)
    }

    fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError> {
        self.db.read(BACKGROUND_TIMEOUT, async |db| webhooks::deliveries(db, webhook, below, limit).await)
    }
}

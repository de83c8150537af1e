//! Where webhooks are in the feed, and what is on its way to each.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::{
    StoreError,
    sql::{BACKGROUND_TIMEOUT, Database},
    statements::webhooks,
};
use countersign_domain::changes::Claimant;

/// Deliveries that are through and still listed, of one webhook.
pub const KEPT: u64 = 1000;

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    Waiting,
    Delivered,
    /// Tried for too long; it goes out again only when somebody asks for it.
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

/// An event that has to go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Of the delivery: later ones have greater numbers. 0 until it is taken in.
    pub id: u64,
    /// What tells the event from others of its webhook: its number in the feed, or something made.
    pub key: String,
    /// Its number in the feed, of an event of a change.
    pub seq: Option<u64>,
    /// As `change.created`.
    pub kind: String,
    /// What it is about: the id of a change or of a standing rule, or words for something else.
    pub subject: String,
    /// The feed event's JSON.
    pub event: String,
    /// Times that it was tried already.
    pub attempts: u32,
    /// Since when it waits.
    pub since: Timestamp,
}

/// What came of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    pub attempts: u32,
    /// Of the receiver's answer, if there was one.
    pub status: Option<u16>,
    pub error: Option<String>,
}

/// A delivery as it is listed.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    pub id: u64,
    /// The event's number in the feed; none where it is not about a change.
    pub seq: Option<u64>,
    #[serde(rename = "type")]
    pub kind: String,
    pub subject: String,
    /// The subject, where it is a change.
    pub change_id: Option<String>,
    pub state: DeliveryState,
    pub attempts: u32,
    pub status: Option<u16>,
    pub error: Option<String>,
    pub taken_at: Timestamp,
    pub last_attempt_at: Option<Timestamp>,
}

/// Nothing here belongs to a transition. Calls block for one small write; a caller in a runtime makes them where that is
/// allowed.
pub trait Deliveries: Send + Sync + 'static {
    /// The same, for the node that leads: what it writes fails with [`StoreError::HandedOver`] once another one may do so, and
    /// whoever leads next begins after everything that was written.
    fn for_leader(&self, by: &Claimant) -> Arc<dyn Deliveries>;

    /// Forgets those that are not configured any more: one that comes back later begins anew.
    ///
    /// # Errors
    /// Those of the database.
    fn keep_only(&self, names: &[String]) -> Result<(), StoreError>;

    /// How far it has taken in the feed; one that is new begins at `head`.
    ///
    /// # Errors
    /// Those of the database.
    fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError>;

    /// Takes events in, and notes that everything up to `position` was looked at. Answers their ids.
    ///
    /// # Errors
    /// Those of the database; then nothing was taken in.
    fn take_in(&self, webhook: &str, position: u64, events: &[Waiting]) -> Result<Vec<u64>, StoreError>;

    /// What was taken in and is not through, in order.
    ///
    /// # Errors
    /// Those of the database.
    fn waiting(&self, webhook: &str) -> Result<Vec<Waiting>, StoreError>;

    /// Notes an attempt, and where the delivery stands after it.
    ///
    /// # Errors
    /// Those of the database.
    fn tried(
        &self,
        webhook: &str,
        id: u64,
        state: DeliveryState,
        tried: &Tried,
        at: Timestamp,
    ) -> Result<(), StoreError>;

    /// Puts what was given up back among what waits, the oldest first and at most `limit`; answers all that waits.
    ///
    /// # Errors
    /// Those of the database.
    fn again(&self, webhook: &str, limit: usize, now: Timestamp) -> Result<(usize, Vec<Waiting>), StoreError>;

    /// Deliveries below a number, the newest first.
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

    fn keep_only(&self, names: &[String]) -> Result<(), StoreError> {
        self.transaction(async |db| webhooks::keep_only(db, names).await)
    }

    fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError> {
        self.db.write(async |db| webhooks::position(db, webhook, head).await)
    }

    fn take_in(&self, webhook: &str, position: u64, events: &[Waiting]) -> Result<Vec<u64>, StoreError> {
        self.transaction(async |db| webhooks::take_in(db, webhook, position, events).await)
    }

    fn waiting(&self, webhook: &str) -> Result<Vec<Waiting>, StoreError> {
        self.db.read(BACKGROUND_TIMEOUT, async |db| webhooks::list_waiting(db, webhook).await)
    }

    fn tried(
        &self,
        webhook: &str,
        id: u64,
        state: DeliveryState,
        tried: &Tried,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        self.transaction(async |db| webhooks::note_attempt(db, webhook, id, state, tried, at).await)
    }

    fn again(&self, webhook: &str, limit: usize, now: Timestamp) -> Result<(usize, Vec<Waiting>), StoreError> {
        self.db.write(async |db| webhooks::retry_given_up(db, webhook, limit, now).await)
    }

    fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError> {
        self.db.read(BACKGROUND_TIMEOUT, async |db| webhooks::deliveries(db, webhook, below, limit).await)
    }
}

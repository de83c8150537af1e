//! The positions of webhooks in the feed, and their deliveries.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use strum::{EnumString, IntoStaticStr};
use utoipa::ToSchema;

use super::StoreError;
use countersign_domain::changes::Claimant;

/// The maximum finished deliveries that are kept for each webhook.
pub const MAX_FINISHED_DELIVERIES: u64 = 1000;

/// The state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, EnumString, IntoStaticStr, ToSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum DeliveryState {
    Waiting,
    Delivered,
    /// The attempts ended without success, and are repeated only on request.
    GivenUp,
}

impl DeliveryState {
    pub(crate) fn as_str(self) -> &'static str {
        self.into()
    }

    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        text.parse().map_err(|_| StoreError::BadRecord(format!("unknown state {text:?} of a delivery")))
    }
}

/// An event that waits to be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingDelivery {
    /// The number of the delivery, in ascending order; 0 until the delivery is stored.
    pub id: u64,
    /// The key of the event within its webhook: the feed number, or a generated key.
    pub key: String,
    /// The feed number, if the event is about a change.
    pub seq: Option<u64>,
    /// The type, for example `change.created`.
    pub kind: String,
    /// The subject of the event: the id of a change or a standing rule, or another text.
    pub subject: String,
    /// The feed event's JSON.
    pub event: String,
    /// The number of attempts so far.
    pub attempts: u32,
    /// The time since which the event has been waiting.
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
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WebhookDelivery)]
pub struct Delivery {
    pub id: u64,
    /// The event's number in the feed, if it is about a change.
    #[schema(required)]
    pub seq: Option<u64>,
    #[serde(rename = "type")]
    pub kind: String,
    /// The subject of the event: the id of a change or a standing rule, or another text.
    pub subject: String,
    /// The subject, if it is a change.
    #[schema(required)]
    pub change_id: Option<String>,
    pub state: DeliveryState,
    pub attempts: u32,
    /// The HTTP status of the receiver's last answer.
    #[schema(required)]
    pub status: Option<u16>,
    #[schema(required)]
    pub error: Option<String>,
    pub taken_at: Timestamp,
    #[schema(required)]
    pub last_attempt_at: Option<Timestamp>,
}

/// The webhooks and deliveries of a store. Calls block for one small write, so they must be made on a thread that may
/// block.
pub trait Deliveries: Send + Sync + 'static {
    /// Returns a handle for the leader `claimant`. Its [`Self::retain_only`], [`Self::enqueue`] and [`Self::record_attempt`] fail
    /// with [`StoreError::HandedOver`] once another node may lead, and the next leader sees all that succeeded. The other methods
    /// do not check this, because any node may call them. Only stores whose nodes have claimants have such handles.
    fn for_leader(&self, claimant: &Claimant) -> Arc<dyn Deliveries>;

    /// Deletes all webhooks except the named ones. A webhook that is configured again later counts as new.
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
    /// Those of the database. Nothing is stored then, unless the outcome is unknown.
    fn enqueue(&self, webhook: &str, position: u64, events: &[PendingDelivery]) -> Result<Vec<u64>, StoreError>;

    /// Returns the deliveries that are not finished, in order.
    ///
    /// # Errors
    /// Those of the database.
    fn pending(&self, webhook: &str) -> Result<Vec<PendingDelivery>, StoreError>;

    /// Records an attempt and the resulting state of the delivery.
    ///
    /// # Errors
    /// Those of the database.
    fn record_attempt(
        &self,
        webhook: &str,
        id: u64,
        state: DeliveryState,
        attempt: &AttemptResult,
        at: Timestamp,
    ) -> Result<(), StoreError>;

    /// Queues at most `limit` given-up deliveries again, oldest first, and starts the time of all waiting deliveries anew.
    /// Returns the number of the former, and all waiting deliveries. Another node than the leader may call this: the leader
    /// finds the deliveries with a new time ([`Self::pending`]), and sends them at once.
    ///
    /// # Errors
    /// Those of the database.
    fn requeue_given_up(
        &self,
        webhook: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<(usize, Vec<PendingDelivery>), StoreError>;

    /// Returns at most `limit` deliveries with numbers below `below`, newest first.
    ///
    /// # Errors
    /// Those of the database.
    fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError>;
}

//! Webhooks and their deliveries in PostgreSQL.

use std::sync::Arc;

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;

use super::{
    Ground,
    rows::{one, transaction},
};
use crate::{
    StoreError,
    rows::signed,
    statements::webhooks,
    webhooks::{Deliveries, Delivery, DeliveryState, Tried, Waiting},
};
use countersign_domain::changes::Claimant;

/// See [`Deliveries`].
pub(crate) struct WebhookStore {
    ground: Arc<Ground>,
    /// What is written is written by this node, as long as it leads.
    by: Option<Claimant>,
}

impl WebhookStore {
    pub fn open(ground: Arc<Ground>) -> Self {
        Self { ground, by: None }
    }
}

impl Deliveries for WebhookStore {
    fn led_by(&self, by: &Claimant) -> Option<Arc<dyn Deliveries>> {
        Some(Arc::new(Self { ground: Arc::clone(&self.ground), by: Some(by.clone()) }))
    }

    fn keep_only(&self, names: &[String]) -> Result<(), StoreError> {
        let (names, by) = (names.to_vec(), self.by.clone());
        self.ground.write(move |client| async move {
            let forgetting = async {
                leads(&client, by.as_ref()).await?;
                webhooks::keep_only(&**client, &names).await
            };
            transaction(&client, forgetting).await
        })
    }

    fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError> {
        let webhook = webhook.to_owned();
        self.ground.write(move |client| async move { webhooks::position(&**client, &webhook, head).await })
    }

    fn take_in(&self, webhook: &str, position: u64, events: &[Waiting]) -> Result<Vec<u64>, StoreError> {
        let (webhook, events, by) = (webhook.to_owned(), events.to_vec(), self.by.clone());
        self.ground.write(move |client| async move {
            let taking = async {
                leads(&client, by.as_ref()).await?;
                webhooks::take_in(&**client, &webhook, position, &events).await
            };
            transaction(&client, taking).await
        })
    }

    fn waiting(&self, webhook: &str) -> Result<Vec<Waiting>, StoreError> {
        let webhook = webhook.to_owned();
        self.ground.wait(move |client| async move { webhooks::list_waiting(&**client, &webhook).await })
    }

    fn tried(
        &self,
        webhook: &str,
        id: u64,
        state: DeliveryState,
        tried: &Tried,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let (webhook, tried, by) = (webhook.to_owned(), tried.clone(), self.by.clone());
        self.ground.write(move |client| async move {
            let noting = async {
                leads(&client, by.as_ref()).await?;
                webhooks::note_attempt(&**client, &webhook, id, state, &tried, at).await
            };
            transaction(&client, noting).await
        })
    }

    fn again(&self, webhook: &str, limit: usize, now: Timestamp) -> Result<(usize, Vec<Waiting>), StoreError> {
        let webhook = webhook.to_owned();
        self.ground.write(move |client| async move { webhooks::retry_given_up(&**client, &webhook, limit, now).await })
    }

    fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError> {
        let webhook = webhook.to_owned();
        self.ground.wait(move |client| async move { webhooks::deliveries(&**client, &webhook, below, limit).await })
    }
}

/// Whether this node still leads. As long as the transaction lasts nobody else begins to: who would waits for the row.
async fn leads(client: &ClientWrapper, by: Option<&Claimant>) -> Result<(), StoreError> {
    let Some(by) = by else { return Ok(()) };
    let sql = "SELECT 1 FROM nodes WHERE id = $1 AND epoch = $2 AND lease_until > clock_timestamp() AND NOT resigned
               FOR KEY SHARE";
    let held = one(client, sql, &[&by.node, &signed(by.epoch)]).await?;
    held.map(drop).ok_or(StoreError::HandedOver)
}

//! Webhooks and their deliveries in PostgreSQL.

use std::sync::Arc;

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    Ground,
    rows::{self, execute, one, query, stored, transaction},
};
use crate::{
    StoreError,
    rows::{parse_moment, signed, unsigned},
    webhooks::{Deliveries, Delivery, DeliveryState, KEPT, Tried, Waiting},
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
                let sql = "WITH gone AS (DELETE FROM webhooks WHERE name <> ALL($1) RETURNING name)
                           DELETE FROM webhook_deliveries WHERE webhook IN (SELECT name FROM gone)";
                execute(&client, sql, &[&names]).await.map(drop)
            };
            transaction(&client, forgetting).await
        })
    }

    fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError> {
        let webhook = webhook.to_owned();
        self.ground.write(move |client| async move {
            let sql = "INSERT INTO webhooks (name, position) VALUES ($1, $2) ON CONFLICT DO NOTHING";
            rows::write(&client, sql, &[&webhook, &signed(head)]).await?;
            let row = one(&client, "SELECT position FROM webhooks WHERE name = $1", &[&webhook]).await?;
            row.map_or(Ok(head), |row| unsigned(row.get(0)))
        })
    }

    fn take_in(&self, webhook: &str, position: u64, events: &[Waiting]) -> Result<Vec<u64>, StoreError> {
        let (webhook, events, by) = (webhook.to_owned(), events.to_vec(), self.by.clone());
        self.ground.write(move |client| async move {
            let taking = async {
                leads(&client, by.as_ref()).await?;
                take_in(&client, &webhook, position, &events).await
            };
            transaction(&client, taking).await
        })
    }

    fn waiting(&self, webhook: &str) -> Result<Vec<Waiting>, StoreError> {
        let webhook = webhook.to_owned();
        self.ground.wait(move |client| async move { read_waiting(&client, &webhook).await })
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
                note(&client, &webhook, id, state, &tried, at).await
            };
            transaction(&client, noting).await
        })
    }

    fn again(&self, webhook: &str, limit: usize, now: Timestamp) -> Result<(usize, Vec<Waiting>), StoreError> {
        let webhook = webhook.to_owned();
        self.ground.write(move |client| async move {
            let sql = "UPDATE webhook_deliveries SET state = 'waiting', attempts = 0, taken_ms = $3
                       WHERE webhook = $1 AND event IS NOT NULL AND id IN (
                           SELECT id FROM webhook_deliveries WHERE webhook = $1 AND state = 'given_up'
                           ORDER BY id LIMIT $2)";
            let again = rows::write(&client, sql, &[&webhook, &signed(limit as u64), &now.as_millisecond()]).await?;
            Ok((usize::try_from(again).unwrap_or(usize::MAX), read_waiting(&client, &webhook).await?))
        })
    }

    fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError> {
        let (webhook, below) = (webhook.to_owned(), below.map_or(i64::MAX, signed));
        self.ground.wait(move |client| async move {
            let sql = "SELECT id, seq, kind, subject, state, attempts, status, error, taken_ms, last_ms
                       FROM webhook_deliveries WHERE webhook = $1 AND id < $2 ORDER BY id DESC LIMIT $3";
            let rows = query(&client, sql, &[&webhook, &below, &signed(limit as u64)]).await?;
            rows.iter().map(read_delivery).collect()
        })
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

async fn take_in(
    client: &ClientWrapper,
    webhook: &str,
    position: u64,
    events: &[Waiting],
) -> Result<Vec<u64>, StoreError> {
    let mut ids = Vec::with_capacity(events.len());
    for Waiting { key, seq, kind, subject, event, since, .. } in events {
        // One that is there was taken in by a commit whose outcome was unknown.
        let known = "SELECT id FROM webhook_deliveries WHERE webhook = $1 AND key = $2";
        let row = match one(client, known, &[&webhook, key]).await? {
            Some(row) => row,
            None => {
                let sql = "INSERT INTO webhook_deliveries
                               (webhook, key, seq, kind, subject, state, attempts, taken_ms, event)
                           VALUES ($1, $2, $3, $4, $5, 'waiting', 0, $6, $7) RETURNING id";
                let (seq, since) = (seq.map(signed), since.as_millisecond());
                let values: &[super::rows::Value<'_>] =
                    &[&webhook, key, &seq, kind, &stored(subject), &since, &stored(event)];
                let row = one(client, sql, values).await?;
                row.ok_or_else(|| StoreError::BadRecord("a delivery has no id".into()))?
            }
        };
        ids.push(unsigned(row.get(0))?);
    }
    let sql = "UPDATE webhooks SET position = $2 WHERE name = $1";
    execute(client, sql, &[&webhook, &signed(position)]).await?;
    Ok(ids)
}

async fn note(
    client: &ClientWrapper,
    webhook: &str,
    id: u64,
    state: DeliveryState,
    tried: &Tried,
    at: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE webhook_deliveries SET state = $3, attempts = $4, status = $5, error = $6, last_ms = $7,
                   event = CASE WHEN $3 = 'delivered' THEN NULL ELSE event END
               WHERE webhook = $1 AND id = $2";
    let (status, error) = (tried.status.map(i32::from), tried.error.as_deref().map(stored));
    let values: &[super::rows::Value<'_>] =
        &[&webhook, &signed(id), &state.as_str(), &i64::from(tried.attempts), &status, &error, &at.as_millisecond()];
    execute(client, sql, values).await?;
    if state != DeliveryState::Waiting && id.is_multiple_of(16) {
        let sql = "DELETE FROM webhook_deliveries WHERE webhook = $1 AND state <> 'waiting' AND id <= (
                       SELECT id FROM webhook_deliveries WHERE webhook = $1 ORDER BY id DESC LIMIT 1 OFFSET $2)";
        execute(client, sql, &[&webhook, &signed(KEPT)]).await?;
    }
    Ok(())
}

async fn read_waiting(client: &ClientWrapper, webhook: &str) -> Result<Vec<Waiting>, StoreError> {
    let sql = "SELECT id, key, seq, kind, subject, event, attempts, taken_ms FROM webhook_deliveries
               WHERE webhook = $1 AND state = 'waiting' ORDER BY id";
    let read = |row: &Row| -> Result<Waiting, StoreError> {
        Ok(Waiting {
            id: unsigned(row.get(0))?,
            key: row.get(1),
            seq: row.get::<_, Option<i64>>(2).map(unsigned).transpose()?,
            kind: row.get(3),
            subject: row.get(4),
            event: row.get::<_, Option<String>>(5).unwrap_or_default(),
            attempts: counted(row.get(6))?,
            since: parse_moment(row.get(7))?,
        })
    };
    query(client, sql, &[&webhook]).await?.iter().map(read).collect()
}

fn counted(n: i64) -> Result<u32, StoreError> {
    u32::try_from(n).map_err(|_| StoreError::BadRecord(format!("attempts of a delivery: {n}")))
}

fn read_delivery(row: &Row) -> Result<Delivery, StoreError> {
    let seq = row.get::<_, Option<i64>>(1).map(unsigned).transpose()?;
    let subject: String = row.get(3);
    Ok(Delivery {
        id: unsigned(row.get(0))?,
        seq,
        kind: row.get(2),
        change_id: seq.map(|_| subject.clone()),
        subject,
        state: DeliveryState::parse(row.get(4))?,
        attempts: counted(row.get(5))?,
        status: row.get::<_, Option<i32>>(6).and_then(|status| u16::try_from(status).ok()),
        error: row.get(7),
        taken_at: parse_moment(row.get(8))?,
        last_attempt_at: row.get::<_, Option<i64>>(9).map(parse_moment).transpose()?,
    })
}

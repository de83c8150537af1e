//! Statements on webhooks and their deliveries.

use jiff::Timestamp;

use crate::{
    StoreError,
    sql::{Row, Sql},
    values,
    webhooks::{AttemptResult, Delivery, DeliveryState, MAX_FINISHED_DELIVERIES, PendingDelivery},
};
use countersign_domain::changes::Claimant;

pub async fn retain_only<S: Sql>(db: &S, names: &[String]) -> Result<(), StoreError> {
    for row in db.rows("SELECT name FROM webhooks", &[]).await? {
        let name: &str = row.get(0)?;
        if !names.iter().any(|retained| retained == name) {
            db.execute("DELETE FROM webhook_deliveries WHERE webhook = ?1", values![name]).await?;
            db.execute("DELETE FROM webhooks WHERE name = ?1", values![name]).await?;
        }
    }
    Ok(())
}

pub async fn position<S: Sql>(db: &S, webhook: &str, head: u64) -> Result<u64, StoreError> {
    let sql = "INSERT INTO webhooks (name, position) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    db.write(sql, values![webhook, head]).await?;
    let row = db.first("SELECT position FROM webhooks WHERE name = ?1", values![webhook]).await?;
    row.map_or(Ok(head), |row| row.get(0))
}

/// Stores events for delivery, within the caller's transaction.
pub async fn enqueue<S: Sql>(
    db: &S,
    webhook: &str,
    position: u64,
    events: &[PendingDelivery],
) -> Result<Vec<u64>, StoreError> {
    let mut ids = Vec::with_capacity(events.len());
    for PendingDelivery { key, seq, kind, subject, event, since, .. } in events {
        // An earlier commit with an unknown outcome may have stored the event.
        let select = "SELECT id FROM webhook_deliveries WHERE webhook = ?1 AND key = ?2";
        let row = match db.first(select, values![webhook, key]).await? {
            Some(row) => Some(row),
            None => {
                let sql = "INSERT INTO webhook_deliveries
                               (webhook, key, seq, kind, subject, state, attempts, taken_ms, event)
                           VALUES (?1, ?2, ?3, ?4, ?5, 'waiting', 0, ?6, ?7) RETURNING id";
                db.first(sql, values![webhook, key, *seq, kind, subject, since.as_millisecond(), event]).await?
            }
        };
        let row = row.ok_or_else(|| StoreError::BadRecord("a delivery has no id".into()))?;
        ids.push(row.get(0)?);
    }
    db.execute("UPDATE webhooks SET position = ?2 WHERE name = ?1", values![webhook, position]).await?;
    Ok(ids)
}

/// Records an attempt, within the caller's transaction.
pub async fn record_attempt<S: Sql>(
    db: &S,
    webhook: &str,
    id: u64,
    state: DeliveryState,
    attempt: &AttemptResult,
    at: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE webhook_deliveries SET state = ?3, attempts = ?4, status = ?5, error = ?6, last_ms = ?7,
                   event = CASE WHEN ?3 = 'delivered' THEN NULL ELSE event END
               WHERE webhook = ?1 AND id = ?2";
    let (status, error) = (attempt.status.map(u32::from), attempt.error.as_deref());
    let values = values![webhook, id, state.as_str(), attempt.attempts, status, error, at.as_millisecond()];
    db.execute(sql, values).await?;
    // The deletion costs further statements, so it runs after one in 16 deliveries. It covers all webhooks, because ids are
    // numbered over all of them, and those of one webhook may never be multiples of 16.
    if state != DeliveryState::Waiting && id.is_multiple_of(16) {
        let sql = "DELETE FROM webhook_deliveries WHERE webhook = ?1 AND state <> 'waiting' AND id <= (
                       SELECT id FROM webhook_deliveries WHERE webhook = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)";
        for row in db.rows("SELECT name FROM webhooks", &[]).await? {
            let name: &str = row.get(0)?;
            db.execute(sql, values![name, MAX_FINISHED_DELIVERIES]).await?;
        }
    }
    Ok(())
}

pub async fn requeue_given_up<S: Sql>(
    db: &S,
    webhook: &str,
    limit: usize,
    now: Timestamp,
) -> Result<(usize, Vec<PendingDelivery>), StoreError> {
    let sql = "UPDATE webhook_deliveries SET taken_ms = ?2 WHERE webhook = ?1 AND state = 'waiting'";
    db.write(sql, values![webhook, now.as_millisecond()]).await?;
    let sql = "UPDATE webhook_deliveries SET state = 'waiting', attempts = 0, taken_ms = ?3
               WHERE webhook = ?1 AND event IS NOT NULL AND id IN (
                   SELECT id FROM webhook_deliveries WHERE webhook = ?1 AND state = 'given_up'
                   ORDER BY id LIMIT ?2)";
    let again = db.write(sql, values![webhook, limit, now.as_millisecond()]).await?;
    Ok((usize::try_from(again).unwrap_or(usize::MAX), list_pending(db, webhook).await?))
}

pub async fn list_pending<S: Sql>(db: &S, webhook: &str) -> Result<Vec<PendingDelivery>, StoreError> {
    let sql = "SELECT id, key, seq, kind, subject, event, attempts, taken_ms FROM webhook_deliveries
               WHERE webhook = ?1 AND state = 'waiting' ORDER BY id";
    let read = |row: &Row| -> Result<PendingDelivery, StoreError> {
        Ok(PendingDelivery {
            id: row.get(0)?,
            key: row.get(1)?,
            seq: row.get(2)?,
            kind: row.get(3)?,
            subject: row.get(4)?,
            event: row.get::<Option<String>>(5)?.unwrap_or_default(),
            attempts: row.get(6)?,
            since: row.get(7)?,
        })
    };
    db.rows(sql, values![webhook]).await?.iter().map(read).collect()
}

pub async fn deliveries<S: Sql>(
    db: &S,
    webhook: &str,
    below: Option<u64>,
    limit: usize,
) -> Result<Vec<Delivery>, StoreError> {
    let sql = "SELECT id, seq, kind, subject, state, attempts, status, error, taken_ms, last_ms
               FROM webhook_deliveries WHERE webhook = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3";
    let read = |row: &Row| -> Result<Delivery, StoreError> {
        let (seq, subject): (Option<u64>, String) = (row.get(1)?, row.get(3)?);
        Ok(Delivery {
            id: row.get(0)?,
            seq,
            kind: row.get(2)?,
            change_id: seq.map(|_| subject.clone()),
            subject,
            state: DeliveryState::parse(row.get(4)?)?,
            attempts: row.get(5)?,
            status: row.get(6)?,
            error: row.get(7)?,
            taken_at: row.get(8)?,
            last_attempt_at: row.get(9)?,
        })
    };
    db.rows(sql, values![webhook, below.unwrap_or(u64::MAX), limit]).await?.iter().map(read).collect()
}

/// Fails with [`StoreError::HandedOver`] if the node is no longer the leader. No other node becomes the leader before
/// the caller's transaction ends, because that needs a lock on the row.
pub async fn check_leader<S: Sql>(db: &S, node: &Claimant) -> Result<(), StoreError> {
    let sql = "SELECT 1 FROM nodes WHERE id = ?1 AND epoch = ?2 AND lease_until > clock_timestamp() AND NOT resigned
               FOR KEY SHARE";
    db.first(sql, values![&node.node, node.epoch]).await?.map(drop).ok_or(StoreError::HandedOver)
}

//! Implements the deliveries of webhooks for both backends with the same statements.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    StoreError,
    sql::{BACKGROUND_TIMEOUT, Database, Row, Sql},
    values,
    webhooks::{AttemptResult, Deliveries, Delivery, DeliveryState, MAX_FINISHED_DELIVERIES, PendingDelivery},
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

    /// Runs a transaction, which fails if `leader` is no longer the leader. No other node becomes the leader before the
    /// transaction ends, because that needs a lock on the row.
    ///
    /// # Errors
    /// [`StoreError::HandedOver`]
    fn transaction<T>(&self, work: impl AsyncFnOnce(&D::Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let sql = "SELECT 1 FROM nodes
                   WHERE id = ?1 AND epoch = ?2 AND lease_until > clock_timestamp() AND NOT resigned FOR KEY SHARE";
        self.db.transaction(async |db| {
            if let Some(Claimant { node, epoch }) = &self.leader {
                db.first(sql, values![node, *epoch]).await?.ok_or(StoreError::HandedOver)?;
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
        self.transaction(async |db| {
            for row in db.rows("SELECT name FROM webhooks", &[]).await? {
                let name: &str = row.get(0)?;
                if !names.iter().any(|retained| retained == name) {
                    db.execute("DELETE FROM webhook_deliveries WHERE webhook = ?1", values![name]).await?;
                    db.execute("DELETE FROM webhooks WHERE name = ?1", values![name]).await?;
                }
            }
            Ok(())
        })
    }

    fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError> {
        let insert = "INSERT INTO webhooks (name, position) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        self.db.write(async |db| {
            db.write(insert, values![webhook, head]).await?;
            let row = db.first("SELECT position FROM webhooks WHERE name = ?1", values![webhook]).await?;
            row.map_or(Ok(head), |row| row.get(0))
        })
    }

    fn enqueue(&self, webhook: &str, position: u64, events: &[PendingDelivery]) -> Result<Vec<u64>, StoreError> {
        let select = "SELECT id FROM webhook_deliveries WHERE webhook = ?1 AND key = ?2";
        let insert = "INSERT INTO webhook_deliveries
                          (webhook, key, seq, kind, subject, state, attempts, taken_ms, event)
                      VALUES (?1, ?2, ?3, ?4, ?5, 'waiting', 0, ?6, ?7) RETURNING id";
        self.transaction(async |db| {
            let mut ids = Vec::with_capacity(events.len());
            for PendingDelivery { key, seq, kind, subject, event, since, .. } in events {
                // An earlier commit with an unknown outcome may have stored the event.
                let mut row = db.first(select, values![webhook, key]).await?;
                if row.is_none() {
                    let values = values![webhook, key, *seq, kind, subject, since.as_millisecond(), event];
                    row = db.first(insert, values).await?;
                }
                let row = row.ok_or_else(|| StoreError::BadRecord("a delivery has no id".into()))?;
                ids.push(row.get(0)?);
            }
            db.execute("UPDATE webhooks SET position = ?2 WHERE name = ?1", values![webhook, position]).await?;
            Ok(ids)
        })
    }

    fn pending(&self, webhook: &str) -> Result<Vec<PendingDelivery>, StoreError> {
        self.db.read(BACKGROUND_TIMEOUT, async |db| list_pending(db, webhook).await)
    }

    fn record_attempt(
        &self,
        webhook: &str,
        id: u64,
        state: DeliveryState,
        attempt: &AttemptResult,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let update = "UPDATE webhook_deliveries SET state = ?3, attempts = ?4, status = ?5, error = ?6, last_ms = ?7,
                          event = CASE WHEN ?3 = 'delivered' THEN NULL ELSE event END
                      WHERE webhook = ?1 AND id = ?2";
        let delete = "DELETE FROM webhook_deliveries WHERE webhook = ?1 AND state <> 'waiting' AND id <= (
                          SELECT id FROM webhook_deliveries WHERE webhook = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)";
        let (status, error) = (attempt.status.map(u32::from), attempt.error.as_deref());
        self.transaction(async |db| {
            let values = values![webhook, id, state.as_str(), attempt.attempts, status, error, at.as_millisecond()];
            db.execute(update, values).await?;
            // The deletion costs further statements, so it runs after one in 16 deliveries. It covers all webhooks, because ids
            // are numbered over all of them, and those of one webhook may never be multiples of 16.
            if state != DeliveryState::Waiting && id.is_multiple_of(16) {
                for row in db.rows("SELECT name FROM webhooks", &[]).await? {
                    db.execute(delete, values![row.get::<&str>(0)?, MAX_FINISHED_DELIVERIES]).await?;
                }
            }
            Ok(())
        })
    }

    fn requeue_given_up(
        &self,
        webhook: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<(usize, Vec<PendingDelivery>), StoreError> {
        let restart = "UPDATE webhook_deliveries SET taken_ms = ?2 WHERE webhook = ?1 AND state = 'waiting'";
        let requeue = "UPDATE webhook_deliveries SET state = 'waiting', attempts = 0, taken_ms = ?3
                       WHERE webhook = ?1 AND event IS NOT NULL AND id IN (
                           SELECT id FROM webhook_deliveries WHERE webhook = ?1 AND state = 'given_up'
                           ORDER BY id LIMIT ?2)";
        self.db.write(async |db| {
            db.write(restart, values![webhook, now.as_millisecond()]).await?;
            let requeued = db.write(requeue, values![webhook, limit, now.as_millisecond()]).await?;
            Ok((usize::try_from(requeued).unwrap_or(usize::MAX), list_pending(db, webhook).await?))
        })
    }

    fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError> {
        let sql = "SELECT id, seq, kind, subject, state, attempts, status, error, taken_ms, last_ms
                   FROM webhook_deliveries WHERE webhook = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3";
        let read = |row: &Row| {
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
        self.db.read(BACKGROUND_TIMEOUT, async |db| {
            db.rows(sql, values![webhook, below.unwrap_or(u64::MAX), limit]).await?.iter().map(read).collect()
        })
    }
}

async fn list_pending<S: Sql>(db: &S, webhook: &str) -> Result<Vec<PendingDelivery>, StoreError> {
    let sql = "SELECT id, key, seq, kind, subject, event, attempts, taken_ms FROM webhook_deliveries
               WHERE webhook = ?1 AND state = 'waiting' ORDER BY id";
    let read = |row: &Row| {
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

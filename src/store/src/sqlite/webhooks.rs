//! Webhooks and their deliveries in SQLite.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};

use super::open::open_writer;
use crate::{
    StoreError,
    rows::{parse_moment, signed, unsigned},
    webhooks::{Deliveries, Delivery, DeliveryState, KEPT, Tried, Waiting},
};

/// A connection of its own, beside that of the writer.
pub(crate) struct WebhookStore {
    conn: Mutex<Connection>,
}

impl WebhookStore {
    /// # Errors
    /// Those of opening the database.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let conn = open_writer(data_dir)?;
        // The machine's own crash may take the last of it back: then something is sent again, and nothing is lost.
        conn.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(Self { conn: Mutex::new(conn) })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        // A panic under the lock cannot leave a transaction open: dropping one rolls it back.
        f(&mut self.conn.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Deliveries for WebhookStore {
    fn keep_only(&self, names: &[String]) -> Result<(), StoreError> {
        self.with(|conn| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let known: Vec<String> =
                tx.prepare("SELECT name FROM webhooks")?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
            for name in known.iter().filter(|name| !names.contains(name)) {
                tx.execute("DELETE FROM webhook_deliveries WHERE webhook = ?1", [name])?;
                tx.execute("DELETE FROM webhooks WHERE name = ?1", [name])?;
            }
            tx.commit()?;
            Ok(())
        })
    }

    fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError> {
        self.with(|conn| {
            let known: Option<i64> = conn
                .prepare_cached("SELECT position FROM webhooks WHERE name = ?1")?
                .query_row([webhook], |row| row.get(0))
                .optional()?;
            match known {
                Some(position) => unsigned(position),
                None => {
                    conn.prepare_cached("INSERT INTO webhooks (name, position) VALUES (?1, ?2)")?
                        .execute(params![webhook, signed(head)])?;
                    Ok(head)
                }
            }
        })
    }

    fn take_in(&self, webhook: &str, position: u64, events: &[Waiting]) -> Result<Vec<u64>, StoreError> {
        self.with(|conn| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut ids = Vec::with_capacity(events.len());
            {
                // One that is there was taken in by a commit whose outcome was unknown.
                let mut insert = tx.prepare_cached(
                    "INSERT INTO webhook_deliveries (webhook, key, seq, kind, subject, state, attempts, taken_ms, event)
                     VALUES (?1, ?2, ?3, ?4, ?5, 'waiting', 0, ?6, ?7)
                     ON CONFLICT (webhook, key) DO UPDATE SET key = excluded.key RETURNING id",
                )?;
                for Waiting { key, seq, kind, subject, event, since, .. } in events {
                    let since = since.as_millisecond();
                    let row = params![webhook, key, seq.map(signed), kind, subject, since, event];
                    ids.push(unsigned(insert.query_row(row, |row| row.get(0))?)?);
                }
                tx.prepare_cached("UPDATE webhooks SET position = ?2 WHERE name = ?1")?
                    .execute(params![webhook, signed(position)])?;
            }
            tx.commit()?;
            Ok(ids)
        })
    }

    fn waiting(&self, webhook: &str) -> Result<Vec<Waiting>, StoreError> {
        self.with(|conn| read_waiting(conn, webhook))
    }

    fn tried(
        &self,
        webhook: &str,
        id: u64,
        state: DeliveryState,
        tried: &Tried,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        self.with(|conn| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            tx.prepare_cached(
                "UPDATE webhook_deliveries SET state = ?3, attempts = ?4, status = ?5, error = ?6, last_ms = ?7,
                     event = CASE ?3 WHEN 'delivered' THEN NULL ELSE event END
                 WHERE webhook = ?1 AND id = ?2",
            )?
            .execute(params![
                webhook,
                signed(id),
                state.as_str(),
                tried.attempts,
                tried.status,
                tried.error,
                at.as_millisecond()
            ])?;
            if state != DeliveryState::Waiting && id.is_multiple_of(16) {
                prune(&tx, webhook)?;
            }
            tx.commit()?;
            Ok(())
        })
    }

    fn again(&self, webhook: &str, limit: usize, now: Timestamp) -> Result<(usize, Vec<Waiting>), StoreError> {
        self.with(|conn| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let again = tx
                .prepare_cached(
                    "UPDATE webhook_deliveries SET state = 'waiting', attempts = 0, taken_ms = ?3
                     WHERE webhook = ?1 AND event IS NOT NULL AND id IN (
                         SELECT id FROM webhook_deliveries WHERE webhook = ?1 AND state = 'given_up'
                         ORDER BY id LIMIT ?2)",
                )?
                .execute(params![webhook, signed(limit as u64), now.as_millisecond()])?;
            let waiting = read_waiting(&tx, webhook)?;
            tx.commit()?;
            Ok((again, waiting))
        })
    }

    fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError> {
        self.with(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT id, seq, kind, subject, state, attempts, status, error, taken_ms, last_ms
                 FROM webhook_deliveries WHERE webhook = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3",
            )?;
            let below = below.map_or(i64::MAX, signed);
            let rows =
                statement.query_map(params![webhook, below, signed(limit as u64)], |row| Ok(read_delivery(row)))?;
            rows.map(|row| row?).collect()
        })
    }
}

fn prune(conn: &Connection, webhook: &str) -> Result<(), StoreError> {
    conn.prepare_cached(
        "DELETE FROM webhook_deliveries WHERE webhook = ?1 AND state <> 'waiting' AND id <= (
             SELECT id FROM webhook_deliveries WHERE webhook = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute(params![webhook, signed(KEPT)])?;
    Ok(())
}

fn read_waiting(conn: &Connection, webhook: &str) -> Result<Vec<Waiting>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT id, key, seq, kind, subject, event, attempts, taken_ms FROM webhook_deliveries
         WHERE webhook = ?1 AND state = 'waiting' ORDER BY id",
    )?;
    let rows = statement.query_map([webhook], |row| {
        Ok(|| -> Result<Waiting, StoreError> {
            Ok(Waiting {
                id: unsigned(row.get(0)?)?,
                key: row.get(1)?,
                seq: row.get::<_, Option<i64>>(2)?.map(unsigned).transpose()?,
                kind: row.get(3)?,
                subject: row.get(4)?,
                event: row.get::<_, Option<String>>(5)?.unwrap_or_default(),
                attempts: row.get(6)?,
                since: parse_moment(row.get(7)?)?,
            })
        }())
    })?;
    rows.map(|row| row?).collect()
}

fn read_delivery(row: &Row<'_>) -> Result<Delivery, StoreError> {
    let seq = row.get::<_, Option<i64>>(1)?.map(unsigned).transpose()?;
    let subject: String = row.get(3)?;
    Ok(Delivery {
        id: unsigned(row.get(0)?)?,
        seq,
        kind: row.get(2)?,
        change_id: seq.map(|_| subject.clone()),
        subject,
        state: DeliveryState::parse(&row.get::<_, String>(4)?)?,
        attempts: row.get(5)?,
        status: row.get(6)?,
        error: row.get(7)?,
        taken_at: parse_moment(row.get(8)?)?,
        last_attempt_at: row.get::<_, Option<i64>>(9)?.map(parse_moment).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_of_an_older_version_keep_their_places() {
        let dir = tempfile::tempdir().unwrap();
        let old = crate::sqlite::open::older(dir.path(), 7);
        old.execute_batch(
            "INSERT INTO webhooks VALUES ('a', 12);
             INSERT INTO webhook_deliveries VALUES
                 ('a', 12, 'change.created', 'chg_0', 'waiting', 2, 500, 'no', 1800000000000, 1800000001000, '{}'),
                 ('a', 9, 'change.created', 'chg_1', 'delivered', 1, 200, NULL, 1800000000000, 1800000001000, NULL);",
        )
        .unwrap();
        drop(old);
        let store = WebhookStore::open(dir.path()).unwrap();
        assert_eq!(store.position("a", 99).unwrap(), 12);
        assert_eq!(store.waiting("a").unwrap(), [waiting(2)]);
        assert_eq!(store.take_in("a", 12, &[waiting(0)]).unwrap(), [2]);
        assert_eq!(store.deliveries("a", None, 9).unwrap().len(), 2);
    }

    fn waiting(id: u64) -> Waiting {
        Waiting {
            id,
            key: "12".into(),
            seq: Some(12),
            kind: "change.created".into(),
            subject: "chg_0".into(),
            event: "{}".into(),
            attempts: if id == 0 { 0 } else { 2 },
            since: Timestamp::from_second(1_800_000_000).unwrap(),
        }
    }
}

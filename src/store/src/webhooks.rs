//! Where webhooks are in the feed, and what is on its way to each.
//!
//! A connection of its own, beside that of the store's writer: nothing here belongs to a transition. Calls block for one
//! small write; a caller in a runtime makes them where that is allowed.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};
use serde::Serialize;

use super::{
    StoreError,
    open::open_writer,
    rows::{signed, unsigned},
};

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
    const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::GivenUp => "given_up",
        }
    }

    fn parse(text: &str) -> Result<Self, StoreError> {
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

/// See the module's page.
pub struct WebhookStore {
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

    /// Forgets those that are not configured any more: one that comes back later begins anew.
    ///
    /// # Errors
    /// Those of the database.
    pub fn keep_only(&self, names: &[String]) -> Result<(), StoreError> {
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

    /// How far it has taken in the feed; one that is new begins at `head`.
    ///
    /// # Errors
    /// Those of the database.
    pub fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError> {
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

    /// Takes events in, and notes that everything up to `position` was looked at. Answers their ids.
    ///
    /// # Errors
    /// Those of the database; then nothing was taken in.
    pub fn take_in(&self, webhook: &str, position: u64, events: &[Waiting]) -> Result<Vec<u64>, StoreError> {
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

    /// What was taken in and is not through, in order.
    ///
    /// # Errors
    /// Those of the database.
    pub fn waiting(&self, webhook: &str) -> Result<Vec<Waiting>, StoreError> {
        self.with(|conn| read_waiting(conn, webhook))
    }

    /// Notes an attempt, and where the delivery stands after it.
    ///
    /// # Errors
    /// Those of the database.
    pub fn tried(
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

    /// Puts what was given up back among what waits, the oldest first and at most `limit`; answers all that waits.
    ///
    /// # Errors
    /// Those of the database.
    pub fn again(&self, webhook: &str, limit: usize, now: Timestamp) -> Result<(usize, Vec<Waiting>), StoreError> {
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

    /// Deliveries below a number, the newest first.
    ///
    /// # Errors
    /// Those of the database.
    pub fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError> {
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

    fn with<T>(&self, f: impl FnOnce(&mut Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        // A panic under the lock cannot leave a transaction open: dropping one rolls it back.
        f(&mut self.conn.lock().unwrap_or_else(PoisonError::into_inner))
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
                since: moment(row.get(7)?)?,
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
        taken_at: moment(row.get(8)?)?,
        last_attempt_at: row.get::<_, Option<i64>>(9)?.map(moment).transpose()?,
    })
}

fn moment(ms: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_millisecond(ms).map_err(|_| StoreError::BadRecord(format!("not a time: {ms}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn event(seq: u64) -> Waiting {
        let (kind, event) = ("change.created".into(), "{}".into());
        let (key, subject) = (seq.to_string(), format!("chg_{}", seq % 2));
        Waiting { id: 0, key, seq: Some(seq), kind, subject, event, attempts: 0, since: at(0) }
    }

    fn tried(attempts: u32) -> Tried {
        Tried { attempts, status: Some(500), error: Some("no".into()) }
    }

    #[test]
    fn what_was_taken_in_waits_until_it_is_through() {
        let dir = tempfile::tempdir().unwrap();
        let store = WebhookStore::open(dir.path()).unwrap();
        assert_eq!(store.position("a", 7).unwrap(), 7, "a new one begins at the head");
        let live = Waiting { key: "live".into(), seq: None, kind: "rule.created".into(), ..event(0) };
        assert_eq!(store.take_in("a", 12, &[event(9), event(10), event(12)]).unwrap(), [1, 2, 3]);
        assert_eq!(store.take_in("a", 12, &[event(12), live]).unwrap(), [3, 4], "nothing is taken in twice");
        store.tried("a", 1, DeliveryState::Delivered, &tried(1), at(1)).unwrap();
        store.tried("a", 2, DeliveryState::GivenUp, &tried(3), at(1)).unwrap();
        store.tried("a", 3, DeliveryState::Waiting, &tried(2), at(1)).unwrap();
        store.tried("a", 4, DeliveryState::Delivered, &tried(1), at(1)).unwrap();
        // As another process finds it.
        let store = WebhookStore::open(dir.path()).unwrap();
        assert_eq!(store.position("a", 99).unwrap(), 12);
        assert_eq!(store.waiting("a").unwrap(), [Waiting { id: 3, attempts: 2, ..event(12) }]);
        let (again, waiting) = store.again("a", 5, at(9)).unwrap();
        assert_eq!((again, waiting.iter().map(|w| w.id).collect::<Vec<_>>()), (1, vec![2, 3]));
        assert_eq!((waiting[0].attempts, waiting[0].since), (0, at(9)), "it gets all of its time again");
        assert_eq!(store.again("a", 5, at(9)).unwrap().0, 0);
        let states: Vec<_> = store.deliveries("a", None, 9).unwrap().iter().map(|d| (d.seq, d.state)).collect();
        let (waits, through) = (DeliveryState::Waiting, DeliveryState::Delivered);
        assert_eq!(states, [(None, through), (Some(12), waits), (Some(10), waits), (Some(9), through)]);
        let one = &store.deliveries("a", Some(3), 1).unwrap()[0];
        assert_eq!((one.seq, one.change_id.as_deref()), (Some(10), Some("chg_0")));
        assert!(store.waiting("b").unwrap().is_empty());
    }

    #[test]
    fn deliveries_of_an_older_version_keep_their_places() {
        let dir = tempfile::tempdir().unwrap();
        let old = crate::open::older(dir.path(), 7);
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
        assert_eq!(store.waiting("a").unwrap(), [Waiting { id: 2, attempts: 2, ..event(12) }]);
        assert_eq!(store.take_in("a", 12, &[event(12)]).unwrap(), [2]);
        assert_eq!(store.deliveries("a", None, 9).unwrap().len(), 2);
    }

    #[test]
    fn what_is_through_is_forgotten_in_the_end_and_what_waits_never() {
        let dir = tempfile::tempdir().unwrap();
        let store = WebhookStore::open(dir.path()).unwrap();
        store.position("a", 0).unwrap();
        let last = KEPT + 64;
        store.take_in("a", last, &(1..=last).map(event).collect::<Vec<_>>()).unwrap();
        for seq in 2..=last {
            store.tried("a", seq, DeliveryState::Delivered, &tried(1), at(1)).unwrap();
        }
        let all = store.deliveries("a", None, 5000).unwrap();
        assert!(all.len() as u64 <= KEPT + 17, "{}", all.len());
        assert_eq!(all.last().unwrap().seq, Some(1));
        store.keep_only(&["b".into()]).unwrap();
        assert!(store.deliveries("a", None, 9).unwrap().is_empty());
        assert_eq!(store.position("a", 99).unwrap(), 99, "it begins anew");
    }
}

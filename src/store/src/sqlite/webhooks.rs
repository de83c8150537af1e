//! Webhooks and their deliveries in SQLite.

use std::path::Path;

use jiff::Timestamp;

use super::{open::open_writer, sql::SharedConnection};
use crate::{
    StoreError,
    statements::webhooks,
    webhooks::{Deliveries, Delivery, DeliveryState, Tried, Waiting},
};

/// A connection of its own, beside that of the writer.
pub(crate) struct WebhookStore(SharedConnection);

impl WebhookStore {
    /// # Errors
    /// Those of opening the database.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let conn = open_writer(data_dir)?;
        // The machine's own crash may take the last of it back: then something is sent again, and nothing is lost.
        conn.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(Self(SharedConnection::new(conn)))
    }
}

impl Deliveries for WebhookStore {
    fn keep_only(&self, names: &[String]) -> Result<(), StoreError> {
        self.0.transaction(async |db| webhooks::keep_only(db, names).await)
    }

    fn position(&self, webhook: &str, head: u64) -> Result<u64, StoreError> {
        self.0.run(async |db| webhooks::position(db, webhook, head).await)
    }

    fn take_in(&self, webhook: &str, position: u64, events: &[Waiting]) -> Result<Vec<u64>, StoreError> {
        self.0.transaction(async |db| webhooks::take_in(db, webhook, position, events).await)
    }

    fn waiting(&self, webhook: &str) -> Result<Vec<Waiting>, StoreError> {
        self.0.run(async |db| webhooks::list_waiting(db, webhook).await)
    }

    fn tried(
        &self,
        webhook: &str,
        id: u64,
        state: DeliveryState,
        tried: &Tried,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        self.0.transaction(async |db| webhooks::note_attempt(db, webhook, id, state, tried, at).await)
    }

    fn again(&self, webhook: &str, limit: usize, now: Timestamp) -> Result<(usize, Vec<Waiting>), StoreError> {
        self.0.transaction(async |db| webhooks::retry_given_up(db, webhook, limit, now).await)
    }

    fn deliveries(&self, webhook: &str, below: Option<u64>, limit: usize) -> Result<Vec<Delivery>, StoreError> {
        self.0.run(async |db| webhooks::deliveries(db, webhook, below, limit).await)
    }
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

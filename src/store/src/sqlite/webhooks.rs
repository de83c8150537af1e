//! Webhooks and their deliveries in SQLite.

use std::path::Path;

use super::{open::open_writer, sql::SharedConnection};
use crate::{StoreError, delivery_store::DeliveryStore};

/// Opens the deliveries of a data directory on a connection of their own.
///
/// # Errors
/// Those of opening the database.
pub(crate) fn open(data_dir: &Path) -> Result<DeliveryStore<SharedConnection>, StoreError> {
    let conn = open_writer(data_dir)?;
    // A crash of the machine may undo the last writes. Some deliveries are then sent again, but none are lost.
    conn.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(DeliveryStore::new(SharedConnection::new(conn)))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::webhooks::{Deliveries as _, PendingDelivery};

    #[test]
    fn deliveries_of_older_schema_are_migrated() {
        let dir = tempfile::tempdir().unwrap();
        let old = crate::sqlite::open::create_with_migrations(dir.path(), 7);
        old.execute_batch(
            "INSERT INTO webhooks VALUES ('a', 12);
             INSERT INTO webhook_deliveries VALUES
                 ('a', 12, 'change.created', 'chg_0', 'waiting', 2, 500, 'no', 1800000000000, 1800000001000, '{}'),
                 ('a', 9, 'change.created', 'chg_1', 'delivered', 1, 200, NULL, 1800000000000, 1800000001000, NULL);",
        )
        .unwrap();
        drop(old);
        let store = open(dir.path()).unwrap();
        assert_eq!(store.position("a", 99).unwrap(), 12);
        assert_eq!(store.pending("a").unwrap(), [pending_delivery(2)]);
        assert_eq!(store.enqueue("a", 12, &[pending_delivery(0)]).unwrap(), [2]);
        assert_eq!(store.deliveries("a", None, 9).unwrap().len(), 2);
    }

    fn pending_delivery(id: u64) -> PendingDelivery {
        PendingDelivery {
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

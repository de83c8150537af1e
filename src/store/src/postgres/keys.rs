//! Opens the keys, people, sign-ins and codes in PostgreSQL, and keeps their copy in memory up to date.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use deadpool_postgres::ClientWrapper;

use super::{PgConnector, error};
use crate::{
    StoreError,
    sql::{BACKGROUND_TIMEOUT, Database as _, REQUEST_TIMEOUT, Sql as _},
    statements::facts,
    stored_keys::{KeyCopy, KeyRecords, StoredKeys, list_keys, list_people},
};
use countersign_domain::principal::SecretHash;

/// The interval between refreshes of the copy. A revoked key or an ended sign-in therefore stops working within a second.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);

/// Selects the versions of all sign-ins. PostgreSQL sets `xmin` whenever it writes a row.
const SELECT_SIGN_IN_VERSIONS: &str =
    "SELECT s.id, concat(s.xmin, ' ', p.xmin) FROM sign_ins s LEFT JOIN people p ON p.name = s.name";

/// Reads the keys into a copy, and refreshes the copy from then on.
///
/// # Errors
/// If the keys cannot be read, or the store was moved.
pub(super) fn open(connector: Arc<PgConnector>) -> Result<StoredKeys<Arc<PgConnector>>, StoreError> {
    let records = connector.read(BACKGROUND_TIMEOUT, async |client| {
        facts::check_moved(client).await?;
        read_records(client).await
    })?;
    let copy = Arc::new(KeyCopy::new(records));
    connector.spawn(refresh(Arc::downgrade(&copy), Arc::downgrade(&connector)));
    Ok(StoredKeys { db: connector, copy: Some(copy) })
}

/// Refreshes the copy until it or the connector is dropped.
async fn refresh(copy: Weak<KeyCopy>, connector: Weak<PgConnector>) {
    loop {
        tokio::time::sleep(REFRESH_INTERVAL).await;
        let Some(connector) = connector.upgrade() else { return };
        let reading = connector.run_async(error::no_answer, async |client| read_records(client).await);
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, reading).await;
        let Some(copy) = copy.upgrade() else { return };
        copy.set_silent(answer.is_err());
        match answer.unwrap_or_else(|_| Err(error::no_answer())) {
            Ok(records) => copy.replace(records),
            Err(error) => {
                tracing::debug!(%error, "the keys could not be read");
                // The writer detects when the database can be reached again.
                connector.health.record_failure(&error);
            }
        }
    }
}

async fn read_records(client: &ClientWrapper) -> Result<KeyRecords, StoreError> {
    let read_at = Instant::now();
    let keys = list_keys(client).await?.into_iter().map(|(key, hash)| (hash, key)).collect();
    let people = list_people(client).await?.into_iter().map(|person| (person.name.clone(), person)).collect();
    let rows = client.rows(SELECT_SIGN_IN_VERSIONS, &[]).await?;
    let sign_in_versions: HashMap<SecretHash, String> =
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, StoreError>>()?;
    Ok(KeyRecords { keys, people, sign_in_versions, read_at })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{
        super::fault_tests::{key, server_for},
        *,
    };
    use crate::keys::Credentials as _;

    #[test]
    fn silent_server_is_not_asked_about_unknown_keys() {
        let dir = tempfile::tempdir().unwrap();
        let server = server_for(dir.path());
        server.credentials().unwrap().insert(&key("k"), &[1; 32]).unwrap();
        let records = KeyRecords {
            keys: HashMap::new(),
            people: BTreeMap::new(),
            sign_in_versions: HashMap::new(),
            read_at: Instant::now(),
        };
        let copy = Arc::new(KeyCopy::new(records));
        copy.set_silent(true);
        let keys = StoredKeys { db: server.migrated_connector().unwrap(), copy: Some(Arc::clone(&copy)) };
        for answer in [keys.find(&[1; 32]).map(drop), keys.sign_in(&[1; 32]).map(drop)] {
            assert!(matches!(answer, Err(StoreError::Unreachable(_))), "{answer:?}");
        }
        copy.set_silent(false);
        assert!(keys.find(&[1; 32]).unwrap().is_some());
        assert_eq!(keys.sign_in(&[1; 32]).unwrap(), None);
    }
}

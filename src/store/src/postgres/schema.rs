//! The schema of a database, its migrations, and the locks by which gateways exclude each other.

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use tokio::time::Instant;
use tokio_postgres::Client;

use super::{PgConnector, connect::CONNECT_TIMEOUT};
use crate::StoreError;

/// The first key of our advisory locks, `CSGN` in ASCII, which keeps them apart from the locks of other programs.
const LOCK_CLASS: i32 = 0x4353_474e;
/// The second keys: for migrations, for serving gateways (a shared lock), and for joining nodes.
pub(super) const MIGRATION_LOCK: i32 = 1;
const SERVING_LOCK: i32 = 2;
pub(super) const JOINING_LOCK: i32 = 3;

/// The migrations in order; the schema version is the number of those that have run.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_initial.sql"),
    include_str!("migrations/0002_nodes.sql"),
    include_str!("migrations/0003_servers_of_nodes.sql"),
    include_str!("migrations/0004_certificates_of_nodes.sql"),
    include_str!("migrations/0005_resigned_nodes.sql"),
    include_str!("migrations/0006_policies_of_nodes.sql"),
    include_str!("migrations/0007_targets_taken.sql"),
    include_str!("migrations/0008_people.sql"),
    include_str!("migrations/0009_accounts.sql"),
    include_str!("migrations/0010_plans.sql"),
    include_str!("migrations/0011_key_creators.sql"),
    include_str!("migrations/0012_absences.sql"),
    include_str!("migrations/0013_rule_counts.sql"),
];
/// The first schema version that several gateways can share. A gateway with an older schema must end before the
/// migration.
const FIRST_SHARED_SCHEMA: i64 = 2;
/// The first schema version with the columns of plans.
pub(super) const FIRST_WITH_PLANS: i64 = 10;
/// The first schema version that records who created a key.
pub(super) const FIRST_WITH_KEY_CREATORS: i64 = 11;

/// Returns the schema version of this program.
pub(crate) fn known_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

impl PgConnector {
    /// Opens a connection that marks the database as served while the connection lives, exclusively if `alone` is set.
    /// Waits at most `patience`, because the server may release the lock of a killed gateway with a delay.
    ///
    /// # Errors
    /// [`StoreError::AlreadyServed`] if another gateway holds a conflicting lock.
    pub async fn serve(&self, patience: Duration, alone: bool) -> Result<ClientWrapper, StoreError> {
        let client = self.connect().await?;
        // A commit must survive a crash of the server, even if the server's default is asynchronous commits.
        client
            .query_one(
                "SELECT set_config('synchronous_commit', 'on', false)
                 FROM (SELECT 1) AS one WHERE current_setting('synchronous_commit') = 'off'
                 UNION ALL SELECT '' LIMIT 1",
                &[],
            )
            .await?;
        let sql =
            if alone { "SELECT pg_try_advisory_lock($1, $2)" } else { "SELECT pg_try_advisory_lock_shared($1, $2)" };
        take_serving_lock(&client, sql, patience).await?;
        Ok(client)
    }

    /// Connects, and begins a read-only transaction on one snapshot, without time limits. Returns `None` if there is
    /// no schema.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn snapshot(&self) -> Result<Option<ClientWrapper>, StoreError> {
        let client = self.connect().await?;
        if read_version(&client).await?.is_none() {
            return Ok(None);
        }
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
                     SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0";
        client.batch_execute(begin).await?;
        Ok(Some(client))
    }

    /// Migrates the schema. Refuses a newer one, and a database whose encoding lacks characters.
    ///
    /// # Errors
    /// [`StoreError::NewerDatabase`], [`StoreError::Database`]
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let tx = self.connect().await?;
        check_encoding(&tx).await?;
        // A migration may take long. After an error, the connection ends with its transaction.
        tx.batch_execute("BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0").await?;
        lock(&tx, MIGRATION_LOCK).await?;
        let found_version = read_version(&tx).await?;
        if found_version.is_some_and(|version| version < FIRST_SHARED_SCHEMA) {
            take_serving_lock(&tx, "SELECT pg_try_advisory_xact_lock($1, $2)", CONNECT_TIMEOUT).await?;
        }
        for sql in MIGRATIONS.iter().skip(usize::try_from(found_version.unwrap_or(0)).unwrap_or(0)) {
            tx.batch_execute(sql).await?;
        }
        let known_version = known_version();
        if found_version.is_none() {
            tx.batch_execute("CREATE TABLE countersign_schema (version BIGINT NOT NULL)").await?;
            tx.execute("INSERT INTO countersign_schema (version) VALUES ($1)", &[&known_version]).await?;
        } else if found_version < Some(known_version) {
            tx.execute("UPDATE countersign_schema SET version = $1", &[&known_version]).await?;
        }
        Ok(tx.batch_execute("COMMIT").await?)
    }
}

/// Checks that the database can store every character. With `SQL_ASCII`, it stores any bytes.
async fn check_encoding(client: &Client) -> Result<(), StoreError> {
    let encoding: String = client.query_one("SELECT current_setting('server_encoding')", &[]).await?.get(0);
    if matches!(encoding.as_str(), "UTF8" | "SQL_ASCII") {
        return Ok(());
    }
    let text = format!(
        "the encoding of the database is {encoding}, which lacks characters; create one with ENCODING 'UTF8' TEMPLATE template0"
    );
    Err(StoreError::Database(text.into()))
}

/// Takes the lock with this key until the transaction ends, after those who came first.
pub(super) async fn lock(client: &Client, key: i32) -> Result<(), StoreError> {
    client.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&LOCK_CLASS, &key]).await?;
    Ok(())
}

/// Takes the lock of serving gateways with the given statement. Retries until `patience` is over.
async fn take_serving_lock(client: &Client, sql: &str, patience: Duration) -> Result<(), StoreError> {
    let end = Instant::now() + patience;
    while !client.query_one(sql, &[&LOCK_CLASS, &SERVING_LOCK]).await?.get::<_, bool>(0) {
        if Instant::now() >= end {
            return Err(StoreError::AlreadyServed);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Returns the version of the schema; `None` if there is none.
///
/// # Errors
/// [`StoreError::NewerDatabase`]
pub(super) async fn read_version(client: &Client) -> Result<Option<i64>, StoreError> {
    let exists: bool = client.query_one("SELECT to_regclass('countersign_schema') IS NOT NULL", &[]).await?.get(0);
    if !exists {
        return Ok(None);
    }
    let found_version: i64 = client.query_one("SELECT version FROM countersign_schema", &[]).await?.get(0);
    let known_version = known_version();
    if found_version > known_version {
        return Err(StoreError::NewerDatabase { found: found_version, known: known_version });
    }
    Ok(Some(found_version))
}

/// Returns the version of the schema after refusing another version than that of this program; `None` if there is none.
///
/// # Errors
/// [`StoreError::NewerDatabase`], [`StoreError::OlderDatabase`]
pub(super) async fn read_current_version(client: &Client) -> Result<Option<i64>, StoreError> {
    let (version, known) = (read_version(client).await?, known_version());
    match version {
        Some(found) if found < known => Err(StoreError::OlderDatabase { found, known }),
        version => Ok(version),
    }
}

/// Returns the error for a database without a schema.
pub(super) fn no_schema_error() -> StoreError {
    StoreError::Unreachable("no gateway has written to this database yet".into())
}

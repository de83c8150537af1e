//! The database of a server as the source or destination of a move.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::ClientWrapper;

use super::{PgConnector, schema, trail::set_heads, verify};
use crate::{
    Heads, StoreError, VerifiedTrail, VerifyError,
    identity::Backend,
    moving::{OfflineStore, TABLES},
    sql::{Row, Sql, Value},
};
use countersign_domain::changes::audit::AuditHead;

/// The maximum wait for gateways that are still shutting down.
const SERVING_TIMEOUT: Duration = Duration::from_secs(2);

/// A database that no gateway can serve while this value exists.
pub(crate) struct OfflineServer {
    connector: Arc<PgConnector>,
    /// The connection whose lock keeps gateways out.
    client: ClientWrapper,
}

impl OfflineServer {
    pub fn take(connector: Arc<PgConnector>) -> Result<Self, StoreError> {
        let client = connector.block_on(async {
            let client = connector.serve(SERVING_TIMEOUT, true).await?;
            if schema::read_current_version(&client).await?.is_none() {
                return Err(schema::no_schema_error());
            }
            // Long statements are allowed, because nobody else uses the database.
            let limits = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = '30s'";
            client.batch_execute(limits).await?;
            Ok(client)
        })?;
        Ok(Self { connector, client })
    }
}

impl OfflineStore for OfflineServer {
    fn backend(&self) -> Backend {
        Backend::Postgres
    }

    fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
        self.connector.block_on(self.client.rows(sql, values))
    }

    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<(), StoreError> {
        self.connector.block_on(Sql::execute(&self.client, sql, values)).map(drop)
    }

    /// Sets the heads, and the numbers from which identity columns continue.
    fn finish(&self) -> Result<(), StoreError> {
        let client = &self.client;
        self.connector.block_on(async {
            for table in TABLES.iter().filter(|table| table.page.is_some()) {
                let (name, key) = (table.name, table.key());
                let numbered = format!("SELECT pg_get_serial_sequence('{name}', '{key}')");
                let sequence: Option<String> = client.query_one(&numbered, &[]).await?.get(0);
                if let Some(sequence) = sequence {
                    let sql = format!("SELECT setval('{sequence}', max({key})) FROM {name} HAVING count(*) > 0");
                    client.query(&sql, &[]).await?;
                }
            }
            let event = client.first("SELECT coalesce(max(seq), 0) FROM events", &[]).await?;
            let last = client.first("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1", &[]).await?;
            let audit = match last {
                Some(row) => AuditHead { seq: row.get(0)?, hash: row.get(1)? },
                None => AuditHead::default(),
            };
            set_heads(client, Heads { event: event.map_or(Ok(0), |row| row.get(0))?, audit }).await
        })
    }

    fn verify(&self) -> Result<VerifiedTrail, VerifyError> {
        self.connector.block_on(verify::verify(&self.connector, None))
    }
}

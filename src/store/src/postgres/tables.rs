//! Connections for the tables of a module, separate from the connections of the store.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use deadpool_postgres::{ClientWrapper, Object, Pool};
use tokio::sync::oneshot;

pub use super::connect::repeat_look_up;
use super::{
    connect::{self, ANSWER_TIMEOUT, PgConnector},
    error,
    schema::{self, MIGRATION_LOCK},
};
use crate::{
    StoreError, StoreFuture,
    sql::{Row, Sql, Value},
    values,
};

/// The maximum connections of a module.
const POOL_CONNECTIONS: usize = 6;

/// The pool of connections of a module.
pub struct Tables {
    connector: Arc<PgConnector>,
    pool: Pool,
}

impl Tables {
    pub(super) fn new(connector: Arc<PgConnector>) -> Result<Self, StoreError> {
        let pool = connector.create_pool(POOL_CONNECTIONS)?;
        Ok(Self { connector, pool })
    }

    /// Takes a connection as soon as one is free.
    pub fn connection(&self) -> StoreFuture<ModuleConnection> {
        let (reply, answer) = oneshot::channel();
        let (connector, pool) = (Arc::clone(&self.connector), self.pool.clone());
        self.connector.spawn(async move {
            // If the caller has stopped waiting, the connection returns to the pool.
            let _ = reply.send(ModuleConnection::take(connector, &pool).await);
        });
        Box::pin(async move { answer.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// Takes a connection as soon as one is free, and blocks until then.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`]
    pub fn wait_for_connection(&self) -> Result<ModuleConnection, StoreError> {
        self.connector.block_on(ModuleConnection::take(Arc::clone(&self.connector), &self.pool))
    }
}

/// A connection of a module. Each method blocks until the server has answered.
pub struct ModuleConnection {
    connector: Arc<PgConnector>,
    /// `None` once the connection is closed.
    client: Option<Object>,
    /// A transaction is open, so that the connection must not return to the pool.
    in_transaction: bool,
    /// An answer did not arrive in time, and may still arrive.
    answer_pending: AtomicBool,
}

impl ModuleConnection {
    async fn take(connector: Arc<PgConnector>, pool: &Pool) -> Result<Self, StoreError> {
        let client = connect::take_connection(pool).await?;
        Ok(Self { connector, client: Some(client), in_transaction: false, answer_pending: AtomicBool::new(false) })
    }

    fn run<T>(&self, work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let client = self.client.as_ref().ok_or(StoreError::Closed)?;
        let answer = self.connector.block_on(self.connector.silence.answer(ANSWER_TIMEOUT, work(client)));
        self.answer_pending.store(answer.is_none(), Ordering::Release);
        let answer = answer.unwrap_or_else(|| Err(error::no_answer()));
        if let Err(error) = &answer {
            self.connector.health.record_damage(error);
        }
        answer
    }

    /// Begins a transaction with the given statements, which may also change settings of the transaction.
    ///
    /// # Errors
    /// Those of the server.
    pub fn begin(&mut self, statements: &str) -> Result<(), StoreError> {
        self.in_transaction = true;
        self.batch(statements)
    }

    /// Commits the transaction.
    ///
    /// # Errors
    /// Those of the server. With [`StoreError::Unreachable`] the connection has ended, and the outcome is unknown.
    pub fn commit(mut self) -> Result<(), StoreError> {
        self.batch("COMMIT")?;
        self.in_transaction = false;
        Ok(())
    }

    /// Takes the lock of migrations until the transaction ends. Waits for other gateways that hold the lock.
    ///
    /// # Errors
    /// Those of the server.
    pub fn lock_migrations(&self) -> Result<(), StoreError> {
        self.run(async |client| schema::lock(client, MIGRATION_LOCK).await)
    }

    /// Runs statements that have no parameters and return no rows.
    ///
    /// # Errors
    /// Those of the server.
    pub fn batch(&self, sql: &str) -> Result<(), StoreError> {
        self.run(async |client| Ok(client.batch_execute(sql).await?))
    }

    /// Returns all rows.
    ///
    /// # Errors
    /// Those of the server.
    pub fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
        self.run(async |client| client.rows(sql, values).await)
    }

    /// Returns `true` if the change has a valid claim, and locks the claim until the transaction ends.
    ///
    /// # Errors
    /// Those of the server.
    pub fn is_claimed(&self, change: &str) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM claims WHERE change_id = ?1 AND lapsed_until IS NULL AND taken_ms IS NULL FOR SHARE";
        Ok(!self.rows(sql, values![change])?.is_empty())
    }

    /// Runs a statement, and returns the number of written rows.
    ///
    /// # Errors
    /// Those of the server.
    pub fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
        self.run(async |client| Sql::execute(client, sql, values).await)
    }
}

impl Drop for ModuleConnection {
    fn drop(&mut self) {
        // The next user of the connection must not get an open transaction or a late answer.
        if (self.in_transaction || self.answer_pending.load(Ordering::Acquire))
            && let Some(client) = self.client.take()
        {
            drop(Object::take(client));
        }
    }
}

//! Connections for the tables of a module, beside those of the store. Statements are awaited one after another.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use deadpool_postgres::{ClientWrapper, Object, Pool};
use tokio::{sync::oneshot, time::Instant};

use super::{
    connect::{self, ANSWER_TIMEOUT, PgConnector},
    error,
};
use crate::{
    StoreError, StoreFuture,
    sql::{Row, Sql, Value},
    values,
};

/// The number of connections of a module.
const POOL_CONNECTIONS: usize = 6;

/// The connections of a module.
pub struct Tables {
    connector: Arc<PgConnector>,
    pool: Pool,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

impl Tables {
    pub(super) fn new(connector: Arc<PgConnector>) -> Result<Self, StoreError> {
        let pool = connector.pool_of(POOL_CONNECTIONS)?;
        Ok(Self { connector, pool })
    }

    /// Takes a connection as soon as one is free.
    pub fn session(&self) -> StoreFuture<Session> {
        let (reply, answer) = oneshot::channel();
        let (connector, pool) = (Arc::clone(&self.connector), self.pool.clone());
        self.connector.spawn(async move {
            // If nobody waits any more, the connection returns to the pool.
            let _ = reply.send(Session::take(connector, &pool).await);
        });
        Box::pin(async move { answer.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// Takes a connection as soon as one is free, and blocks until then.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`]
    pub fn wait_for_session(&self) -> Result<Session, StoreError> {
        self.connector.block_on(Session::take(Arc::clone(&self.connector), &self.pool))
    }
}

/// A connection. Each of its methods blocks until the server has answered.
pub struct Session {
    connector: Arc<PgConnector>,
    /// `None` once the session has ended.
    client: Option<Object>,
    /// A transaction is open, so that the connection must not return to the pool.
    open: bool,
    /// An answer did not come in time, and may still.
    silent: AtomicBool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Session {
    async fn take(connector: Arc<PgConnector>, pool: &Pool) -> Result<Self, StoreError> {
        let client = connect::take_connection(pool).await?;
        Ok(Self { connector, client: Some(client), open: false, silent: AtomicBool::new(false) })
    }

    fn ask<T>(&self, work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let client = self.client.as_ref().ok_or(StoreError::Closed)?;
        let answer = self.connector.block_on(self.connector.answer(Instant::now() + ANSWER_TIMEOUT, work(client)));
        self.silent.store(answer.is_none(), Ordering::Release);
        let answer = answer.unwrap_or_else(|| Err(error::no_answer()));
        self.connector.health.heard(&answer);
        answer
    }

    /// Begins a transaction with the statement, which may also make settings for the transaction.
    ///
    /// # Errors
    /// Those of the server.
    pub fn begin(&mut self, statements: &str) -> Result<(), StoreError> {
        self.open = true;
        self.batch(statements)
    }

    /// Commits the transaction.
    ///
    /// # Errors
    /// Those of the server. With [`StoreError::Unreachable`] the connection has ended, and the outcome is unknown.
    pub fn commit(mut self) -> Result<(), StoreError> {
        self.batch("COMMIT")?;
        self.open = false;
        Ok(())
    }

    /// Takes the lock of migrations until the transaction ends, and waits for other gateways that have it.
    ///
    /// # Errors
    /// Those of the server.
    pub fn lock_migrations(&self) -> Result<(), StoreError> {
        self.ask(async |client| Ok(connect::lock_migrations(client).await?))
    }

    /// Runs statements without values and answers.
    ///
    /// # Errors
    /// Those of the server.
    pub fn batch(&self, sql: &str) -> Result<(), StoreError> {
        self.ask(async |client| Ok(client.batch_execute(sql).await?))
    }

    /// Returns all rows.
    ///
    /// # Errors
    /// Those of the server.
    pub fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
        self.ask(async |client| client.rows(sql, values).await)
    }

    /// Returns `true` if the node that runs the change still has the claim, and keeps it so until the transaction ends.
    ///
    /// # Errors
    /// Those of the server.
    pub fn is_claimed(&self, change: &str) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM claims WHERE change_id = ?1 AND lapsed_until IS NULL AND taken_ms IS NULL FOR SHARE";
        Ok(!self.rows(sql, values![change])?.is_empty())
    }

    /// Returns the number of rows that were written.
    ///
    /// # Errors
    /// Those of the server.
    pub fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
        self.ask(async |client| Sql::execute(client, sql, values).await)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // An open transaction, or an answer that is still to come, must not reach the next user of the connection.
        if (self.open || self.silent.load(Ordering::Acquire))
            && let Some(client) = self.client.take()
        {
            drop(Object::take(client));
        }
    }
}

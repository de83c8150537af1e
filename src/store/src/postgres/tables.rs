//! What a module keeps in tables of its own, beside those of the store: connections for it, whose statements are waited for
//! one after the other.

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
    connect::{self, ANSWER, Ground},
    error,
};
use crate::{
    StoreError, StoreFuture,
    sql::{Row, Sql, Value},
    values,
};

/// Connections of a module.
const CONNECTIONS: usize = 6;

/// See the module.
pub struct Tables {
    ground: Arc<Ground>,
    pool: Pool,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

impl Tables {
    pub(super) fn new(ground: Arc<Ground>) -> Result<Self, StoreError> {
        let pool = ground.pool_of(CONNECTIONS)?;
        Ok(Self { ground, pool })
    }

    /// A connection, as soon as one is free.
    pub fn session(&self) -> StoreFuture<Session> {
        let (reply, answer) = oneshot::channel();
        let (ground, pool) = (Arc::clone(&self.ground), self.pool.clone());
        self.ground.spawn(async move {
            // Nobody waits any more: it goes back.
            let _ = reply.send(Session::take(ground, &pool).await);
        });
        Box::pin(async move { answer.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// Takes a connection as soon as one is free, and blocks until then.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`]
    pub fn wait_for_session(&self) -> Result<Session, StoreError> {
        self.ground.block_on(Session::take(Arc::clone(&self.ground), &self.pool))
    }
}

/// A connection. Each of its methods blocks until the server has answered.
pub struct Session {
    ground: Arc<Ground>,
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
    async fn take(ground: Arc<Ground>, pool: &Pool) -> Result<Self, StoreError> {
        let client = connect::taken(pool).await?;
        Ok(Self { ground, client: Some(client), open: false, silent: AtomicBool::new(false) })
    }

    fn ask<T>(&self, work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let client = self.client.as_ref().ok_or(StoreError::Closed)?;
        let answer = self.ground.block_on(self.ground.answer(Instant::now() + ANSWER, work(client)));
        self.silent.store(answer.is_none(), Ordering::Release);
        let answer = answer.unwrap_or_else(|| Err(error::silent()));
        self.ground.health.heard(&answer);
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
    pub fn migrating(&self) -> Result<(), StoreError> {
        self.ask(async |client| Ok(connect::migrating(client).await?))
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

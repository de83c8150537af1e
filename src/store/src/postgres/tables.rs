//! What a module keeps in tables of its own, beside those of the store: connections for it, whose statements are waited for
//! one after the other.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use deadpool_postgres::{Object, Pool};
use tokio::{sync::oneshot, time::Instant};
use tokio_postgres::types::ToSql;

use super::{
    connect::{self, ANSWER, Ground},
    error,
    sql::number_placeholders,
};
use crate::{
    StoreError, StoreFuture,
    sql::{Cell, Row, Value},
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
            let _ = reply.send(Session::take(ground, pool).await);
        });
        Box::pin(async move { answer.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// As [`Self::session`], and blocks meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`]
    pub fn wait_for_session(&self) -> Result<Session, StoreError> {
        let (ground, pool) = (Arc::clone(&self.ground), self.pool.clone());
        self.ground.block(Session::take(ground, pool))
    }
}

/// A connection. Each of its methods blocks until the server has answered.
pub struct Session {
    ground: Arc<Ground>,
    /// Taken out when it ends.
    client: Option<Arc<Object>>,
    /// A transaction is open: others may not have the connection after that.
    open: bool,
    /// An answer did not come in time, and may still.
    silent: Arc<AtomicBool>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Session {
    async fn take(ground: Arc<Ground>, pool: Pool) -> Result<Self, StoreError> {
        let client = connect::taken(&pool).await?;
        Ok(Self { ground, client: Some(Arc::new(client)), open: false, silent: Arc::default() })
    }

    fn ask<T: Send + 'static, Fut>(&self, work: impl FnOnce(Arc<Object>) -> Fut) -> Result<T, StoreError>
    where
        Fut: Future<Output = Result<T, tokio_postgres::Error>> + Send + 'static,
    {
        let work = work(Arc::clone(self.client.as_ref().ok_or(StoreError::Closed)?));
        let (ground, silent) = (Arc::clone(&self.ground), Arc::clone(&self.silent));
        self.ground.block(async move {
            let answer = ground.answer(Instant::now() + ANSWER, work).await;
            silent.store(answer.is_none(), Ordering::Release);
            let answer = answer.map_or_else(|| Err(error::silent()), |answer| answer.map_err(StoreError::from));
            ground.health.heard(&answer);
            answer
        })
    }

    /// Begins a transaction: the statement, and what is set for as long as it lasts.
    ///
    /// # Errors
    /// Those of the server.
    pub fn begin(&mut self, statements: &'static str) -> Result<(), StoreError> {
        self.open = true;
        self.batch(statements)
    }

    /// Ends the transaction.
    ///
    /// # Errors
    /// Those of the server. With [`StoreError::Unreachable`] the connection has ended, and whether it was made is unknown.
    pub fn commit(mut self) -> Result<(), StoreError> {
        self.batch("COMMIT")?;
        self.open = false;
        Ok(())
    }

    /// Waits until no other gateway migrates anything, until the transaction ends.
    ///
    /// # Errors
    /// Those of the server.
    pub fn migrating(&self) -> Result<(), StoreError> {
        self.ask(|client| async move { connect::migrating(&client).await })
    }

    /// Statements without values and answers.
    ///
    /// # Errors
    /// Those of the server.
    pub fn batch(&self, sql: &'static str) -> Result<(), StoreError> {
        self.ask(|client| async move { client.batch_execute(sql).await })
    }

    /// Returns all rows.
    ///
    /// # Errors
    /// Those of the server.
    pub fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
        let (sql, values) = statement(sql, values);
        let rows = self.ask(|client| async move {
            let statement = client.prepare_cached(&sql).await?;
            client.query(&statement, &as_parameters(&values)).await
        })?;
        rows.iter().map(Row::try_from).collect()
    }

    /// Whether the node that runs the change still has it, until the transaction ends: whoever would take that node for gone
    /// waits for it.
    ///
    /// # Errors
    /// Those of the server.
    pub fn is_claimed(&self, change: &str) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM claims WHERE change_id = ?1 AND lapsed_until IS NULL AND taken_ms IS NULL FOR SHARE";
        Ok(!self.rows(sql, values![change])?.is_empty())
    }

    /// Returns how many rows were written.
    ///
    /// # Errors
    /// Those of the server.
    pub fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
        let (sql, values) = statement(sql, values);
        self.ask(|client| async move {
            let statement = client.prepare_cached(&sql).await?;
            client.execute(&statement, &as_parameters(&values)).await
        })
    }
}

/// Returns the statement with its values, for the thread that sends them.
fn statement(sql: &str, values: &[Value<'_>]) -> (String, Vec<Cell>) {
    (number_placeholders(sql), values.iter().map(|value| Cell::from(*value)).collect())
}

fn as_parameters(values: &[Cell]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as _).collect()
}

impl Drop for Session {
    fn drop(&mut self) {
        // A question that was not answered in time may still hold it: that connection is lost too, with the question.
        if (self.open || self.silent.load(Ordering::Acquire))
            && let Some(client) = self.client.take().and_then(Arc::into_inner)
        {
            drop(Object::take(client));
        }
    }
}

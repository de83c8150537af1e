//! Statements on a connection to SQLite.

use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt as _;
use rusqlite::{Connection, TransactionBehavior, params_from_iter};

use crate::{
    StoreError,
    sql::{Dialect, Row, Sql, Value},
};

impl Sql for Connection {
    const DIALECT: Dialect = Dialect {
        find: "instr",
        join_in_order: "CROSS JOIN",
        for_update: "",
        title: "body ->> '$.summary'",
        has_votes: "json_array_length(body, '$.decisions') > 0",
        not_redacted: "redacted = 0",
        event_time: "json_extract(data, '$.at')",
        store_rule: "INSERT INTO standing_rules (id, \"over\", body) SELECT ?1, ?2, ?3 WHERE ?4 IS NOT NULL
                     ON CONFLICT (id) DO UPDATE SET \"over\" = excluded.\"over\", body = excluded.body",
        rule_allows: "json_extract(body, '$.verdict') = 'allow'",
        policies: "SELECT ?2, value FROM facts WHERE name = ?1",
    };

    async fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
        rows(self, sql, values)
    }

    async fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
        execute(self, sql, values)
    }

    async fn write(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
        execute(self, sql, values)
    }
}

/// Returns all rows.
///
/// # Errors
/// Those of the database.
pub fn rows(conn: &Connection, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(row.try_into()?);
    }
    Ok(all)
}

/// Returns how many rows were written.
///
/// # Errors
/// Those of the database.
pub fn execute(conn: &Connection, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
    Ok(conn.prepare_cached(sql)?.execute(params_from_iter(values))? as u64)
}

/// Runs statements to their end: SQLite answers at once, so that nothing ever waits.
pub(crate) fn run<T, E: From<StoreError>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    work.now_or_never().unwrap_or_else(|| Err(StoreError::Database("a statement of SQLite waited".into()).into()))
}

/// A connection that several threads use, one after the other.
pub(super) struct SharedConnection(Mutex<Connection>);

impl SharedConnection {
    pub fn new(conn: Connection) -> Self {
        Self(Mutex::new(conn))
    }

    pub fn run<T>(&self, work: impl AsyncFnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        run(work(&self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Runs the statements in a transaction, which is taken back where one of them fails.
    pub fn transaction<T>(
        &self,
        work: impl AsyncFnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // A panic under the lock cannot leave a transaction open: dropping one rolls it back.
        let mut conn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = run(work(&tx))?;
        tx.commit()?;
        Ok(done)
    }
}

//! Runs shared statements on a connection to SQLite.

use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior, params_from_iter};

use super::{rows::heads, trail};
use crate::{
    Heads, StoreError,
    sql::{Database, Dialect, Row, Sql, Value},
    values,
};

impl Sql for Connection {
    const DIALECT: Dialect = Dialect {
        find: "instr",
        join_in_order: "CROSS JOIN",
        for_update: "",
        title: "body ->> '$.summary'",
        has_votes: "json_array_length(body, '$.decisions') > 0",
        not_redacted: "redacted = 0",
        // The search for the boundary starts at the newest row, because the numbers follow the time.
        created_since: "s.no > coalesce(
            (SELECT no FROM change_search WHERE created_ms < ?1 ORDER BY no DESC LIMIT 1), 0)",
        target_taken_ms: "taken_ms",
        event_time: "json_extract(data, '$.at')",
        store_rule: "INSERT INTO standing_rules (id, \"over\", body) SELECT ?1, ?2, ?3 WHERE ?4 IS NOT NULL
                     ON CONFLICT (id) DO UPDATE SET \"over\" = excluded.\"over\", body = excluded.body",
        rule_allows: "json_extract(body, '$.verdict') = 'allow'",
        policies: "SELECT NULL, value FROM facts WHERE name = ?1",
        find_table: "SELECT name FROM sqlite_schema WHERE type = 'table' AND name = ?1",
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

    async fn heads(&self) -> Result<Heads, StoreError> {
        heads(self)
    }

    async fn append_entry(&self, event: &'static str, actor: &str, details: &str) -> Result<(), StoreError> {
        trail::append_entry(self, event, actor, details)
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

/// Runs a statement, and returns the number of written rows.
///
/// # Errors
/// Those of the database.
pub fn execute(conn: &Connection, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
    Ok(conn.prepare_cached(sql)?.execute(params_from_iter(values))? as u64)
}

/// Returns `true` if the schema has the table.
pub(super) fn has_table(conn: &Connection, name: &str) -> Result<bool, StoreError> {
    Ok(!rows(conn, Connection::DIALECT.find_table, values![name])?.is_empty())
}

/// Runs an asynchronous statement. SQLite blocks until the answer, so the future is always ready.
pub(crate) fn run<T, E: From<StoreError>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    work.now_or_never()
        .unwrap_or_else(|| Err(StoreError::Database("a statement of SQLite was suspended".into()).into()))
}

/// A connection that several threads share.
pub(crate) type SharedConnection = Mutex<Connection>;

impl Database for SharedConnection {
    type Connection = Connection;

    fn read<T>(
        &self,
        _: Duration,
        work: impl AsyncFnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.write(work)
    }

    fn write<T>(&self, work: impl AsyncFnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        run(work(&self.lock()))
    }

    fn write_in_background(
        &self,
        work: impl AsyncFnOnce(&Connection) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        self.write(work)
    }

    fn transaction<T>(&self, work: impl AsyncFnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        // A panic cannot leave a transaction open, because dropping the transaction rolls it back.
        let mut conn = self.lock();
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let value = run(work(&tx))?;
        tx.commit()?;
        Ok(value)
    }

    fn confirmed_transaction(
        &self,
        work: impl AsyncFnOnce(&Connection) -> Result<bool, StoreError>,
        _: impl AsyncFn(&Connection) -> Result<bool, StoreError>,
    ) -> Result<bool, StoreError> {
        self.transaction(work)
    }

    fn repeatable_transaction<T>(
        &self,
        _: Duration,
        work: impl AsyncFn(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.transaction(async |db| work(db).await)
    }
}

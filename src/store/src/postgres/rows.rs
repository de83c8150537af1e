//! Statements and transactions on a connection. All row queries use an index.

use deadpool_postgres::ClientWrapper;
use tokio_postgres::{Row, types::ToSql};

use super::error;
use crate::{
    Heads, StoreError,
    rows::{parse_hash, signed, unsigned},
};
use countersign_domain::changes::audit::{AuditHead, EntryHash};

/// A parameter of a statement.
pub(super) type Value<'a> = &'a (dyn ToSql + Sync);

/// Runs a query, which is prepared once for each connection.
pub(super) async fn query(client: &ClientWrapper, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.query(&statement, values).await?)
}

/// Runs a query for at most one row.
pub(super) async fn query_opt(
    client: &ClientWrapper,
    sql: &str,
    values: &[Value<'_>],
) -> Result<Option<Row>, StoreError> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.query_opt(&statement, values).await?)
}

/// Runs a statement, and returns the number of affected rows.
pub(super) async fn execute(client: &ClientWrapper, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.execute(&statement, values).await?)
}

/// Runs a write as a transaction of its own. The outcome is unknown if the connection ends before the answer.
pub(super) async fn write(client: &ClientWrapper, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
    let statement = client.prepare_cached(sql).await?;
    if client.is_closed() {
        return Err(error::no_answer());
    }
    client.execute(&statement, values).await.map_err(error::write_error)
}

/// Runs statements in a transaction, which is rolled back if they fail. The outcome of an unanswered commit is unknown.
pub(super) async fn transaction<T>(
    client: &ClientWrapper,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    client.batch_execute("BEGIN").await?;
    let result = work.await;
    if result.is_ok() {
        client.batch_execute("COMMIT").await.map_err(error::write_error)?;
    } else if let Err(error) = client.batch_execute("ROLLBACK").await {
        tracing::debug!(%error, "a transaction could not be rolled back; it ends with its connection");
    }
    result
}

pub(super) fn no_heads_error() -> StoreError {
    StoreError::BadRecord("the table `heads` has no row; restore the database from a backup".into())
}

pub(super) async fn heads(client: &ClientWrapper) -> Result<Heads, StoreError> {
    heads_with_entry(client, 0, false).await.map(|(heads, _)| heads)
}

/// Reads the heads and locks them until the caller's transaction ends.
pub(super) async fn take_heads(client: &ClientWrapper) -> Result<Heads, StoreError> {
    heads_with_entry(client, 0, true).await.map(|(heads, _)| heads)
}

/// Reads the heads together with the hash of the given entry, and locks the heads if `lock` is set.
pub(super) async fn heads_with_entry(
    client: &ClientWrapper,
    entry: u64,
    lock: bool,
) -> Result<(Heads, Option<EntryHash>), StoreError> {
    let sql = "SELECT event, audit, hash, (SELECT hash FROM audit WHERE seq = $1) FROM heads";
    let sql = if lock { format!("{sql} FOR UPDATE") } else { sql.to_owned() };
    let row = query_opt(client, &sql, &[&signed(entry)]).await?;
    let row = row.ok_or_else(no_heads_error)?;
    let audit = AuditHead { seq: unsigned(row.get(1))?, hash: parse_hash(row.get(2))? };
    let entry = row.get::<_, Option<&[u8]>>(3).map(parse_hash).transpose()?;
    Ok((Heads { event: unsigned(row.get(0))?, audit }, entry))
}

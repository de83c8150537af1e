//! The statements that read rows of changes, events and the trail. Every statement uses an index.

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;
use tokio_postgres::{Row, types::ToSql};

use super::error;
use crate::{
    Followed, Heads, Proposed, StoreError, StoredEvent,
    rows::{parse_hash, parse_moment, signed, unsigned},
};
use countersign_domain::changes::audit::{AuditHead, EntryHash};

/// What a statement is given.
pub(super) type Value<'a> = &'a (dyn ToSql + Sync);

/// Prepares the statement once for each connection.
pub(super) async fn query(client: &ClientWrapper, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.query(&statement, values).await?)
}

/// As [`query`], of one row at most.
pub(super) async fn one(client: &ClientWrapper, sql: &str, values: &[Value<'_>]) -> Result<Option<Row>, StoreError> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.query_opt(&statement, values).await?)
}

/// As [`query`], of what answers no rows; how many it touched.
pub(super) async fn execute(client: &ClientWrapper, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.execute(&statement, values).await?)
}

/// As [`execute`], of a write that is a transaction of its own: where the connection ends before the answer, its outcome is
/// unknown.
pub(super) async fn write(client: &ClientWrapper, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
    let statement = client.prepare_cached(sql).await?;
    if client.is_closed() {
        return Err(error::silent());
    }
    client.execute(&statement, values).await.map_err(error::of_write)
}

/// Runs it in a transaction, and takes it back where it fails. A commit that nobody answers is of unknown outcome.
pub(super) async fn transaction<T>(
    client: &ClientWrapper,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    client.batch_execute("BEGIN").await?;
    match work.await {
        Ok(done) => client.batch_execute("COMMIT").await.map(|()| done).map_err(error::of_write),
        Err(error) => {
            if let Err(error) = client.batch_execute("ROLLBACK").await {
                // Without a connection there is no transaction.
                tracing::debug!(%error, "a transaction was not taken back, but ended with its connection");
            }
            Err(error)
        }
    }
}

pub(super) async fn proposed_since(client: &ClientWrapper, since: Timestamp) -> Result<Vec<Proposed>, StoreError> {
    let sql = "SELECT s.created_ms, c.principal, c.bytes FROM change_search s JOIN changes c ON c.no = s.no
               WHERE s.created_ms >= $1 ORDER BY s.no";
    let rows = query(client, sql, &[&since.as_millisecond()]).await?;
    let read = |row: &Row| -> Result<Proposed, StoreError> {
        Ok(Proposed { principal: row.get(1), bytes: unsigned(row.get(2))?, at: parse_moment(row.get(0))? })
    };
    rows.iter().map(read).collect()
}

/// With where the logs end at the same moment, and the hash of that entry as it is there; none of it where nothing follows.
pub(super) async fn followed(
    client: &ClientWrapper,
    after: u64,
    limit: usize,
    entry: u64,
) -> Result<(Vec<Followed>, Option<(Heads, Option<EntryHash>)>), StoreError> {
    let sql = "SELECT h.event, h.audit, h.hash, (SELECT hash FROM audit WHERE seq = $3),
                      e.seq, e.kind, e.data, c.bytes, s.call_hash
               FROM (SELECT seq, kind, data, change_id FROM events WHERE seq > $1 ORDER BY seq LIMIT $2) e
               CROSS JOIN heads h
               LEFT JOIN changes c ON e.kind = 'change.created' AND c.id = e.change_id
               LEFT JOIN change_search s ON s.no = c.no
               ORDER BY e.seq";
    let rows = query(client, sql, &[&signed(after), &signed(limit as u64), &signed(entry)]).await?;
    let read = |row: &Row| -> Result<Followed, StoreError> {
        let event = StoredEvent { seq: unsigned(row.get(4))?, kind: row.get(5), data: row.get(6) };
        let bytes = row.get::<_, Option<i64>>(7).map_or(Ok(0), unsigned)?;
        Ok(Followed { event, bytes, call_hash: row.get(8) })
    };
    let end = rows.first().map(|row| Ok::<_, StoreError>((read_heads(row)?, read_hash(row, 3)?))).transpose()?;
    Ok((rows.iter().map(read).collect::<Result<_, _>>()?, end))
}

pub(super) async fn heads(client: &ClientWrapper) -> Result<Heads, StoreError> {
    read_heads(&one(client, "SELECT event, audit, hash FROM heads", &[]).await?.ok_or_else(no_heads)?)
}

/// As [`heads`], and nobody else writes until the caller's transaction ends.
pub(super) async fn take_heads(client: &ClientWrapper) -> Result<Heads, StoreError> {
    take_heads_and(client, 0).await.map(|(heads, _)| heads)
}

/// As [`take_heads`], with the hash of that entry as it is there.
pub(super) async fn take_heads_and(
    client: &ClientWrapper,
    entry: u64,
) -> Result<(Heads, Option<EntryHash>), StoreError> {
    let sql = "SELECT event, audit, hash, (SELECT hash FROM audit WHERE seq = $1) FROM heads FOR UPDATE";
    let row = one(client, sql, &[&signed(entry)]).await?.ok_or_else(no_heads)?;
    Ok((read_heads(&row)?, read_hash(&row, 3)?))
}

fn no_heads() -> StoreError {
    StoreError::BadRecord("nothing says where the logs end".into())
}

/// The first three columns.
fn read_heads(row: &Row) -> Result<Heads, StoreError> {
    let audit = AuditHead { seq: unsigned(row.get(1))?, hash: parse_hash(row.get(2))? };
    Ok(Heads { event: unsigned(row.get(0))?, audit })
}

fn read_hash(row: &Row, column: usize) -> Result<Option<EntryHash>, StoreError> {
    row.get::<_, Option<&[u8]>>(column).map(parse_hash).transpose()
}

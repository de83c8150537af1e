//! Pruning in PostgreSQL.

use deadpool_postgres::ClientWrapper;

use super::rows::execute;
use crate::{
    StoreError,
    retention::{Deletion, Redaction},
    rows::signed,
};

/// Whether this one was pruned; `false` where it is not as it was looked at.
pub(super) async fn redact(client: &ClientWrapper, redaction: &Redaction) -> Result<bool, StoreError> {
    let sql = "UPDATE changes SET body = $4, redacted = true
               WHERE id = $1 AND version = $2 AND state = $3 AND NOT redacted AND finished_at IS NOT NULL";
    let Redaction { id, version, state, body, .. } = redaction;
    Ok(execute(client, sql, &[id, &signed(*version), &state.as_str(), body]).await? == 1)
}

pub(super) async fn delete(client: &ClientWrapper, deletion: &Deletion) -> Result<bool, StoreError> {
    let sql = "DELETE FROM changes WHERE id = $1 AND version = $2 AND state = $3 AND finished_at IS NOT NULL";
    let Deletion { id, version, state, .. } = deletion;
    Ok(execute(client, sql, &[id, &signed(*version), &state.as_str()]).await? == 1)
}

pub(super) async fn forget_events(client: &ClientWrapper, to: u64) -> Result<u64, StoreError> {
    let sql = "DELETE FROM events WHERE seq <= $1 AND seq < (SELECT event FROM heads)";
    execute(client, sql, &[&signed(to)]).await
}

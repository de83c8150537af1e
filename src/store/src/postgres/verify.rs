//! Reads the whole trail from PostgreSQL: to verify it, or to hand it on.

use std::sync::Arc;

use futures_util::TryStreamExt as _;

use super::{
    Ground, connect,
    rows::{heads, one},
};
use crate::{
    StoreError, Verified, VerifyError,
    covered::FACT,
    rows::unsigned,
    statements::{
        facts,
        trail::{ENTRY, covered_rows, next_page},
    },
    verify::{Entries, FoundChange, LastEntry},
};
use countersign_domain::changes::audit::{AuditEntry, AuditHead, EntryContent};

impl From<tokio_postgres::Error> for VerifyError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Store(error.into())
    }
}

const NOTHING: [&str; 0] = [];

/// Reads everything once, in one snapshot and in bounded memory.
///
/// # Errors
/// [`VerifyError::Broken`] at the first thing that does not hold.
pub(super) async fn verify(ground: &Ground, expected: Option<AuditHead>) -> Result<Verified, VerifyError> {
    let client = ground.connect().await?;
    if connect::schema(&client).await?.is_none() {
        return Err(connect::nothing_there().into());
    }
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
                 SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0";
    client.batch_execute(begin).await?;
    let mut entries = Entries::new(expected);
    // Row by row: the server sends no more than is read.
    let rows = client.query_raw(&format!("SELECT {ENTRY} FROM audit a ORDER BY a.seq"), NOTHING).await?;
    let mut rows = std::pin::pin!(rows);
    while let Some(row) = rows.try_next().await? {
        let content = EntryContent {
            seq: unsigned(row.get(0))?,
            at: row.get(1),
            change_id: row.get(2),
            event: row.get(3),
            from: row.get(4),
            to: row.get(5),
            actor: row.get(6),
            details: row.get(7),
        };
        entries.entry(&content, row.get(8), row.get(9))?;
    }
    let mut changes = entries.finish()?;
    let sql = "SELECT c.id, c.state, c.version, c.body, c.principal, c.idempotency_key, c.expires_at,
                      a.seq, a.to_state, a.details
               FROM changes c LEFT JOIN LATERAL (
                   SELECT seq, to_state, details FROM audit
                   WHERE audit.change_id = c.id AND to_state <> '' ORDER BY seq DESC LIMIT 1) a ON true
               ORDER BY c.no";
    let rows = client.query_raw(sql, NOTHING).await?;
    let mut rows = std::pin::pin!(rows);
    while let Some(row) = rows.try_next().await? {
        let found = FoundChange {
            id: row.get(0),
            state: row.get(1),
            version: row.get(2),
            body: row.get(3),
            principal: row.get(4),
            idempotency_key: row.get(5),
            expires_at: row.get(6),
        };
        let last = match row.get::<_, Option<i64>>(7) {
            Some(seq) => Some(LastEntry { seq: unsigned(seq)?, to: row.get(8), details: row.get(9) }),
            None => None,
        };
        changes.change(found, last.as_ref())?;
    }
    let gone = one(
        &client,
        "SELECT change_id, seq FROM audit WHERE event = 'created'
         AND NOT EXISTS (SELECT 1 FROM changes WHERE changes.id = audit.change_id)
         AND NOT EXISTS (SELECT 1 FROM audit AS later WHERE later.change_id = audit.change_id AND later.event = 'deleted')
         LIMIT 1",
        &[],
    )
    .await?;
    let gone = gone.map(|row| unsigned(row.get(1)).map(|seq| (row.get(0), seq))).transpose()?;
    let told = facts::get(&client, FACT).await?;
    let verified = changes.finish(gone, &covered_rows(&client).await?, told.as_deref())?;
    // What the next entry would be chained to.
    if heads(&client).await?.audit != verified.head {
        return Err(StoreError::BadRecord("the row that says where the trail ends says something else".into()).into());
    }
    Ok(verified)
}

/// Hands every entry to `each`, the oldest first, in one snapshot and in bounded memory.
///
/// # Errors
/// Those of the database, and what `each` answers.
pub(super) fn read_audit<E: From<StoreError>>(
    ground: &Arc<Ground>,
    mut each: impl FnMut(&AuditEntry) -> Result<(), E>,
) -> Result<(), E> {
    let connecting = Arc::clone(ground);
    let client = ground.block(async move {
        let client = connecting.connect().await?;
        if connect::schema(&client).await?.is_none() {
            return Err(connect::nothing_there());
        }
        // However long it takes to print a page.
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
                     SET LOCAL idle_in_transaction_session_timeout = 0";
        client.batch_execute(begin).await?;
        Ok(Arc::new(client))
    })?;
    let mut after = 0;
    loop {
        let reading = Arc::clone(&client);
        let page = ground.block(async move { next_page(&*reading, after).await })?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.seq;
        page.iter().try_for_each(&mut each)?;
    }
}

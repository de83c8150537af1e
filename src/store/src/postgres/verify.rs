//! Reads the whole trail from PostgreSQL: to verify it, or to hand it on.

use std::sync::Arc;

use super::{Ground, connect, rows::heads};
use crate::{
    StoreError, Verified, VerifyError,
    covered::FACT,
    statements::{
        facts,
        trail::{covered_rows, next_page},
        verify,
    },
};
use countersign_domain::changes::audit::{AuditEntry, AuditHead};

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
    client.batch_execute(begin).await.map_err(StoreError::from)?;
    let (rows, told) = (covered_rows(&client).await?, facts::get(&client, FACT).await?);
    let verified = verify::verify(&client, expected, &rows, told.as_deref()).await?;
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

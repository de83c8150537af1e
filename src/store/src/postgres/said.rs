//! What reviewers said, read from outside and without writing anything.

use super::{Ground, connect};
use crate::{Said, StoreError};

/// Reads it in one snapshot; `None` where there is no schema yet.
///
/// # Errors
/// Those of the database.
pub(super) async fn read(ground: &Ground) -> Result<Option<Said>, StoreError> {
    let client = ground.connect().await?;
    if connect::schema(&client).await?.is_none() {
        return Ok(None);
    }
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    Said::read(&client).await.map(Some)
}

//! What reviewers said, read from outside and without writing anything.

use super::{Ground, connect};
use crate::{
    Said, StoreError,
    statements::{keys, pins, standing_rules},
};

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
    let pins = pins::load(&client).await?;
    Ok(Some(Said { pins, rules: standing_rules::load(&client).await?, keys: keys::held(&client).await? }))
}

//! What reviewers said, read from outside and without writing anything.

use std::path::Path;

use super::{
    keys,
    open::{database_path, open_reader},
    pins, standing_rules,
};
use crate::{Said, StoreError};

/// Reads it in one snapshot; `None` where there is no database yet.
///
/// # Errors
/// Those of the database.
pub(crate) fn read_said(dir: &Path) -> Result<Option<Said>, StoreError> {
    if !database_path(dir).exists() {
        return Ok(None);
    }
    let conn = open_reader(dir)?;
    let snapshot = conn.unchecked_transaction()?;
    let said =
        Said { pins: pins::load(&snapshot)?, rules: standing_rules::load(&snapshot)?, keys: keys::held(&snapshot)? };
    Ok(Some(said))
}

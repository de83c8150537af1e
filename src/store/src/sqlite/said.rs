//! What reviewers said, read from outside and without writing anything.

use std::path::Path;

use super::{
    open::{database_path, open_reader},
    sql::run,
};
use crate::{
    Said, StoreError,
    statements::{keys, pins, standing_rules},
};

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
    let db = &*snapshot;
    let pins = run(pins::load(db))?;
    Ok(Some(Said { pins, rules: run(standing_rules::load(db))?, keys: run(keys::held(db))? }))
}

//! What reviewers said, read from outside and without writing anything.

use std::path::Path;

use super::{
    open::{database_path, open_reader},
    sql::run,
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
    run(Said::read(&*snapshot)).map(Some)
}

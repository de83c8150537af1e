//! What reviewers said of tools and of calls to come, read from outside and without writing anything.

use std::{collections::HashMap, path::Path};

use super::{
    StoreError, keys,
    open::{database_path, open_reader},
    pins, standing_rules,
};
use countersign_domain::{
    policy::{Pins, StandingRule},
    principal::Role,
};

/// See the module's page.
#[derive(Debug, Default)]
pub struct Said {
    pub pins: Pins,
    /// Those that are over, too.
    pub rules: Vec<StandingRule>,
    /// The roles of the keys that are not revoked.
    pub keys: HashMap<String, Role>,
}

/// Reads it in one snapshot; `None` where there is no database yet.
///
/// # Errors
/// Those of the database.
pub fn read_said(dir: &Path) -> Result<Option<Said>, StoreError> {
    if !database_path(dir).exists() {
        return Ok(None);
    }
    let conn = open_reader(dir)?;
    let snapshot = conn.unchecked_transaction()?;
    let said =
        Said { pins: pins::load(&snapshot)?, rules: standing_rules::load(&snapshot)?, keys: keys::held(&snapshot)? };
    Ok(Some(said))
}

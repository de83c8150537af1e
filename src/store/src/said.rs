//! What reviewers said of tools and of calls to come.

use std::collections::HashMap;

use crate::{
    StoreError,
    sql::Sql,
    statements::{keys, pins, standing_rules},
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

impl Said {
    /// Reads it, within the caller's snapshot.
    pub(crate) async fn read<S: Sql>(db: &S) -> Result<Self, StoreError> {
        let (pins, rules) = (pins::load(db).await?, standing_rules::load(db).await?);
        Ok(Self { pins, rules, keys: keys::active_roles(db).await? })
    }
}

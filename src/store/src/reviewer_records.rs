//! The decisions of reviewers on tools and future calls.

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

/// All pins, rules and roles of a store.
#[derive(Debug, Default)]
pub struct ReviewerRecords {
    pub pins: Pins,
    /// All rules, including ended ones.
    pub rules: Vec<StandingRule>,
    /// The roles of the keys that are not revoked.
    pub keys: HashMap<String, Role>,
}

impl ReviewerRecords {
    /// Reads the records within the caller's snapshot.
    pub(crate) async fn read<S: Sql>(db: &S) -> Result<Self, StoreError> {
        let (pins, rules) = (pins::load(db).await?, standing_rules::load(db).await?);
        Ok(Self { pins, rules, keys: keys::active_roles(db).await? })
    }
}

//! The decisions of reviewers on tools and future calls.

use crate::{
    StoreError,
    people::Holders,
    sql::Sql,
    statements::{keys, pins, standing_rules},
};
use countersign_domain::policy::{Pins, StandingRule};

/// All pins, rules and holders of keys of a store.
#[derive(Debug, Default)]
pub struct ReviewerRecords {
    pub pins: Pins,
    /// All rules, including ended ones.
    pub rules: Vec<StandingRule>,
    pub holders: Holders,
}

impl ReviewerRecords {
    /// Reads the records within the caller's snapshot.
    pub(crate) async fn read<S: Sql>(db: &S) -> Result<Self, StoreError> {
        let (pins, rules) = (pins::load(db).await?, standing_rules::load(db).await?);
        Ok(Self { pins, rules, holders: keys::holders(db).await? })
    }
}

//! The decisions of reviewers on tools and future calls, and the policy that was last in force.

use crate::{
    PolicySnapshot, PolicySnapshots, StoreError,
    people::Holders,
    policy_snapshots::NEWEST_POLICY_FACT,
    sql::Sql,
    statements::{facts, pins, standing_rules},
    stored_keys::list_holders,
};
use countersign_domain::policy::{Pins, StandingRule};

/// All pins, rules and holders of keys of a store, with its newest policy.
#[derive(Debug, Default)]
pub struct ReviewerRecords {
    pub pins: Pins,
    /// All rules, including ended ones.
    pub rules: Vec<StandingRule>,
    pub holders: Holders,
    /// The newest policy ([`PolicySnapshots::newest`]).
    pub policy: Option<PolicySnapshot>,
}

impl ReviewerRecords {
    /// Reads the records within the caller's snapshot.
    pub(crate) async fn read<S: Sql>(db: &S) -> Result<Self, StoreError> {
        let (pins, rules) = (pins::load(db).await?, standing_rules::load(db).await?);
        let policy = facts::get(db, NEWEST_POLICY_FACT).await?;
        let policy = PolicySnapshots::read(None, policy.as_deref()).newest;
        Ok(Self { pins, rules, holders: list_holders(db).await?, policy })
    }
}

//! Standing rules as the store keeps them.

use serde_json::Value;

use super::{
    StoreError,
    coverage::{RowState, rule_details, rule_hash},
};
use countersign_domain::policy::{StandingRule, StandingVerdict};

/// Rules that are over are kept for people to look at, the newest of them; the audit trail keeps all.
pub const KEPT: i64 = 1000;

/// The entry of how often a rule decided.
pub const USED: &str = "standing_rule_used";

/// A rule's row: its body, and what the trail is told of it.
pub(crate) fn row(rule: &StandingRule) -> Result<(String, Value), StoreError> {
    let body = serde_json::to_string(rule).map_err(|e| StoreError::BadRecord(format!("{}: {e}", rule.id)))?;
    let allows = rule.verdict == StandingVerdict::Allow;
    let state = RowState { hash: rule_hash(&body), allows, has_ended: rule.has_ended() };
    Ok((body, rule_details(&rule.id, &state)))
}

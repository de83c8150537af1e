//! The stored form of standing rules.

use serde_json::Value;

use super::{
    StoreError,
    coverage::{RowState, rule_details, rule_hash},
};
use countersign_domain::policy::{StandingRule, StandingVerdict};

/// The maximum ended rules that are kept for display. The audit trail keeps all rules.
pub const MAX_ENDED_RULES: i64 = 1000;

/// The event of recording a rule's use count.
pub const RULE_USED: &str = "standing_rule_used";

/// Returns the body of a rule's row, and the description of the row for its audit entry.
pub(crate) fn to_row(rule: &StandingRule) -> Result<(String, Value), StoreError> {
    let body = serde_json::to_string(rule).map_err(|e| StoreError::BadRecord(format!("{}: {e}", rule.id)))?;
    let allows = rule.verdict == StandingVerdict::Allow;
    let state = RowState { hash: rule_hash(&body), allows, has_ended: rule.has_ended() };
    Ok((body, rule_details(&rule.id, &state)))
}

//! Stores the hourly counts of the calls that each rule of the policy decided.

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::StoreError;

/// The calls that a rule decided, by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(
    as = DecisionCounts,
    description = "The tool calls of the last 30 days by verdict, and other requests that were denied."
)]
pub struct VerdictTotals {
    pub allowed: u64,
    pub reviewed: u64,
    pub denied: u64,
}

/// The calls that a rule decided within an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HourlyRuleCount {
    /// The identity of the rule, which outlasts a change of its position.
    pub rule: String,
    /// The beginning of the hour.
    pub hour: Timestamp,
    pub totals: VerdictTotals,
}

/// The counts of all nodes. Methods block.
pub trait RuleCountStore: Send + Sync + 'static {
    /// Adds counts to those of the same hours, and deletes all counts of hours before `oldest`.
    ///
    /// # Errors
    /// Those of the database.
    fn add_rule_counts(&self, counts: &[HourlyRuleCount], oldest: Timestamp) -> Result<(), StoreError>;

    /// Returns the sum for each rule since the given hour, in the order of their identities.
    ///
    /// # Errors
    /// Those of the database.
    fn rule_counts(&self, since: Timestamp) -> Result<Vec<(String, VerdictTotals)>, StoreError>;
}

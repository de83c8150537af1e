//! What the configuration says of the policy.

use std::sync::Arc;

use serde::Serialize;

use super::{Groups, Rule};
use crate::changes::Terms;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyDefault {
    Allow,
    ReviewWrites,
    ReviewAll,
    Deny,
}

impl PolicyDefault {
    /// Returns its name in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::ReviewWrites => "review_writes",
            Self::ReviewAll => "review_all",
            Self::Deny => "deny",
        }
    }
}

/// Whether the policy is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyMode {
    #[default]
    Enforce,
    /// Every call goes through, and what would have become of it is told.
    Simulate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    pub mode: PolicyMode,
    pub default: PolicyDefault,
    /// Compiled; the first that matches decides.
    pub rules: Vec<Rule>,
    /// What a review asks for where no rule says otherwise.
    pub review: Arc<Terms>,
    /// Whom rules may name as reviewers beside roles.
    pub groups: Groups,
}

impl From<PolicyDefault> for PolicyConfig {
    /// Without rules.
    fn from(default: PolicyDefault) -> Self {
        Self { mode: PolicyMode::Enforce, default, rules: Vec::new(), review: Arc::default(), groups: Groups::new() }
    }
}

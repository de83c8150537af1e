//! The configuration of the policy.

use std::sync::Arc;

use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

use super::{Groups, Rule};
use crate::changes::Terms;

/// The verdict on calls that no rule matches, in order of strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum PolicyDefault {
    Allow,
    ReviewWrites,
    ReviewAll,
    Deny,
}

impl PolicyDefault {
    /// Returns the name in the configuration.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Tells whether the policy is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, IntoStaticStr, VariantArray)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum PolicyMode {
    #[default]
    Enforce,
    /// Allows every call and reports the verdict that would have applied.
    Simulate,
}

/// The configured policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    pub mode: PolicyMode,
    pub default: PolicyDefault,
    /// Compiled rules, of which the first match decides.
    pub rules: Vec<Rule>,
    /// The terms of a review if no rule sets others.
    pub review: Arc<Terms>,
    /// Groups that rules may name as reviewers, in addition to roles.
    pub groups: Groups,
}

impl From<PolicyDefault> for PolicyConfig {
    /// Creates a configuration without rules.
    fn from(default: PolicyDefault) -> Self {
        Self { mode: PolicyMode::Enforce, default, rules: Vec::new(), review: Arc::default(), groups: Groups::new() }
    }
}

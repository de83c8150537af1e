//! Edits of the rules of the policy in the configuration file, in the same way as edits of servers.

use serde_json::{Value, json};

use super::file_edits::FileChange;
use countersign_config::edit::{
    EditError,
    rules::{RuleEntry, apply_rules, to_yaml},
};

/// The rules that are to stand in the file, in order.
#[derive(Clone, Debug)]
pub struct RuleList(pub Vec<RuleEntry>);

impl FileChange for RuleList {
    const KEY: &'static str = "policy.rules";

    fn apply(&self, text: &str) -> Result<String, EditError> {
        apply_rules(text, &self.0)
    }

    fn apply_masked(&self, text: &str) -> Result<String, EditError> {
        self.apply(text)
    }

    fn to_yaml(&self, text: &str) -> String {
        to_yaml(text, &self.0).unwrap_or_default()
    }

    fn audit_entry(&self) -> (&'static str, Value) {
        let new_rule_count = self.0.iter().filter(|entry| matches!(entry, RuleEntry::New { .. })).count();
        ("policy_edited", json!({ "rules": self.0.len(), "written": new_rule_count }))
    }
}

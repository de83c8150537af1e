//! Presents the settings to people while the gateway runs: the values in force, the pending values, and the difference
//! between them. Secrets are hidden as in `config show`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::pending::{ConfigLineOp, Loosening, PendingPolicy, ValueDiff, diff_texts};
use countersign_config::{Config, reader::Setting, show};

/// Maximum number of lines in the diff of one key.
const MAX_LINES: usize = 400;
/// Maximum number of characters in a line.
const MAX_LINE_CHARS: usize = 400;

/// A key with its value in force; for `mcpServers`, the value of the file.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ConfigSetting)]
pub struct ActiveSetting {
    pub key: String,
    /// The value as YAML.
    pub value: String,
    /// The file, variable or flag that the value comes from.
    pub source: String,
    /// Changes in the file that wait for a reviewer's consent.
    pub waiting: Vec<Loosening>,
    /// Changes in the file that a reviewer has refused.
    pub refused: Vec<Loosening>,
    /// Set if the file has another value, which is read at the next start.
    pub needs_restart: bool,
}

/// The configuration in force.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Config)]
pub struct ActiveConfig {
    /// The configuration file that is watched, if any.
    #[schema(required)]
    pub file: Option<String>,
    pub settings: Vec<ActiveSetting>,
    #[schema(required)]
    pub waiting: Option<PendingPolicy>,
}

/// The settings in force and those of the file.
#[derive(Clone, Debug, Default)]
pub struct SettingsView {
    /// The settings at the start, in the order of the defaults file. Keys that are read only at the start keep these values.
    at_start: Vec<Setting>,
    /// A key with a pending change has the value from before the change.
    in_force: BTreeMap<&'static str, Setting>,
    /// The settings of the current file.
    file: BTreeMap<&'static str, Setting>,
    /// The changes in the file that a reviewer has refused.
    refused: Vec<Loosening>,
}

fn index_by_key(settings: &[Setting]) -> BTreeMap<&'static str, Setting> {
    settings.iter().map(|setting| (setting.key, setting.clone())).collect()
}

/// Returns `true` if the keys are equal or one contains the other: `policy.groups` contains `policy.groups.dba`, and
/// `policy.review` contains `policy.review.quorum`.
fn overlaps_key(loosening: &Loosening, key: &str) -> bool {
    let contains = |outer: &str, inner: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'));
    loosening.key == key || contains(key, &loosening.key) || contains(&loosening.key, key)
}

fn has_overlap(loosenings: &[Loosening], key: &str) -> bool {
    loosenings.iter().any(|loosening| overlaps_key(loosening, key))
}

impl SettingsView {
    pub fn new(settings: &[Setting]) -> Self {
        let by_key = index_by_key(settings);
        Self { at_start: settings.to_vec(), in_force: by_key.clone(), file: by_key, refused: Vec::new() }
    }

    pub fn at_start(&self) -> &[Setting] {
        &self.at_start
    }

    /// Records a file that is in force except for its pending changes.
    pub fn record_file(&mut self, settings: &[Setting], pending: &[Loosening]) {
        self.file = index_by_key(settings);
        self.refused.clear();
        for (key, setting) in &self.file {
            if !has_overlap(pending, key) {
                self.in_force.insert(key, setting.clone());
            }
        }
    }

    /// Records the values that were in force when the last gateway ended, for keys with a pending change.
    pub fn record_previous(&mut self, before: &[Setting], pending: &[Loosening]) {
        for setting in before.iter().filter(|setting| has_overlap(pending, setting.key)) {
            self.in_force.insert(setting.key, setting.clone());
        }
    }

    /// Records that the pending changes took effect.
    pub fn accept_pending(&mut self) {
        self.in_force = self.file.clone();
        self.refused.clear();
    }

    /// Records that a reviewer refused the pending changes.
    pub fn record_refusal(&mut self, loosenings: Vec<Loosening>) {
        self.refused = loosenings;
    }

    /// Returns all settings in the order of the defaults file. `needs_restart` contains the changed keys that are read only
    /// at the start.
    pub fn active_settings(
        &self,
        config: &Config,
        pending: Option<&PendingPolicy>,
        needs_restart: &[String],
    ) -> Vec<ActiveSetting> {
        let matching = |all: &[Loosening], key: &str| {
            all.iter().filter(|loosening| overlaps_key(loosening, key)).cloned().collect::<Vec<_>>()
        };
        let settings = self.at_start.iter().map(|start| {
            let key = start.key;
            let waiting = pending.map(|pending| matching(&pending.loosenings, key)).unwrap_or_default();
            let refused = matching(&self.refused, key);
            let needs_restart = needs_restart.iter().any(|other| other == key);
            let is_held_back = !waiting.is_empty() || !refused.is_empty();
            let setting = match key {
                _ if needs_restart => start,
                // Servers are shown as in the file, with the pending changes beside them.
                "mcpServers" => self.file.get(key).unwrap_or(start),
                _ if is_held_back => self.in_force.get(key).unwrap_or(start),
                _ => self.file.get(key).unwrap_or(start),
            };
            // These keys may be partly in force and partly pending.
            let value = match key {
                "policy.rules" if is_held_back => show::rules(config),
                "policy.groups" if is_held_back => show::groups(config),
                _ => setting.value.clone(),
            };
            ActiveSetting {
                key: key.to_owned(),
                value,
                source: setting.origin.to_string(),
                waiting,
                refused,
                needs_restart,
            }
        });
        settings.collect()
    }

    /// Returns the pending changes value by value: the difference between the configuration in force and the one that consent
    /// would put into force.
    pub fn value_diffs(
        &self,
        loosenings: &[Loosening],
        (in_force, with_consent): (&Config, &Config),
        settings: &[Setting],
    ) -> Vec<ValueDiff> {
        let pending = settings.iter().filter(|setting| has_overlap(loosenings, setting.key));
        let diffs = pending.filter_map(|setting| {
            let (before, after) = match setting.key {
                "policy.rules" => (show::rule_lines(in_force), show::rule_lines(with_consent)),
                "policy.groups" => (show::group_lines(in_force), show::group_lines(with_consent)),
                key => (self.in_force.get(key).map(|old| old.value.clone()).unwrap_or_default(), setting.value.clone()),
            };
            // Parts of a review that do not change are left out.
            if before == after && setting.key.starts_with("policy.review.") {
                return None;
            }
            Some(value_diff(setting.key, before.trim_start_matches('\n'), after.trim_start_matches('\n')))
        });
        diffs.collect()
    }
}

fn value_diff(key: &str, before: &str, after: &str) -> ValueDiff {
    let mut has_cut_line = false;
    let mut lines = diff_texts(before, after);
    for line in &mut lines {
        if let Some((end, _)) = line.text.char_indices().nth(MAX_LINE_CHARS) {
            line.text.truncate(end);
            line.text.push('…');
            has_cut_line |= line.op != ConfigLineOp::Same;
        }
    }
    // If there is no room for all lines, the unchanged ones are left out.
    if lines.len() > MAX_LINES {
        lines.retain(|line| line.op != ConfigLineOp::Same);
    }
    let truncated = has_cut_line || lines.len() > MAX_LINES;
    lines.truncate(MAX_LINES);
    ValueDiff { key: key.to_owned(), lines, truncated }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{super::diff, *};
    use countersign_config::{Environment, Flags, LoadedConfig, load};

    fn loaded(yaml: &str) -> LoadedConfig {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, yaml).unwrap();
        let flags = Flags { config: Some(file), data: Some("d".into()), ..Flags::default() };
        load(&flags, &Environment::new(Path::new("/"), &[])).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn shortened_lines_are_reported_only_if_they_differ() {
        let long = "x".repeat(MAX_LINE_CHARS);
        assert!(value_diff("k", &format!("{long}a"), &format!("{long}b")).truncated);
        let same = value_diff("k", &format!("{long}a\nb"), &format!("{long}a\nc"));
        assert!(!same.truncated && same.lines[0].text.ends_with('…'), "{same:?}");
    }

    #[test]
    fn new_rule_is_the_only_difference_of_unnamed_rules() {
        let old = loaded("policy: { rules: [{ tools: x, then: deny }, { tools: y, then: review }] }");
        let new = loaded(
            "policy: { rules: [{ tools: z, then: allow }, { tools: x, then: deny }, { tools: y, then: review }] }",
        );
        let (changes, effective) = diff::compare(&old.config, &new.config);
        let shown = SettingsView::new(&old.settings);
        let content = shown.value_diffs(&changes.policy_loosened, (&effective, &new.config), &new.settings);
        let lines: Vec<_> = content[0].lines.iter().map(|line| (line.op, line.text.as_str())).collect();
        let expected = [
            (ConfigLineOp::Added, r#"{ tools: ["z"], then: allow }"#),
            (ConfigLineOp::Same, r#"{ tools: ["x"], then: deny }"#),
            (ConfigLineOp::Same, r#"{ tools: ["y"], then: review }"#),
        ];
        assert_eq!(lines, expected);
        assert_eq!(changes.policy_loosened[0].describe(), "policy.rules: rule 1 (allow) is new");
    }

    #[test]
    fn pending_values_are_shown_without_secrets() {
        let old = loaded(
            "policy: { default: deny, rules: [{ name: a, tools: x, then: deny }, { name: b, tools: y, then: allow }] }\n\
             mcpServers: { s: { command: x, env: { TOKEN: hidden-one } } }\n",
        );
        let new = loaded(
            "policy: { default: deny, rules: [{ name: b, tools: y, then: allow }] }\n\
             mcpServers: { s: { command: x, env: { TOKEN: hidden-two }, trust_annotations: true } }\nlimits: { max_batch: 9 }\n",
        );
        let mut shown = SettingsView::new(&old.settings);
        let (changes, effective) = diff::compare(&old.config, &new.config);
        let content = shown.value_diffs(&changes.policy_loosened, (&effective, &new.config), &new.settings);
        let lines = |key: &str| {
            let value =
                content.iter().find(|content| content.key == key).unwrap_or_else(|| panic!("{key}: {content:?}"));
            value.lines.iter().map(|line| (line.op, line.text.trim().to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(
            lines("policy.rules"),
            [
                (ConfigLineOp::Removed, r#"{ name: "a", tools: ["x"], then: deny }"#.to_owned()),
                (ConfigLineOp::Same, r#"{ name: "b", tools: ["y"], then: allow }"#.to_owned())
            ]
        );
        assert!(lines("mcpServers").contains(&(ConfigLineOp::Added, "trust_annotations: true".to_owned())));
        assert!(!format!("{content:?}").contains("hidden-"), "{content:?}");

        shown.record_file(&new.settings, &changes.policy_loosened);
        let waiting = PendingPolicy {
            digest: String::new(),
            since: jiff::Timestamp::UNIX_EPOCH,
            loosenings: changes.policy_loosened.clone(),
            content,
        };
        let later = diff::keys_that_need_restart(&old.settings, &old.config, &new);
        let all = shown.active_settings(&effective, Some(&waiting), &later);
        let setting = |key: &str| all.iter().find(|setting| setting.key == key).unwrap();
        assert!(setting("policy.rules").value.contains("name: \"a\""), "{:?}", setting("policy.rules"));
        assert_eq!(setting("policy.rules").waiting.len(), 1);
        assert_eq!(setting("mcpServers").waiting[0].key, "mcpServers.s.trust_annotations");
        assert!(setting("limits.max_batch").needs_restart);
        assert_ne!(setting("limits.max_batch").value, "9");
        assert!(setting("policy.default").waiting.is_empty());
        shown.accept_pending();
        let all = shown.active_settings(&new.config, None, &later);
        let rules = all.iter().find(|setting| setting.key == "policy.rules").unwrap();
        assert!(!rules.value.contains("name: \"a\"") && rules.waiting.is_empty());
    }
}

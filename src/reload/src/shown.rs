//! The configuration as people are shown it while the gateway runs: what is in force, what waits for consent, and what
//! lies between the two, value by value. Secrets are hidden as in `config show`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::waiting::{Content, Line, Loosening, Op, Waiting};
use countersign_config::{Config, reader::Setting, show};
use countersign_domain::changes::{LineOp, diff::compare_lines};

/// Lines of one key's content.
const MAX_LINES: usize = 400;
/// Characters of a line.
const MAX_LINE: usize = 400;

/// A key as it is in force.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InForce {
    pub key: &'static str,
    /// As YAML.
    pub value: String,
    /// Where it comes from.
    pub source: String,
    /// What the file says and is not in force, since it waits for a reviewer's consent.
    pub waiting: Vec<Loosening>,
    /// What a reviewer refused of it.
    pub refused: Vec<Loosening>,
    /// The file says something else, which is read at the next start.
    pub needs_restart: bool,
}

/// The settings as they were read, by key.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// Of the last file of which all was in force.
    whole: BTreeMap<&'static str, Setting>,
    /// Of the file as it is.
    file: BTreeMap<&'static str, Setting>,
    refused: Vec<Loosening>,
}

fn by_key(settings: &[Setting]) -> BTreeMap<&'static str, Setting> {
    settings.iter().map(|setting| (setting.key, setting.clone())).collect()
}

/// Whether what is told of belongs to the key: `policy.groups.dba` to `policy.groups`, `policy.review` to
/// `policy.review.quorum`.
fn belongs(loosening: &Loosening, key: &str) -> bool {
    let below = |long: &str, short: &str| long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'));
    loosening.key == key || below(&loosening.key, key) || below(key, &loosening.key)
}

impl Shown {
    #[must_use]
    pub fn new(settings: &[Setting]) -> Self {
        Self { whole: by_key(settings), file: by_key(settings), refused: Vec::new() }
    }

    /// A file was read, and all of it is in force but what waits.
    pub fn read(&mut self, settings: &[Setting], waits: &[Loosening]) {
        self.file = by_key(settings);
        self.refused.clear();
        for (key, setting) in &self.file {
            if !waits.iter().any(|waiting| belongs(waiting, key)) {
                self.whole.insert(key, setting.clone());
            }
        }
    }

    /// These keys were in force with these values when the last gateway ended, and still are where what is told of belongs to
    /// them.
    pub fn was(&mut self, before: &[Setting], held: &[Loosening]) {
        for setting in before.iter().filter(|setting| held.iter().any(|one| belongs(one, setting.key))) {
            self.whole.insert(setting.key, setting.clone());
        }
    }

    /// What waited is in force.
    pub fn accepted(&mut self) {
        self.whole = self.file.clone();
        self.refused.clear();
    }

    pub fn refused(&mut self, loosens: Vec<Loosening>) {
        self.refused = loosens;
    }

    /// Each key, in the order of the file of defaults. `started` is what the gateway was started with, `needs_restart` names
    /// the keys that have changed since and are read only then.
    #[must_use]
    pub fn in_force(
        &self,
        started: &[Setting],
        config: &Config,
        waiting: Option<&Waiting>,
        needs_restart: &[String],
    ) -> Vec<InForce> {
        let of = |all: &[Loosening], key: &str| all.iter().filter(|one| belongs(one, key)).cloned().collect::<Vec<_>>();
        let each = started.iter().map(|start| {
            let key = start.key;
            let waits = waiting.map(|waiting| of(&waiting.loosens, key)).unwrap_or_default();
            let refused = of(&self.refused, key);
            let needs_restart = needs_restart.iter().any(|other| other == key);
            let held = !waits.is_empty() || !refused.is_empty();
            let setting = match key {
                _ if needs_restart => start,
                // Of servers, all is as the file says but what is told beside it.
                "mcpServers" => self.file.get(key).unwrap_or(start),
                _ if held => self.whole.get(key).unwrap_or(start),
                _ => self.file.get(key).unwrap_or(start),
            };
            // These may be part of the one and part of the other.
            let value = match key {
                "policy.rules" if held => show::rules(config),
                "policy.groups" if held => show::groups(config),
                _ => setting.value.clone(),
            };
            InForce { key, value, source: setting.origin.to_string(), waiting: waits, refused, needs_restart }
        });
        each.collect()
    }

    /// What waits, value by value. `now` is what is in force, `then` what would be.
    #[must_use]
    pub fn content(
        &self,
        loosens: &[Loosening],
        (now, then): (&Config, &Config),
        settings: &[Setting],
    ) -> Vec<Content> {
        let waits = settings.iter().filter(|setting| loosens.iter().any(|one| belongs(one, setting.key)));
        let each = waits.filter_map(|setting| {
            let (before, after) = match setting.key {
                "policy.rules" => (show::rule_lines(now), show::rule_lines(then)),
                "policy.groups" => (show::group_lines(now), show::group_lines(then)),
                key => (self.whole.get(key).map(|old| old.value.clone()).unwrap_or_default(), setting.value.clone()),
            };
            // A part of a review that stays as it is.
            if before == after && setting.key.starts_with("policy.review.") {
                return None;
            }
            Some(content(setting.key, before.trim_start_matches('\n'), after.trim_start_matches('\n')))
        });
        each.collect()
    }
}

fn content(key: &str, before: &str, after: &str) -> Content {
    let mut lines: Vec<Line> = compare_lines(before, after)
        .into_iter()
        .map(|(op, line)| {
            let op = match op {
                LineOp::Delete => Op::Removed,
                LineOp::Insert => Op::Added,
                _ => Op::Same,
            };
            let text = line.trim_end_matches(['\n', '\r']);
            let mut shown: String = text.chars().take(MAX_LINE).collect();
            if shown.len() < text.len() {
                shown.push('…');
            }
            Line { op, text: shown }
        })
        .collect();
    // What differs comes before what only stands beside it, where there is not room for both.
    if lines.len() > MAX_LINES {
        lines.retain(|line| line.op != Op::Same);
    }
    let cut = lines.len() > MAX_LINES;
    lines.truncate(MAX_LINES);
    Content { key: key.to_owned(), lines, cut }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{super::diff, *};
    use countersign_config::{Environment, Flags, Loaded, load};

    fn loaded(yaml: &str) -> Loaded {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, yaml).unwrap();
        let flags = Flags { config: Some(file), data: Some("d".into()), ..Flags::default() };
        load(&flags, &Environment::of(Path::new("/"), &[])).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn what_waits_is_shown_value_by_value_without_secrets() {
        let old = loaded(
            "policy: { default: deny, rules: [{ name: a, tools: x, then: deny }, { name: b, tools: y, then: allow }] }\n\
             mcpServers: { s: { command: x, env: { TOKEN: hidden-one } } }\n",
        );
        let new = loaded(
            "policy: { default: deny, rules: [{ name: b, tools: y, then: allow }] }\n\
             mcpServers: { s: { command: x, env: { TOKEN: hidden-two }, trust_annotations: true } }\nlimits: { max_batch: 9 }\n",
        );
        let mut shown = Shown::new(&old.settings);
        let (whole, at_once) = diff::compare(&old.config, &new.config);
        let content = shown.content(&whole.policy_loosened, (&at_once, &new.config), &new.settings);
        let lines = |key: &str| {
            let of = content.iter().find(|content| content.key == key).unwrap_or_else(|| panic!("{key}: {content:?}"));
            of.lines.iter().map(|line| (line.op, line.text.trim().to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(
            lines("policy.rules"),
            [
                (Op::Removed, r#"{ name: "a", tools: ["x"], then: deny }"#.to_owned()),
                (Op::Same, r#"{ name: "b", tools: ["y"], then: allow }"#.to_owned())
            ]
        );
        assert!(lines("mcpServers").contains(&(Op::Added, "trust_annotations: true".to_owned())));
        assert!(!format!("{content:?}").contains("hidden-"), "{content:?}");

        shown.read(&new.settings, &whole.policy_loosened);
        let waiting = Waiting {
            digest: String::new(),
            since: jiff::Timestamp::UNIX_EPOCH,
            loosens: whole.policy_loosened.clone(),
            content,
        };
        let later = diff::needs_restart(&old.settings, &new.settings);
        let all = shown.in_force(&old.settings, &at_once, Some(&waiting), &later);
        let of = |key: &str| all.iter().find(|one| one.key == key).unwrap();
        assert!(of("policy.rules").value.contains("name: \"a\""), "{:?}", of("policy.rules"));
        assert_eq!(of("policy.rules").waiting.len(), 1);
        assert_eq!(of("mcpServers").waiting[0].key, "mcpServers.s.trust_annotations");
        assert!(of("limits.max_batch").needs_restart);
        assert_ne!(of("limits.max_batch").value, "9");
        assert!(of("policy.default").waiting.is_empty());
        shown.accepted();
        let all = shown.in_force(&old.settings, &new.config, None, &later);
        let rules = all.iter().find(|one| one.key == "policy.rules").unwrap();
        assert!(!rules.value.contains("name: \"a\"") && rules.waiting.is_empty());
    }
}

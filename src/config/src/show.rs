//! Formats the effective configuration for `config show`, as YAML with the source of each value in a comment.

use super::{
    Config, groups,
    reader::Setting,
    rules,
    yaml::{yaml_items, yaml_map, yaml_text},
};

pub use super::rules::format_settings as rule_settings;

/// One setting of the listing.
#[derive(Clone, Debug)]
pub struct ListedSetting {
    pub key: String,
    /// The value as YAML.
    pub value: String,
    /// The comment after the value.
    pub remark: String,
    /// Comment lines above the setting.
    pub notes: Vec<String>,
}

impl From<&Setting> for ListedSetting {
    fn from(setting: &Setting) -> Self {
        Self {
            key: setting.key.to_owned(),
            value: setting.value.clone(),
            remark: setting.origin.to_string(),
            notes: Vec::new(),
        }
    }
}

/// Formats the rules of a configuration for a listing.
pub fn rules(config: &Config) -> String {
    rules::show(&config.policy.rules, &config.policy.review)
}

/// Formats the rules of a configuration, one per line, without generated names. A rule in force keeps the number that it had in
/// another list, which is no difference of the rule.
pub fn rule_lines(config: &Config) -> String {
    let rules = rules::renumber(&config.policy.rules);
    rules::format_each(&rules, &config.policy.review).map(|rule| format!("{rule}\n")).collect()
}

/// Formats the groups of a configuration for a listing.
pub fn groups(config: &Config) -> String {
    yaml_map(group_entries(config))
}

/// Formats the groups of a configuration, one per line.
pub fn group_lines(config: &Config) -> String {
    group_entries(config).map(|(name, people)| format!("{}: {people}\n", yaml_text(name))).collect()
}

fn group_entries(config: &Config) -> impl Iterator<Item = (&str, String)> {
    config
        .policy
        .groups
        .iter()
        .map(|(name, people)| (name.as_str(), yaml_items(people.iter().map(groups::show_member))))
}

/// Formats the settings as a YAML file that loads to the same configuration.
pub fn yaml(settings: &[Setting]) -> String {
    listing(&settings.iter().map(ListedSetting::from).collect::<Vec<_>>())
}

/// Formats a listing of arbitrary settings.
pub fn listing(settings: &[ListedSetting]) -> String {
    let mut lines: Vec<(String, Option<&str>)> = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    for setting in settings {
        let mut path: Vec<&str> = setting.key.split('.').collect();
        let name = path.pop().unwrap_or_default();
        let shared = open.iter().zip(&path).take_while(|(a, b)| a == b).count();
        for (depth, section) in path.iter().enumerate().skip(shared) {
            lines.push((format!("{}{section}:", "  ".repeat(depth)), None));
        }
        let indent = "  ".repeat(path.len());
        lines.extend(setting.notes.iter().map(|note| (format!("{indent}# {note}"), None)));
        // A value of several lines begins on the next line.
        let (value, below) = setting.value.split_once('\n').unwrap_or((&setting.value, ""));
        let space = if value.is_empty() { "" } else { " " };
        lines.push((format!("{indent}{name}:{space}{value}"), Some(setting.remark.as_str())));
        lines.extend(below.lines().map(|line| (format!("{indent}{line}"), None)));
        open = path;
    }
    let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0).min(56);
    let mut out = String::new();
    for (line, remark) in lines {
        match remark {
            Some(remark) => out.push_str(&format!("{line:width$}  # {remark}\n")),
            None => out.push_str(&format!("{line}\n")),
        }
    }
    out
}

/// Formats the settings as JSON: `{"key": {"value": <YAML text>, "source": …}}`.
pub fn json(settings: &[Setting]) -> serde_json::Value {
    let entry = |s: &Setting| {
        let value = serde_json::json!({ "value": s.value, "source": s.origin.to_string() });
        (s.key.to_owned(), value)
    };
    serde_json::Value::Object(settings.iter().map(entry).collect())
}

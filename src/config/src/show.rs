//! `config show`: what is in force, as YAML with the source of each value behind it.

use super::{
    Config,
    reader::Setting,
    rules,
    values::{yaml_list, yaml_map, yaml_text},
};

/// A line of the listing.
#[derive(Clone, Debug)]
pub struct Shown {
    pub key: String,
    /// As YAML.
    pub value: String,
    /// What stands behind it.
    pub remark: String,
    /// What stands above it, a line each.
    pub notes: Vec<String>,
}

impl From<&Setting> for Shown {
    fn from(setting: &Setting) -> Self {
        Self {
            key: setting.key.to_owned(),
            value: setting.value.clone(),
            remark: setting.origin.to_string(),
            notes: Vec::new(),
        }
    }
}

/// The rules of a configuration, as they stand in a listing.
#[must_use]
pub fn rules(config: &Config) -> String {
    rules::show(&config.policy.rules, &config.policy.review)
}

/// The same, one a line.
#[must_use]
pub fn rule_lines(config: &Config) -> String {
    let each = rules::show_each(&config.policy.rules, &config.policy.review);
    each.into_iter().map(|rule| format!("{rule}\n")).collect()
}

/// The groups of a configuration, as they stand in a listing.
#[must_use]
pub fn groups(config: &Config) -> String {
    yaml_map(each_group(config))
}

/// The same, one a line.
#[must_use]
pub fn group_lines(config: &Config) -> String {
    each_group(config).map(|group| format!("{group}\n")).collect()
}

fn each_group(config: &Config) -> impl Iterator<Item = String> + '_ {
    config.policy.groups.iter().map(|(name, people)| format!("{}: {}", yaml_text(name), yaml_list(people)))
}

/// The settings as a YAML file that loads to the same configuration.
#[must_use]
pub fn yaml(settings: &[Setting]) -> String {
    listing(&settings.iter().map(Shown::from).collect::<Vec<_>>())
}

/// The same, of settings that came from elsewhere.
#[must_use]
pub fn listing(settings: &[Shown]) -> String {
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
        // What takes more lines than one begins on the next.
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

/// The settings as JSON: `{"key": {"value": <YAML text>, "source": …}}`.
#[must_use]
pub fn json(settings: &[Setting]) -> serde_json::Value {
    let entry = |s: &Setting| {
        let value = serde_json::json!({ "value": s.value, "source": s.origin.to_string() });
        (s.key.to_owned(), value)
    };
    serde_json::Value::Object(settings.iter().map(entry).collect())
}

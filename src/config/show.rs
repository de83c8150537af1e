//! `config show`: what is in force, as YAML with the source of each value behind it.

use super::{error::Origin, reader::Setting};

/// The settings as a YAML file that loads to the same configuration.
#[must_use]
pub fn yaml(settings: &[Setting]) -> String {
    let mut lines: Vec<(String, Option<&Origin>)> = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    for setting in settings {
        let mut path: Vec<&str> = setting.key.split('.').collect();
        let name = path.pop().unwrap_or_default();
        let shared = open.iter().zip(&path).take_while(|(a, b)| a == b).count();
        for (depth, section) in path.iter().enumerate().skip(shared) {
            lines.push((format!("{}{section}:", "  ".repeat(depth)), None));
        }
        let indent = "  ".repeat(path.len());
        // What takes more lines than one begins on the next.
        let (value, below) = setting.value.split_once('\n').unwrap_or((&setting.value, ""));
        let space = if value.is_empty() { "" } else { " " };
        lines.push((format!("{indent}{name}:{space}{value}"), Some(&setting.origin)));
        lines.extend(below.lines().map(|line| (format!("{indent}{line}"), None)));
        open = path;
    }
    let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0).min(56);
    let mut out = String::new();
    for (line, origin) in lines {
        match origin {
            Some(origin) => out.push_str(&format!("{line:width$}  # {origin}\n")),
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

//! Formats values as YAML on one line.

use std::fmt::Write as _;

use serde_json::Value;

use super::variables;
use countersign_domain::changes::visible::chars_with_hidden;

/// Formats a text as a YAML scalar: plain if that is safe, otherwise in double quotes as JSON, with hidden characters escaped.
pub(super) fn yaml_text(text: &str) -> String {
    let plain = !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:@=".contains(c))
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && !text.ends_with(':')
        && !matches!(text.to_ascii_lowercase().as_str(), "null" | "true" | "false" | "yes" | "no" | "on" | "off");
    if plain {
        return text.to_owned();
    }
    let json = Value::from(text).to_string();
    let mut out = String::with_capacity(json.len());
    for (c, is_hidden) in chars_with_hidden(&json) {
        if is_hidden {
            let _ = write!(out, "\\U{:08X}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Formats a text as YAML if it names variables only, otherwise a placeholder.
pub(super) fn yaml_secret(text: &str) -> String {
    yaml_text(if variables::is_safe_to_show(text) { text } else { "[secret]" })
}

pub(super) fn yaml_list(items: &[String]) -> String {
    yaml_items(items.iter().map(|item| yaml_text(item)))
}

/// Formats a list on one line from its formatted items.
pub(super) fn yaml_items(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

/// Formats a map on one line from its keys and formatted values.
pub(super) fn yaml_map<'a>(entries: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let entries: Vec<String> = entries.into_iter().map(|(key, value)| format!("{}: {value}", yaml_text(key))).collect();
    if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
}

/// Formats a value on one line, and its texts with `format_text`.
pub(super) fn yaml_value(value: &Value, format_text: &dyn Fn(&str) -> String) -> String {
    match value {
        // A whole number keeps its point, so that it is read as the same type again.
        Value::Number(number) if number.is_f64() => format!("{:?}", number.as_f64().unwrap_or_default()),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format_text(text),
        Value::Array(items) => yaml_items(items.iter().map(|item| yaml_value(item, format_text))),
        Value::Object(entries) => {
            yaml_map(entries.iter().map(|(key, value)| (key.as_str(), yaml_value(value, format_text))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;
    use countersign_domain::changes::visible::{HIDDEN_RANGES, has_hidden};
    use serde_json::json;

    #[test]
    fn every_text_is_visible_and_read_back() {
        let hidden = HIDDEN_RANGES.iter().flat_map(|range| [*range.start(), *range.end()]);
        let texts = ('\0'..='\u{17f}')
            .chain(hidden)
            .flat_map(|c| [c.to_string(), format!("a{c}"), format!(" {c}\\{c}\"#{c}: ")]);
        for text in texts.chain(["1\u{fe0f}\u{20e3}", "\u{1f469}\u{200d}\u{1f4bb}", "true", "~"].map(str::to_owned)) {
            let entry = yaml_map([(text.as_str(), "1".to_owned())]);
            let yaml = yaml_items([yaml_text(&text), entry].into_iter());
            assert_eq!(tree::parse(&yaml).unwrap().node.to_json(), json!([text, { text.clone(): 1 }]), "{yaml}");
            assert!(!has_hidden(&yaml), "{yaml}");
        }
    }

    #[test]
    fn number_keeps_its_type() {
        for number in [0.5, 3.0, -0.0, 1e300, 1e-7].map(Value::from).into_iter().chain([json!(3)]) {
            let yaml = yaml_value(&number, &yaml_text);
            assert_eq!(tree::parse(&yaml).unwrap().node.to_json().to_string(), number.to_string());
        }
        let shown = [1e16, 0.000_05, 0.5].map(|number| yaml_value(&number.into(), &yaml_text));
        assert_eq!(shown, ["1e16", "5e-5", "0.5"]);
    }
}

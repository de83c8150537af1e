//! What a reviewer sees of a call to an upstream's tool: the tool, what it says of itself, and each argument.

use serde_json::{Value, value::RawValue};

use crate::{
    changes::{Operation, Preview, PreviewKind, PreviewNote, Target, diff::DiffBuilder},
    protocol::{McpError, arguments::canonical_hash, edit},
    providers::ToolDef,
};

/// Nobody but the upstream knows what the call would do, so its arguments stand for it.
///
/// # Errors
/// None: a call that cannot run shows when it runs.
pub fn of(upstream: &str, own: &str, def: &ToolDef, arguments: &RawValue) -> Result<Preview, McpError> {
    let mut diff = DiffBuilder::new();
    for edit::Member { key, value, .. } in edit::members(arguments.get()) {
        // As it stands in the text: what is approved is these bytes.
        let shown = edit::string(value).map_or_else(|| readable(value), |text| text.into_owned());
        let title = def.input_schema.pointer("/properties").and_then(|p| p.get(&*key)).and_then(|p| p.get("title"));
        diff.add(&key, title.and_then(Value::as_str).unwrap_or(&key), None, Some(&shown));
    }
    if !def.description.is_empty() {
        diff.add("$description", "What the tool says of itself", None, Some(&def.description));
    }
    Ok(Preview {
        note: PreviewNote { kind: PreviewKind::Arguments, failed: None },
        operation: Operation::Update,
        target: Target {
            entity_type: "tool".into(),
            id: None,
            label: format!("{own} on {upstream}"),
            lock_key: upstream.to_owned(),
        },
        summary: format!("Call {own} on {upstream}"),
        diff: diff.finish(),
        fingerprint: fingerprint(def),
    })
}

/// A definition that changes makes what was proposed against it stale.
fn fingerprint(def: &ToolDef) -> String {
    let value = def.raw.as_ref().and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    canonical_hash(&value.unwrap_or_default())
}

/// Nested values over several lines, unless that would alter a number.
fn readable(value: &str) -> String {
    if !value.starts_with(['{', '[']) || value.len() < 80 {
        return value.to_owned();
    }
    let Ok(parsed) = serde_json::from_str::<Value>(value) else { return value.to_owned() };
    let compact = serde_json::to_string(&parsed).unwrap_or_default();
    // The same text but for white space between tokens: nothing was lost on the way.
    if strip(&compact) == strip(value) {
        serde_json::to_string_pretty(&parsed).unwrap_or(compact)
    } else {
        value.to_owned()
    }
}

fn strip(text: &str) -> String {
    text.split_ascii_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn def() -> ToolDef {
        ToolDef {
            name: "fs__write".into(),
            title: "Write".into(),
            description: "Writes a file.".into(),
            input_schema: serde_json::json!({"properties": {"path": {"title": "Path"}}}),
            output_schema: None,
            annotations: crate::providers::ToolAnnotations::default(),
            self_service: false,
            long_running: true,
            raw: Some(std::sync::Arc::from(RawValue::from_string(r#"{"name":"fs__write"}"#.into()).unwrap())),
        }
    }

    #[test]
    fn every_argument_is_shown_as_it_was_written() {
        let arguments = r#"{"path":"a\nb","n":12345678901234567890123,"list":[1, 2]}"#;
        let arguments = RawValue::from_string(arguments.into()).unwrap();
        let preview = of("fs", "write", &def(), &arguments).unwrap();
        let fields: Vec<_> =
            preview.diff.fields.iter().map(|f| (f.label.as_str(), f.after.as_deref().unwrap_or_default())).collect();
        assert_eq!(
            fields,
            [
                ("Path", "a\nb"),
                ("n", "12345678901234567890123"),
                ("list", "[1, 2]"),
                ("What the tool says of itself", "Writes a file."),
            ]
        );
        assert_eq!((preview.summary.as_str(), preview.target.lock_key.as_str()), ("Call write on fs", "fs"));
    }

    #[test]
    fn another_definition_is_another_fingerprint() {
        let arguments = RawValue::from_string("{}".into()).unwrap();
        let one = of("fs", "write", &def(), &arguments).unwrap().fingerprint;
        let mut other = def();
        other.raw = Some(std::sync::Arc::from(RawValue::from_string(r#"{"name":"fs__write","x":1}"#.into()).unwrap()));
        assert_ne!(one, of("fs", "write", &other, &arguments).unwrap().fingerprint);
    }

    #[test]
    fn long_values_are_laid_out_only_where_nothing_changes() {
        let long = format!(r#"{{"text":"{}","n":1}}"#, "x".repeat(80));
        assert!(readable(&long).contains("\n  \"n\": 1"));
        let exact = format!(r#"{{"text":"{}","n":12345678901234567890123}}"#, "x".repeat(80));
        assert_eq!(readable(&exact), exact);
    }
}

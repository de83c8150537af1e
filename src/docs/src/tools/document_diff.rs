//! Compares the file of a document with the text that replaces it.

use std::{collections::HashSet, iter};

use serde_json::{Map, Value};

use super::plan::MAX_LABEL_CHARS;
use crate::text::front_matter;
use countersign_domain::changes::{FieldFormat, diff::DiffBuilder};
use countersign_provider::text::one_line;

/// Compares a file, which may not be UTF-8, with the text that replaces it and the front matter of that text.
pub(super) fn compare_documents(
    before: Option<Vec<u8>>,
    after: &str,
    fields_after: &Map<String, Value>,
) -> DiffBuilder {
    let mut diff = DiffBuilder::new();
    // The existing file may not be UTF-8; a reviewer who has seen that may still replace it.
    let before = before.map(|bytes| {
        String::from_utf8(bytes).unwrap_or_else(|error| {
            diff.add("encoding", "Encoding", Some("not UTF-8"), Some("UTF-8"));
            escape_invalid_bytes(error.as_bytes(), after)
        })
    });
    // The file comes first, so that a front matter of many fields does not push it out of the diff.
    let preceding_fields = diff.len();
    diff.add("file", "File", before.as_deref(), Some(after));
    diff.set_format_after(preceding_fields, FieldFormat::Markdown);
    let fields_before = before.as_deref().map(front_matter::parse_fields).and_then(Result::ok).unwrap_or_default();
    compare_fields(&mut diff, &fields_before, fields_after);
    diff
}

/// Returns the text with an escape such as `\xff` for each byte that is not UTF-8. The new text has no such escape, because
/// another character than `\` begins the escapes if it would. So each line with an escape differs from all new lines.
fn escape_invalid_bytes(bytes: &[u8], new_text: &str) -> String {
    let used: HashSet<char> = new_text.split('x').filter_map(|part| part.chars().next_back()).collect();
    let mark = iter::once('\\').chain('¦'..=char::MAX).find(|mark| !used.contains(mark)).unwrap_or('\\');
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| format!("{mark}x{byte:02x}")));
    }
    text
}

/// Compares the front matter field by field.
fn compare_fields(diff: &mut DiffBuilder, before: &Map<String, Value>, after: &Map<String, Value>) {
    let field_text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    };
    let removed_keys = before.keys().filter(|key| !after.contains_key(*key));
    for key in after.keys().chain(removed_keys) {
        let (before, after) = (before.get(key).map(field_text), after.get(key).map(field_text));
        let key = one_line(key, MAX_LABEL_CHARS);
        let (field, label) = (format!("front_matter.{key}"), format!("Front matter: {key}"));
        diff.add(&field, &label, before.as_deref(), after.as_deref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::LineOp;

    #[test]
    fn file_is_shown_before_any_number_of_front_matter_fields() {
        let fields: Map<String, Value> = iter::once("File".to_owned())
            .chain((0..300).map(|n| format!("key{n}")))
            .map(|key| (key, Value::Null))
            .collect();
        let diff = compare_documents(None, "# New\n", &fields).finish();
        assert!(diff.truncated);
        let labels: Vec<&str> = diff.fields.iter().take(2).map(|field| field.label.as_str()).collect();
        assert_eq!(labels, ["File", "Front matter: File"]);
    }

    #[test]
    fn line_with_invalid_bytes_differs_from_every_new_line() {
        for (new_text, shown) in [
            ("cafe\n", "caf\\xe9\n"),
            ("caf\\xe9\n", "caf¦xe9\n"),
            ("caf¦xe9\n", "caf\\xe9\n"),
            ("caf\\xe9 ¦x\n", "caf§xe9\n"),
        ] {
            let diff = compare_documents(Some(b"caf\xe9\n".to_vec()), new_text, &Map::new()).finish();
            let file = diff.fields.iter().find(|field| field.field == "file").unwrap();
            assert_eq!(file.before.as_deref(), Some(shown), "{new_text}");
            let ops: Vec<LineOp> = file.lines.iter().map(|line| line.op).collect();
            assert_eq!(ops, [LineOp::Delete, LineOp::Insert], "{new_text}");
        }
    }
}

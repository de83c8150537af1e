//! Formats the arguments of a change as lines for a terminal. An argument that the diff shows in full is named and not
//! repeated, and texts of several lines keep their lines. The lines are not escaped: the caller makes hidden characters
//! visible.

use std::borrow::Cow;

use super::{forms::is_shown_in_full, rows::RowTable};
use crate::output::{format_tool, indented};
use countersign_domain::{
    changes::{Change, Diff, FieldDiff, FieldFormat, LineOp, PreviewKind, diff::text_lines, image::ImageFacts},
    text::plural,
};
use countersign_protocol::json;

/// The arguments of a change as lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ArgumentLines {
    pub lines: Vec<String>,
    /// Names of the arguments that the diff shows.
    pub shown_in_diff: Vec<String>,
}

impl ArgumentLines {
    /// Formats the arguments of a change. Without a preview, all arguments are included.
    pub fn for_change(change: &Change) -> Self {
        let diff = Some(&change.diff).filter(|diff| !shows_arguments_only(change) && !diff.truncated);
        Self::with_formats(change.arguments.get(), diff, Some(&change.diff))
    }

    /// Formats arguments without those that the diff, if there is one, shows.
    pub fn new(raw: &str, diff: Option<&Diff>) -> Self {
        Self::with_formats(raw, diff, None)
    }

    /// Formats arguments like [`ArgumentLines::new`], each in the format of the field of `formats` with its name.
    fn with_formats(raw: &str, diff: Option<&Diff>, formats: Option<&Diff>) -> Self {
        let mut out = Self::default();
        let mut recipients = Vec::new();
        for json::Member { key, value, .. } in json::members(raw) {
            let text = json::string(value);
            if let (Some(text), Some(diff)) = (&text, diff)
                && diff.fields.iter().any(|field| field_shows(field, text))
            {
                out.shown_in_diff.push(key.into_owned());
                continue;
            }
            let field = formats.and_then(|diff| diff.fields.iter().find(|field| field.field == key));
            let table = field.filter(|field| field.format == FieldFormat::Rows).and_then(|_| {
                let rows = text.as_deref().unwrap_or(value);
                RowTable::compare(None, Some(rows)).filter(|table| table.uncompared_rows == 0)
            });
            let name = display_name(&key);
            if field.is_some_and(|field| field.format == FieldFormat::Recipients) {
                recipients.extend(argument_lines(&name, text.as_deref(), value));
            } else if let Some(image) = text.as_deref().and_then(ImageFacts::from_text) {
                out.lines.push(format!("{name}: {image}"));
            } else if let Some(table) = table {
                out.lines.push(format!("{name}:"));
                out.lines.extend(table.lines().iter().map(|line| format!("  | {}", line.text)));
            } else {
                out.lines.extend(argument_lines(&name, text.as_deref(), value));
            }
        }
        out.lines.splice(..0, recipients);
        if out.lines.is_empty() && out.shown_in_diff.is_empty() {
            out.lines.push("(none)".to_owned());
        }
        out
    }

    /// Returns a note with the names of the arguments that the diff shows.
    pub fn diff_note(&self) -> Option<String> {
        (!self.shown_in_diff.is_empty()).then(|| format!("{}: as the diff shows", self.shown_in_diff.join(", ")))
    }
}

/// Returns `true` if the change has no preview, so that its arguments stand for its effect.
pub fn shows_arguments_only(change: &Change) -> bool {
    change.preview.kind == PreviewKind::Arguments
}

/// Returns further facts about a call, such as the tool's description, as labels and texts.
pub fn tool_notes(change: &Change) -> Vec<(&str, String)> {
    let fields = change.diff.fields.iter().filter(|field| field.field.starts_with('$'));
    let text = |field: &FieldDiff| match &field.after {
        Some(text) if field.lines.is_empty() => text.clone(),
        _ => field.lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n"),
    };
    fields.map(|field| (field.label.as_str(), text(field))).collect()
}

/// Returns the target of the call: the tool, and the upstream behind its server's name.
pub fn call_route(change: &Change) -> String {
    let served_by = &change.served_by;
    let upstream = if served_by.fingerprint.is_empty() { String::new() } else { format!(", {}", served_by.label) };
    format_tool(&change.provider, &change.preview.subject(&change.tool)) + &upstream
}

/// Returns the message that an approved change still needs more approvals.
pub fn missing_approvals_message(change: &Change) -> String {
    let quorum = usize::try_from(change.terms.quorum.max(1)).unwrap_or(usize::MAX);
    let missing = quorum.saturating_sub(change.approvals());
    format!("Approved; it waits for {}.", plural(missing, "more approval"))
}

/// Returns the diff of a call without the fields that only repeat arguments.
pub fn without_arguments(diff: &Diff) -> Diff {
    let fields = diff.fields.iter().filter(|field| field.field.starts_with('$')).cloned().collect();
    // The arguments are shown in full beside the diff.
    Diff { fields, truncated: false }
}

/// Formats one argument: a text of several lines below its name, everything else after it.
fn argument_lines(name: &str, text: Option<&str>, value: &str) -> Vec<String> {
    match text {
        Some(text) if text.contains('\n') => {
            let mut lines = vec![format!("{name}:")];
            lines.extend(text_lines(text).map(|line| format!("  | {line}")));
            if !text.ends_with('\n') {
                lines.push("  \\ no line break at the end".to_owned());
            }
            lines
        }
        _ => format!("{name}: {}", indented(value)).split('\n').map(str::to_owned).collect(),
    }
}

/// Returns the name, in quotes unless it is plain, so that it cannot imitate other text.
fn display_name(key: &str) -> Cow<'_, str> {
    let is_plain =
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$'));
    if is_plain { Cow::Borrowed(key) } else { Cow::Owned(serde_json::Value::from(key).to_string()) }
}

/// Returns `true` if the field shows this text, apart from unchanged lines that are folded.
fn field_shows(field: &FieldDiff, text: &str) -> bool {
    if !is_shown_in_full(field) {
        return false;
    }
    if let Some(after) = &field.after {
        return after == text;
    }
    // The lines do not tell whether the last one has a line break.
    let mut rest = text.split('\n');
    for line in &field.lines {
        let matches = match line.op {
            LineOp::Equal | LineOp::Insert => rest.next() == Some(line.text.as_str()),
            LineOp::Skip => match line.text.parse::<usize>() {
                Ok(0) => true,
                Ok(folded) => rest.nth(folded - 1).is_some(),
                Err(_) => false,
            },
            LineOp::Delete => true,
            LineOp::Note => false,
        };
        if !matches {
            return false;
        }
    }
    rest.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::diff::DiffBuilder;

    fn lines_of(raw: &str, diff: &Diff) -> (Vec<String>, Vec<String>) {
        let ArgumentLines { lines, shown_in_diff } = ArgumentLines::new(raw, Some(diff));
        (lines, shown_in_diff)
    }

    #[test]
    fn arguments_shown_in_the_diff_are_not_repeated() {
        let before = (1..=30).map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n");
        let after = before.replace("line 15", "line fifteen");
        let diff = DiffBuilder::new().field("c", "Content", Some(&before), Some(&after)).finish();
        let raw = |content: &str| serde_json::json!({ "path": "/a", "content": content }).to_string();
        let (lines, shown_in_diff) = lines_of(&raw(&after), &diff);
        assert_eq!((lines, shown_in_diff), (vec![r#"path: "/a""#.to_owned()], vec!["content".to_owned()]));
        // A text that differs anywhere from the one in the diff is shown whole.
        for other in [after.replace("fifteen", "16"), format!("{after}\nmore"), before, String::new()] {
            assert!(lines_of(&raw(&other), &diff).1.is_empty(), "{other}");
        }
        let short = DiffBuilder::new().field("t", "Title", Some("old"), Some("new")).finish();
        assert_eq!(
            lines_of(r#"{"title":"new","n":12345678901234567890123,"old":"old"}"#, &short).0,
            ["n: 12345678901234567890123", r#"old: "old""#]
        );
        // A field that has only notes shows no argument.
        let mut notes = DiffBuilder::new();
        notes.add_lines("$read1", "Status", [(LineOp::Note, "clean".into())]);
        assert!(lines_of(r#"{"message":"clean"}"#, &notes.finish()).1.is_empty());
    }

    #[test]
    fn recipients_come_first_and_rows_are_a_table() {
        const PNG: &str =
            "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
        let mut formats = DiffBuilder::new();
        for (name, format) in [("rows", FieldFormat::Rows), ("to", FieldFormat::Recipients)] {
            let fields = formats.len();
            formats.add(name, name, None, Some("x"));
            formats.set_format_after(fields, format);
        }
        let raw = format!(r#"{{"rows":[{{"id":1,"n":"a"}},{{"id":20}}],"to":"a@x","image":"{PNG}","rows":[1]}}"#);
        let expected = [
            r#"to: "a@x""#,
            "rows:",
            "  | id  n",
            "  | 1   a",
            "  | 20  -",
            "image: PNG image, 1 × 1 pixels, 70 bytes",
            "rows: [",
            "  1",
            "]",
        ];
        assert_eq!(ArgumentLines::with_formats(&raw, None, Some(&formats.finish())).lines, expected);
    }

    #[test]
    fn every_argument_is_shown_and_none_imitates_another() {
        let raw = r#"{"a":"x\n  b: 1","b":{"c":[1]},"d\ne":"\"q\"","":null}"#;
        let ArgumentLines { lines, shown_in_diff } = ArgumentLines::new(raw, None);
        let expected = [
            "a:",
            "  | x",
            "  |   b: 1",
            "  \\ no line break at the end",
            "b: {",
            "  \"c\": [",
            "    1",
            "  ]",
            "}",
            r#""d\ne": "\"q\"""#,
            r#""": null"#,
        ];
        assert_eq!((lines, shown_in_diff), (expected.map(str::to_owned).to_vec(), Vec::new()));
        assert_eq!(ArgumentLines::new("{}", None).lines, ["(none)"]);
        assert_eq!(ArgumentLines::new(r#"{"a":"hello\n"}"#, None).lines, ["a:", "  | hello"]);
        assert_eq!(ArgumentLines::new(r#"{"a":"hello\n\n"}"#, None).lines, ["a:", "  | hello", "  | "]);
    }
}

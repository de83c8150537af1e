//! Finds the format of a field's content if no recipe states it: by the name of the file that is written, by the name of
//! an argument, and by the content itself.
//!
//! A format only changes the form in which reviewers see the whole content. It never decides what is shown.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use countersign_domain::changes::{Diff, FieldDiff, FieldFormat, image::ImageFacts};

/// Names of arguments that say to whom something is sent.
const RECIPIENT_ARGUMENTS: [&str; 15] = [
    "recipient",
    "recipients",
    "attendees",
    "invitees",
    "channel",
    "channels",
    "channel_id",
    "channelid",
    "channel_name",
    "to_email",
    "to_emails",
    "to",
    "cc",
    "bcc",
    "reply_to",
];
/// Names of arguments that hold the content of the file which another argument names.
const CONTENT_ARGUMENTS: [&str; 9] =
    ["content", "contents", "text", "file_text", "new_content", "new_str", "old_str", "body", "code"];
/// Names of arguments that name a file.
const PATH_ARGUMENTS: [&str; 6] = ["path", "file", "filename", "file_name", "filepath", "file_path"];
/// Names of a recipe's fields that hold Markdown in most servers. Reviewers see its source first in any case.
const MARKDOWN_FIELDS: [&str; 5] = ["body", "comment", "content", "description", "reply"];
const SQL_ARGUMENTS: [&str; 4] = ["sql", "query", "statement", "statements"];
/// The first words of SQL statements.
const SQL_WORDS: [&str; 16] = [
    "select", "insert", "update", "delete", "with", "create", "alter", "drop", "truncate", "merge", "replace",
    "explain", "grant", "revoke", "begin", "copy",
];
/// The most columns of a table that still fits a screen.
const MAX_COLUMNS: usize = 12;

/// Sets the formats of the arguments of a call.
pub(super) fn set_formats_of_arguments(diff: &mut Diff) {
    let path = path_argument(diff).map(str::to_owned);
    let unformatted = |field: &&mut FieldDiff| field.format.is_text() && !field.field.starts_with('$');
    for field in diff.fields.iter_mut().filter(unformatted) {
        let name = field.field.to_ascii_lowercase();
        let text = field.after.as_deref().unwrap_or_default();
        field.format = if is_recipients(&name, text) {
            FieldFormat::Recipients
        } else if SQL_ARGUMENTS.contains(&name.as_str()) && is_sql(text) {
            FieldFormat::Sql
        } else if matches!(name.as_str(), "patch" | "diff") && is_unified_diff(text) {
            FieldFormat::Diff
        } else {
            format_of_content(text)
        };
        if field.format.is_text()
            && CONTENT_ARGUMENTS.contains(&name.as_str())
            && let Some(path) = path.as_deref()
        {
            set_format_by_path(field, path);
        }
    }
}

/// Sets the formats of a recipe's fields that have none yet. A field with the name of an argument gets the format of the
/// argument. The format of other fields follows from the name of a file or from the content. Only a whole text can be a
/// file; a field of a record cannot.
pub(super) fn set_formats_of_recipe(diff: &mut Diff, arguments: &Diff, target: &str) {
    for field in diff.fields.iter_mut().filter(|field| field.format.is_text()) {
        if let Some(argument) = arguments.fields.iter().find(|argument| argument.field == field.field) {
            field.format = argument.format;
            field.language.clone_from(&argument.language);
        } else if field.field.starts_with("$content") || field.field == "$dryRun" {
            let label = field.label.clone();
            let is_file =
                !field.field.contains('.') && (set_format_by_path(field, &label) || set_format_by_path(field, target));
            if !is_file {
                let text = field.after.as_deref().or(field.before.as_deref());
                field.format = text.map_or(FieldFormat::Text, format_of_content);
                if field.format.is_text() && is_markdown_field(field) {
                    field.format = FieldFormat::Markdown;
                }
            }
        } else if !field.field.starts_with('$') {
            // A part of an argument.
            field.format = field.after.as_deref().map_or(FieldFormat::Text, format_of_content);
        }
    }
}

/// Returns `true` if the name of a record's field, or the label of a whole text, is one of [`MARKDOWN_FIELDS`].
fn is_markdown_field(field: &FieldDiff) -> bool {
    match field.field.rsplit_once('.') {
        Some((_, name)) => MARKDOWN_FIELDS.contains(&name),
        // `Content` is also the label of files of any kind.
        None => field.label != "Content" && MARKDOWN_FIELDS.contains(&field.label.to_ascii_lowercase().as_str()),
    }
}

/// Sets the format by the name of a file, and returns `true` if it tells one.
fn set_format_by_path(field: &mut FieldDiff, path: &str) -> bool {
    let Some((format, language)) = FieldFormat::from_path(path.trim()) else { return false };
    field.format = format;
    field.language = language.map(str::to_owned);
    true
}

/// Returns the only argument that names a file.
fn path_argument(diff: &Diff) -> Option<&str> {
    let is_path = |field: &&FieldDiff| PATH_ARGUMENTS.contains(&field.field.to_ascii_lowercase().as_str());
    let mut paths = diff.fields.iter().filter(is_path).filter_map(|field| field.after.as_deref());
    let path = paths.next()?;
    paths.next().is_none().then_some(path)
}

fn is_recipients(name: &str, text: &str) -> bool {
    if !RECIPIENT_ARGUMENTS.contains(&name) {
        return false;
    }
    let names: Vec<String> = if text.starts_with('[') {
        serde_json::from_str(text).unwrap_or_default()
    } else if text.contains(['{', '\n']) {
        Vec::new()
    } else {
        text.split([',', ';']).map(|name| name.trim().to_owned()).collect()
    };
    // These also name other things, such as the destination of a move.
    let is_ambiguous = matches!(name, "to" | "cc" | "bcc" | "reply_to");
    let is_address = |name: &String| name.contains('@') || name.starts_with(['#', '+']);
    !names.is_empty() && (!is_ambiguous || names.iter().all(is_address))
}

fn is_sql(text: &str) -> bool {
    let word: String = text.trim_start().chars().take_while(char::is_ascii_alphabetic).collect();
    SQL_WORDS.contains(&word.to_ascii_lowercase().as_str())
}

fn is_unified_diff(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("@@ ") || line.starts_with("--- ") || line.starts_with("diff --git "))
}

/// Returns the format that the content itself shows.
pub(super) fn format_of_content(text: &str) -> FieldFormat {
    // A value that was cut ends with an ellipsis.
    if ImageFacts::from_text(text.trim_end_matches('…')).is_some() {
        return FieldFormat::Image;
    }
    if !text.starts_with(['{', '[']) {
        return FieldFormat::Text;
    }
    match text.parse() {
        Ok(Value::Array(items)) if is_table(&items) => FieldFormat::Rows,
        Ok(_) => FieldFormat::Json,
        Err(_) => FieldFormat::Text,
    }
}

/// Returns `true` for objects whose values fit in the cells of a table.
fn is_table(items: &[Value]) -> bool {
    let objects: Vec<&Map<String, Value>> = items.iter().filter_map(Value::as_object).collect();
    let columns: BTreeSet<&String> = objects.iter().flat_map(|object| object.keys()).collect();
    let is_scalar = |value: &Value| !value.is_object() && !value.is_array();
    !items.is_empty()
        && objects.len() == items.len()
        && (1..=MAX_COLUMNS).contains(&columns.len())
        && objects.iter().all(|object| object.values().all(is_scalar))
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::diff::DiffBuilder;

    fn formats(arguments: &[(&str, &str)]) -> Vec<FieldFormat> {
        let mut builder = DiffBuilder::new();
        for (name, text) in arguments {
            builder.add(name, name, None, Some(text));
        }
        let mut diff = builder.finish();
        set_formats_of_arguments(&mut diff);
        diff.fields.iter().map(|field| field.format).collect()
    }

    #[test]
    fn format_of_an_argument_follows_from_its_name_and_content() {
        use FieldFormat::{Code, Diff, Image, Json, Recipients, Rows, Sql, Text};
        let cases = [
            ("to", "a@example.com, b@example.com", Recipients),
            ("to", r##"["#general","@bob"]"##, Recipients),
            ("to", "[\n  \"a@example.com\",\n  \"b@example.com\"\n]", Recipients),
            ("to", "/srv/archive", Text),
            ("channel_id", "C0123", Recipients),
            ("channel", "{\"a\":1}", Json),
            ("query", "UPDATE t SET a = 1", Sql),
            ("query", "how to update", Text),
            ("patch", "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y", Diff),
            ("rows", r#"[{"id":1,"name":"a"},{"id":2}]"#, Rows),
            ("rows", r#"[{"id":{}}]"#, Json),
            ("rows", "[]", Json),
            ("rows", "[{]", Text),
            (
                "image",
                "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
                Image,
            ),
        ];
        for (name, text, format) in cases {
            assert_eq!(formats(&[(name, text)]), [format], "{name}: {text}");
        }
        assert_eq!(formats(&[("path", "a.rs"), ("content", "fn main() {}")]), [Text, Code]);
        assert_eq!(formats(&[("path", "a.rs"), ("file", "b.rs"), ("content", "x")]), [Text, Text, Text]);
    }

    #[test]
    fn format_of_a_recipe_follows_from_its_label_or_target() {
        let mut builder = DiffBuilder::new();
        builder.add("$content", "README.md", Some("# a"), Some("# b"));
        builder.add("$content2", "src/main.rs", None, Some("fn main() {}"));
        builder.add("$content.sha", "sha", Some("1"), Some("2"));
        builder.add("$content.body", "body", None, Some("# a"));
        builder.add("$content3", "Content", None, Some("# a"));
        builder.add("$content4", "Comment", None, Some("# a"));
        builder.add("$read1", "notes.md", None, Some("x"));
        builder.add("cc", "cc", None, Some("a@example.com"));
        let mut arguments = DiffBuilder::new();
        arguments.add("cc", "cc", None, Some("a@example.com"));
        arguments.set_format_after(0, FieldFormat::Recipients);
        let mut diff = builder.finish();
        set_formats_of_recipe(&mut diff, &arguments.finish(), "docs/README");
        let formats: Vec<_> = diff.fields.iter().map(|field| (field.format, field.language.as_deref())).collect();
        let expected = [
            (FieldFormat::Markdown, None),
            (FieldFormat::Code, Some("rust")),
            (FieldFormat::Text, None),
            (FieldFormat::Markdown, None),
            (FieldFormat::Text, None),
            (FieldFormat::Markdown, None),
            (FieldFormat::Text, None),
            (FieldFormat::Recipients, None),
        ];
        assert_eq!(formats, expected);
    }
}

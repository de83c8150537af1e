//! The preview that shows only the arguments of a call, with the tool's own description.

use std::borrow::Cow;

use serde_json::{Value, value::RawValue};

use super::formats::set_formats_of_arguments;
use crate::ToolDef;
use countersign_domain::{
    changes::{
        FieldFormat, LineOp, Operation, Preview, PreviewKind, PreviewNote, StateEffect, Target,
        diff::DiffBuilder,
        image::ImageFacts,
        visible::{escape_hidden, is_hidden},
    },
    text::truncate,
};
use countersign_protocol::{arguments::canonical_text_hash, json};

/// Returns a preview that shows the arguments of the call, and nothing of its effect.
pub fn preview_arguments(provider: &str, tool: &str, def: &ToolDef, arguments: &RawValue) -> Preview {
    let mut diff = DiffBuilder::new();
    for json::Member { key, value, .. } in json::members(arguments.get()) {
        let title = def.input_schema.pointer("/properties").and_then(|p| p.get(&*key)).and_then(|p| p.get("title"));
        add_argument(&mut diff, &key, title.and_then(Value::as_str).unwrap_or(&key), value);
    }
    if !def.description.is_empty() {
        diff.add("$description", "Tool description", None, Some(&def.description));
    }
    let mut diff = diff.finish();
    set_formats_of_arguments(&mut diff);
    Preview {
        note: PreviewNote { kind: PreviewKind::Arguments, ..PreviewNote::default() },
        operation: Operation::Call,
        target: Target {
            entity_type: "tool".into(),
            id: None,
            label: format!("{provider} / {tool}"),
            lock_key: provider.to_owned(),
        },
        summary: summary(provider, tool, def, arguments),
        diff,
        fingerprint: definition_fingerprint(def),
        state_effect: StateEffect::Dependent,
    }
}

/// Adds a field for an argument. `value` is its JSON text.
pub(super) fn add_argument(diff: &mut DiffBuilder, name: &str, label: &str, value: &str) {
    let field = field_name(name);
    // Shown verbatim, because exactly these bytes are approved.
    let value_text = json::string(value).map_or_else(|| pretty_if_lossless(value), |text| text.into_owned());
    if let Some(image) = ImageFacts::from_text(&value_text) {
        // The bytes are part of the arguments and need not be repeated.
        let fields = diff.len();
        diff.add_lines(&field, label, [(LineOp::Note, image.to_string().into())]);
        diff.set_format_after(fields, FieldFormat::Image);
    } else {
        diff.add(&field, label, None, Some(&value_text));
    }
}

/// Returns the name of an argument's field. Names that begin with `$` belong to fields that are no arguments.
pub(super) fn field_name(argument: &str) -> Cow<'_, str> {
    if argument.starts_with('$') { format!("arguments.{argument}").into() } else { argument.into() }
}

/// Names of arguments that describe a call best, in order of preference.
const TITLE_ARGUMENTS: [&str; 19] = [
    "title",
    "subject",
    "summary",
    "path",
    "file",
    "filename",
    "message",
    "name",
    "query",
    "sql",
    "statement",
    "command",
    "url",
    "uri",
    "key",
    "branch",
    "channel",
    "number",
    "id",
];
/// Names of arguments used if there is none of [`TITLE_ARGUMENTS`].
const FALLBACK_TITLE_ARGUMENTS: [&str; 5] = ["to", "text", "content", "body", "description"];
/// Maximum characters of an argument in a summary.
const MAX_TITLE_CHARS: usize = 80;
/// Maximum bytes of an argument used in a summary. Larger ones are not names.
const MAX_TITLE_SOURCE_BYTES: usize = 64 << 10;

/// Names of further arguments that tell where or to whom something is written, in order of preference.
const CONTEXT_ARGUMENTS: [&str; 18] = [
    "to",
    "recipients",
    "channel",
    "channel_id",
    "owner",
    "repo",
    "repository",
    "project",
    "project_id",
    "workspace",
    "database",
    "collection",
    "table",
    "namespace",
    "branch",
    "issue_number",
    "text",
    "body",
];
/// Maximum number of further arguments in a summary.
const MAX_CONTEXT: usize = 3;
/// Maximum characters of each of them.
const MAX_CONTEXT_CHARS: usize = 40;

/// Returns `provider / tool: argument (name further argument, …)` with the most descriptive arguments.
fn summary(provider: &str, tool: &str, def: &ToolDef, arguments: &RawValue) -> String {
    let all: Vec<json::Member<'_>> = json::members(arguments.get()).collect();
    let members: Vec<(String, String)> =
        all.iter().filter_map(|member| Some((member.key.clone().into_owned(), title_text(member.value)?))).collect();
    let Some((title_key, title)) = title_argument(def, &members) else { return format!("{provider} / {tool}") };
    let context = CONTEXT_ARGUMENTS.iter().filter(|name| !title_key.eq_ignore_ascii_case(name)).filter_map(|name| {
        let mut matches = all.iter().filter(|member| member.key.eq_ignore_ascii_case(name));
        let value = matches.next().filter(|_| matches.next().is_none())?.value;
        let text = list_text(value).or_else(|| title_text(value))?;
        let cut = cut_between_words(&text, MAX_CONTEXT_CHARS);
        Some(if cut.len() < text.len() { format!("{name} {cut} …") } else { format!("{name} {cut}") })
    });
    let context: Vec<String> = context.take(MAX_CONTEXT).collect();
    if context.is_empty() {
        return format!("{provider} / {tool}: {title}");
    }
    format!("{provider} / {tool}: {title} ({})", context.join(", "))
}

/// Chooses an argument by its name (`file_path` and `filePath` count as `path`), or else the first required text.
fn title_argument<'a>(def: &ToolDef, members: &'a [(String, String)]) -> Option<&'a (String, String)> {
    let exact = |names: &[&str]| {
        names.iter().find_map(|name| single(members.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name))))
    };
    let ending =
        || TITLE_ARGUMENTS.iter().find_map(|name| single(members.iter().filter(|(key, _)| ends_with_word(key, name))));
    let by_name = exact(&TITLE_ARGUMENTS).or_else(ending).or_else(|| exact(&FALLBACK_TITLE_ARGUMENTS));
    let required = def.input_schema.get("required").and_then(Value::as_array).into_iter().flatten();
    by_name.or_else(|| {
        required.filter_map(Value::as_str).find_map(|name| single(members.iter().filter(|(key, _)| key == name)))
    })
}

/// Returns the argument if exactly one matches.
fn single<'a>(mut found: impl Iterator<Item = &'a (String, String)>) -> Option<&'a (String, String)> {
    let argument = found.next()?;
    found.next().is_none().then_some(argument)
}

/// Returns `true` if the key ends with the word as a separate part, in snake, kebab or camel case.
fn ends_with_word(key: &str, word: &str) -> bool {
    let Some((before, end)) = key.len().checked_sub(word.len()).and_then(|offset| key.split_at_checked(offset)) else {
        return false;
    };
    let camel = end.starts_with(|c: char| c.is_ascii_uppercase());
    !before.is_empty() && end.eq_ignore_ascii_case(word) && (camel || before.ends_with(['_', '-', '.']))
}

/// Returns the first visible line of a text or number, escaped and truncated.
fn title_text(value: &str) -> Option<String> {
    if value.len() > MAX_TITLE_SOURCE_BYTES {
        return None;
    }
    let whole = match json::string(value) {
        Some(text) => text.into_owned(),
        None if value.starts_with(|c: char| c.is_ascii_digit() || c == '-') => value.to_owned(),
        None => return None,
    };
    let is_visible = |line: &&str| line.chars().any(|c| !c.is_whitespace() && !is_hidden(c));
    let line = whole.lines().map(str::trim).find(is_visible)?;
    let escaped = escape_hidden(line);
    let cut = cut_between_words(&escaped, MAX_TITLE_CHARS);
    let is_cut = cut.len() < escaped.len() || whole.trim() != line;
    Some(if is_cut { format!("{cut} …") } else { cut.to_owned() })
}

/// Returns the first words of a text, of at most so many characters. Text without spaces is cut anywhere.
fn cut_between_words(text: &str, max_chars: usize) -> &str {
    let cut = truncate(text, max_chars);
    let is_in_word = text[cut.len()..].starts_with(|next: char| !next.is_whitespace());
    match cut.rsplit_once(char::is_whitespace).filter(|(words, rest)| is_in_word && words.len() > rest.len()) {
        Some((words, _)) => words.trim_end(),
        None => cut,
    }
}

/// Returns the texts of a list, escaped and truncated like one text.
fn list_text(value: &str) -> Option<String> {
    if value.len() > MAX_TITLE_SOURCE_BYTES || !value.starts_with('[') {
        return None;
    }
    let list: Vec<String> = serde_json::from_str(value).ok()?;
    title_text(&json::quoted(&list.join(", ")))
}

/// Hashes the definition, so that a changed definition makes its proposals stale.
fn definition_fingerprint(def: &ToolDef) -> String {
    let value = def.raw.as_ref().and_then(|raw| raw.get().parse::<Value>().ok());
    canonical_text_hash(&value.unwrap_or_default().to_string())
}

/// Pretty-prints a nested value, unless parsing would alter a number.
fn pretty_if_lossless(value: &str) -> String {
    if !value.starts_with(['{', '[']) || value.len() < 80 {
        return value.to_owned();
    }
    let Ok(parsed) = value.parse::<Value>() else { return value.to_owned() };
    let compact = serde_json::to_string(&parsed).unwrap_or_default();
    // Equal apart from whitespace between tokens, so parsing lost nothing.
    if without_whitespace(&compact) == without_whitespace(value) {
        serde_json::to_string_pretty(&parsed).unwrap_or(compact)
    } else {
        value.to_owned()
    }
}

fn without_whitespace(text: &str) -> String {
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
            long_running: true,
            raw: Some(std::sync::Arc::from(RawValue::from_string(r#"{"name":"fs__write"}"#.into()).unwrap())),
            ..ToolDef::default()
        }
    }

    #[test]
    fn preview_shows_arguments_verbatim() {
        let arguments = r#"{"path":"a\nb","n":12345678901234567890123,"list":[1, 2]}"#;
        let arguments = RawValue::from_string(arguments.into()).unwrap();
        let preview = preview_arguments("fs", "write", &def(), &arguments);
        let fields: Vec<_> =
            preview.diff.fields.iter().map(|f| (f.label.as_str(), f.after.as_deref().unwrap_or_default())).collect();
        assert_eq!(
            fields,
            [
                ("Path", "a\nb"),
                ("n", "12345678901234567890123"),
                ("list", "[1, 2]"),
                ("Tool description", "Writes a file."),
            ]
        );
        assert_eq!((preview.summary.as_str(), preview.target.lock_key.as_str()), (r"fs / write: a …", "fs"));
        assert_eq!((preview.operation, preview.target.label.as_str()), (Operation::Call, "fs / write"));
    }

    #[test]
    fn argument_cannot_take_the_place_of_another_field() {
        let arguments = RawValue::from_string(r#"{"$description":"Reads a file.","$content":"x"}"#.into()).unwrap();
        let preview = preview_arguments("fs", "write", &def(), &arguments);
        let fields: Vec<_> = preview.diff.fields.iter().map(|f| (f.field.as_str(), f.label.as_str())).collect();
        let expected = [
            ("arguments.$description", "$description"),
            ("arguments.$content", "$content"),
            ("$description", "Tool description"),
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn summary_names_most_descriptive_argument() {
        let title = |required: &str, arguments: &str| {
            let schema = format!(r#"{{"type":"object","required":{required}}}"#);
            let def = ToolDef { input_schema: serde_json::from_str(&schema).unwrap(), ..def() };
            preview_arguments("s", "t", &def, &RawValue::from_string(arguments.into()).unwrap()).summary
        };
        assert_eq!(title("[]", r#"{"note":"x","title":"Fix the login"}"#), "s / t: Fix the login");
        assert_eq!(
            title("[]", r#"{"owner":"o","repo":"r","issue_number":7,"body":"long"}"#),
            "s / t: 7 (owner o, repo r, body long)"
        );
        let message = r#"{"channel":"C1","text":"Hello everybody, this is longer than what fits","to":["a@x","b@x"]}"#;
        assert_eq!(title("[]", message), "s / t: C1 (to a@x, b@x, text Hello everybody, this is longer than …)");
        let long = format!(r#"{{"title":"Fix the {} of 2026"}}"#, "login ".repeat(11).trim_end());
        assert_eq!(title("[]", &long), format!("s / t: Fix the {} of …", "login ".repeat(11).trim_end()));
        assert_eq!(title("[]", r#"{"encoding":"utf8","file_path":"/srv/a"}"#), "s / t: /srv/a");
        assert_eq!(title("[]", r#"{"query":"  INSERT INTO t\n VALUES (1)"}"#), "s / t: INSERT INTO t …");
        assert_eq!(title(r#"["what"]"#, r#"{"verbose":"no","what":"this"}"#), "s / t: this");
        assert_eq!(title("[]", r#"{"verbose":"no"}"#), "s / t", "no argument is chosen without a known name or schema");
        assert_eq!(title("[]", r#"{"title":" \n\u200b"}"#), "s / t");
        assert_eq!(title("[]", r#"{"name":["a"],"title":{},"id":3}"#), "s / t: 3");
        // No argument can hide text in a summary, forge it or flood it.
        assert_eq!(title("[]", r#"{"title":"a\u202eb\u0007c"}"#), r"s / t: a\u{202e}b\u{7}c");
        let long = format!(r#"{{"title":"{}"}}"#, "é".repeat(5000));
        assert_eq!(title("[]", &long).chars().count(), "s / t: ".len() + MAX_TITLE_CHARS + 2);
        // A duplicate key is ambiguous, so neither value is shown (the call is refused anyway).
        assert_eq!(title("[]", r#"{"title":"a","title":"b"}"#), "s / t");
    }

    #[test]
    fn fingerprint_changes_with_tool_definition() {
        let arguments = RawValue::from_string("{}".into()).unwrap();
        let one = preview_arguments("fs", "write", &def(), &arguments).fingerprint;
        let mut other = def();
        other.raw = Some(std::sync::Arc::from(RawValue::from_string(r#"{"name":"fs__write","x":1}"#.into()).unwrap()));
        assert_ne!(one, preview_arguments("fs", "write", &other, &arguments).fingerprint);
    }

    #[test]
    fn long_values_are_pretty_printed_only_if_lossless() {
        let long = format!(r#"{{"text":"{}","n":1}}"#, "x".repeat(80));
        assert!(pretty_if_lossless(&long).contains("\n  \"n\": 1"));
        let exact = format!(r#"{{"text":"{}","n":12345678901234567890123}}"#, "x".repeat(80));
        assert_eq!(pretty_if_lossless(&exact), exact);
    }
}

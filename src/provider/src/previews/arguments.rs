//! What a reviewer sees of a call to an upstream's tool: the tool, what it says of itself, and each argument.

use serde_json::{Value, value::RawValue};

use crate::ToolDef;
use countersign_domain::changes::{
    Operation, Preview, PreviewKind, PreviewNote, Target,
    diff::DiffBuilder,
    visible::{is_hidden, visible},
};
use countersign_protocol::{McpError, arguments::canonical_hash, json};

/// Nobody but the upstream knows what the call would do, so its arguments stand for it.
///
/// # Errors
/// None: a call that cannot run shows when it runs.
pub fn of(upstream: &str, own: &str, def: &ToolDef, arguments: &RawValue) -> Result<Preview, McpError> {
    let mut diff = DiffBuilder::new();
    for json::Member { key, value, .. } in json::members(arguments.get()) {
        // As it stands in the text: what is approved is these bytes.
        let shown = json::string(value).map_or_else(|| readable(value), |text| text.into_owned());
        let title = def.input_schema.pointer("/properties").and_then(|p| p.get(&*key)).and_then(|p| p.get("title"));
        diff.add(&key, title.and_then(Value::as_str).unwrap_or(&key), None, Some(&shown));
    }
    if !def.description.is_empty() {
        diff.add("$description", "Tool description", None, Some(&def.description));
    }
    Ok(Preview {
        note: PreviewNote { kind: PreviewKind::Arguments, ..PreviewNote::default() },
        operation: Operation::Call,
        target: Target {
            entity_type: "tool".into(),
            id: None,
            label: format!("{upstream} / {own}"),
            lock_key: upstream.to_owned(),
        },
        summary: summary(upstream, own, def, arguments),
        diff: diff.finish(),
        fingerprint: fingerprint(def),
    })
}

/// Names of arguments that tell people what a call is about, most telling first.
const NAMES: [&str; 19] = [
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
/// Those that tell it where there is none of the others.
const LONG_NAMES: [&str; 5] = ["to", "text", "content", "body", "description"];
/// Characters of an argument in a title.
const TELLING: usize = 80;
/// Bytes of an argument that may make a title; what is larger is no name of anything.
const MAX_TITLED: usize = 64 << 10;

/// `server / tool: the argument that tells most`.
fn summary(upstream: &str, own: &str, def: &ToolDef, arguments: &RawValue) -> String {
    match telling(def, arguments) {
        Some(argument) => format!("{upstream} / {own}: {argument}"),
        None => format!("{upstream} / {own}"),
    }
}

/// By its name (`file_path` and `filePath` are a `path`), else the first text that the schema requires.
fn telling(def: &ToolDef, arguments: &RawValue) -> Option<String> {
    let members: Vec<(String, String)> = json::members(arguments.get())
        .filter_map(|json::Member { key, value, .. }| Some((key.into_owned(), title_text(value)?)))
        .collect();
    let exact = |names: &[&str]| {
        names.iter().find_map(|name| one(members.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name))))
    };
    let ending = || NAMES.iter().find_map(|name| one(members.iter().filter(|(key, _)| ends_with_word(key, name))));
    let by_name = exact(&NAMES).or_else(ending).or_else(|| exact(&LONG_NAMES));
    let required = def.input_schema.get("required").and_then(Value::as_array).into_iter().flatten();
    by_name.or_else(|| {
        required.filter_map(Value::as_str).find_map(|name| one(members.iter().filter(|(key, _)| key == name)))
    })
}

/// The only one's text.
fn one<'a>(mut found: impl Iterator<Item = &'a (String, String)>) -> Option<String> {
    let (_, text) = found.next()?;
    found.next().is_none().then(|| text.clone())
}

fn ends_with_word(key: &str, word: &str) -> bool {
    let Some((before, end)) = key.len().checked_sub(word.len()).and_then(|at| key.split_at_checked(at)) else {
        return false;
    };
    let camel = end.starts_with(|c: char| c.is_ascii_uppercase());
    !before.is_empty() && end.eq_ignore_ascii_case(word) && (camel || before.ends_with(['_', '-', '.']))
}

/// A text or a number as it may stand in a title: its first line that says something, visible, bounded.
fn title_text(value: &str) -> Option<String> {
    if value.len() > MAX_TITLED {
        return None;
    }
    let whole = match json::string(value) {
        Some(text) => text.into_owned(),
        None if value.starts_with(|c: char| c.is_ascii_digit() || c == '-') => value.to_owned(),
        None => return None,
    };
    let says = |line: &&str| line.chars().any(|c| !c.is_whitespace() && !is_hidden(c));
    let line = whole.lines().map(str::trim).find(says)?;
    let shown = visible(line);
    let cut: String = shown.chars().take(TELLING).collect();
    let more = cut.len() < shown.len() || whole.trim() != line;
    Some(if more { format!("{cut} …") } else { cut })
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
            annotations: countersign_protocol::annotations::ToolAnnotations::default(),
            self_service: false,
            long_running: true,
            reads_when: None,
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
                ("Tool description", "Writes a file."),
            ]
        );
        assert_eq!((preview.summary.as_str(), preview.target.lock_key.as_str()), (r"fs / write: a …", "fs"));
        assert_eq!((preview.operation, preview.target.label.as_str()), (Operation::Call, "fs / write"));
    }

    #[test]
    fn the_title_has_the_argument_that_tells_most() {
        let title = |required: &str, arguments: &str| {
            let schema = format!(r#"{{"type":"object","required":{required}}}"#);
            let def = ToolDef { input_schema: serde_json::from_str(&schema).unwrap(), ..def() };
            of("s", "t", &def, &RawValue::from_string(arguments.into()).unwrap()).unwrap().summary
        };
        assert_eq!(title("[]", r#"{"note":"x","title":"Fix the login"}"#), "s / t: Fix the login");
        assert_eq!(title("[]", r#"{"owner":"o","repo":"r","issue_number":7,"body":"long"}"#), "s / t: 7");
        assert_eq!(title("[]", r#"{"encoding":"utf8","file_path":"/srv/a"}"#), "s / t: /srv/a");
        assert_eq!(title("[]", r#"{"query":"  INSERT INTO t\n VALUES (1)"}"#), "s / t: INSERT INTO t …");
        assert_eq!(title(r#"["what"]"#, r#"{"verbose":"no","what":"this"}"#), "s / t: this");
        assert_eq!(title("[]", r#"{"verbose":"no"}"#), "s / t", "what no name or schema speaks for is not guessed");
        assert_eq!(title("[]", r#"{"title":" \n\u200b"}"#), "s / t");
        assert_eq!(title("[]", r#"{"name":["a"],"title":{},"id":3}"#), "s / t: 3");
        // No argument hides, forges or floods a title.
        assert_eq!(title("[]", r#"{"title":"a\u202eb\u0007c"}"#), r"s / t: a\u{202e}b\u{7}c");
        let long = format!(r#"{{"title":"{}"}}"#, "é".repeat(5000));
        assert_eq!(title("[]", &long).chars().count(), "s / t: ".len() + TELLING + 2);
        // The one that would run: of two that differ in their bytes only, none is told (they are refused anyhow).
        assert_eq!(title("[]", r#"{"title":"a","title":"b"}"#), "s / t");
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

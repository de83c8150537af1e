//! Parses the YAML between two lines of `---` at the beginning of a document.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::model::Level;

const LEVEL_KEY: &str = "promotion_level";
/// The maximum number of bytes of a front matter.
const MAX_FRONT_MATTER_BYTES: usize = 64 << 10;

/// The byte ranges of the parts of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentParts {
    /// The YAML without the lines of dashes; `None` if there is no front matter.
    pub yaml: Option<Range<usize>>,
    /// The offset of the body.
    pub body: usize,
}

/// The reason why a front matter cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct FrontMatterError(pub String);

/// Returns each line with its offset, including its line break.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut offset = 0;
    text.split_inclusive('\n').map(move |line| {
        let start = offset;
        offset += line.len();
        (start, line)
    })
}

/// Splits a document. A front matter without an end, or one that is longer than
/// [`MAX_FRONT_MATTER_BYTES`], counts as none.
pub(crate) fn split_document(text: &str) -> DocumentParts {
    let no_front_matter = DocumentParts { yaml: None, body: 0 };
    let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let rest = text.get(start..).unwrap_or_default();
    let mut lines = lines(rest);
    let Some((_, first)) = lines.next().filter(|(_, line)| line.trim_end() == "---") else { return no_front_matter };
    let yaml = start + first.len();
    for (offset, line) in lines {
        if start + offset - yaml > MAX_FRONT_MATTER_BYTES {
            return no_front_matter;
        }
        if matches!(line.trim_end(), "---" | "...") {
            return DocumentParts { yaml: Some(yaml..start + offset), body: start + offset + line.len() };
        }
    }
    no_front_matter
}

/// Returns the front matter of a document with its lines of dashes.
pub(crate) fn block(text: &str) -> Option<&str> {
    let parts = split_document(text);
    parts.yaml.and_then(|_| text.get(..parts.body))
}

/// Returns the fields of a document's front matter in their order; empty if it has none.
///
/// # Errors
/// Fails if the YAML is invalid, is not a map, repeats a key, nests too deeply, or has too many aliases.
pub(crate) fn parse_fields(text: &str) -> Result<Map<String, Value>, FrontMatterError> {
    let Some(yaml) = split_document(text).yaml.and_then(|range| text.get(range)) else { return Ok(Map::new()) };
    match parse_yaml(yaml)? {
        Value::Object(fields) => Ok(fields),
        Value::Null => Ok(Map::new()),
        _ => Err(FrontMatterError("the front matter is not a map of fields".to_owned())),
    }
}

/// Parses YAML to JSON, within bounds.
pub(crate) fn parse_yaml(yaml: &str) -> Result<Value, FrontMatterError> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_events: 20_000,
            max_depth: 16,
            max_aliases: 20,
        },
    };
    serde_saphyr::from_str_with_options(yaml, options).map_err(|error| {
        let message = error.to_string();
        let line = message.lines().next().unwrap_or_default();
        let end = line.find(", set DuplicateKeyPolicy").unwrap_or(line.len());
        FrontMatterError(line.get(..end).unwrap_or(line).trim_start_matches("error: ").chars().take(200).collect())
    })
}

/// Returns the document with this level in its front matter. One line is replaced or added, and all other bytes are
/// unchanged. A document without front matter gets one. Returns `None` for front matter that cannot be read, or in which one
/// line cannot set the level alone.
pub(crate) fn with_level(text: &str, level: Level) -> Option<String> {
    if block(text).is_none() && begins_front_matter(text) {
        return None;
    }
    let written = write_level(text, level);
    let (mut before, mut after) = (parse_fields(text).ok()?, parse_fields(&written).ok()?);
    before.remove(LEVEL_KEY);
    let found = after.remove(LEVEL_KEY);
    (found == Some(Value::from(<&str>::from(level))) && after == before).then_some(written)
}

fn write_level(text: &str, level: Level) -> String {
    let parts = split_document(text);
    let Some(yaml) = parts.yaml else {
        let (mark, body) = text.strip_prefix('\u{feff}').map_or(("", text), |body| ("\u{feff}", body));
        return format!("{mark}---\n{LEVEL_KEY}: {level}\n---\n{body}");
    };
    let yaml_text = text.get(yaml.clone()).unwrap_or_default();
    let line_end = if yaml_text.contains("\r\n") { "\r\n" } else { "\n" };
    let level_line = lines(yaml_text).find(|(_, line)| sets_level(line));
    let (start, end, line) = match level_line {
        Some((offset, line)) => {
            let line_end = &line[line.trim_end_matches(['\r', '\n']).len()..];
            (yaml.start + offset, yaml.start + offset + line.len(), format!("{LEVEL_KEY}: {level}{line_end}"))
        }
        None => (yaml.end, yaml.end, format!("{LEVEL_KEY}: {level}{line_end}")),
    };
    let (before, after) = (text.get(..start).unwrap_or_default(), text.get(end..).unwrap_or_default());
    format!("{before}{line}{after}")
}

/// Returns `true` if the first line begins a front matter of YAML or TOML, even if it has no end.
pub(crate) fn begins_front_matter(text: &str) -> bool {
    let first_line = text.strip_prefix('\u{feff}').unwrap_or(text).lines().next();
    matches!(first_line.map(str::trim_end), Some("---" | "+++"))
}

/// Returns `true` if this line sets the promotion level at the top level of the map.
fn sets_level(line: &str) -> bool {
    let key = line.split_once(':').map(|(key, _)| key.trim_end());
    matches!(key, Some(LEVEL_KEY | "\"promotion_level\"" | "'promotion_level'"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn front_matter_is_between_dashes_at_the_start() {
        let body = |text: &str| text[split_document(text).body..].to_owned();
        assert_eq!(body("---\na: 1\n---\nText"), "Text");
        assert_eq!(body("---\r\na: 1\r\n...\r\nText"), "Text");
        assert_eq!(body("\u{feff}---\na: 1\n---\n"), "");
        assert_eq!(body("---\n---\nText"), "Text");
        for none in ["", "Text", "---", "---\na: 1\n", " ---\na: 1\n---\n", "a\n---\nb\n---\n", "----\na\n----\n"] {
            assert_eq!(split_document(none), DocumentParts { yaml: None, body: 0 }, "{none:?}");
        }
        let endless = format!("---\n{}", "a: 1\n".repeat(100_000));
        assert_eq!(split_document(&endless).yaml, None);
    }

    #[test]
    fn fields_are_json_and_dates_are_texts() {
        let parse = |yaml: &str| parse_fields(&format!("---\n{yaml}\n---\n"));
        let read = parse("date: 2026-11-23\nn: 1.5\nlist: [a, b]\nyes: yes\nnothing:\nmap: {x: true}").unwrap();
        assert_eq!(
            Value::Object(read),
            json!({ "date": "2026-11-23", "n": 1.5, "list": ["a", "b"], "yes": "yes", "nothing": null,
                    "map": { "x": true } })
        );
        assert_eq!(parse("").unwrap(), Map::new());
        for bad in ["a: 1\na: 2", "- a", "text", "a: [", "a: 'x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b, *b]\nd: [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c]";
        assert!(parse(bomb).is_err());
        assert!(parse(&format!("a: {}{}", "[".repeat(5000), "]".repeat(5000))).is_err(), "too deep");
    }

    #[test]
    fn setting_a_level_changes_one_line() {
        let promote = |text: &str| with_level(text, Level::Critical).unwrap();
        assert_eq!(
            promote("---\na: 1\npromotion_level: standard # why\nb: 2\n---\nx"),
            "---\na: 1\npromotion_level: critical\nb: 2\n---\nx"
        );
        assert_eq!(promote("---\na: 1\n---\nx"), "---\na: 1\npromotion_level: critical\n---\nx");
        assert_eq!(promote("---\r\na: 1\r\n---\r\nx"), "---\r\na: 1\r\npromotion_level: critical\r\n---\r\nx");
        assert_eq!(promote("x\n"), "---\npromotion_level: critical\n---\nx\n");
        assert_eq!(promote("\u{feff}x\n"), "\u{feff}---\npromotion_level: critical\n---\nx\n");
        assert_eq!(
            promote("---\nm:\n  promotion_level: x\n---\n"),
            "---\nm:\n  promotion_level: x\npromotion_level: critical\n---\n"
        );
        let written = promote("---\n\"promotion_level\": standard\n---\n");
        assert_eq!(parse_fields(&written).unwrap()["promotion_level"], "critical");
    }

    #[test]
    fn level_is_not_set_where_one_line_cannot_set_it() {
        let long = format!("---\na: {}\n---\n", "x".repeat(MAX_FRONT_MATTER_BYTES - 10));
        assert_eq!(parse_fields(&long).unwrap().len(), 1);
        let too_long = format!("---\n{}---\nx", "a: 1\n".repeat(MAX_FRONT_MATTER_BYTES));
        for text in [
            "---\n{a: 1}\n---\n",
            "---\n  a: 1\n---\n",
            "---\na: [\n---\n",
            "---\npromotion_level: >-\n  standard\n---\n",
            "---\npromotion_level: &a standard\nb: *a\n---\n",
            long.as_str(),
            "+++\ntitle = 'A'\n+++\nx",
            "\u{feff}+++\r\ntitle = 'A'\r\n+++\r\nx",
            "---\ntitle: A\n",
            too_long.as_str(),
        ] {
            assert_eq!(with_level(text, Level::Critical), None, "{text}");
        }
    }
}

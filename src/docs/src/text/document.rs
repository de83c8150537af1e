//! Parses a document from its file. The only error is that this takes too long; parts that cannot be parsed are left out.

use serde_json::{Map, Value};

use super::{
    budget::{Budget, TooSlowError},
    chunks::{Body, cut_into_chunks},
    front_matter::{parse_fields, split_document},
    links,
    markdown::{self, Markdown},
    types::DocTypes,
};
use crate::model::{Document, Level};
use countersign_domain::text::shorten;

/// The maximum number of characters of a title.
const MAX_TITLE_CHARS: usize = 200;
/// The maximum number of characters of a summary.
const MAX_SUMMARY_CHARS: usize = 300;
/// The maximum number of characters of a document's faults.
const MAX_FAULT_CHARS: usize = 3000;
/// The maximum number of characters of a line in a passage. Longer lines are truncated.
const MAX_LINE_CHARS: usize = 20_000;

/// Parses the document at `path`, which is relative to the folder of the collection.
///
/// # Errors
/// Fails if the document takes too long to parse.
pub(crate) fn parse(path: &str, text: &str, types: &DocTypes) -> Result<Document, TooSlowError> {
    let (fields, fault) = match types.check_fields(path, text) {
        Ok(fields) => (fields, None),
        Err(refusal) => (parse_fields(text).unwrap_or_default(), Some(one_line(&refusal.summary(), MAX_FAULT_CHARS))),
    };
    let document = parse_with_fields(path, text, types, &fields, &mut Budget::new())?;
    Ok(Document { fault, ..document })
}

/// Parses a document whose front matter is already parsed.
///
/// # Errors
/// Fails if the budget is used up.
pub(super) fn parse_with_fields(
    path: &str,
    text: &str,
    types: &DocTypes,
    fields: &Map<String, Value>,
    budget: &mut Budget,
) -> Result<Document, TooSlowError> {
    let parts = split_document(text);
    let (head, body) = (text.get(..parts.body).unwrap_or_default(), text.get(parts.body..).unwrap_or(text));
    let markdown = markdown::parse(body, budget)?;
    let lines: Vec<&str> = body.lines().map(|line| truncate(line, MAX_LINE_CHARS)).collect();
    let field_text =
        |name: &str| fields.get(name).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    let doc_type = match field_text("doc_type") {
        Some(name) => Some(one_line(name, MAX_TITLE_CHARS)),
        None => types.type_for_path(path).map(|kind| kind.name.clone()),
    };
    Ok(Document {
        path: path.to_owned(),
        title: choose_title(path, field_text("title"), &markdown),
        summary: one_line(
            field_text("summary").or(markdown.first_paragraph.as_deref()).unwrap_or_default(),
            MAX_SUMMARY_CHARS,
        ),
        doc_type,
        date: field_text("date").map(|date| one_line(date, 40)),
        level: level(fields),
        has_front_matter: parts.yaml.is_some(),
        fault: None,
        char_count: text.chars().count(),
        links: links::resolve(path, &markdown.links),
        chunks: cut_into_chunks(
            &Body { lines: &lines, line_offset: head.lines().count(), markdown: &markdown },
            budget,
        )?,
    })
}

/// Returns the level that a front matter sets.
pub(crate) fn level(fields: &Map<String, Value>) -> Level {
    fields
        .get("promotion_level")
        .and_then(Value::as_str)
        .and_then(|level| level.trim().parse().ok())
        .unwrap_or_default()
}

fn choose_title(path: &str, from_fields: Option<&str>, markdown: &Markdown) -> String {
    let first_heading = markdown.headings.iter().map(|heading| heading.text.trim()).find(|text| !text.is_empty());
    let file_stem = || path.rsplit('/').next().map(|name| name.rsplit_once('.').map_or(name, |(stem, _)| stem));
    one_line(from_fields.or(first_heading).or_else(file_stem).unwrap_or(path), MAX_TITLE_CHARS)
}

/// Returns the beginning of a text, with at most this number of characters.
pub(crate) fn truncate(text: &str, max_chars: usize) -> &str {
    text.char_indices().nth(max_chars).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

/// Joins the words of a text by single spaces, and cuts it after this number of characters.
fn one_line(text: &str, max_chars: usize) -> String {
    // More words would be cut off, and the text may be as long as a file.
    let words: Vec<&str> = text.split_whitespace().take(max_chars + 1).collect();
    shorten(&words.join(" "), max_chars)
}

#[cfg(test)]
mod tests;

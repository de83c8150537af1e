//! Parses a document from its file. The only error is a document that takes too long: other parts that cannot be parsed
//! are left out.

use serde_json::{Map, Value};

use super::{
    budget::{Budget, TooSlow},
    chunks::chunks,
    front_matter::{fields, split},
    links,
    markdown::{self, Markdown},
    types::DocTypes,
};
use crate::model::{Document, Level};

/// The maximum number of characters of a title.
const MAX_TITLE: usize = 200;
/// The maximum number of characters of a summary.
const MAX_SUMMARY: usize = 300;
/// The maximum number of characters of a document's faults.
const MAX_FAULT: usize = 3000;
/// The maximum number of characters of a line in a passage. Longer lines are truncated.
const MAX_LINE: usize = 20_000;

/// Parses the document at `path`, which is relative to the folder of the collection.
///
/// # Errors
/// Fails if the document takes too long to parse.
pub(crate) fn parse(path: &str, text: &str, types: &DocTypes) -> Result<Document, TooSlow> {
    let (fields, fault) = match types.check_fields(path, text) {
        Ok(fields) => (fields, None),
        Err(refusal) => (fields(text).unwrap_or_default(), Some(one_line(&refusal.summary(), MAX_FAULT))),
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
) -> Result<Document, TooSlow> {
    let start = split(text).body;
    let (head, body) = (text.get(..start).unwrap_or_default(), text.get(start..).unwrap_or(text));
    let markdown = markdown::parse(body, budget)?;
    let lines: Vec<&str> = body.lines().map(|line| truncate(line, MAX_LINE)).collect();
    let field_text =
        |name: &str| fields.get(name).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    let doc_type = match field_text("doc_type") {
        Some(name) => Some(one_line(name, MAX_TITLE)),
        None => types.type_for_path(path).map(|kind| kind.name.clone()),
    };
    Ok(Document {
        path: path.to_owned(),
        title: title(path, field_text("title"), &markdown),
        summary: one_line(
            field_text("summary").or(markdown.first_paragraph.as_deref()).unwrap_or_default(),
            MAX_SUMMARY,
        ),
        doc_type,
        date: field_text("date").map(|date| one_line(date, 40)),
        level: level(fields),
        has_front_matter: split(text).yaml.is_some(),
        fault: None,
        char_count: text.chars().count(),
        links: links::resolve(path, &markdown.links),
        chunks: chunks(&lines, head.lines().count(), &markdown, budget)?,
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

fn title(path: &str, from_fields: Option<&str>, markdown: &Markdown) -> String {
    let first = markdown.headings.iter().map(|heading| heading.text.trim()).find(|text| !text.is_empty());
    let name = || path.rsplit('/').next().map(|name| name.rsplit_once('.').map_or(name, |(stem, _)| stem));
    one_line(from_fields.or(first).or_else(name).unwrap_or(path), MAX_TITLE)
}

fn truncate(text: &str, max: usize) -> &str {
    text.char_indices().nth(max).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

fn one_line(text: &str, max: usize) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > 4 * max {
            break;
        }
    }
    if line.chars().nth(max).is_some() {
        line = truncate(&line, max).to_owned();
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests;

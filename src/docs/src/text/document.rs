//! A document read from its file. Nothing about it is an error but that it takes too long: what cannot be made out is left
//! out.

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

/// Characters of a title, and of a summary.
const TITLE: usize = 200;
const SUMMARY: usize = 300;
/// Characters of what is wrong with a document.
const FAULT: usize = 3000;
/// Characters of a line that are kept in a passage: one that is longer says nothing to anybody.
const LINE: usize = 20_000;

/// `path` is relative to the folder of the collection.
///
/// # Errors
/// A document that takes too long to read.
pub(crate) fn parse(path: &str, text: &str, types: &DocTypes) -> Result<Document, TooSlow> {
    let (fields, fault) = match types.check_fields(path, text) {
        Ok(fields) => (fields, None),
        Err(why) => (fields(text).unwrap_or_default(), Some(one_line(&why.told(), FAULT))),
    };
    let document = read(path, text, types, &fields, &mut Budget::new())?;
    Ok(Document { fault, ..document })
}

/// As [`parse`], with the front matter read.
///
/// # Errors
/// The budget is used up.
pub(super) fn read(
    path: &str,
    text: &str,
    types: &DocTypes,
    fields: &Map<String, Value>,
    budget: &mut Budget,
) -> Result<Document, TooSlow> {
    let start = split(text).body;
    let (head, body) = (text.get(..start).unwrap_or_default(), text.get(start..).unwrap_or(text));
    let markdown = markdown::read(body, budget)?;
    let lines: Vec<&str> = body.lines().map(|line| cut(line, LINE)).collect();
    let said = |name: &str| fields.get(name).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    let doc_type = match said("doc_type") {
        Some(name) => Some(one_line(name, TITLE)),
        None => types.of_path(path).map(|kind| kind.name.clone()),
    };
    Ok(Document {
        path: path.to_owned(),
        title: title(path, said("title"), &markdown),
        summary: one_line(said("summary").or(markdown.first_paragraph.as_deref()).unwrap_or_default(), SUMMARY),
        doc_type,
        date: said("date").map(|date| one_line(date, 40)),
        level: level(fields),
        has_front_matter: split(text).yaml.is_some(),
        fault: None,
        char_count: text.chars().count(),
        links: links::resolve(path, &markdown.links),
        chunks: chunks(&lines, head.lines().count(), &markdown, budget)?,
    })
}

/// The level that a front matter gives its document.
pub(crate) fn level(fields: &Map<String, Value>) -> Level {
    fields.get("promotion_level").and_then(Value::as_str).map(str::trim).and_then(Level::parse).unwrap_or_default()
}

fn title(path: &str, said: Option<&str>, markdown: &Markdown) -> String {
    let first = markdown.headings.iter().map(|heading| heading.text.trim()).find(|text| !text.is_empty());
    let name = || path.rsplit('/').next().map(|name| name.rsplit_once('.').map_or(name, |(stem, _)| stem));
    one_line(said.or(first).or_else(name).unwrap_or(path), TITLE)
}

fn cut(text: &str, max: usize) -> &str {
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
        line = cut(&line, max).to_owned();
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests;

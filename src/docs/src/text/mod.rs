//! Parses documents: front matter, Markdown, chunks, types and their schemas.

mod budget;
pub(crate) mod capture;
mod chunks;
mod document;
pub(crate) mod front_matter;
mod links;
mod markdown;
mod schemas;
mod types;

pub(crate) use document::{level, parse, truncate};
pub(crate) use types::{DocType, DocTypes, DocumentRefusal, Fault, MAX_SCHEMA_BYTES};

/// Returns `true` for the name of a Markdown file.
pub(crate) fn has_markdown_extension(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    lower.ends_with(".md") || lower.ends_with(".markdown")
}

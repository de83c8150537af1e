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

pub(crate) use document::{level, parse};
pub(crate) use links::is_document;
pub(crate) use types::{DocType, DocTypes, Fault, MAX_SCHEMA_BYTES, Refusal};

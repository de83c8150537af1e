//! One collection of one tenant: its documents, their words and their vectors, and how they are ranked.
//!
//! All of it is derived from files: an index that is damaged or of another version is made anew. Everything blocks, so
//! callers put it on the blocking pool. `storage.rs` has the file and its connections, `documents.rs` what is written,
//! `words.rs` takes text apart, `lexical.rs` and `vectors.rs` rank, `score.rs` has the formulas, `search.rs` fuses.

mod documents;
mod lexical;
mod score;
mod search;
mod storage;
#[cfg(test)]
mod tests;
mod vectors;
mod words;

pub(crate) use documents::{Entry, Health, Stamp};
pub(crate) use search::{Found, Query};
pub(crate) use storage::{Index, IndexError};

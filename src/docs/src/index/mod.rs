//! The index of one collection of one tenant: its documents, their words and vectors, and the ranking.
//!
//! Everything is derived from files, so an index that is damaged or has another version is recreated. All calls block;
//! callers use the blocking pool. `storage.rs` has the file and its connections, `documents.rs` writes, `words.rs`
//! splits text into terms, `lexical.rs` and `vectors.rs` rank, `score.rs` has the formulas, and `search.rs` fuses the
//! rankings.

mod documents;
mod lexical;
mod score;
mod search;
mod storage;
#[cfg(test)]
mod tests;
mod vectors;
mod words;

pub(crate) use documents::{Entry, FileStamp, Health, PassageId};
pub(crate) use search::{Query, SearchResult};
pub(crate) use storage::{Index, IndexError};

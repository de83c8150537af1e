//! The index of one collection of one tenant: its documents, their words and vectors, and the ranking.
//!
//! Everything is derived from files, so an index that is damaged or has another version is recreated. All calls block;
//! callers use the blocking pool.
//!
//! Each file uses only those before it: `words.rs` splits text into terms, `score.rs` has the formulas, `vectors.rs`
//! compares vectors, `storage.rs` has the file and its connections, `documents.rs` writes, `lexical.rs` ranks by words,
//! and `search.rs` fuses the rankings.

mod documents;
mod lexical;
mod score;
mod search;
mod storage;
#[cfg(test)]
mod tests;
mod vectors;
mod words;

pub(crate) use documents::{DocumentMetadata, FileStamp, FrontMatterStats};
pub(crate) use search::{Query, SearchResult};
pub(crate) use storage::{Index, IndexError, open_derived_data};
pub(crate) use vectors::{MAX_DIMENSIONS, PassageId, vector_from_bytes, vector_to_bytes};

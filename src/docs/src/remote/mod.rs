//! Models that other programs run: embeddings and answers, by the endpoints of OpenAI's API that many servers offer.
//!
//! `http.rs` sends requests. `embedder.rs` makes batches and remembers what it got in `cache.rs`; `generator.rs` writes
//! answers.

mod cache;
mod embedder;
mod error;
mod generator;
mod http;
#[cfg(test)]
mod tests;

pub(crate) use embedder::Embedder;
#[cfg(test)]
pub(crate) use error::RemoteError;
pub(crate) use generator::Generator;

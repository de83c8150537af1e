//! Clients of models that other programs run: embeddings and answers, over the endpoints of OpenAI's API that many
//! servers offer.
//!
//! `http.rs` sends requests, `embedder.rs` batches texts and caches vectors in `cache.rs`, and `generator.rs` gets
//! answers.

mod cache;
mod embedder;
mod error;
mod generator;
mod http;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use embedder::Embedder;
pub(crate) use error::RemoteError;
pub(crate) use generator::{Generator, MAX_ANSWER_TOKENS};

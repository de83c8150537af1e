//! One request in progress, with its messages, the questions to its client, and its answer.

pub mod ask;
pub mod context;
pub mod reply;

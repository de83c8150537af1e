//! What the requests of one session share: what its client said of itself, which of them are under way, what the client
//! was asked, and the ways out to it.

pub mod cancel;
pub mod facts;
pub mod outbox;
pub mod questions;
pub mod shared;
pub mod streams;

//! The state that the requests of one session share: the client's facts, the requests in flight, the open questions to
//! the client, and the channels to it.

pub mod facts;
pub mod outbox;
pub mod questions;
pub mod state;
pub mod streams;

//! A request and its session, independent of the transport: the types that both the bridge and the handlers need.
//!
//! This crate never handles a method and never calls an upstream. A stateless request carries its own revision and
//! capabilities; no session and no earlier request provides them ([`context::Exchange`]).
//!
//! Each part uses only the parts before it. `bounds` limits the resources that a peer can make the gateway hold
//! ([`memory`]). `session` is the state that the requests of one session share ([`state`]), with the channels to the
//! client ([`outbox`], [`streams`]). `request` is one request ([`context`]), its questions, its answer and the messages
//! before it ([`reply`]).

mod bounds;
mod request;
mod session;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use bounds::{body_budget, eviction, memory, slots};
pub use request::{ask, context, reply};
pub use session::{facts, outbox, questions, state, streams};

//! One request and the session it belongs to, whatever transport it came in by: what the bridge and the handlers both
//! need.
//!
//! Never handles a method and never speaks to an upstream. Revision and capabilities of a stateless request are its
//! own: no session and no earlier request lends them ([`context::Exchange`]).
//!
//! Each part uses only those before it. `bounds` limits what a peer can make the gateway hold ([`inflow`], [`memory`],
//! [`slots`], [`eviction`]). `session` is what its requests share ([`shared`]), with what its client said ([`facts`]) and its
//! ways out ([`outbox`], [`streams`]). `request` is one ([`context`]), with where
//! what belongs to it goes ([`related`]), a question to its client ([`ask`]), and its answer ([`reply`]).

mod bounds;
mod request;
mod session;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use bounds::{eviction, inflow, memory, slots};
pub use request::{ask, context, related, reply};
pub use session::{cancel, facts, outbox, questions, shared, streams};

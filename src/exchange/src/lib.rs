//! One request and the session it belongs to, whatever transport it came in by: what the bridge and the handlers both
//! need.
//!
//! Never handles a method and never speaks to an upstream. Revision and capabilities of a stateless request are its
//! own: no session and no earlier request lends them ([`context::Exchange`]).
//!
//! [`context`] is the request, [`reply`] its answer, [`cancel`] its being taken back, [`ask`] a question to its client.
//! [`shared`] is what a session's requests share, [`outbox`] and [`streams`] are its ways out. [`inflow`], [`memory`],
//! [`slots`] and [`eviction`] bound what a peer can make the gateway hold. [`services`] is what every exchange may use.

pub mod ask;
pub mod cancel;
pub mod context;
pub mod eviction;
pub mod facts;
pub mod inflow;
pub mod memory;
pub mod outbox;
pub mod reply;
pub mod services;
pub mod shared;
pub mod slots;
pub mod streams;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

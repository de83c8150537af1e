//! Sessions: the unit that a client's state lives in, of one type whatever the transport.
//!
//! [`actor::Session`] is the actor; [`shared::SessionShared`] is what requests on any thread read of it;
//! [`registry::Registry`] finds it by id. A stateless HTTP connection has a session for bookkeeping only:
//! it never lends authority, version or capabilities from one request to the next.

pub mod actor;
pub mod ask;
pub mod cancel;
pub mod eviction;
pub mod exchange;
pub mod facts;
pub mod handlers;
pub mod inbound;
pub mod memory;
pub mod outbox;
pub mod registry;
pub mod shared;
pub mod slots;
pub mod streams;

pub use actor::Session;
pub use cancel::Cancel;
pub use exchange::{Answer, Exchange, Related};
pub use facts::ClientFacts;
pub use inbound::channel_less;
pub use registry::Registry;
pub use shared::{Channel, SessionShared, Transport};

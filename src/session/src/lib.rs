//! Sessions: the unit that a client's state lives in, of one type whatever the transport.
//!
//! [`actor::Session`] is the actor; [`shared::SessionShared`] is what requests on any thread read of it;
//! [`registry::Registry`] finds it by id. A stateless HTTP connection has a session for bookkeeping only:
//! it never lends authority, version or capabilities from one request to the next.

pub mod actor;
pub mod handlers;
pub mod handling;
pub mod inbound;
pub mod middleware;
pub mod registry;
pub mod services;

pub use actor::Session;
pub use handling::Handling;
pub use inbound::channel_less;
pub use registry::Registry;
pub use services::SessionServices;

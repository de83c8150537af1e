//! Answers MCP messages, whatever transport they arrived over. This crate never frames bytes (an endpoint does) and
//! never decides on a change. Nothing of one stateless request is visible to the next: the session of a stateless
//! connection is for bookkeeping only.
//!
//! Each part uses only the parts before it:
//!
//! - [`state`] is kept from one request to the next.
//! - [`registry`] holds what the requests of each session share ([`countersign_exchange::shared::SessionShared`]).
//! - [`cluster`] forwards requests to the nodes that own their subjects.
//! - [`limits`], [`long_requests`], [`lifetimes`], [`address`] and [`status`] are single services of the gateway.
//! - [`server`] groups the parts of the gateway that a request in progress ([`request_scope`]) may use.
//! - [`owned`] holds messages that move to another thread.
//! - [`policy`] admits calls or refuses them, and [`extension`] does so for unknown methods.
//! - [`handlers`] has a file for each family of methods.
//! - [`middleware`] is the chain around each request.
//! - [`inbound`] finds era and revision of a message.
//! - [`sessions`] are the actors of sessions.

pub mod address;
pub mod cluster;
pub mod extension;
pub mod handlers;
pub mod inbound;
pub mod lifetimes;
pub mod limits;
pub mod long_requests;
pub mod middleware;
pub mod owned;
pub mod policy;
pub mod registry;
pub mod request_scope;
pub mod server;
pub mod sessions;
pub mod state;
pub mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use registry::Registry;
pub use request_scope::RequestScope;
pub use server::McpServer;
pub use sessions::{
    Sessions,
    actor::{self, Session},
};

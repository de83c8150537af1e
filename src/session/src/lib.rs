//! Answers MCP messages, whatever transport they arrived over. This crate never frames bytes (`transports` does) and
//! never decides on a change. Nothing of one stateless request is visible to the next: the session of a stateless
//! connection is for bookkeeping only.
//!
//! Each part uses only the parts before it:
//! - `gateway`: the parts of the gateway that all requests share ([`server`]), with their limits and state;
//! - [`owned_messages`], and `policy`, which decides on requests;
//! - [`handlers`] of the methods;
//! - [`inbound`]: a message on its way to its handler and back;
//! - [`sessions`] and their actors.

mod gateway;
pub mod handlers;
pub mod inbound;
pub mod owned_messages;
mod policy;
pub mod sessions;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use gateway::{
    address, cluster, limits, long_requests,
    registry::{self, Registry},
    server::{self, McpServer, RequestScope},
    status,
};
pub use inbound::middleware;
pub use sessions::{
    Sessions,
    actor::{self, Session},
    lifetimes,
};

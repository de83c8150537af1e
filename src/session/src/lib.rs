//! Answers MCP messages, whatever transport they arrived over. This crate never frames bytes (an endpoint does) and
//! never decides on a change. Nothing of one stateless request is visible to the next: the session of a stateless
//! connection is for bookkeeping only.
//!
//! Each part uses only the parts before it: [`long_requests`]; [`state`] that outlives a request; [`registry`] and
//! [`cluster`]; [`limits`], [`lifetimes`], [`address`] and [`status`]; [`server`], the parts of the gateway
//! and the requests that they answer ([`RequestScope`]); [`owned`] messages; [`policy`] and [`extension`];
//! [`handlers`]; [`middleware`]; [`inbound`]; [`frames`]; and [`sessions`].

pub mod address;
pub mod cluster;
pub mod extension;
pub mod frames;
pub mod handlers;
pub mod inbound;
pub mod lifetimes;
pub mod limits;
pub mod long_requests;
pub mod middleware;
pub mod owned_messages;
pub mod policy;
pub mod registry;
pub mod server;
pub mod sessions;
pub mod state;
pub mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use registry::Registry;
pub use server::{McpServer, RequestScope};
pub use sessions::{
    Sessions,
    actor::{self, Session},
};

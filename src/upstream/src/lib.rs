//! Upstream MCP servers: how they are reached, spoken to and looked after.
//!
//! Never decides whether a call may be made: policy has, before. Who calls for a client goes through
//! `countersign_bridge`, which speaks for clients of any era.
//!
//! Each folder uses only those before it. [`link`]: connections over each transport, their eras, whose is what arrives.
//! [`catalog`]: lists, and names as clients see them. [`server`]: what one [`Upstream`] has: endpoints, pools, breakers.
//! `calls`: the way of a call, what may be sent again, approved changes. `upkeep`: stays connected, keeps lists fresh.

mod calls;
pub mod catalog;
pub mod link;
pub(crate) mod provider;
mod registry;
pub mod server;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod upkeep;

pub use calls::rounds;
pub use catalog::{Catalog, Names, is_let_through, names};
pub use link::{
    Connector, Link, LinkError, LinkKind, Listener, Negotiated, Outgoing, Response, UpstreamNotification, child,
    detect, handshake, http,
};
pub use registry::Upstreams;
pub use server::{Caller, Pinned, Upstream, UpstreamStatus, cache};

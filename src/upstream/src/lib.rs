//! Upstream MCP servers: connecting to them, calling them, and keeping their lists fresh.
//!
//! This crate never decides whether a call may be made. The policy has decided that before. Calls for a client go
//! through `countersign_bridge`, which translates between eras.
//!
//! Each part uses only those before it. [`credentials`]: access tokens. [`link`]: connections over each transport,
//! their eras, and the attribution of messages. [`catalog`]: lists, and names as clients see them. [`server`]: the
//! endpoints, pools, circuit breakers and limits of one [`Upstream`]. `calls`: sending calls, retries, and approved
//! changes. `upkeep`: staying connected and keeping lists fresh. `principal_upstreams`: an [`Upstream`] for each person, where
//! each uses an account of their own. [`trial`]: trying a server that is not in use.

mod calls;
pub mod catalog;
pub mod credentials;
pub mod link;
mod principal_upstreams;
pub(crate) mod provider;
mod registry;
pub mod server;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod trial;
mod upkeep;

pub use calls::{FailedRequests, rounds};
pub use catalog::{Catalog, ListKinds, Names, is_tool_allowed, names};
pub use link::{
    Connector, Link, LinkError, LinkKind, Listener, NegotiatedSession, OutgoingRequest, Response, UpstreamNotification,
    child, connectors::UrlConnector, detect, handshake,
};
pub use registry::Upstreams;
pub use server::{CONNECT_TOOL, Caller, LinkChoice, Upstream, UpstreamStatus, cache, containing_uris};

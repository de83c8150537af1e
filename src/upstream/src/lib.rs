//! Upstream MCP servers: how they are reached, spoken to and looked after.
//!
//! A [`Connector`] makes connections to one server over one transport; a [`Link`] is one such connection, which knows
//! framing and attribution and nothing of eras beyond the headers that one wants. An [`Upstream`] owns the server: its
//! era, its lists, its links and their bounds, its breaker. It is a [`countersign_provider::Provider`] too, so the router
//! and the Executor need not know that it is no module.
//!
//! Who calls an upstream for a client goes through `countersign_bridge`, which speaks for clients of any era.

mod actor;
pub mod attribution;
pub mod backoff;
mod breaker;
pub mod cache;
pub mod caller;
mod calls;
pub mod catalog;
pub mod child;
mod clock;
mod control;
pub mod defs;
pub mod detect;
pub mod elicitation;
mod endpoint;
pub mod events;
mod execute;
pub mod handshake;
mod held;
pub mod http;
mod lease;
pub mod link;
pub mod names;
mod offered;
mod pinned;
mod places;
mod pool;
pub(crate) mod provider;
pub mod questions;
pub mod received;
mod registry;
pub mod server;
mod server_requests;
mod silence;
pub mod sse;
pub mod status;
mod subscriptions;
mod survey;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod timeouts;
mod watched;
pub mod ws;

pub use backoff::Backoff;
pub use caller::Caller;
pub use link::{Connector, Link, LinkError, LinkKind, Listener, Negotiated, Outgoing, Response, UpstreamNotification};
pub use names::Names;
pub use offered::is_let_through;
pub use pinned::Pinned;
pub use registry::Upstreams;
pub use server::{Catalog, Upstream};
pub use status::UpstreamStatus;

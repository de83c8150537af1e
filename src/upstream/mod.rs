//! Upstream MCP servers: how they are reached, spoken to and looked after.
//!
//! A [`Connector`] makes connections to one server over one transport; a [`Link`] is one such connection, which knows
//! framing and attribution and nothing of eras beyond the headers that one wants. An [`Upstream`] owns the server: its
//! era, its lists, its links and their bounds, its breaker. It is a [`crate::providers::Provider`] too, so the router
//! and the Executor need not know that it is no module.
//!
//! Who calls an upstream for a client goes through `crate::bridge`, which speaks for clients of any era.

mod asked;
pub mod attribution;
pub mod caller;
pub mod detect;
pub mod events;
pub mod handshake;
pub mod http;
pub mod link;
pub mod received;
pub mod server;
pub mod sse;
#[cfg(test)]
pub(crate) mod testing;
pub mod ws;

pub use caller::{Caller, ClientCapabilities};
pub use link::{
    Connector, Link, LinkError, LinkKind, Listener, Negotiated, Outgoing, Replier, Response, RpcError,
    UpstreamNotification, UpstreamRequest,
};
pub use server::{Catalog, Upstream};

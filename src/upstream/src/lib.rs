//! Upstream MCP servers: how they are reached, spoken to and looked after.
//!
//! Never decides whether a call may be made: policy has, before. Who calls for a client goes through
//! `countersign_bridge`, which speaks for clients of any era.
//!
//! An [`Upstream`] owns one server: its era, lists, links and bounds, its breaker. A [`Connector`] makes connections
//! over one transport ([`child`], [`http`], [`sse`], [`ws`]); a [`Link`] is one of them. `calls.rs` is the way of a
//! call and says what may be sent again, `execute.rs` runs approved changes, [`detect`] finds the era out, and
//! `control.rs` keeps the server connected and its lists fresh.

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

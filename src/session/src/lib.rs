//! Messages as they come in, and what becomes of each. Never frames bytes (an endpoint does), never decides on a change, and
//! lends nothing of one stateless request to the next: the session of a stateless connection is for bookkeeping only.
//!
//! Each part uses only those before it. [`state`] is kept from one request to the next, [`registry`] has what the requests of
//! each session share ([`countersign_exchange::shared::SessionShared`]), [`cluster`] leads to what other nodes own.
//! [`limits`], [`long_requests`], [`lifetimes`], [`address`] and [`status`] are what parts of it need of the gateway, and
//! [`server`] is what a request on its way ([`handling`]) may use. [`owned`]: messages that go to another thread. [`policy`]
//! lets calls through, or not, and [`extension`] unknown methods. [`handlers`] has a file for each family of methods. [`middleware`]
//! is the chain around each request, [`inbound`] finds era and revision, and [`sessions`] are the actors of sessions.

pub mod address;
pub mod cluster;
pub mod extension;
pub mod handlers;
pub mod handling;
pub mod inbound;
pub mod lifetimes;
pub mod limits;
pub mod long_requests;
pub mod middleware;
pub mod owned;
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

pub use handling::Handling;
pub use registry::Registry;
pub use server::McpServer;
pub use sessions::{
    Sessions,
    actor::{self, Session},
};

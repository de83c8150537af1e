//! Messages as they come in, and what becomes of each: the session's actor, the middleware and the handlers of all
//! methods.
//!
//! Never frames bytes (an endpoint does), never decides on a change, and lends nothing of one stateless request to the next:
//! the session of a stateless connection is for bookkeeping only.
//!
//! [`inbound`] finds era and revision, [`middleware`] is the chain around each request, [`handlers`] has a file for
//! each family of methods: [`handlers::tools`] for calls, [`handlers::reviewed`] for those that a person decides on.
//! [`actor`] begins and ends a session, [`registry`] finds it; what its requests share is
//! [`countersign_exchange::shared::SessionShared`].

pub mod actor;
pub mod handlers;
pub mod handling;
pub mod inbound;
pub mod middleware;
pub mod registry;
pub mod services;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use actor::Session;
pub use handling::Handling;
pub use inbound::channel_less;
pub use registry::Registry;
pub use services::SessionServices;

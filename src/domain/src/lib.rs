//! The rules of the gateway: changes and their states, policy, principals, and the content of feed events.
//!
//! This crate is pure: no I/O, and the clock is passed in. It knows neither the transport of a request nor where
//! anything is stored.
//!
//! [`changes::machine`] is the state machine of a change, [`changes::audit`] the hash chain of its trail, and
//! [`changes::diff`] the diff that a reviewer sees. [`policy`] decides about calls, [`principal`] holds identities, roles and
//! the scopes of access tokens, [`account_holder`] names whose account at a server is used, [`questions`] adapts questions of
//! servers to their clients, [`recipes`] describes previews of tool calls, and [`webhooks`] formats outgoing events.

pub mod account_holder;
pub mod changes;
pub mod policy;
pub mod principal;
pub mod questions;
pub mod recipes;
pub mod text;
pub mod webhooks;

/// Names of the built-in providers, whether they are enabled or not.
pub const BUILT_IN_PROVIDERS: [&str; 3] = ["tracker", "docs", "gateway"];

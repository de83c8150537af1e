//! Assembles the gateway from all other crates, runs it, and ends it in order.
//!
//! This crate knows all other crates, and contains only the order in which their parts start and end. It never decides on
//! a call.
//!
//! [`serve`] starts the parts, runs them until the end, and serves processes of this machine.
//! `live` puts a new configuration into force, `nodes` follows other gateways on the same store, `server_accounts` audits who
//! connects accounts, and `server_status_events` publishes what happens to servers.

mod acceptances;
mod live;
mod nodes;
pub mod serve;
mod server_accounts;
mod server_status_events;

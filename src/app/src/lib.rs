//! Assembles the gateway from all other crates, runs it, and ends it in order.
//!
//! This crate contains the order in which the parts start and end, and what needs several of them at once. It never
//! decides on a call.
//!
//! [`serve`] starts the parts, runs them until the end, and serves processes of this machine. `live` applies a new
//! configuration, `nodes` follows the other nodes of the store, `keys` derives the keys that nodes share,
//! `server_accounts` audits who connects accounts, and `server_status_events` publishes the states of servers.

mod acceptances;
mod keys;
mod live;
mod nodes;
pub mod serve;
mod server_accounts;
mod server_status_events;

//! Assembles the gateway from all other crates, runs it, and ends it in order.
//!
//! This crate contains the order in which the parts start and end, and the tasks that need several of them. It never
//! decides on a call.
//!
//! [`serve`] starts the parts, runs them until the end, and serves the programs of this machine that attach.
//! `reload_target` applies a new configuration, `nodes` keeps this node in step with the others (`acceptances` finds what
//! reviewers accepted there), `server_accounts` audits who connects accounts, and `server_status_events` publishes the
//! states of servers.

mod acceptances;
mod nodes;
mod reload_target;
pub mod serve;
mod server_accounts;
mod server_status_events;

//! Puts the gateway together, runs it, and takes it apart again in order.
//!
//! Never decides anything: the one crate that knows all the others, and nothing but what starts when and ends when.
//!
//! [`serve`] is the order of start and end; [`server_status_events`] tells the feed what happens to servers.

mod acceptances;
mod nodes;
pub mod serve;
pub mod server_status_events;

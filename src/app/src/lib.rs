//! Puts the gateway together, runs it, and takes it apart again in order.
//!
//! Never decides anything: the one crate that knows all the others, and nothing but what starts when and ends when.
//!
//! [`serve`] is the order of start and end; `live` puts a new configuration into force; [`server_status_events`] tells
//! the feed what happens to servers.

mod acceptances;
mod live;
mod nodes;
pub mod serve;
pub mod server_status_events;

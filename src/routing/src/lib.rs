//! Resolves names to providers. The [`Router`] actor is the only writer of routing state, and all other code reads the table
//! that it publishes.
//!
//! The Router awaits no I/O. A published [`RouteTable`] never changes: every change publishes a new one.
//!
//! [`table`] decides which provider ([`RouteTarget`]) owns each name, renders the entries of lists, describes tools to the
//! policy and checks arguments. [`RouteDirectory`] is the table as the Executor sees it, and [`subscribers`] manages
//! subscriptions.

pub mod actor;
mod directory;
pub mod subscribers;
pub mod table;

pub use actor::Router;
pub use directory::RouteDirectory;
pub use table::{
    PublishedTable, RouteTable, RouteTarget, ToolRoute, list_entries, resources, ruling, unreached_upstreams, validate,
};

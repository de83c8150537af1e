//! Resolves names to providers. The [`Router`] actor is the only writer of routing state, and all other code reads the table
//! that it publishes.
//!
//! The Router awaits no I/O. A published [`RouteTable`] never changes: every change publishes a new one.
//!
//! [`table`] builds the table: it decides which provider ([`target`]) owns each name, renders the entries of lists and checks
//! arguments. [`ruling`] describes tools to the policy, and [`subscribers`] manages subscriptions.

pub mod actor;
pub mod ruling;
pub mod subscribers;
pub mod table;
pub mod target;

pub use actor::Router;
pub use table::{
    PublishedTable, RouteDirectory, RouteTable, ToolRoute, list_entries, listing, resources, unreached_upstreams,
    validate,
};
pub use target::RouteTarget;

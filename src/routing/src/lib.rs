//! Resolves names to providers. The [`Router`] actor is the only writer of routing state; all others read the table
//! that it publishes.
//!
//! The Router awaits no I/O. A published [`RouteTable`] never changes: every change publishes a new one.
//!
//! [`table`] builds the table: which provider ([`target`]) owns a name, who gets a contested one, the entries of lists
//! and the schemas of arguments. [`ruling`] describes tools to the policy, and [`subscribers`] holds the subscriptions.

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

//! Where a name leads: the [`Router`] actor is the only writer of routing state, everyone else reads what it publishes.
//!
//! The Router never holds a future around I/O; a published [`RouteTable`] never changes, a change makes a new one.
//!
//! [`table`] builds the table: whose a name is ([`target`]), who gets one that several want, what is in lists, what
//! arguments a tool takes; [`ruling`] tells the policy what a tool is; [`subscribers`] has who wants to hear of what.

pub mod actor;
pub mod ruling;
pub mod subscribers;
pub mod table;
pub mod target;

pub use actor::Router;
pub use table::{Directory, Published, RouteTable, ToolRoute, awaited, listing, rendered, resources, validate};
pub use target::Target;

//! Where a name leads: the [`Router`] actor is the only writer of routing state, everyone else reads what it publishes.
//!
//! The Router never holds a future around I/O; a published [`RouteTable`] never changes, a change makes a new one.
//!
//! [`table`] builds the table, [`target`] says whose a name is, [`name_conflicts`], [`aliases`] and [`reserved`] who gets a
//! name that several want; [`ruling`] tells the policy what a tool is, [`validate`] checks arguments against its
//! schema; [`rendered`] and [`listing`] write entries of lists; [`subscribers`] has who wants to hear of what.
//! [`tool_acceptance`] and [`standing_rules`] carry out what reviewers say of tools and of calls to come.

pub mod actor;
pub mod aliases;
pub mod awaited;
pub mod listing;
pub mod name_conflicts;
pub mod rendered;
pub mod reserved;
pub mod resources;
pub mod revision_filter;
pub mod ruling;
pub mod schema_cost;
pub mod server_instructions;
pub mod standing_rules;
pub mod subscribers;
pub mod table;
pub mod target;
pub mod template;
pub mod tool_acceptance;
pub mod validate;

pub use actor::Router;
pub use table::{Directory, Published, RouteTable, ToolRoute};
pub use target::Target;

//! Routing: the [`Router`] actor is the only writer of routing state; everyone else reads the snapshot that it
//! publishes. It answers synchronously and never holds an I/O future.

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

//! The gateway's own tools: how an agent follows, awaits and takes back the changes it proposed.
//!
//! A change of another principal does not exist for an agent. Nothing here decides on a change.

mod view;

pub use view::{pending_output_schema, pending_result};

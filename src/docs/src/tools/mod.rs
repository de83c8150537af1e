//! The interface for clients: tools, their arguments, previews, resources and the prompt.
//!
//! `definitions.rs` defines the tools with the schemas in `schemas.rs`, `args.rs` parses their arguments, and
//! `tenant.rs` resolves the tenant of a call. `reads.rs` answers reads, `plan.rs` checks a write and makes its diff,
//! and `run.rs` carries it out.

pub(crate) mod args;
pub(crate) mod completion;
pub(crate) mod definitions;
mod hits;
pub(crate) mod plan;
pub(crate) mod reads;
pub(crate) mod refusal;
pub(crate) mod resources;
pub(crate) mod run;
mod schemas;
pub(crate) mod tenant;

use countersign_protocol::{ErrorKind, McpError};

/// Runs work on files and databases on the blocking pool. Once started, it runs to its end.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, McpError> + Send + 'static,
) -> Result<T, McpError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| McpError::new(ErrorKind::Internal, "The work on the documents failed."))?
}

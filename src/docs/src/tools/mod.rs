//! What clients see: tools, their arguments, previews, resources and the prompt.
//!
//! `definitions.rs` lists the tools with what `schemas.rs` has, `args.rs` parses their arguments, `whose.rs` says which tenant a call is about. `reads.rs`
//! answers what only reads, `plan.rs` checks a write and makes its diff, `run.rs` does it.

pub(crate) mod args;
pub(crate) mod completion;
pub(crate) mod definitions;
mod found;
pub(crate) mod plan;
pub(crate) mod reads;
pub(crate) mod refusal;
pub(crate) mod resources;
pub(crate) mod run;
mod schemas;
pub(crate) mod whose;

use countersign_protocol::{ErrorKind, McpError};

/// Work on files and databases, on the blocking pool. Once begun it runs to its end.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, McpError> + Send + 'static,
) -> Result<T, McpError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| McpError::new(ErrorKind::Internal, "The work on the documents failed."))?
}

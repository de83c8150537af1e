//! The interface for clients: tools, their arguments, previews, resources and the prompt.
//!
//! `definitions.rs` defines the tools with the schemas of their arguments (`args.rs`) and answers (`answers.rs`), and
//! `tenant.rs` resolves the tenant of a call. `reads.rs` answers reads, `plan.rs` checks a write and makes its diff
//! (`document_diff.rs`), `run.rs` carries it out, and `read_back.rs` reads the document again.

pub(crate) mod answers;
pub(crate) mod args;
pub(crate) mod completion;
pub(crate) mod definitions;
mod document_diff;
pub(crate) mod plan;
pub(crate) mod read_back;
pub(crate) mod reads;
pub(crate) mod refusal;
pub(crate) mod resources;
pub(crate) mod run;
pub(crate) mod tenant;

use serde::Serialize;

use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{ToolResult, text::tool_result};
use countersign_runtime::background;

/// The maximum number of characters of a title, path or note in a text for models or people.
const MAX_SHOWN_CHARS: usize = 200;

/// Runs work on files and databases on the blocking pool. Once started, it runs to its end.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, McpError> + Send + 'static,
) -> Result<T, McpError> {
    background::spawn_blocking(work)
        .await
        .map_err(|_| McpError::new(ErrorKind::Internal, "The work on the documents failed."))?
}

/// Returns a result with a text for models and a structured answer.
fn result(text: &str, structured: &impl Serialize) -> Result<ToolResult, McpError> {
    tool_result(text, structured).map_err(|_| McpError::new(ErrorKind::Internal, "The answer could not be written."))
}

//! Completes the decisions of reviewers, even if the client that asked for one disconnects.

use countersign_protocol::{ErrorKind, McpError};

/// Runs a decision in its own task, so that it reaches the route table and the feed even if its request is dropped after the
/// store has recorded it.
///
/// # Errors
/// The error of the decision, or `INTERNAL_ERROR` if its task panicked.
pub(crate) async fn run_to_completion<T: Send + 'static>(
    decision: impl Future<Output = Result<T, McpError>> + Send + 'static,
) -> Result<T, McpError> {
    tokio::spawn(decision).await.unwrap_or_else(|error| {
        tracing::error!(%error, "a decision of a reviewer was not completed");
        Err(McpError::new(
            ErrorKind::Internal,
            "the decision was not completed; look at its effect before you repeat it",
        ))
    })
}

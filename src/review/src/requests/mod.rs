//! Requests that endpoints make through a [`crate::Changes`] handle, one file each; `checks.rs` has the checks and results
//! that they share.

mod checks;
mod decide;
mod edit;
pub mod plan;
pub mod plan_decision;
pub mod propose;
mod refresh;

use tokio::sync::oneshot;

use crate::{ChangeRequestError, review_core::ReviewCore};
use countersign_protocol::McpError;
use countersign_runtime::background::UnfinishedWorkError;

impl ReviewCore {
    /// Runs an endpoint's work to completion on the Executor's thread.
    ///
    /// # Errors
    /// The errors of the work; `SHUTTING_DOWN` if the thread has ended, and `INTERNAL_ERROR` if the work did not end.
    pub(crate) async fn run_on_executor<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ChangeRequestError>> + Send + 'static,
    ) -> Result<T, ChangeRequestError> {
        let (reply, answer) = oneshot::channel();
        let is_scheduled = self.executor_thread.spawn(async move {
            let _ = reply.send(work.await);
        });
        if !is_scheduled {
            return Err(McpError::shutting_down().into());
        }
        answer.await.unwrap_or_else(|_| Err(McpError::from(UnfinishedWorkError).into()))
    }
}

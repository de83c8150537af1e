//! Work in the background: tasks on this thread, and blocking work on other threads.
//!
//! The code of tokio for a task, about 2 KB, is compiled again for each type of future or closure, and for a future twice.
//! Here the work is boxed, so that all tasks share that code. A task costs much more than an allocation; only the tasks that
//! calls to upstreams start are spawned without one.

use std::{pin::Pin, sync::Arc};

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use countersign_protocol::{ErrorKind, McpError};

/// The work panicked, or the program ended before it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work in the background ended without a result")]
pub struct UnfinishedWorkError;

impl From<UnfinishedWorkError> for McpError {
    fn from(unfinished: UnfinishedWorkError) -> Self {
        Self::new(ErrorKind::Internal, unfinished.to_string())
    }
}

/// Spawns a task on this thread, as [`actix::spawn`] does.
pub fn spawn(work: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
    spawn_boxed(Box::pin(work))
}

/// Spawns a task on this thread, and returns a future that waits for its result. The task runs to its end even if that
/// future is dropped.
///
/// # Errors
/// [`UnfinishedWorkError`] if the task panicked.
pub fn spawn_with_result<T: 'static>(
    work: impl Future<Output = T> + 'static,
) -> impl Future<Output = Result<T, UnfinishedWorkError>> {
    let result = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&result);
    let task = spawn(async move {
        let value = work.await;
        *slot.lock() = Some(value);
    });
    wait_for_result(task, result)
}

/// Runs work on a thread for blocking work, and returns a future that waits for its result. The work begins at once, and runs
/// to its end even if that future is dropped.
///
/// # Errors
/// [`UnfinishedWorkError`] if the work panicked, or if it did not begin because the program ends.
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, UnfinishedWorkError>> {
    let result = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&result);
    let task = spawn_boxed_blocking(Box::new(move || {
        let value = work();
        *slot.lock() = Some(value);
    }));
    wait_for_result(task, result)
}

fn spawn_boxed(work: Pin<Box<dyn Future<Output = ()>>>) -> JoinHandle<()> {
    actix::spawn(work)
}

fn spawn_boxed_blocking(work: Box<dyn FnOnce() + Send>) -> JoinHandle<()> {
    tokio::task::spawn_blocking(work)
}

async fn wait_for_result<T>(task: JoinHandle<()>, result: Arc<Mutex<Option<T>>>) -> Result<T, UnfinishedWorkError> {
    // Work that panicked has left no result.
    let _ = task.await;
    result.lock().take().ok_or(UnfinishedWorkError)
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[actix::test]
    async fn result_of_task_and_of_blocking_work_is_returned() {
        assert_eq!(spawn_with_result(async { 1 }).await, Ok(1));
        assert_eq!(spawn_blocking(|| 2).await, Ok(2));
    }

    #[actix::test]
    async fn work_that_panics_has_no_result() {
        assert_eq!(spawn_with_result::<()>(async { panic!("the task") }).await, Err(UnfinishedWorkError));
        assert_eq!(spawn_blocking::<()>(|| panic!("the work")).await, Err(UnfinishedWorkError));
    }

    #[actix::test]
    async fn work_runs_to_its_end_if_nobody_waits() {
        let (sender, receiver) = oneshot::channel();
        drop(spawn_with_result(async move { sender.send(1) }));
        assert_eq!(receiver.await, Ok(1));
        let (sender, receiver) = oneshot::channel();
        drop(spawn_blocking(move || sender.send(2)));
        assert_eq!(receiver.await, Ok(2));
    }

    #[actix::test]
    async fn handle_of_task_aborts_it() {
        let task = spawn(std::future::pending());
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
}

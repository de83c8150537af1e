//! Runs work of an upstream on the thread of all upstreams, which keeps the futures that must not change their thread.

use tokio::sync::oneshot;

use super::Upstream;
use countersign_runtime::background;

impl Upstream {
    /// Spawns a task on the thread of the upstreams. Drops `work` if the upstream was not started or the thread has ended.
    pub(crate) fn spawn_on_thread<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce() -> F + Send + 'static) {
        if let Some(thread) = self.thread.get() {
            thread.spawn_fn(move || drop(background::spawn(work())));
        }
    }

    /// Runs work on the thread of the upstreams and returns its result. The work runs to its end even if the returned future
    /// is dropped. Returns `None` if the upstream was not started, or the thread ends first.
    pub(crate) async fn run_on_thread<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Option<T> {
        let (sender, result) = oneshot::channel();
        self.spawn_on_thread(move || async move { drop(sender.send(work().await)) });
        result.await.ok()
    }
}

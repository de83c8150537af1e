//! Threads for large messages. The cost of a message (parsing, validating, hashing, comparing, writing) grows with its
//! size, and meanwhile its thread serves no other connection: a call with 300,000 keys in its arguments would delay a
//! reviewer. A large message ([`is_large`]) is therefore handled here from its first byte to its response, by the same
//! code as a small one.
//!
//! Large messages of one principal share a thread, so that a principal cannot occupy all threads.
//! Threads are started when they are first needed.

use std::{
    cell::Cell,
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use actix::Arbiter;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{
    background::{self, UnfinishedWorkError},
    is_large, reclaim,
};
use countersign_protocol::McpError;

thread_local! {
    /// `true` on the threads of this pool.
    static IS_LARGE_MESSAGE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// The pool of threads for large messages.
pub struct LargeMessageThreads {
    threads: Box<[OnceLock<Arbiter>]>,
    assignments: Mutex<Assignments>,
}

#[derive(Default)]
struct Assignments {
    by_principal: HashMap<String, PrincipalThread>,
    /// Number of principals on each thread.
    load: Vec<usize>,
}

/// The thread of a principal, as long as messages of the principal are in progress.
struct PrincipalThread {
    /// The index of the thread.
    thread: usize,
    /// The number of messages in progress.
    messages: usize,
}

/// The assignment of a message to a thread, which ends when it is dropped.
struct MessageAssignment {
    pool: Arc<LargeMessageThreads>,
    principal: String,
    thread: usize,
}

impl Drop for MessageAssignment {
    fn drop(&mut self) {
        let mut assignments = self.pool.assignments.lock();
        if let Some(assigned) = assignments.by_principal.get_mut(&self.principal) {
            assigned.messages -= 1;
            if assigned.messages == 0 {
                assignments.by_principal.remove(&self.principal);
                assignments.load[self.thread] -= 1;
            }
        }
    }
}

impl LargeMessageThreads {
    /// Creates a pool with this number of threads; 0 means one for each core, and at least two.
    pub fn new(threads: usize) -> Arc<Self> {
        let cores = || std::thread::available_parallelism().map_or(2, usize::from).max(2);
        let threads = if threads == 0 { cores() } else { threads };
        Arc::new(Self {
            threads: (0..threads).map(|_| OnceLock::new()).collect(),
            assignments: Mutex::new(Assignments { by_principal: HashMap::new(), load: vec![0; threads] }),
        })
    }

    /// Assigns a message to the thread of its principal, or to the thread with the fewest principals.
    fn assign_thread(self: &Arc<Self>, principal: &str) -> MessageAssignment {
        let mut assignments = self.assignments.lock();
        let Assignments { by_principal, load } = &mut *assignments;
        let thread = match by_principal.get_mut(principal) {
            Some(assigned) => {
                assigned.messages += 1;
                assigned.thread
            }
            None => {
                let thread = (0..load.len()).min_by_key(|thread| load[*thread]).unwrap_or(0);
                load[thread] += 1;
                by_principal.insert(principal.to_owned(), PrincipalThread { thread, messages: 1 });
                thread
            }
        };
        MessageAssignment { pool: Arc::clone(self), principal: principal.to_owned(), thread }
    }

    /// Runs the future that `make_work` returns on the principal's thread. If the caller stops waiting, the future is
    /// dropped at its next await, or is never created. Must be called on a thread of the actix system.
    ///
    /// # Errors
    /// `SHUTTING_DOWN` if the threads have ended, and `INTERNAL_ERROR` if the work panicked.
    pub async fn run<F, W>(self: &Arc<Self>, principal: &str, make_work: F) -> Result<W::Output, McpError>
    where
        F: FnOnce() -> W + Send + 'static,
        W: Future + 'static,
        W::Output: Send + 'static,
    {
        let assignment = self.assign_thread(principal);
        let thread = self.threads[assignment.thread].get_or_init(|| {
            let thread = Arbiter::new();
            thread.spawn_fn(|| IS_LARGE_MESSAGE_THREAD.set(true));
            thread
        });
        let (mut sender, receiver) = oneshot::channel();
        let is_scheduled = thread.spawn_fn(move || {
            background::spawn(async move {
                let _assignment = assignment;
                if sender.is_closed() {
                    return;
                }
                reclaim::collect_before_large();
                let work = make_work();
                tokio::select! {
                    biased;
                    () = sender.closed() => {}
                    output = work => {
                        let _ = sender.send(output);
                    }
                }
                reclaim::collect_after_large();
            });
        });
        if !is_scheduled {
            return Err(McpError::shutting_down());
        }
        receiver.await.map_err(|_| UnfinishedWorkError.into())
    }

    /// Runs the future that `make_work` returns for a message of this size: in place if the message is small, and otherwise
    /// as [`Self::run`] does.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub async fn run_sized<F, W>(
        self: &Arc<Self>,
        bytes: usize,
        principal: &str,
        make_work: F,
    ) -> Result<W::Output, McpError>
    where
        F: FnOnce() -> W + Send + 'static,
        W: Future + 'static,
        W::Output: Send + 'static,
    {
        if is_large(bytes) { self.run(principal, make_work).await } else { Ok(make_work().await) }
    }
}

/// Runs work of the size `bytes` where it delays no connection: in place if it is small or this thread handles large
/// messages, and otherwise on a thread for blocking work.
///
/// # Errors
/// `INTERNAL_ERROR` if the work panicked on another thread.
pub async fn offload<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, McpError> {
    if !is_large(bytes) {
        return Ok(work());
    }
    if IS_LARGE_MESSAGE_THREAD.get() {
        // A further thread would keep memory of its own.
        reclaim::collect_before_large();
        return Ok(work());
    }
    let work = move || {
        // Frees what earlier large work left on this thread. Its values have been dropped by now.
        reclaim::collect();
        work()
    };
    let outcome = background::spawn_blocking(work).await;
    reclaim::collect_after_large();
    outcome.map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::LARGE_MESSAGE_BYTES;

    async fn thread_of(threads: &Arc<LargeMessageThreads>, principal: &str) -> thread::ThreadId {
        threads.run(principal, || async { thread::current().id() }).await.unwrap()
    }

    #[actix::test]
    async fn each_principal_has_its_own_thread() {
        let threads = LargeMessageThreads::new(2);
        let (release, released) = oneshot::channel::<()>();
        let first = {
            let threads = Arc::clone(&threads);
            actix::spawn(async move { threads.run("a", || async { (thread::current().id(), released.await) }).await })
        };
        // The first message waits, and other messages of the principal run beside it.
        while threads.assignments.lock().by_principal.is_empty() {
            tokio::task::yield_now().await;
        }
        let concurrent = thread_of(&threads, "a").await;
        assert_ne!(concurrent, thread_of(&threads, "b").await);
        assert_ne!(concurrent, thread::current().id());
        release.send(()).unwrap();
        assert_eq!(first.await.unwrap().unwrap().0, concurrent);
        // The assignment ends on its own thread, shortly after the response.
        while !threads.assignments.lock().by_principal.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(threads.assignments.lock().load, [0, 0]);
    }

    #[actix::test]
    async fn abandoned_work_is_dropped() {
        let threads = LargeMessageThreads::new(1);
        let (dropped, notified) = oneshot::channel::<()>();
        let work = threads.run("a", move || async move {
            let _dropped = dropped;
            std::future::pending::<()>().await;
        });
        assert!(futures_util::FutureExt::now_or_never(work).is_none(), "it runs on another thread");
        notified.await.unwrap_err();
    }

    #[actix::test]
    async fn small_work_runs_on_current_thread() {
        let current = thread::current().id();
        let threads = LargeMessageThreads::new(1);
        for (bytes, is_in_place) in [(LARGE_MESSAGE_BYTES, true), (LARGE_MESSAGE_BYTES + 1, false)] {
            let offloaded = offload(bytes, || thread::current().id()).await.unwrap();
            assert_eq!(offloaded == current, is_in_place);
            let run = threads.run_sized(bytes, "a", || async { thread::current().id() }).await.unwrap();
            assert_eq!(run == current, is_in_place);
        }
    }

    #[actix::test]
    async fn large_work_of_a_large_message_stays_on_its_thread() {
        let work = || async {
            (thread::current().id(), offload(LARGE_MESSAGE_BYTES + 1, || thread::current().id()).await.unwrap())
        };
        let (message, work) = LargeMessageThreads::new(1).run("a", work).await.unwrap();
        assert_eq!(work, message);
    }
}

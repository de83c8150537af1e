//! Threads for large messages. What one of them costs (to be parsed, validated, hashed, compared, written) grows with its
//! bytes, and a thread that serves connections stands still meanwhile, for everybody: a call whose arguments have 300,000
//! keys would make a reviewer wait. So a message above [`LARGE_MESSAGE_BYTES`] is handled here from its first byte to its answer, by
//! the very code that handles a small one. Small ones never come here.
//!
//! All that one principal sends runs on one of these threads at a time, so that nobody occupies all of them. The threads
//! are started when they are first needed.

use std::{
    collections::HashMap,
    mem,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use actix::{Arbiter, ArbiterHandle};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::reclaim;
use countersign_protocol::{ErrorKind, McpError};

/// Bytes above which a message, a body or a change is large: what is below costs less than a millisecond or so, and a
/// hop to another thread would cost it more than it spares others.
pub const LARGE_MESSAGE_BYTES: usize = 64 * 1024;

/// See the module's page.
pub struct LargeMessageThreads {
    threads: Box<[OnceLock<Arbiter>]>,
    leases: Mutex<Leases>,
}

#[derive(Default)]
struct Leases {
    by_principal: HashMap<String, Lease>,
    /// Principals on each thread.
    load: Vec<usize>,
}

/// Where a principal's messages run as long as there are any.
struct Lease {
    thread: usize,
    messages: usize,
}

/// A message's place; gives it back when it is over.
struct ThreadLease {
    lanes: Arc<LargeMessageThreads>,
    principal: String,
    thread: usize,
}

impl Drop for ThreadLease {
    fn drop(&mut self) {
        let mut leases = self.lanes.leases.lock();
        if let Some(lease) = leases.by_principal.get_mut(&self.principal) {
            lease.messages -= 1;
            if lease.messages == 0 {
                leases.by_principal.remove(&self.principal);
                leases.load[self.thread] -= 1;
            }
        }
    }
}

impl LargeMessageThreads {
    /// With so many threads; 0 is one for each core, and at least two.
    #[must_use]
    pub fn new(threads: usize) -> Arc<Self> {
        let cores = || std::thread::available_parallelism().map_or(2, usize::from).max(2);
        let threads = if threads == 0 { cores() } else { threads };
        Arc::new(Self {
            threads: (0..threads).map(|_| OnceLock::new()).collect(),
            leases: Mutex::new(Leases { by_principal: HashMap::new(), load: vec![0; threads] }),
        })
    }

    fn lease_thread(self: &Arc<Self>, principal: &str) -> ThreadLease {
        let mut leases = self.leases.lock();
        let Leases { by_principal: of, load } = &mut *leases;
        let lane = match of.get_mut(principal) {
            Some(lease) => {
                lease.messages += 1;
                lease.thread
            }
            None => {
                // Where the fewest others are.
                let lane = (0..load.len()).min_by_key(|lane| load[*lane]).unwrap_or(0);
                load[lane] += 1;
                of.insert(principal.to_owned(), Lease { thread: lane, messages: 1 });
                lane
            }
        };
        ThreadLease { lanes: Arc::clone(self), principal: principal.to_owned(), thread: lane }
    }

    /// Makes a future on the principal's thread and runs it there to its end. Nobody waits for it any more: it is not
    /// begun, or given up at its next wait. Must be called on a thread of the actix system.
    ///
    /// # Errors
    /// `SHUTTING_DOWN` once the threads have ended.
    pub async fn run<F, W>(self: &Arc<Self>, principal: &str, make: F) -> Result<W::Output, McpError>
    where
        F: FnOnce() -> W + Send + 'static,
        W: Future + 'static,
        W::Output: Send + 'static,
    {
        let place = self.lease_thread(principal);
        let thread = self.threads[place.thread].get_or_init(Arbiter::new);
        let (mut sender, receiver) = oneshot::channel();
        let sent = thread.spawn_fn(move || {
            actix::spawn(async move {
                let _place = place;
                if sender.is_closed() {
                    return;
                }
                reclaim::collect_before_large();
                let work = make();
                tokio::select! {
                    biased;
                    () = sender.closed() => {}
                    done = work => {
                        let _ = sender.send(done);
                    }
                }
                reclaim::collect_after_large();
            });
        });
        let ended = || McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down");
        if !sent {
            return Err(ended());
        }
        receiver.await.map_err(|_| ended())
    }
}

/// Something large that was made on one of these threads and is dropped there, wherever it was used meanwhile, so that its
/// memory is free at once ([`reclaim`]): thirty refused handshakes of 7 MiB held 230 MiB (`scripts/memory handshakes`).
pub struct DropOnOwnerThread<T: Default + Send + 'static> {
    value: T,
    owner: ArbiterHandle,
}

impl<T: Default + Send + 'static> DropOnOwnerThread<T> {
    /// At home on the thread that calls this, which must be one of an actix system.
    #[must_use]
    pub fn on_current_thread(value: T) -> Self {
        Self { value, owner: Arbiter::current() }
    }
}

impl<T: Default + Send + 'static> Deref for DropOnOwnerThread<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Default + Send + 'static> Drop for DropOnOwnerThread<T> {
    fn drop(&mut self) {
        let value = mem::take(&mut self.value);
        // Without the thread, at the very end, it is dropped here.
        self.owner.spawn_fn(move || drop(value));
    }
}

/// Runs what grows with `bytes` away from this thread, if it is large; for what is not a message of a principal's.
///
/// # Errors
/// `INTERNAL_ERROR` where it broke off.
pub async fn offload<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, McpError> {
    if bytes <= LARGE_MESSAGE_BYTES {
        return Ok(work());
    }
    let work = move || {
        // What the thread made before is dropped by now.
        reclaim::collect();
        work()
    };
    let done = tokio::task::spawn_blocking(work).await;
    reclaim::collect_after_large();
    done.map_err(|_| McpError::new(ErrorKind::Internal, "the work broke off"))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    async fn thread_of(lanes: &Arc<LargeMessageThreads>, principal: &str) -> thread::ThreadId {
        lanes.run(principal, || async { thread::current().id() }).await.unwrap()
    }

    #[actix::test]
    async fn each_principal_has_its_own_thread() {
        let lanes = LargeMessageThreads::new(2);
        let (hold, held) = oneshot::channel::<()>();
        let first = {
            let lanes = Arc::clone(&lanes);
            actix::spawn(async move { lanes.run("a", || async { (thread::current().id(), held.await) }).await })
        };
        // It waits there, and others of its principal come beside it.
        while lanes.leases.lock().by_principal.is_empty() {
            tokio::task::yield_now().await;
        }
        let beside = thread_of(&lanes, "a").await;
        assert_ne!(beside, thread_of(&lanes, "b").await);
        assert_ne!(beside, thread::current().id());
        hold.send(()).unwrap();
        assert_eq!(first.await.unwrap().unwrap().0, beside);
        // Its place is given back on its own thread, a moment after the answer.
        while !lanes.leases.lock().by_principal.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(lanes.leases.lock().load, [0, 0]);
    }

    #[actix::test]
    async fn abandoned_work_is_dropped() {
        let lanes = LargeMessageThreads::new(1);
        let (dropped, told) = oneshot::channel::<()>();
        let work = lanes.run("a", move || async move {
            let _dropped = dropped;
            std::future::pending::<()>().await;
        });
        assert!(futures_util::FutureExt::now_or_never(work).is_none(), "it runs elsewhere");
        told.await.unwrap_err();
    }

    #[derive(Default)]
    struct DropProbe(Option<std::sync::mpsc::Sender<thread::ThreadId>>);

    impl Drop for DropProbe {
        fn drop(&mut self) {
            if let Some(told) = &self.0 {
                told.send(thread::current().id()).unwrap();
            }
        }
    }

    #[actix::test]
    async fn value_is_dropped_on_owner_thread() {
        let lanes = LargeMessageThreads::new(1);
        let (sender, dropped) = std::sync::mpsc::channel();
        let make =
            || async move { (thread::current().id(), DropOnOwnerThread::on_current_thread(DropProbe(Some(sender)))) };
        let (home, value) = lanes.run("a", make).await.unwrap();
        assert!(value.0.is_some());
        drop(value);
        assert_eq!(dropped.recv().unwrap(), home);
        assert_ne!(home, thread::current().id());
    }

    #[actix::test]
    async fn small_work_runs_on_current_thread() {
        let here = thread::current().id();
        assert_eq!(offload(LARGE_MESSAGE_BYTES, || thread::current().id()).await.unwrap(), here);
        assert_ne!(offload(LARGE_MESSAGE_BYTES + 1, || thread::current().id()).await.unwrap(), here);
    }
}

//! A few threads with one read-only connection each. Queries may come from any thread or runtime, over a bounded
//! queue.

use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
};

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::open::open_reader;
use crate::{StoreError, StoreFuture, health::Health};
use countersign_runtime::reclaim;

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// The maximum queries that wait for a thread. Further queries are refused.
const MAX_QUEUED_READS: usize = 4096;

pub(super) struct Readers {
    jobs: Mutex<Option<SyncSender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    health: Arc<Health>,
}

impl Readers {
    /// Opens `count` connections and starts their threads.
    pub(super) fn start(dir: &Path, count: usize, health: &Arc<Health>) -> Result<Self, StoreError> {
        let (jobs, queue) = sync_channel::<Job>(MAX_QUEUED_READS);
        let queue = Arc::new(Mutex::new(queue));
        let mut threads = Vec::with_capacity(count);
        for n in 0..count.max(1) {
            let conn = open_reader(dir)?;
            let queue = Arc::clone(&queue);
            let thread = std::thread::Builder::new()
                .name(format!("store-read-{n}"))
                .spawn(move || serve(&conn, &queue))
                .map_err(|e| StoreError::data_dir(dir, e))?;
            threads.push(thread);
        }
        Ok(Self { jobs: Mutex::new(Some(jobs)), threads: Mutex::new(threads), health: Arc::clone(health) })
    }

    /// Runs the query on one of the threads.
    pub(super) fn read<T, F>(&self, query: F) -> StoreFuture<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let health = Arc::clone(&self.health);
        let job: Job = Box::new(move |conn| {
            // The query is skipped if the caller has given up.
            if !reply.is_closed() {
                let result = query(conn);
                if let Err(error) = &result {
                    health.record_damage(error);
                }
                let _ = reply.send(result);
            }
        });
        let jobs = self.jobs.lock();
        let refused = match jobs.as_ref().map(|jobs| jobs.try_send(job)) {
            Some(Ok(())) => None,
            Some(Err(TrySendError::Full(_))) => Some(StoreError::QueueFull),
            Some(Err(TrySendError::Disconnected(_))) | None => Some(StoreError::Closed),
        };
        Box::pin(async move {
            match refused {
                Some(error) => Err(error),
                None => answer.await.unwrap_or(Err(StoreError::Closed)),
            }
        })
    }

    /// Ends the threads once the queue is empty.
    pub(super) fn close(&self) {
        drop(self.jobs.lock().take());
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!("a reading thread of the store panicked");
            }
        }
    }
}

fn serve(conn: &Connection, queue: &Mutex<Receiver<Job>>) {
    while let Some(job) = next(queue) {
        job(conn);
    }
}

fn next(queue: &Mutex<Receiver<Job>>) -> Option<Job> {
    // After large reads, this thread returns freed memory to the system while it waits.
    while let Some(pause) = reclaim::time_to_next_round() {
        let queue = queue.try_lock_for(pause);
        match queue.map_or(Err(RecvTimeoutError::Timeout), |queue| queue.recv_timeout(pause)) {
            Ok(job) => {
                reclaim::collect_before_large();
                return Some(job);
            }
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => reclaim::run_round(),
        }
    }
    // One thread holds the lock and waits for a job, and the others wait for the lock.
    queue.lock().recv().ok()
}

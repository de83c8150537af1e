//! Starts the actor, the Executor, the feed and the expiry over a store, recovers what the last process left, and
//! ends them in order.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use actix::{Actor, Arbiter, System};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Changes, PendingConfig,
    actor::{
        Approved, Metrics, PendingChanges,
        daily::{self, Daily},
        duplicate_calls::DuplicateCalls,
        ledger::{Counts, Deadlines, Ledger},
        order::Order,
        proposal_rate::Flood,
        watch::Watchers,
    },
    commit::StepError,
    executor, follow,
    inner::Inner,
    inquiries::Inquiries,
    upkeep::{expiry, orphans, prune, votes},
};
use countersign_domain::changes::{
    ChangeFault, ChangeState,
    machine::{ChangeEvent, SYSTEM},
};
use countersign_feed::Feed;
use countersign_protocol::ErrorKind;
use countersign_provider::ProviderDirectory;
use countersign_store::{LiveChange, Record, Store, StoreError, WriteError};

/// What could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("pending changes need a running actix system")]
    NoSystem,
    #[error("a thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Changes {
    /// Starts everything on its own threads, within a running actix system. When it returns, what the last process
    /// left running is of unknown outcome; what it left approved is on its way, and waits for its provider for up
    /// to [`PendingConfig::provider_grace`], so the directory may still be filling. Install the metrics recorder
    /// before.
    ///
    /// # Errors
    /// [`StartError`]
    pub async fn start(
        store: Arc<dyn Store>,
        directory: Arc<dyn ProviderDirectory>,
        config: PendingConfig,
    ) -> Result<Self, StartError> {
        if System::try_current().is_none() {
            return Err(StartError::NoSystem);
        }
        let heads = store.heads().await?;
        let live = store.live().await?;
        let counts = Counts::new(&store.counts().await?);
        let feed = Feed::new(Arc::clone(&store), heads.event, config.feed_ring);
        let nodes = store.nodes();
        let gap = Arc::new(Notify::new());
        let watchers = Watchers::new(config.max_waiters);
        let deadlines = Arc::new(Deadlines::default());
        let duplicates = Arc::new(DuplicateCalls::default());
        let mut daily = Daily::new(config.max_bytes_per_day);
        daily.restore(&store.proposed_since(daily::since((config.clock)())).await?);
        let mut ledger = Ledger::new(config.max_pending, config.max_pending_bytes as u64);
        for change in &live {
            ledger.restore(&change.id, &change.principal, change.bytes, change.state);
            counts.moved(None, change.state);
            if let Some(call) = &change.call_hash {
                duplicates.add(call, &change.id);
            }
            if !matches!(change.state, ChangeState::Executing | ChangeState::OutcomeUnknown) {
                deadlines.insert(&change.id, change.expires_at, (config.clock)());
            }
        }
        let writer = Arbiter::try_new()?;
        let executor = Arbiter::try_new()?;
        let (approved, to_run) = mpsc::unbounded_channel();
        let outcomes = mpsc::unbounded_channel();
        let actor = PendingChanges {
            store: Arc::clone(&store),
            feed: feed.clone(),
            watchers: Arc::clone(&watchers),
            ledger,
            daily,
            counts: Arc::clone(&counts),
            deadlines: Arc::clone(&deadlines),
            duplicates: Arc::clone(&duplicates),
            clock: Arc::clone(&config.clock),
            approved: approved.clone(),
            outcomes: (outcomes.0, Some(outcomes.1)),
            collected: Arc::default(),
            order: Order::new(heads.event),
            gap: Arc::clone(&gap),
            metrics: Metrics::new(),
        };
        let addr = PendingChanges::start_in_arbiter(&writer.handle(), move |_| actor);
        let (ended, executor_ended) = oneshot::channel();
        let inner = Arc::new(Inner {
            store,
            directory,
            addr,
            executor: executor.handle(),
            writer: writer.handle(),
            feed,
            watchers,
            counts,
            deadlines,
            duplicates,
            inquiries: Inquiries::default(),
            flood: Flood::new(config.max_proposals_per_minute),
            nodes,
            gap,
            followed: CancellationToken::new(),
            places: Arc::new(Semaphore::new(config.queue)),
            place_bytes: Arc::new(Semaphore::new(config.queue_bytes / 1024)),
            started: Instant::now(),
            closing: AtomicBool::new(false),
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            abandon: CancellationToken::new(),
            executor_ended: Mutex::new(Some(executor_ended)),
            executor_gone: CancellationToken::new(),
            config,
        });
        // From now on: what is written next may come after what others have written meanwhile.
        executor.spawn(follow::run(Arc::clone(&inner)));
        restore(&inner, &live).await?;
        recover(&inner, &live, &approved).await?;
        // The actor has the last sender: when it ends, the Executor does.
        drop(approved);
        let running = Arc::clone(&inner);
        let gone = inner.executor_gone.clone().drop_guard();
        executor.spawn(async move {
            let _gone = gone;
            executor::run(running, to_run).await;
            let _ = ended.send(());
        });
        executor.spawn(expiry::run(Arc::clone(&inner)));
        executor.spawn(prune::run(Arc::clone(&inner)));
        executor.spawn(votes::run(Arc::clone(&inner)));
        executor.spawn(orphans::run(Arc::clone(&inner)));
        executor.spawn(follow::listen(Arc::clone(&inner)));
        Ok(Self { inner })
    }

    /// Whether its actor, its Executor and its store are alive. If not, only a restart of the process helps.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.inner.addr.connected() && !self.inner.executor_gone.is_cancelled() && self.inner.store.is_open()
    }

    /// What keeps the store from working at the moment, if anything does; it recovers by itself where it can.
    #[must_use]
    pub fn store_trouble(&self) -> Option<StoreError> {
        self.inner.store.trouble()
    }

    /// Ends in order: no new work, running calls get until the deadline and are then of unknown outcome, subscribers
    /// and waiters get what there is and then the end, the store is closed. Call it once, within the actix system.
    pub async fn shutdown(&self, deadline: Duration) {
        let inner = &self.inner;
        inner.closing.store(true, Ordering::Release);
        inner.stop.cancel();
        inner.watchers.close();
        let ended = inner.executor_ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut ended) = ended
            && tokio::time::timeout(deadline, &mut ended).await.is_err()
        {
            tracing::warn!("changes were still running at the deadline; their outcome is unknown");
            inner.kill.cancel();
            if tokio::time::timeout(Duration::from_secs(2), &mut ended).await.is_err() {
                inner.abandon.cancel();
                let _ = tokio::time::timeout(Duration::from_secs(1), &mut ended).await;
            }
        }
        // What endpoints have sent is still written and announced: every place is free again after it.
        let places = u32::try_from(inner.config.queue).unwrap_or(u32::MAX);
        let drained = inner.places.acquire_many(places);
        if tokio::time::timeout(Duration::from_secs(5), drained).await.is_err() {
            tracing::warn!("some transitions were still on their way to the store at the end");
        }
        inner.followed.cancel();
        inner.feed.close();
        let store = Arc::clone(&inner.store);
        // The store's threads are joined: not on a thread that others need.
        let closed = std::thread::Builder::new().name("store-close".into()).spawn(move || store.close());
        match closed {
            Ok(thread) => {
                while !thread.is_finished() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
            Err(_) => inner.store.close(),
        }
        inner.executor.stop();
        inner.writer.stop();
    }
}

/// On a backup, what was approved when it was taken may have run since, and what was pending may have been decided: a
/// person looks again at the former, and the trail says when all of this happened.
async fn restore(inner: &Arc<Inner>, live: &[LiveChange]) -> Result<(), StartError> {
    let Some(taken) = inner.store.backup_of().await? else { return Ok(()) };
    tracing::warn!(%taken, "this store was restored from a backup; what was approved then waits for a reviewer again");
    for left in live.iter().filter(|left| left.state == ChangeState::Approved) {
        let Some(change) = inner.store.get(&left.id).await? else { continue };
        let fault = ChangeFault {
            code: ErrorKind::ChangeStale.code().into(),
            message: format!(
                "Restored from a backup of {taken}: it may have run since; look at its target before you approve it again"
            ),
        };
        match inner.step(&change, ChangeEvent::MarkStale { fault }, None).await {
            Ok(_) => {}
            Err(StepError::Store(error)) => return Err(error.into()),
            Err(error) => return Err(StoreError::BadRecord(format!("{}: {error:?}", left.id)).into()),
        }
    }
    // Only now: whoever crashes before begins anew.
    let details = serde_json::json!({ "backupOf": taken }).to_string();
    let record = Record::new("restored", inner.now(), SYSTEM, details);
    let (reply, answer) = oneshot::channel();
    inner.store.submit_restored(
        record,
        Box::new(move |result, _| {
            let _ = reply.send(result);
        }),
    );
    match answer.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(WriteError::Store(error))) => Err(error.into()),
        Ok(Err(_)) | Err(_) => Err(StoreError::Closed.into()),
    }
}

/// What the last process left, and what nodes that are gone have left: what was executing has an unknown outcome, what was
/// approved is to be run, by this node unless others are at it.
async fn recover(
    inner: &Arc<Inner>,
    live: &[LiveChange],
    approved: &mpsc::UnboundedSender<Approved>,
) -> Result<(), StartError> {
    orphans::sweep(inner).await?;
    let others = inner.nodes.live() > 1;
    for left in live.iter().filter(|left| left.state == ChangeState::Approved) {
        // A restored one is approved no more.
        if let Some(change) = inner.store.get(&left.id).await?.filter(|c| c.state == ChangeState::Approved) {
            // By the clock by which it was approved, where that may be another one.
            let now = if others { change.updated_at } else { inner.now() };
            let _ = approved.send(Approved::of(&change, now).left_by_others(others));
        }
    }
    Ok(())
}

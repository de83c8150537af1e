//! Starts the actor, the Executor, the feed and the upkeep tasks on a store, recovers the changes that the last process
//! left open, and shuts everything down in order.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use actix::{Actor, Arbiter, AsyncContext, System};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Changes, PendingConfig,
    actor::StepError,
    actor::{
        ApprovedChange, Metrics, PendingChanges,
        daily_volume::{self, DailyVolume},
        duplicate_calls::DuplicateCalls,
        ledger::{Counts, Deadlines, Ledger},
        order::AnnouncementOrder,
        proposal_rate::ProposalRate,
        watch::Watchers,
    },
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
use countersign_store::{LiveChange, Record, Store, StoreError, WriteError, WriteRequest, write};

/// The reason why changes could not be started.
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
    /// Starts everything on its own threads, within a running actix system. When it returns, changes that the last
    /// process left running have an unknown outcome, and approved ones are queued. They wait for their provider for up to
    /// [`PendingConfig::provider_grace`], so the directory may still be incomplete. Install the metrics recorder first.
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
        let live = store.live_changes().await?;
        let counts = Counts::new(&store.count_by_state().await?);
        let feed = Feed::new(Arc::clone(&store), heads.event, config.feed_ring);
        let nodes = store.nodes();
        let gap = Arc::new(Notify::new());
        let watchers = Watchers::new(config.max_waiters);
        let deadlines = Arc::new(Deadlines::default());
        let duplicates = Arc::new(DuplicateCalls::default());
        let mut daily = DailyVolume::new(config.max_bytes_per_day);
        daily.restore(&store.proposals_since(daily_volume::window_start((config.clock)())).await?);
        let mut ledger = Ledger::new(config.max_pending, config.max_pending_bytes as u64);
        for change in &live {
            ledger.restore(&change.id, &change.principal, change.bytes, change.state);
            counts.record_transition(None, change.state);
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
        let (outcomes, mut answered) = mpsc::unbounded_channel();
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
            outcomes,
            collected: Arc::default(),
            announcements: AnnouncementOrder::new(heads.event),
            gap: Arc::clone(&gap),
            metrics: Metrics::new(),
        };
        let addr = PendingChanges::start_in_arbiter(&writer.handle(), move |context| {
            context.add_stream(futures_util::stream::poll_fn(move |cx| answered.poll_recv(cx)));
            actor
        });
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
            proposal_rate: ProposalRate::new(config.max_proposals_per_minute),
            nodes,
            gap,
            stop_following: CancellationToken::new(),
            queue_slots: Arc::new(Semaphore::new(config.queue)),
            queue_kibibytes: Arc::new(Semaphore::new(config.queue_bytes / 1024)),
            started: Instant::now(),
            closing: AtomicBool::new(false),
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            abandon: CancellationToken::new(),
            executor_ended: Mutex::new(Some(executor_ended)),
            executor_gone: CancellationToken::new(),
            config,
        });
        // Must run before the first own write, which may follow writes of other nodes.
        executor.spawn(follow::run(Arc::clone(&inner)));
        restore(&inner, &live).await?;
        recover(&inner, &live, &approved).await?;
        // The actor holds the last sender, so the Executor ends with it.
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
        executor.spawn(follow::receive_messages(Arc::clone(&inner)));
        Ok(Self { inner })
    }

    /// Returns `true` if the actor, the Executor and the store are alive. If not, only a restart of the process helps.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.inner.addr.connected() && !self.inner.executor_gone.is_cancelled() && self.inner.store.is_open()
    }

    /// Returns the error that currently keeps the store from working, if any. The store recovers by itself if it can.
    #[must_use]
    pub fn store_trouble(&self) -> Option<StoreError> {
        self.inner.store.current_error()
    }

    /// Shuts down in order: accepts no new work, gives running calls until the deadline (their outcome is unknown after
    /// that), ends subscribers and waiters after the last event, and closes the store. Call it once, within the actix
    /// system.
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
        // Transitions of endpoints are still written and announced. All slots are free when they are done.
        let slots = u32::try_from(inner.config.queue).unwrap_or(u32::MAX);
        let drained = inner.queue_slots.acquire_many(slots);
        if tokio::time::timeout(Duration::from_secs(5), drained).await.is_err() {
            tracing::warn!("some transitions had not reached the store when the gateway stopped");
        }
        inner.stop_following.cancel();
        inner.feed.close();
        let store = Arc::clone(&inner.store);
        // Closing joins the store's threads, so it must not block a thread that is needed elsewhere.
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

/// Handles the first start on a restored backup. Changes that were approved in the backup may have run since, so they
/// become stale and wait for a person. The audit trail records the restoration.
async fn restore(inner: &Arc<Inner>, live: &[LiveChange]) -> Result<(), StartError> {
    let Some(taken) = inner.store.backup_time().await? else { return Ok(()) };
    tracing::warn!(%taken, "this store was restored from a backup; changes that were approved in the backup need a new approval");
    for live_change in live.iter().filter(|change| change.state == ChangeState::Approved) {
        let Some(change) = inner.store.get(&live_change.id).await? else { continue };
        let message = format!(
            "Restored from a backup of {taken}: the change may have run since; look at its target before you approve it again"
        );
        let fault = ChangeFault::new(ErrorKind::ChangeStale, message);
        match inner.step(&change, ChangeEvent::MarkStale { fault }).await {
            Ok(_) => {}
            Err(StepError::Store(error)) => return Err(error.into()),
            Err(error) => return Err(StoreError::BadRecord(format!("{}: {error:?}", live_change.id)).into()),
        }
    }
    // Recorded last, so that a crash before this point starts over.
    let details = serde_json::json!({ "backupOf": taken }).to_string();
    let record = Record::new("restored", inner.now(), SYSTEM, details);
    match write(&*inner.store, WriteRequest::Restored(record)).await {
        Ok(()) => Ok(()),
        Err(WriteError::Store(error)) => Err(error.into()),
        Err(_) => Err(StoreError::Closed.into()),
    }
}

/// Recovers the changes of the last process and of nodes that are gone: executing ones get an unknown outcome, and
/// approved ones are queued, with a delay if other nodes are alive.
async fn recover(
    inner: &Arc<Inner>,
    live: &[LiveChange],
    approved: &mpsc::UnboundedSender<ApprovedChange>,
) -> Result<(), StartError> {
    orphans::sweep(inner).await?;
    let has_other_nodes = inner.nodes.live_count() > 1;
    for live_change in live.iter().filter(|change| change.state == ChangeState::Approved) {
        // A change from a restored backup is no longer approved.
        if let Some(change) = inner.store.get(&live_change.id).await?.filter(|c| c.state == ChangeState::Approved) {
            let queued = ApprovedChange::new(&change, inner.now());
            // Another node may have approved it and should run it.
            let _ = approved.send(if has_other_nodes { queued.after_handover() } else { queued });
        }
    }
    Ok(())
}

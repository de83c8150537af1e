//! Starts the actor, the Executor, the feed and the upkeep tasks on a store, recovers the changes that the last process
//! left open, and shuts everything down in order.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, Arbiter, ArbiterHandle, AsyncContext, System};
use tokio::sync::{Notify, mpsc};

use super::{
    Changes, ReviewConfig,
    actor::{
        ApprovedChange, Metrics, PendingChanges, TransitionError,
        change_outline::ChangeOutline,
        daily_volume::{self, DailyVolume},
        indexes::ChangeIndexes,
        ledger::Ledger,
        order::AnnouncementOrder,
        proposal_rate::ProposalRate,
    },
    change_repository::ChangeRepository,
    dialogue_channels::DialogueChannels,
    executor, follow,
    review_core::ReviewCore,
    shutdown::Shutdown,
    transition_writer::TransitionWriter,
    upkeep::{escalation, expiry, orphans, plans, prune, reminders, votes},
    waiting_reasons::WaitingReasons,
};
use countersign_domain::changes::{
    ChangeFault, ChangeState,
    machine::{ChangeEvent, SYSTEM},
};
use countersign_feed::Feed;
use countersign_protocol::ErrorKind;
use countersign_provider::ProviderDirectory;
use countersign_store::{AuditRecord, LiveChange, Store, StoreError, WriteError, WriteRequest, write};

/// The reason why the work on changes could not be started.
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
    /// [`crate::ReviewTuning::provider_startup_timeout`], so the directory may still be incomplete. Install the metrics
    /// recorder first.
    ///
    /// # Errors
    /// [`StartError`]
    pub async fn start(
        store: Arc<dyn Store>,
        directory: Arc<dyn ProviderDirectory>,
        config: ReviewConfig,
    ) -> Result<Self, StartError> {
        if System::try_current().is_none() {
            return Err(StartError::NoSystem);
        }
        let heads = store.heads().await?;
        let live = store.live_changes().await?;
        let indexes = ChangeIndexes::new(config.tuning.max_waiters, &store.count_by_state().await?);
        let feed = Feed::new(Arc::clone(&store), heads.event, config.tuning.feed_buffer);
        let feed_gap = Arc::new(Notify::new());
        let mut daily_volume = DailyVolume::new(config.limits.max_bytes_per_day);
        daily_volume.restore(&store.proposals_since(daily_volume::window_start((config.clock)())).await?);
        let mut ledger = Ledger::new(config.limits.max_pending, config.limits.max_pending_bytes as u64);
        for change in &live {
            ledger.restore(change);
            indexes.restore(change, (config.clock)());
        }
        let (actor_thread, executor_thread) = (Arbiter::try_new()?.handle(), Arbiter::try_new()?.handle());
        let (approved_sender, approved) = mpsc::unbounded_channel();
        let (plan_update_sender, plan_updates) = mpsc::unbounded_channel();
        let (outcomes_sender, mut outcomes) = mpsc::unbounded_channel();
        let actor = PendingChanges {
            store: Arc::clone(&store),
            feed: feed.clone(),
            indexes: Arc::clone(&indexes),
            ledger,
            daily_volume,
            clock: Arc::clone(&config.clock),
            approved: approved_sender.clone(),
            plan_updates: plan_update_sender,
            outcomes: outcomes_sender,
            collected: Arc::default(),
            announcements: AnnouncementOrder::new(heads.event),
            feed_gap: Arc::clone(&feed_gap),
            metrics: Metrics::new(),
        };
        let addr = PendingChanges::start_in_arbiter(&actor_thread, move |context| {
            context.add_stream(futures_util::stream::poll_fn(move |cx| outcomes.poll_recv(cx)));
            actor
        });
        let proposal_rate = ProposalRate::new(config.limits.max_proposals_per_minute);
        let config = Arc::new(config);
        let repository = Arc::new(ChangeRepository {
            nodes: store.nodes(),
            store,
            transitions: TransitionWriter::new(&config, addr),
            indexes,
            feed,
            shutdown: Shutdown::default(),
            config,
        });
        let core = Arc::new(ReviewCore {
            proposal_rate,
            repository: Arc::clone(&repository),
            directory,
            dialogue_channels: DialogueChannels::default(),
            waiting_reasons: WaitingReasons::default(),
            started: Instant::now(),
            executor_thread,
            actor_thread,
        });
        let executor_thread = &core.executor_thread;
        // Must run before the first write of this node: its announcement waits for earlier events of other nodes, which only
        // this task reads.
        executor_thread.spawn(follow::run(Arc::clone(&repository), feed_gap));
        handle_restored_backup(&repository, &live).await?;
        recover(&repository, &live, &approved_sender).await?;
        let end_guard = repository.shutdown.executor_ended.clone().drop_guard();
        executor_thread.spawn(executor::run(Arc::clone(&core), approved, end_guard));
        executor_thread.spawn(plans::run(Arc::clone(&repository), plan_updates, approved_sender));
        executor_thread.spawn(expiry::run(Arc::clone(&repository)));
        executor_thread.spawn(escalation::run(Arc::clone(&repository)));
        executor_thread.spawn(reminders::run(Arc::clone(&repository)));
        executor_thread.spawn(prune::run(Arc::clone(&repository)));
        executor_thread.spawn(votes::run(Arc::clone(&repository)));
        executor_thread.spawn(orphans::run(repository));
        executor_thread.spawn(follow::receive_messages(Arc::clone(&core)));
        Ok(Self { core })
    }

    /// Returns `true` if the actor, the Executor and the store are alive. If not, only a restart of the process helps.
    pub fn is_healthy(&self) -> bool {
        let ChangeRepository { transitions, shutdown, store, .. } = &*self.core.repository;
        transitions.addr.connected() && !shutdown.executor_ended.is_cancelled() && store.is_open()
    }

    /// Returns the threads of the actor and of the Executor.
    #[must_use]
    pub fn threads(&self) -> [ArbiterHandle; 2] {
        [self.core.actor_thread.clone(), self.core.executor_thread.clone()]
    }

    /// Returns the error that currently keeps the store from working, if any. The store recovers by itself if it can.
    pub fn current_store_error(&self) -> Option<StoreError> {
        self.core.repository.store.current_error()
    }

    /// Shuts down in order: ends waiters at once, accepts no new work, gives running calls until the deadline (their outcome
    /// is unknown after that), ends subscribers after the last event, and closes the store. Call it once, within the actix
    /// system.
    ///
    /// Waiters end first, because their requests would otherwise stay open for as long as calls are running.
    pub async fn shutdown(&self, deadline: Duration) {
        let ReviewCore { repository, executor_thread, actor_thread, .. } = &*self.core;
        repository.indexes.watchers.close();
        repository.shutdown.end_work(deadline).await;
        // Transitions of endpoints are still written and announced.
        repository.transitions.drain().await;
        repository.shutdown.stop_following.cancel();
        repository.feed.close();
        let store = Arc::clone(&repository.store);
        // Closing joins the store's threads, so it must not block a thread that is needed elsewhere.
        let close_thread = std::thread::Builder::new().name("store-close".into()).spawn(move || store.close());
        match close_thread {
            Ok(thread) => {
                while !thread.is_finished() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
            Err(_) => repository.store.close(),
        }
        executor_thread.stop();
        actor_thread.stop();
    }
}

/// The warning that a restored backup contains rights that have ended since. The store cannot know which ones these are.
const RESTORED_RIGHTS_WARNING: &str = "keys, people, sign-ins and acceptances of tools that were revoked or ended after the \
     backup was made are valid again; revoke them again";

/// Handles the first start on a restored backup. Changes that had not run when the backup was made may have been approved
/// and run since, so they become stale and wait for a person. The audit trail records the restoration.
async fn handle_restored_backup(repository: &ChangeRepository, live: &[LiveChange]) -> Result<(), StartError> {
    let Some(backup_time) = repository.store.backup_time().await? else { return Ok(()) };
    tracing::warn!(taken = %backup_time, "this store was restored from a backup; changes that had not run when it was made may have run since, and need a new approval");
    tracing::warn!("{RESTORED_RIGHTS_WARNING}");
    let message = format!(
        "Restored from a backup of {backup_time}: the change may have run since; look at its target before you approve it"
    );
    let fault = ChangeFault::new(ErrorKind::ChangeStale, message);
    let may_have_run = |state: ChangeState| state.awaits_decision() || state == ChangeState::Approved;
    for live_change in live.iter().filter(|change| may_have_run(change.state)) {
        let Some(change) = repository.store.get(&live_change.id).await? else { continue };
        // An interrupted start or another node may have marked it already, and it may even have been decided or have expired
        // since.
        let is_marked = change.state == ChangeState::Stale && change.fault.as_ref() == Some(&fault);
        if is_marked || !may_have_run(change.state) {
            continue;
        }
        match repository.transitions.apply_event(&change, ChangeEvent::MarkStale { fault: fault.clone() }).await {
            // Another node that starts on the backup at the same time marks it, too.
            Ok(_) | Err(TransitionError::Conflict) => {}
            Err(TransitionError::Store(error)) => return Err(error.into()),
            Err(error) => return Err(StoreError::BadRecord(format!("{}: {error:?}", live_change.id)).into()),
        }
    }
    // Recorded last, so that a crash before this point starts over.
    let details = serde_json::json!({ "backupOf": backup_time, "comment": RESTORED_RIGHTS_WARNING }).to_string();
    let record = AuditRecord::new("restored", repository.config.now(), SYSTEM, details);
    match write(&*repository.store, WriteRequest::Restored(record)).await {
        Ok(()) => Ok(()),
        Err(WriteError::Store(error)) => Err(error.into()),
        Err(_) => Err(StoreError::Closed.into()),
    }
}

/// Recovers the changes of the last process and of nodes that are gone: executing ones get an unknown outcome, and
/// approved ones are queued, with a delay if other nodes are alive.
async fn recover(
    repository: &ChangeRepository,
    live: &[LiveChange],
    approved: &mpsc::UnboundedSender<ApprovedChange>,
) -> Result<(), StartError> {
    orphans::mark_orphans_unknown(repository).await?;
    let has_other_nodes = repository.nodes.live_count() > 1;
    // `plans` finds the steps of plans that may run.
    let approved_changes = live.iter().filter(|change| change.state == ChangeState::Approved && change.plan.is_none());
    for live_change in approved_changes {
        // A change from a restored backup is no longer approved.
        let change = repository.store.get(&live_change.id).await?;
        if let Some(change) = change.filter(|change| change.state == ChangeState::Approved) {
            let queued = ApprovedChange::new(&ChangeOutline::from(&*change), repository.config.now());
            // Another node may have approved it and should run it.
            let _ = approved.send(if has_other_nodes { queued.with_handover_delay() } else { queued });
        }
    }
    Ok(())
}

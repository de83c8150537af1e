//! The Executor runs approved changes. It rechecks each one, claims it durably, calls the provider once, and records the
//! outcome. It never retries a call, and never calls before the claim is durable. It may read the target of an applied
//! change again.
//!
//! Changes to the same target run one after another; others run concurrently. Each of several nodes runs the changes that
//! were approved on it, and takes over those that another node left behind.

mod call;
mod dialogue;
mod late;
mod outcome;
mod plan_step;
mod verify;

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
};
use tokio_util::sync::DropGuard;

use self::{
    call::call_provider,
    outcome::{lose_track, record_outcome, resolve_unknown_claim},
    plan_step::{Preparation, prepare},
    verify::verify,
};
use crate::{
    actor::{ApprovedChange, TransitionError},
    recheck::{Comparison, Divergence, PreviewError, SameTarget},
    review_core::ReviewCore,
    shutdown::pause,
    truncation::to_fault,
    upkeep::expiry,
};
use countersign_domain::changes::{Change, ChangeState, machine::ChangeEvent};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    CallContext,
    previews::{PreviewRequest, verification::read_back},
};
use countersign_runtime::crash::crash_point;
use countersign_store::StoreError;

/// The maximum number of times that a failed recheck is repeated before the change goes back to a person.
const MAX_RECHECK_RETRIES: u32 = 4;
/// The delay for a change whose proposer must connect an account, in multiples of the usual retry delay.
const ACCOUNT_DELAY_FACTOR: u32 = 2;
/// The first delay while a provider is still connecting after the start, or another change occupies the target. It doubles up
/// to the usual retry delay.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(20);
/// The longest delay between checks of a change that another node should run.
const MAX_HANDOVER_WAIT: Duration = Duration::from_secs(30);

/// Runs approved changes until the gateway closes, then waits for the running ones and drops the guard.
pub(crate) async fn run(
    core: Arc<ReviewCore>,
    mut approved: mpsc::UnboundedReceiver<ApprovedChange>,
    _ended: DropGuard,
) {
    let slots = Arc::new(Semaphore::new(core.repository.config.tuning.concurrency.max(1)));
    // A queue key is present while one of its changes is running; its other changes wait in the queue.
    let mut queues: HashMap<String, VecDeque<ApprovedChange>> = HashMap::new();
    // Changes whose delay has not passed.
    let mut delayed = FuturesUnordered::new();
    let mut running: JoinSet<AttemptResult> = JoinSet::new();
    loop {
        let due = tokio::select! {
            () = core.repository.shutdown.stop.cancelled() => break,
            Some(due) = delayed.next(), if !delayed.is_empty() => due,
            next = approved.recv() => match next {
                Some(next) if next.delay.is_zero() => next,
                Some(next) => {
                    delayed.push(after_delay(next));
                    continue;
                }
                None => break,
            },
            Some(ended) = running.join_next(), if !running.is_empty() => {
                let Ok(AttemptResult { key, retry }) = ended else { continue };
                delayed.extend(retry.map(after_delay));
                match queues.get_mut(&key).map(VecDeque::pop_front) {
                    Some(Some(next)) => spawn_attempt(&core, &slots, &mut running, next),
                    Some(None) => { queues.remove(&key); }
                    None => {}
                }
                continue;
            }
        };
        match queues.get_mut(&due.queue_key) {
            Some(queue) => queue.push_back(due),
            None => {
                queues.insert(due.queue_key.clone(), VecDeque::new());
                spawn_attempt(&core, &slots, &mut running, due);
            }
        }
    }
    while running.join_next().await.is_some() {}
}

async fn after_delay(approved: ApprovedChange) -> ApprovedChange {
    tokio::time::sleep(approved.delay).await;
    approved
}

/// The result of an attempt to run a change.
struct AttemptResult {
    key: String,
    /// The change, if another node should run it or its proposer must connect an account. It is then checked again after its
    /// delay, and holds up no other change until then.
    retry: Option<ApprovedChange>,
}

fn spawn_attempt(
    core: &Arc<ReviewCore>,
    slots: &Arc<Semaphore>,
    running: &mut JoinSet<AttemptResult>,
    approved: ApprovedChange,
) {
    let (core, slots) = (Arc::clone(core), Arc::clone(slots));
    running.spawn(async move {
        // The key must be returned in any case, or its target would be blocked until the next start.
        let key = approved.queue_key.clone();
        let retry = match AssertUnwindSafe(run_change(&core, &approved, &slots)).catch_unwind().await {
            Ok(retry) => retry,
            Err(_panic) => {
                tracing::error!(change = %approved.id, "the Executor panicked while it ran a change");
                lose_track(&core.repository, &approved.id).await;
                None
            }
        };
        AttemptResult { key, retry }
    });
}

/// One of the permits that limit the number of running changes. A change returns it when it begins to wait for another
/// change or for a client; after the client's answer, its call continues without one.
type Slot = Option<OwnedSemaphorePermit>;

/// Waits for a permit. Returns `None` once the gateway ends.
async fn acquire_slot(core: &ReviewCore, slots: &Arc<Semaphore>) -> Slot {
    core.repository.shutdown.stop.run_until_cancelled(Arc::clone(slots).acquire_owned()).await?.ok()
}

/// Takes one approved change as far as possible, so that the queue can move on. Returns the change if it must be checked
/// again.
async fn run_change(core: &ReviewCore, approved: &ApprovedChange, slots: &Arc<Semaphore>) -> Option<ApprovedChange> {
    let (stop, retry_delay) = (&core.repository.shutdown.stop, core.repository.config.tuning.retry_delay);
    let mut failed_rechecks = 0;
    let mut short_delay = FIRST_RETRY_DELAY;
    let mut slot = None;
    while !stop.is_cancelled() {
        if slot.is_none() {
            slot = acquire_slot(core, slots).await;
            continue;
        }
        // Nothing was sent, so starting over is safe.
        match attempt(core, approved, &mut failed_rechecks, &mut slot).await {
            Ok(()) => return None,
            Err(_) if let Some(delay) = approved.handover_backoff => {
                let backoff = Some((delay * 2).min(MAX_HANDOVER_WAIT));
                return Some(ApprovedChange { delay, handover_backoff: backoff, ..approved.clone() });
            }
            Err(RetryReason::AccountNeeded) => {
                let delay = retry_delay.saturating_mul(ACCOUNT_DELAY_FACTOR);
                return Some(ApprovedChange { delay, ..approved.clone() });
            }
            Err(RetryReason::Unavailable | RetryReason::WriteUnknown) => {
                pause(stop, retry_delay).await;
            }
            Err(reason) => {
                if matches!(reason, RetryReason::TargetOccupied) {
                    slot = None;
                }
                pause(stop, short_delay.min(retry_delay)).await;
                short_delay = short_delay.saturating_mul(2);
            }
        }
    }
    None
}

/// The reason to try again after a delay; nothing was sent.
enum RetryReason {
    /// The store, the lease or the target is not available at the moment.
    Unavailable,
    /// A transition may have been stored or not.
    WriteUnknown,
    /// The provider is still connecting after the start.
    ProviderStarting,
    /// The proposer must connect an account at the server.
    AccountNeeded,
    /// Another change occupies the target: it runs on another node, or its outcome is unknown and its call may still run. Also
    /// if the plan of the change does not let it run yet.
    TargetOccupied,
}

/// Checks, claims and runs the change, if it may run now. An error means that nothing was sent.
async fn attempt(
    core: &ReviewCore,
    approved: &ApprovedChange,
    failed_rechecks: &mut u32,
    slot: &mut Slot,
) -> Result<(), RetryReason> {
    let Some((change, SameTarget { provider, before, moved_fingerprint })) =
        check_readiness(core, approved, failed_rechecks).await?
    else {
        return Ok(());
    };
    crash_point("before_claim");
    let claimant = core.repository.nodes.claimant();
    if !core.repository.nodes.holds_claim(claimant.as_ref()) {
        return Err(RetryReason::Unavailable);
    }
    let tool_timeout = provider.call_timeout(&change.tool).unwrap_or(core.repository.config.tuning.run_timeout);
    let call_timeout = tool_timeout.min(core.repository.config.tuning.run_timeout);
    let claim = ChangeEvent::Claim { claimant: claimant.clone(), call_timeout, fingerprint: moved_fingerprint };
    let claimed = match commit_transition(core, &change, claim).await {
        Err(RetryReason::WriteUnknown) => {
            return resolve_unknown_claim(&core.repository, &change, claimant.as_ref()).await;
        }
        claimed => claimed?,
    };
    let Some(claimed) = claimed else { return Ok(()) };
    crash_point("after_claim");
    let (latest, mut event) = call_provider(core, &claimed, &provider, slot).await;
    let context = CallContext::new(Arc::new(latest.proposer.to_agent()));
    // Dropping the guard tells the provider that the answer is no longer needed.
    let _cancel_on_drop = context.cancel.clone().drop_guard();
    let answer;
    let mut reading = None;
    if let ChangeEvent::Succeed { result, reads_back } = &mut event {
        answer = Arc::clone(result);
        let request = PreviewRequest {
            directory: &*core.directory,
            provider: &provider,
            tool: &latest.tool,
            arguments: &latest.arguments,
            context: &context,
        };
        let start_read = || read_back(request, &latest, before.as_ref(), &answer);
        // The outcome is recorded whatever happens here.
        reading = std::panic::catch_unwind(AssertUnwindSafe(start_read)).unwrap_or_default();
        *reads_back = reading.is_some();
    }
    crash_point("before_result");
    let recorded = record_outcome(&core.repository, Arc::clone(&latest), event).await;
    crash_point("after_result");
    // The changes that wait for the target would alter what is read, so they run afterwards.
    if let Some((applied, reading)) = recorded.zip(reading) {
        verify(&core.repository, &applied, reading).await;
    }
    Ok(())
}

/// A change that may run now, and the comparison with its target.
type ReadyChange = (Arc<Change>, SameTarget);

/// Returns the change if it may run now.
///
/// A change that another node should run runs here only if this node's view of the target equals what was approved. A
/// difference sends it back to review only if the server is the one that was shown; with another server it proves
/// nothing, since the servers of the nodes may differ.
async fn check_readiness(
    core: &ReviewCore,
    approved: &ApprovedChange,
    failed_rechecks: &mut u32,
) -> Result<Option<ReadyChange>, RetryReason> {
    let Some(change) = load_approved(core, approved).await? else { return Ok(None) };
    let is_own = approved.handover_backoff.is_none();
    if expire_if_due(core, &change, is_own).await? {
        return Ok(None);
    }
    // The provider is not asked while another change occupies the target, because that change would alter the target
    // anyway.
    check_target_is_free(core, &change).await?;
    let comparison = match prepare(core, &change, is_own).await? {
        Preparation::AsApproved => core.recheck(&change).await,
        Preparation::NotItsTurn => {
            core.waiting_reasons.remove(&change.id);
            return Ok(None);
        }
        Preparation::Unavailable(error) => Err(PreviewError::Unavailable(error)),
        Preparation::Needs(event) => {
            commit_transition(core, &change, *event).await?;
            return Ok(None);
        }
    };
    let reason_to_wait = comparison.as_ref().err().and_then(PreviewError::reason_to_wait);
    let needs_account = reason_to_wait.is_some();
    core.waiting_reasons.update(&change, reason_to_wait);
    let event = match comparison {
        Ok(Comparison::Same(same)) => match find_objection(core, &change, is_own).await? {
            Some(event) => event,
            None => return Ok(Some((change, same))),
        },
        Ok(Comparison::Moved(moved)) if is_own || moved.has_same_server(&change) => {
            return_to_review(core, &change, *moved).await?;
            return Ok(None);
        }
        Err(PreviewError::Impossible(error)) if is_own => ChangeEvent::MarkStale { fault: to_fault(&error) },
        // The change stays approved until the person has connected or it expires.
        Err(PreviewError::Unavailable(_)) if is_own && needs_account => return Err(RetryReason::AccountNeeded),
        Err(PreviewError::Unavailable(error)) if is_own => event_if_unavailable(core, &error, failed_rechecks)?,
        Ok(Comparison::Moved(_)) | Err(_) => return Err(RetryReason::Unavailable),
    };
    commit_transition(core, &change, event).await?;
    Ok(None)
}

/// Returns the change if it is still approved as it was.
async fn load_approved(core: &ReviewCore, approved: &ApprovedChange) -> Result<Option<Arc<Change>>, RetryReason> {
    let id = approved.id.as_str();
    match core.repository.store.get(id).await {
        // An approval that was undone and given again is another approval with its own grace period.
        Ok(Some(change)) if change.state == ChangeState::Approved && change.version == approved.version => {
            Ok(Some(change))
        }
        Ok(_) | Err(StoreError::Closed) => {
            core.waiting_reasons.remove(id);
            Ok(None)
        }
        Err(error) => {
            tracing::error!(%error, change = id, "an approved change cannot be read; trying again");
            Err(RetryReason::Unavailable)
        }
    }
}

/// Returns `true` if the change has expired. The node that is to run it records that.
async fn expire_if_due(core: &ReviewCore, change: &Arc<Change>, is_own: bool) -> Result<bool, RetryReason> {
    let is_expired = expiry::is_expired(&core.repository, change).await.map_err(|error| {
        tracing::error!(%error, change = %change.id, "the plan of an approved change cannot be read; trying again");
        RetryReason::Unavailable
    })?;
    if is_expired {
        core.waiting_reasons.remove(&change.id);
        if is_own {
            commit_transition(core, change, expiry::expire_event(change)).await?;
        }
    }
    Ok(is_expired)
}

/// Checks that no other change occupies the target.
async fn check_target_is_free(core: &ReviewCore, change: &Change) -> Result<(), RetryReason> {
    match core.repository.store.occupants(vec![change.target_hash()], core.repository.config.now()).await {
        Ok(occupants) if occupants.is_empty() => Ok(()),
        Ok(_) => Err(RetryReason::TargetOccupied),
        Err(error) => {
            tracing::error!(%error, change = %change.id, "the store cannot tell whether the target is free; trying again");
            Err(RetryReason::Unavailable)
        }
    }
}

/// Returns an event if an approval no longer counts or policy now denies the call.
async fn find_objection(
    core: &ReviewCore,
    change: &Arc<Change>,
    is_own: bool,
) -> Result<Option<ChangeEvent>, RetryReason> {
    match core.find_objection(change).await {
        // Keys and policy are the same on all nodes. If the node that is to run the change is gone, the leader does this.
        Ok(Some(_)) if !is_own && !core.repository.nodes.is_leader() => Err(RetryReason::Unavailable),
        Ok(objection) => Ok(objection),
        Err(error) => {
            tracing::error!(%error, change = %change.id, "the validity of an approval cannot be checked; trying again");
            Err(RetryReason::Unavailable)
        }
    }
}

/// Returns the event that sends a change back to review because its target cannot be read, once it was tried often enough.
fn event_if_unavailable(
    core: &ReviewCore,
    error: &McpError,
    failed_rechecks: &mut u32,
) -> Result<ChangeEvent, RetryReason> {
    if core.is_starting() && error.kind == ErrorKind::UpstreamUnavailable {
        return Err(RetryReason::ProviderStarting);
    }
    if *failed_rechecks < MAX_RECHECK_RETRIES {
        *failed_rechecks += 1;
        return Err(RetryReason::Unavailable);
    }
    Ok(ChangeEvent::MarkStale { fault: to_fault(error) })
}

/// Sends a change back to review because its target has changed: marks it stale, then pending with a fresh diff.
async fn return_to_review(core: &ReviewCore, change: &Arc<Change>, moved: Divergence) -> Result<(), RetryReason> {
    let Divergence { preview, served_by, fault } = moved;
    crash_point("before_stale");
    if let Some(marked) = commit_transition(core, change, ChangeEvent::MarkStale { fault }).await? {
        crash_point("between_stale_and_refresh");
        commit_transition(core, &marked, ChangeEvent::Refresh { preview, served_by }).await?;
        crash_point("after_refresh");
    }
    Ok(())
}

/// Commits a transition of a change that is not running. Returns `None` if it can no longer happen, because the change
/// has moved on or the gateway is ending.
async fn commit_transition(
    core: &ReviewCore,
    change: &Arc<Change>,
    event: ChangeEvent,
) -> Result<Option<Arc<Change>>, RetryReason> {
    match core.repository.transitions.apply_event(change, event).await {
        Ok(change) => Ok(Some(change)),
        // The next attempt reads the change.
        Err(TransitionError::Store(error)) if !matches!(error, StoreError::Closed) => {
            tracing::error!(%error, change = %change.id, "a transition of an approved change could not be stored; trying again");
            let is_unknown = matches!(error, StoreError::OutcomeUnknown);
            Err(if is_unknown { RetryReason::WriteUnknown } else { RetryReason::Unavailable })
        }
        Err(TransitionError::Conflict | TransitionError::Illegal(_)) => Ok(None),
        Err(TransitionError::Busy) => Err(RetryReason::TargetOccupied),
        // This node's lease expired, and another node will take the change over; or the transition could not be prepared.
        Err(TransitionError::Fenced | TransitionError::Refused(_)) => Err(RetryReason::Unavailable),
        // Nothing was sent. The next start or another node finds the change.
        Err(error) => {
            tracing::error!(?error, change = %change.id, "a transition of an approved change was lost");
            Ok(None)
        }
    }
}

//! The Executor: owns approved work. It checks once more, claims durably, calls the provider once, and records what
//! came of it. It never retries a call, and never calls before the claim is durable.
//!
//! Changes to one target run one after another, others side by side; also those of several nodes of one store, where each
//! first runs what was approved at it, and what others have left.

mod inquiry;
mod late;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use jiff::Timestamp;
use serde_json::value::{RawValue, to_raw_value};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
};

use self::{inquiry::Inquiry, late::too_late};
use crate::{
    actor::Approved,
    commit::StepError,
    inner::Inner,
    recheck::{Moved, Recheck, fault, proposer},
    upkeep::{expiry, votes},
};
use countersign_domain::changes::{Change, ChangeFault, ChangeState, machine::ChangeEvent};
use countersign_protocol::{ErrorKind, McpError, redact::redacted};
use countersign_provider::{CallContext, NoProgress, Permit, Provider, ToolResult};
use countersign_runtime::crash::crash_point;
use countersign_store::StoreError;

/// Before it is looked again whether this node's lease is renewed.
const LEASE_PAUSE: Duration = Duration::from_millis(20);
/// How often a check that could not be made is tried again before the change goes back to a person.
const RECHECKS: u32 = 4;
/// The first pause for a provider that is on its way after the start; each is twice as long, up to the usual one.
const SOON: Duration = Duration::from_millis(20);

/// Runs what is approved until the gateway closes, then waits for what is running.
pub(crate) async fn run(inner: Arc<Inner>, mut approved: mpsc::UnboundedReceiver<Approved>) {
    let slots = Arc::new(Semaphore::new(inner.config.concurrency.max(1)));
    // A key is present while one of its changes is running; the others wait in its queue.
    let mut queues: HashMap<String, VecDeque<Approved>> = HashMap::new();
    // Those whose approval may still be undone, by when that ends.
    let mut graces: BTreeMap<(Instant, u64), Approved> = BTreeMap::new();
    let mut number = 0;
    let mut running: JoinSet<Ended> = JoinSet::new();
    loop {
        let first = graces.first_key_value().map(|((end, _), _)| *end);
        let due = tokio::select! {
            () = inner.stop.cancelled() => break,
            next = approved.recv() => match next {
                Some(next) => match next.grace.and_then(|grace| Instant::now().checked_add(grace)) {
                    Some(end) => {
                        number += 1;
                        graces.insert((end, number), next);
                        continue;
                    }
                    None => next,
                },
                None => break,
            },
            () = tokio::time::sleep_until(first.unwrap_or_else(Instant::now).into()), if first.is_some() => {
                match graces.pop_first() {
                    Some((_, due)) => due,
                    None => continue,
                }
            }
            Some(ended) = running.join_next(), if !running.is_empty() => {
                let Ok(Ended { key, left }) = ended else { continue };
                if let Some(end) = left.as_ref().and_then(|left| Instant::now().checked_add(left.grace?)) {
                    number += 1;
                    graces.extend(left.map(|left| ((end, number), left)));
                }
                match queues.get_mut(&key).map(VecDeque::pop_front) {
                    Some(Some(next)) => start(&inner, &slots, &mut running, next),
                    Some(None) => { queues.remove(&key); }
                    None => {}
                }
                continue;
            }
        };
        match queues.get_mut(&due.lock_key) {
            Some(queue) => queue.push_back(due),
            None => {
                queues.insert(due.lock_key.clone(), VecDeque::new());
                start(&inner, &slots, &mut running, due);
            }
        }
    }
    while running.join_next().await.is_some() {}
}

/// An attempt is over.
struct Ended {
    key: String,
    /// It is another node's, and to be looked at again after its grace.
    left: Option<Approved>,
}

/// How long a change that another node is to run is left alone at most.
const LEFT: Duration = Duration::from_secs(30);

fn start(inner: &Arc<Inner>, slots: &Arc<Semaphore>, running: &mut JoinSet<Ended>, approved: Approved) {
    let (inner, slots) = (Arc::clone(inner), Arc::clone(slots));
    running.spawn(async move {
        // The key must come back whatever happens, or its target would be blocked until the next start.
        let mut left = false;
        match AssertUnwindSafe(one(&inner, &approved, &slots)).catch_unwind().await {
            Ok(over) => left = !over,
            Err(_) => tracing::error!(change = %approved.id, "the Executor panicked over a change"),
        }
        let key = approved.lock_key.clone();
        let wait = approved.handed_over.filter(|_| left);
        let left = wait.map(|wait| Approved { grace: Some(wait), handed_over: Some((wait * 2).min(LEFT)), ..approved });
        Ended { key, left }
    });
}

/// A place among what runs at the same time. Whoever waits for a client, or for another change to end, gives it back.
type Slot = Option<OwnedSemaphorePermit>;

/// Waits for a place. `None` once the gateway ends.
async fn place(inner: &Inner, slots: &Arc<Semaphore>) -> Slot {
    tokio::select! {
        () = inner.stop.cancelled() => None,
        slot = Arc::clone(slots).acquire_owned() => slot.ok(),
    }
}

/// Takes one approved change as far as it can go. Whether it is over with it: what another node is to run does not hold up
/// what waits here.
async fn one(inner: &Inner, approved: &Approved, slots: &Arc<Semaphore>) -> bool {
    let mut tries = 0;
    let mut soon = SOON;
    let mut slot = None;
    while !inner.stop.is_cancelled() {
        if slot.is_none() {
            slot = place(inner, slots).await;
            continue;
        }
        // Nothing has been sent: looking again is safe, from the beginning.
        match attempt(inner, approved, &mut tries, &mut slot).await {
            Ok(()) => return true,
            Err(_) if approved.handed_over.is_some() => return false,
            Err(Retry::Later) => pause(inner, inner.config.retry_pause).await,
            Err(retry) => {
                if matches!(retry, Retry::Taken) {
                    slot = None;
                }
                pause(inner, soon.min(inner.config.retry_pause)).await;
                soon = soon.saturating_mul(2);
            }
        }
    }
    true
}

/// Not yet, and nothing was sent: again after a pause.
enum Retry {
    Later,
    /// The provider is on its way after the start.
    Soon,
    /// Another change has the target: one that another node runs, or one of unknown outcome whose call may be running.
    Taken,
}

async fn attempt(inner: &Inner, approved: &Approved, tries: &mut u32, slot: &mut Slot) -> Result<(), Retry> {
    let Some((change, provider)) = ready(inner, approved, tries).await? else { return Ok(()) };
    crash_point("before_claim");
    let by = inner.nodes.claimant();
    if !inner.nodes.holds(by.as_ref()) {
        return Err(Retry::Later);
    }
    let own = provider.call_timeout(&change.tool).unwrap_or(inner.config.run_timeout);
    let claim = ChangeEvent::Claim { by, call_timeout: own.min(inner.config.run_timeout) };
    let Some(claimed) = take(inner, &change, claim).await? else { return Ok(()) };
    crash_point("after_claim");
    let (last, event) = call(inner, &claimed, provider, slot).await;
    crash_point("before_result");
    record(inner, last, event).await;
    crash_point("after_result");
    Ok(())
}

/// The change and its provider, if it may run right now.
async fn ready(
    inner: &Inner,
    approved: &Approved,
    tries: &mut u32,
) -> Result<Option<(Arc<Change>, Arc<dyn Provider>)>, Retry> {
    let id = approved.id.as_str();
    let change = match inner.store.get(id).await {
        // An approval that was undone, and perhaps given again, is another one with a time of its own.
        Ok(Some(change)) if change.state == ChangeState::Approved && change.version == approved.version => change,
        Ok(_) | Err(StoreError::Closed) => return Ok(None),
        Err(error) => {
            tracing::error!(%error, change = id, "an approved change cannot be read; trying again");
            return Err(Retry::Later);
        }
    };
    if approved.handed_over.is_some() {
        return left_by_another(inner, change).await;
    }
    if inner.expired(&change) {
        take(inner, &change, expiry::event(&change)).await?;
        return Ok(None);
    }
    wait_for_target(inner, &change).await?;
    match inner.recheck(&change).await {
        Recheck::Same(provider) => match votes::void(inner, &change) {
            Ok(None) => return Ok(Some((change, provider))),
            Ok(Some(void)) => {
                take(inner, &change, void).await?;
            }
            Err(error) => {
                tracing::error!(%error, change = id, "it cannot be known whether an approval still counts; trying again");
                return Err(Retry::Later);
            }
        },
        Recheck::Moved(moved) => show_anew(inner, &change, *moved).await?,
        Recheck::Impossible(fault) => {
            take(inner, &change, ChangeEvent::MarkStale { fault }).await?;
        }
        Recheck::Unavailable(error) => {
            // Right after the start, providers may still be on their way.
            let early = inner.started.elapsed() < inner.config.provider_grace;
            if early && error.kind == ErrorKind::UpstreamUnavailable {
                return Err(Retry::Soon);
            }
            if *tries < RECHECKS {
                *tries += 1;
                return Err(Retry::Later);
            }
            take(inner, &change, ChangeEvent::MarkStale { fault: fault(&error) }).await?;
        }
    }
    Ok(None)
}

/// Returns once the change's target is free, as far as can be known before the claim: what has it would move it, and its
/// provider is not asked meanwhile.
async fn wait_for_target(inner: &Inner, change: &Change) -> Result<(), Retry> {
    match inner.store.occupants(vec![change.target_hash()], inner.now()).await {
        Ok(occupants) if occupants.is_empty() => Ok(()),
        Ok(_) => Err(Retry::Taken),
        Err(error) => {
            tracing::error!(%error, change = %change.id, "it cannot be known whether a target is free; trying again");
            Err(Retry::Later)
        }
    }
}

/// As [`ready`], of what another node is to run: this one does where its own target is what was approved. What it finds
/// otherwise may be otherwise there, also where that node is gone at the moment: it may come back.
async fn left_by_another(
    inner: &Inner,
    change: Arc<Change>,
) -> Result<Option<(Arc<Change>, Arc<dyn Provider>)>, Retry> {
    if inner.expired(&change) {
        return Ok(None);
    }
    wait_for_target(inner, &change).await?;
    match inner.recheck(&change).await {
        Recheck::Same(provider) => match votes::void(inner, &change) {
            Ok(None) => Ok(Some((change, provider))),
            // Keys are the same for all; nobody else is there to look.
            Ok(Some(void)) if inner.nodes.live() == 1 => {
                take(inner, &change, void).await?;
                Ok(None)
            }
            Ok(Some(_)) | Err(_) => Err(Retry::Later),
        },
        Recheck::Moved(moved) if moved.is_of(&change) => {
            show_anew(inner, &change, *moved).await?;
            Ok(None)
        }
        Recheck::Moved(_) | Recheck::Impossible(_) | Recheck::Unavailable(_) => Err(Retry::Later),
    }
}

/// What was approved does not hold any more: it is stale, and then pending with what it would do now.
async fn show_anew(inner: &Inner, change: &Arc<Change>, moved: Moved) -> Result<(), Retry> {
    let Moved { preview, served_by, fault } = moved;
    crash_point("before_stale");
    if let Some(marked) = take(inner, change, ChangeEvent::MarkStale { fault }).await? {
        crash_point("between_stale_and_refresh");
        take(inner, &marked, ChangeEvent::Refresh { preview, served_by }).await?;
        crash_point("after_refresh");
    }
    Ok(())
}

/// A step of a change that is not running. `None` where it may not happen any more: somebody was quicker, or the
/// gateway is ending.
async fn take(inner: &Inner, change: &Arc<Change>, event: ChangeEvent) -> Result<Option<Arc<Change>>, Retry> {
    match inner.step(change, event, None).await {
        Ok(change) => Ok(Some(change)),
        Err(StepError::Store(error)) if error.certainly_aborted() && !matches!(error, StoreError::Closed) => {
            tracing::error!(%error, change = %change.id, "a step of an approved change could not be stored; trying again");
            Err(Retry::Later)
        }
        Err(StepError::Conflict | StepError::Illegal(_)) => Ok(None),
        Err(StepError::Busy) => Err(Retry::Taken),
        // This node's lease ran out: it is on its way to another one.
        Err(StepError::Fenced) => Err(Retry::Later),
        // Its outcome is unknown only where the store or the actor has ended: the next start finds out.
        Err(error) => {
            tracing::error!(?error, change = %change.id, "a step of an approved change was lost");
            Ok(None)
        }
    }
}

async fn pause(inner: &Inner, time: Duration) {
    tokio::select! {
        () = inner.stop.cancelled() => {}
        () = tokio::time::sleep(time) => {}
    }
}

/// Calls the provider, once, with exactly the bytes that were approved. Its time stands still while the tool waits for
/// its client. The change as it was stored last, and how the call ended.
async fn call(
    inner: &Inner,
    change: &Arc<Change>,
    provider: Arc<dyn Provider>,
    slot: &mut Slot,
) -> (Arc<Change>, ChangeEvent) {
    let (nodes, by, clock) = (Arc::clone(&inner.nodes), change.claimed_by.clone(), Arc::clone(&inner.config.clock));
    let sent = Arc::new(AtomicI64::new(inner.now().as_millisecond()));
    let sending = Arc::clone(&sent);
    // Asked just before the first byte of a call goes out.
    let permit = Permit(Arc::new(move || {
        sending.fetch_max(clock().as_millisecond(), Ordering::Relaxed);
        nodes.holds(by.as_ref())
    }));
    // A renewal may be late, as long as it is of the same life.
    while !permit.holds() && inner.nodes.claimant() == change.claimed_by && !inner.kill.is_cancelled() {
        tokio::time::sleep(LEASE_PAUSE).await;
    }
    if !permit.holds() {
        return (Arc::clone(change), ChangeEvent::Fail { fault: fault(&Permit::lapsed()), result: None });
    }
    let (inquirer, mut inquiry) = Inquiry::of(inner, change).unzip();
    let cancel = inner.kill.child_token();
    let context = CallContext {
        principal: proposer(change),
        cancel: cancel.clone(),
        progress: Arc::new(NoProgress),
        change_id: Some(change.id.clone()),
        inquirer,
        session: None,
        permit: Some(permit),
        approved_state: Some(change.fingerprint.clone()),
        meter: None,
    };
    let began = Instant::now();
    let work = AssertUnwindSafe(provider.call(&change.tool, &change.arguments, &context)).catch_unwind();
    let mut work = std::pin::pin!(work);
    let mut deadline = tokio::time::Instant::now() + inner.config.run_timeout;
    let lost = |code: ErrorKind, message: &str, sent_by| ChangeEvent::LoseTrack {
        fault: ChangeFault { code: code.code().into(), message: message.into() },
        sent_by,
    };
    let event = loop {
        let waits = inquiry.as_ref().is_some_and(Inquiry::waits);
        let happened = async {
            match &mut inquiry {
                Some(inquiry) => inquiry.next().await,
                None => std::future::pending().await,
            }
        };
        let happened = tokio::select! {
            biased;
            answer = &mut work => break match answer {
                Ok(answer) => outcome(inner, answer, last_sent(&sent)),
                Err(_panic) => {
                    tracing::error!(change = %change.id, provider = %change.provider, tool = %change.tool, "a tool panicked");
                    let message = "The tool failed in a way that leaves open whether the change was applied";
                    lost(ErrorKind::Internal, message, inner.now())
                }
            },
            () = tokio::time::sleep_until(deadline), if !waits => {
                break lost(ErrorKind::Timeout, "The tool did not answer in time", last_sent(&sent));
            }
            () = inner.kill.cancelled() => {
                break lost(ErrorKind::Timeout, "The gateway was stopped while the tool was running", inner.now());
            }
            happened = happened => happened,
        };
        // To its end, whatever the tool does meanwhile: a step that is half taken helps nobody.
        if let Some(inquiry) = &mut inquiry {
            deadline += inquiry.take(happened).await;
            if inquiry.waits() {
                drop(slot.take());
            }
        }
    };
    cancel.cancel();
    crash_point("after_call");
    metrics::histogram!("countersign_change_run_seconds").record(began.elapsed().as_secs_f64());
    let last = inquiry.map_or_else(|| Arc::clone(change), |inquiry| Arc::clone(&inquiry.change));
    (last, event)
}

/// When the call went out last, if it did.
fn last_sent(sent: &AtomicI64) -> Timestamp {
    Timestamp::from_millisecond(sent.load(Ordering::Relaxed)).unwrap_or(Timestamp::MAX)
}

/// What the provider's answer says about the change.
fn outcome(inner: &Inner, answer: Result<ToolResult, McpError>, sent_by: Timestamp) -> ChangeEvent {
    match answer {
        Ok(result) if result.is_error => {
            let fault = ChangeFault {
                code: ErrorKind::ToolExecution.code().into(),
                message: first_text(&result).unwrap_or_else(|| "The tool answered with an error".into()),
            };
            ChangeEvent::Fail { fault, result: Some(kept(inner, &result)) }
        }
        Ok(result) => ChangeEvent::Succeed { result: kept(inner, &result) },
        Err(error) if is_certain(&error) => {
            let result = kept(inner, &ToolResult::error(&error));
            ChangeEvent::Fail { fault: fault(&error), result: Some(result) }
        }
        Err(error) => {
            // Progress and questions may have kept the call alive for longer than its time-out: it may run on unless it
            // was ended by that.
            let sent_by = if error.kind == ErrorKind::Timeout { sent_by } else { inner.now() };
            ChangeEvent::LoseTrack { fault: fault(&error), sent_by }
        }
    }
}

/// Whether a call that ended with this error certainly changed nothing. A provider that knows better says so in
/// `data.outcome`: `not_applied` or `unknown`.
fn is_certain(error: &McpError) -> bool {
    match error.data.get("outcome").and_then(serde_json::Value::as_str) {
        Some("not_applied") => true,
        Some("unknown") => false,
        _ => !matches!(
            error.kind,
            ErrorKind::Timeout | ErrorKind::UpstreamUnavailable | ErrorKind::Cancelled | ErrorKind::Internal
        ),
    }
}

/// The result as it is stored: whole, or, over the bound, a note in its place.
fn kept(inner: &Inner, result: &ToolResult) -> Arc<RawValue> {
    let whole = to_raw_value(result).ok().filter(|raw| raw.get().len() <= inner.config.max_result_bytes);
    let raw = whole.or_else(|| {
        let note = ToolResult::text("The tool's answer was too large to be kept.", None);
        to_raw_value(&ToolResult { is_error: result.is_error, ..note }).ok()
    });
    raw.map_or_else(|| Arc::from(Box::<RawValue>::default()), Arc::from)
}

/// The beginning of the first text block.
fn first_text(result: &ToolResult) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Block {
        text: Option<String>,
    }
    let blocks: Vec<Block> = serde_json::from_str(result.content.get()).ok()?;
    let text = blocks.into_iter().find_map(|block| block.text)?;
    Some(redacted(&text).chars().take(1000).collect())
}

/// Records how it ended, for as long as it takes: the call is over, and is never made again.
async fn record(inner: &Inner, mut claimed: Arc<Change>, event: ChangeEvent) {
    let mut wait = Duration::from_millis(50);
    loop {
        match inner.step(&claimed, event.clone(), None).await {
            Ok(_) => return,
            Err(StepError::Conflict | StepError::Illegal(_) | StepError::Fenced) => {
                // A question whose storing seemed to fail was stored all the same.
                if let Ok(Some(now)) = inner.store.get(&claimed.id).await
                    && now.state == ChangeState::Executing
                    && now.version > claimed.version
                {
                    claimed = now;
                    continue;
                }
                if too_late(inner, &claimed, &event).await {
                    return;
                }
                // An earlier try was written although its outcome was unknown then.
                tracing::warn!(change = %claimed.id, "the outcome of a change was recorded already");
                return;
            }
            Err(StepError::Store(StoreError::Closed)) => {
                tracing::error!(change = %claimed.id, "the store closed before the outcome of a change was recorded");
                return;
            }
            Err(error) => {
                tracing::error!(?error, change = %claimed.id, "the outcome of a change cannot be recorded; trying again");
            }
        }
        tokio::select! {
            () = inner.abandon.cancelled() => {
                tracing::error!(change = %claimed.id, "gave up recording the outcome of a change");
                return;
            }
            () = tokio::time::sleep(wait) => {}
        }
        wait = (wait * 2).min(Duration::from_secs(5));
    }
}

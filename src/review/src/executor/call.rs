//! Calls the provider of a claimed change, and waits for the answer.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use jiff::Timestamp;

use super::{Slot, dialogue::RunningDialogue, outcome::outcome_event};
use crate::{review_core::ReviewCore, truncation::to_fault};
use countersign_domain::changes::{Change, ChangeFault, machine::ChangeEvent};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, Permit, Provider, ToolResult};
use countersign_runtime::crash::crash_point;
use countersign_telemetry::metrics as telemetry;

/// The delay between checks whether this node's lease was renewed.
const LEASE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Calls the provider once with exactly the approved bytes. Returns the change as last stored, and the event that ends the call.
pub(super) async fn call_provider(
    core: &ReviewCore,
    change: &Arc<Change>,
    provider: &Arc<dyn Provider>,
    slot: &mut Slot,
) -> (Arc<Change>, ChangeEvent) {
    let last_sent_at = Arc::new(AtomicI64::new(core.repository.config.now().as_millisecond()));
    let Some(permit) = acquire_permit(core, change, &last_sent_at).await else {
        return (Arc::clone(change), ChangeEvent::Fail { fault: to_fault(&Permit::expired_error()), result: None });
    };
    let (inquirer, dialogue) = RunningDialogue::start(core, change).unzip();
    let cancel = core.repository.shutdown.kill.child_token();
    let context = CallContext {
        cancel: cancel.clone(),
        change_id: Some(change.id.clone()),
        inquirer,
        permit: Some(permit),
        approved_fingerprint: Some(change.fingerprint.clone()),
        answers_confirmation: change.preview.confirms,
        ..CallContext::new(Arc::new(change.proposer.to_agent()))
    };
    let started_at = Instant::now();
    let mut running = RunningCall { core, change, dialogue, slot, last_sent_at };
    let answer = AssertUnwindSafe(provider.call(&change.tool, &change.arguments, &context)).catch_unwind();
    // Pinned here, so that a call without an answer is told to stop before it is dropped.
    let answer = std::pin::pin!(answer);
    let event = running.wait_for_answer(answer).await;
    cancel.cancel();
    crash_point("after_call");
    metrics::histogram!(telemetry::CHANGE_RUN_DURATION).record(started_at.elapsed().as_secs_f64());
    let latest = running.dialogue.map_or_else(|| Arc::clone(change), |dialogue| Arc::clone(&dialogue.change));
    (latest, event)
}

/// Returns the permit to send the call, which records the time in `last_sent_at`. Returns `None` if this node has lost its claim
/// or is stopped.
async fn acquire_permit(core: &ReviewCore, change: &Change, last_sent_at: &Arc<AtomicI64>) -> Option<Permit> {
    let repository = &core.repository;
    let (nodes, claimant, clock) =
        (Arc::clone(&repository.nodes), change.claimed_by.clone(), Arc::clone(&repository.config.clock));
    // Checked just before the first byte of a call is sent.
    let last_sent_at = Arc::clone(last_sent_at);
    let permit = Permit(Arc::new(move || {
        last_sent_at.fetch_max(clock().as_millisecond(), Ordering::Relaxed);
        nodes.holds_claim(claimant.as_ref())
    }));
    // A late renewal is fine as long as the node did not lose its lease in between.
    while !permit.is_valid()
        && repository.nodes.claimant() == change.claimed_by
        && !repository.shutdown.kill.is_cancelled()
    {
        tokio::time::sleep(LEASE_CHECK_INTERVAL).await;
    }
    permit.is_valid().then_some(permit)
}

/// The call of a change that its provider has not answered yet.
struct RunningCall<'a> {
    core: &'a ReviewCore,
    change: &'a Arc<Change>,
    dialogue: Option<RunningDialogue<'a>>,
    slot: &'a mut Slot,
    /// The time at which a request of the call was last sent, in milliseconds; its start if none was sent.
    last_sent_at: Arc<AtomicI64>,
}

impl RunningCall<'_> {
    /// Waits for the answer, and returns the event for its outcome. The timeout is paused while the tool waits for an answer of
    /// the proposer's client.
    async fn wait_for_answer(
        &mut self,
        mut answer: Pin<&mut impl Future<Output = std::thread::Result<Result<ToolResult, McpError>>>>,
    ) -> ChangeEvent {
        let Self { core, change, dialogue, slot, last_sent_at } = self;
        let repository = &core.repository;
        let mut deadline = tokio::time::Instant::now() + repository.config.tuning.run_timeout;
        let last_sent = || Timestamp::from_millisecond(last_sent_at.load(Ordering::Relaxed)).unwrap_or(Timestamp::MAX);
        let unknown_outcome = |kind: ErrorKind, message: &str, last_sent_at| ChangeEvent::LoseTrack {
            fault: ChangeFault::new(kind, message),
            last_sent_at,
        };
        loop {
            let is_waiting = dialogue.as_ref().is_some_and(RunningDialogue::is_waiting);
            let next_event = async {
                match dialogue.as_mut() {
                    Some(dialogue) => dialogue.next().await,
                    None => std::future::pending().await,
                }
            };
            let dialogue_event = tokio::select! {
                biased;
                answer = &mut answer => return match answer {
                    Ok(answer) => outcome_event(repository, answer, last_sent()),
                    Err(_panic) => {
                        tracing::error!(change = %change.id, provider = %change.provider, tool = %change.tool, "a tool panicked");
                        let message = "The tool failed in a way that leaves open whether the change was applied";
                        unknown_outcome(ErrorKind::Internal, message, repository.config.now())
                    }
                },
                () = tokio::time::sleep_until(deadline), if !is_waiting => {
                    return unknown_outcome(ErrorKind::Timeout, "The tool did not answer in time", last_sent());
                }
                () = repository.shutdown.kill.cancelled() => {
                    return unknown_outcome(ErrorKind::Timeout, "The gateway was stopped while the tool was running", repository.config.now());
                }
                event = next_event => event,
            };
            // An answer of the tool does not cancel this, because the transition must be complete.
            if let Some(dialogue) = dialogue.as_mut() {
                deadline += dialogue.handle(dialogue_event).await;
                if dialogue.is_waiting() {
                    drop(slot.take());
                }
            }
        }
    }
}

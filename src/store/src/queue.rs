//! The write queue of a backend, and the batches of writes that share a transaction.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use metrics::{Counter, Gauge, Histogram};
use parking_lot::Mutex;

use super::{CommittedWrite, StoreError, TransitionDraft, WriteCallback, WriteError, WriteRequest};
use countersign_domain::changes::audit::EntryContent;
use countersign_telemetry::metrics::{self as telemetry, Queue, queue_length};

/// The maximum writes and bytes in one transaction, which bound the wait of the first write for the last.
const MAX_BATCH: usize = 1024;
const MAX_BATCH_BYTES: usize = 32 << 20;

/// The maximum writes that wait for the writer. Further writes are refused.
pub(crate) const MAX_QUEUED_WRITES: usize = 8192;

/// The time without a command after which the writer does other work.
pub(crate) const IDLE_TIME: Duration = Duration::from_millis(500);

/// The time after `close` for which the writer retries an unreadable database, before it answers that the outcome of
/// the last writes is unknown.
pub(crate) const READ_BACK_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) type WriteResult = Result<CommittedWrite, WriteError>;

pub(crate) struct Command {
    pub request: WriteRequest,
    pub callback: WriteCallback,
}

impl WriteRequest {
    /// Returns the approximate number of bytes that the request writes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Transition(draft) => draft.body.len(),
            Self::Prune(pruning) => pruning.redactions.iter().map(|redaction| redaction.body.len()).sum(),
            Self::Record(record) | Self::Restored(record) => {
                let texts = record.pins.iter().filter_map(|write| write.pin.text.as_deref());
                record.details.len() * (1 + record.rules.len()) + texts.map(str::len).sum::<usize>()
            }
        }
    }
}

/// Puts a command into a backend's bounded channel, or returns it with the reason for the refusal.
type EnqueueFn = Box<dyn Fn(Command) -> Option<(StoreError, Command)> + Send>;

/// The sending end of a writer's queue.
pub(crate) struct WriteQueue {
    sender: Mutex<Option<EnqueueFn>>,
    queued: Arc<AtomicUsize>,
}

impl WriteQueue {
    pub fn new(sender: impl Fn(Command) -> Option<(StoreError, Command)> + Send + 'static) -> Self {
        Self { sender: Mutex::new(Some(Box::new(sender))), queued: Arc::default() }
    }

    /// Queues the write. If it is refused, calls `callback` at once and on this thread.
    pub fn send(&self, request: WriteRequest, callback: WriteCallback) {
        let sender = self.sender.lock();
        let command = Command { request, callback };
        let refused = match sender.as_ref() {
            None => Some((StoreError::Closed, command)),
            Some(sender) => {
                self.queued.fetch_add(1, Ordering::Relaxed);
                sender(command).inspect(|_| {
                    self.queued.fetch_sub(1, Ordering::Relaxed);
                })
            }
        };
        drop(sender);
        if let Some((error, command)) = refused {
            (command.callback)(Err(error.into()), false);
        }
    }

    /// Refuses further writes.
    pub fn close(&self) {
        drop(self.sender.lock().take());
    }

    pub fn is_open(&self) -> bool {
        self.sender.lock().is_some()
    }

    /// Returns the metrics for the receiving end.
    pub fn metrics(&self) -> QueueMetrics {
        QueueMetrics {
            queued: Arc::clone(&self.queued),
            depth: queue_length(Queue::Store),
            commits: metrics::counter!(telemetry::STORE_COMMITS),
            sizes: metrics::histogram!(telemetry::STORE_COMMIT_CHANGES),
            seconds: metrics::histogram!(telemetry::STORE_COMMIT_DURATION),
        }
    }
}

/// Takes batches from the queue, and updates the metrics.
pub(crate) struct QueueMetrics {
    queued: Arc<AtomicUsize>,
    depth: Gauge,
    commits: Counter,
    sizes: Histogram,
    seconds: Histogram,
}

impl QueueMetrics {
    /// Returns a batch of `first` and the waiting commands, within the limits.
    pub fn take_batch(&self, first: Command, mut next: impl FnMut() -> Option<Command>) -> Vec<Command> {
        let mut bytes = first.request.len();
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH && bytes < MAX_BATCH_BYTES {
            let Some(next) = next() else { break };
            bytes += next.request.len();
            batch.push(next);
        }
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        self.depth.set(self.queued.fetch_sub(batch.len(), Ordering::Relaxed).saturating_sub(batch.len()) as f64);
        batch
    }

    /// Records a batch that was answered.
    pub fn record_commit(&self, size: usize, began: Instant) {
        self.commits.increment(1);
        #[allow(clippy::cast_precision_loss, reason = "a histogram")]
        self.sizes.record(size as f64);
        self.seconds.record(began.elapsed().as_secs_f64());
    }
}

/// Returns the audit entry `seq` of a transition. `at` is the formatted time of the draft.
pub(crate) fn audit_entry<'a>(draft: &'a TransitionDraft, seq: u64, at: &'a str) -> EntryContent<'a> {
    EntryContent {
        seq,
        at,
        change_id: &draft.change.id,
        event: draft.kind.as_str(),
        from: draft.from.map(|state| state.as_str()),
        to: draft.change.state.as_str(),
        actor: &draft.actor,
        details: &draft.details,
    }
}

/// Returns the JSON of the feed event `seq` of a transition.
pub(crate) fn feed_event(draft: &TransitionDraft, seq: u64) -> String {
    format!(r#"{{"type":"{}","seq":{seq},{}"#, draft.kind.feed_type(), draft.event_tail)
}

/// Answers all commands. The flag is set for commands before the last transition of the batch, so that a listener
/// forwards the collected transitions with the last one.
pub(crate) fn answer(batch: Vec<Command>, outcomes: Vec<WriteResult>) {
    let last = batch.iter().rposition(|command| matches!(command.request, WriteRequest::Transition(_)));
    for (n, (command, outcome)) in batch.into_iter().zip(outcomes).enumerate() {
        (command.callback)(outcome, last.is_some_and(|last| n < last));
    }
}

/// Answers all commands with an error.
pub(crate) fn refuse(batch: Vec<Command>, error: &StoreError) {
    tracing::error!(%error, changes = batch.len(), "the store could not write; readiness reports the error");
    let outcomes = batch.iter().map(|_| Err(error.clone().into())).collect();
    answer(batch, outcomes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AuditRecord, Pruning, drafts::created_draft};

    fn record() -> WriteRequest {
        WriteRequest::Record(AuditRecord::new("tools_accepted", jiff::Timestamp::UNIX_EPOCH, "alice", "{}".into()))
    }

    fn prune() -> WriteRequest {
        WriteRequest::Prune(Pruning {
            at: jiff::Timestamp::UNIX_EPOCH,
            redactions: Vec::new(),
            deletions: Vec::new(),
            events_to: 0,
            events_details: String::new(),
        })
    }

    /// Returns the flags that the callbacks of a batch receive.
    fn callback_flags(requests: Vec<WriteRequest>) -> Vec<bool> {
        let flags = Arc::new(Mutex::new(Vec::new()));
        let command = |request| {
            let flags = Arc::clone(&flags);
            Command { request, callback: Box::new(move |_, more| flags.lock().push(more)) }
        };
        let batch: Vec<_> = requests.into_iter().map(command).collect();
        refuse(batch, &StoreError::Closed);
        Arc::into_inner(flags).unwrap().into_inner()
    }

    /// A listener forwards transitions with the last one of a batch, and never with a record.
    #[test]
    fn last_transition_of_batch_has_no_successor_flag() {
        let step = || WriteRequest::Transition(created_draft("a"));
        assert_eq!(callback_flags(vec![step(), step(), record()]), [true, false, false]);
        assert_eq!(callback_flags(vec![record(), step()]), [true, false]);
        assert_eq!(callback_flags(vec![step(), record(), step(), prune()]), [true, true, false, false]);
        assert_eq!(callback_flags(vec![record(), record()]), [false, false]);
    }
}

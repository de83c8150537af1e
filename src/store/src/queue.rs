//! The write queue of a backend, and the loop that runs all waiting requests in one transaction, commits, and only then answers
//! them (group commit).

use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc::{Receiver, Sender, channel, error::TrySendError},
    time::timeout,
};

use super::{
    CommittedWrite, StoreError, TransitionDraft, WriteCallback, WriteError, WriteRequest, error, health::Health,
};
use countersign_domain::changes::audit::EntryContent;
use countersign_telemetry::metrics::{self as telemetry, Queue, queue_length};

/// The maximum writes and bytes in one transaction, which bound the wait of the first write for the last.
const MAX_BATCH: usize = 1024;
const MAX_BATCH_BYTES: usize = 32 << 20;

/// The maximum writes that wait for the writer. Further writes are refused.
const MAX_QUEUED_WRITES: usize = 8192;

/// The time without a command after which the writer does other work.
const IDLE_TIME: Duration = Duration::from_millis(500);

/// The time after the end of the queue for which the writer retries an unreadable database, before it answers that the
/// outcome of the last writes is unknown.
const READ_BACK_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) type WriteResult = Result<CommittedWrite, WriteError>;

pub(crate) struct Command {
    pub request: WriteRequest,
    callback: WriteCallback,
}

impl WriteRequest {
    /// Returns the approximate number of bytes that the request writes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Transition(draft) => draft.body.len(),
            Self::Prune(pruning) => {
                pruning.changes.iter().filter_map(|change| change.body.as_ref()).map(String::len).sum()
            }
            Self::Record(record) | Self::Restored(record) => {
                let texts = record.pins.iter().filter_map(|write| write.pin.text.as_deref());
                record.details.len() * (1 + record.rules.len()) + texts.map(str::len).sum::<usize>()
            }
        }
    }
}

/// The sending end of a writer's queue.
pub(crate) struct WriteQueue(Mutex<Option<Sender<Command>>>);

impl WriteQueue {
    /// Returns a queue with its receiving end.
    pub fn new() -> (Self, QueuedCommands) {
        let (sender, commands) = channel(MAX_QUEUED_WRITES);
        let commands = QueuedCommands {
            commands,
            depth: queue_length(Queue::Store),
            commits: metrics::counter!(telemetry::STORE_COMMITS),
            sizes: metrics::histogram!(telemetry::STORE_COMMIT_CHANGES),
            seconds: metrics::histogram!(telemetry::STORE_COMMIT_DURATION),
        };
        (Self(Mutex::new(Some(sender))), commands)
    }

    /// Queues the write. If it is refused, calls `callback` at once and on this thread.
    pub fn send(&self, request: WriteRequest, callback: WriteCallback) {
        let command = Command { request, callback };
        let sent = match self.0.lock().as_ref() {
            Some(sender) => sender.try_send(command),
            None => Err(TrySendError::Closed(command)),
        };
        let (error, refused) = match sent {
            Ok(()) => return,
            Err(TrySendError::Full(command)) => (StoreError::QueueFull, command),
            Err(TrySendError::Closed(command)) => (StoreError::Closed, command),
        };
        (refused.callback)(Err(error.into()), false);
    }

    /// Refuses further writes.
    pub fn close(&self) {
        drop(self.0.lock().take());
    }

    pub fn is_open(&self) -> bool {
        self.0.lock().is_some()
    }
}

/// The receiving end of a writer's queue, with the metrics of the writer.
pub(crate) struct QueuedCommands {
    commands: Receiver<Command>,
    depth: Gauge,
    commits: Counter,
    sizes: Histogram,
    seconds: Histogram,
}

impl QueuedCommands {
    /// Returns a batch of `first` and the waiting commands, within the limits.
    fn take_batch(&mut self, first: Command) -> Vec<Command> {
        let mut bytes = first.request.len();
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH && bytes < MAX_BATCH_BYTES {
            let Ok(next) = self.commands.try_recv() else { break };
            bytes += next.request.len();
            batch.push(next);
        }
        self.record_depth();
        batch
    }

    /// Returns the commands that wait now.
    fn take_waiting(&mut self) -> Vec<Command> {
        let waiting = (0..self.commands.len()).map_while(|_| self.commands.try_recv().ok()).collect();
        self.record_depth();
        waiting
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    fn record_depth(&self) {
        self.depth.set(self.commands.len() as f64);
    }

    /// Records a batch that was answered.
    fn record_commit(&self, size: usize, began: Instant) {
        self.commits.increment(1);
        #[allow(clippy::cast_precision_loss, reason = "a histogram")]
        self.sizes.record(size as f64);
        self.seconds.record(began.elapsed().as_secs_f64());
    }
}

/// The reason why a batch failed.
pub(crate) struct BatchError {
    pub error: StoreError,
    /// The transaction was rolled back, and each request may succeed in one of its own.
    pub may_succeed_alone: bool,
}

impl From<StoreError> for BatchError {
    fn from(error: StoreError) -> Self {
        Self { error, may_succeed_alone: false }
    }
}

/// A connection that runs the writes of a queue. The provided methods are the loop that both backends share.
pub(crate) trait BatchWriter {
    /// The data by which a commit without an answer is found.
    type Commit;

    fn queue(&mut self) -> &mut QueuedCommands;

    fn health(&self) -> &Health;

    /// Runs a batch in one transaction. A failure leaves no open transaction.
    async fn run_batch(&mut self, batch: &[Command]) -> Result<Vec<WriteResult>, BatchError>;

    /// Finds out whether a commit took effect.
    ///
    /// # Errors
    /// [`StoreError::OutcomeUnknown`] if this cannot be found out. After another error, it is tried again.
    async fn is_committed(&mut self, commit: &Self::Commit) -> Result<bool, StoreError>;

    /// Writes a row without effect, to find out whether the database works again.
    async fn probe(&mut self) -> Result<(), StoreError>;

    /// Does the work for which there is time while no command waits.
    async fn work_idly(&mut self);

    /// Returns `true` if a server has stopped answering, so that further requests would wait in vain.
    fn is_silent(&self) -> bool {
        false
    }

    /// Runs batches until the queue is closed.
    async fn run_queue(&mut self) {
        while let Some(first) = self.next().await {
            let batch = self.queue().take_batch(first);
            let (size, began) = (batch.len(), Instant::now());
            match self.run_batch(&batch).await {
                Err(BatchError { error, may_succeed_alone: true }) if size > 1 => {
                    tracing::warn!(%error, changes = size, "a batch of writes failed; running each write in its own transaction");
                    for command in batch {
                        let alone = vec![command];
                        let result = if self.is_silent() {
                            Err(error::no_answer().into())
                        } else {
                            self.run_batch(&alone).await
                        };
                        self.answer_batch(alone, result);
                    }
                }
                result => self.answer_batch(batch, result),
            }
            self.queue().record_commit(size, began);
        }
    }

    /// Returns the next command, or `None` once the queue is closed. After an error, it probes the database while
    /// waiting, because a gateway that is not ready may receive no requests.
    async fn next(&mut self) -> Option<Command> {
        loop {
            match timeout(IDLE_TIME, self.queue().commands.recv()).await {
                Ok(command) => return command,
                Err(_) if self.health().last_error().is_some() => self.probe_and_record().await,
                Err(_) => self.work_idly().await,
            }
        }
    }

    /// Probes the database, and records the result.
    async fn probe_and_record(&mut self) {
        match self.probe().await {
            Ok(()) => self.health().record_success(),
            Err(error) => self.record_failure(&error),
        }
    }

    fn answer_batch(&mut self, batch: Vec<Command>, result: Result<Vec<WriteResult>, BatchError>) {
        match result {
            Ok(outcomes) => answer(batch, outcomes),
            Err(BatchError { error, .. }) => {
                self.record_failure(&error);
                refuse(batch, &error);
            }
        }
    }

    /// Records a failure. If the server is silent, also refuses the writes that have waited for the last attempt. They would
    /// wait as long again.
    fn record_failure(&mut self, error: &StoreError) {
        self.health().record_failure(error);
        if self.is_silent() {
            let waiting = self.queue().take_waiting();
            if !waiting.is_empty() {
                refuse(waiting, &error::no_answer());
            }
        }
    }

    /// Finds out whether a commit took effect that failed with `error`. Its batch is not answered before that is known.
    ///
    /// # Errors
    /// `error` if the commit changed nothing, or [`StoreError::OutcomeUnknown`].
    async fn read_back(&mut self, commit: &Self::Commit, error: StoreError) -> Result<(), StoreError> {
        let (mut pause, mut give_up) = (Duration::from_millis(20), None);
        loop {
            match self.is_committed(commit).await {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(error),
                Err(StoreError::OutcomeUnknown) => return Err(StoreError::OutcomeUnknown),
                Err(again) => {
                    tracing::error!(error = %again, "the database cannot be read; trying again");
                    // Readiness reports the failure, and the batch waits for its answer.
                    self.health().record_failure(&again);
                }
            }
            if self.queue().commands.is_closed()
                && Instant::now() >= *give_up.get_or_insert_with(|| Instant::now() + READ_BACK_TIMEOUT)
            {
                return Err(StoreError::OutcomeUnknown);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
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
fn answer(batch: Vec<Command>, outcomes: Vec<WriteResult>) {
    let last = batch.iter().rposition(|command| matches!(command.request, WriteRequest::Transition(_)));
    for (n, (command, outcome)) in batch.into_iter().zip(outcomes).enumerate() {
        (command.callback)(outcome, last.is_some_and(|last| n < last));
    }
}

/// Answers all commands with an error.
fn refuse(batch: Vec<Command>, error: &StoreError) {
    tracing::error!(%error, changes = batch.len(), "the store could not write; readiness reports the error");
    let outcomes = batch.iter().map(|_| Err(error.clone().into())).collect();
    answer(batch, outcomes);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{AuditRecord, Pruning, drafts::created_draft};

    fn record() -> WriteRequest {
        WriteRequest::Record(AuditRecord::new("tools_accepted", jiff::Timestamp::UNIX_EPOCH, "alice", "{}".into()))
    }

    fn prune() -> WriteRequest {
        WriteRequest::Prune(Pruning {
            at: jiff::Timestamp::UNIX_EPOCH,
            changes: Vec::new(),
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

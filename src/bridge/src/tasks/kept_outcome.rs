//! The outcomes of tasks that the gateway itself keeps. Their memory counts for the principals of the tasks. If it is
//! needed for something else, the oldest tasks are forgotten.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::value::RawValue;

use countersign_exchange::{
    eviction::monotonic_ms,
    memory::{MemoryShare, UnreadHolder, WeakHolder},
};
use countersign_protocol::{ErrorKind, rpc_error::RpcError};

/// The way in which a task ended.
pub enum TaskOutcome {
    Result(Box<RawValue>),
    Error(RpcError),
    /// The client has cancelled the task.
    Cancelled,
}

impl TaskOutcome {
    fn size(&self) -> usize {
        match self {
            Self::Result(result) => result.get().len(),
            Self::Error(error) => error.message.len() + error.data.as_deref().map_or(0, |data| data.get().len()),
            Self::Cancelled => 0,
        }
    }
}

/// The outcome of a task, once it has ended.
pub struct KeptOutcome(Mutex<OutcomeState>);

struct OutcomeState {
    outcome: Option<TaskOutcome>,
    /// The memory of the outcome.
    share: MemoryShare,
    /// The time, by [`monotonic_ms`], at which the task ended.
    ended_at: u64,
    is_forgotten: bool,
}

impl KeptOutcome {
    /// Creates the place for the outcome of a task. `share` is an empty share of the task's principal.
    pub fn new(share: MemoryShare) -> Arc<Self> {
        Arc::new(Self(Mutex::new(OutcomeState { outcome: None, share, ended_at: 0, is_forgotten: false })))
    }

    /// Keeps the outcome, unless the task has ended already. An outcome for which there is no memory is replaced by an
    /// error.
    pub fn keep(self: &Arc<Self>, outcome: TaskOutcome) {
        let mut state = self.0.lock();
        if state.outcome.is_some() || state.is_forgotten {
            return;
        }
        let has_room = state.share.cover_result(outcome.size(), Arc::downgrade(self) as WeakHolder);
        state.outcome = Some(if has_room { outcome } else { no_room_outcome() });
        state.ended_at = monotonic_ms();
    }

    /// Reads the outcome. Returns `None` if the task has not ended or is forgotten.
    pub fn read<T>(&self, read: impl FnOnce(&TaskOutcome) -> T) -> Option<T> {
        self.0.lock().outcome.as_ref().map(read)
    }

    /// Returns `true` if the memory of the outcome was needed for something else.
    pub fn is_forgotten(&self) -> bool {
        self.0.lock().is_forgotten
    }
}

impl UnreadHolder for KeptOutcome {
    fn unread_since(&self) -> Option<u64> {
        let state = self.0.try_lock()?;
        (state.share.bytes() > 0).then_some(state.ended_at)
    }

    fn close(&self) -> bool {
        let Some(mut state) = self.0.try_lock() else { return false };
        tracing::debug!("the result of a task is forgotten to make room");
        state.is_forgotten = true;
        state.outcome = None;
        state.share.shrink_to(0);
        true
    }
}

fn no_room_outcome() -> TaskOutcome {
    let message = "the tool has run, but there is no room to keep its result (limits.principal_memory)";
    TaskOutcome::Error(RpcError::new(ErrorKind::Overloaded.number(), message))
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;
    use countersign_exchange::memory::MemoryBudget;

    /// The step in which shares of messages grow.
    const STEP: usize = 16 << 10;

    fn keep(memory: &Arc<MemoryBudget>, bytes: usize, ended_at: u64) -> Arc<KeptOutcome> {
        let kept = KeptOutcome::new(memory.share("ann"));
        let result = RawValue::from_string(format!(r#""{}""#, "x".repeat(bytes - 2))).unwrap();
        kept.keep(TaskOutcome::Result(result));
        kept.0.lock().ended_at = ended_at;
        kept
    }

    #[test]
    fn oldest_outcome_is_forgotten_if_memory_is_needed() {
        let memory = MemoryBudget::new(2 * STEP, 2 * STEP);
        let (newer, older) = (keep(&memory, STEP, 2), keep(&memory, STEP, 1));
        assert_eq!(memory.used_by("ann"), 2 * STEP);
        let mut messages = memory.share("ann");
        assert!(messages.cover_messages(STEP, 3, || Weak::<KeptOutcome>::new() as WeakHolder));
        assert!(older.is_forgotten() && older.read(|_| ()).is_none());
        assert!(newer.read(|outcome| matches!(outcome, TaskOutcome::Result(_))).unwrap());
        older.keep(TaskOutcome::Cancelled);
        assert!(older.is_forgotten() && older.read(|_| ()).is_none());
        drop(newer);
        assert_eq!(memory.used_by("ann"), STEP);
    }

    #[test]
    fn outcome_without_room_becomes_an_error() {
        let memory = MemoryBudget::new(STEP, STEP);
        let kept = keep(&memory, STEP + 1, 1);
        let code = |outcome: &TaskOutcome| match outcome {
            TaskOutcome::Error(error) => Some(error.code),
            _ => None,
        };
        assert_eq!(kept.read(code), Some(Some(ErrorKind::Overloaded.number())));
        assert_eq!(memory.used_by("ann"), 0);
    }
}

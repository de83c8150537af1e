//! The states and results of tool calls that clients of 2025-11-25 run as tasks in the gateway.
//!
//! The tasks are kept in memory and bounded in number. After a restart their ids are unknown.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::gateway::long_requests::LongRequests;
use countersign_bridge::{
    result::is_error_result,
    task_json::{self, TaskTimes},
};
use countersign_exchange::{
    context::Exchange,
    memory::{MemoryBudget, MemoryShare},
    reply::Reply,
};
use countersign_protocol::{ErrorKind, McpError, Method, task::Status};

/// The maximum number of tasks of one principal that are remembered. A running task is never dropped for another one.
const MAX_TASKS_PER_PRINCIPAL: usize = 100;

/// The bytes that a task takes in addition to its parameters or its result.
const TASK_BYTES: usize = 1024;

/// The time for which a finished task is remembered.
const RETENTION: Duration = Duration::from_secs(3600);

/// The state of a task.
#[derive(Clone)]
pub enum LocalTaskState {
    Working,
    /// The result in the form of the client's revision.
    Done(Arc<str>),
    Failed(McpError),
    Cancelled,
}

/// The state of a task and its times.
struct TaskProgress {
    state: LocalTaskState,
    times: TaskTimes,
    /// The time at which the task came into this state.
    entered_at: Instant,
}

impl TaskProgress {
    const fn is_working(&self) -> bool {
        matches!(self.state, LocalTaskState::Working)
    }
}

/// One task.
pub struct LocalTask {
    id: String,
    principal: String,
    progress: watch::Sender<TaskProgress>,
    cancel: CancellationToken,
    /// The task's reservation in the memory of its principal.
    share: Mutex<MemoryShare>,
}

/// All local tasks of this gateway.
pub struct LocalTasks {
    tasks: DashMap<String, Arc<LocalTask>>,
    /// The memory budget of each principal.
    memory: Arc<MemoryBudget>,
}

impl LocalTasks {
    pub fn new(memory: Arc<MemoryBudget>) -> Self {
        Self { tasks: DashMap::new(), memory }
    }

    /// Finds a task of a principal. The stateless era has no such tasks.
    pub fn find(&self, principal: &str, id: &str, is_modern: bool) -> Option<Arc<LocalTask>> {
        let task = self.tasks.get(id).map(|task| Arc::clone(&task))?;
        (!is_modern && task.principal == principal && !task.is_expired()).then_some(task)
    }

    /// Returns the tasks of a principal as `tasks/list` shows them, oldest first.
    pub fn describe_all_of(&self, principal: &str) -> Vec<String> {
        let mut tasks: Vec<Arc<LocalTask>> = self
            .tasks
            .iter()
            .filter(|task| task.principal == principal && !task.is_expired())
            .map(|t| Arc::clone(&t))
            .collect();
        tasks.sort_by_key(|task| task.progress.borrow().times.created);
        tasks.iter().map(|task| task.describe()).collect()
    }

    /// Registers a task of a principal that begins now, with parameters of this size. `tasks/cancel` cancels `cancel`,
    /// and the caller ends the task then ([`LocalTask::end`]). If the principal has too many tasks, its oldest finished
    /// task is dropped.
    ///
    /// # Errors
    /// `OVERLOADED` if all tasks that the principal may have are running, or if it has no memory left.
    pub fn register(
        &self,
        principal: &str,
        size: usize,
        cancel: CancellationToken,
    ) -> Result<Arc<LocalTask>, McpError> {
        let share = self.memory.take(principal, TASK_BYTES + 2 * size)?;
        let task = Arc::new(LocalTask {
            share: Mutex::new(share),
            id: format!("run_{}", nanoid::nanoid!(28, &nanoid::alphabet::SAFE[2..])),
            principal: principal.to_owned(),
            progress: watch::Sender::new(TaskProgress {
                state: LocalTaskState::Working,
                times: TaskTimes::now(),
                entered_at: Instant::now(),
            }),
            cancel,
        });
        let mut oldest: Option<(Instant, String)> = None;
        let mut count = 0;
        self.tasks.retain(|id, other| {
            let is_remembered = !other.is_expired();
            if is_remembered && other.principal == task.principal {
                count += 1;
                let progress = other.progress.borrow();
                if !progress.is_working() && oldest.as_ref().is_none_or(|(at, _)| progress.entered_at < *at) {
                    oldest = Some((progress.entered_at, id.clone()));
                }
            }
            is_remembered
        });
        if count >= MAX_TASKS_PER_PRINCIPAL {
            let Some((_, id)) = oldest else {
                let message = "too many tasks run; wait for one to end or cancel one";
                return Err(McpError::new(ErrorKind::Overloaded, message).with("limit", MAX_TASKS_PER_PRINCIPAL as u64));
            };
            self.tasks.remove(&id);
        }
        self.tasks.insert(task.id.clone(), Arc::clone(&task));
        Ok(task)
    }
}

impl LocalTask {
    /// Keeps the result, and returns the final state of the task: a failure if the principal has no memory for the result.
    pub fn keep_result(&self, result: String) -> LocalTaskState {
        let mut share = self.share.lock();
        share.shrink_to(TASK_BYTES);
        if share.grow(result.len()) {
            return LocalTaskState::Done(result.into());
        }
        let message = "the tool has run, but there is no room to keep its result (limits.principal_memory)";
        LocalTaskState::Failed(McpError::new(ErrorKind::Overloaded, message))
    }

    /// Ends the task in this state, unless it has already ended.
    pub fn end(&self, final_state: LocalTaskState) {
        self.progress.send_if_modified(|progress| {
            let was_working = progress.is_working();
            if was_working {
                progress.state = final_state;
                progress.times.updated = TaskTimes::now().updated;
                progress.entered_at = Instant::now();
            }
            was_working
        });
    }

    fn is_expired(&self) -> bool {
        let progress = self.progress.borrow();
        !progress.is_working() && progress.entered_at.elapsed() > RETENTION
    }

    fn status(&self) -> Status {
        match &self.progress.borrow().state {
            LocalTaskState::Working => Status::Working,
            LocalTaskState::Done(result) if !is_error_result(result) => Status::Completed,
            LocalTaskState::Done(_) | LocalTaskState::Failed(_) => Status::Failed,
            LocalTaskState::Cancelled => Status::Cancelled,
        }
    }

    /// Describes the task as `tasks/get` shows it.
    pub fn describe(&self) -> String {
        task_json::local_task(&self.id, self.status(), &self.progress.borrow().times)
    }

    /// Answers `tasks/get`, `tasks/result` and `tasks/cancel`.
    ///
    /// # Errors
    /// The error of the call; `-32602` for the cancellation of a task that has ended.
    pub async fn handle(
        &self,
        exchange: &Exchange,
        method: Method,
        long_requests: &LongRequests,
    ) -> Result<Reply, McpError> {
        match method {
            Method::TasksGet => Ok(Reply::new(self.describe())),
            Method::TasksResult => self.await_result(exchange, long_requests).await,
            // The only other method about one task that clients of 2025-11-25 have is `tasks/cancel`.
            _ => {
                if self.status().is_terminal() {
                    return Err(McpError::new(ErrorKind::InvalidParams, "the task has ended already"));
                }
                self.end(LocalTaskState::Cancelled);
                self.cancel.cancel();
                Ok(Reply::new(self.describe()))
            }
        }
    }

    async fn await_result(&self, exchange: &Exchange, long_requests: &LongRequests) -> Result<Reply, McpError> {
        let mut progress = self.progress.subscribe();
        let outcome = {
            let _slot = long_requests.slots.take(&exchange.identity.principal.name)?;
            let end = progress.wait_for(|progress| !progress.is_working());
            tokio::select! {
                end_result = end => end_result.map(|progress| progress.state.clone()).unwrap_or(LocalTaskState::Cancelled),
                error = long_requests.authenticator.wait_until_invalid(&exchange.identity) => return Err(error),
            }
        };
        match outcome {
            LocalTaskState::Done(result) => {
                let json = task_json::with_related_task(&result, &self.id);
                Ok(Reply::verbatim(json).with_failure(is_error_result(&result).then_some(ErrorKind::ToolExecution)))
            }
            LocalTaskState::Failed(error) => Err(error),
            LocalTaskState::Working | LocalTaskState::Cancelled => {
                Err(McpError::new(ErrorKind::Cancelled, "the task was cancelled").with("taskId", self.id.as_str()))
            }
        }
    }
}

//! Tasks of upstreams of 2025-11-25 for stateless clients. The gateway waits for the result as long as the task lasts
//! (`tasks/result` blocks until there is one, and beyond the time limit of a call the task is polled). The upstream's
//! questions are in the task's `inputRequests` until a `tasks/update` answers them, or [`ANSWER_TIMEOUT`] has passed.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use serde_json::{json, value::RawValue};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    kept_outcome::{KeptOutcome, TaskOutcome},
    request,
    table::{Task, unknown_task_error},
};
use crate::{
    questions::{OpenQuestion, StatelessClient},
    translation::{result::input_requests, task_json},
};
use countersign_exchange::{ask::ANSWER_TIMEOUT, memory::MemoryShare};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    error::code_for_client,
    json::{MemberEdit, edit, members},
    rpc_error::RpcError,
    task::{self, Status},
};
use countersign_provider::request::UpstreamRequest;
use countersign_runtime::background;
use countersign_upstream::{FailedRequests, Listener, Response, Upstream, UpstreamNotification};

const INTERNAL: i64 = ErrorKind::Internal.number();

/// The maximum number of open questions of one task.
pub const MAX_OPEN_QUESTIONS: usize = 64;

/// The state of a task whose result the gateway awaits.
pub struct AwaitedTask {
    /// The upstream's id of the task.
    upstream_id: Option<String>,
    /// The task as the upstream last described it.
    task: Mutex<Box<str>>,
    open_questions: Mutex<Vec<OpenQuestion>>,
    /// The number of questions that the upstream has asked.
    question_count: AtomicU64,
    pub outcome: Arc<KeptOutcome>,
    client: StatelessClient,
    /// Ends the wait for the result.
    cancelled: CancellationToken,
}

impl AwaitedTask {
    /// Creates the state of a task from its description. `share` is an empty share of the task's principal.
    pub fn new(task: &str, client: StatelessClient, share: MemoryShare) -> Arc<Self> {
        Arc::new(Self {
            upstream_id: task::task_id(task),
            task: Mutex::new(task.into()),
            open_questions: Mutex::default(),
            question_count: AtomicU64::new(0),
            outcome: KeptOutcome::new(share),
            client,
            cancelled: CancellationToken::new(),
        })
    }

    /// Waits for the task's end in the background, on this thread, for as long as a client can name the task.
    pub fn wait_in_background(self: &Arc<Self>, task: &Arc<Task>, upstream: &Arc<Upstream>) {
        let expires_at = task.expires_at;
        let (this, task, upstream) = (Arc::clone(self), Arc::downgrade(task), Arc::clone(upstream));
        background::spawn(async move {
            let outcome = tokio::select! {
                outcome = this.await_outcome(&task, &upstream) => outcome,
                () = this.cancelled.cancelled() => Some(TaskOutcome::Cancelled),
                // A request for the result has no time limit while a question is open.
                () = this.decline_overdue_questions_until(expires_at) => None,
            };
            this.open_questions.lock().clear();
            if let Some(outcome) = outcome {
                this.outcome.keep(outcome);
            }
        });
    }

    /// Declines the questions that the client does not answer in time, until the task expires.
    async fn decline_overdue_questions_until(&self, expires_at: Instant) {
        loop {
            let first = self.open_questions.lock().first().map(|question| question.asked_at);
            // Questions that are asked during the sleep have later deadlines.
            let next = first.unwrap_or_else(Instant::now) + ANSWER_TIMEOUT;
            tokio::time::sleep_until(next.min(expires_at)).await;
            let now = Instant::now();
            if now >= expires_at {
                return;
            }
            self.open_questions.lock().retain(|question| question.asked_at + ANSWER_TIMEOUT > now);
        }
    }

    /// Requests the result of the task and returns its outcome. A task may take longer than any call, so it is polled when the
    /// request has reached its time limit, until it has ended or needs input. Returns `None` once no client can name the task.
    async fn await_outcome(self: &Arc<Self>, task: &Weak<Task>, upstream: &Arc<Upstream>) -> Option<TaskOutcome> {
        // The client is told that the task has failed, so the server does not need to continue.
        let give_up = |task: &Arc<Task>, error: &McpError| {
            request::cancel_in_background(upstream, task);
            // The tool may have run.
            let data = RawValue::from_string(json!({ "outcome": "unknown" }).to_string()).ok();
            Some(TaskOutcome::Error(RpcError { data, ..RpcError::new(INTERNAL, error.message.to_string()) }))
        };
        let (mut method, mut failures) = ("tasks/result", FailedRequests::default());
        loop {
            let task = task.upgrade().filter(|task| !task.is_expired())?;
            let outgoing = request::build_own_request(upstream, &task, method);
            let listener: Arc<dyn Listener> = Arc::clone(self) as _;
            match self.with_capability_error(upstream.call(&task.caller, &outgoing, listener).await) {
                Ok(Response::Error(error)) => return Some(TaskOutcome::Error(error)),
                Ok(Response::Result(result)) if method == "tasks/result" => return Some(TaskOutcome::Result(result)),
                Ok(Response::Result(described)) => {
                    failures = FailedRequests::default();
                    match Status::parse_known(described.get()) {
                        Ok(Status::Working) => *self.task.lock() = described.get().into(),
                        Ok(_) => {
                            method = "tasks/result";
                            continue;
                        }
                        Err(error) => return give_up(&task, &error),
                    }
                }
                Err(error) if !error.kind.is_transient() || failures.record(&task.caller) => {
                    return give_up(&task, &error);
                }
                Err(_) => method = "tasks/get",
            }
            let pause = task::poll_interval(&self.task.lock());
            tokio::time::sleep(pause).await;
        }
    }

    /// Replaces the response of a failed task with `-32021` if its upstream asked for something that the client did not
    /// declare. Otherwise its error gets a code that the client's era knows.
    fn with_capability_error(&self, response: Result<Response, McpError>) -> Result<Response, McpError> {
        Ok(match self.client.check_response(response?) {
            Ok(Response::Error(error)) => {
                Response::Error(RpcError { code: code_for_client(error.code, Revision::MODERN), ..error })
            }
            Ok(result) => result,
            Err(error) => {
                let data = RawValue::from_string(error.data().to_string()).ok();
                let message = error.message.to_string();
                Response::Error(RpcError { data, ..RpcError::new(error.kind.number(), message) })
            }
        })
    }

    /// Marks the task as cancelled by its client.
    pub fn cancel(&self) {
        self.outcome.keep(TaskOutcome::Cancelled);
        self.cancelled.cancel();
    }

    /// Describes the task like `tasks/get` of the extension, without `resultType`. `adapt` adapts its result to the
    /// client.
    ///
    /// # Errors
    /// `-32602` if the outcome of the task is forgotten.
    pub fn describe(&self, alias: &str, adapt: impl Fn(&str) -> String) -> Result<String, McpError> {
        let task = self.task.lock().clone();
        let final_state = self.outcome.read(|outcome| match outcome {
            TaskOutcome::Result(result) => {
                let result = adapt(&task_json::without_related_task(result.get()));
                task_json::to_modern(&task, alias, Status::Completed, Some(("result", &result)))
            }
            TaskOutcome::Error(error) => {
                task_json::to_modern(&task, alias, Status::Failed, Some(("error", &error_json(error))))
            }
            TaskOutcome::Cancelled => task_json::to_modern(&task, alias, Status::Cancelled, None),
        });
        if let Some(final_state) = final_state {
            return Ok(final_state);
        }
        if self.outcome.is_forgotten() {
            return Err(unknown_task_error(alias));
        }
        let mut open_questions = self.open_questions.lock();
        open_questions.retain(|question| !question.cancelled.is_cancelled());
        if open_questions.is_empty() {
            return Ok(task_json::to_modern(&task, alias, Status::Working, None));
        }
        let requests = input_requests(open_questions.iter().map(|question| question.content.as_input_request()));
        Ok(task_json::to_modern(&task, alias, Status::InputRequired, Some(("inputRequests", &requests))))
    }

    /// Passes answers to the upstream. Answers to unknown questions are ignored (ext-tasks, "Task Update Requests").
    pub fn pass_answers(&self, responses: &str) {
        for response in members(responses) {
            let question = {
                let mut open_questions = self.open_questions.lock();
                let index = open_questions.iter().position(|question| question.content.key == response.key);
                index.map(|index| open_questions.remove(index))
            };
            if let Some(question) = question {
                let answer = RawValue::from_string(response.value.to_owned());
                question.reply.answer(answer.map_err(|_| RpcError::new(INTERNAL, "the client's answer is not JSON")));
            }
        }
    }
}

impl Listener for AwaitedTask {
    fn handle_notification(&self, notification: UpstreamNotification) {
        // Tasks of the extension have neither progress nor log messages, and clients request their state. Principals may
        // share the link, so the notification may be about the task of another one.
        if notification.method == "notifications/tasks/status"
            && let Some(params) = notification.params
            && Status::parse(params.get()).is_some()
            && task::task_id(params.get()) == self.upstream_id
        {
            *self.task.lock() = params.get().into();
        }
    }

    fn handle_request(&self, request: UpstreamRequest) {
        let Some(mut question) = self.client.accept(request) else { return };
        let content = &mut question.content;
        // A key must never be used again for the same task (ext-tasks).
        content.key = self.question_count.fetch_add(1, Ordering::Relaxed).to_string();
        content.params = content.params.take().map(|params| task_json::without_related_task(&params));
        let mut open_questions = self.open_questions.lock();
        if open_questions.len() < MAX_OPEN_QUESTIONS {
            open_questions.push(question);
        }
    }
}

/// Returns an error of the upstream as JSON text.
fn error_json(error: &RpcError) -> String {
    let object = json!({ "code": error.code, "message": error.message }).to_string();
    match &error.data {
        Some(data) => edit(&object, &[("data", MemberEdit::Set(data.get()))]),
        None => object,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_exchange::memory::MemoryBudget;
    use countersign_protocol::{RequestId, json::member, negotiate::ClientCapabilities};
    use countersign_upstream::testing::fake::question;

    #[test]
    fn answer_reaches_its_question_whatever_the_request_ids() {
        let capabilities = ClientCapabilities { elicitation_form: true, ..ClientCapabilities::default() };
        let client = StatelessClient::new(capabilities, "{}".into(), "s".into());
        let share = MemoryBudget::new(1000, 1000).share("ann");
        let task = AwaitedTask::new(r#"{"taskId":"own"}"#, client, share);
        let ask = |id: &str| {
            let (request, answer) = question();
            task.handle_request(UpstreamRequest { id: RequestId::from_raw(id), ..request });
            answer
        };
        let keys = || {
            let described = task.describe("a", str::to_owned).unwrap();
            let requests = member(&described, "inputRequests").unwrap();
            members(requests).map(|request| request.key.into_owned()).collect::<Vec<_>>()
        };
        let (mut first, mut second) = (ask("6"), ask(r#""6""#));
        let first_keys = keys();
        assert!(first_keys.len() == 2 && first_keys[0] != first_keys[1], "{first_keys:?}");
        task.pass_answers(&format!(r#"{{"{}":{{"action":"decline"}}}}"#, first_keys[1]));
        assert!(first.try_recv().is_err());
        assert_eq!(second.try_recv().unwrap().unwrap().get(), r#"{"action":"decline"}"#);
        // No key is used twice, even if the upstream uses the id of an answered request again.
        let _third = ask(r#""6""#);
        let later_keys = keys();
        assert_eq!((later_keys.len(), &later_keys[0]), (2, &first_keys[0]));
        assert!(!first_keys.contains(&later_keys[1]), "{later_keys:?}");
    }
}

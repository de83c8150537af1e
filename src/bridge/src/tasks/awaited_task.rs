//! Tasks of upstreams of 2025-11-25 for stateless clients. The gateway waits for the result as long as the task lasts
//! (`tasks/result` blocks until there is one). The upstream's questions are in the task's `inputRequests` until a
//! `tasks/update` answers them.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value, value::RawValue};
use tokio_util::sync::CancellationToken;

use super::{request, table::Task};
use crate::{
    questions::{self, DeclinedQuestions},
    translation::task_shape::{self, Status},
};
use countersign_protocol::{
    McpError, Revision, encode,
    json::{MemberEdit, edit, members, merge_meta, string},
    negotiate::ClientCapabilities,
    rpc_error::RpcError,
};
use countersign_provider::request::{Replier, UpstreamRequest};
use countersign_upstream::{Listener, Response, Upstream, UpstreamNotification};

/// The maximum number of open questions of one task.
pub const MAX_OPEN_QUESTIONS: usize = 64;

struct Question {
    /// The key of the answer: the upstream's own request id, which is never used again.
    key: String,
    /// `{"method": …, "params": …}`
    text: String,
    reply: Replier,
    cancelled: CancellationToken,
}

enum TaskOutcome {
    Result(Box<RawValue>),
    Error(RpcError),
    /// The client has cancelled the task.
    Cancelled,
}

/// The state of a task whose result the gateway awaits.
pub struct AwaitedTask {
    /// The task as the upstream last described it.
    task: Mutex<Box<str>>,
    open: Mutex<Vec<Question>>,
    outcome: Mutex<Option<TaskOutcome>>,
    capabilities: ClientCapabilities,
    /// The client's own declaration as JSON text. `capabilities` may be only a part of it.
    declared: Arc<str>,
    /// The name of the upstream.
    upstream: String,
    declined: DeclinedQuestions,
    /// Ends the wait for the result.
    cancelled: CancellationToken,
}

impl AwaitedTask {
    #[must_use]
    pub fn new(task: &str, capabilities: ClientCapabilities, declared: Arc<str>, upstream: String) -> Arc<Self> {
        Arc::new(Self {
            task: Mutex::new(task.into()),
            open: Mutex::default(),
            outcome: Mutex::default(),
            capabilities,
            declared,
            upstream,
            declined: DeclinedQuestions::default(),
            cancelled: CancellationToken::new(),
        })
    }

    /// Waits for the task's end in the background, on this thread.
    pub fn wait(self: &Arc<Self>, task: &Arc<Task>, upstream: &Arc<Upstream>) {
        let (this, task, upstream) = (Arc::clone(self), Arc::clone(task), Arc::clone(upstream));
        actix::spawn(async move {
            let outgoing = request::outgoing(&upstream, &task, "tasks/result", "{}", true);
            let listener: Arc<dyn Listener> = Arc::clone(&this) as _;
            let outcome = tokio::select! {
                response = upstream.call(&task.caller, &outgoing, listener) => match this.with_capability_error(response) {
                    Ok(Response::Result(result)) => TaskOutcome::Result(result),
                    Ok(Response::Error(error)) => TaskOutcome::Error(error),
                    Err(error) => TaskOutcome::Error(RpcError::new(-32603, error.message.to_string())),
                },
                () = this.cancelled.cancelled() => TaskOutcome::Cancelled,
            };
            this.open.lock().clear();
            this.outcome.lock().get_or_insert(outcome);
        });
    }

    /// Replaces the response of a failed task with `-32021` if its upstream asked for something that the client did not
    /// declare.
    fn with_capability_error(&self, response: Result<Response, McpError>) -> Result<Response, McpError> {
        match &response {
            Ok(answer) => {
                self.declined.capability_error(answer, &self.declared, &self.upstream).map_or(response, |error| {
                    let data = RawValue::from_string(error.data().to_string()).ok();
                    let code = error.kind.number();
                    Ok(Response::Error(RpcError { code, message: error.message.to_string(), data, status: None }))
                })
            }
            Err(_) => response,
        }
    }

    /// Marks the task as cancelled by its client.
    pub fn cancel(&self) {
        self.outcome.lock().get_or_insert(TaskOutcome::Cancelled);
        self.cancelled.cancel();
    }

    /// Describes the task like `tasks/get` of the extension, without `resultType`. `adapt` adapts its result to the
    /// client.
    pub fn describe(&self, alias: &str, adapt: impl Fn(&str) -> String) -> String {
        let task = self.task.lock().clone();
        match &*self.outcome.lock() {
            Some(TaskOutcome::Result(result)) => {
                let result = adapt(&task_shape::without_related_task(result.get()));
                task_shape::to_modern(&task, alias, Status::Completed, Some(("result", &result)))
            }
            Some(TaskOutcome::Error(error)) => {
                task_shape::to_modern(&task, alias, Status::Failed, Some(("error", &error_object(error))))
            }
            Some(TaskOutcome::Cancelled) => task_shape::to_modern(&task, alias, Status::Cancelled, None),
            None => {
                let mut open = self.open.lock();
                open.retain(|question| !question.cancelled.is_cancelled());
                if open.is_empty() {
                    return task_shape::to_modern(&task, alias, Status::Working, None);
                }
                let mut requests = String::from("{");
                for question in open.iter() {
                    if requests.len() > 1 {
                        requests.push(',');
                    }
                    requests.push_str(&Value::from(question.key.as_str()).to_string());
                    requests.push(':');
                    requests.push_str(&question.text);
                }
                requests.push('}');
                task_shape::to_modern(&task, alias, Status::InputRequired, Some(("inputRequests", &requests)))
            }
        }
    }

    /// Passes answers to the upstream. Answers to unknown questions are ignored (ext-tasks, "Task Update Requests").
    pub fn update(&self, responses: &str) {
        for response in members(responses) {
            let question = {
                let mut open = self.open.lock();
                open.iter().position(|question| question.key == response.key).map(|index| open.remove(index))
            };
            if let Some(question) = question {
                let answer = RawValue::from_string(response.value.to_owned());
                question.reply.answer(answer.map_err(|_| RpcError::new(-32603, "the client's answer is not JSON")));
            }
        }
    }
}

impl Listener for AwaitedTask {
    fn notification(&self, notification: UpstreamNotification) {
        // Tasks of the extension have neither progress nor log messages, and clients request their state.
        if notification.method == "notifications/tasks/status"
            && let Some(params) = notification.params
            && Status::parse(params.get()).is_some()
        {
            *self.task.lock() = params.get().into();
        }
    }

    fn request(&self, request: UpstreamRequest) {
        let UpstreamRequest { id, method, params, reply, cancelled } = request;
        if let Err(refused) =
            questions::check_capabilities(&self.capabilities, &method, params.as_deref().map(RawValue::get))
        {
            self.declined.record(&method, params);
            return reply.answer(Err(refused));
        }
        let params = params.as_deref().map(RawValue::get);
        let key = string(id.as_json()).map_or_else(|| id.as_json().to_owned(), std::borrow::Cow::into_owned);
        let method_text = Value::from(method.as_str()).to_string();
        let text = match questions::params_for_client(&self.upstream, &method, params, Revision::MODERN, None) {
            Some(params) => {
                format!(r#"{{"method":{method_text},"params":{}}}"#, task_shape::without_related_task(&params))
            }
            None => format!(r#"{{"method":{method_text}}}"#),
        };
        let mut open = self.open.lock();
        if open.len() < MAX_OPEN_QUESTIONS {
            open.push(Question { key, text, reply, cancelled });
        }
    }
}

/// Returns an error of the upstream as JSON text.
fn error_object(error: &RpcError) -> String {
    let mut object = Map::new();
    object.insert("code".into(), error.code.into());
    object.insert("message".into(), error.message.clone().into());
    let object = Value::Object(object).to_string();
    match &error.data {
        Some(data) => edit(&object, &[("data", MemberEdit::Set(data.get()))]),
        None => object,
    }
}

/// Returns a notification of the extension with the state of a task.
#[must_use]
pub fn notification(task: &str, subscription: &str) -> bytes::Bytes {
    let params =
        merge_meta(task, &[(countersign_protocol::params::keys::SUBSCRIPTION_ID, MemberEdit::Set(subscription))]);
    encode::notification("notifications/tasks", Some(&params))
}

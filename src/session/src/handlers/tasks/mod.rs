//! `tasks/*`. Every change is a durable task of its proposer, reachable over any connection and after a restart. Other
//! ids name calls that run here as tasks ([`local`]), or tasks of upstreams ([`countersign_bridge::tasks`]).
//!
//! The task of a change has the id of the change. The id is unguessable, and only its proposer's principal can use it.

pub mod listen;
pub mod local;
pub mod view;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json, value::RawValue};

use super::reviewed::{
    approval_page, ask_client,
    dashboard_hint::dashboard_hint,
    finished_call::outcome_of,
    long_poll::{self, ChangeWait, WaitOutcome},
};
use crate::gateway::{local_tasks::LocalTasks, server::Reviews};
use countersign_bridge::{task_json, tasks as upstream_tasks};
use countersign_domain::changes::{CHANGE_ID_PREFIX, Change, ChangeState};
use countersign_exchange::{
    context::Exchange,
    reply::{Reply, SERVER_META},
};
use countersign_protocol::{
    ErrorKind, McpError, Method, encode,
    envelope::Request,
    json::{MemberEdit, edit, member},
    params,
};
use countersign_review::ChangeFilter;
use countersign_runtime::{background, crash::crash_point};

/// The maximum number of changes on one page of the list.
const MAX_PAGE_ENTRIES: usize = 50;

/// The time after which a wait for the next version of a change is renewed.
const WAIT_RENEWAL: Duration = Duration::from_secs(600);

/// The prefix of a cursor that points into the changes of the list.
const CHANGES_CURSOR_PREFIX: &str = "changes-";

/// The tasks that clients can name.
#[derive(Clone, Copy)]
pub struct TaskSources<'a> {
    pub reviews: &'a Arc<Reviews>,
    pub local: &'a LocalTasks,
    pub upstream: &'a upstream_tasks::Tasks,
}

/// Answers `tasks/*` of any client.
///
/// # Errors
/// `-32021` for a stateless client that does not declare the extension, `-32602` for a task of another principal.
pub async fn handle(
    exchange: &Exchange,
    sources: TaskSources<'_>,
    method: Method,
    request: &Request<'_>,
) -> Result<Reply, McpError> {
    let TaskSources { reviews, local, upstream } = sources;
    upstream_tasks::check_extension_declared(exchange)?;
    if method == Method::TasksList {
        return list(exchange, sources, request).await;
    }
    let params = request.params.map_or("{}", RawValue::get);
    countersign_protocol::outline::check_key_case(&request.outlined_params())?;
    let id = upstream_tasks::requested_task_id(params)?;
    if let Some(task) = local.find(&exchange.identity.principal.name, &id, exchange.is_modern()) {
        return task.handle(exchange, method, &reviews.long_requests).await;
    }
    match find_change(exchange, reviews, &id).await? {
        Some(change) => handle_change(exchange, reviews, change, method, params).await,
        None => upstream_tasks::handle(upstream, exchange, method, request, &id).await,
    }
}

/// Finds the change that a task id names, if this client's principal proposed it.
///
/// # Errors
/// The errors of the store.
pub async fn find_change(exchange: &Exchange, reviews: &Reviews, id: &str) -> Result<Option<Arc<Change>>, McpError> {
    if !id.starts_with(CHANGE_ID_PREFIX) {
        return Ok(None);
    }
    let change = reviews.changes.get(id).await?;
    Ok(change.filter(|change| change.proposer.principal == exchange.identity.principal.name))
}

async fn handle_change(
    exchange: &Exchange,
    reviews: &Arc<Reviews>,
    change: Arc<Change>,
    method: Method,
    params: &str,
) -> Result<Reply, McpError> {
    match method {
        Method::TasksGet if exchange.is_modern() => Ok(Reply::new(view::modern_task(exchange, reviews, &change))),
        Method::TasksGet => Ok(Reply::new(view::legacy_task(exchange, reviews, &change))),
        Method::TasksUpdate => {
            let responses = upstream_tasks::input_responses(params)?;
            if member(responses, approval_page::INPUT_KEY).is_some() {
                // The content of the answer is ignored: a person decides on the page, with a reviewer's credential.
                reviews.answered_page_requests.insert(&change.id);
            }
            ask_client::deliver_answers(exchange, reviews, &change, responses).await?;
            Ok(Reply::new("{}".into()))
        }
        Method::TasksResult => await_result(exchange, reviews, change).await,
        // The only other method about one task is `tasks/cancel`.
        _ => cancel(exchange, reviews, change).await,
    }
}

/// Returns the answer to a call that became a task.
pub fn creation_reply(
    exchange: &Exchange,
    reviews: &Arc<Reviews>,
    change: &Change,
    progress_token: Option<&str>,
) -> Reply {
    crash_point("before_task_answer");
    if exchange.is_modern() {
        let task = task_json::with_result_type(&view::created_modern_task(reviews, change), "task");
        let meta = ("_meta", MemberEdit::Set(SERVER_META));
        return Reply::verbatim(edit(&task, &[meta]));
    }
    notify_of_transitions(exchange, reviews, change, progress_token);
    let mut text = countersign_review::gateway_tools::change_text(change);
    if let Some(hint) = dashboard_hint(exchange, reviews, change) {
        text = format!("{text}\n{hint}");
    }
    let meta = json!({ "io.modelcontextprotocol/model-immediate-response": text }).to_string();
    Reply::verbatim(format!(r#"{{"task":{},"_meta":{meta}}}"#, view::legacy_task(exchange, reviews, change)))
}

/// Notifies the session in which a task was created of every transition (2025-11-25/basic/utilities/tasks, "Task Status
/// Notification"). If the call has a progress token, the transition is also sent as progress (ibid., "Task Progress
/// Notifications"); tasks of the extension have none. Notifying ends with the session or the task. Until then it takes one of the
/// principal's slots for long requests; a client without a free slot gets no notifications.
fn notify_of_transitions(exchange: &Exchange, reviews: &Arc<Reviews>, change: &Change, progress_token: Option<&str>) {
    let Ok(slot) = reviews.long_requests.slots.take(&exchange.identity.principal.name) else { return };
    let (exchange, reviews) = (exchange.clone(), Arc::clone(reviews));
    let (id, mut version) = (change.id.clone(), change.version);
    let token = progress_token.map(ToOwned::to_owned);
    background::spawn(async move {
        let _slot = slot;
        let shutdown = &reviews.long_requests.shutdown;
        let notifying = async {
            while let Ok(Some(change)) = reviews.changes.wait(&id, version, WAIT_RENEWAL).await {
                if change.version > version {
                    version = change.version;
                    if let Some(token) = &token {
                        exchange.session.send_unsolicited(progress_notification(&change, token));
                    }
                    let task = view::legacy_task(&exchange, &reviews, &change);
                    exchange.session.send_unsolicited(encode::notification("notifications/tasks/status", Some(&task)));
                }
                if change.state.is_final() || shutdown.is_cancelled() {
                    return;
                }
            }
        };
        tokio::select! {
            () = notifying => {}
            () = exchange.session.ended.cancelled() => {}
            () = shutdown.cancelled() => {}
        }
    });
}

/// Returns the notification of the progress of a change. The number of steps is unknown, so each version counts as one more.
fn progress_notification(change: &Change, token: &str) -> bytes::Bytes {
    let message = Value::from(countersign_review::gateway_tools::progress_message(change));
    let params = format!(r#"{{"progressToken":{token},"progress":{},"message":{message}}}"#, change.version);
    encode::notification("notifications/progress", Some(&task_json::with_related_task(&params, &change.id)))
}

/// Answers `tasks/result` (2025-11-25/basic/utilities/tasks, "Result Retrieval"). It waits for the end of the change
/// and takes one of the principal's slots for long requests.
async fn await_result(exchange: &Exchange, reviews: &Arc<Reviews>, mut change: Arc<Change>) -> Result<Reply, McpError> {
    let id = change.id.clone();
    let wait = ChangeWait { exchange, reviews, hold: None };
    while !change.state.is_final() {
        let _slot = reviews.long_requests.slots.take(&exchange.identity.principal.name)?;
        let is_reached = |change: &Change| change.state.is_final() || ask_client::has_open_questions(change);
        let waiting = wait.until(Arc::clone(&change), is_reached);
        let mut waited = if approval_page::page_input_requests(exchange, reviews, &change).is_some() {
            let mut waiting = std::pin::pin!(waiting);
            tokio::select! {
                waited = &mut waiting => waited?,
                () = approval_page::ask(exchange, reviews, &change, Some(&id)) => waiting.await?,
            }
        } else {
            waiting.await?
        };
        if let WaitOutcome::Reached(running) = &waited
            && ask_client::has_open_questions(running)
        {
            waited = ask_while_running(wait, running, &id).await?;
        }
        change = match waited {
            WaitOutcome::Reached(change) => change,
            WaitOutcome::NotReached(_) if reviews.long_requests.shutdown.is_cancelled() => {
                return Err(McpError::shutting_down());
            }
            WaitOutcome::NotReached(_) => {
                return Err(McpError::new(ErrorKind::Overloaded, "too many requests wait for changes; use tasks/get"));
            }
        };
    }
    if change.state == ChangeState::Withdrawn {
        return Err(McpError::new(ErrorKind::Cancelled, "the task was cancelled").with("taskId", id));
    }
    match outcome_of(&change) {
        Some(Ok(finished)) => {
            let json = finished.result.to_json(exchange.revision(), finished.fits_output_schema);
            Ok(Reply::verbatim(task_json::with_related_task(&json, &id)).with_failure(finished.failure))
        }
        Some(Err(error)) => Err(error),
        None => Err(McpError::new(ErrorKind::Internal, "the change has ended without a result")),
    }
}

/// Asks the client the questions of the running change's tool (2025-11-25/basic/utilities/tasks, "Input Required
/// Status") until the change moves, and returns its new state.
async fn ask_while_running(wait: ChangeWait<'_>, change: &Arc<Change>, id: &str) -> Result<WaitOutcome, McpError> {
    let ChangeWait { exchange, reviews, .. } = wait;
    let new_version = wait.until(Arc::clone(change), |current| current.version > change.version);
    if ask_client::answerable_questions(exchange, change).is_empty() {
        return new_version.await;
    }
    tokio::select! {
        // Another client may answer, or the tool may withdraw its question.
        changed = new_version => changed,
        () = ask_client::ask_open_questions(exchange, reviews, change, Some(id)) => {
            Ok(WaitOutcome::Reached(long_poll::reload(reviews, Arc::clone(change)).await))
        }
    }
}

/// Answers `tasks/cancel`: withdraws a change that nobody has decided on.
async fn cancel(exchange: &Exchange, reviews: &Reviews, change: Arc<Change>) -> Result<Reply, McpError> {
    let is_modern = exchange.is_modern();
    let withdrawn = match reviews.changes.withdraw(&change.id, &exchange.identity.principal, None).await {
        Ok(change) => Ok(change),
        Err(refused) => match refused.current {
            Some(current) => Err(current),
            None if refused.error.kind == ErrorKind::ChangeNotPending => Err(change),
            None => return Err(refused.error),
        },
    };
    if let Err(current) = &withdrawn
        && is_modern
        && current.state == ChangeState::Executing
    {
        // A running call is not stopped, but its questions are no longer answered.
        reviews.changes.cancel_dialogue(&current.id, &exchange.identity.principal).await?;
    }
    match withdrawn {
        // A cancellation is always acknowledged (ext-tasks, "Task Cancellation"). An approved change still runs, and an
        // ended one stays as it is.
        _ if is_modern => Ok(Reply::new("{}".into())),
        Ok(change) => Ok(Reply::new(view::legacy_task(exchange, reviews, &change))),
        Err(current) if current.state.is_final() => {
            let status = view::legacy_status(&current).as_str();
            Err(McpError::new(ErrorKind::InvalidParams, format!("the task has ended already: it is {status}")))
        }
        // The change was not cancelled, so the answer must be an error.
        Err(current) => Err(McpError::new(
            ErrorKind::InvalidParams,
            format!("the change was approved and can no longer be withdrawn: it is {}", current.state.as_str()),
        )),
    }
}

/// Answers `tasks/list`: first the tasks of upstreams and local tasks, oldest first, then the principal's changes,
/// newest first.
async fn list(exchange: &Exchange, sources: TaskSources<'_>, request: &Request<'_>) -> Result<Reply, McpError> {
    let TaskSources { reviews, local, upstream } = sources;
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let cursor = params.cursor.as_deref();
    let changes_cursor = cursor.and_then(|cursor| cursor.strip_prefix(CHANGES_CURSOR_PREFIX));
    let principal = &exchange.identity.principal.name;
    let (mut tasks, mut next) = match changes_cursor {
        Some(_) => (Vec::new(), None),
        None => upstream_tasks::list(upstream, exchange, cursor).await?,
    };
    if cursor.is_none() {
        tasks.extend(local.describe_all_of(principal));
    }
    if next.is_none() {
        let filter = ChangeFilter { principals: vec![principal.clone()], ..ChangeFilter::default() };
        let page = reviews.changes.list(filter, MAX_PAGE_ENTRIES, changes_cursor.map(str::to_owned)).await;
        let page = page.map_err(|error| match error.kind {
            ErrorKind::InvalidParams => error.with("member", "params.cursor"),
            _ => error,
        })?;
        tasks.extend(page.items.iter().map(|change| view::legacy_task(exchange, reviews, change)));
        next = page.next_cursor.map(|cursor| format!("{CHANGES_CURSOR_PREFIX}{cursor}"));
    }
    let mut out = format!(r#"{{"tasks":[{}]}}"#, tasks.join(","));
    if let Some(next) = next {
        out = edit(&out, &[("nextCursor", MemberEdit::Set(&json!(next).to_string()))]);
    }
    Ok(Reply::new(out))
}

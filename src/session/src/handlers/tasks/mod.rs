//! `tasks/*`: every change is a task of its proposer, durable, on any connection and after a restart; other ids are of
//! calls that run here as tasks ([`local`]), or of tasks of upstreams ([`countersign_bridge::tasks`]).
//!
//! The id of a change's task is the change's own: unguessable, and of use to its proposer's principal only.

pub mod listen;
pub mod local;
pub mod view;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json, value::RawValue};

use super::{
    reviewed::{
        approval_page, ask_client,
        finished_call::{ChangeOutcome, outcome_of},
        long_poll::{self, WaitOutcome},
    },
    tools::encode as encoded,
};
use crate::Handling;
use countersign_bridge::{task_shape, tasks as foreign};
use countersign_domain::changes::{Change, ChangeState};
use countersign_exchange::reply::{Reply, SERVER_META};
use countersign_protocol::{
    ErrorKind, McpError, encode,
    envelope::Request,
    json::{MemberEdit, edit, member},
    method::Method,
    params,
};
use countersign_provider::NoProgress;
use countersign_review::ChangeFilter;
use countersign_runtime::crash::crash_point;

/// Tasks in one page of a list.
const PAGE: usize = 50;

/// The time after which a wait for news of a task is renewed.
const TELL: Duration = Duration::from_secs(600);

/// The prefix of a list's cursor once changes follow.
const CHANGES: &str = "changes";

/// `tasks/*` of any client.
///
/// # Errors
/// `-32021` for a stateless client that does not declare the extension, `-32602` for a task that is not its own.
pub async fn handle(exchange: &Handling, method: Method, request: &Request<'_>) -> Result<Reply, McpError> {
    foreign::declared(exchange)?;
    if method == Method::TasksList {
        return list(exchange, request).await;
    }
    let params = request.params.map_or("{}", RawValue::get);
    countersign_protocol::ambiguous_keys::check(&request.outlined_params())?;
    let id = foreign::id(params)?;
    if let Some(task) = exchange.server.local_tasks.find(&exchange.identity.principal.name, &id, exchange.is_modern()) {
        return task.handle(exchange, method, &exchange.server.long_requests).await;
    }
    match find(exchange, &id).await? {
        Some(change) => of_change(exchange, change, method, params).await,
        None => foreign::handle(&exchange.server.bridge.tasks, exchange, method, request, &id).await,
    }
}

/// The change that a task's id names, if it is of this client's principal.
///
/// # Errors
/// Those of the store.
pub async fn find(exchange: &Handling, id: &str) -> Result<Option<Arc<Change>>, McpError> {
    if !id.starts_with("chg_") {
        return Ok(None);
    }
    let change = exchange.server.reviews.changes.get(id).await?;
    Ok(change.filter(|change| change.proposer.principal == exchange.identity.principal.name))
}

async fn of_change(exchange: &Handling, change: Arc<Change>, method: Method, params: &str) -> Result<Reply, McpError> {
    match method {
        Method::TasksGet if exchange.is_modern() => Ok(Reply::new(view::detailed(exchange, &change))),
        Method::TasksGet => Ok(Reply::new(view::legacy(exchange, &change))),
        Method::TasksUpdate => {
            if !member(params, "inputResponses").is_some_and(|responses| responses.starts_with('{')) {
                return Err(McpError::new(ErrorKind::InvalidParams, "`inputResponses` must be an object")
                    .with("member", "params.inputResponses"));
            }
            let responses = member(params, "inputResponses").unwrap_or("{}");
            if member(responses, approval_page::KEY).is_some() {
                // Whatever it says: the change is decided on its page, by somebody with a reviewer's credential.
                exchange.server.reviews.opened_pages.insert(&change.id);
            }
            ask_client::deliver(exchange, &change, responses).await?;
            Ok(Reply::new("{}".into()))
        }
        Method::TasksResult => result(exchange, change).await,
        _ => cancel(exchange, change).await,
    }
}

/// The answer to a call that became a task.
#[must_use]
pub fn created(exchange: &Handling, change: &Change, progress_token: Option<&str>) -> Reply {
    crash_point("before_task_answer");
    if exchange.is_modern() {
        let task = task_shape::with_result_type(&view::seed(exchange, change), "task");
        let meta = ("_meta", MemberEdit::Set(SERVER_META));
        return Reply::passed_on(edit(&task, &[meta]));
    }
    tell_of(exchange, change, progress_token);
    let told = countersign_review::gateway_tools::pending_text(change);
    let meta = json!({ "io.modelcontextprotocol/model-immediate-response": told }).to_string();
    Reply::passed_on(format!(r#"{{"task":{},"_meta":{meta}}}"#, view::legacy(exchange, change)))
}

/// Tells the session in which a task was made of every transition (2025-11-25/basic/utilities/tasks, "Task Status
/// Notification"), also as progress where the call has a token (ibid., "Task Progress Notifications"; tasks of the
/// extension have none). Ends with the session or the task; bounded as waits for changes are, and by what may be pending.
fn tell_of(exchange: &Handling, change: &Change, progress_token: Option<&str>) {
    let (exchange, id, mut version) = (exchange.clone(), change.id.clone(), change.version);
    let token = progress_token.map(ToOwned::to_owned);
    actix::spawn(async move {
        let server = &exchange.server;
        let tell = async {
            while let Ok(Some(change)) = server.reviews.changes.wait(&id, version, TELL).await {
                if change.version > version {
                    version = change.version;
                    if let Some(token) = &token {
                        exchange.session.send_unsolicited(progress(&change, token));
                    }
                    let task = view::legacy(&exchange, &change);
                    exchange.session.send_unsolicited(encode::notification("notifications/tasks/status", Some(&task)));
                }
                if change.state.is_final() || server.long_requests.shutdown.is_cancelled() {
                    return;
                }
            }
        };
        tokio::select! {
            () = tell => {}
            () = exchange.session.ended.cancelled() => {}
            () = server.long_requests.shutdown.cancelled() => {}
        }
    });
}

/// Returns the progress of a change. The number of steps is unknown, so each version counts as one more.
fn progress(change: &Change, token: &str) -> bytes::Bytes {
    let message = Value::from(countersign_review::gateway_tools::state_message(change));
    let params = format!(r#"{{"progressToken":{token},"progress":{},"message":{message}}}"#, change.version);
    encode::notification("notifications/progress", Some(&task_shape::with_related_task(&params, &change.id)))
}

/// `tasks/result` (2025-11-25/basic/utilities/tasks, "Result Retrieval"): waits for the end, in one of the principal's
/// places for what stays open long.
async fn result(exchange: &Handling, change: Arc<Change>) -> Result<Reply, McpError> {
    let id = change.id.clone();
    let over: fn(&Change) -> bool = |change| change.state.is_final() || ask_client::is_asking(change);
    let mut change = change;
    while !change.state.is_final() {
        let _slot = exchange.server.long_requests.admit(&exchange.identity.principal)?;
        let wait = long_poll::wait(exchange, Arc::clone(&change), None, &NoProgress, over);
        let waited = if approval_page::asked_by_task(exchange, &change).is_some() {
            let mut wait = std::pin::pin!(wait);
            tokio::select! {
                waited = &mut wait => waited?,
                () = approval_page::ask(exchange, &change, Some(&id)) => wait.await?,
            }
        } else {
            wait.await?
        };
        change = match waited {
            WaitOutcome::Over(change) if ask_client::is_asking(&change) => {
                ask_while_running(exchange, change, &id).await?
            }
            WaitOutcome::Over(change) => change,
            WaitOutcome::NotYet(_) if exchange.server.long_requests.shutdown.is_cancelled() => {
                return Err(McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down; ask again later"));
            }
            WaitOutcome::NotYet(_) => {
                return Err(McpError::new(ErrorKind::Overloaded, "too many requests wait for changes; use tasks/get"));
            }
        };
    }
    if change.state == ChangeState::Withdrawn {
        return Err(McpError::new(ErrorKind::Cancelled, "the task was cancelled").with("taskId", id));
    }
    match outcome_of(&change) {
        Some(ChangeOutcome::Result(settled)) => {
            let json = encoded(&settled.result, exchange.revision(), settled.structured);
            Ok(Reply::passed_on(task_shape::with_related_task(&json, &id)).failing(settled.failure))
        }
        Some(ChangeOutcome::Error(error)) => Err(error),
        None => Err(McpError::new(ErrorKind::Internal, "the change has ended without a result")),
    }
}

/// Asks the client what the tool of its running change asks (2025-11-25/basic/utilities/tasks, "Input Required Status"),
/// until that has changed; the change as it is then.
async fn ask_while_running(exchange: &Handling, change: Arc<Change>, id: &str) -> Result<Arc<Change>, McpError> {
    let before = change.version;
    let moved = long_poll::moved(exchange, Arc::clone(&change), before);
    if ask_client::open(exchange, &change).is_empty() {
        return moved.await;
    }
    tokio::select! {
        // Others may answer, or the tool takes it back.
        moved = moved => moved,
        () = ask_client::ask_all(exchange, &change, Some(id)) => Ok(long_poll::now(exchange, change.clone()).await),
    }
}

/// `tasks/cancel` withdraws what nobody has decided on.
async fn cancel(exchange: &Handling, change: Arc<Change>) -> Result<Reply, McpError> {
    let server = &exchange.server;
    let modern = exchange.is_modern();
    let withdrawn = match server.reviews.changes.withdraw(&change.id, &exchange.identity.principal).await {
        Ok(change) => Ok(change),
        Err(refused) => match refused.current {
            Some(current) => Err(current),
            None if refused.error.kind == ErrorKind::ChangeNotPending => Err(change),
            None => return Err(refused.error),
        },
    };
    if let Err(current) = &withdrawn
        && modern
        && current.state == ChangeState::Executing
    {
        // What runs is not stopped. What it asks is not answered any more.
        server.reviews.changes.give_up(&current.id, &exchange.identity.principal).await?;
    }
    match withdrawn {
        // Acknowledged in any case (ext-tasks, "Task Cancellation"): what was approved runs, what is over stays so.
        _ if modern => Ok(Reply::new("{}".into())),
        Ok(change) => Ok(Reply::new(view::legacy(exchange, &change))),
        Err(current) if current.state.is_final() => {
            let status = view::legacy_status(&current).as_str();
            Err(McpError::new(ErrorKind::InvalidParams, format!("the task has ended already: it is {status}")))
        }
        // To say that it is cancelled would be a lie.
        Err(current) => Err(McpError::new(
            ErrorKind::InvalidParams,
            format!("the change was approved and cannot be taken back any more: it is {}", current.state.as_str()),
        )),
    }
}

/// `tasks/list`: tasks of upstreams and local ones first, oldest first, and then the principal's changes, newest first.
async fn list(exchange: &Handling, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let (mut tasks, next) = match params.cursor.as_deref() {
        Some(cursor) if cursor.starts_with(CHANGES) => (Vec::new(), None),
        cursor => {
            let (mut tasks, next) = foreign::list(&exchange.server.bridge.tasks, exchange, cursor).await?;
            if cursor.is_none() {
                tasks.extend(exchange.server.local_tasks.all_of(&exchange.identity.principal.name));
            }
            (tasks, next)
        }
    };
    let next = match next {
        Some(next) => Some(next),
        None => {
            let cursor = params.cursor.as_deref().and_then(|cursor| cursor.strip_prefix("changes-"));
            let filter =
                ChangeFilter { principals: vec![exchange.identity.principal.name.clone()], ..ChangeFilter::default() };
            let unknown = |_| McpError::new(ErrorKind::InvalidParams, "unknown cursor").with("member", "params.cursor");
            let page = exchange.server.reviews.changes.list(filter, PAGE, cursor.map(str::to_owned)).await;
            let page = page.map_err(|error| if cursor.is_some() { unknown(error) } else { error })?;
            tasks.extend(page.items.iter().map(|change| view::legacy(exchange, change)));
            page.next_cursor.map(|cursor| format!("{CHANGES}-{cursor}"))
        }
    };
    let mut out = format!(r#"{{"tasks":[{}]}}"#, tasks.join(","));
    if let Some(next) = next {
        out = edit(&out, &[("nextCursor", MemberEdit::Set(&json!(next).to_string()))]);
    }
    Ok(Reply::new(out))
}

//! Asks a person to connect an account at a server, where a call of their agent needs one
//! (2025-11-25/client/elicitation, "URL Elicitation Required Error"; 2026-07-28/client/elicitation).
//!
//! The call is not made meanwhile. The page asks the person to sign in, so the link may be shown to anybody.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    reviewed::approval_page::{notify_when, page_params, supports_url_elicitation},
    tool_call::ToolCallScope,
};
use crate::owned_messages::OwnedRequest;
use countersign_bridge::{
    URL_ELICITATION_REQUIRED,
    result::{InputRequest, input_required_result},
    tasks,
};
use countersign_config::AccountKind;
use countersign_exchange::{
    context::Exchange,
    reply::{Reply, SERVER_META},
};
use countersign_protocol::{
    ErrorKind, McpError,
    envelope::Request,
    json::{MemberEdit, member, string},
};
use countersign_provider::ToolResult;
use countersign_routing::{RouteTable, ToolRoute, unreached_upstreams::NameKind};
use countersign_telemetry::metrics::Transport;
use countersign_upstream::Upstream;

/// The key of the request in `inputRequests`, and of the client's answer in `inputResponses`.
pub(super) const INPUT_KEY: &str = "connect-account";

/// The longest time that a repeated call waits for its person, who has just opened the page. It is shorter than the 60 s
/// after which SDK clients give up.
const MAX_CONNECTION_WAIT: Duration = Duration::from_secs(45);
/// The longest time for which a client is notified of the connection.
const MAX_NOTIFICATION_WAIT: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the page on which a person connects the server, if the error asks for that.
pub fn connect_url(error: &McpError) -> Option<&str> {
    if error.kind != ErrorKind::Authorization {
        return None;
    }
    error.data.get("connectUrl")?.as_str()
}

/// Checks that the person of the caller has connected the server of a tool, if it requires that, and has the tool there.
///
/// # Errors
/// `AUTHORIZATION`, `TOOL_NOT_FOUND`, or `UPSTREAM_UNAVAILABLE` if the authorization server does not answer.
pub(super) async fn check_connected(exchange: &Exchange, route: &ToolRoute) -> Result<(), McpError> {
    let principal = &exchange.identity.principal;
    let Some(upstream) = route.provider.upstream().filter(|upstream| upstream.uses_accounts()) else { return Ok(()) };
    upstream.for_principal(principal).await?;
    if upstream.account_lists(principal).is_none_or(|lists| lists.tool_names.contains(&*route.name)) {
        return Ok(());
    }
    Err(McpError::new(ErrorKind::ToolNotFound, format!("Unknown tool: {}", route.name)).with("tool", &*route.name))
}

/// Answers a call of the tool with which a person connects a server.
///
/// # Errors
/// `AUTHORIZATION` unless the server was connected meanwhile; `UPSTREAM_UNAVAILABLE` as [`Upstream::for_principal`].
pub(super) async fn answer_connect_tool(exchange: &Exchange, upstream: &Arc<Upstream>) -> Result<Reply, McpError> {
    let name = &upstream.config.name;
    let text = match upstream.for_principal(&exchange.identity.principal).await?.was_reached() {
        true => format!("The server {name} is connected. Its tools are listed now."),
        false => {
            format!("The account at the server {name} is connected. Its tools are listed when the server answers.")
        }
    };
    Ok(Reply::new(ToolResult::text(&text, None).to_json(exchange.revision(), false)))
}

/// Takes the client's answer out of a request, and waits for the connection if the client has accepted to open the page.
/// `answer` is that answer as JSON.
pub(super) async fn take_page_answer(
    scope: ToolCallScope<'_>,
    request: &Request<'_>,
    answer: &str,
) -> Result<OwnedRequest, McpError> {
    let is_accepted = member(answer, "action").and_then(string).is_some_and(|action| action == "accept");
    // The gateway asked and not the server, so the server must not get the answer.
    let request = OwnedRequest::with_edits(request, &[("inputResponses", MemberEdit::Drop)])?;
    if is_accepted && let Some(upstream) = upstream_of_tool(scope.table, &request.as_request().tool_call()?.name) {
        hold_until_connected(scope, upstream).await?;
    }
    Ok(request)
}

fn upstream_of_tool(table: &RouteTable, name: &str) -> Option<Arc<Upstream>> {
    match table.find_tool(name) {
        Some(route) => route.provider.upstream().cloned(),
        None => table.upstream_to_connect(name).cloned().or_else(|| {
            let awaited = table.unreached_upstream(name, NameKind::Tool)?;
            awaited.is_certain.then_some(awaited.upstream)
        }),
    }
}

/// Waits until the person of the caller has connected the server, or for as long as a call may wait for that. If the
/// person has just connected an account that the server refuses, there is nothing to wait for.
async fn hold_until_connected(scope: ToolCallScope<'_>, upstream: Arc<Upstream>) -> Result<(), McpError> {
    let ToolCallScope { exchange, runner, .. } = scope;
    let now = Timestamp::now();
    let since = now.saturating_sub(MAX_CONNECTION_WAIT).unwrap_or(now);
    // Without a free slot the call does not wait.
    let Ok(_slot) = runner.long_requests.slots.take(&exchange.identity.principal.name) else { return Ok(()) };
    tokio::select! {
        biased;
        () = wait_for_connection(exchange, &upstream, since) => Ok(()),
        () = tokio::time::sleep(MAX_CONNECTION_WAIT) => Ok(()),
        () = runner.long_requests.shutdown.cancelled() => Ok(()),
        error = runner.long_requests.authenticator.wait_until_invalid(&exchange.identity) => Err(error),
    }
}

/// Resolves once the person of the caller has an account that works at the server, or has connected one after `since`, even
/// if the server refuses that one.
async fn wait_for_connection(exchange: &Exchange, upstream: &Arc<Upstream>, since: Timestamp) {
    let principal = &exchange.identity.principal;
    let is_unconnected = |error| connect_url(&error).is_some();
    while upstream.for_principal(principal).await.is_err_and(is_unconnected)
        && upstream.connected_at(principal).is_none_or(|at| at < since)
    {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Notifies the client once the person of the caller has connected the server.
fn notify_when_connected(scope: ToolCallScope<'_>, upstream: Arc<Upstream>, elicitation_id: &str) {
    let (exchange, now) = (scope.exchange.clone(), Timestamp::now());
    let is_connected = async move {
        wait_for_connection(&exchange, &upstream, now).await;
        true
    };
    notify_when(scope.exchange, &scope.runner.long_requests, elicitation_id, MAX_NOTIFICATION_WAIT, is_connected);
}

/// States whether the client of a call was asked to open the page on which its person connects a server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PageRequest {
    NotSent,
    /// The client has answered, and is not asked again.
    Answered,
}

/// Answers a call that failed with this error.
pub(super) async fn answer_refused_call(
    scope: ToolCallScope<'_>,
    request: &Request<'_>,
    mut error: McpError,
    page_request: PageRequest,
) -> Result<Reply, McpError> {
    let ToolCallScope { exchange, table, .. } = scope;
    let name = request.tool_call()?.name;
    if error.kind == ErrorKind::ToolNotFound
        && let Some(upstream) = table.upstream_to_connect(&name)
    {
        // An agent may call the connect tool again after its person has connected the server. It is no longer listed then.
        match answer_connect_tool(exchange, upstream).await {
            Ok(reply) => return Ok(reply),
            Err(refusal) => error = refusal,
        }
    }
    let Some(url) = connect_url(&error).filter(|_| exchange.transport != Transport::Rest) else { return Err(error) };
    if supports_url_elicitation(exchange) {
        let params = page_params(&question_text(table, &error), url);
        if !exchange.is_modern() {
            let elicitation_id = nanoid::nanoid!(24);
            let required = elicitation_required_error(&error, params, &elicitation_id);
            if let Some(upstream) = upstream_of_error(table, &error) {
                notify_when_connected(scope, Arc::clone(upstream), &elicitation_id);
            }
            return Err(required);
        }
        if page_request == PageRequest::NotSent {
            let params = params.to_string();
            let result = input_required_result([InputRequest::elicitation(INPUT_KEY, &params)], None, SERVER_META);
            return Ok(Reply { is_pending: true, ..Reply::verbatim(result) });
        }
    }
    if !exchange.is_modern() && tasks::is_requested(exchange, &request.outlined_params().object) {
        // The answer to such a request is a task or an error.
        return Err(error);
    }
    let has_schema = table.find_tool(&name).is_some_and(|route| route.def.output_schema.is_some());
    let result = pending_result(table, &error, url, has_schema);
    Ok(Reply { is_pending: true, ..Reply::new(result.to_json(exchange.revision(), true)) })
}

fn server_name(error: &McpError) -> &str {
    error.data.get("upstream").and_then(Value::as_str).unwrap_or_default()
}

fn upstream_of_error<'a>(table: &'a RouteTable, error: &McpError) -> Option<&'a Arc<Upstream>> {
    table.provider(server_name(error)).and_then(|provider| provider.upstream())
}

/// Returns who can connect the server of the error: an admin, or `person`, the words for the person of the caller.
fn connecting_person(table: &RouteTable, error: &McpError, person: &'static str) -> &'static str {
    match upstream_of_error(table, error).and_then(|upstream| upstream.config.oauth.as_ref()) {
        Some(oauth) if oauth.account == AccountKind::Gateway => "an admin of the gateway",
        _ => person,
    }
}

fn question_text(table: &RouteTable, error: &McpError) -> String {
    let (message, person) = (&error.message, connecting_person(table, error, "you"));
    format!(
        "{message}. On this page of the gateway, {person} can connect the server. It asks for a sign-in to the gateway."
    )
}

/// Returns the error that asks a client of 2025-11-25 to open the page and to repeat the call then.
fn elicitation_required_error(error: &McpError, mut params: Value, elicitation_id: &str) -> McpError {
    params["elicitationId"] = elicitation_id.into();
    let mut data = error.data();
    data["elicitations"] = json!([params]);
    McpError::from_upstream(error.kind, URL_ELICITATION_REQUIRED, error.message.clone(), Some(&data.to_string()))
}

/// Returns the result that tells a model to show the link to its person. A client refuses a result that does not fit the
/// tool's output schema, unless the result is an error.
fn pending_result(table: &RouteTable, error: &McpError, url: &str, has_schema: bool) -> ToolResult {
    let person = connecting_person(table, error, "your user");
    let text = format!(
        "The call was not made: {}. It waits until {person} connects the server. Show your user this link to the page for \
         that, and repeat the call afterwards: {url}",
        error.message
    );
    let structured =
        json!({ "pending": true, "reason": "connection_required", "server": server_name(error), "connectUrl": url });
    ToolResult { is_error: has_schema, ..ToolResult::text(&text, (!has_schema).then_some(&structured)) }
}

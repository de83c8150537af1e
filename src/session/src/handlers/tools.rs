//! `tools/list` and `tools/call`. A call runs, or it becomes a pending change.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{
    cache_hint,
    client_questions::ClientQuestions,
    page::page,
    reviewed::{
        self,
        finished_call::FinishedCall,
        missing_arguments::{self, MissingArguments},
    },
    tasks, upstream_wait,
};
use crate::{
    RequestScope,
    owned::OwnedRequest,
    policy::{self, AdmittedCall, Counting, Gate, JudgedCall},
};
use countersign_bridge::{
    self, CallPlan,
    request::{Subject, Verb},
    tasks as foreign,
};
use countersign_domain::{changes::Change, policy::Verdict};
use countersign_exchange::{cancel::Cancel, context::Exchange, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    envelope::Request,
    json::{MemberEdit, edit, string, trusted_raw_value},
    outline::Outline,
    params,
};
use countersign_provider::{CallContext, ToolResult};
use countersign_review::gateway_tools::pending_result;
use countersign_routing::{RouteTable, ToolRoute, validate};
use countersign_telemetry::metrics::Transport;

/// Answers `tools/list` in a stable order, with entries that were rendered when the table was built.
pub fn list(exchange: &Exchange, table: &RouteTable, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let revision = exchange.revision();
    table.refresh_stale_lists();
    let principal = &exchange.identity.principal;
    let tools: Vec<_> = table.tools().iter().filter(|route| route.is_visible_to(principal)).collect();
    let json =
        page("tools", &tools, |route| route.list_entry(revision), params.cursor.as_deref(), table.versions.tools)?;
    Ok(Reply::new(json).cached(cache_hint::for_tools(table)))
}

/// A call whose arguments the gateway checks.
pub(super) struct ToolCall<'a> {
    /// A JSON object. An absent one counts as empty.
    pub arguments: Option<&'a RawValue>,
    pub idempotency_key: Option<&'a str>,
    /// The token as JSON text.
    pub progress_token: Option<&'a str>,
    /// `true` if the client accepts a task as the answer.
    pub task: bool,
    /// `requestState` of a call that its client has repeated.
    pub state: Option<&'a str>,
    /// `inputResponses` of a repeated call, as JSON.
    pub responses: Option<&'a str>,
}

/// The outcome of a call that the gateway runs or puts under review.
pub(super) enum ToolOutcome {
    /// The call ran, or its change has ended. The id of that change is included.
    Finished(FinishedCall, Option<String>),
    /// The call waits for a person's decision.
    Pending(Arc<Change>),
    /// The change ran, and the call ended with a protocol error.
    Failed(McpError),
    /// The result that asks a stateless client for input. `pending` is `true` if a person also has to approve the call.
    NeedsInput { question: String, pending: bool },
}

/// Answers `tools/call`: finds the tool, decides on the call and carries it out. The arguments of a module are checked
/// before the policy is asked. An upstream checks arguments itself; the gateway checks those of one-shot clients and of
/// calls that a person is to see.
pub async fn call_request(exchange: &RequestScope, request: &Request<'_>, cancel: &Cancel) -> Result<Reply, McpError> {
    let params = request.tool_call()?;
    note_deciding_key(exchange);
    let route = find(exchange, &params.name).await?;
    let is_module = route.provider.upstream().is_none();
    let completed_owned;
    let completed_request;
    let (request, params) = match is_module.then(|| complete_arguments(exchange, &route, request, params.arguments)) {
        Some(Err(error)) if is_tool_failure(error.kind) => {
            let FinishedCall { result, failure, structured } = FinishedCall::failed(&error, &route);
            return Ok(Reply::new(encode(&result, exchange.revision(), structured)).failing(failure));
        }
        Some(Err(error)) => return Err(error),
        Some(Ok(Some(completed))) => {
            completed_owned = completed;
            completed_request = completed_owned.as_request();
            (&completed_request, completed_request.tool_call()?)
        }
        Some(Ok(None)) | None => (request, params),
    };
    let classify = |route: &ToolRoute| {
        let upstream = route.provider.upstream().map(|upstream| (&**upstream, route.def.raw.as_deref()));
        CallPlan::for_tool(exchange, &request.outlined_params().object, upstream)
    };
    let plan = classify(&route);
    if is_module && !plan.wants_task {
        return finish(exchange, request, &route, None, params.arguments, cancel).await;
    }
    if is_module && !route.ruling.may_review() {
        return Err(tasks::local::refused());
    }
    let arguments = arguments_or_empty(params.arguments)?;
    if exchange.transport == Transport::Rest {
        validate::check_arguments(&route, arguments)?;
    }
    // The answers to a server's questions must reach that same server, so a repeated call has no fallback.
    let judged = match plan.is_retry {
        true => policy::judge(exchange, &route, arguments).await?,
        false => judge_with_fallback(exchange, &route, arguments).await?,
    };
    let counting = if plan.resumes_parked_call { Counting::AlreadyCounted } else { Counting::NotYet };
    let admitted = match judged.carry_out(exchange, counting) {
        Ok(Gate::Open(admitted)) => admitted,
        Ok(review) => return finish(exchange, request, &route, Some(review), params.arguments, cancel).await,
        Err(error) => return Ok(countersign_bridge::tool_error_reply(&error)),
    };
    let plan = if Arc::ptr_eq(admitted.route(), &route) { plan } else { classify(admitted.route()) };
    let may_run_here = admitted.route().ruling.may_review() || admitted.route().provider.is_module();
    if plan.wants_task && !plan.is_upstream_task && may_run_here {
        return tasks::local::start(exchange, request, admitted, plan);
    }
    call_admitted(exchange, request, admitted, plan, cancel).await
}

fn note_deciding_key(exchange: &RequestScope) {
    exchange.server.reviews.deciding_keys.note_call(&exchange.identity.principal, exchange.transport.as_str());
}

/// Returns the call of a module's tool with the arguments that its session implies, or `None` if there are none.
fn complete_arguments(
    exchange: &RequestScope,
    route: &ToolRoute,
    request: &Request<'_>,
    arguments: Option<&RawValue>,
) -> Result<Option<OwnedRequest>, McpError> {
    let Some(notes) = exchange.notes() else { return Ok(None) };
    let Some(completed) = route.provider.complete_arguments(&route.def.name, arguments_or_empty(arguments)?, notes)?
    else {
        return Ok(None);
    };
    let params = request.params.map_or("{}", RawValue::get);
    let params = RawValue::from_string(edit(params, &[("arguments", MemberEdit::Set(completed.get()))]))
        .map_err(|_| McpError::new(ErrorKind::InvalidParams, "`params` are not JSON"))?;
    Ok(Some(OwnedRequest::from_request(&Request {
        id: request.id.clone(),
        method: request.method.clone(),
        params: Some(&params),
        outline: Outline::new(params.get()),
    })))
}

/// Runs a call that the policy has let through. The policy is not asked again.
///
/// # Errors
/// The errors of the call.
pub async fn call_admitted(
    exchange: &RequestScope,
    request: &Request<'_>,
    admitted: AdmittedCall,
    plan: CallPlan,
    cancel: &Cancel,
) -> Result<Reply, McpError> {
    let route = Arc::clone(admitted.route());
    let Some(upstream) = route.provider.upstream() else {
        let params = request.tool_call()?;
        return finish(exchange, request, &route, Some(Gate::Open(admitted)), params.arguments, cancel).await;
    };
    let call = countersign_bridge::Call {
        exchange,
        bridge: &exchange.server.bridge,
        upstream,
        verb: Verb::Tool,
        subject: Subject::Name(upstream.names.own_name(&route.def.name).unwrap_or(&route.def.name)),
        uri: None,
        request,
        definition: route.def.raw.as_deref(),
        headers: &route.param_headers,
        is_read_only: route.is_read_only(),
        plan,
    };
    match countersign_bridge::call(call).await {
        Err(error) if error.passthrough.is_none() && is_tool_failure(error.kind) => {
            Ok(countersign_bridge::tool_error_reply(&error))
        }
        outcome => outcome,
    }
}

/// Answers a call that the gateway itself runs or puts under review.
async fn finish(
    exchange: &RequestScope,
    request: &Request<'_>,
    route: &Arc<ToolRoute>,
    gate: Option<Gate>,
    arguments: Option<&RawValue>,
    cancel: &Cancel,
) -> Result<Reply, McpError> {
    let meta = request.meta()?;
    let object = request.outlined_params().object;
    let modern = exchange.is_modern();
    let retry_member = |key: &str| if modern { object.member(key) } else { None };
    let state = retry_member("requestState").and_then(string);
    let call = ToolCall {
        arguments,
        idempotency_key: meta.idempotency_key.as_deref(),
        progress_token: meta.progress_token,
        task: if modern {
            foreign::declares(&exchange.facts.capabilities)
        } else {
            foreign::is_requested(exchange, &object)
        },
        state: state.as_deref(),
        responses: retry_member("inputResponses").filter(|responses| responses.starts_with('{')),
    };
    // Invalid arguments are a protocol error in old revisions and for one-shot clients. In newer revisions they are a
    // result that a model can read (2025-11-25/server/tools#error-handling).
    let outcome = match self::call(exchange, &call, route, gate, cancel).await {
        Err(error)
            if error.kind == ErrorKind::ValidationFailed
                && exchange.transport != Transport::Rest
                && exchange.revision().rules().invalid_arguments_are_tool_errors =>
        {
            ToolOutcome::Finished(FinishedCall::failed(&error, route), None)
        }
        outcome => outcome?,
    };
    let encode = |result, structured| Reply::new(encode(result, exchange.revision(), structured));
    Ok(match outcome {
        ToolOutcome::Finished(FinishedCall { result, failure, structured }, change_id) => {
            Reply { failure, change_id, ..encode(&result, structured) }
        }
        ToolOutcome::Pending(change) if call.task => {
            Reply { pending: true, ..tasks::created(exchange, &change, call.progress_token) }
        }
        ToolOutcome::Pending(change) => {
            Reply { pending: true, change_id: Some(change.id.clone()), ..encode(&pending_result(&change), true) }
        }
        ToolOutcome::NeedsInput { question, pending } => Reply { pending, ..Reply::passed_on(question) },
        ToolOutcome::Failed(error) => return Err(error),
    })
}

/// Decides on a call. While the server of its tool is not tried, the configured fallback tool gets the call, provided
/// that the policy lets this call through there too. A reviewed call never goes to another tool than the reviewer was
/// shown.
async fn judge_with_fallback(
    exchange: &RequestScope,
    route: &Arc<ToolRoute>,
    arguments: &RawValue,
) -> Result<JudgedCall, McpError> {
    let judged = policy::judge(exchange, route, arguments).await?;
    let refuses = |route: &ToolRoute| route.provider.upstream().is_some_and(|upstream| upstream.is_refusing());
    if judged.verdict() == Verdict::Allow
        && refuses(route)
        && let Some(fallback) = exchange.table.fallback_of(route)
        && !refuses(&fallback)
        && let Ok(judged_fallback) = policy::judge(exchange, &fallback, arguments).await
        && judged_fallback.verdict() == Verdict::Allow
    {
        tracing::debug!(tool = %route.name, instead = %fallback.name, "the fallback tool answers while the server of the tool is not tried");
        return Ok(judged_fallback);
    }
    Ok(judged)
}

/// Returns the arguments of a call. They may be omitted, which counts as an empty object.
fn arguments_or_empty(arguments: Option<&RawValue>) -> Result<&RawValue, McpError> {
    arguments
        .or_else(|| trusted_raw_value("{}"))
        .ok_or_else(|| McpError::new(ErrorKind::Internal, "an empty object is not JSON"))
}

async fn find(exchange: &RequestScope, name: &str) -> Result<Arc<ToolRoute>, McpError> {
    if let Some(route) = exchange.table.find_tool(name) {
        return Ok(route);
    }
    Box::pin(upstream_wait::find_tool(exchange, name)).await?.ok_or_else(|| {
        let nearest = exchange.server.routing.routes.load().nearest_tool(name, &exchange.identity.principal);
        let name: String = name.chars().take(128).collect();
        let suggestion = nearest.as_ref().map(|nearest| format!(". Did you mean {nearest}?")).unwrap_or_default();
        let error =
            McpError::new(ErrorKind::ToolNotFound, format!("Unknown tool: {name}{suggestion}")).with("tool", name);
        match nearest {
            Some(nearest) => error.with("didYouMean", nearest),
            None => error,
        }
    })
}

/// Checks the arguments of a call, decides on it unless that was done before, and runs it or puts it under review.
async fn call(
    exchange: &RequestScope,
    call: &ToolCall<'_>,
    route: &Arc<ToolRoute>,
    gate: Option<Gate>,
    cancel: &Cancel,
) -> Result<ToolOutcome, McpError> {
    let arguments = arguments_or_empty(call.arguments)?;
    let completed;
    let (gate, arguments) = match validate::check_arguments(route, arguments) {
        Ok(()) => (gate, arguments),
        Err(error) => {
            let judged = match gate {
                // A call that already runs as a task asks for nothing.
                Some(Gate::Open(_)) => return Err(error),
                Some(Gate::Review(judged)) => Some(judged),
                None => None,
            };
            match missing_arguments::ask_for(exchange, route, judged, arguments, call).await {
                Some(MissingArguments::Question(question)) => {
                    return Ok(ToolOutcome::NeedsInput { question, pending: false });
                }
                Some(MissingArguments::Complete(arguments)) => {
                    validate::check_arguments(route, &arguments)?;
                    completed = arguments;
                    // The policy may decide differently on other arguments.
                    (None, &*completed)
                }
                None => return Err(error),
            }
        }
    };
    match carry_out(exchange, call, route, gate, arguments, cancel).await {
        Err(error) if is_tool_failure(error.kind) => {
            Ok(ToolOutcome::Finished(FinishedCall::failed(&error, route), None))
        }
        outcome => outcome,
    }
}

/// Carries out a call with valid arguments.
async fn carry_out(
    exchange: &RequestScope,
    call: &ToolCall<'_>,
    route: &Arc<ToolRoute>,
    gate: Option<Gate>,
    arguments: &RawValue,
    cancel: &Cancel,
) -> Result<ToolOutcome, McpError> {
    let gate = match gate {
        Some(gate) => gate,
        None => {
            let judged = judge_with_fallback(exchange, route, arguments).await?;
            if !Arc::ptr_eq(&judged.route, route) {
                validate::check_arguments(&judged.route, arguments)?;
            }
            judged.carry_out(exchange, Counting::NotYet)?
        }
    };
    match gate {
        Gate::Open(admitted) => run(exchange, &admitted, arguments, call, cancel).await,
        // Boxed, so that the future of an admitted call does not reserve space for the review.
        Gate::Review(judged) => Box::pin(reviewed::review(exchange, &judged, arguments, call, cancel)).await,
    }
}

/// Returns `true` for a failure that the model can act on, and `false` for a failure of the gateway.
#[must_use]
pub fn is_tool_failure(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::Internal
            | ErrorKind::InvalidRequest
            | ErrorKind::InvalidParams
            | ErrorKind::MethodNotFound
            | ErrorKind::MissingCapability
            | ErrorKind::Overloaded
            | ErrorKind::RateLimited
            | ErrorKind::StoreUnavailable
            | ErrorKind::ShuttingDown
            | ErrorKind::Timeout
            | ErrorKind::Cancelled
            | ErrorKind::Unauthorized
            | ErrorKind::Forbidden
    )
}

async fn run(
    exchange: &RequestScope,
    admitted: &AdmittedCall,
    arguments: &RawValue,
    call: &ToolCall<'_>,
    cancel: &Cancel,
) -> Result<ToolOutcome, McpError> {
    let route = admitted.route();
    let questions = route.def.long_running.then(|| ClientQuestions::for_call(exchange, call.responses)).flatten();
    let (inquirer, mut questions) = questions.unzip();
    let meter = Some(exchange.server.meter(&exchange.identity.principal));
    let context = CallContext { inquirer, meter, ..exchange.call_context(cancel, call.progress_token) };
    let work = route.provider.call(&route.def.name, arguments, &context);
    let result = if route.def.long_running {
        // The tool itself bounds the time; the gateway bounds only the number of such calls.
        let server = &exchange.server;
        let _slot = server.long_requests.admit(&exchange.identity.principal)?;
        let asking = async {
            match &mut questions {
                Some(questions) => questions.serve().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = work => result?,
            question = asking => return Ok(ToolOutcome::NeedsInput { question, pending: false }),
            // A person, who may take long, decides when the tool returns.
            () = server.long_requests.shutdown.cancelled() => {
                return Err(McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down; ask again later"));
            }
            revoked = server.long_requests.wait_until_revoked(&exchange.identity) => return Err(revoked),
        }
    } else {
        exchange.server.limits.in_time(work).await?
    };
    let failure = result.is_error.then_some(ErrorKind::ToolExecution);
    // If the error's structure would violate the tool's output schema, only its text is sent.
    let structured = failure.is_none() || route.allows_structured_error();
    Ok(ToolOutcome::Finished(FinishedCall { result, failure, structured }, None))
}

/// Returns the JSON of a tool result for the client's revision.
#[must_use]
pub fn encode(result: &ToolResult, revision: Revision, structured: bool) -> String {
    let mut out = String::with_capacity(result.content.get().len() + 64);
    out.push_str(r#"{"content":"#);
    out.push_str(result.content.get());
    if structured
        && revision.rules().structured_content
        && let Some(content) = &result.structured_content
    {
        out.push_str(r#","structuredContent":"#);
        out.push_str(content.get());
    }
    if result.is_error {
        out.push_str(r#","isError":true"#);
    }
    out.push('}');
    out
}

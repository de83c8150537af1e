//! `tools/list` and `tools/call`. A call runs, or it becomes a pending change.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{
    account_connection,
    lists::{hint_for_tools, render_page},
    module_call::run_module,
    reviewed::{
        self,
        dashboard_hint::dashboard_hint,
        finished_call::{FinishedCall, is_tool_failure},
        missing_arguments::{self, MissingArguments},
        plans,
    },
    tasks,
    tool_call::{
        ToolCall, ToolCallScope, ToolOutcome, arguments_or_empty, find_route, has_idempotency_key, is_plan_tool,
        is_step_of_plan, names_change, pending_reply,
    },
    upstream_wait::RouteFinder,
};
use crate::{
    owned::OwnedRequest,
    policy::{self, Admission, AdmittedCall, Counting, JudgedCall},
    server::CallRunner,
    state::local_tasks::LocalTasks,
};
use countersign_bridge::{
    self, CallPlan,
    request::{RequestKind, RequestedItem},
};
use countersign_domain::policy::Verdict;
use countersign_exchange::{context::Exchange, reply::Reply, shared::Cancellation};
use countersign_protocol::{
    McpError,
    envelope::Request,
    json::{MemberEdit, member},
    params,
};
use countersign_review::gateway_tools::{change_result, change_result_with_hint};
use countersign_routing::{RouteTable, ToolRoute, validate};
use countersign_telemetry::metrics::Transport;

/// Answers `tools/list` in a stable order, with entries that were rendered when the table was built.
pub fn list(exchange: &Exchange, table: &RouteTable, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let revision = exchange.revision();
    table.refresh_stale_lists();
    let tools: Vec<_> = table.tools_for(&exchange.identity.principal).collect();
    let json = render_page(
        "tools",
        &tools,
        |route| &route.name,
        |route| route.list_entry(revision),
        params.cursor.as_deref(),
    )?;
    Ok(Reply::new(json).with_cache_hint(hint_for_tools(table)))
}

/// Answers `tools/call`. If the person of the caller must connect an account first, the client is asked for that.
///
/// # Errors
/// The errors of the policy and of the provider; `-32042` for a client of 2025-11-25 that can open pages.
pub async fn call_tool(
    scope: ToolCallScope<'_>,
    finder: RouteFinder<'_>,
    local_tasks: &LocalTasks,
    request: &Request<'_>,
) -> Result<Reply, McpError> {
    if let Some(answer) = answer_about_account(scope.exchange, request) {
        let continued = async {
            let request = account_connection::await_connection(scope, request, answer).await?;
            call_or_ask_for_account(scope, finder, local_tasks, &request.as_request(), false).await
        };
        return Box::pin(continued).await;
    }
    call_or_ask_for_account(scope, finder, local_tasks, request, true).await
}

/// Returns the answer of a stateless client to the request to connect an account, as JSON.
fn answer_about_account<'a>(exchange: &Exchange, request: &'a Request<'_>) -> Option<&'a str> {
    if !exchange.is_modern() {
        return None;
    }
    member(request.outlined_params().object.member("inputResponses")?, account_connection::INPUT_KEY)
}

/// Makes a call. If the person of the caller must connect an account first, the client is asked for that, unless it was
/// asked already (`may_ask`).
async fn call_or_ask_for_account(
    scope: ToolCallScope<'_>,
    finder: RouteFinder<'_>,
    local_tasks: &LocalTasks,
    request: &Request<'_>,
    may_ask: bool,
) -> Result<Reply, McpError> {
    match answer_call(scope, finder, local_tasks, request).await {
        Err(error) => Box::pin(account_connection::answer_refused_call(scope, request, error, may_ask)).await,
        reply => reply,
    }
}

/// Finds the tool of a call, decides on the call and carries it out. The arguments of a module are checked before the
/// policy is asked, unless the call is requested as a task. An upstream checks arguments itself; the gateway checks those
/// of plain HTTP calls and of calls that a person is to see.
///
/// The futures of calls that the gateway runs or puts under review are boxed, so that calls to upstreams do not reserve their
/// memory.
async fn answer_call(
    scope: ToolCallScope<'_>,
    finder: RouteFinder<'_>,
    local_tasks: &LocalTasks,
    request: &Request<'_>,
) -> Result<Reply, McpError> {
    let ToolCallScope { exchange, cancel, table, runner, .. } = scope;
    let params = request.tool_call()?;
    let mut finder = finder;
    let route = find_route(&mut finder, &params.name).await?;
    let is_module = route.provider.upstream().is_none();
    let completed_owned;
    let completed_request;
    let (request, params) = match is_module.then(|| complete_arguments(exchange, &route, request, params.arguments)) {
        Some(Err(error)) => return to_tool_failure(Err(error), &route)?.into_reply(exchange.revision()),
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
    let call_plan = classify(&route);
    if is_plan_tool(&route) && !call_plan.wants_task {
        let key = request.meta()?.idempotency_key;
        let outcome = Box::pin(plans::propose_plan(scope, &mut finder, &route, params.arguments, key)).await;
        return to_tool_failure(outcome, &route)?.into_reply(exchange.revision());
    }
    let continues_change = call_plan.is_retry && names_change(exchange, request);
    if (is_module && !call_plan.wants_task) || is_step_of_plan(request) || continues_change {
        return Box::pin(run_or_review(scope, request, &route, None, params.arguments)).await;
    }
    if is_module && !route.ruling.may_review() {
        return Err(tasks::local::forbidden_task_error());
    }
    let arguments = arguments_or_empty(params.arguments)?;
    if exchange.transport == Transport::Rest {
        validate::check_arguments(&route, arguments)?;
    }
    // The answers to an upstream's questions must reach that same upstream, so a retry has no fallback.
    let judged = match call_plan.is_retry {
        true => policy::judge(exchange, &route, arguments).await?,
        false => judge_with_fallback(exchange, table, &route, arguments).await?,
    };
    if judged.verdict() == Verdict::Review || call_plan.wants_task {
        // Neither a change nor a task begins that cannot run without the person's account.
        account_connection::check_connected(exchange, &judged.route).await?;
    }
    let counting = if call_plan.resumes_parked_call { Counting::AlreadyCounted } else { Counting::Count };
    let admitted = match judged.apply_decision(exchange, counting) {
        Ok(Admission::Run(admitted)) => admitted,
        Ok(Admission::Review(judged)) => {
            return Box::pin(run_or_review(scope, request, &route, Some(judged), params.arguments)).await;
        }
        Err(error) if is_tool_failure(error.kind) => return Ok(countersign_bridge::tool_error_reply(&error)),
        Err(error) => return Err(error),
    };
    if has_idempotency_key(request)
        && let Some(reply) = Box::pin(answer_repeat(scope, request, &route, arguments)).await?
    {
        return Ok(reply);
    }
    let call_plan = if Arc::ptr_eq(admitted.route(), &route) { call_plan } else { classify(admitted.route()) };
    let may_run_here = admitted.route().may_review() || admitted.route().provider.is_module();
    if call_plan.wants_task && !call_plan.is_upstream_task && may_run_here {
        return tasks::local::start(exchange, runner, local_tasks, request, admitted, call_plan);
    }
    pass_to_provider(exchange, runner, request, admitted, call_plan, cancel).await
}

/// Returns the call of a module's tool with the arguments that the module has noted for the session (`SessionNotes`),
/// such as the active project. Returns `None` if there are none.
fn complete_arguments(
    exchange: &Exchange,
    route: &ToolRoute,
    request: &Request<'_>,
    arguments: Option<&RawValue>,
) -> Result<Option<OwnedRequest>, McpError> {
    let Some(notes) = exchange.notes() else { return Ok(None) };
    let Some(completed) =
        route.provider.as_provider().complete_arguments(&route.def.name, arguments_or_empty(arguments)?, notes)?
    else {
        return Ok(None);
    };
    OwnedRequest::with_edits(request, &[("arguments", MemberEdit::Set(completed.get()))]).map(Some)
}

/// Runs a call that the policy has let through. The policy is not asked again.
///
/// # Errors
/// The errors of the call.
pub async fn pass_to_provider(
    exchange: &Exchange,
    runner: &CallRunner,
    request: &Request<'_>,
    admitted: AdmittedCall,
    call_plan: CallPlan,
    cancel: &Cancellation,
) -> Result<Reply, McpError> {
    let route = admitted.route();
    let Some(upstream) = route.provider.upstream() else {
        let call = ToolCall::new(exchange, request, request.tool_call()?.arguments)?;
        let arguments = arguments_or_empty(call.arguments)?;
        let outcome = match validate::check_arguments(route, arguments) {
            Ok(()) => {
                let outcome = Box::pin(run_module(exchange, runner, &admitted, arguments, &call, cancel)).await;
                to_tool_failure(outcome, route)
            }
            Err(error) => invalid_arguments(exchange, route, error),
        };
        return outcome?.into_reply(exchange.revision());
    };
    if route.is_connect_tool() {
        return Box::pin(account_connection::answer_connect_tool(exchange, upstream)).await;
    }
    let call = countersign_bridge::Call {
        exchange,
        bridge: &runner.bridge,
        upstream,
        request_kind: RequestKind::Tool,
        item: RequestedItem::Name(upstream.names.upstream_name(&route.def.name).unwrap_or(&route.def.name)),
        uri: None,
        request,
        definition: route.def.raw.as_deref(),
        headers: &route.param_headers,
        is_read_only: route.is_read_only(),
        plan: call_plan,
    };
    match countersign_bridge::call(call).await {
        Err(error) if error.passthrough.is_none() && is_for_model(&error) => {
            Ok(countersign_bridge::tool_error_reply(&error))
        }
        outcome => outcome,
    }
}

/// Answers a call that the gateway itself runs or puts under review. `judged` is the policy's decision if it was made. A call that
/// continues a change never runs beside it, so the policy is not asked about it.
async fn run_or_review(
    scope: ToolCallScope<'_>,
    request: &Request<'_>,
    route: &Arc<ToolRoute>,
    judged: Option<JudgedCall>,
    arguments: Option<&RawValue>,
) -> Result<Reply, McpError> {
    let call = ToolCall::new(scope.exchange, request, arguments)?;
    let outcome = match (&call.plan, &call.state) {
        (Some(plan), _) => to_tool_failure(Box::pin(plans::propose_step(scope, &call, route, plan)).await, route),
        (None, Some(state)) => to_tool_failure(Box::pin(reviewed::resume(scope, route, &call, state)).await, route),
        (None, None) => check_arguments_and_run(scope, &call, route, judged).await,
    };
    reply_to_review(scope, &call, outcome?)
}

/// Returns the answer to a call that repeats a change by its idempotency key, or `None` if there is no such change.
async fn answer_repeat(
    scope: ToolCallScope<'_>,
    request: &Request<'_>,
    route: &ToolRoute,
    arguments: &RawValue,
) -> Result<Option<Reply>, McpError> {
    let call = ToolCall::new(scope.exchange, request, Some(arguments))?;
    let repeated = reviewed::answer_repeat(scope, route, arguments, &call).await.transpose();
    repeated.map(|outcome| reply_to_review(scope, &call, to_tool_failure(outcome, route)?)).transpose()
}

/// Returns the answer to a call that may have become a change.
fn reply_to_review(scope: ToolCallScope<'_>, call: &ToolCall<'_>, outcome: ToolOutcome) -> Result<Reply, McpError> {
    let ToolCallScope { exchange, reviews, .. } = scope;
    match outcome {
        ToolOutcome::Pending(change) if call.accepts_task => {
            Ok(Reply { is_pending: true, ..tasks::creation_reply(exchange, reviews, &change, call.progress_token) })
        }
        ToolOutcome::Pending(change) => {
            let result = match dashboard_hint(exchange, reviews, &change) {
                Some(hint) => change_result_with_hint(&change, &hint),
                None => change_result(&change),
            };
            Ok(pending_reply(&change, &result, exchange.revision()))
        }
        outcome => outcome.into_reply(exchange.revision()),
    }
}

/// Returns the outcome of a call with invalid arguments. They are a protocol error in old revisions and for plain HTTP
/// clients. In newer revisions they are a result that a model can read (2025-11-25/server/tools#error-handling).
fn invalid_arguments(exchange: &Exchange, route: &ToolRoute, error: McpError) -> Result<ToolOutcome, McpError> {
    let is_result =
        exchange.transport != Transport::Rest && exchange.revision().rules().invalid_arguments_are_tool_errors;
    if is_result { to_tool_failure(Err(error), route) } else { Err(error) }
}

/// Turns a failure that the model can act on into a result.
fn to_tool_failure(outcome: Result<ToolOutcome, McpError>, route: &ToolRoute) -> Result<ToolOutcome, McpError> {
    match outcome {
        Err(error) if is_for_model(&error) => Ok(ToolOutcome::Finished(FinishedCall::from_error(&error, route), None)),
        outcome => outcome,
    }
}

/// Decides on a call. While the circuit of the tool's server is open, the call goes to the configured fallback tool if
/// the policy allows it there, too. A call that is reviewed stays with its tool, which is the one that the reviewer is
/// shown.
async fn judge_with_fallback(
    exchange: &Exchange,
    table: &RouteTable,
    route: &Arc<ToolRoute>,
    arguments: &RawValue,
) -> Result<JudgedCall, McpError> {
    let judged = policy::judge(exchange, route, arguments).await?;
    let is_refusing = |route: &ToolRoute| route.provider.upstream().is_some_and(|upstream| upstream.is_refusing());
    if judged.verdict() == Verdict::Allow
        && is_refusing(route)
        && let Some(fallback) = table.fallback_of(route)
        && !is_refusing(&fallback)
        && let Ok(judged_fallback) = policy::judge(exchange, &fallback, arguments).await
        && judged_fallback.verdict() == Verdict::Allow
    {
        tracing::debug!(tool = %route.name, instead = %fallback.name, "the fallback tool answers, because the circuit of the tool's server is open");
        return Ok(judged_fallback);
    }
    Ok(judged)
}

/// Checks the arguments of a call, decides on it unless that was done before, and runs it or puts it under review.
async fn check_arguments_and_run(
    scope: ToolCallScope<'_>,
    call: &ToolCall<'_>,
    route: &Arc<ToolRoute>,
    judged: Option<JudgedCall>,
) -> Result<ToolOutcome, McpError> {
    let ToolCallScope { exchange, runner, .. } = scope;
    let arguments = arguments_or_empty(call.arguments)?;
    let completed;
    let (judged, arguments) = match validate::check_arguments(route, arguments) {
        Ok(()) => (judged, arguments),
        Err(error) => {
            let question = missing_arguments::ask_for(exchange, &runner.long_requests, route, judged, arguments, call);
            // Boxed, so that the future of a call with valid arguments does not reserve space for the question.
            match Box::pin(question).await {
                Some(MissingArguments::NeedsInput(result)) => {
                    return Ok(ToolOutcome::NeedsInput { result, pending: false });
                }
                Some(MissingArguments::Complete(arguments)) => {
                    if let Err(error) = validate::check_arguments(route, &arguments) {
                        return invalid_arguments(exchange, route, error);
                    }
                    completed = arguments;
                    // The policy may decide differently on other arguments.
                    (None, &*completed)
                }
                None => return invalid_arguments(exchange, route, error),
            }
        }
    };
    to_tool_failure(decide_and_run(scope, call, route, judged, arguments).await, route)
}

/// Decides on a call with valid arguments, and runs it or puts it under review. `judged` is given only for a call that
/// the policy sends to review and whose decision was counted.
async fn decide_and_run(
    scope: ToolCallScope<'_>,
    call: &ToolCall<'_>,
    route: &Arc<ToolRoute>,
    judged: Option<JudgedCall>,
    arguments: &RawValue,
) -> Result<ToolOutcome, McpError> {
    let ToolCallScope { exchange, cancel, table, runner, .. } = scope;
    let admission = match judged {
        Some(judged) => Admission::Review(judged),
        None => {
            let judged = judge_with_fallback(exchange, table, route, arguments).await?;
            if !Arc::ptr_eq(&judged.route, route) {
                validate::check_arguments(&judged.route, arguments)?;
            }
            judged.apply_decision(exchange, Counting::Count)?
        }
    };
    match admission {
        Admission::Run(admitted) => {
            if call.idempotency_key.is_some()
                && let Some(outcome) = Box::pin(reviewed::answer_repeat(scope, route, arguments, call)).await?
            {
                return Ok(outcome);
            }
            run_module(exchange, runner, &admitted, arguments, call, cancel).await
        }
        // Boxed, so that the future of an admitted call does not reserve space for the review.
        Admission::Review(judged) => Box::pin(reviewed::review(scope, &judged, arguments, call)).await,
    }
}

/// Returns `true` if the error becomes a result that the model reads.
fn is_for_model(error: &McpError) -> bool {
    is_tool_failure(error.kind) && account_connection::connect_url(error).is_none()
}

//! `tools/list` and `tools/call`. A call runs, or it becomes a pending change.

use std::sync::Arc;

use super::{
    account_connection::{self, PageRequest},
    admitted_call::AdmittedCall,
    lists::{hint_for_tools, render_page},
    reviewed::{
        self,
        dashboard_hint::dashboard_hint,
        finished_call::{FinishedCall, is_tool_failure},
        missing_arguments::{self, MissingArguments},
        plans,
    },
    tasks,
    tool_call::{
        ReviewOptions, RoutedCall, ToolCallScope, ToolOutcome, arguments_or_empty, complete_arguments,
        continues_change, find_route, has_meta, is_plan_tool, pending_reply, request_state,
    },
    upstream_wait::RouteFinder,
};
use crate::{
    owned_messages::OwnedRequest,
    policy::{self, Admission, Counting, JudgedCall},
};
use countersign_bridge::CallFlags;
use countersign_domain::policy::Verdict;
use countersign_exchange::{context::Exchange, reply::Reply};
use countersign_protocol::{
    McpError,
    envelope::Request,
    json::{MemberEdit, member},
    params::{self, keys},
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
    let cursor = params.cursor.as_deref();
    let json = render_page("tools", &tools, |route| &route.name, |route| route.list_entry(revision), cursor)?;
    Ok(Reply::new(json).with_cache_hint(hint_for_tools(table)))
}

/// Answers `tools/call`. If the person of the caller must connect an account first, the client is asked for that.
///
/// # Errors
/// The errors of the policy and of the provider; `-32042` for a client of 2025-11-25 that can open pages.
pub async fn call_tool(
    scope: ToolCallScope<'_>,
    finder: RouteFinder<'_>,
    request: &Request<'_>,
) -> Result<Reply, McpError> {
    if let Some(answer) = find_account_answer(scope.exchange, request) {
        let continued = async {
            let request = account_connection::take_page_answer(scope, request, answer).await?;
            call_or_ask_for_account(scope, finder, &request.as_request(), PageRequest::Answered).await
        };
        return Box::pin(continued).await;
    }
    call_or_ask_for_account(scope, finder, request, PageRequest::NotSent).await
}

/// Returns the answer of a stateless client to the request to connect an account, as JSON.
fn find_account_answer<'a>(exchange: &Exchange, request: &'a Request<'_>) -> Option<&'a str> {
    if !exchange.is_modern() {
        return None;
    }
    member(request.outlined_params().object.member("inputResponses")?, account_connection::INPUT_KEY)
}

/// Makes a call. If the person of the caller must connect an account first, the client is asked for that once.
async fn call_or_ask_for_account(
    scope: ToolCallScope<'_>,
    finder: RouteFinder<'_>,
    request: &Request<'_>,
    page_request: PageRequest,
) -> Result<Reply, McpError> {
    match answer_call(scope, finder, request).await {
        Err(error) => Box::pin(account_connection::answer_refused_call(scope, request, error, page_request)).await,
        reply => reply,
    }
}

/// Finds the tool of a call, and proposes a plan, continues a change or decides on the call.
///
/// The futures of calls that the gateway runs or puts under review are boxed, so that calls to upstreams do not reserve their
/// memory.
async fn answer_call(
    scope: ToolCallScope<'_>,
    mut finder: RouteFinder<'_>,
    request: &Request<'_>,
) -> Result<Reply, McpError> {
    let exchange = scope.exchange;
    let params = request.tool_call()?;
    let route = find_route(&mut finder, &params.name).await?;
    let arguments = arguments_or_empty(params.arguments)?;
    let completed_call;
    let completed_request;
    let (request, arguments) = match complete_arguments(exchange, &route, arguments) {
        Err(error) => return failure_reply(exchange, &route, error),
        Ok(Some(completed)) => {
            let edits = [("arguments", MemberEdit::Set(completed.get()))];
            completed_call = OwnedRequest::with_edits(request, &edits)?;
            completed_request = completed_call.as_request();
            (&completed_request, arguments_or_empty(completed_request.tool_call()?.arguments)?)
        }
        Ok(None) => (request, arguments),
    };
    let flags = call_flags(exchange, &route, request);
    // The block ends before the call runs, so that the future of a running call does not hold `call`, too.
    let next_step = {
        let call = RoutedCall { scope, request, route: &route, arguments, flags };
        if is_plan_tool(&route) && !flags.wants_task {
            let outcome = Box::pin(plans::propose_plan(&call, &mut finder)).await;
            return to_tool_failure(outcome, &route)?.into_reply(exchange.revision());
        }
        if has_meta(request, keys::PLAN) || (flags.is_retry && continues_change(exchange, request, &route)) {
            return Box::pin(propose_step_or_resume(&call)).await;
        }
        if route.provider.upstream().is_none() && flags.wants_task && !route.ruling.may_review() {
            return Err(tasks::local::forbidden_task_error());
        }
        decide(&call).await?
    };
    // Awaited one after the other: each level of futures around a call would copy it.
    match next_step {
        NextStep::Answer(reply) => Ok(reply),
        NextStep::Run(call) => call.run().await,
    }
}

/// The next step of a call after the policy's decision.
enum NextStep<'a> {
    /// The answer to a call that was proposed, refused, asked about or started as a task, or that repeats a change.
    Answer(Reply),
    Run(AdmittedCall<'a>),
}

/// Returns the flags of a call of this tool.
fn call_flags(exchange: &Exchange, route: &ToolRoute, request: &Request<'_>) -> CallFlags {
    let upstream = route.provider.upstream().map(|upstream| (&**upstream, route.def.raw.as_deref()));
    CallFlags::for_tool(exchange, &request.outlined_params().object, upstream)
}

/// Decides on a call outside of plans, and proposes or refuses it unless it may run. Arguments for modules and of plain HTTP
/// calls are checked before the policy is asked, and those of other calls that a person is to see after that. An upstream
/// checks those of an allowed call itself, and [`AdmittedCall::run_as_task`] those of an allowed call that a module runs as a
/// task.
async fn decide<'a>(call: &RoutedCall<'a>) -> Result<NextStep<'a>, McpError> {
    let RoutedCall { scope: ToolCallScope { exchange, .. }, request, route, arguments, flags } = *call;
    let is_checked_before_policy =
        exchange.transport == Transport::Rest || (route.provider.upstream().is_none() && !flags.wants_task);
    if is_checked_before_policy && let Err(error) = validate::check_arguments(route, arguments) {
        return Box::pin(answer_invalid_call(call, None, error)).await.map(NextStep::Answer);
    }
    // The answers to an upstream's questions must reach that same upstream, so a retry has no fallback.
    let judged = match flags.is_retry {
        true => policy::judge(exchange, route, arguments).await?,
        false => judge_with_fallback(call).await?,
    };
    let is_reviewed = judged.decision.verdict == Verdict::Review;
    if is_reviewed || flags.wants_task {
        // Neither a change nor a task begins that cannot run without the person's account.
        account_connection::check_connected(exchange, &judged.route).await?;
    }
    if is_reviewed && !is_checked_before_policy {
        if request_state(exchange, request).is_some() {
            // A state that names a change was handled before.
            return Err(reviewed::foreign_state_error());
        }
        if let Err(error) = validate::check_arguments(route, arguments) {
            return Box::pin(answer_invalid_call(call, Some(judged), error)).await.map(NextStep::Answer);
        }
    }
    follow_decision(call, judged).await
}

/// Answers a call with invalid arguments. If some are missing, the person at the client may be asked for them, and the policy
/// decides on the complete call. `judged` is its decision on the incomplete call if it was made.
async fn answer_invalid_call(
    call: &RoutedCall<'_>,
    judged: Option<JudgedCall>,
    error: McpError,
) -> Result<Reply, McpError> {
    let RoutedCall { scope: ToolCallScope { exchange, .. }, route, .. } = *call;
    match missing_arguments::ask_for(call, judged).await? {
        Some(MissingArguments::NeedsInput(result)) => {
            ToolOutcome::NeedsInput { result, pending: false }.into_reply(exchange.revision())
        }
        Some(MissingArguments::Complete(arguments)) => {
            if let Err(error) = validate::check_arguments(route, &arguments) {
                return invalid_arguments_reply(exchange, route, error);
            }
            // The gateway asked and not the server, so the server must not get the answer.
            let edits = [("arguments", MemberEdit::Set(arguments.get())), ("inputResponses", MemberEdit::Drop)];
            let completed = OwnedRequest::with_edits(call.request, &edits)?;
            let request = &completed.as_request();
            let judged = policy::judge(exchange, route, &arguments).await?;
            // A stateless client answers a server by repeating its own call, which lacks the arguments.
            let flags = CallFlags { forbids_questions: exchange.is_modern(), ..call_flags(exchange, route, request) };
            let call = RoutedCall { request, arguments: &arguments, flags, ..*call };
            match follow_decision(&call, judged).await? {
                NextStep::Answer(reply) => Ok(reply),
                NextStep::Run(call) => call.run().await,
            }
        }
        None => invalid_arguments_reply(exchange, route, error),
    }
}

/// Applies the policy's decision on a call; `judged` may have the route of its fallback. An admitted call does not run if it
/// repeats a change by its idempotency key.
async fn follow_decision<'a>(call: &RoutedCall<'a>, judged: JudgedCall) -> Result<NextStep<'a>, McpError> {
    let RoutedCall { scope, request, route, flags, .. } = *call;
    let ToolCallScope { exchange, cancel, runner, local_tasks, .. } = scope;
    let counting = if flags.resumes_parked_call { Counting::AlreadyCounted } else { Counting::Count };
    let admitted = match judged.apply_decision(exchange, counting) {
        Ok(Admission::Run(admitted)) => admitted,
        Ok(Admission::Review(judged)) => return Box::pin(propose(call, &judged)).await.map(NextStep::Answer),
        Err(error) => return failure_reply(exchange, route, error).map(NextStep::Answer),
    };
    if has_meta(request, keys::IDEMPOTENCY_KEY)
        && let Some(reply) = Box::pin(answer_repeat(call)).await?
    {
        return Ok(NextStep::Answer(reply));
    }
    let admitted_route = admitted.route();
    let flags = if Arc::ptr_eq(admitted_route, route) { flags } else { call_flags(exchange, admitted_route, request) };
    let may_run_here = || admitted_route.may_review() || admitted_route.provider.is_module();
    let runs_as_local_task = flags.wants_task && !flags.is_upstream_task && may_run_here();
    let call = AdmittedCall { exchange, runner, cancel, request, admitted, flags };
    if runs_as_local_task {
        return tasks::local::start(call, local_tasks).map(NextStep::Answer);
    }
    Ok(NextStep::Run(call))
}

/// Proposes a call with valid arguments as a change.
async fn propose(call: &RoutedCall<'_>, judged: &JudgedCall) -> Result<Reply, McpError> {
    let options = ReviewOptions::new(call)?;
    let outcome = reviewed::review(call, &options, judged).await;
    reply_to_review(call, &options, outcome)
}

/// Proposes a step of a plan, for which the policy is asked, or answers a call that continues a change.
async fn propose_step_or_resume(call: &RoutedCall<'_>) -> Result<Reply, McpError> {
    let options = ReviewOptions::new(call)?;
    let outcome = match &options.plan {
        Some(plan) => plans::propose_step(call, &options, plan).await,
        None => reviewed::resume(call, &options).await,
    };
    reply_to_review(call, &options, outcome)
}

/// Returns the answer to a call that repeats a change by its idempotency key, or `None` if there is no such change.
async fn answer_repeat(call: &RoutedCall<'_>) -> Result<Option<Reply>, McpError> {
    let options = ReviewOptions::new(call)?;
    let repeated = reviewed::answer_repeat(call, &options).await.transpose();
    repeated.map(|outcome| reply_to_review(call, &options, outcome)).transpose()
}

/// Returns the answer to a call that may have become a change.
fn reply_to_review(
    call: &RoutedCall<'_>,
    options: &ReviewOptions<'_>,
    outcome: Result<ToolOutcome, McpError>,
) -> Result<Reply, McpError> {
    let ToolCallScope { exchange, reviews, .. } = call.scope;
    match to_tool_failure(outcome, call.route)? {
        ToolOutcome::Pending(change) if options.accepts_task => {
            Ok(Reply { is_pending: true, ..tasks::creation_reply(exchange, reviews, &change, options.progress_token) })
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

/// Returns the answer to a call with invalid arguments. They are a protocol error in old revisions and for plain HTTP
/// clients. In newer revisions they are a result that a model can read (2025-11-25/server/tools#error-handling).
pub(super) fn invalid_arguments_reply(
    exchange: &Exchange,
    route: &ToolRoute,
    error: McpError,
) -> Result<Reply, McpError> {
    let is_result =
        exchange.transport != Transport::Rest && exchange.revision().rules().invalid_arguments_are_tool_errors;
    if is_result { failure_reply(exchange, route, error) } else { Err(error) }
}

/// Returns the answer to a call that failed with this error: a result if the model can act on it.
fn failure_reply(exchange: &Exchange, route: &ToolRoute, error: McpError) -> Result<Reply, McpError> {
    to_tool_failure(Err(error), route)?.into_reply(exchange.revision())
}

/// Turns a failure that the model can act on into a result.
pub(super) fn to_tool_failure(
    outcome: Result<ToolOutcome, McpError>,
    route: &ToolRoute,
) -> Result<ToolOutcome, McpError> {
    match outcome {
        Err(error) if is_for_model(&error) => Ok(ToolOutcome::Finished(FinishedCall::from_error(&error, route))),
        outcome => outcome,
    }
}

/// Decides on a call. While the circuit of the tool's server is open, the call goes to the configured fallback tool if
/// the policy allows it there, too. A call that is reviewed stays with its tool, which is the one that the reviewer is
/// shown. A module is no fallback for arguments that its tool does not accept.
async fn judge_with_fallback(call: &RoutedCall<'_>) -> Result<JudgedCall, McpError> {
    let RoutedCall { scope: ToolCallScope { exchange, table, .. }, route, arguments, .. } = *call;
    let judged = policy::judge(exchange, route, arguments).await?;
    let is_refusing = route.provider.upstream().is_some_and(|upstream| upstream.is_refusing());
    let can_answer = |route: &ToolRoute| match route.provider.upstream() {
        Some(upstream) => !upstream.is_refusing(),
        None => validate::check_arguments(route, arguments).is_ok(),
    };
    if judged.decision.verdict == Verdict::Allow
        && is_refusing
        && let Some(fallback) = table.fallback_of(route)
        && can_answer(&fallback)
        && let Ok(judged_fallback) = policy::judge(exchange, &fallback, arguments).await
        && judged_fallback.decision.verdict == Verdict::Allow
    {
        tracing::debug!(tool = %route.name, instead = %fallback.name, "the fallback tool answers, because the circuit of the tool's server is open");
        return Ok(judged_fallback);
    }
    Ok(judged)
}

/// Returns `true` if the error becomes a result that the model reads.
pub(super) fn is_for_model(error: &McpError) -> bool {
    is_tool_failure(error.kind) && account_connection::connect_url(error).is_none()
}

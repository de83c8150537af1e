//! Plans of calls: `propose_plan` with all calls at once, and single calls that name their plan. Every call becomes a change,
//! even if the policy allows it, and none of them runs before all are approved.

use std::{borrow::Cow, sync::Arc};

use serde_json::value::RawValue;

use super::{
    super::{
        account_connection,
        tool_call::{
            ReviewOptions, RoutedCall, ToolCallScope, ToolOutcome, arguments_or_empty, complete_arguments, find_route,
        },
        upstream_wait::RouteFinder,
    },
    PreviewedCall, find_repeated,
    finished_call::FinishedCall,
    log_created, return_failing_call, store,
};
use crate::policy::{self, Counting, JudgedCall};
use countersign_domain::{
    changes::{
        Change, ReviewNote, Terms,
        plan::{MAX_STEPS, find_references, is_written_by},
    },
    policy::Verdict,
    principal::Scope,
    text::truncate,
};
use countersign_protocol::{ErrorKind, McpError, arguments};
use countersign_provider::previews::{self, PreviewRequest};
use countersign_review::{
    CallIdentity, PlanAnnouncement, PlanProposal, Proposal,
    gateway_tools::{ProposePlanArgs, plan_result},
};
use countersign_routing::{ToolRoute, validate};

/// Proposes all calls of a plan. If one of them is refused, nothing is stored. The idempotency key becomes that of the first step.
///
/// # Errors
/// The error of the first call that is denied, cannot be checked or previewed, or must fail, with its position in `step`; the
/// errors of storing the plan.
pub(in crate::handlers) async fn propose_plan(
    call: &RoutedCall<'_>,
    finder: &mut RouteFinder<'_>,
) -> Result<ToolOutcome, McpError> {
    let RoutedCall { scope, route, arguments, .. } = *call;
    let ToolCallScope { exchange, reviews, .. } = scope;
    let idempotency_key = call.request.meta()?.idempotency_key;
    validate::check_arguments(route, arguments)?;
    policy::judge(exchange, route, arguments).await?.apply_decision(exchange, Counting::Count)?;
    exchange.identity.principal.require_scope(Scope::ToolsPropose)?;
    let plan: ProposePlanArgs = countersign_provider::schema::parse_arguments(arguments)?;
    let mut judged = Vec::with_capacity(plan.calls.len());
    for (step, call) in plan.calls.iter().enumerate() {
        let judging = async {
            let route = find_route(finder, &call.name).await?;
            let arguments = arguments_or_empty(call.arguments.as_deref())?;
            let completed = complete_arguments(exchange, &route, arguments)?;
            let arguments = completed.map_or(Cow::Borrowed(arguments), Cow::Owned);
            let judged = judge_step(scope, &route, &arguments, step).await?;
            Ok((judged, arguments))
        };
        judged.push(judging.await.map_err(|error| with_position(error, step, &call.name))?);
    }
    // Decisions are counted only once all calls are judged, so that a call that cannot be checked counts none.
    let mut planned = Vec::with_capacity(judged.len());
    for (step, (judged, arguments)) in judged.into_iter().enumerate() {
        let route = Arc::clone(&judged.route);
        let judged = judged.apply_decision_in_plan(exchange);
        let judged = judged.map_err(|error| with_position(error, step, &route.name))?;
        planned.push(PlannedCall { judged, arguments });
    }
    if let Some(key) = &idempotency_key {
        let calls: Vec<_> = planned.iter().map(PlannedCall::identity).collect();
        let principal = &exchange.identity.principal.name;
        if let Some(steps) = reviews.changes.find_repeated_plan(principal, key, &calls).await? {
            return Ok(finished_plan(&steps));
        }
    }
    let mut proposals = preview_calls(scope, &planned).await?;
    if let Some(first) = proposals.first_mut() {
        first.idempotency_key = idempotency_key.map(Cow::into_owned);
    }
    let changes = reviews.changes.clone();
    let plan = PlanProposal { title: plan.title, reason: plan.reason, steps: proposals };
    let steps = store(async move { changes.propose_plan(plan).await }).await?;
    steps.iter().for_each(|step| log_created(exchange, step));
    Ok(finished_plan(&steps))
}

fn finished_plan(steps: &[Arc<Change>]) -> ToolOutcome {
    let result = plan_result(steps);
    ToolOutcome::Finished(FinishedCall { result, failure: None, fits_output_schema: true, change_id: None })
}

/// A call of a plan that the policy does not deny.
struct PlannedCall<'a> {
    judged: JudgedCall,
    arguments: Cow<'a, RawValue>,
}

impl PlannedCall<'_> {
    fn identity(&self) -> CallIdentity<'_> {
        let route = &self.judged.route;
        CallIdentity { provider: route.provider.name(), tool: &route.def.name, arguments: &self.arguments }
    }
}

/// Previews the calls of a plan in its order, and returns their proposals.
///
/// # Errors
/// The error of the first call that cannot be previewed or must fail, with its position in `step`.
async fn preview_calls(scope: ToolCallScope<'_>, calls: &[PlannedCall<'_>]) -> Result<Vec<Proposal>, McpError> {
    let mut proposals: Vec<Proposal> = Vec::with_capacity(calls.len());
    for (step, PlannedCall { judged, arguments }) in calls.iter().enumerate() {
        let positioned = |error| with_position(error, step, &judged.route.name);
        let proposal = preview_step(scope, judged, arguments).await.map_err(positioned)?;
        let Proposal { provider, preview, .. } = &proposal;
        let is_target = |earlier: &Proposal| {
            earlier.provider == *provider && earlier.preview.target.lock_key == preview.target.lock_key
        };
        if must_be_returned(&proposal) && !proposals.iter().any(is_target) {
            return Err(positioned(return_failing_call(scope, judged, &preview.note).await));
        }
        proposals.push(proposal);
    }
    Ok(proposals)
}

/// Proposes a call as the next step of the plan that it names.
///
/// # Errors
/// `POLICY_DENIED`, which also stops the plan unless none of its steps is stored; otherwise as for every reviewed call,
/// and the errors of storing the step. A call that must fail is returned to the agent, and the plan continues without
/// it.
pub(in crate::handlers) async fn propose_step(
    call: &RoutedCall<'_>,
    options: &ReviewOptions<'_>,
    plan: &PlanAnnouncement,
) -> Result<ToolOutcome, McpError> {
    let RoutedCall { scope, route, arguments, .. } = *call;
    let ToolCallScope { exchange, reviews, .. } = scope;
    exchange.identity.principal.require_scope(Scope::ToolsPropose)?;
    // The position of the step is not known yet. `Changes::propose_step` checks its references again.
    let judged = judge_step(scope, route, arguments, MAX_STEPS).await?;
    let judged = match judged.apply_decision_in_plan(exchange) {
        Ok(judged) => judged,
        Err(denied) => {
            let reason = format!("a later call of its plan ({}) was denied", route.name);
            reviews.changes.refuse_plan(&plan.id, &exchange.identity.principal.name, &reason).await;
            return Err(denied);
        }
    };
    if let Some(change) = find_repeated(call, options).await? {
        return Ok(ToolOutcome::Pending(change));
    }
    let idempotency_key = options.idempotency_key.as_deref().map(str::to_owned);
    let stated_reason = options.reason.as_deref().map(str::to_owned);
    let proposal = preview_step(scope, &judged, arguments).await?;
    if must_be_returned(&proposal) {
        let earlier = reviews.changes.plan(&plan.id).await?.map(|plan| plan.changes).unwrap_or_default();
        if !earlier.iter().any(|step| is_written_by(step, &proposal.provider, &proposal.preview)) {
            return Err(return_failing_call(scope, &judged, &proposal.preview.note).await);
        }
    }
    let proposal = Proposal { idempotency_key, stated_reason, ..proposal };
    let (changes, plan) = (reviews.changes.clone(), plan.clone());
    let change = store(async move { changes.propose_step(proposal, plan).await }).await?;
    log_created(exchange, &change);
    Ok(ToolOutcome::Pending(change))
}

/// Checks a call of a plan, and asks the policy about it without counting the decision. Arguments with references are checked
/// against their schema later, when the references are filled in.
async fn judge_step(
    scope: ToolCallScope<'_>,
    route: &Arc<ToolRoute>,
    arguments: &RawValue,
    step: usize,
) -> Result<JudgedCall, McpError> {
    let ToolCallScope { exchange, runner, .. } = scope;
    if route.def.self_service || route.is_connect_tool() {
        return Err(McpError::new(ErrorKind::ValidationFailed, "The gateway's own tools cannot be calls of a plan"));
    }
    arguments::check(arguments, runner.limits.envelope.max_depth)?;
    let references = find_references(arguments, step)
        .map_err(|error| McpError::new(ErrorKind::ValidationFailed, error.to_string()))?;
    if references.is_empty() {
        validate::check_arguments(route, arguments)?;
    }
    let judged = policy::judge(exchange, route, arguments).await?;
    if judged.decision.verdict != Verdict::Deny {
        account_connection::check_connected(exchange, route).await?;
    }
    Ok(judged)
}

/// Previews a call of a plan, and returns its proposal. A call that the policy allows needs no approval.
async fn preview_step(
    scope: ToolCallScope<'_>,
    judged: &JudgedCall,
    arguments: &RawValue,
) -> Result<Proposal, McpError> {
    let ToolCallScope { exchange, runner, reviews, .. } = scope;
    let (route, decision) = (&*judged.route, &*judged.decision);
    let (provider, tool, context) = (route.provider.provider(), &route.def.name, scope.preview_context());
    let preview = async {
        if previews::shows_arguments_only(&provider, tool, arguments) {
            return previews::preview_arguments_only(&provider, tool, arguments, &context).await;
        }
        let directory = &reviews.directory;
        previews::preview(PreviewRequest { directory, provider: &provider, tool, arguments, context: &context }).await
    };
    let preview = runner.limits.with_timeout(preview).await?;
    // Without the capabilities of the client: nobody may be there to answer questions when the step runs.
    let previewed = PreviewedCall { route, decision, arguments, preview };
    let proposal = previewed.into_proposal(exchange.proposer(), reviews.expire_after);
    if decision.verdict != Verdict::Allow {
        return Ok(proposal);
    }
    let reason = format!("it is a step of a plan; the policy allows it without a review ({})", decision.reason);
    Ok(Proposal {
        terms: Terms { quorum: 0, expire_after: None, ..proposal.terms },
        review: Some(ReviewNote { reason, mark: None, ..decision.into() }),
        expire_after: reviews.expire_after,
        ..proposal
    })
}

/// Returns `true` if the call must fail and its rule returns such calls to the agent. Callers keep a call whose target an earlier
/// step writes, because its preview shows the state before that step.
const fn must_be_returned(proposal: &Proposal) -> bool {
    proposal.terms.on_failed_preview.returns(&proposal.preview.note)
}

/// Adds the position of a refused call to its error.
fn with_position(mut error: McpError, step: usize, tool: &str) -> McpError {
    error.message = format!("Call {step} of the plan ({}): {}", truncate(tool, 128), error.message).into();
    error.with("step", step)
}

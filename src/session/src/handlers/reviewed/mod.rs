//! Calls that a person decides on: the call is proposed as a change, and the caller gets the decision, or a pending
//! result, in the form that its client supports.
//!
//! Nothing here decides on a change. A client's answer to the request to open a page has no effect on it.

pub mod approval_page;
pub mod ask_client;
pub mod dashboard_hint;
pub mod finished_call;
pub mod long_poll;
pub mod missing_arguments;
pub mod plans;

use std::{sync::Arc, time::Duration};

use serde_json::{json, value::RawValue};
use tokio::time::timeout;

use super::tool_call::{ReviewOptions, RoutedCall, ToolCallScope, ToolOutcome, input_responses};
use crate::{gateway::server::Reviews, policy::JudgedCall};
use countersign_bridge::tasks;
use countersign_domain::{
    changes::{Change, OnReview, Preview, PreviewNote, Proposer, arguments::are_equal},
    policy::{DEFAULT_IDENTITY, Decision},
};
use countersign_exchange::context::Exchange;
use countersign_protocol::{ErrorKind, McpError, Revision, arguments, params::LoggingLevel};
use countersign_provider::previews::{self, PreviewRequest};
use countersign_review::{CallIdentity, Proposal};
use countersign_routing::ToolRoute;
use countersign_runtime::background;
use finished_call::outcome_of;
use long_poll::{ChangeWait, Hold, WaitOutcome};

/// Proposes a call, and answers in a form that its client supports.
///
/// # Errors
/// Fails if the call cannot be previewed or stored.
pub(super) async fn review(
    call: &RoutedCall<'_>,
    options: &ReviewOptions<'_>,
    judged: &JudgedCall,
) -> Result<ToolOutcome, McpError> {
    let RoutedCall { scope: ToolCallScope { exchange, runner, .. }, arguments, .. } = *call;
    let decision = &judged.decision;
    tracing::debug!(
        tool = judged.subject(),
        rule = decision.rule.as_deref().unwrap_or(DEFAULT_IDENTITY),
        reason = %decision.reason,
        "a call is reviewed"
    );
    // A person must approve exactly one meaning, so duplicate keys are refused.
    arguments::check(arguments, runner.limits.envelope.max_depth)?;
    if decision.terms.on_review == OnReview::Task && !options.accepts_task {
        return Err(task_required_error(exchange));
    }
    let change = propose(call, options, judged).await?;
    answer_reviewed_call(call, options, change).await
}

/// Continues a call that became a change, which its `requestState` names. The policy is not asked again: even if it
/// allows such calls now, the change may have run already.
///
/// # Errors
/// `-32602` for a state that does not belong to this call; the errors of the store.
pub(super) async fn resume(call: &RoutedCall<'_>, options: &ReviewOptions<'_>) -> Result<ToolOutcome, McpError> {
    let ToolCallScope { exchange, reviews, .. } = call.scope;
    let state = options.request_state.as_deref().unwrap_or_default();
    let mut change = find_named_change(call, state).await?;
    if let Some(responses) = input_responses(exchange, call.request) {
        ask_client::deliver_answers(exchange, reviews, &change, responses).await?;
        // The given change still holds the questions that were just answered.
        change = long_poll::reload(reviews, change).await;
    }
    answer_reviewed_call(call, options, change).await
}

/// Answers a call that the policy allows now with the change that was proposed with its idempotency key. Returns `None`
/// if there is no such change. A tool that only reads may run again.
///
/// # Errors
/// `IDEMPOTENCY_CONFLICT` if the key belongs to the change of another call; the errors of the store.
pub(super) async fn answer_repeat(
    call: &RoutedCall<'_>,
    options: &ReviewOptions<'_>,
) -> Result<Option<ToolOutcome>, McpError> {
    if call.route.is_read_only() {
        return Ok(None);
    }
    match find_repeated(call, options).await? {
        Some(change) => answer_reviewed_call(call, options, change).await.map(Some),
        None => Ok(None),
    }
}

/// Returns the error for a client that does not support tasks, if the rule reviews the call only as a task. It is
/// `-32021` in the stateless era (ext-tasks, "Capability Negotiation") and a tool result with the remedy in the
/// handshake era.
fn task_required_error(exchange: &Exchange) -> McpError {
    if exchange.is_modern() {
        return tasks::missing_extension_error();
    }
    let remedy = match exchange.revision() {
        Revision::V2025_11_25 => "call it as a task (`task` in its parameters)",
        _ => "it needs a client that takes tasks, of protocol revision 2025-11-25 or newer",
    };
    McpError::new(ErrorKind::PolicyDenied, format!("Calls of this tool are reviewed as tasks only: {remedy}"))
}

/// Answers a call that is under review, in the first of these ways that applies:
/// - with the pending change, if it becomes a task or its outcome is unknown;
/// - with the request to open the change's page, at the first attempt of a stateless client;
/// - with the change after a wait, if the rule holds the call or a client of 2025-11-25 is asked to open the page;
/// - with the change as it is now.
async fn answer_reviewed_call(
    call: &RoutedCall<'_>,
    options: &ReviewOptions<'_>,
    change: Arc<Change>,
) -> Result<ToolOutcome, McpError> {
    let ToolCallScope { exchange, reviews, .. } = call.scope;
    if options.accepts_task || (outcome_of(&change).is_none() && long_poll::is_over(&change)) {
        return Ok(ToolOutcome::Pending(change));
    }
    if options.request_state.is_none()
        && !long_poll::is_over(&change)
        && let Some(result) = approval_page::page_result(exchange, reviews, &change)
    {
        return Ok(ToolOutcome::NeedsInput { result, pending: true });
    }
    let asks_to_open_page =
        options.request_state.is_none() && change.terms.open_page && approval_page::can_ask(exchange);
    let holds = change.terms.on_review == OnReview::Hold;
    if !asks_to_open_page && !holds {
        return Ok(ToolOutcome::from_change(change));
    }
    let progress = exchange.progress(options.progress_token);
    let hold = Hold::new(Duration::from_secs(change.terms.hold_for), &*progress);
    // Without a free slot the call is not held; its change is pending all the same.
    let Ok(_slot) = reviews.long_requests.slots.take(&exchange.identity.principal.name) else {
        return Ok(ToolOutcome::from_change(change));
    };
    let wait = wait_while_held(exchange, reviews, Arc::clone(&change), hold);
    let waited = if asks_to_open_page {
        let mut wait = std::pin::pin!(wait);
        tokio::select! {
            waited = &mut wait => waited?,
            () = approval_page::ask(exchange, reviews, &change, None) => match holds {
                true => wait.await?,
                false => WaitOutcome::NotReached(long_poll::reload(reviews, Arc::clone(&change)).await),
            },
        }
    } else {
        wait.await?
    };
    let (WaitOutcome::Reached(change) | WaitOutcome::NotReached(change)) = waited;
    Ok(match ask_client::question_result(exchange, &change) {
        Some(result) => ToolOutcome::NeedsInput { result, pending: true },
        None => ToolOutcome::from_change(change),
    })
}

/// Waits until the change is over or its stateless client must be asked, but no longer than the call is held. A
/// handshake-era client is asked during the wait, and a question that it has not answered at the end is cancelled there and
/// stays open in the change.
async fn wait_while_held(
    exchange: &Exchange,
    reviews: &Reviews,
    mut change: Arc<Change>,
    hold: Hold<'_>,
) -> Result<WaitOutcome, McpError> {
    let wait = ChangeWait { exchange, reviews, hold: Some(hold) };
    // A client that cannot be asked only waits.
    let may_ask = change.dialogue.is_some();
    loop {
        let is_reached =
            |change: &Change| long_poll::is_over(change) || (may_ask && ask_client::has_open_questions(change));
        change = match wait.until(change, is_reached).await? {
            WaitOutcome::Reached(change) if ask_client::has_open_questions(&change) => change,
            waited => return Ok(waited),
        };
        if ask_client::answerable_questions(exchange, &change).is_empty() {
            return wait.until(change, long_poll::is_over).await;
        }
        if exchange.is_modern() {
            return Ok(WaitOutcome::Reached(change));
        }
        let asking = ask_client::ask_open_questions(exchange, reviews, &change, None);
        let ended_in_time = timeout(hold.remaining(), asking).await.is_ok();
        change = long_poll::reload(reviews, change).await;
        if !ended_in_time {
            return Ok(WaitOutcome::NotReached(change));
        }
    }
}

/// Finds the change that `requestState` names. It must belong to this principal and to this call.
async fn find_named_change(call: &RoutedCall<'_>, id: &str) -> Result<Arc<Change>, McpError> {
    let RoutedCall { scope: ToolCallScope { exchange, reviews, .. }, route, arguments, .. } = *call;
    // A reviewer may have edited the arguments since, and the client's person may have filled some in before.
    let has_arguments = |change: &Change| {
        let original = change.original_arguments();
        are_equal(original, arguments)
            || (change.terms.questions && missing_arguments::are_part_of(arguments, original))
    };
    let change = reviews.changes.get(id).await?.filter(|change| {
        change.proposer.principal == exchange.identity.principal.name
            && change.provider == route.provider.name()
            && change.tool == route.def.name
            && has_arguments(change)
    });
    change.ok_or_else(foreign_state_error)
}

/// Returns the error for a call that is under review and whose `requestState` names no change of it.
pub(super) fn foreign_state_error() -> McpError {
    McpError::new(ErrorKind::InvalidParams, "`requestState` does not belong to this call")
        .with("member", "params.requestState")
}

/// Returns the change that was proposed with the idempotency key of the call, if it has one.
async fn find_repeated(call: &RoutedCall<'_>, options: &ReviewOptions<'_>) -> Result<Option<Arc<Change>>, McpError> {
    let RoutedCall { scope: ToolCallScope { exchange, reviews, .. }, route, arguments, .. } = *call;
    let Some(key) = &options.idempotency_key else { return Ok(None) };
    let identity = CallIdentity { provider: route.provider.name(), tool: &route.def.name, arguments };
    let plan = options.plan.as_ref().map(|plan| plan.id.as_str());
    reviews.changes.find_repeated(&exchange.identity.principal.name, key, identity, plan).await
}

/// Proposes the call as a change, and stores the change.
async fn propose(
    call: &RoutedCall<'_>,
    options: &ReviewOptions<'_>,
    judged: &JudgedCall,
) -> Result<Arc<Change>, McpError> {
    let RoutedCall { scope, route, arguments, .. } = *call;
    let ToolCallScope { exchange, runner, reviews, .. } = scope;
    if let Some(change) = find_repeated(call, options).await? {
        return Ok(change);
    }
    let (provider, context) = (route.provider.provider(), scope.preview_context());
    let (directory, tool) = (&reviews.directory, &route.def.name);
    let request = PreviewRequest { directory, provider: &provider, tool, arguments, context: &context };
    let preview = runner.limits.with_timeout(previews::preview(request)).await?;
    let (decision, terms) = (&*judged.decision, &judged.decision.terms);
    if terms.on_failed_preview.returns(&preview.note) {
        return Err(return_failing_call(scope, judged, &preview.note).await);
    }
    let stays_reachable = options.accepts_task || terms.on_review == OnReview::Hold;
    let previewed = PreviewedCall { route, decision, arguments, preview };
    let proposal = Proposal {
        client_capabilities: ask_client::capabilities_for_change(exchange, route, terms, stays_reachable),
        idempotency_key: options.idempotency_key.as_deref().map(str::to_owned),
        stated_reason: options.reason.as_deref().map(str::to_owned),
        ..previewed.into_proposal(exchange.proposer(), reviews.expire_after)
    };
    let changes = reviews.changes.clone();
    let change = store(async move { changes.propose(proposal).await }).await?;
    log_created(exchange, &change);
    Ok(change)
}

/// Stores changes in the background, even if the client disconnects meanwhile.
async fn store<T: 'static>(storing: impl Future<Output = Result<T, McpError>> + 'static) -> Result<T, McpError> {
    let stored = background::spawn_with_result(storing).await;
    stored.map_err(|_| McpError::new(ErrorKind::Internal, "the change could not be stored"))?
}

/// Tells the client that a change was created.
fn log_created(exchange: &Exchange, change: &Change) {
    exchange.log(
        LoggingLevel::Notice,
        &json!({ "event": "change.created", "changeId": change.id, "tool": change.tool, "summary": change.for_proposer().summary }),
    );
}

/// A call with the policy's decision on it and its preview.
pub struct PreviewedCall<'a> {
    pub route: &'a ToolRoute,
    pub decision: &'a Decision,
    pub arguments: &'a RawValue,
    pub preview: Preview,
}

impl PreviewedCall<'_> {
    /// Returns the proposal of the call, under the terms of the decision. The change expires after `expire_after` unless the
    /// terms say otherwise, and its tool cannot ask the client.
    pub fn into_proposal(self, proposer: Proposer, expire_after: Duration) -> Proposal {
        let Self { route, decision, arguments, preview } = self;
        Proposal {
            proposer,
            provider: route.provider.name().to_owned(),
            tool: route.def.name.clone(),
            tool_title: route.def.title.clone(),
            tool_hash: route.hash.clone(),
            served_by: route.provider.as_provider().server_identity(),
            arguments: arguments.to_owned().into(),
            preview,
            expire_after: decision.terms.expire_after.map_or(expire_after, Duration::from_secs),
            client_capabilities: None,
            terms: (*decision.terms).clone(),
            review: Some(decision.into()),
            idempotency_key: None,
            stated_reason: None,
            plan: None,
        }
    }
}

/// Returns the error for a call whose preview shows that it must fail, once the call is recorded.
async fn return_failing_call(scope: ToolCallScope<'_>, judged: &JudgedCall, preview: &PreviewNote) -> McpError {
    let (ToolCallScope { exchange, reviews, .. }, subject) = (scope, judged.subject());
    let (provider, reason) = (judged.route.provider.name(), preview.failed.as_deref().unwrap_or_default());
    let recorded = reviews.changes.record_failing_call(exchange.proposer(), provider, subject, reason).await;
    let text = format!("This call must fail, so nobody was asked to approve it: {reason}");
    recorded.err().unwrap_or_else(|| McpError::new(ErrorKind::CallMustFail, text))
}

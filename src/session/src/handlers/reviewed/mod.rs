//! What becomes of a call that a person decides on: it is proposed, and its caller gets the decision, or the word that
//! it is pending, in whatever way its client can take it.
//!
//! Nothing here decides anything: what a client answers to a question about a page to open is only heard.

pub mod approval_page;
pub mod ask_client;
pub mod finished_call;
pub mod long_poll;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{json, value::RawValue};

use super::tools::{ToolCall, ToolOutcome};
use crate::{Handling, policy::JudgedCall};
use countersign_bridge::tasks;
use countersign_domain::{
    changes::{Change, OnReview, arguments::are_equal},
    policy::Decision,
};
use countersign_exchange::cancel::Cancel;
use countersign_protocol::{ErrorKind, McpError, Revision, arguments, params::LoggingLevel};
use countersign_provider::{CallContext, ProgressSink, previews};
use countersign_review::Proposal;
use countersign_routing::{RouteDirectory, ToolRoute};
use finished_call::{ChangeOutcome, outcome_of};
use long_poll::WaitOutcome;

/// Proposes a call, or finds the change that its `requestState` names, and answers as its client can take it.
///
/// # Errors
/// Fails if the call cannot be previewed or stored; `-32602` for a state that does not belong to this call.
pub(super) async fn review(
    exchange: &Handling,
    judged: &JudgedCall,
    raw: &RawValue,
    call: &ToolCall<'_>,
    cancel: &Cancel,
) -> Result<ToolOutcome, McpError> {
    let JudgedCall { route, decision } = judged;
    tracing::debug!(
        tool = %route.name,
        rule = decision.rule.as_deref().unwrap_or("policy.default"),
        reason = %decision.reason,
        "a call is reviewed"
    );
    // What a person approves must mean one thing only: no key may stand there twice.
    arguments::check(raw, exchange.server.limits.envelope.max_depth)?;
    if decision.terms.on_review == OnReview::Task && !call.task {
        return Err(needs_tasks(exchange));
    }
    let change = match call.state {
        Some(state) => {
            let change = find_named_change(exchange, route, raw, state).await?;
            match call.responses {
                Some(responses) => {
                    ask_client::deliver(exchange, &change, responses).await?;
                    // What it asked just now is asked no more.
                    long_poll::now(exchange, change).await
                }
                None => change,
            }
        }
        None => propose(exchange, route, raw, call, decision, cancel).await?,
    };
    answer(exchange, call, change).await
}

/// For a client that takes no task, of a call that is reviewed as nothing else: `-32021` in the stateless era (ext-tasks,
/// "Capability Negotiation"), a result that says what to do in the others.
fn needs_tasks(exchange: &Handling) -> McpError {
    if exchange.is_modern() {
        return tasks::undeclared();
    }
    let remedy = match exchange.revision() {
        Revision::V2025_11_25 => "call it as a task (`task` in its parameters)",
        _ => "it needs a client that takes tasks, of protocol revision 2025-11-25 or newer",
    };
    McpError::new(ErrorKind::PolicyDenied, format!("Calls of this tool are reviewed as tasks only: {remedy}"))
}

async fn answer(exchange: &Handling, call: &ToolCall<'_>, change: Arc<Change>) -> Result<ToolOutcome, McpError> {
    if call.task || (outcome_of(&change).is_none() && !may_follow(&change)) {
        return Ok(ToolOutcome::Pending(change));
    }
    if call.state.is_none()
        && may_follow(&change)
        && let Some(question) = approval_page::asked_by_result(exchange, &change)
    {
        return Ok(ToolOutcome::NeedsInput { question, pending: true });
    }
    let asks = call.state.is_none() && change.terms.open_page && approval_page::can_ask(exchange);
    let holds = change.terms.on_review == OnReview::Hold;
    if !asks && !holds {
        return Ok(outcome_of_change(change));
    }
    let progress = exchange.progress(call.progress_token);
    let limit = Duration::from_secs(change.terms.hold_for);
    // Without a place of their own they are not held at all: it is pending all the same.
    let Ok(_slot) = exchange.server.long_requests.admit(&exchange.identity.principal) else {
        return Ok(outcome_of_change(change));
    };
    let wait = wait_while_held(exchange, Arc::clone(&change), limit, &*progress);
    let waited = if asks {
        let mut wait = std::pin::pin!(wait);
        tokio::select! {
            waited = &mut wait => waited?,
            () = approval_page::ask(exchange, &change, None) => match holds {
                true => wait.await?,
                false => WaitOutcome::NotYet(long_poll::now(exchange, Arc::clone(&change)).await),
            },
        }
    } else {
        wait.await?
    };
    let (WaitOutcome::Over(change) | WaitOutcome::NotYet(change)) = waited;
    Ok(match ask_client::by_result(exchange, &change) {
        Some(question) => ToolOutcome::NeedsInput { question, pending: true },
        None => outcome_of_change(change),
    })
}

/// Waits until the change is over, or its stateless client has to be asked something. A client of the handshake era is
/// asked meanwhile, for as long as that takes.
async fn wait_while_held(
    exchange: &Handling,
    mut change: Arc<Change>,
    mut limit: Duration,
    progress: &dyn ProgressSink,
) -> Result<WaitOutcome, McpError> {
    // A client that cannot be asked just waits.
    let asks = change.dialogue.is_some();
    let over: fn(&Change) -> bool =
        if asks { |change| long_poll::is_over(change) || ask_client::is_asking(change) } else { long_poll::is_over };
    loop {
        let began = Instant::now();
        change = match long_poll::wait(exchange, Arc::clone(&change), Some(limit), progress, over).await? {
            WaitOutcome::Over(change) if ask_client::is_asking(&change) => change,
            waited => return Ok(waited),
        };
        if ask_client::open(exchange, &change).is_empty() {
            return long_poll::wait(exchange, change, Some(limit), progress, long_poll::is_over).await;
        }
        if exchange.is_modern() {
            return Ok(WaitOutcome::Over(change));
        }
        limit = limit.saturating_sub(began.elapsed());
        ask_client::ask_all(exchange, &change, None).await;
        change = long_poll::now(exchange, change).await;
    }
}

/// Returns `true` if a caller could still wait for something.
fn may_follow(change: &Change) -> bool {
    !long_poll::is_over(change)
}

/// The answer to a call whose change is where it is.
fn outcome_of_change(change: Arc<Change>) -> ToolOutcome {
    match outcome_of(&change) {
        Some(ChangeOutcome::Result(settled)) => ToolOutcome::Finished(settled, Some(change.id.clone())),
        Some(ChangeOutcome::Error(error)) => ToolOutcome::Failed(error),
        None => ToolOutcome::Pending(change),
    }
}

/// The change that a client was asked about before: its own, and of this very call.
async fn find_named_change(
    exchange: &Handling,
    route: &ToolRoute,
    raw: &RawValue,
    id: &str,
) -> Result<Arc<Change>, McpError> {
    let change = exchange.server.reviews.changes.get(id).await?.filter(|change| {
        change.proposer.principal == exchange.identity.principal.name
            && change.provider == route.provider.name()
            && change.tool == route.def.name
            // A reviewer may have corrected them since.
            && are_equal(change.proposed_arguments.as_ref().unwrap_or(&change.arguments), raw)
    });
    change.ok_or_else(|| {
        McpError::new(ErrorKind::InvalidParams, "`requestState` does not belong to this call")
            .with("member", "params.requestState")
    })
}

async fn propose(
    exchange: &Handling,
    route: &ToolRoute,
    raw: &RawValue,
    call: &ToolCall<'_>,
    decision: &Decision,
    cancel: &Cancel,
) -> Result<Arc<Change>, McpError> {
    let server = &exchange.server;
    let meter = Some(server.meter(&exchange.identity.principal));
    let context = CallContext { meter, ..exchange.call_context(cancel, None) };
    let preview = server
        .limits
        .in_time(previews::preview(
            &RouteDirectory(Arc::clone(&server.routing.routes)),
            &route.provider.provider(),
            &route.def.name,
            raw,
            &context,
        ))
        .await?;
    let proposal = Proposal {
        proposer: exchange.proposer(),
        provider: route.provider.name().to_owned(),
        tool: route.def.name.clone(),
        tool_title: route.def.title.clone(),
        tool_hash: route.hash.clone(),
        served_by: route.provider.served_by(),
        arguments: raw.to_owned().into(),
        preview,
        expire_after: decision.terms.expire_after.map_or(server.reviews.expire_after, Duration::from_secs),
        client: ask_client::client(
            exchange,
            route,
            &decision.terms,
            call.task || decision.terms.on_review == OnReview::Hold,
        ),
        terms: (*decision.terms).clone(),
        review: Some(decision.into()),
        idempotency_key: call.idempotency_key.map(str::to_owned),
    };
    // In a task of its own, which stores it also where the client goes away meanwhile.
    let changes = server.reviews.changes.clone();
    let stored = actix::spawn(async move { changes.propose(proposal).await }).await;
    let change = stored.map_err(|_| McpError::new(ErrorKind::Internal, "the change could not be stored"))??;
    exchange.log(
        LoggingLevel::Notice,
        &json!({ "event": "change.created", "changeId": change.id, "tool": change.tool, "summary": change.for_proposer().summary }),
    );
    Ok(change)
}

//! Puts the questions of a running change's tool to the client that proposed the change: as the input of its task, as
//! the result of a held call, or as a request of the gateway while such a call or `tasks/result` is open.
//!
//! The questions are part of the change, so a client that reconnects finds them again.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use serde_json::value::{RawValue, to_raw_value};

use crate::gateway::server::Reviews;
use countersign_bridge::{
    questions,
    result::{self, InputRequest},
    task_json,
};
use countersign_domain::{
    changes::{Change, ChangeState, Terms, dialogue::Question},
    principal::Scope,
    questions::{ELICITATION, adapt_params, check_capabilities, is_url_elicitation},
};
use countersign_exchange::{
    ask::{AskError, ask},
    context::Exchange,
    reply::SERVER_META,
};
use countersign_protocol::{McpError, Revision, json::members, negotiate::ClientCapabilities};
use countersign_routing::ToolRoute;

/// The pause after an attempt to ask a client that did not answer.
const UNREACHABLE_CLIENT_PAUSE: Duration = Duration::from_secs(5);

/// Returns the capabilities that the tool may ask the client for, to be stored with the change. Returns `None` unless
/// the rule allows questions and the client stays reachable, through a task or an open call.
pub fn capabilities_for_change(
    exchange: &Exchange,
    route: &ToolRoute,
    terms: &Terms,
    stays_reachable: bool,
) -> Option<Arc<RawValue>> {
    let upstream = route.provider.upstream().filter(|_| terms.questions && stays_reachable)?;
    let (allowed, _) = questions::allowed_capabilities(exchange, &upstream.config);
    if allowed.accepts_no_requests() {
        return None;
    }
    // An extension works only between two parties that both know it, and the Executor knows none.
    let capabilities = ClientCapabilities { extensions: None, experimental: None, ..allowed };
    to_raw_value(&capabilities.to_json(Revision::V2025_11_25)).ok().map(Arc::from)
}

/// Returns `true` if the tool of the change has open questions now.
pub fn has_open_questions(change: &Change) -> bool {
    change.state == ChangeState::Executing
        && change.dialogue.as_ref().is_some_and(|dialogue| dialogue.open_questions().next().is_some())
}

/// Returns the open questions that this client can answer.
pub fn answerable_questions<'c>(exchange: &Exchange, change: &'c Change) -> Vec<&'c Question> {
    if !has_open_questions(change) || !exchange.identity.principal.has_scope(Scope::ToolsPropose) {
        return Vec::new();
    }
    let capabilities = ClientCapabilities::from_declaration(&exchange.facts.capabilities);
    let open = change.dialogue.iter().flat_map(|dialogue| dialogue.open_questions());
    open.filter(|question| check_capabilities(&capabilities, &question.method, question_params(question)).is_ok())
        .collect()
}

fn question_params(question: &Question) -> Option<&str> {
    question.params.as_deref().map(RawValue::get)
}

/// Returns a question as a request in `inputRequests`.
fn as_input_request(question: &Question) -> InputRequest<'_> {
    InputRequest { key: &question.key, method: &question.method, params: question_params(question) }
}

/// Returns `inputRequests` with the open questions that this client can answer, or `None` if there are none.
pub fn input_requests(exchange: &Exchange, change: &Change) -> Option<String> {
    let open = answerable_questions(exchange, change);
    (!open.is_empty()).then(|| result::input_requests(open.into_iter().map(as_input_request)))
}

/// Returns the result that asks a stateless client, which then retries the call.
pub fn question_result(exchange: &Exchange, change: &Change) -> Option<String> {
    let open = answerable_questions(exchange, change);
    (exchange.is_modern() && !open.is_empty())
        .then(|| result::input_required_result(open.into_iter().map(as_input_request), Some(&change.id), SERVER_META))
}

/// Delivers a client's answers (`inputResponses`, as JSON) to the tool. Answers that are not objects, or that match no
/// open question, are ignored.
///
/// # Errors
/// Fails if the answers could not be stored, and so did not reach the tool.
pub async fn deliver_answers(
    exchange: &Exchange,
    reviews: &Reviews,
    change: &Change,
    responses: &str,
) -> Result<(), McpError> {
    if !has_open_questions(change) {
        return Ok(());
    }
    let answers: Vec<_> = members(responses)
        .filter(|response| response.value.starts_with('{'))
        .filter_map(|response| {
            let answer = RawValue::from_string(response.value.to_owned()).ok()?;
            Some((response.key.into_owned(), Ok(Arc::from(answer))))
        })
        .collect();
    if answers.is_empty() {
        return Ok(());
    }
    reviews.changes.answer(&change.id, &exchange.identity.principal, answers).await
}

/// Asks a handshake-era client all open questions and delivers its answers. `task` is the task that the questions
/// belong to. If the client is gone or silent, its questions stay open until it comes back, and this waits
/// [`UNREACHABLE_CLIENT_PAUSE`], so that callers may try again in a loop.
pub async fn ask_open_questions(exchange: &Exchange, reviews: &Reviews, change: &Change, task: Option<&str>) {
    let requests = answerable_questions(exchange, change).into_iter().map(|question| async move {
        let id = is_url_elicitation(&question.method, question_params(question)).then(|| nanoid::nanoid!(24));
        let mut params = adapt_params(&question.method, question_params(question), exchange.revision(), id.as_deref());
        if let Some(task) = task {
            params = Some(task_json::with_related_task(params.as_deref().unwrap_or("{}"), task));
        }
        let answer = match ask(&exchange.session, &exchange.related, &question.method, params.as_deref()).await {
            Ok(answer) => Ok(Arc::from(answer)),
            // A form that the client cannot show counts as an answer.
            Err(AskError::Refused(_)) if question.method == ELICITATION => {
                Err("its client cannot show the form".to_owned())
            }
            Err(error @ AskError::Refused(_)) => Err(questions::refusal_error(&error).message),
            Err(error) => {
                tracing::debug!(change = %change.id, ?error, "a tool's question did not reach the client");
                return false;
            }
        };
        let answers = vec![(question.key.clone(), answer)];
        if let Err(error) = reviews.changes.answer(&change.id, &exchange.identity.principal, answers).await {
            tracing::warn!(change = %change.id, %error, "a client's answer did not reach the tool");
        }
        true
    });
    if !join_all(requests).await.contains(&true) {
        tokio::time::sleep(UNREACHABLE_CLIENT_PAUSE).await;
    }
}

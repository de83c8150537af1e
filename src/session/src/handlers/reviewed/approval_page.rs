//! Asks a client to open the page of a change, where a person decides with a credential of their own
//! (2025-11-25/client/elicitation, "URL Mode"; 2026-07-28/client/elicitation).
//!
//! The client's answer decides nothing: the change stays pending until a reviewer decides on its page.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::long_poll;
use crate::server::Reviews;
use countersign_bridge::{result::input_result, task_shape};
use countersign_domain::{
    changes::{Change, ChangeState},
    questions::ELICITATION,
};
use countersign_exchange::{ask, context::Exchange, reply::SERVER_META};
use countersign_protocol::{Revision, encode, negotiate::ClientCapabilities};
use countersign_provider::NoProgress;

/// The key of the request in `inputRequests`.
pub const INPUT_KEY: &str = "open-change";

/// The longest time to wait for the decision in order to notify a client that was asked.
const MAX_NOTIFICATION_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Returns `true` if the client supports elicitation with a URL.
fn supports_url_elicitation(exchange: &Exchange) -> bool {
    exchange.revision() >= Revision::V2025_11_25
        && ClientCapabilities::from_declaration(&exchange.facts.capabilities).elicitation_url
}

/// Returns `true` if the gateway can send the client a request while the client's own request is open.
#[must_use]
pub fn can_ask(exchange: &Exchange) -> bool {
    exchange.revision() == Revision::V2025_11_25 && supports_url_elicitation(exchange)
}

/// Returns `true` if the change waits for a decision on its page.
fn awaits_page(change: &Change) -> bool {
    change.terms.open_page && matches!(change.state, ChangeState::Pending | ChangeState::Stale)
}

fn params(reviews: &Reviews, change: &Change) -> serde_json::Value {
    json!({
        "mode": "url",
        "message": format!("A person has to decide on this change: {}. It is decided on its page, which asks for a reviewer's own sign-in.", change.for_proposer().summary),
        "url": reviews.address.change_url(&change.id),
    })
}

/// Returns the result that asks a stateless client, which then repeats the call.
#[must_use]
pub fn page_result(exchange: &Exchange, reviews: &Reviews, change: &Change) -> Option<String> {
    if !exchange.is_modern() || !awaits_page(change) || !supports_url_elicitation(exchange) {
        return None;
    }
    let params = params(reviews, change).to_string();
    let requests = [(INPUT_KEY, ELICITATION, Some(params.as_str()))];
    Some(input_result(requests.into_iter(), Some(&change.id), SERVER_META))
}

/// Returns `inputRequests` of the change as a task, unless its client has already answered.
#[must_use]
pub fn page_input_requests(exchange: &Exchange, reviews: &Reviews, change: &Change) -> Option<String> {
    let must_ask =
        awaits_page(change) && supports_url_elicitation(exchange) && !reviews.answered_page_requests.has(&change.id);
    must_ask.then(|| json!({ INPUT_KEY: { "method": ELICITATION, "params": params(reviews, change) } }).to_string())
}

/// Asks a client of 2025-11-25 and waits for any answer. `task` is the task that the question belongs to.
pub async fn ask(exchange: &Exchange, reviews: &Arc<Reviews>, change: &Arc<Change>, task: Option<&str>) {
    if !awaits_page(change) || !can_ask(exchange) {
        return;
    }
    let elicitation_id = nanoid::nanoid!(24);
    let mut params = params(reviews, change);
    params["elicitationId"] = elicitation_id.as_str().into();
    let mut params = params.to_string();
    if let Some(task) = task {
        params = task_shape::with_related_task(&params, task);
    }
    match ask::ask(&exchange.session, &exchange.related, ELICITATION, Some(&params)).await {
        Ok(answer) => {
            reviews.answered_page_requests.insert(&change.id);
            tracing::debug!(change = %change.id, answer_bytes = answer.get().len(), "a client was asked to open a change's page");
            notify_when_decided(exchange, reviews, change, elicitation_id);
        }
        Err(error) => {
            tracing::debug!(change = %change.id, ?error, "a client could not be asked to open a change's page")
        }
    }
}

/// Sends `notifications/elicitation/complete` once the change is decided, if the client's session still lives.
fn notify_when_decided(exchange: &Exchange, reviews: &Arc<Reviews>, change: &Arc<Change>, elicitation_id: String) {
    // At most one such task runs for each pending change, and the number of pending changes is bounded.
    let (exchange, reviews, change) = (exchange.clone(), Arc::clone(reviews), Arc::clone(change));
    actix::spawn(async move {
        let decided: fn(&Change) -> bool = |change| !matches!(change.state, ChangeState::Pending | ChangeState::Stale);
        let waited = tokio::select! {
            waited = long_poll::wait(&exchange, &reviews, change, Some(MAX_NOTIFICATION_WAIT), &NoProgress, decided) => waited,
            () = exchange.session.ended.cancelled() => return,
        };
        if matches!(waited, Ok(long_poll::WaitOutcome::Reached(_))) {
            let params = json!({ "elicitationId": elicitation_id }).to_string();
            exchange
                .session
                .send_unsolicited(encode::notification("notifications/elicitation/complete", Some(&params)));
        }
    });
}

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
pub const KEY: &str = "open-change";

/// The longest time for which a client that was asked is notified when the page is no longer needed.
const MAX_NOTIFICATION_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Returns `true` if the client supports elicitation with a URL.
fn shows_urls(exchange: &Exchange) -> bool {
    exchange.revision() >= Revision::V2025_11_25
        && ClientCapabilities::from_declaration(&exchange.facts.capabilities).elicitation_url
}

/// Returns `true` if the gateway can send the client a request while the client's own request is open.
#[must_use]
pub fn can_ask(exchange: &Exchange) -> bool {
    exchange.revision() == Revision::V2025_11_25 && shows_urls(exchange)
}

/// Returns `true` if the change waits for a decision on its page.
fn is_open(change: &Change) -> bool {
    change.terms.open_page && matches!(change.state, ChangeState::Pending | ChangeState::Stale)
}

fn params(reviews: &Reviews, change: &Change) -> serde_json::Value {
    json!({
        "mode": "url",
        "message": format!("A person has to decide on this change: {}. It is decided on its page, which asks for a reviewer's own sign-in.", change.for_proposer().summary),
        "url": reviews.address.page_of_change(&change.id),
    })
}

/// Returns the result that asks a stateless client, which then repeats the call.
#[must_use]
pub fn page_result(exchange: &Exchange, reviews: &Reviews, change: &Change) -> Option<String> {
    if !exchange.is_modern() || !is_open(change) || !shows_urls(exchange) {
        return None;
    }
    let params = params(reviews, change).to_string();
    let requests = [(KEY, ELICITATION, Some(params.as_str()))];
    Some(input_result(requests.into_iter(), Some(&change.id), SERVER_META))
}

/// Returns `inputRequests` of the change as a task, unless its client has already answered.
#[must_use]
pub fn page_input_requests(exchange: &Exchange, reviews: &Reviews, change: &Change) -> Option<String> {
    let must_ask = is_open(change) && shows_urls(exchange) && !reviews.opened_pages.has(&change.id);
    must_ask.then(|| json!({ KEY: { "method": ELICITATION, "params": params(reviews, change) } }).to_string())
}

/// Asks a client of 2025-11-25 and waits for any answer. `task` is the task that the question belongs to.
pub async fn ask(exchange: &Exchange, reviews: &Arc<Reviews>, change: &Arc<Change>, task: Option<&str>) {
    if !is_open(change) || !can_ask(exchange) {
        return;
    }
    let elicitation = nanoid::nanoid!(24);
    let mut params = params(reviews, change);
    params["elicitationId"] = elicitation.as_str().into();
    let mut params = params.to_string();
    if let Some(task) = task {
        params = task_shape::with_related_task(&params, task);
    }
    match ask::ask(&exchange.session, &exchange.related, ELICITATION, Some(&params)).await {
        Ok(answer) => {
            reviews.opened_pages.insert(&change.id);
            tracing::debug!(change = %change.id, answer = answer.get().len(), "a client was asked to open a change's page");
            notify_when_decided(exchange, reviews, change, elicitation);
        }
        Err(error) => {
            tracing::debug!(change = %change.id, ?error, "a client could not be asked to open a change's page")
        }
    }
}

/// Sends `notifications/elicitation/complete` once the change is decided, if the client's session still lives.
fn notify_when_decided(exchange: &Exchange, reviews: &Arc<Reviews>, change: &Arc<Change>, elicitation: String) {
    // At most one such task runs for each pending change, and the number of pending changes is bounded.
    let (exchange, reviews, change) = (exchange.clone(), Arc::clone(reviews), Arc::clone(change));
    actix::spawn(async move {
        let decided: fn(&Change) -> bool = |change| !matches!(change.state, ChangeState::Pending | ChangeState::Stale);
        let waited = tokio::select! {
            waited = long_poll::wait(&exchange, &reviews, change, Some(MAX_NOTIFICATION_WAIT), &NoProgress, decided) => waited,
            () = exchange.session.ended.cancelled() => return,
        };
        if matches!(waited, Ok(long_poll::WaitOutcome::Over(_))) {
            let params = json!({ "elicitationId": elicitation }).to_string();
            exchange
                .session
                .send_unsolicited(encode::notification("notifications/elicitation/complete", Some(&params)));
        }
    });
}

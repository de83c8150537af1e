//! Asks a client to open the page of a change, where a person decides with a credential of their own
//! (2025-11-25/client/elicitation, "URL Mode"; 2026-07-28/client/elicitation).
//!
//! The client's answer decides nothing: the change stays pending until a reviewer decides on its page.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use tokio_util::sync::CancellationToken;

use super::long_poll::{ChangeWait, WaitOutcome};
use crate::gateway::{long_requests::LongRequests, server::Reviews};
use countersign_bridge::{
    result::{InputRequest, input_required_result},
    task_json,
};
use countersign_domain::{changes::Change, questions::ELICITATION};
use countersign_exchange::{
    ask,
    context::Exchange,
    eviction::{self, Activity},
    reply::SERVER_META,
    slots::EvictableStream,
};
use countersign_protocol::{Revision, encode, negotiate::ClientCapabilities};
use countersign_runtime::background;

/// The key of the request in `inputRequests`.
pub const INPUT_KEY: &str = "open-change";

/// The longest time to wait for the decision in order to notify a client that was asked.
const MAX_NOTIFICATION_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Returns `true` if the client supports elicitation with a URL.
pub fn supports_url_elicitation(exchange: &Exchange) -> bool {
    exchange.revision() >= Revision::V2025_11_25
        && ClientCapabilities::from_declaration(&exchange.facts.capabilities).elicitation_url
}

/// Returns `true` if the gateway can ask the client to open a page while the client's own request is open. Only
/// 2025-11-25 has both URL elicitation and requests of the gateway.
pub fn can_ask(exchange: &Exchange) -> bool {
    exchange.revision() == Revision::V2025_11_25 && supports_url_elicitation(exchange)
}

/// Returns `true` if the change waits for a decision on its page.
fn awaits_page(change: &Change) -> bool {
    change.terms.open_page && change.state.awaits_decision()
}

/// Returns the parameters of the elicitation that asks to open the page of a change.
fn change_page_params(reviews: &Reviews, change: &Change) -> Value {
    let summary = change.for_proposer().summary;
    let message = format!(
        "A person has to decide on this change: {summary}. It is decided on its page, which asks for a reviewer's own sign-in."
    );
    page_params(&message, &reviews.address.change_url(&change.id))
}

/// Returns the parameters of an elicitation that asks to open a page.
pub fn page_params(message: &str, url: &str) -> Value {
    json!({ "mode": "url", "message": message, "url": url })
}

/// Tells a client of 2025-11-25 that a page that it was asked to open is no longer needed, once `is_done` resolves to
/// `true`. The wait takes one of the principal's slots if one is free. It gives up after `limit`, with the session, or
/// if others need the slot.
pub fn notify_when(
    exchange: &Exchange,
    requests: &LongRequests,
    elicitation_id: &str,
    limit: Duration,
    is_done: impl Future<Output = bool> + 'static,
) {
    let (started_at, evicted) = (eviction::monotonic_ms(), CancellationToken::new());
    let stream = EvictableStream::new(move || Activity::Idle(started_at), evicted.clone());
    let Ok(slot) = requests.slots.take_evictable_if_free(&exchange.identity.principal.name, stream) else { return };
    let (session, shutdown) = (Arc::clone(&exchange.session), requests.shutdown.clone());
    let params = json!({ "elicitationId": elicitation_id }).to_string();
    background::spawn(async move {
        let _slot = slot;
        let is_done = tokio::select! {
            is_done = is_done => is_done,
            () = tokio::time::sleep(limit) => false,
            () = session.ended.cancelled() => false,
            () = evicted.cancelled() => false,
            () = shutdown.cancelled() => false,
        };
        if is_done {
            session.send_unsolicited(encode::notification("notifications/elicitation/complete", Some(&params)));
        }
    });
}

/// Returns the result that asks a stateless client, which then retries the call.
pub fn page_result(exchange: &Exchange, reviews: &Reviews, change: &Change) -> Option<String> {
    if !exchange.is_modern() || !awaits_page(change) || !supports_url_elicitation(exchange) {
        return None;
    }
    let params = change_page_params(reviews, change).to_string();
    Some(input_required_result([InputRequest::elicitation(INPUT_KEY, &params)], Some(&change.id), SERVER_META))
}

/// Returns `inputRequests` of the change as a task, unless its client has already answered.
pub fn page_input_requests(exchange: &Exchange, reviews: &Reviews, change: &Change) -> Option<String> {
    let must_ask = awaits_page(change)
        && supports_url_elicitation(exchange)
        && !reviews.answered_page_requests.contains(&change.id);
    must_ask.then(|| {
        json!({ INPUT_KEY: { "method": ELICITATION, "params": change_page_params(reviews, change) } }).to_string()
    })
}

/// Asks a client of 2025-11-25 and waits for any answer. `task` is the task that the question belongs to.
pub async fn ask(exchange: &Exchange, reviews: &Arc<Reviews>, change: &Arc<Change>, task: Option<&str>) {
    if !awaits_page(change) || !can_ask(exchange) {
        return;
    }
    let elicitation_id = nanoid::nanoid!(24);
    let mut params = change_page_params(reviews, change);
    params["elicitationId"] = elicitation_id.as_str().into();
    let mut params = params.to_string();
    if let Some(task) = task {
        params = task_json::with_related_task(&params, task);
    }
    match ask::ask(&exchange.session, &exchange.related, ELICITATION, Some(&params)).await {
        Ok(answer) => {
            reviews.answered_page_requests.insert(&change.id);
            tracing::debug!(change = %change.id, answer_bytes = answer.get().len(), "a client was asked to open a change's page");
            notify_when_decided(exchange, reviews, change, &elicitation_id);
        }
        Err(error) => {
            tracing::debug!(change = %change.id, ?error, "a client could not be asked to open a change's page")
        }
    }
}

/// Notifies the client once the change is decided.
fn notify_when_decided(exchange: &Exchange, reviews: &Arc<Reviews>, change: &Arc<Change>, elicitation_id: &str) {
    let (waiting, changes, change) = (exchange.clone(), Arc::clone(reviews), Arc::clone(change));
    let is_decided = async move {
        let wait = ChangeWait { exchange: &waiting, reviews: &changes, hold: None };
        let waited = wait.until(change, |change| !change.state.awaits_decision()).await;
        matches!(waited, Ok(WaitOutcome::Reached(_)))
    };
    notify_when(exchange, &reviews.long_requests, elicitation_id, MAX_NOTIFICATION_WAIT, is_decided);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Gateway;

    #[actix::test]
    async fn wait_to_notify_gives_way_to_other_requests() {
        let gateway = Gateway::new("limits: { max_streams: 1 }").await;
        let exchange = gateway.clients.exchange_of("ann", Revision::V2025_11_25, "{}");
        let requests = &gateway.server.routing.long_requests;
        let [first, second] = ["a", "b"].map(|id| {
            let ended = CancellationToken::new();
            let guard = ended.clone().drop_guard();
            notify_when(&exchange, requests, id, MAX_NOTIFICATION_WAIT, async move {
                let _guard = guard;
                std::future::pending().await
            });
            ended
        });
        assert!(!first.is_cancelled() && second.is_cancelled());
        let _held = requests.slots.take(&exchange.identity.principal.name).unwrap();
        first.cancelled().await;
    }
}

//! Checks of the structure of messages.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{Check, Group, Outcome, SpecPages, compact_json, ensure, ensure_response, fail, skip};
use crate::{
    probe::{Probe, ProbeConnection, QUIET_PERIOD, ids_match},
    wire::Wire,
};

const RESPONSES: SpecPages = ("basic/index#responses", "basic/index#responses");
const REQUESTS: SpecPages = ("basic/index#requests", "basic/index#requests");

pub(super) const CHECKS: &[Check] = &[
    Check::new("messages/jsonrpc", Group::Messages, |probe| Box::pin(check_jsonrpc(probe)))
        .must("A response says `\"jsonrpc\": \"2.0\"`.")
        .advice("Write that member, with exactly this text, into each message.")
        .spec(RESPONSES),
    Check::new("messages/id-integer", Group::Messages, |probe| Box::pin(check_id_echo(probe, 42.into())))
        .must("A response has the integer id of its request.")
        .advice("Copy the id unchanged, as a number.")
        .spec(RESPONSES),
    Check::new("messages/id-string", Group::Messages, |probe| Box::pin(check_id_echo(probe, "0042".into())))
        .must("A response has the string id of its request, even if it looks like a number.")
        .advice("Copy the id unchanged, as a string.")
        .spec(RESPONSES),
    Check::new("messages/id-large", Group::Messages, |probe| {
        Box::pin(check_id_echo(probe, 9_007_199_254_740_991_i64.into()))
    })
    .should("An id of 2^53 - 1 comes back unchanged.")
    .advice("Store ids as text or as 64-bit integers, not as 32-bit ones.")
    .spec(RESPONSES),
    Check::new("messages/one-outcome", Group::Messages, |probe| Box::pin(check_one_outcome(probe)))
        .must("A response has either `result` or `error`, never both.")
        .advice("Omit the member that does not apply, instead of writing null.")
        .spec(RESPONSES),
    Check::new("messages/result-object", Group::Messages, |probe| Box::pin(check_result_object(probe)))
        .must("A result is an object.")
        .advice("Answer with an object, even if it is empty.")
        .spec(RESPONSES),
    Check::new("messages/error-object", Group::Messages, |probe| Box::pin(check_error_object(probe)))
        .must("An error has an integer `code` and a `message` that is a string.")
        .advice("Write both members into each error.")
        .spec(RESPONSES),
    Check::new("messages/notification-unanswered", Group::Messages, |probe| {
        Box::pin(check_notification_unanswered(probe))
    })
    .must("A notification is not answered, even if it is unknown.")
    .advice("Ignore notifications that you do not know.")
    .spec(("basic/index#notifications", "basic/index#notifications")),
    Check::new("messages/concurrent", Group::Messages, |probe| Box::pin(check_concurrent(probe)))
        .must("Requests in flight at the same time each get their own response.")
        .advice("Match requests and responses by their ids alone.")
        .spec(REQUESTS),
    Check::new("messages/unknown-members", Group::Messages, |probe| Box::pin(check_unknown_members(probe)))
        .should("A request with an unknown member is answered normally.")
        .advice("Ignore members that you do not know: later revisions have more.")
        .spec(REQUESTS),
];

/// The index of `messages/id-integer`.
pub(super) const ID_INTEGER: usize = 1;

async fn ask_harmless(conn: &mut ProbeConnection, probe: &Probe) -> Outcome<Value> {
    match conn.exchange(&probe.harmless_request(7)).await?.json() {
        Some(response) => Ok(response),
        None => fail("the answer is not JSON".to_owned()),
    }
}

async fn check_jsonrpc(probe: Probe) -> Outcome {
    let version = &ask_harmless(&mut probe.connect_ready().await?, &probe).await?["jsonrpc"];
    ensure(version == "2.0", || format!("`jsonrpc` is {}", compact_json(version)))
}

/// Sends a request with this id, and fails unless the response has the same id.
async fn check_id_echo(probe: Probe, id: Value) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    conn.send(&probe.harmless_request(id.clone()).to_string()).await?;
    // Any response is the answer: waiting for one with the right id would only time out.
    let limit = probe.options.timeout;
    let answer = conn.next_response(limit).await?.ok_or_else(|| conn.wire.missing_answer(limit))?;
    let received_id = &answer.json().unwrap_or_default()["id"];
    ensure(*received_id == id, || format!("the request has the id {id}, the response {}", compact_json(received_id)))
}

async fn check_one_outcome(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    for response in [ask_harmless(&mut conn, &probe).await?, conn.ask("check/no-such-method", json!({})).await?] {
        ensure_response(response.get("result").is_some() != response.get("error").is_some(), &response)?;
    }
    Ok(())
}

async fn check_result_object(probe: Probe) -> Outcome {
    let response = ask_harmless(&mut probe.connect_ready().await?, &probe).await?;
    let result = &response["result"];
    ensure(result.is_object() || response.get("error").is_some(), || format!("the result is {}", compact_json(result)))
}

async fn check_error_object(probe: Probe) -> Outcome {
    let response = probe.ask("check/no-such-method", json!({})).await?;
    let error = &response["error"];
    if error.is_null() {
        return skip("it answers an unknown method with a result");
    }
    ensure(error["code"].is_i64() && error["message"].is_string(), || format!("the error is {}", compact_json(error)))
}

async fn check_notification_unanswered(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let message = probe.message(None, "notifications/check/unknown", json!({}));
    conn.send(&message.to_string()).await?;
    while let Some(incoming) = conn.receive(QUIET_PERIOD).await? {
        let response = incoming.json().unwrap_or_default();
        // Over HTTP a refused notification may have a body with an error without an id.
        let is_answer =
            response.get("result").is_some() || (response.get("error").is_some() && incoming.status.is_none());
        ensure_response(!is_answer, &response)?;
    }
    Ok(conn.ensure_answers_with_result().await?)
}

/// The number of concurrent requests.
const CONCURRENT_REQUESTS: i64 = 8;

async fn check_concurrent(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let messages: Vec<Value> = (100..100 + CONCURRENT_REQUESTS).map(|id| probe.harmless_request(id)).collect();
    let mut ids: Vec<Value> = Vec::new();
    if let Wire::Http(http) = &conn.wire {
        let posts = messages.iter().map(|message| async {
            http.request("POST", &http.headers_for(message), message.to_string().as_bytes(), probe.options.timeout)
                .await
        });
        for (answer, message) in join_all(posts).await.into_iter().zip(&messages) {
            let id = &answer?.last_message()["id"];
            let request_id = &message["id"];
            ensure(ids_match(id, request_id), || format!("{request_id} was answered with {}", compact_json(id)))?;
            ids.push(id.clone());
        }
    } else {
        for message in &messages {
            conn.send(&message.to_string()).await?;
        }
        for _ in &messages {
            let Some(reply) = conn.next_response(probe.options.timeout).await? else { break };
            ids.push(reply.json().unwrap_or_default()["id"].clone());
        }
    }
    // All ids have the same number of digits, so their order as texts is their numeric order.
    ids.sort_by_key(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
    let mut expected = messages.iter().map(|message| &message["id"]);
    let is_complete = ids.len() == messages.len() && ids.iter().all(|id| expected.any(|sent| ids_match(id, sent)));
    ensure(is_complete, || {
        format!("{CONCURRENT_REQUESTS} requests were sent, and these ids were answered: {}", compact_json(&json!(ids)))
    })
}

async fn check_unknown_members(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let id = conn.next_id();
    let mut message = probe.message(Some(&id), probe.harmless_method(), json!({ "check": { "unknown": [1] } }));
    message["check"] = json!({ "unknown": true });
    let response = conn.exchange(&message).await?.json().unwrap_or_default();
    ensure_response(response.get("result").is_some(), &response)
}

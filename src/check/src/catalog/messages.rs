//! Checks of the structure of messages.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{Check, Outcome, Verdict, check, compact_json};
use crate::{
    probe::{Conn, Probe, QUIET_PERIOD, ids_match},
    wire::{ProbeError, Wire, parse},
};

const RESPONSES: (&str, &str) = ("basic/index#responses", "basic/index#responses");
const REQUESTS: (&str, &str) = ("basic/index#requests", "basic/index#requests");

pub(super) const CHECKS: &[Check] = &[
    check!(
        "messages/jsonrpc",
        Messages,
        Must,
        Both,
        All,
        RESPONSES,
        "A response says `\"jsonrpc\": \"2.0\"`.",
        "Write that member, with exactly this text, into each message.",
        jsonrpc
    ),
    check!(
        "messages/id-integer",
        Messages,
        Must,
        Both,
        All,
        RESPONSES,
        "A response has the integer id of its request.",
        "Copy the id as it came, as a number.",
        id_integer
    ),
    check!(
        "messages/id-string",
        Messages,
        Must,
        Both,
        All,
        RESPONSES,
        "A response has the string id of its request, also where that looks like a number.",
        "Copy the id as it came, as a string.",
        id_string
    ),
    check!(
        "messages/id-large",
        Messages,
        Should,
        Both,
        All,
        RESPONSES,
        "An id of 2^53 - 1 comes back as it was.",
        "Keep ids as text or as 64-bit integers, and not as 32-bit ones.",
        id_large
    ),
    check!(
        "messages/one-outcome",
        Messages,
        Must,
        Both,
        All,
        RESPONSES,
        "A response has either `result` or `error`, never both.",
        "Leave the member out that does not apply, instead of writing null.",
        one_outcome
    ),
    check!(
        "messages/result-object",
        Messages,
        Must,
        Both,
        All,
        RESPONSES,
        "A result is an object.",
        "Answer with an object, an empty one where there is nothing to say.",
        result_object
    ),
    check!(
        "messages/error-object",
        Messages,
        Must,
        Both,
        All,
        RESPONSES,
        "An error has an integer `code` and a `message` that is a text.",
        "Write both members into each error.",
        error_object
    ),
    check!(
        "messages/notification-unanswered",
        Messages,
        Must,
        Both,
        All,
        ("basic/index#notifications", "basic/index#notifications"),
        "A notification is not answered, even if it is not known.",
        "Ignore notifications that you do not know.",
        notification_unanswered
    ),
    check!(
        "messages/concurrent",
        Messages,
        Must,
        Both,
        All,
        REQUESTS,
        "Requests in flight at the same time each get their own response.",
        "Tell requests apart by their ids alone.",
        concurrent
    ),
    check!(
        "messages/unknown-members",
        Messages,
        Should,
        Both,
        All,
        REQUESTS,
        "A request with a member that is not known is answered all the same.",
        "Ignore members that you do not know: later revisions have more.",
        unknown_members
    ),
];

/// The index of `messages/id-integer`.
pub(super) const ID_INTEGER: usize = 1;

/// Returns a method that every server of the revision answers with a result.
fn harmless_method(probe: &Probe) -> &'static str {
    if probe.is_modern() { "server/discover" } else { "ping" }
}

async fn ask_with_id(conn: &mut Conn, probe: &Probe, id: Value) -> Result<Value, ProbeError> {
    let message = probe.message(Some(&id), harmless_method(probe), Value::Null);
    let received = conn.exchange(&message).await?;
    received.json().ok_or_else(|| ProbeError::InvalidData("the answer is not JSON".to_owned()))
}

async fn jsonrpc(probe: Probe) -> Outcome {
    let response = ask_with_id(&mut probe.open().await?, &probe, 7.into()).await?;
    Ok(Verdict::holds_if(response["jsonrpc"] == "2.0", || {
        format!("`jsonrpc` is {}", compact_json(&response["jsonrpc"]))
    }))
}

async fn check_id_echo(probe: Probe, id: Value) -> Outcome {
    let mut conn = probe.open().await?;
    let message = probe.message(Some(&id), harmless_method(&probe), Value::Null);
    conn.send(&message.to_string()).await?;
    // Any response is the answer: waiting for one with the right id would only time out.
    let Some(received) = conn.next_answer(probe.limit()).await? else { return Err(ProbeError::Timeout(probe.limit())) };
    let response = received.json().unwrap_or_default();
    Ok(Verdict::holds_if(response["id"] == id, || {
        format!("it was asked with {id} and answers with {}", compact_json(&response["id"]))
    }))
}

async fn id_integer(probe: Probe) -> Outcome {
    check_id_echo(probe, 42.into()).await
}

async fn id_string(probe: Probe) -> Outcome {
    check_id_echo(probe, "0042".into()).await
}

async fn id_large(probe: Probe) -> Outcome {
    check_id_echo(probe, 9_007_199_254_740_991_i64.into()).await
}

async fn one_outcome(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    for response in
        [ask_with_id(&mut conn, &probe, 7.into()).await?, conn.ask("check/no-such-method", json!({})).await?]
    {
        if response.get("result").is_some() == response.get("error").is_some() {
            return Ok(Verdict::Fails(format!("it answers {}", compact_json(&response))));
        }
    }
    Ok(Verdict::Holds)
}

async fn result_object(probe: Probe) -> Outcome {
    let response = ask_with_id(&mut probe.open().await?, &probe, 7.into()).await?;
    Ok(Verdict::holds_if(response["result"].is_object() || response.get("error").is_some(), || {
        format!("the result is {}", compact_json(&response["result"]))
    }))
}

async fn error_object(probe: Probe) -> Outcome {
    let response = probe.open().await?.ask("check/no-such-method", json!({})).await?;
    let error = &response["error"];
    if error.is_null() {
        return Ok(Verdict::Skipped("it answers what does not exist with a result".to_owned()));
    }
    Ok(Verdict::holds_if(error["code"].is_i64() && error["message"].is_string(), || {
        format!("the error is {}", compact_json(error))
    }))
}

async fn notification_unanswered(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let message = probe.message(None, "notifications/check/unknown", json!({}));
    conn.send(&message.to_string()).await?;
    while let Some(received) = conn.receive(QUIET_PERIOD).await? {
        let response = received.json().unwrap_or_default();
        // Over HTTP a refused notification may have a body with an error without an id.
        let is_answer =
            response.get("result").is_some() || (response.get("error").is_some() && received.status.is_none());
        if is_answer {
            return Ok(Verdict::Fails(format!("it answers {}", compact_json(&response))));
        }
    }
    conn.ensure_alive().await?;
    Ok(Verdict::Holds)
}

/// The number of concurrent requests.
const CONCURRENT_REQUESTS: i64 = 8;

async fn concurrent(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let messages: Vec<Value> = (100..100 + CONCURRENT_REQUESTS)
        .map(|id| probe.message(Some(&id.into()), harmless_method(&probe), Value::Null))
        .collect();
    let mut ids: Vec<Value> = Vec::new();
    if let Wire::Http(http) = &conn.wire {
        let posts = messages.iter().map(|message| async {
            http.request("POST", &http.headers_for(message), message.to_string().as_bytes()).await
        });
        for (answer, message) in join_all(posts).await.into_iter().zip(&messages) {
            let texts = answer?.messages();
            let response: Value = texts.last().and_then(|text| parse(text)).unwrap_or_default();
            if !ids_match(&response["id"], &message["id"]) {
                let asked = &message["id"];
                return Ok(Verdict::Fails(format!("{asked} was answered with {}", compact_json(&response["id"]))));
            }
            ids.push(response["id"].clone());
        }
    } else {
        for message in &messages {
            conn.send(&message.to_string()).await?;
        }
        for _ in &messages {
            let Some(received) = conn.next_answer(probe.limit()).await? else { break };
            ids.push(received.json().unwrap_or_default()["id"].clone());
        }
    }
    // All ids have the same number of digits.
    ids.sort_by_key(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
    let mut expected = messages.iter().map(|message| &message["id"]);
    let is_complete = ids.len() == messages.len() && ids.iter().all(|id| expected.any(|asked| ids_match(id, asked)));
    Ok(Verdict::holds_if(is_complete, || {
        format!("{} were sent, answered were {}", CONCURRENT_REQUESTS, compact_json(&json!(ids)))
    }))
}

async fn unknown_members(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let id = conn.next_id();
    let mut message = probe.message(Some(&id), harmless_method(&probe), json!({ "check": { "unknown": [1] } }));
    message["check"] = json!({ "unknown": true });
    let response = conn.exchange(&message).await?.json().unwrap_or_default();
    Ok(Verdict::holds_if(response.get("result").is_some(), || format!("it answers {}", compact_json(&response))))
}

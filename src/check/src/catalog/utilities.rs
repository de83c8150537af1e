//! Checks of cancellation, progress, logging and subscriptions.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Check, Group, Outcome, SpecPages, compact_json, ensure, ensure_none, ensure_response, error_code, fail, skip,
    skip_unless_offered, tools,
};
use crate::{
    probe::{Probe, ProbeConnection, QUIET_PERIOD},
    wire::{ProbeError, is_response},
};

const CANCELLATION: SpecPages = ("basic/utilities/cancellation", "basic/patterns/cancellation");
const PROGRESS: SpecPages = ("basic/utilities/progress", "basic/patterns/progress");

pub(super) const CHECKS: &[Check] = &[
    Check::new("utilities/cancel-unknown", Group::Utilities, |probe| Box::pin(check_cancel_unknown(probe)))
        .should("A cancellation is ignored if it names an unknown request, a completed one, or none.")
        .advice("Ignore cancellations whose request you do not know.")
        .spec(CANCELLATION),
    Check::new("utilities/progress-token", Group::Utilities, |probe| Box::pin(check_progress_token(probe)))
        .must("Progress carries the token of its request, and is sent only for requests with a token.")
        .advice("Copy `progressToken` from the request's `_meta` with its type, and send nothing without a token.")
        .spec(PROGRESS),
    Check::new("utilities/progress-increases", Group::Utilities, |probe| Box::pin(check_progress_increases(probe)))
        .must("Progress increases with each notification.")
        .advice("Send a notification only if `progress` is greater than before.")
        .spec(PROGRESS),
    Check::new("utilities/log-level", Group::Utilities, |probe| Box::pin(check_log_level(probe)))
        .should("If logging is declared, an unknown level is answered with -32602.")
        .advice("Check the level of `logging/setLevel` against the eight of RFC 5424.")
        .handshake_spec("server/utilities/logging#error-handling"),
    Check::new("utilities/listen", Group::Utilities, |probe| Box::pin(check_listen(probe)))
        .must("If `listChanged` is declared, the first message of a subscription acknowledges it, with its id.")
        .advice("Send `notifications/subscriptions/acknowledged` first, with the request id as `subscriptionId` in `_meta`.")
        .stateless_spec("basic/patterns/subscriptions#acknowledgment"),
    Check::new("utilities/listen-filter", Group::Utilities, |probe| Box::pin(check_listen_filter(probe)))
        .must("A subscription is acknowledged only for what was requested.")
        .advice("Acknowledge the part of the client's filter that you honor, and send nothing else.")
        .stateless_spec("basic/patterns/subscriptions#notification-filter"),
    Check::new("utilities/no-requests", Group::Utilities, |probe| Box::pin(check_no_requests(probe)))
        .must("The server sends no requests of its own.")
        .advice("Ask for input with a result whose `resultType` is `input_required`.")
        .stateless_spec("basic/transports/streamable-http#receiving-messages"),
];

async fn check_cancel_unknown(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    // Not the id of `initialize`, which a client must not cancel.
    let completed_id = conn.next_id();
    conn.exchange(&probe.harmless_request(completed_id.clone())).await?;
    for params in [json!({ "requestId": "check-never-was" }), json!({ "requestId": completed_id }), json!({})] {
        let message = probe.message(None, "notifications/cancelled", params);
        conn.send(&message.to_string()).await?;
        while let Some(incoming) = conn.receive(QUIET_PERIOD).await? {
            let message = incoming.json().unwrap_or_default();
            // Over HTTP a refused notification may have a body with an error, which is not an answer to it.
            ensure_response(!is_response(&message) || incoming.status.is_some_and(|status| status >= 400), &message)?;
        }
    }
    Ok(conn.ensure_answers_with_result().await?)
}

/// Calls a tool and returns all messages up to its response.
async fn gather_call(conn: &mut ProbeConnection, probe: &Probe, params: Value) -> Outcome<Vec<Value>> {
    let id = conn.next_id();
    Ok(conn.gather(&probe.message(Some(&id), "tools/call", params), probe.options.timeout).await?)
}

/// Fails if the messages of a call do not include its response, because they may then be incomplete.
fn ensure_call_answered(tool: &Value, messages: &[Value]) -> Outcome {
    ensure(messages.iter().any(is_response), || format!("the call of {} gets no answer", tools::quote_name(tool)))
}

/// Calls tools with a progress token, and returns each token with the received progress. Skips the check if no tool reports
/// progress.
async fn collect_progress(conn: &mut ProbeConnection, probe: &Probe) -> Outcome<Vec<(Value, Vec<Value>)>> {
    let mut all = Vec::new();
    for (index, (_, mut params)) in tools::possible_calls(probe)?.into_iter().enumerate() {
        let token = json!(format!("check-{index}"));
        params["_meta"] = json!({ "progressToken": token });
        let messages = gather_call(conn, probe, params).await?;
        all.push((token, messages.into_iter().filter(is_progress).collect::<Vec<_>>()));
    }
    if all.iter().all(|(_, progress)| progress.is_empty()) { skip("no tool reported progress") } else { Ok(all) }
}

fn is_progress(message: &Value) -> bool {
    message["method"] == "notifications/progress"
}

async fn check_progress_token(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    // Calls without a token come first, because the server must not send progress for them.
    for (tool, params) in tools::possible_calls(&probe)? {
        let messages = gather_call(&mut conn, &probe, params).await?;
        ensure_none(messages.iter().find(|message| is_progress(message)), |message| {
            format!("the call of {} had no token, and it got {}", tools::quote_name(tool), compact_json(message))
        })?;
        ensure_call_answered(tool, &messages)?;
    }
    for (token, progress) in collect_progress(&mut conn, &probe).await? {
        let wrong = progress.iter().find(|message| message["params"]["progressToken"] != token);
        ensure_none(wrong, |message| format!("the token was {token}, and the call got {}", compact_json(message)))?;
    }
    Ok(())
}

async fn check_progress_increases(probe: Probe) -> Outcome {
    for (_, progress) in collect_progress(&mut probe.connect_ready().await?, &probe).await? {
        let values: Vec<Option<f64>> = progress.iter().map(|message| message["params"]["progress"].as_f64()).collect();
        let is_increasing = !values.contains(&None) && values.windows(2).all(|pair| pair.first() < pair.last());
        ensure(is_increasing, || format!("one call reported {}", compact_json(&json!(values))))?;
    }
    Ok(())
}

async fn check_log_level(probe: Probe) -> Outcome {
    skip_unless_offered(&probe, "logging")?;
    let mut conn = probe.connect_ready().await?;
    let known_level = conn.ask("logging/setLevel", json!({ "level": "emergency" })).await?;
    let unknown_level = conn.ask("logging/setLevel", json!({ "level": "check" })).await?;
    ensure(known_level.get("result").is_some() && error_code(&unknown_level) == Some(-32602), || {
        format!(
            "\"emergency\" is answered with {}, \"check\" with {}",
            compact_json(&known_level),
            compact_json(&unknown_level)
        )
    })
}

/// Returns the kinds of notifications that the server declares, by their names in `subscriptions/listen`.
fn declared_notifications(probe: &Probe) -> impl Iterator<Item = &'static str> {
    let all = &probe.server_info.handshake_result["capabilities"];
    [("tools", "toolsListChanged"), ("prompts", "promptsListChanged"), ("resources", "resourcesListChanged")]
        .into_iter()
        .filter_map(|(capability, name)| (all[capability]["listChanged"] == true).then_some(name))
}

/// The time limit for the first attempt to read a subscription. The second attempt has the limit for one answer.
const FIRST_LISTEN_LIMIT: Duration = Duration::from_secs(1);
/// The key in `_meta` that holds the id of a subscription.
const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";
const SUBSCRIPTION_ID: &str = "check-listen";

/// Subscribes to one kind of notification and returns its name with the first messages. Skips the check if the server
/// declares none.
async fn open_subscription(probe: &Probe) -> Outcome<(&'static str, Vec<Value>)> {
    let Some(kind) = declared_notifications(probe).next() else { return skip("it declares no `listChanged`") };
    let params = json!({ "notifications": { kind: true } });
    let message = probe.message(Some(&SUBSCRIPTION_ID.into()), "subscriptions/listen", params);
    for limit in [FIRST_LISTEN_LIMIT.min(probe.options.timeout), probe.options.timeout] {
        match probe.connect_ready().await?.gather(&message, limit).await {
            Err(ProbeError::Timeout(_) | ProbeError::NotRead(_)) => {}
            Ok(messages) if messages.is_empty() => {}
            messages => return Ok((kind, messages?)),
        }
    }
    Ok((kind, Vec::new()))
}

async fn check_listen(probe: Probe) -> Outcome {
    let (_, messages) = open_subscription(&probe).await?;
    let first = messages
        .iter()
        .find(|message| message["params"]["_meta"].get(SUBSCRIPTION_KEY).is_some() || message["id"] == SUBSCRIPTION_ID);
    let Some(first) = first else { return fail("the subscription gets no message".to_owned()) };
    let is_acknowledgment = first["method"] == "notifications/subscriptions/acknowledged"
        && first["params"]["_meta"][SUBSCRIPTION_KEY] == SUBSCRIPTION_ID
        && first["params"]["notifications"].is_object();
    ensure(is_acknowledgment, || format!("the first message is {}", compact_json(first)))
}

async fn check_listen_filter(probe: Probe) -> Outcome {
    let (kind, messages) = open_subscription(&probe).await?;
    let acknowledged = messages.iter().find(|message| message["method"] == "notifications/subscriptions/acknowledged");
    let Some(filter) = acknowledged.and_then(|message| message["params"]["notifications"].as_object()) else {
        return skip("it acknowledges no filter");
    };
    let unwanted = filter.iter().find(|(name, value)| {
        name.as_str() != kind && **value != false && value.as_array().is_none_or(|all| !all.is_empty())
    });
    ensure_none(unwanted, |(name, _)| format!("{kind} was requested, and it adds {name}"))
}

async fn check_no_requests(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    for (tool, params) in tools::possible_calls(&probe)? {
        let messages = gather_call(&mut conn, &probe, params).await?;
        let request = messages.iter().find(|message| message.get("method").is_some() && message.get("id").is_some());
        ensure_none(request, |request| format!("it sends the request {}", compact_json(request)))?;
        ensure_call_answered(tool, &messages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_declared_notifications_are_subscribed() {
        let target = crate::Target::Command { program: "x".into(), arguments: Vec::new(), env: Vec::new(), cwd: None };
        let mut probe = Probe::new(&target, &crate::Options::default());
        assert_eq!(declared_notifications(&probe).next(), None);
        let handshake_result =
            json!({ "capabilities": { "prompts": { "listChanged": true }, "tools": { "listChanged": false } } });
        probe.server_info = std::sync::Arc::new(crate::probe::ServerInfo { handshake_result, ..Default::default() });
        assert!(declared_notifications(&probe).eq(["promptsListChanged"]));
    }
}

//! Checks of cancellation, progress, logging and subscriptions.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Check, Outcome, Verdict, check, compact_json, error_code, tools};
use crate::{
    probe::{Conn, Probe, QUIET_PERIOD},
    wire::ProbeError,
};

const CANCELLATION: (&str, &str) = ("basic/utilities/cancellation", "basic/patterns/cancellation");
const PROGRESS: (&str, &str) = ("basic/utilities/progress", "basic/patterns/progress");
const LISTEN: (&str, &str) = ("server/resources#subscriptions", "basic/patterns/subscriptions#acknowledgment");

pub(super) const CHECKS: &[Check] = &[
    check!(
        "utilities/cancel-unknown",
        Utilities,
        Should,
        Both,
        All,
        CANCELLATION,
        "A cancellation of nothing is ignored: of a request that never was, of one that is over, of none at all.",
        "Ignore cancellations whose request you do not know.",
        cancel_unknown
    ),
    check!(
        "utilities/progress-token",
        Utilities,
        Must,
        Both,
        All,
        PROGRESS,
        "Progress is told with the token that the request gave, and only for a request that gave one.",
        "Copy `progressToken` from the request's `_meta`, in value and type; tell nothing where there is none.",
        progress_token
    ),
    check!(
        "utilities/progress-increases",
        Utilities,
        Must,
        Both,
        All,
        PROGRESS,
        "Progress increases with each notification.",
        "Send a notification only where `progress` is greater than the last.",
        progress_increases
    ),
    check!(
        "utilities/log-level",
        Utilities,
        Should,
        Legacy,
        All,
        ("server/utilities/logging#error-handling", "server/utilities/logging"),
        "Where logging is declared, a level that does not exist is answered with -32602.",
        "Check the level of `logging/setLevel` against the eight of RFC 5424.",
        log_level
    ),
    check!(
        "utilities/listen",
        Utilities,
        Must,
        Modern,
        All,
        LISTEN,
        "Where changes are told, `subscriptions/listen` is acknowledged before anything else is said on it, with its id.",
        "Send `notifications/subscriptions/acknowledged` first, with the request's id as `subscriptionId` in `_meta`.",
        listen
    ),
    check!(
        "utilities/listen-filter",
        Utilities,
        Must,
        Modern,
        All,
        ("server/resources#subscriptions", "basic/patterns/subscriptions#notification-filter"),
        "A subscription is acknowledged for nothing that was not asked for.",
        "Acknowledge the part of the client's filter that you honor, and send nothing else.",
        listen_filter
    ),
    check!(
        "utilities/no-requests",
        Utilities,
        Must,
        Modern,
        All,
        ("basic/index", "basic/transports/streamable-http#receiving-messages"),
        "The server sends no requests of its own.",
        "Ask for input with a result whose `resultType` is `input_required`.",
        no_requests
    ),
];

async fn cancel_unknown(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    conn.ensure_alive().await?;
    for params in [json!({ "requestId": "check-never-was" }), json!({ "requestId": 2 }), json!({})] {
        let message = probe.message(None, "notifications/cancelled", params);
        conn.send(&message.to_string()).await?;
        while let Some(received) = conn.receive(QUIET_PERIOD).await? {
            let said = received.json().unwrap_or_default();
            // A refused HTTP body is not an answer to the notification.
            if (said.get("result").is_some() || said.get("error").is_some())
                && received.status.is_none_or(|status| status < 400)
            {
                return Ok(Verdict::Fails(format!("it answers {}", compact_json(&said))));
            }
        }
    }
    conn.ensure_alive().await?;
    Ok(Verdict::Holds)
}

/// Calls tools with a progress token, and returns each token with the received progress.
async fn collect_progress(conn: &mut Conn, probe: &Probe) -> Result<Vec<(Value, Vec<Value>)>, ProbeError> {
    let mut all = Vec::new();
    for (at, (tool, arguments)) in tools::safe_calls(probe).into_iter().enumerate() {
        let token = json!(format!("check-{at}"));
        let id = conn.next_id();
        let params =
            json!({ "name": tool["name"], "arguments": arguments, "_meta": { "progressToken": token.clone() } });
        let message = probe.message(Some(&id), "tools/call", params);
        let came = conn.gather(&message, probe.limit()).await?;
        all.push((token, came.into_iter().filter(is_progress).collect()));
    }
    Ok(all)
}

fn is_progress(message: &Value) -> bool {
    message["method"] == "notifications/progress"
}

fn skip_without_progress(all: &[(Value, Vec<Value>)]) -> Option<Verdict> {
    if all.is_empty() {
        return Some(tools::skip_without_calls());
    }
    all.iter().all(|(_, told)| told.is_empty()).then(|| Verdict::Skipped("no tool told of progress".to_owned()))
}

async fn progress_token(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    // First without a token: no progress may be sent.
    for (tool, arguments) in tools::safe_calls(&probe) {
        let id = conn.next_id();
        let params = json!({ "name": tool["name"], "arguments": arguments });
        let came = conn.gather(&probe.message(Some(&id), "tools/call", params), probe.limit()).await?;
        if let Some(message) = came.iter().find(|message| is_progress(message)) {
            return Ok(Verdict::Fails(format!("{} had no token, and it says {}", tool["name"], compact_json(message))));
        }
    }
    let all = collect_progress(&mut conn, &probe).await?;
    if let Some(verdict) = skip_without_progress(&all) {
        return Ok(verdict);
    }
    for (token, told) in &all {
        if let Some(message) = told.iter().find(|message| message["params"]["progressToken"] != *token) {
            return Ok(Verdict::Fails(format!("the token was {token}, and it says {}", compact_json(message))));
        }
    }
    Ok(Verdict::Holds)
}

async fn progress_increases(probe: Probe) -> Outcome {
    let all = collect_progress(&mut probe.open().await?, &probe).await?;
    if let Some(verdict) = skip_without_progress(&all) {
        return Ok(verdict);
    }
    for (_, told) in &all {
        let values: Vec<Option<f64>> = told.iter().map(|message| message["params"]["progress"].as_f64()).collect();
        if values.contains(&None) || !values.windows(2).all(|pair| pair.first() < pair.last()) {
            return Ok(Verdict::Fails(format!("one call told {values:?}")));
        }
    }
    Ok(Verdict::Holds)
}

async fn log_level(probe: Probe) -> Outcome {
    if !probe.facts.offers("logging") {
        return Ok(Verdict::Skipped("it does not declare logging".to_owned()));
    }
    let mut conn = probe.open().await?;
    let known = conn.ask("logging/setLevel", json!({ "level": "emergency" })).await?;
    let unknown = conn.ask("logging/setLevel", json!({ "level": "check" })).await?;
    Ok(Verdict::holds_if(known.get("result").is_some() && error_code(&unknown) == Some(-32602), || {
        format!("\"emergency\" is answered with {}, \"check\" with {}", compact_json(&known), compact_json(&unknown))
    }))
}

/// Returns the changes that the server can announce, by their names in `subscriptions/listen`.
fn declared_changes(probe: &Probe) -> Vec<&'static str> {
    let all = &probe.facts.opening["capabilities"];
    [("tools", "toolsListChanged"), ("prompts", "promptsListChanged"), ("resources", "resourcesListChanged")]
        .into_iter()
        .filter_map(|(capability, name)| (all[capability]["listChanged"] == true).then_some(name))
        .collect()
}

/// How long a subscription is read.
const LISTEN_TIME: Duration = Duration::from_secs(1);

/// Subscribes to one kind of change and returns the first messages; `None` if the server announces no changes.
async fn open_subscription(probe: &Probe) -> Result<Option<(&'static str, Value, Vec<Value>)>, ProbeError> {
    let Some(wanted) = declared_changes(probe).first().copied() else { return Ok(None) };
    let mut conn = probe.open().await?;
    let id = json!("check-listen");
    let message = probe.message(Some(&id), "subscriptions/listen", json!({ "notifications": { wanted: true } }));
    let came = match conn.gather(&message, LISTEN_TIME.min(probe.limit())).await {
        Err(ProbeError::Timeout(_)) => Vec::new(),
        came => came?,
    };
    Ok(Some((wanted, id, came)))
}

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

async fn listen(probe: Probe) -> Outcome {
    let Some((_, id, came)) = open_subscription(&probe).await? else {
        return Ok(Verdict::Skipped("it declares no `listChanged`".to_owned()));
    };
    let first =
        came.iter().find(|message| message["params"]["_meta"].get(SUBSCRIPTION).is_some() || message["id"] == id);
    let Some(first) = first else { return Ok(Verdict::Fails("nothing comes on the subscription".to_owned())) };
    let acknowledged = first["method"] == "notifications/subscriptions/acknowledged"
        && first["params"]["_meta"][SUBSCRIPTION] == id
        && first["params"]["notifications"].is_object();
    Ok(Verdict::holds_if(acknowledged, || format!("first comes {}", compact_json(first))))
}

async fn listen_filter(probe: Probe) -> Outcome {
    let Some((wanted, _, came)) = open_subscription(&probe).await? else {
        return Ok(Verdict::Skipped("it declares no `listChanged`".to_owned()));
    };
    let acknowledged = came.iter().find(|message| message["method"] == "notifications/subscriptions/acknowledged");
    let Some(filter) = acknowledged.and_then(|message| message["params"]["notifications"].as_object()) else {
        return Ok(Verdict::Skipped("it acknowledges nothing".to_owned()));
    };
    let more = filter.iter().find(|(name, value)| {
        name.as_str() != wanted && **value != false && value.as_array().is_none_or(|all| !all.is_empty())
    });
    Ok(more.map_or(Verdict::Holds, |(name, _)| Verdict::Fails(format!("{wanted} was asked for, and it adds {name}"))))
}

async fn no_requests(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    for (tool, arguments) in tools::safe_calls(&probe) {
        let id = conn.next_id();
        let params = json!({ "name": tool["name"], "arguments": arguments });
        let came = conn.gather(&probe.message(Some(&id), "tools/call", params), probe.limit()).await?;
        let request = came.iter().find(|message| message.get("method").is_some() && message.get("id").is_some());
        if let Some(request) = request {
            return Ok(Verdict::Fails(format!("it asks {}", compact_json(request))));
        }
    }
    Ok(if tools::safe_calls(&probe).is_empty() { tools::skip_without_calls() } else { Verdict::Holds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_declared_changes_are_subscribed() {
        let target = crate::Target::Command { program: "x".into(), arguments: Vec::new(), env: Vec::new(), cwd: None };
        let mut probe = Probe::new(&target, &crate::Options::default());
        assert!(declared_changes(&probe).is_empty());
        let opening =
            json!({ "capabilities": { "prompts": { "listChanged": true }, "tools": { "listChanged": false } } });
        probe.facts = std::sync::Arc::new(crate::probe::Facts { opening, ..Default::default() });
        assert_eq!(declared_changes(&probe), ["promptsListChanged"]);
    }
}

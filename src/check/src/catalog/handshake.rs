//! Checks of the handshake in revisions up to 2025-11-25.

use serde_json::{Value, json};

use super::{
    Check, Group, Outcome, compact_json, ensure, ensure_method_answer, ensure_none, ensure_response, error_code,
    offered_lists,
};
use crate::{
    probe::{Probe, QUIET_PERIOD, initialize_request},
    wire::ProbeError,
};

const INITIALIZATION: &str = "basic/lifecycle#initialization";
const NEGOTIATION: &str = "basic/lifecycle#version-negotiation";

pub(super) const CHECKS: &[Check] = &[
    Check::new("handshake/version-format", Group::Handshake, |probe| Box::pin(check_version_format(probe)))
        .must("The version in the answer to `initialize` is a date, `YYYY-MM-DD`.")
        .advice("Name a revision of the specification.")
        .handshake_spec(NEGOTIATION),
    Check::new("handshake/known-version", Group::Handshake, |probe| Box::pin(check_known_version(probe)))
        .must("The server agrees to a requested version that it supports.")
        .advice("Answer with the client's version if you support it.")
        .handshake_spec(NEGOTIATION),
    Check::new("handshake/unknown-version", Group::Handshake, |probe| Box::pin(check_unknown_version(probe)))
        .must("An unknown version is answered with one that the server supports, or with an error.")
        .advice("Never repeat a version that you do not support.")
        .handshake_spec(NEGOTIATION),
    Check::new("handshake/server-info", Group::Handshake, |probe| Box::pin(check_server_info(probe)))
        .must("`serverInfo` has a name and a version.")
        .advice("Identify your server in the answer to `initialize`.")
        .handshake_spec(INITIALIZATION),
    Check::new("handshake/capabilities", Group::Handshake, |probe| Box::pin(check_capabilities(probe)))
        .must("`capabilities` is an object whose values are objects.")
        .advice("Answer with an object of objects, which may be empty.")
        .handshake_spec(INITIALIZATION),
    Check::new("handshake/capabilities-answer", Group::Handshake, |probe| Box::pin(check_capabilities_answer(probe)))
        .must("The methods of each declared capability are answered with a result.")
        .advice("Declare only what you implement.")
        .handshake_spec("basic/lifecycle#capability-negotiation"),
    Check::new("handshake/ping", Group::Handshake, |probe| Box::pin(check_ping(probe)))
        .must("A ping is answered with an empty result.")
        .advice("Answer `ping` with `{}`.")
        .handshake_spec("basic/utilities/ping"),
    Check::new("handshake/initialize-without-params", Group::Handshake, |probe| {
        Box::pin(check_initialize_without_params(probe))
    })
    .should("`initialize` without its parameters is answered with an error.")
    .advice("Validate the parameters of `initialize`, and answer with -32602.")
    .handshake_spec(INITIALIZATION),
    Check::new("handshake/early-request", Group::Handshake, |probe| Box::pin(check_early_request(probe)))
        .should("A request before `initialize` is answered, possibly with an error, and the handshake can continue.")
        .advice("Answer with an error until the handshake is complete, and keep the connection open.")
        .handshake_spec(INITIALIZATION),
    Check::new("handshake/early-server-request", Group::Handshake, |probe| Box::pin(check_early_server_request(probe)))
        .should("Before `notifications/initialized` the server sends no requests but pings.")
        .advice("Wait for `notifications/initialized` before you send requests.")
        .handshake_spec(INITIALIZATION),
];

/// Fails and quotes the member of the server's handshake unless the condition holds.
fn ensure_handshake(holds: bool, member: &str, value: &Value) -> Outcome {
    ensure(holds, || format!("`{member}` is {}", compact_json(value)))
}

async fn check_version_format(probe: Probe) -> Outcome {
    let version = &probe.server_info.handshake_result["protocolVersion"];
    let is_date = version.as_str().is_some_and(|text| {
        let parts: Vec<&str> = text.split('-').collect();
        parts.iter().map(|part| part.len()).eq([4, 2, 2])
            && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_digit()))
    });
    ensure_handshake(is_date, "protocolVersion", version)
}

async fn check_known_version(probe: Probe) -> Outcome {
    let result = probe.connect_without_handshake().await?.initialize(&probe.revision).await?;
    let version = &result["protocolVersion"];
    ensure(version.as_str() == Some(&*probe.revision), || {
        format!("the client asked for {}, and it answers {}", probe.revision, compact_json(version))
    })
}

async fn check_unknown_version(probe: Probe) -> Outcome {
    let mut conn = probe.connect_without_handshake().await?;
    let response = conn.exchange(&initialize_request(&1.into(), "1999-12-31")).await?.json().unwrap_or_default();
    let holds = match response["result"]["protocolVersion"].as_str() {
        Some(version) => version != "1999-12-31" && version.len() == 10,
        None => response.get("error").is_some(),
    };
    ensure_response(holds, &response)
}

async fn check_server_info(probe: Probe) -> Outcome {
    let info = &probe.server_info.handshake_result["serverInfo"];
    ensure_handshake(info["name"].is_string() && info["version"].is_string(), "serverInfo", info)
}

async fn check_capabilities(probe: Probe) -> Outcome {
    let all = &probe.server_info.handshake_result["capabilities"];
    let is_valid = all.as_object().is_some_and(|all| all.values().all(Value::is_object));
    ensure_handshake(is_valid, "capabilities", all)
}

async fn check_capabilities_answer(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let templates = probe.server_info.offers("resources").then_some("resources/templates/list");
    for method in offered_lists(&probe).chain(templates) {
        let response = conn.ask(method, json!({})).await?;
        // Not all servers with resources have templates.
        let is_missing = templates == Some(method) && error_code(&response) == Some(-32601);
        ensure_method_answer(response.get("result").is_some() || is_missing, method, &response)?;
    }
    Ok(())
}

async fn check_ping(probe: Probe) -> Outcome {
    let response = probe.ask("ping", Value::Null).await?;
    let is_empty = response["result"].as_object().is_some_and(|result| result.keys().all(|key| key == "_meta"));
    ensure_response(is_empty, &response)
}

async fn check_initialize_without_params(probe: Probe) -> Outcome {
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize" });
    let reply = probe.connect_without_handshake().await?.exchange(&message).await?;
    ensure_response(reply.is_refusal(), &reply.json().unwrap_or_default())
}

async fn check_early_request(probe: Probe) -> Outcome {
    let message = json!({ "jsonrpc": "2.0", "id": "early", "method": "tools/list" });
    let mut conn = probe.connect_without_handshake().await?;
    match conn.exchange(&message).await {
        // A server that closes the connection has refused the request.
        Err(ProbeError::Closed) if !probe.is_child() => conn = probe.connect_without_handshake().await?,
        reply => drop(reply?),
    }
    conn.initialize(&probe.revision).await?;
    Ok(())
}

async fn check_early_server_request(probe: Probe) -> Outcome {
    let mut conn = probe.connect_without_handshake().await?;
    let mut message = initialize_request(&1.into(), &probe.revision);
    message["params"]["capabilities"] = json!({ "roots": {} });
    let is_request = |message: &Value| {
        message.get("id").is_some() && message["method"].as_str().is_some_and(|method| method != "ping")
    };
    let mut request = conn.gather(&message, probe.options.timeout).await?.into_iter().find(is_request);
    // Other messages are skipped, because only requests violate the requirement.
    while request.is_none()
        && let Some(incoming) = conn.receive(QUIET_PERIOD).await?
    {
        request = incoming.json().filter(is_request);
    }
    ensure_none(request, |request| format!("it sends the request {}", compact_json(&request)))
}

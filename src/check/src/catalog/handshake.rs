//! Checks of the handshake in revisions up to 2025-11-25.

use serde_json::{Value, json};

use super::{Check, Outcome, Verdict, check, compact_json, error_code};
use crate::{
    LEGACY, Target,
    probe::{Probe, QUIET_PERIOD},
    wire::ProbeError,
};

const INITIALIZATION: (&str, &str) = ("basic/lifecycle#initialization", "basic/lifecycle");
const NEGOTIATION: (&str, &str) = ("basic/lifecycle#version-negotiation", "basic/lifecycle");

pub(super) const CHECKS: &[Check] = &[
    check!(
        "handshake/version-format",
        Handshake,
        Must,
        Legacy,
        All,
        ("basic/lifecycle#version-negotiation", "basic/lifecycle"),
        "The version in the answer to `initialize` is a date, `YYYY-MM-DD`.",
        "Name a revision of the specification.",
        version_format
    ),
    check!(
        "handshake/known-version",
        Handshake,
        Must,
        Legacy,
        All,
        NEGOTIATION,
        "A version that the server supports comes back as it was asked for.",
        "Answer with the client's version where you support it.",
        known_version
    ),
    check!(
        "handshake/unknown-version",
        Handshake,
        Must,
        Legacy,
        All,
        NEGOTIATION,
        "A version that nobody knows is answered with one that the server supports, or with an error.",
        "Never repeat a version that you do not support.",
        unknown_version
    ),
    check!(
        "handshake/server-info",
        Handshake,
        Must,
        Legacy,
        All,
        INITIALIZATION,
        "`serverInfo` has a name and a version.",
        "Say who you are in the answer to `initialize`.",
        server_info
    ),
    check!(
        "handshake/capabilities",
        Handshake,
        Must,
        Legacy,
        All,
        INITIALIZATION,
        "`capabilities` is an object, and each capability in it is one.",
        "Answer with an object of objects, an empty one for none.",
        capabilities
    ),
    check!(
        "handshake/capabilities-answer",
        Handshake,
        Must,
        Legacy,
        All,
        ("basic/lifecycle#capability-negotiation", "basic/lifecycle"),
        "What is declared answers.",
        "Declare only what is there.",
        capabilities_answer
    ),
    check!(
        "handshake/ping",
        Handshake,
        Must,
        Legacy,
        All,
        ("basic/utilities/ping", "basic/utilities/ping"),
        "A ping is answered with an empty result.",
        "Answer `ping` with `{}`.",
        ping
    ),
    check!(
        "handshake/initialize-without-params",
        Handshake,
        Should,
        Legacy,
        All,
        INITIALIZATION,
        "`initialize` without its parameters is answered with an error.",
        "Check the parameters of `initialize`; -32602 is the code.",
        initialize_without_params
    ),
    check!(
        "handshake/early-request",
        Handshake,
        Should,
        Legacy,
        All,
        INITIALIZATION,
        "A request before `initialize` is answered, with an error or not, and the handshake goes on after it.",
        "Answer with an error until the handshake is over, and stay on the connection.",
        early_request
    ),
    check!(
        "handshake/early-server-request",
        Handshake,
        Should,
        Legacy,
        All,
        INITIALIZATION,
        "Before `notifications/initialized` the server asks nothing but pings.",
        "Wait for `notifications/initialized` with requests of your own.",
        early_server_request
    ),
];

async fn version_format(probe: Probe) -> Outcome {
    let version = &probe.facts.opening["protocolVersion"];
    let is_date = version.as_str().is_some_and(|text| {
        let parts: Vec<&str> = text.split('-').collect();
        parts.iter().map(|part| part.len()).eq([4, 2, 2])
            && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_digit()))
    });
    Ok(Verdict::holds_if(is_date, || format!("it says {}", compact_json(version))))
}

async fn known_version(probe: Probe) -> Outcome {
    let result = probe.connect().await?.initialize(&probe.revision).await?;
    let said = &result["protocolVersion"];
    Ok(Verdict::holds_if(said.as_str() == Some(&*probe.revision), || {
        format!("it was asked for {} and says {}", probe.revision, compact_json(said))
    }))
}

async fn unknown_version(probe: Probe) -> Outcome {
    let mut conn = probe.connect().await?;
    let params =
        json!({ "protocolVersion": "1999-12-31", "capabilities": {}, "clientInfo": crate::probe::client_info() });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let response = conn.exchange(&message).await?.json().unwrap_or_default();
    let said = response["result"]["protocolVersion"].as_str();
    let holds = match said {
        Some(version) => LEGACY.contains(&version) || version != "1999-12-31" && version.len() == 10,
        None => response.get("error").is_some(),
    };
    Ok(Verdict::holds_if(holds, || format!("it answers {}", compact_json(&response))))
}

async fn server_info(probe: Probe) -> Outcome {
    let info = &probe.facts.opening["serverInfo"];
    let said = |name: &str| info[name].is_string();
    Ok(Verdict::holds_if(said("name") && said("version"), || format!("it says {}", compact_json(info))))
}

async fn capabilities(probe: Probe) -> Outcome {
    let all = &probe.facts.opening["capabilities"];
    let holds = all.as_object().is_some_and(|all| all.values().all(Value::is_object));
    Ok(Verdict::holds_if(holds, || format!("it says {}", compact_json(all))))
}

async fn capabilities_answer(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    for (capability, method) in [
        ("tools", "tools/list"),
        ("resources", "resources/list"),
        ("resources", "resources/templates/list"),
        ("prompts", "prompts/list"),
    ] {
        if probe.facts.offers(capability) {
            let response = conn.ask(method, json!({})).await?;
            // Not all servers with resources have templates.
            let missing = method == "resources/templates/list" && error_code(&response) == Some(-32601);
            if response.get("result").is_none() && !missing {
                return Ok(Verdict::Fails(format!("{method} is answered with {}", compact_json(&response))));
            }
        }
    }
    Ok(Verdict::Holds)
}

async fn ping(probe: Probe) -> Outcome {
    let response = probe.open().await?.ask("ping", Value::Null).await?;
    let empty = response["result"].as_object().is_some_and(|result| result.keys().all(|key| key == "_meta"));
    Ok(Verdict::holds_if(empty, || format!("it answers {}", compact_json(&response))))
}

async fn initialize_without_params(probe: Probe) -> Outcome {
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize" });
    let received = probe.connect().await?.exchange(&message).await?;
    let response = received.json().unwrap_or_default();
    let refused = response.get("error").is_some() || received.status.is_some_and(|status| status >= 400);
    Ok(Verdict::holds_if(refused, || format!("it answers {}", compact_json(&response))))
}

async fn early_request(probe: Probe) -> Outcome {
    let message = json!({ "jsonrpc": "2.0", "id": "early", "method": "tools/list" });
    let mut conn = probe.connect().await?;
    match conn.exchange(&message).await {
        // A server that closes the connection has refused the request.
        Err(ProbeError::Closed) if !matches!(probe.target, Target::Command { .. }) => conn = probe.connect().await?,
        received => drop(received?),
    }
    conn.initialize(&probe.revision).await?;
    Ok(Verdict::Holds)
}

async fn early_server_request(probe: Probe) -> Outcome {
    let mut conn = probe.connect().await?;
    let params = json!({ "protocolVersion": &*probe.revision, "capabilities": { "roots": {} }, "clientInfo": crate::probe::client_info() });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let asks = |message: &Value| {
        message.get("id").is_some() && message["method"].as_str().is_some_and(|method| method != "ping")
    };
    let mut asked = conn.gather(&message, probe.limit()).await?.into_iter().find(asks);
    // One message at a time, because only requests matter.
    while asked.is_none()
        && let Some(received) = conn.receive(QUIET_PERIOD).await?
    {
        asked = received.json().filter(asks);
    }
    Ok(asked.map_or(Verdict::Holds, |asked| Verdict::Fails(format!("it asks {}", compact_json(&asked)))))
}

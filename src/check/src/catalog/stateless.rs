//! Checks of the metadata in requests and results of the stateless revision.

use serde_json::{Value, json};

use super::{Check, Outcome, Verdict, check, compact_json, error_code};
use crate::{MODERN, probe::Probe};

pub(super) const CHECKS: &[Check] = &[
    check!(
        "stateless/discover",
        Stateless,
        Must,
        Modern,
        All,
        ("server/discover", "server/discover"),
        "`server/discover` names the supported versions and the capabilities.",
        "Answer with `supportedVersions`, a list of dates, and `capabilities`, an object.",
        discover
    ),
    check!(
        "stateless/server-info",
        Stateless,
        Should,
        Modern,
        All,
        ("basic/index", "basic/index#meta"),
        "Results say in `_meta` which server answers.",
        "Write `io.modelcontextprotocol/serverInfo` with name and version into the `_meta` of results.",
        server_info
    ),
    check!(
        "stateless/unsupported-version",
        Stateless,
        Must,
        Modern,
        All,
        ("basic/versioning", "basic/versioning"),
        "A version that the server does not have is answered with -32022 and those that it has.",
        "Answer with `data: {supported: […], requested: …}`.",
        unsupported_version
    ),
    check!(
        "stateless/result-type",
        Stateless,
        Must,
        Modern,
        All,
        ("basic/index", "basic/index#responses"),
        "Each result has a `resultType`.",
        "Write `\"resultType\": \"complete\"` into each result.",
        result_type
    ),
    check!(
        "stateless/envelope",
        Stateless,
        Must,
        Modern,
        Http,
        ("basic/index", "basic/index#meta"),
        "A request that does not say its version is refused.",
        "Answer with -32602 where `_meta` lacks the protocol version.",
        missing_version
    ),
    check!(
        "stateless/client-capabilities",
        Stateless,
        Must,
        Modern,
        All,
        ("basic/index", "basic/index#meta"),
        "A request that does not say what its client can do is answered with -32602.",
        "Refuse requests whose `_meta` lacks `io.modelcontextprotocol/clientCapabilities`.",
        missing_capabilities
    ),
    check!(
        "stateless/first-message",
        Stateless,
        Must,
        Modern,
        All,
        ("basic/index", "basic/index#statelessness"),
        "Any request may be the first on a connection.",
        "Take what you need to know from the request itself, and not from those before it.",
        first_message
    ),
    check!(
        "stateless/removed-methods",
        Stateless,
        Should,
        Modern,
        All,
        ("basic/versioning", "changelog"),
        "Methods that the revision does not have any more are answered with -32601.",
        "Do not serve `ping`, `logging/setLevel` or `resources/subscribe` to a request of this revision.",
        removed
    ),
    check!(
        "stateless/caching",
        Stateless,
        Must,
        Modern,
        All,
        ("server/utilities/caching", "server/utilities/caching"),
        "Lists, contents and what was discovered say for how long and for whom they may be kept.",
        "Write `ttlMs`, a number from 0, and `cacheScope`, `public` or `private`, into these results.",
        caching
    ),
];

async fn discover(probe: Probe) -> Outcome {
    let result = &probe.facts.opening;
    let dates = result["supportedVersions"].as_array().is_some_and(|all| {
        !all.is_empty() && all.iter().all(|version| version.as_str().is_some_and(|text| text.len() == 10))
    });
    Ok(Verdict::holds_if(dates && result["capabilities"].is_object(), || format!("it says {}", compact_json(result))))
}

async fn server_info(probe: Probe) -> Outcome {
    let info = &probe.facts.opening["_meta"]["io.modelcontextprotocol/serverInfo"];
    Ok(Verdict::holds_if(info["name"].is_string() && info["version"].is_string(), || {
        format!("it says {}", compact_json(info))
    }))
}

async fn unsupported_version(probe: Probe) -> Outcome {
    let mut conn = probe.connect().await?;
    if let Some(http) = conn.http() {
        http.version = Some("2099-01-01".to_owned());
    }
    let mut message = probe.message(Some(&9.into()), "server/discover", json!({}));
    message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let response = conn.exchange(&message).await?.json().unwrap_or_default();
    let data = &response["error"]["data"];
    let names = data["supported"].as_array().is_some_and(|all| all.iter().any(|version| version == MODERN));
    Ok(Verdict::holds_if(error_code(&response) == Some(-32022) && names && data["requested"] == "2099-01-01", || {
        format!("it answers {}", compact_json(&response))
    }))
}

async fn result_type(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let mut asked = vec!["server/discover"];
    for (capability, method) in [("tools", "tools/list"), ("resources", "resources/list"), ("prompts", "prompts/list")]
    {
        asked.extend(probe.facts.offers(capability).then_some(method));
    }
    for method in asked {
        let response = conn.ask(method, json!({})).await?;
        if response.get("result").is_some() && !response["result"]["resultType"].is_string() {
            return Ok(Verdict::Fails(format!(
                "{method} is answered without one: {}",
                compact_json(&response["result"])
            )));
        }
    }
    Ok(Verdict::Holds)
}

async fn missing_version(probe: Probe) -> Outcome {
    let mut conn = probe.connect().await?;
    let message = json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/list",
        "params": { "_meta": { "io.modelcontextprotocol/clientCapabilities": {} } } });
    let received = conn.exchange(&message).await?;
    let response = received.json().unwrap_or_default();
    let refused = response.get("error").is_some() || received.status.is_some_and(|status| status >= 400);
    Ok(Verdict::holds_if(refused, || format!("it answers {}", compact_json(&response))))
}

async fn missing_capabilities(probe: Probe) -> Outcome {
    let mut message = probe.message(Some(&9.into()), "server/discover", json!({}));
    if let Some(meta) = message["params"]["_meta"].as_object_mut() {
        meta.remove("io.modelcontextprotocol/clientCapabilities");
    }
    let response = probe.open().await?.exchange(&message).await?.json().unwrap_or_default();
    Ok(Verdict::holds_if(error_code(&response) == Some(-32602), || format!("it answers {}", compact_json(&response))))
}

async fn first_message(probe: Probe) -> Outcome {
    let known = [("tools", "tools/list"), ("resources", "resources/list"), ("prompts", "prompts/list")];
    let Some((_, method)) = known.into_iter().find(|(capability, _)| probe.facts.offers(capability)) else {
        return Ok(Verdict::Skipped("it offers no lists".to_owned()));
    };
    let response = probe.connect().await?.ask(method, json!({})).await?;
    Ok(Verdict::holds_if(response.get("result").is_some(), || {
        format!("{method} is answered with {}", compact_json(&response))
    }))
}

async fn removed(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    for method in ["ping", "logging/setLevel", "resources/subscribe"] {
        let response = conn.ask(method, json!({})).await?;
        if error_code(&response) != Some(-32601) {
            return Ok(Verdict::Fails(format!("{method} is answered with {}", compact_json(&response))));
        }
    }
    Ok(Verdict::Holds)
}

async fn caching(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let mut asked = vec![("server/discover", json!({}))];
    for (capability, methods) in [
        ("tools", &["tools/list"][..]),
        ("resources", &["resources/list", "resources/templates/list"][..]),
        ("prompts", &["prompts/list"][..]),
    ] {
        asked.extend(methods.iter().filter(|_| probe.facts.offers(capability)).map(|method| (*method, json!({}))));
    }
    asked.extend(probe.facts.resources.first().map(|known| ("resources/read", json!({ "uri": known["uri"] }))));
    for (method, params) in asked {
        let result: Value = conn.ask(method, params).await?["result"].take();
        // Only complete results carry it.
        if result["resultType"].as_str().is_some_and(|kind| kind != "complete") || result.is_null() {
            continue;
        }
        let ttl = result["ttlMs"].as_f64().is_some_and(|ttl| ttl >= 0.0);
        let scope = matches!(result["cacheScope"].as_str(), Some("public" | "private"));
        if !(ttl && scope) {
            return Ok(Verdict::Fails(format!(
                "{method}: ttlMs {}, cacheScope {}",
                result["ttlMs"], result["cacheScope"]
            )));
        }
    }
    Ok(Verdict::Holds)
}

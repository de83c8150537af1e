//! Checks of the metadata in requests and results of the stateless revision.

use serde_json::json;

use super::{
    Check, Group, Outcome, compact_json, ensure, ensure_code, ensure_method_answer, ensure_response, error_code, fail,
    offered_lists, skip, take_member,
};
use crate::{MODERN_REVISION, probe::Probe};

pub(super) const CHECKS: &[Check] = &[
    Check::new("stateless/discover", Group::Stateless, |probe| Box::pin(check_discover(probe)))
        .must("`server/discover` names the supported versions and the capabilities.")
        .advice("Answer with `supportedVersions`, a list of dates, and `capabilities`, an object.")
        .stateless_spec("server/discover"),
    Check::new("stateless/server-info", Group::Stateless, |probe| Box::pin(check_server_info(probe)))
        .should("Results identify the server in `_meta`.")
        .advice("Write `io.modelcontextprotocol/serverInfo` with name and version into the `_meta` of results.")
        .stateless_spec("basic/index#meta"),
    Check::new("stateless/unsupported-version", Group::Stateless, |probe| Box::pin(check_unsupported_version(probe)))
        .must("An unsupported version is answered with -32022 and the supported versions.")
        .advice("Answer with `data: {supported: […], requested: …}`.")
        .stateless_spec("basic/versioning"),
    Check::new("stateless/result-type", Group::Stateless, |probe| Box::pin(check_result_type(probe)))
        .must("Each result has a `resultType`.")
        .advice("Write `\"resultType\": \"complete\"` into each result.")
        .stateless_spec("basic/index#responses"),
    Check::new("stateless/envelope", Group::Stateless, |probe| Box::pin(check_envelope(probe)))
        .must("A request that does not name its version is refused.")
        .advice("Answer with -32602 where `_meta` lacks the protocol version.")
        .stateless_spec("basic/index#meta")
        .only_over("http"),
    Check::new("stateless/client-capabilities", Group::Stateless, |probe| Box::pin(check_client_capabilities(probe)))
        .must("A request without the client's capabilities is answered with -32602.")
        .advice("Refuse requests whose `_meta` lacks `io.modelcontextprotocol/clientCapabilities`.")
        .stateless_spec("basic/index#meta"),
    Check::new("stateless/first-message", Group::Stateless, |probe| Box::pin(check_first_message(probe)))
        .must("Any request may be the first on a connection.")
        .advice("Take all information from the request itself, not from earlier ones.")
        .stateless_spec("basic/index#statelessness"),
    Check::new("stateless/removed-methods", Group::Stateless, |probe| Box::pin(check_removed_methods(probe)))
        .should("Methods that the revision has removed are answered with -32601.")
        .advice("Do not serve `ping`, `logging/setLevel` or `resources/subscribe` to a request of this revision.")
        .stateless_spec("changelog"),
    Check::new("stateless/caching", Group::Stateless, |probe| Box::pin(check_caching(probe)))
        .must("Lists, contents and the result of `server/discover` say how long and for whom they may be cached.")
        .advice("Write `ttlMs` (a number, at least 0) and `cacheScope` (`public` or `private`) into these results.")
        .stateless_spec("server/utilities/caching"),
];

async fn check_discover(probe: Probe) -> Outcome {
    let result = &probe.server_info.handshake_result;
    let has_dates = result["supportedVersions"].as_array().is_some_and(|all| {
        !all.is_empty() && all.iter().all(|version| version.as_str().is_some_and(|text| text.len() == 10))
    });
    ensure(has_dates && result["capabilities"].is_object(), || {
        format!("the result of `server/discover` is {}", compact_json(result))
    })
}

async fn check_server_info(probe: Probe) -> Outcome {
    let info = &probe.server_info.handshake_result["_meta"]["io.modelcontextprotocol/serverInfo"];
    ensure(info["name"].is_string() && info["version"].is_string(), || {
        format!("`io.modelcontextprotocol/serverInfo` is {}", compact_json(info))
    })
}

async fn check_unsupported_version(probe: Probe) -> Outcome {
    let mut conn = probe.connect_without_handshake().await?;
    if let Some(http) = conn.http() {
        http.version = Some("2099-01-01".to_owned());
    }
    let mut message = probe.message(Some(&9.into()), "server/discover", json!({}));
    message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let response = conn.exchange(&message).await?.json().unwrap_or_default();
    let data = &response["error"]["data"];
    let names_revision =
        data["supported"].as_array().is_some_and(|all| all.iter().any(|version| version == MODERN_REVISION));
    let holds = error_code(&response) == Some(-32022) && names_revision && data["requested"] == "2099-01-01";
    ensure_response(holds, &response)
}

async fn check_result_type(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    for method in std::iter::once("server/discover").chain(offered_lists(&probe)) {
        let response = conn.ask(method, json!({})).await?;
        if response.get("result").is_some() && !response["result"]["resultType"].is_string() {
            return fail(format!("the result of {method} has no `resultType`: {}", compact_json(&response["result"])));
        }
    }
    Ok(())
}

async fn check_envelope(probe: Probe) -> Outcome {
    let mut conn = probe.connect_without_handshake().await?;
    let message = json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/list",
        "params": { "_meta": { "io.modelcontextprotocol/clientCapabilities": {} } } });
    let reply = conn.exchange(&message).await?;
    ensure_response(reply.is_refusal(), &reply.json().unwrap_or_default())
}

async fn check_client_capabilities(probe: Probe) -> Outcome {
    let mut message = probe.message(Some(&9.into()), "server/discover", json!({}));
    if let Some(meta) = message["params"]["_meta"].as_object_mut() {
        meta.remove("io.modelcontextprotocol/clientCapabilities");
    }
    ensure_code(&probe.connect_ready().await?.exchange(&message).await?.json().unwrap_or_default(), -32602)
}

async fn check_first_message(probe: Probe) -> Outcome {
    let Some(method) = offered_lists(&probe).next() else { return skip("it offers no lists") };
    let response = probe.connect_without_handshake().await?.ask(method, json!({})).await?;
    ensure_method_answer(response.get("result").is_some(), method, &response)
}

async fn check_removed_methods(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    for method in ["ping", "logging/setLevel", "resources/subscribe"] {
        let response = conn.ask(method, json!({})).await?;
        ensure_method_answer(error_code(&response) == Some(-32601), method, &response)?;
    }
    Ok(())
}

async fn check_caching(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let templates = probe.server_info.offers("resources").then_some("resources/templates/list");
    let lists = std::iter::once("server/discover").chain(offered_lists(&probe)).chain(templates);
    let resource = probe.server_info.resources.first().map(|known| ("resources/read", json!({ "uri": known["uri"] })));
    for (method, params) in lists.map(|method| (method, json!({}))).chain(resource) {
        let result = take_member(conn.ask(method, params).await?, "/result");
        // Only complete results have these members.
        if result["resultType"].as_str().is_some_and(|kind| kind != "complete") || result.is_null() {
            continue;
        }
        let (ttl, scope) = (&result["ttlMs"], &result["cacheScope"]);
        let is_valid =
            ttl.as_f64().is_some_and(|ttl| ttl >= 0.0) && matches!(scope.as_str(), Some("public" | "private"));
        ensure(is_valid, || format!("{method}: ttlMs {ttl}, cacheScope {scope}"))?;
    }
    Ok(())
}

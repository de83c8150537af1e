//! Checks of resources, prompts and completion, if they are offered.

use serde_json::{Value, json};

use super::{
    Check, Group, Outcome, SpecPages, compact_json, ensure_code, ensure_method_answer, ensure_none, ensure_response,
    fail, skip, skip_unless_offered, tools::is_block,
};
use crate::probe::Probe;

const RESOURCES: SpecPages = ("server/resources#data-types", "server/resources#data-types");
const PROMPTS: SpecPages = ("server/prompts#data-types", "server/prompts#data-types");

pub(super) const CHECKS: &[Check] = &[
    Check::new("lists/resources", Group::Lists, |probe| Box::pin(check_resources(probe)))
        .must("Each resource has a URI and a name.")
        .advice("Write `uri` and `name` into each entry.")
        .spec(RESOURCES),
    Check::new("lists/resource-contents", Group::Lists, |probe| Box::pin(check_resource_contents(probe)))
        .must("Reading a resource gives contents, each with its URI and either text or a blob.")
        .advice("Answer with `contents`, a list, and write `text` or `blob` into each.")
        .spec(RESOURCES),
    Check::new("lists/missing-resource", Group::Lists, |probe| Box::pin(check_missing_resource(probe)))
        .should("A resource that does not exist is answered with -32002, and in the stateless revision with -32602.")
        .advice("Answer with that code and the URI in `data`.")
        .spec(("server/resources#error-handling", "server/resources#error-handling")),
    Check::new("lists/templates", Group::Lists, |probe| Box::pin(check_templates(probe)))
        .must("Each template has a URI template and a name.")
        .advice("Write `uriTemplate` and `name` into each entry.")
        .spec(("server/resources#resource-templates", "server/resources#resource-templates")),
    Check::new("lists/subscribe", Group::Lists, |probe| Box::pin(check_subscribe(probe)))
        .must("If subscriptions are declared, a listed resource can be subscribed to and unsubscribed from.")
        .advice("Answer `resources/subscribe` and `resources/unsubscribe` with `{}`, or do not declare it.")
        .handshake_spec("server/resources#subscriptions"),
    Check::new("lists/prompts", Group::Lists, |probe| Box::pin(check_prompts(probe)))
        .must("Each prompt has a name, and its arguments are a list of objects with names.")
        .advice("Write `name` into each entry, and into each of its arguments.")
        .spec(PROMPTS),
    Check::new("lists/prompt-messages", Group::Lists, |probe| Box::pin(check_prompt_messages(probe)))
        .must("A prompt's messages have a role, `user` or `assistant`, and one content block.")
        .advice("Answer with `messages`, and write `role` and `content` into each.")
        .spec(PROMPTS),
    Check::new("lists/unknown-prompt", Group::Lists, |probe| Box::pin(check_unknown_prompt(probe)))
        .should("An unknown prompt is answered with -32602.")
        .advice("Answer with that code and the name.")
        .spec(("server/prompts#error-handling", "server/prompts#error-handling")),
    Check::new("lists/completion", Group::Lists, |probe| Box::pin(check_completion(probe)))
        .must("Completion returns at most 100 values, all of them strings.")
        .advice("Return at most 100 values and set `hasMore`.")
        .spec(("server/utilities/completion", "server/utilities/completion")),
];

/// Maximum number of resources or prompts that are read.
const MAX_READ_ENTRIES: usize = 3;

/// Skips the check unless the server offers the capability and lists entries.
fn skip_unless_listed(probe: &Probe, capability: &str, listed: &[Value]) -> Outcome {
    skip_unless_offered(probe, capability)?;
    if listed.is_empty() { skip(format!("it lists no {capability}")) } else { Ok(()) }
}

/// Fails and quotes the first invalid entry, if there is one.
pub(super) fn ensure_each(listed: &[Value], is_valid: impl Fn(&Value) -> bool) -> Outcome {
    let invalid = listed.iter().find(|entry| !is_valid(entry));
    ensure_none(invalid, |entry| format!("this entry is invalid: {}", compact_json(entry)))
}

async fn check_resources(probe: Probe) -> Outcome {
    let listed = &probe.server_info.resources;
    skip_unless_listed(&probe, "resources", listed)?;
    ensure_each(listed, |entry| entry["uri"].is_string() && entry["name"].is_string())
}

/// Returns `true` for valid contents of a resource.
pub(super) fn is_contents(contents: &Value) -> bool {
    contents["uri"].is_string() && (contents["text"].is_string() != contents["blob"].is_string())
}

async fn check_resource_contents(probe: Probe) -> Outcome {
    let listed = &probe.server_info.resources;
    skip_unless_listed(&probe, "resources", listed)?;
    let mut conn = probe.connect_ready().await?;
    for resource in listed.iter().take(MAX_READ_ENTRIES) {
        let response = conn.ask("resources/read", json!({ "uri": resource["uri"] })).await?;
        let is_valid = response["result"]["contents"].as_array().is_some_and(|all| all.iter().all(is_contents));
        if response.get("error").is_none() && !is_valid {
            let (uri, result) = (compact_json(&resource["uri"]), compact_json(&response["result"]));
            return fail(format!("{uri} reads as {result}"));
        }
    }
    Ok(())
}

async fn check_missing_resource(probe: Probe) -> Outcome {
    skip_unless_offered(&probe, "resources")?;
    let response = probe.ask("resources/read", json!({ "uri": "check://no/such/resource" })).await?;
    ensure_code(&response, if probe.is_modern() { -32602 } else { -32002 })
}

async fn check_templates(probe: Probe) -> Outcome {
    let listed = &probe.server_info.templates;
    skip_unless_listed(&probe, "resources", listed)?;
    ensure_each(listed, |entry| entry["uriTemplate"].is_string() && entry["name"].is_string())
}

async fn check_subscribe(probe: Probe) -> Outcome {
    if probe.server_info.handshake_result["capabilities"]["resources"]["subscribe"] != true {
        return skip("it declares no subscriptions");
    }
    let Some(resource) = probe.server_info.resources.first() else { return skip("it lists no resources") };
    let mut conn = probe.connect_ready().await?;
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        let response = conn.ask(method, json!({ "uri": resource["uri"] })).await?;
        ensure_method_answer(response.get("result").is_some(), method, &response)?;
    }
    Ok(())
}

async fn check_prompts(probe: Probe) -> Outcome {
    let listed = &probe.server_info.prompts;
    skip_unless_listed(&probe, "prompts", listed)?;
    ensure_each(listed, |entry| {
        let has_valid_arguments = entry.get("arguments").is_none_or(|all| {
            all.as_array().is_some_and(|all| all.iter().all(|argument| argument["name"].is_string()))
        });
        entry["name"].is_string() && has_valid_arguments
    })
}

async fn check_prompt_messages(probe: Probe) -> Outcome {
    let listed = &probe.server_info.prompts;
    skip_unless_listed(&probe, "prompts", listed)?;
    let mut conn = probe.connect_ready().await?;
    for prompt in listed.iter().take(MAX_READ_ENTRIES) {
        let required =
            prompt["arguments"].as_array().into_iter().flatten().filter(|argument| argument["required"] == true);
        let arguments: serde_json::Map<String, Value> =
            required.filter_map(|argument| Some((argument["name"].as_str()?.to_owned(), "1".into()))).collect();
        let response = conn.ask("prompts/get", json!({ "name": prompt["name"], "arguments": arguments })).await?;
        let is_valid = response["result"]["messages"].as_array().is_some_and(|all| {
            all.iter().all(|message| {
                matches!(message["role"].as_str(), Some("user" | "assistant")) && is_block(&message["content"])
            })
        });
        if response.get("error").is_none() && !is_valid {
            let (name, result) = (compact_json(&prompt["name"]), compact_json(&response["result"]));
            return fail(format!("{name} gives {result}"));
        }
    }
    Ok(())
}

async fn check_unknown_prompt(probe: Probe) -> Outcome {
    skip_unless_offered(&probe, "prompts")?;
    let response = probe.ask("prompts/get", json!({ "name": "check_no_such_prompt" })).await?;
    ensure_code(&response, -32602)
}

async fn check_completion(probe: Probe) -> Outcome {
    skip_unless_offered(&probe, "completions")?;
    let prompt_argument = probe.server_info.prompts.iter().find_map(|prompt| {
        let argument = prompt["arguments"].as_array()?.first()?;
        Some((json!({ "type": "ref/prompt", "name": prompt["name"] }), argument["name"].clone()))
    });
    let Some((reference, name)) = prompt_argument else { return skip("no prompt has arguments") };
    let params = json!({ "ref": reference, "argument": { "name": name, "value": "" } });
    let response = probe.ask("completion/complete", params).await?;
    if response.get("error").is_some() {
        return skip(format!("it answers {}", compact_json(&response)));
    }
    let values = response["result"]["completion"]["values"].as_array();
    let is_valid = values.is_some_and(|all| all.len() <= 100 && all.iter().all(Value::is_string));
    ensure_response(is_valid, &response["result"])
}

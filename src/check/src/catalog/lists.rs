//! Checks of resources, prompts and completion, if they are offered.

use serde_json::{Value, json};

use super::{Check, Outcome, Verdict, check, compact_json, error_code, tools::is_block};
use crate::probe::Probe;

const RESOURCES: (&str, &str) = ("server/resources#data-types", "server/resources#data-types");
const PROMPTS: (&str, &str) = ("server/prompts#data-types", "server/prompts#data-types");

pub(super) const CHECKS: &[Check] = &[
    check!(
        "lists/resources",
        Lists,
        Must,
        Both,
        All,
        RESOURCES,
        "Each resource has a URI and a name.",
        "Write `uri` and `name` into each entry.",
        resources
    ),
    check!(
        "lists/resource-contents",
        Lists,
        Must,
        Both,
        All,
        RESOURCES,
        "Reading a resource gives contents, each with its URI and either text or a blob.",
        "Answer with `contents`, a list, and write `text` or `blob` into each.",
        contents
    ),
    check!(
        "lists/missing-resource",
        Lists,
        Should,
        Both,
        All,
        ("server/resources#error-handling", "server/resources#error-handling"),
        "A resource that does not exist is answered with -32002, and in the stateless revision with -32602.",
        "Answer with that code and the URI in `data`.",
        missing_resource
    ),
    check!(
        "lists/templates",
        Lists,
        Must,
        Both,
        All,
        ("server/resources#resource-templates", "server/resources#resource-templates"),
        "Each template has a URI template and a name.",
        "Write `uriTemplate` and `name` into each entry.",
        templates
    ),
    check!(
        "lists/subscribe",
        Lists,
        Must,
        Legacy,
        All,
        ("server/resources#subscriptions", "server/resources"),
        "Where subscriptions are declared, one to a listed resource is taken, and given back.",
        "Answer `resources/subscribe` and `resources/unsubscribe` with `{}`, or do not declare it.",
        subscribe
    ),
    check!(
        "lists/prompts",
        Lists,
        Must,
        Both,
        All,
        PROMPTS,
        "Each prompt has a name, and its arguments are a list of objects with names.",
        "Write `name` into each entry, and into each of its arguments.",
        prompts
    ),
    check!(
        "lists/prompt-messages",
        Lists,
        Must,
        Both,
        All,
        PROMPTS,
        "A prompt's messages have a role, `user` or `assistant`, and one content block.",
        "Answer with `messages`, and write `role` and `content` into each.",
        messages
    ),
    check!(
        "lists/unknown-prompt",
        Lists,
        Should,
        Both,
        All,
        ("server/prompts#error-handling", "server/prompts#error-handling"),
        "A prompt that does not exist is answered with -32602.",
        "Answer with that code and the name.",
        unknown_prompt
    ),
    check!(
        "lists/completion",
        Lists,
        Must,
        Both,
        All,
        ("server/utilities/completion", "server/utilities/completion"),
        "Completion gives at most 100 values, all of them texts.",
        "Cut the list at 100 and say so in `hasMore`.",
        completion
    ),
];

fn skip_if_missing(probe: &Probe, capability: &str, listed: &[Value]) -> Option<Verdict> {
    if !probe.facts.offers(capability) {
        return Some(Verdict::Skipped(format!("it offers no {capability}")));
    }
    listed.is_empty().then(|| Verdict::Skipped(format!("it lists no {capability}")))
}

fn check_each(listed: &[Value], fits: impl Fn(&Value) -> bool) -> Verdict {
    listed
        .iter()
        .find(|entry| !fits(entry))
        .map_or(Verdict::Holds, |entry| Verdict::Fails(format!("this is not one: {}", compact_json(entry))))
}

async fn resources(probe: Probe) -> Outcome {
    let listed = &probe.facts.resources;
    Ok(skip_if_missing(&probe, "resources", listed)
        .unwrap_or_else(|| check_each(listed, |entry| entry["uri"].is_string() && entry["name"].is_string())))
}

/// Returns `true` for valid contents of a resource.
pub(super) fn is_contents(contents: &Value) -> bool {
    contents["uri"].is_string() && (contents["text"].is_string() != contents["blob"].is_string())
}

async fn contents(probe: Probe) -> Outcome {
    let listed = &probe.facts.resources;
    if let Some(verdict) = skip_if_missing(&probe, "resources", listed) {
        return Ok(verdict);
    }
    let mut conn = probe.open().await?;
    for resource in listed.iter().take(3) {
        let response = conn.ask("resources/read", json!({ "uri": resource["uri"] })).await?;
        if response.get("error").is_some() {
            continue;
        }
        let fits = response["result"]["contents"].as_array().is_some_and(|all| all.iter().all(is_contents));
        if !fits {
            return Ok(Verdict::Fails(format!("{} reads as {}", resource["uri"], compact_json(&response["result"]))));
        }
    }
    Ok(Verdict::Holds)
}

async fn missing_resource(probe: Probe) -> Outcome {
    if !probe.facts.offers("resources") {
        return Ok(Verdict::Skipped("it offers no resources".to_owned()));
    }
    let response = probe.open().await?.ask("resources/read", json!({ "uri": "check://no/such/resource" })).await?;
    let expected = if probe.is_modern() { -32602 } else { -32002 };
    Ok(Verdict::holds_if(error_code(&response) == Some(expected), || format!("it answers {}", compact_json(&response))))
}

async fn templates(probe: Probe) -> Outcome {
    let listed = &probe.facts.templates;
    Ok(skip_if_missing(&probe, "resources", listed)
        .unwrap_or_else(|| check_each(listed, |entry| entry["uriTemplate"].is_string() && entry["name"].is_string())))
}

async fn subscribe(probe: Probe) -> Outcome {
    if probe.facts.opening["capabilities"]["resources"]["subscribe"] != true {
        return Ok(Verdict::Skipped("it declares no subscriptions".to_owned()));
    }
    let Some(resource) = probe.facts.resources.first() else {
        return Ok(Verdict::Skipped("it lists no resources".to_owned()));
    };
    let mut conn = probe.open().await?;
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        let response = conn.ask(method, json!({ "uri": resource["uri"] })).await?;
        if response.get("result").is_none() {
            return Ok(Verdict::Fails(format!("{method} is answered with {}", compact_json(&response))));
        }
    }
    Ok(Verdict::Holds)
}

async fn prompts(probe: Probe) -> Outcome {
    let listed = &probe.facts.prompts;
    let fits = |entry: &Value| {
        let arguments = entry.get("arguments").is_none_or(|all| {
            all.as_array().is_some_and(|all| all.iter().all(|argument| argument["name"].is_string()))
        });
        entry["name"].is_string() && arguments
    };
    Ok(skip_if_missing(&probe, "prompts", listed).unwrap_or_else(|| check_each(listed, fits)))
}

async fn messages(probe: Probe) -> Outcome {
    let listed = &probe.facts.prompts;
    if let Some(verdict) = skip_if_missing(&probe, "prompts", listed) {
        return Ok(verdict);
    }
    let mut conn = probe.open().await?;
    for prompt in listed.iter().take(3) {
        let required =
            prompt["arguments"].as_array().into_iter().flatten().filter(|argument| argument["required"] == true);
        let arguments: serde_json::Map<String, Value> =
            required.filter_map(|argument| Some((argument["name"].as_str()?.to_owned(), "1".into()))).collect();
        let response = conn.ask("prompts/get", json!({ "name": prompt["name"], "arguments": arguments })).await?;
        if response.get("error").is_some() {
            continue;
        }
        let fits = response["result"]["messages"].as_array().is_some_and(|all| {
            all.iter().all(|message| {
                matches!(message["role"].as_str(), Some("user" | "assistant")) && is_block(&message["content"])
            })
        });
        if !fits {
            return Ok(Verdict::Fails(format!("{} gives {}", prompt["name"], compact_json(&response["result"]))));
        }
    }
    Ok(Verdict::Holds)
}

async fn unknown_prompt(probe: Probe) -> Outcome {
    if !probe.facts.offers("prompts") {
        return Ok(Verdict::Skipped("it offers no prompts".to_owned()));
    }
    let response = probe.open().await?.ask("prompts/get", json!({ "name": "check_no_such_prompt" })).await?;
    Ok(Verdict::holds_if(error_code(&response) == Some(-32602), || format!("it answers {}", compact_json(&response))))
}

async fn completion(probe: Probe) -> Outcome {
    if !probe.facts.offers("completions") {
        return Ok(Verdict::Skipped("it offers no completion".to_owned()));
    }
    let of_prompt = probe.facts.prompts.iter().find_map(|prompt| {
        let argument = prompt["arguments"].as_array()?.first()?;
        Some((json!({ "type": "ref/prompt", "name": prompt["name"] }), argument["name"].clone()))
    });
    let Some((reference, name)) = of_prompt else {
        return Ok(Verdict::Skipped("no prompt has arguments".to_owned()));
    };
    let params = json!({ "ref": reference, "argument": { "name": name, "value": "" } });
    let response = probe.open().await?.ask("completion/complete", params).await?;
    if response.get("error").is_some() {
        return Ok(Verdict::Skipped(format!("it answers {}", compact_json(&response))));
    }
    let values = response["result"]["completion"]["values"].as_array();
    let fits = values.is_some_and(|all| all.len() <= 100 && all.iter().all(Value::is_string));
    Ok(Verdict::holds_if(fits, || format!("it answers {}", compact_json(&response["result"]))))
}

//! Checks of tool lists and tool calls. Only tools marked as read-only are called, unless writes are allowed.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{
    Check, Group, Outcome, SpecPages, compact_json, ensure, ensure_code, ensure_none, ensure_response, fail, lists,
    skip, skip_unless_offered, take_member, truncate,
};
use crate::probe::Probe;

const LISTING: SpecPages = ("server/tools#listing-tools", "server/tools#listing-tools");
const TYPES: SpecPages = ("server/tools#data-types", "server/tools#data-types");
const RESULT: SpecPages = ("server/tools#tool-result", "server/tools#tool-result");

/// Maximum number of tools that are called.
const MAX_CALLED_TOOLS: usize = 5;
/// Maximum total length in bytes that the schema of a tool may require of the strings in generated arguments.
const MAX_STRING_BYTES: usize = 64 << 10;

pub(super) const CHECKS: &[Check] = &[
    Check::new("tools/list", Group::Tools, |probe| Box::pin(check_list(probe)))
        .must("Each tool has a name and an input schema that is an object.")
        .advice("Write `name` and `inputSchema` into each entry.")
        .spec(LISTING),
    Check::new("tools/pages", Group::Tools, |probe| Box::pin(check_pages(probe)))
        .should("The server accepts its own cursors, and the list ends.")
        .advice("Answer each `nextCursor` with the next page, and omit it on the last page.")
        .spec(("server/utilities/pagination", "server/utilities/pagination")),
    Check::new("tools/unique", Group::Tools, |probe| Box::pin(check_unique(probe)))
        .should("No two tools have the same name.")
        .advice("Give each tool a name of its own.")
        .spec(TYPES),
    Check::new("tools/names", Group::Tools, |probe| Box::pin(check_names(probe)))
        .should("Names have 1 to 128 characters: letters, digits, `_`, `-` and `.` only.")
        .advice("Rename the tool: clients refuse other names.")
        .spec(("server/tools#tool-names", "server/tools#tool-names"))
        .since("2025-11-25"),
    Check::new("tools/input-schema-root", Group::Tools, |probe| Box::pin(check_input_schema_root(probe)))
        .must("An input schema has the type `object`.")
        .advice("Write `\"type\": \"object\"` at the root, also for a tool without arguments.")
        .spec(TYPES),
    Check::new("tools/schemas", Group::Tools, |probe| Box::pin(check_schemas(probe)))
        .must("Input and output schemas are valid JSON Schema.")
        .advice("Check them against the meta-schema of their dialect, which is 2020-12 by default.")
        .spec(TYPES),
    Check::new("tools/stable", Group::Tools, |probe| Box::pin(check_stable(probe)))
        .should("Two lists in a row have the same tools in the same order.")
        .advice("Sort tools, or keep the order in which they were registered.")
        .spec(LISTING),
    Check::new("tools/bad-cursor", Group::Tools, |probe| Box::pin(check_bad_cursor(probe)))
        .should("An unknown cursor is answered with -32602.")
        .advice("Validate cursors, and answer unknown ones with this code.")
        .spec(("server/utilities/pagination#error-handling", "server/utilities/pagination#error-handling")),
    Check::new("tools/annotations", Group::Tools, |probe| Box::pin(check_annotations(probe)))
        .must("Hints about a tool are booleans.")
        .advice("Write true or false for `readOnlyHint` and the other hints.")
        .spec(TYPES)
        .since("2025-03-26"),
    Check::new("tools/arguments", Group::Tools, |probe| Box::pin(check_arguments(probe)))
        .must("Arguments that violate the input schema are refused, by an error or a result with `isError`.")
        .advice("Validate arguments before the tool sees them.")
        .spec(("server/tools#security-considerations", "server/tools#security-considerations")),
    Check::new("tools/content", Group::Tools, |probe| Box::pin(check_content(probe)))
        .must("A result has `content`, a list of blocks of known types with the required members.")
        .advice("Answer with text, image, audio, resource or resource_link blocks, each with its members.")
        .spec(RESULT),
    Check::new("tools/is-error", Group::Tools, |probe| Box::pin(check_is_error(probe)))
        .must("`isError` is a boolean if it is present.")
        .advice("Write true or false, or omit it.")
        .spec(("server/tools#error-handling", "server/tools#error-handling")),
    Check::new("tools/structured", Group::Tools, |probe| Box::pin(check_structured(probe)))
        .must("A tool with an output schema answers with `structuredContent` that matches it.")
        .advice("Validate your own results against the schema that you list.")
        .spec(("server/tools#output-schema", "server/tools#output-schema"))
        .since("2025-06-18"),
];

/// Returns the listed tools, and skips the check if there are none.
fn listed_tools(probe: &Probe) -> Outcome<&[Value]> {
    if probe.server_info.tools.is_empty() { skip("it lists no tools") } else { Ok(&probe.server_info.tools) }
}

/// Quotes the name of a tool for a reason. A server may list a name of any type and length.
pub(super) fn quote_name(tool: &Value) -> String {
    compact_json(&tool["name"])
}

async fn check_list(probe: Probe) -> Outcome {
    skip_unless_offered(&probe, "tools")?;
    let mut conn = probe.connect_ready().await?;
    let response = conn.ask("tools/list", json!({})).await?;
    ensure_response(response["result"]["tools"].is_array(), &response)?;
    let all = conn.read_list("tools/list", "tools").await?;
    lists::ensure_each(&all, |tool| tool["name"].is_string() && tool["inputSchema"].is_object())
}

async fn check_pages(probe: Probe) -> Outcome {
    skip_unless_offered(&probe, "tools")?;
    let mut conn = probe.connect_ready().await?;
    let mut cursor = take_member(conn.ask("tools/list", json!({})).await?, "/result/nextCursor");
    if cursor.is_null() {
        return skip("its list has one page");
    }
    let mut seen = HashSet::new();
    while let Some(text) = cursor.as_str() {
        let quoted = || compact_json(&json!(text));
        ensure(seen.insert(text.to_owned()), || {
            format!("the cursor {} is repeated, so the list has no end", quoted())
        })?;
        let response = conn.ask("tools/list", json!({ "cursor": text })).await?;
        ensure(response["result"]["tools"].is_array(), || {
            format!("it answers its own cursor {} with {}", quoted(), compact_json(&response))
        })?;
        cursor = take_member(response, "/result/nextCursor");
    }
    ensure(cursor.is_null(), || format!("nextCursor is {}", compact_json(&cursor)))
}

async fn check_unique(probe: Probe) -> Outcome {
    let mut seen = HashSet::new();
    let duplicate = listed_tools(&probe)?.iter().find(|tool| !seen.insert(tool["name"].to_string()));
    ensure_none(duplicate, |tool| format!("{} is listed twice", quote_name(tool)))
}

async fn check_names(probe: Probe) -> Outcome {
    let is_valid = |name: &str| {
        (1..=128).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
    };
    let invalid = listed_tools(&probe)?.iter().find(|tool| !tool["name"].as_str().is_some_and(is_valid));
    ensure_none(invalid, |tool| format!("{} is not a valid name", quote_name(tool)))
}

async fn check_input_schema_root(probe: Probe) -> Outcome {
    let is_wrong = |tool: &&Value| tool["inputSchema"].is_object() && tool["inputSchema"]["type"] != "object";
    ensure_none(listed_tools(&probe)?.iter().find(is_wrong), |tool| {
        format!("the input schema of {} has the type {}", quote_name(tool), compact_json(&tool["inputSchema"]["type"]))
    })
}

async fn check_schemas(probe: Probe) -> Outcome {
    for tool in listed_tools(&probe)? {
        for key in ["inputSchema", "outputSchema"] {
            // External references are not fetched, so such schemas are not checked.
            let has_external_reference = |schema: &Value| schema.to_string().contains("\"$ref\":\"http");
            if let Some(schema) = tool.get(key).filter(|schema| schema.is_object() && !has_external_reference(schema))
                && let Err(error) = jsonschema::validator_for(schema)
            {
                return fail(format!("{key} of {}: {}", quote_name(tool), truncate(&error.to_string())));
            }
        }
    }
    Ok(())
}

async fn check_stable(probe: Probe) -> Outcome {
    listed_tools(&probe)?;
    let mut conn = probe.connect_ready().await?;
    let first = conn.read_list("tools/list", "tools").await?;
    let second = conn.read_list("tools/list", "tools").await?;
    let names = |tools: &[Value]| compact_json(&tools.iter().map(|tool| tool["name"].clone()).collect());
    ensure(first == second, || format!("first {}, then {}", names(&first), names(&second)))
}

async fn check_bad_cursor(probe: Probe) -> Outcome {
    listed_tools(&probe)?;
    let response = probe.ask("tools/list", json!({ "cursor": "check-no-such-cursor" })).await?;
    ensure_code(&response, -32602)
}

async fn check_annotations(probe: Probe) -> Outcome {
    let hints = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];
    let invalid = listed_tools(&probe)?.iter().find(|tool| {
        let all = &tool["annotations"];
        hints.iter().any(|hint| all.get(*hint).is_some_and(|value| !value.is_boolean()))
    });
    ensure_none(invalid, |tool| format!("{}: {}", quote_name(tool), compact_json(&tool["annotations"])))
}

/// Returns the tools that the checks call: the first ones that may be called.
fn callable_tools(probe: &Probe) -> Vec<&Value> {
    let may_be_called = |tool: &&Value| probe.options.allow_writes || tool["annotations"]["readOnlyHint"] == true;
    probe.server_info.tools.iter().filter(may_be_called).take(MAX_CALLED_TOOLS).collect()
}

/// Returns arguments that a schema certainly refuses: a required argument is missing, or an argument has a wrong type.
fn wrong_arguments(schema: &Value) -> Option<Value> {
    if schema["required"].as_array().is_some_and(|all| !all.is_empty()) {
        return Some(json!({}));
    }
    schema["properties"].as_object()?.iter().find_map(|(name, property)| match property["type"].as_str()? {
        "string" => Some(json!({ name: { "check": [] } })),
        "integer" => Some(json!({ name: "not a number" })),
        _ => None,
    })
}

async fn check_arguments(probe: Probe) -> Outcome {
    let callable = callable_tools(&probe);
    let wrong = callable.iter().find_map(|tool| Some((tool, wrong_arguments(&tool["inputSchema"])?)));
    let Some((tool, wrong)) = wrong else {
        return skip("no tool that may be called has arguments that could be invalid");
    };
    let params = json!({ "name": tool["name"], "arguments": wrong });
    let response = probe.ask("tools/call", params).await?;
    let is_refused = response.get("error").is_some() || response["result"]["isError"] == true;
    ensure(is_refused, || {
        let (wrong, result) = (compact_json(&wrong), compact_json(&response["result"]));
        format!("{} accepts {wrong} and answers {result}", quote_name(tool))
    })
}

/// Generates arguments that match a schema, if possible. Takes the required lengths of strings from `string_budget`, in
/// bytes, because a hostile schema may require more than fits into memory.
fn generate_arguments(schema: &Value, depth: u8, string_budget: &mut usize) -> Option<Value> {
    if depth > 4 {
        return None;
    }
    let example = [schema.get("const"), schema.get("default"), schema["enum"].get(0), schema["examples"].get(0)];
    if let Some(value) = example.into_iter().flatten().next() {
        return Some(value.clone());
    }
    Some(match schema["type"].as_str()? {
        "object" => {
            let mut object = Map::new();
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                // A name that is repeated on each level would multiply the work.
                if !object.contains_key(name) {
                    let value = generate_arguments(&schema["properties"][name], depth + 1, string_budget)?;
                    object.insert(name.to_owned(), value);
                }
            }
            Value::Object(object)
        }
        "array" => json!([]),
        "string" if schema.get("pattern").is_some() || schema.get("format").is_some() => return None,
        "string" => {
            let min_length = usize::try_from(schema["minLength"].as_u64().unwrap_or(0)).ok()?;
            *string_budget = string_budget.checked_sub(min_length)?;
            "check".repeat(1 + min_length / 5).into()
        }
        "integer" | "number" => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
        "boolean" => json!(false),
        "null" => Value::Null,
        _ => return None,
    })
}

/// Returns the tools that may be called and for which arguments can be generated, each with the parameters of a call. Skips the
/// check if there are none.
pub(super) fn possible_calls(probe: &Probe) -> Outcome<Vec<(&Value, Value)>> {
    listed_tools(probe)?;
    let callable = callable_tools(probe);
    if callable.is_empty() {
        return skip("no tool declares itself read-only (--allow-writes calls the others too)");
    }
    let call = |tool: &'_ Value| {
        let mut string_budget = MAX_STRING_BYTES;
        let arguments = generate_arguments(&tool["inputSchema"], 0, &mut string_budget)?;
        let schema = jsonschema::validator_for(&tool["inputSchema"]).ok()?;
        schema.is_valid(&arguments).then(|| json!({ "name": tool["name"], "arguments": arguments }))
    };
    let calls: Vec<_> = callable.into_iter().filter_map(|tool| Some((tool, call(tool)?))).collect();
    if calls.is_empty() { skip("no arguments could be generated for a tool that may be called") } else { Ok(calls) }
}

/// Makes the [`possible_calls`] and returns their results. Skips the check if no call has one.
async fn collect_results(probe: &Probe) -> Outcome<Vec<(&Value, Value)>> {
    let mut conn = probe.connect_ready().await?;
    let mut all = Vec::new();
    for (tool, params) in possible_calls(probe)? {
        let result = take_member(conn.ask("tools/call", params).await?, "/result");
        // A request for input or a task is not a result yet.
        if result.is_object() && matches!(result["resultType"].as_str(), None | Some("complete")) {
            all.push((tool, result));
        }
    }
    if all.is_empty() { skip("no call of a tool had a complete result") } else { Ok(all) }
}

async fn check_content(probe: Probe) -> Outcome {
    for (tool, result) in collect_results(&probe).await? {
        let Some(blocks) = result["content"].as_array() else {
            return fail(format!("{} answers without content: {}", quote_name(tool), compact_json(&result)));
        };
        let invalid = blocks.iter().find(|block| !is_block(block));
        ensure_none(invalid, |block| format!("{} answers with {}", quote_name(tool), compact_json(block)))?;
    }
    Ok(())
}

/// Returns `true` for a content block of a known type with all required members.
pub(super) fn is_block(block: &Value) -> bool {
    let is_string = |name: &str| block[name].is_string();
    match block["type"].as_str() {
        Some("text") => is_string("text"),
        Some("image" | "audio") => is_string("data") && is_string("mimeType"),
        Some("resource") => lists::is_contents(&block["resource"]),
        Some("resource_link") => is_string("uri") && is_string("name"),
        _ => false,
    }
}

async fn check_is_error(probe: Probe) -> Outcome {
    let all = collect_results(&probe).await?;
    let invalid = all.iter().find(|(_, result)| result.get("isError").is_some_and(|value| !value.is_boolean()));
    ensure_none(invalid, |(tool, result)| {
        format!("{} answers with {}", quote_name(tool), compact_json(&result["isError"]))
    })
}

async fn check_structured(probe: Probe) -> Outcome {
    let mut was_checked = false;
    for (tool, result) in collect_results(&probe).await? {
        let Some(schema) = tool.get("outputSchema").filter(|schema| schema.is_object()) else { continue };
        if result["isError"] == true {
            continue;
        }
        was_checked = true;
        let Some(structured) = result.get("structuredContent") else {
            return fail(format!("{} has an output schema, and its result has no structuredContent", quote_name(tool)));
        };
        if let Ok(validator) = jsonschema::validator_for(schema)
            && let Err(error) = validator.validate(structured)
        {
            let reason = truncate(&error.to_string());
            return fail(format!("the result of {} does not match its output schema: {reason}", quote_name(tool)));
        }
    }
    if was_checked { Ok(()) } else { skip("no tool that was called has an output schema") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Options, Target, catalog::NotPassed, probe::ServerInfo};

    fn generate(schema: &Value) -> Option<Value> {
        let mut string_budget = MAX_STRING_BYTES;
        generate_arguments(schema, 0, &mut string_budget)
    }

    #[test]
    fn required_string_lengths_are_bounded() {
        let string = |min_length: u64| json!({ "type": "string", "minLength": min_length });
        assert_eq!(generate(&string(10)), Some("checkcheckcheck".into()));
        assert_eq!(generate(&string(u64::MAX)), None);
        let schema = |first: u64, second: u64| {
            let properties = json!({ "a": string(first), "b": string(second) });
            json!({ "type": "object", "required": ["a", "b"], "properties": properties })
        };
        assert!(generate(&schema(40_000, 20_000)).is_some());
        assert_eq!(generate(&schema(40_000, 40_000)), None);
    }

    #[test]
    fn repeated_names_are_generated_once() {
        let mut schema = json!({ "type": "string", "minLength": 40_000 });
        for _ in 0..4 {
            schema = json!({ "type": "object", "required": ["a", "a"], "properties": { "a": schema } });
        }
        assert!(generate(&schema).is_some());
    }

    fn probe_with_tools(tools: Vec<Value>) -> Probe {
        let target = Target::Command { program: "x".into(), arguments: Vec::new(), env: Vec::new(), cwd: None };
        let server_info = Arc::new(ServerInfo { tools, ..ServerInfo::default() });
        Probe { server_info, ..Probe::new(&target, &Options::default()) }
    }

    #[test]
    fn skipped_calls_have_their_own_reasons() {
        let tool = |is_read_only: bool, argument: Value| {
            let schema = json!({ "type": "object", "required": ["a"], "properties": { "a": argument } });
            json!({ "name": "x", "annotations": { "readOnlyHint": is_read_only }, "inputSchema": schema })
        };
        for (tools, expected) in [
            (Vec::new(), "it lists no tools"),
            (vec![tool(false, json!({ "type": "string" }))], "no tool declares itself read-only"),
            (vec![tool(true, json!({ "type": "string", "format": "uri" }))], "no arguments could be generated"),
        ] {
            let probe = probe_with_tools(tools);
            let Err(NotPassed::Skipped(reason)) = possible_calls(&probe) else { panic!("{expected}") };
            assert!(reason.starts_with(expected), "{reason}");
        }
        let probe = probe_with_tools(vec![tool(true, json!({ "type": "string" }))]);
        assert_eq!(possible_calls(&probe).unwrap().len(), 1);
    }

    #[tokio::test]
    async fn reasons_are_bounded() {
        let tool = json!({
            "name": "x".repeat(10_000),
            "inputSchema": { "type": "strin" },
            "annotations": { "readOnlyHint": "yes" },
        });
        let probe = probe_with_tools(vec![tool.clone(), tool]);
        for outcome in [
            check_unique(probe.clone()).await,
            check_names(probe.clone()).await,
            check_input_schema_root(probe.clone()).await,
            check_schemas(probe.clone()).await,
            check_annotations(probe.clone()).await,
        ] {
            let Err(NotPassed::Failed(reason)) = outcome else { panic!("{outcome:?}") };
            assert!(reason.contains('…') && reason.len() < 1000, "{reason}");
        }
    }
}

//! Checks of tool lists and tool calls. Only tools marked as read-only are called, unless writes are allowed.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{Check, Outcome, Verdict, check, compact_json, error_code};
use crate::{
    probe::{Conn, Probe},
    wire::ProbeError,
};

const LISTING: (&str, &str) = ("server/tools#listing-tools", "server/tools#listing-tools");
const TYPES: (&str, &str) = ("server/tools#data-types", "server/tools#data-types");
const RESULT: (&str, &str) = ("server/tools#tool-result", "server/tools#tool-result");

/// The most tools that are called.
const MAX_CALLED_TOOLS: usize = 5;

pub(super) const CHECKS: &[Check] = &[
    check!(
        "tools/list",
        Tools,
        Must,
        Both,
        All,
        LISTING,
        "Each tool has a name and an input schema that is an object.",
        "Write `name` and `inputSchema` into each entry.",
        list
    ),
    check!(
        "tools/pages",
        Tools,
        Should,
        Both,
        All,
        ("server/utilities/pagination", "server/utilities/pagination"),
        "A cursor that the server gives is one that it takes, and the list comes to an end.",
        "Answer each `nextCursor` with the page after it, and leave it out on the last.",
        pages
    ),
    check!(
        "tools/unique",
        Tools,
        Should,
        Both,
        All,
        TYPES,
        "No two tools have the same name.",
        "Give each tool a name of its own.",
        unique
    ),
    check!(
        "tools/names",
        Tools,
        Should,
        Since("2025-11-25"),
        All,
        ("server/tools#tool-names", "server/tools#tool-names"),
        "Names have 1 to 128 letters, digits, `_`, `-`, `.` and nothing else.",
        "Rename the tool: clients refuse other names.",
        names
    ),
    check!(
        "tools/input-schema-root",
        Tools,
        Must,
        Both,
        All,
        TYPES,
        "An input schema has the type `object`.",
        "Write `\"type\": \"object\"` at the root, also for a tool without arguments.",
        input_root
    ),
    check!(
        "tools/schemas",
        Tools,
        Must,
        Both,
        All,
        TYPES,
        "Input and output schemas are valid JSON Schema.",
        "Check them against the meta-schema of their dialect, 2020-12 where they name none.",
        schemas
    ),
    check!(
        "tools/stable",
        Tools,
        Should,
        Both,
        All,
        LISTING,
        "Two lists in a row are the same, in the same order.",
        "Sort tools, or keep the order in which they were made.",
        stable
    ),
    check!(
        "tools/bad-cursor",
        Tools,
        Should,
        Both,
        All,
        ("server/utilities/pagination#error-handling", "server/utilities/pagination#error-handling"),
        "A cursor that the server did not give is answered with -32602.",
        "Check cursors, and answer those that are not yours with this code.",
        bad_cursor
    ),
    check!(
        "tools/annotations",
        Tools,
        Must,
        Since("2025-03-26"),
        All,
        TYPES,
        "Hints about a tool are booleans.",
        "Write true or false for `readOnlyHint` and its like.",
        annotations
    ),
    check!(
        "tools/arguments",
        Tools,
        Must,
        Both,
        All,
        ("server/tools#security-considerations", "server/tools#security-considerations"),
        "Arguments that break the input schema are refused, by an error or a result with `isError`.",
        "Validate arguments before the tool sees them.",
        arguments
    ),
    check!(
        "tools/content",
        Tools,
        Must,
        Both,
        All,
        RESULT,
        "A result has `content`, a list of blocks of known types with what each needs.",
        "Answer with text, image, audio, resource or resource_link blocks, each with its members.",
        content
    ),
    check!(
        "tools/is-error",
        Tools,
        Must,
        Both,
        All,
        ("server/tools#error-handling", "server/tools#error-handling"),
        "`isError` is a boolean where it is there.",
        "Write true or false, or leave it out.",
        is_error
    ),
    check!(
        "tools/structured",
        Tools,
        Must,
        Since("2025-06-18"),
        All,
        ("server/tools#output-schema", "server/tools#output-schema"),
        "A tool with an output schema answers with `structuredContent` that fits it.",
        "Validate your own results against the schema that you list.",
        structured
    ),
];

/// Returns the listed tools, or skips the check if there are none.
macro_rules! tools_of {
    ($probe:expr) => {
        match &$probe.facts.tools {
            tools if tools.is_empty() => return Ok(Verdict::Skipped("it lists no tools".to_owned())),
            tools => tools,
        }
    };
}

async fn list(probe: Probe) -> Outcome {
    if !probe.facts.offers("tools") {
        return Ok(Verdict::Skipped("it offers no tools".to_owned()));
    }
    let mut conn = probe.open().await?;
    let response = conn.ask("tools/list", json!({})).await?;
    if !response["result"]["tools"].is_array() {
        return Ok(Verdict::Fails(format!("it answers {}", compact_json(&response))));
    }
    let all = conn.read_list("tools/list", "tools").await?;
    let bad = all.iter().find(|tool| !(tool["name"].is_string() && tool["inputSchema"].is_object()));
    Ok(bad.map_or(Verdict::Holds, |tool| Verdict::Fails(format!("this is not one: {}", compact_json(tool)))))
}

async fn pages(probe: Probe) -> Outcome {
    if !probe.facts.offers("tools") {
        return Ok(Verdict::Skipped("it offers no tools".to_owned()));
    }
    let mut conn = probe.open().await?;
    let mut cursor = conn.ask("tools/list", json!({})).await?["result"]["nextCursor"].take();
    if cursor.is_null() {
        return Ok(Verdict::Skipped("its list has one page".to_owned()));
    }
    let mut seen = HashSet::new();
    while let Some(text) = cursor.as_str() {
        if !seen.insert(text.to_owned()) {
            return Ok(Verdict::Fails(format!("the cursor {text:?} comes again: the list has no end")));
        }
        let response = conn.ask("tools/list", json!({ "cursor": text })).await?;
        if !response["result"]["tools"].is_array() {
            return Ok(Verdict::Fails(format!("its own cursor {text:?} is answered with {}", compact_json(&response))));
        }
        cursor = response["result"]["nextCursor"].clone();
    }
    Ok(Verdict::holds_if(cursor.is_null(), || format!("nextCursor is {}", compact_json(&cursor))))
}

async fn unique(probe: Probe) -> Outcome {
    let mut seen = HashSet::new();
    let twice = tools_of!(probe).iter().find(|tool| !seen.insert(tool["name"].to_string()));
    Ok(twice.map_or(Verdict::Holds, |tool| Verdict::Fails(format!("{} is there twice", tool["name"]))))
}

async fn names(probe: Probe) -> Outcome {
    let fits = |name: &str| {
        (1..=128).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
    };
    let bad = tools_of!(probe).iter().find(|tool| !tool["name"].as_str().is_some_and(fits));
    Ok(bad.map_or(Verdict::Holds, |tool| Verdict::Fails(format!("{} is none", compact_json(&tool["name"])))))
}

async fn input_root(probe: Probe) -> Outcome {
    let bad =
        tools_of!(probe).iter().find(|tool| tool["inputSchema"].is_object() && tool["inputSchema"]["type"] != "object");
    Ok(bad.map_or(Verdict::Holds, |tool| {
        Verdict::Fails(format!("that of {} has the type {}", tool["name"], compact_json(&tool["inputSchema"]["type"])))
    }))
}

async fn schemas(probe: Probe) -> Outcome {
    for tool in tools_of!(probe) {
        for key in ["inputSchema", "outputSchema"] {
            // External references are not fetched, so such schemas are not checked.
            let refers = |schema: &Value| schema.to_string().contains("\"$ref\":\"http");
            if let Some(schema) = tool.get(key).filter(|schema| schema.is_object() && !refers(schema))
                && let Err(error) = jsonschema::validator_for(schema)
            {
                let why: String = error.to_string().chars().take(200).collect();
                return Ok(Verdict::Fails(format!("{key} of {}: {why}", tool["name"])));
            }
        }
    }
    Ok(Verdict::Holds)
}

async fn stable(probe: Probe) -> Outcome {
    tools_of!(probe);
    let mut conn = probe.open().await?;
    let first = conn.read_list("tools/list", "tools").await?;
    let second = conn.read_list("tools/list", "tools").await?;
    let names = |tools: &[Value]| tools.iter().map(|tool| tool["name"].clone()).collect::<Vec<_>>();
    Ok(Verdict::holds_if(first == second, || {
        format!("first {}, then {}", compact_json(&json!(names(&first))), compact_json(&json!(names(&second))))
    }))
}

async fn bad_cursor(probe: Probe) -> Outcome {
    tools_of!(probe);
    let response = probe.open().await?.ask("tools/list", json!({ "cursor": "check-no-such-cursor" })).await?;
    Ok(Verdict::holds_if(error_code(&response) == Some(-32602), || format!("it answers {}", compact_json(&response))))
}

async fn annotations(probe: Probe) -> Outcome {
    let hints = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];
    let bad = tools_of!(probe).iter().find(|tool| {
        let all = &tool["annotations"];
        hints.iter().any(|hint| all.get(*hint).is_some_and(|value| !value.is_boolean()))
    });
    Ok(bad.map_or(Verdict::Holds, |tool| {
        Verdict::Fails(format!("{}: {}", tool["name"], compact_json(&tool["annotations"])))
    }))
}

/// Returns the tools that may be called.
fn callable(probe: &Probe) -> Vec<&Value> {
    let reads = |tool: &&Value| probe.options.allow_writes || tool["annotations"]["readOnlyHint"] == true;
    probe.facts.tools.iter().filter(reads).take(MAX_CALLED_TOOLS).collect()
}

pub(super) fn skip_without_calls() -> Verdict {
    Verdict::Skipped("no tool says that it only reads (--allow-writes calls the others too)".to_owned())
}

async fn arguments(probe: Probe) -> Outcome {
    // Only a required argument can be missing, and only a typed one can have a wrong type.
    let broken = |schema: &Value| -> Option<Value> {
        let required = schema["required"].as_array().filter(|all| !all.is_empty());
        if required.is_some() {
            return Some(json!({}));
        }
        let (name, property) = schema["properties"]
            .as_object()?
            .iter()
            .find(|(_, property)| property["type"] == "string" || property["type"] == "integer")?;
        let wrong = if property["type"] == "string" { json!({ "check": [] }) } else { json!("not a number") };
        Some(json!({ name.as_str(): wrong }))
    };
    let Some((tool, wrong)) = callable(&probe).into_iter().find_map(|tool| Some((tool, broken(&tool["inputSchema"])?)))
    else {
        return Ok(Verdict::Skipped("no tool that may be called has arguments that could be wrong".to_owned()));
    };
    let params = json!({ "name": tool["name"], "arguments": wrong });
    let response = probe.open().await?.ask("tools/call", params).await?;
    let refused = response.get("error").is_some() || response["result"]["isError"] == true;
    Ok(Verdict::holds_if(refused, || {
        format!("{} takes {wrong} and answers {}", tool["name"], compact_json(&response["result"]))
    }))
}

/// Generates arguments that match a schema, if possible.
fn generate_arguments(schema: &Value, depth: u8) -> Option<Value> {
    if depth > 4 {
        return None;
    }
    for key in ["const", "default"] {
        if let Some(value) = schema.get(key) {
            return Some(value.clone());
        }
    }
    if let Some(value) = schema["enum"].as_array().and_then(|all| all.first()) {
        return Some(value.clone());
    }
    if let Some(value) = schema["examples"].as_array().and_then(|all| all.first()) {
        return Some(value.clone());
    }
    Some(match schema["type"].as_str()? {
        "object" => {
            let mut object = Map::new();
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                object.insert(name.to_owned(), generate_arguments(&schema["properties"][name], depth + 1)?);
            }
            Value::Object(object)
        }
        "array" => json!([]),
        "string" if schema.get("pattern").is_some() || schema.get("format").is_some() => return None,
        "string" => "check".repeat(1 + usize::try_from(schema["minLength"].as_u64().unwrap_or(0)).ok()? / 5).into(),
        "integer" | "number" => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
        "boolean" => json!(false),
        "null" => Value::Null,
        _ => return None,
    })
}

/// Returns the tools that may be called, with arguments that match their schemas.
pub(super) fn safe_calls(probe: &Probe) -> Vec<(&Value, Value)> {
    let fitting = |tool: &'_ Value| {
        let arguments = generate_arguments(&tool["inputSchema"], 0)?;
        let schema = jsonschema::validator_for(&tool["inputSchema"]).ok()?;
        schema.is_valid(&arguments).then_some(arguments)
    };
    callable(probe).into_iter().filter_map(|tool| Some((tool, fitting(tool)?))).collect()
}

/// Calls these tools and returns their results.
async fn call_results<'p>(conn: &mut Conn, probe: &'p Probe) -> Result<Vec<(&'p Value, Value)>, ProbeError> {
    let mut all = Vec::new();
    for (tool, arguments) in safe_calls(probe) {
        let mut response = conn.ask("tools/call", json!({ "name": tool["name"], "arguments": arguments })).await?;
        let result = response["result"].take();
        // A request for input or a task is not a result yet.
        if result.is_object() && matches!(result["resultType"].as_str(), None | Some("complete")) {
            all.push((tool, result));
        }
    }
    Ok(all)
}

macro_rules! results_of {
    ($probe:expr) => {{
        let all = call_results(&mut $probe.open().await?, &$probe).await?;
        if all.is_empty() {
            return Ok(skip_without_calls());
        }
        all
    }};
}

async fn content(probe: Probe) -> Outcome {
    for (tool, result) in results_of!(probe) {
        let Some(blocks) = result["content"].as_array() else {
            return Ok(Verdict::Fails(format!("{} answers without content: {}", tool["name"], compact_json(&result))));
        };
        if let Some(block) = blocks.iter().find(|block| !is_block(block)) {
            return Ok(Verdict::Fails(format!("{} answers with {}", tool["name"], compact_json(block))));
        }
    }
    Ok(Verdict::Holds)
}

/// Returns `true` for a content block of a known type with all required members.
pub(super) fn is_block(block: &Value) -> bool {
    let text = |name: &str| block[name].is_string();
    match block["type"].as_str() {
        Some("text") => text("text"),
        Some("image" | "audio") => text("data") && text("mimeType"),
        Some("resource") => super::lists::is_contents(&block["resource"]),
        Some("resource_link") => text("uri") && text("name"),
        _ => false,
    }
}

async fn is_error(probe: Probe) -> Outcome {
    let all = results_of!(probe);
    let bad = all.iter().find(|(_, result)| result.get("isError").is_some_and(|value| !value.is_boolean()));
    Ok(bad.map_or(Verdict::Holds, |(tool, result)| {
        Verdict::Fails(format!("{} answers with {}", tool["name"], compact_json(&result["isError"])))
    }))
}

async fn structured(probe: Probe) -> Outcome {
    let mut looked_at = false;
    for (tool, result) in results_of!(probe) {
        let Some(schema) = tool.get("outputSchema").filter(|schema| schema.is_object()) else { continue };
        if result["isError"] == true {
            continue;
        }
        looked_at = true;
        let Some(structured) = result.get("structuredContent") else {
            return Ok(Verdict::Fails(format!("{} has an output schema and answers without it", tool["name"])));
        };
        if let Ok(validator) = jsonschema::validator_for(schema)
            && let Err(error) = validator.validate(structured)
        {
            let why: String = error.to_string().chars().take(200).collect();
            return Ok(Verdict::Fails(format!("{} answers with what its schema refuses: {why}", tool["name"])));
        }
    }
    Ok(if looked_at {
        Verdict::Holds
    } else {
        Verdict::Skipped("no tool that was called has an output schema".to_owned())
    })
}

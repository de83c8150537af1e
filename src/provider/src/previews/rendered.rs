//! The answer of a tool: as a value whose parts expressions take, and as the text that is shown.

use serde_json::Value;

use super::fault::Fault;
use crate::ToolResult;
use countersign_domain::{
    policy::{Condition, ConditionFault, values},
    recipes::{FIRST_TEXT, Pick, Shown},
};

/// Bytes and values that expressions of a recipe look at, and what one evaluation may spend.
const MAX_BYTES: usize = 4 << 20;
const MAX_VALUES: usize = 100_000;
const MAX_STEPS: u64 = 1_000_000;

/// The arguments, for expressions.
pub fn arguments(text: &str) -> Result<cel::Value, Fault> {
    values::within(text, MAX_BYTES, MAX_VALUES).map_err(|fault| Fault::of_expression("arguments", &fault))
}

/// What an expression comes to, as JSON with the keys of objects in order.
pub fn evaluate(what: &str, expression: &Condition, variables: &[(&str, &cel::Value)]) -> Result<Value, Fault> {
    let fault = |fault: &ConditionFault| Fault::of_expression(what, fault);
    let value = expression.value(variables, MAX_STEPS).map_err(|e| fault(&e))?;
    let mut value = value.json().map_err(|_| fault(&ConditionFault::Other))?;
    value.sort_all_objects();
    Ok(value)
}

/// JSON, for expressions.
pub fn value(what: &str, json: &Value) -> Result<cel::Value, Fault> {
    if let Value::String(text) = json {
        return Ok(text.clone().into());
    }
    values::within(&json.to_string(), MAX_BYTES, MAX_VALUES).map_err(|fault| Fault::of_expression(what, &fault))
}

/// What counts of a result.
pub fn picked(
    tool: &str,
    result: &ToolResult,
    (pick, shown): (&Pick, Shown),
    arguments: &cel::Value,
) -> Result<Value, Fault> {
    let pointer = if pick.pointer.is_empty() { FIRST_TEXT } else { &pick.pointer };
    let mut found = find(result, pointer)
        .ok_or_else(|| Fault::new("pointer", format!("the answer of {tool} has nothing at {pointer}")))?;
    if let Some(keep) = &pick.keep {
        let looked_at = value("keep", &found)?;
        found = evaluate("keep", keep, &[("arguments", arguments), ("found", &looked_at)])?;
    }
    if let Some(pattern) = &pick.lines {
        let Value::String(text) = &found else {
            return Err(Fault::new("pointer", format!("what the answer of {tool} has at {pointer} is not text")));
        };
        let kept: Vec<&str> = text.split('\n').filter(|line| pattern.0.is_match(line)).collect();
        found = kept.join("\n").into();
    }
    if let Some(paths) = &pick.paths {
        let named = named(&evaluate("paths", paths, &[("arguments", arguments)])?)?;
        let Value::String(text) = &found else {
            return Err(Fault::new("pointer", format!("what the answer of {tool} has at {pointer} is not text")));
        };
        found = super::named::part(text, &named, shown).into();
    }
    found.sort_all_objects();
    Ok(found)
}

fn named(paths: &Value) -> Result<Vec<String>, Fault> {
    let texts = paths.as_array().map(|all| all.iter().map(|path| path.as_str().map(str::to_owned)).collect());
    texts.flatten().ok_or_else(|| Fault::new("paths", "`paths` does not give a list of texts"))
}

fn find(result: &ToolResult, pointer: &str) -> Option<Value> {
    let (first, rest) = match pointer.get(1..)?.split_once('/') {
        Some((first, _)) => (first, pointer.get(first.len() + 1..)?),
        None => (pointer.get(1..)?, ""),
    };
    let raw = match first {
        "content" => Some(&result.content),
        "structuredContent" => result.structured_content.as_ref(),
        _ => None,
    }?;
    let value: Value = serde_json::from_str(raw.get()).ok()?;
    value.pointer(rest).cloned()
}

/// What is shown of a value; nothing of null.
pub fn text(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(serde_json::to_string_pretty(&other).unwrap_or_default()),
    }
}

/// The texts of a result, one after the other: what it says of an error.
pub fn said_text(result: &ToolResult) -> String {
    crate::text::content_text(&result.content)
}

//! Answers of tools: as values for expressions, and as text for reviewers.

use serde_json::Value;

use super::fault::Fault;
use crate::ToolResult;
use countersign_domain::{
    policy::{Condition, ConditionFault, values},
    recipes::{DisplayFormat, FIRST_TEXT, ResultSelector},
};

/// Limits of the input of an expression, and of the steps of one evaluation.
const MAX_BYTES: usize = 4 << 20;
const MAX_VALUES: usize = 100_000;
const MAX_STEPS: u64 = 1_000_000;

/// Parses the arguments for use in expressions.
pub fn parse_arguments(text: &str) -> Result<cel::Value, Fault> {
    values::arguments_within(text, MAX_BYTES, MAX_VALUES).map_err(|fault| Fault::from_expression("arguments", &fault))
}

/// Evaluates an expression to JSON with sorted keys. `name` stands for the expression in errors.
pub fn evaluate(name: &str, expression: &Condition, variables: &[(&str, &cel::Value)]) -> Result<Value, Fault> {
    let fault = |fault: &ConditionFault| Fault::from_expression(name, fault);
    let value = expression.evaluate(variables, MAX_STEPS).map_err(|e| fault(&e))?;
    let mut value = value.json().map_err(|_| fault(&ConditionFault::Other))?;
    value.sort_all_objects();
    Ok(value)
}

/// Converts JSON for use in expressions.
pub fn to_cel_value(name: &str, json: &Value) -> Result<cel::Value, Fault> {
    if let Value::String(text) = json {
        return Ok(text.clone().into());
    }
    let text = json.to_string();
    values::arguments_within(&text, MAX_BYTES, MAX_VALUES).map_err(|fault| Fault::from_expression(name, &fault))
}

/// Extracts the value that the recipe picks from a tool's result.
pub fn pick_value(
    tool: &str,
    result: &ToolResult,
    (pick, display_format): (&ResultSelector, DisplayFormat),
    arguments: &cel::Value,
) -> Result<Value, Fault> {
    let pointer = if pick.pointer.is_empty() { FIRST_TEXT } else { &pick.pointer };
    let mut picked = value_at(result, pointer)
        .ok_or_else(|| Fault::new("pointer", format!("the answer of {tool} has nothing at {pointer}")))?;
    if let Some(keep) = &pick.keep {
        let input = to_cel_value("keep", &picked)?;
        picked = evaluate("keep", keep, &[("arguments", arguments), ("found", &input)])?;
    }
    if let Some(pattern) = &pick.lines {
        let Value::String(text) = &picked else {
            return Err(Fault::new("pointer", format!("what the answer of {tool} has at {pointer} is not text")));
        };
        let matching: Vec<&str> = text.split('\n').filter(|line| pattern.0.is_match(line)).collect();
        picked = matching.join("\n").into();
    }
    if let Some(paths) = &pick.paths {
        let paths = parse_path_list(&evaluate("paths", paths, &[("arguments", arguments)])?)?;
        let Value::String(text) = &picked else {
            return Err(Fault::new("pointer", format!("what the answer of {tool} has at {pointer} is not text")));
        };
        picked = super::path_filter::filter_by_paths(text, &paths, display_format).into();
    }
    picked.sort_all_objects();
    Ok(picked)
}

fn parse_path_list(paths: &Value) -> Result<Vec<String>, Fault> {
    let texts = paths.as_array().map(|all| all.iter().map(|path| path.as_str().map(str::to_owned)).collect());
    texts.flatten().ok_or_else(|| Fault::new("paths", "`paths` does not give a list of texts"))
}

fn value_at(result: &ToolResult, pointer: &str) -> Option<Value> {
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

/// Returns a value as text for the preview, or `None` for null.
pub fn display_text(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(serde_json::to_string_pretty(&other).unwrap_or_default()),
    }
}

//! Checks a call's arguments against the tool's input schema (JSON Schema 2020-12, compiled once, formats asserted,
//! network `$ref` off).

use serde_json::{Value, json, value::RawValue};

use crate::{
    protocol::{ErrorKind, McpError},
    router::ToolRoute,
};

/// Failures named at most.
const MAX_FAULTS: usize = 10;

/// # Errors
/// `VALIDATION_FAILED` with `details`: for each failure the JSON pointer into the arguments, the rule that failed and
/// a message.
pub fn check(route: &ToolRoute, arguments: &RawValue) -> Result<(), McpError> {
    let value: Value = serde_json::from_str(arguments.get())
        .map_err(|e| McpError::new(ErrorKind::ValidationFailed, format!("the arguments cannot be read: {e}")))?;
    let Some(input) = route.input()? else { return Ok(()) };
    if input.is_valid(&value) {
        return Ok(());
    }
    let faults: Vec<Value> = input
        .iter_errors(&value)
        .take(MAX_FAULTS)
        .map(|e| {
            json!({
                "pointer": e.instance_path().to_string(),
                "rule": e.kind().keyword(),
                "message": bounded(&e.to_string()),
            })
        })
        .collect();
    let first = faults.first().cloned().unwrap_or_default();
    let at = first["pointer"].as_str().filter(|p| !p.is_empty()).unwrap_or("the arguments");
    let message = format!("invalid arguments for {}: {at}: {}", route.name, first["message"].as_str().unwrap_or(""));
    Err(McpError::new(ErrorKind::ValidationFailed, message).with("tool", route.name.clone()).with("details", faults))
}

/// The validator quotes what it was given, which may be megabytes.
fn bounded(message: &str) -> String {
    const MAX: usize = 300;
    if message.chars().count() <= MAX {
        return message.to_owned();
    }
    message.chars().take(MAX).chain("…".chars()).collect()
}

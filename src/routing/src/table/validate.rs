//! Checks a call's arguments against the tool's input schema (JSON Schema 2020-12, compiled once, formats asserted,
//! network `$ref` off).

use jsonschema::{ValidationError, error::ValidationErrorKind as Kind};
use serde_json::{Value, json, value::RawValue};

use super::ToolRoute;
use countersign_protocol::{ErrorKind, McpError, suggest};

/// Failures named at most.
const MAX_FAULTS: usize = 10;
/// Characters of a message. What may stand there is listed whole, as far as this goes.
const MAX_MESSAGE: usize = 300;
const MAX_CHOICES: usize = 8000;

/// # Errors
/// `VALIDATION_FAILED` with `details.errors`: for each failure the JSON pointer into the arguments, the rule that failed
/// and a message.
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
                "message": message(&e, &route.def.input_schema),
            })
        })
        .collect();
    let first = faults.first().cloned().unwrap_or_default();
    let at = first["pointer"].as_str().filter(|p| !p.is_empty()).unwrap_or("the arguments");
    let message = format!("invalid arguments for {}: {at}: {}", route.name, first["message"].as_str().unwrap_or(""));
    Err(McpError::invalid(message, faults).with("tool", route.name.clone()))
}

/// What is wrong, with all values that may stand there, and with the name that was probably meant.
pub fn message(error: &ValidationError<'_>, schema: &Value) -> String {
    if let Some(choices) = choices(error.kind()) {
        let shown = bounded(&error.instance().to_string(), 100);
        let near = match error.instance().as_ref() {
            Value::String(text) => suggest::nearest(text, choices.iter().filter_map(|choice| choice.as_str())),
            _ => None,
        };
        let all: Vec<String> = choices.iter().map(|choice| choice.to_string()).collect();
        let meant = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
        return format!("{shown} is not one of {}{meant}", bounded(&all.join(", "), MAX_CHOICES));
    }
    let told = bounded(&error.to_string(), MAX_MESSAGE);
    let (Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected }) = error.kind() else {
        return told;
    };
    // What may stand there is what the schema that refused it names.
    let path = error.schema_path().to_string();
    let beside = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let Some(Value::Object(known)) = schema.pointer(&format!("{beside}/properties")) else { return told };
    let meant: Vec<String> = unexpected
        .iter()
        .take(MAX_FAULTS)
        .filter_map(|name| suggest::nearest(name, known.keys().map(String::as_str)))
        .map(|near| format!("`{near}`"))
        .collect();
    if meant.is_empty() { told } else { format!("{told}; did you mean {}?", meant.join(", ")) }
}

/// The values that may stand there, where a list of them is what was broken. One of several schemas may be such a list.
fn choices<'a>(kind: &'a Kind) -> Option<Vec<&'a Value>> {
    match kind {
        Kind::Enum { options } => options.as_array().map(|options| options.iter().collect()),
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
            let mut all: Vec<&'a Value> = Vec::new();
            for error in context.iter().flatten() {
                match error.kind() {
                    Kind::Enum { options } => all.extend(options.as_array()?),
                    Kind::Constant { expected_value } => all.push(expected_value),
                    _ => return None,
                }
            }
            (!all.is_empty()).then_some(all)
        }
        _ => None,
    }
}

/// The validator quotes what it was given, which may be megabytes.
fn bounded(message: &str, most: usize) -> String {
    if message.chars().count() <= most {
        return message.to_owned();
    }
    message.chars().take(most).chain("…".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(schema: &Value, arguments: &Value) -> String {
        let validator = jsonschema::options().build(schema).unwrap();
        message(&validator.iter_errors(arguments).next().unwrap(), schema)
    }

    #[test]
    fn a_choice_lists_all_values() {
        let words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"];
        let schema = json!({ "properties": { "x": { "enum": words }, "y": { "anyOf": [{ "enum": ["a", 1] }, { "const": null }] } } });
        assert_eq!(
            told(&schema, &json!({ "x": "gama" })),
            "\"gama\" is not one of \"alpha\", \"beta\", \"gamma\", \"delta\", \"epsilon\", \"zeta\", \"eta\"; \
             did you mean \"gamma\"?"
        );
        assert_eq!(told(&schema, &json!({ "x": 7 })).matches("eta").count(), 3);
        assert_eq!(told(&schema, &json!({ "y": "b" })), "\"b\" is not one of \"a\", 1, null");
        let long = "x".repeat(5000);
        assert!(told(&schema, &json!({ "x": long })).chars().count() < 300);
    }

    #[test]
    fn an_unknown_argument_gets_a_suggestion_where_one_is_near() {
        let schema = json!({
            "properties": {
                "projectId": {},
                "nested": { "$ref": "#/$defs/inner" },
            },
            "additionalProperties": false,
            "$defs": { "inner": { "properties": { "title": {} }, "additionalProperties": false } },
        });
        assert!(told(&schema, &json!({ "project_id": 1 })).ends_with("; did you mean `projectId`?"));
        assert!(told(&schema, &json!({ "nested": { "titel": 1 } })).ends_with("; did you mean `title`?"));
        assert!(!told(&schema, &json!({ "other": 1 })).contains("mean"));
    }
}

//! Checks a call's arguments against the tool's input schema (JSON Schema 2020-12, compiled once, formats asserted,
//! remote `$ref` disabled).

use jsonschema::{Draft, ValidationError, error::ValidationErrorKind as Kind};
use serde_json::{Value, json, value::RawValue};

use super::ToolRoute;
use countersign_domain::text::{shorten, truncate};
use countersign_protocol::{ErrorKind, McpError, redact::redact, suggest};
use countersign_provider::{
    ToolDef,
    compiled_schema::{CompiledSchema, PatternEngine},
    schema_cost,
};

/// Maximum number of failures reported.
const MAX_FAULTS: usize = 10;
/// Maximum number of characters of a message from the validator, which quotes its input of up to megabytes.
const MAX_MESSAGE_CHARS: usize = 300;
/// Maximum number of characters of a list of allowed values.
const MAX_CHOICES_CHARS: usize = 8000;

/// Compiles the input schema of a tool; `None` if checking it could take too long ([`ToolRoute::compiled_schema`]).
pub(super) fn compile_schema(def: &ToolDef) -> Result<Option<CompiledSchema>, String> {
    let skip_checks = || {
        tracing::warn!(tool = %def.name, "the input schema of the tool is too complex to check; only its server checks the arguments");
        Ok(None)
    };
    if def.raw.is_some() && !schema_cost::is_bounded(&def.input_schema) {
        return skip_checks();
    }
    // An upstream may declare another dialect; without a declaration, 2020-12 applies
    // (2025-11-25/basic/index#json-schema-usage).
    let draft = if def.raw.is_some() { None } else { Some(Draft::Draft202012) };
    let compile = |engine| CompiledSchema::compile(&def.input_schema, draft, engine);
    match compile(PatternEngine::Linear) {
        Ok(schema) => Ok(Some(schema)),
        // Patterns with look-around or back-references are accepted as well.
        Err(_) if def.raw.is_some() && compile(PatternEngine::Backtracking).is_ok() => skip_checks(),
        Err(error) => Err(truncate(&redact(&error.to_string()), 500).to_owned()),
    }
}

/// Checks the arguments of a call.
///
/// # Errors
/// `VALIDATION_FAILED` with `details.errors`: the JSON pointer into the arguments, the violated rule and a message for
/// each failure.
pub fn check_arguments(route: &ToolRoute, arguments: &RawValue) -> Result<(), McpError> {
    let value: Value = arguments
        .get()
        .parse()
        .map_err(|e| McpError::new(ErrorKind::ValidationFailed, format!("the arguments cannot be read: {e}")))?;
    let Some(schema) = route.compiled_schema()? else { return Ok(()) };
    if schema.is_valid(&value) {
        return Ok(());
    }
    let faults: Vec<Value> = schema
        .iter_errors(&value)
        .take(MAX_FAULTS)
        .map(|e| {
            json!({
                "pointer": e.instance_path().to_string(),
                "rule": e.kind().keyword(),
                "message": fault_message(&e, &route.def.input_schema),
            })
        })
        .collect();
    let first = faults.first().cloned().unwrap_or_default();
    let location = first["pointer"].as_str().filter(|p| !p.is_empty()).unwrap_or("the arguments");
    let message =
        format!("invalid arguments for {}: {location}: {}", route.name, first["message"].as_str().unwrap_or(""));
    Err(McpError::validation_failed(message, faults).with("tool", route.name.clone()))
}

/// Describes a failure, with all allowed values and the name that was probably meant.
pub fn fault_message(error: &ValidationError<'_>, schema: &Value) -> String {
    if let Some(choices) = choices(error.kind()) {
        let shown_value = shorten(&error.instance().to_string(), 100);
        let nearest = match error.instance().as_ref() {
            Value::String(text) => suggest::nearest(text, choices.iter().filter_map(|choice| choice.as_str())),
            _ => None,
        };
        let allowed_values: Vec<String> = choices.iter().map(|choice| choice.to_string()).collect();
        let suggestion = nearest.map(|nearest| format!("; did you mean {nearest:?}?")).unwrap_or_default();
        return format!(
            "{shown_value} is not one of {}{suggestion}",
            shorten(&allowed_values.join(", "), MAX_CHOICES_CHARS)
        );
    }
    let text = shorten(&error.to_string(), MAX_MESSAGE_CHARS);
    let (Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected }) = error.kind() else {
        return text;
    };
    // The suggestions are properties of the schema that rejected the name.
    let path = error.schema_path().to_string();
    let parent_path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let Some(Value::Object(properties)) = schema.pointer(&format!("{parent_path}/properties")) else { return text };
    let suggestion: Vec<String> = unexpected
        .iter()
        .take(MAX_FAULTS)
        .filter_map(|name| suggest::nearest(name, properties.keys().map(String::as_str)))
        .map(|nearest| format!("`{nearest}`"))
        .collect();
    if suggestion.is_empty() { text } else { format!("{text}; did you mean {}?", suggestion.join(", ")) }
}

/// Returns the allowed values if the violated rule is a list of values, or an alternative of such lists.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn message_for(schema: &Value, arguments: &Value) -> String {
        let compiled_schema = CompiledSchema::compile(schema, None, PatternEngine::Linear).unwrap();
        fault_message(&compiled_schema.iter_errors(arguments).next().unwrap(), schema)
    }

    #[test]
    fn enum_failure_lists_allowed_values() {
        let words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"];
        let schema = json!({ "properties": { "x": { "enum": words }, "y": { "anyOf": [{ "enum": ["a", 1] }, { "const": null }] } } });
        assert_eq!(
            message_for(&schema, &json!({ "x": "gama" })),
            "\"gama\" is not one of \"alpha\", \"beta\", \"gamma\", \"delta\", \"epsilon\", \"zeta\", \"eta\"; \
             did you mean \"gamma\"?"
        );
        assert_eq!(message_for(&schema, &json!({ "x": 7 })).matches("eta").count(), 3);
        assert_eq!(message_for(&schema, &json!({ "y": "b" })), "\"b\" is not one of \"a\", 1, null");
        let long = "x".repeat(5000);
        assert!(message_for(&schema, &json!({ "x": long })).chars().count() < 300);
    }

    #[test]
    fn unknown_argument_suggests_similar_name() {
        let schema = json!({
            "properties": {
                "projectId": {},
                "nested": { "$ref": "#/$defs/inner" },
            },
            "additionalProperties": false,
            "$defs": { "inner": { "properties": { "title": {} }, "additionalProperties": false } },
        });
        assert!(message_for(&schema, &json!({ "project_id": 1 })).ends_with("; did you mean `projectId`?"));
        assert!(message_for(&schema, &json!({ "nested": { "titel": 1 } })).ends_with("; did you mean `title`?"));
        assert!(!message_for(&schema, &json!({ "other": 1 })).contains("mean"));
    }

    #[test]
    fn schema_with_nonlinear_pattern_is_unchecked() {
        let def = |pattern: &str| {
            let def = countersign_provider::testing::tool("t", &json!({ "a": { "items": { "pattern": pattern } } }));
            ToolDef { raw: Some(Arc::from(RawValue::from_string("{}".to_owned()).unwrap())), ..def }
        };
        assert!(compile_schema(&def("^(a+)+$")).unwrap().is_some());
        // Matching these patterns needs backtracking for each item.
        for pattern in ["^((?=a)a|a)*$", "^(a|a)*\\1$"] {
            assert!(compile_schema(&def(pattern)).unwrap().is_none(), "{pattern}");
        }
        assert!(compile_schema(&def("(")).is_err(), "an invalid pattern is an error");
    }
}

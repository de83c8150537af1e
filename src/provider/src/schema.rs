//! Derives the schemas of a module's tools from the types of their arguments and answers, and parses arguments as these
//! types.
//!
//! The doc comment of a field is what clients read: `# Title` in its first line, and the description below it.

use std::{fmt::Display, ops::Deref};

use schemars::{
    JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema, transform::RecursiveTransform,
};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};
use serde_path_to_error::{Path, Segment};

use crate::{ToolDef, text::invalid_argument};
use countersign_protocol::{McpError, annotations::ToolAnnotations};

/// Marks schemas that allow null.
const NULLABLE: &str = "x-nullable";
/// Separates the rule from the message in the text of an [`ArgumentError`].
const SEPARATOR: char = '\u{1f}';

impl ToolDef {
    /// Defines a tool of a module that takes arguments of the type `A` and answers with the type `R`.
    pub fn for_types<A: JsonSchema, R: JsonSchema>(
        name: &str,
        title: &str,
        description: &str,
        annotations: ToolAnnotations,
    ) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            description: description.to_owned(),
            input_schema: input_schema::<A>(),
            output_schema: Some(output_schema::<R>()),
            annotations,
            ..Self::default()
        }
    }
}

fn input_schema<A: JsonSchema>() -> Value {
    derive_schema::<A>(SchemaSettings::draft2020_12())
}

/// Derives the schema of answers of the type `R`. It refuses members that the type does not have, unless the type has the
/// attribute `#[schemars(extend("additionalProperties" = true))]`.
pub fn output_schema<R: JsonSchema>() -> Value {
    derive_schema::<R>(SchemaSettings::draft2020_12().for_serialize())
}

fn derive_schema<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let settings = settings.with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let tidy = RecursiveTransform(|schema: &mut Schema| {
        // The formats of numbers are names of Rust types.
        let is_rust = |format: &str| format.starts_with("int") || format.starts_with("uint") || format == "double";
        if schema.get("format").and_then(Value::as_str).is_some_and(is_rust) {
            schema.remove("format");
        }
        if let Some(Value::String(description)) = schema.get_mut("description") {
            *description = description.replace('\n', " ");
        }
        if schema.get("properties").is_some() {
            if schema.get("additionalProperties") == Some(&Value::Bool(true)) {
                schema.remove("additionalProperties");
            } else {
                schema.insert("additionalProperties".to_owned(), false.into());
            }
        }
    });
    let mut schema = settings.with_transform(tidy).into_generator().into_root_schema_for::<T>();
    schema.remove("title");
    schema.remove("description");
    let required = schema.get("required").cloned().unwrap_or_default();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            let Some(property) = property.as_object_mut() else { continue };
            let is_required = required.as_array().is_some_and(|all| all.iter().any(|required| required == name));
            if property.remove(NULLABLE).is_none() && !is_required {
                remove_null(property);
            }
        }
    }
    schema.into()
}

/// Removes null from the values of an optional member, because callers leave the member out instead.
fn remove_null(schema: &mut Map<String, Value>) {
    let is_null = |value: &Value| value.is_null() || value == "null" || value["type"] == "null";
    for keyword in ["type", "enum", "anyOf"] {
        let Some(Value::Array(values)) = schema.get_mut(keyword) else { continue };
        values.retain(|value| !is_null(value));
        match (keyword, values.as_mut_slice()) {
            ("type", [only_type]) => {
                let only_type = only_type.take();
                schema.insert(keyword.to_owned(), only_type);
            }
            ("anyOf", [Value::Object(only_schema)]) => {
                let only_schema = std::mem::take(only_schema);
                schema.remove(keyword);
                schema.extend(only_schema);
            }
            _ => {}
        }
    }
}

/// Parses the arguments of a call.
///
/// # Errors
/// `VALIDATION_FAILED` with the JSON pointer to the argument that does not fit the type.
pub fn parse_arguments<A: DeserializeOwned>(arguments: &RawValue) -> Result<A, McpError> {
    // The path is only tracked after a failure.
    serde_json::from_str(arguments.get()).or_else(|_| {
        let mut json = serde_json::Deserializer::from_str(arguments.get());
        serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let (mut pointer, path) = (pointer_to(error.path()), error.path().to_string());
            let name = if path == "." { "" } else { path.as_str() };
            let error = error.inner();
            let text = error.to_string();
            let text = text.trim_end_matches(&format!(" at line {} column {}", error.line(), error.column()));
            if let Some((rule, message)) = text.split_once(SEPARATOR) {
                return invalid_argument(&pointer, rule, format!("{name} {message}"));
            }
            let missing = text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
            if let Some(missing) = missing {
                push_to_pointer(&mut pointer, missing);
            }
            let rule = if missing.is_some() { "required" } else { "type" };
            invalid_argument(&pointer, rule, format!("The arguments do not fit the tool's input schema: {text}."))
        })
    })
}

/// Returns the JSON pointer (RFC 6901) of a path.
fn pointer_to(path: &Path) -> String {
    let mut pointer = String::new();
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => push_to_pointer(&mut pointer, &index.to_string()),
            Segment::Map { key } => push_to_pointer(&mut pointer, key),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    pointer
}

/// Appends a token to a JSON pointer.
pub(crate) fn push_to_pointer(pointer: &mut String, token: &str) {
    pointer.push('/');
    pointer.push_str(&token.replace('~', "~0").replace('/', "~1"));
}

/// The reason why a value is not a valid argument: the broken rule, and a message that continues after the argument's
/// name.
#[derive(Debug, thiserror::Error)]
#[error("{rule}{SEPARATOR}{message}")]
pub struct ArgumentError {
    rule: &'static str,
    message: String,
}

impl ArgumentError {
    pub fn new(rule: &'static str, message: impl Display) -> Self {
        Self { rule, message: message.to_string() }
    }
}

/// A text of at most `MAX` characters; it is not blank if `MIN` is 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Text<const MIN: usize, const MAX: usize>(String);

impl<const MIN: usize, const MAX: usize> TryFrom<String> for Text<MIN, MAX> {
    type Error = ArgumentError;

    fn try_from(text: String) -> Result<Self, ArgumentError> {
        // Bytes bound characters from above, so most texts need no count.
        if text.len() > MAX && text.chars().count() > MAX {
            return Err(ArgumentError::new("maxLength", format_args!("may have at most {MAX} characters.")));
        }
        if text.contains('\0') {
            return Err(ArgumentError::new("pattern", "may not contain the character U+0000."));
        }
        if MIN > 0 && text.trim().is_empty() {
            return Err(ArgumentError::new("minLength", "must not be empty."));
        }
        Ok(Self(text))
    }
}

impl<const MIN: usize, const MAX: usize> Deref for Text<MIN, MAX> {
    type Target = String;

    fn deref(&self) -> &String {
        &self.0
    }
}

impl<const MIN: usize, const MAX: usize> JsonSchema for Text<MIN, MAX> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Text_{MIN}_{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({ "type": "string", "maxLength": MAX });
        if MIN > 0 {
            schema.insert("minLength".to_owned(), MIN.into());
        }
        schema
    }
}

/// A number from 1 to `MAX`, or `DEFAULT` if it is left out.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "usize")]
#[schemars(description = "", extend("minimum" = 1, "maximum" = MAX))]
pub struct Limit<const DEFAULT: usize, const MAX: usize>(pub usize);

impl<const DEFAULT: usize, const MAX: usize> Default for Limit<DEFAULT, MAX> {
    fn default() -> Self {
        Self(DEFAULT)
    }
}

impl<const DEFAULT: usize, const MAX: usize> TryFrom<usize> for Limit<DEFAULT, MAX> {
    type Error = ArgumentError;

    fn try_from(number: usize) -> Result<Self, ArgumentError> {
        let rule = if number == 0 { "minimum" } else { "maximum" };
        let refused = || ArgumentError::new(rule, format_args!("must be from 1 to {MAX}."));
        (1..=MAX).contains(&number).then_some(Self(number)).ok_or_else(refused)
    }
}

/// A member that may be left out (`None`), or null (`Some(None)`).
#[derive(Clone, Debug)]
pub struct Nullable<T>(pub Option<Option<T>>);

impl<T> Default for Nullable<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Nullable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(|value| Self(Some(value)))
    }
}

impl<T: JsonSchema> JsonSchema for Nullable<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Nullable_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [generator.subschema_for::<T>(), { "type": "null" }], NULLABLE: true })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Arguments {
        /// # Title
        /// What it is
        /// about.
        title: Text<1, 3>,
        note: Option<Text<0, 3>>,
        #[serde(default)]
        limit: Limit<2, 5>,
        #[serde(default)]
        #[expect(dead_code, reason = "only its schema matters")]
        parent: Nullable<u32>,
    }

    #[test]
    fn schema_is_derived_from_arguments() {
        let schema = input_schema::<Arguments>();
        let expected = json!({
            "type": "object",
            "properties": {
                "title": { "type": "string", "minLength": 1, "maxLength": 3, "title": "Title",
                           "description": "What it is about." },
                "note": { "type": "string", "maxLength": 3 },
                "limit": { "type": "integer", "minimum": 1, "maximum": 5, "default": 2 },
                "parent": { "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "null" }] },
            },
            "required": ["title"],
            "additionalProperties": false,
        });
        assert_eq!(schema, expected, "{schema:#}");
    }

    #[test]
    fn schema_of_an_open_type_allows_other_members() {
        #[derive(JsonSchema)]
        #[schemars(extend("additionalProperties" = true))]
        #[expect(dead_code, reason = "only its schema matters")]
        struct Answer {
            count: u32,
        }
        let properties = json!({ "count": { "type": "integer", "minimum": 0 } });
        let expected = json!({ "type": "object", "properties": properties, "required": ["count"] });
        assert_eq!(output_schema::<Answer>(), expected);
    }

    #[test]
    fn invalid_argument_is_named_with_its_rule() {
        let parse = |arguments: Value| {
            parse_arguments::<Arguments>(&RawValue::from_string(arguments.to_string()).unwrap())
                .map_err(|error| error.data["details"]["errors"][0].clone())
        };
        let accepted = parse(json!({ "title": "äöü", "note": "" })).unwrap();
        assert_eq!((accepted.title.as_str(), accepted.note.unwrap().as_str(), accepted.limit.0), ("äöü", "", 2));
        for (arguments, pointer, rule) in [
            (json!({ "title": "äöüä" }), "/title", "maxLength"),
            (json!({ "title": " \n" }), "/title", "minLength"),
            (json!({ "title": "\u{0}" }), "/title", "pattern"),
            (json!({ "title": 1 }), "/title", "type"),
            (json!({ "title": "a", "limit": 0 }), "/limit", "minimum"),
            (json!({ "title": "a", "limit": 6 }), "/limit", "maximum"),
            (json!({ "title": "a", "other": 1 }), "/other", "type"),
            (json!({}), "/title", "required"),
        ] {
            let error = parse(arguments.clone()).unwrap_err();
            assert_eq!((&error["pointer"], &error["rule"]), (&json!(pointer), &json!(rule)), "{arguments}: {error}");
        }
    }
}

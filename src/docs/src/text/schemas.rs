//! Builds the JSON Schemas of front matter: those of the built-in types, and those that a project's own files define.

use serde_json::{Map, Value, json};

use super::front_matter::parse_yaml;

/// The content of a type's file.
#[derive(Debug)]
pub(super) struct TypeDefinition {
    pub name: String,
    pub description: String,
    pub folder: String,
    pub schema: Value,
}

const BUILT_IN: [(&str, &str); 5] = [
    ("problem", include_str!("types/problem.json")),
    ("insight", include_str!("types/insight.json")),
    ("codebase", include_str!("types/codebase.json")),
    ("tool", include_str!("types/tool.json")),
    ("style", include_str!("types/style.json")),
];

/// Returns the fields that any document may have.
pub(super) fn common_fields() -> Map<String, Value> {
    let common = json!({
        "doc_type": { "type": "string" },
        "title": { "type": "string", "minLength": 1, "maxLength": 200 },
        "date": { "type": "string", "format": "date", "description": "When it was written down, as 2026-11-23." },
        "summary": { "type": "string", "minLength": 1, "maxLength": 500, "description": "One line for lists of results." },
        "significance": {
            "enum": ["architectural", "behavioral", "performance", "correctness", "convention", "integration"],
            "description": "Why it matters.",
        },
        "promotion_level": { "enum": ["standard", "important", "critical"] },
        "tags": { "type": "array", "items": { "type": "string" } },
        "related_docs": { "type": "array", "items": { "type": "string" }, "description": "Relative paths." },
        "supersedes": { "type": "string", "description": "The path of the document that this one replaces." },
    });
    match common {
        Value::Object(common) => common,
        _ => Map::new(),
    }
}

/// The fields that every document with a type must have.
const REQUIRED_FIELDS: [&str; 5] = ["doc_type", "title", "date", "summary", "significance"];

/// Builds the schema of a type with these fields.
fn type_schema(name: &str, own: Map<String, Value>, required: Vec<Value>) -> Value {
    let mut properties = common_fields();
    properties.insert("doc_type".to_owned(), json!({ "const": name }));
    properties.extend(own);
    let mut all: Vec<Value> = REQUIRED_FIELDS.iter().map(|name| (*name).into()).collect();
    all.extend(required);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object", "properties": properties, "required": all,
    })
}

/// Returns the schema of a document without a type.
pub(super) fn untyped_schema() -> Value {
    json!({ "type": "object", "properties": common_fields() })
}

/// Returns the definitions of the built-in types.
pub(super) fn built_in() -> impl Iterator<Item = TypeDefinition> {
    BUILT_IN.iter().filter_map(|(name, file)| {
        let file: Value = file.parse().ok()?;
        let properties = file.get("properties")?.as_object()?.clone();
        let required = file.get("required")?.as_array()?.clone();
        Some(TypeDefinition {
            name: (*name).to_owned(),
            description: file.get("description")?.as_str()?.to_owned(),
            folder: file.get("folder")?.as_str()?.to_owned(),
            schema: type_schema(name, properties, required),
        })
    })
}

/// Parses a project's own type: lists of fields (`required_fields`, `optional_fields`), or a JSON Schema with `name`,
/// `folder` and `description` beside its keywords. `stem` is the file's name without its suffixes.
///
/// # Errors
/// Describes the problem for people.
pub(super) fn parse_custom(stem: &str, text: &str) -> Result<TypeDefinition, String> {
    let Value::Object(mut file) = parse_yaml(text).map_err(|error| error.to_string())? else {
        return Err("it is not a map".to_owned());
    };
    let mut take = |key: &str| match file.remove(key) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    let name = take("name").unwrap_or_else(|| stem.to_owned());
    let description = take("description").or_else(|| take("title")).unwrap_or_default();
    let folder = take("folder").unwrap_or_else(|| name.clone());
    let schema = if file.contains_key("required_fields") || file.contains_key("optional_fields") {
        let (mut own, mut required) = (Map::new(), Vec::new());
        for (key, is_required) in [("required_fields", true), ("optional_fields", false)] {
            let fields = match file.get(key) {
                None | Some(Value::Null) => continue,
                Some(Value::Array(fields)) => fields,
                Some(_) => return Err(format!("{key} is not a list")),
            };
            for field in fields {
                let (name, schema) = listed_field(field)?;
                if is_required {
                    required.push(name.as_str().into());
                }
                own.insert(name, schema);
            }
        }
        type_schema(&name, own, required)
    } else if file.contains_key("properties") || file.contains_key("type") {
        json!({ "allOf": [type_schema(&name, Map::new(), Vec::new()), Value::Object(file)] })
    } else {
        return Err("it has neither required_fields nor properties".to_owned());
    };
    Ok(TypeDefinition { name, description, folder, schema })
}

/// Returns the name and the schema of a field in a list of fields.
fn listed_field(field: &Value) -> Result<(String, Value), String> {
    let text_member = |key: &str| field.get(key).and_then(Value::as_str);
    let name = text_member("name").ok_or("a field has no name")?.to_owned();
    let mut schema = match text_member("type").unwrap_or("string") {
        "enum" => match field.get("values") {
            Some(Value::Array(values)) if !values.is_empty() => json!({ "enum": values }),
            _ => return Err(format!("the field {name} has no values")),
        },
        kind @ ("string" | "boolean" | "integer" | "number" | "object") => json!({ "type": kind }),
        "array" => json!({ "type": "array" }),
        "date" => json!({ "type": "string", "format": "date" }),
        other => return Err(format!("the field {name} has the unknown type {other}")),
    };
    if let Some(description) = text_member("description") {
        schema["description"] = description.into();
    }
    Ok((name, schema))
}

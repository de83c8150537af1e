//! Pieces of the JSON Schemas (2020-12) of the tracker's tools.

use serde_json::{Map, Value, json};

use super::model::{IssueType, Priority, Status};

/// An object without other members; `required` names the members that must be there.
pub(super) fn object(properties: &[(&str, Value)], required: &[&str]) -> Value {
    let properties: Map<String, Value> =
        properties.iter().map(|(name, schema)| ((*name).into(), schema.clone())).collect();
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// The root of an input schema.
pub(super) fn input(properties: &[(&str, Value)], required: &[&str]) -> Value {
    let mut schema = object(properties, required);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema
}

pub(super) fn described(mut schema: Value, title: &str, description: &str) -> Value {
    schema["title"] = json!(title);
    schema["description"] = json!(description);
    schema
}

pub(super) fn nullable(schema: &Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

pub(super) fn uuid() -> Value {
    json!({ "type": "string", "format": "uuid" })
}

pub(super) fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

pub(super) fn text(min: usize, max: usize) -> Value {
    let mut schema = json!({ "type": "string", "maxLength": max });
    if min > 0 {
        schema["minLength"] = json!(min);
    }
    schema
}

pub(super) fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

pub(super) fn issue_type() -> Value {
    json!({ "type": "string", "enum": IssueType::names() })
}

pub(super) fn status() -> Value {
    json!({ "type": "string", "enum": Status::names() })
}

pub(super) fn priority() -> Value {
    json!({ "type": "string", "enum": Priority::names() })
}

/// One value or several of a closed set.
pub(super) fn one_or_many(one: &Value) -> Value {
    json!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1, "maxItems": 10, "uniqueItems": true }] })
}

/// An issue's UUID or key.
pub(super) fn issue_ref() -> Value {
    json!({
        "type": "string",
        "anyOf": [{ "format": "uuid", "minLength": 36, "maxLength": 36 }, { "pattern": "^[A-Za-z]{2,10}-[1-9][0-9]{0,8}$" }]
    })
}

/// A project's UUID or key.
pub(super) fn project_ref() -> Value {
    json!({
        "type": "string",
        "anyOf": [{ "format": "uuid", "minLength": 36, "maxLength": 36 }, { "pattern": "^[A-Za-z]{2,10}$" }]
    })
}

fn person_ref() -> Value {
    object(&[("id", uuid()), ("name", json!({ "type": "string" }))], &["id", "name"])
}

fn key() -> Value {
    json!({ "type": "string", "pattern": "^[A-Z]{2,10}-[1-9][0-9]*$" })
}

fn project_key() -> Value {
    json!({ "type": "string", "pattern": "^[A-Z]{2,10}$" })
}

fn hours() -> Value {
    json!({ "type": ["number", "null"], "minimum": 0 })
}

fn string() -> Value {
    json!({ "type": "string" })
}

/// All properties are required.
fn record(properties: &[(&str, Value)]) -> Value {
    let names: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
    object(properties, &names)
}

/// [`super::rows::IssueView`].
pub(super) fn issue() -> Value {
    let parent = record(&[("id", uuid()), ("key", key()), ("title", string()), ("type", issue_type())]);
    record(&[
        ("id", uuid()),
        ("key", key()),
        ("projectId", uuid()),
        ("projectKey", project_key()),
        ("title", string()),
        ("type", issue_type()),
        ("status", status()),
        ("priority", priority()),
        ("description", string()),
        ("assignee", nullable(&person_ref())),
        ("parent", nullable(&parent)),
        ("estimatedHours", hours()),
        ("commentCount", count()),
        ("childCount", count()),
        ("allowedTransitions", json!({ "type": "array", "items": status() })),
        ("version", json!({ "type": "integer", "minimum": 1 })),
        ("createdAt", time()),
        ("createdBy", string()),
        ("updatedAt", time()),
    ])
}

fn line_properties() -> Vec<(&'static str, Value)> {
    vec![
        ("id", uuid()),
        ("key", key()),
        ("title", string()),
        ("type", issue_type()),
        ("status", status()),
        ("priority", priority()),
        ("assignee", nullable(&person_ref())),
        ("parentKey", nullable(&key())),
        ("estimatedHours", hours()),
        ("createdAt", time()),
        ("updatedAt", time()),
    ]
}

/// [`super::rows::IssueLine`].
pub(super) fn issue_line() -> Value {
    record(&line_properties())
}

/// A line of a search.
pub(super) fn search_hit() -> Value {
    let mut properties = line_properties();
    properties.push(("snippet", described(string(), "Snippet", "Where it was found; the words stand in brackets.")));
    properties.push(("matchedIn", json!({ "type": "string", "enum": ["text", "comments"] })));
    record(&properties)
}

/// [`super::rows::ProjectView`].
pub(super) fn project() -> Value {
    record(&[
        ("id", uuid()),
        ("key", project_key()),
        ("name", string()),
        ("description", string()),
        ("issueCount", count()),
        ("openIssueCount", count()),
        ("createdAt", time()),
        ("createdBy", string()),
    ])
}

/// [`super::rows::CommentView`].
pub(super) fn comment() -> Value {
    record(&[
        ("id", uuid()),
        ("author", string()),
        ("authorId", nullable(&uuid())),
        ("content", string()),
        ("changeId", json!({ "type": ["string", "null"] })),
        ("createdAt", time()),
    ])
}

/// [`super::rows::PersonView`].
pub(super) fn person() -> Value {
    record(&[
        ("id", uuid()),
        ("name", string()),
        ("kind", json!({ "type": "string", "enum": ["person", "agent"] })),
        ("principal", json!({ "type": ["string", "null"] })),
        ("openIssues", count()),
    ])
}

/// A child in `get_issue`.
pub(super) fn child() -> Value {
    record(&[("id", uuid()), ("key", key()), ("title", string()), ("type", issue_type()), ("status", status())])
}

/// [`super::history::Entry`].
pub(super) fn history_entry() -> Value {
    let change = record(&[
        ("field", string()),
        ("before", json!({ "type": ["string", "null"] })),
        ("after", json!({ "type": ["string", "null"] })),
    ]);
    record(&[
        ("at", time()),
        ("actor", string()),
        ("action", string()),
        ("changeId", json!({ "type": ["string", "null"] })),
        ("changes", json!({ "type": "array", "items": change })),
    ])
}

/// What `delete_issue` removed.
pub(super) fn deleted() -> Value {
    record(&[("id", uuid()), ("key", key()), ("title", string())])
}

/// A cursor to go on with, or null at the end.
pub(super) fn next_cursor() -> Value {
    described(
        json!({ "type": ["string", "null"] }),
        "Next cursor",
        "Give it as `cursor` for the next page; null at the end.",
    )
}

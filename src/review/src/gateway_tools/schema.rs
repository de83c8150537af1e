//! Writes the JSON Schemas that are not derived from types: of the parts of a change that agents see only in part. Members for
//! displays and for reviewers are allowed there, but not described.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::json;

/// Returns the schema of the diff of a change.
pub(super) fn diff_schema(_: &mut SchemaGenerator) -> Schema {
    let line = json!({
        "type": "object",
        "properties": {
            "op": { "type": "string", "enum": ["equal", "insert", "delete", "skip", "note"] },
            "text": { "type": "string" }
        },
        "required": ["op", "text"],
        "additionalProperties": true
    });
    let field = json!({
        "type": "object",
        "properties": {
            "field": { "type": "string" },
            "label": { "type": "string" },
            "before": { "type": ["string", "null"] },
            "after": { "type": ["string", "null"] },
            "lines": { "type": "array", "items": line }
        },
        "required": ["field", "label", "before", "after"],
        "additionalProperties": true
    });
    json_schema!({
        "type": "object",
        "properties": {
            "fields": { "type": "array", "items": field },
            "truncated": { "type": "boolean" }
        },
        "required": ["fields"],
        "additionalProperties": true
    })
}

/// Returns the schema of the decisions on a change.
pub(super) fn decisions_schema(_: &mut SchemaGenerator) -> Schema {
    let decision = json!({
        "type": "object",
        "properties": {
            "reviewer": { "type": "string" },
            "verdict": { "type": "string", "enum": ["approve", "reject"] },
            "comment": { "type": ["string", "null"], "description": "Why, in the reviewer's words." },
            "at": { "type": "string", "format": "date-time" },
            "version": { "type": "integer", "minimum": 0 }
        },
        "required": ["reviewer", "verdict", "at"],
        "additionalProperties": true
    });
    json_schema!({ "type": "array", "items": decision })
}

/// Returns the schema of the fault of a change.
pub(super) fn fault_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": { "code": { "type": "string" }, "message": { "type": "string" } },
        "required": ["code", "message"],
        "additionalProperties": true
    })
}

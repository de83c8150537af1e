//! The JSON Schemas of answers that contain changes.

use serde_json::{Value, json};

use countersign_domain::changes::{ChangeState, Operation};

fn status_schema() -> Value {
    json!({ "type": "string", "enum": ChangeState::VARIANTS, "description": "Where the change stands. `pending` and `stale` wait for a person; `applied`, `failed`, `rejected`, `expired` and `withdrawn` are final; `outcome_unknown` waits for a person to say how it ended." })
}

/// Returns the properties that a listing and a single change have in common.
fn common_properties() -> serde_json::Map<String, Value> {
    let time = |description: &str| json!({ "type": "string", "format": "date-time", "description": description });
    let text = |description: &str| json!({ "type": "string", "description": description });
    let mut properties = serde_json::Map::new();
    for (name, schema) in [
        ("changeId", text("The id of the change (`chg_…`), for get_change, wait_for_change and withdraw_change.")),
        ("status", status_schema()),
        ("operation", json!({ "type": "string", "enum": Operation::VARIANTS })),
        ("entityType", text("What kind of thing it would alter, such as `issue`.")),
        ("label", text("What a person calls the thing it would alter.")),
        ("summary", text("What the change would do, in one sentence.")),
        ("tool", text("The tool that was called.")),
        ("createdAt", time("When it was proposed.")),
        ("updatedAt", time("When its status changed last.")),
        ("expiresAt", time("When it expires if nobody has decided.")),
    ] {
        properties.insert(name.into(), schema);
    }
    properties
}

/// Returns the schema of one line of `list_changes`.
pub(super) fn line_schema() -> Value {
    let properties = common_properties();
    let required: Vec<&String> = properties.keys().collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

/// Returns the JSON Schema of a change as `structuredContent`: the answer to a reviewed write, and to `get_change`,
/// `wait_for_change` and `withdraw_change`. Its root is an object.
#[must_use]
pub fn change_output_schema() -> Value {
    let line = json!({
        "type": "object",
        "properties": {
            "op": { "type": "string", "enum": ["equal", "insert", "delete", "skip", "note"] },
            "text": { "type": "string" }
        },
        "required": ["op", "text"]
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
        "required": ["field", "label", "before", "after"]
    });
    let decision = json!({
        "type": "object",
        "properties": {
            "reviewer": { "type": "string" },
            "verdict": { "type": "string", "enum": ["approve", "reject"] },
            "comment": { "type": ["string", "null"], "description": "Why, in the reviewer's words." },
            "at": { "type": "string", "format": "date-time" },
            "version": { "type": "integer", "minimum": 0 }
        },
        "required": ["reviewer", "verdict", "at"]
    });
    let text = |description: &str| json!({ "type": "string", "description": description });
    let mut properties = common_properties();
    for (name, schema) in [
        ("version", json!({ "type": "integer", "minimum": 0 })),
        ("entityId", json!({ "type": ["string", "null"], "description": "null for a thing that does not exist yet." })),
        ("provider", json!({ "type": "string" })),
        (
            "diff",
            json!({
                "type": "object",
                "description": "Before and after, field by field.",
                "properties": {
                    "fields": { "type": "array", "items": field },
                    "truncated": { "type": "boolean" }
                },
                "required": ["fields"]
            }),
        ),
        ("duplicateOf", text("Your open change that asked for the same call when this one was proposed.")),
        ("decisions", json!({ "type": "array", "items": decision, "description": "Who decided, and why." })),
        (
            "fault",
            json!({
                "type": "object",
                "description": "Why it failed, expired, went stale or ended unknown.",
                "properties": { "code": { "type": "string" }, "message": { "type": "string" } },
                "required": ["code", "message"]
            }),
        ),
        (
            "plan",
            json!({
                "type": "object",
                "description": "The plan of which the change is a step.",
                "properties": {
                    "planId": { "type": "string" },
                    "title": { "type": "string" },
                    "step": { "type": "integer", "minimum": 0, "description": "The position, from 0." },
                    "last": { "type": "boolean", "description": "No call of the plan follows." }
                },
                "required": ["planId", "step", "last"]
            }),
        ),
        ("result", json!({ "type": "object", "description": "What the tool answered, once the change was applied." })),
        ("nextStep", json!({ "type": "string", "description": "What to do now." })),
    ] {
        properties.insert(name.into(), schema);
    }
    json!({
        "type": "object",
        "title": "Change",
        "description": "A proposed write, and where it stands.",
        "properties": properties,
        "required": ["changeId", "status", "operation", "entityType", "summary", "diff", "expiresAt"]
    })
}

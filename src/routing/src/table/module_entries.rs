//! Renders tools, prompts, resources and templates of modules for the lists of each revision. [`super::list_entries`]
//! caches the result.

use serde_json::{Map, Value, json};

use countersign_protocol::Revision;
use countersign_provider::{PromptDef, ToolDef};

/// Renders one tool of `tools/list`. `pending` is the output schema of a pending answer, if the tool may be put under
/// review.
pub fn tool_entry(def: &ToolDef, name: &str, pending: Option<&Value>, revision: Revision) -> String {
    let rules = revision.rules();
    let mut out = Map::new();
    out.insert("name".into(), name.into());
    if rules.structured_content {
        out.insert("title".into(), def.title.clone().into());
    }
    out.insert("description".into(), def.description.clone().into());
    out.insert("inputSchema".into(), def.input_schema.clone());
    if rules.structured_content
        && let Some(schema) = output_schema(def.output_schema.as_ref(), pending)
    {
        out.insert("outputSchema".into(), schema);
    }
    if rules.annotations {
        let mut annotations = serde_json::to_value(def.annotations).unwrap_or_default();
        annotations["title"] = def.title.clone().into();
        out.insert("annotations".into(), annotations);
    }
    // Every call that may be put under review may run as a task (2025-11-25/basic/utilities/tasks, "Tool-Level
    // Negotiation").
    if pending.is_some() && revision == Revision::V2025_11_25 {
        out.insert("execution".into(), json!({ "taskSupport": "optional" }));
    }
    Value::Object(out).to_string()
}

/// Returns `anyOf(own, pending)` with an object root, so that strict clients accept a pending answer.
fn output_schema(own: Option<&Value>, pending: Option<&Value>) -> Option<Value> {
    match (own, pending) {
        (Some(own), Some(pending)) => Some(json!({ "type": "object", "anyOf": [own, pending] })),
        (own, _) => own.cloned(),
    }
}

/// Renders one prompt of `prompts/list`.
pub fn prompt_entry(def: &PromptDef, revision: Revision) -> String {
    let mut out = json!({ "name": def.name, "description": def.description });
    let titles = revision.rules().structured_content;
    if titles {
        out["title"] = def.title.clone().into();
    }
    out["arguments"] = def
        .arguments
        .iter()
        .map(|a| {
            let mut arg = json!({ "name": a.name, "description": a.description, "required": a.required });
            if titles {
                arg["title"] = a.title.clone().into();
            }
            arg
        })
        .collect();
    out.to_string()
}

/// Renders one resource of `resources/list` or template of `resources/templates/list`. `def` is the definition as a JSON value.
pub fn resource_entry(def: serde_json::Result<Value>, revision: Revision) -> String {
    let mut value = def.unwrap_or_default();
    if !revision.rules().structured_content
        && let Some(object) = value.as_object_mut()
    {
        object.remove("title");
    }
    value.to_string()
}

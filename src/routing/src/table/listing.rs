//! How tools, prompts, resources and templates of modules look in each revision's lists. [`super::rendered`] keeps what is
//! written here, from the first time that somebody asks for it.

use serde_json::{Map, Value, json};

use countersign_protocol::Revision;
use countersign_provider::{PromptDef, ResourceDef, ResourceTemplateDef, ToolDef};

/// One tool of `tools/list`. `pending` is the schema of the answer of a tool that may be put under review.
pub fn tool(def: &ToolDef, name: &str, pending: Option<&Value>, revision: Revision) -> String {
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
    // Whatever may wait for a person may be a task (2025-11-25/basic/utilities/tasks, "Tool-Level Negotiation").
    if pending.is_some() && revision == Revision::V2025_11_25 {
        out.insert("execution".into(), json!({ "taskSupport": "optional" }));
    }
    Value::Object(out).to_string()
}

/// `anyOf(its own, the pending answer)` with an object root, so that strict clients accept a pending answer.
fn output_schema(own: Option<&Value>, pending: Option<&Value>) -> Option<Value> {
    match (own, pending) {
        (Some(own), Some(pending)) => Some(json!({ "type": "object", "anyOf": [own, pending] })),
        (own, _) => own.cloned(),
    }
}

/// One prompt of `prompts/list`.
pub fn prompt(def: &PromptDef, revision: Revision) -> String {
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

/// One resource of `resources/list`.
pub fn resource(def: &ResourceDef, revision: Revision) -> String {
    titled(serde_json::to_value(def), revision)
}

/// One template of `resources/templates/list`.
pub fn template(def: &ResourceTemplateDef, revision: Revision) -> String {
    titled(serde_json::to_value(def), revision)
}

fn titled(value: serde_json::Result<Value>, revision: Revision) -> String {
    let mut value = value.unwrap_or_default();
    if !revision.rules().structured_content
        && let Some(object) = value.as_object_mut()
    {
        object.remove("title");
    }
    value.to_string()
}

//! Describes tools to the policy, including the hash of a definition and the reviewers' decision about it.

use serde_json::{Value, json};

use super::RouteTarget;
use countersign_domain::policy::{DefinitionStatus, Policy, Ruling, ToolFacts, pins::Definition};
use countersign_protocol::arguments::canonical_text_hash;
use countersign_provider::ToolDef;

/// Returns `sha256:…` of a definition, independent of the order of members. It covers all members that an upstream
/// wrote, including unknown ones, and those of a module's definition that affect calls.
#[must_use]
pub fn definition_hash(def: &ToolDef) -> String {
    match &def.raw {
        Some(raw) => canonical_text_hash(raw.get()),
        None => {
            let definition = json!({
                "name": def.name, "description": def.description, "inputSchema": def.input_schema,
                "annotations": def.annotations,
            });
            canonical_text_hash(&definition.to_string())
        }
    }
}

/// Returns the definition in the form that a reviewer accepts.
#[must_use]
pub fn definition(def: &ToolDef) -> Definition {
    let text = match &def.raw {
        Some(raw) => raw.get().to_owned(),
        None => module_definition(def).to_string(),
    };
    Definition { name: def.name.clone(), hash: definition_hash(def), text: text.into() }
}

fn module_definition(def: &ToolDef) -> Value {
    let mut value = json!({
        "name": def.name, "title": def.title, "description": def.description, "inputSchema": def.input_schema,
    });
    if let Some(schema) = &def.output_schema {
        value["outputSchema"] = schema.clone();
    }
    value["annotations"] = json!(def.annotations);
    value
}

/// Pins the definitions of a server that is seen for the first time. An empty list pins nothing, because a server that was not
/// reached yet has an empty list too.
pub(super) fn pin_first_seen(policy: &Policy, provider: &RouteTarget, tools: &[ToolDef]) {
    if !provider.is_module() && !tools.is_empty() && !policy.pins().has_server(provider.name()) {
        let definitions: Vec<Definition> = tools.iter().map(definition).collect();
        policy.observe(provider.name(), &definitions);
    }
}

/// Returns the status of the definition and the part of the policy's decision that is known before any call.
pub(super) fn tool_ruling(
    policy: &Policy,
    provider: &RouteTarget,
    def: &ToolDef,
    hash: &str,
) -> (DefinitionStatus, Ruling) {
    let definition_status = if provider.is_module() {
        DefinitionStatus::Module
    } else {
        policy.pins().status((provider.name(), provider.as_provider().target_fingerprint()), &def.name, hash)
    };
    let facts = ToolFacts {
        name: def.name.clone(),
        server: provider.name().to_owned(),
        annotations: def.annotations,
        hash: hash.to_owned(),
        server_fingerprint: provider.as_provider().target_fingerprint().to_owned(),
        definition_status,
        server_is_trusted: provider.as_provider().trust_annotations(),
        // An upstream cannot declare its tools to be the gateway's own.
        self_service: def.self_service && provider.is_module(),
    };
    (definition_status, policy.ruling(&facts))
}

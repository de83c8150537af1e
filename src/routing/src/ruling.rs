//! What the policy is told of a tool: its definition's hash, and what reviewers said of that definition.

use serde_json::{Value, json};

use crate::target::Target;
use countersign_domain::policy::{Policy, Ruling, Standing, ToolFacts, pins::Definition};
use countersign_protocol::arguments::{canonical_hash, canonical_text_hash};
use countersign_provider::ToolDef;

/// `sha256:…` of a definition, whatever the order of its members: of all that an upstream wrote, unknown members
/// included; of a module's, what its calls depend on.
#[must_use]
pub fn definition_hash(def: &ToolDef) -> String {
    match &def.raw {
        Some(raw) => canonical_text_hash(raw.get()),
        None => canonical_hash(&json!({
            "name": def.name, "description": def.description, "inputSchema": def.input_schema,
            "annotations": def.annotations,
        })),
    }
}

/// The definition as a reviewer accepts it.
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

/// Records what a server offers when it is seen for the first time. An empty list says nothing: a server that was not
/// reached yet has one too.
pub(super) fn observe(policy: &Policy, provider: &Target, tools: &[ToolDef]) {
    if !provider.is_module() && !tools.is_empty() && !policy.pins().knows(provider.name()) {
        let definitions: Vec<Definition> = tools.iter().map(definition).collect();
        policy.observe(provider.name(), &definitions);
    }
}

/// What can be said of calls of this tool before there is one.
pub(super) fn ruling(policy: &Policy, provider: &Target, def: &ToolDef, hash: &str) -> (Standing, Ruling) {
    let standing = if provider.is_module() {
        Standing::Module
    } else {
        policy.pins().standing((provider.name(), provider.target()), &def.name, hash)
    };
    let facts = ToolFacts {
        name: def.name.clone(),
        server: provider.name().to_owned(),
        annotations: def.annotations,
        hash: hash.to_owned(),
        target: provider.target().to_owned(),
        standing,
        trusted: provider.trust_annotations(),
        // An upstream has no say in what the gateway's own tools are.
        self_service: def.self_service && provider.is_module(),
    };
    (standing, policy.ruling(&facts))
}

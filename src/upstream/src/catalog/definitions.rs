//! Parses definitions of an upstream's tools, prompts and resources. The members that the gateway needs are read from
//! the upstream's text, which is passed on under the names that clients use.
//!
//! A definition that violates its schema is omitted with a reason, because strict clients reject a whole list for one
//! such entry.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::names::Names;
use countersign_domain::text::truncate;
use countersign_protocol::{
    annotations::ToolAnnotations,
    json::{MemberAction, add_members, edit_members, member, replace_strings, string},
};
use countersign_provider::{PromptArgumentDef, PromptDef, ResourceDef, ResourceTemplateDef, ToolDef};

/// The reason why a definition is omitted, for the log and the dashboard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {name:?} is left out: {reason}")]
pub struct DefinitionError {
    /// The kind of definition, such as `the tool`.
    pub kind: &'static str,
    /// The upstream's own name of the definition, if it could be read.
    pub name: String,
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tool {
    name: String,
    title: Option<String>,
    description: Option<String>,
    input_schema: Value,
    output_schema: Option<Value>,
    annotations: Option<Annotations>,
}

/// Annotations of a tool. Absent hints have the defaults of the schema (schema/2025-11-25, `ToolAnnotations`).
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Annotations {
    title: Option<String>,
    read_only_hint: Option<bool>,
    destructive_hint: Option<bool>,
    idempotent_hint: Option<bool>,
    open_world_hint: Option<bool>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    title: Option<String>,
    description: Option<String>,
    arguments: Option<Vec<Argument>>,
}

#[derive(Deserialize)]
struct Argument {
    name: String,
    title: Option<String>,
    description: Option<String>,
    required: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    uri: String,
    name: String,
    title: Option<String>,
    description: Option<String>,
    mime_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Template {
    uri_template: String,
    name: String,
    title: Option<String>,
    description: Option<String>,
    mime_type: Option<String>,
}

impl Names {
    /// Parses a tool and gives it the name that clients use.
    ///
    /// # Errors
    /// Fails if strict clients would reject the definition.
    pub fn parse_tool(&self, raw: &Arc<RawValue>) -> Result<ToolDef, DefinitionError> {
        let tool: Tool = parse_definition("the tool", "name", raw)?;
        let invalid = |reason: &str| definition_error("the tool", &tool.name, reason);
        let Some(schema) = tool.input_schema.as_object() else {
            return Err(invalid("its inputSchema is not an object"));
        };
        let mut raw = raw.clone();
        match schema.get("type") {
            Some(schema_type) if schema_type == "object" => {}
            Some(_) => return Err(invalid("the type of its inputSchema is not `object`")),
            // Arguments are always an object, and clients require the type to be stated.
            None => raw = add_object_type(&raw),
        }
        if tool.output_schema.as_ref().is_some_and(|schema| !schema.is_object()) {
            return Err(invalid("its outputSchema is not an object"));
        }
        let hints = tool.annotations.unwrap_or_default();
        Ok(ToolDef {
            title: tool.title.or(hints.title).unwrap_or_else(|| tool.name.clone()),
            description: tool.description.unwrap_or_default(),
            input_schema: tool.input_schema,
            output_schema: tool.output_schema,
            annotations: ToolAnnotations {
                read_only_hint: hints.read_only_hint.unwrap_or(false),
                destructive_hint: hints.destructive_hint.unwrap_or(true),
                idempotent_hint: hints.idempotent_hint.unwrap_or(false),
                open_world_hint: hints.open_world_hint.unwrap_or(true),
            },
            self_service: false,
            // The duration of an upstream's tool is unknown, so the server's time limit applies.
            long_running: true,
            read_only_when: None,
            raw: Some(self.expose_definition(&raw, "name")),
            name: self.expose(&tool.name).into_owned(),
        })
    }

    /// Parses a prompt and gives it the name that clients use.
    ///
    /// # Errors
    /// Fails if strict clients would reject the definition.
    pub fn parse_prompt(&self, raw: &Arc<RawValue>) -> Result<PromptDef, DefinitionError> {
        let prompt: Prompt = parse_definition("the prompt", "name", raw)?;
        let arguments = prompt.arguments.unwrap_or_default().into_iter().map(|a| PromptArgumentDef {
            title: a.title.unwrap_or_else(|| a.name.clone()),
            name: a.name,
            description: a.description.unwrap_or_default(),
            required: a.required.unwrap_or(false),
        });
        Ok(PromptDef {
            title: prompt.title.unwrap_or_else(|| prompt.name.clone()),
            description: prompt.description.unwrap_or_default(),
            arguments: arguments.collect(),
            raw: Some(self.expose_definition(raw, "name")),
            name: self.expose(&prompt.name).into_owned(),
        })
    }

    /// Parses a resource and gives it the URI that clients use.
    ///
    /// # Errors
    /// Fails if strict clients would reject the definition.
    pub fn parse_resource(&self, raw: &Arc<RawValue>) -> Result<ResourceDef, DefinitionError> {
        let resource: Resource = parse_definition("the resource", "uri", raw)?;
        Ok(ResourceDef {
            uri: self.expose_uri(&resource.uri).into_owned(),
            title: resource.title.unwrap_or_else(|| resource.name.clone()),
            name: resource.name,
            description: resource.description.unwrap_or_default(),
            mime_type: resource.mime_type.unwrap_or_default(),
            raw: Some(self.expose_definition(raw, "uri")),
        })
    }

    /// Parses a resource template and gives it the URI template that clients use.
    ///
    /// # Errors
    /// Fails if strict clients would reject the definition.
    pub fn parse_template(&self, raw: &Arc<RawValue>) -> Result<ResourceTemplateDef, DefinitionError> {
        let template: Template = parse_definition("the resource template", "uriTemplate", raw)?;
        Ok(ResourceTemplateDef {
            uri_template: self.expose_uri(&template.uri_template).into_owned(),
            title: template.title.unwrap_or_else(|| template.name.clone()),
            name: template.name,
            description: template.description.unwrap_or_default(),
            mime_type: template.mime_type.unwrap_or_default(),
            raw: Some(self.expose_definition(raw, "uriTemplate")),
        })
    }

    /// Returns the definition with the name, URI or URI template that clients use, or the unchanged text if the
    /// upstream has no prefix.
    fn expose_definition(&self, raw: &Arc<RawValue>, key: &str) -> Arc<RawValue> {
        if self.is_identity() {
            return raw.clone();
        }
        let renamed = replace_strings(raw.get(), &[key], |_, original| {
            Some(if key == "name" { self.expose(original) } else { self.expose_uri(original) }.into_owned())
        });
        to_raw(renamed).unwrap_or_else(|| raw.clone())
    }
}

fn parse_definition<'a, T: Deserialize<'a>>(
    kind: &'static str,
    key: &'static str,
    raw: &'a RawValue,
) -> Result<T, DefinitionError> {
    serde_json::from_str(raw.get()).map_err(|error| {
        let name = member(raw.get(), key).and_then(string).unwrap_or_default();
        definition_error(kind, &name, &error.to_string())
    })
}

fn definition_error(kind: &'static str, name: &str, reason: &str) -> DefinitionError {
    let short = |text: &str| truncate(text, 200).to_owned();
    DefinitionError { kind, name: short(name), reason: short(reason) }
}

/// Returns the tool with `"type": "object"` in its input schema.
fn add_object_type(raw: &Arc<RawValue>) -> Arc<RawValue> {
    let text = edit_members(raw.get(), |key, value| match key {
        "inputSchema" => MemberAction::Set(add_members(value, &[("type", r#""object""#)])),
        _ => MemberAction::Keep,
    });
    to_raw(text).unwrap_or_else(|| raw.clone())
}

fn to_raw(text: Option<String>) -> Option<Arc<RawValue>> {
    text.and_then(|text| RawValue::from_string(text).ok()).map(Arc::from)
}

#[cfg(test)]
mod tests;

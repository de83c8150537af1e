//! Definitions of an upstream's tools, prompts and resources: what the gateway must know of them, read from the
//! upstream's own text, which goes along under the names that clients use.
//!
//! A definition that breaks its schema is left out, with a reason: strict clients refuse a whole list for one such
//! entry, and then it would spoil the others.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::names::Names;
use countersign_protocol::{
    annotations::ToolAnnotations,
    json::{Fate, add_members, edit_members, member, replace_strings, string},
};
use countersign_provider::{PromptArgumentDef, PromptDef, ResourceDef, ResourceTemplateDef, ToolDef};

/// Why a definition is left out, for the log and the dashboard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {name:?} is left out: {reason}")]
pub struct DefinitionError {
    /// `the tool` and the like.
    pub what: &'static str,
    /// As the upstream calls it, as far as that can be read.
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

/// Of a tool. What is absent has the default that the schema names (schema/2025-11-25, `ToolAnnotations`).
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
    /// A tool under the name that clients use.
    ///
    /// # Errors
    /// Why strict clients would not read it.
    pub fn tool(&self, raw: &Arc<RawValue>) -> Result<ToolDef, DefinitionError> {
        let tool: Tool = read("the tool", "name", raw)?;
        let fault = |reason: &str| left_out("the tool", &tool.name, reason);
        let Some(schema) = tool.input_schema.as_object() else { return Err(fault("its inputSchema is not an object")) };
        let mut raw = raw.clone();
        match schema.get("type") {
            Some(kind) if kind == "object" => {}
            Some(_) => return Err(fault("the type of its inputSchema is not `object`")),
            // Arguments are an object anyway, and clients want to read that.
            None => raw = typed(&raw),
        }
        if tool.output_schema.as_ref().is_some_and(|schema| !schema.is_object()) {
            return Err(fault("its outputSchema is not an object"));
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
            // Nobody knows: its time-out is the server's.
            long_running: true,
            reads_when: None,
            raw: Some(self.renamed(&raw, "name")),
            name: self.expose(&tool.name).into_owned(),
        })
    }

    /// A prompt under the name that clients use.
    ///
    /// # Errors
    /// Why strict clients would not read it.
    pub fn prompt(&self, raw: &Arc<RawValue>) -> Result<PromptDef, DefinitionError> {
        let prompt: Prompt = read("the prompt", "name", raw)?;
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
            raw: Some(self.renamed(raw, "name")),
            name: self.expose(&prompt.name).into_owned(),
        })
    }

    /// A resource under the URI that clients use.
    ///
    /// # Errors
    /// Why strict clients would not read it.
    pub fn resource(&self, raw: &Arc<RawValue>) -> Result<ResourceDef, DefinitionError> {
        let resource: Resource = read("the resource", "uri", raw)?;
        Ok(ResourceDef {
            uri: self.expose_uri(&resource.uri).into_owned(),
            title: resource.title.unwrap_or_else(|| resource.name.clone()),
            name: resource.name,
            description: resource.description.unwrap_or_default(),
            mime_type: resource.mime_type.unwrap_or_default(),
            raw: Some(self.renamed(raw, "uri")),
        })
    }

    /// A resource template under the URI template that clients use.
    ///
    /// # Errors
    /// Why strict clients would not read it.
    pub fn template(&self, raw: &Arc<RawValue>) -> Result<ResourceTemplateDef, DefinitionError> {
        let template: Template = read("the resource template", "uriTemplate", raw)?;
        Ok(ResourceTemplateDef {
            uri_template: self.expose_uri(&template.uri_template).into_owned(),
            title: template.title.unwrap_or_else(|| template.name.clone()),
            name: template.name,
            description: template.description.unwrap_or_default(),
            mime_type: template.mime_type.unwrap_or_default(),
            raw: Some(self.renamed(raw, "uriTemplate")),
        })
    }

    /// The definition with its name, URI or URI template as clients use it; the same text where they are the same.
    fn renamed(&self, raw: &Arc<RawValue>, key: &str) -> Arc<RawValue> {
        if self.is_identity() {
            return raw.clone();
        }
        let renamed = replace_strings(raw.get(), &[key], |_, own| {
            Some(if key == "name" { self.expose(own) } else { self.expose_uri(own) }.into_owned())
        });
        arc(renamed).unwrap_or_else(|| raw.clone())
    }
}

fn read<'a, T: Deserialize<'a>>(
    what: &'static str,
    key: &'static str,
    raw: &'a RawValue,
) -> Result<T, DefinitionError> {
    serde_json::from_str(raw.get()).map_err(|error| {
        let name = member(raw.get(), key).and_then(string).unwrap_or_default();
        left_out(what, &name, &error.to_string())
    })
}

fn left_out(what: &'static str, name: &str, reason: &str) -> DefinitionError {
    let short = |text: &str| text.chars().take(200).collect();
    DefinitionError { what, name: short(name), reason: short(reason) }
}

/// The tool with `"type": "object"` in its input schema.
fn typed(raw: &Arc<RawValue>) -> Arc<RawValue> {
    let text = edit_members(raw.get(), |key, value| match key {
        "inputSchema" => Fate::Set(add_members(value, &[("type", r#""object""#)])),
        _ => Fate::Keep,
    });
    arc(text).unwrap_or_else(|| raw.clone())
}

fn arc(text: Option<String>) -> Option<Arc<RawValue>> {
    text.and_then(|text| RawValue::from_string(text).ok()).map(Arc::from)
}

#[cfg(test)]
mod tests;

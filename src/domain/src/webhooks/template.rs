//! Message templates: text with `{placeholders}` and their values.
//!
//! Text written by agents and reviewers is untrusted: it is put on one line, truncated, and escaped for its
//! destination, with hidden characters made visible. It cannot mention anyone, create links or end a JSON string.

use serde_json::Value;

use super::format::DeliveryFormat;
use crate::{
    changes::visible::{escape_hidden, quoted},
    text::shorten,
    webhooks::summary,
};

/// All placeholders with their JSON pointers in a feed event. Those without a pointer are computed.
const PLACEHOLDERS: [(&str, &str); 24] = [
    ("type", "/type"),
    ("seq", "/seq"),
    ("at", "/at"),
    ("actor", "/actor"),
    ("comment", "/comment"),
    ("what", ""),
    ("link", ""),
    ("server", ""),
    ("tools", ""),
    ("error", ""),
    ("change.id", "/change/id"),
    ("change.state", "/change/state"),
    ("change.summary", "/change/summary"),
    ("change.provider", "/change/provider"),
    ("change.tool", "/change/tool"),
    ("change.title", "/change/toolTitle"),
    ("change.operation", "/change/operation"),
    ("change.target", "/change/target/label"),
    ("change.proposer", "/change/proposer/principal"),
    ("change.client", "/change/proposer/clientName"),
    ("change.expires", "/change/expiresAt"),
    ("change.fault", "/change/fault/message"),
    ("change.approvals", "/change/approvals"),
    ("change.quorum", "/change/quorum"),
];

/// The maximum number of characters of one value.
const MAX_VALUE_CHARS: usize = 500;
/// The maximum size of a template, in bytes.
const MAX_TEMPLATE_BYTES: usize = 4096;

/// A validated template, whose placeholders all exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageTemplate(Vec<TemplatePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    /// A name of [`PLACEHOLDERS`].
    Placeholder(&'static str),
}

/// The reason why a template is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageTemplateError {
    #[error("{} is not a known name", quoted(.0))]
    Unknown(String),
    #[error("the template is empty, or longer than 4 KiB")]
    Length,
    #[error("the filled template is not JSON: {0}")]
    NotJson(String),
}

impl MessageTemplateError {
    pub fn remedy(&self) -> String {
        match self {
            Self::Unknown(_) => format!("Names are {}.", PLACEHOLDERS.map(|(name, _)| name).join(", ")),
            Self::Length => "Write 1 to 4096 bytes.".to_owned(),
            Self::NotJson(_) => {
                "With format: json, a template is JSON with names inside its strings: '{\"text\": \"{what}\"}'."
                    .to_owned()
            }
        }
    }
}

impl MessageTemplate {
    /// Parses a template. A `{` that does not start a placeholder is literal.
    ///
    /// # Errors
    /// See [`MessageTemplateError`].
    pub fn new(text: &str, format: DeliveryFormat) -> Result<Self, MessageTemplateError> {
        if text.trim().is_empty() || text.len() > MAX_TEMPLATE_BYTES {
            return Err(MessageTemplateError::Length);
        }
        let mut parts = Vec::new();
        let mut rest = text;
        let mut plain = String::new();
        while let Some((before, after_brace)) = rest.split_once('{') {
            plain.push_str(before);
            let name = after_brace.split_once('}');
            match name {
                Some((name, after)) if is_name(name) => {
                    let found = PLACEHOLDERS.iter().find(|(known, _)| *known == name);
                    let (name, _) = found.ok_or_else(|| MessageTemplateError::Unknown(name.to_owned()))?;
                    parts.push(TemplatePart::Text(std::mem::take(&mut plain)));
                    parts.push(TemplatePart::Placeholder(name));
                    rest = after;
                }
                _ => {
                    plain.push('{');
                    rest = after_brace;
                }
            }
        }
        plain.push_str(rest);
        parts.push(TemplatePart::Text(plain));
        let template = Self(parts);
        if format == DeliveryFormat::Json {
            let sample = template.fill(&TemplateValues::new(&Value::Null, "https://x/"), escape_json);
            sample.parse::<Value>().map_err(|error| MessageTemplateError::NotJson(error.to_string()))?;
        }
        Ok(template)
    }

    /// Fills in the placeholders, each value escaped with `escape`.
    pub fn fill(&self, values: &TemplateValues<'_>, escape: impl Fn(&str) -> String) -> String {
        let mut out = String::new();
        for part in &self.0 {
            match part {
                TemplatePart::Text(text) => out.push_str(text),
                // The link is created by the gateway and needs no escaping.
                TemplatePart::Placeholder("link") => out.push_str(values.link),
                TemplatePart::Placeholder(name) => out.push_str(&escape(&values.get(name))),
            }
        }
        out
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphabetic() || c == '.')
}

/// The values of the placeholders for one event.
#[derive(Clone, Copy, Debug)]
pub struct TemplateValues<'a> {
    event: &'a Value,
    link: &'a str,
}

impl<'a> TemplateValues<'a> {
    pub const fn new(event: &'a Value, link: &'a str) -> Self {
        Self { event, link }
    }

    pub const fn link(&self) -> &'a str {
        self.link
    }

    /// Returns the names of a JSON array on one line. Empty if the event does not have it.
    pub fn names(&self, pointer: &str) -> String {
        self.event.pointer(pointer).map_or_else(String::new, summary::join_names)
    }

    /// Returns a value, truncated and on one line but not escaped. Empty if the event does not have it.
    pub fn get(&self, name: &str) -> String {
        let first = |pointers: &[&str]| {
            let texts = pointers.iter().map(|pointer| self.text(pointer));
            texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
        };
        match name {
            "what" => summary::event_clause(self),
            "actor" => first(&["/actor", "/by"]),
            "server" => first(&["/change/provider", "/rule/provider", "/provider"]),
            "tools" => match self.event.get("tools") {
                Some(tools) => summary::join_names(tools),
                None => first(&["/change/tool", "/rule/tool"]),
            },
            "error" => first(&["/error", "/change/fault/message"]),
            _ => {
                let pointer = PLACEHOLDERS.iter().find(|(known, _)| *known == name).map_or("", |(_, pointer)| pointer);
                if pointer.is_empty() { String::new() } else { self.text(pointer) }
            }
        }
    }

    /// Returns the value at a JSON pointer of the event, like [`Self::get`].
    pub fn text(&self, pointer: &str) -> String {
        match self.event.pointer(pointer) {
            Some(Value::String(text)) => single_line(text),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
            _ => String::new(),
        }
    }
}

/// Puts a text on one line, escapes hidden characters and truncates it.
pub fn single_line(text: &str) -> String {
    shorten(&escape_hidden(text).replace(['\n', '\t'], " "), MAX_VALUE_CHARS)
}

/// Escapes a text for use inside a JSON string.
pub fn escape_json(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fill(text: &str, event: &Value) -> String {
        MessageTemplate::new(text, DeliveryFormat::Text)
            .unwrap()
            .fill(&TemplateValues::new(event, "https://gw/x"), str::to_owned)
    }

    #[test]
    fn placeholders_are_filled_and_other_braces_kept() {
        let event = json!({ "type": "change.rejected", "seq": 7, "actor": "bob", "change": { "summary": "Do\nit" } });
        assert_eq!(
            fill("{what}: {change.summary} ({seq}) {link} {comment}{ } {1} {", &event),
            "Rejected by bob: Do it (7) https://gw/x { } {1} {"
        );
        assert_eq!(fill("{change.summary}", &json!({})), "");
        let voted = json!({ "type": "change.voted", "actor": "bob", "change": { "approvals": 1, "quorum": 3 } });
        let expected = "Approved by bob (1/3), more approvals needed; 1 of 3";
        assert_eq!(fill("{what}; {change.approvals} of {change.quorum}", &voted), expected);
        assert_eq!(
            MessageTemplate::new("{change.sumary}", DeliveryFormat::Text),
            Err(MessageTemplateError::Unknown("change.sumary".into()))
        );
        assert_eq!(MessageTemplate::new(" ", DeliveryFormat::Text), Err(MessageTemplateError::Length));
    }

    #[test]
    fn event_text_fills_no_placeholders_and_is_bounded() {
        let event = json!({ "change": { "summary": format!("{{link}}\u{202e}{}", "x".repeat(9000)) } });
        let text = fill("{change.summary}", &event);
        assert!(text.starts_with("{link}\\u{202e}xxx") && text.ends_with('…') && text.len() < 600, "{text}");
    }

    #[test]
    fn json_template_always_yields_json() {
        let template = MessageTemplate::new(r#"{"text": "{change.summary}", "n": {}}"#, DeliveryFormat::Json).unwrap();
        let event = json!({ "change": { "summary": r#"","x":"\"# } });
        let text = template.fill(&TemplateValues::new(&event, ""), escape_json);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["text"], r#"","x":"\"#);
        assert!(matches!(
            MessageTemplate::new("{change.summary}", DeliveryFormat::Json),
            Err(MessageTemplateError::NotJson(_))
        ));
    }
}

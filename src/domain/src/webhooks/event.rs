//! The facts of a feed event, the patterns for its type, and the JSON that is sent.
//!
//! Transitions of changes are durable in the feed. Other events (`change.escalated`, `change.reminder`, `rule.*`, `provider.*`,
//! `config.*`, `webhook.*`) reach only current subscribers: a webhook stores the events that it receives, and misses events that
//! occur while the gateway is down.

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde::Deserialize;
use serde_json::Value;

use crate::changes::{ChangeState, machine::EventKind};

/// The event types besides those of transitions ([`EventKind::feed_type`]).
const OTHER_EVENT_TYPES: [&str; 17] = [
    "change.escalated",
    "change.reminder",
    "rule.created",
    "rule.revoked",
    "rule.expired",
    "rule.orphaned",
    "provider.up",
    "provider.down",
    "provider.breaker_opened",
    "provider.breaker_closed",
    "provider.tools_waiting",
    "provider.changed",
    "config.applied",
    "config.refused",
    "config.waiting",
    "webhook.failing",
    "webhook.recovered",
];

/// Iterates over all event types that can be sent.
pub fn event_types() -> impl Iterator<Item = &'static str> {
    EventKind::VARIANTS.iter().map(|kind| kind.feed_type()).chain(OTHER_EVENT_TYPES)
}

/// The facts of an event by which webhooks select and order it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFacts {
    /// The subject, whose deliveries are sent in order: the id of a change or of a standing rule, or a text for other events.
    pub subject: String,
    pub server: Option<String>,
    /// The tool names that clients see.
    pub tools: Vec<String>,
    /// The state of the change; `None` if the event is not about a change.
    pub state: Option<ChangeState>,
    /// The name of the webhook; `None` if the event is not about a webhook.
    pub webhook: Option<String>,
}

impl EventFacts {
    /// Parses the JSON of an event. An unknown event has no facts.
    #[must_use]
    pub fn from_json(json: &[u8]) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Event {
            change: Option<Subject>,
            rule: Option<Subject>,
            provider: Option<String>,
            tools: Vec<String>,
            webhook: Option<String>,
        }
        #[derive(Deserialize)]
        struct Subject {
            id: String,
            provider: String,
            tool: String,
            state: Option<ChangeState>,
        }
        let event: Event = serde_json::from_slice(json).unwrap_or_default();
        match event {
            Event { change: Some(subject), .. } | Event { rule: Some(subject), .. } => Self {
                subject: subject.id,
                server: Some(subject.provider),
                tools: vec![subject.tool],
                state: subject.state,
                webhook: None,
            },
            Event { provider: Some(server), tools, .. } => {
                Self { subject: format!("server {server}"), server: Some(server), tools, ..Self::default() }
            }
            Event { webhook: Some(webhook), .. } => {
                Self { subject: format!("webhook {webhook}"), webhook: Some(webhook), ..Self::default() }
            }
            _ => Self { subject: "configuration".to_owned(), ..Self::default() },
        }
    }
}

/// Returns the JSON of an event without the arguments of a standing rule and the values with which the rule compares arguments,
/// which must not leave the gateway.
#[must_use]
pub fn outgoing_json(json: &[u8]) -> String {
    let text = String::from_utf8_lossy(json).into_owned();
    let Ok(mut event) = text.parse::<Value>() else { return text };
    let Some(rule) = event.get_mut("rule").and_then(Value::as_object_mut) else { return text };
    rule.shift_remove("arguments");
    let patterns = rule.get_mut("matching").and_then(Value::as_array_mut).into_iter().flatten();
    for pattern in patterns.filter_map(Value::as_object_mut) {
        pattern.retain(|member, _| member == "argument");
    }
    event.to_string()
}

/// Returns `true` if a pattern matches at least one event type.
#[must_use]
pub fn matches_any_type(pattern: &str) -> bool {
    let patterns = glob_set(&[pattern.to_owned()]);
    event_types().any(|kind| patterns.is_match(kind))
}

/// Compiles all patterns into one set.
#[must_use]
pub fn glob_set(patterns: &[String]) -> GlobSet {
    let mut set = GlobSetBuilder::new();
    // Invalid patterns were rejected with the configuration.
    patterns.iter().filter_map(|pattern| Glob::new(pattern).ok()).for_each(|glob| {
        set.add(glob);
    });
    set.build().unwrap_or_else(|_| GlobSet::empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(event: &Value) -> EventFacts {
        EventFacts::from_json(event.to_string().as_bytes())
    }

    #[test]
    fn patterns_match_known_event_types_only() {
        assert!(matches_any_type("change.*") && matches_any_type("*") && matches_any_type("rule.created"));
        assert!(!matches_any_type("chnage.*") && !matches_any_type("session.*"));
    }

    #[test]
    fn rule_arguments_are_not_sent() {
        let rule = json!({ "type": "rule.created", "rule": {
            "id": "srl_1", "provider": "files", "tool": "files__write", "arguments": { "secret": 1 }, "uses": 0,
        } });
        let out = outgoing_json(rule.to_string().as_bytes());
        assert!(!out.contains("secret") && out.contains("srl_1"), "{out}");
        assert_eq!(facts(&rule).tools, ["files__write"]);
        let matching = json!([{ "argument": "to", "equals": "secret" }, { "argument": "path", "within": "/secret" }]);
        let out = outgoing_json(json!({ "rule": { "id": "srl_2", "matching": matching } }).to_string().as_bytes());
        assert_eq!(out, r#"{"rule":{"id":"srl_2","matching":[{"argument":"to"},{"argument":"path"}]}}"#);
        assert_eq!(outgoing_json(b"{\"change\":1}"), "{\"change\":1}");
        assert_eq!(EventFacts::from_json(b"no json").subject, "configuration");
    }
}

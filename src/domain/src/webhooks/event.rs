//! The facts of a feed event, and the patterns for its type.
//!
//! Transitions of changes are durable in the feed. Other events (`change.escalated`, `change.reminder`, `rule.*`, `provider.*`,
//! `config.*`, `webhook.*`) reach only current subscribers: a webhook stores the events that it receives, and misses events that
//! occur while the gateway is down.

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde::Deserialize;

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

/// Returns `true` if a pattern matches at least one event type.
pub fn matches_any_type(pattern: &str) -> bool {
    let patterns = glob_set(&[pattern.to_owned()]);
    event_types().any(|kind| patterns.is_match(kind))
}

/// Compiles all patterns into one set.
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

    #[test]
    fn patterns_match_known_event_types_only() {
        assert!(matches_any_type("change.*") && matches_any_type("*") && matches_any_type("rule.created"));
        assert!(!matches_any_type("chnage.*") && !matches_any_type("session.*"));
    }

    #[test]
    fn rule_event_is_about_the_tool_of_the_rule() {
        let rule =
            json!({ "type": "rule.created", "rule": { "id": "srl_1", "provider": "files", "tool": "files__write" } });
        let facts = EventFacts::from_json(rule.to_string().as_bytes());
        assert_eq!((facts.subject.as_str(), facts.server.as_deref()), ("srl_1", Some("files")));
        assert_eq!(facts.tools, ["files__write"]);
        assert_eq!(EventFacts::from_json(b"no json").subject, "configuration");
    }
}

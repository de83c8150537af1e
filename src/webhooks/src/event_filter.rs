//! Selects the events of a webhook.

use globset::GlobSet;

use countersign_config::WebhookConfig;
use countersign_domain::{
    changes::ChangeState,
    webhooks::event::{EventFacts, event_types, glob_set},
};
use countersign_feed::FeedEvent;

/// Returns the facts of an event, with all its tools. If these were too many to keep, the facts name none, and filters by tool
/// do not apply.
pub fn event_facts(event: &FeedEvent) -> EventFacts {
    let facts = EventFacts::from_json(&event.json);
    match &event.tools {
        Some(tools) => EventFacts { tools: tools.clone(), ..facts },
        None => facts,
    }
}

/// The filter of one webhook's configuration.
#[derive(Clone, Debug)]
pub struct EventFilter {
    name: String,
    kinds: GlobSet,
    /// `None` accepts all, unlike a set without a valid pattern.
    tools: Option<GlobSet>,
    /// `None` accepts all, unlike a set without a valid pattern.
    servers: Option<GlobSet>,
    states: Vec<ChangeState>,
}

impl EventFilter {
    pub fn new(config: &WebhookConfig) -> Self {
        let optional_globs = |patterns: &[String]| (!patterns.is_empty()).then(|| glob_set(patterns));
        Self {
            name: config.name.clone(),
            kinds: glob_set(&config.events),
            tools: optional_globs(&config.tools),
            servers: optional_globs(&config.servers),
            states: config.states.clone(),
        }
    }

    /// Returns `true` if events of this type can match.
    pub fn accepts_kind(&self, kind: &str) -> bool {
        event_types().any(|known| known == kind) && self.kinds.is_match(kind)
    }

    /// Returns `true` if the event matches. Filters by server, tool or state do not apply to events without that
    /// field. A webhook never gets events about itself.
    pub fn accepts(&self, kind: &str, facts: &EventFacts) -> bool {
        let matches_any = |glob_set: &Option<GlobSet>, names: &[String]| {
            glob_set
                .as_ref()
                .is_none_or(|glob_set| names.is_empty() || names.iter().any(|name| glob_set.is_match(name)))
        };
        self.accepts_kind(kind)
            && matches_any(&self.servers, facts.server.as_slice())
            && matches_any(&self.tools, &facts.tools)
            && facts.state.is_none_or(|state| self.states.is_empty() || self.states.contains(&state))
            && facts.webhook.as_ref() != Some(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use countersign_feed::Feed;
    use countersign_store::StoreLocation;

    fn filter_with(change_config: impl FnOnce(&mut WebhookConfig)) -> EventFilter {
        let mut config = WebhookConfig::sample("hook");
        change_config(&mut config);
        EventFilter::new(&config)
    }

    fn facts(event: &Value) -> EventFacts {
        EventFacts::from_json(event.to_string().as_bytes())
    }

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn filters_apply_only_to_events_with_that_field() {
        let change = facts(&json!({
            "change": { "id": "chg_1", "provider": "files", "tool": "write_file", "state": "failed", "more": 1 },
        }));
        assert_eq!((change.subject.as_str(), change.state), ("chg_1", Some(ChangeState::Failed)));
        let down = facts(&json!({ "provider": "files", "error": "gone" }));
        let all = filter_with(|_| {});
        assert!(
            all.accepts("change.failed", &change) && !all.accepts("provider.down", &down),
            "only changes match by default"
        );
        assert!(!all.accepts("change.unheard_of", &change) && !all.accepts("session.opened", &EventFacts::default()));
        for (field, wants_change, wants_down) in [
            (("servers", texts(&["file*"])), true, true),
            (("servers", texts(&["git"])), false, false),
            (("tools", texts(&["write_*", "x"])), true, true),
            (("tools", texts(&["read_*"])), false, true),
            (("states", texts(&["failed"])), true, true),
            (("states", texts(&["applied", "rejected"])), false, true),
        ] {
            let filter = filter_with(|config| {
                config.events = texts(&["*"]);
                match &field {
                    ("servers", values) => config.servers.clone_from(values),
                    ("tools", values) => config.tools.clone_from(values),
                    (_, values) => config.states = values.iter().filter_map(|v| ChangeState::parse(v)).collect(),
                }
            });
            assert_eq!(filter.accepts("change.failed", &change), wants_change, "{field:?}");
            assert_eq!(filter.accepts("provider.down", &down), wants_down, "{field:?}");
            assert!(filter.accepts("config.refused", &facts(&json!({ "problems": [] }))));
        }
        let all = filter_with(|config| config.events = texts(&["*"]));
        assert!(
            !all.accepts("webhook.failing", &facts(&json!({ "webhook": "hook" }))),
            "a webhook gets no events about itself"
        );
        assert!(all.accepts("webhook.failing", &facts(&json!({ "webhook": "other" }))));
    }

    #[test]
    fn invalid_pattern_accepts_no_event_with_that_field() {
        let change = facts(&json!({ "change": { "id": "chg_1", "provider": "files", "tool": "write_file" } }));
        let down = facts(&json!({ "provider": "files", "error": "gone" }));
        for pattern in ["[", "{a"] {
            let servers = filter_with(|config| config.servers = texts(&[pattern]));
            let tools = filter_with(|config| (config.events, config.tools) = (texts(&["*"]), texts(&[pattern])));
            assert!(
                !servers.accepts("change.failed", &change) && !tools.accepts("change.failed", &change),
                "{pattern}"
            );
            assert!(tools.accepts("provider.down", &down), "an event without tools is sent");
            let events = filter_with(|config| config.events = texts(&[pattern]));
            assert!(!events.accepts("change.failed", &change), "{pattern}");
        }
    }

    #[actix::test]
    async fn tool_beyond_the_sent_ones_matches_its_filter() {
        let dir = tempfile::tempdir().unwrap();
        let feed = Feed::new(StoreLocation::directory(dir.path()).open().unwrap(), 0, 1);
        let mut events = feed.subscribe(None).unwrap();
        for (count, pattern, is_accepted) in [
            (50, "files__t0", true),
            (50, "files__t49", true),
            (50, "files__t50", false),
            // Their names are too long to be kept.
            (5000, "files__t5000", true),
        ] {
            let tools: Vec<String> = (0..count).map(|n| format!("files__t{n}")).collect();
            feed.publish_live(&json!({ "type": "provider.changed", "provider": "files", "tools": tools }));
            let event = events.next().await.unwrap();
            let sent: Value = serde_json::from_slice(&event.json).unwrap();
            assert_eq!(sent["tools"].as_array().unwrap().as_slice(), &tools[..20]);
            let filter = filter_with(|config| {
                config.events = texts(&["*"]);
                config.tools = texts(&[pattern]);
            });
            assert_eq!(filter.accepts(&event.kind, &event_facts(&event)), is_accepted, "{count} {pattern}");
        }
    }
}

//! Which events a webhook wants.

use globset::GlobSet;

use countersign_config::WebhookConfig;
use countersign_domain::{
    changes::ChangeState,
    webhooks::event::{Facts, KINDS, globs},
};

/// What a webhook wants, as its configuration says.
#[derive(Clone, Debug)]
pub struct Wanted {
    name: String,
    kinds: GlobSet,
    tools: Option<GlobSet>,
    servers: Option<GlobSet>,
    states: Vec<ChangeState>,
}

impl Wanted {
    #[must_use]
    pub fn new(config: &WebhookConfig) -> Self {
        let some = |patterns: &[String]| (!patterns.is_empty()).then(|| globs(patterns));
        Self {
            name: config.name.clone(),
            kinds: globs(&config.events),
            tools: some(&config.tools),
            servers: some(&config.servers),
            states: config.states.clone(),
        }
    }

    /// Whether an event of this type can be among them.
    #[must_use]
    pub fn is_kind(&self, kind: &str) -> bool {
        KINDS.contains(&kind) && self.kinds.is_match(kind)
    }

    /// Whether it is one of them: what it has no server, tool or state for is judged by its type alone. Nobody is told
    /// of itself.
    #[must_use]
    pub fn wants(&self, kind: &str, facts: &Facts) -> bool {
        let one_of = |globs: &Option<GlobSet>, names: &[String]| {
            globs.as_ref().is_none_or(|globs| names.is_empty() || names.iter().any(|name| globs.is_match(name)))
        };
        self.is_kind(kind)
            && one_of(&self.servers, facts.server.as_slice())
            && one_of(&self.tools, &facts.tools)
            && facts.state.is_none_or(|state| self.states.is_empty() || self.states.contains(&state))
            && facts.webhook.as_ref() != Some(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wanted(f: impl FnOnce(&mut WebhookConfig)) -> Wanted {
        let mut config = WebhookConfig::sample("hook");
        f(&mut config);
        Wanted::new(&config)
    }

    fn facts(event: &Value) -> Facts {
        Facts::of(event.to_string().as_bytes())
    }

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn filters_are_for_what_has_such_a_thing() {
        let change = facts(&json!({
            "change": { "id": "chg_1", "provider": "files", "tool": "write_file", "state": "failed", "more": 1 },
        }));
        assert_eq!((change.subject.as_str(), change.state), ("chg_1", Some(ChangeState::Failed)));
        let down = facts(&json!({ "provider": "files", "error": "gone" }));
        let all = wanted(|_| {});
        assert!(all.wants("change.failed", &change) && !all.wants("provider.down", &down), "changes by default");
        assert!(!all.wants("change.unheard_of", &change) && !all.wants("session.opened", &Facts::default()));
        for (more, wants_change, wants_down) in [
            (("servers", texts(&["file*"])), true, true),
            (("servers", texts(&["git"])), false, false),
            (("tools", texts(&["write_*", "x"])), true, true),
            (("tools", texts(&["read_*"])), false, true),
            (("states", texts(&["failed"])), true, true),
            (("states", texts(&["applied", "rejected"])), false, true),
        ] {
            let wanted = wanted(|config| {
                config.events = texts(&["*"]);
                match &more {
                    ("servers", values) => config.servers.clone_from(values),
                    ("tools", values) => config.tools.clone_from(values),
                    (_, values) => config.states = values.iter().filter_map(|v| ChangeState::parse(v)).collect(),
                }
            });
            assert_eq!(wanted.wants("change.failed", &change), wants_change, "{more:?}");
            assert_eq!(wanted.wants("provider.down", &down), wants_down, "{more:?}");
            assert!(wanted.wants("config.refused", &facts(&json!({ "problems": [] }))));
        }
        let all = wanted(|config| config.events = texts(&["*"]));
        assert!(!all.wants("webhook.failing", &facts(&json!({ "webhook": "hook" }))), "nobody is told of itself");
        assert!(all.wants("webhook.failing", &facts(&json!({ "webhook": "other" }))));
    }
}

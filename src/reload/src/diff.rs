//! Compares the configuration in force with a new one, and holds back changes that loosen policy. Has no side effects.

use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::{
    identity_providers,
    pending::{Loosening, PolicyChanges},
    rule_lists, server_diff,
};
use countersign_config::{AuthConfig, Config, LoadedConfig, reader::Setting};
use countersign_domain::{
    changes::Terms,
    policy::{GroupMember, PolicyConfig, PolicyMode, Verdict, terms},
};

/// The differences between two configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ConfigDiff)]
pub struct Diff {
    /// Names of servers.
    pub upstreams_added: Vec<String>,
    pub upstreams_removed: Vec<String>,
    pub upstreams_changed: Vec<String>,
    /// Names of webhooks.
    pub webhooks_added: Vec<String>,
    pub webhooks_removed: Vec<String>,
    pub webhooks_changed: Vec<String>,
    /// Changes that need a reviewer's consent.
    pub policy_loosened: Vec<Loosening>,
    /// Changes that make policy stricter, described for people.
    pub policy_tightened: Vec<String>,
    pub policy_changed: bool,
    pub routes_changed: bool,
    pub log_changed: bool,
    /// `true` if the identity provider or the token issuers changed. The API does not report it.
    #[serde(skip)]
    pub auth_changed: bool,
    /// Changed keys that are read only at the start.
    pub needs_restart: Vec<String>,
}

impl Diff {
    /// Returns `true` if nothing changed that can change while the gateway runs.
    pub fn is_empty(&self) -> bool {
        *self == Self { needs_restart: self.needs_restart.clone(), ..Self::default() }
    }
}

/// Compares two configurations. Returns their differences, and the configuration that may take effect at once: the new one,
/// but with the old values of everything that loosens policy and of the keys that are read only at the start.
pub fn compare(old: &Config, new: &Config) -> (Diff, Config) {
    let mut changes = PolicyChanges::default();
    let mut effective = Config {
        upstreams: new.upstreams.clone(),
        routes: new.routes.clone(),
        webhooks: new.webhooks.clone(),
        policy: new.policy.clone(),
        dashboard_edit: new.dashboard_edit,
        log: countersign_telemetry::logs::LogConfig { filter: new.log.filter.clone(), ..old.log.clone() },
        ..old.clone()
    };
    let has_restrictive_rules = hold_back_policy(&old.policy, &new.policy, &mut effective.policy, &mut changes);
    let servers = new.upstreams.iter().filter_map(|server| {
        let before = old.upstreams.iter().find(|before| before.name == server.name);
        server_diff::hold_back_loosening(before, server, has_restrictive_rules, &mut changes)
    });
    effective.upstreams = servers.collect();
    if effective.may_edit_on_dashboard() && !old.may_edit_on_dashboard() {
        changes.loosen("dashboard.edit", <&str>::from(old.dashboard_edit), <&str>::from(new.dashboard_edit));
        effective.dashboard_edit = old.dashboard_edit;
    }
    let (old_auth, new_auth) = (&old.auth, &new.auth);
    effective.auth.oidc =
        identity_providers::hold_back_identity_provider(old_auth.oidc.as_ref(), new_auth.oidc.as_ref(), &mut changes);
    effective.auth.tokens = identity_providers::hold_back_issuers(&old_auth.tokens, &new_auth.tokens, &mut changes);
    let PolicyChanges { loosened: policy_loosened, tightened: policy_tightened } = changes;
    (Diff { policy_loosened, policy_tightened, ..find_changes(old, new) }, effective)
}

/// Returns the configuration in force after consent to all changes of the new one that need it.
pub fn apply_consent(in_force: &Config, new: &Config) -> Config {
    Config {
        upstreams: new.upstreams.clone(),
        policy: new.policy.clone(),
        dashboard_edit: new.dashboard_edit,
        auth: AuthConfig { mode: in_force.auth.mode, ..new.auth.clone() },
        ..in_force.clone()
    }
}

/// Finds all differences that can take effect while the gateway runs, whether they loosen policy or not.
fn find_changes(old: &Config, new: &Config) -> Diff {
    let (upstreams_added, upstreams_removed, upstreams_changed) =
        diff_by_name(&old.upstreams, &new.upstreams, |server| &server.name);
    let (webhooks_added, webhooks_removed, webhooks_changed) =
        diff_by_name(&old.webhooks.entries(), &new.webhooks.entries(), |(name, _)| name);
    Diff {
        upstreams_added,
        upstreams_removed,
        upstreams_changed,
        webhooks_added,
        webhooks_removed,
        webhooks_changed,
        policy_changed: (&old.policy, old.dashboard_edit) != (&new.policy, new.dashboard_edit),
        routes_changed: old.routes != new.routes,
        log_changed: old.log.filter != new.log.filter,
        auth_changed: (&old.auth.oidc, &old.auth.tokens) != (&new.auth.oidc, &new.auth.tokens),
        ..Diff::default()
    }
}

/// Returns the names that are only in `now`, only in `before`, and in both with different values.
fn diff_by_name<T: PartialEq>(
    before: &[T],
    now: &[T],
    name: impl Fn(&T) -> &str,
) -> (Vec<String>, Vec<String>, Vec<String>) {
    let find = |all: &'_ [T], item: &T| all.iter().position(|other| name(other) == name(item));
    let names_of = |all: &'_ [T], is_wanted: &dyn Fn(&T) -> bool| {
        all.iter().filter(|item| is_wanted(item)).map(|item| name(item).to_owned()).collect()
    };
    let is_changed = |item: &T| find(before, item).is_some_and(|index| before[index] != *item);
    (
        names_of(now, &|item| find(before, item).is_none()),
        names_of(before, &|item| find(now, item).is_none()),
        names_of(now, &is_changed),
    )
}

/// Holds back the changes that loosen the policy. Returns `true` if the old policy has a rule that reviews or denies.
fn hold_back_policy(
    old: &PolicyConfig,
    new: &PolicyConfig,
    effective: &mut PolicyConfig,
    changes: &mut PolicyChanges,
) -> bool {
    // Destructured, so that a new field of the policy must be compared here before it can take effect.
    let PolicyConfig { mode: _, default: _, rules: _, review: _, groups: _ } = new;
    let (from, to) = (old.default.as_str(), new.default.as_str());
    if new.default < old.default {
        effective.default = old.default;
        changes.loosen("policy.default", from, to);
    } else if new.default != old.default {
        changes.tighten(format!("policy.default is {to} instead of {from}"));
    }
    hold_back_mode(old, new, effective, changes);
    hold_back_review(old, new, effective, changes);
    hold_back_groups(old, new, effective, changes);
    let default_decision = rule_lists::DefaultDecision { default: old.default, terms: old.review.clone() };
    let merged = rule_lists::merge(&old.rules, &new.rules, &default_decision);
    changes.loosened.extend(merged.changes.loosened);
    changes.tightened.extend(merged.changes.tightened);
    effective.rules = merged.effective;
    // A rule that does not review has the default terms, which may be held back.
    for rule in effective.rules.iter_mut().filter(|rule| rule.then != Verdict::Review) {
        rule.terms = Arc::clone(&effective.review);
    }
    old.rules.iter().any(|rule| rule.then != Verdict::Allow)
}

fn hold_back_mode(old: &PolicyConfig, new: &PolicyConfig, effective: &mut PolicyConfig, changes: &mut PolicyChanges) {
    let (from, to) = (<&str>::from(old.mode), <&str>::from(new.mode));
    match (old.mode, new.mode) {
        (PolicyMode::Enforce, PolicyMode::Simulate) => {
            effective.mode = old.mode;
            changes.loosen("policy.mode", from, to);
        }
        (PolicyMode::Simulate, PolicyMode::Enforce) => {
            changes.tighten(format!("policy.mode is {to} instead of {from}"));
        }
        _ => {}
    }
}

/// Compares the default terms of reviews. If they loosen in any way, the old ones stay as a whole.
fn hold_back_review(old: &PolicyConfig, new: &PolicyConfig, effective: &mut PolicyConfig, changes: &mut PolicyChanges) {
    let looser = terms::loosened_terms(&old.review, &new.review);
    if looser.is_empty() {
        if !terms::loosened_terms(&new.review, &old.review).is_empty() {
            changes.tighten("policy.review is stricter");
        }
        return;
    }
    effective.review = old.review.clone();
    looser.into_iter().for_each(|(from, to)| changes.loosen("policy.review", from, to));
}

/// Compares groups of reviewers. A new member could decide on more changes than before and waits for consent; a removed
/// member leaves at once.
fn hold_back_groups(old: &PolicyConfig, new: &PolicyConfig, effective: &mut PolicyConfig, changes: &mut PolicyChanges) {
    let is_asked_to_review = |name: &str| {
        let mut terms = old.rules.iter().map(|rule| &rule.terms).chain([&old.review]);
        let is_asked_after_escalation =
            |terms: &Terms| terms.escalate.as_ref().is_some_and(|escalation| escalation.to.iter().any(|to| to == name));
        terms.any(|terms| terms.reviewers.iter().any(|reviewer| reviewer == name) || is_asked_after_escalation(terms))
    };
    for (name, now) in &new.groups {
        let no_members = Vec::new();
        let before = match old.groups.get(name) {
            Some(before) => before,
            // A rule or default that names the group is new as well, and is judged by itself.
            None if !is_asked_to_review(name) => continue,
            None => &no_members,
        };
        let (remaining, added): (Vec<&GroupMember>, Vec<&GroupMember>) =
            now.iter().partition(|member| before.contains(member));
        if !added.is_empty() {
            let list = |members: &[GroupMember]| match members.iter().map(ToString::to_string).collect::<Vec<_>>() {
                none if none.is_empty() => "nobody".to_owned(),
                names => names.join(", "),
            };
            changes.loosen(format!("policy.groups.{name}"), list(before), list(now));
            effective.groups.insert(name.clone(), remaining.into_iter().cloned().collect());
        } else if now.len() < before.len() {
            changes.tighten(format!("policy.groups: {name} has fewer people"));
        }
    }
    for name in old.groups.keys().filter(|name| !new.groups.contains_key(*name)) {
        changes.tighten(format!("policy.groups: {name} was removed"));
    }
}

/// Returns the keys that are read only at the start and whose values have changed since then. They still have their values
/// from the start in the configuration in force.
pub fn keys_that_need_restart(settings_at_start: &[Setting], in_force: &Config, now: &LoadedConfig) -> Vec<String> {
    let is_live = |key: &str| {
        ["mcpServers", "webhooks", "dashboard.edit", "log.filter", "auth.oidc", "auth.tokens"].contains(&key)
            || ["policy.", "routes."].iter().any(|part| key.starts_with(part))
    };
    let differs = |setting: &&Setting| {
        has_other_secret(setting.key, in_force, &now.config)
            || !settings_at_start.iter().any(|before| before.key == setting.key && before.value == setting.value)
    };
    let settings = now.settings.iter().filter(|setting| !is_live(setting.key));
    settings.filter(differs).map(|setting| setting.key.to_owned()).collect()
}

/// Returns `true` if the secret of a key has changed. Settings show secrets as placeholders or as the names of variables.
fn has_other_secret<'a>(key: &str, old: &'a Config, new: &'a Config) -> bool {
    let url = |config: &'a Config| config.store.as_ref().map(|store| &store.url);
    let (old_docs, new_docs) = (&old.modules.docs, &new.modules.docs);
    match key {
        "secrets.key" => old.token_key != new.token_key,
        "store.url" => url(old) != url(new),
        "modules.docs.embeddings" => old_docs.embeddings != new_docs.embeddings,
        "modules.docs.generation" => old_docs.generation != new_docs.generation,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use countersign_config::{DashboardEdit, Environment, Flags, UpstreamConfig, UpstreamTarget, load};
    use countersign_domain::policy::PolicyDefault;
    use countersign_telemetry::logs::LogFormat;

    fn config(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config::default();
        change(&mut config);
        config
    }

    fn rules(yaml: &str) -> Config {
        load_yaml(&format!("policy: {{ rules: [{yaml}] }}"))
    }

    fn load_yaml(yaml: &str) -> Config {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, yaml).unwrap();
        let flags = Flags { config: Some(file), data: Some("d".into()), ..Flags::default() };
        load(&flags, &Environment::new(Path::new("/"), &[])).unwrap_or_else(|e| panic!("{e}")).config
    }

    #[test]
    fn looser_rules_wait_and_stricter_rules_do_not() {
        let old = rules("{name: no-db, tools: 'db_*', then: deny}, {tools: x, roles: [agent], then: allow}");
        // A changed name or reason makes no difference; a changed condition makes another rule.
        let named =
            rules("{name: db, tools: 'db_*', reason: why, then: deny}, {tools: x, roles: [agent], then: allow}");
        let (diff, effective) = compare(&old, &named);
        assert_eq!((diff.policy_loosened.len(), diff.policy_tightened.len()), (0, 0));
        assert_eq!(effective.policy, named.policy);
        let other =
            rules("{name: no-db, tools: 'db_*', when: 'arguments.a == 1', then: deny}, {tools: y, then: review}");
        let (diff, effective) = compare(&old, &other);
        let expected = Loosening { key: "policy.rules".into(), from: "no-db (deny)".into(), to: "no such rule".into() };
        // No later rule denies `y`, so a review is stricter.
        assert_eq!(diff.policy_loosened, [expected]);
        let labels = |config: &Config| {
            config.policy.rules.iter().map(|r| (r.then.as_str(), r.when.is_some())).collect::<Vec<_>>()
        };
        assert_eq!(labels(&effective), [("deny", true), ("deny", false), ("review", false)]);
        assert_eq!(diff.policy_tightened.len(), 3, "{:?}", diff.policy_tightened);
        let (diff, effective) = compare(&old, &rules(""));
        assert_eq!((diff.policy_loosened.len(), effective.policy.rules.len()), (1, 1));
    }

    #[test]
    fn looser_reviewers_and_terms_wait() {
        let old = load_yaml(
            "policy: { groups: { dba: [a, b] }, review: { quorum: 2 },\n\
                      rules: [{ tools: x, then: review, reviewers: dba }] }",
        );
        let keys = |diff: &Diff| diff.policy_loosened.iter().map(|l| l.key.clone()).collect::<Vec<_>>();
        let new = load_yaml(
            "policy: { mode: simulate, groups: { dba: [b, c], ops: [d] }, review: { quorum: 1 },\n\
                      rules: [{ tools: x, then: review, reviewers: [dba, ops] }] }",
        );
        let (diff, effective) = compare(&old, &new);
        assert_eq!(
            keys(&diff),
            ["policy.mode", "policy.review", "policy.groups.dba", "policy.rules", "policy.rules"],
            "{diff:?}"
        );
        assert_eq!((effective.policy.mode, effective.policy.review.quorum), (PolicyMode::Enforce, 2));
        assert_eq!(effective.policy.rules, old.policy.rules);
        assert_eq!(effective.policy.groups["dba"], [GroupMember::Name("b".into())], "a removed member leaves at once");
        // The pending changes stay pending as long as the file has them.
        let (again, same) = compare(&effective, &new);
        assert_eq!(keys(&again), keys(&diff));
        assert_eq!(same, effective);
        // The way back is stricter and needs no consent.
        let (back, effective) = compare(&new, &old);
        assert_eq!(keys(&back), ["policy.groups.dba"], "the member a is added again");
        assert_eq!((effective.policy.mode, effective.policy.review.quorum), (PolicyMode::Enforce, 2));
    }

    #[test]
    fn prefix_that_evades_a_rule_waits() {
        let mut old = rules("{tools: 'a__*', then: deny}");
        old.upstreams = vec![server("a")];
        let mut new = old.clone();
        new.upstreams[0].prefix = "b__".into();
        let (diff, effective) = compare(&old, &new);
        assert_eq!(diff.policy_loosened[0].key, "mcpServers.a.prefix");
        assert_eq!(effective, old);
    }

    fn server(name: &str) -> UpstreamConfig {
        let command = "x".to_owned();
        let target = UpstreamTarget::Command { command, args: Vec::new(), env: Default::default(), cwd: None };
        UpstreamConfig::new(name, target)
    }

    #[test]
    fn added_removed_and_changed_servers_are_named() {
        let old = config(|c| c.upstreams = ["a", "b", "c"].map(server).to_vec());
        let new = config(|c| {
            c.upstreams = ["d", "c", "a"].map(server).to_vec();
            c.upstreams[1].required = true;
        });
        let (diff, effective) = compare(&old, &new);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let expected = Diff {
            upstreams_added: names(&["d"]),
            upstreams_removed: names(&["b"]),
            upstreams_changed: names(&["c"]),
            ..Diff::default()
        };
        assert_eq!(diff, expected);
        assert_eq!(effective, new);
        assert!(!diff.is_empty());
        let (diff, effective) = compare(&new, &new);
        assert!(diff.is_empty());
        assert_eq!(effective, new);
    }

    #[test]
    fn looser_default_waits_and_stricter_default_does_not() {
        use PolicyDefault::{Allow, Deny, ReviewAll, ReviewWrites};
        let order = [Allow, ReviewWrites, ReviewAll, Deny];
        for (from, old) in order.iter().enumerate() {
            for (to, new) in order.iter().enumerate() {
                let (before, now) = (config(|c| c.policy.default = *old), config(|c| c.policy.default = *new));
                let (diff, effective) = compare(&before, &now);
                assert_eq!(diff.policy_loosened.len(), usize::from(to < from), "{old:?} → {new:?}");
                assert_eq!(diff.policy_tightened.len(), usize::from(to > from), "{old:?} → {new:?}");
                assert_eq!(effective.policy.default, order[from.max(to)], "{old:?} → {new:?}");
            }
        }
    }

    #[test]
    fn pending_changes_do_not_delay_other_changes() {
        let old = config(|c| c.upstreams = vec![server("a")]);
        let new = config(|c| {
            c.policy.default = PolicyDefault::Allow;
            c.routes.prefixes = vec![("x_".into(), "a".into())];
            c.log.filter = "debug".into();
            c.upstreams = vec![server("a"), server("b")];
            c.upstreams[1].trust_annotations = true;
            c.upstreams[0].max_queue = 1;
        });
        let (diff, effective) = compare(&old, &new);
        let keys: Vec<&str> = diff.policy_loosened.iter().map(|l| l.key.as_str()).collect();
        assert_eq!(keys, ["policy.default", "mcpServers.b.trust_annotations"]);
        assert!(diff.routes_changed && diff.log_changed && diff.policy_changed);
        assert_eq!(effective.policy, old.policy);
        assert_eq!((&effective.routes, &effective.log), (&new.routes, &new.log));
        assert_eq!(effective.upstreams[0], new.upstreams[0]);
        assert!(!effective.upstreams[1].trust_annotations);
        // With the pending changes in force, no difference is left.
        let (diff, _) = compare(&new, &new);
        assert_eq!(diff, Diff::default());
        // Compared with what took effect at once, the same changes are pending.
        let (again, same) = compare(&effective, &new);
        assert_eq!(again.policy_loosened, compare(&old, &new).0.policy_loosened);
        assert_eq!(same, effective);
    }

    #[test]
    fn editing_on_the_dashboard_waits_where_it_is_turned_on() {
        use DashboardEdit::{Auto, Off, On};
        use countersign_config::AuthMode;
        let config = |mode: AuthMode, edit: DashboardEdit| config(|c| (c.auth.mode, c.dashboard_edit) = (mode, edit));
        for (mode, old, new, waits) in [
            (AuthMode::Local, Off, Auto, true),
            (AuthMode::Local, Off, On, true),
            (AuthMode::Local, Auto, On, false),
            (AuthMode::Local, Auto, Off, false),
            (AuthMode::Keys, Auto, On, true),
            (AuthMode::Keys, Auto, Off, false),
            (AuthMode::Keys, On, Auto, false),
        ] {
            let (old, new) = (config(mode, old), config(mode, new));
            let (diff, effective) = compare(&old, &new);
            let keys: Vec<&str> = diff.policy_loosened.iter().map(|loosening| loosening.key.as_str()).collect();
            assert_eq!(keys, if waits { vec!["dashboard.edit"] } else { vec![] }, "{mode:?} {old:?} {new:?}");
            assert_eq!(effective.dashboard_edit, if waits { old.dashboard_edit } else { new.dashboard_edit });
            assert!(diff.policy_changed);
            assert_eq!(apply_consent(&effective, &new).dashboard_edit, new.dashboard_edit);
        }
    }

    #[test]
    fn keys_read_at_start_stay_and_are_reported() {
        let old = config(|_| {});
        let new = config(|c| {
            c.limits.max_batch = 7;
            c.log.format = LogFormat::Json;
        });
        let (diff, effective) = compare(&old, &new);
        assert!(diff.is_empty());
        assert_eq!(effective, old);

        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        let loaded = |yaml: &str| {
            std::fs::write(&file, yaml).unwrap();
            let flags = Flags { config: Some(file.clone()), data: Some("d".into()), ..Flags::default() };
            load(&flags, &Environment::new(dir.path(), &[])).unwrap()
        };
        let needs_restart = |before: &str, now: &str| {
            let before = loaded(before);
            keys_that_need_restart(&before.settings, &before.config, &loaded(now))
        };
        assert_eq!(needs_restart("listen: 127.0.0.1:1", "{listen: '127.0.0.1:1' }"), Vec::<String>::new());
        let now = "limits: { max_batch: 9 }\nlog: { filter: debug, format: json }\npolicy: { default: deny }\n\
             routes: { prefixes: { a: tracker } }\nmcpServers: { a: { command: x } }\n";
        assert_eq!(needs_restart("listen: 127.0.0.1:1", now), ["listen", "limits.max_batch", "log.format"]);
        let secrets = |password: &str, key: char| {
            let key = key.to_string().repeat(42);
            format!(
                "store: {{ url: 'postgres://u:{password}@db.example/c' }}\nsecrets: {{ key: {key}A= }}\nmodules: {{ docs: \
                 {{ embeddings: {{ url: 'http://a.example', model: m, key: {key} }} }} }}\n"
            )
        };
        assert_eq!(needs_restart(&secrets("a", 'A'), &secrets("a", 'A')), Vec::<String>::new());
        let changed = needs_restart(&secrets("a", 'A'), &secrets("b", 'B'));
        assert_eq!(changed, ["store.url", "secrets.key", "modules.docs.embeddings"]);
    }
}

//! Compares the old and the new configuration of one server, and holds back the changes that loosen policy.

use std::collections::BTreeSet;

use globset::Glob;

use super::pending::PolicyChanges;
use countersign_config::{Serialization, UpstreamConfig};
use countersign_domain::recipes::{Recipe, Recipes};

/// The configuration key of the servers.
const SERVERS_KEY: &str = "mcpServers";

/// Returns the new server with the changes that may take effect at once, or `None` if it may not be started. A server
/// that is added loosens nothing by itself, because its tools are reviewed like those of other servers.
///
/// `has_restrictive_rules` is `true` if the old policy has a rule that reviews or denies.
pub(super) fn hold_back_loosening(
    old: Option<&UpstreamConfig>,
    new: &UpstreamConfig,
    has_restrictive_rules: bool,
    changes: &mut PolicyChanges,
) -> Option<UpstreamConfig> {
    // Destructured, so that a new field of a server must be put into one of two groups. The fields of the first group start no
    // program, and let no call through that rules would have stopped.
    let UpstreamConfig {
        name: _,
        label: _,
        isolation: _,
        timeout: _,
        tool_timeouts: _,
        max_in_flight: _,
        max_queue: _,
        required: _,
        sampling: _,
        elicitation: _,
        breaker: _,
        lists: _,
        forward_headers: _,
        fallback: _,
        fallback_text: _,
        cache: _,
        authorities: _,
        instructions: _,
        oauth: _,
        // The second group is compared below.
        target: _,
        prefix: _,
        tools_allow: _,
        tools_deny: _,
        trust_annotations: _,
        allow_own_files: _,
        previews: _,
        serialize: _,
    } = new;
    let mut effective = new.clone();
    let key_of = |key: &str| format!("{SERVERS_KEY}.{}.{key}", new.name);
    let was_trusted = old.is_some_and(|old| old.trust_annotations);
    match old {
        // Trust was given to the earlier command or address.
        Some(old) if was_trusted && new.trust_annotations && old.target != new.target => {
            effective.trust_annotations = false;
            changes.loosen(key_of("trust_annotations"), "true", "true, for another command or address");
        }
        _ if new.trust_annotations && !was_trusted => {
            effective.trust_annotations = false;
            changes.loosen(key_of("trust_annotations"), "false", "true");
        }
        _ => {}
    }
    // The calls of a preview recipe run without review.
    let recipes = old.map(|old| old.previews.clone()).unwrap_or_default();
    if new.previews.permits_more_than(&recipes) {
        let (from, to) = (describe_recipes(&recipes, None), describe_recipes(&new.previews, Some(&recipes)));
        changes.loosen(key_of("previews"), from, to);
        effective.previews = new.previews.hold_back(&recipes);
    }
    let is_per_tool = |config: &UpstreamConfig| config.serialize == Serialization::Tool;
    if is_per_tool(new) && !old.is_some_and(is_per_tool) {
        let to = "tool: approved calls of different tools run side by side";
        changes.loosen(key_of("serialize"), "server", to);
        effective.serialize = Serialization::Server;
    }
    if new.allow_own_files && !old.is_some_and(|old| old.allow_own_files) {
        changes.loosen(key_of("allow_own_files"), "false", "true");
        // The new command may need this permission, so a running server keeps its command, and a new server is not started.
        effective.target.clone_from(&old?.target);
        effective.label.clone_from(&old?.label);
        effective.allow_own_files = false;
    }
    let Some(old) = old else { return Some(effective) };
    if was_trusted && !new.trust_annotations {
        changes.tighten(key_of("trust_annotations") + " is false");
    }
    if is_per_tool(old) && !is_per_tool(new) {
        changes.tighten(key_of("serialize") + " is server");
    }
    if old.prefix != new.prefix && has_restrictive_rules {
        effective.prefix.clone_from(&old.prefix);
        let to = format!("{:?}: rules no longer match its tools", new.prefix);
        changes.loosen(key_of("prefix"), format!("{:?}", old.prefix), to);
    }
    if is_widened(&old.tools_allow, &new.tools_allow) {
        changes.loosen(key_of("tools.allow"), show_patterns(&old.tools_allow), show_patterns(&new.tools_allow));
        effective.tools_allow = intersect(&old.tools_allow, &new.tools_allow);
        if effective.tools_allow.is_empty() {
            // The lists have nothing in common, and an empty allow-list would allow everything.
            effective.tools_allow.clone_from(&old.tools_allow);
            effective.tools_deny = vec!["*".to_owned()];
        }
    } else if old.tools_allow != new.tools_allow {
        changes.tighten(key_of("tools.allow") + " is narrower");
    }
    if old.tools_deny.iter().all(|pattern| is_covered(pattern, &new.tools_deny)) {
        if !new.tools_deny.iter().all(|pattern| is_covered(pattern, &old.tools_deny)) {
            changes.tighten(key_of("tools.deny") + " is longer");
        }
    } else {
        changes.loosen(key_of("tools.deny"), show_patterns(&old.tools_deny), show_patterns(&new.tools_deny));
        for pattern in &old.tools_deny {
            if !effective.tools_deny.contains(pattern) {
                effective.tools_deny.push(pattern.clone());
            }
        }
    }
    Some(effective)
}

/// Names the tools whose recipes need consent, with the parts of each recipe. Marks those that changed since `before`.
fn describe_recipes(recipes: &Recipes, before: Option<&Recipes>) -> String {
    let describe = |tool: &String| {
        let recipe = recipes.get(tool);
        let alternatives = recipe.into_iter().flat_map(Recipe::alternatives);
        let mut notes: Vec<&str> =
            alternatives.flat_map(Recipe::method_keys).collect::<BTreeSet<_>>().into_iter().collect();
        let is_changed =
            |before: &Recipes| tools_that_need_consent(before).contains(tool) && before.get(tool) != recipe;
        if before.is_some_and(is_changed) {
            notes.push("changed");
        }
        if notes.is_empty() { tool.clone() } else { format!("{tool} ({})", notes.join(", ")) }
    };
    let described: Vec<String> = tools_that_need_consent(recipes).iter().map(describe).collect();
    let described = if described.is_empty() { "no recipe that needs consent".to_owned() } else { described.join("; ") };
    let dispatchers = recipes.by_tool.values().filter_map(|recipe| recipe.dispatcher.as_ref());
    match dispatchers.map(|dispatcher| dispatcher.operations.len()).sum() {
        0 => described,
        known => format!("{described}; {known} operations known"),
    }
}

/// Returns the tools with a recipe that the operator wrote, or for whose calls the operator vouches by naming a set.
fn tools_that_need_consent(recipes: &Recipes) -> BTreeSet<String> {
    recipes.tools_with_own_recipe.iter().cloned().chain(recipes.trusted_tools()).collect()
}

/// Returns `true` if `new` may let a tool through that `old` does not. An empty list lets all through.
fn is_widened(old: &[String], new: &[String]) -> bool {
    match (old, new) {
        ([], _) => false,
        (_, []) => true,
        _ => !new.iter().all(|pattern| is_covered(pattern, old)),
    }
}

/// Returns the patterns that both allow-lists certainly cover.
fn intersect(old: &[String], new: &[String]) -> Vec<String> {
    if new.is_empty() {
        return old.to_vec();
    }
    let in_old = new.iter().filter(|pattern| is_covered(pattern, old));
    let in_new = old.iter().filter(|pattern| is_covered(pattern, new));
    let in_both: BTreeSet<&String> = in_old.chain(in_new).collect();
    in_both.into_iter().cloned().collect()
}

/// Returns `true` if one of the patterns in `covering` certainly matches everything that `pattern` matches. That is the same
/// pattern, `*`, or a pattern that matches a plain name.
fn is_covered(pattern: &str, covering: &[String]) -> bool {
    let is_plain_name = !pattern.contains(['*', '?', '[', ']', '{', '}', '\\', '!']);
    covering.iter().any(|other| {
        other == pattern
            || other == "*"
            || (is_plain_name && Glob::new(other).is_ok_and(|glob| glob.compile_matcher().is_match(pattern)))
    })
}

fn show_patterns(patterns: &[String]) -> String {
    if patterns.is_empty() { "none named".to_owned() } else { patterns.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_config::UpstreamTarget;

    fn server(change: impl FnOnce(&mut UpstreamConfig)) -> UpstreamConfig {
        let command = "x".to_owned();
        let target = UpstreamTarget::Command { command, args: Vec::new(), env: Default::default(), cwd: None };
        let mut server = UpstreamConfig::new("a", target);
        change(&mut server);
        server
    }

    /// The patterns before and after, `true` if the change loosens, and the patterns that take effect at once.
    type PatternCase = (&'static [&'static str], &'static [&'static str], bool, &'static [&'static str]);

    fn texts(patterns: &[&str]) -> Vec<String> {
        patterns.iter().map(|pattern| (*pattern).to_owned()).collect()
    }

    /// Returns the keys that loosen, how many changes tighten, and the server in force at once.
    fn hold_back_summary(
        old: Option<&UpstreamConfig>,
        new: &UpstreamConfig,
        has_restrictive_rules: bool,
    ) -> (Vec<String>, usize, UpstreamConfig) {
        let mut changes = PolicyChanges::default();
        let effective = hold_back_loosening(old, new, has_restrictive_rules, &mut changes).unwrap();
        (changes.loosened.into_iter().map(|l| l.key).collect(), changes.tightened.len(), effective)
    }

    #[test]
    fn trust_waits() {
        let (plain, trusted) = (server(|_| {}), server(|s| s.trust_annotations = true));
        for old in [None, Some(&plain)] {
            assert_eq!(
                hold_back_summary(old, &trusted, false),
                (vec!["mcpServers.a.trust_annotations".into()], 0, plain.clone())
            );
        }
        assert_eq!(hold_back_summary(Some(&trusted), &plain, false), (vec![], 1, plain.clone()));
        assert_eq!(hold_back_summary(Some(&trusted), &trusted, true), (vec![], 0, trusted.clone()));
        let other = server(|s| {
            s.trust_annotations = true;
            s.timeout *= 2;
        });
        assert_eq!(hold_back_summary(Some(&trusted), &other, false), (vec![], 0, other));
        // A changed program is not trusted yet, and runs at once without trust.
        let target =
            UpstreamTarget::Command { command: "y".to_owned(), args: Vec::new(), env: Default::default(), cwd: None };
        let moved = server(|s| (s.trust_annotations, s.target) = (true, target.clone()));
        let expected = server(|s| s.target = target.clone());
        assert_eq!(
            hold_back_summary(Some(&trusted), &moved, false),
            (vec!["mcpServers.a.trust_annotations".into()], 0, expected)
        );
    }

    #[test]
    fn access_to_the_gateways_own_files_waits() {
        let command = |name: &str| UpstreamTarget::Command {
            command: name.to_owned(),
            args: Vec::new(),
            env: Default::default(),
            cwd: None,
        };
        let (plain, moved) = (server(|_| {}), server(|s| s.target = command("y")));
        let own_file_server = server(|s| (s.allow_own_files, s.target, s.max_queue) = (true, command("y"), 7));
        // A server that needs the permission does not run without it; other changes take effect.
        let expected = (vec!["mcpServers.a.allow_own_files".into()], 0, server(|s| s.max_queue = 7));
        assert_eq!(hold_back_summary(Some(&plain), &own_file_server, false), expected);
        assert_eq!(
            hold_back_summary(Some(&own_file_server), &own_file_server, false),
            (vec![], 0, own_file_server.clone())
        );
        assert_eq!(hold_back_summary(Some(&own_file_server), &moved, false), (vec![], 0, moved));
        // A new server with the permission waits. A new server without the permission starts at once.
        let mut changes = PolicyChanges::default();
        assert_eq!(hold_back_loosening(None, &own_file_server, false, &mut changes), None);
        assert_eq!(changes.loosened[0].key, "mcpServers.a.allow_own_files");
        assert_eq!(hold_back_summary(None, &plain, true), (vec![], 0, plain));
    }

    #[test]
    fn concurrent_calls_wait() {
        let (server_wide, by_tool) = (server(|_| {}), server(|s| s.serialize = Serialization::Tool));
        for old in [None, Some(&server_wide)] {
            assert_eq!(
                hold_back_summary(old, &by_tool, false),
                (vec!["mcpServers.a.serialize".into()], 0, server_wide.clone())
            );
        }
        assert_eq!(hold_back_summary(Some(&by_tool), &by_tool, false), (vec![], 0, by_tool.clone()));
        assert_eq!(hold_back_summary(Some(&by_tool), &server_wide, false), (vec![], 1, server_wide.clone()));
    }

    #[test]
    fn renamed_tools_wait_if_rules_name_tools() {
        let (old, new) = (server(|_| {}), server(|s| s.prefix = "b_".into()));
        assert_eq!(hold_back_summary(Some(&old), &new, false), (vec![], 0, new.clone()));
        assert_eq!(hold_back_summary(Some(&old), &new, true), (vec!["mcpServers.a.prefix".into()], 0, old.clone()));
        assert_eq!(hold_back_summary(None, &new, true), (vec![], 0, new));
    }

    #[test]
    fn newly_allowed_tools_wait() {
        let allow = |patterns: &[&str]| server(|s| s.tools_allow = texts(patterns));
        let cases: &[PatternCase] = &[
            (&[], &["a"], false, &["a"]),
            (&["a"], &[], true, &["a"]),
            (&["a"], &["a", "b"], true, &["a"]),
            (&["a", "b"], &["a"], false, &["a"]),
            (&["get_*"], &["get_a", "get_*"], false, &["get_a", "get_*"]),
            (&["get_*"], &["get_a"], false, &["get_a"]),
            (&["get_a"], &["get_*"], true, &["get_a"]),
            (&["get_*", "x"], &["get_a*", "x"], true, &["x"]),
            (&["*"], &["get_*"], false, &["get_*"]),
        ];
        for (old, new, loosens, expected) in cases {
            let (keys, tightened, effective) = hold_back_summary(Some(&allow(old)), &allow(new), false);
            assert_eq!(
                keys,
                if *loosens { vec!["mcpServers.a.tools.allow".to_owned()] } else { vec![] },
                "{old:?} {new:?}"
            );
            assert_eq!(effective, allow(expected), "{old:?} {new:?}");
            assert_eq!(tightened, usize::from(!loosens && old != new));
        }
        let (_, _, nothing) = hold_back_summary(Some(&allow(&["a"])), &allow(&["b"]), false);
        assert_eq!((nothing.tools_allow, nothing.tools_deny), (texts(&["a"]), texts(&["*"])));
    }

    #[test]
    fn custom_recipes_wait() {
        let recipes = |entity: Option<&str>, written: &[&str]| Recipes {
            sets: Vec::new(),
            by_tool: std::sync::Arc::new(
                ["a", "b"]
                    .map(|tool| (tool.to_owned(), Recipe { entity: entity.map(str::to_owned), ..Recipe::default() }))
                    .into(),
            ),
            tools_with_own_recipe: texts(written),
        };
        let with = |previews: &Recipes| server(|s| s.previews = previews.clone());
        let key = "mcpServers.a.previews".to_owned();
        let (shipped, own, other) = (recipes(None, &[]), recipes(Some("x"), &["a"]), recipes(Some("y"), &["a"]));
        assert_eq!(hold_back_summary(None, &with(&shipped), false).0, Vec::<String>::new());
        let (keys, _, effective) = hold_back_summary(None, &with(&own), false);
        assert_eq!((keys, effective.previews), (vec![key.clone()], Recipes::default()));
        for (old, new, waits) in
            [(&shipped, &own, true), (&own, &other, true), (&own, &shipped, false), (&own, &own, false)]
        {
            let (keys, _, effective) = hold_back_summary(Some(&with(old)), &with(new), false);
            assert_eq!((!keys.is_empty(), &effective.previews), (waits, if waits { old } else { new }));
        }
    }

    #[test]
    fn undenied_tools_wait_for_consent() {
        let deny = |patterns: &[&str]| server(|s| s.tools_deny = texts(patterns));
        let cases: &[PatternCase] = &[
            (&[], &["a"], false, &["a"]),
            (&["a"], &["a", "b"], false, &["a", "b"]),
            (&["a"], &["*"], false, &["*"]),
            (&["del_a"], &["del_*"], false, &["del_*"]),
            (&["del_*"], &["del_a"], true, &["del_a", "del_*"]),
            (&["a", "b"], &["b", "c"], true, &["b", "c", "a"]),
            (&["a"], &[], true, &["a"]),
        ];
        for (old, new, loosens, expected) in cases {
            let (keys, _, effective) = hold_back_summary(Some(&deny(old)), &deny(new), false);
            assert_eq!(
                keys,
                if *loosens { vec!["mcpServers.a.tools.deny".to_owned()] } else { vec![] },
                "{old:?} {new:?}"
            );
            assert_eq!(effective, deny(expected), "{old:?} {new:?}");
        }
    }
}

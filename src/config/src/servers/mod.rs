//! Reads `mcpServers`: the configuration block of desktop clients, with additional keys of the gateway.
//!
//! Never shows a secret: messages quote the file, never values of variables, and only the names of `env` and `headers`.

mod authorities;
pub(super) mod listing;
mod previews;
#[cfg(test)]
mod recipes_tests;
mod redaction;
mod shipped_recipes;
mod target;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, time::Duration};

use super::{
    BreakerConfig, Isolation, ListsConfig, Serialization, UpstreamConfig,
    error::{Problem, quoted, quoted_key},
    fields::Fields,
    reader::{Reader, Setting},
    tree::{KeyValue, Node},
    values::{ValueError, describe},
};
use countersign_domain::{BUILT_IN_PROVIDERS, changes::visible::has_hidden};

pub(super) const KEY: &str = "mcpServers";

/// The keys of a server. Tests check that `config/countersign.yaml` documents them.
pub(super) const KEYS: [&str; 36] = [
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "headers",
    "transport",
    "type",
    "disabled",
    "prefix",
    "isolation",
    "serialize",
    "timeout",
    "tool_timeouts",
    "max_in_flight",
    "max_queue",
    "replicas",
    "required",
    "tools",
    "trust_annotations",
    "sampling",
    "elicitation",
    "allow_own_files",
    "breaker",
    "lists",
    "forward_headers",
    "fallback",
    "fallback_text",
    "cache",
    previews::KEY,
    "tls",
    "instructions",
    // Spellings of other clients for the keys above.
    "serverUrl",
    "httpUrl",
    "autoApprove",
    "alwaysAllow",
];
const BREAKER_KEYS: [&str; 3] = ["threshold", "window", "cooldown"];
const LISTS_KEYS: [&str; 3] = ["entries", "bytes", "pages"];
const TOOLS_KEYS: [&str; 2] = ["allow", "deny"];

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);
const MAX_NAME: usize = 64;
const MAX_FALLBACK_TEXT: usize = 64 << 10;

/// Reads every server that is not disabled.
pub(super) fn read(r: &mut Reader) -> Vec<UpstreamConfig> {
    let Some(placed) = r.section(KEY) else { return Vec::new() };
    let entries: &[KeyValue] = match &placed.node {
        Node::Map(entries) => entries,
        Node::Null => &[],
        other => {
            r.problems.push(Problem {
                origin: placed.origin.clone(),
                key: Some(KEY.to_owned()),
                message: format!("expected a map of servers, found {}", describe(other)),
                remedy: "Write {name: {command: …}} or {name: {url: …}}.".to_owned(),
            });
            return Vec::new();
        }
    };
    let setting = Setting { key: KEY, value: listing::yaml(entries), origin: placed.origin.clone() };
    r.settings.push(setting);
    let mut all = Vec::new();
    for entry in entries {
        let key = format!("{KEY}.{}", quoted_key(&entry.key));
        let origin = placed.origin_at(entry.line, entry.column);
        r.key_origins.insert(format!("{KEY}.{}", entry.key), origin.clone());
        if let Err((message, remedy)) = check_name(&entry.key) {
            r.problems.push(Problem { origin, key: Some(key), message, remedy });
            continue;
        }
        let Node::Map(values) = &entry.value.node else {
            let message = format!("expected a server, found {}", entry.value.node.describe_kind());
            let remedy = "Write {command: …, args: […]} or {url: …}.".to_owned();
            r.problems.push(Problem { origin, key: Some(key), message, remedy });
            continue;
        };
        let mut fields = Fields::new(r, &placed, key, format!("{KEY}.{}", entry.key), values, entry);
        if fields.boolean("disabled").unwrap_or_default() {
            continue;
        }
        if let Some(server) = read_server(&entry.key, &mut fields) {
            all.push(server);
        }
    }
    check_uri_slugs(r, &all);
    check_fallbacks(r, &all);
    all
}

fn check_name(name: &str) -> Result<(), ValueError> {
    let remedy = || format!("Choose 1 to {MAX_NAME} visible characters.");
    let fits = (1..=MAX_NAME).contains(&name.chars().count())
        && name.trim() == name
        && !has_hidden(name)
        && !name.contains(['\n', '\t']);
    if !fits {
        return Err((format!("{} cannot be a server's name", quoted(name)), remedy()));
    }
    if BUILT_IN_PROVIDERS.contains(&name.to_lowercase().as_str()) {
        return Err((format!("{name} is a provider of the gateway itself"), "Choose another name.".to_owned()));
    }
    Ok(())
}

fn read_server(name: &str, f: &mut Fields<'_>) -> Option<UpstreamConfig> {
    f.reject_unknown_keys(&KEYS);
    f.warn_ignored(&["autoApprove", "alwaysAllow"], "the policy and trust_annotations decide what runs without review");
    let before = f.problem_count();
    let (target, label) = target::read(f).unzip();
    let recipes = previews::read(f, target.as_ref());
    // Without a valid target the other keys are still checked, with a placeholder that is never used.
    let authorities = target.as_ref().and_then(|target| authorities::read(f, target));
    let mut server = UpstreamConfig::new(name, target.unwrap_or_else(target::placeholder));
    server.authorities = authorities;
    server.label = label.unwrap_or_default();
    match f.text("prefix") {
        Some(prefix) if prefix.is_empty() || super::check::prefix(&prefix).is_ok() => server.prefix = prefix,
        Some(prefix) => f.report(
            "prefix",
            format!("{} cannot begin a tool's name", quoted(&prefix)),
            "Use letters, digits and _ - . /, or \"\" for none.",
        ),
        None if super::check::prefix(&server.prefix).is_err() => {
            let warning =
                format!("the names of its tools begin with {}, which clients refuse; set prefix", server.prefix);
            f.warn(&warning);
        }
        None => {}
    }
    let isolations = [("shared", Isolation::Shared), ("session", Isolation::Session)];
    server.previews = recipes;
    server.isolation = f.choice("isolation", &isolations);
    let serialized = [("server", Serialization::Server), ("tool", Serialization::Tool)];
    server.serialize = f.choice("serialize", &serialized).unwrap_or(server.serialize);
    f.duration("timeout", 10 * MS..=DAY, &mut server.timeout);
    server.tool_timeouts = f.durations("tool_timeouts", 10 * MS..=DAY);
    f.count("max_in_flight", 1..=100_000, &mut server.max_in_flight);
    f.count("max_queue", 0..=1_000_000, &mut server.max_queue);
    f.flag("required", &mut server.required);
    f.flag("trust_annotations", &mut server.trust_annotations);
    f.flag("allow_own_files", &mut server.allow_own_files);
    f.flag("cache", &mut server.cache);
    let allowed = [("allow", true), ("deny", false)];
    server.instructions = f.choice("instructions", &[("pass", true), ("drop", false)]).unwrap_or(server.instructions);
    server.sampling = f.choice("sampling", &allowed).unwrap_or(server.sampling);
    server.elicitation = f.choice("elicitation", &allowed).unwrap_or(server.elicitation);
    read_tools(f, &mut server);
    if let Some(mut breaker) = f.section("breaker") {
        breaker.reject_unknown_keys(&BREAKER_KEYS);
        let BreakerConfig { threshold, window, cooldown } = &mut server.breaker;
        breaker.count("threshold", 0..=1_000_000, threshold);
        breaker.duration("window", 10 * MS..=DAY, window);
        breaker.duration("cooldown", 10 * MS..=DAY, cooldown);
    }
    if let Some(mut lists) = f.section("lists") {
        lists.reject_unknown_keys(&LISTS_KEYS);
        let ListsConfig { entries, bytes, pages } = &mut server.lists;
        lists.count("entries", 1..=1_000_000, entries);
        lists.size("bytes", 1024..=1 << 30, bytes);
        lists.count("pages", 1..=100_000, pages);
    }
    server.forward_headers = target::read_forwarded_headers(f);
    server.fallback = f.text("fallback");
    server.fallback_text = f.text("fallback_text");
    if server.fallback_text.as_ref().is_some_and(|text| text.len() > MAX_FALLBACK_TEXT) {
        f.report("fallback_text", "the text is too long".to_owned(), "Write at most 64 KiB.");
    }
    (f.problem_count() == before).then_some(server)
}

fn read_tools(f: &mut Fields<'_>, server: &mut UpstreamConfig) {
    // Some clients write the allowed tools as a list.
    if f.is_list("tools") {
        server.tools_allow = f.globs("tools");
    } else if let Some(mut tools) = f.section("tools") {
        tools.reject_unknown_keys(&TOOLS_KEYS);
        server.tools_allow = tools.globs("allow");
        server.tools_deny = tools.globs("deny");
    }
}

/// Reports servers whose resource URIs would begin with the same slug.
fn check_uri_slugs(r: &mut Reader, all: &[UpstreamConfig]) {
    let mapped: Vec<&UpstreamConfig> = all.iter().filter(|server| !server.prefix.is_empty()).collect();
    for (index, server) in mapped.iter().enumerate() {
        let slug = server.uri_slug();
        if let Some(other) = mapped.iter().take(index).find(|other| other.uri_slug() == slug) {
            let key = format!("{KEY}.{}", server.name);
            r.problems.push(Problem {
                origin: r.origin(&key),
                key: Some(format!("{KEY}.{}", quoted_key(&server.name))),
                message: format!(
                    "the URIs of its resources would begin with {slug}+, as those of {} do",
                    quoted(&other.name)
                ),
                remedy: "Rename one of the two.".to_owned(),
            });
        }
    }
}

fn check_fallbacks(r: &mut Reader, all: &[UpstreamConfig]) {
    let names: BTreeSet<&str> = all.iter().map(|server| server.name.as_str()).chain(BUILT_IN_PROVIDERS).collect();
    for server in all {
        let Some(fallback) = &server.fallback else { continue };
        let message = if *fallback == server.name {
            "a server cannot be its own fallback".to_owned()
        } else if names.contains(fallback.as_str()) {
            continue;
        } else {
            format!("{} is not a server of mcpServers", quoted(fallback))
        };
        r.problems.push(Problem {
            origin: r.origin(&format!("{KEY}.{}.fallback", server.name)),
            key: Some(format!("{KEY}.{}.fallback", quoted_key(&server.name))),
            message,
            remedy: "Name another server of mcpServers.".to_owned(),
        });
    }
}

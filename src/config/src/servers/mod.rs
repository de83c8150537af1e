//! Reads `mcpServers`: the configuration block of desktop clients, with additional keys of the gateway.
//!
//! The module never shows a secret: messages quote the file, but no values of variables, `env` or `headers`.

mod known_reads;
pub(super) mod listing;
pub(crate) mod oauth;
mod previews;
#[cfg(test)]
mod recipes_tests;
pub(crate) mod redaction;
mod shipped_recipes;
mod target;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod verification_tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use super::{
    BreakerConfig, ListsConfig, UpstreamConfig, UpstreamTarget, authorities, check,
    error::{ValueError, invalid, quoted, quoted_key},
    reader::fields::Fields,
    reader::{NamedMap, Reader},
    tree::Node,
    values::{boolean, choice, count, duration, is_visible_text, read_text, size, variant},
};
use countersign_domain::BUILT_IN_PROVIDERS;

pub(crate) const KEY: &str = "mcpServers";

/// The keys of a server. Tests check that `config/countersign.yaml` documents them.
pub(crate) const KEYS: [&str; 37] = [
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
    oauth::KEY,
    "instructions",
    // Spellings of other clients for the keys above.
    "serverUrl",
    "httpUrl",
    "autoApprove",
    "alwaysAllow",
];
/// The keys of an address: ours, and the spellings of two clients.
pub(crate) const URL_KEYS: [&str; 3] = ["url", "serverUrl", "httpUrl"];
const BREAKER_KEYS: [&str; 3] = ["threshold", "window", "cooldown"];
const LISTS_KEYS: [&str; 3] = ["entries", "bytes", "pages"];
const TOOLS_KEYS: [&str; 2] = ["allow", "deny"];

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);
/// The range of the time limit of a call.
const TIMEOUT_RANGE: RangeInclusive<Duration> = Duration::from_millis(10)..=DAY;
const PERMISSIONS: [(&str, bool); 2] = [("allow", true), ("deny", false)];
const MAX_NAME_CHARS: usize = 64;
const MAX_FALLBACK_TEXT_BYTES: usize = 64 << 10;

const MAP: NamedMap = NamedMap {
    key: KEY,
    noun: "server",
    example: "{command: …, args: […]} or {url: …}",
    max_entries: usize::MAX,
    check_name,
    show: listing::format_servers,
};

/// Reads every server that is not disabled.
pub(super) fn read(r: &mut Reader) -> Vec<UpstreamConfig> {
    let mut disabled_prefixes = Vec::new();
    let all = r.read_map(&MAP, |name, f| {
        if f.read("disabled", boolean()) == Some(true) {
            let prefix = f.value_of("prefix").and_then(|value| value.node.as_text());
            disabled_prefixes.extend(prefix.map(str::to_owned));
            return None;
        }
        read_server(name, f)
    });
    r.disabled_prefixes = disabled_prefixes;
    check_uri_slugs(r, &all);
    check_fallbacks(r, &all);
    all
}

fn check_name(name: &str) -> Result<(), ValueError> {
    if !is_visible_text(name, MAX_NAME_CHARS) || name.trim() != name || name.contains(['\n', '\t']) {
        let remedy = format!("Choose 1 to {MAX_NAME_CHARS} visible characters.");
        return Err(invalid(format!("{} cannot be a server's name", quoted(name)), remedy));
    }
    if matches!(name, "." | ".." | "callback") {
        let message =
            format!("{name} cannot be a server's name, because /api/servers/{name} is another path of the REST API");
        return Err(invalid(message, "Choose another name."));
    }
    if BUILT_IN_PROVIDERS.contains(&name.to_lowercase().as_str()) {
        return Err(invalid(format!("{name} is a provider of the gateway itself"), "Choose another name."));
    }
    Ok(())
}

fn read_server(name: &str, f: &mut Fields<'_>) -> Option<UpstreamConfig> {
    f.reject_unknown_keys(&KEYS);
    for key in f.present_keys(["autoApprove", "alwaysAllow"]) {
        f.warn(&format!("{key} is ignored: the policy and trust_annotations decide what runs without review"));
    }
    let (target, label) = target::read(f).unzip();
    let previews = previews::read(f, target.as_ref());
    // Without a valid target the other keys are still checked, with a placeholder that is never used.
    let authorities = match &target {
        Some(UpstreamTarget::Url { urls, .. }) => {
            authorities::read(f, urls.iter().any(|url| matches!(url.scheme(), "https" | "wss")))
        }
        // `target` has already reported the key.
        Some(UpstreamTarget::Command { .. }) | None => None,
    };
    let oauth = target.as_ref().and_then(|target| oauth::read(f, target));
    let mut server = UpstreamConfig::new(name, target.unwrap_or_else(target::placeholder));
    server.authorities = authorities;
    server.oauth = oauth;
    server.label = label.unwrap_or_default();
    server.previews = previews;
    match f.parse("prefix", read_text) {
        Some(prefix) if prefix.is_empty() || check::check_prefix(&prefix).is_ok() => server.prefix = prefix,
        Some(prefix) => f.report(
            "prefix",
            format!("{} cannot begin a tool's name", quoted(&prefix)),
            "Use letters, digits and _ - . /, or \"\" for none.",
        ),
        None if check::check_prefix(&server.prefix).is_err() => {
            let prefix = &server.prefix;
            f.warn(&format!("the names of its tools begin with {prefix}, which clients refuse; set prefix"));
        }
        None => {}
    }
    server.isolation = f.read("isolation", variant());
    f.read_into("serialize", variant(), &mut server.serialize);
    f.read_into("timeout", duration(TIMEOUT_RANGE), &mut server.timeout);
    server.tool_timeouts = read_tool_timeouts(f);
    f.read_into("max_in_flight", count(1..=100_000), &mut server.max_in_flight);
    f.read_into("max_queue", count(0..=1_000_000), &mut server.max_queue);
    f.read_into("required", boolean(), &mut server.required);
    f.read_into("trust_annotations", boolean(), &mut server.trust_annotations);
    f.read_into("allow_own_files", boolean(), &mut server.allow_own_files);
    f.read_into("cache", boolean(), &mut server.cache);
    f.read_into("instructions", choice([("pass", true), ("drop", false)]), &mut server.instructions);
    f.read_into("sampling", choice(PERMISSIONS), &mut server.sampling);
    f.read_into("elicitation", choice(PERMISSIONS), &mut server.elicitation);
    read_tools(f, &mut server);
    if let Some(mut breaker) = f.section("breaker", &BREAKER_KEYS) {
        let BreakerConfig { threshold, window, cooldown } = &mut server.breaker;
        breaker.read_into("threshold", count(0..=1_000_000), threshold);
        breaker.read_into("window", duration(10 * MS..=DAY), window);
        breaker.read_into("cooldown", duration(10 * MS..=DAY), cooldown);
    }
    if let Some(mut lists) = f.section("lists", &LISTS_KEYS) {
        let ListsConfig { entries, bytes, pages } = &mut server.lists;
        lists.read_into("entries", count(1..=1_000_000), entries);
        lists.read_into("bytes", size(1024..=1 << 30), bytes);
        lists.read_into("pages", count(1..=100_000), pages);
    }
    server.forward_headers = target::read_forwarded_headers(f);
    server.fallback = f.parse("fallback", read_text);
    server.fallback_text = f.parse("fallback_text", read_text);
    if server.fallback_text.as_ref().is_some_and(|text| text.len() > MAX_FALLBACK_TEXT_BYTES) {
        f.report("fallback_text", "the text is too long", "Write at most 64 KiB.");
    }
    (!f.has_problems()).then_some(server)
}

fn read_tools(f: &mut Fields<'_>, server: &mut UpstreamConfig) {
    // Some clients write the allowed tools as a list.
    if let Some(Node::List(_)) = f.value_of("tools").map(|value| &value.node) {
        server.tools_allow = read_tool_globs(f, "tools");
    } else if let Some(mut tools) = f.section("tools", &TOOLS_KEYS) {
        server.tools_allow = read_tool_globs(&mut tools, "allow");
        server.tools_deny = read_tool_globs(&mut tools, "deny");
    }
}

/// Reads time limits by glob, in their written order.
fn read_tool_timeouts(f: &mut Fields<'_>) -> Vec<(String, Duration)> {
    let time_limit = duration(TIMEOUT_RANGE);
    f.map_entries("tool_timeouts", |f, entry| {
        check_tool_glob(&entry.key)?;
        Ok((entry.key.clone(), time_limit.read(&f.input(&entry.value.node))?))
    })
}

fn read_tool_globs(f: &mut Fields<'_>, name: &str) -> Vec<String> {
    f.parse_items(name, |_, node| {
        let text = read_text(node)?;
        check_tool_glob(&text).map(|()| text)
    })
}

fn check_tool_glob(text: &str) -> Result<(), ValueError> {
    let remedy = "Write a tool's own name; * stands for any characters.";
    if text.is_empty() {
        return Err(invalid("the pattern is empty", remedy));
    }
    let to_invalid =
        |error: globset::Error| invalid(format!("{} is not a pattern: {}", quoted(text), error.kind()), remedy);
    globset::Glob::new(text).map(drop).map_err(to_invalid)
}

/// Reports servers whose resource URIs would begin with the same slug.
fn check_uri_slugs(r: &mut Reader, all: &[UpstreamConfig]) {
    let mut names_by_slug: BTreeMap<String, &str> = BTreeMap::new();
    for server in all.iter().filter(|server| !server.prefix.is_empty()) {
        let slug = server.uri_slug();
        if let Some(other) = names_by_slug.get(&slug) {
            let message =
                format!("the URIs of its resources would begin with {slug}+, as those of {} do", quoted(other));
            let key = format!("{KEY}.{}", quoted_key(&server.name));
            r.report_at_origin(&key, message, "Rename one of the two.");
        }
        names_by_slug.entry(slug).or_insert(&server.name);
    }
}

fn check_fallbacks(r: &mut Reader, all: &[UpstreamConfig]) {
    let names: BTreeSet<&str> = all.iter().map(|server| server.name.as_str()).chain(BUILT_IN_PROVIDERS).collect();
    for server in all {
        let message = match server.fallback.as_deref() {
            Some(fallback) if fallback == server.name => "a server cannot be its own fallback".to_owned(),
            Some(fallback) if !names.contains(fallback) => {
                format!("{} is not a server of mcpServers", quoted(fallback))
            }
            _ => continue,
        };
        let key = format!("{KEY}.{}.fallback", quoted_key(&server.name));
        r.report_at_origin(&key, message, "Name another server of mcpServers.");
    }
}

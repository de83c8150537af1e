//! Checks single values beyond their type, and combinations of values.

use std::collections::BTreeSet;

use url::Url;

use countersign_domain::{
    BUILT_IN_PROVIDERS,
    policy::{GroupMember, Rule},
    principal::Role,
};
use countersign_protocol::suggest;
use countersign_runtime::sealing::parse_key;

use super::{
    AuthMode, Config, OAuthGrant, UpstreamOAuth,
    error::{Origin, ValueError, invalid, quoted, quoted_key},
    reader::Reader,
    terms, units,
    values::{MAX_NAME_CHARS, ensure, is_visible_text},
};

/// The statuses of the built-in tracker.
const STATUSES: [&str; 6] = ["Backlog", "Todo", "InProgress", "Review", "Done", "Cancelled"];

pub(super) fn check_status(name: &str) -> Result<(), ValueError> {
    ensure(STATUSES.contains(&name), || {
        invalid(format!("{} is not a status", quoted(name)), format!("Write one of: {}.", STATUSES.join(", ")))
    })
}

/// Checks a prefix of tool names.
pub(super) fn check_prefix(text: &str) -> Result<(), ValueError> {
    let fits = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    ensure(fits, || invalid(format!("{} cannot begin a tool's name", quoted(text)), "Use letters, digits and _ - . /."))
}

/// Checks a regular expression.
pub(super) fn check_pattern(text: &str) -> Result<(), ValueError> {
    regex::Regex::new(text).map(drop).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
        invalid(format!("{} is not a regular expression: {reason}", quoted(text)), "Correct it.")
    })
}

/// Checks a further name of a tool, or a category of names.
pub(super) fn check_category(text: &str) -> Result<(), ValueError> {
    let has_allowed_chars = text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./*".contains(c));
    let remedy = "Use letters, digits and _ - . /, and at most one *, which stands for any text: file.*";
    ensure(has_allowed_chars && !text.is_empty() && text.matches('*').count() <= 1, || {
        invalid(format!("{} is not a category of names", quoted(text)), remedy)
    })
}

/// Checks the name of a provider.
pub(super) fn check_provider(text: &str) -> Result<(), ValueError> {
    let remedy = "Write a name of mcpServers, or tracker or docs.";
    ensure(is_visible_text(text, MAX_NAME_CHARS), || {
        invalid(format!("{} is not the name of a provider", quoted(text)), remedy)
    })
}

/// Checks a `Host` header value: a name or address with an optional port.
pub(super) fn check_host(text: &str) -> Result<(), ValueError> {
    let parsed = Url::parse(&format!("http://{text}/")).ok();
    let is_plain = !text.contains(['/', '@', '?', '#', ' ', '*']) && !text.is_empty();
    let remedy = "Write a name as it stands in the Host header, without scheme or path: gateway.example.com or \
                  gateway.example.com:8443; there are no wildcards.";
    ensure(is_plain && parsed.is_some_and(|url| url.host().is_some()), || {
        invalid(format!("{} is not a host", quoted(text)), remedy)
    })
}

/// Checks an origin in the form that browsers send.
pub(super) fn check_origin(text: &str) -> Result<(), ValueError> {
    let remedy = "Write scheme://host or scheme://host:port, such as https://app.example.com.";
    if text == "*" || text == "null" {
        return Err(invalid(format!("{text} would let in pages of any site"), format!("Name each origin. {remedy}")));
    }
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.origin().ascii_serialization() == text => Ok(()),
        Ok(url) if matches!(url.scheme(), "http" | "https") => Err(invalid(
            format!("{} is not an origin as browsers send it", quoted(text)),
            format!("Write {}.", url.origin().ascii_serialization()),
        )),
        _ => Err(invalid(format!("{} is not an origin", quoted(text)), remedy)),
    }
}

pub(super) fn check_public_url(text: &str) -> Result<(), ValueError> {
    let error = |reason: &str| Err(invalid(format!("{} {reason}", quoted(text)), "Write https://gateway.example.com."));
    let Ok(url) = Url::parse(text) else { return error("is not a URL") };
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return error("is not an http or https URL");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("the URL contains a user name or password", "Take them out."));
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return error("has more than a scheme, a host and a port");
    }
    Ok(())
}

/// Checks the scheme of a PostgreSQL URL; opening the store checks the rest. The error does not quote the URL, which may
/// contain a password.
pub(super) fn check_postgres_url(text: &str) -> Result<(), ValueError> {
    let remedy = "Write postgres://USER:${PASSWORD}@HOST/DATABASE, or leave it out for the embedded database.";
    let is_postgres = ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme));
    ensure(is_postgres, || invalid("this is not an address of PostgreSQL", remedy))
}

/// Checks that a text is 32 bytes as base64. The error does not quote it.
pub(super) fn check_token_key(text: &str) -> Result<(), ValueError> {
    let remedy = "`openssl rand -base64 32` makes one. Write ${NAME} or ${credential:NAME}.";
    let error = || invalid("this is not a key of 32 bytes as base64", remedy);
    parse_key(text).map(drop).ok_or_else(error)
}

pub(super) fn check_log_filter(text: &str) -> Result<(), ValueError> {
    let remedy = "Write a level (error, warn, info, debug, trace), and more by part: info,countersign=debug.";
    let filter = tracing_subscriber::EnvFilter::builder().parse(text);
    filter.map(drop).map_err(|error| invalid(format!("{} is not a log filter ({error})", quoted(text)), remedy))
}

/// Reports the problems that values have only together, and those of files that cannot be read.
pub(super) fn report_conflicts(config: &Config, r: &mut Reader) {
    report_tls_conflicts(config, r);
    report_listener_conflicts(config, r);
    report_auth_conflicts(config, r);
    report_policy_conflicts(config, r);
    report_limit_conflicts(config, r);
}

fn report_tls_conflicts(config: &Config, r: &mut Reader) {
    let is_set = |key: &str| r.settings.iter().any(|s| s.key == key && s.value != "null");
    let (given, missing) = if is_set("tls.cert") { ("tls.cert", "tls.key") } else { ("tls.key", "tls.cert") };
    if is_set(given) && !is_set(missing) {
        r.report_at_origin(given, format!("{missing} is missing"), "Give both, or neither.");
    }
    if let Some(tls) = &config.tls {
        for (key, path) in [("tls.cert", &tls.cert), ("tls.key", &tls.key)] {
            if let Err(error) = std::fs::metadata(path) {
                let message = format!("{} cannot be read: {error}", path.display());
                r.report_at_origin(key, message, "Name an existing PEM file.");
            }
        }
    }
}

fn report_listener_conflicts(config: &Config, r: &mut Reader) {
    if config.listen.ip().is_loopback() {
        return;
    }
    if config.auth.mode != AuthMode::Keys {
        let message = format!("{} can be reached by other machines, and auth.mode is local", config.listen);
        r.report_at_origin("listen", message, "Set auth.mode: keys, or listen on 127.0.0.1.");
    }
    if config.tls.is_none() && !config.behind_tls_proxy {
        let message =
            format!("{} can be reached by other machines, and the connection is not encrypted", config.listen);
        let remedy = "Set tls.cert and tls.key, or behind_tls_proxy: true if a proxy in front does TLS.";
        r.report_at_origin("listen", message, remedy);
    }
}

/// Reports conflicts of keys, sign-in and the authorization at servers.
fn report_auth_conflicts(config: &Config, r: &mut Reader) {
    if config.token_key.is_some() && config.key_file.is_some() {
        r.report_at_origin("secrets.key", "secrets.key_file names a key, too".to_owned(), "Take out one of the two.");
    }
    if !config.auth.tokens.is_empty() && config.public_url.is_none() {
        let message = "public_url is missing, and clients look up the issuers below it";
        r.report_at_origin("auth.tokens", message, "Set public_url to the address of this gateway.");
    }
    if config.auth.oidc.is_some() && config.public_url.is_none() {
        let message = "public_url is missing, and the identity provider sends people back to it";
        r.report_at_origin("auth.oidc", message, "Set public_url to the address of this gateway.");
    }
    for server in &config.upstreams {
        // The single user of `auth.mode: local` does not sign in with the identity provider.
        let has_no_token = |oauth: &UpstreamOAuth| {
            let is_signed_in = config.auth.oidc.is_some() && config.auth.mode == AuthMode::Keys;
            oauth.grant == OAuthGrant::Enterprise && oauth.subject_token_file.is_none() && !is_signed_in
        };
        if server.oauth.as_ref().is_some_and(has_no_token) {
            let message = "nobody signs in with an identity provider that could vouch for them";
            let key = format!("mcpServers.{}.oauth.grant", quoted_key(&server.name));
            r.report_at_origin(&key, message, "Set auth.oidc and auth.mode: keys, or subject_token_file here.");
        }
    }
}

fn report_policy_conflicts(config: &Config, r: &mut Reader) {
    let issuers: BTreeSet<&str> = config.auth.issuers().collect();
    for (name, members) in &config.policy.groups {
        let is_ambiguous = |member: &GroupMember| matches!(member, GroupMember::ClaimGroup { issuer: None, .. });
        if issuers.len() > 1 && members.iter().any(is_ambiguous) {
            let message = format!("{} names a claim_group without its issuer, and there are several", quoted(name));
            r.report_at_origin("policy.groups", message, "Write { claim_group: [ISSUER, GROUP] }.");
        }
    }
    for name in config.policy.groups.keys().filter(|name| Role::parse(name).is_some()) {
        r.report_at_origin("policy.groups", format!("{} is a role", quoted(name)), "Give the group another name.");
    }
    if let Err(error) = terms::check_reviewers(&config.policy.review, &config.policy.groups) {
        let has_default_reviewers = r.origin("policy.review.reviewers") == Origin::Default;
        let key = if has_default_reviewers { "policy.review.quorum" } else { "policy.review.reviewers" };
        r.report(key, r.origin(key), error);
    }
    if let Err(error) = terms::check_escalation(&config.policy.review, &config.policy.groups) {
        let key = "policy.review.escalate";
        r.report(key, r.origin(key), error);
    }
}

fn report_limit_conflicts(config: &Config, r: &mut Reader) {
    let limits = &config.limits;
    if limits.batch_concurrency > limits.max_batch {
        let message = format!(
            "limits.batch_concurrency, {}, is more than limits.max_batch, {}",
            limits.batch_concurrency, limits.max_batch
        );
        report_conflicting_limits(r, "limits.batch_concurrency", "limits.max_batch", message);
    }
    let transports = &config.transports;
    let sizes = [
        ("transports.http.max_body", transports.http.max_body),
        ("transports.websocket.max_message_size", transports.websocket.max_message_size),
        ("transports.stdio.max_message_size", transports.stdio.max_message_size),
    ];
    for (key, size) in sizes {
        if size > limits.outbox_bytes {
            let show = |bytes: usize| units::show_size(bytes as u64);
            let message =
                format!("{key}, {}, is more than limits.outbox_bytes, {}", show(size), show(limits.outbox_bytes));
            report_conflicting_limits(r, key, "limits.outbox_bytes", message);
        }
    }
}

/// Reports a problem of two conflicting limits for the one that was set.
fn report_conflicting_limits(r: &mut Reader, first: &str, second: &str, message: String) {
    let key = if r.origin(first) == Origin::Default { second } else { first };
    r.report_at_origin(key, message, "Lower the one, or raise the other.");
}

/// Returns one sentence for each setting that is allowed but probably unintended.
pub(super) fn find_warnings(config: &Config, r: &Reader) -> Vec<String> {
    let mut warnings = Vec::new();
    let has_host_name = !config.allowed_hosts.is_empty() || config.public_url.is_some();
    if config.listen.ip().is_unspecified() && !has_host_name {
        warnings.push(format!(
            "listen is {}, and neither allowed_hosts nor public_url names a host: requests from other machines will be \
             refused because of their Host header",
            config.listen
        ));
    }
    if config.policy.mode == countersign_domain::policy::PolicyMode::Simulate {
        warnings.push(format!(
            "policy.mode is simulate ({}): nothing is reviewed or denied, agents write without anybody's approval",
            r.origin("policy.mode")
        ));
    }
    if config.policy.default == countersign_domain::policy::PolicyDefault::Allow {
        let origin = r.origin("policy.default");
        let origin_note = if origin == Origin::Default { String::new() } else { format!(" ({origin})") };
        warnings.push(format!("policy.default is allow{origin_note}: agents write without anybody's approval"));
    }
    if let Some(oidc) = &config.auth.oidc {
        let origin = r.origin("auth.oidc");
        if oidc.roles.is_empty() {
            warnings.push(format!("auth.oidc ({origin}) has no roles: nobody can sign in with the identity provider"));
        }
        if oidc.roles.get("*") == Some(&Role::Admin) {
            warnings.push(format!(
                "auth.oidc.roles ({origin}) makes everybody an admin, as long as they have the claims in `require`: name a \
                 group of admins"
            ));
        }
    }
    for rule in &config.policy.rules {
        for path in rule.when.iter().flat_map(|when| &when.facts().paths_compared_as_text) {
            warnings.push(format!(
                "policy.rules ({}): `{}` applies startsWith to {path}, which lets /notes/../etc pass for /notes/; write \
                 path_within({path}, \"/notes\"), which has no answer for a path with `..`, and so is stricter",
                r.origin("policy.rules"),
                rule.label
            ));
        }
        for problem in find_unknown_servers(rule, config, r) {
            warnings.push(format!("policy.rules ({}): `{}`: {problem}", r.origin("policy.rules"), rule.label));
        }
    }
    warnings
}

/// Returns one sentence for each server that a rule names but that is not configured, because a misspelled denial protects
/// nothing. Wildcards may stand for servers to come.
fn find_unknown_servers(rule: &Rule, config: &Config, r: &Reader) -> Vec<String> {
    let names = || config.upstreams.iter().map(|server| server.name.as_str()).chain(BUILT_IN_PROVIDERS);
    // Servers that are disabled count as configured.
    let is_configured = |name: &str| {
        names().any(|known| known == name) || r.key_origins.contains_key(&format!("mcpServers.{}", quoted_key(name)))
    };
    let hint = |name: &str| {
        let near = suggest::nearest(name, names());
        near.map_or_else(String::new, |near| format!("; did you mean {}?", quoted(near)))
    };
    let literal_part = |pattern: &str| -> String { pattern.chars().take_while(|c| !"*?[{\\".contains(*c)).collect() };
    let mut problems = Vec::new();
    for name in rule.servers.patterns() {
        if literal_part(name) == *name && !is_configured(name) {
            problems.push(format!("there is no server {}{}", quoted(name), hint(name)));
        }
    }
    for pattern in rule.tools.patterns() {
        let start = literal_part(pattern);
        let Some((name, _)) = start.split_once("__") else { continue };
        let may_begin = |prefix: &String| start.starts_with(prefix) || prefix.starts_with(&start);
        let mut prefixes = config.upstreams.iter().map(|server| &server.prefix).chain(&r.disabled_prefixes);
        if !is_configured(name) && !prefixes.any(may_begin) {
            let prefix = quoted(&format!("{name}__"));
            problems.push(format!("no server has tools whose names begin with {prefix}{}", hint(name)));
        }
    }
    problems
}

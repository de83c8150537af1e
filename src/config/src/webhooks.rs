//! Reads `webhooks`, a map with user-defined names.
//!
//! The module never shows a secret: neither values of variables nor the paths of addresses, which are the credentials
//! of chat services.

use std::time::Duration;

use globset::Glob;
use serde_json::Value;
use url::Url;

use super::{
    error::{ValueError, invalid, quoted},
    loopback::is_loopback,
    reader::fields::Fields,
    reader::{NamedMap, Reader, check_plain_name},
    servers::listing,
    tree::Node,
    values::{boolean, describe, duration, read_text, variant},
    variables,
    yaml::{yaml_secret, yaml_text, yaml_value},
};
use countersign_domain::{
    changes::ChangeState,
    webhooks::{
        event::{event_types, matches_any_type},
        format::DeliveryFormat,
        sign::SigningKey,
        template::MessageTemplate,
    },
};

const KEY: &str = "webhooks";

/// The keys of a webhook. A test checks that `config/countersign.yaml` documents them.
pub(crate) const KEYS: [&str; 13] = [
    "url",
    "secret",
    "previous_secret",
    "events",
    "tools",
    "servers",
    "states",
    "format",
    "template",
    "timeout",
    "give_up_after",
    "allow_http",
    "disabled",
];

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// The value of `webhooks`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhooksConfig {
    /// The webhooks that are not disabled, in the order of the file.
    pub enabled: Vec<WebhookConfig>,
    /// The names of disabled webhooks. Their other keys are not read.
    pub disabled: Vec<String>,
}

impl WebhooksConfig {
    /// Returns every name, with its webhook if that is enabled.
    pub fn entries(&self) -> Vec<(&str, Option<&WebhookConfig>)> {
        let enabled = self.enabled.iter().map(|webhook| (webhook.name.as_str(), Some(webhook)));
        enabled.chain(self.disabled.iter().map(|name| (name.as_str(), None))).collect()
    }
}

/// One entry of `webhooks`, with its variables expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    pub name: String,
    pub url: WebhookUrl,
    /// The keys that sign deliveries: the current one, and the previous one while receivers still use it.
    pub keys: Vec<SigningKey>,
    /// Globs of feed event types, such as `change.*`.
    pub events: Vec<String>,
    /// Globs of tool names as clients see them. An empty list matches all.
    pub tools: Vec<String>,
    /// Globs of server names. An empty list matches all.
    pub servers: Vec<String>,
    /// States of changes. An empty list matches all.
    pub states: Vec<ChangeState>,
    pub format: DeliveryFormat,
    pub template: Option<MessageTemplate>,
    /// The time limit of one attempt.
    pub timeout: Duration,
    /// The time after which a delivery is given up.
    pub give_up_after: Duration,
}

/// An address that is never shown in full, because its path may be a credential.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookUrl(pub Url);

impl std::fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.redacted())
    }
}

impl WebhookUrl {
    /// Returns scheme, host and port, and an ellipsis in place of the path and the query.
    pub fn redacted(&self) -> String {
        let rest = if self.0.path() == "/" && self.0.query().is_none() { "/" } else { "/…" };
        format!("{}{rest}", self.0.origin().ascii_serialization())
    }
}

const MAP: NamedMap = NamedMap {
    key: KEY,
    noun: "webhook",
    example: "{url: https://…, secret: …}",
    max_entries: 64,
    // The name is part of the path of its REST endpoint.
    check_name: |name| check_plain_name(name, "webhook", &['-', '_']),
    show: |entries| listing::format_block(entries, format_value),
};

/// Reads every webhook, and only the names of disabled ones.
pub(crate) fn read(r: &mut Reader) -> WebhooksConfig {
    let mut webhooks = WebhooksConfig::default();
    for (name, webhook) in r.read_map(&MAP, read_entry) {
        match webhook {
            Some(webhook) => webhooks.enabled.push(webhook),
            None => webhooks.disabled.push(name),
        }
    }
    webhooks
}

/// Returns the name, with the webhook unless it is disabled.
fn read_entry(name: &str, f: &mut Fields<'_>) -> Option<(String, Option<WebhookConfig>)> {
    let is_disabled = f.read("disabled", boolean()) == Some(true);
    let webhook = if is_disabled { None } else { Some(read_webhook(name, f)?) };
    Some((name.to_owned(), webhook))
}

fn read_webhook(name: &str, f: &mut Fields<'_>) -> Option<WebhookConfig> {
    f.reject_unknown_keys(&KEYS);
    let allow_http = f.read("allow_http", boolean()) == Some(true);
    let format = f.read("format", variant()).unwrap_or(DeliveryFormat::Json);
    let url = read_url(f, allow_http);
    let keys: Vec<SigningKey> =
        ["secret", "previous_secret"].into_iter().filter_map(|name| read_signing_key(f, name)).collect();
    if format == DeliveryFormat::Json && !f.has("secret") {
        f.report_map("the webhook has no secret to sign with", SECRET_REMEDY);
    }
    let mut events = f.parse_items("events", |_, node| {
        let pattern = parse_glob(node, "of event types")?;
        if matches_any_type(&pattern) {
            return Ok(pattern);
        }
        let remedy =
            format!("Types are {}; * stands for any characters.", event_types().collect::<Vec<_>>().join(", "));
        Err(invalid(format!("{} matches no type of events", quoted(&pattern)), remedy))
    });
    if events.is_empty() {
        events.push("change.*".to_owned());
    }
    let states = f.parse_items("states", |_, node| {
        let state = if let Node::Text(text) = node { ChangeState::parse(text) } else { None };
        let states = ChangeState::VARIANTS.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(", ");
        state.ok_or_else(|| {
            invalid(format!("{} is not a state of a change", describe(node)), format!("Write one of: {states}."))
        })
    });
    let template = f.parse("template", |node| {
        MessageTemplate::new(&read_text(node)?, format).map_err(|error| invalid(error.to_string(), error.remedy()))
    });
    let webhook = WebhookConfig {
        name: name.to_owned(),
        keys,
        events,
        tools: f.parse_items("tools", |_, node| parse_glob(node, "of tools")),
        servers: f.parse_items("servers", |_, node| parse_glob(node, "of servers")),
        states,
        format,
        template,
        timeout: f.read("timeout", duration(100 * MS..=300 * S)).unwrap_or(15 * S),
        give_up_after: f.read("give_up_after", duration(S..=30 * DAY)).unwrap_or(3 * DAY),
        // Last, so that the problems of all keys are reported.
        url: url?,
    };
    (!f.has_problems()).then_some(webhook)
}

fn parse_glob(node: &Node, purpose: &str) -> Result<String, ValueError> {
    match node {
        Node::Text(text) if !text.is_empty() && Glob::new(text).is_ok() => Ok(text.clone()),
        other => Err(invalid(
            format!("{} is not a pattern {purpose}", describe(other)),
            "Write a name, or a part of it with * for any characters.",
        )),
    }
}

impl WebhookConfig {
    /// Returns a webhook whose address accepts no connections.
    #[cfg(any(test, feature = "testing"))]
    #[allow(clippy::unwrap_used, reason = "it is only built for tests")]
    pub fn sample(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            url: WebhookUrl("http://127.0.0.1:9/".parse().unwrap()),
            keys: Vec::new(),
            events: vec!["change.*".to_owned()],
            tools: Vec::new(),
            servers: Vec::new(),
            states: Vec::new(),
            format: DeliveryFormat::Json,
            template: None,
            timeout: S,
            give_up_after: S,
        }
    }
}

const SECRET_REMEDY: &str =
    "Write secret: \"${NAME}\", and put into that variable what `echo whsec_$(openssl rand -base64 32)` prints.";

fn read_signing_key(f: &mut Fields<'_>, name: &str) -> Option<SigningKey> {
    let text = f.expanded_text(name)?;
    // The error must not quote the value.
    let message = "this is not a Standard Webhooks secret: whsec_ and the base64 of 24 to 64 bytes";
    let key = SigningKey::parse(text.value.trim()).ok_or_else(|| invalid(message, SECRET_REMEDY));
    f.accept(name, key)
}

fn read_url(f: &mut Fields<'_>, allow_http: bool) -> Option<WebhookUrl> {
    if !f.has("url") {
        f.report_map("the webhook has no url", "Write url: https://….");
        return None;
    }
    let text = f.expanded_text("url")?;
    f.accept("url", parse_url(text.value.trim(), allow_http))
}

fn parse_url(text: &str, allow_http: bool) -> Result<WebhookUrl, ValueError> {
    let error = |message: &str, remedy: &str| Err(invalid(message, remedy));
    let Ok(url) = Url::parse(text) else { return error("not a URL", "Write https://host/path.") };
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return error("this is not an http or https URL", "Write https://host/path.");
    }
    if !url.username().is_empty() || url.password().is_some() {
        let remedy = "Take it out: what is sent is signed with `secret`.";
        return error("the URL contains a user name or password", remedy);
    }
    if url.scheme() == "http" && !allow_http && !is_loopback(&url) {
        let remedy = "Write https://…, or allow_http: true if anybody on the network path may read the events.";
        return error("the events would cross the network unencrypted", remedy);
    }
    Ok(WebhookUrl(url))
}

fn format_value(key: &str, value: &Value) -> String {
    match (key, value) {
        ("secret" | "previous_secret", Value::String(text)) => yaml_secret(text),
        // The URL may contain variables, which stay unexpanded.
        ("url", Value::String(text)) if !variables::is_safe_to_show(text) => match Url::parse(text) {
            Ok(url) => yaml_text(&WebhookUrl(url).redacted()),
            Err(_) => yaml_secret(text),
        },
        _ => yaml_value(value, &yaml_text),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;
    use crate::{
        Environment, Flags, LoadedConfig,
        error::ConfigError,
        load::{DEFAULT_YAML, load},
        show,
    };

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const CHAT: &str = "https://hooks.chat.example/services/T0/B0/credential";

    fn read_yaml(yaml: &str) -> Result<LoadedConfig, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, yaml).unwrap();
        let flags = Flags { config: Some(file), data: Some("d".into()), ..Flags::default() };
        let vars = [("SECRET", SECRET), ("CHAT", CHAT), ("WEAK", "whsec_c2hvcnQ=")];
        load(&flags, &Environment::new(Path::new("/"), &vars))
    }

    #[test]
    fn commented_block_documents_every_key_and_default() {
        let start = DEFAULT_YAML.find("#webhooks:").unwrap();
        let block: Vec<&str> = DEFAULT_YAML[start..].lines().take_while(|line| line.starts_with('#')).collect();
        let yaml: String = block.iter().map(|line| format!("{}\n", &line[1..])).collect();
        for key in KEYS {
            let line_index = block
                .iter()
                .position(|line| line.starts_with(&format!("#    {key}:")))
                .unwrap_or_else(|| panic!("{key}"));
            assert!(block[line_index - 1].trim_start_matches('#').trim().starts_with('#'), "{key} has no comment");
        }
        for name in ["TICKETS_WEBHOOK_SECRET", "TICKETS_WEBHOOK_OLD_SECRET"] {
            assert!(yaml.contains(name));
        }
        let yaml = yaml.replace("TICKETS_WEBHOOK_SECRET", "SECRET").replace("TICKETS_WEBHOOK_OLD_SECRET", "SECRET");
        let shown = read_yaml(&yaml.replace("SLACK_WEBHOOK_URL", "CHAT")).unwrap_or_else(|e| panic!("{e}")).config;
        assert_eq!(
            shown.webhooks.enabled.iter().map(|w| w.name.as_str()).collect::<Vec<_>>(),
            ["tickets", "team-chat"]
        );
        let plain = read_yaml("webhooks: { tickets: { url: 'https://tickets.example/x', secret: '${SECRET}' } }");
        let plain = &plain.unwrap().config.webhooks.enabled[0];
        let documented = &shown.webhooks.enabled[0];
        assert_eq!((plain.timeout, plain.give_up_after), (documented.timeout, documented.give_up_after));
        assert_eq!((plain.format, documented.keys.len()), (documented.format, 2));
    }

    #[test]
    fn commented_block_lists_every_event_type() {
        let start = DEFAULT_YAML.find("# Types of events").unwrap();
        let end = start + DEFAULT_YAML[start..].find("If the gateway").unwrap();
        let comment = DEFAULT_YAML[start..end].replace(['#', '\n'], " ");
        // Explanations in brackets may contain commas.
        let text: String = comment.split(['(', ')']).step_by(2).collect();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let lists = text.split('.').zip(text.split('.').skip(1));
        let lists = lists.filter_map(|(subject, kinds)| Some((subject.trim(), kinds.strip_prefix("*: ")?)));
        let listed: BTreeSet<String> = lists
            .flat_map(|(subject, kinds)| kinds.split(',').map(move |kind| format!("{subject}.{}", kind.trim())))
            .collect();
        assert_eq!(listed, event_types().map(str::to_owned).collect::<BTreeSet<_>>());
    }

    #[test]
    fn invalid_webhook_is_refused_with_position() {
        let key = "secret: '${SECRET}'";
        for (webhook, parts) in [
            ("{}".to_owned(), &["webhooks.a", "the webhook has no url"] as &[&str]),
            ("{ url: 'https://x' }".into(), &["has no secret", "whsec_$(openssl"]),
            ("{ url: 'http://x.example', format: text }".into(), &["webhooks.a.url", "unencrypted", "allow_http"]),
            ("{ url: 'https://u:p@x', format: text }".into(), &["password"]),
            ("{ url: 'ftp://x', format: text }".into(), &["this is not an http or https URL"]),
            (format!("{{ url: 'https://x', {key}, evnts: [a] }}"), &["evnts", "Did you mean `events`?"]),
            (format!("{{ url: 'https://x', {key}, events: ['['] }}"), &["webhooks.a.events", "not a pattern"]),
            (format!("{{ url: 'https://x', {key}, events: ['chnage.*'] }}"), &["no type of events", "rule.created"]),
            (format!("{{ url: 'https://x', {key}, tools: [''] }}"), &["webhooks.a.tools", "not a pattern"]),
            (format!("{{ url: 'https://x', {key}, states: [done] }}"), &["webhooks.a.states", "outcome_unknown"]),
            ("{ url: 'https://x', secret: '${WEAK}' }".into(), &["webhooks.a.secret", "24 to 64 bytes"]),
            ("{ url: '${NONE}', format: text }".into(), &["NONE is not set"]),
            (
                "{ url: 'https://x', format: text, template: '{chang.id}' }".into(),
                &["`chang.id` is not a known name", "change.id"],
            ),
            (format!("{{ url: 'https://x', {key}, template: 'a {{what}}' }}"), &["not JSON"]),
        ] {
            let error = read_yaml(&format!("webhooks: {{ a: {webhook} }}")).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{webhook}: {error}");
            assert!(!error.contains("c2hvcnQ"), "{error}");
        }
        assert!(read_yaml("webhooks: { 'a b': { url: 'https://x', format: text } }").is_err());
        for fine in ["http://127.0.0.1:9/", "http://localhost/x", "http://a.localhost/x", "http://[::1]:9/"] {
            read_yaml(&format!("webhooks: {{ a: {{ url: '{fine}', format: text }} }}")).unwrap();
        }
        read_yaml("webhooks: { a: { url: 'http://x.example', format: text, allow_http: true } }").unwrap();
        let webhooks = read_yaml("webhooks: { a: { disabled: true } }").unwrap().config.webhooks;
        assert_eq!((webhooks.enabled, webhooks.disabled), (vec![], vec!["a".to_owned()]));
    }

    #[test]
    fn webhook_secrets_are_not_shown() {
        let yaml = format!(
            "webhooks:\n  a: {{ url: '${{CHAT}}', format: slack }}\n  b: {{ url: '{CHAT}', format: slack }}\n  \
             c: {{ url: 'https://x/?key=credential', secret: {SECRET} }}\n"
        );
        let loaded = read_yaml(&yaml).unwrap();
        let shown = format!("{}\n{:?}", show::yaml(&loaded.settings), loaded.config.webhooks);
        assert!(!shown.contains("credential") && !shown.contains("MfKQ9"), "{shown}");
        assert!(shown.contains("url: \"${CHAT}\"") && shown.contains("https://hooks.chat.example/…"), "{shown}");
    }
}

//! `webhooks`: a free map like that of the servers, and read with the same tools.
//!
//! Nothing here says a secret: what a variable holds is never repeated, nor the path of an address for a chat, which is
//! the credential there.

use std::time::Duration;

use globset::Glob;
use url::Url;

use super::{
    error::{Problem, quoted, quoted_key},
    fields::{Expanded, Fields},
    reader::{Reader, Setting},
    servers::shown,
    tree::{KeyValue, Node},
    values::{found, yaml_text},
    variables,
};
use countersign_domain::{
    changes::ChangeState,
    webhooks::{
        event::{KINDS, matches_some},
        format::Format,
        sign::SigningKey,
        template::Template,
    },
};

const KEY: &str = "webhooks";

/// What may stand below a webhook's name; a test finds what `config/countersign.yaml` does not document.
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
const MAX_NAME: usize = 64;
const MAX_WEBHOOKS: usize = 64;

/// One entry of `webhooks`, with its variables expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    pub name: String,
    pub url: WebhookUrl,
    /// What deliveries are signed with; the second one while receivers still know only an older one.
    pub keys: Vec<SigningKey>,
    /// Globs of types of feed events, as `change.*`.
    pub events: Vec<String>,
    /// Globs of names of tools as clients see them, and of servers; none is all.
    pub tools: Vec<String>,
    pub servers: Vec<String>,
    /// Which states of changes; none is all.
    pub states: Vec<ChangeState>,
    pub format: Format,
    pub template: Option<Template>,
    /// For one attempt.
    pub timeout: Duration,
    /// How long a delivery is tried.
    pub give_up_after: Duration,
}

/// An address, whose path may be a credential: it is never shown whole.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookUrl(pub Url);

impl std::fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

impl WebhookUrl {
    /// Scheme, host and port; of what comes after them only that it is there.
    #[must_use]
    pub fn shown(&self) -> String {
        let rest = if self.0.path() == "/" && self.0.query().is_none() { "/" } else { "/…" };
        format!("{}{rest}", self.0.origin().ascii_serialization())
    }
}

/// Every webhook of the file that is not disabled.
pub(crate) fn read(r: &mut Reader) -> Vec<WebhookConfig> {
    let Some(placed) = r.section(KEY) else { return Vec::new() };
    let problem = |origin, key: String, message: String, remedy: &str| Problem {
        origin,
        key: Some(key),
        message,
        remedy: remedy.to_owned(),
    };
    let entries: &[KeyValue] = match &placed.node {
        Node::Map(entries) => entries,
        Node::Null => &[],
        other => {
            let message = format!("expected a map of webhooks, found {}", found(other));
            let remedy = "Write {name: {url: https://…, secret: …}}.";
            r.problems.push(problem(placed.origin.clone(), KEY.to_owned(), message, remedy));
            return Vec::new();
        }
    };
    r.settings.push(Setting { key: KEY, value: yaml(entries), origin: placed.origin.clone() });
    if entries.len() > MAX_WEBHOOKS {
        let message = format!("{} webhooks", entries.len());
        r.problems.push(problem(placed.origin.clone(), KEY.to_owned(), message, "Keep at most 64."));
        return Vec::new();
    }
    let mut all = Vec::new();
    for entry in entries {
        let key = format!("{KEY}.{}", quoted_key(&entry.key));
        let origin = placed.at(entry.line, entry.column);
        // It stands in the path of its REST endpoint.
        let fits = (1..=MAX_NAME).contains(&entry.key.len())
            && entry.key.starts_with(|c: char| c.is_ascii_alphanumeric())
            && entry.key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
        if !fits {
            let message = format!("{} cannot be a webhook's name", quoted(&entry.key));
            r.problems.push(problem(origin, key, message, "Use 1 to 64 letters, digits, - and _."));
            continue;
        }
        let Node::Map(values) = &entry.value.node else {
            let message = format!("expected a webhook, found {}", entry.value.node.kind());
            r.problems.push(problem(origin, key, message, "Write {url: https://…, secret: …}."));
            continue;
        };
        let mut fields = Fields::new(r, &placed, key, format!("{KEY}.{}", entry.key), values, entry);
        if fields.boolean("disabled").unwrap_or_default() {
            continue;
        }
        all.extend(webhook(&entry.key, &mut fields));
    }
    all
}

fn webhook(name: &str, f: &mut Fields<'_>) -> Option<WebhookConfig> {
    f.only(&KEYS);
    let before = f.problems();
    let mut allow_http = false;
    f.flag("allow_http", &mut allow_http);
    let format = f.choice("format", &Format::NAMES).unwrap_or(Format::Json);
    let url = address(f, allow_http);
    let keys: Vec<SigningKey> = ["secret", "previous_secret"].into_iter().filter_map(|name| key(f, name)).collect();
    if format == Format::Json && !f.has("secret") {
        f.wrong("", "the webhook has no secret to sign with".to_owned(), SECRET_REMEDY);
    }
    let mut events = f.each("events", |_, node| {
        let pattern = glob(node, "of event types")?;
        if matches_some(&pattern) {
            return Ok(pattern);
        }
        let remedy = format!("Types are {}; * stands for any characters.", KINDS.join(", "));
        Err((format!("{} matches no type of events", quoted(&pattern)), remedy))
    });
    if events.is_empty() {
        events.push("change.*".to_owned());
    }
    let tools = f.each("tools", |_, node| glob(node, "of tools"));
    let servers = f.each("servers", |_, node| glob(node, "of servers"));
    let states = f.each("states", |_, node| {
        let state = if let Node::Text(text) = node { ChangeState::parse(text) } else { None };
        let states = ChangeState::ALL.map(ChangeState::as_str).join(", ");
        state.ok_or_else(|| (format!("{} is not a state of a change", found(node)), format!("Write one of: {states}.")))
    });
    let template = match f.text("template").map(|text| Template::new(&text, format)) {
        None => None,
        Some(Ok(template)) => Some(template),
        Some(Err(why)) => {
            f.wrong("template", why.to_string(), &why.remedy());
            None
        }
    };
    let (mut timeout, mut give_up_after) = (15 * S, 3 * DAY);
    f.duration("timeout", 100 * MS..=300 * S, &mut timeout);
    f.duration("give_up_after", S..=30 * DAY, &mut give_up_after);
    let url = url?;
    let name = name.to_owned();
    (f.problems() == before).then_some(WebhookConfig {
        name,
        url,
        keys,
        events,
        tools,
        servers,
        states,
        format,
        template,
        timeout,
        give_up_after,
    })
}

fn glob(node: &Node, what: &str) -> Result<String, (String, String)> {
    match node {
        Node::Text(text) if !text.is_empty() && Glob::new(text).is_ok() => Ok(text.clone()),
        other => Err((
            format!("{} is not a pattern {what}", found(other)),
            "Write a name, or a part of it with * for any characters.".to_owned(),
        )),
    }
}

impl WebhookConfig {
    /// One that sends changes to nowhere.
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
            format: Format::Json,
            template: None,
            timeout: S,
            give_up_after: S,
        }
    }
}

const SECRET_REMEDY: &str =
    "Write secret: \"${NAME}\", and put into that variable what `echo whsec_$(openssl rand -base64 32)` prints.";

fn key(f: &mut Fields<'_>, name: &str) -> Option<SigningKey> {
    if !f.has(name) {
        return None;
    }
    let Expanded { value, .. } = f.expanded(name)?;
    let key = SigningKey::parse(value.trim());
    if key.is_none() {
        // What it is is nobody's business.
        let message = "this is not a Standard Webhooks secret: whsec_ and the base64 of 24 to 64 bytes".to_owned();
        f.wrong(name, message, SECRET_REMEDY);
    }
    key
}

fn address(f: &mut Fields<'_>, allow_http: bool) -> Option<WebhookUrl> {
    if !f.has("url") {
        f.wrong("", "the webhook has no url".to_owned(), "Write url: https://….");
        return None;
    }
    let Expanded { value, .. } = f.expanded("url")?;
    let wrong = |f: &mut Fields<'_>, why: &str, remedy: &str| {
        f.wrong("url", why.to_owned(), remedy);
        None
    };
    let Ok(url) = Url::parse(value.trim()) else {
        return wrong(f, "not a URL", "Write https://host/path.");
    };
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return wrong(f, "this is not an http or https URL", "Write https://host/path.");
    }
    if !url.username().is_empty() || url.password().is_some() {
        let remedy = "Take it out: what is sent is signed with `secret`.";
        return wrong(f, "the URL contains a user name or password", remedy);
    }
    if url.scheme() == "http" && !allow_http && !is_loopback(&url) {
        let remedy = "Write https://…, or allow_http: true where everybody on the way may read along.";
        return wrong(f, "the events would cross the network unencrypted", remedy);
    }
    Some(WebhookUrl(url))
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// The lines below `webhooks:` for `config show`; `{}` for none.
fn yaml(entries: &[KeyValue]) -> String {
    if entries.is_empty() {
        return "{}".to_owned();
    }
    let mut out = String::new();
    for webhook in entries {
        out.push_str(&format!("\n  {}:", yaml_text(&webhook.key)));
        let Node::Map(values) = &webhook.value.node else {
            out.push_str(" {}");
            continue;
        };
        for KeyValue { key, value, .. } in values {
            let hidden = |text: &str| yaml_text(if variables::tells_nothing(text) { text } else { "[secret]" });
            let shown = match (key.as_str(), &value.node) {
                ("secret" | "previous_secret", Node::Text(text)) => hidden(text),
                ("url", Node::Text(text)) if variables::tells_nothing(text) => yaml_text(text),
                ("url", Node::Text(text)) => match Url::parse(text) {
                    // A variable within it keeps what it holds to itself.
                    Ok(url) => yaml_text(&WebhookUrl(url).shown()),
                    Err(_) => hidden(text),
                },
                (_, node) => shown::flow(node, &yaml_text),
            };
            out.push_str(&format!("\n    {}: {shown}", yaml_text(key)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        Environment, Flags, Loaded,
        error::ConfigError,
        load::{DEFAULTS, load},
        show,
    };

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const CHAT: &str = "https://hooks.chat.example/services/T0/B0/credential";

    fn read_yaml(yaml: &str) -> Result<Loaded, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, yaml).unwrap();
        let flags = Flags { config: Some(file), data: Some("d".into()), ..Flags::default() };
        let vars = [("SECRET", SECRET), ("CHAT", CHAT), ("WEAK", "whsec_c2hvcnQ=")];
        load(&flags, &Environment::of(Path::new("/"), &vars))
    }

    #[test]
    fn the_commented_block_documents_every_key_and_its_default() {
        let start = DEFAULTS.find("#webhooks:").unwrap();
        let block: Vec<&str> = DEFAULTS[start..].lines().take_while(|line| line.starts_with('#')).collect();
        let yaml: String = block.iter().map(|line| format!("{}\n", &line[1..])).collect();
        for key in KEYS {
            let at = block
                .iter()
                .position(|line| line.starts_with(&format!("#    {key}:")))
                .unwrap_or_else(|| panic!("{key}"));
            assert!(block[at - 1].trim_start_matches('#').trim().starts_with('#'), "{key} has no comment");
        }
        for name in ["TICKETS_WEBHOOK_SECRET", "TICKETS_WEBHOOK_OLD_SECRET"] {
            assert!(yaml.contains(name));
        }
        let yaml = yaml.replace("TICKETS_WEBHOOK_SECRET", "SECRET").replace("TICKETS_WEBHOOK_OLD_SECRET", "SECRET");
        let shown = read_yaml(&yaml.replace("SLACK_WEBHOOK_URL", "CHAT")).unwrap_or_else(|e| panic!("{e}")).config;
        assert_eq!(shown.webhooks.iter().map(|w| w.name.as_str()).collect::<Vec<_>>(), ["tickets", "team-chat"]);
        let plain = read_yaml("webhooks: { tickets: { url: 'https://tickets.example/x', secret: '${SECRET}' } }");
        let plain = &plain.unwrap().config.webhooks[0];
        let documented = &shown.webhooks[0];
        assert_eq!((plain.timeout, plain.give_up_after), (documented.timeout, documented.give_up_after));
        assert_eq!((plain.format, documented.keys.len()), (documented.format, 2));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
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
        for fine in ["http://127.0.0.1:9/", "http://localhost/x", "http://[::1]:9/"] {
            read_yaml(&format!("webhooks: {{ a: {{ url: '{fine}', format: text }} }}")).unwrap();
        }
        read_yaml("webhooks: { a: { url: 'http://x.example', format: text, allow_http: true } }").unwrap();
        assert!(read_yaml("webhooks: { a: { disabled: true } }").unwrap().config.webhooks.is_empty());
    }

    #[test]
    fn no_secret_is_shown() {
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

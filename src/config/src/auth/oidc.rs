//! Reads `auth.oidc`: the identity provider with which people sign in to the dashboard.

use std::{collections::BTreeMap, time::Duration};

use super::{
    DEFAULT_GROUPS_CLAIM, read_authorities, read_groups_claim, read_issuer_url, read_required_issuer, read_roles,
    show_groups_claim, show_roles,
};
use crate::{
    Authorities, Secret, authorities,
    error::{ValueError, invalid, quoted},
    reader::{Reader, fields::Fields},
    tree::Node,
    values::{duration, read_scope, read_visible_text},
    yaml::{yaml_list, yaml_map, yaml_secret, yaml_text},
};
use countersign_domain::principal::Role;

const KEY: &str = "auth.oidc";
const KEYS: [&str; 10] =
    ["issuer", "client_id", "client_secret", "cli_client_id", "scopes", "roles", "groups", "require", "refresh", "tls"];
const DEFAULT_SCOPES: [&str; 4] = ["openid", "email", "profile", "groups"];
const DEFAULT_REFRESH: Duration = Duration::from_secs(60);
const REFRESH_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);

/// The identity provider with which people sign in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// The issuer identifier, which is compared exactly.
    pub issuer: String,
    pub client_id: String,
    /// The secret of the client. `None` for a public client.
    pub client_secret: Option<Secret>,
    /// The secret as written in the file, which may be a variable.
    secret_source: Secret,
    /// The public client of the command line, if the operator named one.
    pub cli_client_id: Option<String>,
    pub scopes: Vec<String>,
    /// Roles by group at the identity provider, where `*` stands for everybody. Whoever has no role cannot sign in.
    pub roles: BTreeMap<String, Role>,
    /// The claim with the groups.
    pub groups_claim: String,
    /// Claims that everybody who signs in must have, with their values.
    pub require: BTreeMap<String, String>,
    /// The interval at which the identity provider is asked whether a person may still sign in, and with which groups.
    pub refresh: Duration,
    /// Certificate authorities that are trusted in addition to the public ones.
    pub authorities: Option<Authorities>,
}

pub(super) fn read(r: &mut Reader) -> Option<OidcConfig> {
    let provider = read_provider_map(r, read_provider)?;
    r.add_setting(KEY, provider.show());
    Some(provider)
}

/// Reads only the issuer.
pub(super) fn read_issuer(r: &mut Reader) -> Option<String> {
    read_provider_map(r, read_required_issuer)
}

/// Reads the map of the provider with `read`.
fn read_provider_map<T>(r: &mut Reader, read: impl FnOnce(&mut Fields<'_>) -> Option<T>) -> Option<T> {
    let mismatch = |other: &Node| {
        let message = format!("expected an identity provider, found {}", other.describe_kind());
        invalid(message, "Write { issuer: …, client_id: … }, or null.")
    };
    r.read_optional_map(KEY, mismatch, read)
}

fn read_provider(f: &mut Fields<'_>) -> Option<OidcConfig> {
    f.reject_unknown_keys(&KEYS);
    for (key, remedy) in
        [("issuer", "Write issuer: https://id.example.com."), ("client_id", "Name the client that the provider knows.")]
    {
        if !f.has(key) {
            f.report_map(format!("{key} is missing"), remedy);
        }
    }
    let issuer = read_issuer_url(f);
    let authorities = read_authorities(f, issuer.as_deref());
    let client_id = f.parse("client_id", |node| read_visible_text(node, 200));
    let secret = f.expanded_text("client_secret");
    let mut config = OidcConfig::new(&issuer.unwrap_or_default(), &client_id.unwrap_or_default());
    if let Some(secret) = secret {
        config.client_secret = (!secret.value.is_empty()).then_some(Secret(secret.value));
        config.secret_source = Secret(secret.source);
    }
    config.authorities = authorities;
    config.cli_client_id = f.parse("cli_client_id", |node| read_visible_text(node, 200));
    if f.has("scopes") {
        config.scopes = f.parse_items("scopes", |_, node| read_scope(node));
        if !config.scopes.iter().any(|scope| scope == "openid") {
            f.report("scopes", "openid is missing", "Without it, a provider does not say who signs in.");
        }
    }
    config.roles = read_roles(f);
    if let Some((group, _)) = config.roles.iter().find(|(_, role)| **role == Role::Agent) {
        f.report(
            "roles",
            format!("{} has the role agent, and the dashboard is for people", quoted(group)),
            "Write reviewer, viewer or admin.",
        );
    }
    config.groups_claim = read_groups_claim(f);
    let require = f.map_entries("require", |_, entry| Ok((entry.key.clone(), read_claim(&entry.value.node)?)));
    config.require = require.into_iter().collect();
    if config.roles.contains_key("*") && config.require.is_empty() {
        f.report(
            "roles",
            "* would let in everybody whom the provider knows",
            "Name claims in require, or groups here.",
        );
    }
    f.read_into("refresh", duration(REFRESH_RANGE), &mut config.refresh);
    (!f.has_problems()).then_some(config)
}

/// Reads the value that a claim must have.
fn read_claim(node: &Node) -> Result<String, ValueError> {
    match node {
        Node::Bool(value) => Ok(value.to_string()),
        Node::Int(number) => Ok(number.to_string()),
        other => read_visible_text(other, 200),
    }
}

impl OidcConfig {
    /// Creates a public client with the default settings.
    pub fn new(issuer: &str, client_id: &str) -> Self {
        Self {
            issuer: issuer.to_owned(),
            client_id: client_id.to_owned(),
            client_secret: None,
            secret_source: Secret(String::new()),
            cli_client_id: None,
            scopes: DEFAULT_SCOPES.map(str::to_owned).to_vec(),
            roles: BTreeMap::new(),
            groups_claim: DEFAULT_GROUPS_CLAIM.to_owned(),
            require: BTreeMap::new(),
            refresh: DEFAULT_REFRESH,
            authorities: None,
        }
    }

    /// Returns the public client of the command line: the one that is named, or else that of the gateway if it has no secret.
    pub fn cli_client(&self) -> Option<&str> {
        self.cli_client_id.as_deref().or_else(|| self.client_secret.is_none().then_some(&self.client_id))
    }

    /// Formats the provider as in the file, without its secret.
    pub fn show(&self) -> String {
        let Self {
            issuer, client_id, cli_client_id, scopes, roles, groups_claim, require, refresh, authorities, ..
        } = self;
        let mut entries = vec![("issuer", yaml_text(issuer)), ("client_id", yaml_text(client_id))];
        if !self.secret_source.0.is_empty() {
            entries.push(("client_secret", yaml_secret(&self.secret_source.0)));
        }
        if let Some(client) = cli_client_id {
            entries.push(("cli_client_id", yaml_text(client)));
        }
        if *scopes != DEFAULT_SCOPES {
            entries.push(("scopes", yaml_list(scopes)));
        }
        entries.push(("roles", show_roles(roles)));
        entries.extend(show_groups_claim(groups_claim));
        if !require.is_empty() {
            entries
                .push(("require", yaml_map(require.iter().map(|(claim, value)| (claim.as_str(), yaml_text(value))))));
        }
        if *refresh != DEFAULT_REFRESH {
            entries.push(("refresh", duration(REFRESH_RANGE).show(refresh)));
        }
        entries.extend(authorities.as_ref().map(authorities::show));
        yaml_map(entries)
    }
}

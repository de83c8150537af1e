//! Reads `auth`: who may call, the issuers whose access tokens are accepted, and the identity provider with which people
//! sign in.

mod oidc;

use std::collections::BTreeMap;

use url::Url;

use super::{
    Authorities, Secret, authorities,
    error::{ValueError, invalid, quoted},
    loopback::is_loopback,
    reader::{MapList, Reader, fields::Fields},
    tree::Node,
    values::{parse_role, read_text, read_visible_text, variant},
    yaml::{yaml_items, yaml_list, yaml_map, yaml_secret, yaml_text},
};
use countersign_domain::principal::Role;
use strum::{IntoStaticStr, VariantArray};

pub use oidc::OidcConfig;

const KEY: &str = "auth.tokens";
const ISSUER_KEYS: [&str; 6] = ["issuer", "audiences", "roles", "groups", "introspection", "tls"];
const DEFAULT_GROUPS_CLAIM: &str = "groups";
/// The longest issuer, which is part of the name of every principal of its tokens.
const MAX_ISSUER_CHARS: usize = 200;
const LIST: MapList = MapList {
    key: KEY,
    noun: "issuer",
    example: "{ issuer: https://id.example.com }",
    keys: &ISSUER_KEYS,
    max_entries: 16,
    keeps_null: false,
};

/// Says who must present a credential (`auth.mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum AuthMode {
    /// Agents on this machine need no key, and all people count as one. Decisions need a credential all the same.
    Local,
    /// Everybody needs a key or an access token.
    Keys,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthConfig {
    pub mode: AuthMode,
    /// The identity provider with which people sign in.
    pub oidc: Option<OidcConfig>,
    /// The issuers whose access tokens are accepted.
    pub tokens: Vec<TokenIssuer>,
}

impl AuthConfig {
    /// Returns the issuers of people and of access tokens.
    pub fn issuers(&self) -> impl Iterator<Item = &str> {
        let tokens = self.tokens.iter().map(|issuer| issuer.issuer.as_str());
        self.oidc.iter().map(|oidc| oidc.issuer.as_str()).chain(tokens)
    }
}

/// An authorization server whose access tokens are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIssuer {
    /// The issuer identifier, which is compared exactly. If none is configured, it is that of `auth.oidc`.
    pub issuer: String,
    /// A token must have one of these audiences. An empty list stands for `public_url` and the endpoints below it.
    pub audiences: Vec<String>,
    /// Roles by group at the issuer, where `*` stands for everybody. If there are none, the scopes of a token decide.
    pub roles: BTreeMap<String, Role>,
    /// The claim with the groups.
    pub groups_claim: String,
    /// The client that asks the issuer about opaque tokens (RFC 7662), which at most one issuer has. `None` accepts JWTs
    /// only.
    pub introspection: Option<IntrospectionClient>,
    /// Certificate authorities that are trusted in addition to the public ones. An issuer that is taken from
    /// `auth.oidc` has those of `auth.oidc`, unless others are configured.
    pub authorities: Option<Authorities>,
}

/// The gateway's own client at an issuer, for introspection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntrospectionClient {
    pub id: String,
    pub secret: Secret,
    /// The secret as written in the file, which may be a variable.
    secret_source: Secret,
}

impl IntrospectionClient {
    #[cfg(any(test, feature = "testing"))]
    pub fn sample(id: &str, secret: &str) -> Self {
        Self { id: id.to_owned(), secret: Secret(secret.to_owned()), secret_source: Secret(String::new()) }
    }
}

pub(super) fn read(r: &mut Reader) -> AuthConfig {
    let mode = r.read_or("auth.mode", variant(), AuthMode::Keys);
    let oidc = oidc::read(r);
    let mut issuer_names: Vec<String> = Vec::new();
    let mut introspecting: Option<usize> = None;
    let list = r.read_list(&LIST, |number, fields| {
        let issuer = read_issuer(fields, oidc.as_ref())?;
        if issuer.introspection.is_some()
            && let Some(other) = introspecting.replace(number)
        {
            let message = format!(
                "the issuers {other} and {number} both have introspection, and an opaque token does not say which of them \
                 issued it, so that both would be shown it"
            );
            fields.report("introspection", message, "Keep it for one issuer, and let the others issue JWTs.");
        }
        if let Some(other) = issuer_names.iter().position(|other| *other == issuer.issuer) {
            fields.report("issuer", format!("the issuers {} and {number} are the same", other + 1), "Merge them.");
        }
        issuer_names.push(issuer.issuer.clone());
        Some(issuer)
    });
    let Some(issuers) = list else { return AuthConfig { mode, oidc, tokens: Vec::new() } };
    let tokens: Vec<TokenIssuer> = issuers.into_iter().flatten().collect();
    r.add_setting(KEY, yaml_items(tokens.iter().map(TokenIssuer::show)));
    AuthConfig { mode, oidc, tokens }
}

/// Reads only the issuers of people and of access tokens. Variables of other keys, such as `client_secret`, may be unset.
pub(super) fn read_issuers(r: &mut Reader) -> Vec<String> {
    let provider = oidc::read_issuer(r);
    let list = r.read_list(&LIST, |_, fields| {
        if provider.is_some() && !fields.has("issuer") { None } else { read_required_issuer(fields) }
    });
    provider.into_iter().chain(list.into_iter().flatten().flatten()).collect()
}

fn read_issuer(f: &mut Fields<'_>, oidc: Option<&OidcConfig>) -> Option<TokenIssuer> {
    f.reject_unknown_keys(&ISSUER_KEYS);
    let issuer = match oidc {
        Some(provider) if !f.has("issuer") => Some(provider.issuer.clone()),
        _ => read_required_issuer(f),
    };
    let audiences = f.parse_items("audiences", |_, node| read_visible_text(node, MAX_ISSUER_CHARS));
    let roles = read_roles(f);
    if roles.get("*").is_some_and(|role| role.may_decide()) {
        f.report(
            "roles",
            "* would let everybody with a token decide on changes, agents included",
            "Give this role to groups. * may be agent or viewer.",
        );
    }
    let groups_claim = read_groups_claim(f);
    let introspection = f.section("introspection", &["client_id", "client_secret"]).and_then(|mut client| {
        let id = client.parse("client_id", |node| read_visible_text(node, 200));
        let secret = client.expanded_text("client_secret");
        for (key, is_given) in [("client_id", id.is_some()), ("client_secret", secret.is_some())] {
            if !is_given && !client.has(key) {
                client.report_map(
                    format!("{key} is missing"),
                    "Name the client that the provider knows for the gateway.",
                );
            }
        }
        let secret = secret?;
        Some(IntrospectionClient { id: id?, secret: Secret(secret.value), secret_source: Secret(secret.source) })
    });
    let provider = oidc.filter(|_| !f.has("issuer") && !f.has("tls"));
    let authorities = match provider {
        Some(provider) => provider.authorities.clone(),
        None => read_authorities(f, issuer.as_deref()),
    };
    (!f.has_problems()).then_some(TokenIssuer {
        issuer: issuer?,
        audiences,
        roles,
        groups_claim,
        introspection,
        authorities,
    })
}

/// Reads the issuer identifier, and reports a missing one.
fn read_required_issuer(f: &mut Fields<'_>) -> Option<String> {
    if !f.has("issuer") {
        f.report_map("the issuer is missing", "Write issuer: https://id.example.com.");
    }
    read_issuer_url(f)
}

/// Reads the issuer identifier.
pub(super) fn read_issuer_url(f: &mut Fields<'_>) -> Option<String> {
    f.parse("issuer", parse_issuer)
}

/// Reads the certificate authorities of an issuer.
fn read_authorities(f: &mut Fields<'_>, issuer: Option<&str>) -> Option<Authorities> {
    authorities::read(f, issuer.is_none_or(|issuer| issuer.starts_with("https:")))
}

/// Reads the name of the claim with the groups.
fn read_groups_claim(f: &mut Fields<'_>) -> String {
    let claim = f
        .section("groups", &["claim"])
        .and_then(|mut groups| groups.parse("claim", |node| read_visible_text(node, 100)));
    claim.unwrap_or_else(|| DEFAULT_GROUPS_CLAIM.to_owned())
}

/// Formats the claim with the groups as in the file, unless it is the default.
fn show_groups_claim(claim: &str) -> Option<(&'static str, String)> {
    (claim != DEFAULT_GROUPS_CLAIM).then(|| ("groups", yaml_map([("claim", yaml_text(claim))])))
}

/// Formats the roles by group as in the file.
fn show_roles(roles: &BTreeMap<String, Role>) -> String {
    yaml_map(roles.iter().map(|(group, role)| (group.as_str(), role.as_str().to_owned())))
}

/// Reads the roles by group.
fn read_roles(f: &mut Fields<'_>) -> BTreeMap<String, Role> {
    let roles = f.map_entries("roles", |_, entry| Ok((entry.key.clone(), parse_role(&read_text(&entry.value.node)?)?)));
    roles.into_iter().collect()
}

/// Reads an issuer identifier.
pub(super) fn parse_issuer(node: &Node) -> Result<String, ValueError> {
    let text = read_text(node)?;
    check_issuer(&text).map(|()| text)
}

/// Checks an issuer identifier: an HTTPS URL without query and fragment (RFC 8414, section 2), or an HTTP one on loopback.
fn check_issuer(text: &str) -> Result<(), ValueError> {
    let error = |reason: &str| {
        let remedy = "Write it as the provider's metadata does: https://id.example.com.";
        Err(invalid(format!("{} {reason}", quoted(text)), remedy))
    };
    let Ok(url) = Url::parse(text) else { return error("is not a URL") };
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return error("has a query, a fragment or a user name");
    }
    if text.chars().count() > MAX_ISSUER_CHARS || !text.bytes().all(|byte| matches!(byte, b'!'..=b'~')) {
        return error(&format!("has more than {MAX_ISSUER_CHARS} characters, or characters other than visible ASCII"));
    }
    match url.scheme() {
        "https" => Ok(()),
        "http" if is_loopback(&url) => Ok(()),
        _ => error("is not an https URL (http is for this machine only)"),
    }
}

impl TokenIssuer {
    /// Formats the issuer as in the file, without its secret.
    pub fn show(&self) -> String {
        let Self { issuer, audiences, roles, groups_claim, introspection, authorities } = self;
        let mut entries = vec![("issuer", yaml_text(issuer))];
        if !audiences.is_empty() {
            entries.push(("audiences", yaml_list(audiences)));
        }
        if !roles.is_empty() {
            entries.push(("roles", show_roles(roles)));
        }
        entries.extend(show_groups_claim(groups_claim));
        if let Some(IntrospectionClient { id, secret_source, .. }) = introspection {
            let client = [("client_id", yaml_text(id)), ("client_secret", yaml_secret(&secret_source.0))];
            entries.push(("introspection", yaml_map(client)));
        }
        entries.extend(authorities.as_ref().map(authorities::show));
        yaml_map(entries)
    }
}

#[cfg(test)]
mod tests;

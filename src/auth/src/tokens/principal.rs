//! Turns the claims of a verified token into a principal.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde_json::Value;

use super::{TokenRefusal, claims::TokenClaims};
use countersign_config::TokenIssuer;
use countersign_domain::{
    changes::visible::escape_hidden,
    principal::{Claims, Principal, Role, Scope, subject_client_name, subject_name},
    text::{shorten, truncate},
};

/// The maximum length of a subject (OpenID Connect Core 1.0, section 2) and of a client id. Both are part of the
/// principal's name.
pub(super) const MAX_ID_BYTES: usize = 255;
/// The maximum number of characters of a person's own name in the display name.
const MAX_DISPLAY_CHARS: usize = 60;
/// The maximum number of characters of the subject in the display name.
const MAX_SHOWN_SUBJECT_CHARS: usize = 40;
/// The maximum number of groups that are read from a token.
const MAX_GROUPS: usize = 1000;
/// The claims with an id of the person that is the same for all clients: of Entra ID, whose `sub` differs between
/// applications, and of Okta, whose `sub` differs between ID and access tokens.
const PERSON_ID_CLAIMS: [&str; 2] = ["oid", "uid"];
/// The roles, the strongest first. An agent comes before a viewer, because tokens are for agents.
const ROLES_BY_STRENGTH: [Role; 4] = [Role::Admin, Role::Reviewer, Role::Agent, Role::Viewer];

/// Returns the principal that an issuer's claims describe. `subject` identifies the person or the service.
pub(super) fn to_principal(
    issuer: &TokenIssuer,
    subject: &str,
    claims: TokenClaims,
    now: Timestamp,
) -> Result<Principal, TokenRefusal> {
    let client = claims.client()?;
    for id in [Some(subject), client].into_iter().flatten() {
        if id.len() > MAX_ID_BYTES {
            return Err(TokenRefusal::invalid("the token's subject or client id is too long"));
        }
    }
    let groups = read_groups(&claims, &issuer.groups_claim);
    let (role, scopes) = if issuer.roles.is_empty() {
        let scopes = read_scopes(&claims);
        (role_of_scopes(&scopes).ok_or(TokenRefusal::NoScope)?, Some(scopes))
    } else {
        (role_of_groups(&issuer.roles, &groups).ok_or(TokenRefusal::NoGroup)?, None)
    };
    let person = subject_name(&issuer.issuer, subject);
    let (name, owner) = match client {
        Some(client) => (subject_client_name(&issuer.issuer, subject, client), Some(person)),
        None => (person, None),
    };
    let groups = groups.into_iter().map(str::to_owned).collect();
    let display_name = display_name(&claims, client, &issuer.issuer, subject);
    let (auth_time, acr) = (claims.auth_time(now.as_second()), claims.acr());
    let other_names = other_names(&claims, &issuer.issuer);
    let claims = Claims { display_name, scopes, groups, other_names, auth_time, acr, json: claims.json };
    Ok(Principal { owner, claims: Some(Arc::new(claims)), ..Principal::new(name, role) })
}

/// Returns the known scopes of a token: from `scope` (RFC 9068, section 2.2.3), or `scp` as Okta and Entra ID write it.
fn read_scopes(claims: &TokenClaims) -> Vec<Scope> {
    let name = if claims.get("scope").is_some() { "scope" } else { "scp" };
    let mut all: Vec<Scope> =
        claims.strings(name).into_iter().flat_map(|text| text.split(' ')).filter_map(Scope::parse).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the strongest role that the scopes give.
fn role_of_scopes(scopes: &[Scope]) -> Option<Role> {
    let role_of = |scope: &Scope| match scope {
        Scope::Admin => Role::Admin,
        Scope::ChangesDecide => Role::Reviewer,
        Scope::ToolsRead | Scope::ToolsPropose => Role::Agent,
    };
    ROLES_BY_STRENGTH.into_iter().find(|candidate| scopes.iter().any(|scope| role_of(scope) == *candidate))
}

/// Returns the groups that a claim lists, up to the limit.
pub(super) fn read_groups<'a>(claims: &'a TokenClaims, claim: &str) -> Vec<&'a str> {
    claims.strings(claim).into_iter().take(MAX_GROUPS).collect()
}

/// Returns the strongest role that the groups give.
pub(super) fn role_of_groups(roles: &BTreeMap<String, Role>, groups: &[&str]) -> Option<Role> {
    let is_member = |group: &str| group == "*" || groups.contains(&group);
    ROLES_BY_STRENGTH
        .into_iter()
        .find(|candidate| roles.iter().any(|(group, role)| role == candidate && is_member(group)))
}

/// Returns the names of the person by the claims that are the same for all clients.
pub(super) fn other_names(claims: &TokenClaims, issuer: &str) -> Vec<String> {
    let ids = PERSON_ID_CLAIMS.iter().filter_map(|name| claims.get(name).and_then(Value::as_str));
    ids.filter(|id| !id.is_empty() && id.len() <= MAX_ID_BYTES).map(|id| subject_name(issuer, id)).collect()
}

/// Returns the name to show, followed by the subject and the issuer's host, because people may choose the same names.
pub(super) fn display_name(claims: &TokenClaims, client: Option<&str>, issuer: &str, subject: &str) -> Option<String> {
    let mut names =
        ["name", "preferred_username", "email"].into_iter().flat_map(|name| claims.strings(name)).chain(client);
    let name = names.find(|name| !name.trim().is_empty())?;
    let name = truncate(name.trim(), MAX_DISPLAY_CHARS);
    let subject = shorten(subject, MAX_SHOWN_SUBJECT_CHARS);
    let host = issuer.split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or(issuer);
    Some(escape_hidden(&format!("{name} ({subject} at {host})")).replace(['\n', '\t'], " "))
}

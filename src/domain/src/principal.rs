//! Principals: their roles, the scopes of their tokens, and how they were authenticated.

use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};
use utoipa::ToSchema;

use countersign_protocol::{ErrorKind, McpError};

/// The permissions of a principal. `admin` has the permissions of all other roles.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Role {
    /// Uses MCP: lists, reads, proposes changes, sees its own changes.
    #[default]
    Agent,
    /// Sees all changes and decides on them.
    Reviewer,
    /// Sees all changes and cannot decide on them.
    Viewer,
    /// Has the permissions of reviewer, agent and viewer, and manages keys.
    Admin,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// Returns `true` if the role may use the MCP endpoints and `/tools`.
    pub const fn may_call(self) -> bool {
        matches!(self, Self::Agent | Self::Admin | Self::Reviewer)
    }

    /// Returns `true` if the role may see changes, sessions, providers and the audit trail of everyone.
    pub const fn may_view(self) -> bool {
        matches!(self, Self::Reviewer | Self::Viewer | Self::Admin)
    }

    /// Returns `true` if the role may approve, reject and settle.
    pub const fn may_decide(self) -> bool {
        matches!(self, Self::Reviewer | Self::Admin)
    }
}

/// The scopes of an agent that proposes changes.
pub const AGENT_SCOPES: &str = "tools:read tools:propose";

/// The authenticated identity behind a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// A stable, unique name, by which self-approval, limits and visibility are decided. For a key it is its `--name`.
    pub name: String,
    pub role: Role,
    /// The id (not the secret) of the presented key, or that of a signed-in person ([`person_key_id`]).
    pub key_id: Option<String>,
    /// The person who owns the key (`keys create --owner`), if the owner has another name. A person with several keys
    /// decides once, and never on their own proposals.
    pub owner: Option<String>,
    /// The claims of the principal's token. `None` for keys and local processes.
    pub claims: Option<Arc<Claims>>,
    /// The names of the person who created the presented key, and of those who created that person's key, if it may decide on
    /// changes. A match with them may forbid something, but permits nothing.
    pub key_creators: Vec<String>,
}

impl Principal {
    /// Creates a principal without a key, an owner of another name, or claims.
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Self { name: name.into(), role, key_id: None, owner: None, claims: None, key_creators: Vec::new() }
    }

    /// Returns the name for people, if an identity provider gave one.
    pub fn display_name(&self) -> Option<&str> {
        self.claims.as_ref()?.display_name.as_deref()
    }

    /// Returns the further names of the person ([`Claims::other_names`]), or of those who created their key.
    pub fn other_names(&self) -> &[String] {
        self.claims.as_ref().map_or(&self.key_creators, |claims| &claims.other_names)
    }

    /// Returns every name of the person, without repetitions and beginning with the principal's own.
    pub fn all_names(&self) -> Vec<String> {
        let mut names = vec![self.name.clone()];
        for name in self.owner.iter().chain(self.other_names()) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// Returns `true` if the principal's token permits this. Keys and tokens whose role comes from a claim permit all that
    /// their role does.
    pub fn has_scope(&self, scope: Scope) -> bool {
        let scopes = self.claims.as_ref().and_then(|claims| claims.scopes.as_ref());
        scopes.is_none_or(|scopes| scopes.iter().any(|granted| granted.includes(scope)))
    }

    /// Checks that the principal's token permits an operation.
    ///
    /// # Errors
    /// `FORBIDDEN` with all scopes that the operation needs, so that a client asks its issuer once.
    pub fn require_scope(&self, scope: Scope) -> Result<(), McpError> {
        if self.has_scope(scope) {
            return Ok(());
        }
        let needed = match scope {
            Scope::ToolsPropose => AGENT_SCOPES,
            Scope::ToolsRead | Scope::ChangesDecide | Scope::Admin => scope.as_str(),
        };
        let text = format!("the token does not permit this; it needs the scope {needed}");
        Err(McpError::new(ErrorKind::Forbidden, text).with("scope", needed))
    }

    /// Returns the name of the person who has one vote: the owner, or else the principal's own name.
    pub fn person_name(&self) -> &str {
        self.owner.as_deref().unwrap_or(&self.name)
    }

    /// Returns the shared principal of agents without a key in `auth.mode: local`.
    pub fn local_agent() -> Self {
        Self::new("local-agent", Role::Agent)
    }
}

/// A permission that an access token grants at this gateway.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
    ToSchema,
)]
pub enum Scope {
    /// Lists and reads, and calls the tools that need no review.
    #[serde(rename = "tools:read")]
    #[strum(serialize = "tools:read")]
    ToolsRead,
    /// Proposes changes, in addition to `tools:read`.
    #[serde(rename = "tools:propose")]
    #[strum(serialize = "tools:propose")]
    ToolsPropose,
    /// Sees all changes and decides on them.
    #[serde(rename = "changes:decide")]
    #[strum(serialize = "changes:decide")]
    ChangesDecide,
    /// Has all permissions.
    #[serde(rename = "admin")]
    #[strum(serialize = "admin")]
    Admin,
}

impl Scope {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// Returns `true` if this scope grants everything that `other` grants.
    pub const fn includes(self, other: Self) -> bool {
        self as u8 == other as u8 || matches!((self, other), (Self::Admin, _) | (Self::ToolsPropose, Self::ToolsRead))
    }
}

/// The statements of an identity provider about a principal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claims {
    /// The name for people. It may change, and two people may have the same one, so that nothing is decided by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The scopes of a token; `None` if the role comes from a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Scope>>,
    /// The groups of the configured claim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Names of the person by other claims than `sub`, which may differ between clients: `ISSUER#ID`. A match with them
    /// forbids a decision, and grants nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_names: Vec<String>,
    /// The time at which the person authenticated for the presented token or sign-in, in Unix seconds, if the provider states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_time: Option<i64>,
    /// The kind of that authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acr: Option<String>,
    /// All claims as the JSON text of an object, for the conditions of rules.
    pub json: String,
}

/// The rights that an access token gave to a reviewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenRights {
    pub role: Role,
    /// The groups that its claims listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

impl TokenRights {
    /// Returns the rights of a principal that an access token authenticated.
    pub fn from_principal(principal: &Principal) -> Option<Self> {
        let claims = principal.claims.as_ref().filter(|_| principal.key_id.is_none())?;
        Some(Self { role: principal.role, groups: claims.groups.clone() })
    }

    /// Returns the claims on which the rights depend.
    pub fn claims(&self) -> Claims {
        Claims { groups: self.groups.clone(), ..Claims::default() }
    }
}

/// Returns the name of a person at an identity provider: `ISSUER#SUBJECT`. It equals no name of a key, an owner or another
/// subject, because it contains `://` and everything but visible ASCII is escaped.
pub fn subject_name(issuer: &str, subject: &str) -> String {
    format!("{issuer}#{}", escape_part(subject))
}

/// Returns the id by which decisions name the person of that name, in place of a key.
pub fn person_key_id(name: &str) -> String {
    format!("person:{name}")
}

/// Returns the name under which a client acts for a person: `ISSUER#SUBJECT#CLIENT`.
pub fn subject_client_name(issuer: &str, subject: &str, client: &str) -> String {
    format!("{}#{}", subject_name(issuer, subject), escape_part(client))
}

/// Returns `true` for the name of a subject of an identity provider. Such names are compared exactly.
pub fn is_subject_name(name: &str) -> bool {
    name.contains("://")
}

/// Returns `true` for the name of a subject of this issuer, with or without a client.
pub fn is_subject_of(name: &str, issuer: &str) -> bool {
    name.strip_prefix(issuer).is_some_and(|rest| rest.starts_with('#'))
}

/// The characters that are escaped in a part of a name, besides those that are not ASCII.
const ESCAPED_CHARS: &AsciiSet = &CONTROLS.add(b' ').add(b'#').add(b'%');

fn escape_part(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED_CHARS).to_string()
}

/// The SHA-256 of a secret, stored in place of the secret.
pub type SecretHash = [u8; 32];

/// The SHA-256 of the public key of a token issuer, which identifies it.
pub type KeyThumbprint = [u8; 32];

/// The credential that authenticated a principal, kept to check later whether it is still valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A connection without a key from loopback or from a socket of the same user, in `auth.mode: local`.
    Loopback,
    /// The key with that hash.
    Key(SecretHash),
    /// The dashboard sign-in whose secret has that hash.
    SignIn(SecretHash),
    Token(Arc<TokenCredential>),
}

/// A verified access token, without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenCredential {
    pub hash: SecretHash,
    pub issuer: String,
    /// The version of the issuer's configuration under which the token was accepted.
    pub issuer_version: u64,
    /// The thumbprint of the issuer's key that signed the token; `None` if the issuer was asked about it (introspection).
    pub signed_by: Option<KeyThumbprint>,
    /// The time from which the token is no longer valid, in Unix seconds.
    pub expires_at: i64,
}

/// An authenticated principal with its credential.
#[derive(Clone, Debug)]
pub struct Identity {
    pub principal: Arc<Principal>,
    pub credential: Credential,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_include_narrower_ones() {
        use Scope::{Admin, ChangesDecide, ToolsPropose, ToolsRead};
        let granted = |held: &[Scope]| {
            let claims = Claims { scopes: Some(held.to_vec()), ..Claims::default() };
            let principal = Principal { claims: Some(Arc::new(claims)), ..Principal::local_agent() };
            Scope::VARIANTS.iter().copied().filter(|scope| principal.has_scope(*scope)).collect::<Vec<_>>()
        };
        assert_eq!(granted(&[]), []);
        assert_eq!(granted(&[ToolsRead]), [ToolsRead]);
        assert_eq!(granted(&[ToolsPropose]), [ToolsRead, ToolsPropose]);
        assert_eq!(granted(&[ChangesDecide]), [ChangesDecide]);
        assert_eq!(granted(&[Admin]), Scope::VARIANTS);
        assert!(Scope::VARIANTS.iter().all(|scope| Principal::local_agent().has_scope(*scope)));
        assert!(Scope::VARIANTS.iter().all(|scope| Scope::parse(scope.as_str()) == Some(*scope)));
    }

    #[test]
    fn refusal_names_all_scopes_of_the_operation() {
        let key = Principal::local_agent();
        let token = |scopes: &[Scope]| {
            let claims = Claims { scopes: Some(scopes.to_vec()), ..Claims::default() };
            Principal { claims: Some(Arc::new(claims)), ..key.clone() }
        };
        for scope in [Scope::ToolsRead, Scope::ToolsPropose, Scope::ChangesDecide, Scope::Admin] {
            key.require_scope(scope).unwrap();
            token(&[Scope::Admin]).require_scope(scope).unwrap();
        }
        for (held, scope, needed) in [
            (&[][..], Scope::ToolsRead, "tools:read"),
            (&[Scope::ToolsRead], Scope::ToolsPropose, "tools:read tools:propose"),
            (&[Scope::ToolsPropose], Scope::ChangesDecide, "changes:decide"),
            (&[Scope::ChangesDecide], Scope::ToolsRead, "tools:read"),
        ] {
            let error = token(held).require_scope(scope).unwrap_err();
            assert_eq!((error.kind, error.data["scope"].as_str()), (ErrorKind::Forbidden, Some(needed)));
            let challenge = format!(r#"Bearer error="insufficient_scope", scope="{needed}""#);
            assert_eq!(error.challenge().as_deref(), Some(challenge.as_str()));
        }
    }

    #[test]
    fn subject_names_are_unambiguous() {
        let issuer = "https://id.example";
        assert_eq!(subject_client_name(issuer, "a b", "c"), "https://id.example#a%20b#c");
        let names = [
            subject_name(issuer, "a"),
            subject_name(issuer, "a#b"),
            subject_client_name(issuer, "a", "b"),
            subject_name(issuer, "A"),
            subject_name(issuer, "a%23b"),
            subject_name(issuer, "\u{430}"),
        ];
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        assert!(names.iter().all(|name| is_subject_name(name) && name.is_ascii()));
    }

    #[test]
    fn visible_ascii_of_subject_names_is_kept_and_all_else_escaped() {
        let issuer = "https://id.example";
        // Names are identities and are stored, so the form of each character must stay.
        let escape_byte = |byte: u8| match byte {
            b'!'..=b'~' if !matches!(byte, b'#' | b'%') => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        };
        for char in ('\0'..='\u{800}').chain(['\u{2028}', '\u{feff}', '\u{10ffff}']) {
            let subject = format!("a{char}%{char}Z");
            let escaped: String = subject.bytes().map(escape_byte).collect();
            assert_eq!(subject_name(issuer, &subject), format!("{issuer}#{escaped}"), "{char:?}");
            assert_eq!(subject_client_name(issuer, "s", &subject), format!("{issuer}#s#{escaped}"), "{char:?}");
        }
        for (subject, escaped) in [
            ("\0\t\n\u{1f} \u{7f}", "%00%09%0A%1F%20%7F"),
            ("a#b%c%2f", "a%23b%25c%252f"),
            ("/:@?&=+~\"<>\\^`{|}!", "/:@?&=+~\"<>\\^`{|}!"),
            ("\u{80}\u{e9}\u{7ff}\u{800}", "%C2%80%C3%A9%DF%BF%E0%A0%80"),
            ("", ""),
        ] {
            assert_eq!(escape_part(subject), escaped, "{subject:?}");
        }
    }
}

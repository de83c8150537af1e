//! Defines the format of API keys, their creation, and the interface to look them up.
//!
//! A key is shown once, when it is created. Only its SHA-256 is stored.

use jiff::Timestamp;

use countersign_domain::{
    changes::{
        machine::{GATEWAY, OPERATOR, SYSTEM, TERMINAL},
        person::names_match,
        visible::escape_hidden,
    },
    principal::{Principal, Role, SecretHash, is_subject_name, subject_name},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::secret;
use countersign_store::keys::ApiKey;

/// The prefix of every key, by which scanners for leaked secrets recognize it.
pub const KEY_PREFIX: &str = "csk_";
/// The agent that proposes the test change of the dashboard. Only the gateway acts as it.
pub const TEST_AGENT: &str = "countersign-test-agent";
/// Names that keys, owners and reviewers must not have, because they denote the gateway itself in proposals, decisions and
/// the audit trail.
pub const RESERVED_NAMES: [&str; 6] = ["local-agent", TEST_AGENT, SYSTEM, GATEWAY, OPERATOR, TERMINAL];

/// The maximum number of names of a key's creators. If a key created it, they include the creators of that key.
const MAX_CREATOR_NAMES: usize = 32;

/// A newly created key.
pub struct NewKey {
    /// The key to store with `hash` ([`countersign_store::keys::Credentials::insert`]).
    pub key: ApiKey,
    pub hash: SecretHash,
    /// The secret: `csk_` and 43 characters. It is shown once and never stored.
    pub secret: String,
}

/// The store of keys. A look-up must return what other processes have just committed, and must not wait for a writer.
pub trait KeyStore: Send + Sync + 'static {
    /// Returns the key with this hash, revoked or not, and the stored hash.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` if it could not be read; the request is then refused.
    fn find_key(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, McpError>;

    /// Returns `true` if a person of an identity provider was revoked, so that their access tokens are refused.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` if that cannot be determined.
    fn is_person_revoked(&self, name: &str) -> Result<bool, McpError>;
}

/// Creates a key without storing it.
///
/// # Errors
/// `INVALID_PARAMS` for a name that [`check_name`] rejects; `INTERNAL_ERROR` if there is no source of
/// randomness.
pub fn create(name: &str, role: Role, now: Timestamp) -> Result<NewKey, McpError> {
    check_name(name)?;
    let secret = secret::generate(KEY_PREFIX)?;
    let hash = secret::hash(secret.as_bytes());
    let id = format!("key_{}", nanoid::nanoid!(12, &nanoid::alphabet::SAFE[2..]));
    let key = ApiKey {
        id,
        name: name.to_owned(),
        role,
        owner: None,
        created_by: Vec::new(),
        created_at: now,
        last_used_at: None,
        revoked_at: None,
    };
    Ok(NewKey { key, hash, secret })
}

impl NewKey {
    /// Sets the owner, unless it equals the name of the key.
    ///
    /// # Errors
    /// `INVALID_PARAMS` for an owner that [`check_owner`] rejects.
    pub fn owned_by(mut self, owner: Option<&str>) -> Result<Self, McpError> {
        if let Some(owner) = owner {
            check_owner(owner)?;
        }
        self.key.owner = owner.filter(|owner| *owner != self.key.name).map(str::to_owned);
        Ok(self)
    }

    /// Sets the creator, by all names of the principal.
    ///
    /// # Errors
    /// `INVALID_PARAMS` if these are more than `MAX_CREATOR_NAMES`.
    pub fn created_by(mut self, principal: &Principal) -> Result<Self, McpError> {
        self.key.created_by = principal.all_names();
        if self.key.created_by.len() > MAX_CREATOR_NAMES {
            return Err(McpError::new(
                ErrorKind::InvalidParams,
                "too many people created keys for one another; create this one with `countersign keys create`",
            ));
        }
        Ok(self)
    }

    /// Sets the owner to a person at an identity provider.
    ///
    /// # Errors
    /// `INVALID_PARAMS` for an issuer that is not a URL, or an empty subject.
    pub fn owned_by_subject(mut self, issuer: &str, subject: &str) -> Result<Self, McpError> {
        if !is_subject_name(issuer) || subject.is_empty() {
            return Err(McpError::new(
                ErrorKind::InvalidParams,
                "a person at an identity provider is named by the issuer's URL and the person's `sub`",
            ));
        }
        self.key.owner = Some(subject_name(issuer, subject));
        Ok(self)
    }
}

/// Checks an owner: 1 to 64 visible characters with single spaces between them, and none of [`RESERVED_NAMES`]. Case is
/// significant.
///
/// # Errors
/// `INVALID_PARAMS` with the reason.
pub fn check_owner(owner: &str) -> Result<(), McpError> {
    let refuse = |reason: &str| Err(McpError::new(ErrorKind::InvalidParams, reason.to_owned()));
    if !(1..=64).contains(&owner.chars().count()) {
        return refuse("an owner must have 1 to 64 characters");
    }
    if is_subject_name(owner) {
        return refuse("an owner must not contain ://; a person at an identity provider is named by --subject");
    }
    let has_extra_spaces = owner.starts_with(' ') || owner.ends_with(' ') || owner.contains("  ");
    let is_visible = owner.chars().all(|c| c == ' ' || !c.is_whitespace()) && *escape_hidden(owner) == *owner;
    if has_extra_spaces || !is_visible {
        return refuse("an owner may contain only visible characters, with single spaces between them");
    }
    if let Some(reserved) = find_reserved_name(owner) {
        return refuse(&format!("the gateway itself is called {reserved:?} in the audit trail; choose another owner"));
    }
    Ok(())
}

/// Returns the reserved name that counts as the same name.
fn find_reserved_name(name: &str) -> Option<&'static str> {
    RESERVED_NAMES.into_iter().find(|reserved| names_match(name, reserved))
}

/// Checks a name: 1 to 64 ASCII letters, digits, `.`, `_`, `-`, `@` or `+`, and none of [`RESERVED_NAMES`].
///
/// Names appear in the audit trail, in logs and on the dashboard, so other scripts, invisible characters and markup are
/// rejected.
///
/// # Errors
/// `INVALID_PARAMS` with the reason.
pub fn check_name(name: &str) -> Result<(), McpError> {
    let refuse = |reason: String| Err(McpError::new(ErrorKind::InvalidParams, reason));
    if name.is_empty() || name.len() > 64 {
        return refuse("a name must have 1 to 64 characters".into());
    }
    if let Some(c) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-@+".contains(*c))) {
        let c = c.escape_default();
        return refuse(format!("a name may contain only ASCII letters, digits and . _ - @ +, not \"{c}\""));
    }
    if let Some(reserved) = find_reserved_name(name) {
        return refuse(format!("the gateway itself is called {reserved:?} in the audit trail; choose another name"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn created_key_matches_its_hash() {
        let new = create("ci", Role::Agent, Timestamp::UNIX_EPOCH).unwrap();
        assert!(secret::is_well_formed(KEY_PREFIX, &new.secret));
        assert_eq!(new.hash, secret::hash(new.secret.as_bytes()));
        // `countersign keys revoke` would read an id with a leading hyphen as an option.
        assert!(new.key.id.strip_prefix("key_").unwrap().bytes().all(|b| b.is_ascii_alphanumeric()), "{}", new.key.id);
        let id = new.key.id.clone();
        let principal = new.key.principal();
        assert_eq!((principal.name.as_str(), principal.role, principal.key_id), ("ci", Role::Agent, Some(id)));
    }

    #[test]
    fn key_may_have_owner_with_other_name() {
        let key = |owner| create("laptop", Role::Agent, Timestamp::UNIX_EPOCH).unwrap().owned_by(owner);
        let owner = |owner| key(owner).unwrap().key.principal();
        assert_eq!(owner(Some("Alice Ärmel")).person_name(), "Alice Ärmel");
        assert_eq!((owner(None).owner, owner(None).person_name()), (None, "laptop"));
        assert_eq!(owner(Some("laptop")).owner, None);
        let of_subject = key(None).unwrap().owned_by_subject("https://id.example", "a b").unwrap();
        assert_eq!(of_subject.key.owner.as_deref(), Some("https://id.example#a%20b"));
        assert!(key(None).unwrap().owned_by_subject("alice", "a").is_err());
        for bad in [
            "",
            " ",
            " a",
            "a ",
            "a  b",
            "a\tb",
            "a\u{202e}b",
            "a\u{200b}",
            "a\u{a0}b",
            "\u{7}",
            "System",
            "ｇateway",
            "operator",
            "Terminal",
            "https://id.example#a",
            &"x".repeat(65),
        ] {
            assert_eq!(key(Some(bad)).err().unwrap().kind, ErrorKind::InvalidParams, "{bad:?}");
        }
    }

    #[test]
    fn ambiguous_names_are_refused() {
        for good in ["alice", "a", "ci-bot_2", "alice@example.com", &"x".repeat(64)] {
            check_name(good).unwrap();
        }
        for bad in [
            "",
            "local-agent",
            "Local-Agent",
            "system",
            "gateway",
            "Operator",
            "terminal",
            "a b",
            "a\u{202e}b",
            "al\u{0}",
            "ä",
            "a/b",
            "<b>",
        ] {
            assert_eq!(check_name(bad).unwrap_err().kind, ErrorKind::InvalidParams, "{bad:?}");
        }
        check_name(&"x".repeat(65)).unwrap_err();
        let error = check_name("ä").unwrap_err();
        assert!(error.message.contains("only ASCII letters"), "{}", error.message);
        assert!(error.message.ends_with(r#"not "\u{e4}""#), "{}", error.message);
    }
}

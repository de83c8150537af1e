//! API keys: what they look like, how they are made, and what the store must offer to look one up.
//!
//! A key is shown once, when it is made; only its SHA-256 is kept.

use jiff::Timestamp;

use super::secret;
use countersign_domain::{
    changes::{
        machine::{GATEWAY, OPERATOR, SYSTEM, TERMINAL},
        people::same_name,
        visible::visible,
    },
    principal::{Principal, Role, SecretHash},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_store::keys::ApiKey;

/// Every key begins with this, so that scanners for leaked secrets can find it.
pub const PREFIX: &str = "csk_";
/// Names that keys, their owners and reviewers must not have: the gateway itself uses them in decisions and in its trail.
pub const RESERVED_NAMES: [&str; 5] = ["local-agent", SYSTEM, GATEWAY, OPERATOR, TERMINAL];

/// A key that was just made.
pub struct NewKey {
    /// For [`countersign_store::keys::Credentials::insert`], with `hash`.
    pub key: ApiKey,
    pub hash: SecretHash,
    /// Shown once and nowhere kept: `csk_` and 43 characters.
    pub secret: String,
}

/// A stored key with the hash it is stored under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredKey {
    pub key: ApiKey,
    pub hash: SecretHash,
}

impl StoredKey {
    /// Who presents this key.
    #[must_use]
    pub fn principal(&self) -> Principal {
        Principal {
            name: self.key.name.clone(),
            role: self.key.role,
            key_id: Some(self.key.id.clone()),
            owner: self.key.owner.clone(),
        }
    }
}

/// Where keys are looked up. The call must see what another process has committed a moment ago,
/// and must not wait for a writer.
pub trait KeyStore: Send + Sync + 'static {
    /// The key with that hash, revoked or not.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` where it could not be read; the request is then refused.
    fn find_key(&self, hash: &SecretHash) -> Result<Option<StoredKey>, McpError>;
}

/// Makes a key. Nothing is stored yet.
///
/// # Errors
/// `INVALID_PARAMS` for a name that [`check_name`] refuses; `INTERNAL_ERROR` without randomness.
pub fn create(name: &str, role: Role, now: Timestamp) -> Result<NewKey, McpError> {
    check_name(name)?;
    let secret = secret::generate(PREFIX)?;
    let hash = secret::hash(secret.as_bytes());
    let id = format!("key_{}", nanoid::nanoid!(12, &nanoid::alphabet::SAFE[2..]));
    let key =
        ApiKey { id, name: name.to_owned(), role, owner: None, created_at: now, last_used_at: None, revoked_at: None };
    Ok(NewKey { key, hash, secret })
}

impl NewKey {
    /// A key of that owner, which is the one of its name where the two are the same.
    ///
    /// # Errors
    /// `INVALID_PARAMS` for an owner that [`check_owner`] refuses.
    pub fn owned_by(mut self, owner: Option<&str>) -> Result<Self, McpError> {
        if let Some(owner) = owner {
            check_owner(owner)?;
        }
        self.key.owner = owner.filter(|owner| *owner != self.key.name).map(str::to_owned);
        Ok(self)
    }
}

/// Owners are 1 to 64 characters that can be seen, with single spaces within, and none of [`RESERVED_NAMES`]. Case
/// counts.
///
/// # Errors
/// `INVALID_PARAMS` that says what is wrong.
pub fn check_owner(owner: &str) -> Result<(), McpError> {
    let refuse = |why: &str| Err(McpError::new(ErrorKind::InvalidParams, why.to_owned()));
    if !(1..=64).contains(&owner.chars().count()) {
        return refuse("an owner must have 1 to 64 characters");
    }
    let spaced = owner.starts_with(' ') || owner.ends_with(' ') || owner.contains("  ");
    let visible = owner.chars().all(|c| c == ' ' || !c.is_whitespace()) && *visible(owner) == *owner;
    if spaced || !visible {
        return refuse("an owner may contain only visible characters, with single spaces between them");
    }
    if let Some(reserved) = reserved(owner) {
        return refuse(&format!("the gateway itself is called {reserved:?} in the audit trail; choose another owner"));
    }
    Ok(())
}

/// The reserved name that this is another spelling of.
fn reserved(name: &str) -> Option<&'static str> {
    RESERVED_NAMES.into_iter().find(|reserved| same_name(name, reserved))
}

/// Names are 1 to 64 letters, digits, `.`, `_`, `-`, `@` or `+`, and none of [`RESERVED_NAMES`].
///
/// They stand in the audit trail, in logs and on the dashboard, so nothing in them may look like something else.
///
/// # Errors
/// `INVALID_PARAMS` that says what is wrong.
pub fn check_name(name: &str) -> Result<(), McpError> {
    let refuse = |why: String| Err(McpError::new(ErrorKind::InvalidParams, why));
    if name.is_empty() || name.len() > 64 {
        return refuse("a name must have 1 to 64 characters".into());
    }
    if let Some(c) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-@+".contains(*c))) {
        return refuse(format!(
            "a name may contain only letters, digits and . _ - @ +, not {:?}",
            c.escape_default().to_string()
        ));
    }
    if let Some(reserved) = reserved(name) {
        return refuse(format!("the gateway itself is called {reserved:?} in the audit trail; choose another name"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_known_by_its_hash() {
        let new = create("ci", Role::Agent, Timestamp::UNIX_EPOCH).unwrap();
        assert!(secret::well_formed(PREFIX, &new.secret));
        assert_eq!(new.hash, secret::hash(new.secret.as_bytes()));
        // An id that begins with a hyphen would be an option to `countersign keys revoke`.
        assert!(new.key.id.strip_prefix("key_").unwrap().bytes().all(|b| b.is_ascii_alphanumeric()), "{}", new.key.id);
        let id = new.key.id.clone();
        let principal = StoredKey { key: new.key, hash: new.hash }.principal();
        assert_eq!((principal.name.as_str(), principal.role, principal.key_id), ("ci", Role::Agent, Some(id)));
    }

    #[test]
    fn a_key_may_belong_to_somebody_whose_name_it_does_not_bear() {
        let key = |owner| create("laptop", Role::Agent, Timestamp::UNIX_EPOCH).unwrap().owned_by(owner);
        let owner = |owner| {
            let NewKey { key, hash, .. } = key(owner).unwrap();
            StoredKey { key, hash }.principal()
        };
        assert_eq!(owner(Some("Alice Ärmel")).owner(), "Alice Ärmel");
        assert_eq!((owner(None).owner, owner(None).owner()), (None, "laptop"));
        assert_eq!(owner(Some("laptop")).owner, None);
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
            &"x".repeat(65),
        ] {
            assert_eq!(key(Some(bad)).err().unwrap().kind, ErrorKind::InvalidParams, "{bad:?}");
        }
    }

    #[test]
    fn names_that_could_pass_for_another_are_refused() {
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
    }
}

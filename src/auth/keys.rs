//! API keys: what they look like, how they are made, and what the store must offer to look one up.
//!
//! A key is shown once, when it is made; only its SHA-256 is kept.

use jiff::Timestamp;
use serde::Serialize;

use super::{
    Principal, Role,
    secret::{self, SecretHash},
};
use crate::protocol::{ErrorKind, McpError};

/// Every key begins with this, so that scanners for leaked secrets can find it.
pub const PREFIX: &str = "csk_";
/// Names that keys and reviewers must not have: they stand for someone else in decisions and the audit trail.
pub const RESERVED_NAMES: [&str; 3] = ["local-agent", "system", "gateway"];

/// A stored key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyRecord {
    /// `key_` and 12 characters; names the key in listings, events and `keys revoke`.
    pub id: String,
    /// The principal's name.
    pub name: String,
    pub role: Role,
    #[serde(skip)]
    pub hash: SecretHash,
    pub created_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

impl KeyRecord {
    /// Who presents this key.
    #[must_use]
    pub fn principal(&self) -> Principal {
        Principal { name: self.name.clone(), role: self.role, key_id: Some(self.id.clone()) }
    }
}

/// Where keys are looked up. The call must see what another process has committed a moment ago,
/// and must not wait for a writer.
pub trait KeyStore: Send + Sync + 'static {
    /// The key with that hash, revoked or not.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` where it could not be read; the request is then refused.
    fn find_key(&self, hash: &SecretHash) -> Result<Option<KeyRecord>, McpError>;
}

/// A new key and the secret that is shown once.
///
/// # Errors
/// `INVALID_PARAMS` for a name that [`check_name`] refuses; `INTERNAL_ERROR` without randomness.
pub fn create(name: &str, role: Role, now: Timestamp) -> Result<(KeyRecord, String), McpError> {
    check_name(name)?;
    let secret = secret::generate(PREFIX)?;
    let hash = secret::hash(secret.as_bytes());
    let id = format!("key_{}", nanoid::nanoid!(12));
    Ok((KeyRecord { id, name: name.to_owned(), role, hash, created_at: now, revoked_at: None }, secret))
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
        return refuse("a name has 1 to 64 characters".into());
    }
    if let Some(c) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-@+".contains(*c))) {
        return refuse(format!(
            "a name has only letters, digits and . _ - @ +, not {:?}",
            c.escape_default().to_string()
        ));
    }
    if RESERVED_NAMES.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return refuse(format!("the name {name:?} is taken by the gateway itself"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_stored_as_its_hash_only() {
        let (record, secret) = create("ci", Role::Agent, Timestamp::UNIX_EPOCH).unwrap();
        assert!(secret::well_formed(PREFIX, &secret));
        assert_eq!(record.hash, secret::hash(secret.as_bytes()));
        let shown = serde_json::to_string(&record).unwrap();
        assert!(!shown.contains(&secret) && !shown.contains("hash"), "{shown}");
        assert_eq!(record.principal().key_id.as_deref(), Some(record.id.as_str()));
    }

    #[test]
    fn names_that_could_pass_for_another_are_refused() {
        for good in ["alice", "a", "ci-bot_2", "alice@example.com", &"x".repeat(64)] {
            check_name(good).unwrap();
        }
        for bad in
            ["", "local-agent", "Local-Agent", "system", "gateway", "a b", "a\u{202e}b", "al\u{0}", "ä", "a/b", "<b>"]
        {
            assert_eq!(check_name(bad).unwrap_err().kind, ErrorKind::InvalidParams, "{bad:?}");
        }
        check_name(&"x".repeat(65)).unwrap_err();
    }
}

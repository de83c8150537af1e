//! API keys and one-time sign-in codes, stored as hashes only.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    StoreError,
    people::{Holders, People, ProviderSession},
};
use countersign_domain::{
    changes::machine::TERMINAL,
    principal::{Principal, Role, SecretHash},
};

/// A stored key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    pub id: String,
    /// The principal's name.
    pub name: String,
    pub role: Role,
    /// The owner, if the owner differs from the name.
    pub owner: Option<String>,
    /// The names of the person who created the key, and of those who created that person's key. Empty if it was created at the
    /// machine.
    pub created_by: Vec<String>,
    pub created_at: Timestamp,
    /// The last use, to the minute (see [`Credentials::touch`]).
    pub last_used_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

impl ApiKey {
    /// Returns the principal who presents this key.
    pub fn principal(&self) -> Principal {
        Principal {
            name: self.name.clone(),
            role: self.role,
            key_id: Some(self.id.clone()),
            owner: self.owner.clone(),
            claims: None,
            key_creators: if self.role.may_decide() { self.created_by.clone() } else { Vec::new() },
        }
    }
}

/// A stored sign-in of a browser, without its secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignIn {
    /// The hash of the page's secret.
    pub id: SecretHash,
    /// The hash of the browser's cookie, which its tabs share.
    pub cookie: SecretHash,
    pub principal: Arc<Principal>,
    /// The hash of the key that was used to sign in, if any.
    pub key: Option<SecretHash>,
    /// The last use, accurate to a few minutes.
    pub last_used: Timestamp,
    /// The session at the identity provider, if the person signed in there. Their role and claims are those of the stored
    /// person.
    pub session: Option<ProviderSession>,
    /// The time at which the identity provider was last asked about the person, if the gateway can ask it.
    pub refreshed_at: Option<Timestamp>,
}

/// A stored sign-in code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCode {
    /// The session at the identity provider; `None` if the code signs in the local reviewer.
    pub session: Option<ProviderSession>,
    pub expires_at: Timestamp,
    pub is_used: bool,
}

/// The outcome of an attempt to use a sign-in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeOutcome {
    /// The code was valid, and is used up now.
    Accepted,
    Unknown,
    Expired,
    AlreadyUsed,
}

/// API keys, sign-ins and sign-in codes. The gateway and command-line processes may use them at the same time, each
/// through its own instance.
pub trait Credentials: People {
    /// Stores a key that was created directly in the store.
    ///
    /// # Errors
    /// The errors of [`Credentials::insert_by`].
    fn insert(&self, key: &ApiKey, hash: &SecretHash) -> Result<(), StoreError> {
        self.insert_by(key, hash, TERMINAL)
    }

    /// Stores a key. `actor` is its creator in the audit trail.
    ///
    /// # Errors
    /// Those of the database, also if the id or the hash already exists.
    fn insert_by(&self, key: &ApiKey, hash: &SecretHash, actor: &str) -> Result<(), StoreError>;

    /// Returns all keys, including revoked ones, oldest first.
    ///
    /// # Errors
    /// Those of the database.
    fn list(&self) -> Result<Vec<ApiKey>, StoreError>;

    /// Returns the holders of all keys that are not revoked, and the people with a role. They may come from a copy that lacks
    /// what another process has just stored.
    ///
    /// # Errors
    /// Those of the database.
    fn holders(&self) -> Result<Holders, StoreError>;

    /// Returns the same holders as they are in the database now.
    ///
    /// # Errors
    /// Those of the database.
    fn newest_holders(&self) -> Result<Holders, StoreError>;

    /// Returns the key with the given hash, even if it was revoked (see `revoked_at`), and the stored hash for a
    /// comparison in constant time. Every request calls this method, so it must take only microseconds.
    ///
    /// # Errors
    /// Those of the database.
    fn find(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError>;

    /// Revokes a key directly in the store.
    ///
    /// # Errors
    /// The errors of [`Credentials::revoke_by`].
    fn revoke(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        self.revoke_by(id, now, TERMINAL)
    }

    /// Revokes the key with the given id, and ends the absence that it set. With the last key of an owner, their accounts at
    /// servers are removed, and the absences end in which they are the deputy. Returns `false` if the key does not exist or was
    /// already revoked. `actor` revokes it in the audit trail.
    ///
    /// # Errors
    /// Those of the database.
    fn revoke_by(&self, id: &str, now: Timestamp, actor: &str) -> Result<bool, StoreError>;

    /// Records a use of the key, at most once a minute for each key, because it is a durable write.
    ///
    /// # Errors
    /// Those of the database.
    fn touch(&self, key: &ApiKey, now: Timestamp) -> Result<(), StoreError>;

    /// Stores a one-time code, and deletes codes that expired more than a day ago. A code with a session signs in its person.
    ///
    /// # Errors
    /// Those of the database.
    fn put_code(
        &self,
        hash: &SecretHash,
        session: Option<&ProviderSession>,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<(), StoreError>;

    /// Returns a code, also one that was used or has expired.
    ///
    /// # Errors
    /// Those of the database.
    fn code(&self, hash: &SecretHash) -> Result<Option<StoredCode>, StoreError>;

    /// Returns the sessions of the codes that can still be used, with the hashes of the codes.
    ///
    /// # Errors
    /// Those of the database.
    fn code_sessions(&self, now: Timestamp) -> Result<Vec<(SecretHash, ProviderSession)>, StoreError>;

    /// Stores a sign-in and deletes the sign-ins in `ended`, in one transaction.
    ///
    /// # Errors
    /// Those of the database.
    fn put_sign_in(&self, sign_in: &SignIn, ended: &[SecretHash]) -> Result<(), StoreError>;

    /// Returns the sign-in with the given id. It may come from a copy that lacks what another process has just stored.
    ///
    /// # Errors
    /// Those of the database.
    fn sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, StoreError>;

    /// Returns all sign-ins, including those that have not been used for a long time.
    ///
    /// # Errors
    /// Those of the database.
    fn sign_ins(&self) -> Result<Vec<SignIn>, StoreError>;

    /// Records a use of a sign-in, if it exists. This is a durable write, so callers must not make it for every
    /// request.
    ///
    /// # Errors
    /// Those of the database.
    fn use_sign_in(&self, id: &SecretHash, at: Timestamp) -> Result<(), StoreError>;

    /// Deletes the given sign-ins.
    ///
    /// # Errors
    /// Those of the database.
    fn forget_sign_ins(&self, ended: &[SecretHash]) -> Result<(), StoreError>;

    /// Uses up a code. Exactly one caller gets [`CodeOutcome::Accepted`], even among several processes.
    ///
    /// # Errors
    /// Those of the database. If the outcome of the commit is unknown, the code may be used up, but nobody else gets
    /// it.
    fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError>;

    /// Returns the fingerprint of the key that encrypts stored tokens, after recording `new` if none is recorded.
    ///
    /// # Errors
    /// Those of the database.
    fn ensure_token_key(&self, new: &str) -> Result<String, StoreError>;

    /// Records the fingerprint of another key that encrypts stored tokens.
    ///
    /// # Errors
    /// Those of the database.
    fn replace_token_key(&self, new: &str) -> Result<(), StoreError>;
}

/// Returns `true` if a use of the key should be recorded now ([`Credentials::touch`]).
pub fn is_touch_due(key: &ApiKey, now: Timestamp) -> bool {
    key.last_used_at.is_none_or(|at| now.duration_since(at).abs() >= SignedDuration::from_mins(1))
}

pub(crate) fn parse_role(name: &str) -> Result<Role, StoreError> {
    Role::parse(name).ok_or_else(|| StoreError::BadRecord(format!("unknown role {name:?} of a key")))
}

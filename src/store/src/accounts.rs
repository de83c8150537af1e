//! Stores the accounts at servers that require OAuth, and the gateway's registrations at authorization servers. Callers seal all
//! secrets first.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::StoreError;
use countersign_domain::account_holder::AccountHolder;

/// Names an account by the configured name of its server and its holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AccountKey {
    pub server: String,
    pub holder: AccountHolder,
}

/// An account at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAccount {
    pub key: AccountKey,
    /// The fingerprint of the server's addresses. The tokens are used for no other server.
    pub target: String,
    /// The authorization server that issued the tokens.
    pub issuer: String,
    /// The tokens and the data with which they are refreshed, sealed.
    pub sealed: String,
    /// Incremented whenever the tokens change. A connection after a removal begins with a random version, which no older one
    /// equals.
    pub version: i64,
    /// Set while a node refreshes the tokens. If it stays set, the answer of the authorization server was lost, and with it the
    /// refresh token.
    pub refreshing_since: Option<Timestamp>,
    pub connected_at: Timestamp,
}

/// Accounts and registrations. Several nodes may use them at the same time.
pub trait AccountStore: Send + Sync + 'static {
    /// Returns an account.
    ///
    /// # Errors
    /// Those of the database.
    fn account(&self, key: &AccountKey) -> Result<Option<StoredAccount>, StoreError>;

    /// Returns all accounts, the oldest connection first.
    ///
    /// # Errors
    /// Those of the database.
    fn accounts(&self) -> Result<Vec<StoredAccount>, StoreError>;

    /// Stores the tokens of a new connection in place of those of an earlier one, with a higher version. `version` and
    /// `refreshing_since` of the argument are ignored. Returns the new version.
    ///
    /// # Errors
    /// Those of the database.
    fn connect_account(&self, account: &StoredAccount) -> Result<i64, StoreError>;

    /// Marks the tokens as being refreshed, durably, before the refresh token is sent. Returns `false` if another node
    /// refreshes them, or if the account has another version or was removed.
    ///
    /// # Errors
    /// Those of the database.
    fn begin_refresh(&self, key: &AccountKey, version: i64, now: Timestamp) -> Result<bool, StoreError>;

    /// Stores the refreshed tokens, with a higher version. Returns `false` if the account has another version or was removed.
    ///
    /// # Errors
    /// Those of the database.
    fn finish_refresh(&self, key: &AccountKey, version: i64, sealed: &str) -> Result<bool, StoreError>;

    /// Takes back the mark of [`Self::begin_refresh`], because the refresh token was certainly not used.
    ///
    /// # Errors
    /// Those of the database.
    fn cancel_refresh(&self, key: &AccountKey, version: i64) -> Result<(), StoreError>;

    /// Removes an account. Returns `false` if there was none.
    ///
    /// # Errors
    /// Those of the database.
    fn remove_account(&self, key: &AccountKey) -> Result<bool, StoreError>;

    /// Returns the gateway's registration at an authorization server, sealed.
    ///
    /// # Errors
    /// Those of the database.
    fn registration(&self, issuer: &str) -> Result<Option<String>, StoreError>;

    /// Stores the gateway's registration at an authorization server in place of an earlier one.
    ///
    /// # Errors
    /// Those of the database.
    fn put_registration(&self, issuer: &str, sealed: &str) -> Result<(), StoreError>;
}

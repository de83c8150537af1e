//! The row of one account in the store: reads it, keeps it for a while, and writes its tokens.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{
    client::OAuthClient, failure::store_unavailable, sealed_store::UnsealedAccount, server::AccountServer,
    tokens::Tokens,
};
use countersign_domain::account_holder::AccountHolder;
use countersign_store::accounts::AccountKey;
use countersign_upstream::credentials::AuthorizationError;

/// The age at which a row is read again, so that a change at another node takes effect.
const MAX_CACHE_AGE: Duration = Duration::from_secs(5);
/// The age up to which a row is used while the store is unavailable.
const MAX_STALE_AGE: Duration = Duration::from_secs(60);
/// The maximum number of attempts to store tokens, which would be lost otherwise.
const MAX_STORE_ATTEMPTS: u32 = 20;
/// The delay between two attempts to store tokens.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The row of one account in the store.
pub struct AccountRow {
    pub client: Arc<OAuthClient>,
    pub server: Arc<AccountServer>,
    key: AccountKey,
    /// `true` for an account of the kind that `oauth.as` excludes. Such accounts remain after it was changed.
    is_unused: bool,
    cache: Mutex<CachedAccount>,
    /// One task reads the row at a time.
    read_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct CachedAccount {
    account: Option<UnsealedAccount>,
    /// The time at which the row was read. `None` if it must be read again.
    read_at: Option<Instant>,
}

impl AccountRow {
    pub fn new(client: Arc<OAuthClient>, server: Arc<AccountServer>, holder: AccountHolder) -> Self {
        let is_unused = (holder == AccountHolder::Gateway) == server.oauth.is_personal();
        let (key, cache, read_lock) = (server.account_key(holder), Mutex::default(), tokio::sync::Mutex::default());
        Self { client, server, key, is_unused, cache, read_lock }
    }

    /// Returns the account as it was at most [`MAX_CACHE_AGE`] ago. While the store is unavailable, it may be
    /// [`MAX_STALE_AGE`] old.
    ///
    /// # Errors
    /// [`AuthorizationError::Unavailable`] if the store is unavailable for longer.
    pub async fn read_cached(&self) -> Result<Option<UnsealedAccount>, AuthorizationError> {
        if let Some(account) = self.cached_account() {
            return Ok(account);
        }
        let _guard = self.read_lock.lock().await;
        match self.cached_account() {
            Some(account) => Ok(account),
            None => self.read().await,
        }
    }

    /// Returns the account if it was read at most [`MAX_CACHE_AGE`] ago. Returns `None` if it must be read again, and
    /// `Some(None)` if there is no account.
    pub fn cached_account(&self) -> Option<Option<UnsealedAccount>> {
        self.cached_within(MAX_CACHE_AGE)
    }

    fn cached_within(&self, max_age: Duration) -> Option<Option<UnsealedAccount>> {
        let cache = self.cache.lock();
        let is_fresh = self.is_unused || cache.read_at.is_some_and(|at| at.elapsed() < max_age);
        is_fresh.then(|| cache.account.clone())
    }

    /// Returns the time at which the person connected the account, as it was read last.
    pub fn connected_at(&self) -> Option<Timestamp> {
        self.cache.lock().account.as_ref().map(|account| account.connected_at)
    }

    /// Reads the account from the store. While the store is unavailable, returns the cached one if it was read at most
    /// [`MAX_STALE_AGE`] ago.
    ///
    /// # Errors
    /// [`AuthorizationError::Unavailable`] if the store is unavailable for longer.
    pub async fn read(&self) -> Result<Option<UnsealedAccount>, AuthorizationError> {
        if self.is_unused {
            return Ok(None);
        }
        let started_at = Instant::now();
        let Ok(account) = self.client.read_account(&self.key, &self.server).await else {
            return self.cached_within(MAX_STALE_AGE).ok_or_else(store_unavailable);
        };
        let connected_at = |account: &Option<UnsealedAccount>| account.as_ref().map(|account| account.connected_at);
        let mut is_replaced = false;
        let mut cache = self.cache.lock();
        if cache.read_at.is_none_or(|at| at <= started_at) {
            is_replaced = cache.account.is_some() && connected_at(&cache.account) != connected_at(&account);
            *cache = CachedAccount { account: account.clone(), read_at: Some(started_at) };
        }
        drop(cache);
        if is_replaced {
            // Another node connected or disconnected the account.
            (self.client.on_change)(&self.key.server, &self.key.holder);
        }
        Ok(account)
    }

    /// Forgets the account that was read, because it was connected or disconnected.
    pub fn forget(&self) {
        *self.cache.lock() = CachedAccount::default();
    }

    /// Marks the row as being refreshed. Returns `false` if it is marked already, or has another version by now.
    ///
    /// # Errors
    /// [`AuthorizationError::Unavailable`] if the store is unavailable. The mark may be set then. It must not be
    /// removed, because another node may have set it.
    pub async fn begin_refresh(&self, account: &UnsealedAccount) -> Result<bool, AuthorizationError> {
        let marked = self.client.store.begin_refresh(&self.key, account.version, Timestamp::now()).await;
        marked.map_err(|_| store_unavailable())
    }

    /// Removes the mark of a refresh. Must be called only if the refresh token was certainly not used.
    pub async fn cancel_refresh(&self, account: &UnsealedAccount) {
        // After a failure, which is logged, the mark stays, and the answer counts as lost.
        let _ = self.client.store.cancel_refresh(&self.key, account.version).await;
    }

    /// Stores tokens and removes the mark of a refresh, unless the row has another version by now. Returns `false` if
    /// the store stays unavailable.
    pub async fn finish_refresh(&self, account: &UnsealedAccount, tokens: &Tokens) -> bool {
        for _ in 0..MAX_STORE_ATTEMPTS {
            // If an attempt with an unknown outcome succeeded, the version has changed, and the next one changes
            // nothing.
            let (store, target) = (&self.client.store, &self.server.target);
            if store.finish_refresh(&self.key, target, account.version, tokens).await.is_ok() {
                return true;
            }
            tokio::time::sleep(STORE_RETRY_DELAY).await;
        }
        false
    }

    /// Replaces the tokens, unless a node is refreshing them. After a failure, which is logged, they stay as they are.
    pub async fn replace_tokens(&self, account: &UnsealedAccount, tokens: &Tokens) {
        if self.begin_refresh(account).await.is_ok_and(|has_begun| has_begun) {
            if !self.finish_refresh(account, tokens).await {
                self.cancel_refresh(account).await;
            }
            let _ = self.read().await;
        }
    }
}

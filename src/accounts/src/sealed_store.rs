//! Reads and writes the accounts and registrations of the store on blocking threads, and seals and opens their secrets.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};

use super::{failure::ConsentReason, oauth::registration::Registration, tokens::Tokens};
use countersign_domain::account_holder::AccountHolder;
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::{background, sealing::Sealer};
use countersign_store::{
    StoreError,
    accounts::{AccountKey, AccountStore, StoredAccount},
};

/// The time after which a refresh without a stored answer counts as lost.
const MAX_REFRESH_TIME: SignedDuration = SignedDuration::from_secs(60);
/// The age at which the list of accounts is read again in the background.
const MAX_LIST_AGE: Duration = Duration::from_secs(5);
const ACCOUNT_CONTEXT: &str = "countersign.account.1";
const REGISTRATION_CONTEXT: &str = "countersign.registration.1";

/// The accounts and registrations of the store. Their secrets are stored sealed.
pub struct SealedStore {
    store: Arc<dyn AccountStore>,
    sealer: Sealer,
    list: Mutex<AccountList>,
    is_reading_list: AtomicBool,
}

/// The accounts that the store holds, the oldest first.
#[derive(Default)]
struct AccountList {
    read_at: Option<Instant>,
    entries: Vec<ListedAccount>,
}

struct ListedAccount {
    key: AccountKey,
    target: String,
    issuer: String,
}

/// A stored account with its tokens unsealed.
#[derive(Clone)]
pub struct UnsealedAccount {
    /// The version of the row. A write changes nothing once the row has another one.
    pub version: i64,
    /// The time at which a node began to refresh the tokens, while a refresh is running.
    pub refreshing_since: Option<Timestamp>,
    /// The time at which the person connected the account.
    pub connected_at: Timestamp,
    pub tokens: Arc<Tokens>,
}

impl UnsealedAccount {
    /// Returns `true` if a refresh has not ended in time, so that its answer counts as lost.
    pub fn is_refresh_lost(&self, now: Timestamp) -> bool {
        self.refreshing_since.is_some_and(|since| now.duration_since(since) >= MAX_REFRESH_TIME)
    }

    /// Returns why the person must connect the account again, if they must.
    pub fn reconnect_reason(&self, now: Timestamp) -> Option<ConsentReason> {
        let tokens = &self.tokens;
        if self.is_refresh_lost(now) {
            Some(ConsentReason::AnswerLost)
        } else if let Some(reason) = tokens.end_reason.or(tokens.refusal_reason) {
            Some(reason)
        } else if tokens.refresh_token.is_none() && !tokens.is_valid(now) {
            Some(ConsentReason::Expired)
        } else {
            let step_up = tokens.recent_step_up(now).filter(|step_up| !tokens.has_requested(&step_up.scopes));
            step_up.map(|_| ConsentReason::MoreScopes)
        }
    }
}

impl SealedStore {
    /// Creates the sealed store, and reads the list of accounts.
    pub fn new(store: Arc<dyn AccountStore>, sealer: Sealer) -> Arc<Self> {
        let (list, is_reading_list) = (Mutex::default(), AtomicBool::new(false));
        let sealed_store = Arc::new(Self { store, sealer, list, is_reading_list });
        sealed_store.read_list();
        sealed_store
    }

    /// Reads an account. Returns `None` for an account of another `target`, and if its tokens cannot be opened.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn read(&self, key: &AccountKey, target: &str) -> Result<Option<UnsealedAccount>, McpError> {
        let read_key = key.clone();
        let Some(row) = self.with_store(move |store| store.account(&read_key)).await? else { return Ok(None) };
        Ok((row.target == target).then(|| self.open_row(row)).flatten())
    }

    /// Unseals the tokens of a row. Logs a failure.
    fn open_row(&self, row: StoredAccount) -> Option<UnsealedAccount> {
        let tokens: Option<Tokens> = self.open(&account_context(&row.key, &row.target), &row.sealed);
        if tokens.is_none() {
            tracing::warn!(
                server = row.key.server,
                "the stored tokens of an account cannot be opened (another sealing key or another version); its person \
                 must connect again"
            );
        }
        let StoredAccount { version, refreshing_since, connected_at, .. } = row;
        Some(UnsealedAccount { version, refreshing_since, connected_at, tokens: Arc::new(tokens?) })
    }

    /// Stores the tokens of an account that a person connected.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`, or `INTERNAL_ERROR` if they cannot be sealed.
    pub async fn connect_account(
        self: &Arc<Self>,
        key: &AccountKey,
        target: &str,
        tokens: &Tokens,
        now: Timestamp,
    ) -> Result<(), McpError> {
        let row = StoredAccount {
            key: key.clone(),
            target: target.to_owned(),
            issuer: tokens.issuer().to_owned(),
            sealed: self.seal(&account_context(key, target), tokens)?,
            version: 0,
            refreshing_since: None,
            connected_at: now,
        };
        self.with_store(move |store| store.connect_account(&row)).await?;
        self.reload_list().await;
        Ok(())
    }

    /// Removes an account. Returns `false` if there was none.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn remove(self: &Arc<Self>, key: &AccountKey) -> Result<bool, McpError> {
        let key = key.clone();
        let was_removed = self.with_store(move |store| store.remove_account(&key)).await?;
        self.reload_list().await;
        Ok(was_removed)
    }

    /// Marks the tokens of an account as being refreshed, as [`AccountStore::begin_refresh`] does.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn begin_refresh(&self, key: &AccountKey, version: i64, now: Timestamp) -> Result<bool, McpError> {
        let key = key.clone();
        self.with_store(move |store| store.begin_refresh(&key, version, now)).await
    }

    /// Stores refreshed tokens. Returns `false` if the account has another version by now.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`, or `INTERNAL_ERROR` if they cannot be sealed.
    pub async fn finish_refresh(
        &self,
        key: &AccountKey,
        target: &str,
        version: i64,
        tokens: &Tokens,
    ) -> Result<bool, McpError> {
        let sealed = self.seal(&account_context(key, target), tokens)?;
        let key = key.clone();
        self.with_store(move |store| store.finish_refresh(&key, version, &sealed)).await
    }

    /// Removes the mark of a refresh. Must be called only if the refresh token was certainly not used.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn cancel_refresh(&self, key: &AccountKey, version: i64) -> Result<(), McpError> {
        let key = key.clone();
        self.with_store(move |store| store.cancel_refresh(&key, version)).await
    }

    /// Returns the gateway's registration at an authorization server.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn registration(&self, issuer: &str) -> Result<Option<Registration>, McpError> {
        let read_issuer = issuer.to_owned();
        let sealed = self.with_store(move |store| store.registration(&read_issuer)).await?;
        Ok(sealed.and_then(|sealed| self.open(&registration_context(issuer), &sealed)))
    }

    /// Stores the gateway's registration at an authorization server.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`, or `INTERNAL_ERROR` if it cannot be sealed.
    pub async fn put_registration(&self, registration: &Registration) -> Result<(), McpError> {
        let issuer = registration.issuer.clone();
        let sealed = self.seal(&registration_context(&issuer), registration)?;
        self.with_store(move |store| store.put_registration(&issuer, &sealed)).await
    }

    /// Seals a value for this context.
    ///
    /// # Errors
    /// `INTERNAL_ERROR` if the value cannot be written as JSON, or if the operating system provides no random numbers.
    pub fn seal(&self, context: &[u8], value: &impl Serialize) -> Result<String, McpError> {
        let invalid = |_| McpError::new(ErrorKind::Internal, "a value to be sealed cannot be written as JSON");
        self.sealer.seal(context, &serde_json::to_string(value).map_err(invalid)?)
    }

    /// Opens a value that was sealed for this context.
    pub fn open<T: DeserializeOwned>(&self, context: &[u8], sealed: &str) -> Option<T> {
        serde_json::from_str(&self.sealer.open(context, sealed)?).ok()
    }

    /// Returns `true` if there are accounts at a server, as the list had them when it was last read.
    pub fn has_accounts(self: &Arc<Self>, server: &str, target: &str) -> bool {
        !self.holders(server, target).is_empty()
    }

    /// Returns the holders of the accounts at a server, the oldest first, as the list had them when it was last read.
    #[must_use]
    pub fn holders(self: &Arc<Self>, server: &str, target: &str) -> Vec<AccountHolder> {
        self.list_at_server(server, target, |account| account.key.holder.clone())
    }

    /// Returns the authorization servers of the accounts at a server, as the list had them when it was last read.
    #[must_use]
    pub fn issuers(self: &Arc<Self>, server: &str, target: &str) -> Vec<String> {
        self.list_at_server(server, target, |account| account.issuer.clone())
    }

    /// Returns the value that `select` takes from each listed account at a server, and begins to read the list again if
    /// it is old.
    fn list_at_server<T>(self: &Arc<Self>, server: &str, target: &str, select: impl Fn(&ListedAccount) -> T) -> Vec<T> {
        let is_old = self.list.lock().read_at.is_none_or(|at| at.elapsed() >= MAX_LIST_AGE);
        // Outside a runtime, the read may block this thread.
        if is_old && !self.is_reading_list.swap(true, Ordering::AcqRel) {
            let this = Arc::clone(self);
            match tokio::runtime::Handle::try_current() {
                Ok(_) => drop(background::spawn_blocking(move || this.read_list())),
                Err(_) => this.read_list(),
            }
        }
        let list = self.list.lock();
        let at_server = list.entries.iter().filter(|account| account.key.server == server && account.target == target);
        at_server.map(select).collect()
    }

    /// Reads the list of accounts, and blocks until it is read. Keeps the old list after a failure, which is logged.
    fn read_list(&self) {
        let read_at = Some(Instant::now());
        match self.store.accounts() {
            Ok(rows) => {
                let list_row = |row: StoredAccount| {
                    let StoredAccount { key, target, issuer, .. } = row;
                    ListedAccount { key, target, issuer }
                };
                let mut list = self.list.lock();
                if list.read_at < read_at {
                    *list = AccountList { read_at, entries: rows.into_iter().map(list_row).collect() };
                }
            }
            Err(error) => tracing::warn!(%error, "the list of connected accounts cannot be read from the store"),
        }
        self.is_reading_list.store(false, Ordering::Release);
    }

    /// Reads the list again after a change.
    async fn reload_list(self: &Arc<Self>) {
        let this = Arc::clone(self);
        // A failure is logged, and the list is read again when it is old.
        let _ = background::spawn_blocking(move || this.read_list()).await;
    }

    /// Runs an operation of the store on a blocking thread.
    async fn with_store<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&dyn AccountStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, McpError> {
        let store = Arc::clone(&self.store);
        let outcome = background::spawn_blocking(move || operation(&*store)).await;
        let outcome = outcome.map_err(|_| McpError::new(ErrorKind::Internal, "an operation of the store failed"))?;
        outcome.map_err(|error| {
            tracing::warn!(%error, "the accounts of the store cannot be read or written");
            error.to_mcp()
        })
    }
}

/// Returns the context in which the tokens of an account are sealed. A row that was moved to another account cannot be
/// opened.
fn account_context(key: &AccountKey, target: &str) -> Vec<u8> {
    join_context(&[ACCOUNT_CONTEXT, &key.server, target, key.holder.as_str()])
}

fn registration_context(issuer: &str) -> Vec<u8> {
    join_context(&[REGISTRATION_CONTEXT, issuer])
}

/// Joins the parts after their lengths, so that different parts never give the same context.
fn join_context(parts: &[&str]) -> Vec<u8> {
    let lengths = parts.iter().flat_map(|part| part.len().to_be_bytes());
    lengths.chain(parts.iter().flat_map(|part| part.bytes())).collect()
}

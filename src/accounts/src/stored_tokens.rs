//! The tokens of an account that a person connected: reads them from the store, and refreshes them.
//!
//! Only one task of all nodes refreshes the tokens of an account at a time. The store records this before the refresh
//! token is sent. If the answer is lost, the refresh token is not sent again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::{
    client::OAuthClient,
    failure::{ConsentReason, Pause, store_unavailable, unavailable},
    oauth::{
        OAuthError,
        token::{Grant, TokenRequest, TokenResponse, request_token},
    },
    sealed_store::UnsealedAccount,
    server::AccountServer,
    tokens::Tokens,
};
use countersign_domain::account_holder::AccountHolder;
use countersign_runtime::background;
use countersign_store::accounts::AccountKey;
use countersign_upstream::credentials::AuthorizationError;

/// The age at which a row is read again, so that a change at another node takes effect.
const MAX_CACHE_AGE: Duration = Duration::from_secs(5);
/// The age up to which a row is used while the store is unavailable.
const MAX_STALE_AGE: Duration = Duration::from_secs(60);
/// The time after which a refresh without a stored answer counts as lost.
const MAX_REFRESH_TIME: SignedDuration = SignedDuration::from_secs(60);
/// The maximum time to wait for a refresh by another node while the token is still valid.
const MAX_WAIT_WITH_TOKEN: Duration = Duration::from_secs(3);
/// The maximum time to wait for a refresh by another node without a valid token.
const MAX_WAIT_WITHOUT_TOKEN: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The time after which a failed refresh is attempted again. It is longer than the time limit of a request.
const REFRESH_PAUSE: Duration = Duration::from_secs(10);
/// The maximum number of attempts to store refreshed tokens, which would be lost otherwise.
const MAX_STORE_ATTEMPTS: u32 = 20;
/// The delay between two attempts to store refreshed tokens.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);
/// The time for which the result of a discovery is remembered.
const MAX_ISSUER_AGE: Duration = Duration::from_secs(30);
/// The number of consents within an hour after which a person is not asked again for scopes that were requested
/// before.
const MAX_CONSENTS: u32 = 3;
/// The number of consents within an hour after which a person is not asked again for new scopes.
const MAX_CONSENTS_WITH_NEW_SCOPES: u32 = 10;

/// The stored tokens of one account, which a person connected.
pub struct StoredTokens {
    client: Arc<OAuthClient>,
    server: Arc<AccountServer>,
    key: AccountKey,
    /// `true` for an account of the kind that `oauth.as` excludes. Such accounts remain after it was changed.
    is_unused: bool,
    cache: Mutex<Cache>,
    pause: Pause,
    /// One task reads the row at a time.
    read_lock: tokio::sync::Mutex<()>,
    /// One task refreshes the tokens at a time.
    refresh_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Cache {
    account: Option<Arc<UnsealedAccount>>,
    /// The time at which the row was read. `None` if it must be read again.
    read_at: Option<Instant>,
    /// The time of the last discovery, and the authorization server that was found.
    discovered_issuer: Option<(Instant, Option<String>)>,
}

type AccountResult = Result<Arc<UnsealedAccount>, AuthorizationError>;

impl StoredTokens {
    pub fn new(client: Arc<OAuthClient>, server: Arc<AccountServer>, key: AccountKey) -> Self {
        let is_unused = (key.holder == AccountHolder::Gateway) == server.oauth.is_personal();
        let (cache, pause, read_lock, refresh_lock) = Default::default();
        Self { client, server, key, is_unused, cache, pause, read_lock, refresh_lock }
    }

    /// Returns the account as it was at most [`MAX_CACHE_AGE`] ago. While the store is unavailable, it may be
    /// [`MAX_STALE_AGE`] old.
    ///
    /// # Errors
    /// [`AuthorizationError::Unavailable`] if the store is unavailable for longer.
    pub async fn read_cached(&self) -> Result<Option<Arc<UnsealedAccount>>, AuthorizationError> {
        if let Some(account) = self.cached_within(MAX_CACHE_AGE) {
            return Ok(account);
        }
        let _guard = self.read_lock.lock().await;
        match self.cached_within(MAX_CACHE_AGE) {
            Some(account) => Ok(account),
            None => self.reload().await,
        }
    }

    /// Returns the account if it was read at most `max_age` ago. Returns `None` if it must be read again, and
    /// `Some(None)` if there is no account.
    fn cached_within(&self, max_age: Duration) -> Option<Option<Arc<UnsealedAccount>>> {
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
    pub async fn reload(&self) -> Result<Option<Arc<UnsealedAccount>>, AuthorizationError> {
        if self.is_unused {
            return Ok(None);
        }
        let started_at = Instant::now();
        let Ok(account) = self.client.read_account(&self.key, &self.server).await else {
            return self.cached_within(MAX_STALE_AGE).ok_or_else(store_unavailable);
        };
        let account = account.map(Arc::new);
        let connected_at =
            |account: &Option<Arc<UnsealedAccount>>| account.as_ref().map(|account| account.connected_at);
        let mut is_replaced = false;
        let mut cache = self.cache.lock();
        if cache.read_at.is_none_or(|at| at <= started_at) {
            is_replaced = cache.account.is_some() && connected_at(&cache.account) != connected_at(&account);
            (cache.account, cache.read_at) = (account.clone(), Some(started_at));
        }
        drop(cache);
        if is_replaced {
            // Another node connected or disconnected the account.
            (self.client.on_change)(&self.key.server, &self.key.holder);
        }
        Ok(account)
    }

    /// Forgets the tokens that were read, because the account was connected or disconnected.
    pub fn forget_tokens(&self) {
        *self.cache.lock() = Cache::default();
        self.pause.end();
    }

    /// Returns the account with tokens for a request, and first refreshes them if they are about to expire. Returns
    /// `None` as long as the server is not known to require a token.
    ///
    /// # Errors
    /// [`AuthorizationError::ConsentNeeded`] if the person must connect; [`AuthorizationError::Unavailable`] if the
    /// store or the authorization server is unavailable; [`AuthorizationError::Refused`] if the authorization server
    /// does not accept the gateway.
    pub async fn usable_account(self: &Arc<Self>) -> Result<Option<Arc<UnsealedAccount>>, AuthorizationError> {
        let account = match self.read_cached().await? {
            Some(account) => account,
            None if !self.is_required() => return Ok(None),
            // The person may have connected at another node a moment ago.
            None => self.reload().await?.ok_or(ConsentReason::NotConnected)?,
        };
        let now = Timestamp::now();
        if !account.tokens.needs_refresh(now) {
            return Ok(Some(account));
        }
        match self.pause.failure() {
            Some(_) if account.tokens.is_valid(now) => Ok(Some(account)),
            Some(failure) => Err(failure),
            None => self.refresh_in_task(account, false).await.map(Some),
        }
    }

    /// Returns the result of [`Self::usable_account`] if the cache is enough for it: `Some(None)` if no tokens are
    /// needed, and `None` if they must be read or refreshed first.
    pub fn cached_account(&self) -> Option<Option<Arc<UnsealedAccount>>> {
        match self.cached_within(MAX_CACHE_AGE)? {
            Some(account) => (!account.tokens.needs_refresh(Timestamp::now())).then_some(Some(account)),
            None => (!self.is_required()).then_some(None),
        }
    }

    /// Returns `true` if it is known that the server requires a token.
    fn is_required(&self) -> bool {
        self.server.requires_token() || !self.client.store.issuers(&self.key.server, &self.server.target).is_empty()
    }

    /// Obtains tokens in place of one that the server refused: from the store, or by a refresh.
    ///
    /// # Errors
    /// As [`Self::usable_account`].
    pub async fn replace_refused(self: &Arc<Self>, refused: &str) -> Result<(), AuthorizationError> {
        let account = self.reload().await?.ok_or(ConsentReason::NotConnected)?;
        if account.tokens.access_token != refused {
            return Ok(());
        }
        self.refresh_in_task(account, true).await.map(drop)
    }

    /// Checks that the account was connected since a request was sent without a token.
    ///
    /// # Errors
    /// [`AuthorizationError::ConsentNeeded`] if not.
    pub async fn check_connected(&self) -> Result<(), AuthorizationError> {
        self.reload().await?.map(drop).ok_or_else(|| ConsentReason::NotConnected.into())
    }

    /// Records a step-up, whose scopes the next consent requests.
    ///
    /// # Errors
    /// [`AuthorizationError::ConsentNeeded`], unless the token was replaced by now; [`AuthorizationError::Refused`]
    /// after too many consents.
    pub async fn record_step_up(
        self: &Arc<Self>,
        refused: &str,
        challenged: &[String],
    ) -> Result<(), AuthorizationError> {
        let now = Timestamp::now();
        let account = self.reload().await?.ok_or(ConsentReason::NotConnected)?;
        if account.tokens.access_token != refused {
            return Ok(());
        }
        let step_up = account.tokens.step_up_for(challenged, now);
        let is_known = account.tokens.has_requested(challenged);
        if step_up.consents >= if is_known { MAX_CONSENTS } else { MAX_CONSENTS_WITH_NEW_SCOPES } {
            let text = format!("still demands further permissions after {} consents", step_up.consents);
            return Err(AuthorizationError::Refused(text));
        }
        if account.tokens.step_up.as_ref() != Some(&step_up) {
            let tokens = Tokens { step_up: Some(step_up), ..account.tokens.clone() };
            let this = Arc::clone(self);
            // A task of its own, because the mark in the store must be removed even if nobody waits for it.
            let task = background::spawn_with_result(async move { this.replace_tokens(&account, &tokens).await });
            // After a failure, the next refusal records the step-up.
            let _ = task.await;
        }
        Err(ConsentReason::MoreScopes.into())
    }

    /// Refreshes the tokens `seen` by the caller, which the server may have refused. This runs in a task of its own,
    /// because the answer must be stored even if nobody waits for it.
    async fn refresh_in_task(self: &Arc<Self>, seen: Arc<UnsealedAccount>, is_refused: bool) -> AccountResult {
        let this = Arc::clone(self);
        let task = background::spawn_with_result(async move {
            let _guard = this.refresh_lock.lock().await;
            this.refresh_locked(&seen, is_refused).await
        });
        let ended_early = |_| {
            AuthorizationError::Unavailable(
                "cannot be used now, because the refresh of its token ended early".to_owned(),
            )
        };
        task.await.map_err(ended_early)?
    }

    /// Refreshes the tokens, unless another task or node has done so, and waits while another node does so.
    async fn refresh_locked(&self, seen: &UnsealedAccount, is_refused: bool) -> AccountResult {
        let started_at = Instant::now();
        loop {
            let now = Timestamp::now();
            let account = self.reload().await?.ok_or(ConsentReason::NotConnected)?;
            let tokens = &account.tokens;
            let is_replaced = tokens.access_token != seen.tokens.access_token;
            if is_replaced && !tokens.needs_refresh(now) {
                return Ok(account);
            }
            let is_refused = tokens.refusal_reason.is_some() || (is_refused && !is_replaced);
            let is_usable = tokens.is_valid(now) && !is_refused;
            let keep_or_fail_with = |failure: AuthorizationError| self.keep_or_fail(&account, is_usable, failure);
            if tokens.refresh_token.is_none() {
                let reason = if is_refused { ConsentReason::TokenRefused } else { ConsentReason::Expired };
                let reason = tokens.end_reason.unwrap_or(reason);
                return if is_refused {
                    Err(self.mark_refused(&account, reason).await)
                } else {
                    keep_or_fail_with(reason.into())
                };
            }
            match account.refreshing_since {
                Some(since) if now.duration_since(since) >= MAX_REFRESH_TIME => {
                    let reason = ConsentReason::AnswerLost;
                    return if is_refused {
                        Err(self.give_up_refresh_token(&account, reason, is_usable).await)
                    } else {
                        keep_or_fail_with(reason.into())
                    };
                }
                Some(_) => {}
                None => {
                    if is_refused && let Some(reason) = self.reason_not_to_refresh(tokens, now).await {
                        return Err(self.mark_refused(&account, reason).await);
                    }
                    // If the task that held the lock before failed, its request is not repeated.
                    if let Some(failure) = self.pause.failure() {
                        return keep_or_fail_with(failure);
                    }
                    if self.begin_refresh(&account, now).await? {
                        return self.send_refresh_token(&account, is_usable, now).await;
                    }
                }
            }
            let max_wait = if is_usable { MAX_WAIT_WITH_TOKEN } else { MAX_WAIT_WITHOUT_TOKEN };
            // The pause may have begun while this task waited.
            if started_at.elapsed() >= max_wait || self.pause.failure().is_some() {
                let text = "cannot be used now, because the refresh of its token has not ended";
                return keep_or_fail_with(AuthorizationError::Unavailable(text.to_owned()));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the old tokens, or the failure if they cannot be used. Begins a pause of [`REFRESH_PAUSE`], except for
    /// `ConsentNeeded` without usable tokens: the tokens that the person then connects must be used at once.
    fn keep_or_fail(
        &self,
        account: &Arc<UnsealedAccount>,
        is_usable: bool,
        failure: AuthorizationError,
    ) -> AccountResult {
        if is_usable || !matches!(failure, AuthorizationError::ConsentNeeded(_)) {
            self.pause.begin(REFRESH_PAUSE, &failure);
        }
        if !is_usable {
            return Err(failure);
        }
        tracing::info!(
            server = self.key.server,
            "the token was not refreshed, and is used until it expires: {failure}"
        );
        Ok(Arc::clone(account))
    }

    /// Returns the reason why a refresh would not help: the refused token is new, or the server uses another
    /// authorization server now.
    async fn reason_not_to_refresh(&self, tokens: &Tokens, now: Timestamp) -> Option<ConsentReason> {
        if tokens.is_too_new_to_replace(now) {
            return Some(ConsentReason::TokenRefused);
        }
        let issuer = self.current_issuer().await;
        issuer.filter(|issuer| issuer != tokens.issuer()).map(|_| ConsentReason::OtherIssuer)
    }

    /// Returns the authorization server that was discovered at most [`MAX_ISSUER_AGE`] ago, if one was found.
    async fn current_issuer(&self) -> Option<String> {
        let cached_issuer = self.cache.lock().discovered_issuer.clone().filter(|(at, _)| at.elapsed() < MAX_ISSUER_AGE);
        if let Some((_, issuer)) = cached_issuer {
            return issuer;
        }
        let issuer = self.server.discover().await.ok().map(|found| found.authorization_server.issuer);
        self.cache.lock().discovered_issuer = Some((Instant::now(), issuer.clone()));
        issuer
    }

    /// Stores that the server does not accept the access token, so that no node sends it again. Returns the failure.
    async fn mark_refused(&self, account: &UnsealedAccount, reason: ConsentReason) -> AuthorizationError {
        if account.tokens.refusal_reason.is_none() {
            let tokens = Tokens { refusal_reason: Some(reason), ..account.tokens.clone() };
            self.replace_tokens(account, &tokens).await;
        }
        reason.into()
    }

    /// Replaces the stored tokens, unless a node is refreshing them. After a failure, which is logged, they stay as
    /// they are.
    async fn replace_tokens(&self, account: &UnsealedAccount, tokens: &Tokens) {
        if self.begin_refresh(account, Timestamp::now()).await.is_ok_and(|has_begun| has_begun) {
            if !self.store_with_retries(account.version, tokens).await {
                self.cancel_refresh(account.version).await;
            }
            let _ = self.reload().await;
        }
    }

    /// Marks the row as being refreshed. Returns `false` if it is marked already, or has another version by now.
    async fn begin_refresh(&self, account: &UnsealedAccount, now: Timestamp) -> Result<bool, AuthorizationError> {
        // After a failure, the mark may be set. It is not removed, because another node may have set it.
        let marked = self.client.store.begin_refresh(&self.key, account.version, now).await;
        marked.map_err(|_| store_unavailable())
    }

    /// Removes the mark of a refresh. Must be called only if the refresh token was certainly not used.
    async fn cancel_refresh(&self, version: i64) {
        // After a failure, which is logged, the mark stays, and the answer counts as lost.
        let _ = self.client.store.cancel_refresh(&self.key, version).await;
    }

    /// Sends the refresh token and stores the answer. The row is marked already.
    async fn send_refresh_token(
        &self,
        account: &Arc<UnsealedAccount>,
        is_usable: bool,
        now: Timestamp,
    ) -> AccountResult {
        let UnsealedAccount { tokens, version, .. } = &**account;
        let registration = self.client.registration_for(tokens, &self.server);
        let refresh_token = tokens.refresh_token.as_deref().unwrap_or_default();
        let request = self.server.token_request(&tokens.origin);
        let request = TokenRequest { registration: &registration, scopes: &[], ..request };
        // The configuration of a client can be corrected, and its refresh token, which is not sent until then, remains valid.
        let is_configured = self.server.oauth.client_id.as_ref() == Some(&registration.client_id);
        let is_unsent = is_configured && request.check_client(now).is_err();
        let answer = request_token(&request, Grant::Refresh(refresh_token), now).await;
        let error = match answer {
            Ok(answer) => return self.store_answer(account, answer, now).await,
            Err(error) => error,
        };
        tracing::warn!(server = self.key.server, %error, "the token of an account was not refreshed");
        let failure = match &error {
            error if is_unsent || error.permits_repetition() => {
                self.cancel_refresh(*version).await;
                unavailable(error)
            }
            OAuthError::Unavailable { .. } | OAuthError::Unusable(_) => {
                self.give_up_refresh_token(account, ConsentReason::AnswerLost, is_usable).await
            }
            OAuthError::Refused(code) if code == "invalid_client" && registration.dynamic_redirect_uri.is_none() => {
                self.cancel_refresh(*version).await;
                let text = "cannot be used, because its authorization server does not accept the gateway as a client";
                AuthorizationError::Refused(text.to_owned())
            }
            OAuthError::Refused(code) => {
                if code == "invalid_client" {
                    // The next consent needs a registered client. If this fails, the consent itself registers one.
                    let _ =
                        self.client.register_anew(&self.server, &tokens.origin.discovered.authorization_server).await;
                }
                self.give_up_refresh_token(account, ConsentReason::RefreshRefused, is_usable).await
            }
        };
        self.keep_or_fail(account, is_usable, failure)
    }

    /// Removes the refresh token from the store, so that no node sends it again. If the store fails, the mark stays,
    /// which also ends refreshes after [`MAX_REFRESH_TIME`]. Returns the failure.
    async fn give_up_refresh_token(
        &self,
        account: &UnsealedAccount,
        reason: ConsentReason,
        is_usable: bool,
    ) -> AuthorizationError {
        let refusal_reason = (!is_usable).then_some(reason);
        let tokens = Tokens { refresh_token: None, end_reason: Some(reason), refusal_reason, ..account.tokens.clone() };
        self.store_with_retries(account.version, &tokens).await;
        // After a failure, the row is read again when it is old.
        let _ = self.reload().await;
        reason.into()
    }

    /// Stores the tokens of an answer, and returns what the store holds then.
    async fn store_answer(&self, account: &UnsealedAccount, answer: TokenResponse, now: Timestamp) -> AccountResult {
        let tokens = account.tokens.with_refreshed(answer, now);
        if !self.store_with_retries(account.version, &tokens).await {
            let text = "refreshed tokens could not be stored, so the person must connect the server again";
            tracing::error!(server = self.key.server, "{text}");
            return Err(store_unavailable());
        }
        // The row has another token if the person connected again in the meantime, and is gone if they disconnected.
        self.reload().await?.ok_or_else(|| ConsentReason::NotConnected.into())
    }

    /// Stores tokens and removes the mark, unless the row has another version by now. Returns `false` if the store
    /// stays unavailable.
    async fn store_with_retries(&self, version: i64, tokens: &Tokens) -> bool {
        for _ in 0..MAX_STORE_ATTEMPTS {
            // If an attempt with an unknown outcome succeeded, the version has changed, and the next one changes
            // nothing.
            if self.client.store.finish_refresh(&self.key, &self.server.target, version, tokens).await.is_ok() {
                return true;
            }
            tokio::time::sleep(STORE_RETRY_DELAY).await;
        }
        false
    }
}

/// Returns why the person must connect the account again, if they must.
pub fn reconnect_reason(account: &UnsealedAccount, now: Timestamp) -> Option<ConsentReason> {
    let UnsealedAccount { tokens, refreshing_since, .. } = account;
    if refreshing_since.is_some_and(|since| now.duration_since(since) >= MAX_REFRESH_TIME) {
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

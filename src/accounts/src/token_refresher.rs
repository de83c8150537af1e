//! Provides the tokens of an account that a person connected: those of the store, or refreshed ones.
//!
//! Only one task of all nodes refreshes the tokens of an account at a time. The store records this before the refresh
//! token is sent. If the answer is lost, the refresh token is not sent again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{
    account_row::AccountRow,
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
use countersign_upstream::credentials::AuthorizationError;

/// The maximum time to wait for a refresh by another node while the token is still valid.
const MAX_WAIT_WITH_TOKEN: Duration = Duration::from_secs(3);
/// The maximum time to wait for a refresh by another node without a valid token.
const MAX_WAIT_WITHOUT_TOKEN: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The time after which a failed refresh is attempted again. It is longer than the time limit of a request.
const REFRESH_PAUSE: Duration = Duration::from_secs(10);
/// The time for which the result of a discovery is remembered.
const MAX_ISSUER_AGE: Duration = Duration::from_secs(30);
/// The number of consents within an hour after which a person is not asked again for scopes that were requested
/// before.
const MAX_CONSENTS: u32 = 3;
/// The number of consents within an hour after which a person is not asked again for new scopes.
const MAX_CONSENTS_WITH_NEW_SCOPES: u32 = 10;

/// Provides the tokens of one account that a person connected.
pub struct TokenRefresher {
    row: AccountRow,
    /// The time of the last discovery, and the authorization server that was found.
    discovered_issuer: Mutex<Option<(Instant, Option<String>)>>,
    pause: Pause,
    /// One task refreshes the tokens at a time.
    refresh_lock: tokio::sync::Mutex<()>,
}

/// An account whose tokens need a refresh.
struct StaleAccount {
    account: UnsealedAccount,
    /// `true` if the server refused the access token.
    is_refused: bool,
    /// `true` if the access token can be used until it expires.
    is_usable: bool,
}

type TokenResult = Result<Arc<Tokens>, AuthorizationError>;

impl TokenRefresher {
    pub fn new(client: Arc<OAuthClient>, server: Arc<AccountServer>, holder: AccountHolder) -> Self {
        let (discovered_issuer, pause, refresh_lock) = Default::default();
        Self { row: AccountRow::new(client, server, holder), discovered_issuer, pause, refresh_lock }
    }

    /// Returns the time at which the person connected the account, as far as this node knows it.
    pub fn connected_at(&self) -> Option<Timestamp> {
        self.row.connected_at()
    }

    /// Forgets the tokens that were read, because the account was connected or disconnected.
    pub fn forget_tokens(&self) {
        self.row.forget();
        *self.discovered_issuer.lock() = None;
        self.pause.end();
    }

    /// Returns the result of [`Self::tokens`] if the cache is enough for it: `Some(None)` if no tokens are needed, and
    /// `None` if they must be read or refreshed first.
    pub fn cached_tokens(&self) -> Option<Option<Arc<Tokens>>> {
        match self.row.cached_account()? {
            Some(account) => (!account.tokens.needs_refresh(Timestamp::now())).then_some(Some(account.tokens)),
            None => (!self.is_required()).then_some(None),
        }
    }

    /// Returns the tokens for a request, and first refreshes them if they are about to expire. Returns `None` as long
    /// as the server is not known to require a token.
    ///
    /// # Errors
    /// [`AuthorizationError::ConsentNeeded`] if the person must connect; [`AuthorizationError::Unavailable`] if the
    /// store or the authorization server is unavailable; [`AuthorizationError::Refused`] if the authorization server
    /// does not accept the gateway.
    pub async fn tokens(self: &Arc<Self>) -> Result<Option<Arc<Tokens>>, AuthorizationError> {
        let tokens = match self.row.read_cached().await? {
            Some(account) => account.tokens,
            None if !self.is_required() => return Ok(None),
            // The person may have connected at another node a moment ago.
            None => self.read_account().await?.tokens,
        };
        let now = Timestamp::now();
        if !tokens.needs_refresh(now) {
            return Ok(Some(tokens));
        }
        match self.pause.failure() {
            Some(_) if tokens.is_valid(now) => Ok(Some(tokens)),
            Some(failure) => Err(failure),
            None => self.refresh_in_task(tokens, false).await.map(Some),
        }
    }

    /// Returns `true` if it is known that the server requires a token.
    fn is_required(&self) -> bool {
        let AccountRow { client, server, .. } = &self.row;
        server.requires_token() || client.store.has_accounts(&server.name, &server.target)
    }

    /// Reads the account from the store.
    ///
    /// # Errors
    /// [`AuthorizationError::ConsentNeeded`] if the person has not connected it; [`AuthorizationError::Unavailable`] if
    /// the store is unavailable.
    pub async fn read_account(&self) -> Result<UnsealedAccount, AuthorizationError> {
        self.row.read().await?.ok_or_else(|| ConsentReason::NotConnected.into())
    }

    /// Obtains tokens in place of one that the server refused: from the store, or by a refresh.
    ///
    /// # Errors
    /// As [`Self::tokens`].
    pub async fn replace_refused(self: &Arc<Self>, refused: &str) -> Result<(), AuthorizationError> {
        let tokens = self.read_account().await?.tokens;
        if tokens.access_token != refused {
            return Ok(());
        }
        self.refresh_in_task(tokens, true).await.map(drop)
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
        let account = self.read_account().await?;
        let tokens = &account.tokens;
        if tokens.access_token != refused {
            return Ok(());
        }
        let step_up = tokens.step_up_for(challenged, now);
        let is_known = tokens.has_requested(challenged);
        if step_up.consents >= if is_known { MAX_CONSENTS } else { MAX_CONSENTS_WITH_NEW_SCOPES } {
            let text = format!("still demands further permissions after {} consents", step_up.consents);
            return Err(AuthorizationError::Refused(text));
        }
        if tokens.step_up.as_ref() != Some(&step_up) {
            let tokens = Tokens { step_up: Some(step_up), ..(**tokens).clone() };
            let this = Arc::clone(self);
            // A task of its own, because the mark in the store must be removed even if nobody waits for it.
            let task = background::spawn_with_result(async move { this.row.replace_tokens(&account, &tokens).await });
            // After a failure, the next refusal records the step-up.
            let _ = task.await;
        }
        Err(ConsentReason::MoreScopes.into())
    }

    /// Refreshes the tokens `seen` by the caller, which the server may have refused. This runs in a task of its own,
    /// because the answer must be stored even if nobody waits for it.
    async fn refresh_in_task(self: &Arc<Self>, seen: Arc<Tokens>, is_refused: bool) -> TokenResult {
        let this = Arc::clone(self);
        let task = background::spawn_with_result(async move { this.refresh(&seen, is_refused).await });
        let ended_early = |_| {
            AuthorizationError::Unavailable(
                "cannot be used now, because the refresh of its token ended early".to_owned(),
            )
        };
        task.await.map_err(ended_early)?
    }

    /// Refreshes the tokens, unless another task or node has done so, and waits while another node does so.
    async fn refresh(&self, seen: &Tokens, is_refused: bool) -> TokenResult {
        let _guard = self.refresh_lock.lock().await;
        let started_at = Instant::now();
        loop {
            let now = Timestamp::now();
            let account = self.read_account().await?;
            let tokens = &account.tokens;
            let is_replaced = tokens.access_token != seen.access_token;
            if is_replaced && !tokens.needs_refresh(now) {
                return Ok(account.tokens);
            }
            let is_refused = tokens.refusal_reason.is_some() || (is_refused && !is_replaced);
            let is_usable = tokens.is_valid(now) && !is_refused;
            let stale = StaleAccount { account, is_refused, is_usable };
            if let Some(outcome) = self.try_refresh(&stale, now).await {
                return outcome;
            }
            let max_wait = if is_usable { MAX_WAIT_WITH_TOKEN } else { MAX_WAIT_WITHOUT_TOKEN };
            // The pause may have begun while this task waited.
            if started_at.elapsed() >= max_wait || self.pause.failure().is_some() {
                let text = "cannot be used now, because the refresh of its token has not ended";
                return self.keep_or_fail(&stale, AuthorizationError::Unavailable(text.to_owned()));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Refreshes the tokens, or finds out that this is not possible. Returns `None` while another node refreshes them.
    async fn try_refresh(&self, stale: &StaleAccount, now: Timestamp) -> Option<TokenResult> {
        let StaleAccount { account, is_refused, .. } = stale;
        let tokens = &account.tokens;
        if tokens.refresh_token.is_none() {
            let reason = if *is_refused { ConsentReason::TokenRefused } else { ConsentReason::Expired };
            let reason = tokens.end_reason.unwrap_or(reason);
            if *is_refused {
                self.mark_refused(account, reason).await;
            }
            return Some(self.keep_or_fail(stale, reason.into()));
        }
        if account.is_refresh_lost(now) {
            let reason = ConsentReason::AnswerLost;
            if *is_refused {
                self.give_up_refresh_token(stale, reason).await;
            }
            return Some(self.keep_or_fail(stale, reason.into()));
        }
        if account.refreshing_since.is_some() {
            return None;
        }
        if *is_refused && let Some(reason) = self.reason_not_to_refresh(tokens, now).await {
            self.mark_refused(account, reason).await;
            return Some(Err(reason.into()));
        }
        // If the task that held the lock before failed, its request is not repeated.
        if let Some(failure) = self.pause.failure() {
            return Some(self.keep_or_fail(stale, failure));
        }
        match self.row.begin_refresh(account).await {
            Ok(true) => Some(self.send_refresh_token(stale, now).await),
            Ok(false) => None,
            Err(failure) => Some(Err(failure)),
        }
    }

    /// Returns the old tokens, or the failure if they cannot be used. Begins a pause of [`REFRESH_PAUSE`], except for
    /// `ConsentNeeded` without usable tokens: the tokens that the person then connects must be used at once.
    fn keep_or_fail(&self, stale: &StaleAccount, failure: AuthorizationError) -> TokenResult {
        if stale.is_usable || !matches!(failure, AuthorizationError::ConsentNeeded(_)) {
            self.pause.begin(REFRESH_PAUSE, &failure);
        }
        if !stale.is_usable {
            return Err(failure);
        }
        tracing::info!(
            server = self.row.server.name,
            "the token was not refreshed, and is used until it expires: {failure}"
        );
        Ok(Arc::clone(&stale.account.tokens))
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
        let cached_issuer = self.discovered_issuer.lock().clone().filter(|(at, _)| at.elapsed() < MAX_ISSUER_AGE);
        if let Some((_, issuer)) = cached_issuer {
            return issuer;
        }
        let issuer = self.row.server.discover().await.ok().map(|found| found.authorization_server.issuer);
        *self.discovered_issuer.lock() = Some((Instant::now(), issuer.clone()));
        issuer
    }

    /// Stores that the server does not accept the access token, so that no node sends it again.
    async fn mark_refused(&self, account: &UnsealedAccount, reason: ConsentReason) {
        if account.tokens.refusal_reason.is_none() {
            let tokens = Tokens { refusal_reason: Some(reason), ..(*account.tokens).clone() };
            self.row.replace_tokens(account, &tokens).await;
        }
    }

    /// Sends the refresh token and stores the answer. The row is marked already.
    async fn send_refresh_token(&self, stale: &StaleAccount, now: Timestamp) -> TokenResult {
        let AccountRow { client, server, .. } = &self.row;
        let StaleAccount { account, .. } = stale;
        let tokens = &account.tokens;
        let registration = client.registration_for(tokens, server);
        let refresh_token = tokens.refresh_token.as_deref().unwrap_or_default();
        let request = server.token_request(&tokens.origin);
        let request = TokenRequest { registration: &registration, scopes: &[], ..request };
        // The configuration of a client can be corrected, and its refresh token, which is not sent until then, remains valid.
        let is_configured = server.oauth.client_id.as_ref() == Some(&registration.client_id);
        let is_unsent = is_configured && request.check_client(now).is_err();
        let error = match request_token(&request, Grant::Refresh(refresh_token), now).await {
            Ok(answer) => return self.store_answer(account, answer, now).await,
            Err(error) => error,
        };
        tracing::warn!(server = server.name, %error, "the token of an account was not refreshed");
        let failure = match &error {
            error if is_unsent || error.permits_repetition() => {
                self.row.cancel_refresh(account).await;
                unavailable(error)
            }
            OAuthError::Unavailable { .. } | OAuthError::Unusable(_) => {
                self.give_up_refresh_token(stale, ConsentReason::AnswerLost).await
            }
            OAuthError::Refused(code) if code == "invalid_client" && registration.dynamic_redirect_uri.is_none() => {
                self.row.cancel_refresh(account).await;
                let text = "cannot be used, because its authorization server does not accept the gateway as a client";
                AuthorizationError::Refused(text.to_owned())
            }
            OAuthError::Refused(code) => {
                if code == "invalid_client" {
                    // The next consent needs a registered client. If this fails, the consent itself registers one.
                    let _ = client.register_anew(server, &tokens.origin.discovered.authorization_server).await;
                }
                self.give_up_refresh_token(stale, ConsentReason::RefreshRefused).await
            }
        };
        self.keep_or_fail(stale, failure)
    }

    /// Removes the refresh token from the store, so that no node sends it again. If the store fails, the mark stays,
    /// which also ends refreshes ([`UnsealedAccount::is_refresh_lost`]). Returns the failure.
    async fn give_up_refresh_token(&self, stale: &StaleAccount, reason: ConsentReason) -> AuthorizationError {
        let StaleAccount { account, is_usable, .. } = stale;
        let refusal_reason = (!is_usable).then_some(reason);
        let old = (*account.tokens).clone();
        let tokens = Tokens { refresh_token: None, end_reason: Some(reason), refusal_reason, ..old };
        self.row.finish_refresh(account, &tokens).await;
        // After a failure, the row is read again when it is old.
        let _ = self.row.read().await;
        reason.into()
    }

    /// Stores the tokens of an answer, and returns what the store holds then.
    async fn store_answer(&self, account: &UnsealedAccount, answer: TokenResponse, now: Timestamp) -> TokenResult {
        let tokens = account.tokens.with_refreshed(answer, now);
        if !self.row.finish_refresh(account, &tokens).await {
            let text = "refreshed tokens could not be stored, so the person must connect the server again";
            tracing::error!(server = self.row.server.name, "{text}");
            return Err(store_unavailable());
        }
        // The row has another token if the person connected again in the meantime, and is gone if they disconnected.
        Ok(self.read_account().await?.tokens)
    }
}

//! Requests the tokens that need no consent: by client credentials, by an assertion of the identity provider about a
//! person, or by an assertion of the platform about the gateway. They stay in memory, because another one can always be
//! obtained.

use std::{path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{
    client::{OAuthClient, RegistrationError},
    failure::{Pause, store_unavailable, unavailable},
    oauth::{
        OAuthError,
        authorization::scopes_to_request,
        dpop::DpopKey,
        enterprise::request_assertion,
        token::{Grant, TokenRequest, TokenResponse, request_token},
    },
    server::AccountServer,
    tokens::{TokenOrigin, Tokens, merge_scopes},
};
use countersign_config::OAuthGrant;
use countersign_domain::account_holder::AccountHolder;
use countersign_upstream::credentials::AuthorizationError;

/// The pause between a refused request for a token and the next one.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(60);
/// The pause between a request without a valid answer and the next one. It is longer than the time limit of a request.
const PAUSE_AFTER_OUTAGE: Duration = Duration::from_secs(10);
/// The maximum number of bytes of a file with a subject token.
const MAX_TOKEN_FILE_LEN: u64 = 64 * 1024;

/// Provides the tokens of one account that the gateway requests without a person, and keeps in memory.
pub struct TokenRequester {
    client: Arc<OAuthClient>,
    server: Arc<AccountServer>,
    /// The person about whom the identity provider makes the assertion, or the gateway.
    holder: AccountHolder,
    state: Mutex<State>,
    /// The pause after a failed request.
    pause: Pause,
    /// The pause after a failed step-up.
    step_up_pause: Pause,
    /// One task obtains a token at a time.
    request_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    tokens: Option<Arc<Tokens>>,
    /// The scopes of the step-ups that succeeded.
    step_up_scopes: Vec<String>,
}

impl TokenRequester {
    pub fn new(client: Arc<OAuthClient>, server: Arc<AccountServer>, holder: AccountHolder) -> Self {
        let (state, pause, step_up_pause, request_lock) = Default::default();
        Self { client, server, holder, state, pause, step_up_pause, request_lock }
    }

    /// Returns `true` if a token was obtained, even if it has expired.
    pub fn has_token(&self) -> bool {
        self.state.lock().tokens.is_some()
    }

    /// Returns the tokens for a request if that takes no request for new ones: `Some(None)` as long as the server is not
    /// known to require a token, and `None` if tokens must be obtained first.
    pub fn cached_tokens(&self) -> Option<Option<Arc<Tokens>>> {
        if !self.has_token() && !self.server.requires_token() {
            return Some(None);
        }
        self.unexpired_tokens().map(Some)
    }

    /// Obtains a token if the last one is about to expire. If that fails, the last one is used while it is valid.
    ///
    /// # Errors
    /// [`AuthorizationError::Refused`] if the authorization server refuses the gateway;
    /// [`AuthorizationError::Unavailable`] after an outage or without a subject token. During a pause, the failure
    /// that began it is repeated.
    pub async fn obtain(&self) -> Result<Arc<Tokens>, AuthorizationError> {
        if let Some(tokens) = self.unexpired_tokens() {
            return Ok(tokens);
        }
        let _guard = self.request_lock.lock().await;
        if let Some(tokens) = self.unexpired_tokens() {
            return Ok(tokens);
        }
        let failure = match self.pause.failure() {
            Some(failure) => failure,
            None => {
                let step_up_scopes = self.state.lock().step_up_scopes.clone();
                match self.discover_and_request(&step_up_scopes).await {
                    Ok(tokens) => {
                        self.state.lock().tokens = Some(Arc::clone(&tokens));
                        return Ok(tokens);
                    }
                    Err(error) => self.record_failure(error),
                }
            }
        };
        let old = self.state.lock().tokens.clone();
        old.filter(|old| old.is_valid(Timestamp::now())).ok_or(failure)
    }

    /// Returns the last tokens, unless they are about to expire.
    fn unexpired_tokens(&self) -> Option<Arc<Tokens>> {
        let tokens = self.state.lock().tokens.clone();
        tokens.filter(|tokens| !tokens.needs_refresh(Timestamp::now()))
    }

    /// Logs a failure, and pauses requests.
    fn record_failure(&self, error: TokenError) -> AuthorizationError {
        let failure = error.begin_pause(&self.pause);
        tracing::warn!(server = self.server.name, reason = %failure, "no token was obtained for the server");
        if matches!(failure, AuthorizationError::Refused(_)) {
            // The scopes of earlier step-ups may be the reason, so the next attempt does without them.
            self.state.lock().step_up_scopes.clear();
        }
        failure
    }

    /// Obtains a token in place of one that the server refused.
    ///
    /// # Errors
    /// [`AuthorizationError::Refused`] if the server refuses a token that is new; otherwise as [`Self::obtain`].
    pub async fn replace_refused(&self, refused: &str) -> Result<(), AuthorizationError> {
        {
            let mut state = self.state.lock();
            let current = state.tokens.as_ref().filter(|current| current.access_token == refused);
            if let Some(current) = current {
                if current.is_too_new_to_replace(Timestamp::now()) {
                    let text = "does not accept the token that its authorization server issued";
                    return Err(AuthorizationError::Refused(text.to_owned()));
                }
                state.tokens = None;
            }
        }
        self.obtain().await.map(drop)
    }

    /// Obtains a token with the challenged scopes too, in place of the `refused` one, which is kept if that fails.
    ///
    /// # Errors
    /// [`AuthorizationError::Refused`] if the scopes were requested already; otherwise as [`Self::obtain`].
    pub async fn obtain_with_scopes(&self, refused: &str, challenged: &[String]) -> Result<(), AuthorizationError> {
        let guard = self.request_lock.lock().await;
        let (old, step_up_scopes) = {
            let state = self.state.lock();
            let old = state.tokens.clone().filter(|old| old.access_token == refused);
            (old, merge_scopes(&state.step_up_scopes, challenged))
        };
        let Some(old) = old else {
            drop(guard);
            return self.obtain().await.map(drop);
        };
        if old.has_requested(&step_up_scopes) {
            let text = "demands permissions that its authorization server does not grant";
            return Err(AuthorizationError::Refused(text.to_owned()));
        }
        if let Some(failure) = self.step_up_pause.failure() {
            return Err(failure);
        }
        let outcome = self.discover_and_request(&step_up_scopes).await;
        let tokens = outcome.map_err(|error| error.begin_pause(&self.step_up_pause))?;
        *self.state.lock() = State { tokens: Some(tokens), step_up_scopes };
        Ok(())
    }

    /// Discovers the authorization server, and requests a token that also has the scopes of step-ups.
    async fn discover_and_request(&self, step_up_scopes: &[String]) -> Result<Arc<Tokens>, TokenError> {
        let (client, server, now) = (&self.client, &*self.server, Timestamp::now());
        let challenge = server.challenge();
        let discovered = server.discover().await?;
        let challenged = challenge.as_ref().and_then(|challenge| challenge.scopes.as_deref());
        let requested_scopes = scopes_to_request(&server.oauth.scopes, step_up_scopes, challenged, &discovered);
        let dpop_key = server.requires_dpop().then(DpopKey::generate).transpose()?;
        let registration = client.find_or_register(server, &discovered.authorization_server).await?;
        let mut origin = TokenOrigin { discovered, registration, requested_scopes, dpop_key };
        let mut answer = self.send_grant(&server.token_request(&origin), now).await;
        if matches!(&answer, Err(TokenError::OAuth(error)) if origin.registration.is_forgotten(error)) {
            origin.registration = client.register_anew(server, &origin.discovered.authorization_server).await?;
            answer = self.send_grant(&server.token_request(&origin), now).await;
        }
        Ok(Arc::new(Tokens::new(answer?, origin, now)))
    }

    /// Sends the request with the configured grant.
    async fn send_grant(&self, request: &TokenRequest<'_>, now: Timestamp) -> Result<TokenResponse, TokenError> {
        let assertion;
        let grant = match self.server.oauth.grant {
            OAuthGrant::WorkloadIdentity => {
                assertion = self.read_subject_token().await.map_err(TokenError::Local)?;
                Grant::JwtBearer(&assertion)
            }
            OAuthGrant::Enterprise => {
                let id_token = self.read_subject_token().await.map_err(TokenError::Local)?;
                let config_for = |issuer: &str| self.client.identity_provider.config_for(issuer);
                assertion = request_assertion(&id_token, config_for, request, now).await?;
                Grant::JwtBearer(&assertion)
            }
            // An account with the grant `AuthorizationCode` has a `TokenRefresher`, so that grant does not occur here.
            OAuthGrant::ClientCredentials | OAuthGrant::AuthorizationCode => Grant::ClientCredentials,
        };
        Ok(request_token(request, grant, now).await?)
    }

    /// Returns the subject token: the ID token of the person, or the token of the workload. A file is read each time,
    /// because the token in it is replaced before it expires.
    async fn read_subject_token(&self) -> Result<String, AuthorizationError> {
        let missing = |reason: &str| AuthorizationError::Unavailable(format!("cannot be used now, because {reason}"));
        if let Some(path) = &self.server.oauth.subject_token_file {
            let token = read_token_file(path).await;
            return token.map_err(|reason| missing(&format!("{} {reason}", path.display())));
        }
        let AccountHolder::Person(person) = &self.holder else {
            return Err(missing("neither `oauth.subject_token_file` nor `auth.oidc` is set"));
        };
        let token = self.client.identity_provider.id_token(person).await.map_err(|_| store_unavailable())?;
        token.ok_or_else(|| missing("its person is not signed in to the dashboard with the identity provider"))
    }
}

/// Reads a token from a file. The error continues a sentence that begins with the path.
async fn read_token_file(path: &Path) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot be read: {error}");
    if tokio::fs::metadata(path).await.map_err(cannot)?.len() > MAX_TOKEN_FILE_LEN {
        return Err("is too large for a token".to_owned());
    }
    let text = tokio::fs::read_to_string(path).await.map_err(cannot)?;
    Ok(text.trim().to_owned())
}

/// The reason why no token was obtained.
enum TokenError {
    OAuth(OAuthError),
    /// The gateway has no subject token, or its store is unavailable.
    Local(AuthorizationError),
}

impl From<OAuthError> for TokenError {
    fn from(error: OAuthError) -> Self {
        Self::OAuth(error)
    }
}

impl From<RegistrationError> for TokenError {
    fn from(error: RegistrationError) -> Self {
        match error {
            RegistrationError::OAuth(error) => Self::OAuth(error),
            RegistrationError::Store(_) => Self::Local(store_unavailable()),
        }
    }
}

impl TokenError {
    /// Returns the failure, and begins a pause if it is one of the authorization server.
    fn begin_pause(self, pause: &Pause) -> AuthorizationError {
        let (failure, length) = match self {
            Self::OAuth(error @ OAuthError::Refused(_)) => {
                (AuthorizationError::Refused(format!("cannot be used, because {error}")), PAUSE_AFTER_REFUSAL)
            }
            Self::OAuth(error) => (unavailable(&error), PAUSE_AFTER_OUTAGE),
            Self::Local(failure) => return failure,
        };
        pause.begin(length, &failure);
        failure
    }
}

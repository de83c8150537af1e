//! Signs people in with an identity provider (OpenID Connect Core 1.0, authorization code flow with PKCE).
//!
//! A pending sign-in is not stored: its secrets travel in a sealed cookie, so that any node can finish it. The
//! provider's answers are hostile input: its error texts are logged, but never shown to people. In this module,
//! *provider* means the identity provider.

mod error;
mod id_token;
mod logout_token;
mod token_requests;

use std::{collections::BTreeSet, sync::Arc};

use arc_swap::ArcSwapOption;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use url::Url;

pub use self::{error::SignInError, logout_token::LogoutNotice};
use super::{
    TokenRefusal,
    claims::TokenClaims,
    code_flow::{self, AuthorizationParameters, AuthorizationRequest, AuthorizationResponseError},
    issuer::{Issuer, IssuerSnapshot},
    principal::other_names,
};
use countersign_config::{Config, OidcConfig, TokenIssuer};
use countersign_domain::{changes::SignInTerms, principal::Claims};
use countersign_runtime::{sealing::Sealer, secret};
use countersign_store::people::{ProviderSession, StoredPerson};

/// The name of the cookie of a pending sign-in.
pub const SIGN_IN_COOKIE: &str = "countersign_sign_in";
/// The time within which the provider must send the browser back after a sign-in has begun.
pub const MAX_SIGN_IN_DURATION: SignedDuration = SignedDuration::from_mins(10);
/// The time after which a person must sign in again, however often the sign-in is used.
pub(crate) const MAX_SESSION_LIFETIME: SignedDuration = SignedDuration::from_hours(7 * 24);
/// The context in which pending sign-ins are sealed. What was sealed in another context cannot be opened in this one.
const SIGN_IN_CONTEXT: &[u8] = b"countersign.sign-in.1";
/// The context in which the tokens of sessions are sealed.
const TOKENS_CONTEXT: &[u8] = b"countersign.tokens.1";

/// The gateway as a client of the configured identity provider. It is shared by all threads. Its requests must run on
/// threads of actix.
pub struct OidcClient {
    provider: ArcSwapOption<ConfiguredIdentityProvider>,
    sealer: Arc<Sealer>,
    /// The address of the gateway, without a slash at its end.
    public_url: String,
}

/// The configured provider, with its metadata and keys.
struct ConfiguredIdentityProvider {
    config: OidcConfig,
    issuer: Arc<Issuer>,
    /// Seals the tokens of sessions.
    sealer: Arc<Sealer>,
}

/// A sign-in that waits for the browser to come back. It is the content of the sealed cookie.
#[derive(Serialize, Deserialize)]
struct PendingSignIn {
    issuer: String,
    state: String,
    nonce: String,
    verifier: String,
    started_at: Timestamp,
    /// The terms of the decision for which the person signs in, if there is one.
    #[serde(default)]
    required: Option<SignInTerms>,
}

/// A sign-in that has begun, with what the browser needs.
pub struct StartedSignIn {
    /// The provider's page.
    pub url: String,
    /// The value of [`SIGN_IN_COOKIE`].
    pub cookie: String,
}

/// A person who signed in at the provider, or whose session was renewed.
#[derive(Debug, PartialEq, Eq)]
pub struct VerifiedPerson {
    pub person: StoredPerson,
    pub session: ProviderSession,
}

/// The provider's tokens that a session keeps, before they are sealed.
#[derive(Clone, Serialize, Deserialize)]
struct SessionTokens {
    id_token: String,
    refresh_token: Option<String>,
    /// The names of the claims that the UserInfo endpoint has returned since the ID token was issued.
    #[serde(default)]
    userinfo_claims: BTreeSet<String>,
}

/// The outcome of the attempt to renew a session.
pub enum Renewal {
    Renewed(Box<VerifiedPerson>),
    /// The provider refuses to renew the session, or the gateway can no longer ask.
    Ended,
    /// The provider gave no usable answer. If it has replaced the refresh token all the same, the session has the new
    /// one.
    Unknown(Option<ProviderSession>),
}

impl OidcClient {
    pub fn new(config: &Config, sealer: Sealer) -> Self {
        let public_url = config.public_url.as_deref().unwrap_or_default().trim_end_matches('/').to_owned();
        let client = Self { provider: ArcSwapOption::empty(), sealer: Arc::new(sealer), public_url };
        client.set_provider(config.auth.oidc.as_ref());
        client
    }

    /// Replaces the configuration of the provider. Its known keys are kept if its issuer and its certificate authorities
    /// are the same as before.
    pub fn set_provider(&self, config: Option<&OidcConfig>) {
        let old = self.provider.load();
        let provider = config.map(|config| {
            let issuer = match &*old {
                Some(old) if (&old.config.issuer, &old.config.authorities) == (&config.issuer, &config.authorities) => {
                    Arc::clone(&old.issuer)
                }
                _ => Arc::new(Issuer::for_sign_ins(TokenIssuer {
                    issuer: config.issuer.clone(),
                    audiences: Vec::new(),
                    roles: Default::default(),
                    groups_claim: config.groups_claim.clone(),
                    introspection: None,
                    authorities: config.authorities.clone(),
                })),
            };
            let (config, sealer) = (config.clone(), Arc::clone(&self.sealer));
            Arc::new(ConfiguredIdentityProvider { config, issuer, sealer })
        });
        self.provider.store(provider);
    }

    /// Returns the configuration of the provider, if people sign in with one.
    pub fn config(&self) -> Option<OidcConfig> {
        self.provider.load().as_ref().map(|provider| provider.config.clone())
    }

    /// Returns the person with the role that the current configuration gives to their last known claims. People of
    /// another provider have no role.
    pub fn reassess(&self, person: &StoredPerson) -> StoredPerson {
        let provider = self.provider.load_full().filter(|provider| {
            let subject = person.name.strip_prefix(&provider.config.issuer);
            subject.is_some_and(|subject| subject.starts_with('#'))
        });
        let claims = TokenClaims::parse(person.claims.json.clone()).ok();
        let Some((provider, claims)) = provider.zip(claims) else {
            return StoredPerson { role: None, ..person.clone() };
        };
        let (role, groups) = provider.assess(&claims);
        let other_names = other_names(&claims, &provider.config.issuer);
        let claims = Arc::new(Claims { groups, other_names, ..(*person.claims).clone() });
        StoredPerson { role, claims, ..person.clone() }
    }

    /// Begins a sign-in. If a decision requires one, the person must authenticate again.
    ///
    /// # Errors
    /// Returns why it cannot begin.
    pub async fn begin(&self, required: Option<&SignInTerms>, now: Timestamp) -> Result<StartedSignIn, SignInError> {
        let provider = self.provider.load_full().ok_or(SignInError::NotConfigured)?;
        let ConfiguredIdentityProvider { config, issuer, .. } = &*provider;
        let snapshot = issuer.current_snapshot(now).await.map_err(SignInError::from_refusal)?;
        let endpoint = snapshot.metadata.authorization_endpoint.as_deref();
        let endpoint = endpoint.ok_or_else(|| provider.log_unusable("its metadata has no `authorization_endpoint`"))?;
        let invalid_url = |_| provider.log_unusable("its `authorization_endpoint` is not a URL");
        let endpoint = Url::parse(endpoint).map_err(invalid_url)?;
        let parameters = AuthorizationParameters {
            client_id: &config.client_id,
            redirect_uri: &self.redirect_uri(),
            scopes: &config.scopes,
            needs_login: required.is_some(),
        };
        let request = parameters.into_request(endpoint).map_err(|_| SignInError::Failed)?;
        let AuthorizationRequest { mut url, state, verifier, .. } = request;
        let nonce = secret::generate("").map_err(|_| SignInError::Failed)?;
        url.query_pairs_mut().append_pair("nonce", &nonce);
        if let Some(SignInTerms { max_age, acr }) = required {
            // With `max_age`, the ID token must have `auth_time`.
            if let Some(max_age) = max_age {
                url.query_pairs_mut().append_pair("max_age", &max_age.to_string());
            }
            if !acr.is_empty() {
                url.query_pairs_mut().append_pair("acr_values", &acr.join(" "));
            }
        }
        let (issuer, required) = (config.issuer.clone(), required.cloned());
        let pending = PendingSignIn { issuer, state, nonce, verifier, started_at: now, required };
        let json = serde_json::to_string(&pending).map_err(|_| SignInError::Failed)?;
        let cookie = self.sealer.seal(SIGN_IN_CONTEXT, &json).map_err(|_| SignInError::Failed)?;
        Ok(StartedSignIn { url: url.into(), cookie })
    }

    /// Finishes a sign-in with the query of the browser's request and its [`SIGN_IN_COOKIE`].
    ///
    /// # Errors
    /// Returns why nobody is signed in.
    pub async fn finish(
        &self,
        query: &str,
        cookie: Option<&str>,
        now: Timestamp,
    ) -> Result<VerifiedPerson, SignInError> {
        let provider = self.provider.load_full().ok_or(SignInError::NotConfigured)?;
        let json = cookie.and_then(|cookie| self.sealer.open(SIGN_IN_CONTEXT, cookie));
        let json = json.ok_or(SignInError::Interrupted)?;
        let pending: PendingSignIn = serde_json::from_str(&json).map_err(|_| SignInError::Interrupted)?;
        if now.duration_since(pending.started_at).abs() >= MAX_SIGN_IN_DURATION
            || pending.issuer != provider.config.issuer
        {
            return Err(SignInError::Interrupted);
        }
        let snapshot = provider.issuer.current_snapshot(now).await.map_err(SignInError::from_refusal)?;
        let code = read_code(query, &pending, &snapshot)?;
        let answer = provider.redeem_code(&snapshot, &code, &pending.verifier, &self.redirect_uri()).await?;
        let no_id_token = || provider.log_unusable("the token endpoint returned no ID token");
        let id_token = answer.id_token.ok_or_else(no_id_token)?;
        let claims = provider.verify_id_token(&id_token, Some(&pending.nonce), now).await?;
        let tokens = SessionTokens { id_token, refresh_token: answer.refresh_token, userinfo_claims: BTreeSet::new() };
        let verified = provider.build_session(claims, tokens, answer.access_token.as_deref(), now).await?;
        if verified.person.role.is_none() {
            let person = verified.person.name;
            tracing::info!(person, "a person has no role here, because of their groups or claims");
            return Err(SignInError::NoRole);
        }
        if let Some(required) = &pending.required {
            check_sign_in_terms(required, &verified.session, now)?;
        }
        Ok(verified)
    }

    /// Renews a session, and reads the current claims of its person from the provider.
    pub async fn renew(&self, session: &ProviderSession, now: Timestamp) -> Renewal {
        let Some(provider) = self.provider.load_full() else { return Renewal::Ended };
        let tokens = self.sealer.open(TOKENS_CONTEXT, &session.tokens);
        let tokens = tokens.and_then(|json| serde_json::from_str::<SessionTokens>(&json).ok());
        let Some(SessionTokens { id_token, refresh_token: Some(refresh_token), userinfo_claims }) = tokens else {
            return Renewal::Ended;
        };
        if session.issuer != provider.config.issuer {
            return Renewal::Ended;
        }
        let unknown = |error: SignInError, tokens: Option<SessionTokens>| {
            tracing::warn!(
                ?error,
                issuer = session.issuer,
                "a sign-in could not be renewed at the identity provider, and continues"
            );
            let sealed_tokens = tokens.and_then(|tokens| provider.seal_tokens(&tokens).ok());
            Renewal::Unknown(sealed_tokens.map(|tokens| ProviderSession { tokens, ..session.clone() }))
        };
        let answer = match provider.redeem_refresh_token(&refresh_token, now).await {
            Ok(answer) => answer,
            Err(SignInError::Denied) => return Renewal::Ended,
            Err(error) => return unknown(error, None),
        };
        let refresh_token = answer.refresh_token.clone().unwrap_or(refresh_token);
        let tokens = SessionTokens { id_token, refresh_token: Some(refresh_token), userinfo_claims };
        match provider.build_renewed_session(session, &tokens, answer, now).await {
            Ok(verified) => Renewal::Renewed(Box::new(verified)),
            Err(error) => unknown(error, Some(tokens)),
        }
    }

    /// Returns the ID token of a session. It must be sent only to its issuer.
    pub fn id_token(&self, session: &ProviderSession) -> Option<String> {
        let provider = self.provider.load_full().filter(|provider| provider.config.issuer == session.issuer);
        let tokens = provider.and_then(|_| self.sealer.open(TOKENS_CONTEXT, &session.tokens));
        serde_json::from_str(&tokens?).ok().map(|SessionTokens { id_token, .. }| id_token)
    }

    /// Returns the URL at which the provider ends a session, if it has one.
    pub fn end_session_url(&self, session: &ProviderSession, now: Timestamp) -> Option<String> {
        let provider = self.provider.load_full().filter(|provider| provider.config.issuer == session.issuer)?;
        let snapshot = provider.issuer.snapshot(now)?;
        let mut url = Url::parse(snapshot.metadata.end_session_endpoint.as_deref()?).ok()?;
        url.query_pairs_mut()
            .append_pair("id_token_hint", &self.id_token(session)?)
            .append_pair("client_id", &provider.config.client_id)
            .append_pair("post_logout_redirect_uri", &format!("{}/", self.public_url));
        Some(url.into())
    }

    /// Verifies a logout token (OpenID Connect Back-Channel Logout 1.0, section 2.6).
    ///
    /// # Errors
    /// Returns why the token is refused.
    pub async fn verify_logout_token(&self, token: &str, now: Timestamp) -> Result<LogoutNotice, TokenRefusal> {
        let provider = self.provider.load_full();
        let provider = provider.ok_or_else(|| TokenRefusal::invalid("no identity provider is configured"))?;
        provider.verify_logout_token(token, now).await
    }

    /// Returns the page of the gateway that begins a sign-in, at the address to which the browser comes back.
    pub fn sign_in_url(&self) -> String {
        format!("{}/api/sign-in/provider", self.public_url)
    }

    fn redirect_uri(&self) -> String {
        format!("{}/api/sign-in/callback", self.public_url)
    }
}

/// Checks that the query of the redirect belongs to the sign-in, and returns its code.
fn read_code(query: &str, pending: &PendingSignIn, snapshot: &IssuerSnapshot) -> Result<String, SignInError> {
    let code = code_flow::read_code(query, &pending.state, &pending.issuer, snapshot.metadata.names_issuer());
    code.map_err(|error| match error {
        AuthorizationResponseError::OtherRequest => SignInError::Interrupted,
        AuthorizationResponseError::OtherIssuer | AuthorizationResponseError::NoCode => {
            tracing::warn!(issuer = pending.issuer, %error, "the identity provider did not answer as expected");
            SignInError::ProviderUnusable
        }
        AuthorizationResponseError::Refused(error) => {
            tracing::info!(%error, "the provider did not sign a person in");
            SignInError::Denied
        }
    })
}

/// Checks that the sign-in meets the terms of the decision. Otherwise the person would be sent to the provider again
/// and again.
fn check_sign_in_terms(required: &SignInTerms, session: &ProviderSession, now: Timestamp) -> Result<(), SignInError> {
    let ProviderSession { auth_time, acr, .. } = session;
    let error = match (required.admits_time(*auth_time, now), required.admits_acr(acr.as_deref())) {
        (true, true) => return Ok(()),
        (false, _) => SignInError::NotRecent,
        (true, false) => SignInError::NotStrong,
    };
    tracing::warn!(%required, auth_time, acr, "the sign-in at the identity provider does not suffice for the decision");
    Err(error)
}

impl ConfiguredIdentityProvider {
    /// Seals tokens for a [`ProviderSession`].
    fn seal_tokens(&self, tokens: &SessionTokens) -> Result<String, SignInError> {
        let json = serde_json::to_string(tokens).map_err(|_| SignInError::Failed)?;
        self.sealer.seal(TOKENS_CONTEXT, &json).map_err(|_| SignInError::Failed)
    }
}

#[cfg(test)]
mod tests;

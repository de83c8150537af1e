//! The consent of a person to an account: sends the browser to the authorization server, and exchanges the code with
//! which it comes back.
//!
//! A pending consent is not stored: its secrets travel in a sealed cookie, so that any node can finish it.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;
use url::form_urlencoded;

use super::{
    client::{OAuthClient, RegistrationError},
    oauth::{
        OAuthError,
        authorization::{build_authorization_request, read_code, scopes_to_request},
        challenge::Challenge,
        discovery::{AuthorizationServer, DiscoveredResource},
        dpop::DpopKey,
        registration::Registration,
        token::{Grant, request_token},
    },
    server::AccountServer,
    tokens::{StepUp, TokenOrigin, Tokens},
};
use countersign_auth::tokens::code_flow::MAX_QUERY_LEN;
use countersign_domain::principal::Principal;
use countersign_store::accounts::AccountKey;

/// The time within which the authorization server must send the browser back.
pub const MAX_CONSENT_DURATION: SignedDuration = SignedDuration::from_mins(10);
/// The maximum number of bytes of the cookie's value. Every browser keeps 4,096 bytes with the attributes.
const MAX_COOKIE_LEN: usize = 3800;
const COOKIE_CONTEXT: &[u8] = b"countersign.connect.1";

/// A consent that has begun, with what the browser needs.
pub struct StartedConsent {
    /// The page of the authorization server.
    pub url: String,
    /// The value of [`CONSENT_COOKIE`](crate::CONSENT_COOKIE).
    pub cookie: String,
}

/// A consent that has connected its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedConsent {
    pub server: String,
    /// The name of the principal who began the consent.
    pub started_by: String,
}

/// The reason why no account was connected at a server. Its text is shown to the person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum ConnectError {
    #[error("there is no such server, or it needs no account")]
    UnknownServer,
    /// The account of the gateway (`oauth.as: gateway`) is connected by an admin.
    #[error("only an admin can connect this server")]
    AdminOnly,
    /// The key was revoked, or the person lost their role, since the consent began.
    #[error("the person or key that began the connection no longer has access")]
    AccessEnded,
    #[error("the connection took too long or was begun in another browser")]
    Interrupted,
    #[error("the authorization server did not grant access")]
    Denied,
    #[error("the server or its authorization server cannot be reached now")]
    #[strum(serialize = "provider-away")]
    AuthorizationServerUnreachable,
    #[error("the server or its authorization server does not do what the specification requires")]
    #[strum(serialize = "provider-unusable")]
    AuthorizationServerUnusable,
    #[error("the connection could not be stored")]
    #[strum(serialize = "failed")]
    StoreUnavailable,
}

impl ConnectError {
    /// Returns the name of the problem in the URL of the dashboard.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A consent that waits for the browser to come back. It is the content of the sealed cookie.
#[derive(Serialize, Deserialize)]
pub struct PendingConsent {
    /// The account to connect.
    #[serde(flatten)]
    pub account: AccountKey,
    target: String,
    /// The name of the principal who began it, for the audit trail.
    #[serde(rename = "by")]
    pub started_by: String,
    /// The id of the principal's API key. [`Accounts::finish_consent`](crate::Accounts::finish_consent) checks that the
    /// key is still valid.
    #[serde(rename = "key_id")]
    pub api_key_id: Option<String>,
    discovered: DiscoveredResource,
    registration: Registration,
    redirect_uri: String,
    state: String,
    verifier: String,
    scopes: Vec<String>,
    is_dpop: bool,
    started_at: Timestamp,
}

/// Begins the consent of a holder to a server.
///
/// # Errors
/// [`ConnectError::StoreUnavailable`]; otherwise a problem of the server or its authorization server.
pub async fn begin(
    client: &OAuthClient,
    server: &AccountServer,
    key: AccountKey,
    principal: &Principal,
    now: Timestamp,
) -> Result<StartedConsent, ConnectError> {
    let old = client.store.read(&key, &server.target).await.map_err(|_| ConnectError::StoreUnavailable)?;
    let challenge = server.challenge();
    let discovered = discover(client, server).await.map_err(|error| log_problem(server, &error))?;
    let registration =
        client.registration_for_consent(server, &discovered.authorization_server, &key.holder, now).await;
    let registration = registration.map_err(|error| match error {
        RegistrationError::OAuth(error) => log_problem(server, &error),
        RegistrationError::Store(_) => ConnectError::StoreUnavailable,
    })?;
    let old = old.filter(|old| old.tokens.issuer() == discovered.authorization_server.issuer);
    let earlier_scopes = old.map(|old| old.tokens.scopes_for_next_consent(now)).unwrap_or_default();
    let challenged = challenge.as_ref().and_then(|challenge| challenge.scopes.as_deref());
    let scopes = scopes_to_request(&server.oauth.scopes, &earlier_scopes, challenged, &discovered);
    let (addresses, is_legacy) = (client.addresses.load(), server.oauth.legacy);
    let request = build_authorization_request(&discovered, &registration, &addresses.redirect_uri, &scopes, is_legacy);
    let request = request.map_err(|error| log_problem(server, &error))?;
    let pending = PendingConsent {
        account: key,
        target: server.target.clone(),
        started_by: principal.name.clone(),
        api_key_id: principal.key_id.clone(),
        discovered: remove_unneeded_lists(discovered),
        registration,
        redirect_uri: request.redirect_uri,
        state: request.state,
        verifier: request.verifier,
        scopes,
        is_dpop: server.requires_dpop(),
        started_at: now,
    };
    let cookie = client.store.seal(COOKIE_CONTEXT, &pending).map_err(|_| ConnectError::StoreUnavailable)?;
    if cookie.len() > MAX_COOKIE_LEN {
        let text = format!("its metadata and scopes are too long ({} bytes)", cookie.len());
        return Err(log_problem(server, &OAuthError::Unusable(text)));
    }
    client.record_consent(&pending.registration, &pending.account.holder);
    Ok(StartedConsent { url: request.url.into(), cookie })
}

/// Finds the authorization server of a server. If the server has sent no challenge since the gateway started, its metadata
/// may be at a URL that an earlier challenge named, which the accounts at the server know.
async fn discover(client: &OAuthClient, server: &AccountServer) -> Result<DiscoveredResource, OAuthError> {
    let outcome = server.discover().await;
    if outcome.is_ok() || server.challenge().is_some() {
        return outcome;
    }
    for holder in client.store.holders(&server.name, &server.target) {
        let account = client.store.read(&server.account_key(holder), &server.target).await.ok().flatten();
        let resource_metadata = account.and_then(|account| account.tokens.origin.discovered.metadata_url.clone());
        if resource_metadata.is_some() {
            return server.discover_after(Some(Challenge { resource_metadata, ..Challenge::default() })).await;
        }
    }
    outcome
}

/// Opens the cookie of a consent that began less than ten minutes ago.
pub fn open(client: &OAuthClient, cookie: &str, now: Timestamp) -> Option<PendingConsent> {
    let pending: PendingConsent = client.store.open(COOKIE_CONTEXT, cookie)?;
    (now.duration_since(pending.started_at).abs() < MAX_CONSENT_DURATION).then_some(pending)
}

/// Exchanges the code in the query of the browser's request. Returns the tokens of the consent.
///
/// # Errors
/// [`ConnectError::Interrupted`] if the query does not belong to this consent; otherwise a problem of the
/// authorization server.
pub async fn redeem(
    client: &OAuthClient,
    server: &AccountServer,
    pending: PendingConsent,
    query: &str,
    now: Timestamp,
) -> Result<Tokens, ConnectError> {
    let has_state =
        || form_urlencoded::parse(query.as_bytes()).any(|(key, value)| key == "state" && value == pending.state);
    if pending.target != server.target || query.len() > MAX_QUERY_LEN || !has_state() {
        return Err(ConnectError::Interrupted);
    }
    client.record_answer(&pending.registration);
    let PendingConsent { discovered, registration, redirect_uri, state, verifier, scopes, is_dpop, .. } = pending;
    let AuthorizationServer { issuer, names_issuer, .. } = &discovered.authorization_server;
    let code = read_code(query, &state, issuer, *names_issuer).map_err(|error| log_problem(server, &error))?;
    let dpop_key = is_dpop.then(DpopKey::generate).transpose().map_err(|error| log_problem(server, &error))?;
    let origin = TokenOrigin { discovered, registration, requested_scopes: scopes, dpop_key };
    let grant = Grant::Code { code: &code, verifier: &verifier, redirect_uri: &redirect_uri };
    let error = match request_token(&server.token_request(&origin), grant, now).await {
        Ok(answer) => return Ok(Tokens::new(answer, origin, now)),
        Err(error) => error,
    };
    if origin.registration.is_forgotten(&error) {
        // The code was issued to the forgotten client, so the person must begin again.
        let registered = client.register_anew(server, &origin.discovered.authorization_server).await;
        let text = "the authorization server no longer knew the gateway, which had to register again";
        tracing::info!(server = server.name, is_registered = registered.is_ok(), "{text}");
    }
    Err(log_problem(server, &error))
}

/// Stores the tokens of a consent, with the scopes that the server demanded before, and counts the consent for them.
///
/// # Errors
/// [`ConnectError::StoreUnavailable`]
pub async fn connect(
    client: &OAuthClient,
    server: &AccountServer,
    key: &AccountKey,
    mut tokens: Tokens,
    now: Timestamp,
) -> Result<(), ConnectError> {
    let old = client.store.read(key, &server.target).await.map_err(|_| ConnectError::StoreUnavailable)?;
    let step_up = old.and_then(|old| old.tokens.step_up.clone());
    tokens.step_up = step_up.map(|step_up| StepUp { consents: step_up.consents + 1, ..step_up });
    client.store.connect_account(key, &server.target, &tokens, now).await.map_err(|_| ConnectError::StoreUnavailable)
}

/// Removes the lists that [`redeem`] does not need, because the cookie must be short.
fn remove_unneeded_lists(discovered: DiscoveredResource) -> DiscoveredResource {
    let authorization_server =
        AuthorizationServer { scopes_supported: None, grant_types: None, ..discovered.authorization_server };
    DiscoveredResource { resource_scopes: None, authorization_server, ..discovered }
}

/// Logs why no account was connected, and returns the problem for the person.
fn log_problem(server: &AccountServer, error: &OAuthError) -> ConnectError {
    tracing::warn!(server = server.name, %error, "no account was connected at the server");
    match error {
        OAuthError::Unavailable { .. } => ConnectError::AuthorizationServerUnreachable,
        OAuthError::Unusable(_) => ConnectError::AuthorizationServerUnusable,
        OAuthError::Refused(_) => ConnectError::Denied,
    }
}

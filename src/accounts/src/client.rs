//! The gateway as a client of authorization servers: its registrations, and access to the stored accounts.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use futures_util::future::LocalBoxFuture;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::{
    failure::ConsentReason,
    oauth::{
        OAuthError,
        discovery::AuthorizationServer,
        registration::{ClientAddresses, Registration, known_registration, register},
    },
    sealed_store::{SealedStore, UnsealedAccount},
    server::AccountServer,
    tokens::{TokenOrigin, Tokens},
};
use countersign_auth::provider_sign_ins::ProviderSignIns;
use countersign_config::OidcConfig;
use countersign_domain::account_holder::AccountHolder;
use countersign_protocol::McpError;
use countersign_store::accounts::AccountKey;

/// The time after which unanswered consents make the gateway register anew once more at an authorization server.
const REGISTRATION_PAUSE: SignedDuration = SignedDuration::from_mins(10);

/// The identity provider at which people sign in to the gateway.
pub trait IdentityProvider: Send + Sync {
    /// Returns the ID token of a person, or `None` if they are not signed in.
    fn id_token<'a>(&'a self, person: &'a str) -> LocalBoxFuture<'a, Result<Option<String>, McpError>>;

    /// Returns the configuration of the identity provider if this is its issuer.
    fn config_for(&self, issuer: &str) -> Option<OidcConfig>;
}

impl IdentityProvider for ProviderSignIns {
    fn id_token<'a>(&'a self, person: &'a str) -> LocalBoxFuture<'a, Result<Option<String>, McpError>> {
        Box::pin(self.id_token(person))
    }

    fn config_for(&self, issuer: &str) -> Option<OidcConfig> {
        self.client().config().filter(|config| config.issuer == issuer)
    }
}

/// A function that is called with the server and the holder of an account that was connected or disconnected.
pub type ChangeListener = Box<dyn Fn(&str, &AccountHolder) + Send + Sync>;

/// The gateway as a client of authorization servers, which all accounts share.
pub struct OAuthClient {
    pub store: Arc<SealedStore>,
    pub addresses: ArcSwap<ClientAddresses>,
    pub identity_provider: Arc<dyn IdentityProvider>,
    pub on_change: ChangeListener,
    pub unanswered_consents: Mutex<UnansweredConsents>,
}

/// The consents that this node began with a dynamic registration, and that the authorization server has not answered.
#[derive(Default)]
pub struct UnansweredConsents {
    /// The client id in the last one, by issuer and holder.
    client_ids: HashMap<(String, AccountHolder), String>,
    /// The last time at which the gateway registered anew because of one, by issuer.
    registered_at: HashMap<String, Timestamp>,
}

/// The reason why the gateway has no registration at an authorization server.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RegistrationError {
    #[error(transparent)]
    OAuth(#[from] OAuthError),
    #[error("the store of the gateway is unavailable")]
    Store(#[from] McpError),
}

impl UnansweredConsents {
    /// Returns `true` if the gateway must register anew for a consent of this holder, and remembers the time.
    fn begin_registration(&mut self, known: &Registration, holder: &AccountHolder, now: Timestamp) -> bool {
        let last_client_id = self.client_ids.get(&(known.issuer.clone(), holder.clone()));
        let last_time = self.registered_at.get(&known.issuer);
        let is_due = last_client_id == Some(&known.client_id)
            && last_time.is_none_or(|last| now.duration_since(*last) >= REGISTRATION_PAUSE);
        if is_due {
            self.registered_at.insert(known.issuer.clone(), now);
        }
        is_due
    }
}

impl OAuthClient {
    /// Reads an account. Tokens of another authorization server than the configured one are marked as unusable, so that
    /// the other server never receives the secret of the configured client.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn read_account(
        &self,
        key: &AccountKey,
        server: &AccountServer,
    ) -> Result<Option<UnsealedAccount>, McpError> {
        let mut account = self.store.read(key, &server.target).await?;
        if let Some(UnsealedAccount { tokens, .. }) = &mut account
            && !server.accepts_issuer(tokens.issuer())
        {
            let (tokens, reason) = (Arc::make_mut(tokens), Some(ConsentReason::OtherIssuer));
            tokens.refresh_token = None;
            tokens.end_reason = reason;
            tokens.refusal_reason = reason;
        }
        Ok(account)
    }

    /// Returns the gateway's registration at an authorization server, and registers the gateway if there is none.
    ///
    /// # Errors
    /// [`RegistrationError::OAuth`] if the authorization server does not register the gateway;
    /// [`RegistrationError::Store`] if the store is unavailable.
    pub async fn find_or_register(
        &self,
        server: &AccountServer,
        authorization_server: &AuthorizationServer,
    ) -> Result<Registration, RegistrationError> {
        let issuer = &authorization_server.issuer;
        let issuers = self.store.issuers(&server.name, &server.target);
        if !server.bind_client_to_issuer(issuer, &issuers) {
            let text = "the server names another authorization server than before, which does not know the configured \
                        `client_id`; set `oauth.issuer`";
            return Err(OAuthError::Unusable(text.to_owned()).into());
        }
        if let Some(registration) = known_registration(authorization_server, &server.oauth, &self.addresses.load()) {
            return Ok(registration);
        }
        let stored = self.store.registration(issuer).await?.filter(|stored| {
            stored.issuer == *issuer
                && stored.dynamic_redirect_uri.as_ref() == Some(&self.addresses.load().redirect_uri)
        });
        match stored {
            Some(stored) => Ok(stored),
            None => self.register_anew(server, authorization_server).await,
        }
    }

    /// Returns the registration for the consent of a holder. An authorization server that has forgotten a client shows an
    /// error to the person and sends nobody back. So if the last consent of the holder was not answered, the gateway
    /// registers anew, at most once within [`REGISTRATION_PAUSE`]. If that fails, it uses the known registration.
    ///
    /// # Errors
    /// Those of [`Self::find_or_register`].
    pub async fn registration_for_consent(
        &self,
        server: &AccountServer,
        authorization_server: &AuthorizationServer,
        holder: &AccountHolder,
        now: Timestamp,
    ) -> Result<Registration, RegistrationError> {
        let known = self.find_or_register(server, authorization_server).await?;
        if !self.unanswered_consents.lock().begin_registration(&known, holder, now) {
            return Ok(known);
        }
        match self.register_anew(server, authorization_server).await {
            Err(RegistrationError::OAuth(error)) => {
                tracing::warn!(server = server.name, %error, "the gateway could not register anew");
                Ok(known)
            }
            outcome => outcome,
        }
    }

    /// Records that a consent with this registration has begun.
    pub fn record_consent(&self, registration: &Registration, holder: &AccountHolder) {
        if registration.dynamic_redirect_uri.is_some() {
            let key = (registration.issuer.clone(), holder.clone());
            self.unanswered_consents.lock().client_ids.insert(key, registration.client_id.clone());
        }
    }

    /// Records that the authorization server answered a consent with this registration, which it thus knows.
    pub fn record_answer(&self, registration: &Registration) {
        let is_other = |issuer: &String, client_id: &String| {
            (issuer, client_id) != (&registration.issuer, &registration.client_id)
        };
        self.unanswered_consents.lock().client_ids.retain(|(issuer, _), client_id| is_other(issuer, client_id));
    }

    /// Registers the gateway, and replaces an earlier registration. Boxed, so that its code is compiled in this crate only.
    ///
    /// # Errors
    /// Those of [`Self::find_or_register`].
    pub fn register_anew<'a>(
        &'a self,
        server: &'a AccountServer,
        authorization_server: &'a AuthorizationServer,
    ) -> LocalBoxFuture<'a, Result<Registration, RegistrationError>> {
        Box::pin(async move {
            let (addresses, trusted) = (self.addresses.load_full(), server.authorities.as_ref());
            let registration = register(authorization_server, &addresses, trusted).await?;
            self.store.put_registration(&registration).await?;
            Ok(registration)
        })
    }

    /// Returns the registration to which tokens were issued, with the secret that is configured now.
    pub fn registration_for(&self, tokens: &Tokens, server: &AccountServer) -> Registration {
        let TokenOrigin { discovered, registration, .. } = &tokens.origin;
        let configured = known_registration(&discovered.authorization_server, &server.oauth, &self.addresses.load());
        let configured = configured.filter(|known| known.client_id == registration.client_id);
        configured.unwrap_or_else(|| registration.clone())
    }
}

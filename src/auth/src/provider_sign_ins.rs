//! Keeps sign-ins in step with the identity provider: finishes them, renews them, and ends them when it says so.
//!
//! Any node may do any of these, so all state is in the store.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;

use super::{
    codes,
    stored_credentials::StoredCredentials,
    tokens::oidc::{OidcClient, Renewal, SignInProblem, VerifiedPerson},
};
use countersign_config::OidcConfig;
use countersign_protocol::{ErrorKind, McpError};
use countersign_store::{StoreError, keys::SignIn};

/// The maximum number of concurrent renewals.
const MAX_RENEWALS: usize = 16;
/// The maximum pause between two searches for sign-ins that are due.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// The minimum pause between two such searches.
const MIN_PAUSE: Duration = Duration::from_millis(250);

/// The sign-ins with the identity provider.
pub struct ProviderSignIns {
    client: OidcClient,
    store: Arc<StoredCredentials>,
}

impl ProviderSignIns {
    #[must_use]
    pub fn new(client: OidcClient, store: Arc<StoredCredentials>) -> Self {
        Self { client, store }
    }

    #[must_use]
    pub fn client(&self) -> &OidcClient {
        &self.client
    }

    /// Finishes a sign-in, and returns a one-time code for the dashboard.
    ///
    /// # Errors
    /// Returns why nobody is signed in.
    pub async fn finish(&self, query: &str, cookie: Option<&str>, now: Timestamp) -> Result<String, SignInProblem> {
        let VerifiedPerson { person, session } = self.client.finish(query, cookie, now).await?;
        let code = self.with_store(move |store| {
            store.writer().put_person(&person)?;
            let stored = store.writer().person(&person.name)?;
            if stored.is_some_and(|stored| stored.revoked_at.is_some()) {
                return Ok(None);
            }
            codes::create_for_session(store.writer(), &session, now).map(Some)
        });
        code.await.map_err(|_| SignInProblem::Failed)?.ok_or(SignInProblem::Revoked)
    }

    /// Ends the sign-ins that a logout token names. Returns their number.
    ///
    /// # Errors
    /// `INVALID_REQUEST` for a token that is refused or was used before; `UPSTREAM_UNAVAILABLE` if the keys of the
    /// identity provider are not known; `STORE_UNAVAILABLE`.
    pub async fn end_sessions(&self, logout_token: &str, now: Timestamp) -> Result<usize, McpError> {
        let notice = self.client.verify_logout_token(logout_token, now).await.map_err(|refusal| {
            let error = McpError::from(refusal);
            let kind =
                if error.kind == ErrorKind::UpstreamUnavailable { error.kind } else { ErrorKind::InvalidRequest };
            McpError::new(kind, error.message.clone())
        })?;
        let ended = self.with_store(move |store| {
            if !store.writer().use_token(&notice.id, now, notice.expires_at)? {
                return Err(McpError::new(ErrorKind::InvalidRequest, "the logout token was used before"));
            }
            let is_ended = |sign_in: &SignIn| sign_in.session.as_ref().is_some_and(|session| notice.ends(session));
            let ids: Vec<_> = store.sign_ins()?.into_iter().filter(is_ended).map(|sign_in| sign_in.id).collect();
            store.forget_sign_ins(&ids)?;
            Ok(ids.len())
        });
        let ended = ended.await?;
        tracing::info!(ended, "the identity provider ended sign-ins");
        Ok(ended)
    }

    /// Returns the ID token of a person's newest sign-in, or `None` if the person is not signed in.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn id_token(&self, person: &str) -> Result<Option<String>, McpError> {
        let sign_ins = self.with_store(StoredCredentials::sign_ins).await?;
        let of_person = sign_ins.into_iter().filter(|sign_in| sign_in.principal.owner() == person);
        let newest = of_person.filter(|sign_in| sign_in.session.is_some()).max_by_key(|sign_in| sign_in.refreshed_at);
        Ok(newest.and_then(|sign_in| self.client.id_token(sign_in.session.as_ref()?)))
    }

    /// Renews sign-ins when they are due, and applies changes of the configuration, until the gateway ends.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut applied_config = None;
        loop {
            let config = self.client.config();
            let pause = config.as_ref().map_or(MAX_PAUSE, |config| (config.refresh / 4).clamp(MIN_PAUSE, MAX_PAUSE));
            if applied_config.as_ref() != Some(&config) && self.apply_config(config.as_ref()).await.is_ok() {
                applied_config = Some(config.clone());
            }
            if let Some(config) = &config {
                self.renew_due_sign_ins(config).await;
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Computes the role of each stored person again under the new configuration, and ends sign-ins at identity
    /// providers that are no longer configured.
    async fn apply_config(&self, config: Option<&OidcConfig>) -> Result<(), McpError> {
        for person in self.with_store(|store| store.writer().people()).await? {
            let reassessed = self.client.reassess(&person);
            if reassessed != person {
                self.with_store(move |store| store.writer().put_person(&reassessed)).await?;
            }
        }
        let issuer = config.map(|config| config.issuer.clone());
        let is_of_other_issuer = move |sign_in: &SignIn| {
            sign_in.session.as_ref().is_some_and(|session| Some(&session.issuer) != issuer.as_ref())
        };
        self.with_store(move |store| {
            let others = store.sign_ins()?.into_iter().filter(is_of_other_issuer).map(|sign_in| sign_in.id);
            store.forget_sign_ins(&others.collect::<Vec<_>>())
        })
        .await
    }

    /// Renews the sign-ins that were not renewed for `auth.oidc.refresh`.
    async fn renew_due_sign_ins(&self, config: &OidcConfig) {
        let now = Timestamp::now();
        let interval = SignedDuration::try_from(config.refresh).unwrap_or(SignedDuration::MAX);
        let is_due = |sign_in: &SignIn| sign_in.refreshed_at.is_some_and(|last| now.duration_since(last) >= interval);
        let all = self.with_store(StoredCredentials::sign_ins).await.unwrap_or_default();
        let due: Vec<SignIn> = all.into_iter().filter(is_due).collect();
        for batch in due.chunks(MAX_RENEWALS) {
            futures_util::future::join_all(batch.iter().map(|sign_in| self.renew(sign_in))).await;
        }
    }

    /// Renews a sign-in at the identity provider unless another node does so, and stores the result.
    async fn renew(&self, sign_in: &SignIn) {
        let (Some(session), Some(last)) = (&sign_in.session, sign_in.refreshed_at) else { return };
        let (id, now) = (sign_in.id, Timestamp::now());
        let claimed = self.with_store(move |store| store.writer().claim_refresh(&id, last, now));
        if !matches!(claimed.await, Ok(true)) {
            return;
        }
        let written = match self.client.renew(session, now).await {
            Renewal::Unknown(None) => return,
            Renewal::Unknown(Some(session)) => {
                self.with_store(move |store| store.writer().renew_session(&id, &session, None)).await
            }
            Renewal::Ended => {
                tracing::info!(
                    person = sign_in.principal.name,
                    "the identity provider no longer renews a sign-in, so it ends"
                );
                self.with_store(move |store| store.forget_sign_ins(&[id])).await
            }
            Renewal::Renewed(verified) => {
                let VerifiedPerson { person, session } = *verified;
                if person.role.is_none() {
                    tracing::info!(person = person.name, "a person lost their role, because of their groups or claims");
                }
                self.with_store(move |store| store.writer().renew_session(&id, &session, Some(&person))).await
            }
        };
        if let Err(error) = written {
            tracing::error!(error = %error.message, "a renewed sign-in could not be stored");
        }
    }

    /// Runs a blocking read or write of the store on another thread.
    async fn with_store<T, E>(
        &self,
        work: impl FnOnce(&StoredCredentials) -> Result<T, E> + Send + 'static,
    ) -> Result<T, McpError>
    where
        T: Send + 'static,
        McpError: From<E>,
    {
        let store = Arc::clone(&self.store);
        let outcome = tokio::task::spawn_blocking(move || work(&store).map_err(McpError::from)).await;
        outcome
            .unwrap_or_else(|_| Err(StoreError::Closed.into()))
            .inspect_err(|error| tracing::debug!(error = %error.message, "the sign-ins cannot be read or written"))
    }
}

//! Keeps sign-ins in step with the identity provider: finishes them, renews them, and ends them when it says so.
//!
//! Any node may do any of these, so all state is in the store.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;

use super::{
    codes::{self, BrowserCode},
    dashboard_sign_ins::is_live,
    stored_credentials::{StoredCredentials, report_unavailable},
    tokens::oidc::{MAX_SESSION_LIFETIME, OidcClient, Renewal, SignInError, VerifiedPerson},
};
use countersign_config::OidcConfig;
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::background;
use countersign_store::{
    StoreError,
    keys::SignIn,
    people::{ProviderSession, StoredPerson},
};

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
    pub fn new(client: OidcClient, store: Arc<StoredCredentials>) -> Self {
        Self { client, store }
    }

    pub fn client(&self) -> &OidcClient {
        &self.client
    }

    /// Finishes a sign-in, and returns a one-time code for the dashboard in this browser.
    ///
    /// # Errors
    /// Returns why nobody is signed in.
    pub async fn finish(&self, query: &str, cookie: Option<&str>, now: Timestamp) -> Result<BrowserCode, SignInError> {
        let VerifiedPerson { person, session } = self.client.finish(query, cookie, now).await?;
        let code = self.with_store(move |store| {
            let is_stored = store_unless_revoked(store, &person)?;
            Ok(is_stored.then(|| codes::create_for_session(store.writer(), &session, now)))
        });
        let code = code.await.map_err(|_| SignInError::Failed)?.ok_or(SignInError::Revoked)?;
        code.map_err(|_| SignInError::Failed)
    }

    /// Ends the sign-ins that a logout token names, and those whose code was not used yet. Returns their number. A sign-in that is
    /// not stored yet, because its code is created or used at this moment, does not end.
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
        let end_sign_ins = self.with_store(move |store| {
            // The codes are read first. One that is used between the two reads is found as a sign-in, if that is stored in time.
            let codes = store.reader().code_sessions(now)?.into_iter().filter(|(_, session)| notice.ends(session));
            let codes: Vec<_> = codes.map(|(hash, _)| hash).collect();
            let is_ended = |sign_in: &SignIn| sign_in.session.as_ref().is_some_and(|session| notice.ends(session));
            let all = store.reader().sign_ins()?;
            let ids: Vec<_> = all.into_iter().filter(is_ended).map(|sign_in| sign_in.id).collect();
            let is_first_use = store.writer().use_token(&notice.id, now, notice.expires_at, &ids, &codes)?;
            Ok(is_first_use.then_some(ids.len() + codes.len()))
        });
        let used_before = || McpError::new(ErrorKind::InvalidRequest, "the logout token was used before");
        let ended_count = end_sign_ins.await?.ok_or_else(used_before)?;
        tracing::info!(ended = ended_count, "the identity provider ended sign-ins");
        Ok(ended_count)
    }

    /// Returns the ID token of a person's newest sign-in, or `None` if the person is not signed in.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn id_token(&self, person: &str) -> Result<Option<String>, McpError> {
        let sign_ins = self.with_store(|store| store.reader().sign_ins()).await?;
        let session = find_newest_session(sign_ins, person, Timestamp::now());
        Ok(session.and_then(|session| self.client.id_token(&session)))
    }

    /// Renews sign-ins when they are due, and applies changes of the configuration, until the gateway ends.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        // `None` until a configuration has been applied. The inner `None` means that no identity provider is configured.
        let mut applied_config: Option<Option<OidcConfig>> = None;
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
            let others = store.reader().sign_ins()?.into_iter().filter(is_of_other_issuer).map(|sign_in| sign_in.id);
            store.writer().forget_sign_ins(&others.collect::<Vec<_>>())
        })
        .await
    }

    /// Renews the sign-ins that were not renewed for `auth.oidc.refresh`.
    async fn renew_due_sign_ins(&self, config: &OidcConfig) {
        let now = Timestamp::now();
        let interval = SignedDuration::try_from(config.refresh).unwrap_or(SignedDuration::MAX);
        let all = self.with_store(|store| store.reader().sign_ins()).await.unwrap_or_default();
        let due: Vec<SignIn> = all.into_iter().filter(|sign_in| is_due(sign_in, interval, now)).collect();
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
        let write_result = match self.client.renew(session, now).await {
            Renewal::Unknown(None) => return,
            Renewal::Unknown(Some(session)) => {
                self.with_store(move |store| store.writer().renew_session(&id, &session, None)).await
            }
            Renewal::Ended => {
                tracing::info!(
                    person = sign_in.principal.name,
                    "the identity provider no longer renews a sign-in, so it ends"
                );
                self.with_store(move |store| store.writer().forget_sign_ins(&[id])).await
            }
            Renewal::Renewed(verified) => {
                let VerifiedPerson { person, session } = *verified;
                if person.role.is_none() {
                    tracing::info!(person = person.name, "a person lost their role, because of their groups or claims");
                }
                self.with_store(move |store| store.writer().renew_session(&id, &session, Some(&person))).await
            }
        };
        if let Err(error) = write_result {
            tracing::error!(error = %error.message, "a renewed sign-in could not be stored");
        }
    }

    /// Runs a blocking read or write of the store on another thread, and logs its failure.
    async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&StoredCredentials) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, McpError> {
        let store = Arc::clone(&self.store);
        let outcome = background::spawn_blocking(move || work(&store)).await;
        outcome.unwrap_or(Err(StoreError::Closed)).map_err(report_unavailable)
    }
}

/// Stores a person who signs in. Returns `false` for one who was revoked, so that somebody who was revoked in advance does not count
/// as having signed in.
fn store_unless_revoked(store: &StoredCredentials, person: &StoredPerson) -> Result<bool, StoreError> {
    if store.writer().person(&person.name)?.is_some_and(|known| known.revoked_at.is_some()) {
        return Ok(false);
    }
    store.writer().put_person(person).map(|()| true)
}

/// Returns `true` if a sign-in has not ended, and the provider was not asked about it for this interval.
fn is_due(sign_in: &SignIn, interval: SignedDuration, now: Timestamp) -> bool {
    is_live(sign_in, now) && sign_in.refreshed_at.is_some_and(|last| now.duration_since(last) >= interval)
}

/// Returns the session of a person that was begun or renewed last, if its sign-in has not ended.
fn find_newest_session(sign_ins: Vec<SignIn>, person: &str, now: Timestamp) -> Option<ProviderSession> {
    let live =
        sign_ins.into_iter().filter(|sign_in| sign_in.principal.person_name() == person && is_live(sign_in, now));
    let sessions = live.filter_map(|sign_in| Some((sign_in.refreshed_at, sign_in.session?)));
    let newest = sessions.max_by_key(|(refreshed_at, session)| {
        // A session without a refresh token is never renewed.
        let begun_at = session.ends_at.saturating_sub(MAX_SESSION_LIFETIME).ok();
        begun_at.max(*refreshed_at)
    });
    newest.map(|(_, session)| session)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        codes::BrowserCode,
        fixtures,
        tokens::tests::{fake_provider::FakeProvider, merge, signing::TestKey},
    };
    use countersign_config::Config;
    use countersign_domain::principal::{Principal, Role};
    use countersign_runtime::sealing::Sealer;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    /// Returns a sign-in that was begun and last used some hours ago. The id of the session is that number of hours.
    fn sign_in_begun(hours_ago: i64, unused_hours: i64, refreshed_hours_ago: Option<i64>) -> SignIn {
        let before = |hours: i64| now() - SignedDuration::from_hours(hours);
        let session = ProviderSession {
            sid: Some(hours_ago.to_string()),
            has_refresh_token: refreshed_hours_ago.is_some(),
            ..fixtures::session("ada", before(hours_ago) + MAX_SESSION_LIFETIME)
        };
        SignIn {
            id: [1; 32],
            cookie: [2; 32],
            principal: Arc::new(Principal::new("ada", Role::Reviewer)),
            key: None,
            last_used: before(unused_hours),
            session: Some(session),
            refreshed_at: refreshed_hours_ago.map(before),
        }
    }

    #[actix::test]
    async fn logout_ends_sign_ins_whose_code_is_unused() {
        let (provider, key) = (FakeProvider::start().await, TestKey::es256("one"));
        provider.set_keys(&[&key]);
        let mut config = Config::default();
        config.auth.oidc = Some(OidcConfig::new(&provider.issuer, "gateway"));
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(StoredCredentials::in_directory(dir.path()).unwrap());
        let client = OidcClient::new(&config, Sealer::new(&[7; 32]).unwrap());
        let sign_ins = ProviderSignIns::new(client, Arc::clone(&store));
        let create_code = |subject: &str| {
            let session = fixtures::session(subject, now() + MAX_SESSION_LIFETIME);
            let session = ProviderSession { issuer: provider.issuer.clone(), ..session };
            store.writer().put_person(&fixtures::person(&session, now())).unwrap();
            codes::create_for_session(store.writer(), &session, now()).unwrap()
        };
        let (adas_code, bobs_code) = (create_code("ada"), create_code("bob"));
        let redeem = |code: &BrowserCode| codes::redeem(&store, &code.code, Some(&code.secret), now());
        let claims = json!({
            "iss": provider.issuer, "aud": "gateway", "sub": "ada", "jti": "1", "iat": now().as_second(),
            "exp": now().as_second() + 120, "events": { "http://schemas.openid.net/event/backchannel-logout": {} },
        });
        let token = key.sign(&merge(&key.header(), json!({ "typ": "logout+jwt" })), &claims);
        assert_eq!(sign_ins.end_sessions(&token, now()).await.unwrap(), 1);
        assert_eq!(redeem(&adas_code).unwrap_err().kind, ErrorKind::Unauthorized);
        assert_eq!(redeem(&bobs_code).unwrap().session.unwrap().subject, "bob");
        provider.stop().await;
    }

    #[test]
    fn ended_sign_in_is_not_renewed() {
        let interval = SignedDuration::from_hours(1);
        for (name, sign_in, expected) in [
            ("due", sign_in_begun(20, 1, Some(2)), true),
            ("just renewed", sign_in_begun(20, 1, Some(0)), false),
            ("without a refresh token", sign_in_begun(20, 1, None), false),
            ("idle", sign_in_begun(20, 12, Some(2)), false),
            ("too old", sign_in_begun(7 * 24, 1, Some(2)), false),
        ] {
            assert_eq!(is_due(&sign_in, interval, now()), expected, "{name}");
        }
    }

    #[test]
    fn person_revoked_in_advance_never_counts_as_signed_in() {
        let dir = tempfile::tempdir().unwrap();
        let store = StoredCredentials::in_directory(dir.path()).unwrap();
        let [eve, ada] = ["eve", "ada"].map(|subject| fixtures::person(&fixtures::session(subject, now()), now()));
        store.writer().revoke_person(&eve.name, now() - SignedDuration::from_hours(1)).unwrap();
        assert!(!store_unless_revoked(&store, &eve).unwrap());
        assert!(!store.writer().person(&eve.name).unwrap().unwrap().has_signed_in());
        assert!(store_unless_revoked(&store, &ada).unwrap());
        assert!(store.writer().person(&ada.name).unwrap().unwrap().has_signed_in());
    }

    #[test]
    fn newest_session_belongs_to_a_live_sign_in() {
        let find = |sign_ins: &[SignIn], person| {
            find_newest_session(sign_ins.to_vec(), person, now()).and_then(|session| session.sid)
        };
        let (older, newer) = (sign_in_begun(9, 1, None), sign_in_begun(5, 1, None));
        for sign_ins in [[older.clone(), newer.clone()], [newer.clone(), older]] {
            assert_eq!(find(&sign_ins, "ada").as_deref(), Some("5"));
            assert_eq!(find(&sign_ins, "bob"), None);
        }
        let renewed = sign_in_begun(30, 1, Some(4));
        assert_eq!(find(&[renewed, newer.clone()], "ada").as_deref(), Some("30"));
        let idle = sign_in_begun(30, 12, Some(1));
        assert_eq!(find(&[idle.clone(), newer], "ada").as_deref(), Some("5"));
        assert_eq!(find(&[idle, sign_in_begun(7 * 24, 1, Some(1))], "ada"), None);
    }
}

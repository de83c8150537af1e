//! Tests of accounts with an authorization server on loopback. Two values of [`Accounts`] over one store are two nodes.

mod connecting;
mod fakes;
mod refreshing;
mod refusals;
mod requesting;
mod stored_forms;

use std::sync::{Arc, Mutex};

use actix_http::Uri;
use jiff::{SignedDuration, Timestamp};
use url::Url;

use super::{Accounts, ConnectError, oauth::challenge::Challenge, sealed_store::SealedStore, tokens::Tokens};
use countersign_config::{AuthConfig, AuthMode, Config, UpstreamConfig, UpstreamOAuth, UpstreamTarget, UrlTransport};
use countersign_domain::principal::{Principal, Role};
use countersign_runtime::sealing::{KEY_LEN, Sealer};
use countersign_store::accounts::AccountKey;
use countersign_upstream::credentials::{
    AccountHolder, AuthorizationError, CredentialSource as _, Credentials, HttpRefusal,
};
use fakes::{FakeKeys, FakeProvider, FakeSignIns, MemoryStore};

/// A configuration with one server and its authorization server, and a store that all nodes share.
struct Fixture {
    provider: FakeProvider,
    store: Arc<MemoryStore>,
    config: Config,
    sign_ins: Arc<FakeSignIns>,
    changes: Arc<Mutex<Vec<(String, AccountHolder)>>>,
}

impl Fixture {
    fn new(oauth: UpstreamOAuth) -> Self {
        Self::with_provider(FakeProvider::start(), oauth)
    }

    fn with_provider(provider: FakeProvider, oauth: UpstreamOAuth) -> Self {
        let server = server_at(&format!("{}/mcp", provider.url), oauth);
        let auth = AuthConfig { mode: AuthMode::Keys, oidc: None, tokens: Vec::new() };
        let public_url = Some("http://127.0.0.1:9/".to_owned());
        let config = Config { auth, public_url, upstreams: vec![server], ..Config::default() };
        Self { provider, store: Arc::default(), config, sign_ins: Arc::default(), changes: Arc::default() }
    }

    fn node(&self) -> Arc<Accounts> {
        self.node_with(&self.config)
    }

    fn node_with(&self, config: &Config) -> Arc<Accounts> {
        let changes = Arc::clone(&self.changes);
        let on_change = move |server: &str, holder: &AccountHolder| {
            changes.lock().unwrap().push((server.to_owned(), holder.clone()));
        };
        let (store, sign_ins) = (Arc::clone(&self.store) as _, Arc::clone(&self.sign_ins) as _);
        Accounts::new(config, store, sealer(), sign_ins, Box::new(on_change))
    }

    fn server(&self) -> Arc<UpstreamConfig> {
        Arc::new(self.config.upstreams[0].clone())
    }

    fn credentials(&self, node: &Accounts, person: &str) -> Arc<dyn Credentials> {
        node.credentials(&self.server(), &AccountHolder::Person(person.into())).unwrap()
    }

    fn key(&self, person: &str) -> AccountKey {
        AccountKey { server: "notion".to_owned(), holder: person.into() }
    }

    async fn tokens(&self, person: &str) -> Tokens {
        let store = SealedStore::new(Arc::clone(&self.store) as _, sealer());
        let target = self.server().target.fingerprint();
        store.read(&self.key(person), &target).await.unwrap().unwrap().tokens.as_ref().clone()
    }

    /// Stores changed tokens, as if the person had connected again.
    async fn change_tokens(&self, person: &str, change: impl FnOnce(&mut Tokens)) {
        let mut tokens = self.tokens(person).await;
        change(&mut tokens);
        let store = SealedStore::new(Arc::clone(&self.store) as _, sealer());
        let target = self.server().target.fingerprint();
        store.connect_account(&self.key(person), &target, &tokens, Timestamp::now()).await.unwrap();
    }

    /// Lets the access token of a person expire in this many seconds.
    async fn age_token(&self, person: &str, remaining: i64) {
        self.change_tokens(person, |tokens| {
            let now = Timestamp::now();
            tokens.received_at = now - SignedDuration::from_hours(1);
            tokens.expires_at = Some(now + SignedDuration::from_secs(remaining));
        })
        .await;
    }
}

fn sealer() -> Sealer {
    Sealer::new(&[3; KEY_LEN]).unwrap()
}

fn server_at(url: &str, oauth: UpstreamOAuth) -> UpstreamConfig {
    let target = UpstreamTarget::Url {
        urls: vec![Url::parse(url).unwrap()],
        headers: Vec::new(),
        transport: UrlTransport::Auto,
    };
    UpstreamConfig { oauth: Some(oauth), ..UpstreamConfig::new("notion", target) }
}

fn person(name: &str) -> Principal {
    Principal { owner: Some(name.to_owned()), ..Principal::new(format!("{name}-agent"), Role::Agent) }
}

/// Connects an account as a browser does, and returns the scopes that were requested.
async fn connect(node: &Accounts, name: &str) -> Result<String, ConnectError> {
    let started = node.begin_consent("notion", &person(name), Timestamp::now()).await?;
    let query = answer_query(&started.url);
    node.finish_consent(&query, Some(&started.cookie), &FakeKeys::default(), Timestamp::now()).await?;
    Ok(parameter(&started.url, "scope"))
}

/// Advances the clock beyond the pause after an outage.
async fn skip_pause() {
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(11)).await;
    tokio::time::resume();
}

fn answer_query(url: &str) -> String {
    format!("code=c&state={}", parameter(url, "state"))
}

fn parameter(url: &str, name: &str) -> String {
    let url = Url::parse(url).unwrap();
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned()).unwrap_or_default()
}

/// Returns the `Authorization` header that a request gets, or an empty text.
async fn authorize(credentials: &dyn Credentials) -> Result<String, AuthorizationError> {
    let headers = credentials.authorize("POST", &Uri::from_static("http://127.0.0.1/mcp")).await?;
    Ok(headers.first().map(|(_, value)| value.to_str().unwrap().to_owned()).unwrap_or_default())
}

/// Lets the server refuse a request with a status and a challenge.
async fn refuse(credentials: &dyn Credentials, status: u16, challenge: &str) -> Result<(), AuthorizationError> {
    let headers = credentials.authorize("POST", &Uri::from_static("http://127.0.0.1/mcp")).await?;
    credentials.handle_refusal(&refusal(status, challenge), &headers, 1).await
}

fn refusal(status: u16, challenge: &str) -> HttpRefusal {
    HttpRefusal { status, challenges: vec![challenge.to_owned()], dpop_nonce: None }
}

#[track_caller]
fn assert_consent_needed<T>(outcome: Result<T, AuthorizationError>, part: &str) {
    match outcome.err() {
        Some(AuthorizationError::ConsentNeeded(text)) if text.contains(part) => {}
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_unavailable<T>(outcome: Result<T, AuthorizationError>) {
    let failure = outcome.err();
    assert!(matches!(failure, Some(AuthorizationError::Unavailable(_))), "{failure:?}");
}

#[test]
fn challenge_without_metadata_keeps_known_metadata() {
    let server =
        super::server::AccountServer::new(&server_at("https://mcp.example/mcp", UpstreamOAuth::default())).unwrap();
    assert!(!server.requires_token());
    let metadata = Some("https://mcp.example/x".to_owned());
    server.remember_challenge(Challenge { resource_metadata: metadata.clone(), ..Challenge::default() });
    let scopes = Some(vec!["a".to_owned()]);
    server.remember_challenge(Challenge { scopes: scopes.clone(), ..Challenge::default() });
    assert_eq!(server.challenge().unwrap(), Challenge { resource_metadata: metadata, scopes, ..Challenge::default() });
}

//! Tokens that need no person.

use serde_json::json;

use super::*;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_config::{OAuthGrant, OidcConfig, Secret};
use countersign_protocol::McpError;
use futures_util::future::LocalBoxFuture;

use crate::IdentityProvider;

fn machine(grant: OAuthGrant) -> UpstreamOAuth {
    let client_secret = Some(Secret("s3cret".to_owned()));
    UpstreamOAuth { grant, client_id: Some("ours".to_owned()), client_secret, ..UpstreamOAuth::default() }
}

#[actix::test]
async fn client_credentials_give_everybody_one_token() {
    let case = Case::new(machine(OAuthGrant::ClientCredentials));
    let node = case.node();
    assert_eq!(node.known_holders(&case.server()), [AccountHolder::Gateway]);
    let holder = node.holder(&case.server(), &person("ann"));
    assert_eq!(holder, AccountHolder::Gateway);
    let credentials = node.credentials(&case.server(), &holder).unwrap();
    assert_eq!(authorize(&*credentials).await.unwrap(), "");
    refuse(&*credentials, 401, "Bearer scope=\"a\"").await.unwrap();
    for _ in 0..3 {
        assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    }
    assert_eq!(case.provider.count("client_credentials"), 1);
    assert_eq!(case.provider.last_form()["scope"], "a");
    assert!(node.list_statuses(&person("ann")).await.unwrap().is_empty(), "there is nothing to connect");
    let outcome = node.begin_consent("notion", &person("ann"), Timestamp::now()).await;
    assert_eq!(outcome.err(), Some(ConnectProblem::UnknownServer));
    assert!(case.store.rows.lock().unwrap().is_empty());
    let outcome = refuse(&*credentials, 401, "Bearer error=\"invalid_token\"").await;
    assert!(matches!(outcome, Err(AuthorizationFailure::Refused(_))), "{outcome:?}");
}

#[actix::test]
async fn further_scopes_are_obtained_once() {
    let case = Case::new(machine(OAuthGrant::ClientCredentials));
    let node = case.node();
    let credentials = node.credentials(&case.server(), &AccountHolder::Gateway).unwrap();
    credentials.prepare().await.unwrap();
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"b\"";
    refuse(&*credentials, 403, challenge).await.unwrap();
    assert_eq!(case.provider.last_form()["scope"], "b");
    let outcome = refuse(&*credentials, 403, challenge).await;
    assert!(matches!(outcome, Err(AuthorizationFailure::Refused(_))), "{outcome:?}");
}

#[actix::test]
async fn token_remains_when_further_scopes_are_refused() {
    let case = Case::new(machine(OAuthGrant::ClientCredentials));
    let node = case.node();
    let credentials = node.credentials(&case.server(), &AccountHolder::Gateway).unwrap();
    credentials.prepare().await.unwrap();
    case.provider.push_answer(400, json!({ "error": "invalid_scope" }));
    for scope in ["b", "c"] {
        let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"");
        let outcome = refuse(&*credentials, 403, &challenge).await;
        assert!(matches!(outcome, Err(AuthorizationFailure::Refused(_))), "{outcome:?}");
    }
    assert_eq!(case.provider.count("client_credentials"), 2, "the next demand waits");
    assert_eq!(case.provider.last_form()["scope"], "b");
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
}

#[actix::test]
async fn refused_request_for_a_token_is_not_repeated_at_once() {
    let case = Case::new(machine(OAuthGrant::ClientCredentials));
    let node = case.node();
    let credentials = node.credentials(&case.server(), &AccountHolder::Gateway).unwrap();
    case.provider.push_answer(401, json!({ "error": "invalid_client" }));
    for _ in 0..2 {
        let outcome = credentials.prepare().await;
        assert!(matches!(outcome, Err(AuthorizationFailure::Refused(_))), "{outcome:?}");
    }
    assert_eq!(case.provider.count("client_credentials"), 1);
}

#[actix::test]
async fn unanswered_request_for_a_token_is_repeated_after_a_pause() {
    let case = Case::new(machine(OAuthGrant::ClientCredentials));
    let node = case.node();
    let credentials = node.credentials(&case.server(), &AccountHolder::Gateway).unwrap();
    case.provider.push_answer(503, json!({}));
    for _ in 0..2 {
        assert_unavailable(credentials.prepare().await);
    }
    assert_eq!(case.provider.count("client_credentials"), 1);
    pass_pause().await;
    credentials.prepare().await.unwrap();
}

#[actix::test]
async fn workload_token_is_read_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let mut oauth = machine(OAuthGrant::WorkloadIdentity);
    oauth.subject_token_file = Some(path.clone());
    let case = Case::new(oauth);
    let node = case.node();
    let credentials = node.credentials(&case.server(), &AccountHolder::Gateway).unwrap();
    assert_unavailable(credentials.prepare().await);
    std::fs::write(&path, "one\n").unwrap();
    case.provider.push_answer(200, json!({ "access_token": "x", "token_type": "Bearer", "expires_in": 0 }));
    credentials.prepare().await.unwrap();
    assert_eq!(case.provider.last_form()["assertion"], "one");
    std::fs::write(&path, "two").unwrap();
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    assert_eq!(case.provider.last_form()["assertion"], "two");
    assert_eq!(case.provider.count("jwt-bearer"), 2);
}

/// Returns an identity provider that answers with an assertion, and an ID token of it.
fn identity_provider() -> (FakeProvider, String) {
    let provider = FakeProvider::start();
    let claims = json!({ "iss": provider.url, "aud": "gateway", "sub": "ann" }).to_string();
    let token = format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims));
    let type_of_answer = "urn:ietf:params:oauth:token-type:id-jag";
    let answer = json!({ "access_token": "jag", "token_type": "N_A", "issued_token_type": type_of_answer });
    provider.push_answer(200, answer);
    (provider, token)
}

/// The sign-in of one person, with its ID token.
struct OneSignIn(&'static str, String);

impl IdentityProvider for OneSignIn {
    fn id_token<'a>(&'a self, person: &'a str) -> LocalBoxFuture<'a, Result<Option<String>, McpError>> {
        Box::pin(async move { Ok((person == self.0).then(|| self.1.clone())) })
    }

    fn config_for(&self, issuer: &str) -> Option<OidcConfig> {
        let mut config = OidcConfig::new(issuer, "gateway");
        config.client_secret = Some(Secret("of-provider".to_owned()));
        Some(config)
    }
}

#[actix::test]
async fn sign_in_vouches_for_its_person_only() {
    let case = Case::new(machine(OAuthGrant::Enterprise));
    let node = case.node();
    let holder = node.holder(&case.server(), &person("ann"));
    assert_eq!(holder, AccountHolder::Person("ann".into()));
    assert_unavailable(case.credentials(&node, "ann").prepare().await);
    let (provider, token) = identity_provider();
    node.set_identity_provider(Arc::new(OneSignIn("ann", token.clone())));
    case.credentials(&node, "ann").prepare().await.unwrap();
    let exchange = provider.last_form();
    assert_eq!((&exchange["subject_token"], exchange["client_id"].as_str()), (&token, "gateway"));
    assert_eq!(exchange["client_secret"], "of-provider");
    assert_ne!(case.provider.last_form().get("client_secret").map(String::as_str), Some("of-provider"));
    assert_unavailable(case.credentials(&node, "bob").prepare().await);
    assert_unavailable(node.credentials(&case.server(), &AccountHolder::Gateway).unwrap().prepare().await);
    assert_eq!(node.known_holders(&case.server()), [holder]);
}

#[actix::test]
async fn identity_provider_vouches_for_the_person_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let mut oauth = machine(OAuthGrant::Enterprise);
    oauth.subject_token_file = Some(path.clone());
    let case = Case::new(oauth);
    let (provider, token) = identity_provider();
    std::fs::write(&path, token).unwrap();
    let node = case.node();
    let credentials = node.credentials(&case.server(), &AccountHolder::Gateway).unwrap();
    credentials.prepare().await.unwrap();
    let exchange = provider.last_form();
    assert_eq!(exchange["audience"], case.provider.url);
    assert_eq!(exchange["resource"], format!("{}/mcp", case.provider.url));
    assert!(!exchange.contains_key("client_secret"), "the secret belongs to the other server");
    assert_eq!(case.provider.last_form()["assertion"], "jag");
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
}

#[actix::test]
async fn forgotten_client_is_registered_once_more() {
    let case = Case::new(UpstreamOAuth { grant: OAuthGrant::ClientCredentials, ..UpstreamOAuth::default() });
    case.provider.push_answer(401, json!({ "error": "invalid_client" }));
    let node = case.node();
    let credentials = node.credentials(&case.server(), &AccountHolder::Gateway).unwrap();
    credentials.prepare().await.unwrap();
    assert_eq!(case.provider.last_form()["client_id"], "client-2");
}

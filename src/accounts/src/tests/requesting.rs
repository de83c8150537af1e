//! Tests of tokens that need no consent.

use serde_json::json;

use super::*;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_config::{OAuthGrant, Secret};

fn machine_oauth(grant: OAuthGrant) -> UpstreamOAuth {
    let client_secret = Some(Secret("s3cret".to_owned()));
    UpstreamOAuth { grant, client_id: Some("ours".to_owned()), client_secret, ..UpstreamOAuth::default() }
}

#[actix::test]
async fn client_credentials_give_everybody_one_token() {
    let fixture = Fixture::new(machine_oauth(OAuthGrant::ClientCredentials));
    let node = fixture.node();
    assert_eq!(node.known_holders(&fixture.server()), [AccountHolder::Gateway]);
    let holder = node.holder(&fixture.server(), &person("ann"));
    assert_eq!(holder, AccountHolder::Gateway);
    let credentials = node.credentials(&fixture.server(), &holder).unwrap();
    assert_eq!(authorize(&*credentials).await.unwrap(), "");
    refuse(&*credentials, 401, "Bearer scope=\"a\"").await.unwrap();
    for _ in 0..3 {
        assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    }
    assert_eq!(fixture.provider.count("client_credentials"), 1);
    assert_eq!(fixture.provider.last_form()["scope"], "a");
    assert!(node.list_statuses(&person("ann")).await.unwrap().is_empty(), "there is nothing to connect");
    let outcome = node.begin_consent("notion", &person("ann"), Timestamp::now()).await;
    assert_eq!(outcome.err(), Some(ConnectError::UnknownServer));
    assert!(fixture.store.rows.lock().unwrap().is_empty());
    let outcome = refuse(&*credentials, 401, "Bearer error=\"invalid_token\"").await;
    assert!(matches!(outcome, Err(AuthorizationError::Refused(_))), "{outcome:?}");
}

#[actix::test]
async fn further_scopes_are_obtained_once() {
    let fixture = Fixture::new(machine_oauth(OAuthGrant::ClientCredentials));
    let node = fixture.node();
    let credentials = node.credentials(&fixture.server(), &AccountHolder::Gateway).unwrap();
    credentials.prepare().await.unwrap();
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"b\"";
    refuse(&*credentials, 403, challenge).await.unwrap();
    assert_eq!(fixture.provider.last_form()["scope"], "b");
    let outcome = refuse(&*credentials, 403, challenge).await;
    assert!(matches!(outcome, Err(AuthorizationError::Refused(_))), "{outcome:?}");
}

#[actix::test]
async fn token_remains_when_further_scopes_are_refused() {
    let fixture = Fixture::new(machine_oauth(OAuthGrant::ClientCredentials));
    let node = fixture.node();
    let credentials = node.credentials(&fixture.server(), &AccountHolder::Gateway).unwrap();
    credentials.prepare().await.unwrap();
    fixture.provider.push_answer(400, json!({ "error": "invalid_scope" }));
    for scope in ["b", "c"] {
        let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"");
        let outcome = refuse(&*credentials, 403, &challenge).await;
        assert!(matches!(outcome, Err(AuthorizationError::Refused(_))), "{outcome:?}");
    }
    assert_eq!(fixture.provider.count("client_credentials"), 2, "the next demand waits");
    assert_eq!(fixture.provider.last_form()["scope"], "b");
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
}

#[actix::test]
async fn refused_request_for_a_token_is_not_repeated_at_once() {
    let fixture = Fixture::new(machine_oauth(OAuthGrant::ClientCredentials));
    let node = fixture.node();
    let credentials = node.credentials(&fixture.server(), &AccountHolder::Gateway).unwrap();
    fixture.provider.push_answer(401, json!({ "error": "invalid_client" }));
    for _ in 0..2 {
        let outcome = credentials.prepare().await;
        assert!(matches!(outcome, Err(AuthorizationError::Refused(_))), "{outcome:?}");
    }
    assert_eq!(fixture.provider.count("client_credentials"), 1);
}

#[actix::test]
async fn unanswered_request_for_a_token_is_repeated_after_a_pause() {
    let fixture = Fixture::new(machine_oauth(OAuthGrant::ClientCredentials));
    let node = fixture.node();
    let credentials = node.credentials(&fixture.server(), &AccountHolder::Gateway).unwrap();
    fixture.provider.push_answer(503, json!({}));
    for _ in 0..2 {
        assert_unavailable(credentials.prepare().await);
    }
    assert_eq!(fixture.provider.count("client_credentials"), 1);
    skip_pause().await;
    credentials.prepare().await.unwrap();
}

#[actix::test]
async fn workload_token_is_read_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let mut oauth = machine_oauth(OAuthGrant::WorkloadIdentity);
    oauth.subject_token_file = Some(path.clone());
    let fixture = Fixture::new(oauth);
    let node = fixture.node();
    let credentials = node.credentials(&fixture.server(), &AccountHolder::Gateway).unwrap();
    assert_unavailable(credentials.prepare().await);
    std::fs::write(&path, "one\n").unwrap();
    fixture.provider.push_answer(200, json!({ "access_token": "x", "token_type": "Bearer", "expires_in": 0 }));
    credentials.prepare().await.unwrap();
    assert_eq!(fixture.provider.last_form()["assertion"], "one");
    std::fs::write(&path, "two").unwrap();
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    assert_eq!(fixture.provider.last_form()["assertion"], "two");
    assert_eq!(fixture.provider.count("jwt-bearer"), 2);
}

/// Starts an identity provider that answers with an assertion. Returns it with an ID token that it issued.
fn identity_provider() -> (FakeProvider, String) {
    let provider = FakeProvider::start();
    let claims = json!({ "iss": provider.url, "aud": "gateway", "sub": "ann" }).to_string();
    let token = format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims));
    let token_type = "urn:ietf:params:oauth:token-type:id-jag";
    let answer = json!({ "access_token": "jag", "token_type": "N_A", "issued_token_type": token_type });
    provider.push_answer(200, answer);
    (provider, token)
}

#[actix::test]
async fn sign_in_vouches_for_its_person_only() {
    let fixture = Fixture::new(machine_oauth(OAuthGrant::Enterprise));
    let node = fixture.node();
    let holder = node.holder(&fixture.server(), &person("ann"));
    assert_eq!(holder, AccountHolder::Person("ann".into()));
    assert_unavailable(fixture.credentials(&node, "ann").prepare().await);
    let (provider, token) = identity_provider();
    *fixture.sign_ins.id_token.lock().unwrap() = Some(("ann", token.clone()));
    fixture.credentials(&node, "ann").prepare().await.unwrap();
    let exchange = provider.last_form();
    assert_eq!((&exchange["subject_token"], exchange["client_id"].as_str()), (&token, "gateway"));
    assert_eq!(exchange["client_secret"], "of-provider");
    assert_ne!(fixture.provider.last_form().get("client_secret").map(String::as_str), Some("of-provider"));
    assert_unavailable(fixture.credentials(&node, "bob").prepare().await);
    assert_unavailable(node.credentials(&fixture.server(), &AccountHolder::Gateway).unwrap().prepare().await);
    assert_eq!(node.known_holders(&fixture.server()), [holder]);
}

#[actix::test]
async fn identity_provider_vouches_for_the_person_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let mut oauth = machine_oauth(OAuthGrant::Enterprise);
    oauth.subject_token_file = Some(path.clone());
    let fixture = Fixture::new(oauth);
    let (provider, token) = identity_provider();
    std::fs::write(&path, token).unwrap();
    let node = fixture.node();
    let credentials = node.credentials(&fixture.server(), &AccountHolder::Gateway).unwrap();
    credentials.prepare().await.unwrap();
    let exchange = provider.last_form();
    assert_eq!(exchange["audience"], fixture.provider.url);
    assert_eq!(exchange["resource"], format!("{}/mcp", fixture.provider.url));
    assert!(!exchange.contains_key("client_secret"), "the secret belongs to the other server");
    assert_eq!(fixture.provider.last_form()["assertion"], "jag");
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
}

#[actix::test]
async fn forgotten_client_is_registered_once_more() {
    let fixture = Fixture::new(UpstreamOAuth { grant: OAuthGrant::ClientCredentials, ..UpstreamOAuth::default() });
    fixture.provider.push_answer(401, json!({ "error": "invalid_client" }));
    let node = fixture.node();
    let credentials = node.credentials(&fixture.server(), &AccountHolder::Gateway).unwrap();
    credentials.prepare().await.unwrap();
    assert_eq!(fixture.provider.last_form()["client_id"], "client-2");
}

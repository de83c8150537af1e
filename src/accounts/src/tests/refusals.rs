//! Tests of refusals of a server, and of the scopes and nonces that it demands.

use std::pin::pin;

use futures_util::future::{Either, select};

use super::*;

const INVALID: &str = "Bearer error=\"invalid_token\"";

async fn connected() -> (Fixture, Arc<Accounts>, Arc<dyn Credentials>) {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let node = fixture.node();
    connect(&node, "ann").await.unwrap();
    fixture.age_token("ann", 1000).await;
    let credentials = fixture.credentials(&node, "ann");
    (fixture, node, credentials)
}

#[actix::test]
async fn refused_token_is_refreshed_once() {
    let (fixture, _node, credentials) = connected().await;
    refuse(&*credentials, 401, INVALID).await.unwrap();
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-2");
    assert_consent_needed(refuse(&*credentials, 401, INVALID).await, "no longer accepts its token");
    assert_eq!(fixture.provider.count("refresh_token"), 1);
    let stored = fixture.store.rows.lock().unwrap()[&fixture.key("ann")].connected_at;
    assert_eq!(credentials.connected_at(), Some(stored), "a refresh is no connection");
}

#[actix::test]
async fn refused_token_without_refresh_needs_consent() {
    let (fixture, _node, credentials) = connected().await;
    fixture.change_tokens("ann", |tokens| tokens.refresh_token = None).await;
    assert_consent_needed(refuse(&*credentials, 401, INVALID).await, "no longer accepts its token");
}

#[actix::test]
async fn refused_token_is_not_used_again() {
    let (fixture, node, credentials) = connected().await;
    fixture.provider.push_answer(400, serde_json::json!({ "error": "invalid_grant" }));
    assert_consent_needed(refuse(&*credentials, 401, INVALID).await, "no longer renews");
    for credentials in [&credentials, &fixture.credentials(&fixture.node(), "ann")] {
        assert_consent_needed(credentials.prepare().await, "no longer renews");
    }
    assert!(!node.list_statuses(&person("ann")).await.unwrap()[0].is_connected);
    connect(&node, "ann").await.unwrap();
    credentials.prepare().await.unwrap();
    assert_consent_needed(refuse(&*credentials, 401, INVALID).await, "no longer accepts its token");
    assert_consent_needed(credentials.prepare().await, "no longer accepts its token");
    let status = &node.list_statuses(&person("ann")).await.unwrap()[0];
    assert!(!status.is_connected && status.problem.as_ref().unwrap().contains("no longer accepts"));
    fixture.age_token("ann", 1000).await;
    assert_eq!(authorize(&*fixture.credentials(&fixture.node(), "ann")).await.unwrap(), "Bearer access-3");
    assert_eq!(node.list_statuses(&person("ann")).await.unwrap()[0].problem, None);
}

#[actix::test]
async fn refused_token_of_a_lost_refresh_is_not_used_again() {
    let (fixture, node, credentials) = connected().await;
    let since = Timestamp::now() - SignedDuration::from_secs(61);
    fixture.store.rows.lock().unwrap().get_mut(&fixture.key("ann")).unwrap().refreshing_since = Some(since);
    assert_consent_needed(refuse(&*credentials, 401, INVALID).await, "was lost");
    assert_consent_needed(credentials.prepare().await, "was lost");
    assert!(!node.list_statuses(&person("ann")).await.unwrap()[0].is_connected);
}

#[actix::test]
async fn token_that_was_replaced_elsewhere_is_read_again() {
    let (fixture, _node, credentials) = connected().await;
    authorize(&*credentials).await.unwrap();
    fixture.change_tokens("ann", |tokens| tokens.access_token = "newer".to_owned()).await;
    refuse(&*credentials, 401, INVALID).await.unwrap();
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer newer");
    assert_eq!(fixture.provider.count("refresh_token"), 0);
}

#[actix::test]
async fn tokens_of_a_former_issuer_are_not_refreshed() {
    let (fixture, node, credentials) = connected().await;
    let other = FakeProvider::start();
    fixture.provider.state.lock().unwrap().issuer_of_server = Some(other.url.clone());
    assert_consent_needed(refuse(&*credentials, 401, INVALID).await, "another authorization server");
    assert_eq!(fixture.provider.count("refresh_token"), 0);
    connect(&node, "ann").await.unwrap();
    assert_eq!(other.state.lock().unwrap().registrations, 1);
    assert_eq!(other.last_form()["grant_type"], "authorization_code");
    assert_eq!(node.list_statuses(&person("ann")).await.unwrap()[0].issuer, Some(other.url));
}

#[actix::test]
async fn tokens_of_an_issuer_that_is_not_configured_are_not_used() {
    let (mut fixture, node, _) = connected().await;
    let configure = |fixture: &mut Fixture, issuer: String| {
        fixture.config.upstreams[0].oauth = Some(UpstreamOAuth { issuer: Some(issuer), ..UpstreamOAuth::default() });
        node.set_servers(&fixture.config.upstreams);
    };
    let issuer = format!("{}/", fixture.provider.url);
    configure(&mut fixture, issuer);
    assert_eq!(authorize(&*fixture.credentials(&node, "ann")).await.unwrap(), "Bearer access-1");
    let other = FakeProvider::start();
    configure(&mut fixture, other.url.clone());
    for remaining in [1000, -1] {
        fixture.age_token("ann", remaining).await;
        assert_consent_needed(fixture.credentials(&node, "ann").prepare().await, "another authorization server");
    }
    let status = &node.list_statuses(&person("ann")).await.unwrap()[0];
    assert!(!status.is_connected && status.problem.as_ref().unwrap().contains("another authorization server"));
    assert_eq!(fixture.provider.count("refresh_token") + other.state.lock().unwrap().forms.len(), 0);
    let issuer = fixture.provider.url.clone();
    configure(&mut fixture, issuer);
    assert_eq!(authorize(&*fixture.credentials(&node, "ann")).await.unwrap(), "Bearer access-2");
}

#[actix::test]
async fn server_that_refuses_each_token_is_discovered_once() {
    let (fixture, _node, credentials) = connected().await;
    fixture.provider.state.lock().unwrap().discoveries = 0;
    fixture.provider.push_answer(503, serde_json::json!({}));
    assert_unavailable(refuse(&*credentials, 401, INVALID).await);
    skip_pause().await;
    refuse(&*credentials, 401, INVALID).await.unwrap();
    for _ in 0..3 {
        assert_consent_needed(refuse(&*credentials, 401, INVALID).await, "no longer accepts its token");
    }
    assert_eq!(fixture.provider.state.lock().unwrap().discoveries, 1);
}

#[actix::test]
async fn step_up_scopes_are_requested_at_any_node() {
    let (fixture, node, credentials) = connected().await;
    fixture.change_tokens("ann", |tokens| tokens.scopes = vec!["a".to_owned()]).await;
    for scope in ["b", "c", "c"] {
        let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"");
        assert_consent_needed(refuse(&*credentials, 403, &challenge).await, "further permissions");
    }
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1", "other calls work as before");
    assert!(node.list_statuses(&person("ann")).await.unwrap()[0].problem.as_ref().unwrap().contains("permissions"));
    let mut scopes: Vec<String> =
        connect(&fixture.node(), "ann").await.unwrap().split(' ').map(str::to_owned).collect();
    scopes.sort();
    assert_eq!(scopes, ["a", "b", "c"]);
    assert_eq!(node.list_statuses(&person("ann")).await.unwrap()[0].problem, None);
}

#[actix::test]
async fn reconnection_requests_configured_and_demanded_scopes() {
    let (mut fixture, node, _) = connected().await;
    let mut configure = |scopes: &[&str]| {
        let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        fixture.config.upstreams[0].oauth = Some(UpstreamOAuth { scopes, ..UpstreamOAuth::default() });
        node.set_servers(&fixture.config.upstreams);
    };
    configure(&["read", "write"]);
    assert_eq!(connect(&node, "ann").await.unwrap(), "read write");
    configure(&["read"]);
    assert_eq!(connect(&node, "ann").await.unwrap(), "read", "the server may no longer know the other scope");
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"admin\"";
    assert_consent_needed(refuse(&*fixture.credentials(&node, "ann"), 403, challenge).await, "further permissions");
    assert_eq!(connect(&node, "ann").await.unwrap(), "read admin");
    let old = Timestamp::now() - SignedDuration::from_hours(2);
    fixture.change_tokens("ann", |tokens| tokens.step_up.as_mut().unwrap().since = old).await;
    for _ in 0..2 {
        assert_eq!(connect(&node, "ann").await.unwrap(), "read admin", "the server demanded it some time");
    }
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"unknown\"";
    assert_consent_needed(refuse(&*fixture.credentials(&node, "ann"), 403, challenge).await, "further permissions");
    fixture.change_tokens("ann", |tokens| tokens.step_up.as_mut().unwrap().since = old).await;
    assert_eq!(connect(&node, "ann").await.unwrap(), "read admin", "no consent to the other scope has succeeded");
}

#[actix::test]
async fn step_up_is_refused_after_three_consents_without_effect() {
    let (fixture, node, credentials) = connected().await;
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"admin\"";
    for _ in 0..3 {
        assert_consent_needed(refuse(&*credentials, 403, challenge).await, "further permissions");
        connect(&node, "ann").await.unwrap();
    }
    let outcome = refuse(&*credentials, 403, challenge).await;
    assert!(matches!(outcome, Err(AuthorizationError::Refused(_))), "{outcome:?}");
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"other\"";
    assert_consent_needed(refuse(&*credentials, 403, challenge).await, "further permissions");
    fixture
        .change_tokens("ann", |tokens| {
            tokens.origin.requested_scopes.clear();
            tokens.step_up.as_mut().unwrap().since = Timestamp::now() - SignedDuration::from_hours(1);
        })
        .await;
    assert_consent_needed(refuse(&*credentials, 403, challenge).await, "further permissions");
}

#[actix::test]
async fn step_up_is_stored_if_nobody_waits_for_it() {
    let (fixture, node, credentials) = connected().await;
    // The attempts to store it fail until nobody waits for it.
    *fixture.store.failures.lock().unwrap() = u32::MAX;
    let pause = || actix::clock::sleep(std::time::Duration::from_millis(5));
    {
        let demand = pin!(refuse(&*credentials, 403, "Bearer error=\"insufficient_scope\", scope=\"b\""));
        let failing = pin!(async {
            while *fixture.store.failures.lock().unwrap() == u32::MAX {
                pause().await;
            }
        });
        assert!(matches!(select(demand, failing).await, Either::Right(_)), "it is not stored yet");
    }
    let is_refreshing = || fixture.store.rows.lock().unwrap()[&fixture.key("ann")].refreshing_since.is_some();
    assert!(is_refreshing());
    *fixture.store.failures.lock().unwrap() = 0;
    while is_refreshing() {
        pause().await;
    }
    assert!(node.list_statuses(&person("ann")).await.unwrap()[0].problem.as_ref().unwrap().contains("permissions"));
}

#[actix::test]
async fn consents_count_across_alternating_challenges() {
    let (fixture, node, credentials) = connected().await;
    let demand = async |scope: &str| {
        let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"");
        refuse(&*credentials, 403, &challenge).await
    };
    for scope in ["a", "b", "a"] {
        assert_consent_needed(demand(scope).await, "further permissions");
        connect(&node, "ann").await.unwrap();
    }
    let outcome = demand("b").await;
    assert!(matches!(outcome, Err(AuthorizationError::Refused(_))), "{outcome:?}");
    for number in 3..10 {
        assert_consent_needed(demand(&format!("new-{number}")).await, "further permissions");
        connect(&node, "ann").await.unwrap();
    }
    let outcome = demand("newer").await;
    assert!(matches!(outcome, Err(AuthorizationError::Refused(_))), "{outcome:?}");
    fixture
        .change_tokens("ann", |tokens| {
            let first = tokens.step_up.as_mut().unwrap();
            (first.since, first.consents) = (Timestamp::now() - SignedDuration::from_mins(59), 1);
        })
        .await;
    let first = fixture.tokens("ann").await.step_up.unwrap();
    assert_consent_needed(demand("newer").await, "further permissions");
    let last = fixture.tokens("ann").await.step_up.unwrap();
    assert!(last.since == first.since && last.scopes.ends_with(&["newer".to_owned()]));
}

#[actix::test]
async fn consent_with_the_demanded_scopes_counts_as_the_first() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let node = fixture.node();
    let credentials = fixture.credentials(&node, "ann");
    assert_consent_needed(refuse(&*credentials, 401, "Bearer scope=\"admin\"").await, "connected first");
    connect(&node, "ann").await.unwrap();
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"admin\"";
    for _ in 0..2 {
        assert_consent_needed(refuse(&*credentials, 403, challenge).await, "further permissions");
        connect(&node, "ann").await.unwrap();
    }
    let outcome = refuse(&*credentials, 403, challenge).await;
    assert!(matches!(outcome, Err(AuthorizationError::Refused(_))), "{outcome:?}");
}

#[actix::test]
async fn other_refusals_are_final() {
    let (_fixture, _node, credentials) = connected().await;
    for (status, challenge) in [(403, "Bearer"), (401, "Basic realm=\"x\""), (403, "Basic")] {
        let outcome = refuse(&*credentials, status, challenge).await;
        assert!(matches!(outcome, Err(AuthorizationError::Refused(_))), "{challenge} {outcome:?}");
    }
}

#[actix::test]
async fn refusal_without_challenge_needs_metadata_to_require_consent() {
    let mut fixture = Fixture::new(UpstreamOAuth::default());
    let bare = HttpRefusal { challenges: Vec::new(), ..refusal(401, "") };
    let node = fixture.node();
    let credentials = fixture.credentials(&node, "ann");
    assert_consent_needed(credentials.handle_refusal(&bare, &Vec::new(), 1).await, "connected first");
    assert_consent_needed(authorize(&*credentials).await, "connected first");

    let without_metadata = server_at(&format!("{}/other", fixture.provider.url), UpstreamOAuth::default());
    fixture.config.upstreams = vec![without_metadata];
    let node = fixture.node();
    let credentials = fixture.credentials(&node, "ann");
    let outcome = credentials.handle_refusal(&bare, &Vec::new(), 1).await;
    assert!(matches!(outcome, Err(AuthorizationError::Refused(_))), "{outcome:?}");
    assert_eq!(authorize(&*credentials).await.unwrap(), "", "the next request is sent as before");
    fixture.credentials(&node, "bob").prepare().await.unwrap();
    assert_consent_needed(refuse(&*credentials, 401, "Bearer").await, "connected first");
}

#[actix::test]
async fn bound_token_is_proved_with_the_demanded_nonce() {
    let fixture = Fixture::new(UpstreamOAuth { dpop: true, ..UpstreamOAuth::default() });
    let node = fixture.node();
    fixture.provider.push_answer(200, serde_json::json!({ "access_token": "bound", "token_type": "DPoP" }));
    connect(&node, "ann").await.unwrap();
    let credentials = fixture.credentials(&node, "ann");
    let uri = Uri::from_static("http://127.0.0.1/mcp");
    let headers = credentials.authorize("POST", &uri).await.unwrap();
    assert_eq!(headers[0].1, "DPoP bound");
    let demand = HttpRefusal {
        dpop_nonce: Some("nonce-1".to_owned()),
        ..refusal(401, "DPoP error=\"use_dpop_nonce\", algs=\"ES256\"")
    };
    credentials.handle_refusal(&demand, &headers, 1).await.unwrap();
    let headers = credentials.authorize("POST", &uri).await.unwrap();
    let proof = headers[1].1.to_str().unwrap().split('.').nth(1).unwrap().to_owned();
    use base64::Engine as _;
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(proof).unwrap();
    let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!(claims["nonce"], "nonce-1");
    let outcome = credentials.handle_refusal(&demand, &headers, 3).await;
    assert!(matches!(outcome, Err(AuthorizationError::Refused(_))), "{outcome:?}");
}

//! Tests of refreshing tokens: once at a time, across nodes, and after failures.

use std::{pin::pin, sync::atomic::Ordering};

use futures_util::future::{Either, join, join_all, select};
use serde_json::json;

use super::*;
use countersign_config::Secret;

async fn connected() -> (Fixture, Arc<Accounts>, Arc<dyn Credentials>) {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let node = fixture.node();
    connect(&node, "ann").await.unwrap();
    let credentials = fixture.credentials(&node, "ann");
    (fixture, node, credentials)
}

#[actix::test]
async fn token_is_refreshed_once_for_all_requests_and_nodes() {
    let (fixture, _node, credentials) = connected().await;
    let other = fixture.node();
    let others = fixture.credentials(&other, "ann");
    fixture.age_token("ann", -1).await;
    let gate = fixture.provider.hold_tokens();
    let requests = (0..20).map(|number| authorize(if number % 2 == 0 { &*credentials } else { &*others }));
    let open_gate = async {
        fixture.provider.wait_for_request("refresh_token").await;
        gate.add_permits(1);
    };
    for authorized in join(join_all(requests), open_gate).await.0 {
        assert_eq!(authorized.unwrap(), "Bearer access-2");
    }
    assert_eq!(fixture.provider.count("refresh_token"), 1);
    let form = fixture.provider.last_form();
    assert_eq!((form["refresh_token"].as_str(), form["client_id"].as_str()), ("refresh-1", "client-1"));
    assert_eq!(form["resource"], format!("{}/mcp", fixture.provider.url));
}

#[actix::test]
async fn token_is_refreshed_before_it_expires() {
    let (fixture, _node, credentials) = connected().await;
    fixture.age_token("ann", 70).await;
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    fixture.age_token("ann", 50).await;
    let (other, now) = (fixture.node(), Timestamp::now());
    assert!(fixture.tokens("ann").await.needs_refresh(now));
    fixture.credentials(&other, "ann").prepare().await.unwrap();
    assert_eq!(fixture.tokens("ann").await.access_token, "access-2");
    fixture
        .change_tokens("ann", |tokens| tokens.expires_at = Some(tokens.received_at + SignedDuration::from_secs(20)))
        .await;
    assert!(
        !fixture.tokens("ann").await.needs_refresh(now),
        "short-lived tokens are renewed in the last tenth of their life"
    );
}

#[actix::test]
async fn answer_without_a_refresh_token_keeps_the_old_one() {
    let (fixture, _node, credentials) = connected().await;
    fixture.age_token("ann", -1).await;
    fixture.provider.push_answer(200, json!({ "access_token": "new", "token_type": "Bearer" }));
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer new");
    assert_eq!(fixture.tokens("ann").await.refresh_token.as_deref(), Some("refresh-1"));
}

#[actix::test]
async fn valid_token_is_used_while_refresh_fails() {
    let (fixture, _node, credentials) = connected().await;
    fixture.age_token("ann", 30).await;
    fixture.provider.push_answer(503, json!({}));
    for _ in 0..3 {
        assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    }
    assert_eq!(fixture.provider.count("refresh_token"), 1, "the next attempt waits");
    let row = fixture.store.rows.lock().unwrap()[&fixture.key("ann")].clone();
    assert_eq!(row.refreshing_since, None, "the refresh token was not used");
}

#[actix::test]
async fn unprocessed_refresh_is_repeated_after_a_pause() {
    let (fixture, _node, credentials) = connected().await;
    fixture.age_token("ann", -1).await;
    fixture.provider.push_answer(503, json!({}));
    fixture.provider.push_answer(400, json!({ "error": "temporarily_unavailable" }));
    for attempts in 1..=2 {
        for authorized in join_all((0..3).map(|_| authorize(&*credentials))).await {
            assert_unavailable(authorized);
        }
        assert_eq!(fixture.provider.count("refresh_token"), attempts, "only the first call of a round sends a request");
        skip_pause().await;
    }
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-2");
}

#[actix::test]
async fn connection_ends_the_pause_after_an_outage() {
    let (fixture, node, credentials) = connected().await;
    fixture.age_token("ann", -1).await;
    fixture.provider.push_answer(503, json!({}));
    assert_unavailable(authorize(&*credentials).await);
    connect(&node, "ann").await.unwrap();
    fixture.age_token("ann", -1).await;
    credentials.prepare().await.unwrap();
    assert_eq!(fixture.provider.count("refresh_token"), 2);
}

#[actix::test]
async fn refused_refresh_token_needs_consent() {
    let (fixture, node, credentials) = connected().await;
    fixture.age_token("ann", -1).await;
    fixture.provider.push_answer(400, json!({ "error": "invalid_grant" }));
    assert_consent_needed(authorize(&*credentials).await, "no longer renews");
    assert_consent_needed(authorize(&*fixture.credentials(&fixture.node(), "ann")).await, "no longer renews");
    assert_eq!(fixture.provider.count("refresh_token"), 1);
    let status = &node.list_statuses(&person("ann")).await.unwrap()[0];
    assert!(!status.is_connected && status.problem.as_ref().unwrap().contains("no longer renews"));
    connect(&node, "ann").await.unwrap();
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-2");
}

#[actix::test]
async fn forgotten_client_is_registered_anew() {
    let (fixture, _node, credentials) = connected().await;
    fixture.age_token("ann", -1).await;
    fixture.provider.push_answer(401, json!({ "error": "invalid_client" }));
    assert_consent_needed(authorize(&*credentials).await, "no longer renews");
    assert_eq!(fixture.provider.state.lock().unwrap().registrations, 2);
}

#[actix::test]
async fn refresh_token_of_a_lost_answer_is_not_sent_again() {
    let (fixture, node, credentials) = connected().await;
    let mark = |seconds| {
        let since = Timestamp::now() - SignedDuration::from_secs(seconds);
        fixture.store.rows.lock().unwrap().get_mut(&fixture.key("ann")).unwrap().refreshing_since = Some(since);
    };
    fixture.age_token("ann", 30).await;
    mark(61);
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1", "the access token is still valid");
    fixture.age_token("ann", -1).await;
    mark(61);
    assert_consent_needed(
        authorize(&*fixture.credentials(&fixture.node(), "ann")).await,
        "answer to its token refresh was lost",
    );
    assert!(node.list_statuses(&person("ann")).await.unwrap()[0].problem.as_ref().unwrap().contains("was lost"));
    assert_eq!(fixture.provider.count("refresh_token"), 0);
}

#[actix::test]
async fn unreadable_answer_loses_the_account() {
    let (fixture, _node, credentials) = connected().await;
    fixture.age_token("ann", -1).await;
    fixture.provider.push_answer(200, json!({}));
    assert_consent_needed(authorize(&*credentials).await, "was lost");
    assert_consent_needed(authorize(&*fixture.credentials(&fixture.node(), "ann")).await, "was lost");
    assert_eq!(fixture.provider.count("refresh_token"), 1, "no node sends the refresh token again");
}

#[actix::test]
async fn account_outlives_an_unsuitable_key_of_the_client() {
    let mut fixture = Fixture::new(UpstreamOAuth { client_id: Some("ours".to_owned()), ..UpstreamOAuth::default() });
    connect(&fixture.node(), "ann").await.unwrap();
    fixture.age_token("ann", -1).await;
    let key = Secret("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n".to_owned());
    fixture.config.upstreams[0].oauth.as_mut().unwrap().private_key = Some(key);
    assert_unavailable(authorize(&*fixture.credentials(&fixture.node(), "ann")).await);
    assert_eq!(fixture.provider.count("refresh_token"), 0);
    fixture.config.upstreams[0].oauth.as_mut().unwrap().private_key = None;
    let corrected = fixture.credentials(&fixture.node(), "ann");
    assert_eq!(authorize(&*corrected).await.unwrap(), "Bearer access-2");
}

#[actix::test]
async fn refresh_of_another_node_is_awaited() {
    let (fixture, _node, credentials) = connected().await;
    fixture.age_token("ann", 30).await;
    fixture.store.rows.lock().unwrap().get_mut(&fixture.key("ann")).unwrap().refreshing_since = Some(Timestamp::now());
    let reads = || fixture.store.reads.load(Ordering::SeqCst);
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    let before = reads();
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    assert!(reads() - before <= 2, "only the first request waits, which reads the account every 100 ms");
    let renewed = async {
        actix::clock::sleep(std::time::Duration::from_millis(300)).await;
        fixture
            .change_tokens("ann", |tokens| {
                tokens.expires_at = Some(Timestamp::now() + SignedDuration::from_secs(1000));
                tokens.access_token = "of other node".to_owned();
            })
            .await;
    };
    fixture.age_token("ann", -1).await;
    fixture.store.rows.lock().unwrap().get_mut(&fixture.key("ann")).unwrap().refreshing_since = Some(Timestamp::now());
    let other = fixture.node();
    let others = fixture.credentials(&other, "ann");
    let (authorized, ()) = join(authorize(&*others), renewed).await;
    assert_eq!(authorized.unwrap(), "Bearer of other node");
    assert_eq!(fixture.provider.count("refresh_token"), 0);
}

#[actix::test]
async fn refreshed_tokens_are_stored_after_failures_of_the_store() {
    let (fixture, _node, credentials) = connected().await;
    fixture.age_token("ann", -1).await;
    *fixture.store.failures.lock().unwrap() = 2;
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-2");
    assert_eq!(fixture.tokens("ann").await.refresh_token.as_deref(), Some("refresh-2"));
}

#[actix::test]
async fn answer_is_stored_if_nobody_waits_for_it() {
    let (fixture, _node, credentials) = connected().await;
    fixture.age_token("ann", -1).await;
    let gate = fixture.provider.hold_tokens();
    {
        let request = pin!(authorize(&*credentials));
        let sent = pin!(fixture.provider.wait_for_request("refresh_token"));
        assert!(matches!(select(request, sent).await, Either::Right(_)), "the answer is held");
    }
    gate.add_permits(1);
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-2");
    assert_eq!(fixture.provider.count("refresh_token"), 1);
}

#[actix::test]
async fn account_disconnected_during_a_refresh_stays_removed() {
    let (fixture, node, credentials) = connected().await;
    fixture.age_token("ann", -1).await;
    let gate = fixture.provider.hold_tokens();
    let ann = person("ann");
    let (authorized, removed) = join(authorize(&*credentials), async {
        fixture.provider.wait_for_request("refresh_token").await;
        let removed = node.disconnect("notion", &ann).await;
        gate.add_permits(1);
        removed
    })
    .await;
    assert!(removed.unwrap());
    assert_consent_needed(authorized, "connected first");
    assert!(fixture.store.rows.lock().unwrap().is_empty());
}

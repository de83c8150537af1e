//! Renewing tokens: once at a time, across nodes, and after failures.

use std::{pin::pin, sync::atomic::Ordering};

use futures_util::future::{Either, join, join_all, select};
use serde_json::json;

use super::*;

async fn connected() -> (Case, Arc<Accounts>, Arc<dyn Credentials>) {
    let case = Case::new(UpstreamOAuth::default());
    let node = case.node();
    connect(&node, "ann").await.unwrap();
    let credentials = case.credentials(&node, "ann");
    (case, node, credentials)
}

#[actix::test]
async fn token_is_refreshed_once_for_all_requests_and_nodes() {
    let (case, node, credentials) = connected().await;
    let other = case.node();
    let others = case.credentials(&other, "ann");
    case.age_token("ann", -1).await;
    let gate = case.provider.hold_tokens();
    let requests = (0..20).map(|number| authorize(if number % 2 == 0 { &*credentials } else { &*others }));
    let opening = async {
        case.provider.wait_for_request("refresh_token").await;
        gate.add_permits(1);
    };
    for authorized in join(join_all(requests), opening).await.0 {
        assert_eq!(authorized.unwrap(), "Bearer access-2");
    }
    assert_eq!(case.provider.count("refresh_token"), 1);
    let form = case.provider.last_form();
    assert_eq!((form["refresh_token"].as_str(), form["client_id"].as_str()), ("refresh-1", "client-1"));
    assert_eq!(form["resource"], format!("{}/mcp", case.provider.url));
    drop(node);
}

#[actix::test]
async fn token_is_refreshed_before_it_expires() {
    let (case, _node, credentials) = connected().await;
    case.age_token("ann", 70).await;
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    case.age_token("ann", 50).await;
    let (other, now) = (case.node(), Timestamp::now());
    assert!(case.tokens("ann").await.needs_refresh(now));
    case.credentials(&other, "ann").prepare().await.unwrap();
    assert_eq!(case.tokens("ann").await.access_token, "access-2");
    case.change_tokens("ann", |tokens| tokens.expires_at = Some(tokens.received_at + SignedDuration::from_secs(20)))
        .await;
    assert!(
        !case.tokens("ann").await.needs_refresh(now),
        "short-lived tokens are renewed in the last tenth of their life"
    );
}

#[actix::test]
async fn answer_without_a_refresh_token_keeps_the_old_one() {
    let (case, _node, credentials) = connected().await;
    case.age_token("ann", -1).await;
    case.provider.push_answer(200, json!({ "access_token": "new", "token_type": "Bearer" }));
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer new");
    assert_eq!(case.tokens("ann").await.refresh_token.as_deref(), Some("refresh-1"));
}

#[actix::test]
async fn valid_token_is_used_while_refresh_fails() {
    let (case, _node, credentials) = connected().await;
    case.age_token("ann", 30).await;
    case.provider.push_answer(503, json!({}));
    for _ in 0..3 {
        assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    }
    assert_eq!(case.provider.count("refresh_token"), 1, "the next attempt waits");
    let row = case.store.rows.lock().unwrap()[&case.key("ann")].clone();
    assert_eq!(row.refreshing_since, None, "the refresh token was not used");
}

#[actix::test]
async fn unprocessed_refresh_is_repeated_after_a_pause() {
    let (case, _node, credentials) = connected().await;
    case.age_token("ann", -1).await;
    case.provider.push_answer(503, json!({}));
    case.provider.push_answer(400, json!({ "error": "temporarily_unavailable" }));
    for attempts in 1..=2 {
        for authorized in join_all((0..3).map(|_| authorize(&*credentials))).await {
            assert_unavailable(authorized);
        }
        assert_eq!(case.provider.count("refresh_token"), attempts, "calls do not wait for an absent server one by one");
        pass_pause().await;
    }
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-2");
}

#[actix::test]
async fn connection_ends_the_pause_after_an_outage() {
    let (case, node, credentials) = connected().await;
    case.age_token("ann", -1).await;
    case.provider.push_answer(503, json!({}));
    assert_unavailable(authorize(&*credentials).await);
    connect(&node, "ann").await.unwrap();
    case.age_token("ann", -1).await;
    credentials.prepare().await.unwrap();
    assert_eq!(case.provider.count("refresh_token"), 2);
}

#[actix::test]
async fn refused_refresh_token_needs_consent() {
    let (case, node, credentials) = connected().await;
    case.age_token("ann", -1).await;
    case.provider.push_answer(400, json!({ "error": "invalid_grant" }));
    assert_consent(authorize(&*credentials).await, "no longer renews");
    assert_consent(authorize(&*case.credentials(&case.node(), "ann")).await, "no longer renews");
    assert_eq!(case.provider.count("refresh_token"), 1);
    let status = &node.list_statuses(&person("ann")).await.unwrap()[0];
    assert!(!status.is_connected && status.problem.as_ref().unwrap().contains("no longer renews"));
    connect(&node, "ann").await.unwrap();
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-2");
}

#[actix::test]
async fn forgotten_client_is_registered_anew() {
    let (case, _node, credentials) = connected().await;
    case.age_token("ann", -1).await;
    case.provider.push_answer(401, json!({ "error": "invalid_client" }));
    assert_consent(authorize(&*credentials).await, "no longer renews");
    assert_eq!(case.provider.state.lock().unwrap().registrations, 2);
}

#[actix::test]
async fn refresh_token_of_a_lost_answer_is_not_sent_again() {
    let (case, node, credentials) = connected().await;
    let mark = |seconds| {
        let since = Timestamp::now() - SignedDuration::from_secs(seconds);
        case.store.rows.lock().unwrap().get_mut(&case.key("ann")).unwrap().refreshing_since = Some(since);
    };
    case.age_token("ann", 30).await;
    mark(61);
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1", "the access token is still valid");
    case.age_token("ann", -1).await;
    mark(61);
    assert_consent(authorize(&*case.credentials(&case.node(), "ann")).await, "answer to its token renewal was lost");
    assert!(node.list_statuses(&person("ann")).await.unwrap()[0].problem.as_ref().unwrap().contains("was lost"));
    assert_eq!(case.provider.count("refresh_token"), 0);
}

#[actix::test]
async fn unreadable_answer_loses_the_account() {
    let (case, _node, credentials) = connected().await;
    case.age_token("ann", -1).await;
    case.provider.push_answer(200, json!({}));
    assert_consent(authorize(&*credentials).await, "was lost");
    assert_consent(authorize(&*case.credentials(&case.node(), "ann")).await, "was lost");
    assert_eq!(case.provider.count("refresh_token"), 1, "no node sends the refresh token again");
}

#[actix::test]
async fn refresh_of_another_node_is_awaited() {
    let (case, _node, credentials) = connected().await;
    case.age_token("ann", 30).await;
    case.store.rows.lock().unwrap().get_mut(&case.key("ann")).unwrap().refreshing_since = Some(Timestamp::now());
    let reads = || case.store.reads.load(Ordering::SeqCst);
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    let before = reads();
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    assert!(reads() - before <= 2, "only the first request waits, which reads the account every 100 ms");
    let renewed = async {
        actix::clock::sleep(std::time::Duration::from_millis(300)).await;
        case.change_tokens("ann", |tokens| {
            tokens.expires_at = Some(Timestamp::now() + SignedDuration::from_secs(1000));
            tokens.access_token = "of other node".to_owned();
        })
        .await;
    };
    case.age_token("ann", -1).await;
    case.store.rows.lock().unwrap().get_mut(&case.key("ann")).unwrap().refreshing_since = Some(Timestamp::now());
    let other = case.node();
    let others = case.credentials(&other, "ann");
    let (authorized, ()) = join(authorize(&*others), renewed).await;
    assert_eq!(authorized.unwrap(), "Bearer of other node");
    assert_eq!(case.provider.count("refresh_token"), 0);
}

#[actix::test]
async fn refreshed_tokens_are_stored_after_failures_of_the_store() {
    let (case, _node, credentials) = connected().await;
    case.age_token("ann", -1).await;
    *case.store.failures.lock().unwrap() = 2;
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-2");
    assert_eq!(case.tokens("ann").await.refresh_token.as_deref(), Some("refresh-2"));
}

#[actix::test]
async fn answer_is_stored_if_nobody_waits_for_it() {
    let (case, _node, credentials) = connected().await;
    case.age_token("ann", -1).await;
    let gate = case.provider.hold_tokens();
    {
        let request = pin!(authorize(&*credentials));
        let sent = pin!(case.provider.wait_for_request("refresh_token"));
        assert!(matches!(select(request, sent).await, Either::Right(_)), "the answer is held");
    }
    gate.add_permits(1);
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-2");
    assert_eq!(case.provider.count("refresh_token"), 1);
}

#[actix::test]
async fn account_disconnected_during_a_refresh_stays_removed() {
    let (case, node, credentials) = connected().await;
    case.age_token("ann", -1).await;
    let gate = case.provider.hold_tokens();
    let ann = person("ann");
    let (authorized, removed) = join(authorize(&*credentials), async {
        case.provider.wait_for_request("refresh_token").await;
        let removed = node.disconnect("notion", &ann).await;
        gate.add_permits(1);
        removed
    })
    .await;
    assert!(removed.unwrap());
    assert_consent(authorized, "connected first");
    assert!(case.store.rows.lock().unwrap().is_empty());
}

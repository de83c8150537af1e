//! Limits and idempotency: a request over a limit gets a clear refusal and stores nothing.

use futures_util::future::join_all;
use std::sync::Arc;

use crate::{ChangeFilter, testing::*};
use countersign_domain::{
    changes::{ChangeState, ReviewVerdict},
    principal::{Principal, Role},
};
use countersign_protocol::ErrorKind;

#[actix::test]
async fn open_changes_of_a_principal_are_limited() {
    let bench = TestBench::with(|config| config.limits.max_pending = 5).await;
    let results = join_all((0..20).map(|_| bench.changes.propose(bench.proposal("agent", "{}")))).await;
    let stored: Vec<_> = results.iter().filter_map(|r| r.as_ref().ok()).cloned().collect();
    assert_eq!(stored.len(), 5);
    for refused in results.iter().filter_map(|r| r.as_ref().err()) {
        assert_eq!(refused.kind, ErrorKind::RateLimited);
        assert_eq!(refused.data["limit"], "changes.max_pending");
        assert_eq!((&refused.data["max"], &refused.data["current"]), (&5.into(), &5.into()));
    }
    bench.changes.propose(bench.proposal("other", "{}")).await.unwrap();
    // Each way to end a change makes room for another one.
    bench.decide(&stored[0], ReviewVerdict::Reject).await.unwrap();
    let agent = Principal::new("agent", Role::Agent);
    bench.changes.withdraw(&stored[1].id, &agent, None).await.unwrap();
    bench.decide(&stored[2], ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&stored[2].id, ChangeState::Applied).await;
    for _ in 0..3 {
        bench.propose("{}").await;
    }
    assert!(bench.changes.propose(bench.proposal("agent", "{}")).await.is_err());
    let (dir, fake, skew) = bench.end().await;
    // The restarted process counts the same open changes.
    let mut config = config(&skew);
    config.limits.max_pending = 6;
    let bench = TestBench::in_directory(dir, fake, skew, config).await;
    bench.propose("{}").await;
    assert!(bench.changes.propose(bench.proposal("agent", "{}")).await.is_err());
    bench.end().await;
}

#[actix::test]
async fn open_bytes_of_a_principal_are_limited() {
    let bench = TestBench::with(|config| {
        config.limits.max_pending_bytes = 100_000;
        config.tuning.max_change_bytes = 90_000;
    })
    .await;
    let arguments = |bytes: usize| format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes));
    let large = bench.changes.propose(bench.proposal("agent", &arguments(95_000))).await.unwrap_err();
    assert_eq!((large.kind, &large.data["max"]), (ErrorKind::TooLarge, &90_000.into()));
    bench.propose(&arguments(60_000)).await;
    let full = bench.changes.propose(bench.proposal("agent", &arguments(60_000))).await.unwrap_err();
    assert_eq!((full.kind, &full.data["limit"]), (ErrorKind::RateLimited, &"changes.max_pending_bytes".into()));
    bench.propose(&arguments(10_000)).await;
    bench.end().await;
}

#[actix::test]
async fn same_idempotency_key_returns_the_same_change() {
    let bench = TestBench::new().await;
    let keyed = |principal: &str, key: &str, arguments: &str| {
        let mut proposal = bench.proposal(principal, arguments);
        proposal.idempotency_key = Some(key.into());
        bench.changes.propose(proposal)
    };
    let first = keyed("agent", "k", r#"{"a":1,"b":2}"#).await.unwrap();
    assert_eq!(keyed("agent", "k", r#"{ "b":2, "a":1 }"#).await.unwrap().id, first.id);
    let conflict = keyed("agent", "k", r#"{"a":2}"#).await.unwrap_err();
    assert_eq!((conflict.kind, &conflict.data["changeId"]), (ErrorKind::IdempotencyConflict, &first.id.clone().into()));
    assert_ne!(keyed("other", "k", r#"{"a":1,"b":2}"#).await.unwrap().id, first.id);
    let many = join_all((0..100).map(|_| keyed("agent", "burst", "{}"))).await;
    let ids: std::collections::HashSet<_> = many.into_iter().map(|c| c.unwrap().id.clone()).collect();
    assert_eq!(ids.len(), 1, "concurrent repeats share one change");
    assert_ne!(bench.propose("{}").await.id, bench.propose("{}").await.id);
    // A repeat is answered with the current state of the change.
    bench.decide(&first, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&first.id, ChangeState::Applied).await;
    assert_eq!(keyed("agent", "k", r#"{"a":1,"b":2}"#).await.unwrap().state, ChangeState::Applied);
    for bad in [String::new(), "x".repeat(257)] {
        assert_eq!(keyed("agent", &bad, "{}").await.unwrap_err().kind, ErrorKind::InvalidParams);
    }
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 1);
}

#[actix::test]
async fn repeat_is_answered_at_the_limit() {
    let bench = TestBench::with(|config| config.limits.max_pending = 1).await;
    let mut proposal = bench.proposal("agent", "{}");
    proposal.idempotency_key = Some("k".into());
    let first = bench.changes.propose(proposal).await.unwrap();
    let mut again = bench.proposal("agent", "{}");
    again.idempotency_key = Some("k".into());
    assert_eq!(bench.changes.propose(again).await.unwrap().id, first.id);
    bench.end().await;
}

#[actix::test]
async fn arguments_with_duplicate_keys_are_refused() {
    let bench = TestBench::new().await;
    for bad in [r#"{"a":1,"a":2}"#, r#"{"x":{"y":[{"a":1,"a":1}]}}"#] {
        let refused = bench.changes.propose(bench.proposal("agent", bad)).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidParams);
        assert!(refused.message.contains("twice"), "{refused}");
    }
    assert_eq!(bench.changes.feed().head(), 0);
    bench.end().await;
}

#[actix::test]
async fn waiters_and_write_queue_are_limited() {
    let bench = TestBench::with(|config| {
        config.tuning.max_waiters = 2;
        config.tuning.max_queued_writes = 0;
    })
    .await;
    let refused = bench.changes.propose(bench.proposal("agent", "{}")).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Overloaded);
    let watch = || bench.repository().indexes.watchers.watch("chg");
    let (first, second) = (watch(), watch());
    assert!(first.is_some() && second.is_some());
    let long = std::time::Duration::from_secs(600);
    assert_eq!(bench.changes.wait("chg", 0, long).await.unwrap_err().kind, ErrorKind::Overloaded);
    drop(first);
    assert!(bench.changes.wait("chg", 0, long).await.unwrap().is_none());
    bench.end().await;
}

#[actix::test]
async fn list_pages_show_all_concurrent_proposals() {
    let bench = TestBench::new().await;
    let proposed = join_all((0..500).map(|n| bench.propose(if n % 2 == 0 { "{}" } else { r#"{"a":1}"# }))).await;
    let ids: std::collections::HashSet<_> = proposed.iter().map(|c| c.id.as_str()).collect();
    assert_eq!(ids.len(), 500);
    assert!(ids.iter().all(|id| id.len() == 28 && id.starts_with("chg_") && !id.contains('-')));
    let (mut cursor, mut listed) = (None, 0);
    loop {
        let filter = ChangeFilter {
            states: vec![ChangeState::Pending],
            principals: vec!["agent".into()],
            ..ChangeFilter::default()
        };
        let page = bench.changes.list(filter, 123, cursor).await.unwrap();
        listed += page.items.len();
        let Some(next) = page.next_cursor else { break };
        cursor = Some(next);
    }
    assert_eq!(listed, 500);
    let bad = bench.changes.list(ChangeFilter::default(), 1, Some("'; DROP TABLE".into())).await.unwrap_err();
    assert_eq!(bad.kind, ErrorKind::InvalidParams);
    assert!(bench.changes.get(&"x".repeat(1 << 20)).await.unwrap().is_none());
    bench.end().await;
}

#[actix::test]
async fn texts_of_clients_and_providers_are_truncated() {
    let bench = TestBench::new().await;
    let mut proposal = bench.proposal("agent", "{}");
    proposal.proposer.client_name = Some("ü".repeat(10_000));
    proposal.preview.summary = "é".repeat(10_000);
    proposal.preview.target.label = "x".repeat(10_000);
    let change = bench.changes.propose(proposal).await.unwrap();
    assert_eq!(change.proposer.client_name.as_ref().unwrap().chars().count(), 201);
    assert_eq!((change.summary.chars().count(), change.target.label.chars().count()), (501, 501));
    assert_eq!(change.digest, change.review_digest());
    let stored = Arc::clone(&bench.get(&change.id).await);
    assert_eq!(serde_json::to_string(&*stored).unwrap(), serde_json::to_string(&*change).unwrap());
    bench.end().await;
}

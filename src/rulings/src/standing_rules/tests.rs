//! Tests of interrupted decisions: the request is dropped, the store fails, or another decision or node comes first.

use arc_swap::ArcSwap;
use countersign_domain::{
    changes::{ChangeState, retention::redact, testing::change},
    policy::ArgumentPattern,
    principal::{Claims, Role},
};
use countersign_routing::table::RouteTable;
use countersign_store::{
    AuditRecord, Nodes, StoreFuture, StoreLocation, WriteRequest,
    nodes::{Introduction, Node, ServerStates, StoreUpdates},
    write,
};
use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::*;

/// A node that is not the leader.
struct FollowingNode;

impl Nodes for FollowingNode {
    fn is_leader(&self) -> bool {
        false
    }
    fn subscribe_updates(&self) -> watch::Receiver<StoreUpdates> {
        watch::channel(StoreUpdates::default()).1
    }
    fn introduce(&self, _: Introduction) {}
    fn set_server_states(&self, _: ServerStates) {}
    fn list(&self) -> StoreFuture<Vec<Node>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// Returns the rules of the store, and a signal that the routes were rebuilt.
async fn open_rules(store: &Arc<dyn Store>) -> (Arc<StandingRuleService>, Arc<Notify>) {
    open_rules_with(store, StandingRuleCache::open(store).await.unwrap())
}

fn open_rules_with(store: &Arc<dyn Store>, cache: Arc<StandingRuleCache>) -> (Arc<StandingRuleService>, Arc<Notify>) {
    let rebuilt = Arc::new(Notify::new());
    let rebuilding = Arc::clone(&rebuilt);
    let rules = StandingRuleService::new(StandingRuleServiceDeps {
        store: Arc::clone(store),
        cache,
        reviewers: Arc::default(),
        routes: Arc::new(PublishedTable::from_pointee(RouteTable::default())),
        rebuild: Box::new(move || {
            let rebuilding = Arc::clone(&rebuilding);
            async move { rebuilding.notify_one() }.boxed()
        }),
        feed: Feed::new(Arc::clone(store), 0, 16),
    });
    (Arc::new(rules), rebuilt)
}

fn allow(tool: &str, by: &Principal) -> StandingRule {
    unrestricted_rule(StandingVerdict::Allow, ("files", tool, "hash"), by, Timestamp::now())
}

async fn store_rule(store: &Arc<dyn Store>, rule: &StandingRule) {
    let created = AuditRecord {
        server: "files".to_owned(),
        rules: vec![rule.clone()],
        ..AuditRecord::new("standing_rule_created", Timestamp::now(), "alice", "{}".to_owned())
    };
    write(&**store, WriteRequest::Record(created)).await.unwrap();
}

#[test]
fn rule_made_with_a_token_keeps_its_rights() {
    let claims = Claims { groups: vec!["dba".to_owned()], ..Claims::default() };
    let with_token =
        Principal { claims: Some(Arc::new(claims)), ..Principal::new("https://id.example#ann", Role::Admin) };
    assert_eq!(allow("write", &with_token).creator(), with_token);
    let with_sign_in = Principal { key_id: Some("person:https://id.example#ann".to_owned()), ..with_token };
    assert_eq!(allow("write", &with_sign_in).created_by_token, None, "the claims of a sign-in are known");
}

#[tokio::test]
async fn dropped_request_still_revokes_the_rule() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = StoreLocation::directory(dir.path()).open().unwrap();
    let alice = Principal::new("alice", Role::Reviewer);
    let rule = allow("write", &alice);
    store_rule(&store, &rule).await;
    let (rules, rebuilt) = open_rules(&store).await;
    // The request is polled once and dropped, as if its client had disconnected.
    assert!(rules.revoke(&rule.id, &alice, None).now_or_never().is_none());
    tokio::time::timeout(Duration::from_secs(60), rebuilt.notified()).await.expect("the routes must be rebuilt");
    assert!(rules.cache().rules()[0].has_ended());
    store.close();
}

#[tokio::test]
async fn rules_stored_before_a_failure_are_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = StoreLocation::directory(dir.path()).open().unwrap();
    let alice = Principal::new("alice", Role::Reviewer);
    let (rules, rebuilt) = open_rules(&store).await;
    let mut events = rules.deps.feed.subscribe(None).unwrap();
    let new = [allow("read", &alice), allow("write", &alice)];
    let mut storing = std::pin::pin!(rules.store_in_order(&new, &alice, "harmless"));
    // The store has accepted the first rule, and completes only that one.
    assert!(storing.as_mut().now_or_never().is_none());
    store.close();
    let error = storing.await.unwrap_err();
    assert_eq!((error.kind, &error.data["tools"]), (ErrorKind::StoreUnavailable, &json!(["write"])));
    assert_eq!(rules.list().iter().map(|rule| rule.tool.as_str()).collect::<Vec<_>>(), ["read"]);
    assert!(rebuilt.notified().now_or_never().is_some(), "the routes must be rebuilt");
    rules.deps.feed.close();
    let created = events.next().await.unwrap();
    assert_eq!((&*created.kind, events.next().await.is_none()), ("rule.created", true));
    let created: Value = serde_json::from_slice(&created.json).unwrap();
    assert_eq!(created["rule"]["tool"], "read");
}

#[tokio::test]
async fn expiry_keeps_changes_made_while_it_waited() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = StoreLocation::directory(dir.path()).open().unwrap();
    let alice = Principal::new("alice", Role::Reviewer);
    let (rules, _) = open_rules(&store).await;
    let past = Timestamp::UNIX_EPOCH;
    let rule = StandingRule { verdict: StandingVerdict::Deny, expires_at: Some(past), ..allow("write", &alice) };
    rules.cache().upsert(&rule);
    let other_decision = rules.rules_lock.lock().await;
    let mut expiring = std::pin::pin!(rules.expire());
    assert!(expiring.as_mut().now_or_never().is_none());
    rules.cache().upsert(&StandingRule { orphaned_at: Some(past), ..rule });
    drop(other_decision);
    expiring.await;
    let rule = &rules.list()[0];
    assert!(rule.has_ended() && rule.orphaned_at == Some(past), "{rule:?}");
    store.close();
}

#[tokio::test]
async fn rule_that_another_node_ended_keeps_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = StoreLocation::directory(dir.path()).open().unwrap();
    let (alice, bob) = (Principal::new("alice", Role::Reviewer), Principal::new("bob", Role::Reviewer));
    let rule = allow("write", &alice);
    store_rule(&store, &rule).await;
    let ((first, _), (second, _)) = (open_rules(&store).await, open_rules(&store).await);
    first.revoke(&rule.id, &alice, None).await.unwrap();
    let refused = second.revoke(&rule.id, &bob, None).await.unwrap_err();
    assert_eq!((refused.kind, &refused.data["ruleId"]), (ErrorKind::VersionConflict, &json!(rule.id)), "{refused:?}");
    assert_eq!(store.standing_rules().await.unwrap()[0].revoked_by.as_deref(), Some("alice"));
    assert!(second.is_behind(), "the rule must not stay in force");
    second.reload().await.unwrap();
    assert!(second.cache().rules()[0].has_ended() && !second.is_behind());
    store.close();
}

#[tokio::test]
async fn uses_at_all_nodes_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = StoreLocation::directory(dir.path()).open().unwrap();
    store_rule(&store, &allow("write", &Principal::new("alice", Role::Reviewer))).await;
    let ((first, _), (second, _)) = (open_rules(&store).await, open_rules(&store).await);
    let add_uses = |rules: &StandingRuleService, uses: u64| {
        (0..uses).for_each(|_| rules.cache().rules()[0].uses.increment());
    };
    let uses = |rules: &StandingRuleService| rules.cache().rules()[0].uses.get();
    add_uses(&first, 2);
    add_uses(&second, 3);
    first.record_uses().await;
    second.record_uses().await;
    add_uses(&first, 1);
    first.reload().await.unwrap();
    second.reload().await.unwrap();
    assert_eq!((uses(&first), uses(&second)), (6, 5));
    first.record_uses().await;
    first.reload().await.unwrap();
    second.reload().await.unwrap();
    second.record_uses().await;
    assert_eq!((uses(&first), uses(&second)), (6, 6));
    assert_eq!(store.standing_rules().await.unwrap()[0].uses.get(), 6);
    store.close();
}

#[tokio::test]
async fn only_the_leader_ends_expired_rules() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = StoreLocation::directory(dir.path()).open().unwrap();
    let alice = Principal::new("alice", Role::Reviewer);
    let past = Some(Timestamp::UNIX_EPOCH);
    let rule = StandingRule { verdict: StandingVerdict::Deny, expires_at: past, ..allow("write", &alice) };
    store_rule(&store, &rule).await;
    let cache = StandingRuleCache {
        rules: ArcSwap::from_pointee(vec![Arc::new(rule)]),
        is_cut_off: AtomicBool::new(false),
        nodes: Arc::new(FollowingNode),
    };
    let ((follower, _), (leader, _)) = (open_rules_with(&store, Arc::new(cache)), open_rules(&store).await);
    follower.end_invalid_rules(&mut None).await;
    assert!(!store.standing_rules().await.unwrap()[0].has_ended());
    leader.end_invalid_rules(&mut None).await;
    assert!(store.standing_rules().await.unwrap()[0].has_ended());
    store.close();
}

#[tokio::test]
async fn rule_from_redacted_change_needs_any_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = StoreLocation::directory(dir.path()).open().unwrap();
    let alice = Principal::new("alice", Role::Reviewer);
    let (rules, _) = open_rules(&store).await;
    let redacted = Arc::new(redact(&change("chg_1", "agent", 3, ChangeState::Rejected), Timestamp::now()));
    let request = |arguments| RuleRequest {
        verdict: StandingVerdict::Deny,
        arguments,
        matching: Vec::new(),
        callers: RuleCallers::Any,
        valid_for_seconds: None,
        comment: None,
    };
    let refused = rules.create(&redacted, &alice, request(RuleArguments::Exact)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::ValidationFailed, "{refused:?}");
    assert!(rules.create(&redacted, &alice, request(RuleArguments::Any)).await.unwrap().covers_any_arguments());
    store.close();
}

#[tokio::test]
async fn rule_event_has_no_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = StoreLocation::directory(dir.path()).open().unwrap();
    let (rules, _) = open_rules(&store).await;
    let mut events = rules.deps.feed.subscribe(None).unwrap();
    let arguments = serde_json::value::to_raw_value(&json!({ "text": "secret" })).unwrap();
    let rule = StandingRule {
        arguments: Some(arguments.into()),
        matching: vec![
            ArgumentPattern::equal("to", &json!("secret")),
            ArgumentPattern::within("path", "/secret".to_owned()),
        ],
        ..allow("write", &Principal::new("alice", Role::Reviewer))
    };
    rules.announce(&rule, RuleEvent::Created, "alice", None);
    let event: Value = serde_json::from_slice(&events.next().await.unwrap().json).unwrap();
    assert_eq!((&event["rule"]["id"], &event["rule"]["arguments"]), (&json!(rule.id), &Value::Null));
    assert_eq!(event["rule"]["matching"], json!([{ "argument": "to" }, { "argument": "path" }]));
    store.close();
}

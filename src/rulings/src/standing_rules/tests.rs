//! Tests that a decision is completed although its request was dropped.

use countersign_domain::principal::Role;
use countersign_routing::table::RouteTable;
use countersign_store::StoreLocation;
use futures_util::FutureExt;
use tokio::sync::Notify;

use super::*;

#[tokio::test]
async fn dropped_request_still_revokes_the_rule() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = StoreLocation::directory(dir.path()).open().unwrap();
    let alice = Principal::new("alice", Role::Reviewer);
    let rule = unrestricted_rule(StandingVerdict::Allow, ("files", "write", "hash"), &alice, Timestamp::now());
    let created = Record {
        server: "files".to_owned(),
        rules: vec![rule.clone()],
        ..Record::new("standing_rule_created", Timestamp::now(), "alice", "{}".to_owned())
    };
    write(&*store, WriteRequest::Record(created)).await.unwrap();
    let cache = StandingRuleCache::open(&store).await.unwrap();
    let rebuilt = Arc::new(Notify::new());
    let rebuilding = Arc::clone(&rebuilt);
    let rules = Arc::new(StandingRules::new(StandingRulesDeps {
        store: Arc::clone(&store),
        cache: Arc::clone(&cache),
        reviewers: Arc::default(),
        routes: Arc::new(PublishedTable::from_pointee(RouteTable::default())),
        rebuild: Box::new(move || {
            let rebuilding = Arc::clone(&rebuilding);
            async move { rebuilding.notify_one() }.boxed()
        }),
        feed: Feed::new(Arc::clone(&store), 0, 16),
    }));
    // The request is polled once and dropped, as if its client had disconnected.
    assert!(rules.revoke(&rule.id, &alice, None).now_or_never().is_none());
    tokio::time::timeout(Duration::from_secs(60), rebuilt.notified()).await.expect("the routes must be rebuilt");
    assert!(cache.rules()[0].has_ended());
    store.close();
}

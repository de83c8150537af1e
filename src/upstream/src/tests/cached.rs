//! Tests of cache invalidation.

use serde_json::{json, value::RawValue};

use super::*;
use crate::server::cache::CacheRequest;

fn prepare(upstream: &Upstream, uri: &str) -> crate::server::cache::CacheLookup {
    upstream.cache().unwrap().prepare(CacheRequest {
        method: "resources/read",
        subject: uri,
        digest: String::new(),
        capabilities: &ClientCapabilities::default(),
        principal: &Principal::local_agent(),
    })
}

/// The resources that the tests cache. A cache may invalidate a few others together with a resource, never this many.
const URIS: [&str; 10] = ["x:/0", "x:/1", "x:/2", "x:/3", "x:/4", "x:/5", "x:/6", "x:/7", "x:/8", "x:/9"];

fn insert(upstream: &Upstream) {
    for uri in URIS {
        let answer = RawValue::from_string("{}".into()).unwrap();
        upstream.cache().unwrap().insert(&prepare(upstream, uri), &answer, 3_600_000, false);
    }
}

fn is_cached(upstream: &Upstream, uri: &str) -> bool {
    upstream.cache().unwrap().get(&prepare(upstream, uri)).is_some()
}

fn cached_count(upstream: &Upstream) -> usize {
    URIS.iter().filter(|uri| is_cached(upstream, uri)).count()
}

#[actix::test]
async fn cache_is_invalidated_by_changes_and_writes() {
    let fake = modern();
    let upstream = start_with(UpstreamConfig { cache: true, ..config("fake") }, &[&fake]);
    upstream.wait_until_settled().await;
    insert(&upstream);
    assert_eq!(cached_count(&upstream), URIS.len());
    fake.open_links()[0].send_notification("notifications/resources/updated", json!({ "uri": URIS[0] }));
    assert!(!is_cached(&upstream, URIS[0]));
    assert!(cached_count(&upstream) > 0);
    for list in ["tools", "resources"] {
        insert(&upstream);
        fake.open_links()[0].send_notification(&format!("notifications/{list}/list_changed"), json!({}));
        assert_eq!(cached_count(&upstream), 0, "{list}");
    }
    insert(&upstream);
    let read = OutgoingRequest { is_repeatable: true, ..request(&upstream, "tools/call") };
    for harmless in [read, request(&upstream, "prompts/get"), request(&upstream, "completion/complete")] {
        upstream.call(&agent("a"), &harmless, Arc::new(RecordingListener::default())).await.unwrap();
    }
    assert_eq!(cached_count(&upstream), URIS.len());
    for method in ["tools/call", "vendor/do", "tasks/update"] {
        insert(&upstream);
        upstream.call(&agent("a"), &request(&upstream, method), Arc::new(RecordingListener::default())).await.unwrap();
        assert_eq!(cached_count(&upstream), 0, "{method}");
    }
    insert(&upstream);
    fake.open_links()[0].closed.cancel();
    seconds(5).await;
    assert!(fake.link_count() > 1);
    assert_eq!(cached_count(&upstream), 0, "the server was reconnected");
}

#[actix::test]
async fn cache_is_disabled_by_default() {
    assert!(start(&modern()).await.cache().is_none());
}

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

fn insert(upstream: &Upstream) {
    for uri in ["x:/a", "x:/b"] {
        let answer = RawValue::from_string("{}".into()).unwrap();
        upstream.cache().unwrap().insert(&prepare(upstream, uri), &answer, 3_600_000, false);
    }
}

fn cached_count(upstream: &Upstream) -> usize {
    let cache = upstream.cache().unwrap();
    ["x:/a", "x:/b"].iter().filter(|uri| cache.get(&prepare(upstream, uri)).is_some()).count()
}

#[actix::test]
async fn cache_is_invalidated_by_changes_and_writes() {
    let fake = modern();
    let upstream = start_with(UpstreamConfig { cache: true, ..config("fake") }, &[&fake]);
    upstream.wait_until_settled().await;
    insert(&upstream);
    assert_eq!(cached_count(&upstream), 2);
    fake.open()[0].send_notification("notifications/resources/updated", json!({ "uri": "x:/a" }));
    assert_eq!(cached_count(&upstream), 1);
    for list in ["tools", "resources"] {
        insert(&upstream);
        fake.open()[0].send_notification(&format!("notifications/{list}/list_changed"), json!({}));
        assert_eq!(cached_count(&upstream), 0, "{list}");
    }
    insert(&upstream);
    let read = Outgoing { repeatable: true, ..request(&upstream, "tools/call") };
    for harmless in [read, request(&upstream, "prompts/get"), request(&upstream, "completion/complete")] {
        upstream.call(&agent("a"), &harmless, Arc::new(RecordingListener::default())).await.unwrap();
    }
    assert_eq!(cached_count(&upstream), 2);
    for method in ["tools/call", "vendor/do", "tasks/update"] {
        insert(&upstream);
        upstream.call(&agent("a"), &request(&upstream, method), Arc::new(RecordingListener::default())).await.unwrap();
        assert_eq!(cached_count(&upstream), 0, "{method}");
    }
    insert(&upstream);
    fake.open()[0].closed.cancel();
    seconds(5).await;
    assert!(fake.link_count() > 1);
    assert_eq!(cached_count(&upstream), 0, "the server was reconnected");
}

#[actix::test]
async fn cache_is_disabled_by_default() {
    assert!(start(&modern()).await.cache().is_none());
}

//! What makes kept answers worthless.

use serde_json::{json, value::RawValue};

use super::*;
use crate::server::cache::Asked;

fn question(upstream: &Upstream, uri: &str) -> crate::server::cache::Question {
    upstream.cache().unwrap().question(Asked {
        method: "resources/read",
        subject: uri,
        digest: String::new(),
        capabilities: &ClientCapabilities::default(),
        principal: &Principal::local_agent(),
    })
}

fn keep(upstream: &Upstream) {
    for uri in ["x:/a", "x:/b"] {
        let answer = RawValue::from_string("{}".into()).unwrap();
        upstream.cache().unwrap().keep(&question(upstream, uri), &answer, 3_600_000, false);
    }
}

fn kept(upstream: &Upstream) -> usize {
    let cache = upstream.cache().unwrap();
    ["x:/a", "x:/b"].iter().filter(|uri| cache.answer(&question(upstream, uri)).is_some()).count()
}

#[actix::test]
async fn changes_that_a_server_tells_of_and_those_it_is_told_to_make() {
    let fake = modern();
    let upstream = start_with(UpstreamConfig { cache: true, ..config("fake") }, &[&fake]);
    upstream.settled().await;
    keep(&upstream);
    assert_eq!(kept(&upstream), 2);
    fake.open()[0].tell("notifications/resources/updated", json!({ "uri": "x:/a" }));
    assert_eq!(kept(&upstream), 1);
    for list in ["tools", "resources"] {
        keep(&upstream);
        fake.open()[0].tell(&format!("notifications/{list}/list_changed"), json!({}));
        assert_eq!(kept(&upstream), 0, "{list}");
    }
    keep(&upstream);
    let read = Outgoing { repeatable: true, ..request(&upstream, "tools/call") };
    for harmless in [read, request(&upstream, "prompts/get"), request(&upstream, "completion/complete")] {
        upstream.call(&agent("a"), &harmless, Arc::new(Heard::default())).await.unwrap();
    }
    assert_eq!(kept(&upstream), 2);
    for method in ["tools/call", "vendor/do", "tasks/update"] {
        keep(&upstream);
        upstream.call(&agent("a"), &request(&upstream, method), Arc::new(Heard::default())).await.unwrap();
        assert_eq!(kept(&upstream), 0, "{method}");
    }
    keep(&upstream);
    fake.open()[0].closed.cancel();
    seconds(5).await;
    assert!(fake.made() > 1);
    assert_eq!(kept(&upstream), 0, "it was reached anew");
}

#[actix::test]
async fn nothing_is_kept_unless_that_is_wanted() {
    assert!(start(&modern()).await.cache().is_none());
}

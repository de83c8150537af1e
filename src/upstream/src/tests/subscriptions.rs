//! Tests of watched resources, and of the single stream of a stateless server.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::link::LinkError;
use countersign_provider::ProviderEvent;

/// Watches a resource, and returns the answer of its server.
async fn watch(upstream: &Upstream, uri: &str) -> Result<(), McpError> {
    upstream.watch_resource(uri);
    upstream.wait_until_watched(uri).await
}

#[actix::test]
async fn subscriptions_are_counted_and_renewed_on_reconnect() {
    let fake = legacy();
    *fake.capabilities.lock() = json!({ "resources": { "subscribe": true } });
    let upstream = start(&fake).await;
    let mut receiver = upstream.events.subscribe();
    fake.answer_with(|_| Box::pin(std::future::ready(fake::ok(json!({})))));
    watch(&upstream, "file:///a").await.unwrap();
    watch(&upstream, "file:///a").await.unwrap();
    watch(&upstream, "file:///b").await.unwrap();
    assert_eq!((fake.request_count("resources/subscribe"), fake.request_count("resources/unsubscribe")), (2, 0));
    fake.open_links()[0].send_notification("notifications/resources/updated", json!({ "uri": "file:///a" }));
    assert!(
        matches!(receiver.try_recv(), Ok(ProviderEvent::ResourcesUpdated(uris)) if uris == ["fake+file:///a"]),
        "under the URI that clients use"
    );
    upstream.unwatch_resource("file:///a");
    upstream.unwatch_resource("file:///b");
    seconds(1).await;
    assert_eq!(fake.request_count("resources/unsubscribe"), 1);

    fake.open_links()[0].closed.cancel();
    seconds(5).await;
    assert_eq!(fake.request_count("resources/subscribe"), 3, "only the resource that is still watched");
    upstream.unwatch_resource("file:///a");
    seconds(1).await;
    assert_eq!(fake.request_count("resources/unsubscribe"), 2);
}

/// Advances the time, and returns the number of updates of `file:///a` and its parts that were forwarded.
async fn update_count(receiver: &mut tokio::sync::broadcast::Receiver<ProviderEvent>, after: Duration) -> usize {
    tokio::time::sleep(after).await;
    let mut count = 0;
    while let Ok(event) = receiver.try_recv() {
        assert!(
            matches!(event, ProviderEvent::ResourcesUpdated(uris) if uris.iter().all(|uri| uri.starts_with("fake+file:///a")))
        );
        count += 1;
    }
    count
}

#[actix::test]
async fn duplicate_updates_of_a_part_are_forwarded_once() {
    let fake = legacy();
    *fake.capabilities.lock() = json!({ "resources": { "subscribe": true } });
    let upstream = start(&fake).await;
    fake.answer_with(|_| Box::pin(std::future::ready(fake::ok(json!({})))));
    watch(&upstream, "file:///a").await.unwrap();
    call(&upstream, &askable("a")).await.unwrap();
    let links = fake.open_links();
    assert_eq!(links.len(), 2, "that of the gateway and that of the client");
    let mut receiver = upstream.events.subscribe();
    for part in ["file:///a/b", "file:///a?c"] {
        for link in links.iter().chain(&links[1..]) {
            link.send_notification("notifications/resources/updated", json!({ "uri": part }));
        }
        assert_eq!(update_count(&mut receiver, Duration::from_secs(1)).await, 1, "{part}");
        links[1].send_notification("notifications/resources/updated", json!({ "uri": part }));
        assert_eq!(update_count(&mut receiver, Duration::from_secs(1)).await, 1, "{part} in one session");
    }
}

#[actix::test]
async fn duplicate_updates_are_forwarded_once() {
    let fake = legacy();
    *fake.capabilities.lock() = json!({ "resources": { "subscribe": true } });
    let upstream = start(&fake).await;
    fake.answer_with(|_| Box::pin(std::future::ready(fake::ok(json!({})))));
    watch(&upstream, "file:///a").await.unwrap();
    call(&upstream, &askable("a")).await.unwrap();
    let own = fake.open_links().into_iter().find(|link| *link.declared.lock() != json!({})).unwrap();
    let plain = fake.open_links().into_iter().find(|link| *link.declared.lock() == json!({})).unwrap();
    let mut receiver = upstream.events.subscribe();
    let notify = |link: &fake::FakeLink| {
        link.send_notification("notifications/resources/updated", json!({ "uri": "file:///a" }))
    };
    let (at_once, soon, long) = (Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1));
    // The order of the two updates does not matter.
    notify(&plain);
    assert_eq!(update_count(&mut receiver, at_once).await, 1);
    notify(&own);
    notify(&own);
    assert_eq!(update_count(&mut receiver, long).await, 0);
    notify(&own);
    assert_eq!(update_count(&mut receiver, soon).await, 0);
    notify(&plain);
    assert_eq!(update_count(&mut receiver, at_once).await, 1);
    assert_eq!(update_count(&mut receiver, long).await, 0);
    // Each update on the gateway's own subscription counts.
    notify(&plain);
    notify(&plain);
    assert_eq!(update_count(&mut receiver, long).await, 2);
    // An update that only the client's session announces arrives after the delay.
    notify(&own);
    assert_eq!(update_count(&mut receiver, soon).await, 0);
    notify(&own);
    assert_eq!(update_count(&mut receiver, long).await, 1);
    notify(&own);
    assert_eq!(update_count(&mut receiver, long).await, 1);
    // The gateway no longer watches the resource, so the update is forwarded at once.
    upstream.unwatch_resource("file:///a");
    seconds(1).await;
    notify(&own);
    assert_eq!(update_count(&mut receiver, at_once).await, 1);
}

#[actix::test]
async fn watch_fails_without_server_subscriptions() {
    let fake = legacy();
    let upstream = start(&fake).await;
    assert!(watch(&upstream, "file:///a").await.is_err());
    seconds(1).await;
    assert_eq!(fake.request_count("resources/subscribe"), 0);
}

/// The streams of a stateless server, in the order in which they were opened.
#[derive(Clone, Default)]
struct Streams(Arc<Mutex<Vec<Stream>>>);

struct Stream {
    filter: Value,
    listener: Arc<dyn Listener>,
    open: Arc<()>,
    end: tokio_util::sync::CancellationToken,
}

impl Streams {
    fn serve(&self, fake: &FakeServer) {
        let streams = self.clone();
        fake.answer_with(move |request| {
            assert_eq!(request.method, "subscriptions/listen");
            let (open, end) = (Arc::new(()), tokio_util::sync::CancellationToken::new());
            let is_first = streams.0.lock().is_empty();
            streams.0.lock().push(Stream {
                filter: request.params["notifications"].clone(),
                listener: Arc::clone(&request.listener),
                open: Arc::clone(&open),
                end: end.clone(),
            });
            Box::pin(async move {
                let _open = open;
                seconds(1).await;
                request
                    .listener
                    .handle_notification(fake::notification("notifications/subscriptions/acknowledged", json!({})));
                end.cancelled().await;
                // Over HTTP, the cancellation of a stream arrives as an error.
                if is_first {
                    fake::ok(json!({ "resultType": "complete" }))
                } else {
                    Ok(Response::Error(countersign_protocol::rpc_error::RpcError::new(-32603, "ended")))
                }
            })
        });
    }

    fn filters(&self) -> Vec<Value> {
        self.0.lock().iter().map(|stream| stream.filter.clone()).collect()
    }

    /// Returns `true` for each stream that is open.
    fn open(&self) -> Vec<bool> {
        self.0.lock().iter().map(|stream| Arc::strong_count(&stream.open) > 1).collect()
    }
}

#[actix::test]
async fn new_stream_is_acknowledged_before_old_one_closes() {
    let fake = modern();
    *fake.capabilities.lock() =
        json!({ "tools": { "listChanged": true }, "prompts": {}, "resources": { "subscribe": true } });
    let streams = Streams::default();
    streams.serve(&fake);
    let upstream = start(&fake).await;
    seconds(5).await;
    assert_eq!(streams.filters(), [json!({ "toolsListChanged": true })]);

    upstream.watch_resource("file:///a");
    let watched = upstream.wait_until_watched("file:///a");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(streams.open(), [true, true], "not acknowledged yet");
    watched.await.unwrap();
    seconds(1).await;
    assert_eq!(streams.open(), [false, true]);
    assert_eq!(streams.filters()[1], json!({ "toolsListChanged": true, "resourceSubscriptions": ["file:///a"] }));

    let mut receiver = upstream.events.subscribe();
    let listener = Arc::clone(&streams.0.lock()[1].listener);
    listener.handle_notification(fake::notification("notifications/resources/updated", json!({ "uri": "file:///a" })));
    assert!(matches!(receiver.try_recv(), Ok(ProviderEvent::ResourcesUpdated(_))));
    let read = fake.request_count("tools/list");
    listener.handle_notification(fake::notification("notifications/tools/list_changed", json!({})));
    seconds(1).await;
    assert_eq!(fake.request_count("tools/list"), read + 1);

    upstream.unwatch_resource("file:///a");
    seconds(3).await;
    assert_eq!(streams.open(), [false, false, true]);
    assert_eq!(streams.filters()[2], json!({ "toolsListChanged": true }));
}

#[actix::test]
async fn ended_stream_is_reopened_and_lists_are_read() {
    let fake = modern();
    let streams = Streams::default();
    streams.serve(&fake);
    let upstream = start(&fake).await;
    seconds(5).await;
    for (index, tool) in ["first", "second"].into_iter().enumerate() {
        let read = fake.request_count("tools/list");
        fake.lists.lock().insert("tools/list", fake::tools(&[tool]));
        streams.0.lock()[index].end.cancel();
        seconds(10).await;
        assert_eq!(streams.open().split_last(), Some((&true, [false].repeat(index + 1).as_slice())));
        assert!(fake.request_count("tools/list") > read);
        assert_eq!(upstream.status().tools, 1);
        assert!(upstream.catalog().tools[0].get().contains(tool));
    }
}

#[actix::test]
async fn streams_that_end_at_once_are_opened_less_often() {
    let fake = modern();
    fake.answer_with(|request| {
        Box::pin(async move {
            let acknowledged = fake::notification("notifications/subscriptions/acknowledged", json!({}));
            request.listener.handle_notification(acknowledged);
            seconds(1).await;
            Ok(Response::Error(countersign_protocol::rpc_error::RpcError::new(-32603, "ended")))
        })
    });
    let _upstream = start(&fake).await;
    seconds(600).await;
    let count = fake.request_count("subscriptions/listen");
    assert!((5..50).contains(&count), "{count}");
}

/// Watches a resource of a server that answers with this HTTP status, and returns the number of requests with this method.
async fn count_requests_after_failure(fake: &Arc<FakeServer>, status: u16, method: &str) -> usize {
    *fake.capabilities.lock() = json!({ "tools": {}, "resources": { "subscribe": true } });
    fake.answer_with(move |_| Box::pin(std::future::ready(Err(LinkError::Status { status, body: String::new() }))));
    let upstream = start(fake).await;
    // A watch that may succeed later is not an error.
    assert_eq!(watch(&upstream, "file:///a").await.is_ok(), status == 429);
    seconds(10).await;
    fake.request_count(method)
}

#[actix::test]
async fn failed_subscription_is_requested_again() {
    let fake = legacy();
    assert!(count_requests_after_failure(&fake, 429, "resources/subscribe").await > 1);
    fake.answer_with(|_| Box::pin(std::future::ready(fake::ok(json!({})))));
    seconds(120).await;
    let count = fake.request_count("resources/subscribe");
    seconds(600).await;
    assert_eq!(fake.request_count("resources/subscribe"), count);
}

#[actix::test]
async fn failed_stream_is_requested_again() {
    assert!(count_requests_after_failure(&modern(), 429, "subscriptions/listen").await > 1);
}

#[actix::test]
async fn subscription_refused_by_status_is_not_requested_again() {
    assert_eq!(count_requests_after_failure(&legacy(), 405, "resources/subscribe").await, 1);
}

#[actix::test]
async fn resources_left_out_or_refused_by_stateless_server_are_errors() {
    let fake = modern();
    *fake.capabilities.lock() = json!({ "tools": { "listChanged": true }, "resources": { "subscribe": true } });
    fake.answer_with(|request| {
        Box::pin(async move {
            let mut filter = request.params["notifications"].clone();
            if filter["resourceSubscriptions"].to_string().contains("file:///unknown") {
                return Ok(Response::Error(countersign_protocol::rpc_error::RpcError::new(-32602, "unknown")));
            }
            if let Some(uris) = filter["resourceSubscriptions"].as_array_mut() {
                uris.retain(|uri| uri != "file:///silent");
            }
            let acknowledged = json!({ "notifications": filter });
            let acknowledged = fake::notification("notifications/subscriptions/acknowledged", acknowledged);
            request.listener.handle_notification(acknowledged);
            std::future::pending().await
        })
    });
    let upstream = start(&fake).await;
    for (uri, is_accepted) in [("file:///a", true), ("file:///silent", false), ("file:///unknown", false)] {
        assert_eq!(watch(&upstream, uri).await.is_ok(), is_accepted, "{uri}");
    }
    seconds(600).await;
    // The last stream announces what the server accepts, and is not opened again.
    assert_eq!(fake.request_count("subscriptions/listen"), 5);
    watch(&upstream, "file:///a").await.unwrap();
}

#[actix::test]
async fn refused_stream_is_not_requested_again() {
    let fake = modern();
    fake.answer_with(|_| {
        Box::pin(std::future::ready(Ok(Response::Error(countersign_protocol::rpc_error::RpcError::new(
            -32601,
            "no such method",
        )))))
    });
    let upstream = start(&fake).await;
    seconds(600).await;
    assert_eq!(fake.request_count("subscriptions/listen"), 1);
    assert_eq!(upstream.status().status, "up");
}

#[actix::test]
async fn later_subscriber_waits_no_longer_than_first_one() {
    let fake = legacy();
    *fake.capabilities.lock() = json!({ "resources": { "subscribe": true } });
    fake.answer_with(|_| Box::pin(std::future::pending()));
    let upstream = start(&fake).await;
    let began = tokio::time::Instant::now();
    for _ in 0..2 {
        watch(&upstream, "file:///a").await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
    }
}

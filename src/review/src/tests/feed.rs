//! The feed delivers every change event once and in order, even if a subscriber is slow or reconnects.

use std::collections::VecDeque;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::testing::*;
use countersign_domain::changes::{ChangeState, ReviewVerdict};
use countersign_feed::FeedEvent;

fn seqs(events: &[std::sync::Arc<FeedEvent>]) -> Vec<u64> {
    events.iter().filter_map(|e| e.seq).collect()
}

#[actix::test]
async fn event_is_the_same_live_and_replayed_without_secrets() {
    let bench = TestBench::new().await;
    let mut live = bench.changes.feed().subscribe(None).unwrap();
    let change = bench.propose(r#"{"password":"hunter2"}"#).await;
    bench.decide(&change, ReviewVerdict::Reject).await.unwrap();
    let mut replayed = bench.changes.feed().subscribe(Some(0)).unwrap();
    for n in 1..=2 {
        let (a, b) = (live.next().await.unwrap(), replayed.next().await.unwrap());
        assert_eq!((&a.json, &a.sse, &a.kind, a.seq), (&b.json, &b.sse, &b.kind, b.seq));
        assert_eq!(a.change, b.change);
        let sse = String::from_utf8(a.sse.to_vec()).unwrap();
        let text = String::from_utf8(a.json.to_vec()).unwrap();
        assert_eq!(sse, format!("id: {n}\nevent: {}\ndata: {text}\n\n", a.kind));
        assert!(!text.contains('\n') && !text.contains("hunter2"));
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&json["type"], &json["seq"]), (&json!(a.kind), &json!(n)));
        assert_eq!(json["change"]["id"], json!(change.id));
        assert_eq!(json["change"]["proposer"]["session"], "01234567…");
        assert_eq!(json["change"]["toolTitle"], "Update");
        assert!(json["at"].is_string());
    }
    let decided: Value =
        serde_json::from_slice(&bench.changes.feed().subscribe(Some(1)).unwrap().next().await.unwrap().json).unwrap();
    assert_eq!((&decided["actor"], &decided["comment"]), (&json!("alice"), &json!("looks right")));
    assert_eq!(decided["change"]["state"], "rejected");
    bench.end().await;
}

#[actix::test]
async fn slow_subscriber_gets_every_event_once() {
    let bench = TestBench::with(|config| config.tuning.feed_buffer = 8).await;
    let mut slow = bench.changes.feed().subscribe(None).unwrap();
    join_all((0..300).map(|_| bench.propose("{}"))).await;
    let mut got = Vec::new();
    while got.len() < 150 {
        got.push(slow.next().await.unwrap());
    }
    join_all((0..100).map(|_| bench.propose("{}"))).await;
    while got.len() < 400 {
        got.push(slow.next().await.unwrap());
    }
    assert_eq!(seqs(&got), (1..=400).collect::<Vec<_>>());
    assert_eq!((slow.position(), bench.changes.feed().head()), (400, 400));
    bench.end().await;
}

/// Subscribers connect, are cancelled during a wait, and reconnect while changes are written.
#[actix::test]
async fn reconnecting_subscribers_miss_and_repeat_nothing() {
    const EVENTS: u64 = 400;
    let bench = TestBench::with(|config| config.tuning.feed_buffer = 16).await;
    let subscribers = (0..20_u64).map(|n| {
        let feed = bench.changes.feed().clone();
        async move {
            let (mut since, mut got, mut turn) = (0, Vec::new(), VecDeque::from([n % 7 + 1, 3, 1, 40, 2]));
            while since < EVENTS {
                let mut subscription = feed.subscribe(Some(since)).unwrap();
                let take = turn.pop_front().unwrap_or(100);
                turn.push_back(take);
                for _ in 0..take {
                    // Dropping a pending `next` must lose nothing.
                    {
                        let mut next = Box::pin(subscription.next());
                        if let std::task::Poll::Ready(event) = futures_util::poll!(next.as_mut()) {
                            let event = event.unwrap();
                            since = event.seq.unwrap();
                            got.push(since);
                            if since == EVENTS {
                                break;
                            }
                            continue;
                        }
                    }
                    let event = subscription.next().await.unwrap();
                    since = event.seq.unwrap();
                    got.push(since);
                    if since == EVENTS {
                        break;
                    }
                }
            }
            assert_eq!(got, (1..=EVENTS).collect::<Vec<_>>());
        }
    });
    let writes = join_all((0..EVENTS).map(|_| bench.propose("{}")));
    tokio::join!(join_all(subscribers), writes);
    bench.end().await;
}

#[actix::test]
async fn session_events_are_live_and_unnumbered() {
    let bench = TestBench::new().await;
    let feed = bench.changes.feed();
    let mut early = feed.subscribe(None).unwrap();
    feed.publish_live(&json!({ "type": "session.opened", "at": "x", "session": { "id": "abc" } }));
    bench.propose("{}").await;
    let mut late = feed.subscribe(Some(0)).unwrap();
    let opened = early.next().await.unwrap();
    assert_eq!((opened.seq, opened.kind.as_ref()), (None, "session.opened"));
    assert!(opened.sse.starts_with(b"event: session.opened\ndata: {"));
    assert_eq!(early.next().await.unwrap().seq, Some(1));
    assert_eq!(late.next().await.unwrap().seq, Some(1), "live events are not replayed");
    assert_eq!(FeedEvent::hello(1).sse.as_ref(), b"event: hello\ndata: {\"type\":\"hello\",\"seq\":1}\n\n");
    assert_eq!(feed.subscriber_count(), 2);
    bench.end().await;
}

#[actix::test]
async fn subscription_beyond_the_end_begins_with_a_reset() {
    let bench = TestBench::new().await;
    let feed = bench.changes.feed();
    for head in 0..2 {
        let mut lost = feed.subscribe(Some(1_000_000)).unwrap();
        bench.propose("{}").await;
        let reset = lost.next().await.unwrap();
        assert_eq!((reset.kind.as_ref(), reset.seq), ("reset", Some(head)));
        assert_eq!(lost.next().await.unwrap().seq, Some(head + 1), "events after the subscription are not lost");
        assert_eq!(lost.position(), head + 1);
    }
    let mut resumed = feed.subscribe(Some(2)).unwrap();
    bench.propose("{}").await;
    assert_eq!(resumed.next().await.unwrap().seq, Some(3), "the end itself gives no reset");
    bench.end().await;
}

#[actix::test]
async fn event_numbers_continue_after_restart() {
    let bench = TestBench::new().await;
    bench.propose("{}").await;
    let (dir, fake, skew) = bench.end().await;
    let config = config(&skew);
    let bench = TestBench::in_directory(dir, fake, skew, config).await;
    assert_eq!(bench.changes.feed().head(), 1);
    let mut feed = bench.changes.feed().subscribe(Some(0)).unwrap();
    bench.propose("{}").await;
    assert_eq!(feed.next().await.unwrap().seq, Some(1));
    assert_eq!(feed.next().await.unwrap().seq, Some(2));
    bench.end().await;
}

#[actix::test]
async fn waiter_is_woken_by_next_version_and_by_shutdown() {
    let bench = TestBench::new().await;
    let change = bench.propose("{}").await;
    let zero = std::time::Duration::ZERO;
    let long = std::time::Duration::from_secs(600);
    assert!(bench.changes.wait("chg_none", 0, long).await.unwrap().is_none());
    assert_eq!(
        bench.changes.wait(&change.id, 0, long).await.unwrap().unwrap().version,
        1,
        "a newer version is returned at once"
    );
    assert_eq!(bench.changes.wait(&change.id, 1, zero).await.unwrap().unwrap().version, 1, "the wait timed out");
    let mut waits: Vec<_> = (0..50).map(|_| Box::pin(bench.changes.wait(&change.id, 1, long))).collect();
    for wait in &mut waits {
        assert!(futures_util::poll!(wait.as_mut()).is_pending());
    }
    let rejected = bench.decide(&change, ReviewVerdict::Reject).await.unwrap();
    for wait in waits {
        assert_eq!(wait.await.unwrap().unwrap().state, ChangeState::Rejected);
    }
    let finished = bench.changes.wait(&change.id, rejected.version + 5, long).await.unwrap().unwrap();
    assert_eq!(finished.version, rejected.version, "a wait for a final change returns at once");
    bench.end().await;
}

#[actix::test]
async fn thousand_subscribers_share_event_bytes() {
    let bench = TestBench::new().await;
    let feed = bench.changes.feed();
    let subscribers: Vec<_> = (0..1000).map(|_| feed.subscribe(None).unwrap()).collect();
    let reading = subscribers.into_iter().map(|mut subscription| async move {
        let mut got = Vec::new();
        for _ in 0..20 {
            got.push(subscription.next().await.unwrap());
        }
        got
    });
    let (all, _) = tokio::join!(join_all(reading), join_all((0..20).map(|_| bench.propose("{}"))));
    for got in &all {
        assert_eq!(seqs(got), (1..=20).collect::<Vec<_>>());
        for (mine, first) in got.iter().zip(&all[0]) {
            assert_eq!(mine.json.as_ptr(), first.json.as_ptr(), "all subscribers share one serialization");
        }
    }
    bench.end().await;
}

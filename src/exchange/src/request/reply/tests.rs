//! Tests of answers and of the messages that precede them.

use std::task::Waker;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    session::{
        outbox::{Outbox, OutboxLimits},
        streams::Streams,
    },
    testing::identity,
};
use countersign_domain::principal::Role;
use countersign_telemetry::metrics::Transport;

fn session(transport: Transport, channel: Channel) -> Arc<SessionState> {
    let identity = identity("ann", Role::Agent);
    Arc::new(SessionState::new(transport, identity, channel, &CancellationToken::new()))
}

#[test]
fn response_queue_is_bounded_but_accepts_one_long_message() {
    let queue = ResponseQueue::new(2, 10);
    let text = |n: usize| Bytes::from("x".repeat(n));
    assert!(queue.push(text(5)) && queue.push(text(5)));
    assert!(!queue.push(text(0)), "the queue has room for two messages");
    assert_eq!(queue.take().len(), 2);
    assert!(queue.push(text(100)), "a long message could never be sent otherwise");
    assert!(!queue.push(text(1)));
    assert_eq!(queue.take().len(), 1);
    assert!(queue.push(text(1)));
}

#[test]
fn response_queue_takes_principals_memory_until_read() {
    let memory = MemoryBudget::new(40 << 10, 40 << 10);
    let principal = identity("ann", Role::Agent).principal;
    let queue = ResponseQueue::with_memory(100, 1 << 20, Arc::clone(&memory), principal);
    let message = || Bytes::from(vec![b'x'; 30 << 10]);
    let cx = Context::from_waker(Waker::noop());
    assert!(queue.poll_ready(&cx).is_pending());
    assert!(queue.push(message()));
    assert!(queue.poll_ready(&cx).is_ready());
    assert_eq!(memory.used_by("ann"), (30 << 10) - EXEMPT_MESSAGE_BYTES);
    assert!(!queue.push(message()), "there is no memory for another one");
    assert_eq!(queue.take().len(), 1);
    assert_eq!(memory.used_by("ann"), 0);
    assert!(queue.push(message()));
}

#[test]
fn message_after_an_answer_without_stream_goes_to_stream_of_get() {
    let session = session(Transport::Http, Channel::Streams(Streams::new(10, 1000)));
    let stream = Arc::new(PostStream::new(Arc::clone(&session)));
    assert_eq!(stream.number_or_close(), None);
    assert!(RelatedChannel::Stream(stream).send(Bytes::from("late")));
    let Channel::Streams(streams) = &session.channel else { unreachable!() };
    assert_eq!((streams.newest_event(GET_STREAM), streams.newest_event(GET_STREAM + 1)), (Some(1), None));
}

#[test]
fn first_message_opens_stream_of_post() {
    let session = session(Transport::Http, Channel::Streams(Streams::new(10, 1000)));
    let stream = Arc::new(PostStream::new(Arc::clone(&session)));
    assert_eq!(stream.number(), None);
    let related = RelatedChannel::Stream(Arc::clone(&stream));
    assert!(related.send(Bytes::from("a")) && related.send(Bytes::from("b")));
    let number = stream.number().unwrap();
    let Channel::Streams(streams) = &session.channel else { unreachable!() };
    assert_eq!(streams.newest_event(number), Some(2), "both are on one stream");
    assert!(!RelatedChannel::None.send(Bytes::from("c")));
}

#[test]
fn unread_message_of_request_ends_its_session() {
    let limits = OutboxLimits { messages: 1, bytes: 10, replay_frames: 0, replay_bytes: 0 };
    let session = session(Transport::WebSocket, Channel::Outbox(Outbox::new(limits)));
    let related = RelatedChannel::Outbox(Arc::clone(&session));
    assert!(related.send(Bytes::from("a")));
    assert!(!session.ended.is_cancelled());
    assert!(!related.send(Bytes::from("b")));
    assert!(session.ended.is_cancelled(), "a client that does not read loses its session");
    let over_http = self::session(Transport::Http, Channel::Streams(Streams::new(1, 10)));
    let related = RelatedChannel::Stream(Arc::new(PostStream::new(Arc::clone(&over_http))));
    assert!(related.send(Bytes::from("a")) && !related.send(Bytes::from("b")));
    assert!(over_http.ended.is_cancelled());
    let none = self::session(Transport::Http, Channel::None);
    assert!(!RelatedChannel::Outbox(none).send(Bytes::from("a")));
}

#[test]
fn dropped_progress_ends_neither_session_nor_request() {
    let limits = OutboxLimits { messages: 2, bytes: 1000, replay_frames: 0, replay_bytes: 0 };
    let session = session(Transport::Stdio, Channel::Outbox(Outbox::new(limits)));
    let related = RelatedChannel::Outbox(Arc::clone(&session));
    let progress = || countersign_protocol::encode::notification("notifications/progress", None);
    assert!((0..100).all(|_| related.send(progress())), "a subscription would end otherwise");
    assert!(related.send(Bytes::from("answer")), "there is room for an answer");
    assert!(!session.ended.is_cancelled());
    let Channel::Outbox(outbox) = &session.channel else { unreachable!() };
    assert_eq!(outbox.len(), 2);
}

fn finished(reply: &Reply, revision: Revision) -> Value {
    serde_json::from_str(&reply.finish(revision)).unwrap()
}

#[test]
fn result_has_members_that_its_revision_requires() {
    let reply =
        Reply { meta: Some(("id", "7".into())), ..Reply::new(r#"{"n":1}"#.into()).with_cache_hint(CacheHint::STATIC) };
    assert_eq!(reply.finish(Revision::V2025_11_25), r#"{"n":1}"#, "the handshake era has none of these members");
    let mut meta: Value = serde_json::from_str(SERVER_META).unwrap();
    meta["id"] = 7.into();
    let expected = json!({
        "n": 1, "resultType": "complete", "_meta": meta, "ttlMs": 60_000, "cacheScope": "public",
    });
    assert_eq!(finished(&reply, Revision::MODERN), expected);
    let live = Reply::new("{}".into()).with_cache_hint(CacheHint::LIVE);
    assert_eq!(finished(&live, Revision::MODERN)["cacheScope"], "private");
    let plain = finished(&Reply::new("{}".into()), Revision::MODERN);
    assert!(plain.get("ttlMs").is_none() && plain.get("cacheScope").is_none());
    // A result of an upstream stays unchanged.
    assert_eq!(Reply::verbatim("{ }".into()).finish(Revision::MODERN), "{ }");
}

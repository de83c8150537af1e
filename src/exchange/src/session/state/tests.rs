//! Tests of the state of sessions and of the cancellation of requests.

use super::*;
use crate::{
    bounds::memory::MemoryBudget,
    session::outbox::OutboxLimits,
    testing::{facts, identity, token_identity},
};
use countersign_domain::principal::Role;

fn session(channel: Channel) -> SessionState {
    SessionState::new(Transport::Http, identity("ann", Role::Agent), channel, &CancellationToken::new())
}

fn outbox() -> Channel {
    let limits = OutboxLimits { messages: 10, bytes: 1000, replay_frames: 0, replay_bytes: 0 };
    Channel::Outbox(Outbox::new(limits))
}

fn id() -> RequestId {
    RequestId::from_raw("1")
}

#[test]
fn session_is_connected_while_its_client_is_reachable() {
    let over_websocket = session(outbox());
    assert!(over_websocket.is_connected());
    let Channel::Outbox(socket) = &over_websocket.channel else { panic!("no outbox") };
    socket.detach(0);
    assert!(!over_websocket.is_connected());
    let over_http = session(Channel::Streams(Streams::new(10, 1000)));
    assert!(!over_http.is_connected());
    let (key, _) = over_http.register_request(&id(), 10).unwrap();
    assert!(over_http.is_connected());
    over_http.release_request(&key);
    assert!(!over_http.is_connected());
    let Channel::Streams(streams) = &over_http.channel else { panic!("no streams") };
    let reader = streams.attach(GET_STREAM);
    assert!(reader.is_some() && over_http.is_connected());
    drop(reader);
    assert!(!over_http.is_connected());
}

#[test]
fn request_id_is_unique_in_session_and_cancels_its_request() {
    let session = session(outbox());
    let (key, cancel) = session.register_request(&id(), 10).unwrap();
    assert_eq!(session.register_request(&id(), 10).err().unwrap().kind, ErrorKind::InvalidRequest);
    session.cancel(&RequestId::from_raw("2"));
    session.cancel(&RequestId::from_raw("\"1\""));
    assert!(!cancel.is_cancelled(), "neither id is that of the request");
    session.cancel(&id());
    assert!(cancel.is_cancelled());
    session.release_request(&key);
    let (_, again) = session.register_request(&id(), 10).unwrap();
    assert!(!again.is_cancelled());
}

#[test]
fn clients_on_one_stateless_connection_may_use_equal_ids() {
    let session = session(Channel::None);
    let (first, cancel) = session.register_request(&id(), 2).unwrap();
    let (second, _) = session.register_request(&id(), 2).unwrap();
    assert_ne!(first, second);
    assert_eq!(session.register_request(&id(), 2).err().unwrap().kind, ErrorKind::Overloaded);
    session.cancel(&id());
    assert!(!cancel.is_cancelled(), "the ids of several clients may be equal");
}

#[test]
fn end_of_session_cancels_its_requests() {
    let session = session(outbox());
    let (_, cancel) = session.register_request(&id(), 10).unwrap();
    session.end();
    assert!(cancel.is_cancelled());
    let (_, late) = session.register_request(&RequestId::from_raw("2"), 10).unwrap();
    assert!(late.is_cancelled(), "a request that arrives after the end is cancelled, too");
}

#[test]
fn activity_is_busy_or_idle_or_handshake_by_state() {
    let (session, memory) = (session(outbox()), MemoryBudget::new(1000, 1000));
    assert_eq!(session.activity(), Activity::Handshake);
    session.set_facts(facts(Revision::V2025_11_25, "{}").into(), memory.share("ann"));
    assert_eq!(session.activity(), Activity::Handshake, "the handshake is not finished");
    session.mark_initialized();
    assert!(matches!(session.activity(), Activity::Idle(_)));
    let (key, _) = session.register_request(&id(), 10).unwrap();
    assert_eq!(session.activity(), Activity::Busy);
    session.release_request(&key);
    assert!(matches!(session.activity(), Activity::Idle(_)));
    assert!(
        matches!(self::session(Channel::None).activity(), Activity::Idle(_)),
        "stateless clients have no handshake"
    );
}

#[test]
fn subscriptions_are_limited_counted_once_and_released() {
    let (session, memory) = (session(outbox()), MemoryBudget::new(100, 100));
    let subscribe = |uri: &str, max| session.subscribe(uri, max, || memory.take("ann", 60));
    subscribe("a:1", 2).unwrap();
    subscribe("a:1", 2).unwrap();
    assert_eq!(memory.used_by("ann"), 60, "a repeated subscription counts once");
    assert_eq!(subscribe("a:2", 2).unwrap_err().kind, ErrorKind::Overloaded, "the principal has no memory left");
    assert_eq!(subscribe("a:2", 1).unwrap_err().data["limit"], 1);
    session.unsubscribe("a:1");
    assert_eq!(memory.used_by("ann"), 0);
    subscribe("a:3", 1).unwrap();
    assert_eq!(session.take_subscriptions(), ["a:3"]);
    assert_eq!(memory.used_by("ann"), 0);
}

#[test]
fn only_handshake_facts_set_legacy_revision() {
    let (session, memory) = (session(outbox()), MemoryBudget::new(1000, 1000));
    session.set_facts(facts(Revision::MODERN, "{}").into(), memory.take("ann", 10).unwrap());
    assert_eq!((session.legacy_revision(), session.is_established()), (None, true));
    session.set_facts(facts(Revision::V2025_06_18, "{}").into(), memory.take("ann", 20).unwrap());
    assert_eq!((session.legacy_revision(), memory.used_by("ann")), (Some(Revision::V2025_06_18), 20));
}

#[tokio::test]
async fn cancellation_wakes_waiter_and_all_tokens() {
    let (cancel, parent) = (Cancellation::default(), CancellationToken::new());
    let before = cancel.token(&parent);
    let waiting = tokio::spawn({
        let cancel = cancel.clone();
        async move { cancel.cancelled().await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished() && !before.is_cancelled() && !cancel.is_cancelled());
    cancel.cancel();
    waiting.await.unwrap();
    assert!(before.is_cancelled() && cancel.token(&parent).is_cancelled() && !parent.is_cancelled());
    cancel.cancelled().await;

    let cancelled = Cancellation::default();
    cancelled.cancel();
    assert!(cancelled.token(&parent).is_cancelled());
}

#[test]
fn token_ends_with_parent_and_wrapped_token_is_returned() {
    let (cancel, parent) = (Cancellation::default(), CancellationToken::new());
    let token = cancel.token(&parent);
    parent.cancel();
    assert!(token.is_cancelled() && !cancel.is_cancelled());
    let wrapped = CancellationToken::new();
    let returned = Cancellation::from(wrapped.clone()).token(&parent);
    assert!(!returned.is_cancelled());
    wrapped.cancel();
    assert!(returned.is_cancelled());
}

#[test]
fn session_lives_as_long_as_newest_token_of_its_client() {
    let expiry = |session: &SessionState| match session.identity().credential {
        Credential::Token(token) => Some(token.expires_at),
        _ => None,
    };
    let token = |expires_at| token_identity("ann", Role::Agent, &[], expires_at);
    let session = SessionState::new(Transport::Http, token(10), outbox(), &CancellationToken::new());
    for (presented, current) in [(20, 20), (10, 20), (20, 20), (30, 30)] {
        session.renew(&token(presented));
        assert_eq!(expiry(&session), Some(current), "{presented}");
    }
    session.set_identity(token(10));
    assert_eq!(expiry(&session), Some(10), "the token of a resumed connection counts");
    let without_token =
        SessionState::new(Transport::Http, identity("ann", Role::Agent), outbox(), &CancellationToken::new());
    without_token.renew(&token(10));
    assert_eq!(expiry(&without_token), None, "only a token is renewed");
}

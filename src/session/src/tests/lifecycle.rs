//! Handshakes, capabilities, log levels and health.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use super::bench::{Bench, ask, ask_error};
use crate::{
    gateway::server::RequestScope,
    sessions::actor::{Attach, AttachedConnection, Disconnected, Session},
};
use countersign_domain::principal::Role;
use countersign_exchange::{
    context::Exchange,
    outbox::OutboxLimits,
    state::Channel,
    testing::{facts, identity},
};
use countersign_protocol::{Era, Revision};
use countersign_telemetry::metrics::Transport;

/// Returns a connection without a handshake.
fn client_without_handshake(bench: &Bench) -> RequestScope {
    let session = bench.clients.session("ann", Era::Legacy);
    let client = bench.client(Revision::V2025_11_25, "{}");
    let facts = facts(Revision::V2025_11_25, "{}").into();
    RequestScope { exchange: Exchange { session, facts, ..client.exchange }, ..client }
}

fn initialize(version: &str, capabilities: &Value) -> Value {
    json!({ "protocolVersion": version, "capabilities": capabilities, "clientInfo": { "name": "c", "version": "1" } })
}

#[actix::test]
async fn handshake_accepts_known_revision_or_offers_newest() {
    let bench = Bench::new("").await;
    for (requested, offered) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let client = client_without_handshake(&bench);
        let result = ask(&client, "initialize", &initialize(requested, &json!({}))).await;
        assert_eq!(result["protocolVersion"], offered);
        assert_eq!(client.exchange.session.legacy_revision().map(Revision::as_str), Some(offered));
        assert!(!client.exchange.session.is_initialized(), "the client has not sent notifications/initialized");
        let (number, ..) = ask_error(&client, "initialize", &initialize(requested, &json!({}))).await;
        assert_eq!(number, -32600, "a second handshake is refused");
    }
    let strict = Bench::new("strict_versions: true").await;
    let client = client_without_handshake(&strict);
    let (number, _, data) = ask_error(&client, "initialize", &initialize("1999-01-01", &json!({}))).await;
    assert_eq!((number, &data["requested"]), (-32602, &json!("1999-01-01")));
    assert!(client.exchange.session.facts().is_none(), "a failed handshake leaves no facts");
    ask(&client, "initialize", &initialize("2025-03-26", &json!({}))).await;
}

#[actix::test]
async fn end_of_the_old_connection_leaves_a_resumed_session() {
    let bench = Bench::new("").await;
    let ann = identity("ann", Role::Agent);
    let limits = OutboxLimits { replay_frames: 10, replay_bytes: 1000, ..bench.sessions.limits.outbox };
    let session = Arc::new(bench.sessions.create_outbox_session(Transport::WebSocket, ann, limits));
    let actor = Session::open(&bench.sessions, Arc::clone(&session), None);
    let attach = |id, generation| {
        let is_alive = Arc::default();
        actor.send(Attach(AttachedConnection { id, generation, wake: Arc::new(|| ()), cut: Arc::new(|| ()), is_alive }))
    };
    attach(1, 0).await.unwrap();
    let Channel::Outbox(outbox) = &session.channel else { unreachable!() };
    let generation = outbox.rewind(0).unwrap();
    actor.send(Disconnected { pump_id: 1, closed_by_peer: true }).await.unwrap();
    attach(2, generation).await.unwrap();
    assert!(!session.ended.is_cancelled());
}

#[actix::test]
async fn session_ends_after_ping_without_sign_of_life() {
    let bench = Bench::new("").await;
    let ann = identity("ann", Role::Agent);
    let limits = OutboxLimits { replay_frames: 10, replay_bytes: 1000, ..bench.sessions.limits.outbox };
    let session = Arc::new(bench.sessions.create_outbox_session(Transport::WebSocket, ann, limits));
    let actor = Session::open(&bench.sessions, Arc::clone(&session), Some(Duration::from_millis(10)));
    let (is_alive, pings) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let wake = {
        let (session, is_alive, pings) = (Arc::clone(&session), Arc::clone(&is_alive), Arc::clone(&pings));
        move || {
            let Channel::Outbox(outbox) = &session.channel else { unreachable!() };
            // The peer gives a sign of life after each of the first three pings.
            if outbox.drain(0, 1000).is_some_and(|drained| drained.ping) {
                is_alive.store(pings.fetch_add(1, Ordering::Relaxed) < 3, Ordering::Relaxed);
            }
        }
    };
    let connection = AttachedConnection { id: 1, generation: 0, wake: Arc::new(wake), cut: Arc::new(|| ()), is_alive };
    actor.send(Attach(connection)).await.unwrap();
    session.ended.cancelled().await;
    assert_eq!(pings.load(Ordering::Relaxed), 4);
}

#[actix::test]
async fn client_facts_are_bounded_and_take_memory() {
    let bench = Bench::new("limits: { max_capabilities: 1KiB }").await;
    let client = client_without_handshake(&bench);
    let long = json!({ "experimental": { "x": "x".repeat(2000) } });
    let (number, _, data) = ask_error(&client, "initialize", &initialize("2025-11-25", &long)).await;
    assert_eq!((number, &data["member"]), (-32602, &json!("capabilities")));
    let before = bench.server.memory.used_by("ann");
    ask(&client, "initialize", &initialize("2025-11-25", &json!({ "roots": {} }))).await;
    assert!(bench.server.memory.used_by("ann") > before);
    let facts = client.exchange.session.facts().unwrap();
    assert_eq!((&*facts.capabilities, facts.client.as_ref().unwrap().name.as_str()), (r#"{"roots":{}}"#, "c"));
    // A principal that has no memory left cannot store facts.
    let newcomer = client_without_handshake(&bench);
    let all = bench.config.limits.principal_memory - bench.server.memory.used_by("ann");
    let _full = bench.server.memory.take("ann", all).unwrap();
    assert_eq!(ask_error(&newcomer, "initialize", &initialize("2025-11-25", &json!({}))).await.1, "OVERLOADED");
    assert!(newcomer.exchange.session.facts().is_none());
}

#[actix::test]
async fn capabilities_depend_on_revision() {
    let bench = Bench::new("").await;
    for (version, completions, tasks) in [
        ("2024-11-05", false, false),
        ("2025-03-26", true, false),
        ("2025-06-18", true, false),
        ("2025-11-25", true, true),
    ] {
        let result = ask(&client_without_handshake(&bench), "initialize", &initialize(version, &json!({}))).await;
        let capabilities = &result["capabilities"];
        let has = |name: &str| capabilities.get(name).is_some();
        assert_eq!((has("completions"), has("tasks")), (completions, tasks), "{version}");
        assert!(has("tools") && !has("extensions"), "{version}");
    }
    let client = bench.client(Revision::MODERN, "{}");
    let result = ask(&client, "server/discover", &json!({})).await;
    assert_eq!(result["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(result["capabilities"]["extensions"], json!({ "io.modelcontextprotocol/tasks": {} }));
    assert!(result["capabilities"].get("tasks").is_none(), "the extension replaces the capability");
}

#[actix::test]
async fn unknown_log_level_is_refused() {
    let bench = Bench::new("").await;
    let client = bench.client(Revision::V2025_11_25, "{}");
    assert_eq!(ask_error(&client, "logging/setLevel", &json!({ "level": "loud" })).await.0, -32602);
    assert_eq!(client.exchange.session.log_level(), None);
    ask(&client, "logging/setLevel", &json!({ "level": "error" })).await;
    assert_eq!(client.exchange.session.log_level().map(|level| level.as_str()), Some("error"));
}

#[actix::test]
async fn draining_gateway_is_live_but_not_ready() {
    let bench = Bench::new("").await;
    let health = bench.server.status.health();
    assert_eq!((&health["ready"], &health["checks"]["store"]), (&json!(true), &json!("ok")));
    bench.server.long_requests.shutdown.cancel();
    let health = bench.server.status.health();
    assert_eq!(
        (&health["ready"], &health["live"], &health["checks"]["draining"]),
        (&json!(false), &json!(true), &json!(true))
    );
}

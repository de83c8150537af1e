//! Handshakes, and what the gateway says of itself.

use serde_json::{Value, json};

use super::bench::{Bench, ask, refused};
use crate::Handling;
use countersign_exchange::{context::Exchange, testing::facts};
use countersign_protocol::{Era, Revision};

/// A connection that has said nothing yet.
fn newcomer(bench: &Bench) -> Handling {
    let session = bench.clients.session("ann", Era::Legacy);
    let client = bench.client(Revision::V2025_11_25, "{}");
    let facts = facts(Revision::V2025_11_25, "{}").into();
    Handling { exchange: Exchange { session, facts, ..client.exchange }, ..client }
}

fn initialize(version: &str, capabilities: &Value) -> Value {
    json!({ "protocolVersion": version, "capabilities": capabilities, "clientInfo": { "name": "c", "version": "1" } })
}

#[actix::test]
async fn a_known_revision_is_given_and_any_other_is_offered_the_newest_with_a_handshake() {
    let bench = Bench::new("").await;
    for (asked, given) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let client = newcomer(&bench);
        let result = ask(&client, "initialize", &initialize(asked, &json!({}))).await;
        assert_eq!(result["protocolVersion"], given);
        assert_eq!(client.session.legacy_revision().map(Revision::as_str), Some(given));
        assert!(!client.session.is_initialized(), "its client has not said so");
        let (number, ..) = refused(&client, "initialize", &initialize(asked, &json!({}))).await;
        assert_eq!(number, -32600, "once");
    }
    let strict = Bench::new("strict_versions: true").await;
    let client = newcomer(&strict);
    let (number, _, data) = refused(&client, "initialize", &initialize("1999-01-01", &json!({}))).await;
    assert_eq!((number, &data["requested"]), (-32602, &json!("1999-01-01")));
    assert!(client.session.facts().is_none(), "what failed leaves nothing behind");
    ask(&client, "initialize", &initialize("2025-03-26", &json!({}))).await;
}

#[actix::test]
async fn what_a_client_says_of_itself_is_bounded_and_counts() {
    let bench = Bench::new("limits: { max_capabilities: 1KiB }").await;
    let client = newcomer(&bench);
    let long = json!({ "experimental": { "x": "x".repeat(2000) } });
    let (number, _, data) = refused(&client, "initialize", &initialize("2025-11-25", &long)).await;
    assert_eq!((number, &data["member"]), (-32602, &json!("capabilities")));
    let before = bench.server.memory.used_by("ann");
    ask(&client, "initialize", &initialize("2025-11-25", &json!({ "roots": {} }))).await;
    assert!(bench.server.memory.used_by("ann") > before);
    let facts = client.session.facts().unwrap();
    assert_eq!((&*facts.capabilities, facts.client.as_ref().unwrap().name.as_str()), (r#"{"roots":{}}"#, "c"));
    // Nothing is kept for a principal that has no memory left.
    let late = newcomer(&bench);
    let all = bench.config.limits.principal_memory - bench.server.memory.used_by("ann");
    let _full = bench.server.memory.take("ann", all).unwrap();
    assert_eq!(refused(&late, "initialize", &initialize("2025-11-25", &json!({}))).await.1, "OVERLOADED");
    assert!(late.session.facts().is_none());
}

#[actix::test]
async fn each_revision_is_told_the_capabilities_that_it_has() {
    let bench = Bench::new("").await;
    for (version, completions, tasks) in [
        ("2024-11-05", false, false),
        ("2025-03-26", true, false),
        ("2025-06-18", true, false),
        ("2025-11-25", true, true),
    ] {
        let result = ask(&newcomer(&bench), "initialize", &initialize(version, &json!({}))).await;
        let capabilities = &result["capabilities"];
        let has = |name: &str| capabilities.get(name).is_some();
        assert_eq!((has("completions"), has("tasks")), (completions, tasks), "{version}");
        assert!(has("tools") && !has("extensions"), "{version}");
    }
    let client = bench.client(Revision::MODERN, "{}");
    let result = ask(&client, "server/discover", &json!({})).await;
    assert_eq!(result["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(result["capabilities"]["extensions"], json!({ "io.modelcontextprotocol/tasks": {} }));
    assert!(result["capabilities"].get("tasks").is_none(), "the extension has taken their place");
}

#[actix::test]
async fn a_level_is_one_that_there_is() {
    let bench = Bench::new("").await;
    let client = bench.client(Revision::V2025_11_25, "{}");
    assert_eq!(refused(&client, "logging/setLevel", &json!({ "level": "loud" })).await.0, -32602);
    assert_eq!(client.session.log_level(), None);
    ask(&client, "logging/setLevel", &json!({ "level": "error" })).await;
    assert_eq!(client.session.log_level().map(|level| level.as_str()), Some("error"));
}

#[actix::test]
async fn a_gateway_that_drains_is_not_ready() {
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

//! Eras and revisions of messages, request ids, cancellation and batches.

use std::sync::Arc;

use serde_json::{Value, json};

use super::bench::{Bench, pause, respond, wait_for_calls};
use crate::{gateway::server::RequestScope, inbound::MessageSource};
use countersign_exchange::{
    reply::RelatedChannel,
    state::SessionState,
    testing::{facts, request},
};
use countersign_protocol::{
    Era, ErrorKind, Revision,
    envelope::{self, Incoming, Notification},
};
use countersign_provider::testing::{CallOutcome, FakeProvider};

fn source(bench: &Bench, session: &Arc<SessionState>) -> MessageSource {
    MessageSource {
        server: Arc::clone(&bench.server),
        session: Arc::clone(session),
        identity: session.identity(),
        transport: session.transport,
        related: RelatedChannel::Outbox(Arc::clone(session)),
        assumed_revision: Revision::V2025_03_26,
        headers: None,
        table: bench.server.routing.routes.load_full(),
    }
}

fn message(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

fn cancel(client: &RequestScope, bench: &Bench, id: u64) {
    let params = serde_json::value::to_raw_value(&json!({ "requestId": id })).unwrap();
    let method = "notifications/cancelled".into();
    source(bench, &client.exchange.session).handle_notification(&Notification { method, params: Some(&params) });
}

#[actix::test]
async fn client_may_list_but_not_call_before_handshake() {
    let bench = Bench::new("").await;
    let session = bench.clients.session("ann", Era::Legacy);
    for (method, is_allowed) in [("ping", true), ("tools/list", true), ("tools/call", false), ("resources/list", false)]
    {
        match source(&bench, &session).into_scope(&request(&message(method, &json!({})))) {
            Ok(scope) => assert!(is_allowed && scope.exchange.revision() == Revision::V2025_03_26, "{method}"),
            Err((error, _)) => assert!(!is_allowed && error.kind == ErrorKind::NotInitialized, "{method}"),
        }
    }
    assert!(!session.is_initialized());
    // A request of the stateless era must name its revision.
    let capabilities = json!({ "_meta": { "io.modelcontextprotocol/clientCapabilities": {} } });
    for (method, params) in [("tools/call", &capabilities), ("server/discover", &json!({}))] {
        let scope = source(&bench, &session).into_scope(&request(&message(method, params)));
        let (error, revision) = scope.err().unwrap();
        assert_eq!((error.kind, revision), (ErrorKind::InvalidParams, Revision::MODERN), "{method}");
    }
    // A stateless request carries the facts of a handshake itself.
    let meta = json!({ "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
    } });
    let text = message("tools/call", &meta);
    let scope = source(&bench, &session).into_scope(&request(&text)).unwrap_or_else(|(error, _)| panic!("{error}"));
    assert!(scope.exchange.is_modern() && session.legacy_revision().is_none());
}

#[actix::test]
async fn first_request_after_initialize_finishes_handshake() {
    let bench = Bench::new("").await;
    let session = bench.clients.session("ann", Era::Legacy);
    let share = bench.server.memory.share("ann");
    session.set_facts(Arc::new(facts(Revision::V2024_11_05, "{}")), share);
    for (method, initialized) in [("ping", false), ("tools/list", true)] {
        let text = message(method, &json!({}));
        let scope = source(&bench, &session).into_scope(&request(&text)).unwrap_or_else(|(e, _)| panic!("{e}"));
        assert_eq!(
            (scope.exchange.revision(), session.is_initialized()),
            (Revision::V2024_11_05, initialized),
            "{method}"
        );
    }
}

#[actix::test]
async fn duplicate_id_is_refused_while_first_request_continues() {
    let bench = Bench::new("").await;
    bench.fake.gate.forget_permits(1_000_000);
    let client = bench.client(Revision::V2025_11_25, "{}");
    let params = json!({ "name": "read" });
    let second = async {
        wait_for_calls(&bench, 1).await;
        let response = respond(&client, 7, "ping", &json!({})).await.unwrap();
        assert_eq!((&response["error"]["code"], &response["id"]), (&json!(-32600), &json!(7)));
        bench.fake.gate.add_permits(1);
    };
    let (first, ()) = tokio::join!(respond(&client, 7, "tools/call", &params), second);
    assert!(first.unwrap()["result"]["content"][0]["text"].as_str().unwrap().contains("done for ann"));
    assert!(respond(&client, 7, "ping", &json!({})).await.unwrap().get("result").is_some(), "the id is free again");
}

#[actix::test]
async fn cancelled_request_gets_no_answer() {
    let bench = Bench::new("").await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Hang;
    let client = bench.client(Revision::V2025_11_25, "{}");
    let params = json!({ "name": "read" });
    let cancelling = async {
        wait_for_calls(&bench, 1).await;
        cancel(&client, &bench, 8);
        pause().await;
        assert_eq!(client.exchange.session.in_flight(), 1, "the cancelled id is not in use");
        cancel(&client, &bench, 7);
    };
    let (answer, ()) = tokio::join!(respond(&client, 7, "tools/call", &params), cancelling);
    assert!(answer.is_none());
    assert_eq!(bench.server.slots.running(), 0);
}

#[actix::test]
async fn request_after_end_of_session_does_not_run() {
    let bench = Bench::new("").await;
    let client = bench.client(Revision::V2025_11_25, "{}");
    client.exchange.session.end();
    assert!(respond(&client, 7, "tools/call", &json!({ "name": "read" })).await.is_none());
    assert_eq!((bench.fake.call_count(), bench.server.slots.running()), (0, 0));
}

#[actix::test]
async fn request_beyond_max_in_flight_is_refused() {
    let bench = Bench::new("limits: { max_in_flight: 1 }").await;
    bench.fake.gate.forget_permits(1_000_000);
    let client = bench.client(Revision::V2025_11_25, "{}");
    let params = json!({ "name": "read" });
    let second = async {
        wait_for_calls(&bench, 1).await;
        let response = respond(&client, 2, "ping", &json!({})).await.unwrap();
        assert_eq!(response["error"]["data"]["code"], "OVERLOADED");
        bench.fake.gate.add_permits(1);
    };
    tokio::join!(respond(&client, 1, "tools/call", &params), second);
    assert!(respond(&client, 2, "ping", &json!({})).await.unwrap().get("result").is_some());
}

async fn batch(bench: &Bench, revision: Revision, members: &Value) -> Option<Value> {
    let session = bench.clients.session("ann", Era::Legacy);
    session.set_facts(Arc::new(facts(revision, "{}")), bench.server.memory.share("ann"));
    batch_in(bench, &session, members).await
}

async fn batch_in(bench: &Bench, session: &Arc<SessionState>, members: &Value) -> Option<Value> {
    let text = members.to_string();
    let limits = envelope::Limits { max_depth: 64, max_batch: 100 };
    let Ok(Incoming::Batch(members)) = envelope::parse(text.as_bytes(), &limits) else { panic!("{text}") };
    let answer = source(bench, session).answer_batch(members).await?;
    Some(serde_json::from_slice(&answer.bytes).unwrap())
}

#[actix::test]
async fn batch_is_answered_in_order_and_shares_identical_reads() {
    let bench = Bench::new("").await;
    let read = |id: u64, n: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "read", "arguments": { "n": n } } });
    let mut with_progress = read(4, 1);
    with_progress["params"]["_meta"] = json!({ "progressToken": "t" });
    let members = json!([
        read(1, 1), read(2, 1), read(3, 2), with_progress, 5,
        { "jsonrpc": "2.0", "id": 6, "method": "initialize", "params": {} },
        { "jsonrpc": "2.0", "method": "notifications/initialized" },
    ]);
    let answers = batch(&bench, Revision::V2025_03_26, &members).await.unwrap();
    let answers = answers.as_array().unwrap();
    let ids: Vec<_> = answers.iter().map(|answer| answer["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!(2), json!(3), json!(4), Value::Null, json!(6)]);
    let results: Vec<_> = answers.iter().map(|answer| answer.get("result").is_some()).collect();
    assert_eq!(results, [true, true, true, true, false, false]);
    assert_eq!(bench.fake.call_count(), 3, "1 and 2 share a call; 4 does not, because it has a progress token");
    let notification = json!([{ "jsonrpc": "2.0", "method": "notifications/initialized" }]);
    assert_eq!(batch(&bench, Revision::V2025_03_26, &notification).await, None, "nothing to answer");
    let refused = batch(&bench, Revision::V2025_06_18, &members).await.unwrap();
    assert_eq!(
        (&refused["error"]["code"], bench.fake.call_count()),
        (&json!(-32600), 3),
        "that revision has no batches"
    );
}

/// A batch of two identical reads with the ids 1 and 2.
fn identical_reads() -> Value {
    let read = |id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "read" } });
    json!([read(1), read(2)])
}

#[actix::test]
async fn cancelled_read_of_batch_leaves_identical_read_running() {
    let bench = Bench::new("").await;
    bench.fake.gate.forget_permits(1_000_000);
    let client = bench.client(Revision::V2025_03_26, "{}");
    let cancelling = async {
        wait_for_calls(&bench, 1).await;
        cancel(&client, &bench, 1);
        wait_for_calls(&bench, 2).await;
        bench.fake.gate.add_permits(2);
    };
    let members = identical_reads();
    let (answers, ()) = tokio::join!(batch_in(&bench, &client.exchange.session, &members), cancelling);
    let answers = answers.unwrap();
    assert_eq!((answers.as_array().unwrap().len(), &answers[0]["id"]), (1, &json!(2)));
    assert!(answers[0].get("result").is_some(), "{answers}");
}

#[actix::test]
async fn id_in_use_refuses_only_its_read_of_batch() {
    let bench = Bench::new("").await;
    bench.fake.gate.forget_permits(1_000_000);
    let client = bench.client(Revision::V2025_03_26, "{}");
    let batching = async {
        wait_for_calls(&bench, 1).await;
        let members = identical_reads();
        let releasing = async {
            wait_for_calls(&bench, 2).await;
            bench.fake.gate.add_permits(2);
        };
        tokio::join!(batch_in(&bench, &client.exchange.session, &members), releasing).0.unwrap()
    };
    let params = json!({ "name": "read" });
    let (first, answers) = tokio::join!(respond(&client, 1, "tools/call", &params), batching);
    assert!(first.unwrap().get("result").is_some());
    assert_eq!((&answers[0]["id"], &answers[0]["error"]["code"]), (&json!(1), &json!(-32600)));
    assert!(answers[1]["id"] == 2 && answers[1].get("result").is_some(), "{answers}");
}

#[actix::test]
async fn identical_writes_of_batch_each_run() {
    let bench = Bench::new("policy: { default: allow }").await;
    let write = |id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "write", "arguments": { "target": "t" } } });
    batch(&bench, Revision::V2025_03_26, &json!([write(1), write(2)])).await.unwrap();
    assert_eq!(bench.fake.call_count(), 2);
}

#[actix::test]
async fn identical_calls_of_unaccepted_reads_each_run() {
    let bench = Bench::new("policy: { default: allow }").await;
    let mut server = FakeProvider::new("server");
    server.is_module = false;
    server.tools.lock().unwrap().extend(bench.fake.tools.lock().unwrap().clone());
    let server = bench.offer_module(server).await;
    let read = |id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "read", "arguments": { "n": 1 } } });
    batch(&bench, Revision::V2025_03_26, &json!([read(1), read(2)])).await.unwrap();
    assert_eq!(server.call_count(), 2, "only the server says that the tool reads");
}

#[actix::test]
async fn invalid_message_is_answered_unless_it_is_notification() {
    let bench = Bench::new("").await;
    let session = bench.clients.session("ann", Era::Legacy);
    let limits = envelope::Limits { max_depth: 64, max_batch: 100 };
    for (text, answered) in [
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, true),
        ("{", true),
        (r#"{"jsonrpc":"2.0","method":"notifications/x","params":[1]}"#, false),
    ] {
        let Err(fault) = envelope::parse(text.as_bytes(), &limits) else { panic!("{text}") };
        assert_eq!(source(&bench, &session).fault_response(&fault).is_some(), answered, "{text}");
    }
}

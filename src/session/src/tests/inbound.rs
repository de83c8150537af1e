//! Which era and revision a message speaks, ids and cancellation, batches.

use std::sync::Arc;

use serde_json::{Value, json};

use super::bench::{Bench, pause, respond};
use crate::{Handling, inbound::MessageSource};
use countersign_exchange::{
    related::Related,
    shared::SessionShared,
    testing::{facts, request},
};
use countersign_protocol::{
    Era, ErrorKind, Revision,
    envelope::{self, Incoming, Notification},
};
use countersign_provider::testing::CallOutcome;

fn endpoint(bench: &Bench, session: &Arc<SessionShared>) -> MessageSource {
    MessageSource {
        server: Arc::clone(&bench.server),
        session: Arc::clone(session),
        identity: session.identity.clone(),
        transport: session.transport,
        related: Related::Outbox(Arc::clone(session)),
        assumed: Revision::V2025_03_26,
        headers: None,
        table: bench.server.routing.routes.load_full(),
    }
}

fn message(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

fn cancelled(client: &Handling, bench: &Bench, id: u64) {
    let params = serde_json::value::to_raw_value(&json!({ "requestId": id })).unwrap();
    let method = "notifications/cancelled".into();
    endpoint(bench, &client.session).notification(&Notification { method, params: Some(&params) });
}

#[actix::test]
async fn before_its_handshake_a_client_may_look_and_not_call() {
    let bench = Bench::new("").await;
    let session = bench.clients.session("ann", Era::Legacy);
    for (method, may) in [("ping", true), ("tools/list", true), ("tools/call", false), ("resources/list", false)] {
        let exchange = endpoint(&bench, &session).exchange(&request(&message(method, &json!({}))));
        match exchange {
            Ok(exchange) => assert!(may && exchange.revision() == Revision::V2025_03_26, "{method}"),
            Err((error, _)) => assert!(!may && error.kind == ErrorKind::NotInitialized, "{method}"),
        }
    }
    assert!(!session.is_initialized());
    // A stateless request says itself what a handshake would have.
    let meta = json!({ "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
    } });
    let text = message("tools/call", &meta);
    let exchange = endpoint(&bench, &session).exchange(&request(&text)).unwrap_or_else(|(error, _)| panic!("{error}"));
    assert!(exchange.is_modern() && session.legacy_revision().is_none());
}

#[actix::test]
async fn who_works_has_finished_its_handshake_whether_or_not_it_said_so() {
    let bench = Bench::new("").await;
    let session = bench.clients.session("ann", Era::Legacy);
    let share = bench.server.memory.share("ann");
    session.set_facts(Arc::new(facts(Revision::V2024_11_05, "{}")), share);
    for (method, initialized) in [("ping", false), ("tools/list", true)] {
        let text = message(method, &json!({}));
        let exchange = endpoint(&bench, &session).exchange(&request(&text)).unwrap_or_else(|(e, _)| panic!("{e}"));
        assert_eq!((exchange.revision(), session.is_initialized()), (Revision::V2024_11_05, initialized), "{method}");
    }
}

#[actix::test]
async fn an_id_that_is_in_use_is_refused_and_its_request_goes_on() {
    let bench = Bench::new("").await;
    bench.fake.gate.forget_permits(1_000_000);
    let client = bench.client(Revision::V2025_11_25, "{}");
    let params = json!({ "name": "read" });
    let second = async {
        while bench.fake.call_count() == 0 {
            pause().await;
        }
        let response = respond(&client, 7, "ping", &json!({})).await.unwrap();
        assert_eq!((&response["error"]["code"], &response["id"]), (&json!(-32600), &json!(7)));
        bench.fake.gate.add_permits(1);
    };
    let (first, ()) = tokio::join!(respond(&client, 7, "tools/call", &params), second);
    assert!(first.unwrap()["result"]["content"][0]["text"].as_str().unwrap().contains("done for ann"));
    assert!(respond(&client, 7, "ping", &json!({})).await.unwrap().get("result").is_some(), "it is free again");
}

#[actix::test]
async fn a_request_that_its_client_takes_back_is_not_answered() {
    let bench = Bench::new("").await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Hang;
    let client = bench.client(Revision::V2025_11_25, "{}");
    let params = json!({ "name": "read" });
    let cancelling = async {
        while bench.fake.call_count() == 0 {
            pause().await;
        }
        cancelled(&client, &bench, 8);
        pause().await;
        assert_eq!(client.session.in_flight(), 1, "that was another one");
        cancelled(&client, &bench, 7);
    };
    let (answer, ()) = tokio::join!(respond(&client, 7, "tools/call", &params), cancelling);
    assert!(answer.is_none());
    assert_eq!(bench.server.slots.running(), 0);
}

#[actix::test]
async fn so_many_requests_are_in_flight_and_no_more() {
    let bench = Bench::new("limits: { max_in_flight: 1 }").await;
    bench.fake.gate.forget_permits(1_000_000);
    let client = bench.client(Revision::V2025_11_25, "{}");
    let params = json!({ "name": "read" });
    let second = async {
        while bench.fake.call_count() == 0 {
            pause().await;
        }
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
    let text = members.to_string();
    let limits = envelope::Limits { max_depth: 64, max_batch: 100 };
    let Ok(Incoming::Batch(members)) = envelope::parse(text.as_bytes(), &limits) else { panic!("{text}") };
    let answer = endpoint(bench, &session).batch(members).await?;
    Some(serde_json::from_slice(&answer.bytes).unwrap())
}

#[actix::test]
async fn a_batch_is_answered_whole_and_in_order_and_equal_reads_are_one_call() {
    let bench = Bench::new("").await;
    let read = |id: u64, n: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "read", "arguments": { "n": n } } });
    let mut watched = read(4, 1);
    watched["params"]["_meta"] = json!({ "progressToken": "t" });
    let members = json!([
        read(1, 1), read(2, 1), read(3, 2), watched, 5,
        { "jsonrpc": "2.0", "id": 6, "method": "initialize", "params": {} },
        { "jsonrpc": "2.0", "method": "notifications/initialized" },
    ]);
    let answers = batch(&bench, Revision::V2025_03_26, &members).await.unwrap();
    let answers = answers.as_array().unwrap();
    let ids: Vec<_> = answers.iter().map(|answer| answer["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!(2), json!(3), json!(4), Value::Null, json!(6)]);
    let results: Vec<_> = answers.iter().map(|answer| answer.get("result").is_some()).collect();
    assert_eq!(results, [true, true, true, true, false, false]);
    assert_eq!(bench.fake.call_count(), 3, "one for 1 and 2; progress goes to whom it belongs");
    let told = json!([{ "jsonrpc": "2.0", "method": "notifications/initialized" }]);
    assert_eq!(batch(&bench, Revision::V2025_03_26, &told).await, None, "nothing to answer");
    let refused = batch(&bench, Revision::V2025_06_18, &members).await.unwrap();
    assert_eq!((&refused["error"]["code"], bench.fake.call_count()), (&json!(-32600), 3), "that revision has none");
}

#[actix::test]
async fn writes_of_a_batch_are_never_one() {
    let bench = Bench::new("policy: { default: allow }").await;
    let write = |id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "write", "arguments": { "target": "t" } } });
    batch(&bench, Revision::V2025_03_26, &json!([write(1), write(2)])).await.unwrap();
    assert_eq!(bench.fake.call_count(), 2);
}

#[actix::test]
async fn what_cannot_be_read_is_answered_unless_it_told_something() {
    let bench = Bench::new("").await;
    let session = bench.clients.session("ann", Era::Legacy);
    let limits = envelope::Limits { max_depth: 64, max_batch: 100 };
    for (text, answered) in [
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, true),
        ("{", true),
        (r#"{"jsonrpc":"2.0","method":"notifications/x","params":[1]}"#, false),
    ] {
        let Err(fault) = envelope::parse(text.as_bytes(), &limits) else { panic!("{text}") };
        assert_eq!(endpoint(&bench, &session).fault(&fault).is_some(), answered, "{text}");
    }
}

//! Tool calls that are not reviewed.

use std::sync::Arc;

use serde_json::{Value, json};

use super::bench::{Bench, ask, ask_error, respond, wait_for_calls};
use crate::handlers::reviewed::finished_call::is_tool_failure;
use countersign_domain::principal::{Principal, Role};
use countersign_protocol::{ErrorKind, Revision};
use countersign_provider::testing::CallOutcome;

const LEGACY: Revision = Revision::V2025_11_25;

#[actix::test]
async fn unknown_tool_error_suggests_nearest_name() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    let (number, code, data) = ask_error(&client, "tools/call", &json!({ "name": "wriet" })).await;
    assert_eq!((number, code.as_str(), &data["didYouMean"]), (-32602, "TOOL_NOT_FOUND", &json!("write")));
    let (.., data) = ask_error(&client, "tools/call", &json!({ "name": "something else" })).await;
    assert!(data.get("didYouMean").is_none());
}

#[actix::test]
async fn deciding_key_is_noted_at_first_tool_call() {
    let bench = Bench::new("").await;
    let mut client = bench.client_as(Role::Reviewer, LEGACY);
    let principal = Principal { key_id: Some("key_1".into()), ..(*client.exchange.identity.principal).clone() };
    client.exchange.identity.principal = Arc::new(principal.clone());
    respond(&client, 1, "tools/call", &json!({ "name": "read" })).await.unwrap();
    assert!(!bench.server.deciding_keys.note_call(&principal, "http"), "it was noted already");
}

#[actix::test]
async fn invalid_arguments_are_refused_as_revision_demands() {
    let bench = Bench::new("").await;
    let call = json!({ "name": "read", "arguments": { "n": "x" } });
    for (revision, in_band) in [(Revision::V2025_06_18, false), (LEGACY, true), (Revision::MODERN, true)] {
        let response = respond(&bench.client(revision, "{}"), 1, "tools/call", &call).await.unwrap();
        let details = if in_band {
            assert_eq!(response["result"]["isError"], true);
            let text = response["result"]["content"][0]["text"].as_str().unwrap();
            serde_json::from_str::<Value>(text).unwrap()["details"].clone()
        } else {
            assert_eq!(response["error"]["code"], -32602);
            response["error"]["data"]["details"].clone()
        };
        assert_eq!(details["errors"][0]["pointer"], "/n", "{revision:?}: {response}");
    }
    assert_eq!(bench.fake.call_count(), 0);
}

#[actix::test]
async fn tool_failure_is_result_and_gateway_failure_is_error() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    let call = json!({ "name": "read" });
    for (ending, in_band) in [
        (CallOutcome::ToolError, true),
        (CallOutcome::Error(ErrorKind::ResourceNotFound), true),
        (CallOutcome::Error(ErrorKind::UpstreamUnavailable), true),
        (CallOutcome::Error(ErrorKind::Timeout), false),
        (CallOutcome::Error(ErrorKind::StoreUnavailable), false),
    ] {
        *bench.fake.outcome.lock().unwrap() = ending.clone();
        let response = respond(&client, 1, "tools/call", &call).await.unwrap();
        assert_eq!(response["result"]["isError"] == true, in_band, "{ending:?}: {response}");
        assert_eq!(response.get("error").is_none(), in_band, "{ending:?}");
    }
    // All failures that are not the gateway's are tool failures.
    let of_gateway: Vec<_> = ErrorKind::ALL.iter().filter(|kind| !is_tool_failure(**kind)).collect();
    assert_eq!(of_gateway.len(), 13, "{of_gateway:?}");
}

#[actix::test]
async fn long_running_call_takes_slot_and_short_call_does_not() {
    let bench = Bench::new("limits: { max_streams: 1 }").await;
    bench.fake.gate.forget_permits(1_000_000);
    let (first, second) = (bench.client(LEGACY, "{}"), bench.client(LEGACY, "{}"));
    let (wait, read) = (json!({ "name": "wait" }), json!({ "name": "read" }));
    let second_calls = async {
        wait_for_calls(&bench, 1).await;
        assert_eq!(ask_error(&second, "tools/call", &wait).await.1, "OVERLOADED");
        bench.fake.gate.add_permits(2);
        ask(&second, "tools/call", &read).await;
    };
    tokio::join!(ask(&first, "tools/call", &wait), second_calls);
    bench.fake.gate.add_permits(1);
    ask(&second, "tools/call", &wait).await;
}

#[actix::test]
async fn call_times_out_and_long_call_ends_with_shutdown() {
    let bench = Bench::new("transports: { http: { request_timeout: 50ms } }").await;
    bench.fake.gate.forget_permits(1_000_000);
    let client = bench.client(LEGACY, "{}");
    assert_eq!(ask_error(&client, "tools/call", &json!({ "name": "read" })).await.1, "TIMEOUT");
    // On a busy machine, the first call may have timed out before it was made.
    let (wait, call_count) = (json!({ "name": "wait" }), bench.fake.call_count());
    let ending = async {
        wait_for_calls(&bench, call_count + 1).await;
        bench.server.long_requests.shutdown.cancel();
    };
    let ((_, code, _), ()) = tokio::join!(ask_error(&client, "tools/call", &wait), ending);
    assert_eq!(code, "SHUTTING_DOWN");
}

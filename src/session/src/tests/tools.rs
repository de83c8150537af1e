//! Calls that are not reviewed.

use std::sync::Arc;

use serde_json::{Value, json};

use super::bench::{Bench, ask, pause, refused, respond};
use crate::handlers::tools::{encode, is_the_tools_own};
use countersign_domain::principal::{Principal, Role};
use countersign_protocol::{ErrorKind, Revision};
use countersign_provider::{ToolResult, testing::CallOutcome};

const OLD: Revision = Revision::V2025_11_25;

#[actix::test]
async fn a_name_that_is_none_is_told_with_the_one_that_was_meant() {
    let bench = Bench::new("").await;
    let client = bench.client(OLD, "{}");
    let (number, code, data) = refused(&client, "tools/call", &json!({ "name": "wriet" })).await;
    assert_eq!((number, code.as_str(), &data["didYouMean"]), (-32602, "TOOL_NOT_FOUND", &json!("write")));
    let (.., data) = refused(&client, "tools/call", &json!({ "name": "something else" })).await;
    assert!(data.get("didYouMean").is_none());
}

#[actix::test]
async fn key_that_may_decide_is_noted_at_its_first_call() {
    let bench = Bench::new("").await;
    let mut client = bench.client_as(Role::Reviewer, OLD);
    let principal = Principal { key_id: Some("key_1".into()), ..(*client.exchange.identity.principal).clone() };
    client.exchange.identity.principal = Arc::new(principal.clone());
    respond(&client, 1, "tools/call", &json!({ "name": "read" })).await.unwrap();
    assert!(!bench.server.reviews.deciding_keys.note_call(&principal, "http"), "it was noted already");
}

#[actix::test]
async fn bad_arguments_reach_no_tool_and_are_told_as_the_revision_tells_them() {
    let bench = Bench::new("").await;
    let call = json!({ "name": "read", "arguments": { "n": "x" } });
    for (revision, in_band) in [(Revision::V2025_06_18, false), (OLD, true), (Revision::MODERN, true)] {
        let response = respond(&bench.client(revision, "{}"), 1, "tools/call", &call).await.unwrap();
        let details = if in_band {
            assert_eq!(response["result"]["isError"], true);
            let said = response["result"]["content"][0]["text"].as_str().unwrap();
            serde_json::from_str::<Value>(said).unwrap()["details"].clone()
        } else {
            assert_eq!(response["error"]["code"], -32602);
            response["error"]["data"]["details"].clone()
        };
        assert_eq!(details["errors"][0]["pointer"], "/n", "{revision:?}: {response}");
    }
    assert_eq!(bench.fake.call_count(), 0);
}

#[actix::test]
async fn a_failure_of_the_tool_is_a_result_and_one_of_the_gateway_is_not() {
    let bench = Bench::new("").await;
    let client = bench.client(OLD, "{}");
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
    // All that are not the gateway's own are the model's to act on.
    let own: Vec<_> = ErrorKind::ALL.iter().filter(|kind| !is_the_tools_own(**kind)).collect();
    assert_eq!(own.len(), 13, "{own:?}");
}

#[actix::test]
async fn who_waits_takes_a_place_and_who_calls_does_not() {
    let bench = Bench::new("limits: { max_streams: 1 }").await;
    bench.fake.gate.forget_permits(1_000_000);
    let (one, other) = (bench.client(OLD, "{}"), bench.client(OLD, "{}"));
    let (wait, read) = (json!({ "name": "wait" }), json!({ "name": "read" }));
    let others = async {
        while bench.fake.call_count() == 0 {
            pause().await;
        }
        assert_eq!(refused(&other, "tools/call", &wait).await.1, "OVERLOADED");
        bench.fake.gate.add_permits(2);
        ask(&other, "tools/call", &read).await;
    };
    tokio::join!(ask(&one, "tools/call", &wait), others);
    bench.fake.gate.add_permits(1);
    ask(&other, "tools/call", &wait).await;
}

#[actix::test]
async fn a_call_is_bounded_in_time_and_a_wait_ends_with_the_gateway() {
    let bench = Bench::new("transports: { http: { request_timeout: 50ms } }").await;
    bench.fake.gate.forget_permits(1_000_000);
    let client = bench.client(OLD, "{}");
    assert_eq!(refused(&client, "tools/call", &json!({ "name": "read" })).await.1, "TIMEOUT");
    let wait = json!({ "name": "wait" });
    let ending = async {
        while bench.fake.call_count() < 2 {
            pause().await;
        }
        bench.server.long_requests.shutdown.cancel();
    };
    let ((_, code, _), ()) = tokio::join!(refused(&client, "tools/call", &wait), ending);
    assert_eq!(code, "SHUTTING_DOWN");
}

#[test]
fn structured_content_goes_to_who_knows_it() {
    let result = ToolResult { is_error: true, ..ToolResult::text("x", Some(&json!({ "a": 1 }))) };
    for (revision, structured, there) in
        [(Revision::V2025_03_26, true, false), (Revision::V2025_06_18, true, true), (Revision::MODERN, false, false)]
    {
        let text: Value = serde_json::from_str(&encode(&result, revision, structured)).unwrap();
        assert_eq!((text.get("structuredContent").is_some(), &text["isError"]), (there, &json!(true)), "{revision:?}");
    }
}

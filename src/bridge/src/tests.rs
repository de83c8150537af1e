//! Calls within and across eras, with a fake server.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json, value::RawValue};

use crate::{
    Call, RequestedItem, call,
    testing::{ELICITATION_CAPABILITIES, Fixture, answer, next_question, value},
};
use countersign_exchange::{
    context::Exchange,
    testing::{request, take_sent_messages},
};
use countersign_protocol::{Era, ErrorKind, RequestId, Revision, rpc_error::RpcError};
use countersign_upstream::{
    Response,
    testing::fake::{FakeReply, ReceivedRequest, ok, question},
};

/// A server that asks a question during the call and puts the answer into its result.
fn ask_during_call(request: ReceivedRequest) -> FakeReply {
    Box::pin(async move {
        let (question, received) = question();
        request.listener.handle_request(question);
        let received = match received.await.unwrap() {
            Ok(result) => serde_json::from_str(result.get()).unwrap(),
            Err(error) => json!({ "code": error.code }),
        };
        ok(json!({ "content": [], "received": received, "resultType": "complete" }))
    })
}

/// The result of a server that needs input until the request contains some.
fn result_needing_input(request: &ReceivedRequest) -> Value {
    match request.params.get("inputResponses") {
        Some(responses) => {
            json!({ "resultType": "complete", "content": [], "received": responses, "state": request.params["requestState"] })
        }
        None => json!({
            "resultType": "input_required", "requestState": "s",
            "inputRequests": { "k": { "method": "elicitation/create", "params": { "message": "m", "requestedSchema": {} } } },
        }),
    }
}

fn legacy_client(fixture: &Fixture, capabilities: &str) -> Exchange {
    fixture.clients.exchange(Revision::V2025_11_25, capabilities)
}

fn modern_client(fixture: &Fixture, capabilities: &str) -> Exchange {
    fixture.clients.exchange(Revision::MODERN, capabilities)
}

#[actix::test]
async fn question_goes_to_client_of_call_and_answer_goes_back() {
    let fixture = Fixture::new(Era::Legacy).await;
    fixture.server.answer_with(ask_during_call);
    let (client, other) =
        (legacy_client(&fixture, ELICITATION_CAPABILITIES), legacy_client(&fixture, ELICITATION_CAPABILITIES));
    let params = json!({ "name": "s__echo" });
    let accepted = json!({ "action": "accept", "content": { "n": 1 } });
    let answering = async {
        let question = next_question(&client).await;
        assert_eq!(question["method"], "elicitation/create");
        answer(&client, &question, Ok(accepted.clone()));
    };
    let (result, ()) = tokio::join!(fixture.call_result(&client, &params), answering);
    assert_eq!(result["received"], accepted);
    assert!(take_sent_messages(&other).is_empty());
    // The server gets the client's refusal unchanged.
    let refusing =
        async { answer(&client, &next_question(&client).await, Err(json!({ "code": -32000, "message": "no" }))) };
    let (result, ()) = tokio::join!(fixture.call_result(&client, &params), refusing);
    assert_eq!(result["received"]["code"], -32000);
}

#[actix::test]
async fn client_without_capabilities_is_not_asked() {
    let fixture = Fixture::new(Era::Legacy).await;
    fixture.server.answer_with(ask_during_call);
    for client in [legacy_client(&fixture, "{}"), modern_client(&fixture, "{}")] {
        let result = fixture.call_result(&client, &json!({ "name": "s__echo" })).await;
        assert_eq!(result["received"]["code"], -32601, "the call continues");
        assert!(take_sent_messages(&client).is_empty());
    }
    // If the call fails, the error tells a stateless client which capability was missing.
    fixture.server.answer_with(|request| {
        Box::pin(async move {
            let (question, received) = question();
            request.listener.handle_request(question);
            drop(received.await);
            ok(json!({ "content": [], "isError": true }))
        })
    });
    let error = fixture.call(&modern_client(&fixture, "{}"), &json!({ "name": "s__echo" })).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::MissingCapability);
    assert_eq!(error.data["requiredCapabilities"], json!({ "elicitation": { "form": {} } }));
    let result = fixture.call_result(&legacy_client(&fixture, "{}"), &json!({ "name": "s__echo" })).await;
    assert_eq!(result["isError"], true, "a handshake-era client gets the result");
}

#[actix::test]
async fn parked_call_is_resumed_once_and_only_by_its_client() {
    let fixture = Fixture::new(Era::Legacy).await;
    fixture.server.answer_with(ask_during_call);
    let client = modern_client(&fixture, ELICITATION_CAPABILITIES);
    let params = json!({ "name": "s__echo", "arguments": { "n": 1 } });
    let input_required = fixture.call_result(&client, &params).await;
    assert_eq!((&input_required["resultType"], fixture.bridge.parked_calls.count()), (&json!("input_required"), 1));
    assert_eq!(input_required["inputRequests"]["q"]["method"], "elicitation/create");
    let retry = |params: &Value| {
        let mut retry = params.clone();
        retry["requestState"] = input_required["requestState"].clone();
        retry["inputResponses"] = json!({ "q": { "action": "accept" } });
        retry
    };
    // Neither another principal nor another call can use the state.
    let bob = fixture.clients.exchange_of("bob", Revision::MODERN, ELICITATION_CAPABILITIES);
    let other_call = json!({ "name": "s__echo", "arguments": { "n": 2 } });
    for (exchange, params) in [(&bob, &params), (&client, &other_call)] {
        let error = fixture.call(exchange, &retry(params)).await.unwrap_err();
        assert_eq!((error.kind, &error.data["member"]), (ErrorKind::InvalidParams, &json!("requestState")));
    }
    let result = fixture.call_result(&client, &retry(&params)).await;
    assert_eq!((&result["received"], &result["resultType"]), (&json!({ "action": "accept" }), &json!("complete")));
    assert_eq!(
        fixture.call(&client, &retry(&params)).await.unwrap_err().kind,
        ErrorKind::InvalidParams,
        "a state is valid once"
    );
    assert_eq!(fixture.call_count(), 1);
}

#[actix::test]
async fn retry_is_asked_only_what_it_declares_itself() {
    let fixture = Fixture::new(Era::Legacy).await;
    fixture.server.answer_with(|request| {
        Box::pin(async move {
            for id in ["\"one\"", "\"two\""] {
                let (mut question, received) = question();
                question.id = RequestId::from_raw(id);
                request.listener.handle_request(question);
                drop(received.await);
            }
            ok(json!({ "content": [] }))
        })
    });
    let capable = modern_client(&fixture, ELICITATION_CAPABILITIES);
    let incapable = modern_client(&fixture, "{}");
    let retry = |needed: &Value, responses: Value| {
        let state = &needed["requestState"];
        json!({ "name": "s__echo", "requestState": state, "inputResponses": responses })
    };
    let needed = fixture.call_result(&capable, &json!({ "name": "s__echo" })).await;
    let answer_one = retry(&needed, json!({ "one": { "action": "decline" } }));
    // Neither the question that is still open nor the next one is put to a client that no longer declares elicitation.
    for params in [&retry(&needed, json!({})), &answer_one] {
        let error = fixture.call(&incapable, params).await.unwrap_err();
        let required = json!({ "elicitation": { "form": {} } });
        assert_eq!((error.kind, &error.data["requiredCapabilities"]), (ErrorKind::MissingCapability, &required));
    }
    // The state stays valid for a retry with the capability.
    let needed = fixture.call_result(&capable, &answer_one).await;
    assert_eq!(needed["inputRequests"]["two"]["method"], "elicitation/create");
    let result = fixture.call_result(&incapable, &retry(&needed, json!({ "two": { "action": "decline" } }))).await;
    assert_eq!((&result["resultType"], fixture.call_count()), (&json!("complete"), 1));
}

#[actix::test]
async fn parked_calls_are_limited_per_principal() {
    let fixture = Fixture::new(Era::Legacy).await;
    fixture.server.answer_with(ask_during_call);
    let client = modern_client(&fixture, ELICITATION_CAPABILITIES);
    let params = json!({ "name": "s__echo" });
    for _ in 0..8 {
        assert_eq!(fixture.call_result(&client, &params).await["resultType"], "input_required");
    }
    assert_eq!(fixture.call(&client, &params).await.unwrap_err().kind, ErrorKind::Overloaded);
    let bob = fixture.clients.exchange_of("bob", Revision::MODERN, ELICITATION_CAPABILITIES);
    assert_eq!(fixture.call_result(&bob, &params).await["resultType"], "input_required");
    // Parked calls take their principal's memory.
    assert!(fixture.clients.memory.used_by("ann") > 8 * 4096);
}

#[actix::test]
async fn handshake_client_is_asked_for_input_of_stateless_server() {
    let fixture = Fixture::new(Era::Modern).await;
    fixture.server.answer_with(|request| Box::pin(ready(ok(result_needing_input(&request)))));
    let client = legacy_client(&fixture, ELICITATION_CAPABILITIES);
    let params = json!({ "name": "s__echo" });
    let accepted = json!({ "action": "accept", "content": {} });
    let answering = async {
        let question = next_question(&client).await;
        let message = question["params"]["message"].as_str().unwrap();
        assert!(message.contains("\"s\"") && message.ends_with("m"), "the message names the server: {message}");
        answer(&client, &question, Ok(accepted.clone()));
    };
    let (result, ()) = tokio::join!(fixture.call_result(&client, &params), answering);
    assert_eq!((&result["received"], &result["state"]), (&json!({ "k": accepted }), &json!("s")));
    assert!(result.get("resultType").is_none(), "the client's era has no result types");
    assert_eq!(fixture.call_count(), 2);
    // A dialogue that the client cannot show counts as cancelled.
    let refusing = async { answer(&client, &next_question(&client).await, Err(json!({ "code": 1, "message": "" }))) };
    let (result, ()) = tokio::join!(fixture.call_result(&client, &params), refusing);
    assert_eq!(result["received"], json!({ "k": { "action": "cancel" } }));
}

#[actix::test]
async fn call_fails_if_client_cannot_give_the_input() {
    let fixture = Fixture::new(Era::Modern).await;
    let request_input = |requests: Value| {
        let result = json!({ "resultType": "input_required", "inputRequests": requests });
        fixture.server.answer_with(move |_| Box::pin(ready(ok(result.clone()))));
    };
    let client = legacy_client(&fixture, ELICITATION_CAPABILITIES);
    for requests in [
        json!({ "k": { "method": "roots/list" } }),
        json!({ "k": { "method": "acme/ask" } }),
        json!({ "k": { "method": "elicitation/create", "params": { "mode": "url", "url": "file:///etc/passwd" } } }),
    ] {
        request_input(requests.clone());
        let before = fixture.call_count();
        let error = fixture.call(&client, &json!({ "name": "s__echo" })).await.unwrap_err();
        assert_eq!((error.kind, fixture.call_count() - before), (ErrorKind::NotBridgeable, 1), "{requests}");
        assert!(take_sent_messages(&client).is_empty(), "{requests}");
    }
    fixture.server.answer_with(|_| Box::pin(ready(ok(json!({ "resultType": "input_required" })))));
    let error = fixture.call(&client, &json!({ "name": "s__echo" })).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotBridgeable, "the result names no input");
}

#[actix::test]
async fn stateless_client_is_told_which_capabilities_to_declare() {
    let fixture = Fixture::new(Era::Modern).await;
    let requests = json!({
        "a": { "method": "elicitation/create", "params": { "message": "m", "requestedSchema": {} } },
        "b": { "method": "roots/list" },
    });
    let result = json!({ "resultType": "input_required", "inputRequests": requests });
    fixture.server.answer_with(move |_| Box::pin(ready(ok(result.clone()))));
    let client = modern_client(&fixture, r#"{"elicitation":{"url":{}}}"#);
    let error = fixture.call(&client, &json!({ "name": "s__echo" })).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::MissingCapability);
    assert_eq!(error.data["requiredCapabilities"], json!({ "elicitation": { "form": {} }, "roots": {} }));
}

#[actix::test]
async fn server_state_is_sealed_for_client_and_returned_unchanged() {
    let fixture = Fixture::new(Era::Modern).await;
    fixture.server.answer_with(|request| Box::pin(ready(ok(result_needing_input(&request)))));
    let client = modern_client(&fixture, ELICITATION_CAPABILITIES);
    let params = json!({ "name": "s__echo", "arguments": {} });
    let input_required = fixture.call_result(&client, &params).await;
    let sealed = input_required["requestState"].as_str().unwrap();
    assert!(sealed.starts_with("cs1.") && sealed != "s");
    let mut retry = params.clone();
    retry["requestState"] = sealed.into();
    retry["inputResponses"] = json!({ "k": { "action": "decline" } });
    let bob = fixture.clients.exchange_of("bob", Revision::MODERN, ELICITATION_CAPABILITIES);
    assert_eq!(fixture.call(&bob, &retry).await.unwrap_err().kind, ErrorKind::InvalidParams);
    assert_eq!(fixture.call_count(), 1, "the refused retry does not reach the server");
    let result = fixture.call_result(&client, &retry).await;
    assert_eq!((&result["state"], &result["received"]), (&json!("s"), &retry["inputResponses"]));
    // The server's own unsealed state is refused like any other invalid text.
    retry["requestState"] = "s".into();
    assert_eq!(fixture.call(&client, &retry).await.unwrap_err().kind, ErrorKind::InvalidParams);
    // A handshake-era client has no state, so the server asks it.
    let client = legacy_client(&fixture, "{}");
    assert_eq!(fixture.call(&client, &retry).await.unwrap_err().kind, ErrorKind::NotBridgeable);
}

#[actix::test]
async fn extension_result_reaches_only_clients_that_declare_it() {
    let extension = json!({ "tools": {}, "extensions": { "acme/x": {} } });
    let fixture = Fixture::with_config(Era::Modern, &extension, |_| {}).await;
    fixture.server.answer_with(|_| Box::pin(ready(ok(json!({ "resultType": "acme", "content": [] })))));
    let params = json!({ "name": "s__echo" });
    let declaring = modern_client(&fixture, r#"{"extensions":{"acme/x":{}}}"#);
    assert_eq!(fixture.call_result(&declaring, &params).await["resultType"], "acme");
    for client in [modern_client(&fixture, "{}"), legacy_client(&fixture, "{}")] {
        let error = fixture.call(&client, &params).await.unwrap_err();
        assert_eq!((error.kind, &error.data["resultType"]), (ErrorKind::NotBridgeable, &json!("acme")));
    }
}

#[actix::test]
async fn error_names_configuration_that_withholds_capability() {
    let fixture = Fixture::with_config(Era::Modern, &json!({ "tools": {} }), |config| config.sampling = false).await;
    let client = modern_client(&fixture, r#"{"sampling":{}}"#);
    let asking = json!({
        "resultType": "input_required", "inputRequests": { "k": { "method": "sampling/createMessage", "params": {} } },
    });
    let refusing = RpcError {
        data: RawValue::from_string(r#"{"requiredCapabilities":{"sampling":{}}}"#.to_owned()).ok(),
        ..RpcError::new(-32021, "declare sampling")
    };
    for response in [ok(asking).unwrap(), Response::Error(refusing)] {
        fixture.server.answer_with(move |_| Box::pin(ready(Ok(response.clone()))));
        let error = fixture.call(&client, &json!({ "name": "s__echo" })).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotBridgeable);
        assert!(error.message.contains("`sampling: deny`") && error.passthrough.is_none(), "{error}");
    }
}

/// Starts a server with cacheable results, each of which contains its number.
async fn server_with_cacheable_results(scope: &'static str) -> Fixture {
    let fixture = Fixture::with_config(Era::Modern, &json!({ "tools": {} }), |config| config.cache = true).await;
    let number = AtomicUsize::new(0);
    fixture.server.answer_with(move |_| {
        let n = number.fetch_add(1, Ordering::SeqCst);
        Box::pin(ready(ok(json!({
            "resultType": "complete", "content": [], "n": n, "ttlMs": 60_000, "cacheScope": scope,
        }))))
    });
    fixture
}

#[actix::test]
async fn identical_read_is_answered_from_cache() {
    let fixture = server_with_cacheable_results("public").await;
    let (ann, bob) = (modern_client(&fixture, "{}"), fixture.clients.exchange_of("bob", Revision::MODERN, "{}"));
    let params = json!({ "name": "s__echo", "arguments": { "a": 1, "b": 2 } });
    assert_eq!(fixture.call_result(&ann, &params).await["n"], 0);
    let reordered = json!({ "arguments": { "b": 2, "a": 1 }, "name": "another name of it" });
    let cached = fixture.call_result(&bob, &reordered).await;
    assert_eq!(cached["n"], 0, "the cache ignores the client and the order of members");
    assert!(cached["ttlMs"].as_u64().unwrap() <= 60_000, "the result keeps its remaining time");
    for other in [
        json!({ "name": "s__echo", "arguments": { "a": 1, "b": 3 } }),
        json!({ "name": "s__echo", "arguments": { "a": 1, "b": 2 }, "_meta": { "progressToken": 1 } }),
        json!({ "name": "s__echo", "arguments": { "a": 1, "b": 2 }, "_meta": { "acme": 1 } }),
    ] {
        let before = fixture.call_count();
        fixture.call_result(&ann, &other).await;
        assert_eq!(fixture.call_count(), before + 1, "{other}");
    }
    // A client with other capabilities may get another result.
    let before = fixture.call_count();
    fixture.call_result(&modern_client(&fixture, ELICITATION_CAPABILITIES), &params).await;
    assert_eq!(fixture.call_count(), before + 1);
}

#[actix::test]
async fn private_result_is_cached_per_principal() {
    let fixture = server_with_cacheable_results("private").await;
    let (ann, bob) = (modern_client(&fixture, "{}"), fixture.clients.exchange_of("bob", Revision::MODERN, "{}"));
    let params = json!({ "name": "s__echo" });
    let mut numbers = Vec::new();
    for client in [&ann, &bob, &ann, &bob] {
        numbers.push(fixture.call_result(client, &params).await["n"].as_u64().unwrap());
    }
    assert_eq!(numbers, [0, 1, 0, 1]);
}

#[actix::test]
async fn failed_results_are_not_cached() {
    let fixture = server_with_cacheable_results("public").await;
    let failing = json!({ "resultType": "complete", "content": [], "isError": true, "ttlMs": 60_000 });
    fixture.server.answer_with(move |_| Box::pin(ready(ok(failing.clone()))));
    let client = modern_client(&fixture, "{}");
    for calls in 1..3 {
        let reply = fixture.call(&client, &json!({ "name": "s__echo" })).await.unwrap();
        assert_eq!((reply.failure, fixture.call_count()), (Some(ErrorKind::ToolExecution), calls));
    }
}

#[actix::test]
async fn required_page_is_input_or_error_depending_on_era() {
    let fixture = Fixture::new(Era::Legacy).await;
    let require_page = |url: &str| {
        let data = json!({ "elicitations": [{ "mode": "url", "elicitationId": "e", "url": url, "message": "m" }] });
        let data = RawValue::from_string(data.to_string()).unwrap();
        let error = RpcError { code: -32042, message: "open".into(), data: Some(data), status: None };
        fixture.server.answer_with(move |_| Box::pin(ready(Ok(Response::Error(error.clone())))));
    };
    require_page("https://a.example/x");
    let params = json!({ "name": "s__echo" });
    let result = fixture.call_result(&modern_client(&fixture, ELICITATION_CAPABILITIES), &params).await;
    let params_of_question = &result["inputRequests"]["e"]["params"];
    assert_eq!(
        (&params_of_question["url"], params_of_question.get("elicitationId")),
        (&json!("https://a.example/x"), None)
    );
    assert!(result.get("requestState").is_none(), "the retry is a new call, so it needs no state");
    let error = fixture.call(&modern_client(&fixture, r#"{"elicitation":{}}"#), &params).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::MissingCapability, "the client opens no pages");
    let error = fixture.call(&legacy_client(&fixture, ELICITATION_CAPABILITIES), &params).await.unwrap_err();
    let foreign = error.passthrough.as_ref().unwrap();
    assert!(foreign.data.as_ref().unwrap().contains("asks you to open a page at a.example"));
    require_page("https://user@a.example/");
    let failed = value(
        &fixture
            .call(&legacy_client(&fixture, ELICITATION_CAPABILITIES), &params)
            .await
            .unwrap_or_else(|error| crate::tool_error_reply(&error)),
    );
    assert_eq!(failed["isError"], true, "a URL that may disguise its host is refused");
}

#[actix::test]
async fn only_configured_headers_are_forwarded() {
    let forward_tenant =
        |config: &mut countersign_config::UpstreamConfig| config.forward_headers = vec!["x-tenant".into()];
    let fixture = Fixture::with_config(Era::Modern, &json!({ "tools": {} }), forward_tenant).await;
    let headers = [("x-tenant", "a"), ("x-other", "b")].map(|(name, value)| (name.into(), value.into()));
    let client = Exchange { headers: Some(Arc::new(headers.into())), ..modern_client(&fixture, "{}") };
    let received = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let recorder = Arc::clone(&received);
    fixture.server.answer_with(move |request| {
        *recorder.lock() = request.headers;
        Box::pin(ready(ok(json!({ "resultType": "complete", "content": [] }))))
    });
    fixture.call_result(&client, &json!({ "name": "s__echo" })).await;
    assert_eq!(*received.lock(), [("x-tenant".into(), "a".into())]);
}

#[actix::test]
async fn parameters_and_result_of_extension_pass_unchanged() {
    let fixture =
        Fixture::with_config(Era::Modern, &json!({ "tools": {}, "extensions": { "acme/x": {} } }), |_| {}).await;
    fixture.server.answer_with(|request| {
        let result = json!({ "method": request.method, "n": request.params["n"], "name": request.params["name"] });
        Box::pin(ready(ok(result)))
    });
    let exchange = modern_client(&fixture, r#"{"extensions":{"acme/x":{}}}"#);
    let request = request(r#"{"jsonrpc":"2.0","id":1,"method":"acme/do","params":{"n":1,"name":"s__x"}}"#);
    let (item, upstream) = (RequestedItem::Extension("acme/do"), &fixture.upstream);
    let reply = call(Call::new(&exchange, &fixture.bridge, upstream, item, &request)).await.unwrap();
    assert_eq!(value(&reply), json!({ "method": "acme/do", "n": 1, "name": "s__x" }));
}

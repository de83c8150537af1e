//! Calls across and within eras, against a server that the tests play.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json, value::RawValue};

use crate::testing::{ELICITATION_CAPABILITIES, Fixture, answer, next_question, value};
use countersign_exchange::{context::Exchange, testing::sent};
use countersign_protocol::{Era, ErrorKind, Revision, rpc_error::RpcError};
use countersign_upstream::{
    Response,
    testing::fake::{FakeReply, ReceivedRequest, ok, question},
};

/// The server asks for something during the call, and says in its result what it heard.
fn asks(request: ReceivedRequest) -> FakeReply {
    Box::pin(async move {
        let (question, heard) = question();
        request.listener.request(question);
        let heard = match heard.await.unwrap() {
            Ok(result) => serde_json::from_str(result.get()).unwrap(),
            Err(error) => json!({ "code": error.code }),
        };
        ok(json!({ "content": [], "heard": heard, "resultType": "complete" }))
    })
}

/// The server needs input by its result, until it has some.
fn needs_input(request: &ReceivedRequest) -> Value {
    match request.params.get("inputResponses") {
        Some(responses) => {
            json!({ "resultType": "complete", "content": [], "heard": responses, "state": request.params["requestState"] })
        }
        None => json!({
            "resultType": "input_required", "requestState": "s",
            "inputRequests": { "k": { "method": "elicitation/create", "params": { "message": "m", "requestedSchema": {} } } },
        }),
    }
}

fn legacy(fixture: &Fixture, capabilities: &str) -> Exchange {
    fixture.bench.exchange(Revision::V2025_11_25, capabilities)
}

fn modern(fixture: &Fixture, capabilities: &str) -> Exchange {
    fixture.bench.exchange(Revision::MODERN, capabilities)
}

#[actix::test]
async fn a_question_goes_to_the_client_whose_call_it_is_and_its_answer_back() {
    let fixture = Fixture::new(Era::Legacy).await;
    fixture.server.answers(asks);
    let (client, other) = (legacy(&fixture, ELICITATION_CAPABILITIES), legacy(&fixture, ELICITATION_CAPABILITIES));
    let params = json!({ "name": "s__echo" });
    let accepted = json!({ "action": "accept", "content": { "n": 1 } });
    let answering = async {
        let question = next_question(&client).await;
        assert_eq!(question["method"], "elicitation/create");
        answer(&client, &question, Ok(accepted.clone()));
    };
    let (result, ()) = tokio::join!(fixture.result(&client, &params), answering);
    assert_eq!(result["heard"], accepted);
    assert!(sent(&other).is_empty());
    // What the client refuses is told as it said it.
    let refusing =
        async { answer(&client, &next_question(&client).await, Err(json!({ "code": -32000, "message": "no" }))) };
    let (result, ()) = tokio::join!(fixture.result(&client, &params), refusing);
    assert_eq!(result["heard"]["code"], -32000);
}

#[actix::test]
async fn a_client_that_offers_nothing_is_asked_nothing() {
    let fixture = Fixture::new(Era::Legacy).await;
    fixture.server.answers(asks);
    for client in [legacy(&fixture, "{}"), modern(&fixture, "{}")] {
        let result = fixture.result(&client, &json!({ "name": "s__echo" })).await;
        assert_eq!(result["heard"]["code"], -32601, "the call goes on");
        assert!(sent(&client).is_empty());
    }
    // Where it does not go on, a stateless client learns what it lacked.
    fixture.server.answers(|request| {
        Box::pin(async move {
            let (question, heard) = question();
            request.listener.request(question);
            drop(heard.await);
            ok(json!({ "content": [], "isError": true }))
        })
    });
    let error = fixture.call(&modern(&fixture, "{}"), &json!({ "name": "s__echo" })).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::MissingCapability);
    assert_eq!(error.data["requiredCapabilities"], json!({ "elicitation": { "form": {} } }));
    let result = fixture.result(&legacy(&fixture, "{}"), &json!({ "name": "s__echo" })).await;
    assert_eq!(result["isError"], true, "a handshake-era client gets the result");
}

#[actix::test]
async fn a_parked_call_is_taken_up_by_its_client_once_and_never_made_twice() {
    let fixture = Fixture::new(Era::Legacy).await;
    fixture.server.answers(asks);
    let client = modern(&fixture, ELICITATION_CAPABILITIES);
    let params = json!({ "name": "s__echo", "arguments": { "n": 1 } });
    let asked = fixture.result(&client, &params).await;
    assert_eq!((&asked["resultType"], fixture.bridge.parked.len()), (&json!("input_required"), 1));
    assert_eq!(asked["inputRequests"]["q"]["method"], "elicitation/create");
    let retry = |params: &Value| {
        let mut retry = params.clone();
        retry["requestState"] = asked["requestState"].clone();
        retry["inputResponses"] = json!({ "q": { "action": "accept" } });
        retry
    };
    // Neither somebody else nor another call brings it.
    let bob = fixture.bench.exchange_of("bob", Revision::MODERN, ELICITATION_CAPABILITIES);
    let other = json!({ "name": "s__echo", "arguments": { "n": 2 } });
    for (exchange, params) in [(&bob, &params), (&client, &other)] {
        let error = fixture.call(exchange, &retry(params)).await.unwrap_err();
        assert_eq!((error.kind, &error.data["member"]), (ErrorKind::InvalidParams, &json!("requestState")));
    }
    let result = fixture.result(&client, &retry(&params)).await;
    assert_eq!((&result["heard"], &result["resultType"]), (&json!({ "action": "accept" }), &json!("complete")));
    assert_eq!(fixture.call(&client, &retry(&params)).await.unwrap_err().kind, ErrorKind::InvalidParams, "once");
    assert_eq!(fixture.calls(), 1);
}

#[actix::test]
async fn a_principal_has_only_so_many_parked_calls() {
    let fixture = Fixture::new(Era::Legacy).await;
    fixture.server.answers(asks);
    let client = modern(&fixture, ELICITATION_CAPABILITIES);
    let params = json!({ "name": "s__echo" });
    for _ in 0..8 {
        assert_eq!(fixture.result(&client, &params).await["resultType"], "input_required");
    }
    assert_eq!(fixture.call(&client, &params).await.unwrap_err().kind, ErrorKind::Overloaded);
    let bob = fixture.bench.exchange_of("bob", Revision::MODERN, ELICITATION_CAPABILITIES);
    assert_eq!(fixture.result(&bob, &params).await["resultType"], "input_required");
    // Their parameters take its memory while they wait.
    assert!(fixture.bench.memory.used_by("ann") > 8 * 4096);
}

#[actix::test]
async fn a_handshake_client_is_asked_what_a_stateless_server_needs() {
    let fixture = Fixture::new(Era::Modern).await;
    fixture.server.answers(|request| Box::pin(ready(ok(needs_input(&request)))));
    let client = legacy(&fixture, ELICITATION_CAPABILITIES);
    let params = json!({ "name": "s__echo" });
    let accepted = json!({ "action": "accept", "content": {} });
    let answering = async {
        let question = next_question(&client).await;
        let message = question["params"]["message"].as_str().unwrap();
        assert!(message.contains("\"s\"") && message.ends_with("m"), "who asks stands in it: {message}");
        answer(&client, &question, Ok(accepted.clone()));
    };
    let (result, ()) = tokio::join!(fixture.result(&client, &params), answering);
    assert_eq!((&result["heard"], &result["state"]), (&json!({ "k": accepted }), &json!("s")));
    assert!(result.get("resultType").is_none(), "its era has none");
    assert_eq!(fixture.calls(), 2);
    // A dialogue that its client cannot show was cancelled.
    let refusing = async { answer(&client, &next_question(&client).await, Err(json!({ "code": 1, "message": "" }))) };
    let (result, ()) = tokio::join!(fixture.result(&client, &params), refusing);
    assert_eq!(result["heard"], json!({ "k": { "action": "cancel" } }));
}

#[actix::test]
async fn what_a_client_cannot_give_ends_the_call() {
    let fixture = Fixture::new(Era::Modern).await;
    let needs = |requests: Value| {
        let result = json!({ "resultType": "input_required", "inputRequests": requests });
        fixture.server.answers(move |_| Box::pin(ready(ok(result.clone()))));
    };
    let client = legacy(&fixture, ELICITATION_CAPABILITIES);
    for requests in [
        json!({ "k": { "method": "roots/list" } }),
        json!({ "k": { "method": "acme/ask" } }),
        json!({ "k": { "method": "elicitation/create", "params": { "mode": "url", "url": "file:///etc/passwd" } } }),
    ] {
        needs(requests.clone());
        let before = fixture.calls();
        let error = fixture.call(&client, &json!({ "name": "s__echo" })).await.unwrap_err();
        assert_eq!((error.kind, fixture.calls() - before), (ErrorKind::NotBridgeable, 1), "{requests}");
        assert!(sent(&client).is_empty(), "{requests}");
    }
    fixture.server.answers(|_| Box::pin(ready(ok(json!({ "resultType": "input_required" })))));
    let error = fixture.call(&client, &json!({ "name": "s__echo" })).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotBridgeable, "it does not say what it needs");
}

#[actix::test]
async fn a_state_of_a_server_is_carried_sealed_and_comes_back_as_it_was() {
    let fixture = Fixture::new(Era::Modern).await;
    fixture.server.answers(|request| Box::pin(ready(ok(needs_input(&request)))));
    let client = modern(&fixture, ELICITATION_CAPABILITIES);
    let params = json!({ "name": "s__echo", "arguments": {} });
    let asked = fixture.result(&client, &params).await;
    let sealed = asked["requestState"].as_str().unwrap();
    assert!(sealed.starts_with("cs1.") && sealed != "s");
    let mut retry = params.clone();
    retry["requestState"] = sealed.into();
    retry["inputResponses"] = json!({ "k": { "action": "decline" } });
    let bob = fixture.bench.exchange_of("bob", Revision::MODERN, ELICITATION_CAPABILITIES);
    assert_eq!(fixture.call(&bob, &retry).await.unwrap_err().kind, ErrorKind::InvalidParams);
    assert_eq!(fixture.calls(), 1, "the server hears nothing of it");
    let result = fixture.result(&client, &retry).await;
    assert_eq!((&result["state"], &result["heard"]), (&json!("s"), &retry["inputResponses"]));
    // What it gave itself is refused as what anybody else made up.
    retry["requestState"] = "s".into();
    assert_eq!(fixture.call(&client, &retry).await.unwrap_err().kind, ErrorKind::InvalidParams);
}

#[actix::test]
async fn a_result_of_an_extension_goes_to_clients_that_know_it_only() {
    let extension = json!({ "tools": {}, "extensions": { "acme/x": {} } });
    let fixture = Fixture::with(Era::Modern, &extension, |_| {}).await;
    fixture.server.answers(|_| Box::pin(ready(ok(json!({ "resultType": "acme", "content": [] })))));
    let params = json!({ "name": "s__echo" });
    let knows = modern(&fixture, r#"{"extensions":{"acme/x":{}}}"#);
    assert_eq!(fixture.result(&knows, &params).await["resultType"], "acme");
    for client in [modern(&fixture, "{}"), legacy(&fixture, "{}")] {
        let error = fixture.call(&client, &params).await.unwrap_err();
        assert_eq!((error.kind, &error.data["resultType"]), (ErrorKind::NotBridgeable, &json!("acme")));
    }
}

/// A server whose results may be kept, each with its number.
async fn cached(scope: &'static str) -> Fixture {
    let fixture = Fixture::with(Era::Modern, &json!({ "tools": {} }), |config| config.cache = true).await;
    let number = AtomicUsize::new(0);
    fixture.server.answers(move |_| {
        let n = number.fetch_add(1, Ordering::SeqCst);
        Box::pin(ready(ok(json!({
            "resultType": "complete", "content": [], "n": n, "ttlMs": 60_000, "cacheScope": scope,
        }))))
    });
    fixture
}

#[actix::test]
async fn an_equal_read_is_answered_from_what_was_kept() {
    let fixture = cached("public").await;
    let (ann, bob) = (modern(&fixture, "{}"), fixture.bench.exchange_of("bob", Revision::MODERN, "{}"));
    let params = json!({ "name": "s__echo", "arguments": { "a": 1, "b": 2 } });
    assert_eq!(fixture.result(&ann, &params).await["n"], 0);
    let reordered = json!({ "arguments": { "b": 2, "a": 1 }, "name": "another name of it" });
    let kept = fixture.result(&bob, &reordered).await;
    assert_eq!(kept["n"], 0, "whoever asks, in whatever order");
    assert!(kept["ttlMs"].as_u64().unwrap() <= 60_000, "only what is left of its time");
    for other in [
        json!({ "name": "s__echo", "arguments": { "a": 1, "b": 3 } }),
        json!({ "name": "s__echo", "arguments": { "a": 1, "b": 2 }, "_meta": { "progressToken": 1 } }),
        json!({ "name": "s__echo", "arguments": { "a": 1, "b": 2 }, "_meta": { "acme": 1 } }),
    ] {
        let before = fixture.calls();
        fixture.result(&ann, &other).await;
        assert_eq!(fixture.calls(), before + 1, "{other}");
    }
    // Another client may be answered otherwise.
    let before = fixture.calls();
    fixture.result(&modern(&fixture, ELICITATION_CAPABILITIES), &params).await;
    assert_eq!(fixture.calls(), before + 1);
}

#[actix::test]
async fn what_is_one_principals_is_given_to_no_other() {
    let fixture = cached("private").await;
    let (ann, bob) = (modern(&fixture, "{}"), fixture.bench.exchange_of("bob", Revision::MODERN, "{}"));
    let params = json!({ "name": "s__echo" });
    let mut numbers = Vec::new();
    for client in [&ann, &bob, &ann, &bob] {
        numbers.push(fixture.result(client, &params).await["n"].as_u64().unwrap());
    }
    assert_eq!(numbers, [0, 1, 0, 1]);
}

#[actix::test]
async fn failures_are_not_kept() {
    let fixture = cached("public").await;
    let failing = json!({ "resultType": "complete", "content": [], "isError": true, "ttlMs": 60_000 });
    fixture.server.answers(move |_| Box::pin(ready(ok(failing.clone()))));
    let client = modern(&fixture, "{}");
    for calls in 1..3 {
        let reply = fixture.call(&client, &json!({ "name": "s__echo" })).await.unwrap();
        assert_eq!((reply.failure, fixture.calls()), (Some(ErrorKind::ToolExecution), calls));
    }
}

#[actix::test]
async fn pages_to_open_first_are_input_for_stateless_clients_and_an_error_for_others() {
    let fixture = Fixture::new(Era::Legacy).await;
    let urls = |url: &str| {
        let data = json!({ "elicitations": [{ "mode": "url", "elicitationId": "e", "url": url, "message": "m" }] });
        let data = RawValue::from_string(data.to_string()).unwrap();
        let error = RpcError { code: -32042, message: "open".into(), data: Some(data), status: None };
        fixture.server.answers(move |_| Box::pin(ready(Ok(Response::Error(error.clone())))));
    };
    urls("https://a.example/x");
    let params = json!({ "name": "s__echo" });
    let result = fixture.result(&modern(&fixture, ELICITATION_CAPABILITIES), &params).await;
    let asked = &result["inputRequests"]["e"]["params"];
    assert_eq!((&asked["url"], asked.get("elicitationId")), (&json!("https://a.example/x"), None));
    assert!(result.get("requestState").is_none(), "the retry is the first call");
    let error = fixture.call(&modern(&fixture, r#"{"elicitation":{}}"#), &params).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::MissingCapability, "it opens no pages");
    let error = fixture.call(&legacy(&fixture, ELICITATION_CAPABILITIES), &params).await.unwrap_err();
    let foreign = error.passthrough.as_ref().unwrap();
    assert!(foreign.data.as_ref().unwrap().contains("asks you to open a page at a.example"));
    urls("https://user@a.example/");
    let failed = value(
        &fixture
            .call(&legacy(&fixture, ELICITATION_CAPABILITIES), &params)
            .await
            .unwrap_or_else(|error| crate::failed(&error)),
    );
    assert_eq!(failed["isError"], true, "nobody is sent to a page that hides where it is");
}

#[actix::test]
async fn headers_go_where_they_are_wanted() {
    let wants = |config: &mut countersign_config::UpstreamConfig| config.forward_headers = vec!["x-tenant".into()];
    let fixture = Fixture::with(Era::Modern, &json!({ "tools": {} }), wants).await;
    let headers = [("x-tenant", "a"), ("x-other", "b")].map(|(name, value)| (name.into(), value.into()));
    let client = Exchange { headers: Some(Arc::new(headers.into())), ..modern(&fixture, "{}") };
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seeing = Arc::clone(&seen);
    fixture.server.answers(move |request| {
        *seeing.lock() = request.headers;
        Box::pin(ready(ok(json!({ "resultType": "complete", "content": [] }))))
    });
    fixture.result(&client, &json!({ "name": "s__echo" })).await;
    assert_eq!(*seen.lock(), [("x-tenant".into(), "a".into())]);
}

//! Tests of approved changes, which are sent once.

use std::{
    future::{pending, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use serde_json::{json, value::RawValue};

use super::{calls::fail_calls, *};
use crate::link::LinkError;
use countersign_domain::recipes::{Confirmation, Pattern, Recipe, Recipes};
use countersign_protocol::{ErrorKind, rpc_error::RpcError};
use countersign_provider::{CallContext, Permit, Provider};

fn context() -> CallContext {
    let context = CallContext::new(Arc::new(Principal::local_agent()));
    CallContext { change_id: Some("chg_1".into()), ..context }
}

pub(super) async fn run_approved_change(
    upstream: &Arc<Upstream>,
) -> Result<countersign_provider::ToolResult, McpError> {
    let arguments = RawValue::from_string(r#"{"n":12345678901234567890123, "b":1}"#.into()).unwrap();
    Provider::call(&**upstream, "fake__echo", &arguments, &context()).await
}

/// Starts an upstream whose tool runs only as a task.
async fn start_with_required_task(kind: LinkKind) -> (Arc<FakeServer>, Arc<Upstream>) {
    let fake = FakeServer::new(Era::Legacy, kind);
    *fake.capabilities.lock() = json!({ "tools": {}, "tasks": { "requests": { "tools": { "call": {} } } } });
    let mut tools = fake::tools(&["echo"]);
    tools["tools"][0]["execution"] = json!({ "taskSupport": "required" });
    fake.lists.lock().insert("tools/list", tools);
    let upstream = start(&fake).await;
    (fake, upstream)
}

#[actix::test]
async fn approved_change_runs_as_task_if_its_tool_requires_one() {
    let (fake, upstream) = start_with_required_task(LinkKind::SingleStream).await;
    let outcomes = [
        (Ok(json!({ "content": [{ "type": "text", "text": "done" }] })), Ok("done")),
        (Err((-32050, "no such row")), Err((ErrorKind::UpstreamError, None))),
        // A proxy has lost the call.
        (Err((-32001, "Request timed out")), Err((ErrorKind::UpstreamError, Some("unknown")))),
        // The server has forgotten the task.
        (Err((-32602, "Task not found")), Err((ErrorKind::UpstreamUnavailable, Some("unknown")))),
    ];
    for (answer, expected) in outcomes {
        fake.log.lock().clear();
        fake.answer_with(move |request| {
            let answer = match request.method.as_str() {
                "tools/call" => {
                    assert_eq!(request.params["task"], json!({}));
                    Ok(json!({ "task": { "taskId": "own", "status": "working" } }))
                }
                method => {
                    assert_eq!((method, &request.params["taskId"]), ("tasks/result", &json!("own")));
                    answer.clone()
                }
            };
            Box::pin(ready(match answer {
                Ok(result) => fake::ok(result),
                Err((code, message)) => Ok(Response::Error(RpcError::new(code, message))),
            }))
        });
        let result = run_approved_change(&upstream).await;
        let shown = match &result {
            Ok(result) => Ok(result.content.get()),
            Err(error) => Err((error.kind, error.data.get("outcome").and_then(Value::as_str))),
        };
        match expected {
            Ok(text) => assert!(shown.is_ok_and(|content| content.contains(text)), "{shown:?}"),
            Err(_) => assert_eq!(shown, expected),
        }
        assert_eq!((fake.request_count("tools/call"), fake.request_count("tasks/result")), (1, 1));
    }
}

/// Lets the server answer requests about its task from a script of methods and results. Requests with the result `null` fail,
/// as do those that the script does not expect.
fn script_task(fake: &FakeServer, script: &'static [(&'static str, &'static str)]) {
    let position = AtomicUsize::new(0);
    fake.answer_with(move |request| {
        let answer = match request.method.as_str() {
            "tools/call" => json!({ "task": { "taskId": "own", "status": "working" } }),
            "tasks/result" | "tasks/get" => {
                let (method, answer) = *script.get(position.fetch_add(1, Ordering::SeqCst)).unwrap_or(&("", "null"));
                if method == request.method { serde_json::from_str(answer).unwrap() } else { Value::Null }
            }
            _ => json!({}),
        };
        let failure = Err(LinkError::Status { status: 400, body: String::new() });
        Box::pin(ready(if answer.is_null() { failure } else { fake::ok(answer) }))
    });
}

#[actix::test]
async fn task_of_approved_change_survives_failed_requests() {
    let (fake, upstream) = start_with_required_task(LinkKind::SingleStream).await;
    script_task(
        &fake,
        &[
            ("tasks/result", "null"),
            ("tasks/get", "null"),
            ("tasks/get", r#"{"taskId":"own","status":"working","pollInterval":50}"#),
            ("tasks/get", "null"),
            ("tasks/get", r#"{"taskId":"own","status":"completed"}"#),
            ("tasks/result", "null"),
            ("tasks/get", r#"{"taskId":"own","status":"completed"}"#),
            ("tasks/result", r#"{"content":[{"type":"text","text":"done"}]}"#),
        ],
    );
    let result = run_approved_change(&upstream).await.unwrap();
    assert_eq!(result.content.get(), r#"[{"type":"text","text":"done"}]"#);
    seconds(1).await;
    assert_eq!((fake.request_count("tools/call"), fake.request_count("tasks/cancel")), (1, 0));
}

#[actix::test]
async fn task_of_approved_change_has_unknown_outcome_after_outage() {
    let (fake, upstream) = start_with_required_task(LinkKind::SingleStream).await;
    script_task(&fake, &[]);
    let failed = run_approved_change(&upstream).await.unwrap_err();
    assert_eq!((failed.kind, &failed.data["outcome"]), (ErrorKind::UpstreamUnavailable, &json!("unknown")));
    seconds(1).await;
    assert!(fake.request_count("tasks/get") > 10, "{:?}", fake.log.lock());
    // Nobody waits for the task any more.
    assert_eq!((fake.request_count("tools/call"), fake.request_count("tasks/cancel")), (1, 1));
}

#[actix::test]
async fn task_of_approved_change_is_given_up_with_its_server() {
    let (fake, upstream) = start_with_required_task(LinkKind::Streams).await;
    script_task(&fake, &[]);
    let close = async {
        seconds(5).await;
        upstream.close();
    };
    let run = tokio::time::timeout(Duration::from_secs(60), run_approved_change(&upstream));
    let (failed, ()) = tokio::join!(run, close);
    let failed = failed.unwrap().unwrap_err();
    assert_eq!((failed.kind, &failed.data["outcome"]), (ErrorKind::UpstreamUnavailable, &json!("unknown")));
    assert!(fake.request_count("tasks/get") > 1, "it was waited for until the server was removed");
}

#[actix::test]
async fn approved_change_is_sent_once_verbatim() {
    let fake = modern();
    let upstream = start(&fake).await;
    fake.answer_with(|request| {
        assert_eq!(request.params["name"], "echo");
        assert_eq!(request.params["_meta"]["io.modelcontextprotocol/clientCapabilities"], json!({}));
        assert_eq!(request.params["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
        Box::pin(ready(fake::ok(json!({ "resultType": "complete", "content": [{ "type": "text", "text": "x" }] }))))
    });
    assert_eq!(run_approved_change(&upstream).await.unwrap().content.get(), r#"[{"type":"text","text":"x"}]"#);
    for (error, outcome, sends) in [
        (LinkError::SessionGone, "not_applied", 1),
        (LinkError::Lost("x".into()), "unknown", 1),
        (LinkError::Unreachable("x".into()), "not_applied", 3),
    ] {
        let before = fake.request_count("tools/call");
        fail_calls(&fake, 1000, error.clone());
        let failed = run_approved_change(&upstream).await.unwrap_err();
        assert_eq!(failed.data["outcome"], outcome, "{error}");
        assert_eq!(fake.request_count("tools/call") - before, sends, "{error}");
        upstream.endpoints[0].breaker.reset();
    }
}

#[actix::test]
async fn call_with_unsafe_integer_for_header_has_no_preview() {
    for (fake, is_refused) in [
        (modern(), true),
        // Only HTTP has headers.
        (FakeServer::new(Era::Modern, LinkKind::SingleStream), false),
        (legacy(), false),
    ] {
        let mut tools = fake::tools(&["echo"]);
        let row = json!({ "type": "integer", "x-mcp-header": "Row" });
        tools["tools"][0]["inputSchema"]["properties"] = json!({ "row": row });
        fake.lists.lock().insert("tools/list", tools);
        let upstream = start(&fake).await;
        let preview = async |arguments: &str| {
            let arguments = RawValue::from_string(arguments.into()).unwrap();
            upstream.preview("fake__echo", &arguments, &context()).await
        };
        assert!(preview(r#"{"row":9007199254740991}"#).await.is_ok());
        let outcome = preview(r#"{"row":9007199254740993}"#).await.map_err(|error| error.kind);
        assert_eq!(outcome.err(), is_refused.then_some(ErrorKind::InvalidParams));
        tokio::time::resume();
    }
}

#[actix::test]
async fn change_is_not_sent_to_redeployed_server_with_new_tools() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    let hash = upstream.tools()[0].definition_hash();
    run_approved_change(&upstream).await.unwrap();
    // The connection counts as stable, so that the next one follows at once.
    seconds(20).await;
    fake.end_sessions();
    assert!(upstream.has_definition("fake__echo", &hash).await.unwrap());
    run_approved_change(&upstream).await.unwrap();
    seconds(20).await;
    fake.end_sessions();
    fake.lists.lock().insert("tools/list", fake::tools(&["other"]));
    let failed = run_approved_change(&upstream).await.unwrap_err();
    assert_eq!((failed.kind, &failed.data["outcome"]), (ErrorKind::UpstreamUnavailable, &json!("not_applied")));
    assert!(!upstream.has_definition("fake__echo", &hash).await.unwrap());
    assert_eq!(fake.request_count("tools/call"), 2);
}

#[actix::test]
async fn change_survives_session_that_ends_soon_after_connect() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start_with(UpstreamConfig { elicitation: true, ..config("fake") }, &[&fake]);
    upstream.wait_until_settled().await;
    run_approved_change(&upstream).await.unwrap();
    fake.end_sessions();
    run_approved_change(&upstream).await.unwrap();
    assert_eq!(fake.request_count("tools/call"), 2);
}

#[actix::test]
async fn change_is_not_sent_before_tools_of_new_session_are_read() {
    let fake = FakeServer::new(Era::Legacy, LinkKind::Streams);
    let upstream = start(&fake).await;
    // The change gets a link of its own to the new server before the gateway has connected again.
    fake.open_links()[0].closed.cancel();
    fake.lists.lock().insert("tools/list", fake::tools(&["other"]));
    let failed = run_approved_change(&upstream).await.unwrap_err();
    assert_eq!((failed.kind, &failed.data["outcome"]), (ErrorKind::UpstreamUnavailable, &json!("not_applied")));
    assert_eq!(fake.request_count("tools/call"), 0);
}

#[actix::test]
async fn permit_is_checked_after_all_waits() {
    let fake = legacy();
    *fake.capabilities.lock() = json!({ "tools": {}, "logging": {} });
    let upstream = start(&fake).await;
    // The permit expires while another message is sent.
    let is_valid = Arc::new(AtomicBool::new(true));
    let expires = Arc::clone(&is_valid);
    fake.answer_with(move |request| {
        if request.method == "logging/setLevel" {
            expires.store(false, Ordering::SeqCst);
        }
        Box::pin(ready(fake::ok(json!({ "content": [] }))))
    });
    let caller = Caller { log_level: Some(countersign_protocol::params::LoggingLevel::Debug), ..agent("a") };
    let permit = Some(Permit(Arc::new(move || is_valid.load(Ordering::SeqCst))));
    let outgoing = OutgoingRequest { permit, ..request(&upstream, "tools/call") };
    let failed = upstream.call(&caller, &outgoing, Arc::new(RecordingListener::default())).await.unwrap_err();
    assert_eq!((fake.request_count("logging/setLevel"), fake.request_count("tools/call")), (1, 0));
    assert_eq!((failed.kind, &failed.data["outcome"]), (ErrorKind::UpstreamUnavailable, &json!("not_applied")));
    // The failure is neither attributed to the server nor retried.
    for _ in 0..20 {
        let outgoing = OutgoingRequest { permit: outgoing.permit.clone(), ..request(&upstream, "tools/call") };
        assert!(upstream.call(&agent("a"), &outgoing, Arc::new(RecordingListener::default())).await.is_err());
    }
    assert_eq!((fake.request_count("tools/call"), upstream.status().breaker), (0, "closed"));
}

#[actix::test]
async fn approved_change_without_inquirer_declines_questions() {
    let fake = legacy();
    let upstream = start(&fake).await;
    fake.answer_with(|request| {
        Box::pin(async move {
            let (question, answer) = fake::question();
            request.listener.handle_request(question);
            let declined = answer.await.unwrap().unwrap_err();
            assert_eq!(declined.code, -32601);
            fake::ok(json!({ "content": [], "isError": true }))
        })
    });
    assert_eq!(run_approved_change(&upstream).await.unwrap_err().kind, ErrorKind::InputRequired);
}

/// Runs the approved change at a server that asks this question, and whose recipe answers one.
async fn run_confirmed_change(question: &'static str) -> Result<countersign_provider::ToolResult, McpError> {
    let confirm = Confirmation { question: Pattern::new("^Really").unwrap(), answer: Vec::new(), is_trusted: true };
    let recipe = Recipe { confirm: Some(confirm), ..Recipe::default() };
    let previews = Recipes { by_tool: Arc::new([("echo".to_owned(), recipe)].into()), ..Recipes::default() };
    let fake = modern();
    let upstream = start_with(UpstreamConfig { previews, ..config("fake") }, &[&fake]);
    upstream.wait_until_settled().await;
    fake.answer_with(move |request| {
        let answer = &request.params["inputResponses"]["q"];
        Box::pin(ready(fake::ok(match answer["action"].as_str() {
            Some(action) => json!({ "resultType": "complete", "content": [{ "type": "text", "text": action }] }),
            None => json!({
                "resultType": "input_required", "requestState": "s",
                "inputRequests": { "q": { "method": "elicitation/create", "params": { "message": question } } }
            }),
        })))
    });
    let arguments = RawValue::from_string("{}".into()).unwrap();
    let unseen = Provider::call(&*upstream, "fake__echo", &arguments, &context()).await;
    assert_eq!(unseen.unwrap_err().kind, ErrorKind::InputRequired, "no reviewer saw how it is answered");
    let context = CallContext { answers_confirmation: true, ..context() };
    Provider::call(&*upstream, "fake__echo", &arguments, &context).await
}

#[actix::test]
async fn recipe_answers_the_question_it_names() {
    let confirmed = run_confirmed_change("Really delete it?").await.unwrap();
    assert_eq!(confirmed.content.get(), r#"[{"type":"text","text":"accept"}]"#);
}

#[actix::test]
async fn other_question_than_that_of_recipe_fails() {
    let failed = run_confirmed_change("Delete the others too?").await.unwrap_err();
    assert_eq!(failed.kind, ErrorKind::InputRequired);
    assert!(failed.message.contains("it asks: Delete the others too?"), "{}", failed.message);
}

#[actix::test]
async fn abandoned_change_is_cancelled_at_server() {
    let fake = modern();
    let upstream = start(&fake).await;
    fake.answer_with(|_| Box::pin(pending()));
    assert!(tokio::time::timeout(Duration::from_secs(5), run_approved_change(&upstream)).await.is_err());
    seconds(1).await;
    assert_eq!(fake.dropped_requests.load(Ordering::SeqCst), 1);
}

//! Tasks within and across eras, with a fake server.

mod capabilities;
mod exiting_child;

use std::{
    future::{pending, ready},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::testing::{Fixture, answer, next_question, value};
use countersign_exchange::{ask::ANSWER_TIMEOUT, testing::request};
use countersign_protocol::{rpc_error::RpcError, task::TASKS_EXTENSION};
use countersign_upstream::{
    LinkError, Response,
    testing::fake::{notification, ok, question},
};

const TASKS_CAPABILITY: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

/// Starts a server whose tools run as tasks with the id `own`, and which checks the ids in requests about tasks.
async fn server_with_tasks(era: Era) -> Fixture {
    let capabilities = match era {
        Era::Legacy => json!({ "tools": {}, "tasks": { "requests": { "tools": { "call": {} } } } }),
        Era::Modern => json!({ "tools": {}, "extensions": { TASKS_EXTENSION: {} } }),
    };
    let fixture = Fixture::with_config(era, &capabilities, |_| {}).await;
    fixture.server.answer_with(move |request| {
        let task = json!({ "taskId": "own", "status": "working", "createdAt": "x", "lastUpdatedAt": "x", "ttl": 5, "ttlMs": 5 });
        let result = match (request.method.as_str(), era) {
            ("tools/call", Era::Legacy) if request.params.get("task").is_some() => json!({ "task": task }),
            ("tools/call", Era::Modern) => {
                let mut created = task;
                created["resultType"] = "task".into();
                created
            }
            ("tools/call", _) => json!({ "content": [] }),
            _ => {
                assert_eq!(request.params["taskId"], "own", "{}", request.method);
                let mut described = task;
                described["resultType"] = "complete".into();
                described
            }
        };
        Box::pin(ready(ok(result)))
    });
    fixture
}

async fn request_task(fixture: &Fixture, exchange: &Exchange, method: Method, alias: &str) -> Result<Value, McpError> {
    let text =
        json!({ "jsonrpc": "2.0", "id": 1, "method": method.as_str(), "params": { "taskId": alias } }).to_string();
    let request = request(&text);
    handle(&fixture.bridge.tasks, exchange, method, &request, alias).await.map(|reply| value(&reply))
}

/// Calls a tool that runs only as a task, and returns the task's id for the client.
async fn create_required_task(fixture: &Fixture, client: &Exchange) -> String {
    let definition = RawValue::from_string(r#"{"execution":{"taskSupport":"required"}}"#.to_owned()).unwrap();
    let created = fixture.call_tool(client, &json!({ "name": "s__echo" }), Some(&definition)).await.unwrap();
    value(&created)["taskId"].as_str().unwrap().to_owned()
}

#[actix::test]
async fn task_alias_is_valid_for_its_principal_and_era_only() {
    for (era, revision, capabilities) in
        [(Era::Legacy, Revision::V2025_11_25, "{}"), (Era::Modern, Revision::MODERN, TASKS_CAPABILITY)]
    {
        let fixture = server_with_tasks(era).await;
        let ann = fixture.clients.exchange(revision, capabilities);
        let mut params = json!({ "name": "s__echo" });
        if era == Era::Legacy {
            params["task"] = json!({});
        }
        let created = fixture.call_result(&ann, &params).await;
        let task = if era == Era::Legacy { &created["task"] } else { &created };
        let alias = task["taskId"].as_str().unwrap();
        assert!(alias != "own" && task["status"] == "working", "{created}");
        assert_eq!(request_task(&fixture, &ann, Method::TasksGet, alias).await.unwrap()["taskId"], alias);
        let bob = fixture.clients.exchange_of("bob", revision, capabilities);
        let of_other_era = match era {
            Era::Legacy => fixture.clients.exchange(Revision::MODERN, TASKS_CAPABILITY),
            Era::Modern => fixture.clients.exchange(Revision::V2025_11_25, "{}"),
        };
        for (client, alias) in [(&bob, alias), (&of_other_era, alias), (&ann, "own")] {
            let error = request_task(&fixture, client, Method::TasksGet, alias).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidParams, "{era:?}");
        }
    }
}

#[actix::test]
async fn task_may_take_longer_than_any_call() {
    let capabilities = json!({ "tools": {}, "tasks": { "requests": { "tools": { "call": {} } } } });
    let fixture =
        Fixture::with_config(Era::Legacy, &capabilities, |config| config.timeout = Duration::from_millis(100)).await;
    let polls = AtomicUsize::new(0);
    fixture.server.answer_with(move |request| {
        let described = |status: &str| {
            json!({
                "taskId": "own", "status": status, "createdAt": "x", "lastUpdatedAt": "x", "ttl": null, "pollInterval": 1,
            })
        };
        let result = match request.method.as_str() {
            "tools/call" => {
                polls.store(0, Ordering::SeqCst);
                json!({ "task": described("working") })
            }
            "tasks/get" => described(if polls.fetch_add(1, Ordering::SeqCst) == 0 { "working" } else { "completed" }),
            _ if polls.load(Ordering::SeqCst) < 2 => return Box::pin(pending()),
            _ => json!({ "content": [{ "type": "text", "text": "late" }] }),
        };
        Box::pin(ready(ok(result)))
    });
    let client = fixture.clients.exchange(Revision::MODERN, TASKS_CAPABILITY);
    let definition = RawValue::from_string(r#"{"execution":{"taskSupport":"required"}}"#.to_owned()).unwrap();
    let created = value(&fixture.call_tool(&client, &json!({ "name": "s__echo" }), Some(&definition)).await.unwrap());
    let alias = created["taskId"].as_str().unwrap();
    let task = loop {
        let task = request_task(&fixture, &client, Method::TasksGet, alias).await.unwrap();
        if task["status"] != "working" {
            break task;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(task["result"]["content"][0]["text"], "late", "{task}");
    let client = fixture.clients.exchange(Revision::V2025_11_25, "{}");
    let created = fixture.call_result(&client, &json!({ "name": "s__echo", "task": {} })).await;
    let alias = created["task"]["taskId"].as_str().unwrap();
    let result = request_task(&fixture, &client, Method::TasksResult, alias).await.unwrap();
    assert_eq!(result["content"][0]["text"], "late");
    // Clients without tasks wait for the result.
    for (revision, capabilities) in
        [(Revision::V2024_11_05, "{}"), (Revision::V2025_06_18, r#"{"elicitation":{}}"#), (Revision::MODERN, "{}")]
    {
        let client = fixture.clients.exchange(revision, capabilities);
        let reply = fixture.call_tool(&client, &json!({ "name": "s__echo" }), Some(&definition)).await.unwrap();
        assert_eq!(value(&reply)["content"][0]["text"], "late", "{revision:?}");
    }
    assert_eq!((fixture.call_count(), cancellation_count(&fixture).await), (5, 0));
}

#[actix::test]
async fn status_of_another_task_is_ignored() {
    let fixture = server_with_tasks(Era::Legacy).await;
    fixture.server.answer_with(|request| {
        let described = |id: &str, message: &str| {
            json!({
                "taskId": id, "status": "working", "statusMessage": message, "createdAt": "x", "lastUpdatedAt": "x",
                "ttl": null,
            })
        };
        if request.method == "tools/call" {
            return Box::pin(ready(ok(json!({ "task": described("own", "begun") }))));
        }
        for (id, message) in [("own", "half done"), ("other", "secret")] {
            request.listener.handle_notification(notification("notifications/tasks/status", described(id, message)));
        }
        Box::pin(pending())
    });
    let client = fixture.clients.exchange(Revision::MODERN, TASKS_CAPABILITY);
    let alias = create_required_task(&fixture, &client).await;
    while fixture.server.request_count("tasks/result") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let task = request_task(&fixture, &client, Method::TasksGet, &alias).await.unwrap();
    assert_eq!(task["statusMessage"], "half done", "{task}");
}

/// Creates a task whose server asks a question and waits for the answer. The clock is paused.
async fn create_task_with_question(ttl: Option<u64>) -> (Fixture, Exchange, String) {
    let fixture = server_with_tasks(Era::Legacy).await;
    tokio::time::pause();
    fixture.server.answer_with(move |request| match request.method.as_str() {
        "tools/call" => {
            let task =
                json!({ "taskId": "own", "status": "working", "createdAt": "x", "lastUpdatedAt": "x", "ttl": ttl });
            Box::pin(ready(ok(json!({ "task": task }))))
        }
        _ => {
            let (question, answer) = question();
            request.listener.handle_request(question);
            Box::pin(async move { Ok(Response::Error(answer.await.unwrap().unwrap_err())) })
        }
    });
    let declared = r#"{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
    let client = fixture.clients.exchange(Revision::MODERN, declared);
    let alias = create_required_task(&fixture, &client).await;
    (fixture, client, alias)
}

#[actix::test]
async fn unanswered_question_of_task_is_declined() {
    let (fixture, client, alias) = create_task_with_question(None).await;
    let second = Duration::from_secs(1);
    for (pause, status) in [(ANSWER_TIMEOUT - second, "input_required"), (2 * second, "failed")] {
        tokio::time::sleep(pause).await;
        let task = request_task(&fixture, &client, Method::TasksGet, &alias).await.unwrap();
        assert_eq!(task["status"], status, "{task}");
    }
}

#[actix::test]
async fn wait_for_answer_ends_when_task_expires() {
    // The gateway keeps a task for a minute longer than its server.
    let (fixture, _client, _alias) = create_task_with_question(Some(5)).await;
    for (seconds, dropped) in [(59, 0), (2, 1)] {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!(fixture.server.dropped_requests.load(Ordering::SeqCst), dropped);
    }
}

#[actix::test]
async fn dropped_call_cancels_task_that_tool_requires() {
    let fixture = server_with_tasks(Era::Legacy).await;
    let client = fixture.clients.exchange(Revision::V2025_06_18, "{}");
    let definition = RawValue::from_string(r#"{"execution":{"taskSupport":"required"}}"#.to_owned()).unwrap();
    fixture.server.answer_with(|request| match request.method.as_str() {
        "tools/call" => Box::pin(ready(ok(json!({ "task": { "taskId": "own", "status": "working" } })))),
        "tasks/result" => Box::pin(pending()),
        _ => Box::pin(ready(ok(json!({})))),
    });
    let params = json!({ "name": "s__echo" });
    let call = fixture.call_tool(&client, &params, Some(&definition));
    let until_awaited = async {
        while fixture.server.request_count("tasks/result") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        reply = call => panic!("{reply:?}"),
        () = until_awaited => {}
    }
    assert_eq!(cancellation_count(&fixture).await, 1);
}

#[actix::test]
async fn failed_polls_do_not_make_a_call_not_applied() {
    let capabilities = json!({ "tools": {}, "extensions": { TASKS_EXTENSION: {} } });
    for failed_polls in [20, usize::MAX] {
        let fixture = Fixture::with_config(Era::Modern, &capabilities, |_| {}).await;
        tokio::time::pause();
        let polls = AtomicUsize::new(0);
        fixture.server.answer_with(move |request| {
            let described = |kind: &str, status: &str| {
                ok(json!({
                    "resultType": kind, "taskId": "own", "status": status, "createdAt": "x", "lastUpdatedAt": "x",
                    "ttlMs": null, "pollIntervalMs": 1, "result": { "content": [] },
                }))
            };
            let answer = match request.method.as_str() {
                "tools/call" => described("task", "working"),
                _ => match polls.fetch_add(1, Ordering::SeqCst) {
                    0 => described("complete", "working"),
                    poll if poll <= failed_polls => Err(LinkError::Status { status: 400, body: String::new() }),
                    _ => described("complete", "completed"),
                },
            };
            Box::pin(ready(answer))
        });
        let client = fixture.clients.exchange(Revision::V2025_11_25, "{}");
        let started_at = Instant::now();
        match fixture.call(&client, &json!({ "name": "s__echo" })).await {
            Ok(reply) => assert_eq!((failed_polls, &value(&reply)["content"]), (20, &json!([]))),
            Err(error) => {
                assert_eq!((failed_polls, &error.data["outcome"]), (usize::MAX, &json!("unknown")));
                assert!(started_at.elapsed() >= Duration::from_secs(60));
            }
        }
        assert_eq!(fixture.call_count(), 1);
        // Nobody waits for the task any more.
        assert_eq!(cancellation_count(&fixture).await, usize::from(failed_polls == usize::MAX));
        tokio::time::resume();
    }
}

/// Returns the number of cancellations that the server received, also of those that are on their way.
async fn cancellation_count(fixture: &Fixture) -> usize {
    tokio::time::sleep(Duration::from_millis(100)).await;
    fixture.server.request_count("tasks/cancel")
}

#[actix::test]
async fn task_is_cancelled_if_its_question_cannot_be_asked() {
    let capabilities = json!({ "tools": {}, "extensions": { TASKS_EXTENSION: {} } });
    let fixture = Fixture::with_config(Era::Modern, &capabilities, |_| {}).await;
    fixture.server.answer_with(|request| {
        let is_call = request.method == "tools/call";
        let (kind, status) = if is_call { ("task", "working") } else { ("complete", "input_required") };
        Box::pin(ready(ok(json!({
            "resultType": kind, "taskId": "own", "status": status, "createdAt": "x", "lastUpdatedAt": "x", "ttlMs": null,
            "inputRequests": { "k": { "method": "elicitation/create", "params": { "message": "m" } } },
        }))))
    });
    let client = fixture.clients.exchange(Revision::V2025_11_25, "{}");
    let error = fixture.call(&client, &json!({ "name": "s__echo" })).await.unwrap_err();
    assert_eq!((error.kind, cancellation_count(&fixture).await), (ErrorKind::NotBridgeable, 1));
}

#[actix::test]
async fn question_names_task_only_if_client_requested_it() {
    let capabilities = json!({ "tools": {}, "extensions": { TASKS_EXTENSION: {} } });
    let fixture = Fixture::with_config(Era::Modern, &capabilities, |_| {}).await;
    let is_answered = AtomicBool::new(false);
    fixture.server.answer_with(move |request| {
        if request.method != "tasks/get" {
            is_answered.store(request.method == "tasks/update", Ordering::SeqCst);
        }
        let kind = if request.method == "tools/call" { "task" } else { "complete" };
        let status = if is_answered.load(Ordering::SeqCst) { "completed" } else { "input_required" };
        Box::pin(ready(ok(json!({
            "resultType": kind, "taskId": "own", "status": status, "createdAt": "x", "lastUpdatedAt": "x", "ttlMs": null,
            "inputRequests": { "k": { "method": "elicitation/create", "params": { "message": "m", "requestedSchema": {} } } },
            "result": { "content": [] },
        }))))
    });
    for (revision, is_requested) in
        [(Revision::V2025_06_18, false), (Revision::V2025_11_25, false), (Revision::V2025_11_25, true)]
    {
        let client = fixture.clients.exchange(revision, r#"{"elicitation":{}}"#);
        let answering = async {
            let question = next_question(&client).await;
            answer(&client, &question, Ok(json!({ "action": "decline" })));
            question
        };
        let (alias, question) = if is_requested {
            let created = fixture.call_result(&client, &json!({ "name": "s__echo", "task": {} })).await;
            let alias = created["task"]["taskId"].as_str().unwrap().to_owned();
            let (result, question) =
                tokio::join!(request_task(&fixture, &client, Method::TasksResult, &alias), answering);
            assert_eq!(result.unwrap()["content"], json!([]));
            (Some(alias), question)
        } else {
            let params = json!({ "name": "s__echo" });
            let (_, question) = tokio::join!(fixture.call_result(&client, &params), answering);
            (None, question)
        };
        let named = question["params"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"].as_str();
        assert_eq!(named, alias.as_deref(), "{revision:?}: {question}");
    }
}

#[actix::test]
async fn awaited_task_is_cancelled_after_a_long_outage() {
    let capabilities = json!({ "tools": {}, "tasks": { "requests": { "tools": { "call": {} } } } });
    let fixture = Fixture::with_config(Era::Legacy, &capabilities, |_| {}).await;
    tokio::time::pause();
    fixture.server.answer_with(|request| {
        let task = json!({
            "taskId": "own", "status": "working", "createdAt": "x", "lastUpdatedAt": "x", "ttl": null, "pollInterval": 50,
        });
        Box::pin(ready(match request.method.as_str() {
            "tools/call" => ok(json!({ "task": task })),
            "tasks/result" | "tasks/get" => Err(LinkError::Status { status: 400, body: String::new() }),
            _ => ok(json!({})),
        }))
    });
    let client = fixture.clients.exchange(Revision::MODERN, TASKS_CAPABILITY);
    let definition = RawValue::from_string(r#"{"execution":{"taskSupport":"required"}}"#.to_owned()).unwrap();
    let created = value(&fixture.call_tool(&client, &json!({ "name": "s__echo" }), Some(&definition)).await.unwrap());
    let alias = created["taskId"].as_str().unwrap();
    for (seconds, status, cancellations) in [(60, "working", 0), (120, "failed", 1)] {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!(request_task(&fixture, &client, Method::TasksGet, alias).await.unwrap()["status"], status);
        assert_eq!(cancellation_count(&fixture).await, cancellations);
    }
}

#[actix::test]
async fn task_asks_only_what_configuration_allows() {
    let capabilities = json!({ "tools": {}, "extensions": { TASKS_EXTENSION: {} } });
    let fixture = Fixture::with_config(Era::Modern, &capabilities, |config| config.sampling = false).await;
    let task = json!({ "taskId": "own", "createdAt": "x", "lastUpdatedAt": "x", "ttlMs": null });
    let answer_with_task = |status: &str, members: Value| {
        let mut result = task.clone();
        result["status"] = status.into();
        result.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        fixture.server.answer_with(move |_| Box::pin(ready(ok(result.clone()))));
    };
    let declared = r#"{"elicitation":{},"sampling":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
    let client = fixture.clients.exchange(Revision::MODERN, declared);
    answer_with_task("working", json!({ "resultType": "task" }));
    let created = fixture.call_result(&client, &json!({ "name": "s__echo" })).await;
    let alias = created["taskId"].as_str().unwrap();
    for (method, is_allowed) in [("elicitation/create", true), ("sampling/createMessage", false)] {
        let requests = json!({ "k": { "method": method, "params": { "message": "m" } } });
        answer_with_task("input_required", json!({ "resultType": "complete", "inputRequests": requests }));
        let task = request_task(&fixture, &client, Method::TasksGet, alias).await;
        assert_eq!(task.is_ok_and(|task| task["inputRequests"]["k"]["method"] == method), is_allowed, "{method}");
    }
}

#[actix::test]
async fn cancellation_refused_by_upstream_follows_era_of_upstream() {
    for (era, is_acknowledged) in [(Era::Legacy, true), (Era::Modern, false)] {
        let fixture = server_with_tasks(era).await;
        let client = fixture.clients.exchange(Revision::MODERN, TASKS_CAPABILITY);
        let definition = RawValue::from_string(r#"{"execution":{"taskSupport":"required"}}"#.to_owned()).unwrap();
        let created = fixture.call_tool(&client, &json!({ "name": "s__echo" }), Some(&definition)).await.unwrap();
        let created = value(&created);
        let alias = created["taskId"].as_str().unwrap();
        let refusal = || RpcError::new(ErrorKind::InvalidParams.number(), "no such task");
        fixture.server.answer_with(move |_| Box::pin(ready(Ok(Response::Error(refusal())))));
        let answer = request_task(&fixture, &client, Method::TasksCancel, alias).await;
        // An upstream of 2025-11-25 must refuse to cancel a task that has ended; a stateless one acknowledges that.
        assert_eq!(answer.is_ok(), is_acknowledged, "{era:?}: {answer:?}");
    }
}

#[actix::test]
async fn task_request_is_refused_if_server_has_no_tasks() {
    let fixture = Fixture::new(Era::Legacy).await;
    let client = fixture.clients.exchange(Revision::V2025_11_25, "{}");
    let error = fixture.call(&client, &json!({ "name": "s__echo", "task": {} })).await.unwrap_err();
    assert_eq!((error.kind, fixture.call_count()), (ErrorKind::MethodNotFound, 0));
    // Revisions without tasks ignore `task` as an unknown member.
    let older = fixture.clients.exchange(Revision::V2025_06_18, "{}");
    fixture.call_result(&older, &json!({ "name": "s__echo", "task": {} })).await;
}

#[actix::test]
async fn task_member_of_client_without_tasks_is_ignored() {
    let fixture = server_with_tasks(Era::Legacy).await;
    for (revision, capabilities) in
        [(Revision::V2025_06_18, "{}"), (Revision::MODERN, "{}"), (Revision::MODERN, TASKS_CAPABILITY)]
    {
        let client = fixture.clients.exchange(revision, capabilities);
        let result = fixture.call_result(&client, &json!({ "name": "s__echo", "task": {} })).await;
        assert_eq!(result["content"], json!([]), "{revision:?}: {result}");
    }
}

#[actix::test]
async fn requested_task_exists_even_if_result_came_at_once() {
    for (era, capabilities) in [
        (Era::Modern, json!({ "tools": {}, "extensions": { TASKS_EXTENSION: {} } })),
        // The configured text of a server whose circuit is open is such a result, too.
        (Era::Legacy, json!({ "tools": {}, "tasks": { "requests": { "tools": { "call": {} } } } })),
    ] {
        let fixture = Fixture::with_config(era, &capabilities, |_| {}).await;
        let done = json!({ "resultType": "complete", "content": [{ "type": "text", "text": "quick" }] });
        fixture.server.answer_with(move |_| Box::pin(ready(ok(done.clone()))));
        let client = fixture.clients.exchange(Revision::V2025_11_25, "{}");
        let memory = &fixture.clients.memory;
        let used = memory.used_by("ann");
        let created = fixture.call_result(&client, &json!({ "name": "s__echo", "task": {} })).await;
        assert!(memory.used_by("ann") >= used + r#"{"content":[{"type":"text","text":"quick"}]}"#.len());
        let alias = created["task"]["taskId"].as_str().unwrap();
        assert_eq!(request_task(&fixture, &client, Method::TasksGet, alias).await.unwrap()["status"], "completed");
        let result = request_task(&fixture, &client, Method::TasksResult, alias).await.unwrap();
        assert_eq!(result["content"][0]["text"], "quick");
        assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], alias);
        assert_eq!(fixture.call_count(), 1);
    }
}

#[actix::test]
async fn stateless_client_must_declare_tasks_extension() {
    let fixture = server_with_tasks(Era::Modern).await;
    assert!(check_extension_declared(&fixture.clients.exchange(Revision::MODERN, TASKS_CAPABILITY)).is_ok());
    assert!(
        check_extension_declared(&fixture.clients.exchange(Revision::V2025_11_25, "{}")).is_ok(),
        "the handshake era needs no declaration"
    );
    let error = check_extension_declared(&fixture.clients.exchange(Revision::MODERN, "{}")).unwrap_err();
    assert_eq!(error.data["requiredCapabilities"], json!({ "extensions": { TASKS_EXTENSION: {} } }));
    assert_eq!(requested_task_id(r#"{"taskId":7}"#).unwrap_err().data["member"], "params.taskId");
}

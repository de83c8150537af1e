//! The capabilities of requests about tasks.

use super::*;

const CAPABILITIES: &str = r#"{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

/// Requests the task for a client that declares elicitation, which gets the question, and for one that does not.
async fn assert_question_needs_declaration(fixture: &Fixture, alias: &str) {
    let client = fixture.clients.exchange(Revision::MODERN, CAPABILITIES);
    let task = request_task(fixture, &client, Method::TasksGet, alias).await.unwrap();
    assert_eq!(task["status"], "input_required", "{task}");
    let client = fixture.clients.exchange(Revision::MODERN, TASKS_CAPABILITY);
    let error = request_task(fixture, &client, Method::TasksGet, alias).await.unwrap_err();
    let required = json!({ "elicitation": { "form": {} } });
    assert_eq!((error.kind, &error.data["requiredCapabilities"]), (ErrorKind::MissingCapability, &required));
}

#[actix::test]
async fn question_of_handshake_task_needs_declaration() {
    let (fixture, _client, alias) = create_task_with_question(None).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_question_needs_declaration(&fixture, &alias).await;
}

#[actix::test]
async fn question_of_stateless_task_needs_declaration() {
    let capabilities = json!({ "tools": {}, "extensions": { TASKS_EXTENSION: {} } });
    let fixture = Fixture::with_config(Era::Modern, &capabilities, |_| {}).await;
    fixture.server.answer_with(|request| {
        let declared = &request.params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        let is_call = request.method == "tools/call";
        assert!(is_call || declared["extensions"][TASKS_EXTENSION].is_object(), "{declared}");
        let (kind, status) = if is_call { ("task", "working") } else { ("complete", "input_required") };
        Box::pin(ready(ok(json!({
            "resultType": kind, "taskId": "own", "status": status, "createdAt": "x", "lastUpdatedAt": "x", "ttlMs": null,
            "inputRequests": { "k": { "method": "elicitation/create", "params": { "message": "m" } } },
        }))))
    });
    let client = fixture.clients.exchange(Revision::MODERN, CAPABILITIES);
    let created = fixture.call_result(&client, &json!({ "name": "s__echo" })).await;
    assert_question_needs_declaration(&fixture, created["taskId"].as_str().unwrap()).await;
}

#[actix::test]
async fn listener_gets_states_after_a_refused_question() {
    let capabilities = json!({ "tools": {}, "extensions": { TASKS_EXTENSION: {} } });
    let fixture = Fixture::with_config(Era::Modern, &capabilities, |_| {}).await;
    let poll_count = AtomicUsize::new(0);
    fixture.server.answer_with(move |request| {
        let state = |kind: &str, status: &str| {
            ok(json!({
                "resultType": kind, "taskId": "own", "status": status, "createdAt": "x", "lastUpdatedAt": "x", "ttlMs": null,
                "result": { "content": [] },
            }))
        };
        let answer = match (request.method.as_str(), poll_count.load(Ordering::SeqCst)) {
            ("tools/call", _) => state("task", "working"),
            // The listener does not declare what the question of the task needs.
            (_, 0) => Ok(Response::Error(RpcError::new(-32021, "declare elicitation"))),
            _ => state("complete", "completed"),
        };
        if request.method == "tasks/get" {
            poll_count.fetch_add(1, Ordering::SeqCst);
        }
        Box::pin(ready(answer))
    });
    let client = fixture.clients.exchange(Revision::MODERN, TASKS_CAPABILITY);
    let created = fixture.call_result(&client, &json!({ "name": "s__echo" })).await;
    tokio::time::pause();
    let alias = created["taskId"].as_str().unwrap();
    let tasks = modern::find_observable(&fixture.bridge.tasks, &client, &[alias.into()]).unwrap();
    let (sender, mut states) = tokio::sync::mpsc::unbounded_channel();
    let sink = |state: bytes::Bytes| sender.send(state).is_ok();
    let listener = modern::TaskListener { exchange: &client, subscription: "1", sink: &sink };
    let state = tokio::select! {
        () = modern::watch(listener, tasks) => None,
        state = states.recv() => state,
        () = tokio::time::sleep(Duration::from_secs(600)) => None,
    };
    assert!(String::from_utf8_lossy(&state.unwrap()).contains("completed"));
}

//! Tasks of a child process that exits while it runs them.

use super::*;
use countersign_upstream::LinkKind;

/// Starts a child whose tool runs as a task. It exits when the result is requested.
async fn exiting_child() -> Fixture {
    let capabilities = json!({ "tools": {}, "tasks": { "requests": { "tools": { "call": {} } } } });
    let fixture = Fixture::with_link_kind(Era::Legacy, LinkKind::SingleStream, &capabilities, |_| {}).await;
    fixture.server.answer_with(|request| {
        if request.method == "tools/call" {
            let task =
                json!({ "taskId": "own", "status": "working", "createdAt": "x", "lastUpdatedAt": "x", "ttl": null });
            return Box::pin(ready(ok(json!({ "task": task }))));
        }
        request.link.closed.cancel();
        Box::pin(pending())
    });
    fixture
}

#[actix::test]
async fn request_about_task_of_ended_child_has_unknown_outcome() {
    let fixture = exiting_child().await;
    let client = fixture.clients.exchange(Revision::V2025_11_25, r#"{"elicitation":{}}"#);
    let created = fixture.call_result(&client, &json!({ "name": "s__echo", "task": {} })).await;
    let alias = created["task"]["taskId"].as_str().unwrap();
    for method in [Method::TasksResult, Method::TasksResult, Method::TasksGet, Method::TasksCancel] {
        let error = request_task(&fixture, &client, method, alias).await.unwrap_err();
        let expected = (ErrorKind::UpstreamUnavailable, &json!("unknown"));
        assert_eq!((error.kind, &error.data["outcome"]), expected, "{method:?}");
    }
    assert_eq!((fixture.server.request_count("tasks/result"), fixture.server.request_count("tasks/get")), (1, 0));
}

#[actix::test]
async fn awaited_task_of_ended_child_fails_at_once() {
    let fixture = exiting_child().await;
    tokio::time::pause();
    let declared = r#"{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
    let client = fixture.clients.exchange(Revision::MODERN, declared);
    let alias = create_required_task(&fixture, &client).await;
    // A server that does not answer is polled for longer.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let task = request_task(&fixture, &client, Method::TasksGet, &alias).await.unwrap();
    assert_eq!(task["status"], "failed", "{task}");
    assert_eq!((fixture.server.request_count("tasks/result"), fixture.server.request_count("tasks/get")), (1, 0));
}

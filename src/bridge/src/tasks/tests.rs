//! Tasks across and within eras, against a server that the tests play.

use std::future::ready;

use serde_json::{Value, json};

use super::*;
use crate::testing::{Fixture, value};
use countersign_exchange::testing::request;
use countersign_upstream::testing::fake::ok;

const DECLARES: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

/// A server of that era whose tools run as tasks, each of them `own`, and which tells the ids that it is asked for.
async fn runs_tasks(era: Era) -> Fixture {
    let capabilities = match era {
        Era::Legacy => json!({ "tools": {}, "tasks": { "requests": { "tools": { "call": {} } } } }),
        Era::Modern => json!({ "tools": {}, "extensions": { EXTENSION: {} } }),
    };
    let fixture = Fixture::with(era, &capabilities, |_| {}).await;
    fixture.server.answers(move |asked| {
        let task = json!({ "taskId": "own", "status": "working", "createdAt": "x", "lastUpdatedAt": "x", "ttl": 5, "ttlMs": 5 });
        let result = match (asked.method.as_str(), era) {
            ("tools/call", Era::Legacy) if asked.params.get("task").is_some() => json!({ "task": task }),
            ("tools/call", Era::Modern) => {
                let mut created = task;
                created["resultType"] = "task".into();
                created
            }
            ("tools/call", _) => json!({ "content": [] }),
            _ => {
                assert_eq!(asked.params["taskId"], "own", "{}", asked.method);
                let mut described = task;
                described["resultType"] = "complete".into();
                described
            }
        };
        Box::pin(ready(ok(result)))
    });
    fixture
}

async fn about(fixture: &Fixture, exchange: &Exchange, method: Method, alias: &str) -> Result<Value, McpError> {
    let text =
        json!({ "jsonrpc": "2.0", "id": 1, "method": method.as_str(), "params": { "taskId": alias } }).to_string();
    let request = request(&text);
    handle(&fixture.bridge.tasks, exchange, method, &request, alias).await.map(|reply| value(&reply))
}

#[actix::test]
async fn a_task_goes_by_another_name_that_is_good_for_its_principal_and_era_only() {
    for (era, revision, capabilities) in
        [(Era::Legacy, Revision::V2025_11_25, "{}"), (Era::Modern, Revision::MODERN, DECLARES)]
    {
        let fixture = runs_tasks(era).await;
        let ann = fixture.bench.exchange(revision, capabilities);
        let mut params = json!({ "name": "s__echo" });
        if era == Era::Legacy {
            params["task"] = json!({});
        }
        let created = fixture.result(&ann, &params).await;
        let task = if era == Era::Legacy { &created["task"] } else { &created };
        let alias = task["taskId"].as_str().unwrap();
        assert!(alias != "own" && task["status"] == "working", "{created}");
        assert_eq!(about(&fixture, &ann, Method::TasksGet, alias).await.unwrap()["taskId"], alias);
        let bob = fixture.bench.exchange_of("bob", revision, capabilities);
        let of_other_era = match era {
            Era::Legacy => fixture.bench.exchange(Revision::MODERN, DECLARES),
            Era::Modern => fixture.bench.exchange(Revision::V2025_11_25, "{}"),
        };
        for (client, alias) in [(&bob, alias), (&of_other_era, alias), (&ann, "own")] {
            let error = about(&fixture, client, Method::TasksGet, alias).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidParams, "{era:?}");
        }
    }
}

#[actix::test]
async fn a_task_is_not_promised_where_there_is_none() {
    let fixture = Fixture::new(Era::Legacy).await;
    let client = fixture.bench.exchange(Revision::V2025_11_25, "{}");
    let error = fixture.call(&client, &json!({ "name": "s__echo", "task": {} })).await.unwrap_err();
    assert_eq!((error.kind, fixture.calls()), (ErrorKind::MethodNotFound, 0));
    // In a revision that has no tasks it is a member that nobody knows.
    let older = fixture.bench.exchange(Revision::V2025_06_18, "{}");
    fixture.result(&older, &json!({ "name": "s__echo", "task": {} })).await;
}

#[actix::test]
async fn a_task_that_came_too_quickly_to_be_one_is_one_all_the_same() {
    let capabilities = json!({ "tools": {}, "extensions": { EXTENSION: {} } });
    let fixture = Fixture::with(Era::Modern, &capabilities, |_| {}).await;
    let done = json!({ "resultType": "complete", "content": [{ "type": "text", "text": "quick" }] });
    fixture.server.answers(move |_| Box::pin(ready(ok(done.clone()))));
    let client = fixture.bench.exchange(Revision::V2025_11_25, "{}");
    let created = fixture.result(&client, &json!({ "name": "s__echo", "task": {} })).await;
    let alias = created["task"]["taskId"].as_str().unwrap();
    assert_eq!(about(&fixture, &client, Method::TasksGet, alias).await.unwrap()["status"], "completed");
    let result = about(&fixture, &client, Method::TasksResult, alias).await.unwrap();
    assert_eq!(result["content"][0]["text"], "quick");
    assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], alias);
    assert_eq!(fixture.calls(), 1);
}

#[actix::test]
async fn a_stateless_client_speaks_of_tasks_if_it_declares_them() {
    let fixture = runs_tasks(Era::Modern).await;
    assert!(declared(&fixture.bench.exchange(Revision::MODERN, DECLARES)).is_ok());
    assert!(declared(&fixture.bench.exchange(Revision::V2025_11_25, "{}")).is_ok(), "another era says it otherwise");
    let error = declared(&fixture.bench.exchange(Revision::MODERN, "{}")).unwrap_err();
    assert_eq!(error.data["requiredCapabilities"], json!({ "extensions": { EXTENSION: {} } }));
    assert_eq!(id(r#"{"taskId":7}"#).unwrap_err().data["member"], "params.taskId");
}

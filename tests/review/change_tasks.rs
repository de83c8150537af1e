//! Tests of changes as tasks: of the 2026-07-28 extension and of 2025-11-25, over every transport, on any connection of
//! the same principal, after a restart, and for nobody else.

use serde_json::{Value, json};
use support::{
    Gateway, Options, eventually,
    mcp::{self, MODERN},
    stdio::Agent,
    ws::Ws,
};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";
const LEGACY: &str = "2025-11-25";

/// Returns `params` of a client that declares the extension, with more members.
fn with_extension(mut params: Value, more: &Value) -> Value {
    let mut capabilities = json!({ "extensions": { EXTENSION: {} } });
    for (key, value) in more.as_object().into_iter().flatten() {
        capabilities[key] = value.clone();
    }
    params["_meta"] = json!({ "io.modelcontextprotocol/clientCapabilities": capabilities });
    params
}

fn modern(gateway: &Gateway, method: &str, params: Value) -> Value {
    gateway.modern(7, method, with_extension(params, &json!({}))).json()
}

fn story(gateway: &Gateway, title: &str) -> Value {
    json!({ "name": "create_issue", "arguments": { "projectId": gateway.project(), "title": title, "type": "Story" } })
}

/// Creates a task of the extension, and returns its id.
#[track_caller]
fn create_task(gateway: &Gateway, title: &str) -> String {
    let answer = modern(gateway, "tools/call", story(gateway, title));
    let task = &answer["result"];
    assert_eq!((&task["resultType"], &task["status"]), (&json!("task"), &json!("working")), "{answer}");
    for absent in ["task", "result", "error", "inputRequests", "ttl", "pollInterval"] {
        assert!(task.get(absent).is_none(), "{absent}: {task}");
    }
    assert!(task["ttlMs"].is_null() && task["pollIntervalMs"].is_u64(), "{task}");
    assert!(task["createdAt"].is_string() && task["lastUpdatedAt"].is_string(), "{task}");
    task["taskId"].as_str().unwrap().to_owned()
}

#[track_caller]
fn status(gateway: &Gateway, id: &str) -> (String, Value) {
    let answer = modern(gateway, "tasks/get", json!({ "taskId": id }));
    let task = answer["result"].clone();
    assert_eq!(task["resultType"], "complete", "{answer}");
    assert_eq!(task["taskId"], id);
    (task["status"].as_str().unwrap().to_owned(), task)
}

#[test]
fn stateless_client_with_extension_gets_a_task() {
    let gateway = Gateway::start();
    let capabilities = gateway.modern(1, "server/discover", json!({})).json()["result"]["capabilities"].clone();
    assert_eq!(capabilities["extensions"][EXTENSION], json!({}), "{capabilities}");
    assert!(capabilities.get("tasks").is_none());

    let applied = create_task(&gateway, "Apply me");
    assert_eq!(status(&gateway, &applied).0, "working", "at once");
    gateway.decide(&applied, "approve");
    gateway.wait_for_state(&applied, "applied");
    let (state, task) = status(&gateway, &applied);
    assert_eq!(state, "completed", "{task}");
    assert_eq!(task["result"]["resultType"], "complete");
    assert_eq!(task["result"]["structuredContent"]["issue"]["title"], "Apply me", "the tool's own result: {task}");
    assert!(task.get("pollIntervalMs").is_none() && task["result"].get("isError").is_none(), "{task}");
    let days = task["ttlMs"].as_u64().unwrap() / 86_400_000;
    assert_eq!(days, 90, "what changes.retention.arguments says, once it is over: {task}");

    let rejected = create_task(&gateway, "Reject me");
    let (code, _) = gateway.try_decide(&rejected, "reject", "wrong project, use OPS");
    assert_eq!(code, 200);
    let (state, task) = status(&gateway, &rejected);
    assert_eq!((state.as_str(), &task["result"]["isError"]), ("completed", &json!(true)), "{task}");
    let text = task["result"]["content"][0]["text"].as_str().unwrap();
    for part in ["alice", "wrong project, use OPS", "Do not propose the same change again unchanged"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    let withdrawn = create_task(&gateway, "Cancel me");
    let answer = modern(&gateway, "tasks/cancel", json!({ "taskId": withdrawn }));
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert!(answer["result"].get("status").is_none(), "an acknowledgement only: {answer}");
    assert_eq!(status(&gateway, &withdrawn).0, "cancelled");
    for over in [&applied, &withdrawn] {
        let second_answer = modern(&gateway, "tasks/cancel", json!({ "taskId": over }));
        assert_eq!(second_answer["result"]["resultType"], "complete", "acknowledged: {second_answer}");
    }
    assert_eq!(gateway.change(&applied)["state"], "applied");
    assert_eq!(gateway.issues_titled("Cancel me") + gateway.issues_titled("Reject me"), 0);

    let update = modern(&gateway, "tasks/update", json!({ "taskId": applied, "inputResponses": { "never": {} } }));
    assert_eq!(update["result"]["resultType"], "complete", "{update}");
    let update = modern(&gateway, "tasks/update", json!({ "taskId": applied, "inputResponses": [] }));
    assert_eq!(update["error"]["code"], -32602, "{update}");
}

#[test]
fn agent_learns_of_a_reviewers_edit() {
    let gateway = Gateway::start();
    let id = create_task(&gateway, "As proposed");
    let mut change = gateway.change(&id);
    change["arguments"]["title"] = "As corrected".into();
    let body = json!({ "arguments": change["arguments"], "version": change["version"], "comment": "clearer so" });
    let (code, edited) = gateway.api("POST", &format!("/api/changes/{id}/edit"), Some(&body));
    assert_eq!((code, &edited["state"]), (200, &json!("pending")), "{edited}");
    let result = gateway.tool("get_change", json!({ "changeId": id }));
    assert_eq!(result["status"], "pending", "{result}");
    gateway.decide(&id, "approve");
    gateway.wait_for_state(&id, "applied");
    let (state, task) = status(&gateway, &id);
    assert_eq!(state, "completed", "{task}");
    assert_eq!(task["result"]["structuredContent"]["issue"]["title"], "As corrected", "{task}");
    let blocks = task["result"]["content"].as_array().unwrap();
    let note = blocks.last().unwrap()["text"].as_str().unwrap();
    assert!(blocks.len() > 1, "the note comes after the tool's own text: {blocks:?}");
    for part in ["The reviewer alice changed the arguments", "clearer so", "What ran: {", "As corrected"] {
        assert!(note.contains(part), "{part}: {note}");
    }
    let text = gateway.modern(3, "tools/call", json!({ "name": "get_change", "arguments": { "changeId": id } })).json();
    let text = text["result"]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(text.contains("The reviewer alice changed the arguments") && text.contains("What ran"), "{text}");
}

#[test]
fn client_without_extension_gets_no_task() {
    let gateway = Gateway::start();
    let answer = gateway.modern(1, "tools/call", story(&gateway, "Plain")).json();
    let id = answer["result"]["structuredContent"]["changeId"].as_str().unwrap().to_owned();
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let answer = gateway.modern(2, method, json!({ "taskId": id, "inputResponses": {} }));
        assert_eq!((answer.status, answer.code()), (400, Some(-32021)), "{method}: {}", answer.text());
    }
    // The same change is a task for a client that declares the extension.
    assert_eq!(status(&gateway, &id).0, "working");
    for id in ["chg_000000000000000000000000", "nonsense", ""] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let answer = modern(&gateway, method, json!({ "taskId": id, "inputResponses": {} }));
            assert_eq!(answer["error"]["code"], -32602, "{method} {id}: {answer}");
        }
    }
}

#[test]
fn tasks_belong_to_a_principal_and_survive_restart() {
    let config = "auth:\n  mode: keys\n";
    let options = Options { config: Some(config), ..Options::default() };
    let gateway = Gateway::with_options(&options);
    let (mine, theirs) = (gateway.create_key("agent", "mine"), gateway.create_key("agent", "theirs"));
    let ask = |gateway: &Gateway, key: &str, method: &str, params: Value| {
        let params = mcp::with_meta(with_extension(params, &json!({})));
        let bearer = format!("Bearer {key}");
        let mut headers = mcp::modern_headers(method, &params);
        headers.push(("Authorization".into(), bearer));
        let body = mcp::request(1, method, params).to_string();
        gateway.request("POST", "/mcp", &mcp::borrow_headers(&headers), body.as_bytes()).json()
    };
    let project = ask(&gateway, &mine, "tools/call", json!({ "name": "list_projects", "arguments": {} }));
    let project = project["result"]["structuredContent"]["projects"][0]["id"].clone();
    let call =
        json!({ "name": "create_issue", "arguments": { "projectId": project, "title": "Mine", "type": "Story" } });
    let id = ask(&gateway, &mine, "tools/call", call)["result"]["taskId"].as_str().unwrap().to_owned();
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let answer = ask(&gateway, &theirs, method, json!({ "taskId": id, "inputResponses": {} }));
        assert_eq!(answer["error"]["code"], -32602, "{method}: {answer}");
        assert_eq!(answer["error"]["message"], "Task not found", "as for one that does not exist");
    }
    let home = gateway.kill();
    let gateway = Gateway::on_home(home, &options);
    let answer = ask(&gateway, &mine, "tasks/get", json!({ "taskId": id }));
    assert_eq!(answer["result"]["status"], "working", "{answer}");
    gateway.decide(&id, "approve");
    let task = eventually("the task is completed", || {
        let answer = ask(&gateway, &mine, "tasks/get", json!({ "taskId": id }));
        (answer["result"]["status"] == "completed").then(|| answer["result"].clone())
    });
    assert_eq!(task["result"]["structuredContent"]["issue"]["title"], "Mine", "{task}");
}

#[test]
fn listeners_hear_of_each_transition() {
    let gateway = Gateway::start();
    let (one, other) = (create_task(&gateway, "One"), create_task(&gateway, "Other"));
    let params = json!({ "notifications": { "taskIds": [one, one, "chg_unknown", "unknown"] } });
    let mut stream = gateway.modern_conn(31, "subscriptions/listen", with_extension(params.clone(), &json!({})));
    assert_eq!(stream.head().status, 200);
    let acknowledged = stream.expect_event().json();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(acknowledged["params"]["notifications"]["taskIds"], json!([one]), "{acknowledged}");
    let mut next = || {
        let notification = stream.expect_event().json();
        assert_eq!(notification["method"], "notifications/tasks", "{notification}");
        assert_eq!(notification["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 31, "{notification}");
        assert_eq!(notification["params"]["taskId"], one, "nothing of the other one");
        notification["params"].clone()
    };
    assert_eq!(next()["status"], "working");
    gateway.decide(&other, "approve");
    gateway.wait_for_state(&other, "applied");
    gateway.decide(&one, "approve");
    let last = loop {
        let notification = next();
        if notification["status"] != "working" {
            break notification;
        }
    };
    assert_eq!(last["status"], "completed");
    assert_eq!(last["result"]["structuredContent"]["issue"]["title"], "One", "as tasks/get has it: {last}");
    let (_, mut polled) = status(&gateway, &one);
    // The gateway has read the issue back since, which updates the change.
    let times = ["lastUpdatedAt", "ttlMs"].map(|key| (key, &last[key]));
    for (key, value) in [("_meta", &last["_meta"]), ("resultType", &Value::Null)].into_iter().chain(times) {
        match value {
            Value::Null => drop(polled.as_object_mut().unwrap().remove(key)),
            value => polled[key] = value.clone(),
        }
    }
    assert_eq!(last, polled);

    let refused = gateway.modern(32, "subscriptions/listen", params);
    assert_eq!((refused.status, refused.code()), (400, Some(-32021)), "{}", refused.text());
}

#[test]
fn legacy_client_gets_a_task_and_its_result() {
    let gateway = Gateway::start();
    let session = gateway.session(LEGACY);
    let tools = session.call(1, "tools/list", json!({}))["result"]["tools"].clone();
    let support = |name: &str| {
        tools.as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap()["execution"]["taskSupport"].clone()
    };
    assert_eq!((support("create_issue"), support("list_projects")), (json!("optional"), Value::Null));
    let older = gateway.session("2025-06-18");
    assert!(!older.call(1, "tools/list", json!({})).to_string().contains("taskSupport"));

    let mut call = story(&gateway, "Legacy");
    call["task"] = json!({ "ttl": 60_000 });
    let answer = session.call(2, "tools/call", call.clone());
    let task = &answer["result"]["task"];
    assert_eq!((&task["status"], &task["ttl"]), (&json!("working"), &Value::Null), "{answer}");
    assert!(task["pollInterval"].is_u64() && task.get("ttlMs").is_none(), "{task}");
    let immediate_response =
        answer["result"]["_meta"]["io.modelcontextprotocol/model-immediate-response"].as_str().unwrap();
    let id = task["taskId"].as_str().unwrap().to_owned();
    assert!(immediate_response.contains(&id) && immediate_response.contains("pending"), "{immediate_response}");

    // Waits for the decision.
    let mut waiting = session.start(&mcp::request(3, "tasks/result", json!({ "taskId": id })));
    assert_eq!(session.call(4, "tasks/get", json!({ "taskId": id }))["result"]["status"], "working");
    gateway.decide(&id, "approve");
    let result = waiting.response().json()["result"].clone();
    assert_eq!(result["structuredContent"]["issue"]["title"], "Legacy", "{result}");
    assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], id, "{result}");
    assert_eq!(session.call(5, "tasks/get", json!({ "taskId": id }))["result"]["status"], "completed");
    let refused = session.call(6, "tasks/cancel", json!({ "taskId": id }));
    assert_eq!(refused["error"]["code"], -32602, "{refused}");

    call["arguments"]["title"] = "Rejected".into();
    let id = session.call(7, "tools/call", call.clone())["result"]["task"]["taskId"].as_str().unwrap().to_owned();
    assert_eq!(gateway.try_decide(&id, "reject", "not now").0, 200);
    let task = session.call(8, "tasks/get", json!({ "taskId": id }))["result"].clone();
    assert_eq!(task["status"], "failed", "{task}");
    assert!(task["statusMessage"].as_str().unwrap().contains("rejected by alice: “not now”"), "{task}");
    let result = session.call(9, "tasks/result", json!({ "taskId": id }))["result"].clone();
    assert_eq!(result["isError"], true);
    assert!(result["content"][0]["text"].as_str().unwrap().contains("not now"), "{result}");

    call["arguments"]["title"] = "Cancelled".into();
    let id = session.call(10, "tools/call", call)["result"]["task"]["taskId"].as_str().unwrap().to_owned();
    let task = session.call(11, "tasks/cancel", json!({ "taskId": id }))["result"].clone();
    assert_eq!((&task["taskId"], &task["status"]), (&json!(id), &json!("cancelled")));
    assert_eq!(gateway.change(&id)["state"], "withdrawn");
    assert_eq!(session.call(12, "tasks/result", json!({ "taskId": id }))["error"]["data"]["code"], "CANCELLED");
    let unknown = session.call(13, "tasks/get", json!({ "taskId": "chg_x" }));
    assert_eq!(unknown["error"]["code"], -32602);

    // On another connection, in another session.
    let another = gateway.session(LEGACY);
    assert_eq!(another.call(1, "tasks/get", json!({ "taskId": id }))["result"]["status"], "cancelled");
    let listed = another.call(2, "tasks/list", json!({}))["result"]["tasks"].clone();
    let states: Vec<_> = listed.as_array().unwrap().iter().map(|task| task["status"].as_str().unwrap()).collect();
    assert_eq!(states, ["cancelled", "failed", "completed"], "newest first");
    assert_eq!(older.call(3, "tasks/list", json!({}))["error"]["code"], -32601, "no such method then");
    let plain = session.call(14, "tools/call", json!({ "name": "list_projects", "arguments": {}, "task": {} }));
    assert_eq!(plain["error"]["code"], -32601, "a tool that never waits: {plain}");
}

#[test]
fn task_lists_have_pages() {
    let gateway = Gateway::start();
    let ids: Vec<String> = (0..53).map(|n| gateway.propose(&format!("Page {n}"))).collect();
    let session = gateway.session(LEGACY);
    let first = session.call(1, "tasks/list", json!({}))["result"].clone();
    let rest = session.call(2, "tasks/list", json!({ "cursor": first["nextCursor"] }))["result"].clone();
    assert!(rest.get("nextCursor").is_none(), "{rest}");
    let mut listed: Vec<_> = [&first, &rest]
        .iter()
        .flat_map(|page| page["tasks"].as_array().unwrap())
        .map(|task| task["taskId"].as_str().unwrap().to_owned())
        .collect();
    listed.reverse();
    assert_eq!(listed, ids);
    for cursor in ["nonsense", "changes", "changesfoo", "changes-", "changes-x", "after-x"] {
        let answer = session.call(3, "tasks/list", json!({ "cursor": cursor }));
        assert_eq!(answer["error"]["code"], -32602, "{cursor}: {answer}");
    }
    // The largest possible cursor is valid, too.
    let answer = session.call(4, "tasks/list", json!({ "cursor": "after-18446744073709551615" }));
    assert_eq!(answer["result"]["tasks"], first["tasks"], "{answer}");
}

#[test]
fn allowed_call_can_run_as_a_task() {
    let config = "policy:\n  rules:\n    - {name: drafts, tools: [create_issue], when: 'arguments.title == \"Draft\"', then: allow}\n";
    let gateway = Gateway::with_options(&Options { config: Some(config), ..Options::default() });
    let session = gateway.session(LEGACY);
    let mut call = story(&gateway, "Draft");
    call["task"] = json!({});
    let answer = session.call(1, "tools/call", call.clone());
    let id = answer["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    assert!(!id.starts_with("chg_"));
    let result = session.call(2, "tasks/result", json!({ "taskId": id }))["result"].clone();
    assert_eq!(result["structuredContent"]["issue"]["title"], "Draft", "{result}");
    assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], id);
    assert_eq!(session.call(3, "tasks/get", json!({ "taskId": id }))["result"]["status"], "completed");
    assert_eq!(session.call(4, "tasks/cancel", json!({ "taskId": id }))["error"]["code"], -32602);
    assert_eq!(gateway.issues_titled("Draft"), 1, "once");
    call["arguments"]["title"] = "No draft".into();
    let reviewed = session.call(5, "tools/call", call.clone());
    assert!(reviewed["result"]["task"]["taskId"].as_str().unwrap().starts_with("chg_"), "{reviewed}");
    let listed = session.call(6, "tasks/list", json!({}))["result"]["tasks"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    // Bad arguments are reported before there is a task.
    call["arguments"] = json!({});
    let refused = session.call(7, "tools/call", call);
    assert_eq!(refused["result"]["isError"], true, "{refused}");
}

#[test]
fn tasks_work_over_websocket_and_stdio() {
    let gateway = Gateway::start();
    let mut ws = Ws::open(&gateway);
    let call = mcp::with_meta(with_extension(story(&gateway, "WebSocket"), &json!({})));
    let task = ws.call(1, "tools/call", call)["result"].clone();
    assert_eq!(task["resultType"], "task", "{task}");
    let id = task["taskId"].as_str().unwrap().to_owned();
    let get = mcp::with_meta(with_extension(json!({ "taskId": id }), &json!({})));
    ws.send_json(&mcp::request(
        2,
        "subscriptions/listen",
        mcp::with_meta(with_extension(json!({ "notifications": { "taskIds": [id] } }), &json!({}))),
    ));
    assert_eq!(ws.message()["method"], "notifications/subscriptions/acknowledged");
    gateway.decide(&id, "reject");
    let notification = loop {
        let notification = ws.message();
        if notification["params"]["status"] == "completed" {
            break notification;
        }
    };
    assert_eq!(notification["method"], "notifications/tasks");
    assert_eq!(ws.call(3, "tasks/get", get)["result"]["result"]["isError"], true);

    let mut ws = Ws::open(&gateway);
    ws.initialize(LEGACY);
    let mut call = story(&gateway, "WebSocket of 2025");
    call["task"] = json!({});
    let id = ws.call(1, "tools/call", call)["result"]["task"]["taskId"].as_str().unwrap().to_owned();
    ws.send_json(&mcp::request(2, "tasks/result", json!({ "taskId": id })));
    gateway.decide(&id, "approve");
    let (mut notification, mut answer) = (Value::Null, Value::Null);
    while notification["params"]["status"] != "completed" || answer.is_null() {
        let message = ws.message();
        if message["id"] == 2 {
            answer = message;
        } else {
            assert_eq!(
                (&message["method"], &message["params"]["taskId"]),
                (&json!("notifications/tasks/status"), &json!(id))
            );
            notification = message;
        }
    }
    assert_eq!(answer["result"]["structuredContent"]["issue"]["title"], "WebSocket of 2025", "{answer}");
    drop(gateway);

    let home = tempfile::tempdir().unwrap();
    let mut stdio = Agent::start(home.path(), &[], &[]);
    let listed = mcp::with_meta(with_extension(json!({ "name": "list_projects", "arguments": {} }), &json!({})));
    let project = stdio.call(1, "tools/call", listed)["result"]["structuredContent"]["projects"][0]["id"].clone();
    let call =
        json!({ "name": "create_issue", "arguments": { "projectId": project, "title": "Stdio", "type": "Story" } });
    let task = stdio.call(2, "tools/call", mcp::with_meta(with_extension(call, &json!({}))))["result"].clone();
    assert_eq!(task["resultType"], "task", "{task}");
    let cancel = mcp::with_meta(with_extension(json!({ "taskId": task["taskId"] }), &json!({})));
    assert_eq!(stdio.call(3, "tasks/cancel", cancel.clone())["result"]["resultType"], "complete");
    assert_eq!(stdio.call(4, "tasks/get", cancel)["result"]["status"], "cancelled");
    assert_eq!(MODERN, "2026-07-28");
}

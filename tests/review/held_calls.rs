//! Tests of calls that stay open until a decision (`on_review: hold`), their repeats, and pages that clients are asked
//! to open: over every transport, in both eras.

use serde_json::{Value, json};
use support::{
    Gateway, Options, eventually,
    mcp::{self, borrow_headers, modern_headers, with_meta},
    stdio::Agent,
    ws::Ws,
};

const LEGACY: &str = "2025-11-25";

/// Held far longer than any test waits, except for titles that end at once.
const CONFIG: &str = r#"
policy:
  rules:
    - {name: short, tools: [create_issue], when: 'arguments.title.startsWith("Short")', then: review, on_review: hold, hold_for: 1s}
    - {name: page, tools: [create_issue], when: 'arguments.title.startsWith("Page")', then: review, open_page: true}
    - {name: page-held, tools: [create_issue], when: 'arguments.title.startsWith("Held page")', then: review, on_review: hold, hold_for: 10m, open_page: true}
    - {name: held, tools: [create_issue], then: review, on_review: hold, hold_for: 10m}
"#;

fn gateway() -> Gateway {
    Gateway::with_options(&Options { config: Some(CONFIG), ..Options::default() })
}

fn story(project: &str, title: &str) -> Value {
    json!({ "name": "create_issue", "arguments": { "projectId": project, "title": title, "type": "Story" } })
}

fn with_token(mut call: Value) -> Value {
    call["_meta"] = json!({ "progressToken": "t" });
    call
}

fn with_key(mut call: Value) -> Value {
    call["_meta"]["dev.countersign/idempotencyKey"] = "k".into();
    call
}

/// Returns the reviewer's list of changes with that title.
fn changes(gateway: &Gateway, title: &str) -> Vec<Value> {
    let (_, page) = gateway.api("GET", "/api/changes?limit=200", None);
    let all = page["changes"].as_array().cloned().unwrap_or_default();
    all.into_iter().filter(|change| change["arguments"]["title"] == title).collect()
}

/// Waits for the one change with that title.
#[track_caller]
fn change(gateway: &Gateway, title: &str) -> String {
    let found = eventually("the change is there", || Some(changes(gateway, title)).filter(|found| !found.is_empty()));
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]["id"].as_str().unwrap().to_owned()
}

#[track_caller]
fn assert_rejected(result: &Value) {
    assert_eq!(result["isError"], true, "{result}");
    let text = result["content"][0]["text"].as_str().unwrap();
    for part in ["rejected", "alice", "too wide a net", "Do not propose the same change again unchanged"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(result["structuredContent"]["status"], "rejected", "{result}");
}

#[test]
fn held_http_call_ends_with_the_decision() {
    let gateway = gateway();
    let project = gateway.project();
    let mut stream = gateway.modern_conn(1, "tools/call", with_token(story(&project, "Modern")));
    let head = stream.head();
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    let progress = stream.expect_event().json();
    assert_eq!(progress["method"], "notifications/progress", "{progress}");
    assert!(progress["params"]["message"].as_str().unwrap().contains("waits for a person"), "{progress}");
    gateway.decide(&change(&gateway, "Modern"), "approve");
    let answer = loop {
        let message = stream.expect_event().json();
        if message["id"] == 1 {
            break message;
        }
        assert_eq!(message["method"], "notifications/progress", "{message}");
    };
    assert_eq!(answer["result"]["structuredContent"]["issue"]["title"], "Modern", "the tool's own result: {answer}");
    assert_eq!(answer["result"]["resultType"], "complete");

    let session = gateway.session(LEGACY);
    let mut waiting = session.start(&mcp::request(2, "tools/call", story(&project, "Legacy")));
    let id = change(&gateway, "Legacy");
    assert_eq!(gateway.try_decide(&id, "reject", "too wide a net").0, 200);
    assert_rejected(&waiting.response().json()["result"]);

    let mut waiting = session.start(&mcp::request(3, "tools/call", with_token(story(&project, "Progress"))));
    assert_eq!(waiting.head().header("content-type"), Some("text/event-stream"));
    gateway.decide(&change(&gateway, "Progress"), "approve");
    let answer = loop {
        let event = waiting.expect_event();
        if event.data.as_deref().is_some_and(|data| data.contains(r#""id":3"#)) {
            break event.json();
        }
    };
    assert_eq!(answer["result"]["structuredContent"]["issue"]["title"], "Progress", "{answer}");
}

#[test]
fn undecided_held_call_returns_pending() {
    let gateway = gateway();
    let answer = gateway.modern(1, "tools/call", story(&gateway.project(), "Short")).json();
    let result = &answer["result"];
    assert_eq!(result["structuredContent"]["status"], "pending", "{answer}");
    assert!(result.get("isError").is_none() && result["resultType"] == "complete");
    // After the answer, the same call is a new change, as usual.
    gateway.modern(1, "tools/call", story(&gateway.project(), "Short"));
    assert_eq!(changes(&gateway, "Short").len(), 2);
}

#[test]
fn calls_are_held_on_all_other_transports() {
    let gateway = gateway();
    let project = gateway.project();
    for version in [Some(LEGACY), Some("2024-11-05"), None] {
        let title = format!("WebSocket {version:?}");
        let mut ws = Ws::open(&gateway);
        let mut call = with_token(story(&project, &title));
        match version {
            Some(version) => drop(ws.initialize(version)),
            None => call = with_meta(call),
        }
        ws.send_json(&mcp::request(5, "tools/call", call));
        // Other calls are answered in the meantime.
        let other = json!({ "name": "list_projects", "arguments": {} });
        let other = if version.is_some() { other } else { with_meta(other) };
        assert!(ws.call(6, "tools/call", other)["result"].is_object());
        assert_eq!(gateway.try_decide(&change(&gateway, &title), "reject", "too wide a net").0, 200);
        let (answer, _) = ws.answer(&json!(5));
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("too wide a net"), "{answer}");
    }

    let mut plain = gateway.connect();
    let body = story(&project, "Plain")["arguments"].to_string();
    plain.request("POST", "/tools/create_issue", &[mcp::JSON], body.as_bytes());
    gateway.decide(&change(&gateway, "Plain"), "approve");
    let answer = plain.response();
    assert_eq!((answer.status, &answer.json()["structuredContent"]["issue"]["title"]), (200, &json!("Plain")));
    let mut plain = gateway.connect();
    let body = story(&project, "Plain no")["arguments"].to_string();
    plain.request("POST", "/tools/create_issue", &[mcp::JSON], body.as_bytes());
    gateway.try_decide(&change(&gateway, "Plain no"), "reject", "too wide a net");
    let answer = plain.response();
    assert_eq!((answer.status, &answer.json()["code"]), (403, &json!("CHANGE_REJECTED")), "{}", answer.text());
    assert!(answer.text().contains("too wide a net"), "{}", answer.text());
    drop(gateway);

    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("c.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let mut stdio = Agent::start(home.path(), &["--config", config.to_str().unwrap()], &[]);
    stdio.initialize(LEGACY);
    let projects = stdio.call(1, "tools/call", json!({ "name": "list_projects", "arguments": {} }));
    let project = projects["result"]["structuredContent"]["projects"][0]["id"].as_str().unwrap().to_owned();
    stdio.send_json(&mcp::request(2, "tools/call", with_token(story(&project, "Stdio"))));
    let progress = stdio.message();
    let message = progress["params"]["message"].as_str().unwrap_or_else(|| panic!("{progress}"));
    let id = message.split(' ').next().unwrap().to_owned();
    let withdraw = json!({ "name": "withdraw_change", "arguments": { "changeId": id } });
    stdio.send_json(&mcp::request(3, "tools/call", withdraw));
    // Either may be answered first.
    let mut answers = [Value::Null, Value::Null];
    while answers.iter().any(Value::is_null) {
        let message = stdio.message();
        match message["id"].as_u64() {
            Some(2) => answers[0] = message,
            Some(3) => answers[1] = message,
            _ => {}
        }
    }
    let [held, withdrawn] = answers;
    assert_eq!(withdrawn["result"]["structuredContent"]["status"], "withdrawn", "{withdrawn}");
    assert_eq!(held["result"]["structuredContent"]["status"], "withdrawn", "{held}");
    assert_eq!(held["result"]["isError"], true, "it was not done: {held}");
}

#[test]
fn repeat_with_same_key_joins_the_held_call() {
    let gateway = gateway();
    let project = gateway.project();
    // Over stateless HTTP, its stream is closed.
    let mut first = gateway.modern_conn(1, "tools/call", with_key(with_token(story(&project, "Lost"))));
    assert_eq!(first.next_after_head()["method"], "notifications/progress");
    drop(first);
    let id = change(&gateway, "Lost");
    let mut repeated = gateway.modern_conn(2, "tools/call", with_key(with_token(story(&project, "Lost"))));
    assert_eq!(repeated.next_after_head()["method"], "notifications/progress", "it is held again");
    gateway.decide(&id, "approve");
    let answer = loop {
        let message = repeated.expect_event().json();
        if message["id"] == 2 {
            break message;
        }
    };
    assert_eq!(answer["result"]["structuredContent"]["issue"]["title"], "Lost", "{answer}");
    assert_eq!(changes(&gateway, "Lost").len(), 1);
    assert_eq!(gateway.issues_titled("Lost"), 1);

    // Over WebSocket, its socket is closed, and the decision precedes the repeat in another session.
    let mut ws = Ws::open(&gateway);
    ws.initialize(LEGACY);
    let mut call = story(&project, "Lost socket");
    call["_meta"] = json!({ "dev.countersign/idempotencyKey": "socket" });
    ws.send_json(&mcp::request(1, "tools/call", call.clone()));
    let id = change(&gateway, "Lost socket");
    drop(ws);
    gateway.decide(&id, "approve");
    gateway.wait_for_state(&id, "applied");
    let session = gateway.session(LEGACY);
    // The order of the members does not matter.
    call["arguments"] = json!({ "type": "Story", "title": "Lost socket", "projectId": project });
    let answer = session.call(1, "tools/call", call);
    assert_eq!(answer["result"]["structuredContent"]["issue"]["title"], "Lost socket", "{answer}");
    assert_eq!((changes(&gateway, "Lost socket").len(), gateway.issues_titled("Lost socket")), (1, 1));
}

#[test]
fn repeat_without_a_key_is_a_duplicate() {
    let gateway = gateway();
    let project = gateway.project();
    let call = mcp::request(1, "tools/call", story(&project, "Twice"));
    let first_call = gateway.session(LEGACY).start(&call);
    let first = change(&gateway, "Twice");
    drop(first_call);
    let mut again = gateway.session(LEGACY).start(&call);
    let second = eventually("the repeat is a change too", || {
        changes(&gateway, "Twice").into_iter().find(|change| change["id"] != first.as_str())
    });
    assert_eq!(second["duplicateOf"], first.as_str(), "{second}");
    gateway.decide(second["id"].as_str().unwrap(), "reject");
    let answer = again.response().json()["result"]["structuredContent"].clone();
    assert_eq!((&answer["status"], &answer["duplicateOf"]), (&json!("rejected"), &json!(first)), "{answer}");
}

#[test]
fn held_calls_are_bounded_and_end_with_request() {
    let config = format!("limits:\n  max_streams: 2\n{CONFIG}");
    let gateway = Gateway::with_options(&Options { config: Some(&config), ..Options::default() });
    let project = gateway.project();
    let mut held: Vec<_> = (0..2)
        .map(|n| gateway.modern_conn(n, "tools/call", with_token(story(&project, &format!("Held {n}")))))
        .collect();
    for (n, stream) in held.iter_mut().enumerate() {
        assert_eq!(stream.next_after_head()["method"], "notifications/progress", "{n}");
    }
    let over = gateway.modern(9, "tools/call", story(&project, "Held 2")).json();
    assert_eq!(over["result"]["structuredContent"]["status"], "pending", "at once: {over}");
    // A client that disconnects frees its place.
    drop(held.pop());
    let mut next = eventually("there is a place again", || {
        let title = format!("Held again {}", gateway.change_count());
        let mut stream = gateway.modern_conn(10, "tools/call", with_token(story(&project, &title)));
        (stream.head().header("content-type") == Some("text/event-stream")).then_some(stream)
    });
    assert_eq!(next.expect_event().json()["method"], "notifications/progress");
    // So does the end of the gateway: held calls become pending.
    gateway.process.terminate();
    for stream in held.iter_mut().chain([&mut next]) {
        let answer = loop {
            let message = stream.expect_event().json();
            if message.get("id").is_some() {
                break message;
            }
        };
        assert_eq!(answer["result"]["structuredContent"]["status"], "pending", "{answer}");
    }
}

#[test]
fn capable_clients_are_asked_to_open_the_page() {
    let gateway = gateway();
    let project = gateway.project();
    let capabilities = json!({ "elicitation": { "form": {}, "url": {} } });
    let ask = |id: i64, params: Value| {
        let mut params = params;
        params["_meta"] = json!({ "io.modelcontextprotocol/clientCapabilities": capabilities });
        let params = with_meta(params);
        let headers = modern_headers("tools/call", &params);
        let body = mcp::request(id, "tools/call", params).to_string();
        gateway.request("POST", "/mcp", &borrow_headers(&headers), body.as_bytes()).json()
    };
    // Stateless clients get required input, and repeat the call.
    let required = ask(1, story(&project, "Page"))["result"].clone();
    assert_eq!(required["resultType"], "input_required", "{required}");
    let id = change(&gateway, "Page");
    let question = &required["inputRequests"]["open-change"];
    assert_eq!((&question["method"], &question["params"]["mode"]), (&json!("elicitation/create"), &json!("url")));
    let url = question["params"]["url"].as_str().unwrap();
    assert_eq!(url, format!("http://127.0.0.1:{}/#/inbox/{id}", gateway.port));
    let mut again = story(&project, "Page");
    again["requestState"] = required["requestState"].clone();
    for action in ["accept", "decline", "cancel"] {
        again["inputResponses"] = json!({ "open-change": { "action": action, "content": { "decision": "approve" } } });
        let answer = ask(2, again.clone());
        assert_eq!(answer["result"]["structuredContent"]["status"], "pending", "{action} decides nothing: {answer}");
        assert_eq!(answer["result"]["structuredContent"]["changeId"], id);
    }
    let mut other = again.clone();
    other["arguments"]["title"] = "Page of another".into();
    assert_eq!(ask(3, other)["error"]["code"], -32602, "a request state is valid for its own call only");
    assert_eq!(changes(&gateway, "Page").len(), 1);
    // A client that cannot show URLs is not asked.
    let plain = gateway.modern(4, "tools/call", story(&project, "Page for none")).json();
    assert_eq!(plain["result"]["structuredContent"]["status"], "pending", "{plain}");

    // Clients of 2025-11-25 get a question on the open call, and a notification when it is no longer needed.
    let mut ws = Ws::open(&gateway);
    let mut hello = mcp::initialize_params(LEGACY);
    hello["capabilities"] = capabilities.clone();
    ws.call(0, "initialize", hello);
    ws.send_json(&mcp::request(5, "tools/call", story(&project, "Held page")));
    let question = ws.message();
    assert_eq!(
        (&question["method"], &question["params"]["mode"]),
        (&json!("elicitation/create"), &json!("url")),
        "{question}"
    );
    let id = change(&gateway, "Held page");
    assert!(question["params"]["url"].as_str().unwrap().ends_with(&format!("/#/inbox/{id}")), "{question}");
    ws.send_json(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "decline" } }));
    let (_, before) = {
        ws.send_json(&mcp::request(6, "ping", json!({})));
        ws.answer(&json!(6))
    };
    assert!(before.is_empty(), "it is still held, and nothing is decided: {before:?}");
    assert_eq!(gateway.change(&id)["state"], "pending");
    gateway.decide(&id, "approve");
    let mut received = [false, false];
    while received != [true, true] {
        let message = ws.message();
        if message["id"] == 5 {
            assert_eq!(message["result"]["structuredContent"]["issue"]["title"], "Held page", "{message}");
            received[0] = true;
        } else if message["method"] == "notifications/elicitation/complete" {
            assert_eq!(message["params"]["elicitationId"], question["params"]["elicitationId"]);
            received[1] = true;
        }
    }

    // As a task, it needs input until its client has answered.
    let declaring = |mut params: Value| {
        params["_meta"] = json!({ "io.modelcontextprotocol/clientCapabilities":
            { "elicitation": { "url": {} }, "extensions": { "io.modelcontextprotocol/tasks": {} } } });
        params
    };
    let task = gateway.modern(7, "tools/call", declaring(story(&project, "Page task"))).json()["result"].clone();
    assert_eq!((&task["resultType"], &task["status"]), (&json!("task"), &json!("working")), "{task}");
    let id = task["taskId"].clone();
    let get = || gateway.modern(8, "tasks/get", declaring(json!({ "taskId": id }))).json()["result"].clone();
    let task = get();
    assert_eq!(task["status"], "input_required", "{task}");
    assert_eq!(task["inputRequests"]["open-change"]["params"]["mode"], "url", "{task}");
    let update = declaring(json!({ "taskId": id, "inputResponses": { "open-change": { "action": "accept" } } }));
    assert_eq!(gateway.modern(9, "tasks/update", update).json()["result"]["resultType"], "complete");
    assert_eq!(get()["status"], "working", "and pending all the same");
    assert_eq!(gateway.change(id.as_str().unwrap())["state"], "pending");
}

trait NextAfterHead {
    fn next_after_head(&mut self) -> Value;
}

impl NextAfterHead for support::http::Conn {
    #[track_caller]
    fn next_after_head(&mut self) -> Value {
        assert_eq!(self.head().status, 200);
        self.expect_event().json()
    }
}

trait CountChanges {
    fn change_count(&self) -> usize;
}

impl CountChanges for Gateway {
    fn change_count(&self) -> usize {
        let (_, page) = self.api("GET", "/api/changes?limit=200", None);
        page["changes"].as_array().map_or(0, Vec::len)
    }
}

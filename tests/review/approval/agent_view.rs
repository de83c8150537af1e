//! Tests of what an agent learns about data that it may not read.

use super::*;

/// Returns all updates on a socket up to that of the resource.
fn updates(ws: &mut Ws, until: &str) -> Vec<String> {
    let mut updated = Vec::new();
    loop {
        let message = ws.message();
        if message["method"] == "notifications/resources/updated" {
            let uri = message["params"]["uri"].as_str().unwrap().to_owned();
            let last = uri == until;
            updated.push(uri);
            if last {
                return updated;
            }
        }
    }
}

#[test]
fn change_updates_reach_only_permitted_readers() {
    let gateway = Gateway::start();
    let [own, other] = ["bot-1", "bot-2"].map(|name| gateway.create_key("agent", name));
    let project = gateway.project();
    let make = |key: &str, title: &str| {
        let arguments = json!({ "projectId": project, "title": title, "type": "Story" }).to_string();
        call(&gateway, Some(key), "create_issue", &arguments);
        let name = if key == own { "bot-1" } else { "bot-2" };
        newest_change(&gateway, name)["id"].as_str().unwrap().to_owned()
    };
    let first = make(&own, "one");
    let uri = format!("change://{first}");

    let open = |key: &str| {
        let bearer = format!("Bearer {key}");
        let mut ws = Ws::try_open(&gateway, "/ws", &[("Sec-WebSocket-Protocol", "mcp"), ("Authorization", &bearer)]);
        assert_eq!(ws.head.status, 101);
        ws.initialize("2025-11-25");
        ws
    };
    let (mut mine, mut theirs, mut reviewer) = (open(&own), open(&other), open(gateway.reviewer()));
    // Subscribing answers like reading, whether or not the change exists.
    for unreadable in [uri.as_str(), "change://chg_none", "change://a/b"] {
        let read = theirs.call(5, "resources/read", json!({ "uri": unreadable }));
        let subscribed = theirs.call(6, "resources/subscribe", json!({ "uri": unreadable }));
        assert!(read["error"].is_object(), "{read}");
        assert_eq!(subscribed["error"], read["error"]);
    }
    for (id, ws) in [(7, &mut mine), (8, &mut reviewer)] {
        let answer = ws.call(id, "resources/subscribe", json!({ "uri": uri }));
        assert_eq!(answer["result"], json!({}), "{answer}");
    }
    for ws in [&mut mine, &mut theirs] {
        ws.call(9, "resources/subscribe", json!({ "uri": "countersign://changes" }));
    }
    // First an event of the other agent, and then one of the own that ends the wait.
    make(&own, "two");
    call(&gateway, Some(&own), "withdraw_change", &json!({ "changeId": first }).to_string());
    let last = make(&other, "three");
    let last_uri = format!("change://{last}");
    let mut updated = updates(&mut theirs, "countersign://changes");
    theirs.call(10, "resources/subscribe", json!({ "uri": last_uri }));
    call(&gateway, Some(&other), "withdraw_change", &json!({ "changeId": last }).to_string());
    updated.extend(updates(&mut theirs, &last_uri));
    assert_eq!(updated, ["countersign://changes", &*last_uri], "of its own changes only");
    let updated = updates(&mut mine, &uri);
    assert_eq!(updated, ["countersign://changes", &*uri], "of its own: the second, and the withdrawal");
    assert_eq!(updates(&mut reviewer, &uri), [&*uri]);
}

#[test]
fn listener_gets_no_hidden_changes() {
    let gateway = Gateway::start();
    let [own, other] = ["bot-1", "bot-2"].map(|name| gateway.create_key("agent", name));
    let project = gateway.project();
    let make = |key: &str, name: &str| {
        let arguments = json!({ "projectId": project, "title": "t", "type": "Story" }).to_string();
        call(&gateway, Some(key), "create_issue", &arguments);
        newest_change(&gateway, name)["id"].as_str().unwrap().to_owned()
    };
    let first = make(&own, "bot-1");
    let mine = make(&other, "bot-2");
    let uris = [format!("change://{first}"), format!("change://{mine}"), "countersign://changes".to_owned()];
    let params = with_meta(json!({ "notifications": { "resourceSubscriptions": uris } }));
    let mut headers = modern_headers("subscriptions/listen", &params);
    headers.push(("Authorization".into(), format!("Bearer {other}")));
    let mut conn = gateway.connect();
    let body = mcp::request(1, "subscriptions/listen", params).to_string();
    conn.request("POST", "/mcp", &borrow_headers(&headers), body.as_bytes());
    assert_eq!(conn.head().status, 200);
    let mut next = || loop {
        let event = conn.event().expect("an event");
        if let Ok(message) = serde_json::from_str::<Value>(event.data.as_deref().unwrap_or_default())
            && message["method"].is_string()
        {
            return message;
        }
    };
    let acknowledged = next();
    assert_eq!(acknowledged["params"]["notifications"]["resourceSubscriptions"], json!([uris[1], uris[2]]));
    call(&gateway, Some(&own), "withdraw_change", &json!({ "changeId": first }).to_string());
    call(&gateway, Some(&other), "withdraw_change", &json!({ "changeId": mine }).to_string());
    let normalized_text = [next(), next()].map(|message| message["params"]["uri"].as_str().unwrap().to_owned());
    assert_eq!(normalized_text, [uris[1].clone(), uris[2].clone()], "of its own change alone");
}

/// Returns an answer as text, without values that differ between changes anyway.
fn normalized_text(mut answer: Value, id: &str) -> String {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.retain(|name, _| !name.ends_with("At") && name != "version");
                members.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut answer);
    let text = answer.to_string().replace(id, "ID");
    // Times within sentences.
    let mut out = String::new();
    for word in text.split(' ') {
        let time = word.contains('T') && word.contains(':') && word.contains('Z') && word.starts_with("20");
        out.push_str(if time { "TIME" } else { word });
        out.push(' ');
    }
    out
}

/// Returns everything that an agent can see of its change.
fn visible_text(gateway: &Gateway, result: &Value) -> String {
    let id = result["structuredContent"]["changeId"].as_str().unwrap_or_else(|| panic!("{result}"));
    let tool = |name: &str, arguments: Value| normalized_text(call_as_agent(gateway, name, &arguments), id);
    let resource = |uri: &str| {
        let answer = gateway.modern(2, "resources/read", json!({ "uri": uri })).json();
        let text = answer["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let line = |list: &Value| {
        let own = list["changes"].as_array().unwrap().iter().find(|change| change["changeId"] == id).unwrap();
        normalized_text(own.clone(), id)
    };
    [
        normalized_text(result.clone(), id),
        tool("get_change", json!({ "changeId": id })),
        tool("wait_for_change", json!({ "changeId": id, "timeoutSeconds": 1 })),
        line(&call_as_agent(gateway, "list_changes", &json!({ "status": "open" }))["structuredContent"]),
        normalized_text(resource(&format!("change://{id}")), id),
        line(&resource("countersign://changes")),
    ]
    .join("\n")
}

const RECIPE: &str = ", previews: { write: { target: the file, summary: Write the file, \
                      before: { tool: read, arguments: { path: arguments.path }, missing: '^ENOENT' }, after: arguments.text } }";

#[test]
fn preview_hides_state_the_agent_may_not_read() {
    let files = Files::new();
    let policy = "  default: review_writes\n  rules: [{ tools: fs__read, roles: [agent], then: review }]";
    let gateway = start(&files.config("a", RECIPE, policy));
    files.put("same", "guess");
    files.put("other", "the secret");
    let mut answers = Vec::new();
    for (path, pending) in
        [("other", "the secret"), ("same", "nothing would change"), ("missing", ""), ("broken", "EIO")]
    {
        let result = call_as_agent(&gateway, "fs__write", &json!({ "path": path, "text": "guess" }));
        let id = result["structuredContent"]["changeId"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned();
        let change = gateway.change(&id);
        let reviewer = json!([change["diff"], change["preview"]]).to_string();
        assert!(reviewer.contains(pending), "a reviewer sees what is there: {reviewer}");
        answers.push(visible_text(&gateway, &result));
        gateway.decide(&id, "reject");
    }
    for answer in &answers {
        assert_eq!(answer, &answers[0]);
    }
    assert!(answers[0].contains("shown to reviewers only"), "{}", answers[0]);

    // Refreshing a stale change reveals no more.
    let result = call_as_agent(&gateway, "fs__write", &json!({ "path": "other", "text": "guess" }));
    let id = result["structuredContent"]["changeId"].as_str().unwrap().to_owned();
    let before = visible_text(&gateway, &result);
    files.put("other", "guess");
    assert_eq!(code(&approve(&gateway, gateway.reviewer(), &id)), (409, "CHANGE_STALE"));
    let after = call_as_agent(&gateway, "get_change", &json!({ "changeId": id }));
    assert_eq!(visible_text(&gateway, &after), before);
    // An agent that may read the state sees the preview.
    let (_, home) = gateway.stop();
    let gateway = start_on(home, &files.config("a", RECIPE, "  default: review_writes"));
    let (_, reload) = gateway.api("GET", "/api/reload", None);
    let consent = json!({ "digest": reload["waiting"]["digest"], "verdict": "accept" });
    let (status, consented) = gateway.api("POST", "/api/reload/consent", Some(&consent));
    assert_eq!(status, 200, "a restart alone loosens nothing: {consented}");
    let pending = call_as_agent(&gateway, "fs__write", &json!({ "path": "same", "text": "new" }));
    assert_eq!(pending["structuredContent"]["diff"]["fields"][0]["before"], "guess", "{pending}");
}

#[test]
fn module_errors_reveal_no_hidden_records() {
    let config = "policy: { rules: [{ tools: get_issue, roles: [agent], then: review }] }";
    let gateway = Gateway::with_options(&Options { config: Some(config), ..Options::default() });
    let project = gateway.project();
    let created = gateway.tool("create_issue", json!({ "projectId": project, "title": "Hidden", "type": "Story" }));
    let id = created["changeId"].as_str().unwrap();
    gateway.decide(id, "approve");
    gateway.wait_for_state(id, "applied");
    let listed = gateway.tool("list_issues", json!({ "projectId": project }));
    let issue = listed["issues"].as_array().unwrap().iter().find(|issue| issue["title"] == "Hidden").unwrap();
    let issue = issue["key"].as_str().unwrap().to_owned();
    let missing = format!("{}-99999", issue.split('-').next().unwrap());
    let mut answers = Vec::new();
    for (issue, title) in [(&issue, "Guess"), (&issue, "Hidden"), (&missing, "Guess")] {
        let result = call_as_agent(&gateway, "update_issue", &json!({ "issueId": issue, "title": title }));
        answers.push(visible_text(&gateway, &result));
        assert!(!answers[0].contains("Hidden"), "{}", answers[0]);
        gateway.decide(result["structuredContent"]["changeId"].as_str().unwrap(), "reject");
    }
    for answer in &answers {
        assert_eq!(answer, &answers[0]);
    }
    // An error that does not depend on the state is reported at once.
    let wrong = call_as_agent(&gateway, "update_issue", &json!({ "issueId": issue, "title": "" }));
    assert_eq!(wrong["isError"], true, "{wrong}");
}

#[test]
fn argument_that_disables_dry_run_is_refused() {
    let files = Files::new();
    let recipe = ", previews: { write: { dry_run: { arguments: { dryRun: true } } } }";
    let gateway = start(&files.config("a", recipe, "  default: review_writes"));
    for (arguments, name, code) in [
        (r#"{"path":"f","text":"t","dryRun":false,"dryrun":false}"#, "dryrun", "VALIDATION_FAILED"),
        (r#"{"path":"f","text":"t","DryRun":false}"#, "DryRun", "VALIDATION_FAILED"),
        (r#"{"path":"f","text":"t","dry_run":false}"#, "dry_run", "VALIDATION_FAILED"),
        (r#"{"path":"f","text":"t","dryRun":true,"dryRun":false}"#, "dryRun", "INVALID_PARAMS"),
    ] {
        let refused = call(&gateway, None, "fs__write", arguments).to_string();
        assert!(refused.contains(code), "{arguments}: {refused}");
        assert!(refused.contains(name), "{arguments}: {refused}");
    }
    assert_eq!(files.ledger(), Vec::<String>::new(), "nothing was sent");
    let id = propose(&gateway, "fs__write", &json!({ "path": "f", "text": "t", "dryRun": false }));
    assert!(gateway.change(&id)["diff"].to_string().contains("it would be written"));
    assert_eq!(files.ledger(), Vec::<String>::new(), "it was a dry run");
}

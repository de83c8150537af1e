//! Tests of questions of servers to people, and of clients that cannot be asked.

use super::*;

fn asking_server(revision: &'static str, question: Value) -> Arc<Server> {
    let method = "elicitation/create";
    Server::start(
        revision,
        json!({"tools": [tool("ask")]}),
        Box::new(move |message, turn| {
            if revision == HANDSHAKE {
                let answer = turn.ask(method, question.clone());
                return text(&answer.to_string());
            }
            match message["params"].get("inputResponses") {
                Some(answers) => text(&answers.to_string()),
                None => {
                    json!({"result": {"resultType": "input_required", "inputRequests": {"q": {"method": method, "params": question}}}})
                }
            }
        }),
    )
}

/// Returns the question as a client of that era receives it, or the message that came instead.
fn question_seen_by_client(revision: &'static str, client: &str, question: Value) -> Value {
    let upstream = asking_server(revision, question);
    let gateway = start(json!({"notes": {"url": upstream.url}}), json!({"default": "allow"}));
    wait_until_connected(&gateway, "notes");
    let can = json!({"elicitation": {"form": {}, "url": {}}});
    let params = json!({"name": "notes__ask", "arguments": {}});
    if client == MODERN {
        let needed = request_with_capabilities(&gateway, None, "tools/call", params, can).response().json();
        let question_seen_by_client =
            needed["result"]["inputRequests"].as_object().and_then(|requests| requests.values().next());
        return question_seen_by_client.map_or(needed.clone(), |requests| requests["params"].clone());
    }
    let mut agent = Ws::open(&gateway);
    let mut hello = mcp::initialize_params(HANDSHAKE);
    hello["capabilities"] = can;
    agent.call(0, "initialize", hello);
    agent.send_json(&mcp::request(1, "tools/call", params));
    let message = agent.message();
    if message["method"] == "elicitation/create" { message["params"].clone() } else { message }
}

fn era_pairs() -> [(&'static str, &'static str); 4] {
    [(HANDSHAKE, HANDSHAKE), (HANDSHAKE, MODERN), (MODERN, HANDSHAKE), (MODERN, MODERN)]
}

#[test]
fn question_names_server_and_marks_credentials() {
    for (server, client) in era_pairs() {
        let properties = json!({"branch": {"type": "string"}, "api_key": {"type": "string", "title": "Key\u{202e}"}});
        let question = json!({"mode": "form", "message": "Countersign needs\u{200b} this", "requestedSchema":
            {"type": "object", "properties": properties}});
        let shown_question = question_seen_by_client(server, client, question);
        let message = shown_question["message"].as_str().unwrap_or_else(|| panic!("{shown_question}"));
        let begins = r#"The server "notes" asks, not Countersign: Countersign needs\u{200b} this"#;
        assert!(message.starts_with(begins) && message.contains(r"(Key\u{202e})"), "{message}");
        let fields = &shown_question["requestedSchema"]["properties"];
        assert_eq!(fields["api_key"]["title"], r"Key\u{202e} (looks like a credential)", "{shown_question}");
        assert_eq!(fields["branch"], json!({"type": "string"}));
    }
}

#[test]
fn only_web_pages_are_opened() {
    for (server, client) in era_pairs() {
        let question = |url: &str| json!({"mode": "url", "url": url, "message": "open", "elicitationId": "e"});
        let shown_question = question_seen_by_client(server, client, question("https://аpple.example/login"));
        assert_eq!(shown_question["url"], "https://xn--pple-43d.example/login", "{server} {client} {shown_question}");
        let begins = r#"The server "notes" asks you to open a page at xn--pple-43d.example."#;
        assert!(shown_question["message"].as_str().unwrap().starts_with(begins), "{shown_question}");
        let (scheme, name) = ("is neither http nor https", "has a user name");
        for (url, why) in [
            ("javascript:alert(1)", scheme),
            ("file:///etc/passwd", scheme),
            ("https://good.example@evil.example/", name),
        ] {
            let shown_question = question_seen_by_client(server, client, question(url));
            let shown = shown_question.to_string();
            assert!(shown.contains(why), "{shown}");
            assert!(shown_question.get("url").is_none(), "{shown}");
        }
    }
}

fn server_that_needs_capability() -> Arc<Server> {
    Server::start(
        HANDSHAKE,
        json!({"tools": [tool("result"), tool("error"), tool("later"), tool("without"), tool("roots")]}),
        Box::new(|message, turn| {
            let name = message["params"]["name"].as_str().unwrap();
            if name == "later" {
                let token = &message["params"]["_meta"]["progressToken"];
                let params = json!({"progressToken": token, "progress": 1});
                turn.send(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}));
            }
            let (method, params) = match name {
                "roots" => ("roots/list", json!({})),
                _ => ("sampling/createMessage", json!({"messages": [], "maxTokens": 1})),
            };
            let answer = turn.ask(method, params);
            assert_eq!(answer["error"]["code"], -32601, "{answer}");
            match name {
                "without" => text("went on"),
                "error" => json!({"error": {"code": -32603, "message": "no model"}}),
                _ => json!({"result": {"content": [{"type": "text", "text": "no model"}], "isError": true}}),
            }
        }),
    )
}

#[test]
fn missing_capability_is_named_in_the_error() {
    let upstream = server_that_needs_capability();
    let gateway = start(json!({"u": {"url": upstream.url}}), json!({"default": "allow"}));
    wait_until_connected(&gateway, "u");
    let missing = |answer: &Value, what: &str| {
        let error = &answer["error"];
        assert_eq!(
            (&error["code"], &error["data"]["requiredCapabilities"]),
            (&json!(-32021), &json!({what: {}})),
            "{answer}"
        );
    };
    // A client without any capability to be asked, and one with another capability.
    for can in [json!({}), json!({"elicitation": {}})] {
        let call = |tool: &str| {
            let params = json!({"name": tool, "arguments": {}});
            request_with_capabilities(&gateway, None, "tools/call", params, can.clone()).response()
        };
        for (tool, what) in [("u__result", "sampling"), ("u__error", "sampling"), ("u__roots", "roots")] {
            let answer = call(tool);
            assert_eq!(answer.status, 400, "{tool}: {}", answer.text());
            missing(&answer.json(), what);
        }
        let succeeded = call("u__without");
        assert_eq!((succeeded.status, &succeeded.json()["result"]["content"][0]["text"]), (200, &json!("went on")));
    }
    let params = with_meta(json!({"name": "u__later", "arguments": {}, "_meta": {"progressToken": "t"}}));
    let mut conn = gateway.modern_conn(1, "tools/call", params);
    assert_eq!(conn.head().status, 200);
    let events: Vec<Value> =
        std::iter::from_fn(|| conn.event()).filter(|e| e.data.is_some()).map(|e| e.json()).collect();
    assert_eq!((events.len(), &events[0]["method"]), (2, &json!("notifications/progress")), "{events:?}");
    missing(&events[1], "sampling");

    let params = with_meta(json!({"name": "u__result", "arguments": {}}));
    missing(&Ws::open(&gateway).call(1, "tools/call", params.clone()), "sampling");
    let mut agent = Agent::start(gateway.home.path(), &[], &[]);
    missing(&agent.call(1, "tools/call", params), "sampling");

    // A client of the handshake era gets the server's own error.
    let session = gateway.session(HANDSHAKE);
    let failed = session.call(7, "tools/call", json!({"name": "u__result", "arguments": {}}));
    assert_eq!(failed["result"]["isError"], true, "{failed}");
}

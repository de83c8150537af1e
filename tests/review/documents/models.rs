//! Tests of the models that the knowledge base asks: embeddings, a configured model, and the model of a client.

use super::*;

#[test]
fn failed_embedding_falls_back_to_word_search() {
    let works = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&works);
    let model = FakeGateway::start(move |request, _| {
        if !switch.load(Ordering::SeqCst) {
            return fake::json("500 Internal Server Error", &json!({ "error": "out of memory" }));
        }
        let inputs = request.body["input"].as_array().unwrap();
        let vector = |text: &Value| {
            let text = text.as_str().unwrap().to_lowercase();
            json!([if text.contains("pool") || text.contains("dry") { 1.0 } else { 0.1 }, 0.5, 0.2])
        };
        let data: Vec<Value> =
            inputs.iter().enumerate().map(|(at, text)| json!({ "index": at, "embedding": vector(text) })).collect();
        fake::json("200 OK", &json!({ "data": data }))
    });
    let team = TestProject::with_config(&format!(
        "    embeddings: {{ url: '{}/v1', model: m, key: secret-key }}\n",
        model.url
    ));
    let gateway = team.gateway();
    wait_until_indexed(&gateway);
    let found = tool(&gateway, "semantic_search", json!({ "query": "connection pool exhausted" }));
    assert_eq!((paths(&found)[0], &found["ranking"]), ("problems/pool.md", &json!("lexical")), "{found}");
    assert!(found["note"].as_str().unwrap().contains("ranked by words alone"), "{found}");
    let said = error(&gateway, "index_document", &json!({ "project_name": "handbook", "path": "problems/pool.md" }));
    assert_eq!(said["code"], "EMBEDDING_FAILED");
    let error_text = said.to_string();
    assert!(!error_text.contains("out of memory"), "nothing that the model said: {error_text}");
    assert!(!gateway.log().contains("secret-key"));
    works.store(true, Ordering::SeqCst);
    let embedded = eventually("the model is asked again", || {
        let answer = gateway
            .modern(
                1,
                "tools/call",
                call("index_document", &json!({ "project_name": "handbook", "path": "problems/pool.md" })),
            )
            .json();
        Some(answer["result"].clone()).filter(|result| result["isError"] != true)
    });
    assert_eq!(embedded["structuredContent"]["embedding_dimensions"], 3);
    let found = eventually("it is ranked by both", || {
        let found = tool(&gateway, "semantic_search", json!({ "query": "it ran dry", "min_relevance_score": 0 }));
        Some(found).filter(|found| found["ranking"] == "fused")
    });
    assert_eq!(paths(&found)[0], "problems/pool.md", "{found}");
    assert!(model.requests().iter().all(|request| request.authorization == "Bearer secret-key"));
}

#[test]
fn configured_model_cites_only_found_passages() {
    let model = FakeGateway::start(|request, _| {
        let user = request.body["messages"][1]["content"].as_str().unwrap();
        assert!(user.contains("Connections were never returned") && user.contains("Question: "));
        let content = "They were never returned [1]. See [more](https://evil.example/x) [9].";
        fake::json("200 OK", &json!({ "choices": [{ "message": { "content": content } }] }))
    });
    let team = TestProject::with_config(&format!("    generation: {{ url: '{}/v1', model: m }}\n", model.url));
    let gateway = team.gateway();
    wait_until_indexed(&gateway);
    let answer =
        tool(&gateway, "rag_query", json!({ "query": "connection pool exhausted", "min_relevance_score": 0.5 }));
    assert_eq!(
        (&answer["answer"], &answer["answer_mode"]),
        (&json!("They were never returned [1]. See more."), &json!("generated"))
    );
}

#[test]
fn clients_model_answers_in_both_eras() {
    let team = TestProject::new();
    let gateway = team.gateway();
    wait_until_indexed(&gateway);
    let question =
        json!({ "project_name": "handbook", "query": "connection pool exhausted", "min_relevance_score": 0.5 });
    let sampled = json!({ "role": "assistant", "model": "mine", "content": { "type": "text", "text": "Never returned [1][4]." } });
    let is_question = |message: &Value| {
        assert_eq!(message["method"], "sampling/createMessage", "{message}");
        let text = message["params"]["messages"][0]["content"]["text"].as_str().unwrap();
        assert!(text.contains("Connections were never returned"), "{text}");
    };
    let is_answer = |result: &Value| {
        let answer = &result["structuredContent"];
        assert_eq!(
            (&answer["answer"], &answer["answer_mode"]),
            (&json!("Never returned [1]."), &json!("sampled")),
            "{result}"
        );
    };

    // In the handshake era, the gateway sends a request while the call is open.
    let mut ws = Ws::open(&gateway);
    let mut hello = mcp::initialize_params(LEGACY);
    hello["capabilities"] = json!({ "sampling": {} });
    ws.call(0, "initialize", hello.clone());
    ws.send_json(&mcp::notification("notifications/initialized"));
    ws.send_json(&mcp::request(1, "tools/call", call("rag_query", &question)));
    let sampling_request = ws.message();
    is_question(&sampling_request);
    ws.send_json(&json!({ "jsonrpc": "2.0", "id": sampling_request["id"], "result": sampled }));
    is_answer(&ws.answer(&json!(1)).0["result"]);
    // If the client refuses, the documents themselves are quoted.
    ws.send_json(&mcp::request(2, "tools/call", call("rag_query", &question)));
    let sampling_request = ws.message();
    ws.send_json(&json!({ "jsonrpc": "2.0", "id": sampling_request["id"], "error": { "code": -1, "message": "no" } }));
    let (answer, _) = ws.answer(&json!(2));
    assert_eq!(answer["result"]["structuredContent"]["answer_mode"], "extractive", "{answer}");

    // In the stateless era, the result asks, and the client repeats the call with the answer.
    let capabilities = json!({ "io.modelcontextprotocol/clientCapabilities": { "sampling": {} } });
    let ask = |responses: Option<Value>, question: &Value| {
        let mut params = call("rag_query", question);
        params["_meta"] = capabilities.clone();
        if let Some(responses) = responses {
            params["inputResponses"] = responses;
        }
        gateway.modern(1, "tools/call", params).json()["result"].clone()
    };
    let sampling_request = ask(None, &question);
    assert_eq!(sampling_request["resultType"], "input_required", "{sampling_request}");
    let (key, request) = sampling_request["inputRequests"].as_object().unwrap().iter().next().unwrap();
    is_question(request);
    let key = key.clone();
    let answer = ask(Some(json!({ key.clone(): sampled })), &question);
    is_answer(&answer);
    assert_eq!(answer["resultType"], "complete");
    // An answer to another question does not count.
    let mut other = question.clone();
    other["max_sources"] = 1.into();
    other["query"] = "deployments on Tuesdays".into();
    assert_eq!(ask(Some(json!({ key: sampled })), &other)["resultType"], "input_required");
    let without = gateway.modern(1, "tools/call", call("rag_query", &question)).json();
    assert_eq!(without["result"]["structuredContent"]["answer_mode"], "extractive");
}

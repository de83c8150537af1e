//! Tests of documents as resources: updates, and access to other projects.

use super::*;

#[test]
fn documents_are_resources_with_updates() {
    let team = TestProject::new();
    let gateway = team.gateway();
    wait_until_indexed(&gateway);
    let mut ws = Ws::open(&gateway);
    ws.initialize(LEGACY);
    let listed = ws.call(1, "resources/list", json!({}));
    let uris: Vec<&str> = listed["result"]["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|resource| resource["uri"].as_str().unwrap())
        .collect();
    assert!(uris.contains(&"docs://handbook/problems/pool.md"), "{uris:?}");
    let templates = ws.call(2, "resources/templates/list", json!({}));
    assert!(templates.to_string().contains("docs://{project}/{+path}"), "{templates}");
    let uri = "docs://handbook/problems/pool.md";
    let read = ws.call(3, "resources/read", json!({ "uri": uri }));
    assert_eq!(
        (&read["result"]["contents"][0]["text"], &read["result"]["contents"][0]["mimeType"]),
        (&json!(POOL), &json!("text/markdown"))
    );
    for bad in [
        "docs://handbook/../other/secret.md",
        "docs://nobody/a.md",
        "docs://handbook/%2e%2e/x.md",
        "docs://handbook/no.md",
        "docs://handbook/problems%2fpool.md",
        "docs://handbook/",
        "docs://handbook/problems/pool.md?x",
    ] {
        assert!(ws.call(4, "resources/read", json!({ "uri": bad }))["error"].is_object(), "{bad}");
    }
    let complete = json!({ "ref": { "type": "ref/resource", "uri": "docs://{project}/{+path}" }, "argument": { "name": "path", "value": "prob" },
        "context": { "arguments": { "project": "handbook" } } });
    let values = ws.call(5, "completion/complete", complete);
    assert_eq!(values["result"]["completion"]["values"], json!(["problems/pool.md"]), "{values}");
    let prompt =
        json!({ "name": "capture", "arguments": { "type": "problem", "project": "handbook", "subject": "the pool" } });
    let prompt = ws.call(6, "prompts/get", prompt);
    let text = prompt["result"]["messages"][0]["content"]["text"].as_str().unwrap();
    for part in ["`root_cause` (required)", "`problems/`", "index_document", "> the pool"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let complete =
        json!({ "ref": { "type": "ref/prompt", "name": "capture" }, "argument": { "name": "type", "value": "co" } });
    assert_eq!(ws.call(7, "completion/complete", complete)["result"]["completion"]["values"], json!(["codebase"]));
    ws.call(8, "resources/subscribe", json!({ "uri": uri }));
    fs::write(team.file("problems/pool.md"), POOL.replace("dry", "empty")).unwrap();
    let update = ws.message();
    assert_eq!((&update["method"], &update["params"]["uri"]), (&json!("notifications/resources/updated"), &json!(uri)));
}

#[test]
fn other_projects_resources_are_denied() {
    let team = TestProject::new();
    let rules = "policy: { rules: [{ resources: 'docs://other/**', then: deny }] }\n";
    let config = format!("{}{rules}", team.config);
    let gateway = Gateway::with_options(&Options { config: Some(&config), ..Options::default() });
    wait_until_indexed(&gateway);
    let read = |uri: &str| gateway.modern(1, "resources/read", json!({ "uri": uri })).json();
    assert!(read("docs://handbook/problems/pool.md")["result"].is_object());
    let refused = read("docs://other/secret.md");
    assert_eq!(refused["error"]["data"]["code"], "POLICY_DENIED", "{refused}");
    let listed = gateway.modern(1, "resources/list", json!({})).json().to_string();
    assert!(listed.contains("docs://handbook/") && !listed.contains("docs://other/"), "{listed}");
    let complete = json!({ "ref": { "type": "ref/resource", "uri": "docs://{project}/{+path}" }, "argument": { "name": "path", "value": "" },
        "context": { "arguments": { "project": "other" } } });
    let refused = gateway.modern(1, "completion/complete", complete).json();
    assert_eq!(refused["error"]["data"]["code"], "POLICY_DENIED", "{refused}");

    let session = team.gateway();
    let session = session.session(LEGACY);
    let uri = "docs://other/secret.md";
    assert!(session.call(1, "resources/read", json!({ "uri": uri }))["result"].is_object());
    let active = json!({ "project_name": "handbook", "branch_name": "main" });
    session.call(2, "tools/call", call("activate_project", &active));
    for method in ["resources/read", "resources/subscribe"] {
        let refused = session.call(3, method, json!({ "uri": uri }));
        assert_eq!(refused["error"]["data"]["code"], "TENANT_MISMATCH", "{method}: {refused}");
    }
    let listed = session.call(4, "resources/list", json!({})).to_string();
    assert!(listed.contains("docs://handbook/") && !listed.contains("docs://other/"), "{listed}");
    // A client that names its branch in each call gets the same documents.
    let found =
        session.call(5, "tools/call", call("semantic_search", &json!({ "query": "deploy", "branch_name": "main" })));
    assert_eq!(paths(&found["result"]["structuredContent"]), ["notes/deploy.md"], "{found}");
}

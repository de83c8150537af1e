//! Tests of the knowledge base through its clients: every tool over every transport, every error code, reviewed writes
//! of files, and kills of the gateway during them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};
use support::{
    Gateway, Options, eventually,
    fake::{self, FakeGateway},
    mcp,
    stdio::Agent,
    ws::Ws,
};

const LEGACY: &str = "2025-11-25";

const POOL: &str = "---\ndoc_type: problem\ntitle: Connection pool exhausted\ndate: 2026-11-20\nsummary: The pool ran dry\n\
                    significance: performance\nproblem_type: performance\nsymptoms: [timeouts]\nroot_cause: never returned\n\
                    solution: return them\n---\n# Connection pool exhausted\n\nConnections were never returned to the pool. \
                    See [the driver](../tools/driver.md).\n";
const NEW: &str = "---\ndoc_type: style\ntitle: Names of tests\ndate: 2026-11-23\nsummary: What a test is called\n\
                   significance: convention\nstyle_type: naming\nscope: team\nrationale: readable failures\n---\n# Names of \
                   tests\n\nA test is named after what it shows, never after a function.\n";

/// A folder with a project, and the configuration of a gateway for it.
struct TestProject {
    dir: tempfile::TempDir,
    config: String,
}

impl TestProject {
    fn new() -> Self {
        Self::with_config("")
    }

    /// Creates a project; `more` is added below `modules.docs`.
    fn with_config(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("handbook");
        for (path, text) in [
            ("know/problems/pool.md", POOL),
            ("know/notes/deploy.md", "# Deployments\n\nWe deploy on Tuesdays.\n"),
            ("know/tools/driver.md", "# Driver\n\nThe database driver.\n"),
            ("docs/guide.md", "# Guide\n\nHow to restore a backup of the store.\n"),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let other = dir.path().join("other");
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("secret.md"), "# Secret\n\nThe zebra of the other team.\n").unwrap();
        let config = format!(
            "modules:\n  tracker: {{ enabled: false }}\n  docs:\n    enabled: true\n    projects:\n      handbook: {{ root: '{}', \
             folder: know, external_docs: docs }}\n      other: {{ root: '{}' }}\n{more}",
            root.display(),
            other.display()
        );
        Self { dir, config }
    }

    fn gateway(&self) -> Gateway {
        Gateway::with_options(&Options { config: Some(&self.config), ..Options::default() })
    }

    fn file(&self, path: &str) -> PathBuf {
        self.dir.path().join("handbook/know").join(path)
    }
}

fn call(name: &str, arguments: &Value) -> Value {
    json!({ "name": name, "arguments": arguments })
}

/// Returns the structured answer of a stateless call about the handbook.
#[track_caller]
fn tool(gateway: &Gateway, name: &str, arguments: Value) -> Value {
    let mut arguments = arguments;
    arguments["project_name"] = "handbook".into();
    gateway.tool(name, arguments)
}

/// Returns the error of a stateless call, which is the same in its text and in `structuredContent`.
#[track_caller]
fn error(gateway: &Gateway, name: &str, arguments: &Value) -> Value {
    let answer = gateway.modern(1, "tools/call", call(name, arguments)).json();
    error_body(&answer)
}

#[track_caller]
fn error_body(answer: &Value) -> Value {
    let result = &answer["result"];
    assert_eq!(result["isError"], true, "{answer}");
    let body: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(body, result["structuredContent"], "{answer}");
    assert!(body["error"] == true && body["details"].is_object() && body["message"].is_string(), "{body}");
    body
}

fn paths(answer: &Value) -> Vec<&str> {
    let results = answer["results"].as_array().unwrap_or_else(|| panic!("{answer}"));
    results.iter().map(|result| result["path"].as_str().unwrap()).collect()
}

/// Waits until the documents are indexed.
fn wait_until_indexed(gateway: &Gateway) {
    for project in ["handbook", "other"] {
        gateway.tool("activate_project", json!({ "project_name": project }));
    }
}

#[test]
fn stateless_calls_name_their_project() {
    let team = TestProject::new();
    let gateway = team.gateway();
    let active = tool(&gateway, "activate_project", json!({}));
    assert_eq!((&active["status"], &active["total_docs"]), (&json!("activated"), &json!(3)), "{active}");
    assert!(active["note"].as_str().unwrap().contains("name project_name"), "{active}");
    assert_eq!(active["path_hash"].as_str().unwrap().len(), 16);
    let types = tool(&gateway, "list_doc_types", json!({}));
    let problem = &types["doc_types"][0];
    assert_eq!((&problem["name"], &problem["doc_count"]), (&json!("problem"), &json!(1)), "{types}");
    assert_eq!((&problem["schema"], &problem["custom"]), (&json!("built-in"), &json!(false)));
    let found = tool(&gateway, "semantic_search", json!({ "query": "the connection pool is exhausted" }));
    assert_eq!((paths(&found)[0], &found["ranking"]), ("problems/pool.md", &json!("lexical")));
    let best = &found["results"][0];
    assert!(best["passage"].as_str().unwrap().contains("never returned") && best["first_line"] == 12, "{best}");
    let answer =
        tool(&gateway, "rag_query", json!({ "query": "connection pool exhausted", "min_relevance_score": 0.5 }));
    assert_eq!(
        (&answer["answer_mode"], &answer["sources"][0]["path"]),
        (&json!("extractive"), &json!("problems/pool.md"))
    );
    assert_eq!(answer["linked_docs"][0]["path"], "tools/driver.md", "{answer}");
    assert_eq!(answer["linked_docs"][0]["linked_from"], "problems/pool.md");
    let external = tool(&gateway, "search_external_docs", json!({ "query": "restore a backup" }));
    assert_eq!((paths(&external), &external["external_docs_path"]), (vec!["guide.md"], &json!("docs")));
    let external =
        tool(&gateway, "rag_query_external", json!({ "query": "restore a backup", "min_relevance_score": 0.5 }));
    assert_eq!(external["sources"][0]["path"], "guide.md", "{external}");
    let nothing = tool(&gateway, "rag_query", json!({ "query": "knitting patterns" }));
    assert_eq!((&nothing["answer_mode"], &nothing["sources"]), (&json!("none"), &json!([])), "{nothing}");
    let refreshed = tool(&gateway, "index_document", json!({ "path": "problems/pool.md" }));
    assert_eq!((&refreshed["status"], &refreshed["embedding_dimensions"]), (&json!("indexed"), &Value::Null));

    let body = json!({ "project_name": "handbook", "query": "deploy" }).to_string();
    let plain = gateway.request("POST", "/tools/semantic_search", &[mcp::JSON], body.as_bytes());
    assert_eq!((plain.status, paths(&plain.json()["structuredContent"])), (200, vec!["notes/deploy.md"]));
    let plain = gateway.request("POST", "/tools/semantic_search", &[mcp::JSON], br#"{"query":"x"}"#);
    assert!(plain.text().contains("PROJECT_NOT_ACTIVE"), "{}", plain.text());
}

/// Checks a client with a session, over any transport.
#[track_caller]
fn check_session(mut ask: impl FnMut(&str, Value) -> Value) {
    let error = error_body(&ask("semantic_search", json!({ "query": "deploy" })));
    assert_eq!(error["code"], "PROJECT_NOT_ACTIVE");
    assert_eq!(error["details"]["projects"], json!(["handbook", "other"]));
    let active = ask("activate_project", json!({ "project_name": "handbook" }));
    assert_eq!(active["result"]["structuredContent"]["project_name"], "handbook", "{active}");
    assert!(active["result"]["structuredContent"].get("note").is_none(), "{active}");
    let found = ask("semantic_search", json!({ "query": "deploy" }));
    assert_eq!(paths(&found["result"]["structuredContent"]), ["notes/deploy.md"]);
    let other = json!({ "query": "zebra", "project_name": "other" });
    assert_eq!(error_body(&ask("semantic_search", other))["code"], "TENANT_MISMATCH");
    // Without branch tracking, any branch name means the only one.
    let found = ask("semantic_search", json!({ "query": "deploy", "branch_name": "dev" }));
    assert_eq!(paths(&found["result"]["structuredContent"]), ["notes/deploy.md"], "{found}");
    let change = ask("index_document", json!({ "path": "styles/names.md", "content": NEW }));
    let change = &change["result"]["structuredContent"];
    assert_eq!(change["status"], "pending", "{change}");
    ask("activate_project", json!({ "project_name": "other" }));
    let found = ask("semantic_search", json!({ "query": "zebra" }));
    assert_eq!(paths(&found["result"]["structuredContent"]), ["secret.md"]);
    let found = ask("semantic_search", json!({ "query": "connection pool deploy" }));
    assert_eq!(paths(&found["result"]["structuredContent"]), Vec::<&str>::new(), "nothing of another project");
}

#[test]
fn session_has_one_active_project_on_every_transport() {
    let team = TestProject::new();
    let gateway = team.gateway();
    for version in [LEGACY, "2025-06-18"] {
        let session = gateway.session(version);
        check_session(|tool, arguments| session.call(7, "tools/call", call(tool, &arguments)));
    }
    let mut ws = Ws::open(&gateway);
    ws.initialize(LEGACY);
    check_session(|tool, arguments| ws.call(7, "tools/call", call(tool, &arguments)));
    // Another session does not have it.
    let session = gateway.session(LEGACY);
    let error = error_body(&session.call(1, "tools/call", call("list_doc_types", &json!({}))));
    assert_eq!(error["code"], "PROJECT_NOT_ACTIVE");
    drop(gateway);
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("c.yaml");
    fs::write(&config, &team.config).unwrap();
    let mut stdio = Agent::start(home.path(), &["--config", config.to_str().unwrap()], &[]);
    stdio.initialize(LEGACY);
    check_session(|tool, arguments| stdio.call(7, "tools/call", call(tool, &arguments)));
}

#[test]
fn approved_document_is_written_and_found() {
    let team = TestProject::new();
    let gateway = team.gateway();
    let session = gateway.session(LEGACY);
    session.call(1, "tools/call", call("activate_project", &json!({ "project_name": "handbook" })));
    let proposed = json!({ "path": "./styles/names.md", "content": NEW });
    let pending = session.call(2, "tools/call", call("index_document", &proposed));
    let id =
        pending["result"]["structuredContent"]["changeId"].as_str().unwrap_or_else(|| panic!("{pending}")).to_owned();
    let change = gateway.change(&id);
    // The session's project is part of the approved arguments.
    assert_eq!(change["arguments"]["project_name"], "handbook", "{change}");
    assert_eq!(change["arguments"]["branch_name"], "-");
    assert_eq!(
        (&change["operation"], &change["target"]["label"]),
        (&json!("CREATE"), &json!("handbook/styles/names.md"))
    );
    let fields = change["diff"]["fields"].as_array().unwrap();
    let names: Vec<&str> = fields.iter().map(|field| field["field"].as_str().unwrap()).collect();
    assert!(names.contains(&"front_matter.rationale") && names.last() == Some(&"file"), "{names:?}");
    assert!(!team.file("styles").exists(), "nothing is written before");
    gateway.decide(&id, "approve");
    let applied = gateway.wait_for_state(&id, "applied");
    assert_eq!(applied["result"]["structuredContent"]["status"], "written", "{applied}");
    assert_eq!(fs::read_to_string(team.file("styles/names.md")).unwrap(), NEW);
    let found = tool(&gateway, "semantic_search", json!({ "query": "how is a test named", "doc_types": ["style"] }));
    assert_eq!(paths(&found), ["styles/names.md"]);

    // The level: one field of the diff, one line of the file.
    let promote = json!({ "document_path": "styles/names.md", "promotion_level": "critical" });
    let change = tool(&gateway, "update_promotion_level", promote);
    let id = change["changeId"].as_str().unwrap();
    let fields = gateway.change(id)["diff"]["fields"].clone();
    assert_eq!(fields.as_array().unwrap().len(), 1, "{fields}");
    assert_eq!((&fields[0]["before"], &fields[0]["after"]), (&json!("standard"), &json!("critical")));
    gateway.decide(id, "approve");
    gateway.wait_for_state(id, "applied");
    assert!(fs::read_to_string(team.file("styles/names.md")).unwrap().contains("\npromotion_level: critical\n---\n"));
    let answer = tool(&gateway, "rag_query", json!({ "query": "connection pool exhausted" }));
    assert_eq!(answer["sources"][0]["path"], "styles/names.md", "critical documents come first: {answer}");
    let without =
        json!({ "query": "connection pool exhausted", "include_critical": false, "min_relevance_score": 0.5 });
    assert_eq!(tool(&gateway, "rag_query", without)["sources"][0]["path"], "problems/pool.md");

    // A change whose file was modified needs a new decision.
    let change =
        tool(&gateway, "index_document", json!({ "path": "notes/deploy.md", "content": "# Deployments\n\nNever.\n" }));
    let id = change["changeId"].as_str().unwrap();
    assert_eq!(gateway.change(id)["operation"], "UPDATE");
    fs::write(team.file("notes/deploy.md"), "# Deployments\n\nDaily.\n").unwrap();
    let (status, stale) = gateway.try_decide(id, "approve", "by a test");
    assert_eq!((status, &stale["code"]), (409, &json!("CHANGE_STALE")), "{stale}");
    assert!(fs::read_to_string(team.file("notes/deploy.md")).unwrap().contains("Daily"));
}

#[test]
fn documents_are_deleted_and_dry_runs_need_no_review() {
    let team = TestProject::new();
    let gateway = team.gateway();
    wait_until_indexed(&gateway);
    let dry = tool(&gateway, "delete_documents", json!({ "dry_run": true }));
    assert_eq!(
        (&dry["status"], &dry["deleted_count"], &dry["deleted_chunks"]),
        (&json!("preview"), &json!(3), &json!(3))
    );
    let change = tool(&gateway, "delete_documents", json!({ "paths": ["notes/deploy.md", "tools/driver.md"] }));
    let id = change["changeId"].as_str().unwrap_or_else(|| panic!("{change}"));
    let stored = gateway.change(id);
    assert_eq!(stored["operation"], "DELETE");
    let text = stored["diff"].to_string();
    assert!(
        text.contains("notes/deploy.md") && text.contains("tools/driver.md") && !text.contains("pool.md"),
        "{text}"
    );
    assert!(team.file("notes/deploy.md").exists());
    gateway.decide(id, "approve");
    let applied = gateway.wait_for_state(id, "applied");
    let result = &applied["result"]["structuredContent"];
    assert_eq!((&result["status"], &result["deleted_count"]), (&json!("deleted"), &json!(2)), "{applied}");
    assert!(!team.file("notes/deploy.md").exists() && team.file("problems/pool.md").exists());
    let remaining = tool(&gateway, "delete_documents", json!({ "dry_run": true }));
    assert_eq!(remaining["documents"], json!(["problems/pool.md"]));
    // If a rule has the tool reviewed, it can include dry runs.
    let policy = "policy: { rules: [{ name: all, tools: [delete_documents], then: review }] }\n";
    let config = format!("{}{policy}", team.config);
    let strict = Gateway::with_options(&Options { config: Some(&config), ..Options::default() });
    let dry = strict.tool("delete_documents", json!({ "project_name": "handbook", "dry_run": true }));
    assert_eq!(dry["status"], "pending", "{dry}");
}

#[test]
fn deletion_is_refused_if_the_file_was_rewritten_since() {
    let team = TestProject::new();
    let gateway = team.gateway();
    wait_until_indexed(&gateway);
    let change = tool(&gateway, "delete_documents", json!({ "paths": ["notes/deploy.md"] }));
    let id = change["changeId"].as_str().unwrap_or_else(|| panic!("{change}"));
    fs::write(team.file("notes/deploy.md"), "# Deployments\n\nWhat nobody approved to go.\n").unwrap();
    // At once, before an index knows of it.
    let (status, stale) = gateway.try_decide(id, "approve", "by a test");
    assert_eq!((status, &stale["code"]), (409, &json!("CHANGE_STALE")), "{stale}");
    assert!(fs::read_to_string(team.file("notes/deploy.md")).unwrap().contains("nobody approved"));
    gateway.decide(id, "approve");
    gateway.wait_for_state(id, "applied");
    assert!(!team.file("notes/deploy.md").exists(), "the refreshed change deletes the file");
}

#[test]
fn every_error_has_its_code_on_the_wire() {
    let team = TestProject::new();
    let gateway = team.gateway();
    wait_until_indexed(&gateway);
    let of = |name: &str, arguments: Value| error(&gateway, name, &arguments);
    let code = |name: &str, arguments: Value| of(name, arguments)["code"].as_str().unwrap().to_owned();
    let handbook = |more: Value| {
        let mut all = more;
        all["project_name"] = "handbook".into();
        all
    };
    for tool in ["list_doc_types", "activate_project"] {
        assert_eq!(code(tool, json!({})), "PROJECT_NOT_ACTIVE", "{tool}");
    }
    for (tool, arguments) in [
        ("semantic_search", json!({ "query": "x" })),
        ("rag_query", json!({ "query": "x" })),
        ("search_external_docs", json!({ "query": "x" })),
        ("rag_query_external", json!({ "query": "x" })),
        ("index_document", json!({ "path": "a.md" })),
        ("index_document", json!({ "path": "a.md", "content": "# A" })),
        ("update_promotion_level", json!({ "document_path": "a.md", "promotion_level": "critical" })),
    ] {
        assert_eq!(code(tool, arguments.clone()), "PROJECT_NOT_ACTIVE", "{tool}");
        let mut elsewhere = arguments;
        elsewhere["project_name"] = "nobody".into();
        assert_eq!(code(tool, elsewhere), "TENANT_MISMATCH", "{tool}");
    }
    assert_eq!(code("activate_project", json!({ "config_path": "/etc/passwd" })), "TENANT_MISMATCH");
    let inside = team.dir.path().canonicalize().unwrap().join("handbook/config.json");
    let active = gateway.tool("activate_project", json!({ "config_path": inside.to_str().unwrap() }));
    assert_eq!(active["project_name"], "handbook");
    let outside = team.dir.path().canonicalize().unwrap().join("handbook/../other/x.json");
    assert_eq!(code("activate_project", json!({ "config_path": outside.to_str().unwrap() })), "TENANT_MISMATCH");
    assert_eq!(code("delete_documents", handbook(json!({ "branch_name": "dev" }))), "TENANT_MISMATCH");
    assert_eq!(
        code("delete_documents", json!({ "project_name": "handbook", "path_hash": "0123456789abcdef" })),
        "TENANT_MISMATCH"
    );
    assert_eq!(code("index_document", handbook(json!({ "path": "no.md" }))), "DOCUMENT_NOT_FOUND");
    let promote = json!({ "document_path": "no.md", "promotion_level": "critical" });
    assert_eq!(code("update_promotion_level", handbook(promote)), "DOCUMENT_NOT_FOUND");
    assert_eq!(code("delete_documents", handbook(json!({ "paths": ["no.md"] }))), "DOCUMENT_NOT_FOUND");
    assert_eq!(code("semantic_search", handbook(json!({ "query": "x", "doc_types": ["novel"] }))), "INVALID_DOC_TYPE");
    let novel = "---\ndoc_type: novel\n---\n# N";
    assert_eq!(code("index_document", handbook(json!({ "path": "a.md", "content": novel }))), "INVALID_DOC_TYPE");
    let bad = NEW.replace("naming", "shouting").replace("rationale: readable failures\n", "");
    let error = of("index_document", handbook(json!({ "path": "styles/a.md", "content": bad })));
    assert_eq!(error["code"], "SCHEMA_VALIDATION_FAILED");
    let mut faults: Vec<&str> =
        error["details"]["errors"].as_array().unwrap().iter().map(|fault| fault["pointer"].as_str().unwrap()).collect();
    faults.sort_unstable();
    assert_eq!(faults, ["", "/style_type"], "every fault is named: {error}");
    assert_eq!(
        code("search_external_docs", json!({ "project_name": "other", "query": "x" })),
        "EXTERNAL_DOCS_NOT_CONFIGURED"
    );
    assert_eq!(
        code("rag_query_external", json!({ "project_name": "other", "query": "x" })),
        "EXTERNAL_DOCS_NOT_CONFIGURED"
    );
    for path in ["guide.md", "docs/guide.md"] {
        let promote = json!({ "document_path": path, "promotion_level": "critical" });
        assert_eq!(code("update_promotion_level", handbook(promote)), "EXTERNAL_DOCS_NOT_PROMOTABLE");
    }
    fs::write(team.file("notes/binary.md"), [0xff, 0xfe, 0x00]).unwrap();
    assert_eq!(code("index_document", handbook(json!({ "path": "notes/binary.md" }))), "FILE_SYSTEM_ERROR");
    std::os::unix::fs::symlink("/etc/hostname", team.file("notes/link.md")).unwrap();
    assert_eq!(code("index_document", handbook(json!({ "path": "notes/link.md" }))), "FILE_SYSTEM_ERROR");
    let through = json!({ "path": "notes/link.md", "content": "# X\n" });
    assert_eq!(code("index_document", handbook(through)), "FILE_SYSTEM_ERROR");
    // None of them became a change.
    let (_, page) = gateway.api("GET", "/api/changes", None);
    assert_eq!(page["changes"], json!([]), "{page}");
}

#[test]
fn hostile_documents_are_refused_before_proposal() {
    let team = TestProject::new();
    let gateway = team.gateway();
    wait_until_indexed(&gateway);
    let session = gateway.session(LEGACY);
    session.call(1, "tools/call", call("activate_project", &json!({ "project_name": "handbook" })));
    let outside = team.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, team.file("way")).unwrap();
    let long = "x/".repeat(600) + "a.md";
    let mut refused = 0;
    let paths = [
        "../a.md",
        "a/../../b.md",
        "/etc/cron.d/x.md",
        "/a.md",
        "~/a.md",
        "..",
        ".",
        "",
        "a",
        "a.txt",
        ".git/a.md",
        "a\0.md",
        "a\u{202e}.md",
        "C:\\a.md",
        "..\\a.md",
        "way/a.md",
        "way/b/c.md",
        "a.md/b.md/../../../c.md",
        "//h/a.md",
        "a//b.md",
        "schemas/x.schema.yaml",
        "%2e%2e/../a.md",
        &long,
        "problems/pool.md/x.md",
    ];
    for path in paths {
        for (tool, arguments) in [
            ("index_document", json!({ "path": path, "content": "# X\n" })),
            ("index_document", json!({ "path": path })),
            ("update_promotion_level", json!({ "document_path": path, "promotion_level": "critical" })),
            ("delete_documents", json!({ "project_name": "handbook", "paths": [path] })),
        ] {
            let answer = session.call(9, "tools/call", call(tool, &arguments));
            assert!(answer["result"]["isError"] == true || answer["error"].is_object(), "{tool} {path:?}: {answer}");
            refused += 1;
        }
    }
    let documents = [
        "---\na: &a [x, x]\nb: [*a, *a]\na: 2\n---\n",
        "---\n- list\n---\n",
        "---\ndoc_type: {a: b}\n---\n",
        "a\0b",
        "---\nx: [\n---\n",
        "---\npromotion_level: supreme\n---\n",
        "---\ndoc_type: tool\n---\n",
        "---\ntitle: ''\n---\n",
    ];
    for content in documents {
        let answer =
            session.call(9, "tools/call", call("index_document", &json!({ "path": "notes/x.md", "content": content })));
        assert_eq!(answer["result"]["isError"], true, "{content:?}: {answer}");
        refused += 1;
    }
    assert!(refused >= 100, "{refused}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    let (_, page) = gateway.api("GET", "/api/changes", None);
    assert_eq!(page["changes"], json!([]), "{page}");
}

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

#[test]
fn killed_write_keeps_file_and_runs_at_most_once() {
    let team = TestProject::new();
    let big = |mark: &str| format!("# Deployments\n\n{}\n", format!("{mark} line\n").repeat(40_000));
    let mut home = None;
    let mut outcomes = Vec::new();
    for round in 0..6_u32 {
        let before = fs::read_to_string(team.file("notes/deploy.md")).unwrap();
        let options = Options { config: Some(&team.config), ..Options::default() };
        let gateway = Gateway::on_home(home.take().unwrap_or_else(|| tempfile::tempdir().unwrap()), &options);
        let after = big(&format!("round {round}"));
        let change = tool(&gateway, "index_document", json!({ "path": "notes/deploy.md", "content": after }));
        let id = change["changeId"].as_str().unwrap_or_else(|| panic!("{change}")).to_owned();
        gateway.decide(&id, "approve");
        std::thread::sleep(std::time::Duration::from_millis(u64::from(round) * 12));
        let data = gateway.kill();
        let text = fs::read_to_string(team.file("notes/deploy.md")).unwrap();
        assert!(text == before || text == after, "the file has either the old or the new content");
        let gateway = Gateway::on_home(data, &options);
        let change = eventually("it is over", || {
            let change = gateway.change(&id);
            ["applied", "outcome_unknown", "failed"].iter().any(|state| change["state"] == *state).then_some(change)
        });
        let text = fs::read_to_string(team.file("notes/deploy.md")).unwrap();
        match change["state"].as_str().unwrap() {
            "applied" => assert_eq!(text, after),
            // A person looks, and nothing is retried. The file stays blocked until they settle the outcome.
            _ => {
                assert!(text == before || text == after);
                let outcome = if text == after { "applied" } else { "failed" };
                let settle = json!({ "outcome": outcome, "comment": "by a test", "version": change["version"] });
                let (status, settled) = gateway.api("POST", &format!("/api/changes/{id}/settle"), Some(&settle));
                assert_eq!(status, 200, "{settled}");
            }
        }
        outcomes.push(change["state"].as_str().unwrap().to_owned());
        home = Some(gateway.kill());
    }
    assert!(!outcomes.contains(&"failed".to_owned()), "{outcomes:?}");
}

#[test]
fn kill_during_indexing_loses_nothing() {
    let team = TestProject::new();
    for at in 0..4000 {
        let path = team.file(&format!("many/{}/{at}.md", at % 20));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("# Number {at}\n\nThe word of it is word{at}x.\n")).unwrap();
    }
    let options = Options { config: Some(&team.config), ..Options::default() };
    let mut home = tempfile::tempdir().unwrap();
    let count = |data: &Path| -> i64 {
        let indexes = fs::read_dir(data.join("docs")).into_iter().flatten().flatten();
        let counts =
            indexes.filter(|entry| entry.file_name().to_string_lossy().ends_with(".docs.db")).filter_map(|entry| {
                let conn = rusqlite::Connection::open(entry.path()).ok()?;
                conn.query_row("SELECT count(*) FROM documents", [], |row| row.get(0)).ok()
            });
        counts.max().unwrap_or_default()
    };
    let mut seen = vec![0];
    for _ in 0..3 {
        let gateway = Gateway::on_home(home, &options);
        let before = *seen.last().unwrap();
        eventually("more of it", || (count(&gateway.data()) > before + 100).then_some(()));
        home = gateway.kill();
        seen.push(count(&home.path().join("data")));
    }
    assert!(seen.is_sorted(), "what was done is not done again: {seen:?}");
    let gateway = Gateway::on_home(home, &options);
    let active = tool(&gateway, "activate_project", json!({}));
    assert_eq!(active["total_docs"], 4003, "{active}");
    let found = tool(&gateway, "semantic_search", json!({ "query": "word3999x" }));
    assert_eq!(paths(&found)[0], "many/19/3999.md");
}

//! Tests of the knowledge base through its clients: every tool over every transport, every error code, reviewed writes
//! of files, and kills of the gateway during them.

mod kills;
mod models;
mod resources;

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
    let proposed = json!({ "path": "styles/names.md", "content": NEW });
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
    assert!(names.contains(&"front_matter.rationale") && names[0] == "file", "{names:?}");
    assert!(!team.file("styles").exists(), "nothing is written before");
    gateway.decide(&id, "approve");
    let applied = gateway.wait_for_state(&id, "applied");
    assert_eq!(applied["result"]["structuredContent"]["status"], "written", "{applied}");
    assert_eq!(fs::read_to_string(team.file("styles/names.md")).unwrap(), NEW);
    let found = tool(&gateway, "semantic_search", json!({ "query": "how is a test named", "doc_types": ["style"] }));
    assert_eq!(paths(&found), ["styles/names.md"]);

    // The level: one line of the front matter.
    let promote = json!({ "document_path": "styles/names.md", "promotion_level": "critical" });
    let change = tool(&gateway, "update_promotion_level", promote);
    let id = change["changeId"].as_str().unwrap();
    let fields = gateway.change(id)["diff"]["fields"].clone();
    assert_eq!((&fields[0]["before"], &fields[0]["after"]), (&json!("standard"), &json!("critical")));
    let lines = fields[1]["lines"].as_array().unwrap();
    let changed_lines: Vec<_> =
        lines.iter().filter(|line| !["equal", "skip"].contains(&line["op"].as_str().unwrap())).collect();
    assert_eq!(changed_lines, [&json!({ "op": "insert", "text": "promotion_level: critical" })], "{fields}");
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

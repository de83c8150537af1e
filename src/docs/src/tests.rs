//! Tests of the module through its traits, on real files.

mod diffs;
mod plans;

use std::{fs, path::PathBuf};

use serde_json::value::to_raw_value;

use super::*;
use countersign_config::DocsProject;
use countersign_domain::{
    changes::StateEffect,
    principal::{Principal, Role},
};
use countersign_protocol::ErrorKind;
use countersign_provider::{Meter, Permit};

struct TestDocs {
    docs: Arc<Docs>,
    dir: tempfile::TempDir,
}

const TOOL: &str = "---\ndoc_type: tool\ntitle: Driver\ndate: 2026-11-23\nsummary: s\nsignificance: integration\ntool_name: pg\n\
                    version: '8'\nknowledge_type: gotcha\n---\n# Driver\n\nThe driver keeps a pool. See [it](../note.md).\n";

impl TestDocs {
    async fn new() -> Self {
        Self::with_branches(false).await
    }

    /// Opens the module with the branch `main` checked out, if branches are distinguished.
    async fn with_branches(by_branch: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let git = dir.path().join("root/.git");
        fs::create_dir_all(&git).unwrap();
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        for (path, text) in [
            ("know/tools/driver.md", TOOL),
            ("know/note.md", "# Note\n\nA zebra.\n"),
            ("ref/page.md", "# Page\n\nA lion.\n"),
        ] {
            let path = dir.path().join("root").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let project = DocsProject {
            name: "handbook".into(),
            root: dir.path().join("root"),
            folder: "know".into(),
            external_docs: Some("ref".into()),
            by_branch,
        };
        let config = DocsConfig { enabled: true, projects: vec![project], embeddings: None, generation: None };
        let docs = Docs::open(&dir.path().join("data"), &config).unwrap();
        let bench = Self { docs, dir };
        bench.call("activate_project", json!({})).await.unwrap();
        bench
    }

    fn check_out(&self, branch: &str) {
        fs::write(self.dir.path().join("root/.git/HEAD"), format!("ref: refs/heads/{branch}\n")).unwrap();
    }

    fn file(&self, path: &str) -> PathBuf {
        self.dir.path().join("root/know").join(path)
    }

    async fn call(&self, tool: &str, arguments: Value) -> Result<Value, McpError> {
        let result = self.docs.call(tool, &with_project(arguments), &context()).await?;
        Ok(serde_json::from_str(result.structured_content.unwrap().get()).unwrap())
    }

    async fn preview(&self, tool: &str, arguments: Value) -> Result<Preview, McpError> {
        self.docs.preview(tool, &with_project(arguments), &context()).await
    }
}

/// Waits until the condition holds; panics after a time that no machine needs.
async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed().as_secs() < 60, "{what}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Returns the arguments with the project's name added.
fn with_project(mut arguments: Value) -> Box<RawValue> {
    arguments["project_name"] = "handbook".into();
    to_raw_value(&arguments).unwrap()
}

fn context() -> CallContext {
    CallContext::new(Arc::new(Principal::new("ann", Role::Agent)))
}

#[actix::test]
async fn tool_answers_match_their_output_schemas() {
    let bench = TestDocs::new().await;
    let content = TOOL.replace("Driver", "Another");
    let calls = [
        ("activate_project", json!({})),
        ("list_doc_types", json!({})),
        ("semantic_search", json!({ "query": "driver pool" })),
        ("rag_query", json!({ "query": "driver pool", "min_relevance_score": 0.1 })),
        ("search_external_docs", json!({ "query": "lion" })),
        ("rag_query_external", json!({ "query": "lion", "min_relevance_score": 0.1 })),
        ("index_document", json!({ "path": "tools/driver.md" })),
        ("index_document", json!({ "path": "note.md", "content": "# Note\n" })),
        ("index_document", json!({ "path": "tools/another.md", "content": content })),
        ("update_promotion_level", json!({ "document_path": "note.md", "promotion_level": "important" })),
        ("delete_documents", json!({ "dry_run": true })),
        ("delete_documents", json!({ "paths": ["note.md"] })),
    ];
    let tools = definitions::tools();
    for tool in &tools {
        assert!(calls.iter().any(|(name, _)| *name == tool.name), "{} is not called", tool.name);
    }
    for (name, arguments) in calls {
        let tool = tools.iter().find(|tool| tool.name == name).unwrap();
        let given: Value = serde_json::from_str(with_project(arguments.clone()).get()).unwrap();
        jsonschema::validate(&tool.input_schema, &given).unwrap();
        let answer =
            bench.call(name, arguments.clone()).await.unwrap_or_else(|error| panic!("{name} {arguments}: {error}"));
        let own = &tool.output_schema.as_ref().unwrap()["anyOf"][0];
        jsonschema::validate(own, &answer).unwrap_or_else(|error| panic!("{name}: {error}\n{answer}"));
        // Every property that is present is described.
        let described = own["properties"].as_object().unwrap();
        assert!(answer.as_object().unwrap().keys().all(|key| described.contains_key(key)), "{name}: {answer}");
    }
    assert!(!bench.file("note.md").exists() && bench.file("tools/another.md").exists());
}

#[actix::test]
async fn withdrawn_permit_stops_the_call() {
    let bench = TestDocs::new().await;
    let arguments = with_project(json!({ "path": "late.md", "content": "# Late\n" }));
    let permit = Some(Permit(Arc::new(|| false)));
    let late = bench.docs.call("index_document", &arguments, &CallContext { permit, ..context() }).await;
    assert_eq!(late.unwrap_err().data["outcome"], "not_applied");
    assert!(!bench.file("late.md").exists());
}

#[actix::test]
async fn run_refuses_what_the_preview_refuses() {
    let bench = TestDocs::new().await;
    fs::write(bench.file("flow.md"), "---\n{title: Flow}\n---\n").unwrap();
    let listed = || {
        let mut all: Vec<_> = fs::read_dir(bench.file("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        all.sort();
        all
    };
    let before = listed();
    for (tool, arguments) in [
        ("index_document", json!({ "path": "../x.md", "content": "# X" })),
        ("index_document", json!({ "path": "tools/x.md", "content": "# X" })),
        ("index_document", json!({ "path": "note.md", "content": "# Note\n\nA zebra.\n" })),
        ("index_document", json!({ "path": "note.md/x.md", "content": "# X" })),
        ("update_promotion_level", json!({ "document_path": "none.md", "promotion_level": "critical" })),
        ("update_promotion_level", json!({ "document_path": "note.md", "promotion_level": "standard" })),
        ("update_promotion_level", json!({ "document_path": "page.md", "promotion_level": "critical" })),
        ("update_promotion_level", json!({ "document_path": "flow.md", "promotion_level": "critical" })),
        ("delete_documents", json!({ "paths": ["none.md"] })),
        ("delete_documents", json!({ "branch_name": "dev" })),
    ] {
        let by_preview = bench.preview(tool, arguments.clone()).await.expect_err(&arguments.to_string());
        let by_run = bench.call(tool, arguments.clone()).await.expect_err(&arguments.to_string());
        assert_eq!(by_preview, by_run, "{arguments}");
    }
    assert_eq!(listed(), before);
}

#[actix::test]
async fn fingerprint_follows_only_the_file() {
    let bench = TestDocs::new().await;
    let calls = [
        ("index_document", json!({ "path": "note.md", "content": "# Other\n" })),
        ("update_promotion_level", json!({ "document_path": "note.md", "promotion_level": "critical" })),
        ("delete_documents", json!({ "paths": ["note.md"] })),
    ];
    let mut fingerprints = Vec::new();
    for (tool, arguments) in &calls {
        let fingerprint = bench.preview(tool, arguments.clone()).await.unwrap().fingerprint;
        assert_eq!(bench.preview(tool, arguments.clone()).await.unwrap().fingerprint, fingerprint);
        fingerprints.push(fingerprint);
    }
    fs::write(bench.file("unrelated.md"), "# Unrelated").unwrap();
    bench.call("index_document", json!({ "path": "unrelated.md" })).await.unwrap();
    for ((tool, arguments), fingerprint) in calls.iter().zip(&fingerprints) {
        assert_eq!(bench.preview(tool, arguments.clone()).await.unwrap().fingerprint, *fingerprint, "{tool}");
    }
    fs::write(bench.file("note.md"), "# Note\n\nAnother zebra.\n").unwrap();
    bench.call("index_document", json!({ "path": "note.md" })).await.unwrap();
    for ((tool, arguments), fingerprint) in calls.iter().zip(&fingerprints) {
        assert_ne!(bench.preview(tool, arguments.clone()).await.unwrap().fingerprint, *fingerprint, "{tool}");
    }
}

#[actix::test]
async fn deletion_fingerprint_follows_the_live_file() {
    let bench = TestDocs::new().await;
    let arguments = json!({ "paths": ["note.md"] });
    let before = bench.preview("delete_documents", arguments.clone()).await.unwrap();
    // The index may not have the new content yet.
    fs::write(bench.file("note.md"), "# Note\n\nA zebrA.\n").unwrap();
    let after = bench.preview("delete_documents", arguments.clone()).await.unwrap();
    assert_ne!(after.fingerprint, before.fingerprint);
    assert_eq!((after.diff, after.state_effect), (before.diff, StateEffect::Dependent), "the diff shows no content");
    fs::write(bench.file("new.md"), "# New\n").unwrap();
    let all = bench.call("delete_documents", json!({ "dry_run": true })).await.unwrap();
    assert_eq!((&all["deleted_count"], &all["deleted_chunks"]), (&json!(3), &json!(3)), "{all}");
    fs::remove_file(bench.file("note.md")).unwrap();
    let missing = bench.preview("delete_documents", arguments).await.unwrap_err();
    assert_eq!(missing.kind, ErrorKind::DocumentNotFound);
}

#[actix::test]
async fn written_documents_are_read_back() {
    let bench = TestDocs::new().await;
    for (tool, arguments) in [
        ("index_document", json!({ "path": "note.md", "content": "# Other\n" })),
        ("update_promotion_level", json!({ "document_path": "note.md", "promotion_level": "critical" })),
    ] {
        let preview = bench.preview(tool, arguments.clone()).await.unwrap();
        let shown_fields = preview.diff.fields.iter();
        let approved: Vec<_> = shown_fields.map(|shown| (shown.field.as_str(), shown.after.clone())).collect();
        let (arguments, context) = (with_project(arguments), context());
        let read = async || bench.docs.read_back(tool, &arguments, RawValue::NULL, &context).unwrap().await.unwrap();
        assert_ne!(read().await, approved, "{tool}");
        bench.docs.call(tool, &arguments, &context).await.unwrap();
        assert_eq!(read().await, approved, "{tool}");
    }
    let deletion = with_project(json!({ "paths": ["note.md"] }));
    assert!(bench.docs.read_back("delete_documents", &deletion, RawValue::NULL, &context()).is_none());
}

#[actix::test]
async fn write_is_refused_after_branch_switch() {
    let bench = TestDocs::with_branches(true).await;
    for (tool, arguments) in [
        ("index_document", json!({ "path": "note.md", "content": "# Other\n" })),
        ("update_promotion_level", json!({ "document_path": "note.md", "promotion_level": "critical" })),
        ("delete_documents", json!({ "paths": ["note.md"] })),
    ] {
        let approved = bench.preview(tool, arguments.clone()).await.unwrap().fingerprint;
        let ctx = CallContext { approved_fingerprint: Some(approved), ..context() };
        // The file is the same on the other branch, and the worker has not noticed the switch yet.
        bench.check_out("dev");
        let error = bench.docs.call(tool, &with_project(arguments), &ctx).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::ProjectMismatch | ErrorKind::ChangeStale), "{tool}: {error}");
        assert_eq!(fs::read_to_string(bench.file("note.md")).unwrap(), "# Note\n\nA zebra.\n", "{tool}");
        bench.check_out("main");
        wait_until("it is back", || bench.docs.reader.library.projects[0].branch() == "main").await;
    }
}

#[actix::test]
async fn index_deletion_differs_from_file_deletion() {
    let bench = TestDocs::with_branches(true).await;
    let project = Arc::clone(&bench.docs.reader.library.projects[0]);
    bench.check_out("dev");
    wait_until("it is followed", || project.branch() == "dev").await;
    let arguments = json!({ "branch_name": "main" });
    let index = bench.preview("delete_documents", arguments.clone()).await.unwrap().fingerprint;
    bench.check_out("main");
    wait_until("it is back", || project.branch() == "main").await;
    assert_ne!(bench.preview("delete_documents", arguments).await.unwrap().fingerprint, index);
}

#[actix::test]
async fn document_read_is_charged_to_its_caller() {
    let bench = TestDocs::new().await;
    let content = format!("# Long\n\n{}", "## h\n\nx\n\n".repeat(10_000));
    for (tool, arguments) in [
        ("index_document", json!({ "path": "long.md", "content": content })),
        ("index_document", json!({ "path": "note.md" })),
        ("delete_documents", json!({ "dry_run": true })),
        ("delete_documents", json!({ "paths": ["note.md"] })),
    ] {
        let charges = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&charges);
        let meter = Meter(Arc::new(move |_| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }));
        let ctx = CallContext { meter: Some(meter), ..context() };
        if arguments.get("content").is_some() || arguments.get("paths").is_some() {
            bench.docs.preview(tool, &with_project(arguments), &ctx).await.unwrap();
        } else {
            bench.docs.call(tool, &with_project(arguments), &ctx).await.unwrap();
        }
        assert_eq!(charges.load(std::sync::atomic::Ordering::Relaxed), 1, "{tool}");
    }
}

/// Returns a context with a session.
fn in_session(notes: &Arc<SessionNotes>) -> CallContext {
    CallContext { session_notes: Some(Arc::clone(notes)), ..context() }
}

#[actix::test]
async fn branch_name_is_accepted_without_branch_tracking() {
    let bench = TestDocs::new().await;
    let notes = Arc::new(SessionNotes::default());
    let arguments = with_project(json!({ "branch_name": "feature/x" }));
    let answer = bench.docs.call("activate_project", &arguments, &in_session(&notes)).await.unwrap();
    let answer: Value = serde_json::from_str(answer.structured_content.unwrap().get()).unwrap();
    assert_eq!((&answer["branch_name"], &answer["branches"]), (&json!("-"), &json!("none")), "{answer}");
    assert!(answer["note"].as_str().unwrap().contains("does not tell branches apart"), "{answer}");
    let search = json!({ "query": "x", "branch_name": "main" });
    assert!(bench.call("semantic_search", search.clone()).await.is_ok());
    let delete = json!({ "branch_name": "main", "dry_run": true });
    assert!(bench.call("delete_documents", delete).await.is_err(), "a deletion must name its real branch");
    let bench = TestDocs::with_branches(true).await;
    assert!(bench.call("semantic_search", search).await.is_ok());
    let search = json!({ "query": "x", "branch_name": "never" });
    assert_eq!(bench.call("semantic_search", search).await.unwrap_err().kind, ErrorKind::ProjectMismatch);
    let answer = bench.call("activate_project", json!({ "branch_name": "main" })).await.unwrap();
    assert_eq!((&answer["branch_name"], &answer["branches"]), (&json!("main"), &json!("git")), "{answer}");
    let error = bench.call("activate_project", json!({ "branch_name": "never" })).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ProjectMismatch);
}

#[actix::test]
async fn session_sees_only_its_project_and_branch() {
    let bench = TestDocs::with_branches(true).await;
    let notes = Arc::new(SessionNotes::default());
    let (ctx, uri) = (in_session(&notes), "docs://handbook/note.md");
    assert!(bench.docs.read_resource(uri, &ctx).await.is_ok(), "the session has no active project yet");
    for (project, branch) in [("other", "main"), ("handbook", "dev")] {
        tenant::ActiveTenant { project: project.into(), branch: branch.into() }.save(&notes);
        let read = bench.docs.read_resource(uri, &ctx).await.unwrap_err();
        let subscribed = bench.docs.check_subscription(uri, &ctx).await.unwrap_err();
        assert_eq!((read.kind, subscribed.kind), (ErrorKind::ProjectMismatch, ErrorKind::ProjectMismatch), "{project}");
        assert!(bench.docs.resources(&ctx).await.unwrap().is_empty());
        let known = serde_json::from_value(json!({ "project": "handbook", "type": "tool" })).unwrap();
        let template = CompletionRef::ResourceTemplate("docs://{project}/{+path}".into());
        let completed = bench.docs.complete(&template, ("path", ""), &known, &ctx).await.unwrap_err();
        let prompted = bench.docs.get_prompt("capture", &known, &ctx).await.unwrap_err();
        assert_eq!((completed.kind, prompted.kind), (ErrorKind::ProjectMismatch, ErrorKind::ProjectMismatch));
    }
    tenant::ActiveTenant { project: "handbook".into(), branch: "main".into() }.save(&notes);
    assert!(
        bench.docs.read_resource(uri, &ctx).await.is_ok() && bench.docs.check_subscription(uri, &ctx).await.is_ok()
    );
    assert_eq!(bench.docs.resources(&ctx).await.unwrap().len(), 2);
    assert!(bench.docs.read_resource(uri, &context()).await.is_ok(), "a call without a session has no active project");
}

#[actix::test]
async fn report_counts_documents_and_names_faults() {
    let bench = TestDocs::new().await;
    let detail_of = |documents: &str| {
        format!("handbook: {documents}, 1 without front matter, and 1 file of reference documentation")
    };
    assert_eq!(bench.docs.report(), Report { details: vec![detail_of("2 documents")], warnings: Vec::new() });
    fs::write(bench.file("tools/bad.md"), TOOL.replace("gotcha", "trick")).unwrap();
    bench.call("index_document", json!({ "path": "tools/bad.md" })).await.unwrap();
    let Report { details, warnings } = bench.docs.report();
    assert_eq!(details.len(), 1);
    assert!(
        details[0].starts_with("handbook: 3 documents, 1 without front matter, 1 whose front matter"),
        "{details:?}"
    );
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(warning.starts_with("handbook: tools/bad.md: /knowledge_type: \"trick\" is not one of "), "{warning}");
    let active = bench.call("activate_project", json!({})).await.unwrap();
    assert!(active["warnings"][0].as_str().unwrap().contains("tools/bad.md"), "{active}");

    let bench = TestDocs::with_branches(true).await;
    assert!(bench.docs.report().details[0].starts_with("handbook on main: "));
    fs::remove_dir_all(bench.dir.path().join("root/.git")).unwrap();
    wait_until("it is seen", || !bench.docs.report().warnings.is_empty()).await;
    let warnings = bench.docs.report().warnings;
    assert!(
        warnings[0].contains("`branches: git` is configured, and its root lies in no git repository"),
        "{warnings:?}"
    );
    let error = bench.call("activate_project", json!({ "branch_name": "main" })).await;
    assert!(error.is_ok(), "the branch was indexed before");
    let error = bench.call("activate_project", json!({ "branch_name": "dev" })).await.unwrap_err();
    assert!(error.message.contains("lies in no git repository"), "{error}");
}

#[actix::test]
async fn run_is_refused_if_state_differs_from_approval() {
    let bench = TestDocs::new().await;
    for (tool, arguments) in [
        ("index_document", json!({ "path": "note.md", "content": "# Other\n" })),
        ("index_document", json!({ "path": "new.md", "content": "# Other\n" })),
        ("update_promotion_level", json!({ "document_path": "note.md", "promotion_level": "critical" })),
        ("delete_documents", json!({ "paths": ["note.md", "tools/driver.md"] })),
    ] {
        let approved = bench.preview(tool, arguments.clone()).await.unwrap().fingerprint;
        let ctx = CallContext { approved_fingerprint: Some(approved), ..context() };
        let before: Vec<_> = ["note.md", "new.md"].map(|path| fs::read(bench.file(path)).ok()).into();
        for path in ["note.md", "new.md"] {
            fs::write(bench.file(path), format!("# By somebody else, for {tool}\n")).unwrap();
        }
        let error = bench.docs.call(tool, &with_project(arguments.clone()), &ctx).await.unwrap_err();
        assert_eq!((error.kind, &error.data["outcome"]), (ErrorKind::ChangeStale, &json!("not_applied")), "{tool}");
        assert!(bench.file("note.md").exists() && bench.file("tools/driver.md").exists(), "{tool}");
        for (path, before) in ["note.md", "new.md"].into_iter().zip(before) {
            assert!(fs::read_to_string(bench.file(path)).unwrap().contains("somebody else"), "{tool}");
            match before {
                Some(bytes) => fs::write(bench.file(path), bytes).unwrap(),
                None => fs::remove_file(bench.file(path)).unwrap(),
            }
        }
        // With the approved state, it runs.
        bench.docs.call(tool, &with_project(arguments), &ctx).await.unwrap_or_else(|error| panic!("{tool}: {error}"));
    }
    assert!(!bench.file("note.md").exists());
}

#[test]
fn call_reads_only_if_arguments_say_so_once() {
    let reads = |tool: &str, arguments: &str| {
        let tools = definitions::tools();
        let tool = tools.into_iter().find(|def| def.name == tool).unwrap();
        tool.read_only_when.unwrap()(&RawValue::from_string(arguments.to_owned()).unwrap())
    };
    assert!(reads("index_document", r#"{"path":"a.md"}"#));
    for writes in [r#"{"path":"a.md","content":""}"#, r#"{"c\u006fntent":"x"}"#, r#"{"content":null}"#] {
        assert!(!reads("index_document", writes), "{writes}");
    }
    assert!(reads("delete_documents", r#"{"dry_run":true}"#));
    for writes in
        [r#"{"dry_run":false}"#, "{}", r#"{"dry_run":"true"}"#, r#"{"dry_run":1}"#, r#"{"x":{"dry_run":true}}"#]
    {
        assert!(!reads("delete_documents", writes), "{writes}");
    }
    // Duplicate members are refused.
    for twice in [
        r#"{"project_name":"h","dry_run":true,"dry_run":false}"#,
        r#"{"project_name":"h","dry_run":true,"dry\u005frun":false}"#,
    ] {
        assert!(
            WritingToolCall::parse("delete_documents", &RawValue::from_string(twice.to_owned()).unwrap())
                .unwrap()
                .is_err()
        );
    }
    let twice = r#"{"path":"a.md","content":"x","content":"y"}"#;
    assert!(
        WritingToolCall::parse("index_document", &RawValue::from_string(twice.to_owned()).unwrap()).unwrap().is_err()
    );
}

#[actix::test]
async fn preview_reads_need_the_search_permission() {
    let bench = TestDocs::new().await;
    let preview_reads_of =
        |tool: &str, arguments: Value| bench.docs.preview_reads(tool, &with_project(arguments)).unwrap();
    for (tool, arguments) in [
        ("index_document", json!({ "path": "note.md", "content": "x" })),
        ("update_promotion_level", json!({ "document_path": "note.md", "promotion_level": "critical" })),
        ("delete_documents", json!({})),
    ] {
        let reads = preview_reads_of(tool, arguments);
        assert_eq!((reads[0].0, &reads[0].1["project_name"]), ("semantic_search", &json!("handbook")), "{tool}");
    }
    assert!(preview_reads_of("semantic_search", json!({ "query": "x" })).is_empty());
}

#[actix::test]
async fn out_of_bounds_arguments_are_refused() {
    let bench = TestDocs::new().await;
    for (tool, arguments) in [
        ("semantic_search", json!({ "query": "" })),
        ("semantic_search", json!({ "query": "x".repeat(3000) })),
        ("semantic_search", json!({ "query": "x", "limit": 0 })),
        ("semantic_search", json!({ "query": "x", "min_relevance_score": 1.5 })),
        ("semantic_search", json!({ "query": 7 })),
        ("semantic_search", json!({ "query": "x", "promotion_levels": ["supreme"] })),
        ("rag_query", json!({ "query": "x", "max_sources": 1000 })),
        ("index_document", json!({ "path": "a.md", "content": "x".repeat(2 << 20) })),
        ("delete_documents", json!({ "paths": [] })),
    ] {
        let error = bench.call(tool, arguments).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ValidationFailed, "{tool}: {error}");
    }
    assert_eq!(bench.call("no_tool", json!({})).await.unwrap_err().kind, ErrorKind::ToolNotFound);
}

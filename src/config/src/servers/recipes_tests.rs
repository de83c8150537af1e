//! Tests recipes against a fake server. These tests of the recipe runner are here because recipes are compiled from YAML
//! in this crate.

mod language;
mod unnamed_arguments;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json, value::RawValue};

use countersign_domain::{
    changes::{LineOp, Operation, Preview, PreviewKind},
    policy::Verdict,
    principal::{Principal, Role},
    recipes::{Recipe, Recipes, StateAfter},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    Provider, ToolDef, ToolResult,
    previews::{PreviewRequest, compose::ComputedPreview, recipe_runner::RecipeRunner},
    testing::{FakeDirectory, FakeProvider, context, upstream_tool},
};

/// A server with the tools `read` and `write` (which has `dryRun`), listed as `s__read` and `s__write`.
struct FakeServer(Arc<FakeProvider>);

impl FakeServer {
    fn new(answers: impl Fn(&str, &Value) -> Result<ToolResult, McpError> + Send + Sync + 'static) -> Self {
        let def = |name: &str, properties: Value| {
            let raw = json!({ "name": name, "inputSchema": { "type": "object", "properties": properties } });
            ToolDef { name: format!("s__{name}"), ..upstream_tool(&raw) }
        };
        let tools = vec![def("read", json!({})), def("write", json!({ "path": {}, "text": {}, "dryRun": {} }))];
        let write = tools[1].clone();
        Self(Arc::new(FakeProvider {
            tools: Mutex::new(tools),
            call_script: Some(Box::new(move |tool, arguments| {
                answers(tool, &serde_json::from_str(arguments.get()).unwrap())
            })),
            preview_script: Some(Box::new(move |_, arguments| {
                Ok(countersign_provider::previews::arguments::preview_arguments("s", "write", &write, arguments))
            })),
            ..FakeProvider::new("s")
        }))
    }

    /// Creates a server whose `read` returns this text.
    fn with_text(text: &'static str) -> Self {
        Self::new(move |_, _| Ok(ToolResult::text(text, None)))
    }

    /// Returns the calls so far with their arguments.
    fn calls(&self) -> Vec<(String, Value)> {
        let calls = self.0.received_calls.lock().unwrap();
        calls.iter().map(|(tool, arguments)| (tool.clone(), serde_json::from_str(arguments).unwrap())).collect()
    }
}

/// A policy with the verdict of every call, and whether definitions are pinned.
struct FakePolicy(Verdict, bool);

const ALLOW_ALL: FakePolicy = FakePolicy(Verdict::Allow, true);
const WRITE_RECIPE: &str = "{target: arguments.path, entity: file, summary: 'Write {arguments.path}', before: {tool: read, \
                     arguments: {path: arguments.path}, missing: '^ENOENT'}, after: arguments.text}";

/// Compiles the recipes of a server from its configuration.
fn recipes(server: &str) -> Recipes {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.yaml");
    std::fs::write(&file, format!("mcpServers: {{ s: {server} }}")).unwrap();
    let flags = crate::Flags { config: Some(file), data: Some("d".into()), ..Default::default() };
    let environment = crate::Environment::new(std::path::Path::new("/"), &[]);
    let config = crate::load(&flags, &environment).unwrap_or_else(|e| panic!("{e}")).config;
    config.upstreams[0].previews.clone()
}

/// Compiles one recipe from YAML.
pub(super) fn recipe(yaml: &str) -> Recipe {
    recipes(&format!("{{ command: x, previews: {{ write: {yaml} }} }}")).get("write").unwrap().clone()
}

async fn make_preview(server: &FakeServer, rules: &FakePolicy, yaml: &str, arguments: &Value) -> ComputedPreview {
    make_preview_with(server, rules, &recipe(yaml), arguments).await
}

async fn make_preview_with(
    server: &FakeServer,
    rules: &FakePolicy,
    recipe: &Recipe,
    arguments: &Value,
) -> ComputedPreview {
    let fake = &server.0;
    *fake.verdict.lock().unwrap() = rules.0;
    fake.pinned.store(rules.1, Ordering::SeqCst);
    let provider = Arc::clone(fake) as Arc<dyn Provider>;
    let context = context(Principal::new("ann", Role::Admin));
    let raw = RawValue::from_string(arguments.to_string()).unwrap();
    let plain = provider.preview("s__write", &raw, &context).await.unwrap();
    let directory = FakeDirectory(Arc::clone(fake));
    let request = PreviewRequest {
        directory: &directory,
        provider: &provider,
        tool: "s__write",
        arguments: &raw,
        context: &context,
    };
    let made = RecipeRunner::new(request).run(recipe, plain).await;
    let judged = fake.judged_principals.lock().unwrap();
    let callers = fake.callers.lock().unwrap();
    assert!(callers.iter().all(|by| by.name == "ann"), "on behalf of its proposer");
    let mut rights = judged.iter().chain(callers.iter().map(|by| &**by));
    assert!(rights.all(|by| by.role == Role::Agent), "with no more rights than an agent has");
    made
}

async fn preview(server: &FakeServer, yaml: &str, arguments: &Value) -> Preview {
    let made = make_preview(server, &ALLOW_ALL, yaml, arguments).await;
    assert!(made.transient_error.is_none());
    made.preview
}

/// Returns everything that the proposer of a change with this preview sees.
fn seen_by_proposer(preview: Preview) -> String {
    let mut change = countersign_domain::changes::testing::change(
        "chg_1",
        "ann",
        1,
        countersign_domain::changes::ChangeState::Pending,
    );
    change.served_by =
        countersign_domain::changes::ServerIdentity { fingerprint: "sha256:s".into(), label: "s".into() };
    (change.preview, change.operation, change.target) = (preview.note, preview.operation, preview.target);
    (change.summary, change.diff) = (preview.summary, preview.diff);
    format!("{:?}", change.for_proposer())
}

pub(super) fn failure(text: &str) -> Result<ToolResult, McpError> {
    Ok(ToolResult { is_error: true, ..ToolResult::text(text, None) })
}

fn lines(preview: &Preview, field: usize) -> Vec<String> {
    let mark = |op| match op {
        LineOp::Equal => ' ',
        LineOp::Insert => '+',
        LineOp::Delete => '-',
        LineOp::Skip => '@',
        LineOp::Note => '#',
    };
    preview.diff.fields[field].lines.iter().map(|line| format!("{}{}", mark(line.op), line.text)).collect()
}

#[tokio::test]
async fn preview_shows_current_and_new_text() {
    let server = FakeServer::with_text("one\ntwo\n");
    let arguments = json!({ "path": "/a/../b", "text": "one\n2\n" });
    let seen = preview(&server, WRITE_RECIPE, &arguments).await;
    assert_eq!(lines(&seen, 0), [" one", "-two", "+2"]);
    assert_eq!((seen.note.kind, seen.note.failed.as_deref()), (PreviewKind::BeforeAfter, None));
    assert_eq!((seen.target.label.as_str(), seen.target.lock_key.as_str()), ("/a/../b", "/b"));
    assert_eq!((seen.target.entity_type.as_str(), seen.summary.as_str()), ("file", "Write /a/../b"));
    assert_eq!(seen.operation, Operation::Update);
    assert_eq!(server.calls()[..1], [("s__read".to_owned(), json!({ "path": "/a/../b" }))]);
    let same = preview(&server, WRITE_RECIPE, &json!({ "path": "/b", "text": "one\ntwo\n" })).await;
    assert_eq!(lines(&same, 0), ["#(nothing would change)"]);
    // The same text has the same fingerprint, and other text has another.
    assert_eq!(preview(&server, WRITE_RECIPE, &arguments).await.fingerprint, seen.fingerprint);
    let other = preview(&FakeServer::with_text("one\ntwo\n\n"), WRITE_RECIPE, &arguments).await;
    assert_ne!(other.fingerprint, seen.fingerprint);
}

#[tokio::test]
async fn missing_target_is_created_but_other_errors_fail() {
    let arguments = json!({ "path": "/b", "text": "new" });
    let seen = preview(&FakeServer::new(|_, _| failure("ENOENT: no such file")), WRITE_RECIPE, &arguments).await;
    let field = &seen.diff.fields[0];
    assert_eq!((field.label.as_str(), lines(&seen, 0)), ("Now", vec!["#(does not exist)".to_owned()]));
    let field = &seen.diff.fields[1];
    assert_eq!((field.before.as_deref(), field.after.as_deref()), (None, Some("new")));
    assert_eq!((seen.operation, seen.note.is_live()), (Operation::Create, true));
    // An existing file must not let an error pass for a missing file.
    let denied = preview(&FakeServer::new(|_, _| failure("EACCES: '/x/ENOENT'")), WRITE_RECIPE, &arguments).await;
    assert_eq!(denied.note.failed.as_deref(), Some("s__read answered: EACCES: '/x/ENOENT'"));
    assert_eq!((denied.note.kind, denied.note.is_live()), (PreviewKind::Arguments, false));
    assert_eq!(denied.target.label, "/b", "what is known of the target stays");
    assert!(denied.diff.fields.iter().any(|field| field.field == "text"), "the arguments are shown");
    assert_ne!(denied.fingerprint, seen.fingerprint);
    let empty = preview(&FakeServer::with_text(""), WRITE_RECIPE, &arguments).await;
    assert_ne!(empty.fingerprint, seen.fingerprint, "an empty file is not a missing one");
}

#[tokio::test]
async fn dry_run_adds_its_arguments_to_the_call() {
    let server = FakeServer::with_text("```diff\n--- a\n+++ a\n@@ -3,2 +3,2 @@\n x\n-y\n+z\n```\n\n");
    let yaml = "{dry_run: {arguments: {dryRun: true}, as: diff, label: Content}}";
    let seen = preview(&server, yaml, &json!({ "path": "p", "dryRun": false })).await;
    assert_eq!(server.calls(), [("s__write".to_owned(), json!({ "path": "p", "dryRun": true }))]);
    assert_eq!(seen.note.kind, PreviewKind::DryRun);
    assert_eq!(lines(&seen, 0), ["#--- a", "#+++ a", "@2", " x", "-y", "+z"]);
    assert_eq!(seen.diff.fields[0].label, "Content");
}

#[tokio::test]
async fn call_that_asks_for_a_dry_run_is_shown_as_one() {
    let server = FakeServer::with_text("y is replaced");
    let seen =
        preview(&server, "{dry_run: {arguments: {dryRun: true}}}", &json!({ "path": "p", "dryRun": true })).await;
    assert_eq!(lines(&seen, 0), ["#The call itself asks for a dry run, so nothing is written."]);
    assert_eq!(lines(&seen, 1), [" y is replaced"]);
    assert_eq!((seen.operation, seen.note.kind), (Operation::Call, PreviewKind::DryRun));
    // The states of `before` and `after` are not shown, because `after` does not come about.
    let failing = FakeServer::new(|tool, _| match tool {
        "s__write" => failure("no"),
        _ => Ok(ToolResult::text("old", None)),
    });
    let both = format!("{{dry_run: {{arguments: {{dryRun: true}}}}, {}", &WRITE_RECIPE[1..]);
    let seen = preview(&failing, &both, &json!({ "path": "p", "text": "t", "dryRun": true })).await;
    assert_eq!(seen.note.failed.as_deref(), Some("the dry run answered: no"));
}

#[tokio::test]
async fn dry_run_is_skipped_if_it_might_write() {
    let server = FakeServer::with_text("done!");
    let arguments = json!({ "path": "p", "text": "t" });
    let unknown = "{dry_run: {arguments: {simulate: true}}}";
    let seen = preview(&server, unknown, &arguments).await;
    assert_eq!(seen.note.failed.as_deref(), Some("there is no dry run: s__write has no argument `simulate`"));
    let known = "{dry_run: {arguments: {dryRun: true}}}";
    let seen = make_preview(&server, &FakePolicy(Verdict::Allow, false), known, &arguments).await.preview;
    assert!(seen.note.failed.unwrap().contains("is not accepted for"));
    assert_eq!(server.calls().len(), 0, "nothing was called");
    // The next kind of preview is used instead, and reviewers see the reason.
    let both = format!("{{dry_run: {{arguments: {{simulate: true}}}}, {}", &WRITE_RECIPE[1..]);
    let seen = preview(&server, &both, &arguments).await;
    assert_eq!((seen.note.kind, seen.note.failed.as_deref()), (PreviewKind::BeforeAfter, None));
    assert!(lines(&seen, 1)[0].contains("has no argument `simulate`") && seen.diff.fields[1].restricted);
    assert_eq!(server.calls().iter().map(|(tool, _)| tool.as_str()).collect::<Vec<_>>(), ["s__read"]);
}

#[tokio::test]
async fn dry_run_needs_an_accepted_tool_or_a_named_recipe() {
    let is_trusted = |server: &str| recipes(server).get("edit_file").unwrap().dry_run.as_ref().unwrap().is_trusted;
    let command = "command: npx, args: ['@modelcontextprotocol/server-filesystem', /srv/files]";
    assert!(!is_trusted(&format!("{{ {command} }}")) && !is_trusted(&format!("{{ {command}, previews: auto }}")));
    for named in ["filesystem", "[filesystem, auto]", "[auto, {edit_file: {dry_run: {arguments: {dryRun: true}}}}]"] {
        assert!(is_trusted(&format!("{{ {command}, previews: {named} }}")), "{named}");
    }

    let server = FakeServer::with_text("done!");
    let arguments = json!({ "path": "p", "text": "t" });
    let mut recognized = recipe("{dry_run: {arguments: {dryRun: true}}}");
    recognized.dry_run.as_mut().unwrap().is_trusted = false;
    server.0.accepted.store(false, Ordering::SeqCst);
    let seen = make_preview_with(&server, &ALLOW_ALL, &recognized, &arguments).await.preview;
    let why = seen.note.failed.unwrap();
    assert!(why.contains("accept") && why.contains("`mcpServers.s.previews`"), "{why}");
    assert!(seen.diff.fields.iter().any(|field| field.field == "text"), "the arguments are shown");
    assert_eq!(server.calls().len(), 0, "nothing was called");
    server.0.accepted.store(true, Ordering::SeqCst);
    let seen = make_preview_with(&server, &ALLOW_ALL, &recognized, &arguments).await.preview;
    assert_eq!(seen.note.kind, PreviewKind::DryRun);
}

#[tokio::test]
async fn policy_decides_who_sees_read_text() {
    let server = FakeServer::with_text("secret\n");
    let arguments = json!({ "path": "p", "text": "mine\n" });
    let open = make_preview(&server, &ALLOW_ALL, WRITE_RECIPE, &arguments).await.preview;
    assert!(!open.note.restricted);
    let reviewed = make_preview(&server, &FakePolicy(Verdict::Review, true), WRITE_RECIPE, &arguments).await.preview;
    assert_eq!(reviewed.fingerprint, open.fingerprint);
    assert!(lines(&reviewed, 0).contains(&"-secret".to_owned()), "reviewers see it");
    assert!(reviewed.note.restricted);
    // Hidden text, failures and missing text must look the same to the proposer.
    let servers = [
        FakeServer::with_text("mine\n"),
        FakeServer::new(|_, _| failure("ENOENT")),
        FakeServer::new(|_, _| failure("EACCES")),
        FakeServer::new(|_, _| Err(McpError::new(ErrorKind::UpstreamUnavailable, "it is away"))),
    ];
    for server in &servers {
        let other = make_preview(server, &FakePolicy(Verdict::Review, true), WRITE_RECIPE, &arguments).await.preview;
        assert!(other.note.restricted, "{:?}", other.note);
        assert_eq!(seen_by_proposer(other), seen_by_proposer(reviewed.clone()));
    }
    assert!(!seen_by_proposer(reviewed).contains("secret"));
    let calls = server.calls().len();
    let denied = make_preview(&server, &FakePolicy(Verdict::Deny, true), WRITE_RECIPE, &arguments).await.preview;
    assert_eq!(denied.note.failed.as_deref(), Some("policy denies s__read to the proposer"));
    assert!(denied.note.restricted);
    assert_eq!(server.calls().len(), calls);
}

#[tokio::test]
async fn volatile_parts_of_reads_are_ignored_in_fingerprint() {
    static TIMES: AtomicUsize = AtomicUsize::new(0);
    let server = FakeServer::new(|_, arguments| match arguments["path"].as_str() {
        Some("gone") => failure("ENOENT"),
        _ => {
            let now = TIMES.fetch_add(1, Ordering::SeqCst);
            Ok(ToolResult::text(&format!("size: 3\naccessed: {now}\n"), Some(&json!({ "b": 1, "a": [now], "c": "x" }))))
        }
    });
    let yaml = "{operation: delete, reads: [\
                {label: Info, tool: read, arguments: {path: arguments.path}, lines: '^size', missing: ENOENT}, \
                {label: Kept, tool: read, arguments: {path: x, none: null}, text: /structuredContent, keep: '{\"c\": found.c}'}]}";
    let seen = preview(&server, yaml, &json!({ "path": "p" })).await;
    let labels: Vec<&str> = seen.diff.fields.iter().map(|field| field.label.as_str()).collect();
    assert_eq!(labels, ["path", "Info", "Kept"]);
    assert_eq!(lines(&seen, 1), [" size: 3"]);
    assert_eq!(lines(&seen, 2), [" {", "   \"c\": \"x\"", " }"]);
    assert_eq!(server.calls()[1].1, json!({ "path": "x" }), "null is left out");
    assert_eq!((seen.operation, seen.note.kind), (Operation::Delete, PreviewKind::BeforeAfter));
    assert_eq!(preview(&server, yaml, &json!({ "path": "p" })).await.fingerprint, seen.fingerprint);
    let gone = preview(&server, yaml, &json!({ "path": "gone" })).await;
    assert_eq!(lines(&gone, 1), ["#(nothing is there)"]);
}

#[tokio::test]
async fn transient_and_lasting_failures_are_distinguished() {
    let arguments = json!({ "path": "p", "text": "t" });
    let away = FakeServer::new(|_, _| Err(McpError::new(ErrorKind::UpstreamUnavailable, "it is away")));
    let seen = make_preview(&away, &ALLOW_ALL, WRITE_RECIPE, &arguments).await;
    assert_eq!(seen.preview.note.failed.as_deref(), Some("s__read could not be called: it is away"));
    assert_eq!(seen.transient_error.unwrap().kind, ErrorKind::UpstreamUnavailable);
    let broken = FakeServer::new(|_, _| Err(McpError::new(ErrorKind::UpstreamError, "no\nsuch \u{202e}thing")));
    let other = make_preview(&broken, &ALLOW_ALL, WRITE_RECIPE, &arguments).await;
    assert_eq!(other.preview.note.failed.as_deref(), Some(r"s__read could not be called: no such \u{202e}thing"));
    assert!(other.transient_error.is_none());
    assert_ne!(other.preview.fingerprint, seen.preview.fingerprint, "failing otherwise is another state");
    // The message of a server may vary; only the refusal counts.
    let again = FakeServer::new(|_, _| Err(McpError::new(ErrorKind::UpstreamError, "at 12:00")));
    assert_eq!(
        make_preview(&again, &ALLOW_ALL, WRITE_RECIPE, &arguments).await.preview.fingerprint,
        other.preview.fingerprint
    );
}

#[tokio::test]
async fn unfitting_recipe_fails_with_reason() {
    let server = FakeServer::with_text("x");
    let arguments = json!({ "path": "p", "text": "t" });
    for (yaml, reason) in [
        ("{reads: [{tool: look}]}", "the server offers no tool s__look"),
        (
            "{reads: [{tool: read, text: /structuredContent/a}]}",
            "the answer of s__read has nothing at /structuredContent/a",
        ),
        ("{reads: [{tool: read, text: /_meta/a}]}", "the answer of s__read has nothing at /_meta/a"),
        ("{reads: [{tool: read, arguments: {id: arguments.id}}]}", "`id` looks at `id`, which is not there"),
        ("{before: {tool: read}, after: before + 1}", "`after` combines values whose types do not fit"),
        ("{reads: [{tool: read, text: /content, lines: x}]}", "what the answer of s__read has at /content is not text"),
    ] {
        let seen = preview(&server, yaml, &arguments).await;
        assert_eq!(seen.note.failed.as_deref(), Some(reason), "{yaml}");
    }
    // Numbers that expressions cannot represent exactly.
    let seen = preview(&server, WRITE_RECIPE, &json!({ "path": "p", "text": 1.5e300, "n": u64::MAX })).await;
    assert!(seen.note.is_live(), "{:?}", seen.note);
    let raw = "{\"path\":\"p\",\"text\":\"t\",\"n\":123456789012345678901234567890}";
    assert!(countersign_provider::previews::expressions::parse_arguments(raw).is_err());
}

#[tokio::test]
async fn large_text_is_truncated_but_fully_fingerprinted() {
    static TAIL: AtomicUsize = AtomicUsize::new(0);
    let server = FakeServer::new(|_, _| {
        let tail = TAIL.load(Ordering::SeqCst);
        Ok(ToolResult::text(&format!("{}{tail}", "line\n".repeat(400_000)), None))
    });
    let arguments = json!({ "path": "p", "text": "short" });
    let seen = preview(&server, WRITE_RECIPE, &arguments).await;
    assert!(seen.diff.truncated && seen.note.is_live());
    assert!(serde_json::to_string(&seen.diff).unwrap().len() < 2 << 20);
    TAIL.store(1, Ordering::SeqCst);
    assert_ne!(preview(&server, WRITE_RECIPE, &arguments).await.fingerprint, seen.fingerprint);
}

/// Evaluates the shipped recipes of the memory server against its answers.
#[tokio::test]
async fn memory_graphs_are_compared_in_server_format() {
    let recipes = recipes("{ command: mcp-server-memory }");
    assert_eq!(recipes.sets, ["memory"]);
    let after = |tool: &str, arguments: Value, before: Value| {
        let recipe = recipes.get(tool).unwrap().clone();
        let arguments = countersign_provider::previews::expressions::parse_arguments(&arguments.to_string())
            .unwrap_or_else(|f| panic!("{f:?}"));
        let before = countersign_provider::previews::expressions::to_cel_value("before", &before)
            .unwrap_or_else(|f| panic!("{f:?}"));
        let known = [("arguments", &arguments), ("before", &before)];
        let Some(StateAfter::Expression(after)) = &recipe.after else { panic!("{tool}") };
        countersign_provider::previews::expressions::evaluate("after", after, &known).map_err(|fault| fault.reason)
    };
    let ada = |observations: Value| json!({ "entityType": "person", "name": "Ada", "observations": observations });
    let entities =
        json!({ "entities": [ada(json!(["x"])), { "name": "Bob", "entityType": "p", "observations": [], "more": 1 }] });
    let bob = json!({ "entityType": "p", "name": "Bob", "observations": [] });
    assert_eq!(after("create_entities", entities, json!([ada(json!(["y"]))])), Ok(json!([ada(json!(["y"])), bob])));
    let added = json!({ "observations": [{ "entityName": "Ada", "contents": ["a", "b"] }] });
    assert_eq!(
        after("add_observations", added.clone(), json!([ada(json!(["a"]))])),
        Ok(json!([ada(json!(["a", "b"]))]))
    );
    assert!(after("add_observations", added, json!([])).unwrap_err().contains("an entity of each name"));
    let twice = json!({ "observations": [{ "entityName": "Ada", "contents": ["a"] }, { "entityName": "Ada", "contents": ["a"] }] });
    assert!(after("add_observations", twice, json!([ada(json!([]))])).unwrap_err().contains("named once"));
    let gone = json!({ "deletions": [{ "entityName": "Ada", "observations": ["a", "z"] }] });
    assert_eq!(after("delete_observations", gone, json!([ada(json!(["a", "b"]))])), Ok(json!([ada(json!(["b"]))])));
}

//! Recipes against a server that the tests play.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json, value::RawValue};

use countersign_domain::{
    changes::{LineOp, Operation, Preview, PreviewKind},
    policy::Verdict,
    principal::{Principal, Role},
    recipes::{Recipe, Recipes},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    Provider, ToolDef, ToolResult,
    previews::{made::Made, make::Maker},
    testing::{Directory, Fake, context, upstream_tool},
};

/// Tools `read` and `write` (which has `dryRun`), shown as `s__read` and `s__write`.
struct Server(Arc<Fake>);

impl Server {
    fn new(answers: impl Fn(&str, &Value) -> Result<ToolResult, McpError> + Send + Sync + 'static) -> Self {
        let def = |name: &str, properties: Value| {
            let raw = json!({ "name": name, "inputSchema": { "type": "object", "properties": properties } });
            ToolDef { name: format!("s__{name}"), ..upstream_tool(&raw) }
        };
        let tools = vec![def("read", json!({})), def("write", json!({ "path": {}, "text": {}, "dryRun": {} }))];
        let write = tools[1].clone();
        Self(Arc::new(Fake {
            tools: Mutex::new(tools),
            calling: Some(Box::new(move |tool, arguments| {
                answers(tool, &serde_json::from_str(arguments.get()).unwrap())
            })),
            previewing: Some(Box::new(move |_, arguments| {
                countersign_provider::previews::arguments::of("s", "write", &write, arguments)
            })),
            ..Fake::named("s")
        }))
    }

    /// One that has this text.
    fn holding(text: &'static str) -> Self {
        Self::new(move |_, _| Ok(ToolResult::text(text, None)))
    }

    /// What was called, and with what.
    fn calls(&self) -> Vec<(String, Value)> {
        let calls = self.0.calls.lock().unwrap();
        calls.iter().map(|(tool, arguments)| (tool.clone(), serde_json::from_str(arguments).unwrap())).collect()
    }
}

/// The policy: what it says of every call, and whether definitions are pinned.
struct Rules(Verdict, bool);

const OPEN: Rules = Rules(Verdict::Allow, true);
const WRITE: &str = "{target: arguments.path, entity: file, summary: '\"Write \" + arguments.path', before: {tool: read, \
                     arguments: {path: arguments.path}, missing: '^ENOENT'}, after: arguments.text}";

/// The recipes of a server as a configuration has it.
fn recipes(server: &str) -> Recipes {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.yaml");
    std::fs::write(&file, format!("mcpServers: {{ s: {server} }}")).unwrap();
    let flags = crate::Flags { config: Some(file), data: Some("d".into()), ..Default::default() };
    let environment = crate::Environment::of(std::path::Path::new("/"), &[]);
    let config = crate::load(&flags, &environment).unwrap_or_else(|e| panic!("{e}")).config;
    config.upstreams[0].previews.clone()
}

/// A recipe as it is written there.
fn recipe(yaml: &str) -> Recipe {
    recipes(&format!("{{ command: x, previews: {{ write: {yaml} }} }}")).get("write").unwrap().clone()
}

async fn made(server: &Server, rules: &Rules, yaml: &str, arguments: &Value) -> Made {
    made_by(server, rules, &recipe(yaml), arguments).await
}

async fn made_by(server: &Server, rules: &Rules, recipe: &Recipe, arguments: &Value) -> Made {
    let fake = &server.0;
    *fake.verdict.lock().unwrap() = rules.0;
    fake.pinned.store(rules.1, Ordering::SeqCst);
    let provider = Arc::clone(fake) as Arc<dyn Provider>;
    let context = context(Principal { name: "ann".into(), role: Role::Admin, key_id: None, owner: None });
    let raw = RawValue::from_string(arguments.to_string()).unwrap();
    let plain = provider.preview("s__write", &raw, &context).await.unwrap();
    let expose = |own: &str| format!("s__{own}");
    let directory = Directory(Arc::clone(fake));
    let made = Maker::new(&directory, &provider, &expose, &context).make(recipe, "s__write", &raw, plain).await;
    let judged = fake.judged.lock().unwrap();
    let callers = fake.callers.lock().unwrap();
    assert!(callers.iter().all(|by| by.name == "ann"), "on behalf of its proposer");
    let mut rights = judged.iter().chain(callers.iter().map(|by| &**by));
    assert!(rights.all(|by| by.role == Role::Agent), "with no more rights than an agent has");
    made
}

async fn preview(server: &Server, yaml: &str, arguments: &Value) -> Preview {
    let made = made(server, &OPEN, yaml, arguments).await;
    assert!(made.passing.is_none());
    made.preview
}

/// All that the proposer of a change with this preview is told of it.
fn seen_by_proposer(preview: Preview) -> String {
    let mut change = countersign_domain::changes::testing::change(
        "chg_1",
        "ann",
        1,
        countersign_domain::changes::ChangeState::Pending,
    );
    change.served_by =
        Some(countersign_domain::changes::ServedBy { fingerprint: "sha256:s".into(), label: "s".into() });
    (change.preview, change.operation, change.target) = (preview.note, preview.operation, preview.target);
    (change.summary, change.diff) = (preview.summary, preview.diff);
    format!("{:?}", change.for_proposer())
}

fn failure(text: &str) -> Result<ToolResult, McpError> {
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
async fn what_is_there_is_shown_beside_what_would_be() {
    let server = Server::holding("one\ntwo\n");
    let arguments = json!({ "path": "/a/../b", "text": "one\n2\n" });
    let seen = preview(&server, WRITE, &arguments).await;
    assert_eq!(lines(&seen, 0), [" one", "-two", "+2"]);
    assert_eq!((seen.note.kind, seen.note.failed.as_deref()), (PreviewKind::BeforeAfter, None));
    assert_eq!((seen.target.label.as_str(), seen.target.lock_key.as_str()), ("/a/../b", "/b"));
    assert_eq!((seen.target.entity_type.as_str(), seen.summary.as_str()), ("file", "Write /a/../b"));
    assert_eq!(seen.operation, Operation::Update);
    assert_eq!(server.calls()[..1], [("s__read".to_owned(), json!({ "path": "/a/../b" }))]);
    let same = preview(&server, WRITE, &json!({ "path": "/b", "text": "one\ntwo\n" })).await;
    assert_eq!(lines(&same, 0), ["#(nothing would change)"]);
    // The same again is the same; something else there is another fingerprint.
    assert_eq!(preview(&server, WRITE, &arguments).await.fingerprint, seen.fingerprint);
    let other = preview(&Server::holding("one\ntwo\n\n"), WRITE, &arguments).await;
    assert_ne!(other.fingerprint, seen.fingerprint);
}

#[tokio::test]
async fn a_missing_thing_is_an_empty_one_and_another_error_is_none() {
    let arguments = json!({ "path": "/b", "text": "new" });
    let seen = preview(&Server::new(|_, _| failure("ENOENT: no such file")), WRITE, &arguments).await;
    let field = &seen.diff.fields[0];
    assert_eq!((field.before.as_deref(), field.after.as_deref()), (None, Some("new")));
    assert_eq!((seen.operation, seen.note.is_live()), (Operation::Create, true));
    // A file of that name does not make an error look like a missing file.
    let denied = preview(&Server::new(|_, _| failure("EACCES: '/x/ENOENT'")), WRITE, &arguments).await;
    assert_eq!(denied.note.failed.as_deref(), Some("s__read answered: EACCES: '/x/ENOENT'"));
    assert_eq!((denied.note.kind, denied.note.is_live()), (PreviewKind::Arguments, false));
    assert_eq!(denied.target.label, "/b", "what is known of the target stays");
    assert!(denied.diff.fields.iter().any(|field| field.field == "text"), "the arguments are shown");
    assert_ne!(denied.fingerprint, seen.fingerprint);
    let empty = preview(&Server::holding(""), WRITE, &arguments).await;
    assert_ne!(empty.fingerprint, seen.fingerprint, "an empty file is not a missing one");
}

#[tokio::test]
async fn a_dry_run_adds_its_arguments_to_the_exact_ones() {
    let server = Server::holding("```diff\n--- a\n+++ a\n@@ -3,2 +3,2 @@\n x\n-y\n+z\n```\n\n");
    let yaml = "{dry_run: {arguments: {dryRun: true}, as: diff, label: Content}}";
    let seen = preview(&server, yaml, &json!({ "path": "p", "dryRun": false })).await;
    assert_eq!(server.calls(), [("s__write".to_owned(), json!({ "path": "p", "dryRun": true }))]);
    assert_eq!(seen.note.kind, PreviewKind::DryRun);
    assert_eq!(lines(&seen, 0), ["#--- a", "#+++ a", "@2", " x", "-y", "+z"]);
    assert_eq!(seen.diff.fields[0].label, "Content");
}

#[tokio::test]
async fn a_dry_run_is_never_made_where_it_might_be_the_write_itself() {
    let server = Server::holding("done!");
    let arguments = json!({ "path": "p", "text": "t" });
    let unknown = "{dry_run: {arguments: {simulate: true}}}";
    let seen = preview(&server, unknown, &arguments).await;
    assert_eq!(seen.note.failed.as_deref(), Some("there is no dry run: s__write has no argument `simulate`"));
    let known = "{dry_run: {arguments: {dryRun: true}}}";
    let seen = made(&server, &Rules(Verdict::Allow, false), known, &arguments).await.preview;
    assert!(seen.note.failed.unwrap().contains("waits to be accepted"));
    assert_eq!(server.calls().len(), 0, "nothing was called");
    // With another way, that one is taken, and the reason is told to reviewers.
    let both = format!("{{dry_run: {{arguments: {{simulate: true}}}}, {}", &WRITE[1..]);
    let seen = preview(&server, &both, &arguments).await;
    assert_eq!((seen.note.kind, seen.note.failed.as_deref()), (PreviewKind::BeforeAfter, None));
    assert!(lines(&seen, 1)[0].contains("has no argument `simulate`") && seen.diff.fields[1].restricted);
    assert_eq!(server.calls().iter().map(|(tool, _)| tool.as_str()).collect::<Vec<_>>(), ["s__read"]);
}

#[tokio::test]
async fn dry_run_needs_an_accepted_tool_or_a_named_recipe() {
    let vouched = |server: &str| recipes(server).get("edit_file").unwrap().dry_run.as_ref().unwrap().vouched;
    let command = "command: npx, args: ['@modelcontextprotocol/server-filesystem', /srv/files]";
    assert!(!vouched(&format!("{{ {command} }}")) && !vouched(&format!("{{ {command}, previews: auto }}")));
    for named in ["filesystem", "[filesystem, auto]", "[auto, {edit_file: {dry_run: {arguments: {dryRun: true}}}}]"] {
        assert!(vouched(&format!("{{ {command}, previews: {named} }}")), "{named}");
    }

    let server = Server::holding("done!");
    let arguments = json!({ "path": "p", "text": "t" });
    let mut recognised = recipe("{dry_run: {arguments: {dryRun: true}}}");
    recognised.dry_run.as_mut().unwrap().vouched = false;
    server.0.accepted.store(false, Ordering::SeqCst);
    let seen = made_by(&server, &OPEN, &recognised, &arguments).await.preview;
    let why = seen.note.failed.unwrap();
    assert!(why.contains("accept") && why.contains("`mcpServers.s.previews`"), "{why}");
    assert!(seen.diff.fields.iter().any(|field| field.field == "text"), "the arguments are shown");
    assert_eq!(server.calls().len(), 0, "nothing was called");
    server.0.accepted.store(true, Ordering::SeqCst);
    let seen = made_by(&server, &OPEN, &recognised, &arguments).await.preview;
    assert_eq!(seen.note.kind, PreviewKind::DryRun);
}

#[tokio::test]
async fn policy_decides_who_sees_what_was_read() {
    let server = Server::holding("secret\n");
    let arguments = json!({ "path": "p", "text": "mine\n" });
    let open = made(&server, &OPEN, WRITE, &arguments).await.preview;
    assert!(!open.note.restricted);
    let reviewed = made(&server, &Rules(Verdict::Review, true), WRITE, &arguments).await.preview;
    assert_eq!(reviewed.fingerprint, open.fingerprint);
    assert!(lines(&reviewed, 0).contains(&"-secret".to_owned()), "reviewers see it");
    assert!(reviewed.note.restricted);
    // Whatever comes of it: what equals what is hidden, what fails, and what is not there look the same.
    let servers = [
        Server::holding("mine\n"),
        Server::new(|_, _| failure("ENOENT")),
        Server::new(|_, _| failure("EACCES")),
        Server::new(|_, _| Err(McpError::new(ErrorKind::UpstreamUnavailable, "it is away"))),
    ];
    for server in &servers {
        let other = made(server, &Rules(Verdict::Review, true), WRITE, &arguments).await.preview;
        assert!(other.note.restricted, "{:?}", other.note);
        assert_eq!(seen_by_proposer(other), seen_by_proposer(reviewed.clone()));
    }
    assert!(!seen_by_proposer(reviewed).contains("secret"));
    let calls = server.calls().len();
    let denied = made(&server, &Rules(Verdict::Deny, true), WRITE, &arguments).await.preview;
    assert_eq!(denied.note.failed.as_deref(), Some("policy denies s__read to the proposer"));
    assert!(denied.note.restricted);
    assert_eq!(server.calls().len(), calls);
}

#[tokio::test]
async fn reads_stand_beside_the_arguments_and_volatile_parts_do_not_count() {
    static TIMES: AtomicUsize = AtomicUsize::new(0);
    let server = Server::new(|_, arguments| match arguments["path"].as_str() {
        Some("gone") => failure("ENOENT"),
        _ => {
            let now = TIMES.fetch_add(1, Ordering::SeqCst);
            Ok(ToolResult::text(&format!("size: 3\naccessed: {now}\n"), Some(&json!({ "b": 1, "a": [now], "c": "x" }))))
        }
    });
    let yaml = "{operation: delete, reads: [\
                {label: Info, tool: read, arguments: {path: arguments.path}, lines: '^size', missing: ENOENT}, \
                {label: Kept, tool: read, arguments: {path: '\"x\"', none: 'null'}, text: /structuredContent, keep: '{\"c\": found.c}'}]}";
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
async fn what_passes_is_told_apart_from_what_fails() {
    let arguments = json!({ "path": "p", "text": "t" });
    let away = Server::new(|_, _| Err(McpError::new(ErrorKind::UpstreamUnavailable, "it is away")));
    let seen = made(&away, &OPEN, WRITE, &arguments).await;
    assert_eq!(seen.preview.note.failed.as_deref(), Some("s__read could not be called: it is away"));
    assert_eq!(seen.passing.unwrap().kind, ErrorKind::UpstreamUnavailable);
    let broken = Server::new(|_, _| Err(McpError::new(ErrorKind::UpstreamError, "no\nsuch \u{202e}thing")));
    let other = made(&broken, &OPEN, WRITE, &arguments).await;
    assert_eq!(other.preview.note.failed.as_deref(), Some(r"s__read could not be called: no such \u{202e}thing"));
    assert!(other.passing.is_none());
    assert_ne!(other.preview.fingerprint, seen.preview.fingerprint, "failing otherwise is another state");
    // What a server says may differ each time; that it refuses is what counts.
    let again = Server::new(|_, _| Err(McpError::new(ErrorKind::UpstreamError, "at 12:00")));
    assert_eq!(made(&again, &OPEN, WRITE, &arguments).await.preview.fingerprint, other.preview.fingerprint);
}

#[tokio::test]
async fn recipes_that_do_not_fit_fail_and_say_why() {
    let server = Server::holding("x");
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
    // Numbers that no expression could tell exactly.
    let seen = preview(&server, WRITE, &json!({ "path": "p", "text": 1.5e300, "n": u64::MAX })).await;
    assert!(seen.note.is_live(), "{:?}", seen.note);
    let raw = "{\"path\":\"p\",\"text\":\"t\",\"n\":123456789012345678901234567890}";
    assert!(countersign_provider::previews::rendered::arguments(raw).is_err());
}

#[tokio::test]
async fn large_texts_are_cut_and_said_to_be_cut_and_wholly_fingerprinted() {
    static TAIL: AtomicUsize = AtomicUsize::new(0);
    let server = Server::new(|_, _| {
        let tail = TAIL.load(Ordering::SeqCst);
        Ok(ToolResult::text(&format!("{}{tail}", "line\n".repeat(400_000)), None))
    });
    let arguments = json!({ "path": "p", "text": "short" });
    let seen = preview(&server, WRITE, &arguments).await;
    assert!(seen.diff.truncated && seen.note.is_live());
    assert!(serde_json::to_string(&seen.diff).unwrap().len() < 2 << 20);
    TAIL.store(1, Ordering::SeqCst);
    assert_ne!(preview(&server, WRITE, &arguments).await.fingerprint, seen.fingerprint);
}

/// The shipped recipes for the memory server: their expressions, against what that server answers.
#[tokio::test]
async fn graphs_are_compared_as_the_memory_server_keeps_them() {
    let recipes = recipes("{ command: mcp-server-memory }");
    assert_eq!(recipes.sets, ["memory"]);
    let after = |tool: &str, arguments: Value, before: Value| {
        let recipe = recipes.get(tool).unwrap().clone();
        let arguments = countersign_provider::previews::rendered::arguments(&arguments.to_string())
            .unwrap_or_else(|f| panic!("{f:?}"));
        let before =
            countersign_provider::previews::rendered::value("before", &before).unwrap_or_else(|f| panic!("{f:?}"));
        let known = [("arguments", &arguments), ("before", &before)];
        countersign_provider::previews::rendered::evaluate("after", recipe.after.as_ref().unwrap(), &known)
            .map_err(|fault| fault.reason)
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

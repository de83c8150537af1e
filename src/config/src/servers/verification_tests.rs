//! Tests the verification of calls against a fake server that stores one text per path.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::Ordering},
};

use serde_json::{Value, json, value::RawValue};

use super::recipes_tests::{failure, recipe};
use countersign_domain::{
    changes::{Change, ChangeState, PreviewKind, ServerIdentity, Verification, VerificationOutcome, testing::change},
    policy::Verdict,
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    Provider, ToolDef, ToolResult,
    previews::{PreviewRequest, compose::StateBefore, verification::read_back},
    testing::{FakeDirectory, FakeProvider, context, upstream_tool},
};

const WRITE_RECIPE: &str = "{target: arguments.path, before: {tool: read, arguments: {path: arguments.path}, missing: '^ENOENT'}, \
                            after: arguments.text}";

/// The files of the fake server.
type Files = Arc<Mutex<BTreeMap<String, String>>>;

/// A server with the tool `read`, and what a change has written to it.
struct Server {
    fake: Arc<FakeProvider>,
    files: Files,
}

impl Server {
    /// Creates a server with one recipe.
    fn new(recipe_yaml: &str) -> Self {
        let files = Files::default();
        let stored = Arc::clone(&files);
        let def = |name: &str| upstream_tool(&json!({ "name": name, "inputSchema": { "type": "object" } }));
        let tools: Vec<ToolDef> = vec![def("read"), def("write")];
        let fake = FakeProvider {
            tools: Mutex::new(tools),
            is_module: false,
            call_script: Some(Box::new(move |tool, arguments| {
                assert_eq!(tool, "read", "a verification only reads");
                let arguments: Value = serde_json::from_str(arguments.get()).unwrap();
                match stored.lock().unwrap().get(arguments["path"].as_str().unwrap()).map(String::as_str) {
                    Some("broken") => failure("the disk is\nbroken"),
                    Some("away") => Err(McpError::new(ErrorKind::UpstreamUnavailable, "away")),
                    Some(text) => Ok(ToolResult::text(text, None)),
                    None => failure("ENOENT: no such file"),
                }
            })),
            ..FakeProvider::new("s")
        };
        fake.recipe.set(recipe(recipe_yaml)).unwrap();
        Self { fake: Arc::new(fake), files }
    }

    fn put(&self, path: &str, text: &str) -> &Self {
        self.files.lock().unwrap().insert(path.into(), text.into());
        self
    }

    /// Verifies a change with these arguments. `before` is the text that its preview has read, if it has read one.
    async fn verify(&self, arguments: &Value, before: Option<Option<&str>>, result: &Value) -> Option<Verification> {
        self.verify_change(applied(arguments), before, result).await
    }

    async fn verify_change(
        &self,
        change: Change,
        before: Option<Option<&str>>,
        result: &Value,
    ) -> Option<Verification> {
        let provider = Arc::clone(&self.fake) as Arc<dyn Provider>;
        let directory = FakeDirectory(Arc::clone(&self.fake));
        let context = context(Principal::new("ann", Role::Admin));
        let before = before.map(|text| StateBefore::with_values(vec![text.map(Value::from)]));
        let result = RawValue::from_string(result.to_string()).unwrap();
        let request = PreviewRequest {
            directory: &directory,
            provider: &provider,
            tool: &change.tool,
            arguments: &change.arguments,
            context: &context,
        };
        let verification = read_back(request, &change, before.as_ref(), &result)?.await;
        let callers = self.fake.callers.lock().unwrap();
        assert!(callers.iter().all(|by| by.role == Role::Agent), "with no more rights than an agent has");
        Some(verification)
    }
}

/// Returns a change of the tool `write` that was applied.
fn applied(arguments: &Value) -> Change {
    Change {
        tool: "write".into(),
        arguments: Arc::from(RawValue::from_string(arguments.to_string()).unwrap()),
        served_by: ServerIdentity { fingerprint: "sha256:s".into(), label: "s".into() },
        ..change("chg_1", "ann", 4, ChangeState::Applied)
    }
}

fn differences(verification: &Verification) -> Vec<(Option<&str>, Option<&str>)> {
    let fields = verification.diff.iter().flat_map(|diff| &diff.fields);
    fields.map(|field| (field.before.as_deref(), field.after.as_deref())).collect()
}

#[tokio::test]
async fn silent_normalizing_and_failing_servers_are_noticed() {
    let server = Server::new(WRITE_RECIPE);
    let arguments = json!({ "path": "a", "text": "new\n" });
    let verify = async |before| server.verify(&arguments, Some(before), &json!({})).await.unwrap();
    // The server did nothing, where there was no file and where there was one.
    assert_eq!(differences(&verify(None).await), [(Some("new\n"), None)]);
    server.put("a", "old");
    let silent = verify(Some("old")).await;
    assert_eq!(
        (silent.verified, differences(&silent)),
        (VerificationOutcome::Differs, vec![(Some("new\n"), Some("old"))])
    );
    server.put("a", "new");
    assert_eq!(differences(&verify(Some("old")).await), [(Some("new\n"), Some("new"))], "it removes the line break");
    server.put("a", "broken");
    let reason = "read answered: the disk is broken";
    assert_eq!(verify(Some("old")).await, Verification::unreadable(reason));
    server.put("a", "away");
    assert_eq!(verify(Some("old")).await, Verification::unreadable("read could not be called: away"));
    server.put("a", "new\n");
    assert_eq!(verify(Some("old")).await.verified, VerificationOutcome::Matches);
}

#[tokio::test]
async fn value_of_another_type_differs_from_the_approved_one() {
    let server = Server::new(
        "{target: arguments.path, before: {tool: read, arguments: {path: arguments.path}, as: json}, \
         after: '{\"n\": arguments.n}'}",
    );
    server.put("a", r#"{"n":"3"}"#);
    let verification = server.verify(&json!({ "path": "a", "n": 3 }), Some(None), &json!({})).await.unwrap();
    assert_eq!(differences(&verification), [(Some("3"), Some(r#""3""#))]);
}

#[tokio::test]
async fn policy_and_pins_hold_for_verifications() {
    let server = Server::new(WRITE_RECIPE);
    server.put("a", "found");
    let arguments = json!({ "path": "a", "text": "new" });
    let verify = async || server.verify(&arguments, Some(None), &json!({})).await.unwrap();
    *server.fake.verdict.lock().unwrap() = Verdict::Review;
    assert!(verify().await.diff.unwrap().fields[0].restricted, "the proposer may not read it");
    *server.fake.verdict.lock().unwrap() = Verdict::Deny;
    assert_eq!(verify().await, Verification::unreadable("policy denies read to the proposer"));
    *server.fake.verdict.lock().unwrap() = Verdict::Allow;
    let mut restricted = applied(&arguments);
    restricted.preview.restricted = true;
    let found = server.verify_change(restricted, Some(None), &json!({})).await.unwrap();
    assert!(found.diff.unwrap().fields[0].restricted, "the approved text may contain what the proposer may not read");
    server.fake.pinned.store(false, Ordering::SeqCst);
    assert!(verify().await.reason.unwrap().contains("is not accepted for"));
}

#[tokio::test]
async fn state_before_is_used_as_the_last_preview_read_it() {
    let append = "{target: arguments.path, before: {tool: read, arguments: {path: arguments.path}}, \
                  after: before + arguments.text, dry_run: {arguments: {dryRun: true}}}";
    let server = Server::new(append);
    server.put("a", "one two");
    let arguments = json!({ "path": "a", "text": " two" });
    assert_eq!(
        server.verify(&arguments, Some(Some("one")), &json!({})).await.unwrap().verified,
        VerificationOutcome::Matches
    );
    assert_eq!(server.verify(&arguments, None, &json!({})).await, None, "a dry run was shown instead");
}

#[tokio::test]
async fn call_that_asks_for_a_dry_run_is_not_verified() {
    let server = Server::new(
        "{dry_run: {arguments: {dryRun: true}}, verify: {tool: read, arguments: {path: a}, after: arguments.text}}",
    );
    server.put("a", "new");
    for (dry_run, expected) in [(false, Some(VerificationOutcome::Matches)), (true, None)] {
        let mut change = applied(&json!({ "text": "new", "dryRun": dry_run }));
        change.preview.kind = PreviewKind::DryRun;
        let verification = server.verify_change(change, None, &json!({})).await;
        assert_eq!(verification.map(|verification| verification.verified), expected, "{dry_run}");
    }
}

#[tokio::test]
async fn created_object_is_found_by_the_result() {
    let create = "{reads: [{tool: read}], verify: {tool: read, arguments: {path: result.structuredContent.path}, \
                  missing: '^ENOENT', keep: result.structuredContent.path + found, \
                  after: result.structuredContent.path + arguments.text}}";
    let server = Server::new(create);
    server.put("7", "new");
    let arguments = json!({ "text": "new" });
    let verify = async |result: Value| server.verify(&arguments, None, &result).await.unwrap();
    assert_eq!(verify(json!({ "structuredContent": { "path": "7" } })).await.verified, VerificationOutcome::Matches);
    let missing = verify(json!({ "structuredContent": { "path": "8" } })).await;
    assert_eq!(differences(&missing), [(Some("8new"), None)]);
    let reason = "`path` looks at `structuredContent`, which is not there";
    assert_eq!(verify(json!({ "content": [] })).await, Verification::unreadable(reason));
}

#[tokio::test]
async fn deletion_is_verified_by_the_missing_target() {
    let delete = "{operation: delete, before: {tool: read, arguments: {path: arguments.path}, missing: '^ENOENT'}, after: 'null'}";
    let server = Server::new(delete);
    let verify = async || server.verify(&json!({ "path": "a" }), Some(Some("old")), &json!({})).await.unwrap();
    assert_eq!(verify().await.verified, VerificationOutcome::Matches);
    server.put("a", "old");
    assert_eq!(differences(&verify().await), [(None, Some("old"))]);
}

#[tokio::test]
async fn recipe_without_expectation_verifies_nothing() {
    let server = Server::new("{reads: [{tool: read}]}");
    assert_eq!(server.verify(&json!({ "path": "a" }), None, &json!({})).await, None);
    assert!(server.fake.received_calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn shown_differences_are_bounded() {
    let server = Server::new(WRITE_RECIPE);
    server.put("a", &"found\n".repeat(30_000));
    let arguments = json!({ "path": "a", "text": "new\n".repeat(30_000) });
    let verification = server.verify(&arguments, Some(None), &json!({})).await.unwrap();
    assert_eq!(verification.verified, VerificationOutcome::Differs);
    assert!(verification.diff.as_ref().unwrap().truncated);
    assert!(serde_json::to_string(&verification).unwrap().len() < 200 << 10);
}

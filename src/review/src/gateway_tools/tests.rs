//! The module as agents see it, over real pending changes and the real tracker.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json, value::to_raw_value};

use super::{GatewayTools, change_output_schema, change_result, change_text};
use crate::{ChangeDecision, Changes, ReviewConfig, testing::proposal};
use countersign_config::{Config, TrackerConfig};
use countersign_domain::{
    changes::{Change, ChangeState, ReviewVerdict, testing::proposer},
    principal::{Claims, Principal, Role, Scope},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    CallContext, CompletionRef, Module as _, ProgressSink, Provider, ProviderDirectory, ProviderEvent,
    text::content_text,
};
use countersign_store::{ModuleStorage, Store, StoreLocation};
use countersign_tracker::Tracker;

struct OnlyTracker(Arc<Tracker>);

impl ProviderDirectory for OnlyTracker {
    fn provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        (name == "tracker").then(|| Arc::clone(&self.0) as Arc<dyn Provider>)
    }
    fn tool_hash(&self, _: &str, _: &str) -> Option<String> {
        Some("sha256:tool".into())
    }
    fn verdict(
        &self,
        _: &str,
        _: &str,
        _: &countersign_domain::principal::Principal,
        _: &serde_json::value::RawValue,
    ) -> countersign_domain::policy::Verdict {
        countersign_domain::policy::Verdict::Allow
    }
    fn has_tools(&self, _: &str) -> bool {
        true
    }
}

struct Fixture {
    tracker: Arc<Tracker>,
    changes: Changes,
    tools: Arc<GatewayTools>,
    _dir: tempfile::TempDir,
}

fn principal(name: &str, role: Role) -> Arc<Principal> {
    Arc::new(Principal::new(name, role))
}

fn context(name: &str, role: Role) -> CallContext {
    countersign_provider::testing::context(Principal::new(name, role))
}

fn agent(name: &str) -> CallContext {
    context(name, Role::Agent)
}

impl Fixture {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config =
            TrackerConfig { enabled: true, workflow: Default::default(), sample_project: true, people: vec![] };
        let tracker = Tracker::open(&ModuleStorage::Directory(dir.path().to_owned()), &config).unwrap();
        let store: Arc<dyn Store> = StoreLocation::directory(dir.path()).open().unwrap();
        let directory = Arc::new(OnlyTracker(Arc::clone(&tracker)));
        let review_config = ReviewConfig::from(&Config::default().changes);
        let changes = Changes::start(store, directory, review_config).await.unwrap();
        let tools = GatewayTools::new(changes.clone(), Duration::from_secs(300), || 2);
        Self { tracker, changes, tools, _dir: dir }
    }

    /// Proposes a comment on an issue of the sample project.
    async fn propose(&self, principal_name: &str) -> Arc<Change> {
        self.propose_call(principal_name, "add_comment", json!({ "issueId": "CORE-7", "content": "Looks good\nto me" }))
            .await
    }

    async fn propose_call(&self, principal_name: &str, tool: &str, arguments: Value) -> Arc<Change> {
        let arguments = to_raw_value(&arguments).unwrap();
        let preview = self.tracker.preview(tool, &arguments, &agent(principal_name)).await.unwrap();
        let proposal = proposal(proposer(principal_name), ("tracker", tool), arguments, preview);
        self.changes.propose(proposal).await.unwrap()
    }

    async fn decide(&self, change: &Change, verdict: ReviewVerdict, comment: &str) -> Arc<Change> {
        let decision = ChangeDecision {
            id: change.id.clone(),
            reviewer: principal("alice", Role::Reviewer),
            verdict,
            comment: Some(comment.into()),
            version: change.version,
            digest: None,
            bulk: false,
        };
        self.changes.decide(decision).await.unwrap()
    }

    async fn call(&self, ctx: &CallContext, tool: &str, arguments: Value) -> Result<(String, Value), McpError> {
        let def = self.tools.tools().into_iter().find(|t| t.name == tool).unwrap();
        let schema = |s: &Value| jsonschema::options().should_validate_formats(true).build(s).unwrap();
        let fits = schema(&def.input_schema).is_valid(&arguments);
        let raw = to_raw_value(&arguments).unwrap();
        let result = self.tools.call(tool, &raw, ctx).await?;
        assert!(fits, "{tool} accepted arguments that its schema refuses: {arguments}");
        let answer: Value = serde_json::from_str(result.structured_content.unwrap().get()).unwrap();
        let output = schema(def.output_schema.as_ref().unwrap());
        let errors: Vec<String> =
            output.iter_errors(&answer).map(|e| format!("{e} at {}", e.instance_path())).collect();
        assert!(errors.is_empty(), "{tool}: {errors:?} in {answer}");
        Ok((content_text(&result.content), answer))
    }
}

#[actix::test]
async fn pending_answer_has_all_fields_for_the_agent() {
    let fixture = Fixture::new().await;
    let change = fixture.propose("bob").await;
    let result = change_result(&change);
    let answer: Value = serde_json::from_str(result.structured_content.unwrap().get()).unwrap();
    let schema = change_output_schema();
    assert_eq!(schema["type"], "object");
    jsonschema::draft202012::meta::validate(&schema).unwrap();
    assert!(jsonschema::options().should_validate_formats(true).build(&schema).unwrap().is_valid(&answer));
    assert_eq!((&answer["changeId"], &answer["status"]), (&json!(change.id), &json!("pending")));
    assert_eq!((&answer["operation"], &answer["entityType"]), (&json!("CREATE"), &json!("comment")));
    assert_eq!(answer["diff"]["fields"][0]["after"], "Looks good\nto me");
    let text = content_text(&result.content);
    assert!(text.starts_with(&format!("Change pending approval. ID: {}", change.id)), "{text}");
    for part in
        ["Operation: CREATE", "Entity: comment on CORE-7", "- Comment: Looks good ⏎ to me", "a person must approve"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[actix::test]
async fn answer_about_a_duplicate_names_the_first_change() {
    let fixture = Fixture::new().await;
    let (first, second) = (fixture.propose("bob").await, fixture.propose("bob").await);
    assert!(!change_text(&first).contains("already proposed"));
    let text = change_text(&second);
    assert!(text.contains(&format!("You had already proposed the same call: {}.", first.id)), "{text}");
    let answer: Value = serde_json::from_str(change_result(&second).structured_content.unwrap().get()).unwrap();
    assert_eq!(answer["duplicateOf"], first.id);
}

#[actix::test]
async fn agent_sees_only_its_own_changes() {
    let fixture = Fixture::new().await;
    let change = fixture.propose("bob").await;
    let by_id = json!({ "changeId": change.id });
    assert!(fixture.call(&agent("bob"), "get_change", by_id.clone()).await.is_ok());
    for tool in ["get_change", "wait_for_change", "withdraw_change"] {
        let error = fixture.call(&agent("eve"), tool, by_id.clone()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ChangeNotFound, "{tool}");
        // The answer is the same as for a change that does not exist, except for the id.
        let nothing = fixture.call(&agent("eve"), tool, json!({ "changeId": "chg_nothing" })).await.unwrap_err();
        assert_eq!(error.message.replace(&change.id, "chg_nothing"), nothing.message);
    }
    let uri = format!("change://{}", change.id);
    let error = fixture.tools.read_resource(&uri, &agent("eve")).await.unwrap_err();
    assert_eq!((error.kind, &error.data["uri"]), (ErrorKind::ResourceNotFound, &json!(uri)));
    assert_eq!(fixture.call(&agent("eve"), "list_changes", json!({})).await.unwrap().1["changes"], json!([]));

    // A reviewer may read the change but cannot withdraw it.
    let reviewer = context("alice", Role::Reviewer);
    assert!(fixture.call(&reviewer, "get_change", by_id.clone()).await.is_ok());
    assert!(fixture.tools.read_resource(&uri, &reviewer).await.is_ok());
    let error = fixture.call(&reviewer, "withdraw_change", by_id.clone()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Forbidden);
    assert_eq!(fixture.call(&reviewer, "list_changes", json!({})).await.unwrap().1["changes"], json!([]));
    assert_eq!(fixture.changes.get(&change.id).await.unwrap().unwrap().state, ChangeState::Pending);
}

#[actix::test]
async fn rejection_names_reviewer_and_reason() {
    let fixture = Fixture::new().await;
    let change = fixture.propose("bob").await;
    fixture.decide(&change, ReviewVerdict::Reject, "Say which browser.\nAnd be kind.").await;
    let (text, answer) = fixture.call(&agent("bob"), "get_change", json!({ "changeId": change.id })).await.unwrap();
    assert_eq!(answer["status"], "rejected");
    assert_eq!(
        (&answer["decisions"][0]["reviewer"], &answer["decisions"][0]["verdict"]),
        (&json!("alice"), &json!("reject"))
    );
    for part in
        ["Change rejected.", "Rejected by alice", "“Say which browser. ⏎ And be kind.”", "heed the reviewer's reason"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[actix::test]
async fn wait_returns_the_outcome() {
    let fixture = Fixture::new().await;
    let change = fixture.propose("bob").await;
    let ctx = agent("bob");
    let waiting = fixture.call(&ctx, "wait_for_change", json!({ "changeId": change.id, "timeoutSeconds": 60 }));
    let (waited, _) = tokio::join!(waiting, fixture.decide(&change, ReviewVerdict::Approve, "Fine"));
    let (text, answer) = waited.unwrap();
    assert_eq!((&answer["status"], &answer["timedOut"]), (&json!("applied"), &json!(false)));
    assert_eq!(answer["result"]["structuredContent"]["comment"]["author"], "bob");
    assert_eq!(answer["result"]["structuredContent"]["comment"]["changeId"], json!(change.id));
    for part in ["Change applied.", "Approved by alice", "Answer of the tool:\nDone: Comment on CORE-7"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    // A finished change is answered at once. Its version may be newer, because an applied change is read back.
    let (_, again) = fixture.call(&ctx, "wait_for_change", json!({ "changeId": change.id })).await.unwrap();
    assert_eq!((&again["status"], &again["result"]), (&answer["status"], &answer["result"]));
    let error = fixture.call(&ctx, "withdraw_change", json!({ "changeId": change.id })).await.unwrap_err();
    assert_eq!((error.kind, &error.data["status"]), (ErrorKind::ChangeNotPending, &json!("applied")));
}

#[derive(Default)]
struct Recorder(Mutex<Vec<(f64, Option<f64>, String)>>);

impl ProgressSink for Recorder {
    fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) {
        self.0.lock().unwrap().push((progress, total, message.unwrap_or_default().to_owned()));
    }
    fn has_listener(&self) -> bool {
        true
    }
}

#[actix::test]
async fn wait_is_bounded_cancellable_and_reports_progress() {
    let fixture = Fixture::new().await;
    let change = fixture.propose("bob").await;
    let recorder = Arc::new(Recorder::default());
    let ctx = CallContext { progress: Arc::clone(&recorder) as Arc<dyn ProgressSink>, ..agent("bob") };
    let arguments = json!({ "changeId": change.id, "timeoutSeconds": 1 });
    let (text, answer) = fixture.call(&ctx, "wait_for_change", arguments).await.unwrap();
    assert_eq!((&answer["status"], &answer["timedOut"]), (&json!("pending"), &json!(true)));
    assert!(text.starts_with("The wait ended before"), "{text}");
    {
        let reported = recorder.0.lock().unwrap();
        assert_eq!(reported[0].1, Some(1.0));
        assert!(reported[0].2.contains("waits for a person"), "{reported:?}");
        assert!(reported.windows(2).all(|pair| pair[0].0 < pair[1].0), "progress rises: {reported:?}");
    }

    let ctx = agent("bob");
    let waiting = fixture.call(&ctx, "wait_for_change", json!({ "changeId": change.id, "timeoutSeconds": 300 }));
    let (waited, ()) = tokio::join!(waiting, async { ctx.cancel.cancel() });
    assert_eq!(waited.unwrap_err().kind, ErrorKind::Cancelled);

    for seconds in [json!(0), json!(301), json!(-1), json!(1e300)] {
        let error = fixture
            .call(&agent("bob"), "wait_for_change", json!({ "changeId": change.id, "timeoutSeconds": seconds }))
            .await;
        assert_eq!(error.unwrap_err().data["details"]["errors"][0]["pointer"], "/timeoutSeconds");
    }
}

#[actix::test]
async fn withdraw_is_idempotent() {
    let fixture = Fixture::new().await;
    let change = fixture.propose("bob").await;
    let by_id = json!({ "changeId": change.id });
    let (text, answer) = fixture.call(&agent("bob"), "withdraw_change", by_id.clone()).await.unwrap();
    assert_eq!(answer["status"], "withdrawn");
    assert!(text.starts_with("Change withdrawn."), "{text}");
    let (_, again) = fixture.call(&agent("bob"), "withdraw_change", by_id).await.unwrap();
    assert_eq!(again["version"], answer["version"]);
}

#[actix::test]
async fn withdrawal_needs_the_scope_to_propose() {
    let fixture = Fixture::new().await;
    let change = fixture.propose("bob").await;
    let withdraw = |scope| {
        let claims = Claims { scopes: Some(vec![scope]), ..Claims::default() };
        let principal = Principal { claims: Some(Arc::new(claims)), ..Principal::new("bob", Role::Agent) };
        let (fixture, by_id) = (&fixture, json!({ "changeId": change.id }));
        async move { fixture.call(&countersign_provider::testing::context(principal), "withdraw_change", by_id).await }
    };
    let error = withdraw(Scope::ToolsRead).await.unwrap_err();
    assert_eq!((error.kind, error.data["scope"].as_str()), (ErrorKind::Forbidden, Some("tools:read tools:propose")));
    assert_eq!(withdraw(Scope::ToolsPropose).await.unwrap().1["status"], "withdrawn");
}

#[actix::test]
async fn list_has_pages_and_filters() {
    let fixture = Fixture::new().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.insert(0, fixture.propose("bob").await.id.clone());
    }
    fixture.propose("eve").await;
    let ctx = agent("bob");
    fixture.call(&ctx, "withdraw_change", json!({ "changeId": ids[4] })).await.unwrap();
    let page = fixture.call(&ctx, "list_changes", json!({ "limit": 3 })).await.unwrap().1;
    let change_ids =
        |a: &Value| a["changes"].as_array().unwrap().iter().map(|c| c["changeId"].clone()).collect::<Vec<_>>();
    assert_eq!(change_ids(&page), ids[..3]);
    let rest = fixture.call(&ctx, "list_changes", json!({ "limit": 3, "cursor": page["nextCursor"] })).await.unwrap().1;
    assert_eq!((change_ids(&rest), &rest["nextCursor"]), (ids[3..].iter().map(|i| json!(i)).collect(), &Value::Null));
    assert_eq!(change_ids(&fixture.call(&ctx, "list_changes", json!({ "status": "open" })).await.unwrap().1), ids[..4]);
    let withdrawn = fixture.call(&ctx, "list_changes", json!({ "status": "withdrawn" })).await.unwrap().1;
    assert_eq!(change_ids(&withdrawn), ids[4..]);
    for (arguments, pointer) in [
        (json!({ "status": "lost" }), "/status"),
        (json!({ "limit": 0 }), "/limit"),
        (json!({ "limit": 101 }), "/limit"),
        (json!({ "cursor": "x".repeat(65) }), "/cursor"),
    ] {
        assert_eq!(
            fixture.call(&ctx, "list_changes", arguments).await.unwrap_err().data["details"]["errors"][0]["pointer"],
            pointer
        );
    }
    let error = fixture.call(&ctx, "list_changes", json!({ "cursor": "x" })).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidParams);
}

#[actix::test]
async fn resources_show_changes_and_gateway() {
    let fixture = Fixture::new().await;
    let mut events = fixture.tools.events();
    let change = fixture.propose("bob").await;
    let uri = format!("change://{}", change.id);
    // The change is durable and announced; the module forwards the event on its own task.
    let ProviderEvent::PrivateResourcesUpdated(updated) = events.recv().await.unwrap() else { panic!("another event") };
    let uris: Vec<&str> = updated.iter().map(|(uri, _)| uri.as_str()).collect();
    assert_eq!(uris, [uri.as_str(), "countersign://changes"]);
    let viewer = Principal { role: Role::Viewer, ..(*agent("eve").principal).clone() };
    let notified =
        |principal: &Principal| updated.iter().map(|(_, audience)| audience.includes(principal)).collect::<Vec<_>>();
    assert_eq!(
        [notified(&agent("bob").principal), notified(&agent("eve").principal), notified(&viewer)],
        [[true, true], [false, false], [true, false]]
    );

    let ctx = agent("bob");
    let read = |uri: String| {
        let (fixture, ctx) = (&fixture, &ctx);
        async move {
            let read = fixture.tools.read_resource(&uri, ctx).await.unwrap();
            assert!(fixture.tools.uri_prefixes().iter().any(|prefix| uri.starts_with(prefix)));
            serde_json::from_str::<Value>(&read[0].text).unwrap()
        }
    };
    assert_eq!(read(uri.clone()).await["status"], "pending");
    assert_eq!(read("countersign://changes".into()).await["changes"][0]["changeId"], json!(change.id));
    let about = read("countersign://gateway".into()).await;
    assert_eq!((&about["name"], &about["providers"]), (&json!("countersign"), &json!(2)));
    assert_eq!(about["protocolRevisions"].as_array().unwrap().len(), 5);
    for resource in fixture.tools.resources(&ctx).await.unwrap() {
        read(resource.uri).await;
    }
    for bad in ["change://chg_nothing", "change://", "countersign://secrets", "countersign://changes/"] {
        let error = fixture.tools.read_resource(bad, &ctx).await.unwrap_err();
        assert_eq!((error.kind, &error.data["uri"]), (ErrorKind::ResourceNotFound, &json!(bad)));
    }

    let template = CompletionRef::ResourceTemplate("change://{id}".into());
    let none = serde_json::Map::new();
    let found = fixture.tools.complete(&template, ("id", "chg_"), &none, &ctx).await.unwrap();
    assert_eq!(found.values, std::slice::from_ref(&change.id));
    assert_eq!(fixture.tools.complete(&template, ("id", ""), &none, &agent("eve")).await.unwrap().values, [""; 0]);
    assert!(fixture.tools.complete(&template, ("key", ""), &none, &ctx).await.is_err());

    fixture.decide(&change, ReviewVerdict::Reject, "No").await;
    let ProviderEvent::PrivateResourcesUpdated(updated) = events.recv().await.unwrap() else { panic!("another event") };
    assert!(updated.iter().any(|(updated, _)| *updated == uri));
    assert_eq!(read("countersign://changes".into()).await["changes"], json!([]));
}

#[actix::test]
async fn tools_manage_the_callers_own_changes() {
    let fixture = Fixture::new().await;
    for tool in fixture.tools.tools() {
        assert!(tool.self_service, "{}", tool.name);
        let writes = ["propose_plan", "withdraw_change"].contains(&tool.name.as_str());
        assert_eq!(tool.annotations.read_only_hint, !writes, "{}", tool.name);
        assert_eq!(tool.long_running, tool.name == "wait_for_change");
        assert_eq!(tool.input_schema["additionalProperties"], false);
        jsonschema::draft202012::meta::validate(&tool.input_schema).unwrap();
        jsonschema::draft202012::meta::validate(tool.output_schema.as_ref().unwrap()).unwrap();
    }
    let raw = to_raw_value(&json!({})).unwrap();
    assert_eq!(
        fixture.tools.call("approve_change", &raw, &agent("bob")).await.unwrap_err().kind,
        ErrorKind::ToolNotFound
    );
    assert!(fixture.tools.preview("withdraw_change", &raw, &agent("bob")).await.is_err());
}

#[actix::test]
async fn tracker_changes_go_stale_or_run_as_approved() {
    let fixture = Fixture::new().await;
    let status = json!({ "issueId": "CORE-8", "newStatus": "InProgress" });
    let first = fixture.propose_call("bob", "update_status", status.clone()).await;
    let second =
        fixture.propose_call("bob", "update_issue", json!({ "issueId": "CORE-8", "priority": "Critical" })).await;
    fixture.decide(&first, ReviewVerdict::Approve, "").await;
    let done = fixture.call(&agent("bob"), "wait_for_change", json!({ "changeId": first.id })).await.unwrap().1;
    assert_eq!(done["status"], "applied");
    // The issue has changed, so the other change gets a new diff before it can be approved.
    let decision = ChangeDecision {
        id: second.id.clone(),
        reviewer: principal("alice", Role::Reviewer),
        verdict: ReviewVerdict::Approve,
        comment: None,
        version: second.version,
        digest: None,
        bulk: false,
    };
    let refused = fixture.changes.decide(decision).await.unwrap_err();
    assert_eq!(refused.error.kind, ErrorKind::ChangeStale);
    let current = refused.current.unwrap();
    assert_eq!(current.state, ChangeState::Pending);
    fixture.decide(&current, ReviewVerdict::Approve, "Now yes").await;
    let done = fixture.call(&agent("bob"), "wait_for_change", json!({ "changeId": second.id })).await.unwrap().1;
    assert_eq!(done["status"], "applied", "{done}");
    // A change that can no longer be made stays stale, with the reason.
    let third = fixture.propose_call("bob", "delete_issue", json!({ "issueId": "CORE-9" })).await;
    let fourth = fixture.propose_call("bob", "update_issue", json!({ "issueId": "CORE-9", "title": "x" })).await;
    fixture.decide(&third, ReviewVerdict::Approve, "").await;
    let gone = fixture.call(&agent("bob"), "wait_for_change", json!({ "changeId": third.id })).await.unwrap().1;
    assert_eq!(gone["status"], "applied");
    let decision = ChangeDecision {
        id: fourth.id.clone(),
        reviewer: principal("alice", Role::Reviewer),
        verdict: ReviewVerdict::Approve,
        comment: None,
        version: fourth.version,
        digest: None,
        bulk: false,
    };
    let refused = fixture.changes.decide(decision).await.unwrap_err();
    assert_eq!(refused.current.unwrap().state, ChangeState::Stale);
    let (text, stale) = fixture.call(&agent("bob"), "get_change", json!({ "changeId": fourth.id })).await.unwrap();
    assert_eq!(stale["fault"]["code"], "NOT_FOUND");
    assert!(text.contains("Reason: NOT_FOUND: There is no issue `CORE-9`."), "{text}");
}

#[actix::test]
async fn expiry_of_approved_change_is_not_blamed_on_reviewers() {
    let fixture = Fixture::new().await;
    let mut change = (*fixture.propose("bob").await).clone();
    change.state = ChangeState::Approved;
    let event = crate::upkeep::expiry::expire_event(&change);
    let expired = countersign_domain::changes::machine::apply(&change, event, change.expires_at).unwrap().after;
    assert_eq!(expired.state, ChangeState::Expired);
    for text in [change_text(&expired), super::task_status_message(&expired)] {
        assert!(text.contains("expired before it ran") && !text.to_lowercase().contains("decided"), "{text}");
    }
}

#[actix::test]
async fn pruned_arguments_are_not_shown_as_run() {
    let fixture = Fixture::new().await;
    let mut change = (*fixture.propose("bob").await).clone();
    change.state = countersign_domain::changes::ChangeState::Applied;
    change.edits.push(countersign_domain::changes::Edit {
        by: "alice".into(),
        display_name: None,
        owner: None,
        key_id: None,
        other_names: Vec::new(),
        comment: None,
        at: change.created_at,
        from: "sha256:a".into(),
        to: "sha256:b".into(),
    });
    assert!(change_text(&change).contains("What ran: {\"issueId\""), "{}", change_text(&change));
    let old = countersign_domain::changes::retention::redact(&change, change.updated_at);
    let text = change_text(&old);
    assert!(text.contains("alice changed the arguments") && text.contains("no longer kept"), "{text}");
    assert!(!text.contains("What ran"), "the arguments were removed: {text}");
}

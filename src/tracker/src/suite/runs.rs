//! Tests the runs of approved changes: their history, repeated and concurrent runs, and copies of the data.

use std::{path::Path, sync::Arc};

use serde_json::json;

use super::{Fixture, config, context, drain_events, location_of, to_text};
use crate::{Tracker, copy_data};
use countersign_postgres::{
    proxy::{CUT_BEFORE_ANSWER, CUT_BEFORE_MESSAGE, PASS, Proxy, REFUSE},
    url_of,
};
use countersign_protocol::ErrorKind;
use countersign_provider::{CallContext, Permit, Provider};
use countersign_store::{ModuleStorage, StoreLocation};

#[tokio::test]
async fn history_records_actor_change_and_time() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let alice = context("alice", Some("chg_create"));
    let created = t
        .call_as(&alice, "create_issue", json!({ "projectId": project, "type": "Bug", "title": "Old" }))
        .await
        .unwrap();
    let key = to_text(&created["issue"]["key"]);
    t.call_as(&context("bob", Some("chg_title")), "update_issue", json!({ "issueId": key, "title": "New" }))
        .await
        .unwrap();
    t.call_as(&context("bob", Some("chg_status")), "update_status", json!({ "issueId": key, "newStatus": "Todo" }))
        .await
        .unwrap();
    let history = t.read(&format!("tracker://issues/{key}/history")).await.unwrap();
    let entries = history["entries"].as_array().unwrap();
    let recorded: Vec<_> = entries
        .iter()
        .map(|e| (to_text(&e["actor"]), to_text(&e["action"]), to_text(&e["changeId"]), e["changes"].clone()))
        .collect();
    assert_eq!(recorded.len(), 3);
    assert_eq!(
        (recorded[0].0.as_str(), recorded[0].1.as_str(), recorded[0].2.as_str()),
        ("alice", "created", "chg_create")
    );
    assert!(recorded[0].3.as_array().unwrap().contains(&json!({ "field": "key", "before": null, "after": key })));
    assert_eq!(recorded[1].3, json!([{ "field": "title", "before": "Old", "after": "New" }]));
    assert_eq!(recorded[2].3, json!([{ "field": "status", "before": "Backlog", "after": "Todo" }]));
    assert_eq!(history["total"], 3);
    for entry in entries {
        to_text(&entry["at"]).parse::<jiff::Timestamp>().unwrap();
    }
}

#[tokio::test]
async fn repeated_run_returns_the_first_answer() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let issue = t.create_issue(&project, "Bug", "A bug", None).await;
    let ctx = context("alice", Some("chg_1"));
    let arguments = json!({ "issueId": issue, "content": "each write is announced once" });
    let first = t.call_as(&ctx, "add_comment", arguments.clone()).await.unwrap();
    let dump = t.dump().await;
    let mut events = t.tracker.events();
    let second = t.call_as(&ctx, "add_comment", arguments.clone()).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(t.dump().await, dump);
    assert_eq!(drain_events(&mut events).0, Vec::<String>::new());
    // The answer also survives a restart.
    let t = t.reopen(&config(false));
    assert_eq!(t.call_as(&ctx, "add_comment", arguments).await.unwrap(), first);
    assert_eq!(t.dump().await, dump);
}

#[tokio::test]
async fn concurrent_runs_are_serialized() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let issue = t.create_issue(&project, "Bug", "A bug", None).await;
    let (first, second) = tokio::join!(
        t.call("update_status", json!({ "issueId": issue, "newStatus": "Todo" })),
        t.call("update_status", json!({ "issueId": issue, "newStatus": "Todo" })),
    );
    // One call wins, and the other sees its result.
    let refused = [first, second].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert_eq!(refused.len(), 1);
    assert_eq!((refused[0].kind, &refused[0].data["current"]), (ErrorKind::ToolExecution, &json!("Todo")));

    let calls = (0..40).map(|n| {
        let arguments = json!({ "projectId": project, "type": "Bug", "title": format!("Bug {n}") });
        let t = &t;
        async move { to_text(&t.call("create_issue", arguments).await.unwrap()["issue"]["key"]) }
    });
    let mut keys = futures_util::future::join_all(calls).await;
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 40, "no key is used twice");
    let same = (0..8).map(|_| t.call_as_change("chg_same", &issue));
    let answers = futures_util::future::join_all(same).await;
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]));
    let comments = t.read(&format!("tracker://issues/{issue}/comments")).await.unwrap();
    assert_eq!(comments["total"], 1);
}

impl Fixture {
    async fn call_as_change(&self, change: &str, issue: &str) -> serde_json::Value {
        let ctx = context("alice", Some(change));
        self.call_as(&ctx, "add_comment", json!({ "issueId": issue, "content": "hi" })).await.unwrap()
    }
}

#[tokio::test]
async fn deletion_and_new_child_exclude_each_other() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    for _ in 0..10 {
        let story = t.create_issue(&project, "Story", "A story", None).await;
        let (created, deleted) = tokio::join!(
            t.call("create_issue", json!({ "projectId": project, "type": "Task", "title": "x", "parentId": story })),
            t.call("delete_issue", json!({ "issueId": story })),
        );
        assert!(created.is_ok() != deleted.is_ok(), "exactly one of the two calls succeeds");
    }
}

#[tokio::test]
async fn changed_resources_are_announced() {
    let t = Fixture::empty();
    let mut events = t.tracker.events();
    let project = t.create_project("CORE").await;
    let (uris, list_changed) = drain_events(&mut events);
    assert!(list_changed, "a new project is in resources/list");
    assert!(uris.contains(&"tracker://projects".to_owned()) && uris.contains(&"tracker://people".to_owned()));

    let story = t.create_issue(&project, "Story", "A story", None).await;
    let task = t.create_issue(&project, "Task", "A task", Some(&story)).await;
    // All resources of the project and its issues.
    let mut watched = vec!["tracker://projects".to_owned(), "tracker://people".to_owned()];
    for name in ["CORE", &project] {
        watched.extend(["", "/issues", "/board"].map(|part| format!("tracker://projects/{name}{part}")));
    }
    for name in ["CORE-1", "CORE-2", &story, &task] {
        watched.extend(["", "/comments", "/history"].map(|part| format!("tracker://issues/{name}{part}")));
    }
    let me = t.agent_id().await;
    let writes = [
        ("update_issue", json!({ "issueId": story, "title": "Renamed" })),
        ("update_issue", json!({ "issueId": task, "estimatedHours": 2 })),
        ("update_issue", json!({ "issueId": task, "description": "text" })),
        ("assign_issue", json!({ "issueId": task, "assigneeId": me })),
        ("update_status", json!({ "issueId": task, "newStatus": "Cancelled" })),
        ("update_status", json!({ "issueId": story, "newStatus": "Todo" })),
        ("add_comment", json!({ "issueId": story, "content": "Hi" })),
        (
            "create_issue",
            json!({ "projectId": project, "type": "Bug", "title": "x", "parentId": task, "assigneeId": me }),
        ),
        ("delete_issue", json!({ "issueId": "CORE-3" })),
        ("delete_issue", json!({ "issueId": task })),
        ("create_project", json!({ "name": "Other", "key": "OTHER" })),
    ];
    for (tool, arguments) in writes {
        let mut before = Vec::new();
        for uri in &watched {
            before.push(t.read(uri).await.ok());
        }
        drain_events(&mut events);
        t.call(tool, arguments.clone()).await.unwrap();
        let (announced, _) = drain_events(&mut events);
        for (uri, before) in watched.iter().zip(before) {
            if t.read(uri).await.ok() != before {
                assert!(announced.contains(uri), "{tool} {arguments}: {uri} was not announced");
            }
        }
    }
}

#[tokio::test]
async fn people_of_the_configuration_can_be_assigned() {
    let mut config = config(true);
    config.people = vec!["Mara Lindqvist".into(), "Ada".into()];
    let t = Fixture::with_config(&config);
    let people = t.read("tracker://people").await.unwrap();
    let names: Vec<_> = people["people"].as_array().unwrap().iter().map(|p| to_text(&p["name"])).collect();
    assert_eq!(names, ["Ada", "Jonas Weber", "Mara Lindqvist", "Priya Raman", "Tomás Herrera"]);
    t.call("assign_issue", json!({ "issueId": "CORE-9", "assigneeId": people["people"][0]["id"] })).await.unwrap();
    // A later start adds people and removes nobody.
    config.people = vec!["Ada".into(), "Bo".into()];
    let t = t.reopen(&config);
    assert_eq!(t.read("tracker://people").await.unwrap()["people"].as_array().unwrap().len(), 7);
}

#[tokio::test]
async fn sample_is_created_once() {
    let t = Fixture::sample();
    let projects = t.call("list_projects", json!({})).await.unwrap();
    let core = &projects["projects"][0];
    assert_eq!(core["key"], "CORE");
    let (all, open) = (core["issueCount"].as_i64().unwrap(), core["openIssueCount"].as_i64().unwrap());
    assert!(all > open && open > 5, "{all} {open}");
    t.call("delete_issue", json!({ "issueId": "CORE-9" })).await.unwrap();
    let dump = t.dump().await;
    let t = t.reopen(&config(true));
    assert_eq!(t.dump().await, dump, "a later start changes no data");
}

#[tokio::test]
async fn data_is_copied_between_databases() {
    let t = Fixture::sample();
    let project = t.create_project("MOVED").await;
    let child = t.create_issue(&project, "Story", "Naïve \u{1f600} it's", None).await;
    let parent = t.create_issue(&project, "Epic", "Above", None).await;
    t.call("update_issue", json!({ "issueId": child, "parentId": parent, "estimatedHours": 2.5 })).await.unwrap();
    t.call_as(&context("agent-1", Some("chg_1")), "add_comment", json!({ "issueId": child, "content": "a word" }))
        .await
        .unwrap();
    let copied_data = t.dump().await;
    let from = location_of(t.dir.path()).module_storage().unwrap();
    for (database, location_of_target) in [
        ("file", StoreLocation::directory as fn(&Path) -> StoreLocation),
        ("server", |dir| StoreLocation::server(&url_of(dir), None).unwrap()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let location = location_of_target(dir.path()).module_storage().unwrap();
        let no_progress = &mut |_: u64, _: u64| {};
        let mut progress = Vec::new();
        let rows = copy_data(&from, &location, false, &mut |copied, total| progress.push((copied, total))).unwrap();
        assert_eq!(progress.last().copied(), rows.map(|rows| (rows, rows)));
        assert_eq!(rows, Some(u64::try_from(copied_data.len()).unwrap()));
        assert_eq!(copy_data(&from, &location, false, no_progress).unwrap(), Some(0), "the target has equal data");
        let moved = Fixture { tracker: Tracker::open(&location, &config(true)).unwrap(), dir };
        assert_eq!(moved.dump().await, copied_data, "{database}");
        // New issues continue the numbers, and the full-text index is filled.
        let found = moved.call("search_issues", json!({ "query": "naive it's" })).await.unwrap();
        assert_eq!(found["results"][0]["key"], "MOVED-1", "{found}");
        let next = moved.call("create_issue", json!({ "projectId": project, "type": "Bug", "title": "x" })).await;
        assert_eq!(next.unwrap()["issue"]["key"], "MOVED-3");
        let refused = copy_data(&from, &location, false, no_progress).unwrap();
        assert_eq!(refused, None, "the target has different data");
        assert_eq!(copy_data(&from, &location, true, no_progress).unwrap(), rows);
        assert_eq!(moved.dump().await, copied_data);
    }
}

/// The node may have written to the target between two attempts to copy.
#[tokio::test]
async fn different_data_is_not_taken_for_a_copy() {
    let (source, target) = (Fixture::empty(), Fixture::empty());
    for (t, title) in [(&source, "in the source"), (&target, "in the target")] {
        let project = t.create_project("SAME").await;
        t.create_issue(&project, "Bug", title, None).await;
    }
    let locations = [&source, &target].map(|t| location_of(t.dir.path()).module_storage().unwrap());
    let no_progress = &mut |_: u64, _: u64| {};
    let before = target.dump().await;
    assert_eq!(before.len(), source.dump().await.len());
    assert_eq!(copy_data(&locations[0], &locations[1], false, no_progress).unwrap(), None);
    assert_eq!(target.dump().await, before);
    assert!(copy_data(&locations[0], &locations[1], true, no_progress).unwrap() > Some(0));
    assert_eq!(target.dump().await, source.dump().await);
}

#[tokio::test]
async fn new_tables_import_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = Tracker::open(&ModuleStorage::Directory(dir.path().to_owned()), &config(true)).unwrap();
    let old = Fixture { tracker: file, dir };
    old.create_project("KEPT").await;
    let server_dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::configured(old.dir.path(), Some((&url_of(server_dir.path()), None))).unwrap();
    let tables = Tracker::open(&location.module_storage().unwrap(), &config(true)).unwrap();
    let mut new = Fixture { tracker: tables, dir: server_dir };
    assert_eq!(new.dump().await, old.dump().await);
    // The file is imported only once. Later writes to it are ignored.
    old.create_project("LATE").await;
    new.tracker = Tracker::open(&location.module_storage().unwrap(), &config(true)).unwrap();
    assert_ne!(new.dump().await, old.dump().await);
}

/// Several nodes share a database server. Each announces the writes of the others to its own subscribers.
#[tokio::test]
async fn writes_are_announced_by_other_nodes() {
    let t = Fixture::empty();
    let location = location_of(t.dir.path()).module_storage().unwrap();
    if let ModuleStorage::Directory(_) = location {
        return;
    }
    let other = Tracker::open(&location, &config(false)).unwrap();
    let (mut own_events, mut other_events) = (t.tracker.events(), other.events());
    t.create_project("CORE").await;
    let announced = drain_events(&mut own_events);
    assert!(announced.1 && announced.0.contains(&"tracker://projects/CORE".to_owned()), "{announced:?}");
    let mut received = (Vec::new(), false);
    for _ in 0..100 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let more = drain_events(&mut other_events);
        received.0.extend(more.0);
        received.1 |= more.1;
        if received.1 && !received.0.is_empty() {
            break;
        }
    }
    assert_eq!(received, announced);
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert_eq!(
        (drain_events(&mut own_events), drain_events(&mut other_events)),
        ((Vec::new(), false), (Vec::new(), false)),
        "each write is announced once"
    );
}

#[tokio::test]
async fn withdrawn_permit_stops_the_write() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let issue = t.create_issue(&project, "Bug", "A bug", None).await;
    let run = async |change: &str, is_permitted: bool| {
        let permit = Some(Permit(Arc::new(move || is_permitted)));
        let ctx = CallContext { permit, ..context("alice", Some(change)) };
        t.call_as(&ctx, "add_comment", json!({ "issueId": issue, "content": "done" })).await
    };
    let location = location_of(t.dir.path());
    let store = location.open().unwrap();
    if let ModuleStorage::Postgres { tables, .. } = location.module_storage().unwrap() {
        let connection = tables.wait_for_connection().unwrap();
        let changes = "INSERT INTO changes (id, version, state, principal, bytes, expires_at, body, votes, title)
                       SELECT 'chg_' || n, 1, 'executing', 'a', 1, '', '{}', 1, '' FROM generate_series(1, 2) AS n";
        connection.execute(changes, &[]).unwrap();
        let claims = "INSERT INTO claims (change_id, target, node, epoch, lapsed_until)
                      VALUES ('chg_1', 'a', 'n', 1, NULL), ('chg_2', 'b', 'n', 1, now())";
        connection.execute(claims, &[]).unwrap();
    }
    let before = t.dump().await;
    let refused = run("chg_1", false).await.unwrap_err();
    assert_eq!(refused.data["outcome"], "not_applied", "{refused}");
    if let ModuleStorage::Postgres { .. } = location.module_storage().unwrap() {
        // The permit is valid by the clock of this node, but the store has no valid claim.
        for unclaimed in ["chg_2", "chg_3"] {
            let refused = run(unclaimed, true).await.unwrap_err();
            assert_eq!(refused.data["outcome"], "not_applied", "{refused}");
        }
    }
    assert_eq!(t.dump().await, before);
    let done = run("chg_1", true).await.unwrap();
    // A repeated run returns the recorded result without a permit.
    assert_eq!(run("chg_1", false).await.unwrap(), done);
    store.close();
}

#[tokio::test]
async fn write_is_refused_if_state_differs_from_approval() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let issue = t.create_issue(&project, "Bug", "A bug", None).await;
    let write = json!({ "issueId": issue, "priority": "High" });
    let approved = Some(t.preview("update_issue", write.clone()).await.unwrap().fingerprint);
    let ctx = CallContext { approved_fingerprint: approved, ..context("alice", None) };
    t.call("update_issue", json!({ "issueId": issue, "title": "Another bug" })).await.unwrap();
    let before = t.dump().await;
    let refused = t.call_as(&ctx, "update_issue", write.clone()).await.unwrap_err();
    assert_eq!((refused.kind, &refused.data["outcome"]), (ErrorKind::ChangeStale, &json!("not_applied")));
    assert_eq!(t.dump().await, before);
    let approved = Some(t.preview("update_issue", write.clone()).await.unwrap().fingerprint);
    t.call_as(&CallContext { approved_fingerprint: approved, ..ctx }, "update_issue", write).await.unwrap();
}

/// If the connection to a database server ends during a commit, the node looks up whether the commit was made.
#[tokio::test]
async fn unanswered_commit_is_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    if let ModuleStorage::Directory(_) = location_of(dir.path()).module_storage().unwrap() {
        return;
    }
    let proxy = Proxy::for_database(&url_of(dir.path()));
    let location = StoreLocation::server(&proxy.url, None).unwrap().module_storage().unwrap();
    let t = Fixture { tracker: Tracker::open(&location, &config(false)).unwrap(), dir };
    let project = t.create_project("CORE").await;
    let mut events = t.tracker.events();

    proxy.set(CUT_BEFORE_ANSWER);
    let arguments = json!({ "projectId": project, "type": "Bug", "title": "durable" });
    let created = t.call_as(&context("agent-1", Some("chg_1")), "create_issue", arguments).await.unwrap();
    assert_eq!(created["issue"]["key"], "CORE-1");
    assert!(drain_events(&mut events).0.contains(&"tracker://issues/CORE-1".to_owned()));

    for failure in [CUT_BEFORE_MESSAGE, REFUSE] {
        proxy.set(failure);
        let error = t.call("create_issue", json!({ "projectId": project, "type": "Bug", "title": "lost" })).await;
        proxy.set(PASS);
        let error = error.unwrap_err();
        assert_eq!(error.kind, ErrorKind::StoreUnavailable, "{error}");
        assert!(error.message.contains("nothing was changed"), "{error}");
    }
    assert_eq!(drain_events(&mut events), (Vec::new(), false));
    let listed = t.call("list_issues", json!({})).await.unwrap();
    assert_eq!(listed["issues"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(t.create_issue(&project, "Bug", "next", None).await.len(), 36);
}

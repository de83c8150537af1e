//! Tests the tools that write: their previews, their effects, and what they refuse.

use serde_json::{Value, json};

use super::{Fixture, UNKNOWN_ID, assert_missing, config, to_text};
use countersign_domain::changes::{Operation, Preview};
use countersign_protocol::ErrorKind;

fn diff_fields(preview: &Preview) -> Vec<(&str, Option<&str>, Option<&str>)> {
    preview.diff.fields.iter().map(|f| (f.field.as_str(), f.before.as_deref(), f.after.as_deref())).collect()
}

#[tokio::test]
async fn project_is_previewed_and_created() {
    let t = Fixture::empty();
    let preview = t.preview("create_project", json!({ "name": "Web shop" })).await.unwrap();
    assert_eq!(preview.operation, Operation::Create);
    assert_eq!((preview.target.entity_type.as_str(), &preview.target.id), ("project", &None));
    assert_eq!(preview.target.label, "WS Web shop");
    assert_eq!(diff_fields(&preview), [("name", None, Some("Web shop")), ("key", None, Some("WS"))]);
    assert_eq!(t.dump().await, Vec::<String>::new(), "a preview writes nothing");

    let created = t.call("create_project", json!({ "name": "Web shop", "description": "Sells." })).await.unwrap();
    assert_eq!(created["project"]["key"], "WS");
    assert_eq!(created["project"]["issueCount"], 0);
    assert_eq!(created["project"]["createdBy"], "agent-1");

    // The next project of that name gets another key, and another fingerprint.
    let again = t.preview("create_project", json!({ "name": "Web shop" })).await.unwrap();
    assert_eq!(again.target.label, "WSA Web shop");
    assert_ne!(again.fingerprint, preview.fingerprint);
}

#[tokio::test]
async fn invalid_project_is_refused() {
    let t = Fixture::empty();
    t.create_project("CORE").await;
    let taken = t.assert_refused("create_project", json!({ "name": "x", "key": "CORE" })).await;
    assert_eq!(taken.kind, ErrorKind::ToolExecution);
    assert!(taken.message.contains("CORE"));
    for key in ["C", "core", "TOOLONGKEYS", "CO1", "CÖ", ""] {
        t.assert_invalid("create_project", json!({ "name": "x", "key": key }), "/key", "pattern").await;
    }
    t.assert_invalid("create_project", json!({ "name": " " }), "/name", "minLength").await;
    t.assert_invalid("create_project", json!({ "name": "x".repeat(101) }), "/name", "maxLength").await;
    let long = json!({ "name": "x", "description": "x".repeat(10_001) });
    t.assert_invalid("create_project", long, "/description", "maxLength").await;
    for wrong in [json!({}), json!({ "name": 3 }), json!({ "name": "x", "owner": "me" }), json!([])] {
        assert_eq!(t.assert_refused("create_project", wrong).await.kind, ErrorKind::ValidationFailed);
    }
}

#[tokio::test]
async fn issue_is_created_with_all_fields() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let me = t.agent_id().await;
    let story = t.create_issue(&project, "Story", "Sign in", None).await;
    let arguments = json!({
        "projectId": project, "title": "Fix login", "type": "Task", "description": "One\nTwo", "priority": "High",
        "assigneeId": me, "estimatedHours": 2.5, "parentId": story,
    });
    let preview = t.preview("create_issue", arguments.clone()).await.unwrap();
    assert_eq!(preview.summary, "Create Task “Fix login” in CORE");
    assert_eq!(preview.target.label, "Fix login (new in CORE)");
    assert_eq!(preview.target.lock_key, project);
    assert_eq!(preview.target.id, None);
    assert_eq!(
        diff_fields(&preview),
        [
            ("project", None, Some("CORE Project CORE")),
            ("key", None, Some("CORE-… (assigned when it is applied)")),
            ("type", None, Some("Task")),
            ("title", None, Some("Fix login")),
            ("status", None, Some("Backlog")),
            ("priority", None, Some("High")),
            ("description", None, Some("One\nTwo")),
            ("assignee", None, Some("agent-1")),
            ("estimatedHours", None, Some("2.5")),
            ("parent", None, Some("CORE-1 Sign in")),
        ]
    );
    let issue = &t.call("create_issue", arguments).await.unwrap()["issue"];
    let expected = json!({
        "key": "CORE-2", "projectId": project, "projectKey": "CORE", "title": "Fix login", "type": "Task",
        "status": "Backlog", "priority": "High", "description": "One\nTwo", "assignee": { "id": me, "name": "agent-1" },
        "parent": { "id": story, "key": "CORE-1", "title": "Sign in", "type": "Story" }, "estimatedHours": 2.5,
        "commentCount": 0, "childCount": 0, "allowedTransitions": ["Todo", "Cancelled"], "version": 1,
        "createdBy": "agent-1",
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&issue[name], value, "{name}");
    }
}

#[tokio::test]
async fn issue_without_optional_fields_gets_defaults() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let created = t.call("create_issue", json!({ "projectId": project, "title": "x", "type": "Bug" })).await.unwrap();
    let issue = &created["issue"];
    assert_eq!((&issue["priority"], &issue["status"]), (&json!("Medium"), &json!("Backlog")));
    assert_eq!(
        (&issue["assignee"], &issue["parent"], &issue["estimatedHours"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let zero = json!({ "projectId": project, "title": "x", "type": "Bug", "estimatedHours": 0 });
    assert_eq!(t.call("create_issue", zero).await.unwrap()["issue"]["estimatedHours"], json!(0));
}

#[tokio::test]
async fn invalid_issue_is_refused() {
    let t = Fixture::empty();
    let (project, other) = (t.create_project("CORE").await, t.create_project("OTHER").await);
    let bug = t.create_issue(&project, "Bug", "A bug", None).await;
    let story = t.create_issue(&project, "Story", "A story", None).await;
    let task = t.create_issue(&project, "Task", "A task", Some(&story)).await;
    let foreign = t.create_issue(&other, "Story", "Elsewhere", None).await;
    let with = |changes: Value| {
        let mut all = json!({ "projectId": project, "title": "x", "type": "Bug" });
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        all
    };
    let cases = [
        (json!({ "title": "" }), "/title", "minLength"),
        (json!({ "title": "\u{a0}\n" }), "/title", "minLength"),
        (json!({ "title": "ä".repeat(201) }), "/title", "maxLength"),
        (json!({ "description": "x".repeat(65_537) }), "/description", "maxLength"),
        (json!({ "estimatedHours": -0.5 }), "/estimatedHours", "minimum"),
        (json!({ "estimatedHours": 1e9 }), "/estimatedHours", "maximum"),
        (json!({ "projectId": "CORE" }), "/projectId", "format"),
        (json!({ "assigneeId": "me" }), "/assigneeId", "format"),
        (json!({ "parentId": "CORE-1" }), "/parentId", "format"),
        (json!({ "type": "Task" }), "/parentId", "parent"),
        (json!({ "type": "Task", "parentId": bug }), "/parentId", "parent"),
        (json!({ "type": "Task", "parentId": task }), "/parentId", "parent"),
        (json!({ "type": "Epic", "parentId": story }), "/parentId", "parent"),
        (json!({ "type": "Story", "parentId": bug }), "/parentId", "parent"),
        (json!({ "type": "Task", "parentId": foreign }), "/parentId", "parent"),
        (json!({ "type": "Wish" }), "/type", "type"),
        (json!({ "type": "bug" }), "/type", "type"),
        (json!({ "priority": "Urgent" }), "/priority", "type"),
        (json!({ "title": null }), "/title", "type"),
        (json!({ "status": "Done" }), "/status", "type"),
    ];
    for (changes, pointer, rule) in cases {
        t.assert_invalid("create_issue", with(changes), pointer, rule).await;
    }
    let missing = t.assert_refused("create_issue", with(json!({ "projectId": UNKNOWN_ID }))).await;
    assert_missing(&missing, "project");
    assert_eq!(missing.data["known"][0]["key"], "CORE");
    let missing = t.assert_refused("create_issue", with(json!({ "assigneeId": UNKNOWN_ID }))).await;
    assert_missing(&missing, "person");
    assert_eq!(missing.data["known"][0]["name"], "agent-1");
    t.assert_missing("create_issue", with(json!({ "parentId": UNKNOWN_ID })), "issue").await;
    // The limit counts characters, not bytes.
    t.call("create_issue", with(json!({ "title": "ä".repeat(200) }))).await.unwrap();
}

#[tokio::test]
async fn update_sets_only_the_given_fields() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let story = t.create_issue(&project, "Story", "A story", None).await;
    let issue = t.create_issue(&project, "Bug", "Old", Some(&story)).await;
    let set =
        json!({ "issueId": "core-2", "title": "New", "priority": "Critical", "estimatedHours": 3, "description": "D" });
    let preview = t.preview("update_issue", set.clone()).await.unwrap();
    assert_eq!(preview.operation, Operation::Update);
    assert_eq!(preview.target.id.as_deref(), Some(issue.as_str()));
    assert_eq!((preview.target.label.as_str(), preview.target.lock_key.as_str()), ("CORE-2 Old", issue.as_str()));
    assert_eq!(
        diff_fields(&preview),
        [
            ("title", Some("Old"), Some("New")),
            ("priority", Some("Medium"), Some("Critical")),
            ("estimatedHours", None, Some("3")),
            ("description", None, Some("D")),
        ]
    );
    let done = t.call("update_issue", set).await.unwrap();
    assert_eq!(done["changed"], json!(["title", "priority", "estimatedHours", "description"]));
    assert_eq!(done["issue"]["version"], 2);
    assert_eq!(done["issue"]["parent"]["id"], json!(story));

    let clear = json!({ "issueId": issue, "estimatedHours": null, "parentId": null, "description": "" });
    let done = t.call("update_issue", clear).await.unwrap();
    assert_eq!(done["changed"], json!(["estimatedHours", "parent", "description"]));
    assert_eq!((&done["issue"]["parent"], &done["issue"]["title"]), (&Value::Null, &json!("New")));
}

#[tokio::test]
async fn invalid_update_is_refused() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let top = t.create_issue(&project, "Story", "Top", None).await;
    let mid = t.create_issue(&project, "Story", "Mid", Some(&top)).await;
    let low = t.create_issue(&project, "Story", "Low", Some(&mid)).await;
    let task = t.create_issue(&project, "Task", "Task", Some(&low)).await;

    t.assert_invalid("update_issue", json!({ "issueId": top }), "", "minProperties").await;
    let same = t.assert_refused("update_issue", json!({ "issueId": top, "title": "Top", "priority": "Medium" })).await;
    assert_eq!(same.kind, ErrorKind::ToolExecution);
    assert!(same.message.contains("Nothing would change"));
    for parent in [&top, &mid, &low] {
        t.assert_invalid("update_issue", json!({ "issueId": top, "parentId": parent }), "/parentId", "cycle").await;
    }
    t.assert_invalid("update_issue", json!({ "issueId": task, "parentId": null }), "/parentId", "parent").await;
    t.assert_invalid("update_issue", json!({ "issueId": mid, "parentId": task }), "/parentId", "parent").await;
    // The parent is a Story, which cannot have an Epic as a child.
    t.assert_invalid("update_issue", json!({ "issueId": mid, "type": "Epic" }), "/parentId", "parent").await;
    // The child is a Task, which cannot have a Bug as its parent.
    let children = t.assert_refused("update_issue", json!({ "issueId": low, "type": "Bug" })).await;
    assert_eq!((children.kind, &children.data["children"]), (ErrorKind::ToolExecution, &json!(["CORE-4 (Task)"])));
    t.assert_missing("update_issue", json!({ "issueId": UNKNOWN_ID, "title": "x" }), "issue").await;
    t.assert_missing("update_issue", json!({ "issueId": "CORE-99", "title": "x" }), "issue").await;
    t.assert_missing("update_issue", json!({ "issueId": top, "parentId": UNKNOWN_ID }), "issue").await;
    t.assert_invalid("update_issue", json!({ "issueId": "x", "title": "x" }), "/issueId", "anyOf").await;
    t.assert_invalid("update_issue", json!({ "issueId": top, "title": "" }), "/title", "minLength").await;
    t.assert_invalid("update_issue", json!({ "issueId": top, "status": "Done" }), "/status", "type").await;
}

#[tokio::test]
async fn issue_below_32_levels_is_refused() {
    let t = Fixture::empty();
    let project = t.create_project("DEEP").await;
    let mut parent = t.create_issue(&project, "Epic", "0", None).await;
    for depth in 1..32 {
        parent = t.create_issue(&project, "Epic", &depth.to_string(), Some(&parent)).await;
    }
    let deeper = json!({ "projectId": project, "title": "x", "type": "Epic", "parentId": parent });
    t.assert_invalid("create_issue", deeper, "/parentId", "depth").await;
}

#[tokio::test]
async fn update_status_follows_the_workflow() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let issue = t.create_issue(&project, "Bug", "A bug", None).await;
    let illegal = t.assert_refused("update_status", json!({ "issueId": issue, "newStatus": "Done" })).await;
    assert_eq!(illegal.kind, ErrorKind::ToolExecution);
    assert_eq!(illegal.data["allowed"], json!(["Todo", "Cancelled"]));
    assert_eq!((&illegal.data["current"], &illegal.data["requested"]), (&json!("Backlog"), &json!("Done")));
    assert!(illegal.message.contains("Allowed from Backlog: Todo, Cancelled."), "{}", illegal.message);
    let same = t.assert_refused("update_status", json!({ "issueId": issue, "newStatus": "Backlog" })).await;
    assert!(same.message.contains("already in Backlog"));
    t.assert_invalid("update_status", json!({ "issueId": issue, "newStatus": "Gone" }), "/newStatus", "type").await;
    t.assert_missing("update_status", json!({ "issueId": UNKNOWN_ID, "newStatus": "Done" }), "issue").await;

    let preview = t.preview("update_status", json!({ "issueId": issue, "newStatus": "Todo" })).await.unwrap();
    assert_eq!(preview.summary, "Move CORE-1 “A bug” from Backlog to Todo");
    assert_eq!(diff_fields(&preview), [("status", Some("Backlog"), Some("Todo"))]);
    for status in ["Todo", "InProgress", "Review", "Done", "InProgress"] {
        let done = t.call("update_status", json!({ "issueId": issue, "newStatus": status })).await.unwrap();
        assert_eq!(done["issue"]["status"], status);
    }
}

#[tokio::test]
async fn configured_workflow_is_enforced() {
    let mut config = config(false);
    config.workflow.insert("Backlog".into(), vec!["Done".into()]);
    let t = Fixture::with_config(&config);
    let project = t.create_project("CORE").await;
    let issue = t.create_issue(&project, "Bug", "A bug", None).await;
    t.call("update_status", json!({ "issueId": issue, "newStatus": "Done" })).await.unwrap();
    let stuck = t.assert_refused("update_status", json!({ "issueId": issue, "newStatus": "Todo" })).await;
    assert_eq!(stuck.data["allowed"], json!([]));
    assert!(stuck.message.contains("no way out"));

    config.workflow.insert("Nowhere".into(), vec![]);
    let error =
        super::Tracker::open(&super::location_of(t.dir.path()).module_storage().unwrap(), &config).err().unwrap();
    assert!(error.to_string().contains("`Nowhere` is not a status"), "{error}");
}

#[tokio::test]
async fn issue_is_assigned_and_unassigned() {
    let t = Fixture::sample();
    let answer = t.call("list_projects", json!({ "includePeople": true })).await.unwrap();
    let mara = answer["people"].as_array().unwrap().iter().find(|p| p["name"] == "Mara Lindqvist").unwrap().clone();
    let set = json!({ "issueId": "CORE-8", "assigneeId": mara["id"] });
    let preview = t.preview("assign_issue", set.clone()).await.unwrap();
    assert_eq!(diff_fields(&preview), [("assignee", None, Some("Mara Lindqvist"))]);
    assert!(preview.summary.ends_with("to Mara Lindqvist"), "{}", preview.summary);
    let done = t.call("assign_issue", set.clone()).await.unwrap();
    assert_eq!(done["issue"]["assignee"]["id"], mara["id"]);
    assert!(t.assert_refused("assign_issue", set).await.message.contains("already assigned"));
    let nobody = json!({ "issueId": "CORE-8", "assigneeId": null });
    assert_eq!(t.call("assign_issue", nobody.clone()).await.unwrap()["issue"]["assignee"], Value::Null);
    assert!(t.assert_refused("assign_issue", nobody).await.message.contains("no assignee"));
    t.assert_missing("assign_issue", json!({ "issueId": "CORE-8", "assigneeId": UNKNOWN_ID }), "person").await;
    t.assert_invalid("assign_issue", json!({ "issueId": "CORE-8" }), "/assigneeId", "required").await;
    t.assert_missing("assign_issue", json!({ "issueId": "CORE-99", "assigneeId": null }), "issue").await;
}

#[tokio::test]
async fn people_of_one_name_are_told_apart() {
    let mut config = config(false);
    config.people = vec!["agent-1".into()];
    let t = Fixture::with_config(&config);
    let named = to_text(&t.read("tracker://people").await.unwrap()["people"][0]["id"]);
    // The first write of `agent-1` adds a second person of this name.
    let project = t.create_project("CORE").await;
    let agent = t.agent_id().await;
    let issue = t.create_issue(&project, "Bug", "A bug", None).await;
    let agent_label = format!("agent-1 ({agent})");
    let steps = [(&named, None, "agent-1"), (&agent, Some("agent-1"), agent_label.as_str())];
    for (person, before, after) in steps {
        let assign = json!({ "issueId": issue, "assigneeId": person });
        let preview = t.preview("assign_issue", assign.clone()).await.unwrap();
        assert_eq!(diff_fields(&preview), [("assignee", before, Some(after))]);
        assert!(preview.summary.ends_with(after), "{}", preview.summary);
        let answer = t.call("assign_issue", assign.clone()).await.unwrap();
        let present = t.read_back("assign_issue", assign, &answer).await;
        assert!(present.contains(&("assignee", Some(after.to_owned()))), "{present:?}");
    }
}

#[tokio::test]
async fn comment_author_is_the_caller() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let issue = t.create_issue(&project, "Bug", "A bug", None).await;
    let preview = t.preview("add_comment", json!({ "issueId": issue, "content": "**Hi**\nthere" })).await.unwrap();
    assert_eq!((preview.operation, preview.target.entity_type.as_str()), (Operation::Create, "comment"));
    assert_eq!(preview.target.label, "on CORE-1 A bug");
    assert_eq!(preview.target.lock_key, issue);
    assert_eq!(diff_fields(&preview), [("content", None, Some("**Hi**\nthere"))]);
    let ctx = super::context("bob", Some("chg_1"));
    let created =
        t.call_as(&ctx, "add_comment", json!({ "issueId": "CORE-1", "content": "**Hi**\nthere" })).await.unwrap();
    assert_eq!((&created["comment"]["author"], &created["comment"]["changeId"]), (&json!("bob"), &json!("chg_1")));
    assert_eq!((&created["issueKey"], &created["issueId"]), (&json!("CORE-1"), &json!(issue)));
    let read = t.call("get_issue", json!({ "issueId": issue, "include": ["comments"] })).await.unwrap();
    assert_eq!(read["comments"], json!([created["comment"]]));
    assert_eq!(read["issue"]["commentCount"], 1);
    // Its first write adds a principal to the people.
    assert!(to_text(&created["comment"]["authorId"]).len() == 36);

    t.assert_invalid("add_comment", json!({ "issueId": issue, "content": "" }), "/content", "minLength").await;
    t.assert_invalid("add_comment", json!({ "issueId": issue, "content": " \t\n" }), "/content", "minLength").await;
    let long = json!({ "issueId": issue, "content": "x".repeat(65_537) });
    t.assert_invalid("add_comment", long, "/content", "maxLength").await;
    t.assert_missing("add_comment", json!({ "issueId": UNKNOWN_ID, "content": "x" }), "issue").await;
}

#[tokio::test]
async fn deletion_keeps_only_history() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let story = t.create_issue(&project, "Story", "A story", None).await;
    let task = t.create_issue(&project, "Task", "A task", Some(&story)).await;
    t.call("add_comment", json!({ "issueId": task, "content": "zebra" })).await.unwrap();
    let parent = t.assert_refused("delete_issue", json!({ "issueId": story })).await;
    assert_eq!((parent.kind, &parent.data["children"]), (ErrorKind::ToolExecution, &json!(["CORE-2"])));
    t.assert_missing("delete_issue", json!({ "issueId": UNKNOWN_ID }), "issue").await;

    let preview = t.preview("delete_issue", json!({ "issueId": task })).await.unwrap();
    assert_eq!(preview.operation, Operation::Delete);
    assert_eq!(preview.summary, "Delete Task CORE-2 “A task” with 1 comment");
    assert!(preview.diff.fields.iter().all(|f| f.before.is_some() && f.after.is_none()));
    assert!(diff_fields(&preview).contains(&("comments", Some("1"), None)));
    let deleted = t.call("delete_issue", json!({ "issueId": task })).await.unwrap();
    assert_eq!(deleted["deleted"], json!({ "id": task, "key": "CORE-2", "title": "A task" }));
    assert_missing(&t.call("get_issue", json!({ "issueId": task })).await.unwrap_err(), "issue");
    assert_eq!(t.call("search_issues", json!({ "query": "zebra" })).await.unwrap()["results"], json!([]));
    let history = t.read("tracker://issues/CORE-2/history").await.unwrap();
    let actions: Vec<_> = history["entries"].as_array().unwrap().iter().map(|e| to_text(&e["action"])).collect();
    assert_eq!(actions, ["created", "commented", "deleted"]);
    // Keys are never reused.
    t.create_issue(&project, "Bug", "Next", None).await;
    assert!(t.call("get_issue", json!({ "issueId": "CORE-3" })).await.is_ok());
    t.call("delete_issue", json!({ "issueId": story })).await.unwrap();
    let projects = t.call("list_projects", json!({})).await.unwrap();
    assert_eq!(
        (&projects["projects"][0]["issueCount"], &projects["projects"][0]["openIssueCount"]),
        (&json!(1), &json!(1))
    );
}

#[tokio::test]
async fn fingerprint_changes_only_with_its_target() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let me = t.agent_id().await;
    let story = t.create_issue(&project, "Story", "A story", None).await;
    let bug = t.create_issue(&project, "Bug", "A bug", None).await;
    let update = json!({ "issueId": bug, "priority": "High" });
    let status = json!({ "issueId": bug, "newStatus": "Todo" });
    let comment = json!({ "issueId": bug, "content": "Hi" });
    let delete = json!({ "issueId": bug });
    let assign = json!({ "issueId": bug, "assigneeId": me });
    let create = json!({ "projectId": project, "type": "Task", "title": "x", "parentId": story });
    let calls = [
        ("update_issue", update),
        ("update_status", status),
        ("add_comment", comment.clone()),
        ("delete_issue", delete),
        ("assign_issue", assign),
        ("create_issue", create),
    ];
    let fingerprints = || async {
        let mut all = Vec::new();
        for (tool, arguments) in &calls {
            all.push(t.preview(tool, arguments.clone()).await.unwrap().fingerprint);
        }
        all
    };
    let changed_tools = |before: &[String], after: &[String]| -> Vec<&str> {
        calls.iter().zip(before.iter().zip(after)).filter(|(_, (b, a))| b != a).map(|((tool, _), _)| *tool).collect()
    };
    let first = fingerprints().await;
    assert_eq!(fingerprints().await, first, "the same state has the same fingerprint");
    t.call("add_comment", comment).await.unwrap();
    let commented = fingerprints().await;
    assert_eq!(changed_tools(&first, &commented), ["delete_issue"]);
    t.call("update_issue", json!({ "issueId": bug, "estimatedHours": 1 })).await.unwrap();
    let updated = fingerprints().await;
    assert_eq!(changed_tools(&commented, &updated), ["update_issue", "update_status", "delete_issue", "assign_issue"]);
    t.call("update_issue", json!({ "issueId": bug, "title": "Renamed" })).await.unwrap();
    let renamed = fingerprints().await;
    assert!(changed_tools(&updated, &renamed).contains(&"add_comment"));
    t.call("update_issue", json!({ "issueId": story, "title": "Another story" })).await.unwrap();
    let parent = fingerprints().await;
    assert_eq!(changed_tools(&renamed, &parent), ["create_issue"]);
    // Other issues of the project do not change any fingerprint.
    t.create_issue(&project, "Bug", "Another bug", None).await;
    assert_eq!(fingerprints().await, parent);
}

//! Tests the tools that read: their filters, their pages and the search.

use serde_json::{Value, json};

use super::{CancellationToken, Fixture, ReadKind, UNKNOWN_ID, assert_invalid, assert_missing, to_text};
use crate::{arguments::ListIssues, db::Db, reads::list_query};
use countersign_provider::schema::parse_arguments;

fn issue_keys(answer: &Value) -> Vec<String> {
    answer["issues"].as_array().unwrap().iter().map(|i| to_text(&i["key"])).collect()
}

async fn list_keys(t: &Fixture, arguments: Value) -> Vec<String> {
    issue_keys(&t.call("list_issues", arguments).await.unwrap())
}

#[tokio::test]
async fn filters_are_combined() {
    let t = Fixture::empty();
    let (core, other) = (t.create_project("CORE").await, t.create_project("OTHER").await);
    let me = t.agent_id().await;
    let story = t.create_issue(&core, "Story", "Sign in with a passkey", None).await;
    t.create_issue(&core, "Task", "Store the passkey", Some(&story)).await;
    t.create_issue(&core, "Bug", "Blank page", None).await;
    t.create_issue(&other, "Bug", "Other blank page", None).await;
    t.call("assign_issue", json!({ "issueId": "CORE-3", "assigneeId": me })).await.unwrap();
    t.call("update_status", json!({ "issueId": "CORE-2", "newStatus": "Todo" })).await.unwrap();
    t.call("update_issue", json!({ "issueId": "CORE-3", "priority": "High" })).await.unwrap();

    assert_eq!(list_keys(&t, json!({})).await, ["OTHER-1", "CORE-3", "CORE-2", "CORE-1"]);
    assert_eq!(list_keys(&t, json!({ "projectId": core })).await, ["CORE-3", "CORE-2", "CORE-1"]);
    assert_eq!(list_keys(&t, json!({ "projectId": "other" })).await, ["OTHER-1"]);
    assert_eq!(list_keys(&t, json!({ "status": "Todo" })).await, ["CORE-2"]);
    assert_eq!(list_keys(&t, json!({ "projectId": "CORE", "status": "Backlog" })).await, ["CORE-3", "CORE-1"]);
    assert_eq!(list_keys(&t, json!({ "status": ["Todo", "Done"], "type": ["Task", "Bug"] })).await, ["CORE-2"]);
    assert_eq!(list_keys(&t, json!({ "type": "Bug", "projectId": "CORE" })).await, ["CORE-3"]);
    assert_eq!(list_keys(&t, json!({ "priority": "High" })).await, ["CORE-3"]);
    assert_eq!(list_keys(&t, json!({ "assigneeId": me })).await, ["CORE-3"]);
    assert_eq!(list_keys(&t, json!({ "assigneeId": null, "projectId": "CORE" })).await, ["CORE-2", "CORE-1"]);
    assert_eq!(list_keys(&t, json!({ "parentId": story })).await, ["CORE-2"]);
    assert_eq!(list_keys(&t, json!({ "parentId": "CORE-1" })).await, ["CORE-2"]);
    assert_eq!(list_keys(&t, json!({ "parentId": null, "type": "Story" })).await, ["CORE-1"]);
    assert_eq!(list_keys(&t, json!({ "text": "blank page" })).await, ["OTHER-1", "CORE-3"]);
    assert_eq!(list_keys(&t, json!({ "text": "passk", "type": "Task" })).await, ["CORE-2"]);
    assert_eq!(list_keys(&t, json!({ "text": "!!!" })).await, [""; 0]);
    assert_eq!(list_keys(&t, json!({ "text": "  " })).await.len(), 4);
}

#[tokio::test]
async fn invalid_list_arguments_are_refused() {
    let t = Fixture::sample();
    assert_missing(&t.call("list_issues", json!({ "projectId": "NONE" })).await.unwrap_err(), "project");
    assert_missing(&t.call("list_issues", json!({ "assigneeId": UNKNOWN_ID })).await.unwrap_err(), "person");
    assert_missing(&t.call("list_issues", json!({ "parentId": "CORE-99" })).await.unwrap_err(), "issue");
    for (arguments, pointer, rule) in [
        (json!({ "limit": 0 }), "/limit", "minimum"),
        (json!({ "limit": 101 }), "/limit", "maximum"),
        (json!({ "limit": -1 }), "/limit", "type"),
        (json!({ "status": "Open" }), "/status", "type"),
        (json!({ "projectId": "C" }), "/projectId", "anyOf"),
        (json!({ "cursor": "x" }), "/cursor", "cursor"),
        (json!({ "cursor": "" }), "/cursor", "cursor"),
        (json!({ "cursor": "x".repeat(200) }), "/cursor", "maxLength"),
        (json!({ "text": "x".repeat(501) }), "/text", "maxLength"),
    ] {
        assert_invalid(&t.call("list_issues", arguments).await.unwrap_err(), pointer, rule);
    }
}

#[tokio::test]
async fn pages_list_each_issue_once_during_writes() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    for n in 0..25 {
        t.create_issue(&project, "Bug", &format!("Bug {n}"), None).await;
    }
    let mut seen = Vec::new();
    let mut arguments = json!({ "projectId": "CORE", "limit": 7 });
    loop {
        let page = t.call("list_issues", arguments.clone()).await.unwrap();
        seen.extend(issue_keys(&page));
        t.create_issue(&project, "Bug", "late", None).await;
        match &page["nextCursor"] {
            Value::Null => break,
            cursor => arguments["cursor"] = cursor.clone(),
        }
    }
    let expected: Vec<String> = (1..=25).rev().map(|n| format!("CORE-{n}")).collect();
    assert_eq!(seen, expected);
    // A cursor is valid only for the filters of its listing.
    let cursor = t.call("list_issues", json!({ "limit": 1 })).await.unwrap()["nextCursor"].clone();
    let error = t.call("list_issues", json!({ "limit": 1, "type": "Bug", "cursor": cursor })).await.unwrap_err();
    assert_invalid(&error, "/cursor", "cursor");
}

#[tokio::test]
async fn projects_are_paged_by_key() {
    let t = Fixture::empty();
    for key in ["CC", "AA", "DD", "BB"] {
        t.create_project(key).await;
    }
    let first = t.call("list_projects", json!({ "limit": 3 })).await.unwrap();
    let keys_of = |page: &Value| {
        page["projects"].as_array().unwrap().iter().map(|project| to_text(&project["key"])).collect::<Vec<_>>()
    };
    assert_eq!(keys_of(&first), ["AA", "BB", "CC"]);
    assert!(first.get("people").is_none());
    let rest = t.call("list_projects", json!({ "cursor": first["nextCursor"] })).await.unwrap();
    assert_eq!((keys_of(&rest), &rest["nextCursor"]), (vec!["DD".to_owned()], &Value::Null));
    let error = t.call("list_projects", json!({ "cursor": "1.0" })).await.unwrap_err();
    assert_invalid(&error, "/cursor", "cursor");
}

#[tokio::test]
async fn issue_is_found_by_id_or_key() {
    let t = Fixture::sample();
    let by_key = t.call("get_issue", json!({ "issueId": "CORE-2" })).await.unwrap();
    let id = to_text(&by_key["issue"]["id"]);
    assert_eq!(t.call("get_issue", json!({ "issueId": id.to_uppercase() })).await.unwrap(), by_key);
    assert_eq!(t.call("get_issue", json!({ "issueId": "core-2" })).await.unwrap(), by_key);
    assert_eq!((&by_key["issue"]["childCount"], &by_key["issue"]["commentCount"]), (&json!(2), &json!(2)));
    assert!(by_key.get("comments").is_none());
    let all = t
        .call("get_issue", json!({ "issueId": "CORE-2", "include": ["comments", "children", "history"] }))
        .await
        .unwrap();
    assert_eq!(all["comments"].as_array().unwrap().len(), 2);
    assert_eq!(all["children"][0]["key"], "CORE-3");
    assert!(all["history"].as_array().unwrap().len() >= 4);
    assert_missing(&t.call("get_issue", json!({ "issueId": "CORE-99" })).await.unwrap_err(), "issue");
    assert_missing(&t.call("get_issue", json!({ "issueId": UNKNOWN_ID })).await.unwrap_err(), "issue");
    assert_invalid(&t.call("get_issue", json!({ "issueId": "12" })).await.unwrap_err(), "/issueId", "anyOf");
    let text = t.call_for_text("get_issue", json!({ "issueId": "CORE-2" })).await;
    for part in ["CORE-2 Register a passkey", id.as_str(), "Status: Review", "May go to: Done, InProgress, Cancelled"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[tokio::test]
async fn search_ranks_titles_first_and_finds_comments() {
    let t = Fixture::sample();
    let found = t.call("search_issues", json!({ "query": "passkey" })).await.unwrap();
    let first = &found["results"][0];
    assert!(to_text(&first["title"]).to_lowercase().contains("passkey"), "titles come first: {first}");
    let by_key = t.call("search_issues", json!({ "query": "CORE-7" })).await.unwrap();
    assert_eq!(by_key["results"][0]["key"], "CORE-7");
    let in_comment = t.call("search_issues", json!({ "query": "adviser noticed" })).await.unwrap();
    assert_eq!(in_comment["results"][0]["key"], "CORE-8");
    assert_eq!(in_comment["results"][0]["matchedIn"], "comments");
    assert!(to_text(&in_comment["results"][0]["snippet"]).contains("[adviser]"));
    let without_marks = t.call("search_issues", json!({ "query": "reseau safari" })).await.unwrap();
    assert_eq!(without_marks["partial"], true, "no issue has both words");
    let by_prefix = t.call("search_issues", json!({ "query": "blank pag" })).await.unwrap();
    assert_eq!(by_prefix["results"][0]["key"], "CORE-7");
    let limited = t.call("search_issues", json!({ "query": "the", "limit": 1 })).await.unwrap();
    assert_eq!((limited["results"].as_array().unwrap().len(), &limited["hasMore"]), (1, &json!(true)));
    let none = t.call("search_issues", json!({ "query": "xylophone" })).await.unwrap();
    assert_eq!(none, json!({ "results": [], "partial": false, "hasMore": false }));
    let other = t.create_project("OTHER").await;
    let in_other_project = t.call("search_issues", json!({ "query": "passkey", "projectId": other })).await.unwrap();
    assert_eq!(in_other_project["results"], json!([]));
    assert_missing(
        &t.call("search_issues", json!({ "query": "x", "projectId": "NONE" })).await.unwrap_err(),
        "project",
    );
    assert_invalid(&t.call("search_issues", json!({ "query": "" })).await.unwrap_err(), "/query", "minLength");
}

#[tokio::test]
async fn search_finds_only_the_updated_title() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let issue = t.create_issue(&project, "Bug", "giraffe", None).await;
    let hits = |query: &'static str| {
        let t = &t;
        async move { t.call("search_issues", json!({ "query": query })).await.unwrap()["results"].as_array().unwrap().len() }
    };
    assert_eq!(hits("giraffe").await, 1);
    t.call("update_issue", json!({ "issueId": issue, "title": "elephant" })).await.unwrap();
    assert_eq!((hits("giraffe").await, hits("elephant").await), (0, 1));
}

#[tokio::test]
async fn listings_with_an_index_use_it() {
    let t = Fixture::sample();
    let people = t.read("tracker://people").await.unwrap();
    let id = &people["people"][0]["id"];
    let indexed = [
        json!({}),
        json!({ "projectId": "CORE" }),
        json!({ "projectId": "CORE", "status": "Todo" }),
        json!({ "assigneeId": id }),
        json!({ "assigneeId": null }),
        json!({ "parentId": "CORE-1" }),
        json!({ "parentId": null }),
    ];
    for arguments in indexed {
        let raw = serde_json::value::to_raw_value(&arguments).unwrap();
        let filter: ListIssues = parse_arguments(&raw).unwrap();
        assert!(filter.has_index(), "{arguments}");
        for after in [None, Some(7)] {
            let filter: ListIssues = parse_arguments(&raw).unwrap();
            let cancel = CancellationToken::new();
            let plan = t.tracker.storage.read(ReadKind::Snapshot, &cancel, move |db| {
                let (sql, parameters) = list_query(db, &filter, after, 20)?.unwrap();
                let Db::Sqlite(_) = db else { return Ok(Vec::new()) };
                Ok(db
                    .query_all(&format!("EXPLAIN QUERY PLAN {sql}"), &parameters.values(), |row| row.get::<String>(3))
                    .unwrap())
            });
            let plan = plan.await.unwrap();
            if plan.is_empty() {
                // The planner of a server depends on statistics, so its plan is not checked.
                continue;
            }
            let access = if arguments == json!({}) { "i" } else { "i USING INDEX issues_by_" };
            assert!(plan.iter().any(|step| step.contains(access)), "{arguments}: {plan:?}");
            assert!(plan.iter().all(|step| !step.contains("TEMP B-TREE")), "{arguments}: {plan:?}");
        }
    }
    for arguments in [
        json!({ "status": "Todo" }),
        json!({ "type": "Bug" }),
        json!({ "text": "a" }),
        json!({ "projectId": "CORE", "status": ["Todo", "Done"] }),
        json!({ "projectId": "CORE", "assigneeId": id }),
        json!({ "parentId": "CORE-1", "assigneeId": id }),
    ] {
        let raw = serde_json::value::to_raw_value(&arguments).unwrap();
        assert!(!parse_arguments::<ListIssues>(&raw).unwrap().has_index(), "{arguments}");
    }
}

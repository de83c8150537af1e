//! Tests the resources: their list, their contents, and unknown ones.

use serde_json::json;

use super::{Fixture, context, to_text};
use countersign_protocol::ErrorKind;
use countersign_provider::Provider;

#[tokio::test]
async fn listed_resources_are_readable() {
    let t = Fixture::sample();
    let ctx = context("agent-1", None);
    let list = t.tracker.resources(&ctx).await.unwrap();
    let uris: Vec<&str> = list.iter().map(|r| r.uri.as_str()).collect();
    assert_eq!(
        uris,
        [
            "tracker://projects",
            "tracker://people",
            "tracker://projects/CORE",
            "tracker://projects/CORE/issues",
            "tracker://projects/CORE/board"
        ]
    );
    for resource in &list {
        assert_eq!(resource.mime_type, "application/json");
        t.read(&resource.uri).await.unwrap();
        assert!(t.tracker.uri_prefixes().iter().any(|prefix| resource.uri.starts_with(prefix)));
    }
    for template in t.tracker.resource_templates() {
        let key = if template.uri_template.contains("issues/{key}") { "CORE-7" } else { "CORE" };
        t.read(&template.uri_template.replace("{key}", key)).await.unwrap();
    }
}

#[tokio::test]
async fn board_has_each_issue_in_its_column() {
    let t = Fixture::sample();
    let board = t.read("tracker://projects/CORE/board").await.unwrap();
    let project = t.read("tracker://projects/CORE").await.unwrap();
    let mut total = 0;
    for column in board["columns"].as_array().unwrap() {
        let status = to_text(&column["status"]);
        let issues = column["issues"].as_array().unwrap();
        assert!(issues.iter().all(|i| i["status"] == json!(status)));
        assert_eq!(column["count"], issues.len());
        assert_eq!(project["issuesByStatus"][&status], column["count"]);
        total += issues.len();
    }
    assert_eq!(project["issueCount"], total);
    let issues = t.read("tracker://projects/CORE/issues").await.unwrap();
    assert_eq!(issues["issues"].as_array().unwrap().len(), total);
}

#[tokio::test]
async fn issue_resource_equals_get_issue() {
    let t = Fixture::sample();
    let issue = t.read("tracker://issues/CORE-7").await.unwrap();
    assert_eq!(issue, t.call("get_issue", json!({ "issueId": "CORE-7" })).await.unwrap()["issue"]);
    assert_eq!(t.read(&format!("tracker://issues/{}", to_text(&issue["id"]))).await.unwrap(), issue);
    let comments = t.read("tracker://issues/CORE-7/comments").await.unwrap();
    assert_eq!((comments["total"].as_i64(), &comments["issue"]["key"]), (Some(2), &json!("CORE-7")));
    let people = t.read("tracker://people").await.unwrap();
    assert_eq!(people["people"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn unknown_resources_are_refused() {
    let t = Fixture::sample();
    for uri in [
        "tracker://issues/CORE-99",
        "tracker://issues/CORE-99/comments",
        "tracker://issues/CORE-99/history",
        "tracker://projects/NONE",
        "tracker://projects/NONE/board",
        "tracker://projects/NONE/issues",
        "tracker://issues/' OR 1=1 --",
        "tracker://nothing",
        "tracker://",
    ] {
        let error = t.read(uri).await.unwrap_err();
        assert_eq!((error.kind, &error.data["uri"]), (ErrorKind::ResourceNotFound, &json!(uri)));
    }
}

//! Tests that the schemas are valid, match the answers, and refuse the same arguments as the tools.

use std::collections::BTreeMap;

use serde_json::{Value, json, value::to_raw_value};

use super::{Fixture, context, to_text};
use countersign_provider::{Provider, ToolDef};

fn compile_schema(schema: &Value) -> jsonschema::Validator {
    jsonschema::options().should_validate_formats(true).build(schema).unwrap()
}

fn tools_by_name(t: &Fixture) -> BTreeMap<String, ToolDef> {
    t.tracker.tools().into_iter().map(|tool| (tool.name.clone(), tool)).collect()
}

#[tokio::test]
async fn tools_match_the_specification() {
    let t = Fixture::empty();
    let tools = tools_by_name(&t);
    let reads = ["get_issue", "list_issues", "list_projects", "search_issues"];
    let writes = [
        "add_comment",
        "assign_issue",
        "create_issue",
        "create_project",
        "delete_issue",
        "update_issue",
        "update_status",
    ];
    let names: Vec<&str> = tools.keys().map(String::as_str).collect();
    let mut expected: Vec<&str> = reads.iter().chain(&writes).copied().collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    for (name, tool) in &tools {
        let annotations = tool.annotations;
        assert_eq!(annotations.read_only_hint, reads.contains(&name.as_str()), "{name}");
        assert_eq!(
            annotations.destructive_hint,
            ["assign_issue", "delete_issue", "update_issue", "update_status"].contains(&name.as_str())
        );
        assert!(
            !annotations.open_world_hint && !tool.self_service && !tool.title.is_empty() && tool.description.len() > 40
        );
        jsonschema::draft202012::meta::validate(&tool.input_schema).unwrap();
        jsonschema::draft202012::meta::validate(tool.output_schema.as_ref().unwrap()).unwrap();
        assert_eq!(
            (&tool.input_schema["type"], &tool.input_schema["additionalProperties"]),
            (&json!("object"), &json!(false))
        );
        assert_eq!(tool.output_schema.as_ref().unwrap()["type"], "object");
        for (property, schema) in tool.input_schema["properties"].as_object().unwrap() {
            assert!(schema["description"].is_string() && schema["title"].is_string(), "{name}.{property}");
        }
    }
    let create = &tools["create_issue"].input_schema;
    assert_eq!(create["required"], json!(["projectId", "title", "type"]));
    assert_eq!(create["properties"]["title"]["maxLength"], 200);
    assert_eq!(create["properties"]["priority"]["default"], "Medium");
    assert_eq!(create["properties"]["projectId"]["format"], "uuid");
}

#[tokio::test]
async fn answers_match_output_schemas() {
    let t = Fixture::sample();
    let tools = tools_by_name(&t);
    let people = t.call("list_projects", json!({ "includePeople": true })).await.unwrap();
    let (project, mara) = (to_text(&people["projects"][0]["id"]), to_text(&people["people"][0]["id"]));
    let epic = to_text(&t.call("get_issue", json!({ "issueId": "CORE-1" })).await.unwrap()["issue"]["id"]);
    let calls = [
        ("list_projects", json!({})),
        ("list_projects", json!({ "includePeople": true, "limit": 1 })),
        ("create_project", json!({ "name": "Shop", "key": "SHOP", "description": "Sells" })),
        ("list_projects", json!({ "limit": 1 })),
        ("list_issues", json!({ "limit": 5 })),
        ("list_issues", json!({ "status": ["Todo", "Done"], "text": "a" })),
        ("get_issue", json!({ "issueId": "CORE-2", "include": ["comments", "children", "history"] })),
        ("get_issue", json!({ "issueId": epic })),
        ("search_issues", json!({ "query": "sign in" })),
        ("search_issues", json!({ "query": "adviser" })),
        (
            "create_issue",
            json!({ "projectId": project, "title": "T", "type": "Task", "parentId": epic, "assigneeId": mara,
                    "estimatedHours": 1.5, "description": "d", "priority": "Low" }),
        ),
        ("create_issue", json!({ "projectId": project, "title": "Bare", "type": "Bug" })),
        ("update_issue", json!({ "issueId": "CORE-13", "title": "U", "estimatedHours": null })),
        ("update_status", json!({ "issueId": "CORE-13", "newStatus": "Todo" })),
        ("assign_issue", json!({ "issueId": "CORE-13", "assigneeId": null })),
        ("add_comment", json!({ "issueId": "CORE-13", "content": "c" })),
        ("get_issue", json!({ "issueId": "CORE-13", "include": ["comments", "history"] })),
        ("delete_issue", json!({ "issueId": "CORE-13" })),
    ];
    for name in tools.keys() {
        assert!(calls.iter().any(|(tool, _)| tool == name), "{name} is not called");
    }
    for (index, (tool, arguments)) in calls.into_iter().enumerate() {
        let def = &tools[tool];
        assert!(compile_schema(&def.input_schema).is_valid(&arguments), "{tool} {arguments}");
        let raw = to_raw_value(&arguments).unwrap();
        let ctx = context("agent-1", Some(&format!("chg_{index}")));
        let result = t.tracker.call(tool, &raw, &ctx).await.unwrap();
        let answer: Value = serde_json::from_str(result.structured_content.unwrap().get()).unwrap();
        let schema = compile_schema(def.output_schema.as_ref().unwrap());
        let errors: Vec<String> =
            schema.iter_errors(&answer).map(|e| format!("{} at {}", e, e.instance_path())).collect();
        assert!(errors.is_empty(), "{tool} {arguments}: {errors:?}\n{answer}");
        let content: Value = serde_json::from_str(result.content.get()).unwrap();
        assert_eq!(content[0]["type"], "text");
        assert!(content[0]["text"].as_str().unwrap().len() > 10);
    }
}

#[tokio::test]
async fn invalid_arguments_break_input_schemas() {
    let t = Fixture::empty();
    let tools = tools_by_name(&t);
    let id = "67e55044-10b1-426f-9247-bb680e5fe0c8";
    let invalid = [
        ("create_issue", json!({ "projectId": id, "title": "x" })),
        ("create_issue", json!({ "projectId": "CORE", "title": "x", "type": "Bug" })),
        ("create_issue", json!({ "projectId": id, "title": "", "type": "Bug" })),
        ("create_issue", json!({ "projectId": id, "title": "x".repeat(201), "type": "Bug" })),
        ("create_issue", json!({ "projectId": id, "title": "x", "type": "Bug", "estimatedHours": -1 })),
        ("create_issue", json!({ "projectId": id, "title": "x", "type": "Bug", "priority": "None" })),
        ("create_issue", json!({ "projectId": id, "title": "x", "type": "Bug", "extra": 1 })),
        ("update_issue", json!({ "issueId": id })),
        ("update_issue", json!({ "issueId": "nope", "title": "x" })),
        ("update_status", json!({ "issueId": id, "newStatus": "Open" })),
        ("add_comment", json!({ "issueId": id, "content": "" })),
        ("assign_issue", json!({ "issueId": id })),
        ("list_issues", json!({ "limit": 101 })),
        ("list_issues", json!({ "status": [] })),
        ("list_issues", json!({ "projectId": "C0RE" })),
        ("get_issue", json!({ "issueId": "CORE-0" })),
        ("get_issue", json!({ "issueId": "CORE-1", "include": ["secrets"] })),
        ("search_issues", json!({ "query": "x".repeat(501) })),
        ("create_project", json!({ "name": "x", "key": "core" })),
        ("create_project", json!({ "name": "" })),
    ];
    for (tool, arguments) in invalid {
        assert!(!compile_schema(&tools[tool].input_schema).is_valid(&arguments), "{tool} {arguments}");
    }
}

#[tokio::test]
async fn unknown_tools_are_refused() {
    let t = Fixture::empty();
    assert_eq!(t.call("drop_table", json!({})).await.unwrap_err().data["tool"], "drop_table");
    // A read has no preview, because it changes nothing.
    assert_eq!(t.preview("get_issue", json!({ "issueId": "CORE-1" })).await.err().unwrap().data["tool"], "get_issue");
}

//! Resources and prompts of a module.

use serde_json::json;

use super::bench::{Bench, ask, ask_error};
use countersign_protocol::Revision;
use countersign_provider::testing::resource;

const LEGACY: Revision = Revision::V2025_11_25;

#[actix::test]
async fn invented_cursor_is_refused() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    for method in ["tools/list", "resources/list", "resources/templates/list", "prompts/list"] {
        assert_eq!(ask_error(&client, method, &json!({ "cursor": "made up" })).await.0, -32602, "{method}");
        assert!(ask(&client, method, &json!({})).await.get("nextCursor").is_none(), "{method}");
    }
}

#[actix::test]
async fn cursor_is_refused_once_resources_have_changed() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    *bench.fake.resources.lock().unwrap() = (0..1200).map(|n| resource(&format!("f://{n}"), "r")).collect();
    let first = ask(&client, "resources/list", &json!({})).await;
    let next = json!({ "cursor": first["nextCursor"] });
    let second = ask(&client, "resources/list", &next).await;
    assert_eq!(
        (second["resources"].as_array().unwrap().len(), &second["resources"][0]["uri"]),
        (200, &json!("f://1000"))
    );
    bench.fake.resources.lock().unwrap().insert(0, resource("f://new", "new"));
    assert_eq!(ask_error(&client, "resources/list", &next).await.0, -32602);
    // A module that fails lists nothing.
    bench.fake.resources.lock().unwrap().clear();
    assert_eq!(ask_error(&client, "resources/list", &next).await.0, -32602);
}

#[actix::test]
async fn unknown_or_overlong_resource_uri_is_refused() {
    let bench = Bench::new("limits: { max_uri: 1KiB }").await;
    let client = bench.client(LEGACY, "{}");
    let result = ask(&client, "resources/read", &json!({ "uri": "f://a" })).await;
    assert_eq!(result["contents"], json!([{ "uri": "f://a", "mimeType": "text/plain", "text": "f://a" }]));
    for uri in ["f://none", "g://a"] {
        let read = json!({ "uri": uri });
        assert_eq!(ask_error(&client, "resources/read", &read).await.0, -32002, "{uri}");
        assert_eq!(ask_error(&bench.client(Revision::MODERN, "{}"), "resources/read", &read).await.0, -32602, "{uri}");
    }
    let long = json!({ "uri": format!("f://{}", "x".repeat(2000)) });
    let (number, _, data) = ask_error(&client, "resources/read", &long).await;
    assert_eq!((number, &data["member"]), (-32602, &json!("uri")));
}

#[actix::test]
async fn prompt_without_required_argument_is_refused() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    let (number, _, data) = ask_error(&client, "prompts/get", &json!({ "name": "greet" })).await;
    assert_eq!((number, &data["argument"]), (-32602, &json!("whom")));
    assert_eq!(ask_error(&client, "prompts/get", &json!({ "name": "none" })).await.1, "PROMPT_NOT_FOUND");
    let got = ask(&client, "prompts/get", &json!({ "name": "greet", "arguments": { "whom": "bob" } })).await;
    let message = json!({ "role": "user", "content": { "type": "text", "text": r#"{"whom":"bob"}"# } });
    assert_eq!(got["messages"], json!([message]));
}

#[actix::test]
async fn completion_returns_at_most_100_values() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    let complete = |name: &str| json!({ "ref": { "type": "ref/prompt", "name": name }, "argument": { "name": "whom", "value": "b" } });
    let completion = ask(&client, "completion/complete", &complete("greet")).await["completion"].clone();
    assert_eq!((completion["values"].as_array().unwrap().len(), &completion["hasMore"]), (100, &json!(true)));
    assert_eq!((&completion["values"][0], &completion["total"]), (&json!("b0"), &json!(150)));
    let none = ask(&client, "completion/complete", &complete("none")).await["completion"].clone();
    assert_eq!(none, json!({ "values": [], "total": 0, "hasMore": false }), "an unknown prompt has no suggestions");
}

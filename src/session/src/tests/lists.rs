//! Resources and prompts of a module.

use serde_json::json;

use super::bench::{Bench, ask, refused};
use countersign_protocol::Revision;

const OLD: Revision = Revision::V2025_11_25;

#[actix::test]
async fn a_cursor_is_one_of_its_own_list() {
    let bench = Bench::new("").await;
    let client = bench.client(OLD, "{}");
    for method in ["tools/list", "resources/list", "resources/templates/list", "prompts/list"] {
        assert_eq!(refused(&client, method, &json!({ "cursor": "made up" })).await.0, -32602, "{method}");
        assert!(ask(&client, method, &json!({})).await.get("nextCursor").is_none(), "{method}");
    }
}

#[actix::test]
async fn a_resource_is_read_where_it_is_and_missing_where_it_is_not() {
    let bench = Bench::new("limits: { max_uri: 1KiB }").await;
    let client = bench.client(OLD, "{}");
    let result = ask(&client, "resources/read", &json!({ "uri": "f://a" })).await;
    assert_eq!(result["contents"], json!([{ "uri": "f://a", "mimeType": "text/plain", "text": "f://a" }]));
    for uri in ["f://none", "g://a"] {
        let read = json!({ "uri": uri });
        assert_eq!(refused(&client, "resources/read", &read).await.0, -32002, "{uri}");
        assert_eq!(refused(&bench.client(Revision::MODERN, "{}"), "resources/read", &read).await.0, -32602, "{uri}");
    }
    let long = json!({ "uri": format!("f://{}", "x".repeat(2000)) });
    let (number, _, data) = refused(&client, "resources/read", &long).await;
    assert_eq!((number, &data["member"]), (-32602, &json!("uri")));
}

#[actix::test]
async fn a_prompt_gets_the_arguments_that_it_needs() {
    let bench = Bench::new("").await;
    let client = bench.client(OLD, "{}");
    let (number, _, data) = refused(&client, "prompts/get", &json!({ "name": "greet" })).await;
    assert_eq!((number, &data["argument"]), (-32602, &json!("whom")));
    assert_eq!(refused(&client, "prompts/get", &json!({ "name": "none" })).await.1, "PROMPT_NOT_FOUND");
    let got = ask(&client, "prompts/get", &json!({ "name": "greet", "arguments": { "whom": "bob" } })).await;
    let message = json!({ "role": "user", "content": { "type": "text", "text": r#"{"whom":"bob"}"# } });
    assert_eq!(got["messages"], json!([message]));
}

#[actix::test]
async fn a_client_is_given_as_many_suggestions_as_it_must_take() {
    let bench = Bench::new("").await;
    let client = bench.client(OLD, "{}");
    let complete = |name: &str| json!({ "ref": { "type": "ref/prompt", "name": name }, "argument": { "name": "whom", "value": "b" } });
    let found = ask(&client, "completion/complete", &complete("greet")).await["completion"].clone();
    assert_eq!((found["values"].as_array().unwrap().len(), &found["hasMore"]), (100, &json!(true)));
    assert_eq!((&found["values"][0], &found["total"]), (&json!("b0"), &json!(150)));
    let none = ask(&client, "completion/complete", &complete("none")).await["completion"].clone();
    assert_eq!(none, json!({ "values": [], "total": 0, "hasMore": false }), "for what is not there, nothing");
}

//! Tests previews of calls that are not proposed.

use super::*;

#[actix::test]
async fn call_is_previewed_without_being_proposed() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    endpoints.offer_write();
    let call = json!({ "server": "pretend", "tool": "write", "arguments": {} });
    let answer = endpoints.post("/api/previews/test", &key, &call).await;
    assert_eq!((answer.status, &answer.json()["server"]), (200, &json!("pretend")), "{answer:?}");
    assert!(answer.json()["diff"]["fields"].is_array());
    assert_eq!(endpoints.get("/api/changes", &key).await.json()["changes"], json!([]), "nothing was proposed");

    for (server, tool, arguments, status, code) in [
        ("none", "write", json!({}), 404, "NOT_FOUND"),
        ("pretend", "none", json!({}), 404, "TOOL_NOT_FOUND"),
        ("pretend", "write", json!([]), 422, "VALIDATION_FAILED"),
    ] {
        let call = json!({ "server": server, "tool": tool, "arguments": arguments });
        assert_eq!(endpoints.post("/api/previews/test", &key, &call).await.problem(status), code, "{call}");
    }
    for role in [Role::Viewer, Role::Agent] {
        let key = endpoints.key(role.as_str(), role);
        assert_eq!(endpoints.post("/api/previews/test", &key, &call).await.status, 403, "{role:?}");
    }
    endpoints.close().await;
}

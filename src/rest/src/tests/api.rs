//! Tests the answers of the REST endpoints to callers with sufficient rights.

use super::*;

#[actix::test]
async fn change_is_listed_shown_approved_and_audited() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    let first = endpoints.propose_by("local-agent").await;
    let second = endpoints.propose_by("ci").await;

    let page = endpoints.get("/api/changes?status=pending,stale&principal=&limit=1&cursor=", &key).await;
    assert_eq!((page.status, page.header("cache-control")), (200, Some("no-store")));
    let page = page.json();
    assert_eq!(page["changes"][0]["id"], second.id.as_str(), "newest first");
    assert_eq!((page["counts"]["pending"].as_u64(), page["counts"]["applied"].as_u64()), (Some(2), Some(0)));
    let cursor = page["nextCursor"].as_str().unwrap();
    let page = endpoints.get(&format!("/api/changes?status=pending&limit=1&cursor={cursor}"), &key).await.json();
    assert_eq!((page["changes"][0]["id"].as_str(), &page["nextCursor"]), (Some(first.id.as_str()), &Value::Null));
    let page = endpoints.get("/api/changes?principal=ci", &key).await.json();
    assert_eq!(page["changes"].as_array().unwrap().len(), 1);

    let shown = endpoints.get(&format!("/api/changes/{}", first.id), &key).await;
    assert!(shown.text.contains(r#""n":1.10,"big":123456789012345678901234567890"#), "the exact bytes: {}", shown.text);
    assert_eq!(shown.json()["diff"]["fields"][0]["after"], "<b>two</b>");

    let path = format!("/api/changes/{}/decision", first.id);
    let reply = endpoints.post(&path, &key, &decision("approve", &first)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.json()["decisions"][0]["reviewer"], "alice");
    let applied = endpoints.wait_for_state(&first.id, ChangeState::Applied).await;
    assert_eq!(endpoints.provider.call_count(), 1);

    let reply = endpoints.post(&path, &key, &decision("approve", &applied)).await;
    assert_eq!(reply.problem(409), "CHANGE_NOT_PENDING");
    assert_eq!(reply.json()["change"]["state"], "applied");
    assert!(reply.text.contains("123456789012345678901234567890"));

    let trail = endpoints.get(&format!("/api/audit?change={}&limit=2", first.id), &key).await.json();
    assert_eq!(trail["entries"][0]["to"], "applied");
    assert_eq!(trail["entries"][0]["prevHash"].as_str().unwrap().len(), 64);
    assert_eq!(trail["entries"].as_array().unwrap().len(), 2);
    let cursor = trail["nextCursor"].as_str().unwrap();
    let rest = endpoints.get(&format!("/api/audit?change={}&cursor={cursor}", first.id), &key).await.json();
    assert_eq!(rest["entries"].as_array().unwrap().last().unwrap()["event"], "created");
    assert_eq!(rest["nextCursor"], Value::Null);
    assert_eq!(trail["head"]["hash"].as_str().unwrap().len(), 64);
    endpoints.close().await;
}

#[actix::test]
async fn outdated_decision_is_conflict_with_current_change() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    let change = endpoints.propose_by("ci").await;
    let path = format!("/api/changes/{}/decision", change.id);
    let old = json!({ "decision": "approve", "version": change.version + 7 });
    let reply = endpoints.post(&path, &key, &old).await;
    assert_eq!(reply.problem(409), "VERSION_CONFLICT");
    assert_eq!(reply.json()["change"]["version"], change.version);
    let other = json!({ "decision": "approve", "version": change.version, "digest": "sha256:other" });
    assert_eq!(endpoints.post(&path, &key, &other).await.problem(409), "VERSION_CONFLICT");

    *endpoints.provider.state.lock().unwrap() = "moved".into();
    let reply = endpoints.post(&path, &key, &decision("approve", &change)).await;
    assert_eq!(reply.problem(409), "CHANGE_STALE");
    let current = reply.json()["change"].clone();
    assert_eq!(
        (current["state"].as_str(), current["diff"]["fields"][0]["before"].as_str()),
        (Some("pending"), Some("moved"))
    );
    assert_eq!(current["previousDiff"]["fields"][0]["before"], "one");
    let renewed = json!({ "decision": "approve", "version": current["version"], "digest": current["digest"] });
    assert_eq!(endpoints.post(&path, &key, &renewed).await.status, 200);
    endpoints.wait_for_state(&change.id, ChangeState::Applied).await;
    endpoints.close().await;
}

#[actix::test]
async fn change_is_rejected_and_only_unknown_outcome_settled() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    let change = endpoints.propose_by("ci").await;
    let settle = format!("/api/changes/{}/settle", change.id);
    let outcome = json!({ "outcome": "applied", "comment": "seen it", "version": change.version });
    let refused = endpoints.post(&settle, &key, &outcome).await;
    refused.problem(409);
    assert_eq!(refused.json()["change"]["state"], "pending", "only an unknown outcome can be settled");
    let reply =
        endpoints.post(&format!("/api/changes/{}/decision", change.id), &key, &decision("reject", &change)).await;
    assert_eq!((reply.status, reply.json()["state"].as_str()), (200, Some("rejected")));
    assert_eq!(reply.json()["decisions"][0]["comment"], "because");
    assert_eq!(endpoints.provider.call_count(), 0);
    endpoints.close().await;
}

#[actix::test]
async fn account_sessions_and_servers_are_listed() {
    let endpoints = Endpoints::open().await;
    let reviewer = endpoints.key("alice", Role::Reviewer);
    let viewer = endpoints.key("vic", Role::Viewer);
    let mut me = endpoints.get("/api/me", &reviewer).await.json();
    assert!(me.as_object_mut().unwrap().remove("keyId").unwrap().as_str().unwrap().starts_with("key_"));
    let expected = json!({
        "name": "alice", "role": "reviewer", "owner": "alice", "groups": [], "mayDecide": true, "mayUndoAll": false,
    });
    assert_eq!(me, expected);
    assert_eq!(endpoints.get("/api/me", &viewer).await.json()["mayDecide"], false);
    let sessions = endpoints.get("/api/sessions", &viewer).await;
    assert!(!sessions.text.contains("secret-session"), "{sessions:?}");
    assert_eq!(sessions.json()["sessions"][0]["id"], "newer-se…");
    assert_eq!(sessions.json()["sessions"][1]["clientName"], "<script>");
    let provider = endpoints.get("/api/servers", &viewer).await.json()["servers"][0].clone();
    assert_eq!((&provider["name"], &provider["warnings"][0]), (&json!("pretend"), &json!("<b>odd</b>")));
    let head = endpoints.send("HEAD", "/api/me", &[("Authorization", &format!("Bearer {viewer}"))], None).await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    endpoints.close().await;
}

#[actix::test]
async fn invalid_request_is_refused_with_reason() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    let change = endpoints.propose_by("ci").await;
    for query in [
        "limit=0",
        "limit=201",
        "limit=x",
        "status=open",
        "stauts=pending",
        "cursor=%ff",
        "cursor=nonsense",
        "limit=1&limit=2",
    ] {
        assert_eq!(
            endpoints.get(&format!("/api/changes?{query}"), &key).await.problem(400),
            "INVALID_PARAMS",
            "{query}"
        );
    }
    assert_eq!(endpoints.get("/api/audit?limit=-1", &key).await.problem(400), "INVALID_PARAMS");
    for id in ["chg_nothing", "%00", "..%2f..%2fetc", &"x".repeat(65), "a%20b"] {
        assert_eq!(endpoints.get(&format!("/api/changes/{id}"), &key).await.problem(404), "CHANGE_NOT_FOUND", "{id}");
    }
    let path = format!("/api/changes/{}/decision", change.id);
    let authorization = format!("Bearer {key}");
    let send = async |kind: &str, body: &str| {
        endpoints.send("POST", &path, &[("Authorization", &authorization), ("Content-Type", kind)], Some(body)).await
    };
    let good = decision("approve", &change).to_string();
    for (kind, body, status, code) in [
        ("application/json", "", 400, "PARSE_ERROR"),
        ("application/json", "{\"decision\":", 400, "PARSE_ERROR"),
        ("application/json", "[]", 422, "VALIDATION_FAILED"),
        ("application/json", "{}", 422, "VALIDATION_FAILED"),
        ("application/json", r#"{"decision":"approve","version":"1"}"#, 422, "VALIDATION_FAILED"),
        ("application/json", r#"{"decision":"maybe","version":1}"#, 422, "VALIDATION_FAILED"),
        ("application/json", r#"{"decision":"approve","version":1,"force":true}"#, 422, "VALIDATION_FAILED"),
        ("text/plain", good.as_str(), 415, "INVALID_REQUEST"),
        ("application/x-www-form-urlencoded", good.as_str(), 415, "INVALID_REQUEST"),
        ("multipart/form-data; boundary=x", good.as_str(), 415, "INVALID_REQUEST"),
    ] {
        let reply = send(kind, body).await;
        assert_eq!(reply.problem(status), code, "{body}");
    }
    let reply = send("application/json", r#"{"decision":"approve","version":1,"force":true}"#).await;
    assert!(reply.json()["detail"].as_str().unwrap().contains("force"));
    let long = json!({ "decision": "reject", "version": 1, "comment": "x".repeat(5000) });
    assert_eq!(send("application/json", &long.to_string()).await.problem(422), "VALIDATION_FAILED");
    let huge = json!({ "decision": "reject", "version": 1, "comment": "x".repeat(70_000) });
    assert_eq!(send("application/json", &huge.to_string()).await.problem(413), "TOO_LARGE");
    let chunked = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: {authorization}\r\nContent-Type: application/json\r\n\
         Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        endpoints.address,
        format!("8000\r\n{}\r\n", " ".repeat(0x8000)).repeat(3),
    );
    assert_eq!(endpoints.raw(chunked.as_bytes()).await.problem(413), "TOO_LARGE");
    assert_eq!(send("application/json; charset=utf-8", &good).await.status, 200);
    endpoints.close().await;
}

#[actix::test]
async fn endless_body_times_out() {
    let endpoints = Endpoints::open_with(|c| c.transports.http.request_timeout = Duration::from_millis(50)).await;
    let request = format!(
        "POST /api/sign-in HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\
         Connection: close\r\n\r\n{{",
        endpoints.address
    );
    assert_eq!(endpoints.raw(request.as_bytes()).await.problem(408), "TIMEOUT");
    endpoints.close().await;
}

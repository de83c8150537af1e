//! Tests the first steps of a new gateway, and the creation of keys.

use super::*;

#[actix::test]
async fn first_steps_are_done_by_agents_and_decisions() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    let steps = endpoints.get("/api/first-steps", &key).await.json();
    let expected = json!({
        "program": "/usr/bin/countersign", "arguments": ["stdio"], "needsKey": false, "mayCreateAgentKeys": false,
        "agentSeen": true, "serverAdded": false, "canProposeTestChange": false, "changeDecided": false,
    });
    assert_eq!(steps, expected, "a session is open, and the only server is a module");
    let change = endpoints.propose_by("ci").await;
    let is_decided = async || endpoints.get("/api/first-steps", &key).await.json()["changeDecided"].clone();
    assert_eq!(is_decided().await, false);
    let step = |quorum| {
        let arguments = RawValue::from_string("{}".into()).unwrap();
        let preview = endpoints.provider.current_preview(&arguments);
        let step = proposal(proposer("ci"), (endpoints.provider.name, "write"), arguments, preview);
        Proposal { terms: Terms { quorum, ..Terms::default() }, ..step }
    };
    let plan = endpoints.changes.propose_plan(plan_proposal(vec![step(1), step(0)])).await.unwrap();
    assert_eq!((plan[1].state, is_decided().await), (ChangeState::Approved, json!(false)), "the policy allowed it");
    endpoints.post(&format!("/api/changes/{}/decision", change.id), &key, &decision("reject", &change)).await;
    assert_eq!(is_decided().await, true);
    endpoints.close().await;
}

#[actix::test]
async fn test_change_needs_a_reviewer_and_the_tracker() {
    let endpoints = Endpoints::open().await;
    let viewer = endpoints.key("vic", Role::Viewer);
    let reviewer = endpoints.key("alice", Role::Reviewer);
    assert_eq!(endpoints.post("/api/test-change", &viewer, &json!({})).await.problem(403), "FORBIDDEN");
    assert_eq!(endpoints.post("/api/test-change", &reviewer, &json!({})).await.problem(404), "NOT_FOUND");
    assert!(endpoints.changes.counts().iter().all(|(_, count)| *count == 0));
    endpoints.close().await;
}

#[actix::test]
async fn created_key_is_an_agents_and_the_trail_names_its_creator() {
    let endpoints = Endpoints::open().await;
    let reviewer = endpoints.key("alice", Role::Reviewer);
    let admin = endpoints.key("root", Role::Admin);
    let request = json!({ "name": "desk" });
    assert_eq!(endpoints.post("/api/keys", &reviewer, &request).await.problem(403), "FORBIDDEN");
    let created = endpoints.post("/api/keys", &admin, &request).await;
    assert_eq!((created.status, created.header("cache-control")), (200, Some("no-store")));
    let created = created.json();
    assert_eq!((created["name"].as_str(), created["role"].as_str()), (Some("desk"), Some("agent")));
    let secret = created["secret"].as_str().unwrap();
    assert_eq!(endpoints.get("/api/me", secret).await.problem(403), "FORBIDDEN", "it is valid, but an agent's");
    let trail = endpoints.get("/api/audit", &reviewer).await;
    assert!(!trail.text.contains(secret));
    let entry = trail.json()["entries"][0].clone();
    assert_eq!((entry["event"].as_str(), entry["actor"].as_str()), (Some("key_created"), Some("root")));
    // Reserved, malformed and confusable names are refused.
    for name in ["countersign-test-agent", "a b", "a1ice", ""] {
        let reply = endpoints.post("/api/keys", &admin, &json!({ "name": name })).await;
        assert_eq!(reply.problem(422), "VALIDATION_FAILED", "{name:?}");
    }
    endpoints.close().await;
}

#[actix::test]
async fn created_reviewer_has_the_names_of_all_creators() {
    let endpoints = Endpoints::open().await;
    let create = async |by: &str, name: &str, role: &str| {
        let created = endpoints.post("/api/keys", by, &json!({ "name": name, "role": role })).await;
        created.json()["secret"].as_str().unwrap().to_owned()
    };
    let names = async |key: &str| endpoints.get("/api/me", key).await.json()["otherNames"].clone();
    let root = endpoints.key("root", Role::Admin);
    let second = create(&root, "second", "admin").await;
    let third = create(&second, "third", "reviewer").await;
    assert_eq!(names(&root).await, json!(null));
    assert_eq!(names(&second).await, json!(["root"]));
    assert_eq!(names(&third).await, json!(["second", "root"]));
    let (cookie, secret) = endpoints.sign_in(&json!({ "key": third })).await;
    let headers = [("Cookie", cookie.as_str()), ("X-Countersign-Secret", &secret)];
    let signed_in = endpoints.send("GET", "/api/me", &headers, None).await;
    assert_eq!(signed_in.json()["otherNames"], json!(["second", "root"]));
    // A key that cannot decide has no such names, so its creator may approve what it proposes.
    assert_eq!(names(&create(&root, "watch", "viewer").await).await, json!(null));
    endpoints.close().await;
}

#[actix::test]
async fn code_sign_in_creates_keys_of_agents_only() {
    let endpoints = Endpoints::open().await;
    for (body, role, status) in [
        (json!({ "code": endpoints.code() }), "agent", 200),
        (json!({ "code": endpoints.code() }), "reviewer", 403),
        (json!({ "key": endpoints.key("alice", Role::Reviewer) }), "agent", 403),
    ] {
        let (cookie, secret) = endpoints.sign_in(&body).await;
        let origin = endpoints.origin();
        let headers = [
            ("Cookie", cookie.as_str()),
            ("X-Countersign-Secret", &secret),
            ("Origin", &origin),
            ("Content-Type", "application/json"),
        ];
        let body = json!({ "name": "desk", "role": role }).to_string();
        let reply = endpoints.send("POST", "/api/keys", &headers, Some(&body)).await;
        assert_eq!(reply.status, status, "{reply:?}");
    }
    endpoints.close().await;
}

#[actix::test]
async fn keys_are_listed_and_revoked_by_admins() {
    let endpoints = Endpoints::open().await;
    let admin = endpoints.key("root", Role::Admin);
    let reviewer = endpoints.key("alice", Role::Reviewer);
    let request = json!({ "name": "desk", "role": "viewer", "owner": "Bob" });
    let viewer = endpoints.post("/api/keys", &admin, &request).await.json()["secret"].as_str().unwrap().to_owned();
    assert_eq!(endpoints.get("/api/me", &viewer).await.json()["owner"], "Bob");
    assert_eq!(endpoints.get("/api/keys", &reviewer).await.problem(403), "FORBIDDEN");
    let listed = endpoints.get("/api/keys", &admin).await;
    assert!(!listed.text.contains(&viewer) && !listed.text.contains("hash"), "{}", listed.text);
    let newest = listed.json()["keys"][0].clone();
    assert_eq!((newest["name"].as_str(), newest["mayRevoke"].as_bool()), (Some("desk"), Some(true)));
    assert_eq!(newest["createdBy"], "root");
    assert!(listed.json()["keys"].as_array().unwrap().iter().any(|key| key["createdBy"].is_null()), "{}", listed.text);
    let path = format!("/api/keys/{}", newest["id"].as_str().unwrap());
    let delete =
        async |key: &str| endpoints.send("DELETE", &path, &[("Authorization", &format!("Bearer {key}"))], None).await;
    assert_eq!(delete(&reviewer).await.problem(403), "FORBIDDEN");
    let remaining = delete(&admin).await;
    assert_eq!(remaining.status, 200, "{remaining:?}");
    assert!(remaining.json()["keys"][0]["revokedAt"].is_string());
    let hash = countersign_runtime::secret::hash(viewer.as_bytes());
    endpoints.data.access.authentication.authenticator.forget_key(&hash);
    assert_eq!(endpoints.get("/api/me", &viewer).await.problem(401), "UNAUTHORIZED");
    assert_eq!(delete(&admin).await.problem(404), "NOT_FOUND", "it is revoked once");
    let entry = endpoints.get("/api/audit", &reviewer).await.json()["entries"][0].clone();
    assert_eq!((entry["event"].as_str(), entry["actor"].as_str()), (Some("key_revoked"), Some("root")));
    endpoints.close().await;
}

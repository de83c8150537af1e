//! Tests bundles: who is in one, and how one is read.

use super::*;

#[actix::test]
async fn bundle_has_the_waiting_changes_of_one_principal() {
    let endpoints = Endpoints::open().await;
    let (viewer, agent) = (endpoints.key("vera", Role::Viewer), endpoints.key("ci", Role::Agent));
    assert_eq!(endpoints.get("/api/bundles", &viewer).await.json(), json!({ "bundles": [] }));
    let first = endpoints.propose_by("ci").await;
    endpoints.propose_by("bot").await;
    let second = endpoints.propose_by("ci").await;
    let third = endpoints.propose_by("ci").await;

    assert_eq!(endpoints.get("/api/bundles", &agent).await.problem(403), "FORBIDDEN");
    let bundles = endpoints.get("/api/bundles", &viewer).await.json()["bundles"].clone();
    assert_eq!(bundles.as_array().unwrap().len(), 1, "one change alone is not a bundle: {bundles}");
    let bundle = &bundles[0];
    assert_eq!((bundle["id"].as_str(), bundle["principal"].as_str()), (Some(first.id.as_str()), Some("ci")));
    assert_eq!(bundle["waiting"], json!([first.id, second.id, third.id]));
    assert_eq!((&bundle["servers"], &bundle["tools"]), (&json!([endpoints.provider.name]), &json!(["write"])));

    let path = format!("/api/bundles/{}", first.id);
    assert_eq!(endpoints.get(&path, &agent).await.problem(403), "FORBIDDEN");
    assert_eq!(endpoints.get("/api/bundles/chg_unknown", &viewer).await.problem(404), "NOT_FOUND");
    let reply = endpoints.get(&path, &viewer).await;
    assert_eq!(reply.json()["changes"][2]["id"], third.id.as_str());
    assert!(reply.text.contains(r#""n":1.10"#), "the arguments keep their bytes");
    endpoints.close().await;
}

#[actix::test]
async fn id_of_a_bundle_stays_when_its_first_change_is_decided() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    let first = endpoints.propose_by("ci").await;
    let second = endpoints.propose_by("ci").await;
    let third = endpoints.propose_by("ci").await;
    let reject = json!({ "decision": "reject", "version": first.version });
    assert_eq!(endpoints.post(&format!("/api/changes/{}/decision", first.id), &key, &reject).await.status, 200);
    let bundle = endpoints.get("/api/bundles", &key).await.json()["bundles"][0].clone();
    assert_eq!((bundle["id"].as_str(), bundle["proposed"].as_u64()), (Some(first.id.as_str()), Some(3)));
    assert_eq!(bundle["waiting"], json!([second.id, third.id]));
    for member in [&first, &second, &third] {
        let found = endpoints.get(&format!("/api/bundles/{}", member.id), &key).await.json();
        assert_eq!(found["bundle"]["id"], first.id.as_str());
        assert_eq!(found["changes"].as_array().unwrap().len(), 2);
    }
    endpoints.close().await;
}

#[actix::test]
async fn window_of_zero_forms_no_bundles() {
    let endpoints = Endpoints::open_with(|config| config.bundle_window = std::time::Duration::ZERO).await;
    let key = endpoints.key("alice", Role::Reviewer);
    let first = endpoints.propose_by("ci").await;
    endpoints.propose_by("ci").await;
    assert_eq!(endpoints.get("/api/bundles", &key).await.json(), json!({ "bundles": [] }));
    assert_eq!(endpoints.get(&format!("/api/bundles/{}", first.id), &key).await.problem(404), "NOT_FOUND");
    endpoints.close().await;
}

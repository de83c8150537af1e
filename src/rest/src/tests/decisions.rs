//! Tests editing, undoing and refreshing changes, bulk decisions, and filters of the list.

use super::*;

#[actix::test]
async fn bulk_decisions_are_made_independently() {
    let endpoints = Endpoints::open().await;
    let (key, viewer) = (endpoints.key("alice", Role::Reviewer), endpoints.key("vera", Role::Viewer));
    let good = endpoints.propose_by("ci").await;
    let own_change = endpoints.propose_by("alice").await;
    let truncated = endpoints.propose_with("ci", |p| p.preview.diff.truncated = true).await;
    let comment_required = endpoints.propose_with("ci", |p| p.terms.require_comment = true).await;
    let old = endpoints.propose_by("ci").await;
    let displayed = |change: &Change| json!({ "id": change.id, "version": change.version, "digest": change.digest });
    let mut outdated = displayed(&old);
    outdated["digest"] = "sha256:other".into();
    let unknown = json!({ "id": "chg_unknown", "version": 1, "digest": "sha256:x" });
    let body = json!({ "decision": "approve", "changes": [
        displayed(&good), displayed(&own_change), displayed(&truncated), displayed(&comment_required), outdated, unknown,
    ]});
    assert_eq!(endpoints.post("/api/decisions", &viewer, &body).await.problem(403), "FORBIDDEN");
    let reply = endpoints.post("/api/decisions", &key, &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let results = reply.json()["results"].clone();
    let codes: Vec<_> = results.as_array().unwrap().iter().map(|r| r["problem"]["code"].as_str()).collect();
    let expected = ["SELF_APPROVAL", "TRUNCATED", "COMMENT_REQUIRED", "VERSION_CONFLICT", "CHANGE_NOT_FOUND"];
    assert_eq!(codes[0], None, "{results}");
    assert_eq!(codes[1..].iter().map(|c| c.unwrap()).collect::<Vec<_>>(), expected);
    assert_eq!(
        (results[0]["id"].as_str(), results[0]["change"]["state"].as_str()),
        (Some(good.id.as_str()), Some("approved"))
    );
    assert_eq!(results[4]["problem"]["change"]["id"], old.id.as_str());
    endpoints.wait_for_state(&good.id, ChangeState::Applied).await;
    assert_eq!(endpoints.provider.call_count(), 1);

    let body = json!({ "decision": "reject", "comment": "no", "changes": [displayed(&truncated), displayed(&comment_required), displayed(&own_change)] });
    let results = endpoints.post("/api/decisions", &key, &body).await.json()["results"].clone();
    assert!(results.as_array().unwrap().iter().all(|r| r["change"]["state"] == "rejected"), "{results}");
    for bad in [
        json!({ "decision": "approve", "changes": [] }),
        json!({ "decision": "approve", "changes": [displayed(&old), displayed(&old)] }),
        json!({ "decision": "approve", "changes": [{ "id": old.id, "version": 1 }] }),
        json!({ "decision": "approve", "changes": (0..101).map(|n| json!({ "id": n.to_string(), "version": 1, "digest": "" })).collect::<Vec<_>>() }),
    ] {
        assert_eq!(endpoints.post("/api/decisions", &key, &bad).await.problem(422), "VALIDATION_FAILED");
    }
    endpoints.close().await;
}

#[actix::test]
async fn arguments_are_edited_approved_and_undone() {
    let endpoints = Endpoints::open().await;
    let (key, viewer) = (endpoints.key("alice", Role::Reviewer), endpoints.key("vera", Role::Viewer));
    let change = endpoints.propose_with("ci", |p| p.terms.undo_for = 600).await;
    let endpoint = |action: &str| format!("/api/changes/{}/{action}", change.id);
    let body = json!({ "arguments": { "n": 2 }, "version": 1, "comment": "two" });
    assert_eq!(endpoints.post(&endpoint("edit"), &viewer, &body).await.problem(403), "FORBIDDEN");
    let wrong = json!({ "arguments": { "wrong": 2 }, "version": 1 });
    let reply = endpoints.post(&endpoint("edit"), &key, &wrong).await;
    assert_eq!(reply.problem(422), "VALIDATION_FAILED");
    assert_eq!(reply.json()["details"]["errors"][0]["pointer"], "/wrong");
    for bad in
        [json!({ "arguments": [1], "version": 1 }), json!({ "version": 1 }), json!({ "arguments": null, "version": 1 })]
    {
        assert_eq!(endpoints.post(&endpoint("edit"), &key, &bad).await.problem(422), "VALIDATION_FAILED", "{bad}");
    }
    // The body may be larger than that of a decision, because arguments of agents may be. Its bytes are kept.
    let large = format!(r#"{{"arguments": {{"n": 2.50, "text": "{}"}}, "version": 1}}"#, "x".repeat(100_000));
    let authorization = format!("Bearer {key}");
    let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
    let reply = endpoints.send("POST", &endpoint("edit"), &headers, Some(&large)).await;
    assert_eq!(reply.status, 200, "{:.300}", reply.text);
    assert!(reply.text.contains(r#"{"n": 2.50, "text": "xxx"#));
    let edited = reply.json();
    assert_eq!((edited["state"].as_str(), edited["edits"][0]["by"].as_str()), (Some("pending"), Some("alice")));
    assert!(reply.text.contains(r#""proposedArguments":{"n":1.10,"#), "the arguments of the agent are kept");
    assert_eq!(endpoints.post(&endpoint("edit"), &key, &body).await.problem(409), "VERSION_CONFLICT");

    let approve = json!({ "decision": "approve", "version": 2, "digest": edited["digest"] });
    let approved = endpoints.post(&endpoint("decision"), &key, &approve).await.json();
    assert!(approved["runAfter"].is_string(), "{approved}");
    assert_eq!(endpoints.post(&endpoint("undo"), &viewer, &json!({ "version": 3 })).await.problem(403), "FORBIDDEN");
    let other = endpoints.key("bob", Role::Reviewer);
    assert_eq!(endpoints.post(&endpoint("undo"), &other, &json!({ "version": 3 })).await.problem(403), "FORBIDDEN");
    let undone = endpoints.post(&endpoint("undo"), &key, &json!({ "version": 3 })).await.json();
    assert_eq!((undone["state"].as_str(), &undone["runAfter"]), (Some("pending"), &Value::Null));

    *endpoints.provider.state.lock().unwrap() = "moved".into();
    let fresh = endpoints.post(&endpoint("refresh"), &key, &json!({ "version": 4 })).await.json();
    assert_eq!(
        (fresh["state"].as_str(), fresh["previousDiff"]["fields"][0]["before"].as_str()),
        (Some("pending"), Some("one"))
    );
    assert_eq!(endpoints.post(&endpoint("refresh"), &viewer, &json!({ "version": 6 })).await.problem(403), "FORBIDDEN");
    assert_eq!(endpoints.provider.call_count(), 0);
    endpoints.close().await;
}

#[actix::test]
async fn owner_is_one_person_with_every_key() {
    let endpoints = Endpoints::open().await;
    let owned = |name: &str, role, owner| {
        let new = keys::create(name, role, Timestamp::now()).unwrap().owned_by(Some(owner)).unwrap();
        endpoints.stored.writer().insert(&new.key, &new.hash).unwrap();
        new.secret
    };
    let desk = owned("desk", Role::Reviewer, "carol");
    let change = endpoints.propose_with("bot", |p| p.proposer.owner = Some("carol".into())).await;
    let path = format!("/api/changes/{}/decision", change.id);
    assert_eq!(endpoints.post(&path, &desk, &decision("approve", &change)).await.problem(403), "SELF_APPROVAL");
    assert_eq!(endpoints.get("/api/me", &desk).await.json()["owner"], "carol");
    // A sign-in with the key belongs to the same person.
    let (cookie, secret) = endpoints.sign_in(&json!({ "key": desk })).await;
    let origin = endpoints.origin();
    let headers = [
        ("Cookie", cookie.as_str()),
        ("X-Countersign-Secret", secret.as_str()),
        ("Origin", origin.as_str()),
        ("Content-Type", "application/json"),
    ];
    let reply = endpoints.send("POST", &path, &headers, Some(&decision("approve", &change).to_string())).await;
    assert_eq!(reply.problem(403), "SELF_APPROVAL");
    endpoints.close().await;
}

#[actix::test]
async fn changes_are_filtered_by_principal_tool_text_and_time() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    let a = endpoints.propose_with("ci", |p| p.preview.summary = "Rename ÄPFEL 100%".into()).await;
    let b = endpoints.propose_with("bot", |p| p.tool = "delete".into()).await;
    let c = endpoints.propose_with("bot", |p| p.provider = "files".into()).await;
    endpoints.post(&format!("/api/changes/{}/decision", a.id), &key, &decision("reject", &a)).await;
    let found = async |query: &str| -> Vec<String> {
        let reply = endpoints.get(&format!("/api/changes?{query}"), &key).await;
        assert_eq!(reply.status, 200, "{query}: {reply:?}");
        reply.json()["changes"].as_array().unwrap().iter().map(|c| c["id"].as_str().unwrap().to_owned()).collect()
    };
    let (a_id, b_id, c_id) = (a.id.clone(), b.id.clone(), c.id.clone());
    let all = vec![c_id.clone(), b_id.clone(), a_id.clone()];
    assert_eq!(found("").await, all);
    assert_eq!(found("principal=bot,ci").await, all);
    assert_eq!(found("principal=bot").await, [c_id.clone(), b_id.clone()]);
    assert_eq!(found("tool=delete,nothing").await, std::slice::from_ref(&b_id));
    assert_eq!(found("server=files&principal=bot&status=pending,stale").await, std::slice::from_ref(&c_id));
    assert_eq!(found("server=files&status=rejected").await, Vec::<String>::new());
    assert_eq!(found("q=%C3%A4pfel").await, std::slice::from_ref(&a_id), "the search ignores case");
    assert_eq!(found("q=100%25").await, std::slice::from_ref(&a_id), "% is not a wildcard");
    assert_eq!(found("q=thing").await.len(), 3, "the search includes the label of the target");
    assert_eq!(found(&format!("q={}", b.id.to_uppercase())).await, std::slice::from_ref(&b_id));
    assert_eq!(found("q=thing&status=rejected").await, std::slice::from_ref(&a_id));
    assert_eq!(found("since=2020-01-01T00:00:00Z&until=2999-01-01T00:00:00%2B01:00").await, all);
    assert!(found(&format!("since={}", b.created_at)).await.contains(&b_id));
    assert!(!found(&format!("until={}", a.created_at)).await.contains(&a_id), "`until` is exclusive");
    assert!(found("until=2020-01-01T00:00:00Z").await.is_empty());
    // A filtered list has pages, too.
    let page = endpoints.get("/api/changes?q=thing&limit=2", &key).await.json();
    let cursor = page["nextCursor"].as_str().unwrap();
    assert_eq!(found(&format!("q=thing&limit=2&cursor={cursor}")).await, [a_id]);
    for bad in ["since=yesterday", "q=a&q=b", "colour=red", &format!("tool=delete{}", ",x".repeat(64))] {
        assert_eq!(endpoints.get(&format!("/api/changes?{bad}"), &key).await.problem(400), "INVALID_PARAMS", "{bad}");
    }
    endpoints.close().await;
}

//! Tests plans: reading one, and decisions on all its steps.

use super::*;

/// Proposes a plan of two steps.
async fn propose(endpoints: &Endpoints) -> Vec<Arc<Change>> {
    let step = |target: &str| {
        let arguments = RawValue::from_string(format!(r#"{{"target":"{target}","n":1.10}}"#)).unwrap();
        let preview = endpoints.provider.current_preview(&arguments);
        proposal(proposer("ci"), (endpoints.provider.name, "write"), arguments, preview)
    };
    let plan = PlanProposal { reason: Some("because".into()), ..plan_proposal(vec![step("a"), step("b")]) };
    endpoints.changes.propose_plan(plan).await.unwrap()
}

fn digests_of(plan: &Value) -> Vec<Value> {
    let changes = plan["changes"].as_array().unwrap();
    changes.iter().map(|change| json!({ "change": change["id"], "digest": change["digest"] })).collect()
}

#[actix::test]
async fn plan_is_read_and_decided_as_a_whole() {
    let endpoints = Endpoints::open().await;
    let (key, viewer) = (endpoints.key("alice", Role::Reviewer), endpoints.key("vera", Role::Viewer));
    let steps = propose(&endpoints).await;
    let path = format!("/api/plans/{}", steps[0].plan.as_ref().unwrap().id);
    let reply = endpoints.get(&path, &viewer).await;
    let plan = reply.json();
    assert_eq!((plan["title"].as_str(), plan["reason"].as_str()), (Some("Move"), Some("because")));
    assert_eq!((plan["version"].as_u64(), plan["isComplete"].as_bool()), (Some(2), Some(true)));
    assert_eq!(
        plan["changes"][1]["plan"],
        json!({ "id": plan["id"], "title": "Move", "reason": "because", "index": 1, "last": true })
    );
    assert!(reply.text.contains(r#""arguments":{"target":"b","n":1.10}"#), "the arguments keep their bytes");
    assert_eq!(endpoints.get("/api/plans/plan_nothing", &key).await.problem(404), "NOT_FOUND");

    let decide = format!("{path}/decision");
    let body = json!({ "decision": "approve", "version": 2, "digests": digests_of(&plan) });
    assert_eq!(endpoints.post(&decide, &viewer, &body).await.problem(403), "FORBIDDEN");
    assert_eq!(endpoints.post("/api/plans/plan_nothing/decision", &key, &body).await.problem(404), "NOT_FOUND");
    let one = json!({ "decision": "approve", "digests": [digests_of(&plan)[0]] });
    let conflict = endpoints.post(&decide, &key, &one).await;
    assert_eq!(conflict.problem(409), "VERSION_CONFLICT");
    assert_eq!(conflict.json()["change"]["id"], steps[1].id.as_str(), "the step that was not shown");
    let mut repeated = digests_of(&plan);
    repeated.insert(0, json!({ "change": plan["changes"][0]["id"], "digest": "sha256:other" }));
    for bad in [
        json!({ "decision": "approve" }),
        json!({ "decision": "approve", "digests": [] }),
        json!({ "decision": "approve", "digests": repeated }),
    ] {
        assert_eq!(endpoints.post(&decide, &key, &bad).await.problem(422), "VALIDATION_FAILED");
    }
    let decided = endpoints.post(&decide, &key, &body).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    endpoints.wait_for_state(&steps[1].id, ChangeState::Applied).await;
    assert_eq!(endpoints.provider.call_count(), 2);
    let again = json!({ "decision": "reject", "digests": digests_of(&plan) });
    assert_eq!(endpoints.post(&decide, &key, &again).await.problem(409), "CHANGE_NOT_PENDING");
    endpoints.close().await;
}

//! Tests standing rules through their endpoints, and the test of the policy.

use super::*;
use countersign_domain::policy::{Globs, PolicyConfig, Rule, Verdict, pins::Definition};
use countersign_protocol::arguments::canonical_text_hash;
use countersign_routing::ruling::definition;

/// Returns the tool that the provider offers.
fn write_tool() -> ToolDef {
    upstream_tool(&json!({ "name": "write", "inputSchema": { "type": "object" } }))
}

impl Endpoints {
    pub(super) fn offer_write(&self) {
        *self.provider.tools.lock().unwrap() = vec![write_tool()];
        (self.rebuild_routes)();
    }

    pub(super) fn set_policy(&self, policy: PolicyConfig) {
        *self.policy.lock().unwrap() = policy;
        (self.rebuild_routes)();
    }

    /// Offers the tool, and proposes a call of it.
    async fn propose_write(&self, principal: &str, terms: Terms) -> Arc<Change> {
        self.offer_write();
        let Definition { hash, .. } = definition(&write_tool());
        self.propose(principal, &hash, terms).await
    }

    async fn create_rule(&self, change: &Change, key: &str, body: &Value) -> Reply {
        self.post(&format!("/api/changes/{}/rule", change.id), key, body).await
    }

    async fn test_policy(&self, key: &str, principal: &str, arguments: &str) -> Value {
        let body = format!(
            r#"{{"tool":"write","arguments":{arguments},"principal":{{"name":"{principal}","role":"agent"}}}}"#
        );
        let authorization = format!("Bearer {key}");
        let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
        let answer = self.send("POST", "/api/policy/test", &headers, Some(&body)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }
}

fn allow() -> Value {
    json!({ "verdict": "allow", "arguments": "exact", "principal": "same", "for": 3600 })
}

const ARGUMENTS: &str = r#"{"big":123456789012345678901234567890,"n":1.10}"#;

#[actix::test]
async fn rule_is_created_listed_counted_and_revoked() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    let change = endpoints.propose_write("ci", Terms::default()).await;
    let before = endpoints.test_policy(&key, "ci", ARGUMENTS).await;
    assert_eq!((&before["verdict"], &before["standingRule"]), (&json!("review"), &Value::Null), "{before}");
    assert_eq!((&before["terms"]["quorum"], &before["simulated"]), (&json!(1), &json!(false)));

    let created = endpoints.create_rule(&change, &key, &allow()).await;
    assert_eq!(created.status, 200, "{created:?}");
    let rule = created.json();
    assert!(rule["id"].as_str().unwrap().starts_with("srl_"));
    assert_eq!((rule["createdBy"].as_str(), rule["principal"].as_str()), (Some("alice"), Some("ci")));
    assert_eq!(rule["argumentsHash"], canonical_text_hash(ARGUMENTS));
    assert!(created.text.contains(r#""n":1.10"#), "the arguments are shown as they were sent: {}", created.text);
    assert_eq!(endpoints.get("/api/rules", &key).await.json()["rules"], json!([rule]));

    let now = endpoints.test_policy(&key, "ci", ARGUMENTS).await;
    assert_eq!((&now["verdict"], &now["standingRule"]["id"]), (&json!("allow"), &rule["id"]), "{now}");
    assert_eq!(endpoints.test_policy(&key, "other", ARGUMENTS).await["verdict"], "review");
    assert_eq!(endpoints.test_policy(&key, "ci", "{}").await["verdict"], "review");
    assert_eq!(
        endpoints.get("/api/rules", &key).await.json()["rules"][0]["uses"],
        0,
        "a test of the policy does not count as a use"
    );

    // Each use is recorded once, even if uses are recorded twice.
    let standing_rules = endpoints.data.standing_rules.list();
    standing_rules[0].uses.increment();
    standing_rules[0].uses.increment();
    endpoints.data.standing_rules.record_uses().await;
    endpoints.data.standing_rules.record_uses().await;

    let path = format!("/api/rules/{}/revoke", rule["id"].as_str().unwrap());
    let revoked = endpoints.post(&path, &key, &json!({ "comment": "enough" })).await;
    assert_eq!((revoked.status, revoked.json()["revokedBy"].as_str()), (200, Some("alice")));
    assert_eq!(revoked.json()["uses"], 2);
    assert_eq!(endpoints.test_policy(&key, "ci", ARGUMENTS).await["verdict"], "review");
    assert_eq!(endpoints.post(&path, &key, &json!({})).await.problem(409), "VERSION_CONFLICT");
    assert_eq!(endpoints.post("/api/rules/srl_none/revoke", &key, &json!({})).await.problem(404), "NOT_FOUND");

    let trail = endpoints.get("/api/audit", &key).await.json();
    let events_of_trail: Vec<&str> =
        trail["entries"].as_array().unwrap().iter().map(|entry| entry["event"].as_str().unwrap()).collect();
    assert_eq!(&events_of_trail[..3], ["standing_rule_revoked", "standing_rule_used", "standing_rule_created"]);
    assert_eq!(trail["entries"][0]["details"]["comment"], "enough");
    assert_eq!(trail["entries"][1]["details"]["rule"]["uses"], 2);
    assert_eq!(trail["entries"][2]["details"]["rule"]["fromChange"], change.id.as_str());
    // The entries are part of the trail of the change, and do not alter its state.
    let story = endpoints.get(&format!("/api/audit?change={}", change.id), &key).await.json();
    assert_eq!(story["entries"].as_array().unwrap()[..3], trail["entries"].as_array().unwrap()[..3]);
    assert_eq!((&story["entries"][0]["from"], &story["entries"][0]["to"]), (&Value::Null, &Value::Null));
    assert_eq!(StoreLocation::directory(endpoints.dir.path()).verify_audit(None).unwrap().changes, 1);
    endpoints.close().await;
}

#[actix::test]
async fn five_approvals_suggest_a_rule_that_a_reviewer_creates() {
    let endpoints = Endpoints::open().await;
    let alice = endpoints.key("alice", Role::Reviewer);
    let suggestions = async |change: &Change, key: &str| {
        let reply = endpoints.get(&format!("/api/changes/{}/suggestions", change.id), key).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["suggestions"].as_array().unwrap().clone()
    };
    endpoints.offer_write();
    let Definition { hash, .. } = definition(&write_tool());
    endpoints.provider.tool_hash.lock().unwrap().clone_from(&hash);
    let propose = async |path: &str, terms: Terms| {
        let arguments = RawValue::from_string(json!({ "path": path }).to_string()).unwrap();
        let adjust = |proposal: &mut Proposal| {
            (proposal.tool_hash, proposal.terms) = (hash.clone(), terms);
            proposal.arguments = arguments.into();
        };
        endpoints.propose_with("ci", adjust).await
    };
    let first = propose("/notes/0", Terms::default()).await;
    for n in 0..5 {
        let change = if n == 0 { Arc::clone(&first) } else { propose(&format!("/notes/{n}"), Terms::default()).await };
        assert!(suggestions(&change, &alice).await.is_empty(), "{n} approvals do not suffice");
        let path = format!("/api/changes/{}/decision", change.id);
        assert_eq!(endpoints.post(&path, &alice, &decision("approve", &change)).await.status, 200);
        endpoints.wait_for_state(&change.id, ChangeState::Applied).await;
    }
    let change = propose("/notes/9", Terms::default()).await;
    let elsewhere = propose("/etc/hosts", Terms::default()).await;
    let found = suggestions(&change, &alice).await;
    assert_eq!(found[0]["matching"], json!([{ "argument": "path", "within": "/notes" }]));
    assert_eq!((&found[0]["approvals"], &found[0]["matched"]["count"]), (&json!(5), &json!(6)));
    assert_eq!(found[0]["unmatched"]["newest"][0]["id"], elsewhere.id.as_str());
    assert_eq!((found.len(), &found[1]["matching"]), (2, &json!([])));
    let strict = propose("/notes/8", Terms { quorum: 2, ..Terms::default() }).await;
    assert!(suggestions(&strict, &alice).await.is_empty());
    for key in [endpoints.key("ci", Role::Reviewer), endpoints.key("victor", Role::Viewer)] {
        assert!(suggestions(&change, &key).await.is_empty(), "who may not create rules gets no suggestions");
    }

    let mut body = allow();
    (body["arguments"], body["matching"]) = (json!("matching"), found[0]["matching"].clone());
    let mut refused = body.clone();
    refused["matching"][0]["within"] = json!("/etc");
    assert_eq!(endpoints.create_rule(&change, &alice, &refused).await.problem(422), "VALIDATION_FAILED");
    refused["matching"] = json!([]);
    assert_eq!(endpoints.create_rule(&change, &alice, &refused).await.problem(422), "VALIDATION_FAILED");
    let created = endpoints.create_rule(&change, &alice, &body).await;
    assert_eq!((created.status, &created.json()["matching"]), (200, &found[0]["matching"]));
    let verdict = async |path| endpoints.test_policy(&alice, "ci", path).await["verdict"].clone();
    assert_eq!(verdict(r#"{"path":"/notes/new"}"#).await, "allow");
    assert_eq!(verdict(r#"{"path":"/etc/hosts"}"#).await, "review");
    assert!(suggestions(&change, &alice).await.is_empty(), "such calls are no longer reviewed");
    endpoints.close().await;
}

#[actix::test]
async fn owner_cannot_revoke_rule_that_denies_own_calls() {
    let endpoints = Endpoints::open().await;
    let alice = endpoints.key("alice", Role::Reviewer);
    let bob = endpoints.key("bob", Role::Reviewer);
    endpoints.offer_write();
    let change = endpoints.propose_with("alices-bot", |proposal| proposal.proposer.owner = Some("alice".into())).await;
    let deny = json!({ "verdict": "deny", "arguments": "any", "principal": "same" });
    let created = endpoints.create_rule(&change, &bob, &deny).await.json();
    let path = format!("/api/rules/{}/revoke", created["id"].as_str().unwrap());
    assert_eq!(endpoints.post(&path, &alice, &json!({})).await.problem(403), "SELF_APPROVAL");
    assert_eq!(endpoints.test_policy(&bob, "alices-bot", "{}").await["verdict"], "deny");
    assert_eq!(endpoints.post(&path, &bob, &json!({})).await.status, 200);
    endpoints.close().await;
}

#[actix::test]
async fn revoked_key_ends_its_allow_rules_and_orphans_its_deny_rules() {
    let endpoints = Endpoints::open().await;
    let new = keys::create("mallory", Role::Reviewer, Timestamp::now()).unwrap();
    endpoints.stored.writer().insert(&new.key, &new.hash).unwrap();
    let key = endpoints.key("alice", Role::Reviewer);
    let change = endpoints.propose_write("ci", Terms::default()).await;
    let allowed = endpoints.create_rule(&change, &new.secret, &allow()).await.json();
    let deny = json!({ "verdict": "deny", "arguments": "any", "principal": "any" });
    let other = endpoints.propose_write("other", Terms::default()).await;
    assert_eq!(endpoints.test_policy(&key, "ci", ARGUMENTS).await["verdict"], "allow");
    assert!(endpoints.data.standing_rules.handle_orphans().await);
    assert_eq!(endpoints.test_policy(&key, "ci", ARGUMENTS).await["verdict"], "allow", "the key is still valid");

    let mut events = endpoints.changes.feed().subscribe(None).unwrap();
    endpoints.stored.writer().revoke(&new.key.id, Timestamp::now()).unwrap();
    // The rule ends within a second, even if its end was not recorded yet.
    while endpoints.test_policy(&key, "ci", ARGUMENTS).await["verdict"] != "review" {}
    assert!(endpoints.get("/api/rules", &key).await.json()["rules"][0]["revokedAt"].is_null());
    assert!(
        endpoints.data.standing_rules.handle_orphans().await && endpoints.data.standing_rules.handle_orphans().await
    );
    let rule = endpoints.get("/api/rules", &key).await.json()["rules"][0].clone();
    assert_eq!((&rule["id"], rule["revokedBy"].as_str()), (&allowed["id"], Some("system")), "{rule}");
    assert_eq!(rule["orphanedAt"], rule["revokedAt"]);
    let event: Value = serde_json::from_slice(&events.next().await.unwrap().json).unwrap();
    assert_eq!((event["type"].as_str(), event["rule"]["id"].as_str()), (Some("rule.revoked"), allowed["id"].as_str()));
    assert!(event["comment"].as_str().unwrap().contains("was revoked"), "{event}");
    let story = endpoints.get(&format!("/api/audit?change={}", change.id), &key).await.json();
    let entry = &story["entries"][0];
    assert_eq!((entry["event"].as_str(), entry["actor"].as_str()), (Some("standing_rule_revoked"), Some("system")));

    // A denial is stricter, so it stays and is marked as orphaned.
    let former_reviewer = keys::create("gone", Role::Reviewer, Timestamp::now()).unwrap();
    endpoints.stored.writer().insert(&former_reviewer.key, &former_reviewer.hash).unwrap();
    assert_eq!(endpoints.create_rule(&other, &former_reviewer.secret, &deny).await.status, 200);
    endpoints.stored.writer().revoke(&former_reviewer.key.id, Timestamp::now()).unwrap();
    loop {
        assert!(endpoints.data.standing_rules.handle_orphans().await);
        let rule = endpoints.get("/api/rules", &key).await.json()["rules"][0].clone();
        if rule["orphanedAt"].is_string() {
            assert!(rule["revokedAt"].is_null() && rule["verdict"] == "deny", "{rule}");
            break;
        }
    }
    assert_eq!(endpoints.test_policy(&key, "ci", "{}").await["verdict"], "deny");
    let story = endpoints.get(&format!("/api/audit?change={}", other.id), &key).await.json();
    assert_eq!(story["entries"][0]["event"], "standing_rule_orphaned");
    let path = format!("/api/rules/{}/revoke", story["entries"][0]["details"]["rule"]["id"].as_str().unwrap());
    assert_eq!(endpoints.post(&path, &key, &json!({})).await.status, 200, "any reviewer may revoke an orphaned rule");
    assert_eq!(endpoints.test_policy(&key, "ci", "{}").await["verdict"], "review");
    endpoints.close().await;
}

#[actix::test]
async fn allow_rule_needs_the_right_to_approve_alone() {
    let endpoints = Endpoints::open().await;
    let alice = endpoints.key("alice", Role::Reviewer);
    let ci = endpoints.key("ci", Role::Reviewer);
    let viewer = endpoints.key("victor", Role::Viewer);
    let change = endpoints.propose_write("ci", Terms::default()).await;
    let refused = async |change: &Change, key: &str, body: Value, status: u16| {
        endpoints.create_rule(change, key, &body).await.problem(status)
    };
    assert_eq!(refused(&change, &ci, allow(), 403).await, "SELF_APPROVAL");
    assert_eq!(refused(&change, &viewer, allow(), 403).await, "FORBIDDEN");
    let without = |member: &str| {
        let mut body = allow();
        body.as_object_mut().unwrap().remove(member);
        body
    };
    assert_eq!(refused(&change, &alice, without("for"), 422).await, "VALIDATION_FAILED");
    assert_eq!(refused(&change, &alice, without("principal"), 422).await, "VALIDATION_FAILED");
    for seconds in [json!(0), json!(30 * 86_400 + 1), json!(-1), json!(u64::MAX), json!("1h")] {
        let body = json!({ "verdict": "allow", "arguments": "any", "principal": "any", "for": seconds });
        assert_eq!(refused(&change, &alice, body, 422).await, "VALIDATION_FAILED", "{seconds}");
    }
    for terms in [Terms { quorum: 2, ..Terms::default() }, Terms { preview_required: true, ..Terms::default() }] {
        let strict = endpoints.propose_write("other", terms).await;
        assert_eq!(refused(&strict, &alice, allow(), 403).await, "FORBIDDEN");
        // Every reviewer may deny.
        let deny = json!({ "verdict": "deny", "arguments": "exact", "principal": "same", "for": 60 });
        assert_eq!(endpoints.create_rule(&strict, &alice, &deny).await.status, 200);
    }
    let comment_required = endpoints.propose_write("ci", Terms { require_comment: true, ..Terms::default() }).await;
    assert_eq!(refused(&comment_required, &alice, allow(), 422).await, "VALIDATION_FAILED");
    // The policy or the tool has changed since: the policy requires more or denies, or the tool is gone.
    let quorum =
        PolicyConfig { review: Arc::new(Terms { quorum: 2, ..Terms::default() }), ..PolicyDefault::ReviewAll.into() };
    endpoints.set_policy(quorum);
    assert_eq!(refused(&change, &alice, without("comment"), 403).await, "FORBIDDEN");
    endpoints.set_policy(PolicyDefault::Deny.into());
    assert_eq!(refused(&change, &alice, allow(), 403).await, "POLICY_DENIED");
    endpoints.provider.tools.lock().unwrap().clear();
    endpoints.set_policy(PolicyDefault::ReviewAll.into());
    assert_eq!(refused(&change, &alice, allow(), 409).await, "VERSION_CONFLICT");
    assert_eq!(endpoints.post("/api/changes/chg_none/rule", &alice, &allow()).await.problem(404), "CHANGE_NOT_FOUND");
    endpoints.close().await;
}

#[actix::test]
async fn rule_expires_and_rules_per_reviewer_are_bounded() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    let change = endpoints.propose_write("ci", Terms::default()).await;
    let mut events = endpoints.changes.feed().subscribe(None).unwrap();
    let body = json!({ "verdict": "allow", "arguments": "any", "principal": "any", "for": 1 });
    assert_eq!(endpoints.create_rule(&change, &key, &body).await.status, 200);
    let mut kinds = Vec::new();
    while kinds.last().map(String::as_str) != Some("rule.expired") {
        endpoints.data.standing_rules.expire().await;
        let event = tokio::time::timeout(Duration::from_millis(20), events.next()).await;
        if let Ok(Ok(event)) = event.map(|event| event.ok_or(())) {
            let event: Value = serde_json::from_slice(&event.json).unwrap();
            kinds.push(event["type"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(kinds, ["rule.created", "rule.expired"]);
    assert_eq!(endpoints.test_policy(&key, "ci", "{}").await["verdict"], "review");
    assert!(endpoints.get("/api/rules", &key).await.json()["rules"][0]["expiredAt"].is_string());

    let deny = json!({ "verdict": "deny", "arguments": "any", "principal": "same" });
    for _ in 0..countersign_rulings::standing_rules::MAX_RULES_PER_OWNER {
        assert_eq!(endpoints.create_rule(&change, &key, &deny).await.status, 200);
    }
    assert_eq!(endpoints.create_rule(&change, &key, &deny).await.problem(429), "RATE_LIMITED");
    let bob = endpoints.key("bob", Role::Reviewer);
    assert_eq!(endpoints.create_rule(&change, &bob, &deny).await.status, 200, "each reviewer has their own limit");
    let denied = endpoints.test_policy(&key, "ci", "{}").await;
    assert_eq!((&denied["verdict"], &denied["listed"]), (&json!("deny"), &json!(false)));
    // A principal cannot revoke a rule that denies their own calls.
    let ci = endpoints.key("ci", Role::Reviewer);
    let path = format!("/api/rules/{}/revoke", denied["standingRule"]["id"].as_str().unwrap());
    assert_eq!(endpoints.post(&path, &ci, &json!({})).await.problem(403), "SELF_APPROVAL");
    endpoints.close().await;
}

#[actix::test]
async fn policy_shows_what_its_rules_decided() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("victor", Role::Viewer);
    endpoints.offer_write();
    let no_drops = Rule {
        tools: Globs::new(vec!["wri*".to_owned()]).unwrap(),
        principals: Globs::new(vec!["ci-*".to_owned()]).unwrap(),
        ..Rule::new("no-writes", Verdict::Deny)
    };
    endpoints.set_policy(PolicyConfig { rules: vec![no_drops.clone()], ..PolicyDefault::ReviewWrites.into() });
    no_drops.counts.increment(Verdict::Deny);
    let policy = endpoints.get("/api/policy", &key).await.json();
    assert_eq!(
        (&policy["default"], &policy["mode"], &policy["tools"]),
        (&json!("review_writes"), &json!("enforce"), &json!({ "count": 1, "names": ["write"] }))
    );
    let expected = json!([{
        "label": "no-writes", "then": "deny",
        "settings": [{ "key": "tools", "value": "[\"wri*\"]" }, { "key": "principals", "value": "[\"ci-*\"]" }],
        "decided": { "allowed": 0, "reviewed": 0, "denied": 1 }, "tools": { "count": 1, "names": ["write"] },
    }]);
    assert_eq!(policy["rules"], expected);
    // The counts outlast a stored minute and another configuration with the same rule.
    endpoints.data.rule_counts.write().await;
    endpoints.set_policy(PolicyConfig {
        rules: vec![Rule { counts: Default::default(), ..no_drops }],
        ..PolicyDefault::Deny.into()
    });
    let policy = endpoints.get("/api/policy", &key).await.json();
    assert_eq!((&policy["default"], &policy["rules"]), (&json!("deny"), &expected));
    endpoints.close().await;
}

#[actix::test]
async fn invalid_policy_test_is_refused() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("victor", Role::Viewer);
    endpoints.propose_write("ci", Terms::default()).await;
    for (body, status, code) in [
        (json!({ "tool": "nothing" }), 404, "TOOL_NOT_FOUND"),
        (json!({ "tool": "write", "arguments": [1] }), 422, "VALIDATION_FAILED"),
        (json!({ "tool": "write", "principal": { "name": "x" } }), 422, "VALIDATION_FAILED"),
        (json!({ "tool": "write", "principal": { "name": "x", "role": "king" } }), 422, "VALIDATION_FAILED"),
        (json!({ "tool": "write", "more": 1 }), 422, "VALIDATION_FAILED"),
        (json!({}), 422, "VALIDATION_FAILED"),
    ] {
        assert_eq!(endpoints.post("/api/policy/test", &key, &body).await.problem(status), code, "{body}");
    }
    endpoints.set_policy(PolicyConfig {
        mode: countersign_domain::policy::PolicyMode::Simulate,
        ..PolicyDefault::Deny.into()
    });
    let answer = endpoints.post("/api/policy/test", &key, &json!({ "tool": "write" })).await.json();
    assert_eq!(
        (&answer["verdict"], &answer["simulated"], &answer["listed"]),
        (&json!("deny"), &json!(true), &json!(true))
    );
    assert_eq!(answer["reason"], "policy.default is deny");
    endpoints.close().await;
}

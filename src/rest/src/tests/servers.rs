//! Tests definitions of upstream tools: they are shown, accepted, revoked, and reviewed again after a change.

use super::*;
use countersign_domain::policy::known_reads::{KnownReads, KnownTool};

/// Returns a tool as an upstream defines it.
fn tool(name: &str, read: bool, description: &str) -> ToolDef {
    upstream_tool(&json!({
        "name": name, "description": description, "inputSchema": { "type": "object" },
        "annotations": { "readOnlyHint": read }, "vendor": 1,
    }))
}

impl Endpoints {
    fn offer_tools(&self, tools: Vec<ToolDef>) {
        *self.provider.tools.lock().unwrap() = tools;
        (self.rebuild_routes)();
    }

    async fn tools(&self, key: &str) -> Vec<Value> {
        let answer = self.get("/api/servers/pretend", key).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["tools"].as_array().unwrap().clone()
    }

    async fn post_definitions(&self, action: &str, key: &str, tools: &[&Value]) -> Reply {
        let tools: Vec<Value> = tools.iter().map(|t| json!({ "name": t["name"], "hash": t["hash"] })).collect();
        self.post(&format!("/api/servers/pretend/{action}"), key, &json!({ "tools": tools })).await
    }
}

fn state(tool: &Value) -> (&str, &str, Option<&str>) {
    (tool["verdict"].as_str().unwrap(), tool["definitionStatus"].as_str().unwrap(), tool["mark"].as_str())
}

#[actix::test]
async fn accepted_read_tool_runs_until_its_definition_changes() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    endpoints.offer_tools(vec![tool("read", true, "Reads"), tool("write", false, "Writes")]);
    let pending_counts = async || endpoints.get("/api/servers", &key).await.json()["servers"][0]["review"].clone();
    assert_eq!(pending_counts().await, json!({ "new": 0, "changed": 0, "reads": 1, "known": 0 }));
    let tools = endpoints.tools(&key).await;
    assert_eq!((state(&tools[0]), tools[0]["claimsRead"].as_bool()), (("review", "seen", None), Some(true)));
    assert_eq!((state(&tools[1]), tools[1]["claimsRead"].as_bool()), (("review", "seen", None), Some(false)));
    assert!(tools[0]["definition"].as_str().unwrap().contains(r#""vendor":1"#), "the definition is shown completely");

    let accepted = endpoints.post_definitions("accept", &key, &[&tools[0]]).await;
    assert_eq!((accepted.status, state(&accepted.json()["tools"][0])), (200, ("allow", "accepted", None)));
    assert_eq!(accepted.json()["tools"][0]["acceptedBy"], "alice");
    assert_eq!(pending_counts().await, json!({ "new": 0, "changed": 0, "reads": 0, "known": 0 }));

    // One tool has another definition now, and another tool is new.
    endpoints.offer_tools(vec![
        tool("read", true, "Reads, and sends it away"),
        tool("write", false, "Writes"),
        tool("more", true, ""),
    ]);
    assert_eq!(pending_counts().await, json!({ "new": 1, "changed": 1, "reads": 0, "known": 0 }));
    let changed = endpoints.tools(&key).await;
    assert_eq!(state(&changed[0]), ("review", "changed", Some("TOOL_CHANGED")));
    assert!(changed[0]["previous"].as_str().unwrap().contains(r#""Reads""#));
    assert_eq!(state(&changed[2]), ("review", "new", Some("TOOL_NEW")));
    assert_eq!(changed[2]["previous"], Value::Null);

    // One of the definitions is outdated, so nothing is accepted, not even the new tool.
    let refused = endpoints.post_definitions("accept", &key, &[&changed[2], &tools[0]]).await;
    assert_eq!((refused.problem(409), refused.json()["tools"][0].as_str()), ("VERSION_CONFLICT".into(), Some("read")));
    assert_eq!(state(&endpoints.tools(&key).await[2]), ("review", "new", Some("TOOL_NEW")));
    let accepted = endpoints.post_definitions("accept", &key, &[&changed[0], &changed[2]]).await.json();
    assert_eq!(state(&accepted["tools"][0]), ("allow", "accepted", None));
    assert_eq!(state(&accepted["tools"][2]), ("allow", "accepted", None));

    let revoked = endpoints.post_definitions("revoke", &key, &[&changed[0], &changed[2]]).await.json();
    assert_eq!(state(&revoked["tools"][0]), ("review", "changed", Some("TOOL_CHANGED")));
    assert_eq!(state(&revoked["tools"][2]), ("review", "new", Some("TOOL_NEW")));
    let trail = endpoints.get("/api/audit", &key).await.json();
    assert_eq!(trail["entries"][0]["event"], "definitions_revoked");
    assert_eq!(trail["entries"][0]["details"]["tools"][1]["name"], "more");
    assert_eq!((&trail["entries"][0]["changeId"], &trail["entries"][0]["to"]), (&Value::Null, &Value::Null));
    endpoints.close().await;
}

#[actix::test]
async fn acceptance_applies_again_to_restored_definition() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    endpoints.offer_tools(vec![tool("read", true, "one")]);
    let tools = endpoints.tools(&key).await;
    endpoints.post_definitions("accept", &key, &[&tools[0]]).await;
    endpoints.offer_tools(vec![tool("read", true, "two")]);
    endpoints.offer_tools(Vec::new());
    assert_eq!(endpoints.tools(&key).await, Vec::<Value>::new());
    endpoints.offer_tools(vec![tool("read", true, "one")]);
    assert_eq!(state(&endpoints.tools(&key).await[0]), ("allow", "accepted", None));
    endpoints.close().await;
}

#[actix::test]
async fn acceptance_needs_reviewer_and_current_definition() {
    let endpoints = Endpoints::open().await;
    let reviewer = endpoints.key("alice", Role::Reviewer);
    let viewer = endpoints.key("vic", Role::Viewer);
    let agent = endpoints.key("agent", Role::Agent);
    endpoints.offer_tools(vec![tool("read", true, "Reads")]);
    let tools = endpoints.tools(&viewer).await;
    assert_eq!(endpoints.post_definitions("accept", &viewer, &[&tools[0]]).await.problem(403), "FORBIDDEN");
    assert_eq!(endpoints.post_definitions("revoke", &viewer, &[&tools[0]]).await.problem(403), "FORBIDDEN");
    assert_eq!(endpoints.post_definitions("accept", &agent, &[&tools[0]]).await.problem(403), "FORBIDDEN");
    assert_eq!(endpoints.get("/api/servers/pretend", &agent).await.problem(403), "FORBIDDEN");
    assert_eq!(endpoints.get("/api/servers/nobody", &viewer).await.problem(404), "NOT_FOUND");
    let body = json!({ "tools": [{ "name": "read", "hash": tools[0]["hash"] }] });
    assert_eq!(endpoints.post("/api/servers/nobody/accept", &reviewer, &body).await.problem(404), "NOT_FOUND");
    let path = "/api/servers/pretend/accept";
    for bad in
        [json!({}), json!({ "tools": [] }), json!({ "tools": ["read"] }), json!({ "tools": [{ "name": "read" }] })]
    {
        assert_eq!(endpoints.post(path, &reviewer, &bad).await.problem(422), "VALIDATION_FAILED", "{bad}");
    }
    let missing_tool = json!({ "tools": [{ "name": "gone", "hash": tools[0]["hash"] }] });
    assert_eq!(endpoints.post(path, &reviewer, &missing_tool).await.problem(409), "VERSION_CONFLICT");
    assert_eq!(state(&endpoints.tools(&viewer).await[0]), ("review", "seen", None));
    endpoints.close().await;
}

/// Returns a tool without annotations.
fn bare_tool(name: &str, description: &str) -> ToolDef {
    upstream_tool(&json!({ "name": name, "description": description, "inputSchema": { "type": "object" } }))
}

/// Lists the definition that the tool has on its server.
fn list_tool(known: &mut KnownReads, tool: &ToolDef, effect: KnownTool) {
    known.add(tool.name.clone(), tool.definition_hash(), effect);
}

#[actix::test]
async fn known_reads_without_annotations_run_after_consent() {
    let endpoints = Endpoints::open().await;
    let (alice, vic) = (endpoints.key("alice", Role::Reviewer), endpoints.key("vic", Role::Viewer));
    let mut known = KnownReads::new("files");
    known.packages.push("files 1.0".into());
    list_tool(&mut known, &bare_tool("query", "Reads"), KnownTool::Read);
    list_tool(&mut known, &bare_tool("search", "Another version"), KnownTool::Read);
    endpoints.provider.known_reads.set(known).unwrap();
    endpoints.offer_tools(vec![bare_tool("query", "Reads"), bare_tool("search", "Searches"), bare_tool("write", "")]);
    let answer = endpoints.get("/api/servers/pretend", &alice).await.json();
    assert_eq!(answer["knownReads"], json!({ "set": "files", "packages": ["files 1.0"] }));
    let tools = endpoints.tools(&alice).await;
    let known = |tool: &Value| (tool["known"].as_str().map(str::to_owned), tool["offered"].as_bool().unwrap());
    assert_eq!(known(&tools[0]), (Some("read".into()), true));
    assert_eq!(known(&tools[1]), (Some("other_definition".into()), false));
    assert_eq!(known(&tools[2]), (None, false));
    let pending = endpoints.get("/api/servers", &alice).await.json()["servers"][0]["review"].clone();
    assert_eq!(pending, json!({ "new": 0, "changed": 0, "reads": 0, "known": 1 }));

    let accept = async |key: &str, tools: &[&Value]| endpoints.post_definitions("accept-known-reads", key, tools).await;
    assert_eq!(accept(&vic, &[&tools[0]]).await.problem(403), "FORBIDDEN");
    // Nothing is accepted if the list does not have one of the definitions.
    for uncovered in [&tools[1], &tools[2]] {
        let refused = accept(&alice, &[&tools[0], uncovered]).await;
        assert_eq!(refused.problem(422), "VALIDATION_FAILED");
        assert_eq!(refused.json()["tools"], json!([uncovered["name"]]));
    }
    // A plain acceptance does not make it a read.
    endpoints.post_definitions("accept", &alice, &[&tools[0]]).await;
    assert_eq!(endpoints.verdict(&alice, "query", "bot").await, "review");
    let accepted = accept(&alice, &[&tools[0]]).await;
    assert_eq!(accepted.status, 200, "{accepted:?}");
    let query = &accepted.json()["tools"][0];
    assert_eq!((state(query), known(query)), (("allow", "accepted", None), (Some("read".into()), false)));
    assert_eq!((&query["acceptedAsRead"], &query["acceptedBy"]), (&json!(true), &json!("alice")));
    // Unlike a standing rule, it applies to everybody.
    for caller in ["bot", "alice"] {
        assert_eq!(endpoints.verdict(&alice, "query", caller).await, "allow");
        assert_eq!(endpoints.verdict(&alice, "search", caller).await, "review");
    }
    let trail = endpoints.get("/api/audit", &alice).await.json();
    assert_eq!(trail["entries"][0]["event"], "definitions_accepted_as_reads");
    assert_eq!(trail["entries"][0]["details"]["tools"][0]["as"], "read");

    // Another definition is reviewed, and revoking ends the acceptance.
    endpoints.offer_tools(vec![bare_tool("query", "Reads, and sends it away")]);
    let changed = endpoints.tools(&alice).await;
    assert_eq!(state(&changed[0]), ("review", "changed", Some("TOOL_CHANGED")));
    assert_eq!(known(&changed[0]), (Some("other_definition".into()), false));
    endpoints.offer_tools(vec![bare_tool("query", "Reads")]);
    assert_eq!(endpoints.verdict(&alice, "query", "bot").await, "allow");
    endpoints.post_definitions("revoke", &alice, &[&tools[0]]).await;
    assert_eq!(endpoints.verdict(&alice, "query", "bot").await, "review");
    endpoints.close().await;
}

#[actix::test]
async fn configured_rules_override_accepted_known_reads() {
    use countersign_domain::policy::{Rule, Verdict};
    let endpoints = Endpoints::open().await;
    let alice = endpoints.key("alice", Role::Reviewer);
    let mut known = KnownReads::new("files");
    list_tool(&mut known, &bare_tool("query", "Reads"), KnownTool::Read);
    endpoints.provider.known_reads.set(known).unwrap();
    // The list has the server's own names, which clients see with a prefix.
    endpoints.offer_tools(vec![bare_tool("pretend__query", "Reads")]);
    let tools = endpoints.tools(&alice).await;
    assert_eq!(endpoints.post_definitions("accept-known-reads", &alice, &[&tools[0]]).await.status, 200);
    assert_eq!(endpoints.verdict(&alice, "pretend__query", "bot").await, "allow");
    for then in [Verdict::Review, Verdict::Deny] {
        let rules = vec![Rule::new("files", then)];
        endpoints.set_policy(PolicyConfig { rules, ..PolicyConfig::from(PolicyDefault::ReviewWrites) });
        assert_eq!(endpoints.verdict(&alice, "pretend__query", "bot").await, then.as_str());
    }
    endpoints.close().await;
}

impl Endpoints {
    async fn allow_tools(&self, key: &str, tools: &[&Value], reason: &str) -> Reply {
        let tools: Vec<Value> = tools.iter().map(|t| json!({ "name": t["name"], "hash": t["hash"] })).collect();
        self.post("/api/servers/pretend/allow", key, &json!({ "tools": tools, "reason": reason })).await
    }

    /// Returns the policy's verdict on a call by an agent.
    async fn verdict(&self, key: &str, tool: &str, agent: &str) -> String {
        let body = json!({ "tool": tool, "principal": { "name": agent, "role": "agent" } });
        let answer = self.post("/api/policy/test", key, &body).await.json();
        answer["verdict"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

#[actix::test]
async fn allowed_tool_runs_until_its_rule_is_revoked() {
    let endpoints = Endpoints::open().await;
    let (alice, vic) = (endpoints.key("alice", Role::Reviewer), endpoints.key("vic", Role::Viewer));
    endpoints.offer_tools(vec![tool("query", false, "Reads, and does not say so"), tool("write", false, "Writes")]);
    let tools = endpoints.tools(&alice).await;
    assert_eq!((tools[0]["mayLetRun"].as_bool(), &tools[0]["letRun"]), (Some(true), &Value::Null));
    // An accepted tool still needs a review if it does not claim to read only.
    let accepted = endpoints.post_definitions("accept", &alice, &[&tools[0]]).await.json();
    assert_eq!(state(&accepted["tools"][0]), ("review", "accepted", None));

    assert_eq!(endpoints.allow_tools(&vic, &[&tools[0]], "only reads").await.problem(403), "FORBIDDEN");
    assert_eq!(endpoints.allow_tools(&alice, &[&tools[0]], " \n").await.problem(422), "VALIDATION_FAILED");
    assert_eq!(endpoints.verdict(&alice, "query", "bot").await, "review");
    let answer = endpoints.allow_tools(&alice, &[&tools[0]], "it only reads").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let query = &answer.json()["tools"][0];
    assert_eq!((query["verdict"].as_str(), query["mayLetRun"].as_bool()), (Some("allow"), Some(false)));
    assert_eq!((&query["letRun"]["by"], &query["letRun"]["reason"]), (&json!("alice"), &json!("it only reads")));
    assert_eq!(endpoints.verdict(&alice, "query", "bot").await, "allow");
    assert_eq!(endpoints.verdict(&alice, "query", "alice").await, "review", "a reviewer cannot allow their own calls");
    assert_eq!(endpoints.verdict(&alice, "write", "bot").await, "review");

    // A repeated request creates no second rule.
    endpoints.allow_tools(&alice, &[&tools[0]], "again").await;
    let rules = endpoints.get("/api/rules", &alice).await.json()["rules"].as_array().unwrap().clone();
    assert_eq!((rules.len(), &rules[0]["fromChange"], &rules[0]["expiresAt"]), (1, &Value::Null, &Value::Null));
    let trail = endpoints.get("/api/audit", &alice).await.json();
    assert_eq!(trail["entries"][0]["event"], "standing_rule_created");
    assert_eq!(trail["entries"][0]["details"]["comment"], "it only reads");
    assert_eq!(trail["entries"][0]["actor"], "alice");

    // Another definition is reviewed. The first definition runs again when it comes back.
    endpoints.offer_tools(vec![tool("query", false, "Sends it away")]);
    assert_eq!(endpoints.verdict(&alice, "query", "bot").await, "review");
    endpoints.offer_tools(vec![tool("query", false, "Reads, and does not say so")]);
    assert_eq!(endpoints.verdict(&alice, "query", "bot").await, "allow");
    let revoke = format!("/api/rules/{}/revoke", rules[0]["id"].as_str().unwrap());
    assert_eq!(endpoints.post(&revoke, &alice, &json!({})).await.status, 200);
    assert_eq!(endpoints.verdict(&alice, "query", "bot").await, "review");
    endpoints.close().await;
}

#[actix::test]
async fn configured_rules_override_allowed_tools() {
    use countersign_domain::policy::{Globs, Rule, Verdict};
    let endpoints = Endpoints::open().await;
    let alice = endpoints.key("alice", Role::Reviewer);
    endpoints.offer_tools(vec![tool("query", false, "Reads")]);
    let shown = endpoints.tools(&alice).await;
    let query = &shown[0];
    assert_eq!(endpoints.allow_tools(&alice, &[query], "fine").await.status, 200);
    let rule = |then: Verdict, principals: &[&str]| {
        Arc::new(Rule {
            principals: Globs::new(principals.iter().map(|p| (*p).to_owned()).collect()).unwrap(),
            ..Rule::new("files", then)
        })
    };
    let with_rules = |rules: Vec<Arc<Rule>>| PolicyConfig {
        rules: rules.iter().map(|rule| Rule::clone(rule)).collect(),
        ..PolicyConfig::from(PolicyDefault::ReviewWrites)
    };
    for then in [Verdict::Review, Verdict::Deny] {
        endpoints.set_policy(with_rules(vec![rule(then, &[])]));
        assert_eq!(endpoints.verdict(&alice, "query", "bot").await, then.as_str(), "a rule of the file decides");
        assert_eq!(
            endpoints.allow_tools(&endpoints.key("bob", Role::Reviewer), &[query], "fine").await.problem(403),
            "FORBIDDEN"
        );
        assert_eq!(endpoints.tools(&alice).await[0]["mayLetRun"], false);
        // A rule about some callers decides only on their calls.
        endpoints.set_policy(with_rules(vec![rule(then, &["ci"])]));
        assert_eq!(endpoints.verdict(&alice, "query", "ci").await, then.as_str());
        assert_eq!(endpoints.verdict(&alice, "query", "bot").await, "allow");
    }
    let with_terms = |terms: Terms| PolicyConfig { review: Arc::new(terms), ..with_rules(Vec::new()) };
    for terms in [Terms { quorum: 2, ..Terms::default() }, Terms { preview_required: true, ..Terms::default() }] {
        endpoints.set_policy(with_terms(terms));
        assert_eq!(endpoints.verdict(&alice, "query", "bot").await, "review");
        assert_eq!(
            endpoints.allow_tools(&endpoints.key("carol", Role::Reviewer), &[query], "x").await.problem(403),
            "FORBIDDEN"
        );
    }
    endpoints.set_policy(PolicyConfig::from(PolicyDefault::Deny));
    assert_eq!(endpoints.verdict(&alice, "query", "bot").await, "deny");
    endpoints.set_policy(PolicyConfig::from(PolicyDefault::ReviewWrites));
    endpoints.offer_tools(vec![tool("query", false, "Reads"), tool("later", false, "Reads")]);
    let tools = endpoints.tools(&alice).await;
    let later = tools.iter().find(|tool| tool["name"] == "later").unwrap();
    let refused = endpoints.allow_tools(&alice, &[later], "fine").await;
    assert_eq!(refused.problem(403), "FORBIDDEN");
    assert!(refused.text.contains("accept the definition first"), "{refused:?}");
    endpoints.close().await;
}

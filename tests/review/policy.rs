//! Tests of the policy through the program: rules with reviewers, standing rules, and simulated policies.

use serde_json::{Value, json};
use support::{Gateway, Options, mcp};

/// Runs a command against the gateway with a key; returns exit code, stdout and stderr.
fn cli(gateway: &Gateway, key: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let url = format!("http://{}", gateway.address());
    let output = support::command(&[("COUNTERSIGN_KEY", key), ("COUNTERSIGN_URL", &url)])
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn run_cli(gateway: &Gateway, key: &str, arguments: &[&str]) -> String {
    let (code, out, err) = cli(gateway, key, arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {out}{err}");
    out
}

fn story(gateway: &Gateway, title: &str) -> Value {
    json!({ "projectId": gateway.project(), "title": title, "type": "Story" })
}

/// Calls `create_issue`, and returns the outcome: `pending`, `done`, or an error code.
fn outcome(gateway: &Gateway, arguments: &Value) -> String {
    let call = json!({ "name": "create_issue", "arguments": arguments });
    let answer = gateway.modern(1, "tools/call", call).json();
    let result = &answer["result"];
    if result["isError"] == true {
        let error: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        return error["code"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    }
    match result["structuredContent"]["status"].as_str() {
        Some("pending") => "pending".to_owned(),
        _ => {
            assert!(result["structuredContent"].is_object(), "{answer}");
            "done".to_owned()
        }
    }
}

#[test]
fn standing_rule_allows_call_until_revoked() {
    let gateway = Gateway::start();
    let key = gateway.reviewer().to_owned();
    let id = gateway.propose("Again");
    let again = story(&gateway, "Again");
    assert_eq!(outcome(&gateway, &again), "pending");

    let (code, _, err) = cli(&gateway, &key, &["changes", "rule", &id]);
    assert_eq!(code, Some(2), "one of --allow-for and --deny: {err}");
    let (code, _, err) = cli(&gateway, &key, &["changes", "rule", &id, "--allow-for", "31 days"]);
    assert!(code == Some(2) && err.contains("to 30 days"), "{code:?} {err}");
    let shown = run_cli(&gateway, &key, &["changes", "rule", &id, "--allow-for", "1h", "--comment", "while I watch"]);
    assert!(shown.contains("srl_") && shown.contains("by local-agent") && shown.contains("while I watch"), "{shown}");

    assert_eq!(outcome(&gateway, &again), "done");
    assert_eq!(gateway.issues_titled("Again"), 1);
    assert_eq!(outcome(&gateway, &story(&gateway, "Another")), "pending");
    let test = ["policy", "test", "create_issue", "--json", "--arguments", &again.to_string()];
    let tested: Value = serde_json::from_str(&run_cli(&gateway, &key, &test)).unwrap();
    assert_eq!((&tested["verdict"], &tested["standingRule"]["uses"]), (&json!("allow"), &json!(1)), "{tested}");
    assert!(gateway.log().contains("a standing rule decided on a call"));

    // It survives a restart, with its count of uses.
    let (status, home) = gateway.stop();
    assert!(status.success());
    let gateway = Gateway::on_home(home, &Options::default());
    assert_eq!(outcome(&gateway, &again), "done");
    let rules: Value = serde_json::from_str(&run_cli(&gateway, &key, &["rules", "--json"])).unwrap();
    let rule = &rules["rules"][0];
    assert_eq!((&rule["uses"], &rule["fromChange"]), (&json!(2), &json!(id)), "{rule}");
    let counted = run_cli(&gateway, &key, &["policy", "rules"]);
    assert!(counted.contains("policy.default: review_writes\n") && counted.contains("3 reviewed"), "{counted}");
    let listed = run_cli(&gateway, &key, &["rules", "list"]);
    assert!(listed.contains("allow") && listed.contains("used 2 times"), "{listed}");

    let srl = rule["id"].as_str().unwrap();
    assert_eq!(run_cli(&gateway, &key, &["rules", "revoke", srl]), "Revoked.\n");
    assert_eq!(outcome(&gateway, &again), "pending");
    assert_eq!(cli(&gateway, &key, &["rules", "revoke", srl]).0, Some(4));
    assert_eq!(cli(&gateway, &key, &["rules", "revoke", "srl_none"]).0, Some(3));
    assert!(run_cli(&gateway, &key, &["rules", "list", "--all"]).contains("revoked"));

    // Not any more.
    run_cli(&gateway, &key, &["changes", "rule", &id, "--deny", "--any-arguments"]);
    assert_eq!(outcome(&gateway, &story(&gateway, "Another")), "POLICY_DENIED");
    // That holds for what was proposed before too.
    let (code, _, err) = cli(&gateway, &key, &["changes", "approve", &id]);
    assert!(code == Some(1) && err.contains("POLICY_DENIED"), "{code:?} {err}");
    assert_eq!(gateway.change(&id)["state"], "pending");
    let rules: Value = serde_json::from_str(&run_cli(&gateway, &key, &["rules", "--json"])).unwrap();
    let denial = rules["rules"].as_array().unwrap().iter().find(|rule| rule["verdict"] == "deny").unwrap();
    assert!(denial["createdAt"].as_str().unwrap().len() <= "2026-07-28T12:00:00.123Z".len(), "{denial}");
    let output = run_cli(&gateway, &key, &["policy", "test", "create_issue"]);
    assert!(output.starts_with("deny  tracker / create_issue\n") && output.contains("listed      no"), "{output}");
    assert!(run_cli(&gateway, &key, &["policy", "test", "create_issue", "--principal", "ci"]).starts_with("review"));

    let (code, out, err) = support::run(&["audit", "verify", "--data", gateway.data().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{out}{err}");
    let (_, audit) = gateway.api("GET", "/api/audit", None);
    let events: Vec<&str> =
        audit["entries"].as_array().unwrap().iter().map(|entry| entry["event"].as_str().unwrap()).collect();
    for event in ["standing_rule_created", "standing_rule_used", "standing_rule_revoked"] {
        assert!(events.contains(&event), "{events:?}");
    }
}

#[test]
fn policy_test_works_without_a_gateway() {
    let upstreams = r#"
mcpServers:
  files: { command: /nonexistent/server, args: [], tools: { deny: ["secret_*"] } }
  trusted: { command: /nonexistent/other, args: [], trust_annotations: true }
"#;
    let config = format!("{RULES}{upstreams}");
    let home = tempfile::tempdir().unwrap();
    let (file, data) = (home.path().join("countersign.yaml"), home.path().join("data"));
    std::fs::write(&file, &config).unwrap();
    let ask = |arguments: &[&str]| {
        let mut all = vec!["policy", "test", "--config", file.to_str().unwrap(), "--data", data.to_str().unwrap()];
        all.extend(arguments);
        support::run(&all)
    };
    let (code, out, err) = ask(&["create_issue", "--arguments", r#"{"type": "Story"}"#]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.starts_with("review  tracker / create_issue\n") && out.contains("2 approvals by leads"), "{out}");
    assert!(out.contains("not known   there is no store yet") && err.contains("No gateway runs on"), "{out}{err}");
    assert!(!data.exists(), "it only looks");
    let (code, out, _) = ask(&["files__read", "--json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &answer["verdict"], &answer["server"]), (Some(0), &json!("review"), &json!("files")), "{answer}");
    assert!(
        answer["unknown"][1].as_str().unwrap().contains("no definition of this server was ever pinned"),
        "{answer}"
    );
    assert!(ask(&["trusted__read"]).1.contains("which would count (trust_annotations)"));
    let (code, _, err) = ask(&["files__secret_key"]);
    assert!(code == Some(1) && err.contains("tools.deny"), "{err}");
    let (code, _, err) = ask(&["nothing"]);
    assert!(code == Some(1) && err.contains("there is no tool nothing"), "{err}");

    // Reviewers' decisions are in the store.
    let options = Options { config: Some(&config), ..Options::default() };
    let gateway = Gateway::on_home(home, &options);
    let key = gateway.reviewer().to_owned();
    let id = gateway.propose("Never");
    let deny = ["changes", "rule", &id, "--deny", "--any-arguments", "--comment", "not these"];
    run_cli(&gateway, &key, &deny);
    let output = run_cli(&gateway, &key, &["policy", "test", "create_issue"]);
    let (_, home) = gateway.stop();
    let data = home.path().join("data");
    let config = home.path().join("countersign.yaml");
    let (code, out, err) = support::run(&[
        "policy",
        "test",
        "create_issue",
        "--config",
        config.to_str().unwrap(),
        "--data",
        data.to_str().unwrap(),
    ]);
    assert_eq!((code, out.as_str()), (Some(0), output.as_str()), "as with a gateway: {err}");
    assert!(out.starts_with("deny") && out.contains("decided by  standing rule srl_"), "{out}");
    drop(home);
}

#[test]
fn policy_test_without_gateway_uses_the_stricter_policy() {
    let strict = Options { config: Some("policy: { default: review_all }\n"), ..Options::default() };
    let (_, home) = Gateway::with_options(&strict).stop();
    let (file, data) = (home.path().join("countersign.yaml"), home.path().join("data"));
    std::fs::write(&file, "policy: { default: allow }\n").unwrap();
    let place = ["--config", file.to_str().unwrap(), "--data", data.to_str().unwrap()];
    let (code, out, err) = support::run(&[&["policy", "test", "create_issue"] as &[&str], &place].concat());
    assert!(code == Some(0) && out.starts_with("review  tracker / create_issue\n"), "{code:?} {out}{err}");
    assert!(out.contains("consents to what the file loosens (policy.default)"), "{out}");
}

const RULES: &str = "
policy:
  groups: { leads: [alice, bob] }
  review: { require_comment: true }
  rules:
    - { name: stories, tools: create_issue, when: 'arguments.type == \"Story\"', then: review, reviewers: [leads],
        quorum: 2, edit: forbidden, expire_after: 2h, on_expiry: reject, undo_for: 10s }
    - { name: nothing-else, tools: create_issue, then: deny, reason: only stories }
";

#[test]
fn policy_test_names_rule_and_review_terms() {
    let gateway = Gateway::with_options(&Options { config: Some(RULES), ..Options::default() });
    let key = gateway.reviewer().to_owned();
    let shown = run_cli(&gateway, &key, &["policy", "test", "create_issue", "--arguments", r#"{"type": "Story"}"#]);
    for line in [
        "review  tracker / create_issue",
        "decided by  stories",
        "2 approvals by leads",
        "expires after 2h",
        "rejected when it expires",
        "with a comment",
        "arguments may not be edited",
        "may be undone for 10s",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let denied = run_cli(&gateway, &key, &["policy", "test", "create_issue", "--arguments", r#"{"type": "Bug"}"#]);
    assert!(denied.starts_with("deny") && denied.contains("because     only stories"), "{denied}");
    let (code, _, err) = cli(&gateway, &key, &["policy", "test", "no_such_tool"]);
    assert!(code == Some(1) && err.contains("TOOL_NOT_FOUND"), "{code:?} {err}");

    // A change keeps the terms of its rule.
    let id = gateway.propose("Two of them");
    let terms = gateway.change(&id)["terms"].clone();
    assert_eq!((&terms["quorum"], &terms["reviewers"]), (&json!(2), &json!(["leads"])), "{terms}");
    // A standing rule does not replace two people.
    let comment = ["--comment", "fine"];
    let rule = [&["changes", "rule", &id, "--allow-for", "1h"], comment.as_slice()].concat();
    let (code, _, err) = cli(&gateway, &key, &rule);
    assert!(code == Some(5) && err.contains("several approvals"), "{code:?} {err}");
    let carol = gateway.create_key("reviewer", "carol");
    let (code, _, err) = cli(&gateway, &carol, &rule);
    assert!(code == Some(5) && err.contains("other reviewers"), "{code:?} {err}");
}

#[test]
fn rule_for_agents_does_not_hold_for_changes_of_reviewers() {
    let config = "policy: { rules: [{ tools: create_issue, roles: [agent], then: deny }] }\n";
    let gateway = Gateway::with_options(&Options { config: Some(config), ..Options::default() });
    let propose = |role: &str| {
        let bearer = format!("Bearer {}", gateway.create_key(role, role));
        let body = story(&gateway, role).to_string();
        gateway.request("POST", "/tools/create_issue", &[mcp::JSON, ("Authorization", &bearer)], body.as_bytes()).json()
    };
    assert_eq!(propose("agent")["code"], "POLICY_DENIED");
    let proposed = propose("reviewer");
    let id = proposed["structuredContent"]["changeId"].as_str().unwrap_or_else(|| panic!("{proposed}"));
    let change = gateway.change(id);
    assert_eq!(change["proposer"]["role"], "reviewer", "{change}");
    let edit = json!({ "arguments": story(&gateway, "Edited"), "version": change["version"] });
    let (status, edited) = gateway.api("POST", &format!("/api/changes/{id}/edit"), Some(&edit));
    assert_eq!((status, &edited["state"]), (200, &json!("pending")), "{edited}");
    let bob = gateway.create_key("reviewer", "bob");
    run_cli(&gateway, &bob, &["changes", "approve", id]);
    assert_eq!(gateway.issues_titled("Edited"), 1);
}

#[test]
fn simulated_policy_allows_and_counts() {
    let config = "policy: { mode: simulate, default: deny }\n";
    let gateway = Gateway::with_options(&Options { config: Some(config), ..Options::default() });
    assert!(gateway.log().contains("policy.mode is simulate"), "{}", gateway.log());
    assert_eq!(outcome(&gateway, &story(&gateway, "At once")), "done");
    assert_eq!(gateway.issues_titled("At once"), 1);
    let metrics = gateway.request("GET", "/metrics", &[], b"").text();
    let counted = metrics.lines().find(|l| l.starts_with("countersign_policy_simulated_total{verdict=\"deny\"}"));
    let count: u32 = counted.unwrap_or_else(|| panic!("{metrics}")).rsplit(' ').next().unwrap().parse().unwrap();
    assert!(count >= 3, "each call: {count}");
    let info = gateway.request("GET", "/info", &[], b"").json();
    assert_eq!((&info["policy"], &info["policyMode"]), (&json!("deny"), &json!("simulate")), "{info}");
    let key = gateway.reviewer().to_owned();
    let output = run_cli(&gateway, &key, &["policy", "test", "create_issue"]);
    assert!(output.starts_with("deny") && output.contains("the call would go through"), "{output}");
}

//! Tests of editing the rules of the policy over REST.

use super::*;

const POLICY: &str = "# mine\ndashboard: { edit: on }\npolicy:\n  rules:\n    # Not by hand.\n    - { name: no-writes, tools: \"wri*\", then: deny }\n";

#[actix::test]
async fn admin_edits_rules_after_a_dry_run() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(POLICY).await;
    endpoints.offer_write();
    let key = endpoints.key("root", Role::Admin);
    let change = endpoints.propose_by("ci").await;
    let file = endpoints.get("/api/policy/file", &key).await.json();
    assert_eq!((&file["editing"], &file["mayEdit"]), (&json!("on"), &json!(true)));
    assert_eq!(file["rules"], json!([{ "name": "no-writes", "tools": "wri*", "then": "deny" }]));
    let version = &file["version"];
    let edit = async |key: &str, rules: Value, preview: bool| {
        let body = json!({ "version": version, "rules": rules, "preview": preview });
        endpoints.edit("PUT", "/api/policy/rules", key, &body).await
    };
    let rules = json!([{ "settings": { "name": "task", "tools": "other", "then": "allow" } }, { "kept": 0 }]);
    let reviewer = endpoints.key("alice", Role::Reviewer);
    assert_eq!(edit(&reviewer, rules.clone(), true).await.problem(403), "FORBIDDEN");
    for invalid in [
        json!([{}]),
        json!([{ "kept": 0, "settings": {} }]),
        json!([{ "kept": 9 }]),
        json!([{ "settings": { "then": "maybe" } }]),
    ] {
        assert_eq!(edit(&key, invalid.clone(), true).await.problem(422), "VALIDATION_FAILED", "{invalid}");
    }

    // The policy in force in this test reviews writes, so the rule of the file would deny the recorded call.
    let preview = edit(&key, rules.clone(), true).await.json();
    assert_eq!((&preview["saved"], endpoints.config_file().as_str()), (&json!(false), POLICY));
    assert!(preview["yaml"].as_str().unwrap().contains("{ name: task, tools: other, then: allow }"), "{preview}");
    let dry_run = &preview["dryRun"];
    assert_eq!((&dry_run["compared"], &dry_run["differing"]), (&json!(1), &json!(1)), "{dry_run}");
    assert_eq!(
        dry_run["differences"][0],
        json!({
            "change": { "id": change.id, "state": "pending", "summary": change.summary, "createdAt": change.created_at },
            "before": { "verdict": "review", "rule": null }, "after": { "verdict": "deny", "rule": "no-writes" },
        })
    );

    let saved = edit(&key, rules.clone(), false).await;
    assert_eq!((saved.status, &saved.json()["saved"]), (200, &json!(true)), "{saved:?}");
    let text = endpoints.config_file();
    let expected = "    - { name: task, tools: other, then: allow }\n    # Not by hand.\n    - { name: no-writes, tools: \"wri*\", then: deny }\n";
    assert!(text.starts_with("# mine\n") && text.ends_with(expected), "{text}");
    assert_eq!(edit(&key, rules, false).await.problem(409), "VERSION_CONFLICT");
    endpoints.close().await;
}

//! Tests of the policy that the store keeps over a restart, and of its comparison with the file at the next start.

use super::{super::pending::ConfigLineOp, *};

fn keys(all: &[Loosening]) -> Vec<&str> {
    all.iter().map(|loosening| loosening.key.as_str()).collect()
}

const LOOSER: &str = "mcpServers: { a: { command: x, trust_annotations: true }, b: { command: y } }\n\
                      policy: { default: allow, rules: [{ tools: 'get_*', then: allow }] }\n";

#[tokio::test]
async fn pending_changes_survive_restart_until_consent() {
    let strict = "mcpServers: { a: { command: x }, b: { command: y } }\n\
                  policy: { default: review_all, rules: [{ tools: del, then: deny, reason: no }] }\n";
    let gateway = TestGateway::new(strict);
    gateway.reloader.record_start().await.unwrap();
    gateway.reload(LOOSER).await;
    let digest = gateway.digest();
    let before = gateway.reloader.config();
    let gateway = gateway.restart_with(LOOSER).await;
    let status = gateway.reloader.status();
    let waiting = status.waiting.unwrap();
    assert_eq!(waiting.digest, digest);
    assert_eq!(
        keys(&waiting.loosenings),
        ["policy.default", "policy.rules", "policy.rules", "mcpServers.a.trust_annotations"]
    );
    assert_eq!(
        (&gateway.reloader.config().policy, &gateway.reloader.config().upstreams),
        (&before.policy, &before.upstreams)
    );
    // People see what is in force and what is pending.
    let settings = gateway.reloader.settings();
    let default = settings.iter().find(|setting| setting.key == "policy.default").unwrap();
    assert_eq!((default.value.as_str(), default.source.as_str()), ("review_all", "what was in force before"));
    let content = waiting.content.iter().find(|setting| setting.key == "policy.default").unwrap();
    let lines: Vec<_> = content.lines.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(lines, ["review_all", "allow"]);
    // The file is read once more when watching begins.
    gateway.reloader.reload(ReloadCause::File).await;
    assert_eq!(gateway.digest(), digest);
    gateway.reloader.decide(&digest, true, "alice").await.unwrap();
    assert_eq!(gateway.default(), PolicyDefault::Allow);
    let gateway = gateway.restart_with(LOOSER).await;
    assert!(gateway.reloader.status().waiting.is_none());
    assert_eq!(gateway.default(), PolicyDefault::Allow);
}

#[tokio::test]
async fn predicted_start_equals_the_real_start() {
    let strict = "mcpServers: { a: { command: x }, b: { command: y } }\npolicy: { default: review_all }\n";
    let gateway = TestGateway::new(strict);
    gateway.reloader.record_start().await.unwrap();
    let last = gateway.log.store.lock().newest.clone();
    let gateway = gateway.restart_with(LOOSER).await;
    let configured = load(&gateway.reloader.source.flags, &gateway.reloader.source.env).unwrap().config;
    let (predicted, held_back) = predict_initial_config(&configured, last.as_ref());
    assert_eq!(predicted, *gateway.reloader.config());
    assert_eq!(keys(&held_back), keys(&gateway.reloader.status().waiting.unwrap().loosenings));
    assert_eq!(predict_initial_config(&configured, None), (configured.clone(), vec![]));
}

#[tokio::test]
async fn new_issuer_of_tokens_waits_for_consent() {
    let issuers = |list: &str| format!("public_url: https://gw.example\nauth: {{ tokens: [{list}] }}\n");
    let accepted = |gateway: &TestGateway| {
        let tokens = &gateway.reloader.config().auth.tokens;
        tokens.iter().map(|issuer| (issuer.issuer.clone(), issuer.roles.len())).collect::<Vec<_>>()
    };
    let gateway = TestGateway::new(&issuers(""));
    gateway.reloader.record_start().await.unwrap();
    let with_secret = "{ issuer: https://a, introspection: { client_id: a, client_secret: '${TOKEN}' } }";
    gateway.reload(&issuers(with_secret)).await;
    assert_eq!(accepted(&gateway), []);
    let waiting = gateway.reloader.status().waiting.unwrap();
    assert_eq!(
        (keys(&waiting.loosenings), waiting.loosenings[0].from.as_str()),
        (vec!["auth.tokens"], "no such issuer")
    );
    let gateway = gateway.restart_with(&issuers(with_secret)).await;
    assert_eq!(accepted(&gateway), []);
    let digest = gateway.reloader.status().waiting.unwrap().digest;
    gateway.reloader.decide(&digest, true, "alice").await.unwrap();
    assert_eq!(accepted(&gateway), [("https://a".to_owned(), 0)]);
    assert!(gateway.log.actions.lock().contains(&"issuers https://a".to_owned()));
    // What was consented to is known at the next start, and more of it waits again.
    let gateway = gateway.restart_with(&issuers(with_secret)).await;
    assert!(gateway.reloader.status().waiting.is_none());
    assert_eq!(accepted(&gateway), [("https://a".to_owned(), 0)]);
    let with_role = issuers("{ issuer: https://a, roles: { ops: admin } }");
    gateway.reload(&with_role).await;
    assert_eq!(accepted(&gateway), [("https://a".to_owned(), 0)]);
    // The removal of an issuer takes effect at once.
    gateway.reload(&issuers("")).await;
    assert_eq!(accepted(&gateway), []);
    assert!(gateway.reloader.status().waiting.is_none());
}

#[tokio::test]
async fn stricter_issuer_is_in_force_and_its_reversal_waits() {
    let issuers = |roles: &str| {
        format!("public_url: https://gw.example\nauth: {{ tokens: [{{ issuer: https://a, roles: {{ {roles} }} }}] }}\n")
    };
    let roles = |gateway: &TestGateway| gateway.reloader.config().auth.tokens[0].roles.len();
    let gateway = TestGateway::new(&issuers("ops: admin, dev: viewer"));
    gateway.reload(&issuers("ops: admin")).await;
    assert_eq!(roles(&gateway), 1);
    assert!(gateway.reloader.status().waiting.is_none());
    gateway.reload(&issuers("ops: admin, dev: viewer")).await;
    assert_eq!(roles(&gateway), 1);
    assert_eq!(keys(&gateway.reloader.status().waiting.unwrap().loosenings), ["auth.tokens"]);
}

#[tokio::test]
async fn refusal_survives_restart_of_the_same_file() {
    let gateway = TestGateway::new("policy: { default: deny }");
    gateway.reloader.record_start().await.unwrap();
    gateway.reload("policy: { default: allow }").await;
    gateway.reloader.decide(&gateway.digest(), false, "alice").await.unwrap();
    let gateway = gateway.restart_with("policy: { default: allow }").await;
    gateway.reloader.reload(ReloadCause::File).await;
    assert!(gateway.reloader.status().waiting.is_none());
    assert_eq!(gateway.default(), PolicyDefault::Deny);
    let settings = gateway.reloader.settings();
    let default = settings.iter().find(|setting| setting.key == "policy.default").unwrap();
    assert_eq!((default.value.as_str(), keys(&default.refused)), ("deny", vec!["policy.default"]));
    let gateway = gateway.restart_with("policy: { default: allow }").await;
    // A SIGHUP asks for the decision again.
    gateway.reloader.reload(ReloadCause::Signal).await;
    assert!(gateway.reloader.status().waiting.is_some());
    let gateway = gateway.restart_with("policy: { default: review_all }").await;
    assert_eq!(keys(&gateway.reloader.status().waiting.unwrap().loosenings), ["policy.default"]);
    assert_eq!(gateway.default(), PolicyDefault::Deny);
}

#[tokio::test]
async fn start_compares_file_with_last_policy() {
    // At the first start no earlier policy is known.
    let gateway = TestGateway::new("policy: { default: allow }");
    gateway.reloader.record_start().await.unwrap();
    assert_eq!(gateway.default(), PolicyDefault::Allow);
    // Stricter changes take effect, whether a gateway ran or not, and so do neutral ones.
    let gateway =
        gateway.restart_with("policy: { default: deny }\nmcpServers: { s: { url: 'https://a.example' } }").await;
    assert_eq!(gateway.default(), PolicyDefault::Deny);
    let gateway = gateway.restart_with("policy: { default: deny }\nlimits: { max_batch: 9 }").await;
    assert_eq!((gateway.reloader.config().limits.max_batch, gateway.reloader.status().waiting.is_none()), (9, true));
    // The way back loosens policy.
    let gateway = gateway.restart_with("policy: { default: allow }").await;
    assert_eq!((gateway.default(), gateway.reloader.status().waiting.is_some()), (PolicyDefault::Deny, true));
    // The operator may accept it.
    let store = gateway.log.store.lock().clone();
    let gateway = TestGateway::start(gateway.dir, store, true);
    gateway.reloader.record_start().await.unwrap();
    assert_eq!((gateway.default(), gateway.reloader.status().waiting.is_none()), (PolicyDefault::Allow, true));
    assert_eq!(gateway.take_actions().0, texts(&["record configuration_started operator 1"]));
    let gateway = gateway.restart_with("policy: { default: allow }").await;
    assert_eq!((gateway.default(), gateway.take_actions().0), (PolicyDefault::Allow, vec![]));
}

#[tokio::test]
async fn unreadable_policy_is_recorded_and_locks_nobody_out() {
    let strict = "policy: { default: deny, mode: enforce }\nmcpServers: { a: { command: x } }";
    let loose =
        "policy: { default: allow, mode: simulate }\nmcpServers: { a: { command: x, trust_annotations: true } }";
    let (policy, server) = (["policy.mode", "policy.default"], "mcpServers.a.trust_annotations");
    // Each kind of damage is followed by the changes that are still pending. A key of another version hides neither the
    // other keys nor the servers.
    type Damage = fn(&str) -> String;
    let cases: [(Damage, Vec<&str>); 3] = [
        (
            |body| body.replacen("{\"policy\":{", "{\"policy\":{\"policy.new\":\"1\",", 1),
            [&policy[..], &[server]].concat(),
        ),
        (|body| body.replacen("\"policy.default\":\"deny\"", "\"policy.default\":\"other\"", 1), vec![server]),
        (|_| "no JSON".to_owned(), vec![]),
    ];
    for (change, expected) in cases {
        let gateway = TestGateway::new(strict);
        gateway.reloader.record_start().await.unwrap();
        let changed = {
            let mut store = gateway.log.store.lock();
            let body = &mut store.own.as_mut().unwrap().body;
            let before = std::mem::take(body);
            *body = change(&before);
            *body != before
        };
        assert!(changed);
        let gateway = gateway.restart_with(loose).await;
        let waiting = gateway.reloader.status().waiting;
        let loosenings = waiting.map_or(Vec::new(), |waiting| waiting.loosenings);
        let mut pending_keys: Vec<String> = loosenings.into_iter().map(|loosening| loosening.key).collect();
        pending_keys.sort();
        let mut expected = texts(&expected);
        expected.sort();
        assert_eq!(pending_keys, expected);
        assert_eq!(gateway.take_actions().0, texts(&["record configuration_started system 0"]));
        // From then on the policy is known again.
        let gateway = gateway.restart_with(loose).await;
        assert_eq!(gateway.take_actions().0, texts(&[]));
    }
}

#[tokio::test]
async fn server_with_unknown_target_waits_for_consent() {
    let gateway = TestGateway::new("mcpServers: { a: { command: x, env: { T: '${TOKEN}' }, tools: { deny: [z] } } }");
    gateway.reloader.record_start().await.unwrap();
    let own = "mcpServers: { a: { command: y, allow_own_files: true, tools: { deny: [z] } }, b: { command: y } }";
    gateway.reload(own).await;
    assert_eq!(gateway.reloader.config().upstreams.len(), 2, "the running server continues");
    let gateway = gateway.restart_with(own).await;
    let names = |gateway: &TestGateway| {
        let config = gateway.reloader.config();
        config.upstreams.iter().map(|one| one.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&gateway), ["b"]);
    assert_eq!(keys(&gateway.reloader.status().waiting.unwrap().loosenings), ["mcpServers.a.allow_own_files"]);
    let saved = gateway.log.store.lock().own.clone().unwrap();
    assert!(!format!("{saved:?}").contains("s3cret"), "{saved:?}");
    // The earlier denials of the server are not forgotten, however often the gateway restarts.
    let gateway = gateway.restart_with(own).await;
    gateway.reload("mcpServers: { a: { command: y }, b: { command: y } }").await;
    assert_eq!(keys(&gateway.reloader.status().waiting.unwrap().loosenings), ["mcpServers.a.tools.deny"]);
    assert_eq!(gateway.reloader.config().upstreams[0].tools_deny, ["z"]);
}

#[tokio::test]
async fn trusted_server_with_changed_env_waits_after_restart() {
    let with = |value: &str| {
        [
            format!("mcpServers: {{ a: {{ command: x, env: {{ MODE: {value} }}, trust_annotations: true }} }}"),
            format!(
                "mcpServers: {{ a: {{ url: 'https://a.example', headers: {{ Tenant: {value} }}, \
                 trust_annotations: true }} }}"
            ),
        ]
    };
    for (old, new) in with("one-value").into_iter().zip(with("two-value")) {
        let gateway = TestGateway::new(&old);
        gateway.reloader.record_start().await.unwrap();
        let trusted = |gateway: &TestGateway| gateway.reloader.config().upstreams[0].trust_annotations;
        let gateway = gateway.restart_with(&old).await;
        assert!(trusted(&gateway) && gateway.reloader.status().waiting.is_none());
        let gateway = gateway.restart_with(&new).await;
        assert!(!trusted(&gateway));
        assert_eq!(keys(&gateway.reloader.status().waiting.unwrap().loosenings), ["mcpServers.a.trust_annotations"]);
        // A refused change stays refused.
        gateway.reloader.decide(&gateway.digest(), false, "alice").await.unwrap();
        let gateway = gateway.restart_with(&new).await;
        assert!(!trusted(&gateway) && gateway.reloader.status().waiting.is_none());
        let saved = format!("{:?}", gateway.log.store.lock());
        assert!(!saved.contains("two-value"), "{saved}");
    }
}

#[tokio::test]
async fn rule_keeps_inherited_terms_over_restart() {
    let policy = |review: &str, rule: &str| {
        format!("policy: {{ review: {{ {review} }}, rules: [{{ name: a, tools: one, then: review{rule} }}] }}")
    };
    let quorums = |gateway: &TestGateway| {
        let policy = &gateway.reloader.config().policy;
        (policy.review.quorum, policy.rules[0].terms.quorum)
    };
    let gateway = TestGateway::new(&policy("quorum: 1, require_comment: true", ""));
    gateway.reloader.record_start().await.unwrap();
    // The review is pending as a whole; the rule, which inherits its higher quorum, is not.
    gateway.reload(&policy("quorum: 3, require_comment: false", ", require_comment: true")).await;
    assert_eq!(keys(&gateway.reloader.status().waiting.unwrap().loosenings), ["policy.review"]);
    assert_eq!(quorums(&gateway), (1, 3));
    let gateway =
        gateway.restart_with(&policy("quorum: 3, require_comment: false", ", require_comment: true, quorum: 1")).await;
    assert_eq!(keys(&gateway.reloader.status().waiting.unwrap().loosenings), ["policy.review", "policy.rules"]);
    assert_eq!(quorums(&gateway), (1, 3));
}

#[tokio::test]
async fn stricter_rules_survive_restart_while_review_waits() {
    let policy = |quorum: u32, rules: &str| format!("policy: {{ review: {{ quorum: {quorum} }}, rules: [{rules}] }}");
    let allow = "{ tools: one, then: allow }";
    let gateway = TestGateway::new(&policy(2, allow));
    gateway.reloader.record_start().await.unwrap();
    gateway.reload(&policy(1, &format!("{allow}, {{ tools: two, then: deny }}"))).await;
    assert_eq!(keys(&gateway.reloader.status().waiting.unwrap().loosenings), ["policy.review"]);
    // What the rule allows is reviewed if the tool is new.
    assert_eq!(gateway.reloader.config().policy.rules[0].terms.quorum, 2);
    let gateway = gateway.restart_with(&policy(2, allow)).await;
    assert_eq!(keys(&gateway.reloader.status().waiting.unwrap().loosenings), ["policy.rules"]);
    // A refused change stays refused.
    gateway.reload(&policy(1, allow)).await;
    gateway.reloader.decide(&gateway.digest(), false, "alice").await.unwrap();
    let gateway = gateway.restart_with(&policy(1, allow)).await;
    assert!(gateway.reloader.status().waiting.is_none());
}

#[tokio::test]
async fn moved_rule_survives_restart_in_both_places() {
    let [denying, allowing] = ["{ name: a, tools: one, then: deny }", "{ name: b, tools: '*', then: allow }"];
    let policy = |rules: [&str; 2]| format!("policy: {{ rules: [{}] }}", rules.join(", "));
    let gateway = TestGateway::new(&policy([denying, allowing]));
    gateway.reloader.record_start().await.unwrap();
    gateway.reload(&policy([allowing, denying])).await;
    let labels = |gateway: &TestGateway| -> Vec<String> {
        gateway.reloader.config().policy.rules.iter().map(|rule| rule.label.to_string()).collect()
    };
    assert_eq!(labels(&gateway), ["a", "b", "a (2)"]);
    let gateway = gateway.restart_with(&policy([allowing, denying])).await;
    assert_eq!(labels(&gateway), ["a", "b", "a (2)"]);
    assert_eq!(keys(&gateway.reloader.status().waiting.unwrap().loosenings), ["policy.rules"]);
}

#[tokio::test]
async fn moved_store_keeps_policy_but_asks_for_salted_values() {
    let gateway =
        TestGateway::new("policy: { default: deny }\nmcpServers: { a: { command: x, trust_annotations: true } }");
    gateway.reloader.record_start().await.unwrap();
    let looser = "policy: { default: allow }\nmcpServers: { a: { command: x, trust_annotations: true } }";
    gateway.reload(looser).await;
    gateway.reloader.decide(&gateway.digest(), false, "alice").await.unwrap();
    let newest = gateway.log.store.lock().newest.clone();
    let loaded = load(&gateway.reloader.source.flags, &gateway.reloader.source.env).unwrap();
    let initial = InitialConfig::new(loaded, [8; 16], PolicySnapshots { newest, ..PolicySnapshots::default() }, false);
    assert_eq!(initial.config().policy.default, PolicyDefault::Deny);
    let waiting = initial.state.pending.unwrap().policy;
    assert_eq!(keys(&waiting.loosenings), ["policy.default", "mcpServers.a.trust_annotations"]);
}

#[test]
fn policy_that_would_be_misread_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("c.yaml"), "policy: { review: { quorum: 2 } }").unwrap();
    let flags = Flags { config: Some(dir.path().join("c.yaml")), data: Some("data".into()), ..Flags::default() };
    let loaded = load(&flags, &Environment::new(dir.path(), &[])).unwrap();
    let mut settings = SettingsView::new(&loaded.settings).active_settings(&loaded.config, None, &[]);
    assert!(snapshot::serialize_policy(&settings, &loaded.config, true, &[7; 16]).is_ok());
    for quorum in ["1", "3", "many"] {
        settings.iter_mut().find(|setting| setting.key == "policy.review.quorum").unwrap().value = quorum.to_owned();
        let refused = snapshot::serialize_policy(&settings, &loaded.config, true, &[7; 16]).unwrap_err().to_string();
        assert!(refused.contains(if quorum == "many" { "quorum" } else { "policy.review" }), "{refused}");
    }
}

#[tokio::test]
async fn unsaved_policy_is_saved_later() {
    let gateway = TestGateway::new("policy: { default: allow }");
    gateway.reloader.record_start().await.unwrap();
    gateway.fail_at("save");
    gateway.reload("policy: { default: deny }").await;
    // The store still says that the looser policy is the newest.
    gateway.reload("policy: { default: allow }").await;
    assert_eq!((gateway.default(), gateway.reloader.status().waiting.is_some()), (PolicyDefault::Deny, true));
    gateway.fail_at("");
    gateway.reloader.retry_save().await;
    let gateway = gateway.restart_with("policy: { default: allow }").await;
    assert_eq!((gateway.default(), gateway.reloader.status().waiting.is_some()), (PolicyDefault::Deny, true));
}

#[tokio::test]
async fn consent_at_another_gateway_counts_here() {
    let gateway = TestGateway::new("policy: { default: deny }");
    gateway.reloader.record_start().await.unwrap();
    let other = TestGateway::new("policy: { default: deny }");
    other.reload("policy: { default: allow }").await;
    other.reloader.decide(&other.digest(), true, "alice").await.unwrap();
    let consented = other.log.store.lock().newest.clone();
    // Before the file arrives here, and before the next start.
    gateway.log.store.lock().newest.clone_from(&consented);
    let gateway = gateway.restart_with("policy: { default: allow }").await;
    assert_eq!((gateway.default(), gateway.reloader.status().waiting.is_none()), (PolicyDefault::Allow, true));
    let gateway = gateway.restart_with("policy: { default: deny }").await;
    gateway.log.store.lock().newest = consented;
    gateway.reload("policy: { default: allow }").await;
    assert_eq!((gateway.default(), gateway.reloader.status().waiting.is_none()), (PolicyDefault::Allow, true));
}

#[tokio::test]
async fn identity_provider_with_consent_elsewhere_counts_here() {
    const WITH_IDENTITY_PROVIDER: &str = "public_url: https://gw.example\n\
        auth: { oidc: { issuer: https://id, client_id: c, roles: { a: viewer } }, tokens: [{ issuer: https://id }] }\n";
    let without = "public_url: https://gw.example\n";
    let (gateway, other) = (TestGateway::new(without), TestGateway::new(without));
    gateway.reloader.record_start().await.unwrap();
    other.reload(WITH_IDENTITY_PROVIDER).await;
    other.reloader.decide(&other.digest(), true, "alice").await.unwrap();
    gateway.log.store.lock().newest = other.log.store.lock().newest.clone();
    gateway.reload(WITH_IDENTITY_PROVIDER).await;
    let auth = gateway.reloader.config().auth.clone();
    assert_eq!((auth.oidc.is_some(), auth.tokens.len()), (true, 1));
    assert!(gateway.reloader.status().waiting.is_none());
}

#[tokio::test]
async fn operations_are_told_apart_over_restart() {
    let with = |previews: &str| format!("mcpServers: {{ a: {{ command: x, previews: {previews} }} }}");
    let own = |summary: &str, operations: &str| {
        with(&format!("{{ run: {{ operation: arguments.op, summary: {summary}, operations: {{ {operations} }} }} }}"))
    };
    let operations = |gateway: &TestGateway| {
        let recipe = gateway.reloader.config().upstreams[0].previews.get("run").cloned();
        recipe.and_then(|recipe| recipe.dispatcher).map(|dispatcher| dispatcher.operations.into_keys().collect())
    };
    let known = |names: &[&str]| Some(texts(names));
    let changes = [
        (own("other", "Get: {}, Delete: {}"), known(&["Delete", "Get"])),
        (own("one", "Get: {}, Post: {}"), known(&["Get"])),
        (with("none"), known(&["Delete", "Get"])),
    ];
    for (changed, expected) in changes {
        let gateway = TestGateway::new(&own("one", "Get: {}, Delete: {}"));
        gateway.reloader.record_start().await.unwrap();
        let mut gateway = gateway.restart_with(&changed).await;
        // What waits is still told apart after further restarts.
        for _ in 0..2 {
            assert_eq!(
                keys(&gateway.reloader.status().waiting.unwrap().loosenings),
                ["mcpServers.a.previews"],
                "{changed}"
            );
            assert_eq!(operations(&gateway), expected, "{changed}");
            gateway = gateway.restart_with(&changed).await;
        }
        gateway.reloader.decide(&gateway.digest(), true, "alice").await.unwrap();
        let gateway = gateway.restart_with(&changed).await;
        assert!(gateway.reloader.status().waiting.is_none());
    }
    // Operations are told apart before the recipe that names them is consented to.
    let gateway = TestGateway::new(&with("none"));
    gateway.reload(&own("one", "Get: {}")).await;
    assert!(gateway.reloader.status().waiting.is_some());
    assert_eq!(operations(&gateway), known(&[]));
}

#[tokio::test]
async fn named_set_waits_even_if_it_was_recognized_before() {
    let with = |previews: &str| {
        format!("mcpServers: {{ a: {{ command: uvx, args: [mcp-server-sqlite], previews: {previews} }} }}")
    };
    let gateway = TestGateway::new(&with("auto"));
    gateway.reloader.record_start().await.unwrap();
    let trusted_tools = |gateway: &TestGateway| gateway.reloader.config().upstreams[0].previews.trusted_tools();
    gateway.reload(&with("sqlite")).await;
    let waiting = gateway.reloader.status().waiting.unwrap();
    assert_eq!(keys(&waiting.loosenings), ["mcpServers.a.previews"]);
    let Loosening { from, to, .. } = &waiting.loosenings[0];
    assert_eq!((from.as_str(), to.as_str()), ("no recipe that needs consent", "create_table (sql); write_query (sql)"));
    assert!(trusted_tools(&gateway).is_empty());
    let gateway = gateway.restart_with(&with("auto")).await;
    assert!(gateway.reloader.status().waiting.is_none());
    let gateway = gateway.restart_with(&with("sqlite")).await;
    assert!(trusted_tools(&gateway).is_empty());
    gateway.reloader.decide(&gateway.digest(), true, "alice").await.unwrap();
    let gateway = gateway.restart_with(&with("sqlite")).await;
    assert_eq!(trusted_tools(&gateway), ["create_table", "write_query"]);
    assert!(gateway.reloader.status().waiting.is_none());
}

#[tokio::test]
async fn changed_sql_recipe_is_shown_with_its_confirmation() {
    let with = |confirm: &str| {
        let sql = "sql: { dialect: postgres, statement: arguments.sql, query: { tool: execute_sql, argument: sql } }";
        let summary = "x".repeat(500);
        format!(
            "mcpServers: {{ a: {{ command: x, previews: {{ run_sql: {{ summary: {summary}, {sql}{confirm} }} }} }} }}"
        )
    };
    let confirm = |answer: &str| format!(", confirm: {{ question: Sure, answer: {{ sure: {answer} }} }}");
    let shown = |gateway: &TestGateway| {
        let waiting = gateway.reloader.status().waiting.unwrap();
        let Loosening { key, from, to } = waiting.loosenings[0].clone();
        assert_eq!((waiting.loosenings.len(), key.as_str()), (1, "mcpServers.a.previews"));
        let lines = waiting.content.into_iter().flat_map(|content| content.lines);
        let changed = lines.filter(|line| line.op != ConfigLineOp::Same).map(|line| line.text.trim().to_owned());
        ((from, to), changed.collect::<Vec<_>>())
    };
    let gateway = TestGateway::new(&with(""));
    gateway.reloader.record_start().await.unwrap();
    gateway.reload(&with(&confirm("arguments.yes"))).await;
    let line = |answer: &str| format!("confirm: {{ question: Sure, answer: {{ sure: {answer} }} }}");
    let change = ("run_sql (sql)".to_owned(), "run_sql (confirm, sql, changed)".to_owned());
    assert_eq!(shown(&gateway), (change, vec![line("arguments.yes")]));
    gateway.reloader.decide(&gateway.digest(), true, "alice").await.unwrap();
    gateway.reload(&with(&confirm("arguments.no"))).await;
    let change = ("run_sql (confirm, sql)".to_owned(), "run_sql (confirm, sql, changed)".to_owned());
    assert_eq!(shown(&gateway), (change, vec![line("arguments.yes"), line("arguments.no")]));
    // After a restart, the earlier recipe is not known.
    let gateway = gateway.restart_with(&with(&confirm("arguments.no"))).await;
    let change = ("run_sql".to_owned(), "run_sql (confirm, sql, changed)".to_owned());
    assert_eq!(shown(&gateway), (change, Vec::new()));
}

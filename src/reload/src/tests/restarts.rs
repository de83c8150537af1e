//! What is kept of the policy in force over a restart, and what a start makes of it.

use super::*;

fn keys(all: &[Loosening]) -> Vec<&str> {
    all.iter().map(|loosening| loosening.key.as_str()).collect()
}

const LOOSER: &str = "mcpServers: { a: { command: x, trust_annotations: true }, b: { command: y } }\n\
                      policy: { default: allow, rules: [{ tools: 'get_*', then: allow }] }\n";

#[tokio::test]
async fn what_waits_waits_after_a_restart_and_consent_ends_it() {
    let strict = "mcpServers: { a: { command: x }, b: { command: y } }\n\
                  policy: { default: review_all, rules: [{ tools: del, then: deny, reason: no }] }\n";
    let case = Case::new(strict);
    case.reloads.begin().await.unwrap();
    case.reload(LOOSER).await;
    let digest = case.digest();
    let before = case.reloads.config();
    let case = case.restarted(LOOSER).await;
    let status = case.reloads.status();
    let waiting = status.waiting.unwrap();
    assert_eq!(waiting.digest, digest);
    assert_eq!(
        keys(&waiting.loosens),
        ["policy.default", "policy.rules", "policy.rules", "mcpServers.a.trust_annotations"]
    );
    assert_eq!((&case.reloads.config().policy, &case.reloads.config().upstreams), (&before.policy, &before.upstreams));
    // People are shown what is in force, and what would be.
    let settings = case.reloads.settings();
    let default = settings.iter().find(|one| one.key == "policy.default").unwrap();
    assert_eq!((default.value.as_str(), default.source.as_str()), ("review_all", "what was in force before"));
    let content = waiting.content.iter().find(|one| one.key == "policy.default").unwrap();
    let lines: Vec<_> = content.lines.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(lines, ["review_all", "allow"]);
    // The file is looked at once more when it is first watched.
    case.reloads.reload(Why::File).await;
    assert_eq!(case.digest(), digest);
    case.reloads.decide(&digest, true, "alice").await.unwrap();
    assert_eq!(case.default(), PolicyDefault::Allow);
    let case = case.restarted(LOOSER).await;
    assert!(case.reloads.status().waiting.is_none());
    assert_eq!(case.default(), PolicyDefault::Allow);
}

#[tokio::test]
async fn a_refusal_outlives_a_restart_as_long_as_the_file_is_the_same() {
    let case = Case::new("policy: { default: deny }");
    case.reloads.begin().await.unwrap();
    case.reload("policy: { default: allow }").await;
    case.reloads.decide(&case.digest(), false, "alice").await.unwrap();
    let case = case.restarted("policy: { default: allow }").await;
    case.reloads.reload(Why::File).await;
    assert!(case.reloads.status().waiting.is_none());
    assert_eq!(case.default(), PolicyDefault::Deny);
    let settings = case.reloads.settings();
    let default = settings.iter().find(|one| one.key == "policy.default").unwrap();
    assert_eq!((default.value.as_str(), keys(&default.refused)), ("deny", vec!["policy.default"]));
    let case = case.restarted("policy: { default: allow }").await;
    // Whoever sends the signal wants it looked at.
    case.reloads.reload(Why::Signal).await;
    assert!(case.reloads.status().waiting.is_some());
    let case = case.restarted("policy: { default: review_all }").await;
    assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["policy.default"]);
    assert_eq!(case.default(), PolicyDefault::Deny);
}

#[tokio::test]
async fn a_start_compares_the_file_with_what_was_in_force_last() {
    // At the first start nothing is known.
    let case = Case::new("policy: { default: allow }");
    case.reloads.begin().await.unwrap();
    assert_eq!(case.default(), PolicyDefault::Allow);
    // What tightens is in force, whether a gateway ran or not; and so is what loosens nothing.
    let case = case.restarted("policy: { default: deny }\nmcpServers: { s: { url: 'https://a.example' } }").await;
    assert_eq!(case.default(), PolicyDefault::Deny);
    let case = case.restarted("policy: { default: deny }\nlimits: { max_batch: 9 }").await;
    assert_eq!((case.reloads.config().limits.max_batch, case.reloads.status().waiting.is_none()), (9, true));
    // The way back loosens.
    let case = case.restarted("policy: { default: allow }").await;
    assert_eq!((case.default(), case.reloads.status().waiting.is_some()), (PolicyDefault::Deny, true));
    // The operator may say that it is meant.
    let store = case.notes.store.lock().unwrap().clone();
    let case = Case::on(case.dir, store, true);
    case.reloads.begin().await.unwrap();
    assert_eq!((case.default(), case.reloads.status().waiting.is_none()), (PolicyDefault::Allow, true));
    assert_eq!(case.done().0, texts(&["record configuration_started operator 1"]));
    let case = case.restarted("policy: { default: allow }").await;
    assert_eq!((case.default(), case.done().0), (PolicyDefault::Allow, vec![]));
}

#[tokio::test]
async fn what_cannot_be_read_of_the_policy_in_force_is_put_on_record_and_locks_nobody_out() {
    let strict = "policy: { default: deny, mode: enforce }\nmcpServers: { a: { command: x } }";
    let loose =
        "policy: { default: allow, mode: simulate }\nmcpServers: { a: { command: x, trust_annotations: true } }";
    let (policy, server) = (["policy.mode", "policy.default"], "mcpServers.a.trust_annotations");
    // Each with what still waits. A key of another version hides nothing of the others, nor does the policy hide the servers.
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
        let case = Case::new(strict);
        case.reloads.begin().await.unwrap();
        let changed = {
            let mut store = case.notes.store.lock().unwrap();
            let body = &mut store.here.as_mut().unwrap().body;
            let before = std::mem::take(body);
            *body = change(&before);
            *body != before
        };
        assert!(changed);
        let case = case.restarted(loose).await;
        let mut waits: Vec<String> =
            case.reloads.status().waiting.map_or(vec![], |w| w.loosens.into_iter().map(|one| one.key).collect());
        waits.sort();
        let mut expected = texts(&expected);
        expected.sort();
        assert_eq!(waits, expected);
        assert_eq!(case.done().0, texts(&["record configuration_started system 0"]));
        // From then on it is known again.
        let case = case.restarted(loose).await;
        assert_eq!(case.done().0, texts(&[]));
    }
}

#[tokio::test]
async fn a_server_that_would_go_on_with_what_is_not_known_does_not_run_until_consent() {
    let case = Case::new("mcpServers: { a: { command: x, env: { T: '${TOKEN}' }, tools: { deny: [z] } } }");
    case.reloads.begin().await.unwrap();
    let own = "mcpServers: { a: { command: y, allow_own_files: true, tools: { deny: [z] } }, b: { command: y } }";
    case.reload(own).await;
    assert_eq!(case.reloads.config().upstreams.len(), 2, "it goes on");
    let case = case.restarted(own).await;
    let names = |case: &Case| {
        let config = case.reloads.config();
        config.upstreams.iter().map(|one| one.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&case), ["b"]);
    assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["mcpServers.a.allow_own_files"]);
    let saved = case.notes.store.lock().unwrap().here.clone().unwrap();
    assert!(!format!("{saved:?}").contains("s3cret"), "{saved:?}");
    // What it denied before is not forgotten, however often that goes.
    let case = case.restarted(own).await;
    case.reload("mcpServers: { a: { command: y }, b: { command: y } }").await;
    assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["mcpServers.a.tools.deny"]);
    assert_eq!(case.reloads.config().upstreams[0].tools_deny, ["z"]);
}

#[tokio::test]
async fn a_trusted_server_with_another_value_in_its_environment_or_headers_waits_after_a_restart_too() {
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
        let case = Case::new(&old);
        case.reloads.begin().await.unwrap();
        let trusted = |case: &Case| case.reloads.config().upstreams[0].trust_annotations;
        let case = case.restarted(&old).await;
        assert!(trusted(&case) && case.reloads.status().waiting.is_none());
        let case = case.restarted(&new).await;
        assert!(!trusted(&case));
        assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["mcpServers.a.trust_annotations"]);
        // What a reviewer has refused stays refused.
        case.reloads.decide(&case.digest(), false, "alice").await.unwrap();
        let case = case.restarted(&new).await;
        assert!(!trusted(&case) && case.reloads.status().waiting.is_none());
        let saved = format!("{:?}", case.notes.store.lock().unwrap());
        assert!(!saved.contains("two-value"), "{saved}");
    }
}

#[tokio::test]
async fn a_rule_that_has_its_terms_from_a_review_that_is_held_keeps_them_over_a_restart() {
    let of = |review: &str, rule: &str| {
        format!("policy: {{ review: {{ {review} }}, rules: [{{ name: a, tools: one, then: review{rule} }}] }}")
    };
    let quorums = |case: &Case| {
        let policy = &case.reloads.config().policy;
        (policy.review.quorum, policy.rules[0].terms.quorum)
    };
    let case = Case::new(&of("quorum: 1, require_comment: true", ""));
    case.reloads.begin().await.unwrap();
    // The review waits as a whole, and the rule, which has the higher quorum from it, does not.
    case.reload(&of("quorum: 3, require_comment: false", ", require_comment: true")).await;
    assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["policy.review"]);
    assert_eq!(quorums(&case), (1, 3));
    let case = case.restarted(&of("quorum: 3, require_comment: false", ", require_comment: true, quorum: 1")).await;
    assert_eq!(keys(&case.reloads.status().waiting.unwrap().loosens), ["policy.review", "policy.rules"]);
    assert_eq!(quorums(&case), (1, 3));
}

#[tokio::test]
async fn a_store_that_was_moved_knows_the_policy_and_asks_anew_what_its_salt_was_part_of() {
    let case = Case::new("policy: { default: deny }\nmcpServers: { a: { command: x, trust_annotations: true } }");
    case.reloads.begin().await.unwrap();
    let looser = "policy: { default: allow }\nmcpServers: { a: { command: x, trust_annotations: true } }";
    case.reload(looser).await;
    case.reloads.decide(&case.digest(), false, "alice").await.unwrap();
    let newest = case.notes.store.lock().unwrap().newest.clone();
    let loaded = load(&case.reloads.source.flags, &case.reloads.source.env).unwrap();
    let opening = Opening::new(loaded, [8; 16], PolicySnapshots { newest, ..PolicySnapshots::default() }, false);
    assert_eq!(opening.config().policy.default, PolicyDefault::Deny);
    let (waiting, _) = opening.waiting.unwrap();
    assert_eq!(keys(&waiting.loosens), ["policy.default", "mcpServers.a.trust_annotations"]);
}

#[test]
fn what_would_be_read_back_as_something_else_is_not_written_down() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("c.yaml"), "policy: { review: { quorum: 2 } }").unwrap();
    let flags = Flags { config: Some(dir.path().join("c.yaml")), data: Some("data".into()), ..Flags::default() };
    let loaded = load(&flags, &Environment::of(dir.path(), &[])).unwrap();
    let mut settings = Shown::new(&loaded.settings).in_force(&loaded.settings, &loaded.config, None, &[]);
    assert!(snapshot::body(&settings, &loaded.config, &[7; 16]).is_ok());
    for quorum in ["1", "3", "many"] {
        settings.iter_mut().find(|one| one.key == "policy.review.quorum").unwrap().value = quorum.to_owned();
        let refused = snapshot::body(&settings, &loaded.config, &[7; 16]).unwrap_err().to_string();
        assert!(refused.contains(if quorum == "many" { "quorum" } else { "policy.review" }), "{refused}");
    }
}

#[tokio::test]
async fn what_could_not_be_kept_is_kept_later_and_counts_as_stricter_until_then() {
    let case = Case::new("policy: { default: allow }");
    case.reloads.begin().await.unwrap();
    case.fail("save");
    case.reload("policy: { default: deny }").await;
    // The store still says that the looser one is the newest.
    case.reload("policy: { default: allow }").await;
    assert_eq!((case.default(), case.reloads.status().waiting.is_some()), (PolicyDefault::Deny, true));
    case.fail("");
    case.reloads.save_again().await;
    let case = case.restarted("policy: { default: allow }").await;
    assert_eq!((case.default(), case.reloads.status().waiting.is_some()), (PolicyDefault::Deny, true));
}

#[tokio::test]
async fn what_was_consented_to_at_another_gateway_waits_for_nobody() {
    let case = Case::new("policy: { default: deny }");
    case.reloads.begin().await.unwrap();
    let other = Case::new("policy: { default: deny }");
    other.reload("policy: { default: allow }").await;
    other.reloads.decide(&other.digest(), true, "alice").await.unwrap();
    let agreed = other.notes.store.lock().unwrap().newest.clone();
    // Before the file is here, and before the next start.
    case.notes.store.lock().unwrap().newest.clone_from(&agreed);
    let case = case.restarted("policy: { default: allow }").await;
    assert_eq!((case.default(), case.reloads.status().waiting.is_none()), (PolicyDefault::Allow, true));
    let case = case.restarted("policy: { default: deny }").await;
    case.notes.store.lock().unwrap().newest = agreed;
    case.reload("policy: { default: allow }").await;
    assert_eq!((case.default(), case.reloads.status().waiting.is_none()), (PolicyDefault::Allow, true));
}

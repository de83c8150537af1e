use super::*;
use crate::{
    policy::{Condition, Globs},
    principal::Role,
};

fn globs(text: &str) -> Globs {
    Globs::new(text.split_whitespace().map(str::to_owned).collect()).unwrap()
}

fn rule(then: Verdict) -> Rule {
    Rule::new("r", then)
}

fn policy(default: PolicyDefault, rules: Vec<Rule>) -> Policy {
    Policy::new(&crate::policy::PolicyConfig { rules, ..default.into() })
}

fn principal(name: &str) -> Principal {
    Principal::new(name, Role::Agent)
}

fn requester(principal: &Principal) -> Requester<'_> {
    Requester { principal, transport: "http", revision: "2026-07-28", client: Some("c") }
}

fn outcome(decision: AccessDecision) -> &'static str {
    match decision {
        AccessDecision::Allowed => "allowed",
        AccessDecision::NoRule => "no rule",
        AccessDecision::Refused(_) => "refused",
    }
}

#[test]
fn default_deny_covers_only_upstreams() {
    let policy = policy(PolicyDefault::Deny, Vec::new());
    let caller = principal("a");
    for subject in [Subject::Resource("x:y"), Subject::Prompt("p"), Subject::Method("acme/write")] {
        assert_eq!(
            outcome(policy.decide_access(subject, SubjectProvider::Upstream("u"), &requester(&caller))),
            "refused"
        );
        assert_eq!(
            outcome(policy.decide_access(subject, SubjectProvider::Module("tracker"), &requester(&caller))),
            "no rule"
        );
    }
    for default in [PolicyDefault::Allow, PolicyDefault::ReviewWrites, PolicyDefault::ReviewAll] {
        let policy = super::tests::policy(default, Vec::new());
        assert!(!policy.can_refuse_access());
        assert_eq!(
            outcome(policy.decide_access(
                Subject::Resource("x:y"),
                SubjectProvider::Upstream("u"),
                &requester(&caller)
            )),
            "no rule"
        );
    }
}

#[test]
fn first_rule_naming_subject_decides() {
    let allow_public = Rule { resources: globs("u+file:///pub/*"), ..rule(Verdict::Allow) };
    let deny_secret = Rule { resources: globs("tracker://secret*"), ..rule(Verdict::Deny) };
    let allow_tools = Rule { tools: globs("*"), ..rule(Verdict::Allow) };
    let allow_by_argument =
        Rule { when: Some(Condition::compile("arguments.a == 1").unwrap()), ..rule(Verdict::Allow) };
    let allow_boss = Rule { principals: globs("boss"), ..rule(Verdict::Allow) };
    let review = rule(Verdict::Review);
    let policy = policy(
        PolicyDefault::Deny,
        vec![allow_tools, allow_by_argument, review, allow_public, deny_secret, allow_boss],
    );
    let outcome_for =
        |name: &str, subject, owner| outcome(policy.decide_access(subject, owner, &requester(&principal(name))));
    let upstream = SubjectProvider::Upstream("u");
    assert_eq!(outcome_for("a", Subject::Resource("u+file:///pub/x"), upstream), "allowed");
    assert_eq!(outcome_for("a", Subject::Resource("u+file:///priv/x"), upstream), "refused");
    assert_eq!(outcome_for("a", Subject::Prompt("p"), upstream), "refused");
    assert_eq!(outcome_for("boss", Subject::Prompt("p"), upstream), "allowed");
    assert_eq!(outcome_for("boss", Subject::Method("acme/write"), upstream), "refused", "no rule names the method");
    assert_eq!(
        outcome_for("boss", Subject::Resource("tracker://secret/1"), SubjectProvider::Module("tracker")),
        "refused"
    );
    assert_eq!(
        outcome_for("boss", Subject::Resource("tracker://secret/1"), SubjectProvider::Module("gateway")),
        "no rule"
    );
    assert_eq!(
        outcome_for("boss", Subject::Resource("tracker://issue/1"), SubjectProvider::Module("tracker")),
        "no rule"
    );
}

#[test]
fn uri_spelling_cannot_bypass_rules() {
    let deny = policy(PolicyDefault::Allow, vec![Rule { resources: globs("u+file:///etc/*"), ..rule(Verdict::Deny) }]);
    let allow = policy(PolicyDefault::Deny, vec![Rule { resources: globs("u+file:///pub/*"), ..rule(Verdict::Allow) }]);
    let caller = principal("a");
    for uri in [
        "u+file:///etc/x",
        "U+FILE:///etc/x",
        "u+file:///%65tc/x",
        "u+file:///pub/../etc/x",
        "u+file:///pub/%2e%2E/etc/x",
        "u+file:///pub/..\\etc/x",
        "u+file:///./etc/x",
    ] {
        let subject = Subject::Resource(uri);
        assert_eq!(
            outcome(deny.decide_access(subject, SubjectProvider::Upstream("u"), &requester(&caller))),
            "refused",
            "{uri}"
        );
        assert_eq!(
            outcome(allow.decide_access(subject, SubjectProvider::Upstream("u"), &requester(&caller))),
            "refused",
            "{uri}"
        );
    }
    let allowed_uri = Subject::Resource("u+file:///pub/a%20b");
    assert_eq!(
        outcome(allow.decide_access(allowed_uri, SubjectProvider::Upstream("u"), &requester(&caller))),
        "allowed"
    );
}

#[test]
fn resource_rule_can_name_module_project() {
    let allow = Rule { resources: globs("docs://handbook/**"), principals: globs("a"), ..rule(Verdict::Allow) };
    let deny = Rule { resources: globs("docs://**"), ..rule(Verdict::Deny) };
    let policy = policy(PolicyDefault::ReviewWrites, vec![allow, deny]);
    let outcome_for = |caller: &str, uri| {
        outcome(policy.decide_access(
            Subject::Resource(uri),
            SubjectProvider::Module("docs"),
            &requester(&principal(caller)),
        ))
    };
    for uri in ["docs://handbook/a.md", "docs://handbook/problems/a%20b.md", "docs://handbook/"] {
        assert_eq!((outcome_for("a", uri), outcome_for("b", uri)), ("allowed", "refused"), "{uri}");
    }
    for uri in ["docs://other/a.md", "docs://handbook2/a.md", "docs://other/../handbook/a.md"] {
        assert_eq!(outcome_for("a", uri), "refused", "{uri}");
    }
}

#[test]
fn failed_condition_refuses_access() {
    let fails = Condition::compile("principal.name + 1 == session.client").unwrap();
    let denies = policy(PolicyDefault::Allow, vec![Rule { when: Some(fails.clone()), ..rule(Verdict::Deny) }]);
    let allows = policy(PolicyDefault::Deny, vec![Rule { when: Some(fails), ..rule(Verdict::Allow) }]);
    let caller = principal("a");
    for policy in [denies, allows] {
        assert_eq!(
            outcome(policy.decide_access(Subject::Prompt("p"), SubjectProvider::Upstream("u"), &requester(&caller))),
            "refused"
        );
    }
}

#[test]
fn extension_method_needs_free_server_or_rule() {
    let caller = principal("a");
    let allowed = Rule { methods: globs("acme/*"), ..rule(Verdict::Allow) };
    let denied = Rule { methods: globs("acme/*"), ..rule(Verdict::Deny) };
    let general = Rule { servers: globs("u"), ..rule(Verdict::Deny) };
    for (default, rules, gated, passes) in [
        (PolicyDefault::Allow, vec![], false, true),
        (PolicyDefault::Allow, vec![], true, false),
        (PolicyDefault::ReviewWrites, vec![], false, false),
        (PolicyDefault::ReviewWrites, vec![allowed.clone()], true, true),
        (PolicyDefault::Deny, vec![allowed], true, true),
        (PolicyDefault::Allow, vec![denied], false, false),
        (PolicyDefault::Allow, vec![general], false, false),
    ] {
        let policy = policy(default, rules);
        assert_eq!(
            policy.allows_method("u", "acme/write", &requester(&caller), || gated),
            passes,
            "{default:?} {gated}"
        );
    }
}

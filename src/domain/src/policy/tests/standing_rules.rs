//! Tests of standing rules, and of a policy that is not enforced.

use super::*;
use crate::{
    changes::Terms,
    policy::{
        ArgumentPattern, GroupMember, Groups, PolicyMode, Reviewers, StandingRule, StandingRuleSource, StandingVerdict,
        standing_rules::UseCounter,
    },
    principal::TokenRights,
};
use countersign_protocol::arguments::canonical_text_hash;

struct FixedRules(Vec<StandingRule>);

impl StandingRuleSource for FixedRules {
    fn find_rules(&self, _: &str, concerns: &dyn Fn(&str) -> bool) -> Vec<Arc<StandingRule>> {
        self.0.iter().filter(|rule| concerns(&rule.tool)).cloned().map(Arc::new).collect()
    }
}

/// Rules of a store that has a clock of its own.
struct RulesWithClock(FixedRules, jiff::Timestamp);

impl StandingRuleSource for RulesWithClock {
    fn find_rules(&self, provider: &str, concerns: &dyn Fn(&str) -> bool) -> Vec<Arc<StandingRule>> {
        self.0.find_rules(provider, concerns)
    }

    fn now(&self) -> jiff::Timestamp {
        self.1
    }
}

/// Creates a rule by alice for every call of the tool, valid for one hour.
fn rule_by_alice(verdict: StandingVerdict) -> StandingRule {
    let now = jiff::Timestamp::now();
    StandingRule {
        id: "srl_1".into(),
        verdict,
        provider: "fs".into(),
        tool: "fs__write".into(),
        tool_hash: "sha256:t".into(),
        principal: None,
        proposer: None,
        arguments_hash: None,
        arguments: None,
        matching: Vec::new(),
        served_by: Some(String::new()),
        from_change: Some("chg_1".into()),
        created_by: "alice".into(),
        created_by_role: Role::Reviewer,
        created_by_owner: None,
        created_by_key: None,
        created_by_other_names: Vec::new(),
        created_by_token: None,
        comment: None,
        created_at: now,
        expires_at: Some(now + jiff::SignedDuration::from_hours(1)),
        revoked_at: None,
        revoked_by: None,
        expired_at: None,
        orphaned_at: None,
        uses: UseCounter::default(),
        deadline: None,
    }
}

fn policy_with(config: PolicyConfig, rules: Vec<StandingRule>) -> Policy {
    Policy::new(&config).with_standing_rules(Arc::new(FixedRules(rules)), Arc::<Reviewers>::default())
}

fn verdict(config: PolicyConfig, rule: StandingRule, tool: &ToolFacts, arguments: &str) -> Verdict {
    decide(&policy_with(config, vec![rule]), tool, arguments).verdict
}

#[test]
fn standing_allow_rule_replaces_one_approval() {
    use Verdict::{Allow, Deny, Review};
    let review = || PolicyConfig::from(PolicyDefault::ReviewAll);
    let review_under = |terms: Terms| PolicyConfig { review: Arc::new(terms), ..review() };
    let verdict_for = |config, rule| verdict(config, rule, &tool(false), "{}");
    let allow = || rule_by_alice(StandingVerdict::Allow);
    assert_eq!(verdict_for(review(), allow()), Allow);
    assert_eq!(verdict_for(PolicyDefault::Deny.into(), allow()), Deny, "an allow rule never overrides a denial");
    assert_eq!(verdict_for(review_under(Terms { quorum: 2, ..Terms::default() }), allow()), Review);
    assert_eq!(verdict_for(review_under(Terms { preview_required: true, ..Terms::default() }), allow()), Review);
    let sign_in = Some(crate::changes::SignInTerms { max_age: Some(300), acr: Vec::new() });
    assert_eq!(verdict_for(review_under(Terms { sign_in, ..Terms::default() }), allow()), Review);
    let inapplicable = [
        StandingRule { tool_hash: "sha256:other".into(), ..allow() },
        StandingRule { served_by: Some("sha256:elsewhere".into()), ..allow() },
        StandingRule { served_by: None, ..allow() },
        StandingRule { principal: Some("somebody".into()), ..allow() },
        StandingRule { created_by: "ci-7".into(), ..allow() },
        StandingRule { created_by_owner: Some("ci-7".into()), ..allow() },
        StandingRule { created_by_owner: Some("CI-7".into()), ..allow() },
        StandingRule { created_by_role: Role::Agent, ..allow() },
        StandingRule { expires_at: Some(jiff::Timestamp::UNIX_EPOCH), ..allow() },
        StandingRule { deadline: Some(std::time::Instant::now()), ..allow() },
        StandingRule { revoked_at: Some(jiff::Timestamp::now()), ..allow() },
    ];
    for rule in inapplicable {
        assert_eq!(verdict_for(review(), rule.clone()), Review, "{rule:?}");
    }
    for definition_status in [DefinitionStatus::New, DefinitionStatus::Changed] {
        let marked = ToolFacts { definition_status, ..tool(false) };
        assert_eq!(verdict(review(), allow(), &marked, "{}"), Review, "{definition_status:?}");
    }
    let decided = decide(&policy_with(review(), vec![allow()]), &tool(false), "{}");
    assert_eq!(decided.rule.as_deref(), Some("standing rule srl_1"));
    assert!(decided.standing_rule.is_some());
}

#[test]
fn standing_rule_ends_by_the_clock_of_its_source() {
    let rule = rule_by_alice(StandingVerdict::Deny);
    let end = rule.expires_at.unwrap();
    let verdict_at = |end, now| {
        let rules = FixedRules(vec![StandingRule { expires_at: Some(end), ..rule.clone() }]);
        let source = Arc::new(RulesWithClock(rules, now));
        let policy = Policy::new(&PolicyConfig::from(PolicyDefault::Allow)).with_standing_rules(source, Arc::default());
        decide(&policy, &tool(false), "{}").verdict
    };
    let (hour, minute) = (jiff::SignedDuration::from_hours(1), jiff::SignedDuration::from_mins(1));
    assert_eq!(verdict_at(end, end + minute), Verdict::Allow, "the clock of this machine is behind");
    let past = jiff::Timestamp::now() - hour;
    assert_eq!(verdict_at(past, past - minute), Verdict::Deny, "the clock of this machine is ahead");
}

#[test]
fn allow_rule_made_with_a_token_needs_its_issuer() {
    let reviewers = Arc::<Reviewers>::default();
    let rule = StandingRule {
        created_by: "https://id.example#ann#cli".into(),
        created_by_owner: Some("https://id.example#ann".into()),
        ..rule_by_alice(StandingVerdict::Allow)
    };
    let policy = Policy::new(&PolicyConfig::from(PolicyDefault::ReviewAll))
        .with_standing_rules(Arc::new(FixedRules(vec![rule])), Arc::clone(&reviewers));
    let verdict = || decide(&policy, &tool(false), "{}").verdict;
    assert_eq!(verdict(), Verdict::Review);
    reviewers.set_issuers(["https://id.example"].into_iter());
    assert_eq!(verdict(), Verdict::Allow);
    reviewers.set_issuers(["https://other.example"].into_iter());
    assert_eq!(verdict(), Verdict::Review, "the issuer was removed");
}

#[test]
fn allow_rule_made_with_a_token_keeps_its_groups() {
    let claim_group = |group: &str| {
        Groups::from([("dba".to_owned(), vec![GroupMember::ClaimGroup { issuer: None, group: group.into() }])])
    };
    let reviewers = Arc::new(Reviewers::new(&claim_group("db")));
    reviewers.set_issuers(["https://id.example"].into_iter());
    let rule = StandingRule {
        created_by: "https://id.example#ann#cli".into(),
        created_by_owner: Some("https://id.example#ann".into()),
        created_by_other_names: vec!["https://id.example#oid".into()],
        created_by_token: Some(TokenRights { role: Role::Reviewer, groups: vec!["db".into()] }),
        ..rule_by_alice(StandingVerdict::Allow)
    };
    let stored: StandingRule = serde_json::from_str(&serde_json::to_string(&rule).unwrap()).unwrap();
    assert_eq!(stored.creator(), rule.creator());
    assert_eq!(rule.creator().other_names(), rule.created_by_other_names);
    let verdict_with = |rule: StandingRule| {
        let terms = Terms { reviewers: vec!["dba".into()], ..Terms::default() };
        let config = PolicyConfig { review: Arc::new(terms), ..PolicyDefault::ReviewAll.into() };
        let policy = Policy::new(&config).with_standing_rules(Arc::new(FixedRules(vec![rule])), Arc::clone(&reviewers));
        decide(&policy, &tool(false), "{}").verdict
    };
    assert_eq!(verdict_with(stored), Verdict::Allow);
    let without_rights = StandingRule { created_by_token: None, ..rule.clone() };
    assert_eq!(verdict_with(without_rights), Verdict::Review, "a rule of an earlier version");
    reviewers.set_groups(&claim_group("other"));
    assert_eq!(verdict_with(rule), Verdict::Review, "the group decides no longer");
}

#[test]
fn standing_rule_matches_single_arguments() {
    let within = ArgumentPattern::within("path", "/notes".into());
    let rule = StandingRule { matching: vec![within], ..rule_by_alice(StandingVerdict::Allow) };
    let verdict_for = |arguments| verdict(PolicyDefault::ReviewAll.into(), rule.clone(), &tool(false), arguments);
    assert_eq!(verdict_for(r#"{"path":"/notes/a","text":"x"}"#), Verdict::Allow);
    for other in ["{}", r#"{"path":"/etc/a"}"#, r#"{"path":"/notes/a","path":"/notes/b"}"#] {
        assert_eq!(verdict_for(other), Verdict::Review, "{other}");
    }
}

#[test]
fn standing_rule_matches_arguments_in_any_order() {
    let exact = |rule_verdict| StandingRule {
        arguments_hash: Some(canonical_text_hash(r#"{"a":1,"b":{"c":1.10}}"#)),
        ..rule_by_alice(rule_verdict)
    };
    let verdict_for =
        |arguments| verdict(PolicyDefault::ReviewAll.into(), exact(StandingVerdict::Allow), &tool(false), arguments);
    assert_eq!(verdict_for(r#"{ "b": {"c":1.10}, "a": 1 }"#), Verdict::Allow);
    for other in
        ["{}", r#"{"a":2,"b":{"c":1.10}}"#, r#"{"a":1,"b":{"c":1.10},"x":1}"#, r#"{"a":1,"a":1,"b":{"c":1.10}}"#]
    {
        assert_eq!(verdict_for(other), Verdict::Review, "{other}");
    }
}

#[test]
fn standing_deny_rule_always_applies() {
    let deny = || rule_by_alice(StandingVerdict::Deny);
    for default in [PolicyDefault::Allow, PolicyDefault::ReviewAll, PolicyDefault::Deny] {
        assert_eq!(verdict(default.into(), deny(), &tool(true), "{}"), Verdict::Deny);
    }
    // A changed definition does not evade it, and no allow rule outweighs it.
    let other = StandingRule { tool_hash: "sha256:other".into(), id: "srl_2".into(), ..deny() };
    let policy = policy_with(PolicyDefault::ReviewAll.into(), vec![rule_by_alice(StandingVerdict::Allow), other]);
    let decision = decide(&policy, &tool(false), "{}");
    assert_eq!((decision.verdict, decision.rule.as_deref()), (Verdict::Deny, Some("standing rule srl_2")));
    let ruling = policy.ruling(&tool(false));
    assert!(!ruling.is_listed_to(&principal(Role::Agent)), "a tool that is always denied is not listed");
    assert!(ruling.fixed_decision().is_none() && !ruling.always_allows());
    let for_somebody = StandingRule { principal: Some("somebody".into()), ..deny() };
    assert_eq!(verdict(PolicyDefault::Allow.into(), for_somebody, &tool(false), "{}"), Verdict::Allow);
}

#[test]
fn simulated_policy_allows_and_reports_verdict() {
    let simulate = |config: PolicyConfig| PolicyConfig { mode: PolicyMode::Simulate, ..config };
    let conditional = vec![Rule { when: compiled("arguments.x"), ..Rule::new("r", Verdict::Deny) }];
    for (config, intended) in [
        (PolicyDefault::Allow.into(), None),
        (PolicyDefault::ReviewAll.into(), Some(Verdict::Review)),
        (PolicyDefault::Deny.into(), Some(Verdict::Deny)),
        (PolicyConfig { rules: conditional, ..PolicyDefault::Allow.into() }, Some(Verdict::Deny)),
    ] {
        let policy = Policy::new(&simulate(config));
        let decision = decide(&policy, &tool(false), r#"{"x":true}"#);
        assert_eq!((decision.verdict, decision.simulated), (Verdict::Allow, intended));
        let ruling = policy.ruling(&tool(false));
        assert!(ruling.is_listed_to(&principal(Role::Agent)) && !ruling.may_review());
        assert_eq!(ruling.always_allows(), intended.is_none(), "calls that would be blocked are still evaluated");
    }
    let decision = decide(
        &policy_with(simulate(PolicyDefault::Allow.into()), vec![rule_by_alice(StandingVerdict::Deny)]),
        &tool(false),
        "{}",
    );
    assert_eq!((decision.verdict, decision.intended_verdict()), (Verdict::Allow, Verdict::Deny));
}

#[test]
fn review_terms_come_from_rule_or_policy() {
    let quorum = |quorum| Arc::new(Terms { quorum, ..Terms::default() });
    let config = PolicyConfig {
        review: quorum(2),
        rules: vec![
            Rule { when: compiled("arguments.a == 1"), terms: quorum(3), ..Rule::new("three", Verdict::Review) },
            Rule { when: compiled("arguments.b"), terms: quorum(2), ..Rule::new("free", Verdict::Allow) },
        ],
        ..PolicyDefault::ReviewAll.into()
    };
    let decided = |arguments: &str| {
        let decision = decide(&Policy::new(&config), &tool(false), arguments);
        (decision.verdict, decision.terms.quorum)
    };
    assert_eq!(decided(r#"{"a":1,"b":false}"#), (Verdict::Review, 3));
    assert_eq!(decided(r#"{"a":2,"b":false}"#), (Verdict::Review, 2));
    assert_eq!(decided(r#"{"a":2,"b":true}"#).0, Verdict::Allow);
    // It is unknown whether the first rule matches, so the stricter of it and the next one counts.
    assert_eq!(decided(r#"{"b":false}"#), (Verdict::Review, 3));
    assert_eq!(decided(r#"{"b":true}"#), (Verdict::Review, 3));
}

#[test]
fn standing_denial_of_an_operation_covers_unclear_calls() {
    let on = |tool: &str| StandingRule { tool: tool.into(), ..rule_by_alice(StandingVerdict::Deny) };
    let verdict_for = |rule: StandingRule, name: &str, status| {
        let facts = ToolFacts { operation: Some(ToolOperation { name: name.into(), status }), ..tool(false) };
        verdict(PolicyDefault::Allow.into(), rule, &facts, "{}")
    };
    use OperationStatus::{Known, Unclear, Unknown};
    assert_eq!(verdict_for(on("fs__write/Delete"), "", Unclear), Verdict::Deny);
    assert_eq!(verdict_for(on("fs__write/Delete"), "Delete", Unknown), Verdict::Deny);
    assert_eq!(verdict_for(on("fs__write/Delete"), "Get", Known), Verdict::Allow);
    assert_eq!(verdict_for(on("fs__write"), "Get", Known), Verdict::Deny);
    assert_eq!(verdict_for(on("fs__writer/Delete"), "", Unclear), Verdict::Review);
    let allow = StandingRule { tool: "fs__write/Get".into(), ..rule_by_alice(StandingVerdict::Allow) };
    assert_eq!(verdict_for(allow, "", Unclear), Verdict::Review);
}

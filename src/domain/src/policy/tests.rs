mod standing_rules;

use serde_json::value::RawValue;

use super::*;
use crate::{
    policy::PolicyDefault,
    principal::{Claims, Principal, Role},
};

fn globs(pattern: &str) -> Globs {
    Globs::new(vec![pattern.to_owned()]).unwrap()
}

fn compiled(source: &str) -> Option<Condition> {
    Some(Condition::compile(source).unwrap())
}

fn policy(default: PolicyDefault, rules: Vec<Rule>) -> Policy {
    Policy::new(&PolicyConfig { rules, ..default.into() })
}

fn tool(read_only: bool) -> ToolFacts {
    ToolFacts {
        operation: None,
        name: "fs__write".into(),
        server: "fs".into(),
        annotations: ToolAnnotations { read_only_hint: read_only, ..ToolAnnotations::default() },
        hash: "sha256:t".into(),
        server_fingerprint: String::new(),
        definition_status: DefinitionStatus::Module,
        server_is_trusted: false,
        self_service: false,
    }
}

fn principal(role: Role) -> Principal {
    Principal::new("ci-7", role)
}

fn decide_as(policy: &Policy, tool: &ToolFacts, arguments: &str, role: Role) -> Decision {
    let arguments = RawValue::from_string(arguments.to_owned()).unwrap();
    let principal = principal(role);
    let requester = Requester { principal: &principal, transport: "http", revision: "2025-11-25", client: None };
    policy.ruling(tool).decide(&requester, &arguments)
}

fn decide(policy: &Policy, tool: &ToolFacts, arguments: &str) -> Decision {
    decide_as(policy, tool, arguments, Role::Agent)
}

#[test]
fn rule_on_ambiguous_claims_fails_closed() {
    let when = "has(principal.claims.kind) && principal.claims.kind == 'contractor'";
    let rules = vec![Rule { when: compiled(when), ..Rule::new("contractors", Verdict::Deny) }];
    let policy = policy(PolicyDefault::Allow, rules);
    let verdict = |json: Option<&str>| {
        let claims = json.map(|json| Arc::new(Claims { json: json.to_owned(), ..Claims::default() }));
        let principal = Principal { claims, ..principal(Role::Agent) };
        let requester = Requester { principal: &principal, transport: "http", revision: "2025-11-25", client: None };
        policy.ruling(&tool(false)).decide(&requester, &RawValue::from_string("{}".into()).unwrap()).verdict
    };
    assert_eq!(verdict(None), Verdict::Allow);
    assert_eq!(verdict(Some(r#"{"kind":"employee"}"#)), Verdict::Allow);
    assert_eq!(verdict(Some(r#"{"kind":"contractor"}"#)), Verdict::Deny);
    assert_eq!(verdict(Some(r#"{"kind":"employee","m":{"a":1,"A":2}}"#)), Verdict::Deny);
}

#[test]
fn verdict_by_default_and_hint() {
    use PolicyDefault as P;
    use Verdict as V;
    // (default, read, write, self-service write)
    for (default, read, write, own) in [
        (P::Allow, V::Allow, V::Allow, V::Allow),
        (P::ReviewWrites, V::Allow, V::Review, V::Allow),
        (P::ReviewAll, V::Review, V::Review, V::Allow),
        (P::Deny, V::Deny, V::Deny, V::Allow),
    ] {
        let policy = policy(default, Vec::new());
        assert_eq!(decide(&policy, &tool(true), "{}").verdict, read, "{default:?}");
        assert_eq!(decide(&policy, &tool(false), "{}").verdict, write, "{default:?}");
        let own_tool = ToolFacts { self_service: true, ..tool(false) };
        assert_eq!(decide(&policy, &own_tool, "{}").verdict, own, "{default:?}");
    }
}

#[test]
fn self_service_tools_are_always_allowed() {
    let own = ToolFacts { self_service: true, ..tool(false) };
    for then in [Verdict::Review, Verdict::Deny] {
        let policy = policy(PolicyDefault::Deny, vec![Rule::new("all", then)]);
        assert!(policy.ruling(&own).always_allows());
        assert!(policy.ruling(&own).is_listed_to(&principal(Role::Agent)));
    }
}

#[test]
fn read_only_hint_counts_only_if_trusted() {
    let policy = policy(PolicyDefault::ReviewWrites, Vec::new());
    for (definition_status, server_is_trusted, expected) in [
        (DefinitionStatus::Module, false, Verdict::Allow),
        (DefinitionStatus::Accepted, false, Verdict::Allow),
        (DefinitionStatus::FirstSeen, true, Verdict::Allow),
        (DefinitionStatus::FirstSeen, false, Verdict::Review),
        (DefinitionStatus::New, true, Verdict::Review),
        (DefinitionStatus::Changed, true, Verdict::Review),
    ] {
        let tool = ToolFacts { definition_status, server_is_trusted, ..tool(true) };
        assert_eq!(decide(&policy, &tool, "{}").verdict, expected, "{definition_status:?} {server_is_trusted}");
        let write = ToolFacts { annotations: ToolAnnotations::default(), ..tool };
        assert_eq!(decide(&policy, &write, "{}").verdict, Verdict::Review, "{definition_status:?} {server_is_trusted}");
    }
}

#[test]
fn new_or_changed_tools_are_reviewed_unless_denied() {
    for definition_status in [DefinitionStatus::New, DefinitionStatus::Changed] {
        let tool = ToolFacts { definition_status, server_is_trusted: true, ..tool(true) };
        for (then, expected) in
            [(Verdict::Allow, Verdict::Review), (Verdict::Review, Verdict::Review), (Verdict::Deny, Verdict::Deny)]
        {
            let by_rule = policy(PolicyDefault::Allow, vec![Rule::new("r", then)]);
            let decision = decide(&by_rule, &tool, "{}");
            assert_eq!(
                (decision.verdict, decision.mark),
                (expected, definition_status.mark()),
                "{definition_status:?} {then:?}"
            );
        }
        assert_eq!(decide(&policy(PolicyDefault::Allow, Vec::new()), &tool, "{}").verdict, Verdict::Review);
        let by_condition = Rule { when: compiled("arguments.ok"), ..Rule::new("r", Verdict::Allow) };
        let by_condition = policy(PolicyDefault::Allow, vec![by_condition]);
        assert_eq!(decide(&by_condition, &tool, r#"{"ok":true}"#).verdict, Verdict::Review);
    }
}

#[test]
fn first_matching_rule_decides() {
    let rules = vec![
        Rule { tools: globs("db__*"), ..Rule::new("other tool", Verdict::Deny) },
        Rule { servers: globs("d*"), ..Rule::new("other server", Verdict::Deny) },
        Rule { roles: vec![Role::Reviewer, Role::Admin], ..Rule::new("reviewers", Verdict::Allow) },
        Rule { principals: globs("ci-?"), when: compiled("arguments.n > 10"), ..Rule::new("ci", Verdict::Deny) },
        Rule { tools: globs("{fs,git}__w*"), ..Rule::new("writes", Verdict::Review) },
        Rule::new("never reached", Verdict::Allow),
    ];
    let policy = policy(PolicyDefault::Deny, rules);
    let tool = tool(false);
    let decided = |arguments, role| {
        let decision = decide_as(&policy, &tool, arguments, role);
        (decision.verdict, decision.rule.unwrap().to_string())
    };
    assert_eq!(decided(r#"{"n":1}"#, Role::Reviewer), (Verdict::Allow, "reviewers".into()));
    assert_eq!(decided(r#"{"n":11}"#, Role::Agent), (Verdict::Deny, "ci".into()));
    assert_eq!(decided(r#"{"n":10}"#, Role::Agent), (Verdict::Review, "writes".into()));
    assert!(policy.ruling(&tool).fixed_decision().is_none());
    let labels: Vec<String> = policy.ruling(&tool).rules().map(str::to_owned).collect();
    assert_eq!(labels, ["reviewers", "ci", "writes"]);
}

#[test]
fn call_independent_decision_is_fixed() {
    let annotated = AnnotationsMatch { destructive_hint: Some(false), ..AnnotationsMatch::default() };
    let rules = vec![
        Rule { when: compiled("tool.server == 'db'"), ..Rule::new("db", Verdict::Deny) },
        Rule {
            annotations: annotated,
            when: compiled("tool.name.startsWith('fs__')"),
            ..Rule::new("fs", Verdict::Allow)
        },
        Rule { when: compiled("arguments.n > 10"), ..Rule::new("never asked", Verdict::Deny) },
    ];
    let policy = policy(PolicyDefault::Deny, rules);
    let ruling = policy.ruling(&tool(false));
    assert_eq!(ruling.fixed_decision().map(|d| (d.verdict, d.rule.as_deref())), Some((Verdict::Allow, Some("fs"))));
}

#[test]
fn failed_condition_never_loosens_verdict() {
    use Verdict as V;
    let tool = tool(false);
    // (verdict of the rule, verdict of the next rule, expected verdict)
    for (then, after, expected) in [
        (V::Allow, V::Allow, V::Review),
        (V::Allow, V::Review, V::Review),
        (V::Allow, V::Deny, V::Deny),
        (V::Review, V::Allow, V::Review),
        (V::Review, V::Deny, V::Deny),
        (V::Deny, V::Allow, V::Deny),
    ] {
        for condition in ["arguments.missing > 1", "arguments.text > 1", "arguments.n", "arguments.list[7] == 1"] {
            let rules =
                vec![Rule { when: compiled(condition), ..Rule::new("first", then) }, Rule::new("second", after)];
            let policy = policy(PolicyDefault::Allow, rules);
            let arguments = r#"{"text":"a secret","n":1,"list":[]}"#;
            let decision = decide(&policy, &tool, arguments);
            assert_eq!(decision.verdict, expected, "{condition} {then:?} {after:?}");
            assert!(!decision.reason.contains("secret"), "{decision:?}");
        }
    }
}

#[test]
fn ambiguous_arguments_are_reviewed() {
    let rules = vec![Rule { when: compiled("arguments.amount < 100"), ..Rule::new("small", Verdict::Allow) }];
    let policy = policy(PolicyDefault::ReviewAll, rules);
    let verdict = |arguments: &str| decide(&policy, &tool(false), arguments);
    assert_eq!(verdict(r#"{"amount":99}"#).verdict, Verdict::Allow);
    assert_eq!(verdict(r#"{"amount":-9223372036854775808}"#).verdict, Verdict::Allow);
    assert_eq!(verdict(r#"{"amount":18446744073709551615}"#).rule, None);
    for unclear in [
        r#"{"amount":99,"amount":1000000}"#,
        r#"{"amount":-9223372036854775809}"#,
        r#"{"amount":1,"x":123456789012345678901234567890}"#,
    ] {
        let decision = verdict(unclear);
        assert_eq!((decision.verdict, decision.rule.as_deref()), (Verdict::Review, Some("small")), "{unclear}");
    }
}

#[test]
fn condition_budget_bounds_hostile_arguments() {
    let list = |n: usize| format!("[{}]", vec!["1"; n].join(","));
    let policy_of = |condition| {
        policy(PolicyDefault::Allow, vec![Rule { when: compiled(condition), ..Rule::new("r", Verdict::Deny) }])
    };
    let arguments = format!(r#"{{"a":{},"s":"{}"}}"#, list(2000), "x".repeat(500_000));
    for condition in [
        "arguments.a.exists(x, arguments.a.exists(y, x + y == 3))",
        "arguments.a.exists(x, x == 2 || 2 in arguments.a)",
        "arguments.a.map(x, arguments.a.map(y, [x, y])).size() == 0",
        "arguments.a.exists(x, arguments.s.contains('y'))",
        "arguments.a.all(x, arguments.s.matches('^x*$'))",
        "arguments.a.exists(x, [arguments] == [x])",
    ] {
        let decision = decide(&policy_of(condition), &tool(false), &arguments);
        assert_eq!(&*decision.reason, "r: its condition would take too long", "{condition}");
        assert_eq!(decision.verdict, Verdict::Deny);
    }
    // Honest conditions are not affected.
    for condition in ["arguments.a.all(x, x == 1)", "arguments.s.size() == 500000", "arguments.a.size() == 2000"] {
        let decision = decide(&policy_of(condition), &tool(false), &arguments);
        assert_eq!(&*decision.reason, "r says deny", "{condition}");
    }
}

#[test]
fn annotation_rule_ignores_untrusted_annotations() {
    use Verdict as V;
    let reads = AnnotationsMatch { read_only_hint: Some(true), ..AnnotationsMatch::default() };
    let destroys = AnnotationsMatch { destructive_hint: Some(true), ..AnnotationsMatch::default() };
    let seen = ToolFacts { definition_status: DefinitionStatus::FirstSeen, ..tool(true) };
    let accepted = ToolFacts { definition_status: DefinitionStatus::Accepted, ..tool(true) };
    for (required, then, if_seen, if_accepted) in [
        (reads, V::Allow, V::Review, V::Allow),
        (reads, V::Deny, V::Deny, V::Deny),
        (destroys, V::Deny, V::Deny, V::Review),
        (destroys, V::Allow, V::Review, V::Review),
    ] {
        let rules = vec![Rule { annotations: required, ..Rule::new("r", then) }];
        let policy = policy(PolicyDefault::ReviewAll, rules);
        assert_eq!(decide(&policy, &seen, "{}").verdict, if_seen, "{required:?} {then:?}");
        assert_eq!(decide(&policy, &accepted, "{}").verdict, if_accepted, "{required:?} {then:?}");
    }
    let condition = Rule { when: compiled("tool.annotations.readOnlyHint"), ..Rule::new("r", V::Allow) };
    let policy = policy(PolicyDefault::ReviewAll, vec![condition]);
    assert_eq!(decide(&policy, &seen, "{}").verdict, V::Review);
    assert_eq!(decide(&policy, &accepted, "{}").verdict, V::Allow);
}

#[test]
fn tool_denied_for_all_calls_is_not_listed() {
    let denied_to = |rules: Vec<Rule>| {
        let ruling = policy(PolicyDefault::Allow, rules).ruling(&tool(false));
        [Role::Agent, Role::Reviewer].map(|role| !ruling.is_listed_to(&principal(role)))
    };
    let deny = || Rule::new("deny", Verdict::Deny);
    let agents = || Rule { roles: vec![Role::Agent], ..deny() };
    assert_eq!(denied_to(vec![]), [false, false]);
    assert_eq!(denied_to(vec![deny()]), [true, true]);
    assert_eq!(denied_to(vec![agents()]), [true, false]);
    assert_eq!(denied_to(vec![Rule { principals: globs("ci-*"), ..deny() }]), [true, true]);
    assert_eq!(denied_to(vec![Rule { when: compiled("principal.role == 'agent'"), ..deny() }]), [true, false]);
    // Some calls may be allowed.
    assert_eq!(denied_to(vec![Rule { when: compiled("arguments.x"), ..deny() }]), [false, false]);
    assert_eq!(denied_to(vec![Rule { when: compiled("session.transport == 'http'"), ..deny() }]), [false, false]);
    assert_eq!(
        denied_to(vec![Rule { when: compiled("arguments.x"), ..Rule::new("a", Verdict::Allow) }, agents()]),
        [false, false]
    );
    assert_eq!(denied_to(vec![Rule { when: compiled("arguments.x"), ..deny() }, agents()]), [true, false]);
    // A condition that cannot be evaluated denies.
    assert_eq!(denied_to(vec![Rule { when: compiled("principal.name > 3"), ..deny() }]), [true, true]);
}

#[test]
fn invalid_expressions_fail_to_compile() {
    let refused = |source: &str| Condition::compile(source).unwrap_err();
    for (source, part) in [
        ("", "empty"),
        ("arguments.", ""),
        ("argument.x == 1", "there is no `argument`"),
        ("principal.nam == 'x'", "`principal` has no `nam`"),
        ("arguments.x.matches(arguments.y)", "written out"),
        ("arguments.x.matches('(')", "not a regular expression"),
        ("arguments.x.frobnicate()", "no function `frobnicate`"),
        ("@pay(arguments)", ""),
        ("arguments.all(x, y == 1)", "there is no `y`"),
        ("session.client == 'a' ? b : true", "there is no `b`"),
    ] {
        let error = refused(source);
        assert!(error.message.contains(part), "{source}: {error:?}");
    }
    assert_eq!(refused("true &&\n  || 1").line, 2);
    assert!(refused(&format!("true{}", " || true".repeat(1000))).message.contains("4096"));
    // Excessive nesting is refused and does not end the process.
    assert!(Condition::compile(&format!("{}true{}", "(".repeat(1500), ")".repeat(1500))).is_err());
    for good in [
        "has(arguments.x) && arguments.x > 1.5",
        "arguments.list.exists(a, a.b in ['x', 'y'])",
        "type(arguments.x) == string",
        "session.client != null && session.client.startsWith('a')",
        "arguments['a b'] == {'k': [1, 2]}",
        "size(arguments) > 3 ? principal.role == 'agent' : tool.annotations.openWorldHint",
    ] {
        assert!(Condition::compile(good).is_ok(), "{good}: {:?}", Condition::compile(good));
    }
}

#[test]
fn only_conditions_on_arguments_may_take_long() {
    let ruling = policy(
        PolicyDefault::Allow,
        vec![
            Rule {
                roles: vec![Role::Reviewer],
                when: compiled("arguments.a.all(x, x > 1)"),
                ..Rule::new("a", Verdict::Deny)
            },
            Rule { when: compiled("arguments.b > 1"), ..Rule::new("b", Verdict::Deny) },
        ],
    )
    .ruling(&tool(false));
    let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    let large = raw(&format!("\"{}\"", "x".repeat(20_000)));
    assert!(!ruling.may_take_long(&principal(Role::Agent), &raw("{}")));
    assert!(ruling.may_take_long(&principal(Role::Reviewer), &raw("{}")));
    assert!(ruling.may_take_long(&principal(Role::Agent), &large));
}

#[test]
fn rules_name_operations_like_tools() {
    use Verdict as V;
    let operation = |name: &str, is_known: bool| ToolFacts {
        operation: Some(ToolOperation {
            name: name.to_owned(),
            status: if is_known { OperationStatus::Known } else { OperationStatus::Unknown },
        }),
        ..tool(false)
    };
    let rule =
        |tools: &str, then| Rule { tools: Globs::new(vec![tools.to_owned()]).unwrap(), ..Rule::new(tools, then) };
    let rules = vec![rule("fs__write/Delete*", V::Deny), rule("fs__write/Get", V::Allow), rule("fs__write", V::Review)];
    let by_operation = policy(PolicyDefault::Allow, rules);
    let verdict = |policy: &Policy, name: &str, is_known| decide(policy, &operation(name, is_known), "{}").verdict;
    assert_eq!(verdict(&by_operation, "DeleteAll", true), V::Deny);
    assert_eq!(verdict(&by_operation, "DeleteOther", false), V::Deny, "an unknown operation can be denied");
    assert_eq!(verdict(&by_operation, "Get", true), V::Allow);
    assert_eq!(verdict(&by_operation, "Post", true), V::Review, "a rule for the tool covers its operations");
    assert_eq!(decide(&by_operation, &tool(false), "{}").verdict, V::Review, "a rule for an operation covers no tool");

    let allowing = policy(PolicyDefault::Allow, Vec::new());
    assert_eq!(verdict(&allowing, "Post", true), V::Allow);
    let unknown = decide(&allowing, &operation("Post", false), "{}");
    assert_eq!((unknown.verdict, unknown.mark), (V::Review, Some(AcceptanceMark::OperationUnknown)));
    let condition = Rule { when: compiled("tool.operation == 'Post'"), ..Rule::new("r", V::Deny) };
    assert_eq!(verdict(&policy(PolicyDefault::Allow, vec![condition]), "Post", true), V::Deny);
}

#[test]
fn only_rules_about_operations_allow_operations() {
    use Verdict as V;
    let delete = ToolFacts {
        operation: Some(ToolOperation { name: "deleteComment".into(), status: OperationStatus::Known }),
        ..tool(false)
    };
    let verdict = |pattern: &str, then| {
        let rule = Rule { tools: globs(pattern), ..Rule::new("r", then) };
        decide(&policy(PolicyDefault::ReviewAll, vec![rule]), &delete, "{}").verdict
    };
    for pattern in ["fs__write", "fs__*", "*/delete*", "fs__write/*", "{x,fs__write/deleteComment}"] {
        assert_eq!(verdict(pattern, V::Allow), V::Allow, "{pattern}");
    }
    for pattern in ["*Comment*", "fs__write?deleteComment", "*delete*"] {
        assert_eq!((verdict(pattern, V::Allow), verdict(pattern, V::Deny)), (V::Review, V::Deny), "{pattern}");
    }
}

#[test]
fn stricter_rules_for_any_operation_cover_an_unclear_one() {
    use Verdict as V;
    let unclear = ToolFacts {
        operation: Some(ToolOperation { name: String::new(), status: OperationStatus::Unclear }),
        ..tool(false)
    };
    let decide = |rule: Rule| {
        let decision = decide(&policy(PolicyDefault::Allow, vec![rule, Rule::new("rest", V::Allow)]), &unclear, "{}");
        assert_eq!(decision.mark, Some(AcceptanceMark::OperationUnknown));
        decision.verdict
    };
    for pattern in ["fs__write/Delete*", "fs__write/Get", "*Delete*", "fs__write"] {
        let rule = |then| Rule { tools: globs(pattern), ..Rule::new("r", then) };
        assert_eq!((decide(rule(V::Deny)), decide(rule(V::Allow))), (V::Deny, V::Review), "{pattern}");
    }
    assert_eq!(decide(Rule { tools: globs("fs__read/Delete"), ..Rule::new("r", V::Deny) }), V::Review);
    for when in [
        "tool.operation == 'Delete'",
        "tool.operation != 'Get'",
        "tool.operation in ['Delete', 'Drop']",
        "tool.operation.startsWith('Delete')",
        "tool.operation.matches('^Delete')",
        "tool['operation'] == 'Delete'",
        "has(tool.operation) && tool.operation == 'Delete'",
        "tool.operation == 'Delete' && principal.role == 'agent'",
    ] {
        assert_eq!(decide(Rule { when: compiled(when), ..Rule::new("r", V::Deny) }), V::Deny, "{when}");
    }
    assert_eq!(decide(Rule { when: compiled("tool.server == 'other'"), ..Rule::new("r", V::Deny) }), V::Review);
}

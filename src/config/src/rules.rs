//! Compiles `policy.rules` from the tree of the file, and reports each problem at its line.

use std::sync::Arc;

use super::{
    error::{ValueError, invalid, quoted},
    reader::{MapList, Reader, fields::Fields},
    terms::{self, FormattedSetting},
    tree::Node,
    values::{boolean, parse_role, read_visible_text, variant},
    yaml::{yaml_items, yaml_map},
};
use countersign_domain::{
    changes::{Terms, digest::PartHasher},
    policy::{AnnotationsMatch, Condition, Globs, Groups, Rule, Verdict},
};

const KEY: &str = "policy.rules";
/// The maximum number of rules.
const MAX_RULES: usize = 1000;
/// The keys of a rule, followed by those of a review.
const RULE_KEYS: [&str; 13] = [
    "name",
    "disabled",
    "tools",
    "servers",
    "roles",
    "principals",
    "annotations",
    "when",
    "resources",
    "prompts",
    "methods",
    "then",
    "reason",
];
const ANNOTATION_KEYS: [&str; 4] = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];

const LIST: MapList = MapList {
    key: KEY,
    noun: "rule",
    example: "{ tools: \"…\", then: review }",
    keys: &RULE_KEYS,
    max_entries: MAX_RULES,
    // An empty value would match everything, which is never intended.
    keeps_null: true,
};

/// Reads and compiles the rules of the policy. `review` holds the default terms of rules that review.
pub(super) fn read(r: &mut Reader, review: &Arc<Terms>, groups: &Groups) -> Vec<Rule> {
    let mut labels: Vec<Arc<str>> = Vec::new();
    let mut enabled = 0;
    let list = r.read_list(&LIST, |number, fields| {
        let mut rule = read_rule(fields, number, review, groups);
        let is_disabled = fields.read("disabled", boolean()).unwrap_or(false);
        enabled += usize::from(!is_disabled);
        if !is_named(&rule, number) {
            // Unnamed rules are numbered as if the disabled ones were not there.
            rule.label = if is_disabled { format!("disabled {number}") } else { format!("rule {enabled}") }.into();
        }
        if let Some(other) = labels.iter().position(|label| *label == rule.label) {
            let message = format!("the rules {} and {number} have the same name", other + 1);
            fields.report_map(message, "Give each a name of its own.");
        }
        labels.push(Arc::clone(&rule.label));
        (!is_disabled).then_some(rule)
    });
    let Some(rules) = list else { return Vec::new() };
    let rules: Vec<Rule> = rules.into_iter().flatten().collect();
    r.add_setting(KEY, show(&rules, review));
    let with_identity = |(index, rule): (usize, Rule)| Rule { identity: identity(&rule, index + 1, review), ..rule };
    rules.into_iter().enumerate().map(with_identity).collect()
}

/// Returns the key of a rule's counts. An unnamed rule keeps its counts while it says the same, wherever it stands.
fn identity(rule: &Rule, number: usize, review: &Terms) -> Arc<str> {
    if is_named(rule, number) {
        return format!("rule {}", rule.label).into();
    }
    let unnamed = Rule { label: "rule 1".into(), ..rule.clone() };
    let mut hasher = PartHasher::new("countersign.rule.1");
    hasher.add_part(show(&[unnamed], review).as_bytes());
    hasher.finish().into()
}

fn read_rule(f: &mut Fields<'_>, number: usize, review: &Arc<Terms>, groups: &Groups) -> Rule {
    f.reject_unknown_keys(&[&RULE_KEYS[..], &terms::TERM_KEYS].concat());
    let mut rule = Rule { terms: Arc::clone(review), ..Rule::new(format!("rule {number}"), Verdict::Deny) };
    if let Some(name) = f.parse("name", |node| read_visible_text(node, 64)) {
        rule.label = Arc::from(name);
    }
    rule.reason = f.parse("reason", |node| read_visible_text(node, 300)).map(Arc::from);
    rule.tools = read_globs(f, "tools");
    rule.resources = read_globs(f, "resources");
    rule.prompts = read_globs(f, "prompts");
    rule.methods = read_globs(f, "methods");
    rule.servers = read_globs(f, "servers");
    rule.principals = read_globs(f, "principals");
    rule.roles = f.parse_texts("roles", parse_role);
    if let Some(mut hints) = f.section("annotations", &ANNOTATION_KEYS) {
        let [read_only_hint, destructive_hint, idempotent_hint, open_world_hint] =
            ANNOTATION_KEYS.map(|key| hints.read(key, boolean()));
        rule.annotations = AnnotationsMatch { read_only_hint, destructive_hint, idempotent_hint, open_world_hint };
    }
    rule.when = f.parse("when", compile_condition);
    if f.has("then") {
        f.read_into("then", variant(), &mut rule.then);
    } else {
        f.report_map(format!("rule {number} has no `then`"), "Write then: allow, review or deny.");
    }
    check_non_tool_targets(f, &rule, number);
    match f.present_keys(terms::TERM_KEYS).first() {
        Some(term) if f.has("then") && rule.then != Verdict::Review => {
            let message = format!("{term} applies to reviews only, and rule {number} says {}", rule.then.as_str());
            f.report(term, message, "Write then: review, or leave it out.");
        }
        Some(_) => {
            rule.terms = Arc::new(terms::read(f, review));
            if let Some(key) = f.present_keys(["reviewers", "quorum"]).first() {
                f.accept(key, terms::check_reviewers(&rule.terms, groups));
            }
            if f.has("escalate") {
                f.accept("escalate", terms::check_escalation(&rule.terms, groups));
            }
        }
        None => {}
    }
    rule
}

/// Reports keys that a rule about resources, prompts or methods must not have.
fn check_non_tool_targets(f: &mut Fields<'_>, rule: &Rule, number: usize) {
    if !rule.names_non_tools() {
        return;
    }
    let names = format!("rule {number} names resources, prompts or methods");
    if rule.then == Verdict::Review {
        let message = format!("{names} and says review, but only calls of tools can be reviewed");
        f.report_map(message, "Write then: allow or then: deny, and a rule of its own for tools.");
    }
    if rule.annotations != AnnotationsMatch::default() {
        f.report_map(format!("{names} and asks for annotations, which only tools have"), "Split it into two rules.");
    }
    if rule.when.as_ref().is_some_and(|when| when.uses("arguments") || when.uses("tool")) {
        let message = format!("{names}, and its condition looks at a tool or its arguments");
        f.report_map(message, "Split it into two rules; here `when` may look at principal and session.");
    }
}

fn read_globs(f: &mut Fields<'_>, name: &str) -> Globs {
    let texts = f.parse_texts(name, |text| Ok(text.to_owned()));
    let globs = Globs::new(texts).map_err(|(pattern, reason)| {
        invalid(format!("{} is not a pattern: {reason}", quoted(&pattern)), "Write file_* or {a,b}_*.")
    });
    f.accept(name, globs).unwrap_or_default()
}

fn compile_condition(node: &Node) -> Result<Condition, ValueError> {
    let Node::Text(source) = node else {
        let message = format!("expected a condition, found {}", node.describe_kind());
        return Err(invalid(message, "Put it in quotes: when: \"arguments.count > 10\"."));
    };
    Condition::compile(source).map_err(|error| {
        let message = format!("the condition cannot be used: {}{}", error.message, error.position_suffix());
        invalid(message, "Correct it; it is written in CEL (https://cel.dev).")
    })
}

/// Formats the rules for `config show` as they would be written in the file.
pub(super) fn show(rules: &[Rule], review: &Terms) -> String {
    yaml_items(format_each(rules, review))
}

/// Formats each rule as it would be written in the file.
pub(super) fn format_each(rules: &[Rule], review: &Terms) -> impl Iterator<Item = String> {
    rules.iter().zip(1..).map(|(rule, number)| yaml_map(format_settings(rule, number, review)))
}

/// Formats the keys of the rule with this number and their values, as they would be written in the file.
pub fn format_settings(rule: &Rule, number: usize, review: &Terms) -> Vec<FormattedSetting> {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let list = |globs: &Globs| serde_json::Value::from(globs.patterns()).to_string();
    let mut parts = Vec::new();
    if is_named(rule, number) {
        parts.push(("name", text(&rule.label)));
    }
    for (key, globs) in [
        ("tools", &rule.tools),
        ("resources", &rule.resources),
        ("prompts", &rule.prompts),
        ("methods", &rule.methods),
        ("servers", &rule.servers),
        ("principals", &rule.principals),
    ] {
        if !globs.is_empty() {
            parts.push((key, list(globs)));
        }
    }
    if !rule.roles.is_empty() {
        parts.push(("roles", yaml_items(rule.roles.iter().map(|role| role.as_str().to_owned()))));
    }
    let AnnotationsMatch { read_only_hint, destructive_hint, idempotent_hint, open_world_hint } = rule.annotations;
    let hints = [read_only_hint, destructive_hint, idempotent_hint, open_world_hint];
    if rule.annotations != AnnotationsMatch::default() {
        let hints = ANNOTATION_KEYS.into_iter().zip(hints).filter_map(|(key, hint)| Some((key, hint?.to_string())));
        parts.push(("annotations", yaml_map(hints)));
    }
    if let Some(when) = &rule.when {
        parts.push(("when", text(when.source())));
    }
    parts.push(("then", rule.then.as_str().to_owned()));
    parts.extend(terms::format_differences(&rule.terms, review));
    if let Some(reason) = &rule.reason {
        parts.push(("reason", text(reason)));
    }
    parts
}

/// Returns `true` if the rule with this number has a name of its own.
fn is_named(rule: &Rule, number: usize) -> bool {
    *rule.label != *format!("rule {number}")
}

/// Returns the rules with those generated names that belong to their places in this list.
pub(super) fn renumber(rules: &[Rule]) -> Vec<Rule> {
    let mut rules = rules.to_vec();
    for (rule, number) in rules.iter_mut().zip(1..).filter(|(rule, _)| is_generated(&rule.label)) {
        rule.label = format!("rule {number}").into();
    }
    rules
}

/// Returns `true` for `rule 3`, and for `rule 3 (2)`, which is in force beside another `rule 3`.
fn is_generated(label: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(rest) = label.strip_prefix("rule ") else { return false };
    match rest.split_once(" (") {
        Some((number, copy)) => is_number(number) && copy.strip_suffix(')').is_some_and(is_number),
        None => is_number(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::digest::body_hash;

    #[test]
    fn unnamed_rule_has_own_identity_wherever_it_stands() {
        let review = Terms::default();
        let rule = |number| Rule::new(format!("rule {number}"), Verdict::Deny);
        let first = identity(&rule(1), 1, &review);
        assert_eq!(first, identity(&rule(2), 2, &review));
        assert_ne!(*first, *body_hash(&show(&[rule(1)], &review)), "that hash is for changes");
    }

    #[test]
    fn only_generated_names_are_renumbered() {
        let rules = ["rule 7", "rule 7 (2)", "rule x", "rule 7 (copy)", "rule "].map(|l| Rule::new(l, Verdict::Deny));
        let labels: Vec<_> = renumber(&rules).into_iter().map(|rule| rule.label.to_string()).collect();
        assert_eq!(labels, ["rule 1", "rule 2", "rule x", "rule 7 (copy)", "rule "]);
    }
}

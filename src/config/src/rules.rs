//! Compiles `policy.rules` from the tree of the file, and reports each problem at its line.

use std::sync::Arc;

use super::{
    error::{Origin, Problem, quoted},
    terms,
    tree::{KeyValue, LocatedNode, Node},
    values::ValueError,
};
use countersign_domain::{
    changes::Terms,
    policy::{AnnotationsMatch, Condition, Globs, Groups, Rule, Verdict},
    principal::Role,
};

/// The maximum number of rules.
const MAX_RULES: usize = 1000;

const RULE_KEYS: &str = "name, tools, servers, roles, principals, annotations, when, resources, prompts, methods, then, \
                    reason; for a review also \
                    reviewers, quorum, expire_after, on_expiry, require_comment, edit, on_review, hold_for, undo_for, \
                    preview, open_page, questions";
const ANNOTATION_NAMES: &str = "readOnlyHint, destructiveHint, idempotentHint, openWorldHint";

/// Compiles a list of rules. `at` returns the origin of a position.
///
/// # Errors
/// All problems of the list.
pub(super) fn read(
    list: &Node,
    at: &dyn Fn(&LocatedNode) -> Origin,
    whole: &Origin,
    review: &Arc<Terms>,
    groups: &Groups,
) -> Result<Vec<Rule>, Vec<Problem>> {
    let items = match list {
        Node::Null => return Ok(Vec::new()),
        Node::List(items) => items,
        other => {
            let message = format!("expected a list of rules, found {}", other.describe_kind());
            return Err(vec![problem(whole.clone(), message, "Write - { tools: \"…\", then: review }.")]);
        }
    };
    if items.len() > MAX_RULES {
        let message = format!("more than {MAX_RULES} rules");
        return Err(vec![problem(whole.clone(), message, "Join some with patterns.")]);
    }
    let mut rules: Vec<Rule> = Vec::new();
    let mut problems = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let mut reader = RuleReader { at, review, groups, problems: Vec::new() };
        if let Some(rule) = reader.read_rule(item, index + 1) {
            if let Some(other) = rules.iter().position(|other| other.label == rule.label) {
                let message = format!("the rules {} and {} have the same name", other + 1, index + 1);
                reader.problems.push(problem(at(item), message, "Give each a name of its own."));
            }
            rules.push(rule);
        }
        problems.append(&mut reader.problems);
    }
    if problems.is_empty() { Ok(rules) } else { Err(problems) }
}

fn problem(origin: Origin, message: impl Into<String>, remedy: impl Into<String>) -> Problem {
    Problem { origin, key: Some("policy.rules".to_owned()), message: message.into(), remedy: remedy.into() }
}

struct RuleReader<'a> {
    at: &'a dyn Fn(&LocatedNode) -> Origin,
    review: &'a Arc<Terms>,
    groups: &'a Groups,
    problems: Vec<Problem>,
}

impl RuleReader<'_> {
    pub(super) fn report(&mut self, spot: &LocatedNode, message: impl Into<String>, remedy: impl Into<String>) {
        self.problems.push(problem((self.at)(spot), message, remedy));
    }

    fn read_rule(&mut self, item: &LocatedNode, number: usize) -> Option<Rule> {
        let Node::Map(entries) = &item.node else {
            let message = format!("rule {number} is {}, not a map", item.node.describe_kind());
            self.report(item, message, format!("Keys of a rule: {RULE_KEYS}."));
            return None;
        };
        let mut rule = Rule { terms: Arc::clone(self.review), ..Rule::new(format!("rule {number}"), Verdict::Deny) };
        let mut term_entries: Vec<&KeyValue> = Vec::new();
        let mut has_verdict = false;
        for entry @ KeyValue { key, line, column, value } in entries {
            match key.as_str() {
                key if terms::TERM_KEYS.contains(&key) => term_entries.push(entry),
                "name" => rule.label = self.text(value, 64).map_or(rule.label, Arc::from),
                "reason" => rule.reason = self.text(value, 300).map(Arc::from),
                "tools" => rule.tools = self.globs(value),
                "resources" => rule.resources = self.globs(value),
                "prompts" => rule.prompts = self.globs(value),
                "methods" => rule.methods = self.globs(value),
                "servers" => rule.servers = self.globs(value),
                "principals" => rule.principals = self.globs(value),
                "roles" => rule.roles = self.roles(value),
                "annotations" => rule.annotations = self.annotations(value),
                "when" => rule.when = self.condition(value),
                "then" => {
                    has_verdict = true;
                    rule.then = self.verdict(value).unwrap_or(rule.then);
                }
                other => {
                    let spot = LocatedNode { node: Node::Null, line: *line, column: *column };
                    self.report(&spot, format!("a rule has no key {}", quoted(other)), format!("Keys: {RULE_KEYS}."));
                }
            }
        }
        if !has_verdict {
            self.report(item, format!("rule {number} has no `then`"), "Write then: allow, review or deny.");
        }
        self.check_non_tool_targets(&rule, item, number);
        if let Some(first) = term_entries.first()
            && has_verdict
            && rule.then != Verdict::Review
        {
            let message =
                format!("{} applies to reviews only, and rule {number} says {}", first.key, rule.then.as_str());
            self.report(&terms::key_location(first), message, "Write then: review, or leave it out.");
        } else if !term_entries.is_empty() {
            rule.terms = Arc::new(self.read_terms(&term_entries));
        }
        Some(rule)
    }

    /// Reports keys that a rule about resources, prompts or methods must not have.
    fn check_non_tool_targets(&mut self, rule: &Rule, item: &LocatedNode, number: usize) {
        if !rule.names_non_tools() {
            return;
        }
        let names = "names resources, prompts or methods";
        if rule.then == Verdict::Review {
            let message = format!("rule {number} {names} and says review, but only calls of tools can be reviewed");
            self.report(item, message, "Write then: allow or then: deny, and a rule of its own for tools.");
        }
        if rule.annotations != AnnotationsMatch::default() {
            let message = format!("rule {number} {names} and asks for annotations, which only tools have");
            self.report(item, message, "Make two rules of it.");
        }
        if rule.when.as_ref().is_some_and(|when| when.uses().arguments || when.uses().tool) {
            let message = format!("rule {number} {names}, and its condition looks at a tool or its arguments");
            self.report(item, message, "Make two rules of it; here `when` may look at principal and session.");
        }
    }

    /// Returns the terms of `policy.review` overridden by those of the rule.
    fn read_terms(&mut self, term_entries: &[&KeyValue]) -> Terms {
        let mut terms = Terms::clone(self.review);
        for entry in term_entries {
            self.read_term(entry, &mut terms);
        }
        let reviewer_entry = term_entries.iter().find(|entry| matches!(entry.key.as_str(), "reviewers" | "quorum"));
        if let Some(entry) = reviewer_entry
            && let Err((message, remedy)) = terms::check_reviewers(&terms, self.groups)
        {
            self.report(&entry.value, message, remedy);
        }
        terms
    }

    /// Reads one term of a rule.
    fn read_term(&mut self, entry: &KeyValue, terms: &mut Terms) {
        let KeyValue { key, value, .. } = entry;
        match key.as_str() {
            "reviewers" => terms.reviewers = self.texts(value).into_iter().map(|(name, _)| name).collect(),
            "quorum" => self.read_into(value, &mut terms.quorum, terms::parse_quorum),
            "expire_after" => self.read_into(value, &mut terms.expire_after, |node| match node {
                Node::Null => Ok(None),
                node => terms::parse_seconds(node, &terms::EXPIRE_AFTER_RANGE).map(Some),
            }),
            "on_expiry" => {
                self.read_into(value, &mut terms.on_expiry, |node| terms::parse_choice(node, &terms::ON_EXPIRY_CHOICES))
            }
            "require_comment" => self.read_into(value, &mut terms.require_comment, terms::parse_boolean),
            "edit" => self.read_into(value, &mut terms.edit, |node| terms::parse_choice(node, &terms::EDIT_CHOICES)),
            "preview" => self.read_into(value, &mut terms.preview_required, |node| {
                terms::parse_choice(node, &terms::PREVIEW_CHOICES)
            }),
            "on_review" => {
                self.read_into(value, &mut terms.on_review, |node| terms::parse_choice(node, &terms::ON_REVIEW_CHOICES))
            }
            "hold_for" => {
                self.read_into(value, &mut terms.hold_for, |node| terms::parse_seconds(node, &terms::HOLD_FOR_RANGE))
            }
            "undo_for" => {
                self.read_into(value, &mut terms.undo_for, |node| terms::parse_seconds(node, &terms::UNDO_FOR_RANGE))
            }
            "questions" => {
                self.read_into(value, &mut terms.questions, |node| terms::parse_choice(node, &terms::QUESTIONS_CHOICES))
            }
            _ => self.read_into(value, &mut terms.open_page, terms::parse_boolean),
        }
    }

    fn read_into<T>(&mut self, spot: &LocatedNode, field: &mut T, read: impl Fn(&Node) -> Result<T, ValueError>) {
        match read(&spot.node) {
            Ok(value) => *field = value,
            Err((message, remedy)) => self.report(spot, message, remedy),
        }
    }

    fn text(&mut self, spot: &LocatedNode, max_chars: usize) -> Option<String> {
        match &spot.node {
            Node::Text(text)
                if !text.trim().is_empty()
                    && text.chars().count() <= max_chars
                    && !countersign_domain::changes::visible::has_hidden(text) =>
            {
                Some(text.clone())
            }
            Node::Text(text) => {
                self.report(
                    spot,
                    format!("{} does not fit here", quoted(text)),
                    format!("Write 1 to {max_chars} visible characters."),
                );
                None
            }
            other => {
                self.report(spot, format!("expected a text, found {}", other.describe_kind()), "Put it in quotes.");
                None
            }
        }
    }

    /// Reads one text or a list of texts, each with its position.
    pub(super) fn texts(&mut self, spot: &LocatedNode) -> Vec<(String, LocatedNode)> {
        let items = match &spot.node {
            Node::Text(_) => std::slice::from_ref(spot),
            // An empty list would match everything, which is never intended.
            Node::List(items) if !items.is_empty() => items.as_slice(),
            other => {
                let found = if matches!(other, Node::List(_)) { "an empty list" } else { other.describe_kind() };
                self.report(
                    spot,
                    format!("expected a text or a list of texts, found {found}"),
                    "Write one, or leave the key out.",
                );
                return Vec::new();
            }
        };
        let mut texts = Vec::new();
        for item in items {
            match &item.node {
                Node::Text(text) => texts.push((text.clone(), item.clone())),
                other => {
                    self.report(item, format!("expected a text, found {}", other.describe_kind()), "Put it in quotes.")
                }
            }
        }
        texts
    }

    fn globs(&mut self, spot: &LocatedNode) -> Globs {
        let texts = self.texts(spot).into_iter().map(|(text, _)| text).collect();
        match Globs::new(texts) {
            Ok(globs) => globs,
            Err((pattern, reason)) => {
                self.report(
                    spot,
                    format!("{} is not a pattern: {reason}", quoted(&pattern)),
                    "Write file_* or {a,b}_*.",
                );
                Globs::default()
            }
        }
    }

    fn roles(&mut self, spot: &LocatedNode) -> Vec<Role> {
        let mut roles = Vec::new();
        for (text, place) in self.texts(spot) {
            match Role::parse(&text) {
                Some(role) => roles.push(role),
                None => {
                    self.report(
                        &place,
                        format!("{} is not a role", quoted(&text)),
                        "Write agent, reviewer, viewer or admin.",
                    );
                }
            }
        }
        roles
    }

    fn annotations(&mut self, spot: &LocatedNode) -> AnnotationsMatch {
        let mut all = AnnotationsMatch::default();
        let Node::Map(entries) = &spot.node else {
            let message = format!("expected a map of annotations, found {}", spot.node.describe_kind());
            self.report(spot, message, "Write { readOnlyHint: true }.");
            return all;
        };
        for KeyValue { key, value, .. } in entries {
            let field = match key.as_str() {
                "readOnlyHint" => &mut all.read_only_hint,
                "destructiveHint" => &mut all.destructive_hint,
                "idempotentHint" => &mut all.idempotent_hint,
                "openWorldHint" => &mut all.open_world_hint,
                other => {
                    self.report(
                        value,
                        format!("there is no annotation {}", quoted(other)),
                        format!("There are {ANNOTATION_NAMES}."),
                    );
                    continue;
                }
            };
            match &value.node {
                Node::Bool(asked) => *field = Some(*asked),
                other => self.report(
                    value,
                    format!("expected true or false, found {}", other.describe_kind()),
                    "Write true or false.",
                ),
            }
        }
        all
    }

    fn condition(&mut self, spot: &LocatedNode) -> Option<Condition> {
        let Node::Text(source) = &spot.node else {
            let message = format!("expected a condition, found {}", spot.node.describe_kind());
            self.report(spot, message, "Put it in quotes: when: \"arguments.count > 10\".");
            return None;
        };
        match Condition::compile(source) {
            Ok(condition) => Some(condition),
            Err(error) => {
                let message = format!("the condition cannot be used: {}{}", error.message, error.position_suffix());
                self.report(spot, message, "Correct it; it is written in CEL (https://cel.dev).");
                None
            }
        }
    }

    fn verdict(&mut self, spot: &LocatedNode) -> Option<Verdict> {
        let word = match &spot.node {
            Node::Text(word) => word.as_str(),
            other => other.describe_kind(),
        };
        match word {
            "allow" => Some(Verdict::Allow),
            "review" => Some(Verdict::Review),
            "deny" => Some(Verdict::Deny),
            other => {
                self.report(spot, format!("{} is not one of allow, review, deny", quoted(other)), "Write one of them.");
                None
            }
        }
    }
}

/// Formats the rules for `config show` as they would be written in the file.
pub(super) fn show(rules: &[Rule], review: &Terms) -> String {
    format!("[{}]", format_each(rules, review).join(", "))
}

/// Formats each rule as it would be written in the file.
pub(super) fn format_each(rules: &[Rule], review: &Terms) -> Vec<String> {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let list = |globs: &Globs| serde_json::Value::from(globs.patterns()).to_string();
    let each = rules.iter().enumerate().map(|(index, rule)| {
        let mut parts = Vec::new();
        if *rule.label != *format!("rule {}", index + 1) {
            parts.push(format!("name: {}", text(&rule.label)));
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
                parts.push(format!("{key}: {}", list(globs)));
            }
        }
        if !rule.roles.is_empty() {
            let roles: Vec<&str> = rule.roles.iter().map(|role| role.as_str()).collect();
            parts.push(format!("roles: [{}]", roles.join(", ")));
        }
        let annotations = &rule.annotations;
        let hints: Vec<String> = [
            ("readOnlyHint", annotations.read_only_hint),
            ("destructiveHint", annotations.destructive_hint),
            ("idempotentHint", annotations.idempotent_hint),
            ("openWorldHint", annotations.open_world_hint),
        ]
        .into_iter()
        .filter_map(|(hint, value)| value.map(|value| format!("{hint}: {value}")))
        .collect();
        if !hints.is_empty() {
            parts.push(format!("annotations: {{ {} }}", hints.join(", ")));
        }
        if let Some(when) = &rule.when {
            parts.push(format!("when: {}", text(when.source())));
        }
        parts.push(format!("then: {}", rule.then.as_str()));
        parts.extend(terms::format_differences(&rule.terms, review));
        if let Some(reason) = &rule.reason {
            parts.push(format!("reason: {}", text(reason)));
        }
        format!("{{ {} }}", parts.join(", "))
    });
    each.collect()
}

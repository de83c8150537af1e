//! `policy.rules`: from the file's tree to compiled rules, each problem at its own line.

use std::sync::Arc;

use super::{
    error::{Origin, Problem, quoted},
    terms,
    tree::{KeyValue, Node, Spot},
    values::Wrong,
};
use countersign_domain::{
    changes::Terms,
    policy::{AnnotationsMatch, Condition, Globs, Groups, Rule, Verdict},
    principal::Role,
};

/// Rules in one configuration.
const MAX_RULES: usize = 1000;

const KEYS: &str = "name, tools, servers, roles, principals, annotations, when, resources, prompts, methods, then, \
                    reason; for a review also \
                    reviewers, quorum, expire_after, on_expiry, require_comment, edit, on_review, hold_for, undo_for, \
                    preview, open_page, questions";
const HINTS: &str = "readOnlyHint, destructiveHint, idempotentHint, openWorldHint";

/// Reads the list. `at` makes an origin of a line and a column.
///
/// # Errors
/// All that is wrong with it.
pub(super) fn read(
    list: &Node,
    at: &dyn Fn(&Spot) -> Origin,
    whole: &Origin,
    review: &Arc<Terms>,
    groups: &Groups,
) -> Result<Vec<Rule>, Vec<Problem>> {
    let items = match list {
        Node::Null => return Ok(Vec::new()),
        Node::List(items) => items,
        other => {
            let message = format!("expected a list of rules, found {}", other.kind());
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
        let mut one = One { at, review, groups, problems: Vec::new() };
        if let Some(rule) = one.rule(item, index + 1) {
            if let Some(other) = rules.iter().position(|other| other.label == rule.label) {
                let message = format!("the rules {} and {} have the same name", other + 1, index + 1);
                one.problems.push(problem(at(item), message, "Give each a name of its own."));
            }
            rules.push(rule);
        }
        problems.append(&mut one.problems);
    }
    if problems.is_empty() { Ok(rules) } else { Err(problems) }
}

fn problem(origin: Origin, message: impl Into<String>, remedy: impl Into<String>) -> Problem {
    Problem { origin, key: Some("policy.rules".to_owned()), message: message.into(), remedy: remedy.into() }
}

struct One<'a> {
    at: &'a dyn Fn(&Spot) -> Origin,
    review: &'a Arc<Terms>,
    groups: &'a Groups,
    problems: Vec<Problem>,
}

impl One<'_> {
    pub(super) fn wrong(&mut self, spot: &Spot, message: impl Into<String>, remedy: impl Into<String>) {
        self.problems.push(problem((self.at)(spot), message, remedy));
    }

    fn rule(&mut self, item: &Spot, number: usize) -> Option<Rule> {
        let Node::Map(entries) = &item.node else {
            let message = format!("rule {number} is {}, not a map", item.node.kind());
            self.wrong(item, message, format!("Keys of a rule: {KEYS}."));
            return None;
        };
        let mut rule = Rule { terms: Arc::clone(self.review), ..Rule::new(format!("rule {number}"), Verdict::Deny) };
        let mut asked: Vec<&KeyValue> = Vec::new();
        let mut decided = false;
        for entry @ KeyValue { key, line, column, value } in entries {
            match key.as_str() {
                key if terms::KEYS.contains(&key) => asked.push(entry),
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
                    decided = true;
                    rule.then = self.verdict(value).unwrap_or(rule.then);
                }
                other => {
                    let spot = Spot { node: Node::Null, line: *line, column: *column };
                    self.wrong(&spot, format!("a rule has no key {}", quoted(other)), format!("Keys: {KEYS}."));
                }
            }
        }
        if !decided {
            self.wrong(item, format!("rule {number} has no `then`"), "Write then: allow, review or deny.");
        }
        self.of_others(&rule, item, number);
        if let Some(first) = asked.first()
            && decided
            && rule.then != Verdict::Review
        {
            let message =
                format!("{} applies to reviews only, and rule {number} says {}", first.key, rule.then.as_str());
            self.wrong(&terms::spot(first), message, "Write then: review, or leave it out.");
        } else if !asked.is_empty() {
            rule.terms = Arc::new(self.terms(&asked));
        }
        Some(rule)
    }

    /// What does not go together with resources, prompts and methods.
    fn of_others(&mut self, rule: &Rule, item: &Spot, number: usize) {
        if !rule.names_others() {
            return;
        }
        let names = "names resources, prompts or methods";
        if rule.then == Verdict::Review {
            let message = format!("rule {number} {names} and says review, but only calls of tools can be reviewed");
            self.wrong(item, message, "Write then: allow or then: deny, and a rule of its own for tools.");
        }
        if rule.annotations != AnnotationsMatch::default() {
            let message = format!("rule {number} {names} and asks for annotations, which only tools have");
            self.wrong(item, message, "Make two rules of it.");
        }
        if rule.when.as_ref().is_some_and(|when| when.uses().arguments || when.uses().tool) {
            let message = format!("rule {number} {names}, and its condition looks at a tool or its arguments");
            self.wrong(item, message, "Make two rules of it; here `when` may look at principal and session.");
        }
    }

    /// What the rule asks of a review, over what every review is asked.
    fn terms(&mut self, asked: &[&KeyValue]) -> Terms {
        let mut all = Terms::clone(self.review);
        for entry in asked {
            self.term(entry, &mut all);
        }
        let place = asked.iter().find(|entry| matches!(entry.key.as_str(), "reviewers" | "quorum"));
        if let Some(entry) = place
            && let Err((message, remedy)) = terms::check(&all, self.groups)
        {
            self.wrong(&entry.value, message, remedy);
        }
        all
    }

    /// Reads one key of a rule.
    fn term(&mut self, entry: &KeyValue, all: &mut Terms) {
        let KeyValue { key, value, .. } = entry;
        match key.as_str() {
            "reviewers" => all.reviewers = self.texts(value).into_iter().map(|(name, _)| name).collect(),
            "quorum" => self.set(value, &mut all.quorum, terms::number),
            "expire_after" => self.set(value, &mut all.expire_after, |node| match node {
                Node::Null => Ok(None),
                node => terms::seconds(node, &terms::EXPIRE_AFTER).map(Some),
            }),
            "on_expiry" => self.set(value, &mut all.on_expiry, |node| terms::word(node, &terms::ON_EXPIRY)),
            "require_comment" => self.set(value, &mut all.require_comment, terms::boolean),
            "edit" => self.set(value, &mut all.edit, |node| terms::word(node, &terms::EDIT)),
            "preview" => self.set(value, &mut all.preview_required, |node| terms::word(node, &terms::PREVIEW)),
            "on_review" => self.set(value, &mut all.on_review, |node| terms::word(node, &terms::ON_REVIEW)),
            "hold_for" => self.set(value, &mut all.hold_for, |node| terms::seconds(node, &terms::HOLD_FOR)),
            "undo_for" => self.set(value, &mut all.undo_for, |node| terms::seconds(node, &terms::UNDO_FOR)),
            "questions" => self.set(value, &mut all.questions, |node| terms::word(node, &terms::QUESTIONS)),
            _ => self.set(value, &mut all.open_page, terms::boolean),
        }
    }

    fn set<T>(&mut self, spot: &Spot, field: &mut T, read: impl Fn(&Node) -> Result<T, Wrong>) {
        match read(&spot.node) {
            Ok(value) => *field = value,
            Err((message, remedy)) => self.wrong(spot, message, remedy),
        }
    }

    fn text(&mut self, spot: &Spot, most: usize) -> Option<String> {
        match &spot.node {
            Node::Text(text)
                if !text.trim().is_empty()
                    && text.chars().count() <= most
                    && !countersign_domain::changes::visible::has_hidden(text) =>
            {
                Some(text.clone())
            }
            Node::Text(text) => {
                self.wrong(
                    spot,
                    format!("{} does not fit here", quoted(text)),
                    format!("1to {most} visible characters."),
                );
                None
            }
            other => {
                self.wrong(spot, format!("expected a text, found {}", other.kind()), "Put it in quotes.");
                None
            }
        }
    }

    /// One text, or a list of some.
    pub(super) fn texts(&mut self, spot: &Spot) -> Vec<(String, Spot)> {
        let items = match &spot.node {
            Node::Text(_) => std::slice::from_ref(spot),
            // An empty list would match everything, which nobody means who writes one.
            Node::List(items) if !items.is_empty() => items.as_slice(),
            other => {
                let found = if matches!(other, Node::List(_)) { "an empty list" } else { other.kind() };
                self.wrong(
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
                other => self.wrong(item, format!("expected a text, found {}", other.kind()), "Put it in quotes."),
            }
        }
        texts
    }

    fn globs(&mut self, spot: &Spot) -> Globs {
        let texts = self.texts(spot).into_iter().map(|(text, _)| text).collect();
        match Globs::new(texts) {
            Ok(globs) => globs,
            Err((pattern, reason)) => {
                self.wrong(
                    spot,
                    format!("{} is not a pattern: {reason}", quoted(&pattern)),
                    "Write file_* or {a,b}_*.",
                );
                Globs::default()
            }
        }
    }

    fn roles(&mut self, spot: &Spot) -> Vec<Role> {
        let mut roles = Vec::new();
        for (text, place) in self.texts(spot) {
            match Role::parse(&text) {
                Some(role) => roles.push(role),
                None => {
                    self.wrong(
                        &place,
                        format!("{} is not a role", quoted(&text)),
                        "Write agent, reviewer, viewer or admin.",
                    );
                }
            }
        }
        roles
    }

    fn annotations(&mut self, spot: &Spot) -> AnnotationsMatch {
        let mut all = AnnotationsMatch::default();
        let Node::Map(entries) = &spot.node else {
            let message = format!("expected a map of annotations, found {}", spot.node.kind());
            self.wrong(spot, message, "Write { readOnlyHint: true }.");
            return all;
        };
        for KeyValue { key, value, .. } in entries {
            let field = match key.as_str() {
                "readOnlyHint" => &mut all.read_only_hint,
                "destructiveHint" => &mut all.destructive_hint,
                "idempotentHint" => &mut all.idempotent_hint,
                "openWorldHint" => &mut all.open_world_hint,
                other => {
                    self.wrong(
                        value,
                        format!("there is no annotation {}", quoted(other)),
                        format!("There are {HINTS}."),
                    );
                    continue;
                }
            };
            match &value.node {
                Node::Bool(asked) => *field = Some(*asked),
                other => {
                    self.wrong(value, format!("expected true or false, found {}", other.kind()), "Write true or false.")
                }
            }
        }
        all
    }

    fn condition(&mut self, spot: &Spot) -> Option<Condition> {
        let Node::Text(source) = &spot.node else {
            let message = format!("expected a condition, found {}", spot.node.kind());
            self.wrong(spot, message, "Put it in quotes: when: \"arguments.count > 10\".");
            return None;
        };
        match Condition::compile(source) {
            Ok(condition) => Some(condition),
            Err(error) => {
                let message = format!("the condition cannot be used: {}{}", error.message, error.place());
                self.wrong(spot, message, "Correct it; it is written in CEL (https://cel.dev).");
                None
            }
        }
    }

    fn verdict(&mut self, spot: &Spot) -> Option<Verdict> {
        let word = match &spot.node {
            Node::Text(word) => word.as_str(),
            other => other.kind(),
        };
        match word {
            "allow" => Some(Verdict::Allow),
            "review" => Some(Verdict::Review),
            "deny" => Some(Verdict::Deny),
            other => {
                self.wrong(spot, format!("{} is not one of allow, review, deny", quoted(other)), "Write one of them.");
                None
            }
        }
    }
}

/// As it would be written, for `config show`.
pub(super) fn show(rules: &[Rule], review: &Terms) -> String {
    format!("[{}]", show_each(rules, review).join(", "))
}

/// Each rule as it would be written.
pub(super) fn show_each(rules: &[Rule], review: &Terms) -> Vec<String> {
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
        let asked = &rule.annotations;
        let hints: Vec<String> = [
            ("readOnlyHint", asked.read_only_hint),
            ("destructiveHint", asked.destructive_hint),
            ("idempotentHint", asked.idempotent_hint),
            ("openWorldHint", asked.open_world_hint),
        ]
        .into_iter()
        .filter_map(|(hint, asked)| asked.map(|asked| format!("{hint}: {asked}")))
        .collect();
        if !hints.is_empty() {
            parts.push(format!("annotations: {{ {} }}", hints.join(", ")));
        }
        if let Some(when) = &rule.when {
            parts.push(format!("when: {}", text(when.source())));
        }
        parts.push(format!("then: {}", rule.then.as_str()));
        parts.extend(terms::show(&rule.terms, review));
        if let Some(reason) = &rule.reason {
            parts.push(format!("reason: {}", text(reason)));
        }
        format!("{{ {} }}", parts.join(", "))
    });
    each.collect()
}

//! A policy rule: the calls that it matches, and its verdict.

use std::sync::Arc;

use super::{Condition, Globs, OperationStatus, ToolFacts, ToolOperation, Verdict, verdict_counts::VerdictCounts};
use crate::{
    changes::{Terms, qualified_operation},
    principal::Role,
};
use countersign_protocol::annotations::ToolAnnotations;

/// An entry of `policy.rules`. Absent members match everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The rule's name, or `rule 3` for the third rule.
    pub label: Arc<str>,
    /// The key of the rule's counts: its name, or a hash of what it says, which outlasts a change of its position.
    pub identity: Arc<str>,
    /// The calls that it decided.
    pub counts: VerdictCounts,
    /// Tool names that clients see.
    pub tools: Globs,
    /// Extension methods; see [`super::subjects`] for this and the next two fields.
    pub methods: Globs,
    /// Resource URIs that clients see.
    pub resources: Globs,
    /// Prompt names that clients see.
    pub prompts: Globs,
    /// Names of providers.
    pub servers: Globs,
    pub roles: Vec<Role>,
    /// Names of principals.
    pub principals: Globs,
    pub annotations: AnnotationsMatch,
    pub when: Option<Condition>,
    pub then: Verdict,
    /// The reason that denied callers and reviewers see.
    pub reason: Option<Arc<str>>,
    /// The terms of a review; those of `policy.review` if the rule sets none.
    pub terms: Arc<Terms>,
}

/// States how far a rule covers the calls of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    None,
    /// It depends on the operation, which the arguments do not tell.
    Possible,
    Certain,
}

/// The required annotations of a tool; `None` matches any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnnotationsMatch {
    pub read_only_hint: Option<bool>,
    pub destructive_hint: Option<bool>,
    pub idempotent_hint: Option<bool>,
    pub open_world_hint: Option<bool>,
}

impl AnnotationsMatch {
    /// Returns `true` if all required values match.
    pub fn matches(&self, actual: &ToolAnnotations) -> bool {
        let matches = |required: Option<bool>, actual: bool| required.is_none_or(|required| required == actual);
        matches(self.read_only_hint, actual.read_only_hint)
            && matches(self.destructive_hint, actual.destructive_hint)
            && matches(self.idempotent_hint, actual.idempotent_hint)
            && matches(self.open_world_hint, actual.open_world_hint)
    }
}

impl Rule {
    /// Creates a rule that matches every call, with the default terms of a review.
    pub fn new(label: impl Into<Arc<str>>, then: Verdict) -> Self {
        let label = label.into();
        Self {
            identity: Arc::clone(&label),
            counts: VerdictCounts::default(),
            label,
            tools: Globs::default(),
            methods: Globs::default(),
            resources: Globs::default(),
            prompts: Globs::default(),
            servers: Globs::default(),
            roles: Vec::new(),
            principals: Globs::default(),
            annotations: AnnotationsMatch::default(),
            when: None,
            then,
            reason: None,
            terms: Arc::default(),
        }
    }

    /// Returns the reason of the rule's verdict for people.
    pub(super) fn shown_reason(&self) -> Arc<str> {
        self.reason.clone().unwrap_or_else(|| match self.then {
            Verdict::Review => format!("{} requires it", self.label).into(),
            verdict => format!("{} says {}", self.label, verdict.as_str()).into(),
        })
    }

    /// Returns `true` if the rules match the same calls, regardless of their verdicts.
    pub fn matches_same_calls(&self, other: &Self) -> bool {
        // Without `..`, so that a new field must be compared here or left out explicitly.
        let Self {
            label: _,
            identity: _,
            counts: _,
            tools,
            methods,
            resources,
            prompts,
            servers,
            roles,
            principals,
            annotations,
            when,
            then: _,
            reason: _,
            terms: _,
        } = self;
        *tools == other.tools
            && *methods == other.methods
            && *resources == other.resources
            && *prompts == other.prompts
            && *servers == other.servers
            && *roles == other.roles
            && *principals == other.principals
            && *annotations == other.annotations
            && *when == other.when
    }

    /// Returns `true` if the rule names methods, resources or prompts.
    pub fn names_non_tools(&self) -> bool {
        !(self.methods.is_empty() && self.resources.is_empty() && self.prompts.is_empty())
    }

    /// Returns `true` if the rule covers a tool of that name. A rule that names no tools covers every tool, unless it names
    /// other subjects.
    pub fn admits_tool(&self, name: &str) -> bool {
        if self.tools.is_empty() { !self.names_non_tools() } else { self.tools.matches(name) }
    }

    /// Returns how far the names in the rule cover calls of the tool. A rule that allows covers an operation only if it covers
    /// the tool or has a pattern with `/`, because a pattern for tools may match an operation by chance.
    pub(super) fn coverage(&self, tool: &ToolFacts) -> Coverage {
        if self.admits_tool(&tool.name) {
            return Coverage::Certain;
        }
        let Some(ToolOperation { name, status }) = &tool.operation else { return Coverage::None };
        let name = qualified_operation(&tool.name, name);
        match status {
            OperationStatus::Unclear if self.tools.may_match_below(&name) => Coverage::Possible,
            OperationStatus::Unclear => Coverage::None,
            _ if self.then == Verdict::Allow && self.tools.matches_with_slash(&name) => Coverage::Certain,
            _ if self.then != Verdict::Allow && self.tools.matches(&name) => Coverage::Certain,
            _ => Coverage::None,
        }
    }

    /// Returns `true` if the rule depends on the caller.
    pub fn restricts_callers(&self) -> bool {
        !self.roles.is_empty() || !self.principals.is_empty()
    }

    /// Returns `true` if the rule covers this principal.
    pub fn applies_to(&self, role: Role, name: &str) -> bool {
        (self.roles.is_empty() || self.roles.contains(&role)) && self.principals.admits(name)
    }
}

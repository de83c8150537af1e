//! A rule: which calls it speaks of, and what becomes of them.

use std::sync::Arc;

use super::{Condition, Globs, Verdict};
use crate::{changes::Terms, principal::Role};
use countersign_protocol::annotations::ToolAnnotations;

/// One entry of `policy.rules`. What it leaves out restricts nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, or `rule 3` for the third.
    pub label: Arc<str>,
    /// Names of tools as clients see them.
    pub tools: Globs,
    /// Methods of extensions; see [`super::subjects`] for this and the two below.
    pub methods: Globs,
    /// URIs of resources as clients see them.
    pub resources: Globs,
    /// Names of prompts as clients see them.
    pub prompts: Globs,
    /// Names of providers.
    pub servers: Globs,
    pub roles: Vec<Role>,
    /// Names of principals.
    pub principals: Globs,
    pub annotations: AnnotationsMatch,
    pub when: Option<Condition>,
    pub then: Verdict,
    /// Told to whoever is denied or reviews.
    pub reason: Option<Arc<str>>,
    /// What it asks of a review; `policy.review`, where it says nothing of that.
    pub terms: Arc<Terms>,
}

/// What a tool must say of itself; `None` is anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnnotationsMatch {
    pub read_only_hint: Option<bool>,
    pub destructive_hint: Option<bool>,
    pub idempotent_hint: Option<bool>,
    pub open_world_hint: Option<bool>,
}

impl AnnotationsMatch {
    /// Whether all that is asked for is so.
    #[must_use]
    pub fn matches(&self, is: &ToolAnnotations) -> bool {
        let agree = |asked: Option<bool>, is: bool| asked.is_none_or(|asked| asked == is);
        agree(self.read_only_hint, is.read_only_hint)
            && agree(self.destructive_hint, is.destructive_hint)
            && agree(self.idempotent_hint, is.idempotent_hint)
            && agree(self.open_world_hint, is.open_world_hint)
    }
}

impl Rule {
    /// Returns a rule that matches every call, with the default terms of a review.
    #[must_use]
    pub fn new(label: impl Into<Arc<str>>, then: Verdict) -> Self {
        Self {
            label: label.into(),
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

    /// Returns `true` if the two match the same calls, whatever they decide about them.
    #[must_use]
    pub fn matches_same_calls(&self, other: &Self) -> bool {
        // Without `..`: a field that is added later must be compared here, or left out on purpose.
        let Self {
            label: _,
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

    /// Whether it names something else than tools.
    #[must_use]
    pub fn names_non_tools(&self) -> bool {
        !(self.methods.is_empty() && self.resources.is_empty() && self.prompts.is_empty())
    }

    /// Whether it speaks of a tool of that name: of all, unless it names some, or names other things only.
    #[must_use]
    pub fn admits_tool(&self, name: &str) -> bool {
        if self.tools.is_empty() { !self.names_non_tools() } else { self.tools.matches(name) }
    }

    /// Whether it depends on who calls.
    #[must_use]
    pub fn restricts_callers(&self) -> bool {
        !self.roles.is_empty() || !self.principals.is_empty()
    }

    /// Whether it speaks of this principal.
    #[must_use]
    pub fn applies_to(&self, role: Role, name: &str) -> bool {
        (self.roles.is_empty() || self.roles.contains(&role)) && self.principals.admits(name)
    }
}

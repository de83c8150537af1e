//! Decides for each call: `allow`, `review` or `deny`. Knows nothing of sessions or changes.
//!
//! Rules come in order and the first that matches decides; `policy.default` decides what none does. Three things
//! stand beside that:
//!
//! - What is not known is never taken for the better. A condition that cannot be evaluated, or that gives neither true
//!   nor false, leaves it open whether its rule matches, so the call gets the stricter of what the rule says and what
//!   the rest says, and at least a review. An annotation of a server that nobody vouched for leaves it open too.
//! - A tool that is new, or whose definition changed since it was accepted or first seen, is reviewed whatever a rule
//!   or the default allows, until a reviewer accepts the definition.
//! - Tools by which a caller manages its own changes are allowed whatever a rule says: a review of `withdraw_change`
//!   would itself be a change to withdraw.
//!
//! What does not depend on the call is decided once, when the route table is built ([`Ruling::Fixed`]); arguments are
//! only read where a rule that looks at them can still match.

pub mod condition;
mod globs;
pub mod people;
pub mod pins;
mod rule;
mod ruling;
pub mod standing;
pub mod terms;
#[cfg(test)]
mod tests;
pub mod values;

use std::sync::Arc;

use serde::Serialize;

pub use condition::{Condition, ConditionError, ConditionFault};
pub use globs::Globs;
pub use people::{Everybody, Groups, People, Reviewers};
pub use pins::{PinSource, Pins};
pub use rule::{AnnotationsMatch, Rule};
pub use ruling::{CallFacts, Ruling};
pub use standing::{Mark, Standing};

use pins::{Definition, NoPins};

use crate::{
    auth::Principal,
    changes::Terms,
    config::{PolicyConfig, PolicyDefault},
    providers::ToolAnnotations,
};

/// What becomes of a call. In order of strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Straight to its provider.
    Allow,
    /// Becomes a pending change.
    Review,
    /// Refused with `POLICY_DENIED`.
    Deny,
}

impl Verdict {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Review => "review",
            Self::Deny => "deny",
        }
    }
}

/// A verdict, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Verdict,
    /// The rule that decided; `None` where the default did.
    pub rule: Option<Arc<str>>,
    /// One clause for people.
    pub reason: Arc<str>,
    /// The definition waits for acceptance.
    pub mark: Option<Mark>,
    /// What is asked of the review, where the verdict is one.
    pub terms: Arc<Terms>,
}

impl Decision {
    fn of_rule(rule: &Rule) -> Self {
        let reason =
            rule.reason.clone().unwrap_or_else(|| format!("{} says {}", rule.label, rule.then.as_str()).into());
        Self { verdict: rule.then, rule: Some(rule.label.clone()), reason, mark: None, terms: Arc::clone(&rule.terms) }
    }

    /// The rule may or may not match: it counts where it is stricter than what comes after it.
    fn of_fault(rule: &Rule, fault: &ConditionFault) -> Self {
        let reason = format!("{}: {fault}", rule.label);
        let verdict = rule.then.max(Verdict::Review);
        let terms = Arc::clone(&rule.terms);
        Self { verdict, rule: Some(rule.label.clone()), reason: reason.into(), mark: None, terms }
    }

    /// The stricter; of two that are equally strict, `self`, with the stricter terms of both.
    fn or_stricter(self, other: Self) -> Self {
        if other.verdict > self.verdict {
            return other;
        }
        if other.verdict == Verdict::Review && self.verdict == Verdict::Review && self.terms != other.terms {
            return Self { terms: terms::stricter(&self.terms, &other.terms).into(), ..self };
        }
        self
    }

    fn marked(self, mark: Option<Mark>) -> Self {
        let Some(mark) = mark else { return self };
        if self.verdict >= Verdict::Review {
            return Self { mark: Some(mark), ..self };
        }
        Self { verdict: Verdict::Review, rule: None, reason: mark.reason().into(), mark: Some(mark), terms: self.terms }
    }
}

/// A tool as rules see it.
#[derive(Clone, Debug)]
pub struct ToolFacts {
    /// As clients see it.
    pub name: String,
    /// Its provider.
    pub server: String,
    /// What it says of itself.
    pub annotations: ToolAnnotations,
    pub standing: Standing,
    /// The operator vouches for what the server says (`trust_annotations`).
    pub trusted: bool,
    pub self_service: bool,
}

/// What the protocol assumes of a tool that says nothing of itself (2025-03-26 schema, `ToolAnnotations`).
const UNKNOWN: ToolAnnotations =
    ToolAnnotations { read_only_hint: false, destructive_hint: true, idempotent_hint: false, open_world_hint: true };

impl ToolFacts {
    /// Whether what it says of itself counts.
    #[must_use]
    pub fn is_believed(&self) -> bool {
        self.standing.is_believed(self.trusted)
    }

    /// What counts as true of it.
    #[must_use]
    pub fn known(&self) -> ToolAnnotations {
        if self.is_believed() { self.annotations } else { UNKNOWN }
    }
}

/// The configured policy, and what reviewers said of definitions. Cheap to clone.
#[derive(Clone)]
pub struct Policy {
    default: PolicyDefault,
    rules: Arc<[Arc<Rule>]>,
    /// What a review asks for where no rule says otherwise.
    review: Arc<Terms>,
    pins: Arc<dyn PinSource>,
}

impl Policy {
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        let rules = config.rules.iter().cloned().map(Arc::new).collect();
        Self { default: config.default, rules, review: Arc::clone(&config.review), pins: Arc::new(NoPins) }
    }

    /// With pins of the definitions of upstream tools.
    #[must_use]
    pub fn with_pins(self, pins: Arc<dyn PinSource>) -> Self {
        Self { pins, ..self }
    }

    /// Where its pins come from, for the policy that follows it.
    #[must_use]
    pub fn pin_source(&self) -> Arc<dyn PinSource> {
        Arc::clone(&self.pins)
    }

    /// The pins as they are now.
    #[must_use]
    pub fn pins(&self) -> Arc<Pins> {
        self.pins.pins()
    }

    /// See [`PinSource::observe`].
    pub fn observe(&self, server: &str, tools: &[Definition]) {
        self.pins.observe(server, tools);
    }

    /// What can be said of a tool before it is called.
    #[must_use]
    pub fn ruling(&self, tool: &ToolFacts) -> Ruling {
        if tool.self_service {
            let reason = "everybody may manage their own changes".into();
            return Ruling::Fixed(Decision {
                verdict: Verdict::Allow,
                rule: None,
                reason,
                mark: None,
                terms: Arc::default(),
            });
        }
        Ruling::new(&self.rules, tool, self.otherwise(tool))
    }

    /// Whether requests that the gateway knows nothing of may pass to that server: where all is allowed, unless some rule
    /// reviews or denies what it would call a tool of that name.
    #[must_use]
    pub fn passes(&self, server: &str, principal: &Principal, method: &str) -> bool {
        let stops = |rule: &Rule| {
            rule.then != Verdict::Allow
                && rule.servers.admits(server)
                && rule.tools.admits(method)
                && rule.speaks_of(principal.role, &principal.name)
        };
        self.default == PolicyDefault::Allow && !self.rules.iter().any(|rule| stops(rule))
    }

    fn otherwise(&self, tool: &ToolFacts) -> Decision {
        let (verdict, reason) = match self.default {
            PolicyDefault::Allow => (Verdict::Allow, "policy.default is allow"),
            PolicyDefault::ReviewAll => (Verdict::Review, "policy.default is review_all"),
            PolicyDefault::Deny => (Verdict::Deny, "policy.default is deny"),
            PolicyDefault::ReviewWrites if tool.known().read_only_hint => (Verdict::Allow, "it only reads"),
            PolicyDefault::ReviewWrites if tool.annotations.read_only_hint => {
                (Verdict::Review, "nobody has accepted yet that it only reads")
            }
            PolicyDefault::ReviewWrites => (Verdict::Review, "it may write"),
        };
        Decision { verdict, rule: None, reason: reason.into(), mark: None, terms: Arc::clone(&self.review) }
    }
}

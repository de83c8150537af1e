//! Decides for each call: `allow`, `review` or `deny`. Knows nothing of sessions or changes.
//!
//! Rules come in order and the first that matches decides; `policy.default` decides what none does. Beside
//! that:
//!
//! - What is not known is never taken for the better. A condition that cannot be evaluated, or that gives neither true
//!   nor false, leaves it open whether its rule matches, so the call gets the stricter of what the rule says and what
//!   the rest says, and at least a review. An annotation of a server that nobody vouched for leaves it open too.
//! - A tool that is new, or whose definition changed since it was accepted or first seen, is reviewed whatever a rule
//!   or the default allows, until a reviewer accepts the definition.
//! - Tools by which a caller manages its own changes are allowed whatever a rule says: a review of `withdraw_change`
//!   would itself be a change to withdraw.
//! - A standing rule of a reviewer ([`standing_rules`]) lets calls through that would be reviewed, or denies them.
//! - Reading a resource, getting a prompt and methods of extensions are no calls of tools, and cannot be reviewed:
//!   [`subjects`] says which of them are let through.
//! - With `policy.mode: simulate` every call goes through, and the decision says what would have become of it.
//!
//! What does not depend on the call is decided once, when the route table is built ([`Ruling::fixed_decision`]); arguments are
//! only read where a rule that looks at them can still match.

pub mod condition;
mod globs;
pub mod people;
pub mod pins;
mod rule;
mod ruling;
mod settings;
pub mod standing;
pub mod standing_rules;
pub mod subjects;
pub mod terms;
#[cfg(test)]
mod tests;
pub mod values;

use std::sync::Arc;

use serde::Serialize;

pub use condition::{Condition, ConditionError, ConditionFault};
pub use globs::Globs;
pub use people::{AnyReviewer, ConfiguredReviewers, Groups, KeyRoles, Reviewers};
pub use pins::{PinSource, Pins};
pub use rule::{AnnotationsMatch, Rule};
pub use ruling::{CallFacts, Ruling};
pub use settings::{PolicyConfig, PolicyDefault, PolicyMode};
pub use standing::{AcceptanceMark, DefinitionStatus};
pub use standing_rules::{StandingRule, StandingSource, StandingVerdict};
pub use subjects::{AccessDecision, Requester, Subject};

use pins::{Definition, NoPins};
use standing_rules::{NoStandingRules, ToolStandingRules};

use crate::changes::{ReviewNote, Terms};
use countersign_protocol::annotations::ToolAnnotations;

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
    pub mark: Option<AcceptanceMark>,
    /// What is asked of the review, where the verdict is one.
    pub terms: Arc<Terms>,
    /// The standing rule that decided; its use is still to be counted.
    pub standing: Option<Arc<StandingRule>>,
    /// What it would be if the policy were enforced, where that is not to let the call through.
    pub simulated: Option<Verdict>,
}

impl Decision {
    /// By no rule.
    fn new(verdict: Verdict, reason: impl Into<Arc<str>>, terms: Arc<Terms>) -> Self {
        Self { verdict, rule: None, reason: reason.into(), mark: None, terms, standing: None, simulated: None }
    }

    /// What the policy says, whether it is enforced or not.
    #[must_use]
    pub fn intended_verdict(&self) -> Verdict {
        self.simulated.unwrap_or(self.verdict)
    }

    /// As it is where the policy is not enforced.
    fn allow_simulated(self) -> Self {
        match self.verdict {
            Verdict::Allow => self,
            verdict => Self { verdict: Verdict::Allow, simulated: Some(verdict), ..self },
        }
    }

    fn from_rule(rule: &Rule) -> Self {
        let reason =
            rule.reason.clone().unwrap_or_else(|| format!("{} says {}", rule.label, rule.then.as_str()).into());
        Self { rule: Some(rule.label.clone()), ..Self::new(rule.then, reason, Arc::clone(&rule.terms)) }
    }

    /// The rule may or may not match: it counts where it is stricter than what comes after it.
    fn from_fault(rule: &Rule, fault: &ConditionFault) -> Self {
        let reason = format!("{}: {fault}", rule.label);
        let verdict = rule.then.max(Verdict::Review);
        Self { rule: Some(rule.label.clone()), ..Self::new(verdict, reason, Arc::clone(&rule.terms)) }
    }

    /// The stricter; of two that are equally strict, `self`, with the stricter terms of both.
    fn or_stricter(self, other: Self) -> Self {
        if other.verdict > self.verdict {
            return other;
        }
        if other.verdict == Verdict::Review && self.verdict == Verdict::Review && self.terms != other.terms {
            return Self { terms: terms::stricter_terms(&self.terms, &other.terms).into(), ..self };
        }
        self
    }

    fn with_mark(self, mark: Option<AcceptanceMark>) -> Self {
        let Some(mark) = mark else { return self };
        if self.verdict >= Verdict::Review {
            return Self { mark: Some(mark), ..self };
        }
        Self { mark: Some(mark), ..Self::new(Verdict::Review, mark.reason(), self.terms) }
    }
}

impl From<&Decision> for ReviewNote {
    fn from(decision: &Decision) -> Self {
        Self {
            rule: decision.rule.as_deref().map(str::to_owned),
            reason: decision.reason.to_string(),
            mark: decision.mark.map(|mark| mark.code().to_owned()),
        }
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
    /// Of the definition.
    pub hash: String,
    /// The fingerprint of what is behind the provider's name; empty for a module.
    pub target: String,
    pub standing: DefinitionStatus,
    /// The operator vouches for what the server says (`trust_annotations`).
    pub trusted: bool,
    pub self_service: bool,
}

/// What the protocol assumes of a tool that says nothing of itself (2025-03-26 schema, `ToolAnnotations`).
const DEFAULT_ANNOTATIONS: ToolAnnotations =
    ToolAnnotations { read_only_hint: false, destructive_hint: true, idempotent_hint: false, open_world_hint: true };

impl ToolFacts {
    /// Whether what it says of itself counts.
    #[must_use]
    pub fn has_trusted_annotations(&self) -> bool {
        self.standing.trusts_annotations(self.trusted)
    }

    /// What counts as true of it.
    #[must_use]
    pub fn effective_annotations(&self) -> ToolAnnotations {
        if self.has_trusted_annotations() { self.annotations } else { DEFAULT_ANNOTATIONS }
    }
}

/// The configured policy, and what reviewers said of definitions. Cheap to clone.
#[derive(Clone)]
pub struct Policy {
    mode: PolicyMode,
    default: PolicyDefault,
    rules: Arc<[Arc<Rule>]>,
    /// What a review asks for where no rule says otherwise.
    review: Arc<Terms>,
    pins: Arc<dyn PinSource>,
    standing: Arc<dyn StandingSource>,
    people: Arc<dyn Reviewers>,
}

impl Policy {
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        let rules = config.rules.iter().cloned().map(Arc::new).collect();
        Self {
            mode: config.mode,
            default: config.default,
            rules,
            review: Arc::clone(&config.review),
            pins: Arc::new(NoPins),
            standing: Arc::new(NoStandingRules),
            people: Arc::new(AnyReviewer),
        }
    }

    /// With pins of the definitions of upstream tools.
    #[must_use]
    pub fn with_pins(self, pins: Arc<dyn PinSource>) -> Self {
        Self { pins, ..self }
    }

    /// With standing rules, each of which counts as far as these people may decide.
    #[must_use]
    pub fn with_standing_rules(self, standing: Arc<dyn StandingSource>, people: Arc<dyn Reviewers>) -> Self {
        Self { standing, people, ..self }
    }

    /// With what reviewers said, under another policy before.
    #[must_use]
    pub fn with_sources_of(self, before: &Self) -> Self {
        Self {
            pins: Arc::clone(&before.pins),
            standing: Arc::clone(&before.standing),
            people: Arc::clone(&before.people),
            ..self
        }
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
            let reason = "everybody may manage their own changes";
            return Ruling::fixed_for_all(Decision::new(Verdict::Allow, reason, Arc::default()));
        }
        let standing =
            ToolStandingRules::new(self.standing.rules_for_tool(&tool.server, &tool.name), tool, &self.people);
        Ruling::new(&self.rules, tool, self.default_decision(tool), standing, self.mode == PolicyMode::Simulate)
    }

    fn default_decision(&self, tool: &ToolFacts) -> Decision {
        let (verdict, reason) = match self.default {
            PolicyDefault::Allow => (Verdict::Allow, "policy.default is allow"),
            PolicyDefault::ReviewAll => (Verdict::Review, "policy.default is review_all"),
            PolicyDefault::Deny => (Verdict::Deny, "policy.default is deny"),
            PolicyDefault::ReviewWrites if tool.effective_annotations().read_only_hint => {
                (Verdict::Allow, "it only reads")
            }
            PolicyDefault::ReviewWrites if tool.annotations.read_only_hint => {
                (Verdict::Review, "nobody has accepted yet that it only reads")
            }
            PolicyDefault::ReviewWrites => (Verdict::Review, "it may write"),
        };
        Decision::new(verdict, reason, Arc::clone(&self.review))
    }
}

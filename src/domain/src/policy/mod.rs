//! Decides about each call: `allow`, `review` or `deny`. The policy knows neither sessions nor changes.
//!
//! The first matching rule decides, and `policy.default` decides if none matches. In addition:
//!
//! - Unknown facts never loosen the verdict. If a condition cannot be evaluated, or is not a boolean, its rule may or
//!   may not match: the call gets the stricter of the rule's verdict and the verdict of the rest, and at least a
//!   review. Annotations of an untrusted server are treated the same way.
//! - A tool that is new, or whose definition changed since it was accepted or first seen, is reviewed even if a rule or
//!   the default allows it, until a reviewer accepts the definition.
//! - Tools with which callers manage their own changes are always allowed: a review of `withdraw_change` would itself
//!   be a change to withdraw.
//! - If it is unclear which operation of a tool the arguments name, it may be any of them: rules and standing denials for an
//!   operation count as if they might match.
//! - A standing rule of a reviewer ([`standing_rules`]) allows calls that would be reviewed, or denies calls.
//! - Reading a resource, getting a prompt and extension methods are not tool calls and cannot be reviewed: [`subjects`]
//!   decides about them.
//! - With `policy.mode: simulate` every call is allowed, and the decision records the verdict that would have applied.
//!
//! Decisions that do not depend on the call are made once, when the route table is built ([`Ruling::fixed_decision`]).
//! Arguments are parsed only if a rule that reads them can still match.

pub mod argument_patterns;
pub mod condition;
pub mod definition_status;
pub mod documents;
mod globs;
pub mod known_reads;
pub mod pins;
pub mod reviewers;
mod rule;
mod ruling;
mod settings;
pub mod standing_rules;
pub mod subjects;
pub mod suggestions;
pub mod terms;
#[cfg(test)]
mod tests;
pub mod values;
pub mod verdict_counts;

use std::sync::Arc;

use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};
use utoipa::ToSchema;

pub use argument_patterns::ArgumentPattern;
pub use condition::{Condition, ConditionError, ConditionFault};
pub use definition_status::{AcceptanceMark, DefinitionStatus};
pub use globs::Globs;
pub use pins::{PinSource, Pins};
pub use reviewers::{Deputyship, GroupMember, Groups, KeyHolder, KeyHolders, Reviewers};
pub use rule::{AnnotationsMatch, Rule};
pub use ruling::Ruling;
pub use settings::{PolicyConfig, PolicyDefault, PolicyMode};
pub use standing_rules::{StandingRule, StandingRuleSource, StandingVerdict};
pub use subjects::{AccessDecision, OwnedRequester, Requester, Subject};

use pins::Definition;
use standing_rules::ToolStandingRules;
use verdict_counts::VerdictCounts;

use crate::changes::{ReviewNote, Terms};
use countersign_protocol::annotations::ToolAnnotations;

/// The verdict on a call, in order of strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr, VariantArray, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
#[schema(as = PolicyVerdict)]
pub enum Verdict {
    /// The call goes to its provider.
    Allow,
    /// The call becomes a pending change.
    Review,
    /// The call is refused with `POLICY_DENIED`.
    Deny,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A verdict with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Verdict,
    /// The rule that decided; `None` if the default did.
    pub rule: Option<Arc<str>>,
    /// One clause for people.
    pub reason: Arc<str>,
    /// Set if the definition is not accepted yet.
    pub mark: Option<AcceptanceMark>,
    /// The terms of a review. They also apply to a call that policy allows if it has to be reviewed as a step of a plan.
    pub terms: Arc<Terms>,
    /// The standing rule that decided. The caller must count its use.
    pub standing_rule: Option<Arc<StandingRule>>,
    /// The verdict if the policy were enforced, unless that is to allow the call.
    pub simulated: Option<Verdict>,
    /// The counts of the rule or the default that decided, unless the policy has no say.
    pub counts: Option<VerdictCounts>,
}

impl Decision {
    /// Creates a decision without a rule.
    fn new(verdict: Verdict, reason: impl Into<Arc<str>>, terms: Arc<Terms>) -> Self {
        Self {
            verdict,
            rule: None,
            reason: reason.into(),
            mark: None,
            terms,
            standing_rule: None,
            simulated: None,
            counts: None,
        }
    }

    /// Returns the verdict of the policy, whether it is enforced or not.
    pub fn intended_verdict(&self) -> Verdict {
        self.simulated.unwrap_or(self.verdict)
    }

    /// Allows the call and records the verdict, for a policy that is not enforced.
    fn allow_simulated(self) -> Self {
        match self.verdict {
            Verdict::Allow => self,
            verdict => Self { verdict: Verdict::Allow, simulated: Some(verdict), ..self },
        }
    }

    fn from_rule(rule: &Rule) -> Self {
        Self::new_for_rule(rule, rule.then, rule.shown_reason())
    }

    fn new_for_rule(rule: &Rule, verdict: Verdict, reason: Arc<str>) -> Self {
        let decision = Self::new(verdict, reason, Arc::clone(&rule.terms));
        Self { rule: Some(rule.label.clone()), counts: Some(rule.counts.clone()), ..decision }
    }

    /// Creates the decision for a rule that may or may not match. The decision counts only if it is stricter
    /// than the decision of the remaining rules.
    fn from_fault(rule: &Rule, fault: &ConditionFault) -> Self {
        Self::new_for_rule(rule, rule.then.max(Verdict::Review), format!("{}: {fault}", rule.label).into())
    }

    /// Returns the stricter decision. If both are equally strict, returns `self` with the stricter terms of
    /// both.
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
        Self { mark: Some(mark), counts: self.counts, ..Self::new(Verdict::Review, mark.reason(), self.terms) }
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

/// The facts of a tool that rules can match.
#[derive(Clone, Debug)]
pub struct ToolFacts {
    /// The name that clients see.
    pub name: String,
    /// The operation, if the tool carries many.
    pub operation: Option<ToolOperation>,
    /// The name of the provider.
    pub server: String,
    /// The annotations of the tool's definition.
    pub annotations: ToolAnnotations,
    /// The hash of the definition.
    pub hash: String,
    /// The fingerprint of the server behind the provider's name; empty for a module.
    pub server_fingerprint: String,
    pub definition_status: DefinitionStatus,
    /// The operator trusts the server's annotations (`trust_annotations`).
    pub server_is_trusted: bool,
    /// The tool manages the caller's own changes and is always allowed.
    pub self_service: bool,
}

/// The protocol's defaults for a tool without annotations (2025-03-26 schema, `ToolAnnotations`).
const DEFAULT_ANNOTATIONS: ToolAnnotations =
    ToolAnnotations { read_only_hint: false, destructive_hint: true, idempotent_hint: false, open_world_hint: true };

/// One of several operations of a tool, to which rules refer as `tool/operation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOperation {
    /// The operation's own name; empty if the arguments name none.
    pub name: String,
    pub status: OperationStatus,
}

/// States what is known about an operation. One that is not known is reviewed even where the tool is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationStatus {
    /// The recipe of the tool names it.
    Known,
    /// The recipe does not name it.
    Unknown,
    /// The arguments do not tell the operation clearly, so it may be any.
    Unclear,
}

impl ToolFacts {
    /// Returns `true` if a standing rule for this name concerns the calls. The name is that of a tool or `tool/operation`.
    fn is_concerned_by(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix(self.name.as_str()) else { return false };
        rest.is_empty()
            || rest.strip_prefix('/').zip(self.operation.as_ref()).is_some_and(|(named, operation)| {
                named == operation.name || operation.status == OperationStatus::Unclear
            })
    }

    /// Returns the reason why calls are reviewed regardless of the rules, if any.
    pub fn mark(&self) -> Option<AcceptanceMark> {
        let is_unknown = self.operation.as_ref().is_some_and(|operation| operation.status != OperationStatus::Known);
        self.definition_status.mark().or(is_unknown.then_some(AcceptanceMark::OperationUnknown))
    }

    /// Returns `true` if its annotations are trusted.
    pub fn has_trusted_annotations(&self) -> bool {
        self.definition_status.trusts_annotations(self.server_is_trusted)
    }

    /// Returns the annotations that count: its own if they are trusted, else the protocol's defaults.
    pub fn effective_annotations(&self) -> ToolAnnotations {
        if self.has_trusted_annotations() { self.annotations } else { DEFAULT_ANNOTATIONS }
    }
}

/// The identity of the default among those of rules.
pub const DEFAULT_IDENTITY: &str = "policy.default";

/// The configured policy with the reviewers' acceptances and standing rules. Cheap to clone.
#[derive(Clone)]
pub struct Policy {
    mode: PolicyMode,
    default: PolicyDefault,
    default_counts: VerdictCounts,
    rules: Arc<[Arc<Rule>]>,
    /// The terms of a review if no rule sets others.
    review: Arc<Terms>,
    /// The source of pins. Without one, every definition counts as first seen.
    pins: Option<Arc<dyn PinSource>>,
    standing_rules: Option<Arc<dyn StandingRuleSource>>,
    reviewers: Arc<Reviewers>,
}

impl Policy {
    pub fn new(config: &PolicyConfig) -> Self {
        let rules = config.rules.iter().cloned().map(Arc::new).collect();
        Self {
            mode: config.mode,
            default: config.default,
            default_counts: VerdictCounts::default(),
            rules,
            review: Arc::clone(&config.review),
            pins: None,
            standing_rules: None,
            reviewers: Arc::<Reviewers>::default(),
        }
    }

    /// Adds the pinned definitions of upstream tools.
    #[must_use]
    pub fn with_pins(self, pins: Arc<dyn PinSource>) -> Self {
        Self { pins: Some(pins), ..self }
    }

    /// Adds standing rules, each of which counts as long as its creator may decide.
    #[must_use]
    pub fn with_standing_rules(self, standing_rules: Arc<dyn StandingRuleSource>, reviewers: Arc<Reviewers>) -> Self {
        Self { standing_rules: Some(standing_rules), reviewers, ..self }
    }

    /// Takes the pins, standing rules, reviewers and counts of the default from the previous policy.
    #[must_use]
    pub fn with_sources_of(self, previous: &Self) -> Self {
        Self {
            pins: previous.pins.clone(),
            standing_rules: previous.standing_rules.clone(),
            reviewers: Arc::clone(&previous.reviewers),
            default_counts: previous.default_counts.clone(),
            ..self
        }
    }

    /// Iterates over the rules with their counts, and over the default, by identity.
    pub fn counts(&self) -> impl Iterator<Item = (&str, &VerdictCounts)> {
        let rules = self.rules.iter().map(|rule| (&*rule.identity, &rule.counts));
        rules.chain([(DEFAULT_IDENTITY, &self.default_counts)])
    }

    /// Counts a request other than a tool call that a rule or the default refused.
    pub fn count_refusal(&self, rule: Option<&str>) {
        let rule = rule.and_then(|label| self.rules.iter().find(|rule| &*rule.label == label));
        rule.map_or(&self.default_counts, |rule| &rule.counts).increment(Verdict::Deny);
    }

    /// Returns the default, the mode, and the terms of reviews for which no rule sets others.
    pub fn defaults(&self) -> (PolicyDefault, PolicyMode, &Arc<Terms>) {
        (self.default, self.mode, &self.review)
    }

    /// Returns the rules, in order.
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// Returns the current pins.
    pub fn pins(&self) -> Arc<Pins> {
        self.pins.as_ref().map(|source| source.pins()).unwrap_or_default()
    }

    /// Records the definitions that a server offers, see [`PinSource::observe`].
    pub fn observe(&self, server: &str, tools: &[Definition]) {
        if let Some(source) = &self.pins {
            source.observe(server, tools);
        }
    }

    /// Evaluates the policy for a tool as far as possible without a call.
    #[must_use]
    pub fn ruling(&self, tool: &ToolFacts) -> Ruling {
        if tool.self_service {
            let reason = "callers may manage their own changes";
            return Ruling::new(&[], tool, Decision::new(Verdict::Allow, reason, Arc::default()), None, false);
        }
        let source = self.standing_rules.as_ref();
        let standing_rules = source.and_then(|source| ToolStandingRules::new(source, tool, &self.reviewers));
        Ruling::new(&self.rules, tool, self.default_decision(tool), standing_rules, self.mode == PolicyMode::Simulate)
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
                (Verdict::Review, "its read-only hint has not been accepted yet")
            }
            PolicyDefault::ReviewWrites => (Verdict::Review, "it may write"),
        };
        let decision = Decision::new(verdict, reason, Arc::clone(&self.review));
        Decision { counts: Some(self.default_counts.clone()), ..decision }
    }
}

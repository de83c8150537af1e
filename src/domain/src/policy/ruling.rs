//! Evaluates the rules for one tool: once if possible, and otherwise for each call.

use std::{cell::OnceCell, sync::Arc};

use serde_json::value::RawValue;

use super::{
    AcceptanceMark, Condition, ConditionFault, DEFAULT_ANNOTATIONS, Decision, OperationStatus, Requester, Rule,
    StandingRule, ToolFacts, Verdict, condition, rule::Coverage, standing_rules::ToolStandingRules, values,
};
use crate::principal::Principal;

/// The evaluated policy of one tool.
#[derive(Clone, Debug)]
pub struct Ruling {
    config_ruling: ConfigRuling,
    /// The decision, if it is the same for every call.
    fixed: Option<Arc<Decision>>,
    /// The standing rules for the tool.
    standing_rules: Option<Arc<ToolStandingRules>>,
    /// The policy is not enforced: every call is allowed and the verdict is only reported.
    simulates: bool,
    /// Rulings whose decision counts if it is stricter.
    alternatives: Vec<Self>,
}

/// The ruling of the configuration alone.
#[derive(Clone, Debug)]
enum ConfigRuling {
    /// The decision is the same for every call.
    Fixed(Decision),
    Conditional(Arc<ConditionalRules>),
}

/// Rules that may match, in order, and the default decision.
#[derive(Debug)]
struct ConditionalRules {
    candidates: Vec<CandidateRule>,
    otherwise: Decision,
    mark: Option<AcceptanceMark>,
    tool: cel::Value,
}

#[derive(Debug)]
struct CandidateRule {
    rule: Arc<Rule>,
    static_match: RuleMatch,
}

/// The match of a rule. That of a candidate is the part which does not depend on the call.
#[derive(Clone, Debug)]
enum RuleMatch {
    Certain,
    /// The match depends on whether the tool's untrusted annotations are true, or on the operation that the arguments do
    /// not tell.
    Uncertain,
    /// The condition cannot be evaluated.
    Fault(ConditionFault),
}

impl RuleMatch {
    /// Returns the match of a rule with a condition, or `None` if the condition does not hold.
    fn if_holds(self, holds: Result<bool, ConditionFault>) -> Option<Self> {
        match holds {
            Ok(true) => Some(self),
            Ok(false) => None,
            Err(fault) => Some(Self::Fault(fault)),
        }
    }
}

impl Ruling {
    pub(super) fn new(
        rules: &[Arc<Rule>],
        tool: &ToolFacts,
        otherwise: Decision,
        standing_rules: Option<Arc<ToolStandingRules>>,
        simulates: bool,
    ) -> Self {
        let config_ruling = ConfigRuling::new(rules, tool, otherwise);
        let fixed = match &config_ruling {
            ConfigRuling::Fixed(decision) if standing_rules.is_none() => {
                Some(Arc::new(if simulates { decision.clone().allow_simulated() } else { decision.clone() }))
            }
            _ => None,
        };
        Self { config_ruling, fixed, standing_rules, simulates, alternatives: Vec::new() }
    }

    /// Combines this ruling with another one that may apply to the same calls: for each call, the stricter of the two decides.
    #[must_use]
    pub fn or_stricter(mut self, other: Self) -> Self {
        self.alternatives.push(other);
        self.without_fixed_decision()
    }

    /// Decides on a call.
    #[must_use]
    pub fn decide(&self, requester: &Requester<'_>, arguments: &RawValue) -> Decision {
        if let Some(fixed) = &self.fixed {
            return (**fixed).clone();
        }
        let decision = self.decide_enforced(requester, arguments);
        if self.simulates { decision.allow_simulated() } else { decision }
    }

    fn decide_enforced(&self, requester: &Requester<'_>, arguments: &RawValue) -> Decision {
        let mut decision = match &self.config_ruling {
            ConfigRuling::Fixed(decision) => decision.clone(),
            ConfigRuling::Conditional(conditional) => {
                let call =
                    CallContext { requester, arguments, parsed_arguments: OnceCell::new(), tool: &conditional.tool };
                conditional.decide(|candidate| call.matches(candidate))
            }
        };
        if let Some(standing_rules) = &self.standing_rules {
            decision = standing_rules.apply(decision, requester.principal, arguments);
        }
        let alternatives = self.alternatives.iter().map(|other| other.decide_enforced(requester, arguments));
        alternatives.fold(decision, Decision::or_stricter)
    }

    /// Returns `true` if the decision on a call of this principal may be slow, because a loop could read its arguments.
    #[must_use]
    pub fn may_take_long(&self, principal: &Principal, arguments: &RawValue) -> bool {
        const MAX_FAST_BYTES: usize = 16 << 10;
        if self.standing_rules.as_ref().is_some_and(|rules| rules.may_take_long(arguments))
            || self.alternatives.iter().any(|other| other.may_take_long(principal, arguments))
        {
            return true;
        }
        let ConfigRuling::Conditional(conditional) = &self.config_ruling else { return false };
        let mut readers_of_arguments = conditional.candidates.iter().filter(|candidate| {
            candidate.rule.applies_to(principal.role, &principal.name)
                && candidate.rule.when.as_ref().is_some_and(|when| when.uses("arguments"))
        });
        readers_of_arguments.any(|candidate| {
            arguments.get().len() > MAX_FAST_BYTES
                || candidate.rule.when.as_ref().is_some_and(|when| when.facts().has_loops)
        })
    }

    /// Returns `true` if the tool is listed for this principal. A tool is hidden if every call would be denied.
    #[must_use]
    pub fn is_listed_to(&self, principal: &Principal) -> bool {
        let listed = || match &self.config_ruling {
            ConfigRuling::Fixed(decision) => decision.verdict != Verdict::Deny,
            ConfigRuling::Conditional(conditional) => conditional.is_listed_to(principal),
        };
        self.simulates || (!self.standing_rules.as_ref().is_some_and(|rules| rules.denies_all(principal)) && listed())
    }

    /// Returns `true` if a call of this principal could be reviewed or denied.
    #[must_use]
    pub fn may_block(&self, principal: &Principal) -> bool {
        let blocks = || match &self.config_ruling {
            ConfigRuling::Fixed(decision) => decision.verdict != Verdict::Allow,
            ConfigRuling::Conditional(conditional) => conditional.may_block(principal),
        };
        !self.simulates && (self.standing_rules.is_some() || blocks())
    }

    /// Returns the ruling without its fixed decision, so that it is evaluated for each call. A tool needs this if its operations
    /// have other rulings.
    #[must_use]
    pub fn without_fixed_decision(self) -> Self {
        Self { fixed: None, ..self }
    }

    /// Returns `true` if the policy, once enforced, allows every call of every principal.
    #[must_use]
    pub fn always_allows(&self) -> bool {
        self.fixed.as_ref().is_some_and(|decision| decision.intended_verdict() == Verdict::Allow)
    }

    /// Returns `true` if a call may become a change.
    #[must_use]
    pub fn may_review(&self) -> bool {
        match &self.config_ruling {
            _ if self.simulates => false,
            ConfigRuling::Fixed(decision) => decision.verdict == Verdict::Review,
            ConfigRuling::Conditional(_) => true,
        }
    }

    /// Returns the decision, if it is the same for every call.
    #[must_use]
    pub fn fixed_decision(&self) -> Option<&Arc<Decision>> {
        self.fixed.as_ref()
    }

    /// Returns the default decision, or `None` if a rule decides on every call.
    #[must_use]
    pub fn default_decision(&self) -> Option<&Decision> {
        match &self.config_ruling {
            ConfigRuling::Fixed(decision) => Some(decision).filter(|decision| decision.rule.is_none()),
            ConfigRuling::Conditional(conditional) => {
                let matches_all = |candidate: &CandidateRule| {
                    !candidate.rule.restricts_callers()
                        && !depends_on_call(&candidate.rule)
                        && matches!(candidate.static_match, RuleMatch::Certain)
                };
                (!conditional.candidates.last().is_some_and(matches_all)).then_some(&conditional.otherwise)
            }
        }
    }

    /// Returns the standing rule that lets the tool run without review, if it applies to every caller but its creator.
    #[must_use]
    pub fn tool_allow_rule(&self) -> Option<&Arc<StandingRule>> {
        let decision = match &self.config_ruling {
            ConfigRuling::Fixed(decision)
                if decision.rule.is_none() && !decision.mark.is_some_and(AcceptanceMark::concerns_definition) =>
            {
                decision
            }
            _ => return None,
        };
        self.standing_rules.as_ref()?.allow_rule(&decision.terms)
    }

    /// Iterates over the labels of the rules that may decide: standing rules, then rules of the configuration, in
    /// order.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        let (fixed, conditional) = match &self.config_ruling {
            ConfigRuling::Fixed(decision) => (decision.rule.as_deref(), None),
            ConfigRuling::Conditional(conditional) => (None, Some(conditional)),
        };
        let standing_rules = self.standing_rules.iter().flat_map(|rules| rules.ids());
        let conditional =
            conditional.into_iter().flat_map(|conditional| conditional.candidates.iter().map(|c| &*c.rule.label));
        standing_rules.chain(fixed).chain(conditional)
    }
}

impl ConfigRuling {
    fn new(rules: &[Arc<Rule>], tool: &ToolFacts, otherwise: Decision) -> Self {
        let value = tool_value(tool);
        let mut candidates = Vec::new();
        let mut is_fixed = true;
        for rule in rules {
            let Some(static_match) = match_statically(rule, tool, &value) else { continue };
            let depends = rule.restricts_callers() || depends_on_call(rule);
            let matches_all = !depends && matches!(static_match, RuleMatch::Certain);
            is_fixed &= !depends;
            candidates.push(CandidateRule { rule: Arc::clone(rule), static_match });
            if matches_all {
                break;
            }
        }
        let conditional = ConditionalRules { candidates, otherwise, mark: tool.mark(), tool: value };
        if is_fixed {
            // No candidate depends on the call, so none is evaluated with one.
            return Self::Fixed(conditional.decide(|candidate| Some(candidate.static_match.clone())));
        }
        Self::Conditional(Arc::new(conditional))
    }
}

/// Evaluates the part of a rule that does not depend on the call; `None` if it does not cover the tool.
fn match_statically(rule: &Rule, tool: &ToolFacts, value: &cel::Value) -> Option<RuleMatch> {
    let coverage = rule.coverage(tool);
    if coverage == Coverage::None || !rule.servers.admits(&tool.server) {
        return None;
    }
    let as_declared = rule.annotations.matches(&tool.annotations);
    let by_default =
        if tool.has_trusted_annotations() { as_declared } else { rule.annotations.matches(&DEFAULT_ANNOTATIONS) };
    let static_match = match (as_declared, by_default) {
        (false, false) => return None,
        (true, true) if coverage == Coverage::Certain => RuleMatch::Certain,
        _ => RuleMatch::Uncertain,
    };
    let when = rule.when.as_ref().filter(|_| !depends_on_call(rule));
    static_match.if_holds(when.map_or(Ok(true), |when| when.holds(&[("tool", value)])))
}

fn depends_on_call(rule: &Rule) -> bool {
    let reads_call =
        |when: &Condition| ["arguments", "principal", "session"].iter().any(|variable| when.uses(variable));
    rule.when.as_ref().is_some_and(reads_call)
}

impl ConditionalRules {
    /// Decides by the first rule that matches, together with the uncertain rules before it.
    fn decide(&self, matches: impl Fn(&CandidateRule) -> Option<RuleMatch>) -> Decision {
        // An uncertain rule counts if it is stricter than those after it, and is reported if it is equally strict.
        let or_stricter = |before: Option<Decision>, next: Decision| match before {
            Some(before) => before.or_stricter(next),
            None => next,
        };
        let (mut uncertain, mut matched) = (None, None);
        for candidate in &self.candidates {
            match matches(candidate) {
                None => {}
                Some(RuleMatch::Certain) => {
                    matched = Some(Decision::from_rule(&candidate.rule));
                    break;
                }
                Some(RuleMatch::Uncertain) => {
                    uncertain = Some(or_stricter(uncertain, Decision::from_rule(&candidate.rule)));
                }
                Some(RuleMatch::Fault(fault)) => {
                    uncertain = Some(or_stricter(uncertain, Decision::from_fault(&candidate.rule, &fault)));
                }
            }
        }
        or_stricter(uncertain, matched.unwrap_or_else(|| self.otherwise.clone())).with_mark(self.mark)
    }

    fn may_block(&self, principal: &Principal) -> bool {
        if self.mark.is_some() {
            return true;
        }
        for CandidateRule { rule, static_match } in &self.candidates {
            if !rule.applies_to(principal.role, &principal.name) {
                continue;
            }
            // A rule whose condition cannot be evaluated leads to a review.
            if rule.then != Verdict::Allow || depends_on_call(rule) || matches!(static_match, RuleMatch::Fault(_)) {
                return true;
            }
            if matches!(static_match, RuleMatch::Certain) {
                return false;
            }
        }
        self.otherwise.verdict != Verdict::Allow
    }

    fn is_listed_to(&self, principal: &Principal) -> bool {
        let caller = principal_value(principal);
        for CandidateRule { rule, static_match } in &self.candidates {
            if !rule.applies_to(principal.role, &principal.name) {
                continue;
            }
            let denies = rule.then == Verdict::Deny;
            match &rule.when {
                // The condition may hold for some calls only; the remaining rules decide the other calls.
                Some(when) if when.uses("arguments") || when.uses("session") => {
                    if !denies {
                        return true;
                    }
                    continue;
                }
                Some(when) if depends_on_call(rule) => {
                    match when.holds(&[("principal", &caller), ("tool", &self.tool)]) {
                        Ok(true) => {}
                        Ok(false) => continue,
                        Err(_) if denies => return false,
                        Err(_) => continue,
                    }
                }
                _ => {}
            }
            match static_match {
                RuleMatch::Certain => return !denies,
                RuleMatch::Uncertain | RuleMatch::Fault(_) if denies => return false,
                RuleMatch::Uncertain | RuleMatch::Fault(_) => {}
            }
        }
        self.otherwise.verdict != Verdict::Deny
    }
}

/// A call whose arguments are parsed when the first condition reads them.
struct CallContext<'a> {
    requester: &'a Requester<'a>,
    arguments: &'a RawValue,
    parsed_arguments: OnceCell<Result<cel::Value, ConditionFault>>,
    tool: &'a cel::Value,
}

impl CallContext<'_> {
    /// Returns the match of the rule, or `None` if it does not cover the call.
    fn matches(&self, CandidateRule { rule, static_match }: &CandidateRule) -> Option<RuleMatch> {
        let principal = self.requester.principal;
        if !rule.applies_to(principal.role, &principal.name) {
            return None;
        }
        let when = rule.when.as_ref().filter(|_| depends_on_call(rule));
        static_match.clone().if_holds(when.map_or(Ok(true), |when| self.holds(when)))
    }

    fn holds(&self, when: &Condition) -> Result<bool, ConditionFault> {
        let arguments = match when.uses("arguments") {
            true => self.parsed_arguments.get_or_init(|| values::arguments(self.arguments)).clone()?,
            false => cel::Value::Null,
        };
        let value_if_read = |name: &str, value: &dyn Fn() -> cel::Value| match when.uses(name) {
            true => value(),
            false => cel::Value::Null,
        };
        let principal = value_if_read("principal", &|| principal_value(self.requester.principal));
        let session = value_if_read("session", &|| self.requester.session_value());
        when.holds(&[("arguments", &arguments), ("principal", &principal), ("session", &session), ("tool", self.tool)])
    }
}

pub(super) fn principal_value(principal: &Principal) -> cel::Value {
    // Without the member, a condition that reads ambiguous claims has no result.
    let claims = principal.claims.as_ref().map_or_else(|| Ok(condition::map_value([])), |c| values::claims(&c.json));
    let texts = [("name", principal.name.as_str()), ("role", principal.role.as_str())];
    let texts = texts.map(|(key, text)| (key, cel::Value::from(text)));
    condition::map_value(texts.into_iter().chain(claims.ok().map(|claims| ("claims", claims))))
}

/// Builds the value of `tool` for conditions. Untrusted annotations are replaced by the protocol's defaults.
fn tool_value(tool: &ToolFacts) -> cel::Value {
    let effective = tool.effective_annotations();
    let hints = [
        ("readOnlyHint", effective.read_only_hint),
        ("destructiveHint", effective.destructive_hint),
        ("idempotentHint", effective.idempotent_hint),
        ("openWorldHint", effective.open_world_hint),
    ];
    let annotations = condition::map_value(hints.map(|(hint, value)| (hint, cel::Value::Bool(value))));
    let operation = match &tool.operation {
        None => cel::Value::from(""),
        // No comparison of a list with a text has a result, so that a condition that reads the operation has none either.
        Some(operation) if operation.status == OperationStatus::Unclear => {
            cel::Value::List(Arc::new(vec![cel::Value::List(Arc::default())]))
        }
        Some(operation) => cel::Value::from(operation.name.as_str()),
    };
    condition::map_value([
        ("name", cel::Value::from(tool.name.as_str())),
        ("operation", operation),
        ("server", cel::Value::from(tool.server.as_str())),
        ("annotations", annotations),
    ])
}

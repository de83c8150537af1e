//! Evaluates the rules for one tool: once if possible, and otherwise for each call.

use std::{
    cell::{LazyCell, OnceCell},
    sync::Arc,
};

use serde_json::value::RawValue;

use super::{
    AcceptanceMark, Condition, ConditionFault, DEFAULT_ANNOTATIONS, Decision, OperationStatus, Requester, Rule,
    StandingRule, ToolFacts, Verdict, condition, rule::Coverage, standing_rules::ToolStandingRules, values,
};
use crate::principal::Principal;

/// The evaluated policy of one tool.
#[derive(Clone, Debug)]
pub struct Ruling {
    config_ruling: Arc<ConfigRuling>,
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
#[derive(Debug)]
struct ConfigRuling {
    /// The rules that may match, in order. There is none if the decision is the same for every call.
    candidates: Vec<CandidateRule>,
    otherwise: Decision,
    /// The mark of each decision, unless that is the same for every call and already has it.
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
        let config_ruling = Arc::new(ConfigRuling::new(rules, tool, otherwise));
        let is_fixed = config_ruling.is_fixed() && standing_rules.is_none();
        let fixed = is_fixed.then(|| {
            let decision = config_ruling.otherwise.clone();
            Arc::new(if simulates { decision.allow_simulated() } else { decision })
        });
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
        let tool = &self.config_ruling.tool;
        let call = CallContext { requester, arguments, parsed_arguments: OnceCell::new(), tool };
        let mut decision = self.config_ruling.decide(|candidate| call.matches(candidate));
        if let Some(standing_rules) = &self.standing_rules {
            decision = standing_rules.apply(decision, requester.principal, arguments);
        }
        let alternatives = self.alternatives.iter().map(|other| other.decide_enforced(requester, arguments));
        alternatives.fold(decision, Decision::or_stricter)
    }

    /// Returns `true` if the decision on a call of this principal may be slow, because a loop could read its arguments.
    pub fn may_take_long(&self, principal: &Principal, arguments: &RawValue) -> bool {
        const MAX_FAST_BYTES: usize = 16 << 10;
        if self.standing_rules.as_ref().is_some_and(|rules| rules.may_take_long(arguments))
            || self.alternatives.iter().any(|other| other.may_take_long(principal, arguments))
        {
            return true;
        }
        let mut readers_of_arguments = self.config_ruling.candidates.iter().filter(|candidate| {
            candidate.rule.applies_to(principal.role, &principal.name)
                && candidate.rule.when.as_ref().is_some_and(|when| when.uses("arguments"))
        });
        readers_of_arguments.any(|candidate| {
            arguments.get().len() > MAX_FAST_BYTES
                || candidate.rule.when.as_ref().is_some_and(|when| when.facts().has_loops)
        })
    }

    /// Returns `true` if the tool is listed for this principal. A tool is hidden if every call would be denied.
    pub fn is_listed_to(&self, principal: &Principal) -> bool {
        let is_denied = || self.standing_rules.as_ref().is_some_and(|rules| rules.denies_all(principal));
        self.simulates || (!is_denied() && self.config_ruling.is_listed_to(principal))
    }

    /// Returns `true` if a call of this principal could be reviewed or denied.
    pub fn may_block(&self, principal: &Principal) -> bool {
        !self.simulates && (self.standing_rules.is_some() || self.config_ruling.may_block(principal))
    }

    /// Returns the ruling without its fixed decision, so that it is evaluated for each call. A tool needs this if its operations
    /// have other rulings.
    #[must_use]
    pub fn without_fixed_decision(self) -> Self {
        Self { fixed: None, ..self }
    }

    /// Returns `true` if the policy, once enforced, allows every call of every principal.
    pub fn always_allows(&self) -> bool {
        self.fixed.as_ref().is_some_and(|decision| decision.intended_verdict() == Verdict::Allow)
    }

    /// Returns `true` if a call may become a change.
    pub fn may_review(&self) -> bool {
        let ruling = &self.config_ruling;
        !self.simulates && (!ruling.is_fixed() || ruling.otherwise.verdict == Verdict::Review)
    }

    /// Returns the decision, if it is the same for every call.
    pub fn fixed_decision(&self) -> Option<&Arc<Decision>> {
        self.fixed.as_ref()
    }

    /// Returns the default decision, or `None` if a rule decides on every call.
    pub fn default_decision(&self) -> Option<&Decision> {
        let ConfigRuling { candidates, otherwise, .. } = &*self.config_ruling;
        let matches_all = |candidate: &CandidateRule| {
            !candidate.rule.restricts_callers()
                && !depends_on_call(&candidate.rule)
                && matches!(candidate.static_match, RuleMatch::Certain)
        };
        Some(otherwise).filter(|decision| decision.rule.is_none() && !candidates.last().is_some_and(matches_all))
    }

    /// Returns the standing rule that lets the tool run without review, if it applies to every caller but its creator.
    pub fn tool_allow_rule(&self) -> Option<&Arc<StandingRule>> {
        let Decision { rule, mark, terms, .. } = &self.config_ruling.otherwise;
        let applies =
            self.config_ruling.is_fixed() && rule.is_none() && !mark.is_some_and(AcceptanceMark::concerns_definition);
        self.standing_rules.as_ref().filter(|_| applies)?.allow_rule(terms)
    }

    /// Iterates over the labels of the rules that may decide: standing rules, then rules of the configuration, in
    /// order.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        let ConfigRuling { candidates, otherwise, .. } = &*self.config_ruling;
        let standing_rules = self.standing_rules.iter().flat_map(|rules| rules.ids());
        standing_rules.chain(otherwise.rule.as_deref()).chain(candidates.iter().map(|candidate| &*candidate.rule.label))
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
        let ruling = Self { candidates, otherwise, mark: tool.mark(), tool: value };
        if !is_fixed {
            return ruling;
        }
        // No candidate depends on the call, so none is evaluated with one.
        let decision = ruling.decide(|candidate| Some(candidate.static_match.clone()));
        Self { candidates: Vec::new(), otherwise: decision, mark: None, tool: cel::Value::Null }
    }

    /// Returns `true` if the decision is the same for every call.
    fn is_fixed(&self) -> bool {
        self.candidates.is_empty()
    }

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
        let caller = LazyCell::new(|| principal_value(principal));
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
                    match when.holds(&[("principal", &*caller), ("tool", &self.tool)]) {
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

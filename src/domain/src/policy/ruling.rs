//! What the rules say of one tool: decided once where that is possible, and for each call where it is not.

use std::{cell::OnceCell, collections::BTreeMap, sync::Arc};

use serde_json::value::RawValue;

use super::{
    AcceptanceMark, ConditionFault, DEFAULT_ANNOTATIONS, Decision, Rule, StandingRule, ToolFacts, Verdict,
    condition::{self, ConditionInputs},
    standing_rules::ToolStandingRules,
    values,
};
use crate::principal::Principal;

/// One call as rules see it.
pub struct CallFacts<'a> {
    pub principal: &'a Principal,
    /// `http`, `websocket`, `stdio`, …
    pub transport: &'a str,
    pub revision: &'a str,
    /// What the client calls itself.
    pub client: Option<&'a str>,
    pub arguments: &'a RawValue,
}

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Ruling {
    core: ConfigRuling,
    /// The decision, where nothing in a call changes it.
    fixed: Option<Arc<Decision>>,
    /// What reviewers said of calls to come.
    standing: Option<Arc<ToolStandingRules>>,
    /// Calls go through whatever is said of them.
    simulates: bool,
}

/// What the configuration says.
#[derive(Clone, Debug)]
enum ConfigRuling {
    /// Nothing in a call changes it.
    Fixed(Decision),
    Conditional(Arc<ConditionalRules>),
}

/// Rules that may match, in order, and what is so if none does.
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
    static_match: StaticMatch,
}

/// What is known of a rule before the call.
#[derive(Clone, Debug)]
enum StaticMatch {
    /// All that does not depend on the call fits.
    Matches,
    /// It would fit if what the tool says of itself were true, or if it were not.
    Uncertain,
    /// Its condition, which looks at the tool only, cannot be evaluated.
    Fault(ConditionFault),
}

enum CallMatch {
    No,
    Yes,
    Uncertain,
    Fault(ConditionFault),
}

impl Ruling {
    /// The same for all calls, whatever anybody says.
    pub(super) fn fixed_for_all(decision: Decision) -> Self {
        let fixed = Some(Arc::new(decision.clone()));
        Self { core: ConfigRuling::Fixed(decision), fixed, standing: None, simulates: false }
    }

    pub(super) fn new(
        rules: &[Arc<Rule>],
        tool: &ToolFacts,
        otherwise: Decision,
        standing: Option<Arc<ToolStandingRules>>,
        simulates: bool,
    ) -> Self {
        let core = ConfigRuling::new(rules, tool, otherwise);
        let fixed = match &core {
            ConfigRuling::Fixed(decision) if standing.is_none() && simulates => {
                Some(Arc::new(decision.clone().allow_simulated()))
            }
            ConfigRuling::Fixed(decision) if standing.is_none() => Some(Arc::new(decision.clone())),
            _ => None,
        };
        Self { core, fixed, standing, simulates }
    }

    /// The verdict for a call.
    #[must_use]
    pub fn decide(&self, call: &CallFacts<'_>) -> Decision {
        if let Some(fixed) = &self.fixed {
            return (**fixed).clone();
        }
        let mut decision = match &self.core {
            ConfigRuling::Fixed(decision) => decision.clone(),
            ConfigRuling::Conditional(depends) => {
                let facts = CallContext { call, arguments: OnceCell::new() };
                depends.decide(|candidate| facts.matches(candidate, &depends.tool))
            }
        };
        if let Some(standing) = &self.standing {
            decision = standing.apply(decision, call);
        }
        if self.simulates { decision.allow_simulated() } else { decision }
    }

    /// Whether deciding on a call of this principal may take long: a condition that loops could look at its arguments.
    #[must_use]
    pub fn may_take_long(&self, principal: &Principal, arguments: &RawValue) -> bool {
        const SHORT: usize = 16 << 10;
        if self.standing.as_ref().is_some_and(|standing| standing.may_take_long(arguments)) {
            return true;
        }
        let ConfigRuling::Conditional(depends) = &self.core else { return false };
        let mut asked = depends.candidates.iter().filter(|candidate| {
            candidate.rule.applies_to(principal.role, &principal.name)
                && candidate.rule.when.as_ref().is_some_and(|when| when.uses().arguments)
        });
        asked.any(|candidate| {
            arguments.get().len() > SHORT || candidate.rule.when.as_ref().is_some_and(condition::Condition::has_loops)
        })
    }

    /// Whether the tool is listed to this principal: not where every call of theirs would be denied.
    #[must_use]
    pub fn is_listed_to(&self, principal: &Principal) -> bool {
        let listed = || match &self.core {
            ConfigRuling::Fixed(decision) => decision.verdict != Verdict::Deny,
            ConfigRuling::Conditional(depends) => depends.is_listed_to(principal),
        };
        self.simulates || (!self.standing.as_ref().is_some_and(|standing| standing.denies_all(principal)) && listed())
    }

    /// Whether some call of this principal could be reviewed or denied.
    #[must_use]
    pub fn may_block(&self, principal: &Principal) -> bool {
        let stops = || match &self.core {
            ConfigRuling::Fixed(decision) => decision.verdict != Verdict::Allow,
            ConfigRuling::Conditional(depends) => depends.may_block(principal),
        };
        !self.simulates && (self.standing.is_some() || stops())
    }

    /// Whether every call, whoever makes it, goes straight through, and would.
    #[must_use]
    pub fn always_allows(&self) -> bool {
        self.fixed.as_ref().is_some_and(|decision| decision.intended_verdict() == Verdict::Allow)
    }

    /// Whether a call may become a change.
    #[must_use]
    pub fn may_review(&self) -> bool {
        match &self.core {
            _ if self.simulates => false,
            ConfigRuling::Fixed(decision) => decision.verdict == Verdict::Review,
            ConfigRuling::Conditional(_) => true,
        }
    }

    /// The decision, where it is the same for all calls.
    #[must_use]
    pub fn fixed_decision(&self) -> Option<&Arc<Decision>> {
        self.fixed.as_ref()
    }

    /// What becomes of the calls that no rule of the configuration decides on; `None` where a rule decides on all.
    #[must_use]
    pub fn default_decision(&self) -> Option<&Decision> {
        match &self.core {
            ConfigRuling::Fixed(decision) => Some(decision).filter(|decision| decision.rule.is_none()),
            ConfigRuling::Conditional(depends) => {
                let ends = |candidate: &CandidateRule| {
                    !candidate.rule.restricts_callers()
                        && !depends_on_call(&candidate.rule)
                        && matches!(candidate.static_match, StaticMatch::Matches)
                };
                (!depends.candidates.last().is_some_and(ends)).then_some(&depends.otherwise)
            }
        }
    }

    /// The standing rule by which a reviewer lets the tool run, where that counts for all calls but its creator's own.
    #[must_use]
    pub fn tool_allow_rule(&self) -> Option<&Arc<StandingRule>> {
        let decision = match &self.core {
            ConfigRuling::Fixed(decision) if decision.rule.is_none() && decision.mark.is_none() => decision,
            _ => return None,
        };
        self.standing.as_ref()?.allow_rule(&decision.terms)
    }

    /// The labels of the rules that the verdict depends on: standing ones, then those of the configuration, in order.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        let (fixed, depends) = match &self.core {
            ConfigRuling::Fixed(decision) => (decision.rule.as_deref(), None),
            ConfigRuling::Conditional(depends) => (None, Some(depends)),
        };
        let standing = self.standing.iter().flat_map(|standing| standing.ids());
        let depends = depends.into_iter().flat_map(|depends| depends.candidates.iter().map(|c| &*c.rule.label));
        standing.chain(fixed).chain(depends)
    }
}

impl ConfigRuling {
    fn new(rules: &[Arc<Rule>], tool: &ToolFacts, otherwise: Decision) -> Self {
        let value = tool_value(tool);
        let mut candidates = Vec::new();
        let mut fixed = true;
        for rule in rules {
            let Some(static_match) = match_statically(rule, tool, &value) else { continue };
            let asks = rule.restricts_callers() || depends_on_call(rule);
            let ends = !asks && matches!(static_match, StaticMatch::Matches);
            fixed &= !asks;
            candidates.push(CandidateRule { rule: Arc::clone(rule), static_match });
            if ends {
                break;
            }
        }
        let depends = ConditionalRules { candidates, otherwise, mark: tool.standing.mark(), tool: value };
        if fixed {
            // No candidate asks anything of a call, so none is looked at.
            return Self::Fixed(depends.decide(|candidate| candidate.static_match.as_match()));
        }
        Self::Conditional(Arc::new(depends))
    }
}

/// What a rule's own text says of a tool; `None` where it does not speak of it.
fn match_statically(rule: &Rule, tool: &ToolFacts, value: &cel::Value) -> Option<StaticMatch> {
    if !rule.admits_tool(&tool.name) || !rule.servers.admits(&tool.server) {
        return None;
    }
    let static_match = if tool.has_trusted_annotations() {
        rule.annotations.matches(&tool.annotations).then_some(StaticMatch::Matches)?
    } else {
        match (rule.annotations.matches(&tool.annotations), rule.annotations.matches(&DEFAULT_ANNOTATIONS)) {
            (true, true) => StaticMatch::Matches,
            (false, false) => return None,
            _ => StaticMatch::Uncertain,
        }
    };
    match &rule.when {
        Some(when) if !depends_on_call(rule) => {
            match when.holds(&ConditionInputs { tool: Some(value.clone()), ..ConditionInputs::default() }) {
                Ok(true) => Some(static_match),
                Ok(false) => None,
                Err(fault) => Some(StaticMatch::Fault(fault)),
            }
        }
        _ => Some(static_match),
    }
}

fn depends_on_call(rule: &Rule) -> bool {
    rule.when.as_ref().is_some_and(|when| {
        let uses = when.uses();
        uses.arguments || uses.principal || uses.session
    })
}

impl StaticMatch {
    fn as_match(&self) -> CallMatch {
        match self {
            Self::Matches => CallMatch::Yes,
            Self::Uncertain => CallMatch::Uncertain,
            Self::Fault(fault) => CallMatch::Fault(fault.clone()),
        }
    }
}

impl ConditionalRules {
    /// The first rule that matches decides, but for what came before it and was left open.
    fn decide(&self, matches: impl Fn(&CandidateRule) -> CallMatch) -> Decision {
        let mut open: Option<Decision> = None;
        let mut note = |decision: Decision| {
            open = Some(match open.take() {
                Some(before) => before.or_stricter(decision),
                None => decision,
            });
        };
        let mut last = None;
        for candidate in &self.candidates {
            match matches(candidate) {
                CallMatch::No => {}
                CallMatch::Yes => {
                    last = Some(Decision::from_rule(&candidate.rule));
                    break;
                }
                CallMatch::Uncertain => note(Decision::from_rule(&candidate.rule)),
                CallMatch::Fault(fault) => note(Decision::from_fault(&candidate.rule, &fault)),
            }
        }
        let last = last.unwrap_or_else(|| self.otherwise.clone());
        let decision = match open {
            // What was left open counts where it is stricter, and is worth telling where it is as strict.
            Some(open) => open.or_stricter(last),
            None => last,
        };
        decision.with_mark(self.mark)
    }

    fn may_block(&self, principal: &Principal) -> bool {
        if self.mark.is_some() {
            return true;
        }
        for CandidateRule { rule, static_match } in &self.candidates {
            if !rule.applies_to(principal.role, &principal.name) {
                continue;
            }
            // What cannot be evaluated is reviewed.
            if rule.then != Verdict::Allow || depends_on_call(rule) || matches!(static_match, StaticMatch::Fault(_)) {
                return true;
            }
            if matches!(static_match, StaticMatch::Matches) {
                return false;
            }
        }
        self.otherwise.verdict != Verdict::Allow
    }

    fn is_listed_to(&self, principal: &Principal) -> bool {
        let known = ConditionInputs {
            principal: Some(principal_value(principal)),
            tool: Some(self.tool.clone()),
            ..ConditionInputs::default()
        };
        for CandidateRule { rule, static_match } in &self.candidates {
            if !rule.applies_to(principal.role, &principal.name) {
                continue;
            }
            let denies = rule.then == Verdict::Deny;
            let of_the_call = |uses: condition::UsedVariables| uses.arguments || uses.session;
            match &rule.when {
                // May hold or not. If not, the rest decides.
                Some(when) if of_the_call(when.uses()) => {
                    if !denies {
                        return true;
                    }
                    continue;
                }
                Some(when) if depends_on_call(rule) => match when.holds(&known) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(_) if denies => return false,
                    Err(_) => continue,
                },
                _ => {}
            }
            match static_match {
                StaticMatch::Matches => return !denies,
                StaticMatch::Uncertain | StaticMatch::Fault(_) if denies => return false,
                StaticMatch::Uncertain | StaticMatch::Fault(_) => {}
            }
        }
        self.otherwise.verdict != Verdict::Deny
    }
}

/// A call whose arguments are read when the first condition looks at them.
struct CallContext<'a> {
    call: &'a CallFacts<'a>,
    arguments: OnceCell<Result<cel::Value, ConditionFault>>,
}

impl CallContext<'_> {
    fn matches(&self, candidate: &CandidateRule, tool: &cel::Value) -> CallMatch {
        let CandidateRule { rule, static_match } = candidate;
        let principal = self.call.principal;
        if !rule.applies_to(principal.role, &principal.name) {
            return CallMatch::No;
        }
        if matches!(static_match, StaticMatch::Fault(_)) || !depends_on_call(rule) {
            return static_match.as_match();
        }
        match self.holds(rule, tool) {
            Ok(true) => static_match.as_match(),
            Ok(false) => CallMatch::No,
            Err(fault) => CallMatch::Fault(fault),
        }
    }

    fn holds(&self, rule: &Rule, tool: &cel::Value) -> Result<bool, ConditionFault> {
        let Some(when) = &rule.when else { return Ok(true) };
        let uses = when.uses();
        let mut known = ConditionInputs::default();
        if uses.arguments {
            let read = self.arguments.get_or_init(|| values::arguments(self.call.arguments));
            known.arguments = Some(read.clone()?);
        }
        if uses.principal {
            known.principal = Some(principal_value(self.call.principal));
        }
        if uses.session {
            let CallFacts { transport, revision, client, .. } = self.call;
            known.session = Some(condition::text_map(&[
                ("transport", Some(transport)),
                ("revision", Some(revision)),
                ("client", *client),
            ]));
        }
        if uses.tool {
            known.tool = Some(tool.clone());
        }
        when.holds(&known)
    }
}

pub(super) fn principal_value(principal: &Principal) -> cel::Value {
    condition::text_map(&[("name", Some(&principal.name)), ("role", Some(principal.role.as_str()))])
}

/// Annotations as far as they count: what nobody vouches for is the worst that the protocol assumes.
fn tool_value(tool: &ToolFacts) -> cel::Value {
    let known = tool.effective_annotations();
    let hints = [
        ("readOnlyHint", known.read_only_hint),
        ("destructiveHint", known.destructive_hint),
        ("idempotentHint", known.idempotent_hint),
        ("openWorldHint", known.open_world_hint),
    ];
    let annotations: BTreeMap<String, cel::Value> =
        hints.into_iter().map(|(hint, is)| (hint.to_owned(), cel::Value::Bool(is))).collect();
    condition::map_value(BTreeMap::from([
        ("name".to_owned(), cel::Value::from(tool.name.as_str())),
        ("server".to_owned(), cel::Value::from(tool.server.as_str())),
        ("annotations".to_owned(), condition::map_value(annotations)),
    ]))
}

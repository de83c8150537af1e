//! What the rules say of one tool: decided once where that is possible, and for each call where it is not.

use std::{cell::OnceCell, collections::BTreeMap, sync::Arc};

use serde_json::value::RawValue;

use super::{
    ConditionFault, Decision, Mark, Rule, StandingRule, ToolFacts, UNKNOWN, Verdict,
    condition::{self, Known},
    standing_rules::OfTool,
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
    core: Core,
    /// The decision, where nothing in a call changes it.
    fixed: Option<Arc<Decision>>,
    /// What reviewers said of calls to come.
    standing: Option<Arc<OfTool>>,
    /// Calls go through whatever is said of them.
    simulates: bool,
}

/// What the configuration says.
#[derive(Clone, Debug)]
enum Core {
    /// Nothing in a call changes it.
    Fixed(Decision),
    Depends(Arc<Depends>),
}

/// Rules that may match, in order, and what is so if none does.
#[derive(Debug)]
struct Depends {
    candidates: Vec<Candidate>,
    otherwise: Decision,
    mark: Option<Mark>,
    tool: cel::Value,
}

#[derive(Debug)]
struct Candidate {
    rule: Arc<Rule>,
    given: Given,
}

/// What is known of a rule before the call.
#[derive(Clone, Debug)]
enum Given {
    /// All that does not depend on the call fits.
    Fits,
    /// It would fit if what the tool says of itself were true, or if it were not.
    Open,
    /// Its condition, which looks at the tool only, cannot be evaluated.
    Fault(ConditionFault),
}

enum Match {
    No,
    Yes,
    Open,
    Fault(ConditionFault),
}

impl Ruling {
    /// The same for all calls, whatever anybody says.
    pub(super) fn always(decision: Decision) -> Self {
        let fixed = Some(Arc::new(decision.clone()));
        Self { core: Core::Fixed(decision), fixed, standing: None, simulates: false }
    }

    pub(super) fn new(
        rules: &[Arc<Rule>],
        tool: &ToolFacts,
        otherwise: Decision,
        standing: Option<Arc<OfTool>>,
        simulates: bool,
    ) -> Self {
        let core = Core::new(rules, tool, otherwise);
        let fixed = match &core {
            Core::Fixed(decision) if standing.is_none() && simulates => Some(Arc::new(decision.clone().let_through())),
            Core::Fixed(decision) if standing.is_none() => Some(Arc::new(decision.clone())),
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
            Core::Fixed(decision) => decision.clone(),
            Core::Depends(depends) => {
                let facts = Lazy { call, arguments: OnceCell::new() };
                depends.decide(|candidate| facts.matches(candidate, &depends.tool))
            }
        };
        if let Some(standing) = &self.standing {
            decision = standing.applied(decision, call);
        }
        if self.simulates { decision.let_through() } else { decision }
    }

    /// Whether deciding on a call of this principal may take long: a condition that loops could look at its arguments.
    #[must_use]
    pub fn may_take_long(&self, principal: &Principal, arguments: &RawValue) -> bool {
        const SHORT: usize = 16 << 10;
        if self.standing.as_ref().is_some_and(|standing| standing.may_take_long(arguments)) {
            return true;
        }
        let Core::Depends(depends) = &self.core else { return false };
        let mut asked = depends.candidates.iter().filter(|candidate| {
            candidate.rule.speaks_of(principal.role, &principal.name)
                && candidate.rule.when.as_ref().is_some_and(|when| when.uses().arguments)
        });
        asked.any(|candidate| {
            arguments.get().len() > SHORT || candidate.rule.when.as_ref().is_some_and(condition::Condition::loops)
        })
    }

    /// Whether the tool is listed to this principal: not where every call of theirs would be denied.
    #[must_use]
    pub fn lists_to(&self, principal: &Principal) -> bool {
        let listed = || match &self.core {
            Core::Fixed(decision) => decision.verdict != Verdict::Deny,
            Core::Depends(depends) => depends.lists_to(principal),
        };
        self.simulates || (!self.standing.as_ref().is_some_and(|standing| standing.denies_all(principal)) && listed())
    }

    /// Whether some call of this principal could be reviewed or denied.
    #[must_use]
    pub fn may_stop(&self, principal: &Principal) -> bool {
        let stops = || match &self.core {
            Core::Fixed(decision) => decision.verdict != Verdict::Allow,
            Core::Depends(depends) => depends.may_stop(principal),
        };
        !self.simulates && (self.standing.is_some() || stops())
    }

    /// Whether every call, whoever makes it, goes straight through, and would.
    #[must_use]
    pub fn always_allows(&self) -> bool {
        self.fixed.as_ref().is_some_and(|decision| decision.meant() == Verdict::Allow)
    }

    /// Whether a call may become a change.
    #[must_use]
    pub fn may_review(&self) -> bool {
        match &self.core {
            _ if self.simulates => false,
            Core::Fixed(decision) => decision.verdict == Verdict::Review,
            Core::Depends(_) => true,
        }
    }

    /// The decision, where it is the same for all calls.
    #[must_use]
    pub fn fixed(&self) -> Option<&Arc<Decision>> {
        self.fixed.as_ref()
    }

    /// What becomes of the calls that no rule of the configuration decides on; `None` where a rule decides on all.
    #[must_use]
    pub fn by_default(&self) -> Option<&Decision> {
        match &self.core {
            Core::Fixed(decision) => Some(decision).filter(|decision| decision.rule.is_none()),
            Core::Depends(depends) => {
                let ends = |candidate: &Candidate| {
                    !candidate.rule.asks_who()
                        && !asks_of_the_call(&candidate.rule)
                        && matches!(candidate.given, Given::Fits)
                };
                (!depends.candidates.last().is_some_and(ends)).then_some(&depends.otherwise)
            }
        }
    }

    /// The standing rule by which a reviewer lets the tool run, where that counts for all calls but its creator's own.
    #[must_use]
    pub fn let_run(&self) -> Option<&Arc<StandingRule>> {
        let decision = match &self.core {
            Core::Fixed(decision) if decision.rule.is_none() && decision.mark.is_none() => decision,
            _ => return None,
        };
        self.standing.as_ref()?.lets_run(&decision.terms)
    }

    /// The labels of the rules that the verdict depends on: standing ones, then those of the configuration, in order.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        let (fixed, depends) = match &self.core {
            Core::Fixed(decision) => (decision.rule.as_deref(), None),
            Core::Depends(depends) => (None, Some(depends)),
        };
        let standing = self.standing.iter().flat_map(|standing| standing.ids());
        let depends = depends.into_iter().flat_map(|depends| depends.candidates.iter().map(|c| &*c.rule.label));
        standing.chain(fixed).chain(depends)
    }
}

impl Core {
    fn new(rules: &[Arc<Rule>], tool: &ToolFacts, otherwise: Decision) -> Self {
        let value = tool_value(tool);
        let mut candidates = Vec::new();
        let mut fixed = true;
        for rule in rules {
            let Some(given) = before_the_call(rule, tool, &value) else { continue };
            let asks = rule.asks_who() || asks_of_the_call(rule);
            let ends = !asks && matches!(given, Given::Fits);
            fixed &= !asks;
            candidates.push(Candidate { rule: Arc::clone(rule), given });
            if ends {
                break;
            }
        }
        let depends = Depends { candidates, otherwise, mark: tool.standing.mark(), tool: value };
        if fixed {
            // No candidate asks anything of a call, so none is looked at.
            return Self::Fixed(depends.decide(|candidate| candidate.given.as_match()));
        }
        Self::Depends(Arc::new(depends))
    }
}

/// What a rule's own text says of a tool; `None` where it does not speak of it.
fn before_the_call(rule: &Rule, tool: &ToolFacts, value: &cel::Value) -> Option<Given> {
    if !rule.admits_tool(&tool.name) || !rule.servers.admits(&tool.server) {
        return None;
    }
    let given = if tool.is_believed() {
        rule.annotations.matches(&tool.annotations).then_some(Given::Fits)?
    } else {
        match (rule.annotations.matches(&tool.annotations), rule.annotations.matches(&UNKNOWN)) {
            (true, true) => Given::Fits,
            (false, false) => return None,
            _ => Given::Open,
        }
    };
    match &rule.when {
        Some(when) if !asks_of_the_call(rule) => {
            match when.holds(&Known { tool: Some(value.clone()), ..Known::default() }) {
                Ok(true) => Some(given),
                Ok(false) => None,
                Err(fault) => Some(Given::Fault(fault)),
            }
        }
        _ => Some(given),
    }
}

fn asks_of_the_call(rule: &Rule) -> bool {
    rule.when.as_ref().is_some_and(|when| {
        let uses = when.uses();
        uses.arguments || uses.principal || uses.session
    })
}

impl Given {
    fn as_match(&self) -> Match {
        match self {
            Self::Fits => Match::Yes,
            Self::Open => Match::Open,
            Self::Fault(fault) => Match::Fault(fault.clone()),
        }
    }
}

impl Depends {
    /// The first rule that matches decides, but for what came before it and was left open.
    fn decide(&self, matches: impl Fn(&Candidate) -> Match) -> Decision {
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
                Match::No => {}
                Match::Yes => {
                    last = Some(Decision::of_rule(&candidate.rule));
                    break;
                }
                Match::Open => note(Decision::of_rule(&candidate.rule)),
                Match::Fault(fault) => note(Decision::of_fault(&candidate.rule, &fault)),
            }
        }
        let last = last.unwrap_or_else(|| self.otherwise.clone());
        let decision = match open {
            // What was left open counts where it is stricter, and is worth telling where it is as strict.
            Some(open) => open.or_stricter(last),
            None => last,
        };
        decision.marked(self.mark)
    }

    fn may_stop(&self, principal: &Principal) -> bool {
        if self.mark.is_some() {
            return true;
        }
        for Candidate { rule, given } in &self.candidates {
            if !rule.speaks_of(principal.role, &principal.name) {
                continue;
            }
            // What cannot be evaluated is reviewed.
            if rule.then != Verdict::Allow || asks_of_the_call(rule) || matches!(given, Given::Fault(_)) {
                return true;
            }
            if matches!(given, Given::Fits) {
                return false;
            }
        }
        self.otherwise.verdict != Verdict::Allow
    }

    fn lists_to(&self, principal: &Principal) -> bool {
        let known =
            Known { principal: Some(principal_value(principal)), tool: Some(self.tool.clone()), ..Known::default() };
        for Candidate { rule, given } in &self.candidates {
            if !rule.speaks_of(principal.role, &principal.name) {
                continue;
            }
            let denies = rule.then == Verdict::Deny;
            let of_the_call = |uses: condition::Uses| uses.arguments || uses.session;
            match &rule.when {
                // May hold or not. If not, the rest decides.
                Some(when) if of_the_call(when.uses()) => {
                    if !denies {
                        return true;
                    }
                    continue;
                }
                Some(when) if asks_of_the_call(rule) => match when.holds(&known) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(_) if denies => return false,
                    Err(_) => continue,
                },
                _ => {}
            }
            match given {
                Given::Fits => return !denies,
                Given::Open | Given::Fault(_) if denies => return false,
                Given::Open | Given::Fault(_) => {}
            }
        }
        self.otherwise.verdict != Verdict::Deny
    }
}

/// A call whose arguments are read when the first condition looks at them.
struct Lazy<'a> {
    call: &'a CallFacts<'a>,
    arguments: OnceCell<Result<cel::Value, ConditionFault>>,
}

impl Lazy<'_> {
    fn matches(&self, candidate: &Candidate, tool: &cel::Value) -> Match {
        let Candidate { rule, given } = candidate;
        let principal = self.call.principal;
        if !rule.speaks_of(principal.role, &principal.name) {
            return Match::No;
        }
        if matches!(given, Given::Fault(_)) || !asks_of_the_call(rule) {
            return given.as_match();
        }
        match self.holds(rule, tool) {
            Ok(true) => given.as_match(),
            Ok(false) => Match::No,
            Err(fault) => Match::Fault(fault),
        }
    }

    fn holds(&self, rule: &Rule, tool: &cel::Value) -> Result<bool, ConditionFault> {
        let Some(when) = &rule.when else { return Ok(true) };
        let uses = when.uses();
        let mut known = Known::default();
        if uses.arguments {
            let read = self.arguments.get_or_init(|| values::arguments(self.call.arguments));
            known.arguments = Some(read.clone()?);
        }
        if uses.principal {
            known.principal = Some(principal_value(self.call.principal));
        }
        if uses.session {
            let CallFacts { transport, revision, client, .. } = self.call;
            known.session = Some(condition::texts(&[
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
    condition::texts(&[("name", Some(&principal.name)), ("role", Some(principal.role.as_str()))])
}

/// Annotations as far as they count: what nobody vouches for is the worst that the protocol assumes.
fn tool_value(tool: &ToolFacts) -> cel::Value {
    let known = tool.known();
    let hints = [
        ("readOnlyHint", known.read_only_hint),
        ("destructiveHint", known.destructive_hint),
        ("idempotentHint", known.idempotent_hint),
        ("openWorldHint", known.open_world_hint),
    ];
    let annotations: BTreeMap<String, cel::Value> =
        hints.into_iter().map(|(hint, is)| (hint.to_owned(), cel::Value::Bool(is))).collect();
    condition::object(BTreeMap::from([
        ("name".to_owned(), cel::Value::from(tool.name.as_str())),
        ("server".to_owned(), cel::Value::from(tool.server.as_str())),
        ("annotations".to_owned(), condition::object(annotations)),
    ]))
}

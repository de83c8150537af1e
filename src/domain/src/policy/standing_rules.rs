//! Standing rules: a reviewer's word on calls to come, given on a change that they saw, or on a tool.
//!
//! One that allows stands in for the approval that its creator alone could have given: it never counts where more
//! people, somebody else, a comment or a live preview are asked for, where the definition is another than the one that
//! was seen, or for what its creator calls. One that denies counts always.
//!
//! One that was given on a tool ('let this tool run without review') has no end, and so stands behind the configuration's
//! own rules: it counts only for calls on which none of them decides.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{CallFacts, Decision, Reviewers, ToolFacts, Verdict};
use crate::{
    changes::{Terms, person::Person},
    principal::{Principal, Role},
};
use countersign_protocol::arguments::{self, canonical_text_hash};

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StandingVerdict {
    Allow,
    Deny,
}

/// How often it decided; shared by all copies of a rule.
#[derive(Clone, Default)]
pub struct UseCounter(Arc<AtomicU64>);

impl UseCounter {
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// It decided at least so often, as others have counted.
    pub fn raise_to(&self, uses: u64) {
        self.0.fetch_max(uses, Ordering::Relaxed);
    }
}

impl fmt::Debug for UseCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl Serialize for UseCounter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

impl<'de> Deserialize<'de> for UseCounter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(|uses| Self(Arc::new(AtomicU64::new(uses))))
    }
}

/// See the module's page.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StandingRule {
    /// `srl_…`
    pub id: String,
    pub verdict: StandingVerdict,
    pub provider: String,
    /// As clients see it.
    pub tool: String,
    /// Of the definition that the change was proposed to, or that was shown of the tool.
    pub tool_hash: String,
    /// The fingerprint of what was behind the server's name then ([`crate::changes::ServedBy::fingerprint`]). A rule that
    /// allows and is older than this note (`None`) counts no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_by: Option<String>,
    /// Whose calls; `None` is everybody's. One that allows speaks of this principal alone, one that denies of the person,
    /// whichever of their keys they use.
    pub principal: Option<String>,
    /// Who proposed the change that it was given on, beside the name: nobody takes back what denies their own calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposer: Option<AccountRef>,
    /// Canonical, so that the order of members does not matter; `None` is any arguments.
    pub arguments_hash: Option<String>,
    /// What that hash is of, where it is not too large to be kept.
    pub arguments: Option<Arc<RawValue>>,
    /// The change that it was given on; `None` for one that was given on the tool itself.
    pub from_change: Option<String>,
    pub created_by: String,
    pub created_by_role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by_owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    pub revoked_by: Option<String>,
    /// When its end was recorded.
    pub expired_at: Option<Timestamp>,
    /// When it was seen that its creator may decide no more (their key was revoked, or has another role). What it allowed
    /// ended then; what it denies stays denied until somebody revokes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphaned_at: Option<Timestamp>,
    pub uses: UseCounter,
    /// Its end by the clock that nobody sets, so that a clock that was set back keeps nothing alive.
    #[serde(skip)]
    pub deadline: Option<Instant>,
}

/// An account that a rule speaks of.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountRef {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
}

impl AccountRef {
    #[must_use]
    pub fn person(&self) -> Person<'_> {
        Person { name: &self.name, owner: self.owner.as_deref(), key: self.key_id.as_deref() }
    }
}

impl PartialEq for StandingRule {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.revoked_at == other.revoked_at && self.expired_at == other.expired_at
    }
}

impl Eq for StandingRule {}

impl StandingRule {
    /// Whoever gave it.
    #[must_use]
    pub fn creator(&self) -> Principal {
        Principal {
            name: self.created_by.clone(),
            role: self.created_by_role,
            key_id: self.created_by_key.clone(),
            owner: self.created_by_owner.clone(),
        }
    }

    /// Whether it lets a whole tool run without review.
    #[must_use]
    pub fn allows_whole_tool(&self) -> bool {
        self.from_change.is_none()
            && self.verdict == StandingVerdict::Allow
            && self.principal.is_none()
            && self.arguments_hash.is_none()
    }

    /// Whether it speaks of calls of this principal.
    #[must_use]
    pub fn applies_to(&self, principal: &Principal) -> bool {
        let Some(name) = &self.principal else { return true };
        if self.verdict == StandingVerdict::Allow {
            return *name == principal.name;
        }
        let caller = Person::from_principal(principal);
        caller.is_named(name) || self.proposer.as_ref().is_some_and(|proposer| proposer.person().is_same_as(caller))
    }

    /// Whether it has neither ended nor been taken back.
    #[must_use]
    pub fn is_live(&self, now: Timestamp) -> bool {
        !self.has_ended() && !self.is_expired(now)
    }

    /// Whether that is on record.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.revoked_at.is_some() || self.expired_at.is_some()
    }

    /// Whether its time has passed.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now) || self.deadline.is_some_and(|at| at <= Instant::now())
    }

    /// Begins to count its time by the steady clock.
    #[must_use]
    pub fn with_deadline(self, now: Timestamp) -> Self {
        let left = self.expires_at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        // A time beyond what `Instant` holds is one the process will not see.
        Self { deadline: left.and_then(|left| Instant::now().checked_add(left)), ..self }
    }
}

/// Where standing rules come from.
pub trait StandingSource: Send + Sync + 'static {
    /// Those that speak of a tool and are not over.
    fn rules_for_tool(&self, provider: &str, tool: &str) -> Vec<Arc<StandingRule>>;
}

/// There are none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStandingRules;

impl StandingSource for NoStandingRules {
    fn rules_for_tool(&self, _: &str, _: &str) -> Vec<Arc<StandingRule>> {
        Vec::new()
    }
}

/// Whether one reviewer may let a call through for which a review asks this.
#[must_use]
pub fn can_approve_alone(people: &dyn Reviewers, terms: &Terms, reviewer: &Principal) -> bool {
    terms.single_approval_suffices() && people.may_decide(terms, reviewer)
}

/// The standing rules of one tool.
pub(super) struct ToolStandingRules {
    rules: Vec<Arc<StandingRule>>,
    people: Arc<dyn Reviewers>,
}

impl fmt::Debug for ToolStandingRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rules.fmt(f)
    }
}

/// Nesting of arguments that are compared.
const MAX_DEPTH: usize = 128;
/// Arguments beyond this take a while to compare.
const QUICK_COMPARISON_BYTES: usize = 16 << 10;

impl ToolStandingRules {
    /// `None` where nothing is said of the tool. A rule that allows counts for the definition it was given on, coming from
    /// the command or address that it came from then; one that denies for every other too, or a server could shake it off
    /// by another description.
    pub(super) fn new(
        rules: Vec<Arc<StandingRule>>,
        tool: &ToolFacts,
        people: &Arc<dyn Reviewers>,
    ) -> Option<Arc<Self>> {
        let counts = |rule: &Arc<StandingRule>| {
            rule.verdict == StandingVerdict::Deny
                || rule.tool_hash == tool.hash && rule.served_by.as_ref() == Some(&tool.target)
        };
        let rules: Vec<_> = rules.into_iter().filter(counts).collect();
        (!rules.is_empty()).then(|| Arc::new(Self { rules, people: Arc::clone(people) }))
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.id.as_str())
    }

    /// Whether comparing these arguments may take long.
    pub(super) fn may_take_long(&self, arguments: &RawValue) -> bool {
        arguments.get().len() > QUICK_COMPARISON_BYTES && self.rules.iter().any(|rule| rule.arguments_hash.is_some())
    }

    /// The rule by which a reviewer lets the whole tool run, whoever calls it with whatever arguments, where a review would
    /// ask for no more than `terms`.
    pub(super) fn allow_rule(&self, terms: &Terms) -> Option<&Arc<StandingRule>> {
        let now = Timestamp::now();
        self.rules.iter().find(|rule| {
            rule.allows_whole_tool()
                && rule.is_live(now)
                && self
                    .people
                    .current_principal(&rule.creator())
                    .ok()
                    .flatten()
                    .is_some_and(|c| can_approve_alone(&*self.people, terms, &c))
        })
    }

    /// Whether every call of the principal is denied.
    pub(super) fn denies_all(&self, principal: &Principal) -> bool {
        let now = Timestamp::now();
        self.rules.iter().any(|rule| {
            rule.verdict == StandingVerdict::Deny
                && rule.arguments_hash.is_none()
                && rule.is_live(now)
                && rule.applies_to(principal)
        })
    }

    /// What becomes of a call for which the configuration alone says `decision`.
    pub(super) fn apply(&self, decision: Decision, call: &CallFacts<'_>) -> Decision {
        let now = Timestamp::now();
        let mut hash: Option<Option<String>> = None;
        let mut fits = |rule: &&Arc<StandingRule>| {
            if !rule.is_live(now) || !rule.applies_to(call.principal) {
                return false;
            }
            let Some(asked) = &rule.arguments_hash else { return true };
            // What could be read in two ways is equal to nothing.
            let is = hash.get_or_insert_with(|| {
                arguments::check(call.arguments, MAX_DEPTH).ok().map(|()| canonical_text_hash(call.arguments.get()))
            });
            is.as_ref() == Some(asked)
        };
        let of = |says: StandingVerdict| self.rules.iter().filter(move |rule| rule.verdict == says);
        if let Some(rule) = of(StandingVerdict::Deny).find(&mut fits) {
            return decide_by_rule(decision, rule, Verdict::Deny);
        }
        if decision.verdict != Verdict::Review || decision.mark.is_some() {
            return decision;
        }
        let mut allows = of(StandingVerdict::Allow).filter(|rule| {
            if rule.from_change.is_none() && decision.rule.is_some() {
                return false;
            }
            // What cannot be known now is no yes.
            let Ok(Some(creator)) = self.people.current_principal(&rule.creator()) else { return false };
            let said = rule.comment.is_some() || !decision.terms.require_comment;
            said && !Person::from_principal(call.principal).is_same_as(Person::from_principal(&creator))
                && can_approve_alone(&*self.people, &decision.terms, &creator)
        });
        match allows.find(&mut fits) {
            Some(rule) => {
                let rule = Arc::clone(rule);
                decide_by_rule(decision, &rule, Verdict::Allow)
            }
            None => decision,
        }
    }
}

fn decide_by_rule(decision: Decision, rule: &Arc<StandingRule>, verdict: Verdict) -> Decision {
    let reason = match (&rule.comment, verdict) {
        (Some(comment), _) => comment.as_str().into(),
        (None, Verdict::Deny) => "a reviewer said that such calls are not to be made".into(),
        (None, _) => "a reviewer allowed such calls".into(),
    };
    let label = format!("standing rule {}", rule.id).into();
    Decision { verdict, rule: Some(label), reason, standing: Some(Arc::clone(rule)), ..decision }
}

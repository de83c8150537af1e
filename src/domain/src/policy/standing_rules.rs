//! Standing rules: decisions of reviewers about future calls, made on a change or on a tool.
//!
//! An allow rule replaces the single approval that its creator could have given. It does not apply if more reviewers,
//! another reviewer, a comment or a live preview are required, if the definition has changed, or to the creator's own
//! calls. A deny rule always applies.
//!
//! An allow rule for a whole tool ('let this tool run without review') has no end and ranks behind the configuration:
//! it applies only to calls that no configured rule decides.

use std::{
    cell::LazyCell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};
use utoipa::ToSchema;

use super::{
    ArgumentPattern, Decision, Reviewers, ToolFacts, Verdict,
    argument_patterns::{MAX_DEPTH, read_arguments},
};
use crate::{
    changes::{Terms, person::Person},
    principal::{Claims, Principal, Role, TokenRights},
};
use countersign_protocol::arguments::{self, canonical_text_hash};

/// The longest validity of a rule that allows.
pub const MAX_ALLOW_SECONDS: u64 = 30 * 86_400;
/// The longest validity of a rule that denies.
pub const MAX_DENY_SECONDS: u64 = 366 * 86_400;

/// The verdict of a standing rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StandingVerdict {
    Allow,
    Deny,
}

/// Counts how often a rule decided; shared by all copies of the rule.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UseCounter(Arc<AtomicU64>);

impl UseCounter {
    pub fn new(uses: u64) -> Self {
        Self(Arc::new(AtomicU64::new(uses)))
    }

    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds uses that other nodes have counted.
    pub fn add(&self, uses: u64) {
        self.0.fetch_add(uses, Ordering::Relaxed);
    }
}

/// A decision of a reviewer about future calls.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StandingRule {
    /// `srl_…`
    pub id: String,
    pub verdict: StandingVerdict,
    pub provider: String,
    /// The name that clients see.
    pub tool: String,
    /// Hash of the tool's definition when the rule was created.
    pub tool_hash: String,
    /// Fingerprint of the server when the rule was created. An older allow rule without it no longer applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_by: Option<String>,
    /// The principal whose calls it covers; `None` means everyone. An allow rule covers this principal alone, a deny
    /// rule covers the person with any of their keys.
    #[schema(required)]
    pub principal: Option<String>,
    /// The proposer of the change that the rule was created on, so that they cannot revoke a rule that denies their own
    /// calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposer: Option<AccountRef>,
    /// Hash of the canonical arguments, independent of the order of members; `None` means any arguments.
    #[schema(required)]
    pub arguments_hash: Option<String>,
    /// The hashed arguments, if they are not too large to store.
    #[schema(required, value_type = Option<Object>)]
    pub arguments: Option<Arc<RawValue>>,
    /// The conditions of an allow rule on single arguments; all of them must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matching: Vec<ArgumentPattern>,
    /// The change that it was created on; `None` if it was created on the tool.
    #[schema(required)]
    pub from_change: Option<String>,
    /// The person who created it.
    pub created_by: String,
    pub created_by_role: Role,
    /// The owner of the creator's key, if that is another person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by_owner: Option<String>,
    /// The id of the creator's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by_key: Option<String>,
    /// The creator's further names, to which an allow rule does not apply either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub created_by_other_names: Vec<String>,
    /// The rights of the creator's access token, if one was used. An allow rule applies as long as they would suffice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by_token: Option<TokenRights>,
    /// The creator's comment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    pub created_at: Timestamp,
    /// The time at which it ends; `None` if it applies until it is revoked.
    #[schema(required)]
    pub expires_at: Option<Timestamp>,
    /// The time at which it was revoked.
    #[schema(required)]
    pub revoked_at: Option<Timestamp>,
    /// The person who revoked it.
    #[schema(required)]
    pub revoked_by: Option<String>,
    /// The time at which the expiry was recorded.
    #[schema(required)]
    pub expired_at: Option<Timestamp>,
    /// The time at which the gateway found that the creator may no longer decide (the key was revoked or has another role).
    /// An allow rule ends then; a deny rule stays until a reviewer revokes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub orphaned_at: Option<Timestamp>,
    /// The number of calls that the rule decided.
    #[schema(value_type = u64)]
    pub uses: UseCounter,
    /// The expiry by the monotonic clock, so that setting back the wall clock does not extend it.
    #[serde(skip)]
    pub deadline: Option<Instant>,
}

/// A reference to an account, by its names, owner and key.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccountRef {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The account's further names ([`Principal::other_names`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_names: Vec<String>,
}

impl AccountRef {
    pub fn person(&self) -> Person<'_> {
        Person {
            name: &self.name,
            owner: self.owner.as_deref(),
            key: self.key_id.as_deref(),
            other_names: &self.other_names,
        }
    }
}

impl PartialEq for StandingRule {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.revoked_at == other.revoked_at && self.expired_at == other.expired_at
    }
}

impl Eq for StandingRule {}

impl StandingRule {
    /// Returns the rule as events contain it: without its arguments, and without the values with which it compares arguments.
    pub fn without_arguments(&self) -> Self {
        let without_value = |pattern: &ArgumentPattern| ArgumentPattern {
            argument: pattern.argument.clone(),
            equals: None,
            within: None,
        };
        Self { arguments: None, matching: self.matching.iter().map(without_value).collect(), ..self.clone() }
    }

    /// Returns the principal who created the rule.
    pub fn creator(&self) -> Principal {
        let other_names = &self.created_by_other_names;
        let claims = |token: &TokenRights| Claims { other_names: other_names.clone(), ..token.claims() };
        Principal {
            name: self.created_by.clone(),
            role: self.created_by_role,
            key_id: self.created_by_key.clone(),
            owner: self.created_by_owner.clone(),
            claims: self.created_by_token.as_ref().map(|token| Arc::new(claims(token))),
            key_creators: other_names.clone(),
        }
    }

    /// Returns `true` if the rule lets a whole tool run without review.
    pub fn allows_whole_tool(&self) -> bool {
        self.from_change.is_none()
            && self.verdict == StandingVerdict::Allow
            && self.principal.is_none()
            && self.covers_any_arguments()
    }

    /// Returns `true` if the rule does not depend on the arguments.
    pub fn covers_any_arguments(&self) -> bool {
        self.arguments_hash.is_none() && self.matching.is_empty()
    }

    /// Returns `true` if the rule covers calls of this principal.
    pub fn applies_to(&self, principal: &Principal) -> bool {
        let Some(name) = &self.principal else { return true };
        if self.verdict == StandingVerdict::Allow {
            return *name == principal.name;
        }
        let caller = Person::from_principal(principal);
        caller.is_named(name) || self.proposer.as_ref().is_some_and(|proposer| proposer.person().is_same_as(caller))
    }

    /// Returns `true` if the rule is neither revoked nor expired.
    pub fn is_live(&self, now: Timestamp) -> bool {
        !self.has_ended() && !self.is_expired(now)
    }

    /// Returns `true` if the end of the rule is recorded.
    pub const fn has_ended(&self) -> bool {
        self.revoked_at.is_some() || self.expired_at.is_some()
    }

    /// Returns `true` if the rule's time is over, whether that is recorded or not.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now) || self.deadline.is_some_and(|at| at <= Instant::now())
    }

    /// Sets the deadline by the monotonic clock.
    #[must_use]
    pub fn with_deadline(self, now: Timestamp) -> Self {
        let remaining = self.expires_at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        // A time beyond the range of `Instant` is never reached.
        Self { deadline: remaining.and_then(|remaining| Instant::now().checked_add(remaining)), ..self }
    }
}

/// The source of standing rules.
pub trait StandingRuleSource: Send + Sync + 'static {
    /// Returns the rules of a provider that have not ended and whose tool `concerns` accepts.
    fn find_rules(&self, provider: &str, concerns: &dyn Fn(&str) -> bool) -> Vec<Arc<StandingRule>>;

    /// Returns the time by which rules expire.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Returns `true` if this reviewer alone may approve a call under these terms.
pub fn can_approve_alone(reviewers: &Reviewers, terms: &Terms, reviewer: &Principal) -> bool {
    terms.single_approval_suffices() && reviewers.may_decide(&terms.reviewers, reviewer)
}

/// The standing rules of one tool.
pub(super) struct ToolStandingRules {
    rules: Vec<Arc<StandingRule>>,
    source: Arc<dyn StandingRuleSource>,
    reviewers: Arc<Reviewers>,
}

impl fmt::Debug for ToolStandingRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rules.fmt(f)
    }
}

/// The maximum size of arguments that are compared quickly, in bytes.
const QUICK_COMPARISON_BYTES: usize = 16 << 10;

impl ToolStandingRules {
    /// Creates the set, or `None` if no rule applies to the tool. An allow rule applies to the definition and server
    /// that it was created for. A deny rule applies to every definition, or a server could evade it by changing the
    /// description.
    pub(super) fn new(
        source: &Arc<dyn StandingRuleSource>,
        tool: &ToolFacts,
        reviewers: &Arc<Reviewers>,
    ) -> Option<Arc<Self>> {
        let is_applicable = |rule: &Arc<StandingRule>| {
            rule.verdict == StandingVerdict::Deny
                || rule.tool_hash == tool.hash && rule.served_by.as_ref() == Some(&tool.server_fingerprint)
        };
        let rules = source.find_rules(&tool.server, &|name| tool.is_concerned_by(name));
        let rules: Vec<_> = rules.into_iter().filter(is_applicable).collect();
        (!rules.is_empty())
            .then(|| Arc::new(Self { rules, source: Arc::clone(source), reviewers: Arc::clone(reviewers) }))
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.id.as_str())
    }

    /// Returns `true` if comparing these arguments may be slow.
    pub(super) fn may_take_long(&self, arguments: &RawValue) -> bool {
        arguments.get().len() > QUICK_COMPARISON_BYTES && self.rules.iter().any(|rule| !rule.covers_any_arguments())
    }

    /// Returns the rule that lets the whole tool run for every caller and any arguments, if a review would require no
    /// more than `terms`.
    pub(super) fn allow_rule(&self, terms: &Terms) -> Option<&Arc<StandingRule>> {
        let now = self.source.now();
        self.rules.iter().find(|rule| {
            rule.allows_whole_tool()
                && rule.is_live(now)
                && self
                    .reviewers
                    .current_principal(&rule.creator())
                    .ok()
                    .flatten()
                    .is_some_and(|c| can_approve_alone(&self.reviewers, terms, &c))
        })
    }

    /// Returns `true` if every call of the principal is denied.
    pub(super) fn denies_all(&self, principal: &Principal) -> bool {
        let now = self.source.now();
        self.rules.iter().any(|rule| {
            rule.verdict == StandingVerdict::Deny
                && rule.covers_any_arguments()
                && rule.is_live(now)
                && rule.applies_to(principal)
        })
    }

    /// Decides on a call. `decision` is the decision of the configuration alone.
    pub(super) fn apply(&self, decision: Decision, caller: &Principal, arguments: &RawValue) -> Decision {
        let now = self.source.now();
        // Ambiguous arguments have neither members nor a hash, so that they match no rule which depends on them.
        let members = LazyCell::new(|| read_arguments(arguments));
        let hash = LazyCell::new(|| {
            arguments::check(arguments, MAX_DEPTH).ok().map(|()| canonical_text_hash(arguments.get()))
        });
        let matches = |rule: &&Arc<StandingRule>| {
            let matches_members =
                |members: &Map<String, Value>| rule.matching.iter().all(|pattern| pattern.matches(members));
            rule.is_live(now)
                && rule.applies_to(caller)
                && (rule.matching.is_empty() || members.as_ref().is_some_and(matches_members))
                && (rule.arguments_hash.is_none() || rule.arguments_hash == *hash)
        };
        let rules_with = |verdict: StandingVerdict| self.rules.iter().filter(move |rule| rule.verdict == verdict);
        if let Some(rule) = rules_with(StandingVerdict::Deny).find(&matches) {
            return decide_by_rule(decision, rule, Verdict::Deny);
        }
        if decision.verdict != Verdict::Review || decision.mark.is_some() {
            return decision;
        }
        let mut allows = rules_with(StandingVerdict::Allow).filter(|rule| {
            if rule.from_change.is_none() && decision.rule.is_some() {
                return false;
            }
            // If the creator cannot be checked now, the rule does not apply.
            let Ok(Some(creator)) = self.reviewers.current_principal(&rule.creator()) else { return false };
            let has_comment = rule.comment.is_some() || !decision.terms.require_comment;
            has_comment
                && !Person::from_principal(caller).may_be_same_as(Person::from_principal(&creator))
                && can_approve_alone(&self.reviewers, &decision.terms, &creator)
        });
        match allows.find(&matches) {
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
        (None, Verdict::Deny) => "a reviewer denied such calls".into(),
        (None, _) => "a reviewer allowed such calls".into(),
    };
    let label = format!("standing rule {}", rule.id).into();
    Decision { verdict, rule: Some(label), reason, standing_rule: Some(Arc::clone(rule)), ..decision }
}

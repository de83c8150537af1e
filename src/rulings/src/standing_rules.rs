//! Creates standing rules from a change ([`create`]) or for a tool ([`allow`]), and lists, revokes and expires them. Each step
//! is recorded before it takes effect, and is announced on the feed.
//!
//! A [`StandingRule`] is one decision of a reviewer. [`StandingRuleService`] changes the rules, and [`StandingRuleCache`] holds
//! them in memory as the [`StandingRuleSource`] from which the route table reads them.
//!
//! Each use of a rule is counted in the rule and logged with its call. The audit trail gets at most one entry a minute for
//! each used rule, so that a flood of calls does not fill it. All entries of a rule belong to the timeline of the
//! change from which it was created, if any.

mod allow;
mod cache;
mod create;
mod recording;
mod remote;
mod suggest;
#[cfg(test)]
mod tests;

pub use self::{
    cache::StandingRuleCache,
    create::{RuleArguments, RuleCallers, RuleRequest},
    suggest::Suggestions,
};

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use futures_util::future::join_all;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use self::recording::RuleEvent;
use crate::{completion::run_to_completion, tool_acceptance::RouteRebuilder};
use countersign_domain::{
    changes::{machine::SYSTEM, person::Person},
    policy::{Reviewers, StandingRule, StandingRuleSource, StandingVerdict},
    principal::{Principal, TokenRights},
};
use countersign_feed::Feed;
use countersign_protocol::{ErrorKind, McpError};
use countersign_routing::table::PublishedTable;
use countersign_runtime::crash::crash_point;
use countersign_store::{RULE_USED, Store};

/// The maximum number of active rules of one owner.
pub const MAX_RULES_PER_OWNER: usize = 200;
/// The maximum number of active rules of all owners together.
pub const MAX_RULES: usize = 2000;
/// The interval between checks for expired rules.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The number of checks after which the uses of rules are recorded.
const CHECKS_PER_USE_RECORD: u32 = 60;

/// The comment on a rule that allows and whose creator may no longer decide.
const ALLOW_RULE_ENDED_COMMENT: &str = "the key or sign-in of the rule's creator was revoked or may no longer decide";
/// The comment on a rule that denies and whose creator may no longer decide.
const DENY_RULE_ORPHANED_COMMENT: &str = "the key or sign-in of the rule's creator was revoked or may no longer decide; the rule denies until a reviewer \
     revokes it";

/// The dependencies of [`StandingRuleService`].
pub struct StandingRuleServiceDeps {
    pub store: Arc<dyn Store>,
    pub cache: Arc<StandingRuleCache>,
    pub reviewers: Arc<Reviewers>,
    pub routes: Arc<PublishedTable>,
    pub rebuild: RouteRebuilder,
    pub feed: Feed,
}

/// Creates, revokes, expires and counts standing rules.
pub struct StandingRuleService {
    deps: StandingRuleServiceDeps,
    /// Held during each change of the rules, so that concurrent requests cannot exceed the limits.
    rules_lock: tokio::sync::Mutex<()>,
    /// The recorded uses by rule id, of all nodes as far as this node knows. Each rule in the cache counts these and the uses at
    /// this node since then.
    recorded_uses: Mutex<HashMap<String, u64>>,
    /// See [`StandingRuleService::is_behind`].
    is_behind: AtomicBool,
}

impl StandingRuleService {
    fn now(&self) -> Timestamp {
        self.deps.cache.now()
    }

    pub fn new(deps: StandingRuleServiceDeps) -> Self {
        let recorded_uses = deps.cache.rules().iter().map(|rule| (rule.id.clone(), rule.uses.get())).collect();
        Self {
            deps,
            rules_lock: tokio::sync::Mutex::default(),
            recorded_uses: Mutex::new(recorded_uses),
            is_behind: AtomicBool::default(),
        }
    }

    /// Returns all stored rules, newest first, including ended ones.
    pub fn list(&self) -> Vec<Arc<StandingRule>> {
        self.deps.cache.rules().iter().rev().cloned().collect()
    }

    /// Returns the route table, whose tools the rules apply to.
    pub fn routes(&self) -> &Arc<PublishedTable> {
        &self.deps.routes
    }

    fn check_limits(&self, reviewer: &Principal, new_rules: usize) -> Result<(), McpError> {
        let rules = self.deps.cache.rules();
        let active = rules.iter().filter(|rule| !rule.has_ended());
        let is_own =
            |rule: &StandingRule| Person::from_principal(&rule.creator()).is_same_as(Person::from_principal(reviewer));
        let (all, own) = active.fold((0, 0), |(all, own), rule| (all + 1, own + usize::from(is_own(rule))));
        let (message, max) = if own + new_rules > MAX_RULES_PER_OWNER {
            ("you have too many standing rules; revoke some (countersign rules revoke)", MAX_RULES_PER_OWNER)
        } else if all + new_rules > MAX_RULES {
            ("there are too many standing rules; revoke some (countersign rules revoke)", MAX_RULES)
        } else {
            return Ok(());
        };
        Err(McpError::new(ErrorKind::RateLimited, message).with("max", max as u64))
    }

    /// Returns `true` if the rule denies calls of this person, with any of their keys. Older rules do not record the
    /// proposer, so their change is read. If retention has deleted the change, only the name counts.
    async fn denies_own_calls(&self, rule: &StandingRule, reviewer: &Principal) -> Result<bool, McpError> {
        let person = Person::from_principal(reviewer);
        if rule.principal.as_ref().is_some_and(|name| person.is_named(name)) {
            return Ok(true);
        }
        if let Some(proposer) = &rule.proposer {
            return Ok(proposer.person().may_be_same_as(person));
        }
        let Some(change) = &rule.from_change else { return Ok(false) };
        let change = self.deps.store.get(change).await.map_err(|error| {
            tracing::error!(%error, rule = %rule.id, "the change of a standing rule could not be read");
            McpError::new(
                ErrorKind::StoreUnavailable,
                "the change of the rule cannot be read, so the rule was not revoked",
            )
        })?;
        Ok(change.is_some_and(|change| change.proposer_could_be(Person::from_principal(reviewer))))
    }

    /// Revokes a rule. Any reviewer may do so, since the configuration decides again afterwards.
    ///
    /// # Errors
    /// `NOT_FOUND`, `VERSION_CONFLICT` for a rule that has ended, `SELF_APPROVAL` for a rule that denies the reviewer's
    /// own calls, `STORE_UNAVAILABLE`.
    pub async fn revoke(
        self: &Arc<Self>,
        id: &str,
        reviewer: &Principal,
        comment: Option<&str>,
    ) -> Result<Arc<StandingRule>, McpError> {
        let (this, reviewer) = (Arc::clone(self), reviewer.clone());
        let (id, comment) = (id.to_owned(), comment.map(str::to_owned));
        run_to_completion(async move {
            let _one_at_a_time = this.rules_lock.lock().await;
            let rules = this.deps.cache.rules();
            let Some(rule) = rules.iter().find(|rule| rule.id == id) else {
                return Err(McpError::new(ErrorKind::NotFound, "there is no standing rule with this id"));
            };
            if rule.has_ended() {
                return Err(already_ended_error(rule));
            }
            if rule.verdict == StandingVerdict::Deny && this.denies_own_calls(rule, &reviewer).await? {
                let message = "you cannot revoke a rule that denies your own calls";
                return Err(McpError::new(ErrorKind::SelfApproval, message));
            }
            let revoked = StandingRule {
                revoked_at: Some(this.now()),
                revoked_by: Some(reviewer.name.clone()),
                ..StandingRule::clone(rule)
            };
            let comment = comment.as_deref();
            crash_point("before_rule_revoked");
            this.store_and_announce(&revoked, RuleEvent::Revoked, &reviewer.name, comment).await?;
            crash_point("after_rule_revoked");
            tracing::info!(rule = %id, by = %reviewer.name, "a standing rule was revoked");
            Ok(Arc::new(revoked))
        })
        .await
    }

    /// Returns the cache of the rules that the route table reads.
    pub fn cache(&self) -> &StandingRuleCache {
        &self.deps.cache
    }

    /// Handles expired and orphaned rules every second, and records uses every minute, until the gateway shuts down.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut checks = 0_u32;
        let mut handled_revocations = None;
        loop {
            self.end_invalid_rules(&mut handled_revocations).await;
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = shutdown.cancelled() => return,
            }
            checks = checks.wrapping_add(1);
            if checks.is_multiple_of(CHECKS_PER_USE_RECORD) {
                self.record_uses().await;
            }
        }
    }

    /// Ends expired and orphaned rules if this node is the leader. The other nodes adopt what it records. Checks the creators of
    /// all rules again if the revocation counter has changed since `handled_revocations`.
    async fn end_invalid_rules(&self, handled_revocations: &mut Option<u64>) {
        if !self.deps.cache.nodes.is_leader() {
            return;
        }
        if let Ok(revocations) = self.deps.reviewers.revocations()
            && *handled_revocations != Some(revocations)
            && self.handle_orphans().await
        {
            *handled_revocations = Some(revocations);
        }
        self.expire().await;
    }

    /// Ends expired rules. If the end cannot be recorded, the next call tries again; expired rules decide nothing
    /// meanwhile.
    pub async fn expire(&self) {
        let _one_at_a_time = self.rules_lock.lock().await;
        let now = self.now();
        for rule in self.deps.cache.rules().iter().filter(|rule| !rule.has_ended() && rule.is_expired(now)) {
            let expired = StandingRule { expired_at: Some(now), ..StandingRule::clone(rule) };
            if let Err(error) = self.store_and_announce(&expired, RuleEvent::Expired, SYSTEM, None).await {
                tracing::warn!(%error, "the end of a standing rule could not be recorded; trying again");
                return;
            }
        }
    }

    /// Ends rules that allow, and marks rules that deny, if their creator may no longer decide. Returns `false` if
    /// some rules could not be checked or recorded, so that the caller must retry. These rules allow nothing meanwhile.
    pub async fn handle_orphans(&self) -> bool {
        let _one_at_a_time = self.rules_lock.lock().await;
        let mut all_handled = true;
        for rule in self.deps.cache.rules().iter().filter(|rule| !rule.has_ended() && rule.orphaned_at.is_none()) {
            let Ok(creator) = self.deps.reviewers.current_principal(&rule.creator()) else {
                all_handled = false;
                continue;
            };
            if creator.is_some_and(|creator| creator.role.may_decide()) {
                continue;
            }
            let now = self.now();
            let mut orphan = StandingRule { orphaned_at: Some(now), ..StandingRule::clone(rule) };
            let (event, comment) = match rule.verdict {
                StandingVerdict::Allow => {
                    orphan.revoked_at = Some(now);
                    orphan.revoked_by = Some(SYSTEM.to_owned());
                    (RuleEvent::Revoked, ALLOW_RULE_ENDED_COMMENT)
                }
                StandingVerdict::Deny => (RuleEvent::Orphaned, DENY_RULE_ORPHANED_COMMENT),
            };
            tracing::warn!(rule = %rule.id, by = %rule.created_by, verdict = ?rule.verdict, "the creator of a standing rule may no longer decide");
            if let Err(error) = self.store_and_announce(&orphan, event, SYSTEM, Some(comment)).await {
                tracing::warn!(%error, "a standing rule without a valid creator could not be updated; trying again");
                all_handled = false;
            }
        }
        all_handled
    }

    /// Records the use counts that have grown since they were last recorded.
    pub async fn record_uses(&self) {
        let _one_at_a_time = self.rules_lock.lock().await;
        let rules = self.deps.cache.rules();
        let used: Vec<StandingRule> =
            rules.iter().filter(|rule| self.unrecorded_uses(rule) > 0).map(|rule| StandingRule::clone(rule)).collect();
        let writes = used.iter().map(|rule| self.record(rule, RULE_USED, SYSTEM, None));
        if let Some(Err(error)) = join_all(writes).await.into_iter().find(Result::is_err) {
            tracing::warn!(%error, "uses of standing rules could not be recorded; trying again in a minute");
        }
    }

    /// Returns the number of uses at this node since they were last recorded.
    fn unrecorded_uses(&self, rule: &StandingRule) -> u64 {
        let recorded_uses = self.recorded_uses.lock().unwrap_or_else(PoisonError::into_inner);
        rule.uses.get().saturating_sub(recorded_uses.get(&rule.id).copied().unwrap_or(0))
    }
}

fn already_ended_error(rule: &StandingRule) -> McpError {
    McpError::new(ErrorKind::VersionConflict, "the standing rule has already ended").with("ruleId", rule.id.as_str())
}

/// Returns a rule for any arguments and any caller, without an end.
fn unrestricted_rule(
    verdict: StandingVerdict,
    (provider, tool, hash): (&str, &str, &str),
    creator: &Principal,
    now: Timestamp,
) -> StandingRule {
    StandingRule {
        id: format!("srl_{}", nanoid::nanoid!(24, &nanoid::alphabet::SAFE[2..])),
        verdict,
        provider: provider.to_owned(),
        tool: tool.to_owned(),
        tool_hash: hash.to_owned(),
        served_by: None,
        principal: None,
        proposer: None,
        arguments_hash: None,
        arguments: None,
        matching: Vec::new(),
        from_change: None,
        created_by: creator.name.clone(),
        created_by_role: creator.role,
        created_by_owner: creator.owner.clone(),
        created_by_key: creator.key_id.clone(),
        created_by_other_names: creator.other_names().to_vec(),
        created_by_token: TokenRights::from_principal(creator),
        comment: None,
        created_at: now,
        expires_at: None,
        revoked_at: None,
        revoked_by: None,
        expired_at: None,
        orphaned_at: None,
        uses: Default::default(),
        deadline: None,
    }
}

//! Adopts the standing rules that other nodes have created or ended, and announces that on this node's feed.

use std::sync::{Arc, PoisonError, atomic::Ordering};

use super::{StandingRuleService, recording::RuleEvent};
use countersign_domain::{
    changes::machine::SYSTEM,
    policy::{StandingRule, StandingVerdict},
};
use countersign_store::{StoreError, find_newest_entry};

/// The creation or the end of a rule on another node, as this node announces it.
#[derive(Debug, PartialEq, Eq)]
struct RemoteRuleEvent {
    rule: StandingRule,
    event: RuleEvent,
    actor: String,
    comment: Option<String>,
}

/// Compares the known rules with the stored ones, and returns what other nodes did with them.
fn find_remote_events(known_rules: &[Arc<StandingRule>], stored: &[StandingRule]) -> Vec<RemoteRuleEvent> {
    let mut events = Vec::new();
    for rule in stored {
        let previous = known_rules.iter().find(|known| known.id == rule.id);
        let mut push = |event, actor: &str, comment: Option<&str>| {
            let (actor, comment) = (actor.to_owned(), comment.map(str::to_owned));
            events.push(RemoteRuleEvent { rule: rule.clone(), event, actor, comment });
        };
        if previous.is_none() {
            push(RuleEvent::Created, &rule.created_by, rule.comment.as_deref());
        }
        let had_ended = previous.is_some_and(|previous| previous.has_ended());
        let orphaned = rule.orphaned_at.is_some() && previous.is_none_or(|previous| previous.orphaned_at.is_none());
        if rule.has_ended() && !had_ended {
            // A rule that denies is only revoked by a reviewer, whose comment counts.
            let ended_as_orphan = orphaned && rule.verdict == StandingVerdict::Allow;
            match &rule.revoked_by {
                Some(by) => push(RuleEvent::Revoked, by, ended_as_orphan.then_some(super::ALLOW_RULE_ENDED_COMMENT)),
                None => push(RuleEvent::Expired, SYSTEM, None),
            }
        } else if orphaned && rule.verdict == StandingVerdict::Deny {
            push(RuleEvent::Orphaned, SYSTEM, Some(super::DENY_RULE_ORPHANED_COMMENT));
        }
    }
    events
}

impl StandingRuleService {
    /// Returns `true` if the rules must be reloaded, because another node was first to end a rule, or because it is unknown
    /// whether a rule of this node was stored.
    pub fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Acquire)
    }

    /// Reads what other nodes did with rules, and announces it once it is in force.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn reload(&self) -> Result<(), StoreError> {
        // Waits until this node's own rules are in the cache, so that they are not taken for those of another node.
        let _one_at_a_time = self.rules_lock.lock().await;
        let stored = self.deps.store.standing_rules().await?;
        let known_rules = self.deps.cache.rules();
        self.add_remote_uses(&known_rules, &stored);
        let events = find_remote_events(&known_rules, &stored);
        if self.deps.cache.merge(stored) {
            (self.deps.rebuild)().await;
        }
        self.is_behind.store(false, Ordering::Release);
        for RemoteRuleEvent { rule, event, actor, comment } in events {
            let comment = match comment {
                None if event == RuleEvent::Revoked => self.find_revocation_comment(&rule).await,
                comment => comment,
            };
            self.announce(&rule, event, &actor, comment.as_deref());
        }
        Ok(())
    }

    /// Adds the uses that other nodes have recorded since this node last read or recorded them.
    fn add_remote_uses(&self, known_rules: &[Arc<StandingRule>], stored: &[StandingRule]) {
        let mut recorded_uses = self.recorded_uses.lock().unwrap_or_else(PoisonError::into_inner);
        for rule in stored {
            let uses = rule.uses.get();
            let uses_before = recorded_uses.insert(rule.id.clone(), uses).unwrap_or(0);
            if let Some(known) = known_rules.iter().find(|known| known.id == rule.id) {
                known.uses.add(uses.saturating_sub(uses_before));
            }
        }
    }

    /// Finds the comment on a revocation in the audit trail, since the rule does not contain it.
    async fn find_revocation_comment(&self, rule: &StandingRule) -> Option<String> {
        let is_of_rule = |details: &serde_json::Value| details["rule"]["id"] == *rule.id;
        let (_, details) = find_newest_entry(&*self.deps.store, RuleEvent::Revoked.audit_event(), is_of_rule).await?;
        details["comment"].as_str().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use countersign_domain::principal::{Principal, Role};

    fn rule(id: &str, verdict: StandingVerdict) -> StandingRule {
        let alice = Principal::new("alice", Role::Reviewer);
        StandingRule {
            id: id.into(),
            comment: Some("fine".into()),
            ..super::super::unrestricted_rule(verdict, ("fs", "write", "h"), &alice, Timestamp::now())
        }
    }

    fn summarize<const N: usize, const M: usize>(
        known: [&StandingRule; N],
        read: [&StandingRule; M],
    ) -> Vec<(String, RuleEvent, String)> {
        let known = known.map(|rule| Arc::new(rule.clone()));
        find_remote_events(&known, &read.map(Clone::clone))
            .into_iter()
            .map(|event| (event.rule.id, event.event, event.actor))
            .collect()
    }

    #[test]
    fn remote_rule_events_are_announced_once() {
        let (a, b) = (rule("a", StandingVerdict::Allow), rule("b", StandingVerdict::Deny));
        let expected = |id: &str, event, by: &str| (id.to_owned(), event, by.to_owned());
        assert_eq!(
            summarize([], [&a, &b]),
            [expected("a", RuleEvent::Created, "alice"), expected("b", RuleEvent::Created, "alice")]
        );
        assert_eq!(summarize([&a, &b], [&a, &b]), []);
        let revoked = StandingRule { revoked_at: Some(Timestamp::now()), revoked_by: Some("bob".into()), ..a.clone() };
        assert_eq!(summarize([&a], [&revoked]), [expected("a", RuleEvent::Revoked, "bob")]);
        assert_eq!(summarize([&revoked], [&revoked]), []);
        assert_eq!(
            summarize([], [&revoked]),
            [expected("a", RuleEvent::Created, "alice"), expected("a", RuleEvent::Revoked, "bob")]
        );
        let expired = StandingRule { expired_at: Some(Timestamp::now()), ..a.clone() };
        assert_eq!(summarize([&a], [&expired]), [expected("a", RuleEvent::Expired, SYSTEM)]);
        let orphaned = StandingRule { orphaned_at: Some(Timestamp::now()), ..b.clone() };
        assert_eq!(summarize([&b], [&orphaned]), [expected("b", RuleEvent::Orphaned, SYSTEM)]);
        assert_eq!(summarize([&orphaned], [&orphaned]), []);
    }

    #[test]
    fn only_an_ended_allow_rule_is_announced_as_orphaned() {
        let comment = |verdict, by: &str| {
            let (known, now) = (rule("a", verdict), Timestamp::now());
            let ended = StandingRule {
                orphaned_at: Some(now),
                revoked_at: Some(now),
                revoked_by: Some(by.to_owned()),
                ..known.clone()
            };
            let events = find_remote_events(&[Arc::new(known)], &[ended]);
            assert_eq!(events.iter().map(|event| event.event).collect::<Vec<_>>(), [RuleEvent::Revoked]);
            events.into_iter().find_map(|event| event.comment)
        };
        assert_eq!(comment(StandingVerdict::Allow, SYSTEM).as_deref(), Some(super::super::ALLOW_RULE_ENDED_COMMENT));
        // The comment of the reviewer is read from the audit trail.
        assert_eq!(comment(StandingVerdict::Deny, "bob"), None);
    }
}

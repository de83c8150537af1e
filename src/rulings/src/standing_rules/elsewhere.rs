//! Standing rules that other nodes of the store give, take back and end: in force here too, and told on this node's feed as
//! there, so that its dashboards and, where it leads, its webhooks hear of them.

use std::sync::{Arc, PoisonError};

use super::{StandingRuleCache, StandingRules, now};
use countersign_domain::{
    changes::machine::SYSTEM,
    policy::{Says, StandingRule},
};
use countersign_store::{AuditSearch, StoreError};

/// Entries among which the comment on a revocation is looked for.
const LOOKED_AT: usize = 50;

/// What became of a rule elsewhere: the feed's word for it, who did it, and what they said.
#[derive(Debug, PartialEq, Eq)]
struct News {
    rule: StandingRule,
    feed: &'static str,
    by: String,
    comment: Option<String>,
}

/// What another node has done to the rules, by those that were known and those that there are.
fn news(known: &[Arc<StandingRule>], read: &[StandingRule]) -> Vec<News> {
    let mut all = Vec::new();
    for rule in read {
        let before = known.iter().find(|known| known.id == rule.id);
        let mut told = |feed, by: &str, comment: Option<&str>| {
            let (by, comment) = (by.to_owned(), comment.map(str::to_owned));
            all.push(News { rule: rule.clone(), feed, by, comment });
        };
        if before.is_none() {
            told("rule.created", &rule.created_by, rule.comment.as_deref());
        }
        let was_over = before.is_some_and(|before| before.is_over());
        let orphaned = rule.orphaned_at.is_some() && before.is_none_or(|before| before.orphaned_at.is_none());
        if rule.is_over() && !was_over {
            match &rule.revoked_by {
                Some(by) => told("rule.revoked", by, orphaned.then_some(super::ENDS)),
                None => told("rule.expired", SYSTEM, None),
            }
        } else if orphaned && rule.verdict == Says::Deny {
            told("rule.orphaned", SYSTEM, Some(super::STAYS));
        }
    }
    all
}

impl StandingRuleCache {
    /// As they are in the store by now; how often each decided here is kept. Whether another node has written one.
    fn take(&self, read: Vec<StandingRule>) -> bool {
        let (now, known) = (now(&*self.nodes), self.rules.load_full());
        let state = |rule: &StandingRule| (rule.id.clone(), rule.is_over(), rule.orphaned_at);
        let same = known.iter().map(|rule| state(rule)).eq(read.iter().map(state));
        let merged = read.into_iter().map(|rule| match known.iter().find(|known| known.id == rule.id) {
            Some(known) => {
                known.uses.raise(rule.uses.get());
                Arc::new(StandingRule { uses: known.uses.clone(), deadline: known.deadline, ..rule })
            }
            None => Arc::new(rule.timed(now)),
        });
        self.rules.store(Arc::new(merged.collect()));
        !same
    }
}

impl StandingRules {
    /// Reads what other nodes have written, and tells of it once it is in force.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn reload(&self) -> Result<(), StoreError> {
        // What is done here is known before it is read.
        let _one_at_a_time = self.changing.lock().await;
        let read = self.parts.store.standing_rules().await?;
        let on_record = read.iter().map(|rule| (rule.id.clone(), rule.uses.get()));
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).extend(on_record);
        let news = news(&self.parts.board.rules(), &read);
        if self.parts.board.take(read) {
            (self.parts.rebuild)().await;
        }
        for News { rule, feed, by, comment } in news {
            let comment = match comment {
                None if feed == "rule.revoked" => self.comment_on(&rule).await,
                comment => comment,
            };
            self.tell(&rule, feed, &by, comment.as_deref());
        }
        Ok(())
    }

    /// What somebody said who revoked it; the rule does not say.
    async fn comment_on(&self, rule: &StandingRule) -> Option<String> {
        let search = AuditSearch { events: vec!["standing_rule_revoked".to_owned()], ..AuditSearch::default() };
        let found = self.parts.store.search_audit(search, None, LOOKED_AT).await.ok()?;
        found.entries.iter().find_map(|found| {
            let details: serde_json::Value = serde_json::from_str(found.entry.details.get()).ok()?;
            let comment = details["comment"].as_str()?;
            (details["rule"]["id"] == *rule.id).then(|| comment.to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use countersign_domain::principal::{Principal, Role};

    fn rule(id: &str, verdict: Says) -> StandingRule {
        let alice = Principal { name: "alice".into(), role: Role::Reviewer, key_id: None, owner: None };
        StandingRule {
            id: id.into(),
            comment: Some("fine".into()),
            ..super::super::blank(verdict, ("fs", "write", "h"), &alice, Timestamp::now())
        }
    }

    fn told<const N: usize, const M: usize>(
        known: [&StandingRule; N],
        read: [&StandingRule; M],
    ) -> Vec<(String, &'static str, String)> {
        let known = known.map(|rule| Arc::new(rule.clone()));
        news(&known, &read.map(Clone::clone)).into_iter().map(|news| (news.rule.id, news.feed, news.by)).collect()
    }

    #[test]
    fn what_others_do_to_rules_is_told_once_and_what_is_known_is_not() {
        let (a, b) = (rule("a", Says::Allow), rule("b", Says::Deny));
        let is = |id: &str, feed, by: &str| (id.to_owned(), feed, by.to_owned());
        assert_eq!(told([], [&a, &b]), [is("a", "rule.created", "alice"), is("b", "rule.created", "alice")]);
        assert_eq!(told([&a, &b], [&a, &b]), []);
        let revoked = StandingRule { revoked_at: Some(Timestamp::now()), revoked_by: Some("bob".into()), ..a.clone() };
        assert_eq!(told([&a], [&revoked]), [is("a", "rule.revoked", "bob")]);
        assert_eq!(told([&revoked], [&revoked]), []);
        assert_eq!(told([], [&revoked]), [is("a", "rule.created", "alice"), is("a", "rule.revoked", "bob")]);
        let expired = StandingRule { expired_at: Some(Timestamp::now()), ..a.clone() };
        assert_eq!(told([&a], [&expired]), [is("a", "rule.expired", SYSTEM)]);
        let orphaned = StandingRule { orphaned_at: Some(Timestamp::now()), ..b.clone() };
        assert_eq!(told([&b], [&orphaned]), [is("b", "rule.orphaned", SYSTEM)]);
        assert_eq!(told([&orphaned], [&orphaned]), []);
    }
}

//! The standing rules in memory, from which the route table reads them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use jiff::Timestamp;

use countersign_domain::policy::{StandingRule, StandingRuleSource, StandingVerdict};
use countersign_store::{MAX_ENDED_RULES, Nodes, Store, StoreError};

/// The current rules, which the route table reads when it is built.
pub struct StandingRuleCache {
    pub(super) rules: ArcSwap<Vec<Arc<StandingRule>>>,
    /// `true` while this node is cut off from the other nodes and would miss a revocation.
    pub(super) is_cut_off: AtomicBool,
    pub(super) nodes: Arc<dyn Nodes>,
}

impl StandingRuleSource for StandingRuleCache {
    fn find_rules(&self, provider: &str, concerns: &dyn Fn(&str) -> bool) -> Vec<Arc<StandingRule>> {
        let rules = self.rules.load();
        let is_cut_off = self.is_cut_off.load(Ordering::Acquire);
        let applies = |rule: &&Arc<StandingRule>| {
            !rule.has_ended()
                && rule.provider == provider
                && concerns(&rule.tool)
                && !(is_cut_off && rule.verdict == StandingVerdict::Allow)
        };
        rules.iter().filter(applies).cloned().collect()
    }

    fn now(&self) -> Timestamp {
        now(&*self.nodes)
    }
}

impl StandingRuleCache {
    /// Loads all rules.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn open(store: &Arc<dyn Store>) -> Result<Arc<Self>, StoreError> {
        let nodes = store.nodes();
        let now = now(&*nodes);
        let rules = store.standing_rules().await?.into_iter().map(|rule| Arc::new(rule.with_deadline(now))).collect();
        Ok(Arc::new(Self { rules: ArcSwap::from_pointee(rules), is_cut_off: AtomicBool::new(false), nodes }))
    }

    /// Sets whether this node is cut off from the other nodes. While it is cut off, no rule allows anything, since the
    /// rule may have been revoked. Returns `true` if the value changed, in which case the caller must rebuild the
    /// routes.
    pub fn set_cut_off(&self, is_cut_off: bool) -> bool {
        self.is_cut_off.swap(is_cut_off, Ordering::AcqRel) != is_cut_off
    }

    /// Returns all stored rules, oldest first, including ended ones.
    pub fn rules(&self) -> Arc<Vec<Arc<StandingRule>>> {
        self.rules.load_full()
    }

    /// Adds the rule or replaces its earlier version, and removes the oldest ended rules beyond their limit.
    pub(super) fn upsert(&self, rule: &StandingRule) {
        self.rules.rcu(|rules| {
            let mut rules: Vec<Arc<StandingRule>> = Vec::clone(rules);
            match rules.iter_mut().find(|known| known.id == rule.id) {
                Some(known) => *known = Arc::new(rule.clone()),
                None => rules.push(Arc::new(rule.clone())),
            }
            let ended_count = rules.iter().filter(|rule| rule.has_ended()).count();
            let mut excess = ended_count.saturating_sub(MAX_ENDED_RULES);
            rules.retain(|rule| {
                if excess == 0 || !rule.has_ended() {
                    return true;
                }
                excess -= 1;
                false
            });
            rules
        });
    }

    /// Replaces the rules with the stored ones, but keeps the counters of known rules. Returns `true` if a rule was created,
    /// removed, ended or orphaned.
    pub(super) fn merge(&self, stored: Vec<StandingRule>) -> bool {
        let (now, known_rules) = (now(&*self.nodes), self.rules.load_full());
        let lifecycle = |rule: &StandingRule| (rule.id.clone(), rule.has_ended(), rule.orphaned_at);
        let is_unchanged = known_rules.iter().map(|rule| lifecycle(rule)).eq(stored.iter().map(lifecycle));
        let merged = stored.into_iter().map(|rule| match known_rules.iter().find(|known| known.id == rule.id) {
            Some(known) => Arc::new(StandingRule { uses: known.uses.clone(), deadline: known.deadline, ..rule }),
            None => Arc::new(rule.with_deadline(now)),
        });
        self.rules.store(Arc::new(merged.collect()));
        !is_unchanged
    }
}

/// Returns the time that all nodes share, rounded to milliseconds like all displayed times.
fn now(nodes: &dyn Nodes) -> Timestamp {
    let now = nodes.now();
    now.round(jiff::Unit::Millisecond).unwrap_or(now)
}

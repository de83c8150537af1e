//! Stores the hourly counts of the calls that each rule of the policy decided.
//!
//! Each call increments a counter of its rule in memory. The counters are added to the store every minute and at the end, so
//! that all nodes of a store count together.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::{RoundMode, SignedDuration, Timestamp, TimestampRound, Unit};
use tokio_util::sync::CancellationToken;

use countersign_domain::policy::verdict_counts::VerdictCounts;
use countersign_protocol::{ErrorKind, McpError};
use countersign_routing::table::PublishedTable;
use countersign_runtime::background;
use countersign_store::{
    Nodes, StoreError,
    rule_counts::{HourlyRuleCount, RuleCountStore, VerdictTotals},
};

/// The time for which counts are kept.
pub const RETENTION: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The interval between writes.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);

/// The counters of this node, and the stored counts of all nodes.
pub struct RuleCounts {
    store: Arc<dyn RuleCountStore>,
    nodes: Arc<dyn Nodes>,
    routes: Arc<PublishedTable>,
    /// The counters of the policy in force at the last write, to which running calls may still add, and those with counts that
    /// could not be stored.
    previous: Mutex<Vec<(String, VerdictCounts)>>,
}

impl RuleCounts {
    pub fn new(store: Arc<dyn RuleCountStore>, nodes: Arc<dyn Nodes>, routes: Arc<PublishedTable>) -> Self {
        Self { store, nodes, routes, previous: Mutex::default() }
    }

    /// Writes the counts every minute until the gateway shuts down.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(WRITE_INTERVAL) => self.write().await,
                () = shutdown.cancelled() => return,
            }
        }
    }

    /// Adds the counts since the last write to the store. Counts that certainly were not stored are kept for the next write.
    pub async fn write(&self) {
        let counters = self.rotate_counters();
        let hour = beginning_of_hour(self.nodes.now());
        // Two rules may have the same identity.
        let mut counts_by_rule: BTreeMap<String, [u64; 3]> = BTreeMap::new();
        for (rule, counts) in &counters {
            let sum = counts_by_rule.entry(rule.clone()).or_default();
            for (sum, count) in sum.iter_mut().zip(counts.take()) {
                *sum += count;
            }
        }
        counts_by_rule.retain(|_, counts| *counts != [0; 3]);
        if counts_by_rule.is_empty() {
            return;
        }
        let as_stored = |(rule, counts): (&String, &[u64; 3])| HourlyRuleCount {
            rule: rule.clone(),
            hour,
            totals: totals(*counts),
        };
        let counts: Vec<HourlyRuleCount> = counts_by_rule.iter().map(as_stored).collect();
        let oldest = hour.checked_sub(RETENTION).unwrap_or(Timestamp::MIN);
        let Err(error) = self.run_blocking(move |store| store.add_rule_counts(&counts, oldest)).await else { return };
        tracing::warn!(%error, "the counts of policy rules could not be stored");
        if error.is_certainly_aborted() {
            // The counters of a policy that is no longer in force are kept too, because the next write begins with these.
            let mut previous = self.previous.lock().unwrap_or_else(PoisonError::into_inner);
            for (rule, counts) in counters {
                if let Some(unstored) = counts_by_rule.remove(&rule) {
                    counts.give_back(unstored);
                    previous.push((rule, counts));
                }
            }
        }
    }

    /// Returns the counts of the last 30 days by the identities of rules. They include those of this node that are not stored yet.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn totals(&self) -> Result<BTreeMap<String, VerdictTotals>, McpError> {
        let since = beginning_of_hour(self.nodes.now()).checked_sub(RETENTION).unwrap_or(Timestamp::MIN);
        let stored = self.run_blocking(move |store| store.rule_counts(since)).await.map_err(|error| {
            tracing::warn!(%error, "the counts of policy rules could not be read");
            McpError::new(ErrorKind::StoreUnavailable, "the counts of policy rules cannot be read")
        })?;
        let mut all: BTreeMap<String, VerdictTotals> = stored.into_iter().collect();
        for (rule, counts) in self.current_counters() {
            let (sum, new) = (all.entry(rule).or_default(), totals(counts.get()));
            sum.allowed += new.allowed;
            sum.reviewed += new.reviewed;
            sum.denied += new.denied;
        }
        Ok(all)
    }

    /// Returns the counters of the policy in force and of the one before, and remembers the former for the next write.
    fn rotate_counters(&self) -> Vec<(String, VerdictCounts)> {
        let current = self.current_counters();
        let mut previous = self.previous.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *previous, current.clone());
        before.into_iter().chain(current).collect()
    }

    /// Returns the counters of the policy in force, by the identities of its rules.
    fn current_counters(&self) -> Vec<(String, VerdictCounts)> {
        let table = self.routes.load();
        let policy = table.policy.as_ref();
        policy
            .into_iter()
            .flat_map(|policy| policy.counts())
            .map(|(rule, counts)| (rule.to_owned(), counts.clone()))
            .collect()
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn RuleCountStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = Arc::clone(&self.store);
        background::spawn_blocking(move || work(&*store)).await.unwrap_or(Err(StoreError::Closed))
    }
}

fn totals([allowed, reviewed, denied]: [u64; 3]) -> VerdictTotals {
    VerdictTotals { allowed, reviewed, denied }
}

fn beginning_of_hour(at: Timestamp) -> Timestamp {
    at.round(TimestampRound::new().smallest(Unit::Hour).mode(RoundMode::Trunc)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use countersign_domain::policy::{Policy, PolicyConfig, PolicyDefault, Rule, Verdict};
    use countersign_routing::table::RouteTable;
    use countersign_store::StoreLocation;

    /// A store whose writes can fail.
    struct FragileStore(Arc<dyn RuleCountStore>, AtomicBool);

    impl RuleCountStore for FragileStore {
        fn add_rule_counts(&self, counts: &[HourlyRuleCount], oldest: Timestamp) -> Result<(), StoreError> {
            if self.1.load(Ordering::Acquire) {
                Err(StoreError::DiskFull)
            } else {
                self.0.add_rule_counts(counts, oldest)
            }
        }

        fn rule_counts(&self, since: Timestamp) -> Result<Vec<(String, VerdictTotals)>, StoreError> {
            self.0.rule_counts(since)
        }
    }

    fn table(default: PolicyDefault) -> (Arc<RouteTable>, VerdictCounts) {
        let policy = Policy::new(&PolicyConfig { rules: vec![Rule::new("no", Verdict::Deny)], ..default.into() });
        let counts = policy.counts().next().unwrap().1.clone();
        let mut table = RouteTable::default();
        table.policy = Some(policy);
        (Arc::new(table), counts)
    }

    #[tokio::test]
    async fn every_count_is_stored_once_and_reported_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let location = StoreLocation::directory(dir.path());
        let store = location.open().unwrap();
        let fragile = Arc::new(FragileStore(location.rule_counts().unwrap(), AtomicBool::new(false)));
        let (first, old) = table(PolicyDefault::Allow);
        let routes = Arc::new(PublishedTable::from(first));
        let counts = RuleCounts::new(Arc::clone(&fragile) as _, store.nodes(), Arc::clone(&routes));
        let denied = async || {
            let stored = fragile.rule_counts(Timestamp::MIN).unwrap();
            let stored = stored.iter().find(|(rule, _)| rule == "no").map_or(0, |(_, totals)| totals.denied);
            (counts.totals().await.unwrap().get("no").unwrap().denied, stored)
        };
        old.increment(Verdict::Deny);
        assert_eq!(denied().await, (1, 0));
        counts.write().await;
        counts.write().await;
        assert_eq!(denied().await, (1, 1));

        // A call that began under the old policy is counted even if it ends under the new one.
        let (second, new) = table(PolicyDefault::Deny);
        routes.store(second);
        old.increment(Verdict::Deny);
        new.increment(Verdict::Deny);
        counts.write().await;
        assert_eq!(denied().await, (3, 3));

        new.increment(Verdict::Deny);
        fragile.1.store(true, Ordering::Release);
        counts.write().await;
        assert_eq!(denied().await, (4, 3), "counts that could not be stored are kept");
        fragile.1.store(false, Ordering::Release);
        counts.write().await;
        assert_eq!(denied().await, (4, 4));

        // Neither a change of the policy nor a repeated failure loses counts.
        let (third, _) = table(PolicyDefault::Allow);
        new.increment(Verdict::Deny);
        routes.store(third);
        fragile.1.store(true, Ordering::Release);
        counts.write().await;
        counts.write().await;
        fragile.1.store(false, Ordering::Release);
        counts.write().await;
        assert_eq!(denied().await, (5, 5));
        store.close();
    }
}

//! Hourly counts of rules.

use super::*;
use crate::rule_counts::{HourlyRuleCount, VerdictTotals};

pub(super) fn rule_count(rule: &str, hour: i64, allowed: u64) -> HourlyRuleCount {
    let totals = VerdictTotals { allowed, reviewed: 1, denied: 0 };
    HourlyRuleCount { rule: rule.into(), hour: time_at(hour * 3600), totals }
}

pub(super) fn rule_counts_add_up_and_old_hours_are_deleted(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let open = || location_of(dir.path()).rule_counts().unwrap();
    let (one, other) = (open(), open());
    one.add_rule_counts(&[rule_count("by Ä.", 1, 5), rule_count("policy.default", 2, 2)], time_at(0)).unwrap();
    other.add_rule_counts(&[rule_count("by Ä.", 1, 3), rule_count("by Ä.", 2, 10)], time_at(0)).unwrap();
    let total = |allowed, reviewed| VerdictTotals { allowed, reviewed, denied: 0 };
    assert_eq!(
        one.rule_counts(time_at(0)).unwrap(),
        [("by Ä.".into(), total(18, 3)), ("policy.default".into(), total(2, 1))]
    );
    assert_eq!(other.rule_counts(time_at(2 * 3600)).unwrap()[0], ("by Ä.".into(), total(10, 1)));
    one.add_rule_counts(&[], time_at(2 * 3600)).unwrap();
    assert_eq!(open().rule_counts(time_at(0)).unwrap()[0], ("by Ä.".into(), total(10, 1)));
}

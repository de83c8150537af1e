//! Merges two lists of rules in which the first match decides: takes over only those changes of the new list that cannot let
//! more calls through.

use std::sync::Arc;

use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::pending::{NO_RULE, PolicyChanges};
use countersign_domain::{
    changes::Terms,
    policy::{PolicyDefault, Rule, Verdict, terms},
};

/// The decision on calls that no rule of the old list matches.
#[derive(Clone, Debug)]
pub struct DefaultDecision {
    pub default: PolicyDefault,
    pub terms: Arc<Terms>,
}

/// The result of merging an old and a new list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RuleListMerge {
    pub changes: PolicyChanges,
    /// The list that may take effect at once. It is at least as strict as the old list for every call, and contains every
    /// change that is certainly not looser.
    pub effective: Vec<Rule>,
}

/// The configuration key of the rules.
const RULES_KEY: &str = "policy.rules";

/// Merges the lists.
///
/// These changes take effect at once:
///
/// - a stricter verdict in the same place
/// - a new rule that denies
/// - a new rule that reviews, if neither a later rule nor the default denies or has stricter terms
/// - a new rule that allows, if all later rules and the default allow and no extension method is named
/// - a removed rule that allows
///
/// If the terms of a review loosen in any way, the old ones stay as a whole.
pub fn merge(old: &[Rule], new: &[Rule], default_decision: &DefaultDecision) -> RuleListMerge {
    let mut merged = RuleListMerge::default();
    let (mut old_start, mut new_start) = (0, 0);
    let end = (old.len(), new.len());
    for (next_old, next_new) in common_pairs(old, new).into_iter().chain([end]) {
        // This order is safe whatever rules follow: first new rules that deny, then old rules whose removal is pending.
        let (denying, not_denying): (Vec<&Rule>, Vec<&Rule>) =
            new[new_start..next_new].iter().partition(|rule| rule.then == Verdict::Deny);
        let after = &old[next_old..];
        denying.into_iter().for_each(|rule| merged.add_inserted(rule, after, default_decision));
        old[old_start..next_old].iter().for_each(|rule| merged.add_removed(rule));
        not_denying.into_iter().for_each(|rule| merged.add_inserted(rule, after, default_decision));
        if let (Some(before), Some(now)) = (old.get(next_old), new.get(next_new)) {
            merged.add_kept(before, now);
        }
        (old_start, new_start) = (next_old + 1, next_new + 1);
    }
    if merged.changes.loosened.is_empty() {
        merged.effective = new.to_vec();
    } else {
        make_labels_unique(&mut merged.effective);
    }
    merged
}

/// Changes the label of each rule that has the label of an earlier one, because the lists may share labels and a policy is
/// saved only if its rules have different names.
fn make_labels_unique(rules: &mut [Rule]) {
    for index in 1..rules.len() {
        let (earlier, rule) = (&rules[..index], &rules[index]);
        let is_taken = |label: &str| earlier.iter().any(|other| *other.label == *label);
        if is_taken(&rule.label) {
            let free = (2..).map(|number| format!("{} ({number})", rule.label)).find(|label| !is_taken(label));
            rules[index].label = free.unwrap_or_default().into();
        }
    }
}

impl RuleListMerge {
    /// Records a change that loosens policy.
    fn loosen(&mut self, from: Option<&Rule>, to: Option<&Rule>) {
        let describe = |rule: Option<&Rule>| {
            rule.map_or(NO_RULE.to_owned(), |rule| format!("{} ({})", rule.label, rule.then.as_str()))
        };
        self.changes.loosen(RULES_KEY, describe(from), describe(to));
    }

    fn add_inserted(&mut self, rule: &Rule, after: &[Rule], default_decision: &DefaultDecision) {
        let may_deny =
            default_decision.default == PolicyDefault::Deny || after.iter().any(|rule| rule.then == Verdict::Deny);
        let allows_all =
            default_decision.default == PolicyDefault::Allow && after.iter().all(|rule| rule.then == Verdict::Allow);
        // Even if everything is allowed, a call of a new tool, or one whose condition cannot be evaluated, is reviewed
        // under the terms of the default.
        let later_terms = after.iter().filter(|rule| rule.then == Verdict::Review).map(|rule| &rule.terms);
        let lets_more_pass = |before: &Arc<Terms>| !terms::loosened_terms(before, &rule.terms).is_empty();
        let is_not_looser = match rule.then {
            Verdict::Deny => true,
            Verdict::Review => !may_deny && !later_terms.chain([&default_decision.terms]).any(lets_more_pass),
            Verdict::Allow => allows_all && rule.methods.is_empty(),
        };
        if is_not_looser {
            self.effective.push(rule.clone());
            if rule.then != Verdict::Allow {
                self.changes.tighten(format!("{RULES_KEY}: {} ({}) is new", rule.label, rule.then.as_str()));
            }
        } else {
            self.loosen(None, Some(rule));
        }
    }

    fn add_removed(&mut self, rule: &Rule) {
        if rule.then == Verdict::Allow {
            self.changes.tighten(format!("{RULES_KEY}: {} (allow) was removed", rule.label));
        } else {
            self.effective.push(rule.clone());
            self.loosen(Some(rule), None);
        }
    }

    fn add_kept(&mut self, before: &Rule, now: &Rule) {
        if now.then < before.then {
            self.effective.push(before.clone());
            self.loosen(Some(before), Some(now));
            return;
        }
        // A rule that allows has terms too: those of calls of a new tool, or whose condition cannot be evaluated.
        let looser = match (before.then, now.then) {
            (Verdict::Allow | Verdict::Review, Verdict::Review) => terms::loosened_terms(&before.terms, &now.terms),
            _ => Vec::new(),
        };
        if !looser.is_empty() {
            self.effective.push(Rule { then: now.then, ..before.clone() });
            for (from, to) in looser {
                let (from, to) = (format!("{}: {from}", before.label), format!("{}: {to}", now.label));
                self.changes.loosen(RULES_KEY, from, to);
            }
            return;
        }
        self.effective.push(now.clone());
        if now.then == before.then && now.then == Verdict::Review && now.terms != before.terms {
            if !terms::loosened_terms(&now.terms, &before.terms).is_empty() {
                self.changes.tighten(format!("{RULES_KEY}: {} has stricter terms", now.label));
            }
        } else if now.then != before.then {
            let (from, to) = (before.then.as_str(), now.then.as_str());
            self.changes.tighten(format!("{RULES_KEY}: {} is {to} instead of {from}", now.label));
        }
    }
}

/// Returns the longest common subsequence of the rules with equal conditions, as pairs of ascending indexes.
fn common_pairs(old: &[Rule], new: &[Rule]) -> Vec<(usize, usize)> {
    // Rules with equal conditions get the same number.
    let mut distinct: Vec<&Rule> = Vec::new();
    let mut number = |rule| {
        let existing_index = distinct.iter().position(|other: &&Rule| other.matches_same_calls(rule));
        existing_index.unwrap_or_else(|| {
            distinct.push(rule);
            distinct.len() - 1
        })
    };
    let old: Vec<usize> = old.iter().map(&mut number).collect();
    let new: Vec<usize> = new.iter().map(&mut number).collect();
    // The comparison goes from new to old, because this order keeps the position of the later of two swapped rules.
    let operations = capture_diff_slices(Algorithm::Myers, &new, &old);
    let equal = operations.into_iter().filter_map(|operation| match operation {
        DiffOp::Equal { old_index: new, new_index: old, len } => Some((old..old + len).zip(new..)),
        _ => None,
    });
    equal.flatten().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use countersign_domain::policy::Globs;

    use super::{super::pending::Loosening, *};

    fn globs(pattern: &str) -> Globs {
        Globs::new(vec![pattern.to_owned()]).unwrap()
    }

    /// Returns the rules of the text: `a+` allows the tool `a`, `a?` reviews it, and `a-` denies it.
    fn list(text: &str) -> Vec<Rule> {
        let rule = |word: &str| {
            let (tool, then) = word.split_at(word.len() - 1);
            let then = match then {
                "+" => Verdict::Allow,
                "?" => Verdict::Review,
                _ => Verdict::Deny,
            };
            Rule { tools: globs(tool), ..Rule::new(tool, then) }
        };
        text.split_whitespace().map(rule).collect()
    }

    fn default_decision(default: PolicyDefault) -> DefaultDecision {
        DefaultDecision { default, terms: Arc::default() }
    }

    #[test]
    fn rule_that_allows_a_method_always_loosens() {
        for names_methods in [false, true] {
            let methods = if names_methods { globs("tasks/*") } else { Globs::default() };
            let new: Vec<_> = list("a+").into_iter().map(|rule| Rule { methods: methods.clone(), ..rule }).collect();
            let merged = merge(&[], &new, &default_decision(PolicyDefault::Allow));
            assert_eq!(merged.changes.loosened.len(), usize::from(names_methods));
            assert_eq!(merged.effective.is_empty(), names_methods);
        }
    }

    #[test]
    fn review_terms_loosen_and_tighten() {
        let rules_with = |text: &str, quorums: &[u32]| -> Vec<Rule> {
            let terms_with = |quorum: &u32| Arc::new(Terms { quorum: *quorum, ..Terms::default() });
            list(text)
                .into_iter()
                .zip(quorums)
                .map(|(rule, quorum)| Rule { terms: terms_with(quorum), ..rule })
                .collect()
        };
        let default = |quorum| DefaultDecision {
            terms: Arc::new(Terms { quorum, ..Terms::default() }),
            ..default_decision(PolicyDefault::ReviewWrites)
        };
        // (old, new, the default's quorum, loosened, tightened, the new list takes effect at once)
        for (old, new, quorum, loosened, tightened, is_new) in [
            (rules_with("a?", &[2]), rules_with("a?", &[2]), 1, 0, 0, true),
            (rules_with("a?", &[2]), rules_with("a?", &[3]), 1, 0, 1, true),
            (rules_with("a?", &[2]), rules_with("a?", &[1]), 1, 1, 0, false),
            (rules_with("a-", &[1]), rules_with("a?", &[9]), 1, 1, 0, false),
            (rules_with("a?", &[9]), rules_with("a-", &[1]), 1, 0, 1, true),
            (rules_with("a+", &[1]), rules_with("a?", &[2]), 1, 0, 1, true),
            // A new review before a stricter one takes calls from it.
            (rules_with("b?", &[2]), rules_with("a? b?", &[1, 2]), 1, 1, 0, false),
            (rules_with("b?", &[2]), rules_with("a? b?", &[2, 2]), 1, 0, 1, true),
            (rules_with("b?", &[2]), rules_with("a? b?", &[2, 2]), 3, 1, 0, false),
        ] {
            let merged = merge(&old, &new, &default(quorum));
            let PolicyChanges { loosened: looser, tightened: stricter } = &merged.changes;
            assert_eq!((looser.len(), stricter.len()), (loosened, tightened), "{merged:?}");
            assert_eq!(merged.effective, if is_new { new } else { old });
        }
        // The verdict is stricter at once, with the terms of calls that were reviewed before too.
        let merged = merge(&rules_with("a+", &[2]), &rules_with("a?", &[1]), &default(2));
        assert_eq!((merged.changes.loosened.len(), merged.effective), (1, rules_with("a?", &[2])));
        let loosened = merge(&rules_with("a?", &[2]), &rules_with("a?", &[1]), &default(1)).changes.loosened;
        assert_eq!((loosened[0].from.as_str(), loosened[0].to.as_str()), ("a: quorum 2", "a: quorum 1"));
    }

    fn format_rules(merged: &RuleListMerge) -> String {
        let sign = |rule: &Rule| match rule.then {
            Verdict::Allow => "+",
            Verdict::Review => "?",
            Verdict::Deny => "-",
        };
        let words: Vec<String> = merged.effective.iter().map(|rule| format!("{}{}", rule.label, sign(rule))).collect();
        words.join(" ")
    }

    #[test]
    fn merge_separates_looser_and_stricter_steps() {
        use PolicyDefault::{Allow, Deny, ReviewWrites};
        // (old, new, default, loosened, in force at once)
        let cases = [
            ("", "", ReviewWrites, 0, ""),
            ("a- b?", "a- b?", ReviewWrites, 0, "a- b?"),
            ("", "a-", ReviewWrites, 0, "a-"),
            ("", "a?", ReviewWrites, 0, "a?"),
            ("", "a?", Deny, 1, ""),
            ("b-", "a? b-", ReviewWrites, 1, "b-"),
            ("b-", "b- a?", ReviewWrites, 0, "b- a?"),
            ("", "a+", ReviewWrites, 1, ""),
            ("", "a+", Allow, 0, "a+"),
            ("b?", "a+ b?", Allow, 1, "b?"),
            ("b?", "b? a+", Allow, 0, "b? a+"),
            ("a-", "", Allow, 1, "a-"),
            ("a?", "", Deny, 1, "a?"),
            ("a+", "", Deny, 0, ""),
            ("a?", "a-", ReviewWrites, 0, "a-"),
            ("a-", "a?", ReviewWrites, 1, "a-"),
            ("a- b+", "b+ a-", ReviewWrites, 1, "a- b+ a (2)-"),
            ("a? b- c+", "x- a- c+ y-", ReviewWrites, 1, "x- a- b- c+ y-"),
            ("a- b+", "c? d-", ReviewWrites, 1, "d- a- c?"),
            ("b-", "c? d- b-", ReviewWrites, 1, "d- b-"),
            ("", "c? d-", ReviewWrites, 0, "c? d-"),
            // A rule whose condition changed counts as one removed and one added.
            ("a?", "b-", ReviewWrites, 1, "b- a?"),
        ];
        for (old, new, default, loosened, effective) in cases {
            let (o, n) = (list(old), list(new));
            let merged = merge(&o, &n, &default_decision(default));
            let outcome = (merged.changes.loosened.len(), format_rules(&merged));
            assert_eq!(outcome, (loosened, effective.to_owned()), "{old} → {new}");
        }
        let merged = merge(&list("a-"), &list("a+"), &default_decision(ReviewWrites));
        assert_eq!(merged.changes.loosened, [Loosening::new("policy.rules", "a (deny)", "a (allow)")]);
    }

    /// Returns the verdict of a list on a call that the rules with these letters match.
    fn verdict(rules: &[&Rule], matching: &str, otherwise: Verdict) -> Verdict {
        let covers = |rule: &&&Rule| matching.contains(rule.tools.patterns()[0].as_str());
        rules.iter().find(covers).map_or(otherwise, |rule| rule.then)
    }

    proptest! {
        #[test]
        fn merged_list_is_never_looser_and_reports_all_loosening(
            old in "([abc][+?-] ){0,5}", new in "([abc][+?-] ){0,5}", default in 0_usize..3,
        ) {
            let (old, new) = (list(&old), list(&new));
            let (default, otherwise) = [
                (PolicyDefault::Allow, Verdict::Allow),
                (PolicyDefault::ReviewAll, Verdict::Review),
                (PolicyDefault::Deny, Verdict::Deny),
            ][default];
            let merged = merge(&old, &new, &default_decision(default));
            let effective: Vec<&Rule> = merged.effective.iter().collect();
            let (old, new): (Vec<&Rule>, Vec<&Rule>) = (old.iter().collect(), new.iter().collect());
            for matching in ["", "a", "b", "c", "ab", "ac", "bc", "abc"] {
                let before = verdict(&old, matching, otherwise);
                prop_assert!(verdict(&effective, matching, otherwise) >= before);
                if merged.changes.loosened.is_empty() {
                    prop_assert!(verdict(&new, matching, otherwise) >= before);
                    prop_assert_eq!(&effective, &new);
                }
            }
        }
    }
}

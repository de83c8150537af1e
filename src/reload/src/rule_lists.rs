//! Merges two lists of rules in which the first match decides: takes only those steps from the old list to the new one
//! that can only make calls stricter.

use std::sync::Arc;

use super::pending::Loosening;
use countersign_domain::{
    changes::Terms,
    policy::{PolicyDefault, Rule, Verdict, terms},
};

/// The decision on calls that no rule matches.
#[derive(Clone, Debug)]
pub struct DefaultDecision {
    pub default: PolicyDefault,
    pub terms: Arc<Terms>,
}

/// The list and index from which a rule of the merged list comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleSource {
    Old(usize),
    New(usize),
}

/// The result of merging an old and a new list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RuleListMerge {
    pub loosened: Vec<Loosening>,
    /// Changes that make policy stricter, described for people.
    pub tightened: Vec<String>,
    /// The list that may take effect at once: at least as strict as the old one for every call, with every change that
    /// surely is.
    pub effective: Vec<RuleSource>,
}

const KEY: &str = "policy.rules";
/// The number of rule pairs beyond which nothing is compared, and any change counts as loosening.
const MAX_PAIRS: usize = 4_000_000;

/// Merges the lists. `otherwise` decides on calls that no rule of the old list matches.
///
/// These changes count as stricter: a stricter verdict in the same place; a new rule that denies; a new rule that
/// reviews, if no later rule denies or asks more of a review; a new rule that allows, if all later rules allow and no
/// extension method is named; a removed rule that allows. If the terms of a review loosen in any way, the old ones stay
/// as a whole.
#[must_use]
pub fn merge(old: &[Rule], new: &[Rule], otherwise: &DefaultDecision) -> RuleListMerge {
    let mut merged = RuleListMerge::default();
    let (mut o, mut n) = (0, 0);
    let end = (old.len(), new.len());
    for (next_old, next_new) in common_pairs(old, new).into_iter().chain([end]) {
        // New rules that deny come first and pending removals next: each holds whatever else is inserted.
        let (denies, others): (Vec<usize>, Vec<usize>) =
            (n..next_new).partition(|index| new[*index].then == Verdict::Deny);
        let after = &old[next_old..];
        for index in denies {
            merge_inserted(&mut merged, RuleSource::New(index), &new[index], after, otherwise);
        }
        for (index, rule) in old.iter().enumerate().take(next_old).skip(o) {
            merge_removed(&mut merged, RuleSource::Old(index), rule);
        }
        for index in others {
            merge_inserted(&mut merged, RuleSource::New(index), &new[index], after, otherwise);
        }
        if let (Some(before), Some(now)) = (old.get(next_old), new.get(next_new)) {
            merge_kept(&mut merged, (next_old, before), (next_new, now));
        }
        (o, n) = (next_old + 1, next_new + 1);
    }
    if merged.loosened.is_empty() {
        merged.effective = (0..new.len()).map(RuleSource::New).collect();
    }
    merged
}

fn merge_inserted(
    merged: &mut RuleListMerge,
    pick: RuleSource,
    rule: &Rule,
    after: &[Rule],
    otherwise: &DefaultDecision,
) {
    let denies = otherwise.default == PolicyDefault::Deny || after.iter().any(|rule| rule.then == Verdict::Deny);
    let allows = otherwise.default == PolicyDefault::Allow && after.iter().all(|rule| rule.then == Verdict::Allow);
    // Even if everything is allowed, a call that is new or cannot be evaluated is reviewed under the global terms.
    let reviews = after.iter().filter(|rule| rule.then == Verdict::Review).map(|rule| &rule.terms);
    let lets_more_pass = |before: &Arc<Terms>| !terms::loosened_terms(before, &rule.terms).is_empty();
    let stricter = match rule.then {
        Verdict::Deny => true,
        Verdict::Review => !denies && !reviews.chain([&otherwise.terms]).any(lets_more_pass),
        Verdict::Allow => allows && rule.methods.is_empty(),
    };
    if stricter {
        merged.effective.push(pick);
        if rule.then != Verdict::Allow {
            merged.tightened.push(format!("{KEY}: {} ({}) is new", rule.label, rule.then.as_str()));
        }
    } else {
        merged.loosen(None, Some(rule));
    }
}

fn merge_removed(merged: &mut RuleListMerge, pick: RuleSource, rule: &Rule) {
    if rule.then == Verdict::Allow {
        merged.tightened.push(format!("{KEY}: {} (allow) is gone", rule.label));
    } else {
        merged.effective.push(pick);
        merged.loosen(Some(rule), None);
    }
}

fn merge_kept(merged: &mut RuleListMerge, (old, before): (usize, &Rule), (new, now): (usize, &Rule)) {
    if rank(now.then) < rank(before.then) {
        merged.effective.push(RuleSource::Old(old));
        merged.loosen(Some(before), Some(now));
        return;
    }
    let looser = match (before.then, now.then) {
        (Verdict::Review, Verdict::Review) => terms::loosened_terms(&before.terms, &now.terms),
        _ => Vec::new(),
    };
    if !looser.is_empty() {
        merged.effective.push(RuleSource::Old(old));
        let loosenings = looser.into_iter().map(|(from, to)| Loosening {
            key: KEY.to_owned(),
            from: format!("{}: {from}", before.label),
            to: format!("{}: {to}", now.label),
        });
        merged.loosened.extend(loosenings);
        return;
    }
    merged.effective.push(RuleSource::New(new));
    if now.then == before.then && now.then == Verdict::Review && now.terms != before.terms {
        if !terms::loosened_terms(&now.terms, &before.terms).is_empty() {
            merged.tightened.push(format!("{KEY}: {} asks more of a review", now.label));
        }
    } else if now.then != before.then {
        let (from, to) = (before.then.as_str(), now.then.as_str());
        merged.tightened.push(format!("{KEY}: {} is {to} instead of {from}", now.label));
    }
}

const fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Allow => 0,
        Verdict::Review => 1,
        Verdict::Deny => 2,
    }
}

impl RuleListMerge {
    fn loosen(&mut self, from: Option<&Rule>, to: Option<&Rule>) {
        let say = |rule: Option<&Rule>| {
            rule.map_or("no such rule".to_owned(), |rule| format!("{} ({})", rule.label, rule.then.as_str()))
        };
        self.loosened.push(Loosening { key: KEY.to_owned(), from: say(from), to: say(to) });
    }
}

/// Returns the longest common subsequence of the rules with equal conditions, as pairs of rising indexes.
fn common_pairs(old: &[Rule], new: &[Rule]) -> Vec<(usize, usize)> {
    let head = old.iter().zip(new).take_while(|(a, b)| a.matches_same_calls(b)).count();
    let (old_rest, new_rest) = (&old[head..], &new[head..]);
    let tail = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(a, b)| a.matches_same_calls(b)).count();
    let (rows, columns) = (old_rest.len() - tail, new_rest.len() - tail);
    let mut found: Vec<(usize, usize)> = (0..head).map(|i| (i, i)).collect();
    if rows.saturating_mul(columns) <= MAX_PAIRS {
        found.extend(
            longest_common(&old_rest[..rows], &new_rest[..columns]).into_iter().map(|(o, n)| (o + head, n + head)),
        );
    }
    found.extend((0..tail).map(|i| (head + rows + i, head + columns + i)));
    found
}

/// Computes it by dynamic programming over the length of the best sequence from each pair of indexes on.
fn longest_common(old: &[Rule], new: &[Rule]) -> Vec<(usize, usize)> {
    let width = new.len() + 1;
    let mut best = vec![0_u32; (old.len() + 1) * width];
    for o in (0..old.len()).rev() {
        for n in (0..new.len()).rev() {
            best[o * width + n] = if old[o].matches_same_calls(&new[n]) {
                best[(o + 1) * width + n + 1] + 1
            } else {
                best[(o + 1) * width + n].max(best[o * width + n + 1])
            };
        }
    }
    let (mut o, mut n) = (0, 0);
    let mut found = Vec::new();
    while o < old.len() && n < new.len() {
        if old[o].matches_same_calls(&new[n]) {
            found.push((o, n));
            (o, n) = (o + 1, n + 1);
        } else if best[(o + 1) * width + n] >= best[o * width + n + 1] {
            o += 1;
        } else {
            n += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use countersign_domain::policy::Globs;

    use super::*;

    fn globs(pattern: &str) -> Globs {
        Globs::new(vec![pattern.to_owned()]).unwrap()
    }

    /// Returns the rules of the text: `a+` allows the tool `a`, `a?` reviews it, and `a-` denies it.
    fn list(text: &str) -> Vec<Rule> {
        let rule = |word: &str| {
            let (asks, then) = word.split_at(word.len() - 1);
            let then = match then {
                "+" => Verdict::Allow,
                "?" => Verdict::Review,
                _ => Verdict::Deny,
            };
            Rule { tools: globs(asks), ..Rule::new(asks, then) }
        };
        text.split_whitespace().map(rule).collect()
    }

    fn otherwise(default: PolicyDefault) -> DefaultDecision {
        DefaultDecision { default, terms: Arc::default() }
    }

    #[test]
    fn rule_that_allows_a_method_always_loosens() {
        for names_methods in [false, true] {
            let methods = if names_methods { globs("tasks/*") } else { Globs::default() };
            let new: Vec<_> = list("a+").into_iter().map(|rule| Rule { methods: methods.clone(), ..rule }).collect();
            let merged = merge(&[], &new, &otherwise(PolicyDefault::Allow));
            assert_eq!(merged.loosened.len(), usize::from(names_methods));
            assert_eq!(merged.effective.is_empty(), names_methods);
        }
    }

    #[test]
    fn review_terms_loosen_and_tighten() {
        let with = |text: &str, quorums: &[u32]| -> Vec<Rule> {
            let asks = |quorum: &u32| Arc::new(Terms { quorum: *quorum, ..Terms::default() });
            list(text).into_iter().zip(quorums).map(|(rule, quorum)| Rule { terms: asks(quorum), ..rule }).collect()
        };
        let default = |quorum| DefaultDecision {
            terms: Arc::new(Terms { quorum, ..Terms::default() }),
            ..otherwise(PolicyDefault::ReviewWrites)
        };
        // (old, new, the default's quorum, loosened, tightened, in force at once)
        for (old, new, quorum, loosened, tightened, at_once) in [
            (with("a?", &[2]), with("a?", &[2]), 1, 0, 0, RuleSource::New(0)),
            (with("a?", &[2]), with("a?", &[3]), 1, 0, 1, RuleSource::New(0)),
            (with("a?", &[2]), with("a?", &[1]), 1, 1, 0, RuleSource::Old(0)),
            (with("a-", &[1]), with("a?", &[9]), 1, 1, 0, RuleSource::Old(0)),
            (with("a?", &[9]), with("a-", &[1]), 1, 0, 1, RuleSource::New(0)),
            // A new review before a stricter one takes calls from it.
            (with("b?", &[2]), with("a? b?", &[1, 2]), 1, 1, 0, RuleSource::Old(0)),
            (with("b?", &[2]), with("a? b?", &[2, 2]), 1, 0, 1, RuleSource::New(0)),
            (with("b?", &[2]), with("a? b?", &[2, 2]), 3, 1, 0, RuleSource::Old(0)),
        ] {
            let merged = merge(&old, &new, &default(quorum));
            let first = match merged.effective[0] {
                // Equal rules are taken from the new list.
                RuleSource::New(index) if index > 0 || merged.effective.len() < new.len() => RuleSource::Old(0),
                pick => pick,
            };
            assert_eq!(
                (merged.loosened.len(), merged.tightened.len(), first),
                (loosened, tightened, at_once),
                "{merged:?}"
            );
        }
        let told = merge(&with("a?", &[2]), &with("a?", &[1]), &default(1)).loosened;
        assert_eq!((told[0].from.as_str(), told[0].to.as_str()), ("a: quorum 2", "a: quorum 1"));
    }

    fn show(merged: &RuleListMerge, old: &[Rule], new: &[Rule]) -> String {
        let sign = |rule: &Rule| match rule.then {
            Verdict::Allow => "+",
            Verdict::Review => "?",
            Verdict::Deny => "-",
        };
        let pick = |pick: &RuleSource| match pick {
            RuleSource::Old(index) => &old[*index],
            RuleSource::New(index) => &new[*index],
        };
        let words: Vec<String> =
            merged.effective.iter().map(pick).map(|rule| format!("{}{}", rule.label, sign(rule))).collect();
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
            ("a- b+", "b+ a-", ReviewWrites, 1, "a- b+ a-"),
            ("a? b- c+", "x- a- c+ y-", ReviewWrites, 1, "x- a- b- c+ y-"),
            ("a- b+", "c? d-", ReviewWrites, 1, "d- a- c?"),
            ("b-", "c? d- b-", ReviewWrites, 1, "d- b-"),
            ("", "c? d-", ReviewWrites, 0, "c? d-"),
            // A rule whose condition changed counts as one removed and one added.
            ("a?", "b-", ReviewWrites, 1, "b- a?"),
        ];
        for (old, new, default, loosened, at_once) in cases {
            let (o, n) = (list(old), list(new));
            let merged = merge(&o, &n, &otherwise(default));
            assert_eq!((merged.loosened.len(), show(&merged, &o, &n).as_str()), (loosened, at_once), "{old} → {new}");
        }
        let merged = merge(&list("a-"), &list("a+"), &otherwise(ReviewWrites));
        let told = Loosening { key: "policy.rules".into(), from: "a (deny)".into(), to: "a (allow)".into() };
        assert_eq!(merged.loosened, [told]);
    }

    /// Returns the verdict of a list on a call that the rules with these letters match.
    fn verdict(rules: &[&Rule], matching: &str, otherwise: Verdict) -> u8 {
        rank(rules.iter().find(|rule| matching.contains(&*rule.label)).map_or(otherwise, |rule| rule.then))
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
            let merged = merge(&old, &new, &DefaultDecision { default, terms: Arc::default() });
            let at_once: Vec<&Rule> = merged.effective.iter().map(|pick| match pick {
                RuleSource::Old(index) => &old[*index],
                RuleSource::New(index) => &new[*index],
            }).collect();
            let (old, new): (Vec<&Rule>, Vec<&Rule>) = (old.iter().collect(), new.iter().collect());
            for matching in ["", "a", "b", "c", "ab", "ac", "bc", "abc"] {
                let before = verdict(&old, matching, otherwise);
                prop_assert!(verdict(&at_once, matching, otherwise) >= before);
                if merged.loosened.is_empty() {
                    prop_assert!(verdict(&new, matching, otherwise) >= before);
                    prop_assert_eq!(&at_once, &new);
                }
            }
        }
    }
}

//! Compares and combines the terms of two reviews. Stricter terms let fewer people decide, require more of them, or
//! give more time to withdraw a decision. Expiry and how the caller waits do not count.

use std::collections::BTreeSet;

use crate::{
    changes::{Editing, Escalation, OnExpiry, SignInTerms, Terms},
    principal::Role,
};

/// Combines the stricter of each term, if it is unclear which of two rules applies. Two lists of reviewers cannot be
/// combined: the first list is used unless it is empty. The same holds for two lists of `acr` that have nothing in common. How
/// the caller waits comes from the first terms too.
pub fn stricter_terms(first: &Terms, second: &Terms) -> Terms {
    let reviewers = if first.reviewers.is_empty() { &second.reviewers } else { &first.reviewers };
    let rejects = first.on_expiry == OnExpiry::Reject || second.on_expiry == OnExpiry::Reject;
    Terms {
        reviewers: reviewers.clone(),
        quorum: first.quorum.max(second.quorum),
        expire_after: [first.expire_after, second.expire_after].into_iter().flatten().min(),
        on_expiry: if rejects { OnExpiry::Reject } else { OnExpiry::Expire },
        require_comment: first.require_comment || second.require_comment,
        edit: first.edit.max(second.edit),
        on_review: first.on_review,
        hold_for: first.hold_for,
        undo_for: first.undo_for.max(second.undo_for),
        preview_required: first.preview_required || second.preview_required,
        on_failed_preview: first.on_failed_preview.max(second.on_failed_preview),
        open_page: first.open_page,
        questions: first.questions && second.questions,
        own_agents: first.own_agents && second.own_agents,
        sign_in: stricter_sign_in(first.sign_in.as_ref(), second.sign_in.as_ref()),
        escalate: stricter_escalation(first, second),
        remind: [first.remind, second.remind].into_iter().flatten().min(),
    }
}

/// Returns the further reviewers whom both terms admit, at the later time. Terms that admit every reviewer do not count.
fn stricter_escalation(first: &Terms, second: &Terms) -> Option<Escalation> {
    match (first.reviewers.is_empty(), second.reviewers.is_empty()) {
        (true, _) => second.escalate.clone(),
        (false, true) => first.escalate.clone(),
        (false, false) => {
            let (first, second) = (first.escalate.as_ref()?, second.escalate.as_ref()?);
            let to: Vec<_> = first.to.iter().filter(|name| second.to.contains(name)).cloned().collect();
            (!to.is_empty()).then(|| Escalation { after: first.after.max(second.after), to })
        }
    }
}

fn stricter_sign_in(first: Option<&SignInTerms>, second: Option<&SignInTerms>) -> Option<SignInTerms> {
    let (Some(first), Some(second)) = (first, second) else { return first.or(second).cloned() };
    let shared: Vec<String> = first.acr.iter().filter(|acr| second.acr.contains(acr)).cloned().collect();
    let acr = match (first.acr.is_empty(), shared.is_empty()) {
        (true, _) => second.acr.clone(),
        (false, true) => first.acr.clone(),
        (false, false) => shared,
    };
    Some(SignInTerms { max_age: [first.max_age, second.max_age].into_iter().flatten().min(), acr })
}

/// Returns how `new` is looser than `old`, as pairs of texts for people: `quorum 2` and `quorum 1`.
pub fn loosened_terms(old: &Terms, new: &Terms) -> Vec<(String, String)> {
    // A new term must be compared below, or listed in the last line, whose terms do not loosen.
    #[rustfmt::skip]
    let Terms {
        reviewers: _, quorum: _, require_comment: _, edit: _, preview_required: _, questions: _, own_agents: _, undo_for: _,
        sign_in: _, on_failed_preview: _, escalate: _,
        expire_after: _, on_expiry: _, on_review: _, hold_for: _, open_page: _, remind: _,
    } = new;
    let mut differences = Vec::new();
    let mut add_if = |is_looser: bool, from: String, to: String| {
        if is_looser {
            differences.push((from, to));
        }
    };
    let names = |terms: &Terms| match terms.reviewers.as_slice() {
        [] => "reviewers: anyone".to_owned(),
        some => format!("reviewers: {}", some.join(", ")),
    };
    add_if(!narrows_reviewers(old, new), names(old), names(new));
    let escalation = |terms: &Terms| match &terms.escalate {
        None => "no escalation".to_owned(),
        Some(Escalation { after, to }) => format!("escalation to {} after {after} s", to.join(", ")),
    };
    add_if(!narrows_escalation(old, new), escalation(old), escalation(new));
    add_if(new.quorum < old.quorum, format!("quorum {}", old.quorum), format!("quorum {}", new.quorum));
    add_if(old.require_comment && !new.require_comment, "a comment".into(), "no comment".into());
    let edits = |terms: &Terms| match terms.edit {
        Editing::Allowed => "edits".to_owned(),
        Editing::NeedsOtherApprover => "edits that another reviewer approves".to_owned(),
        Editing::Forbidden => "no edits".to_owned(),
    };
    add_if(new.edit < old.edit, edits(old), edits(new));
    add_if(old.preview_required && !new.preview_required, "a preview".into(), "no preview".into());
    let on_failed_preview = |terms: &Terms| format!("on_failed_preview: {}", <&str>::from(terms.on_failed_preview));
    add_if(new.on_failed_preview < old.on_failed_preview, on_failed_preview(old), on_failed_preview(new));
    add_if(!old.questions && new.questions, "questions declined".into(), "questions asked".into());
    add_if(!old.own_agents && new.own_agents, "own agents forbidden".into(), "own agents allowed".into());
    let sign_in = |terms: &Terms| terms.sign_in.as_ref().map_or_else(|| "any sign-in".to_owned(), ToString::to_string);
    add_if(!narrows_sign_in(old.sign_in.as_ref(), new.sign_in.as_ref()), sign_in(old), sign_in(new));
    let undo = |terms: &Terms| format!("undo for {} s", terms.undo_for);
    add_if(new.undo_for < old.undo_for, undo(old), undo(new));
    differences
}

/// Returns the roles and groups that may decide before an escalation, or `None` if every reviewer may.
fn restricted_to(terms: &Terms) -> Option<BTreeSet<&str>> {
    // Every principal who may decide is a reviewer or more.
    let is_unrestricted =
        terms.reviewers.is_empty() || terms.reviewers.iter().any(|name| name == Role::Reviewer.as_str());
    (!is_unrestricted).then(|| terms.reviewers.iter().map(String::as_str).collect())
}

/// Returns `true` if the escalation of `new` admits nobody who could not decide at the same time by `old`.
fn narrows_escalation(old: &Terms, new: &Terms) -> bool {
    let (Some(escalation), Some(before)) = (&new.escalate, restricted_to(old)) else { return true };
    // Where every reviewer may decide, an escalation adds nobody.
    if restricted_to(new).is_none() {
        return true;
    }
    let earlier = old.escalate.iter().filter(|earlier| earlier.after <= escalation.after);
    let admitted: Vec<&String> = earlier.flat_map(|earlier| &earlier.to).collect();
    let is_reviewer_role = |name: &&String| name.as_str() == Role::Reviewer.as_str();
    admitted.iter().any(is_reviewer_role)
        || escalation.to.iter().all(|name| before.contains(name.as_str()) || admitted.contains(&name))
}

/// Returns `true` if `new` admits no reviewer that `old` excludes. Groups are assumed to share no members with each
/// other or with roles.
fn narrows_reviewers(old: &Terms, new: &Terms) -> bool {
    match (restricted_to(old), restricted_to(new)) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(old), Some(new)) => new.is_subset(&old),
    }
}

/// Returns `true` if `new` admits no sign-in that `old` excludes.
fn narrows_sign_in(old: Option<&SignInTerms>, new: Option<&SignInTerms>) -> bool {
    let Some(old) = old else { return true };
    let Some(new) = new else { return false };
    let is_as_recent = old.max_age.is_none_or(|old| new.max_age.is_some_and(|new| new <= old));
    let is_as_strong = old.acr.is_empty() || (!new.acr.is_empty() && new.acr.iter().all(|acr| old.acr.contains(acr)));
    is_as_recent && is_as_strong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::OnFailedPreview;

    fn requiring(reviewers: &[&str]) -> Terms {
        Terms { reviewers: reviewers.iter().map(|r| (*r).to_owned()).collect(), ..Terms::default() }
    }

    #[test]
    fn stricter_terms_loosen_neither_side() {
        let strict = Terms {
            quorum: 3,
            expire_after: Some(60),
            on_expiry: OnExpiry::Reject,
            require_comment: true,
            edit: Editing::Forbidden,
            undo_for: 9,
            preview_required: true,
            on_failed_preview: OnFailedPreview::Review,
            questions: false,
            ..requiring(&["dba"])
        };
        let lax = Terms { quorum: 2, expire_after: Some(90), undo_for: 10, questions: true, ..Terms::default() };
        let whole = Terms { undo_for: 10, ..strict.clone() };
        assert_eq!(stricter_terms(&strict, &lax), whole);
        assert_eq!(stricter_terms(&lax, &strict), whole);
        for (a, b) in [(&strict, &lax), (&lax, &strict)] {
            assert_eq!(loosened_terms(a, &stricter_terms(a, b)), []);
        }
        assert_eq!(
            stricter_terms(&requiring(&["dba"]), &requiring(&["ops"])).reviewers,
            ["dba"],
            "the first list is kept"
        );
    }

    fn signing_in(max_age: Option<u64>, acr: &[&str]) -> Terms {
        let acr = acr.iter().map(|acr| (*acr).to_owned()).collect();
        Terms { sign_in: Some(SignInTerms { max_age, acr }), ..Terms::default() }
    }

    #[test]
    fn stricter_sign_in_meets_both_requirements() {
        let stricter = |first: &Terms, second: &Terms| stricter_terms(first, second).sign_in;
        let (none, recent, strong) = (Terms::default(), signing_in(Some(300), &[]), signing_in(None, &["a", "b"]));
        assert_eq!(stricter(&none, &recent), recent.sign_in);
        assert_eq!(stricter(&recent, &none), recent.sign_in);
        assert_eq!(stricter(&recent, &strong), signing_in(Some(300), &["a", "b"]).sign_in);
        assert_eq!(stricter(&strong, &signing_in(Some(60), &["b", "c"])), signing_in(Some(60), &["b"]).sign_in);
        assert_eq!(stricter(&recent, &signing_in(Some(60), &[])), signing_in(Some(60), &[]).sign_in);
        assert_eq!(stricter(&strong, &signing_in(None, &["c"])), strong.sign_in, "the first list is kept");
    }

    #[test]
    fn relaxed_or_removed_sign_in_loosens() {
        let (none, recent, strong) = (Terms::default(), signing_in(Some(300), &[]), signing_in(None, &["a", "b"]));
        for (old, new, looser) in [
            (&none, &recent, false),
            (&recent, &none, true),
            (&recent, &signing_in(Some(299), &["a"]), false),
            (&recent, &signing_in(Some(301), &["a"]), true),
            (&recent, &strong, true),
            (&strong, &recent, true),
            (&strong, &signing_in(Some(300), &["b"]), false),
            (&strong, &signing_in(Some(300), &["b", "c"]), true),
        ] {
            assert_eq!(!loosened_terms(old, new).is_empty(), looser, "{old:?} → {new:?}");
        }
        let texts = ("a sign-in with the identity provider at most 300 s ago".to_owned(), "any sign-in".to_owned());
        assert_eq!(loosened_terms(&recent, &none), [texts]);
    }

    fn escalating(reviewers: &[&str], after: u64, to: &[&str]) -> Terms {
        let to = to.iter().map(|name| (*name).to_owned()).collect();
        Terms { escalate: Some(Escalation { after, to }), ..requiring(reviewers) }
    }

    #[test]
    fn added_earlier_or_wider_escalation_loosens() {
        let old = escalating(&["dba"], 60, &["oncall"]);
        for (old, new, looser) in [
            (&requiring(&["dba"]), &old, true),
            (&old, &requiring(&["dba"]), false),
            (&old, &escalating(&["dba"], 59, &["oncall"]), true),
            (&old, &escalating(&["dba"], 61, &["oncall"]), false),
            (&old, &escalating(&["dba"], 60, &["oncall", "dba"]), false),
            (&old, &escalating(&["dba"], 60, &["oncall", "ops"]), true),
            (&escalating(&["dba"], 60, &["reviewer"]), &escalating(&["dba"], 60, &["ops"]), false),
            (&requiring(&[]), &old, false),
            (&requiring(&["dba", "oncall"]), &old, false),
        ] {
            assert_eq!(!loosened_terms(old, new).is_empty(), looser, "{old:?} → {new:?}");
        }
        let texts = ("no escalation".to_owned(), "escalation to oncall after 60 s".to_owned());
        assert_eq!(loosened_terms(&requiring(&["dba"]), &old), [texts]);
    }

    #[test]
    fn stricter_escalation_is_later_and_keeps_common_reviewers() {
        let first = escalating(&["dba"], 60, &["oncall", "ops"]);
        let stricter = |second: &Terms| stricter_terms(&first, second).escalate;
        assert_eq!(stricter(&escalating(&["dba"], 30, &["ops"])), escalating(&[], 60, &["ops"]).escalate);
        assert_eq!(stricter(&escalating(&["dba"], 30, &["legal"])), None);
        assert_eq!(stricter(&requiring(&["dba"])), None);
        assert_eq!(stricter(&requiring(&[])), first.escalate, "the other terms admit every reviewer");
        assert_eq!(stricter_terms(&requiring(&[]), &first).escalate, first.escalate);
    }

    #[test]
    fn loosened_terms_are_all_reported() {
        let strict = Terms {
            quorum: 2,
            require_comment: true,
            edit: Editing::Forbidden,
            preview_required: true,
            on_failed_preview: OnFailedPreview::Review,
            undo_for: 5,
            ..requiring(&["dba", "ops"])
        };
        let all: Vec<String> = loosened_terms(&strict, &Terms::default()).into_iter().map(|(from, _)| from).collect();
        let expected = [
            "reviewers: dba, ops",
            "quorum 2",
            "a comment",
            "no edits",
            "a preview",
            "on_failed_preview: review",
            "undo for 5 s",
        ];
        assert_eq!(all, expected);
        let asked = Terms { questions: true, ..strict.clone() };
        assert_eq!(loosened_terms(&strict, &asked), [("questions declined".to_owned(), "questions asked".to_owned())]);
        let own_agent_terms = Terms { own_agents: true, ..strict.clone() };
        let loosened = [("own agents forbidden".to_owned(), "own agents allowed".to_owned())];
        assert_eq!(loosened_terms(&strict, &own_agent_terms), loosened);
        assert!(
            !stricter_terms(&strict, &own_agent_terms).own_agents
                && !stricter_terms(&own_agent_terms, &strict).own_agents
        );
        assert_eq!(loosened_terms(&Terms::default(), &strict), []);
        let other = Terms { expire_after: Some(1), on_expiry: OnExpiry::Reject, hold_for: 1, ..strict.clone() };
        assert_eq!(loosened_terms(&strict, &other), []);
        assert_eq!(loosened_terms(&other, &strict), []);
        for (old, new, looser) in [
            (requiring(&["dba", "ops"]), requiring(&["ops"]), false),
            (requiring(&["ops"]), requiring(&["dba", "ops"]), true),
            (requiring(&["reviewer"]), requiring(&[]), false),
            (requiring(&[]), requiring(&["admin"]), false),
            (requiring(&["admin"]), requiring(&["reviewer"]), true),
            (requiring(&["reviewer", "x"]), requiring(&["y"]), false),
        ] {
            assert_eq!(!loosened_terms(&old, &new).is_empty(), looser, "{old:?} → {new:?}");
        }
    }
}

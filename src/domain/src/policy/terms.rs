//! Compares and combines the terms of two reviews. Stricter terms let fewer people decide, require more of them, or
//! give more time to withdraw a decision. Expiry and how the caller waits do not count.

use std::collections::BTreeSet;

use crate::{
    changes::{Editing, OnExpiry, Terms},
    principal::Role,
};

/// Combines the stricter of each term, if it is unclear which of two rules applies. Two lists of reviewers cannot be
/// combined: the first list is used unless it is empty. How the caller waits comes from the first terms too.
#[must_use]
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
        open_page: first.open_page,
        questions: first.questions && second.questions,
    }
}

/// Returns how `new` is looser than `old`, as pairs of texts for people: `quorum 2` and `quorum 1`.
#[must_use]
pub fn loosened_terms(old: &Terms, new: &Terms) -> Vec<(String, String)> {
    // A new term must be compared below, or listed in the second line, whose terms do not loosen.
    #[rustfmt::skip]
    let Terms {
        reviewers: _, quorum: _, require_comment: _, edit: _, preview_required: _, questions: _, undo_for: _,
        expire_after: _, on_expiry: _, on_review: _, hold_for: _, open_page: _,
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
    add_if(new.quorum < old.quorum, format!("quorum {}", old.quorum), format!("quorum {}", new.quorum));
    add_if(old.require_comment && !new.require_comment, "a comment".into(), "no comment".into());
    let edits = |terms: &Terms| match terms.edit {
        Editing::Allowed => "edits".to_owned(),
        Editing::Other => "edits that another reviewer approves".to_owned(),
        Editing::Forbidden => "no edits".to_owned(),
    };
    add_if(new.edit < old.edit, edits(old), edits(new));
    add_if(old.preview_required && !new.preview_required, "a preview".into(), "no preview".into());
    add_if(!old.questions && new.questions, "questions declined".into(), "questions asked".into());
    let undo = |terms: &Terms| format!("undo for {} s", terms.undo_for);
    add_if(new.undo_for < old.undo_for, undo(old), undo(new));
    differences
}

/// Returns `true` if `new` admits no reviewer that `old` excludes. Groups are assumed to share no members with each
/// other or with roles.
fn narrows_reviewers(old: &Terms, new: &Terms) -> bool {
    fn restricted_to(terms: &Terms) -> Option<BTreeSet<&str>> {
        // Every principal who may decide is a reviewer or more.
        let is_unrestricted =
            terms.reviewers.is_empty() || terms.reviewers.iter().any(|name| name == Role::Reviewer.as_str());
        (!is_unrestricted).then(|| terms.reviewers.iter().map(String::as_str).collect())
    }
    match (restricted_to(old), restricted_to(new)) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(old), Some(new)) => new.is_subset(&old),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn loosened_terms_are_all_reported() {
        let strict = Terms {
            quorum: 2,
            require_comment: true,
            edit: Editing::Forbidden,
            preview_required: true,
            undo_for: 5,
            ..requiring(&["dba", "ops"])
        };
        let all: Vec<String> = loosened_terms(&strict, &Terms::default()).into_iter().map(|(from, _)| from).collect();
        assert_eq!(all, ["reviewers: dba, ops", "quorum 2", "a comment", "no edits", "a preview", "undo for 5 s"]);
        let asked = Terms { questions: true, ..strict.clone() };
        assert_eq!(loosened_terms(&strict, &asked), [("questions declined".to_owned(), "questions asked".to_owned())]);
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

//! The terms of a review (`policy.review`, and the same keys of a rule): their words, bounds and invalid combinations.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

use super::{
    error::quoted,
    reader::fields::Fields,
    values::{Kind, ValueError, boolean, choice, count, seconds, variant, yaml_list},
};
use countersign_domain::{
    changes::{Terms, person::fold_name},
    policy::{GroupMember, Groups},
    principal::Role,
    text::plural,
};

pub(super) const TERM_KEYS: [&str; 12] = [
    "reviewers",
    "quorum",
    "expire_after",
    "on_expiry",
    "require_comment",
    "edit",
    "preview",
    "on_review",
    "hold_for",
    "undo_for",
    "open_page",
    "questions",
];

const S: Duration = Duration::from_secs(1);
pub(super) const QUORUM_RANGE: RangeInclusive<u64> = 1..=100;
pub(super) const EXPIRE_AFTER_RANGE: RangeInclusive<Duration> = S..=Duration::from_secs(366 * 86_400);
pub(super) const HOLD_FOR_RANGE: RangeInclusive<Duration> = S..=Duration::from_secs(3600);
pub(super) const UNDO_FOR_RANGE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);
pub(super) const QUESTIONS_CHOICES: [(&str, bool); 2] = [("decline", false), ("ask", true)];
pub(super) const PREVIEW_CHOICES: [(&str, bool); 2] = [("optional", false), ("required", true)];

/// Reads the terms of a rule over those of `policy.review`.
pub(super) fn read(f: &mut Fields<'_>, review: &Terms) -> Terms {
    let mut terms = review.clone();
    if f.has("reviewers") {
        terms.reviewers = f.parse_texts("reviewers", |name| Ok(name.to_owned()));
    }
    f.read_into("quorum", count(QUORUM_RANGE), &mut terms.quorum);
    f.read_into("expire_after", seconds(EXPIRE_AFTER_RANGE).or_null(), &mut terms.expire_after);
    f.read_into("on_expiry", variant(), &mut terms.on_expiry);
    f.read_into("require_comment", boolean(), &mut terms.require_comment);
    f.read_into("edit", variant(), &mut terms.edit);
    f.read_into("preview", choice(PREVIEW_CHOICES), &mut terms.preview_required);
    f.read_into("on_review", variant(), &mut terms.on_review);
    f.read_into("hold_for", seconds(HOLD_FOR_RANGE), &mut terms.hold_for);
    f.read_into("undo_for", seconds(UNDO_FOR_RANGE), &mut terms.undo_for);
    f.read_into("open_page", boolean(), &mut terms.open_page);
    f.read_into("questions", choice(QUESTIONS_CHOICES), &mut terms.questions);
    terms
}

/// Checks that the reviewers exist, may decide, and can reach the quorum.
pub(super) fn check_reviewers(terms: &Terms, groups: &Groups) -> Result<(), ValueError> {
    // Different spellings of a name count as one person.
    let mut members: BTreeSet<String> = BTreeSet::new();
    let mut countable = !terms.reviewers.is_empty();
    for asked in &terms.reviewers {
        match (Role::parse(asked), groups.get(asked)) {
            (Some(role), _) if role.may_decide() => countable = false,
            (Some(_), _) => {
                let message = format!("{} may not decide on changes", quoted(asked));
                return Err((message, "Write reviewer, admin, or a group of policy.groups.".to_owned()));
            }
            (None, Some(group)) => {
                // The identity provider alone knows how many people are in its groups.
                countable &= !group.iter().any(|member| matches!(member, GroupMember::ClaimGroup { .. }));
                members.extend(group.iter().map(|member| fold_name(&member.to_string())));
            }
            (None, None) => {
                let message = format!("there is no group {}", quoted(asked));
                return Err((message, format!("Write reviewer, admin, or {}.", list_groups(groups))));
            }
        }
    }
    if countable && members.len() < terms.quorum as usize {
        let message =
            format!("the quorum is {}, but only {} may decide", terms.quorum, plural(members.len(), "reviewer"));
        return Err((message, "Lower it, or add people to the group.".to_owned()));
    }
    Ok(())
}

fn list_groups(groups: &Groups) -> String {
    match groups.keys().take(20).map(|name| quoted(name)).collect::<Vec<_>>() {
        none if none.is_empty() => "a group that policy.groups names (there is none yet)".to_owned(),
        some => format!("one of {}", some.join(", ")),
    }
}

/// Formats the terms that differ from those of `policy.review`.
pub(super) fn format_differences(terms: &Terms, review: &Terms) -> Vec<String> {
    fn part<T: PartialEq + 'static>(key: &str, kind: Kind<T>, ours: &T, default: &T) -> Option<String> {
        (ours != default).then(|| format!("{key}: {}", kind.show(ours)))
    }
    let parts = [
        (terms.reviewers != review.reviewers).then(|| format!("reviewers: {}", yaml_list(&terms.reviewers))),
        part("quorum", count(QUORUM_RANGE), &terms.quorum, &review.quorum),
        part("expire_after", seconds(EXPIRE_AFTER_RANGE).or_null(), &terms.expire_after, &review.expire_after),
        part("on_expiry", variant(), &terms.on_expiry, &review.on_expiry),
        part("require_comment", boolean(), &terms.require_comment, &review.require_comment),
        part("edit", variant(), &terms.edit, &review.edit),
        part("preview", choice(PREVIEW_CHOICES), &terms.preview_required, &review.preview_required),
        part("on_review", variant(), &terms.on_review, &review.on_review),
        part("hold_for", seconds(HOLD_FOR_RANGE), &terms.hold_for, &review.hold_for),
        part("undo_for", seconds(UNDO_FOR_RANGE), &terms.undo_for, &review.undo_for),
        part("open_page", boolean(), &terms.open_page, &review.open_page),
        part("questions", choice(QUESTIONS_CHOICES), &terms.questions, &review.questions),
    ];
    parts.into_iter().flatten().collect()
}

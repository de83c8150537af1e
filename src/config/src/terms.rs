//! What is asked of a review (`policy.review`, and the same keys of a rule): words, bounds, and what does not go
//! together.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

use super::{
    error::quoted,
    tree::{KeyValue, Node, Spot},
    units::show_duration,
    values::{Wrong, duration_of, yaml_text},
};
use countersign_domain::{
    changes::{Editing, OnExpiry, OnReview, Terms, people::folded},
    policy::Groups,
    principal::Role,
    text::plural,
};

pub(super) const KEYS: [&str; 12] = [
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
pub(super) const QUORUM: RangeInclusive<u64> = 1..=100;
pub(super) const EXPIRE_AFTER: RangeInclusive<Duration> = S..=Duration::from_secs(366 * 86_400);
pub(super) const HOLD_FOR: RangeInclusive<Duration> = S..=Duration::from_secs(3600);
pub(super) const UNDO_FOR: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);
pub(super) const ON_EXPIRY: [(&str, OnExpiry); 2] = [("expire", OnExpiry::Expire), ("reject", OnExpiry::Reject)];
pub(super) const ON_REVIEW: [(&str, OnReview); 3] =
    [("return", OnReview::Return), ("hold", OnReview::Hold), ("task", OnReview::Task)];
pub(super) const EDIT: [(&str, Editing); 3] = Editing::WORDS;
pub(super) const QUESTIONS: [(&str, bool); 2] = [("decline", false), ("ask", true)];
pub(super) const PREVIEW: [(&str, bool); 2] = [("optional", false), ("required", true)];

/// Where the key itself stands.
pub(super) fn spot(entry: &KeyValue) -> Spot {
    Spot { node: Node::Null, line: entry.line, column: entry.column }
}

pub(super) fn number(node: &Node) -> Result<u32, Wrong> {
    let message = match node {
        Node::Int(n) => match u32::try_from(*n) {
            Ok(n) if QUORUM.contains(&u64::from(n)) => return Ok(n),
            _ => format!("{n} is out of range"),
        },
        other => format!("expected a number, found {}", other.kind()),
    };
    Err((message, "Write a number from 1 to 100.".to_owned()))
}

/// A duration of whole seconds.
pub(super) fn seconds(node: &Node, range: &RangeInclusive<Duration>) -> Result<u64, Wrong> {
    let duration = duration_of(node, range)?;
    if duration.subsec_nanos() == 0 {
        return Ok(duration.as_secs());
    }
    Err((format!("{} is not a whole number of seconds", show_duration(duration)), "Write whole seconds.".to_owned()))
}

pub(super) fn boolean(node: &Node) -> Result<bool, Wrong> {
    match node {
        Node::Bool(value) => Ok(*value),
        other => Err((format!("expected true or false, found {}", other.kind()), "Write true or false.".to_owned())),
    }
}

pub(super) fn word<T: Copy>(node: &Node, choices: &[(&str, T)]) -> Result<T, Wrong> {
    let found = match node {
        Node::Text(word) => quoted(word),
        other => other.kind().to_owned(),
    };
    let chosen = choices.iter().find(|(word, _)| matches!(node, Node::Text(text) if text == word));
    chosen.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        (format!("{found} is not one of {}", words.join(", ")), "Write one of them.".to_owned())
    })
}

/// Whether there are such reviewers, and enough of them.
pub(super) fn check(terms: &Terms, groups: &Groups) -> Result<(), Wrong> {
    // Two spellings of one name are one person.
    let mut members: BTreeSet<String> = BTreeSet::new();
    let mut countable = !terms.reviewers.is_empty();
    for asked in &terms.reviewers {
        match (Role::parse(asked), groups.get(asked)) {
            (Some(role), _) if role.may_decide() => countable = false,
            (Some(_), _) => {
                let message = format!("{} may not decide on changes", quoted(asked));
                return Err((message, "Write reviewer, admin, or a group of policy.groups.".to_owned()));
            }
            (None, Some(group)) => members.extend(group.iter().map(|member| folded(member))),
            (None, None) => {
                let message = format!("there is no group {}", quoted(asked));
                return Err((message, format!("Write reviewer, admin, or {}.", known(groups))));
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

fn known(groups: &Groups) -> String {
    match groups.keys().take(20).map(|name| quoted(name)).collect::<Vec<_>>() {
        none if none.is_empty() => "a group that policy.groups names (there is none yet)".to_owned(),
        some => format!("one of {}", some.join(", ")),
    }
}

/// What differs from what every review asks, as it would be written.
pub(super) fn show(terms: &Terms, review: &Terms) -> Vec<String> {
    fn word<T: PartialEq>(choices: &[(&'static str, T)], value: &T) -> String {
        choices.iter().find(|(_, known)| known == value).map_or("", |(word, _)| word).to_owned()
    }
    let time = |seconds: u64| show_duration(Duration::from_secs(seconds));
    let list = || terms.reviewers.iter().map(|name| yaml_text(name)).collect::<Vec<_>>().join(", ");
    let mut parts = Vec::new();
    let mut part = |differs: bool, key: &str, value: String| {
        if differs {
            parts.push(format!("{key}: {value}"));
        }
    };
    part(terms.reviewers != review.reviewers, "reviewers", format!("[{}]", list()));
    part(terms.quorum != review.quorum, "quorum", terms.quorum.to_string());
    part(terms.expire_after != review.expire_after, "expire_after", terms.expire_after.map_or("null".into(), time));
    part(terms.on_expiry != review.on_expiry, "on_expiry", word(&ON_EXPIRY, &terms.on_expiry));
    part(terms.require_comment != review.require_comment, "require_comment", terms.require_comment.to_string());
    part(terms.edit != review.edit, "edit", word(&EDIT, &terms.edit));
    part(terms.preview_required != review.preview_required, "preview", word(&PREVIEW, &terms.preview_required));
    part(terms.on_review != review.on_review, "on_review", word(&ON_REVIEW, &terms.on_review));
    part(terms.hold_for != review.hold_for, "hold_for", time(terms.hold_for));
    part(terms.undo_for != review.undo_for, "undo_for", time(terms.undo_for));
    part(terms.open_page != review.open_page, "open_page", terms.open_page.to_string());
    part(terms.questions != review.questions, "questions", word(&QUESTIONS, &terms.questions));
    parts
}

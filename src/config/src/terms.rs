//! The terms of a review (`policy.review`, and the same keys of a rule): their words, bounds and invalid combinations.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

use super::{
    error::quoted,
    tree::{KeyValue, LocatedNode, Node},
    units::show_duration,
    values::{ValueError, read_duration, yaml_text},
};
use countersign_domain::{
    changes::{Editing, OnExpiry, OnReview, Terms, person::fold_name},
    policy::Groups,
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
pub(super) const ON_EXPIRY_CHOICES: [(&str, OnExpiry); 2] =
    [("expire", OnExpiry::Expire), ("reject", OnExpiry::Reject)];
pub(super) const ON_REVIEW_CHOICES: [(&str, OnReview); 3] =
    [("return", OnReview::Return), ("hold", OnReview::Hold), ("task", OnReview::Task)];
pub(super) const EDIT_CHOICES: [(&str, Editing); 3] = Editing::NAMES;
pub(super) const QUESTIONS_CHOICES: [(&str, bool); 2] = [("decline", false), ("ask", true)];
pub(super) const PREVIEW_CHOICES: [(&str, bool); 2] = [("optional", false), ("required", true)];

/// Returns the position of the key itself.
pub(super) fn key_location(entry: &KeyValue) -> LocatedNode {
    LocatedNode { node: Node::Null, line: entry.line, column: entry.column }
}

pub(super) fn parse_quorum(node: &Node) -> Result<u32, ValueError> {
    let message = match node {
        Node::Int(n) => match u32::try_from(*n) {
            Ok(n) if QUORUM_RANGE.contains(&u64::from(n)) => return Ok(n),
            _ => format!("{n} is out of range"),
        },
        other => format!("expected a number, found {}", other.describe_kind()),
    };
    Err((message, "Write a number from 1 to 100.".to_owned()))
}

/// Reads a duration of whole seconds.
pub(super) fn parse_seconds(node: &Node, range: &RangeInclusive<Duration>) -> Result<u64, ValueError> {
    let duration = read_duration(node, range)?;
    if duration.subsec_nanos() == 0 {
        return Ok(duration.as_secs());
    }
    Err((format!("{} is not a whole number of seconds", show_duration(duration)), "Write whole seconds.".to_owned()))
}

pub(super) fn parse_boolean(node: &Node) -> Result<bool, ValueError> {
    match node {
        Node::Bool(value) => Ok(*value),
        other => {
            Err((format!("expected true or false, found {}", other.describe_kind()), "Write true or false.".to_owned()))
        }
    }
}

pub(super) fn parse_choice<T: Copy>(node: &Node, choices: &[(&str, T)]) -> Result<T, ValueError> {
    let found = match node {
        Node::Text(word) => quoted(word),
        other => other.describe_kind().to_owned(),
    };
    let chosen = choices.iter().find(|(word, _)| matches!(node, Node::Text(text) if text == word));
    chosen.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        (format!("{found} is not one of {}", words.join(", ")), "Write one of them.".to_owned())
    })
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
            (None, Some(group)) => members.extend(group.iter().map(|member| fold_name(member))),
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
    fn choice_name<T: PartialEq>(choices: &[(&'static str, T)], value: &T) -> String {
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
    part(terms.on_expiry != review.on_expiry, "on_expiry", choice_name(&ON_EXPIRY_CHOICES, &terms.on_expiry));
    part(terms.require_comment != review.require_comment, "require_comment", terms.require_comment.to_string());
    part(terms.edit != review.edit, "edit", choice_name(&EDIT_CHOICES, &terms.edit));
    part(
        terms.preview_required != review.preview_required,
        "preview",
        choice_name(&PREVIEW_CHOICES, &terms.preview_required),
    );
    part(terms.on_review != review.on_review, "on_review", choice_name(&ON_REVIEW_CHOICES, &terms.on_review));
    part(terms.hold_for != review.hold_for, "hold_for", time(terms.hold_for));
    part(terms.undo_for != review.undo_for, "undo_for", time(terms.undo_for));
    part(terms.open_page != review.open_page, "open_page", terms.open_page.to_string());
    part(terms.questions != review.questions, "questions", choice_name(&QUESTIONS_CHOICES, &terms.questions));
    parts
}

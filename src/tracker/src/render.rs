//! The text of the tracker's answers: short lines that a model reads, with every id that it needs next.
//!
//! What people and agents wrote stays on its own line or in its own block, so that it cannot pass for ours.

use std::{borrow::Cow, fmt::Write as _};

use serde::Serialize;

use super::rows::{CommentView, IssueLine, IssueView, ProjectView};
use countersign_domain::text::plural;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    ToolResult,
    text::{one_line, tool_result},
};

/// Titles are at most 200 characters; summaries hold a title and some words.
const LINE: usize = 400;

pub(super) fn summary_line(text: &str) -> Cow<'_, str> {
    one_line(text, LINE)
}

pub(super) fn answer(text: &str, structured: &impl Serialize) -> Result<ToolResult, McpError> {
    tool_result(text, structured).map_err(|error| {
        tracing::error!(%error, "tracker: an answer could not be written");
        McpError::new(ErrorKind::Internal, "The answer could not be written.")
    })
}

/// An issue in full.
pub(super) fn issue(issue: &IssueView<'_>) -> String {
    let mut out = String::with_capacity(512 + issue.description.len());
    let _ = write!(
        out,
        "{} {}\nType: {} | Status: {} | Priority: {}",
        issue.key,
        one_line(issue.title, LINE),
        issue.kind,
        issue.status,
        issue.priority
    );
    if let Some(hours) = issue.estimated_hours {
        let _ = write!(out, " | Estimate: {hours} h");
    }
    let _ = write!(out, "\nId: {} | Project: {} ({})", issue.id, issue.project_key, issue.project_id);
    match issue.assignee {
        Some(person) => {
            let _ = write!(out, "\nAssignee: {} ({})", one_line(person.name, LINE), person.id);
        }
        None => out.push_str("\nAssignee: none"),
    }
    if let Some(parent) = issue.parent {
        let _ =
            write!(out, "\nParent: {} {} ({}, {})", parent.key, one_line(parent.title, LINE), parent.kind, parent.id);
    }
    out.push_str("\nMay go to: ");
    if issue.allowed_transitions.is_empty() {
        out.push_str("nowhere");
    }
    for (at, status) in issue.allowed_transitions.iter().enumerate() {
        out.push_str(if at > 0 { ", " } else { "" });
        out.push_str(status.as_str());
    }
    let _ = write!(
        out,
        "\nComments: {} | Children: {} | Version: {}\nCreated: {} by {} | Updated: {}",
        issue.comment_count,
        issue.child_count,
        issue.version,
        issue.created_at,
        one_line(issue.created_by, LINE),
        issue.updated_at
    );
    if !issue.description.is_empty() {
        let _ = write!(out, "\n\nDescription:\n{}", issue.description);
    }
    out
}

/// An issue on one line of a list.
pub(super) fn issue_line<T: AsRef<str>>(out: &mut String, issue: &IssueLine<T>) {
    let _ = write!(
        out,
        "- {} [{}, {}, {}] {}",
        issue.key.as_ref(),
        issue.kind,
        issue.status,
        issue.priority,
        one_line(issue.title.as_ref(), LINE)
    );
    if let Some(person) = &issue.assignee {
        let _ = write!(out, " | {}", one_line(person.name.as_ref(), LINE));
    }
    if let Some(parent) = &issue.parent_key {
        let _ = write!(out, " | under {}", parent.as_ref());
    }
    let _ = writeln!(out, " | {}", issue.id.as_ref());
}

pub(super) fn project(project: &ProjectView<'_>) -> String {
    let mut out = format!(
        "{} {} | {}, {} open | {}",
        project.key,
        one_line(project.name, LINE),
        plural(project.issue_count, "issue"),
        project.open_issue_count,
        project.id
    );
    if !project.description.is_empty() {
        let _ = write!(out, "\n  {}", one_line(project.description, LINE));
    }
    out
}

/// Comments as quoted blocks.
pub(super) fn comments(out: &mut String, comments: &[CommentView], total: i64) {
    let _ = write!(out, "\n\nComments ({} of {total}, oldest first):", comments.len());
    for comment in comments {
        let _ = write!(out, "\n{} at {}:", one_line(&comment.author, LINE), comment.created_at);
        for line in comment.content.split('\n') {
            let _ = write!(out, "\n> {line}");
        }
    }
}

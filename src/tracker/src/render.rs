//! Formats the texts of answers for models, as short lines with every id that the next call may need.
//!
//! Titles and names are kept on one line, and comments and the descriptions of issues are quoted, so that a model can tell
//! them from text of the tracker. The structured answers have them unchanged.

use std::{borrow::Cow, fmt::Write as _};

use serde::Serialize;

use super::model::{Comment, Issue, ListedIssue, Project};
use countersign_domain::text::plural;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    ToolResult,
    text::{one_line, tool_result},
};

/// The maximum number of characters of a text on one line. A summary has a title of up to 200 characters and some words.
const MAX_LINE_CHARS: usize = 400;

/// Returns the beginning of a text on one line, with hidden characters escaped.
pub(super) fn single_line(text: &str) -> Cow<'_, str> {
    one_line(text, MAX_LINE_CHARS)
}

/// Builds the result of a read, as text and as a structure.
pub(super) fn answer(text: &str, structured: &impl Serialize) -> Result<ToolResult, McpError> {
    tool_result(text, structured).map_err(|error| {
        tracing::error!(%error, "tracker: an answer could not be written");
        McpError::new(ErrorKind::Internal, "The answer could not be written.")
    })
}

pub(super) fn issue(issue: &Issue) -> String {
    let Issue { id, key, kind, status, priority, project_key, project_id, comment_count, child_count, .. } = issue;
    let mut out =
        format!("{key} {}\nType: {kind} | Status: {status} | Priority: {priority}", single_line(&issue.title));
    if let Some(hours) = issue.estimated_hours {
        let _ = write!(out, " | Estimate: {hours} h");
    }
    let _ = write!(out, "\nId: {id} | Project: {project_key} ({project_id})\nAssignee: ");
    match &issue.assignee {
        Some(person) => drop(write!(out, "{} ({})", single_line(&person.name), person.id)),
        None => out.push_str("none"),
    }
    if let Some(parent) = &issue.parent {
        let _ = write!(out, "\nParent: {} {} ({}, {})", parent.key, single_line(&parent.title), parent.kind, parent.id);
    }
    let allowed_statuses: Vec<&str> = issue.allowed_transitions.iter().map(|status| status.as_str()).collect();
    let allowed_text = if allowed_statuses.is_empty() { "nowhere".to_owned() } else { allowed_statuses.join(", ") };
    let _ = write!(
        out,
        "\nMay go to: {allowed_text}\nComments: {comment_count} | Children: {child_count} | Version: {}\nCreated: {} by {} | \
         Updated: {}",
        issue.version,
        issue.created_at,
        single_line(&issue.created_by),
        issue.updated_at
    );
    if !issue.description.is_empty() {
        out.push_str("\n\nDescription:");
        quote(&mut out, &issue.description);
    }
    out
}

pub(super) fn issue_line(out: &mut String, issue: &ListedIssue) {
    let ListedIssue { id, key, title, kind, status, priority, .. } = issue;
    let _ = write!(out, "- {key} [{kind}, {status}, {priority}] {}", single_line(title));
    if let Some(person) = &issue.assignee {
        let _ = write!(out, " | {}", single_line(&person.name));
    }
    if let Some(parent) = &issue.parent_key {
        let _ = write!(out, " | under {parent}");
    }
    let _ = writeln!(out, " | {id}");
}

pub(super) fn project(project: &Project) -> String {
    let Project { id, key, name, description, issue_count, open_issue_count, .. } = project;
    let issues = plural(*issue_count, "issue");
    let mut out = format!("{key} {} | {issues}, {open_issue_count} open | {id}", single_line(name));
    if !description.is_empty() {
        let _ = write!(out, "\n  {}", single_line(description));
    }
    out
}

/// Writes comments as quoted blocks.
pub(super) fn comments(out: &mut String, comments: &[Comment], total: u64) {
    let _ = write!(out, "\n\nComments ({} of {total}, oldest first):", comments.len());
    for comment in comments {
        let _ = write!(out, "\n{} at {}:", single_line(&comment.author), comment.created_at);
        quote(out, &comment.content);
    }
}

/// Writes the lines of a text as a quoted block.
fn quote(out: &mut String, text: &str) {
    // All that a model may take for the end of a line (Unicode Standard, section 5.8) ends one here.
    for line in text.replace("\r\n", "\n").split(['\n', '\u{b}', '\u{c}', '\r', '\u{85}', '\u{2028}', '\u{2029}']) {
        let _ = write!(out, "\n> {line}");
    }
}

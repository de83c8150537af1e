//! The text about a change that an agent's model reads: what the change does, its state, and what to do next.
//!
//! Text written by others stays on its own line, so that it cannot imitate other lines.

use std::fmt::Write as _;

use serde_json::value::RawValue;

use super::plan_view::plan_note;
use crate::truncation::truncate_chars;
use countersign_domain::{
    changes::{
        Change, ChangeState, Diff, DiffLine, LineOp, ReviewDecision, ReviewVerdict, machine::SYSTEM,
        visible::has_visible_text,
    },
    text::plural,
};
use countersign_protocol::ErrorKind;
use countersign_provider::text::{content_text, one_line};

/// The maximum number of characters of a value in an answer's text; the diff has the rest.
const MAX_VALUE_CHARS: usize = 200;
/// The maximum number of fields in an answer's text.
const MAX_TEXT_FIELDS: usize = 16;
/// The maximum number of lines of a field that has a line diff.
const MAX_FIELD_LINES: usize = 60;
/// The maximum number of characters of the tool's own answer in an answer's text.
const MAX_RESULT_CHARS: usize = 8_000;
/// The maximum number of characters of edited arguments in an answer's text.
const MAX_ARGUMENTS_CHARS: usize = 4_000;

/// The words for a state of a change, in each text that names it.
struct StateWords {
    /// Follows "Change" in the first line of an answer.
    headline: &'static str,
    /// Follows the id in a message about the progress.
    progress: &'static str,
    /// Follows the summary in the status message of a task.
    task_status: &'static str,
}

const fn state_words(state: ChangeState) -> StateWords {
    let (headline, progress, task_status) = match state {
        ChangeState::Pending => ("pending approval", "waits for a person's decision", "waits for a person's approval"),
        ChangeState::Stale => (
            "stale: it can no longer run as it was shown",
            "is stale: it can no longer run as it was shown, and a person must look again",
            "it can no longer run as it was shown, a person must look again",
        ),
        ChangeState::Approved => ("approved, about to run", "is approved and about to run", "approved, about to run"),
        ChangeState::Executing => ("approved, running now", "is running", "approved, running"),
        ChangeState::OutcomeUnknown => (
            "ran, but its outcome is unknown",
            "ran, but its outcome is unknown; a person must find out",
            "it ran, but its outcome is unknown",
        ),
        ChangeState::Applied => ("applied", "is applied", "applied"),
        ChangeState::Failed => ("approved, but it failed", "has failed", "approved, but it failed"),
        ChangeState::Rejected => ("rejected", "is rejected", "rejected"),
        ChangeState::Expired => ("expired before it ran", "has expired", "it expired before it ran"),
        ChangeState::Withdrawn => ("withdrawn", "is withdrawn", "withdrawn"),
    };
    StateWords { headline, progress, task_status }
}

/// Describes the change for a model: what it does, its state, the reviewers' comments, and what to do next. This is the
/// text of [`super::change_result`].
pub fn change_text(change: &Change) -> String {
    let mut out = format!("Change {}. ID: {}\n", state_words(change.state).headline, change.id);
    let view = change.for_proposer();
    let _ = writeln!(out, "Operation: {}", view.operation.as_str());
    let _ = writeln!(out, "Entity: {} {}", one_line(view.entity_type, 64), one_line(&view.label, 300));
    let _ = writeln!(out, "Summary: {}", one_line(&view.summary, 400));
    // The tool's answer about an applied change says more than the proposed diff.
    if change.state != ChangeState::Applied {
        write_fields(&mut out, &view.diff);
    }
    if let Some(note) = edits_note(change) {
        let _ = writeln!(out, "{note}");
    }
    if change.redacted.is_some() {
        out.push_str("It ended long ago: its arguments and the answer of its tool are no longer kept.\n");
    }
    for decision in &change.decisions {
        let verb = match decision.verdict {
            ReviewVerdict::Approve => "Approved",
            ReviewVerdict::Reject => "Rejected",
        };
        let _ = write!(out, "{verb} by {} at {}", one_line(&decision.reviewer, 128), decision.at);
        let comment = quoted_comment(decision.comment.as_deref(), 4_000);
        let _ = writeln!(out, "{}", comment.as_deref().unwrap_or(", without a comment."));
    }
    if let Some(fault) = &view.fault {
        let _ = writeln!(out, "Reason: {}: {}", one_line(&fault.code, 64), one_line(&fault.message, 2_000));
    }
    if let Some(answer) = answer_text(change) {
        out.push_str("Answer of the tool:\n");
        let _ = writeln!(out, "{answer}");
    }
    if let Some(plan) = &change.plan {
        let _ = writeln!(out, "{}", plan_note(plan));
    }
    if change.state == ChangeState::Pending {
        if let Some(first) = &change.duplicate_of {
            let _ = writeln!(
                out,
                "You had already proposed the same call: {first}. Approving both runs it twice, so withdraw this one \
                 unless you want that."
            );
        }
        out.push_str("Nothing has been changed yet: a person must approve it.");
        if change.terms.quorum > 1 {
            let _ = write!(out, " It needs {} approvals.", change.terms.quorum);
        }
        let _ = writeln!(out, " It expires at {}.", change.expires_at);
    }
    let _ = write!(out, "Next: {}", next_step(change));
    out
}

/// Describes the state of the change in one clause, for a client that waits.
pub fn progress_message(change: &Change) -> String {
    let clause = match change.state {
        ChangeState::Executing if has_open_question(change) => {
            "is running, and its tool waits for an answer of its client"
        }
        state => state_words(state).progress,
    };
    format!("{} {clause}", change.id)
}

/// Describes the state, the reason, and after a failure what to do next. This is the status message of a task, and the
/// only text that some clients show of a failed one.
pub fn task_status_message(change: &Change) -> String {
    let view = change.for_proposer();
    let summary = one_line(&view.summary, 400);
    let status = state_words(change.state).task_status;
    let is_rejection =
        |decision: &&ReviewDecision| change.state == ChangeState::Rejected && decision.verdict == ReviewVerdict::Reject;
    let reason = match (change.decisions.last().filter(is_rejection), &view.fault) {
        (Some(rejection), _) => {
            let comment = quoted_comment(rejection.comment.as_deref(), 1_000).unwrap_or_default();
            format!("rejected by {}{comment}", one_line(&rejection.reviewer, 128))
        }
        (None, Some(fault)) => format!("{status}: {}", one_line(&fault.message, 1_000)),
        (None, None) => status.to_owned(),
    };
    if matches!(change.state, ChangeState::Rejected | ChangeState::Expired | ChangeState::Failed) {
        return format!("{summary}: {reason}. Next: {}", next_step(change));
    }
    format!("{summary}: {reason}")
}

/// Describes how reviewers changed the arguments and what they are now; `None` if nobody changed them.
pub fn edits_note(change: &Change) -> Option<String> {
    if change.edits.is_empty() {
        return None;
    }
    let mut out = String::new();
    for edit in &change.edits {
        let editor = match edit.by == SYSTEM && edit.key_id.is_none() {
            true => "The gateway".to_owned(),
            false => format!("The reviewer {}", one_line(&edit.by, 128)),
        };
        let _ = write!(out, "{editor} changed the arguments at {}", edit.at);
        let _ = writeln!(out, "{}", quoted_comment(edit.comment.as_deref(), 4_000).as_deref().unwrap_or("."));
    }
    if change.redacted.is_some() {
        // The arguments were removed by retention; the empty ones in their place are not what ran.
        return Some(out.trim_end().to_owned());
    }
    let heading = match change.state {
        ChangeState::Applied | ChangeState::Failed | ChangeState::OutcomeUnknown | ChangeState::Executing => "What ran",
        _ => "The arguments now",
    };
    let _ = write!(out, "{heading}: {}", one_line(change.arguments.get(), MAX_ARGUMENTS_CHARS));
    Some(out)
}

/// Formats a comment for the end of a sentence, or returns `None` if it has no visible character.
fn quoted_comment(comment: Option<&str>, max_chars: usize) -> Option<String> {
    comment.filter(|comment| has_visible_text(comment)).map(|comment| format!(": “{}”", one_line(comment, max_chars)))
}

fn has_open_question(change: &Change) -> bool {
    change.dialogue.as_ref().is_some_and(|dialogue| dialogue.open_questions().next().is_some())
}

fn write_fields(out: &mut String, diff: &Diff) {
    if diff.fields.is_empty() {
        return;
    }
    out.push_str("Fields:\n");
    for field in diff.fields.iter().take(MAX_TEXT_FIELDS) {
        let label = one_line(&field.label, 64);
        let _ = match (&field.before, &field.after) {
            (None, Some(after)) => writeln!(out, "- {label}: {}", one_line(after, MAX_VALUE_CHARS)),
            (Some(before), None) => writeln!(out, "- {label}: {} → (none)", one_line(before, MAX_VALUE_CHARS)),
            (Some(before), Some(after)) => {
                writeln!(out, "- {label}: {} → {}", one_line(before, MAX_VALUE_CHARS), one_line(after, MAX_VALUE_CHARS))
            }
            (None, None) => write_line_diff(out, &label, &field.lines),
        };
    }
    if diff.fields.len() > MAX_TEXT_FIELDS {
        let _ = writeln!(out, "- … and {} more", diff.fields.len() - MAX_TEXT_FIELDS);
    }
}

/// Writes a field that has lines but no values: a diff that a tool made, or the target as it is now.
fn write_line_diff(out: &mut String, label: &str, lines: &[DiffLine]) -> std::fmt::Result {
    writeln!(out, "- {label}:")?;
    for line in lines.iter().take(MAX_FIELD_LINES) {
        let mark = match line.op {
            LineOp::Equal | LineOp::Note => ' ',
            LineOp::Insert => '+',
            LineOp::Delete => '-',
            LineOp::Skip => {
                writeln!(out, "    … {}", plural(line.text.parse().unwrap_or(0_u64), "unchanged line"))?;
                continue;
            }
        };
        writeln!(out, "  {mark} {}", one_line(&line.text, MAX_VALUE_CHARS))?;
    }
    if lines.len() > MAX_FIELD_LINES {
        writeln!(out, "    … and {}", plural(lines.len() - MAX_FIELD_LINES, "more line"))
    } else {
        Ok(())
    }
}

/// Returns the beginning of the text that the tool answered.
fn answer_text(change: &Change) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct ToolAnswer<'a> {
        #[serde(borrow)]
        content: &'a RawValue,
    }
    let raw = change.result.as_deref()?;
    let answer: ToolAnswer<'_> = serde_json::from_str(raw.get()).ok()?;
    let mut text = content_text(answer.content);
    truncate_chars(&mut text, MAX_RESULT_CHARS);
    Some(text).filter(|text| !text.is_empty())
}

/// Returns what the agent should do now, in the imperative.
pub(super) fn next_step(change: &Change) -> String {
    let id = &change.id;
    match change.state {
        ChangeState::Pending | ChangeState::Stale => format!(
            "call wait_for_change with {{\"changeId\": \"{id}\"}} to wait for the decision, or go on with other work \
             and look later with get_change; withdraw_change takes it back. Do not propose the same change again."
        ),
        ChangeState::Approved | ChangeState::Executing => {
            format!("call wait_for_change with {{\"changeId\": \"{id}\"}} for the outcome. Do not propose it again.")
        }
        ChangeState::Applied => "it is done; go on with your work.".into(),
        ChangeState::Failed => {
            "read the reason above and the live state; propose a corrected change only if it is still wanted.".into()
        }
        ChangeState::OutcomeUnknown => {
            "do not repeat it: it may have been done. Read the live state; a person will settle how it ended.".into()
        }
        ChangeState::Rejected
            if change.fault.as_ref().is_some_and(|fault| fault.code == ErrorKind::ChangeExpired.code()) =>
        {
            "nobody decided in time, which counts as a no here; nothing was changed. Ask your user before proposing it \
             again."
                .into()
        }
        ChangeState::Rejected => "heed the reviewer's reason. Do not propose the same change again unchanged; propose \
                                  another only if it answers that reason, or ask your user."
            .into(),
        ChangeState::Expired => {
            "it expired before it ran; nothing was changed. Ask your user before proposing it again.".into()
        }
        ChangeState::Withdrawn => "nothing was changed and nothing is waiting; go on with your work.".into(),
    }
}

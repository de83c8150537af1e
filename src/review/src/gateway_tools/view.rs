//! A change as an agent sees it: the structured form, its schema, and the text that says what to do next.
//!
//! An answer shows only what a proposer may see ([`ProposerView`]). Text written by others stays on its own line, so that it
//! cannot imitate other lines.

use std::{borrow::Cow, fmt::Write as _};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};

use super::{
    plan_view::{PlanPlace, plan_note},
    schema::{decisions_schema, diff_schema, fault_schema},
};
use crate::recheck::truncate_chars;
use countersign_domain::{
    changes::{
        AbsentPerson, Change, ChangeFault, ChangeState, Diff, DiffLine, LineOp, Operation, ReviewDecision,
        ReviewVerdict, machine::SYSTEM, proposer_view::ProposerView, visible::has_visible_text,
    },
    text::plural,
};
use countersign_provider::{
    ToolResult,
    schema::output_schema,
    text::{content_text, one_line, tool_result},
};

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

/// The `structuredContent` of all answers that contain a change.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("additionalProperties" = true))]
pub(super) struct ChangeView<'a> {
    #[serde(flatten)]
    common: ChangeLine<'a>,
    version: u64,
    /// The id of the thing that it would alter, or null if it does not exist yet.
    entity_id: Option<&'a str>,
    provider: &'a str,
    /// The values before and after, field by field.
    #[schemars(schema_with = "diff_schema")]
    diff: Cow<'a, Diff>,
    /// Your open change that asked for the same call when this one was proposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate_of: Option<&'a str>,
    /// The decisions, with their reasons.
    #[schemars(schema_with = "decisions_schema")]
    decisions: Vec<ReviewDecision>,
    /// The reason why it failed, expired, went stale or ended unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fault_schema")]
    fault: Option<Cow<'a, ChangeFault>>,
    /// The plan of which the change is a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<PlanPlace<'a>>,
    /// The answer of the tool, once the change was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Map<String, Value>")]
    result: Option<&'a RawValue>,
    /// The next step for the agent.
    next_step: String,
    /// Only set in answers to a wait: the wait ended before the change reached the requested state.
    #[serde(skip_serializing_if = "Option::is_none")]
    timed_out: Option<bool>,
}

impl<'a> ChangeView<'a> {
    pub(super) fn new(change: &'a Change) -> Self {
        let ProposerView { entity_id, diff, fault, .. } = change.for_proposer();
        Self {
            common: ChangeLine::new(change),
            version: change.version,
            entity_id,
            provider: &change.provider,
            diff,
            duplicate_of: change.duplicate_of.as_deref(),
            // An agent must not learn which key a reviewer used, nor the reviewer's ids.
            decisions: change
                .decisions
                .iter()
                .map(|d| ReviewDecision {
                    key_id: None,
                    token: None,
                    other_names: Vec::new(),
                    deputy_for: d.deputy_for.as_ref().map(AbsentPerson::names_only),
                    ..d.clone()
                })
                .collect(),
            fault,
            plan: change.plan.as_ref().map(PlanPlace::new),
            result: change.result.as_deref(),
            next_step: next_step(change),
            timed_out: None,
        }
    }
}

/// One line of a listing, which is also a part of a whole change.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "", extend("additionalProperties" = true))]
pub(super) struct ChangeLine<'a> {
    /// The id of the change (`chg_…`), for get_change, wait_for_change and withdraw_change.
    change_id: &'a str,
    /// The state of the change. `pending` and `stale` wait for a person; `applied`, `failed`, `rejected`, `expired` and
    /// `withdrawn` are final; `outcome_unknown` waits for a person to say how it ended.
    #[schemars(with = "String", extend("enum" = ChangeState::VARIANTS))]
    status: ChangeState,
    #[schemars(with = "String", extend("enum" = Operation::VARIANTS))]
    operation: Operation,
    /// The kind of thing that it would alter, such as `issue`.
    entity_type: &'a str,
    /// The name of the thing that it would alter, as people call it.
    label: Cow<'a, str>,
    /// The effect of the change, in one sentence.
    summary: Cow<'a, str>,
    /// The tool that was called.
    tool: &'a str,
    /// The time at which it was proposed.
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    /// The time of the last change of its status.
    #[schemars(with = "String", extend("format" = "date-time"))]
    updated_at: Timestamp,
    /// The time at which it expires if nobody has decided.
    #[schemars(with = "String", extend("format" = "date-time"))]
    expires_at: Timestamp,
}

impl<'a> ChangeLine<'a> {
    pub(super) fn new(change: &'a Change) -> Self {
        let ProposerView { operation, entity_type, label, summary, .. } = change.for_proposer();
        Self {
            change_id: &change.id,
            status: change.state,
            operation,
            entity_type,
            label,
            summary,
            tool: &change.tool,
            created_at: change.created_at,
            updated_at: change.updated_at,
            expires_at: change.expires_at,
        }
    }
}

/// The `structuredContent` of the answer to `list_changes`.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("additionalProperties" = true))]
pub(super) struct ListView<'a> {
    pub changes: Vec<ChangeLine<'a>>,
    /// Give it as `cursor` for the next page; null at the end.
    pub next_cursor: Option<&'a str>,
}

/// Returns the JSON Schema of the answer to a reviewed write ([`change_result`]). It has no `timedOut`, which only the
/// answer to a wait contains. Its root is an object.
pub fn change_output_schema() -> Value {
    let mut schema = output_schema::<ChangeView<'_>>();
    schema["title"] = "Change".into();
    schema["description"] = "A proposed write, and where it stands.".into();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.remove("timedOut");
    }
    schema
}

/// Returns the answer to a reviewed or repeated write, for a change in any state.
pub fn change_result(change: &Change) -> ToolResult {
    let text = change_text(change);
    tool_result(&text, &ChangeView::new(change)).unwrap_or_else(|_| ToolResult::text(&text, None))
}

/// Like [`change_result`], with a hint for the agent's user after the next step. Some clients show a model only the text,
/// and others only the structured content, so both contain the hint.
pub fn change_result_with_hint(change: &Change, hint: &str) -> ToolResult {
    let text = format!("{}\n{hint}", change_text(change));
    let mut view = ChangeView::new(change);
    view.next_step = format!("{} {hint}", view.next_step);
    tool_result(&text, &view).unwrap_or_else(|_| ToolResult::text(&text, None))
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

fn is_asking(change: &Change) -> bool {
    change.dialogue.as_ref().is_some_and(|dialogue| dialogue.open_questions().next().is_some())
}

/// Describes the state of the change in one clause, for a client that waits.
pub fn progress_message(change: &Change) -> String {
    let clause = match change.state {
        ChangeState::Pending => "waits for a person's decision",
        ChangeState::Stale => "is stale: it can no longer run as it was shown, and a person must look again",
        ChangeState::Approved => "is approved and about to run",
        ChangeState::Executing if is_asking(change) => "is running, and its tool waits for an answer of its client",
        ChangeState::Executing => "is running",
        ChangeState::OutcomeUnknown => "ran, but its outcome is unknown; a person must find out",
        ChangeState::Applied => "is applied",
        ChangeState::Failed => "has failed",
        ChangeState::Rejected => "is rejected",
        ChangeState::Expired => "has expired",
        ChangeState::Withdrawn => "is withdrawn",
    };
    format!("{} {clause}", change.id)
}

/// Describes the state, the reason, and after a failure what to do next. This is the status message of a task, and the
/// only text that some clients show of a failed one.
pub fn task_status_message(change: &Change) -> String {
    let view = change.for_proposer();
    let summary = one_line(&view.summary, 400);
    let decision = change.decisions.last().filter(|decision| decision.verdict == ReviewVerdict::Reject);
    let reason = match (change.state, decision, &view.fault) {
        (ChangeState::Rejected, Some(decision), _) => {
            let comment = quoted_comment(decision.comment.as_deref(), 1_000).unwrap_or_default();
            format!("rejected by {}{comment}", one_line(&decision.reviewer, 128))
        }
        (state, _, Some(fault)) => {
            format!("{}: {}", describe_state(state), one_line(&fault.message, 1_000))
        }
        (state, ..) => describe_state(state).to_owned(),
    };
    if matches!(change.state, ChangeState::Rejected | ChangeState::Expired | ChangeState::Failed) {
        return format!("{summary}: {reason}. Next: {}", next_step(change));
    }
    format!("{summary}: {reason}")
}

const fn describe_state(state: ChangeState) -> &'static str {
    match state {
        ChangeState::Pending => "waits for a person's approval",
        ChangeState::Approved => "approved, about to run",
        ChangeState::Executing => "approved, running",
        ChangeState::Applied => "applied",
        ChangeState::Failed => "approved, but it failed",
        ChangeState::OutcomeUnknown => "it ran, but its outcome is unknown",
        ChangeState::Rejected => "rejected",
        ChangeState::Expired => "it expired before it ran",
        ChangeState::Withdrawn => "withdrawn",
        ChangeState::Stale => "it can no longer run as it was shown, a person must look again",
    }
}

/// Returns the answer to a wait: the change, and whether the wait timed out.
pub(super) fn wait_result(change: &Change, timed_out: bool) -> ToolResult {
    let mut text = change_text(change);
    if timed_out {
        text.insert_str(0, "The wait ended before the change reached the requested state.\n");
    }
    let view = ChangeView { timed_out: Some(timed_out), ..ChangeView::new(change) };
    tool_result(&text, &view).unwrap_or_else(|_| ToolResult::text(&text, None))
}

/// Describes the change for a model: what it does, its state, the reviewers' comments, and what to do next. This is the
/// text of [`change_result`].
pub fn change_text(change: &Change) -> String {
    let state = match change.state {
        ChangeState::Pending => "pending approval",
        ChangeState::Approved => "approved, about to run",
        ChangeState::Executing => "approved, running now",
        ChangeState::Applied => "applied",
        ChangeState::Failed => "approved, but it failed",
        ChangeState::OutcomeUnknown => "ran, but its outcome is unknown",
        ChangeState::Rejected => "rejected",
        ChangeState::Expired => "expired before it ran",
        ChangeState::Withdrawn => "withdrawn",
        ChangeState::Stale => "stale: it can no longer run as it was shown",
    };
    let mut out = format!("Change {state}. ID: {}\n", change.id);
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

/// Writes a field that has lines but no values: a diff that a tool made, or the current state.
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
        ChangeState::Rejected if change.fault.as_ref().is_some_and(|fault| fault.code == "CHANGE_EXPIRED") => {
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

//! Prints changes as text: a table, or one change with its diff. Agents' text is escaped and stays within its line or behind
//! its mark, so that it cannot imitate the text of this program.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    arguments::{ArgumentLines, call_route, shows_arguments_only, tool_notes},
    forms::{recipients_first, shown_lines},
};
use crate::{
    exit::Failure,
    moment::format_duration,
    output::{Output, Style, cell, cut, one_line, print_table},
};
use countersign_domain::{
    changes::{
        Change, ChangeState, Diff, LineOp, Operation, PreviewKind, PreviewNote, ReviewVerdict, Terms,
        VerificationOutcome, diff::text_lines,
    },
    text::plural,
};

pub const fn state_style(state: ChangeState) -> Style {
    match state {
        ChangeState::Pending | ChangeState::Stale => Style::Yellow,
        ChangeState::Approved | ChangeState::Executing | ChangeState::Applied => Style::Green,
        ChangeState::Failed | ChangeState::OutcomeUnknown | ChangeState::Rejected => Style::Red,
        ChangeState::Expired | ChangeState::Withdrawn => Style::Dim,
    }
}

pub const fn operation_style(operation: Operation) -> Style {
    match operation {
        Operation::Create => Style::Green,
        Operation::Update => Style::Yellow,
        Operation::Delete => Style::Red,
        Operation::Call => Style::Plain,
    }
}

/// Splits a summary into its verb and the rest. A summary is a sentence that begins with its verb; one that only names the
/// tool (`server / tool: …`) gets the operation as its verb.
pub fn split_summary(operation: Operation, summary: &str) -> (&str, &str) {
    match summary.split_once(' ') {
        Some((_, rest)) if rest.starts_with("/ ") => (operation.as_str(), summary),
        Some((verb, rest)) => (verb, rest),
        None => (summary, ""),
    }
}

/// Maximum number of columns of a client's name in a table. Clients choose their names freely.
const MAX_CLIENT_COLUMNS: usize = 24;

/// Prints one line per change.
pub fn print_list(changes: &[Change], now: Timestamp, out: &mut Output) -> Result<(), Failure> {
    let row = |change: &Change| {
        let client = one_line(change.proposer.client_name.as_deref().unwrap_or("-"));
        let (verb, rest) = split_summary(change.operation, &change.summary);
        let waits =
            change.waits_for.as_ref().map_or_else(String::new, |waits| format!(" (waits for {})", waits.change));
        let mut summary_cell = cell(operation_style(change.operation), verb);
        summary_cell.extend(cell(Style::Plain, &format!("{waits} {rest}")));
        if change.differs_from_approval() {
            summary_cell.splice(0..0, cell(Style::Red, "(differs) "));
        }
        [
            cell(Style::Plain, &change.id),
            cell(state_style(change.state), change.state.as_str()),
            cell(Style::Plain, &format_duration(now.duration_since(change.created_at))),
            cell(Style::Plain, change.proposer.shown_name()),
            vec![(Style::Plain, cut(&client, MAX_CLIENT_COLUMNS).into_owned())],
            summary_cell,
        ]
    };
    let headings = ["ID", "STATE", "AGE", "PROPOSED BY", "CLIENT", "WHAT"];
    Ok(print_table(headings, changes.iter().map(row).collect(), out.width, out)?)
}

/// Prints one change in full.
pub fn print_change(change: &Change, now: Timestamp, out: &mut Output) -> Result<(), Failure> {
    out.write_styled_line(Style::Bold, &change.summary)?;
    out.write_text(&format!("{}  version {}  ", change.id, change.version))?;
    out.write_styled_line(state_style(change.state), change.state.as_str())?;
    let target = &change.target;
    out.write_styled(operation_style(change.operation), change.operation.as_str())?;
    out.write_line(&format!(" {}  {}", target.entity_type, target.label))?;
    let proposer = &change.proposer;
    let client = match (&proposer.client_name, &proposer.client_version) {
        (Some(name), Some(version)) => format!(" with {name} {version}"),
        (Some(name), None) => format!(" with {name}"),
        _ => String::new(),
    };
    let age = format_duration(now.duration_since(change.created_at));
    let proposed = format!("proposed by {}{client} over {}, {age} ago", proposer.shown_name(), proposer.transport);
    let mut origin = format!("{} ({}), {proposed}", change.tool_title, call_route(change));
    if change.state.awaits_decision() {
        origin.push_str(&format!("; expires in {}", format_duration(change.expires_at.duration_since(now))));
    }
    out.write_styled_line(Style::Dim, &origin)?;
    for (style, text) in notes(change) {
        out.write_styled_line(style, &text)?;
    }
    if change.state.awaits_decision() && !change.terms.reviewers.is_empty() {
        let mut line = format!("decided by {}", change.terms.reviewers.join(", "));
        if let Some(escalation) = describe_escalation(&change.terms, change.created_at, now) {
            line.push_str(&format!("; {escalation}"));
        }
        out.write_styled_line(Style::Cyan, &line)?;
    }
    if change.previous_diff.is_some() {
        out.write_styled_line(
            Style::Yellow,
            "The target has changed since this was proposed; the diff below is the new one.",
        )?;
    }
    if let Some(redacted) = &change.redacted {
        let (at, hash) = (redacted.at, &redacted.arguments);
        out.write_line("")?;
        out.write_styled_line(Style::Dim, &format!("  Its arguments, diff and result were removed at {at}."))?;
        out.write_styled_line(Style::Dim, &format!("  The hash of the arguments is {hash}."))?;
    } else if shows_arguments_only(change) {
        // There is no diff, so the arguments come first.
        print_arguments(change, out)?;
        for (label, text) in tool_notes(change) {
            print_heading(label, out)?;
            for line in text_lines(&text) {
                out.write_content_line(Style::Dim, &format!("    {line}"))?;
            }
        }
    } else {
        print_diff(&change.diff, out)?;
        print_arguments(change, out)?;
    }
    print_decisions(change, out)?;
    print_result(change, out)?;
    if let Some(diff) = change.verification.as_ref().and_then(|verification| verification.diff.as_ref()) {
        print_heading(DIFFERENCES_HEADING, out)?;
        print_diff(diff, out)?;
    }
    Ok(())
}

/// The heading of the differences that a verification found.
pub const DIFFERENCES_HEADING: &str = "Approved (-) and found after the run (+)";

pub const fn verification_style(verified: VerificationOutcome) -> Style {
    match verified {
        VerificationOutcome::Matches => Style::Green,
        VerificationOutcome::Differs => Style::Red,
        VerificationOutcome::Unreadable => Style::Yellow,
        VerificationOutcome::NotRead => Style::Dim,
    }
}

/// Returns what a reviewer should know about a change beside its diff, as unescaped texts.
pub fn notes(change: &Change) -> Vec<(Style, String)> {
    let mut notes = Vec::new();
    notes.extend(change.stated_reason.as_ref().map(|reason| (Style::Plain, format!("The agent’s reason: “{reason}”"))));
    if let Some(note) = &change.review {
        notes.push(match &note.mark {
            Some(mark) => (Style::Yellow, format!("{mark}: reviewed because {}", note.reason)),
            None => (Style::Dim, format!("reviewed because {}", note.reason)),
        });
    }
    notes.extend(change.plan.as_ref().map(|plan| {
        let place = format!("step {} of the plan “{}” ({})", plan.number(), plan.title, plan.id);
        (Style::Dim, format!("{place}; nothing of it runs before all its steps are approved"))
    }));
    notes.extend(change.waits_for.as_ref().map(|waits| (Style::Yellow, waits.describe())));
    notes.extend(change.fault.as_ref().map(|fault| (Style::Yellow, format!("{}: {}", fault.code, fault.message))));
    notes.extend(
        change
            .verification
            .as_ref()
            .map(|verification| (verification_style(verification.verified), verification.describe().into_owned())),
    );
    if let Some(sign_in) = &change.terms.sign_in {
        notes.push((Style::Dim, format!("The rule requires {sign_in} for an approval.")));
    }
    notes.extend(preview_notes(&change.preview));
    if change.preview.failed.is_some() && change.terms.preview_required {
        notes.push((Style::Red, "Its rule requires a preview, so it cannot be approved.".to_owned()));
    }
    notes
}

/// Describes who else may decide, and from when on; `None` if the rule names nobody else. The names are unescaped.
pub fn describe_escalation(terms: &Terms, created_at: Timestamp, now: Timestamp) -> Option<String> {
    let (at, to) = (terms.escalates_at(created_at)?, terms.escalate.as_ref()?.to.join(", "));
    let remaining = at.duration_since(now);
    Some(if at <= now {
        format!("now also by {to}")
    } else {
        format!("in {} also by {to}", format_duration(remaining))
    })
}

/// Returns how a preview was made, as unescaped texts.
pub fn preview_notes(preview: &PreviewNote) -> Vec<(Style, String)> {
    let mut notes = Vec::new();
    if let Some(failure) = &preview.failed {
        let problem = if preview.must_fail.is_some() { "The call must fail" } else { "The preview failed" };
        notes.push((Style::Red, format!("{problem}, so only the arguments are shown: {failure}")));
    } else if preview.awaits_results {
        notes.push((Style::Dim, "It is previewed and reviewed again with results of earlier steps.".to_owned()));
    } else if preview.kind == PreviewKind::Arguments {
        notes.push((Style::Dim, "No preview is available for this tool: its arguments are shown.".to_owned()));
    }
    if let Some(tried) = &preview.tried {
        let style = if tried == "none" { Style::Yellow } else { Style::Dim };
        notes.push((style, format!("Preview by a recipe, tried: {tried}")));
    }
    notes
}

pub fn print_diff(diff: &Diff, out: &mut Output) -> Result<(), Failure> {
    for field in recipients_first(diff) {
        print_heading(&field.label, out)?;
        shown_lines(field).iter().try_for_each(|line| print_line(line.op, &line.text, out))?;
    }
    if diff.truncated {
        out.write_line("")?;
        out.write_styled_line(
            Style::Yellow,
            "  The diff is larger than what is shown here; the arguments are shown in full.",
        )?;
    }
    Ok(())
}

fn print_line(op: LineOp, text: &str, out: &mut Output) -> Result<(), Failure> {
    let (mark, style) = line_mark(op);
    let line = match op {
        LineOp::Skip => format!("    … {}", plural(text.parse().unwrap_or(0_u64), "unchanged line")),
        _ => format!("    {mark} {text}"),
    };
    Ok(out.write_content_line(style, &line)?)
}

/// Returns the mark before a line of a diff, and the style of the line.
pub const fn line_mark(op: LineOp) -> (char, Style) {
    match op {
        LineOp::Equal => (' ', Style::Plain),
        LineOp::Insert => ('+', Style::Green),
        LineOp::Delete => ('-', Style::Red),
        LineOp::Note | LineOp::Skip => (' ', Style::Dim),
    }
}

fn print_heading(text: &str, out: &mut Output) -> Result<(), Failure> {
    out.write_line("")?;
    Ok(out.write_styled_line(Style::Bold, &format!("  {text}"))?)
}

/// Prints the arguments that will run.
fn print_arguments(change: &Change, out: &mut Output) -> Result<(), Failure> {
    let arguments = ArgumentLines::for_change(change);
    print_heading("Arguments", out)?;
    for line in &arguments.lines {
        out.write_content_line(Style::Plain, &format!("    {line}"))?;
    }
    if let Some(note) = arguments.diff_note() {
        out.write_styled_line(Style::Dim, &format!("    {note}"))?;
    }
    Ok(())
}

fn print_decisions(change: &Change, out: &mut Output) -> Result<(), Failure> {
    if change.decisions.is_empty() {
        return Ok(());
    }
    print_heading("Decisions", out)?;
    for decision in &change.decisions {
        let (style, word) = decision_word(decision.verdict);
        out.write_text("    ")?;
        out.write_styled(style, word)?;
        let comment = comment_suffix(decision.comment.as_deref());
        let at = decision.at.strftime("%Y-%m-%d %H:%M:%SZ");
        out.write_line(&format!(" by {}, version {}, {at}{comment}", decision.shown_voters(), decision.version))?;
    }
    Ok(())
}

/// Returns the word for a decision that was made, and its style.
pub const fn decision_word(verdict: ReviewVerdict) -> (Style, &'static str) {
    match verdict {
        ReviewVerdict::Approve => (Style::Green, "approved"),
        ReviewVerdict::Reject => (Style::Red, "rejected"),
    }
}

/// Returns the end of a line about a decision or an edit: its comment, if there is one.
pub fn comment_suffix(comment: Option<&str>) -> String {
    comment.filter(|text| !text.is_empty()).map(|text| format!(": {text}")).unwrap_or_default()
}

/// Prints the text that the tool returned, once it has run.
pub fn print_result(change: &Change, out: &mut Output) -> Result<(), Failure> {
    let Some((heading, blocks)) = result_blocks(change) else { return Ok(()) };
    print_heading(heading, out)?;
    for line in blocks.iter().flat_map(|text| text_lines(text)) {
        out.write_content_line(Style::Plain, &format!("    {line}"))?;
    }
    Ok(())
}

/// Returns the heading and the unescaped texts of what the tool returned.
pub fn result_blocks(change: &Change) -> Option<(&'static str, Vec<String>)> {
    let value: Value = change.result.as_ref()?.get().parse().unwrap_or_default();
    let blocks = value["content"].as_array().into_iter().flatten();
    let texts = blocks.map(|block| block["text"].as_str().unwrap_or("(content that is not text)").to_owned());
    Some((if value["isError"] == true { "The tool failed" } else { "Result" }, texts.collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use countersign_domain::changes::{BlockingChange, Verification, diff::DiffBuilder};

    fn sample() -> Change {
        serde_json::from_str(
            &json!({
                "id": "chg_abc", "version": 3, "state": "pending",
                "proposer": {"principal": "local-agent", "clientName": "Cli\u{1b}[31ment", "clientVersion": "1", "transport": "http"},
                "provider": "tracker", "tool": "update_issue", "toolTitle": "Update issue", "toolHash": "sha256:x",
                "arguments": {"title": "new\u{202e}", "n": 1},
                "operation": "UPDATE",
                "target": {"entityType": "issue", "id": "1", "label": "CORE-1 Old", "lockKey": "1"},
                "summary": "Update “Old”\u{7}",
                "diff": {"fields": [
                    {"field": "title", "label": "Title", "before": "old", "after": "new\n    + forged"},
                    {"field": "description", "label": "Description", "before": "a\nb", "after": "a\nc", "lines": [
                        {"op": "skip", "text": "12"}, {"op": "equal", "text": "a"},
                        {"op": "delete", "text": "b"}, {"op": "insert", "text": "c\u{200b}"}]}],
                    "truncated": true},
                "fingerprint": "sha256:f", "digest": "sha256:d", "terms": { "quorum": 2 },
                "decisions": [{"reviewer": "bob", "verdict": "approve", "comment": "ok\nreally", "at": "2027-01-01T00:00:30Z", "version": 2}],
                "createdAt": "2027-01-01T00:00:00Z", "updatedAt": "2027-01-01T00:00:00Z", "expiresAt": "2027-01-02T00:00:00Z",
                "previousDiff": {"fields": []},
                "fault": {"code": "CHANGE_STALE", "message": "moved"},
                "result": {"content": [{"type": "text", "text": "done\nwell"}], "isError": true},
            })
            .to_string(),
        )
        .unwrap()
    }

    fn now() -> Timestamp {
        "2027-01-01T00:05:00Z".parse().unwrap()
    }

    #[test]
    fn printed_change_is_complete_and_escaped() {
        let mut out = Output::memory(false);
        print_change(&sample(), now(), &mut out).unwrap();
        let text = out.contents();
        let expected = r#"Update “Old”\u{7}
chg_abc  version 3  pending
UPDATE issue  CORE-1 Old
Update issue (tracker / update_issue), proposed by local-agent with Cli\u{1b}[31ment 1 over http, 5m ago; expires in 23h
CHANGE_STALE: moved
The target has changed since this was proposed; the diff below is the new one.

  Title
    - old
    + new
    +     + forged

  Description
    … 12 unchanged lines
      a
    - b
    + c\u{200b}

  The diff is larger than what is shown here; the arguments are shown in full.

  Arguments
    title: "new\u{202e}"
    n: 1

  Decisions
    approved by bob, version 2, 2027-01-01 00:00:30Z: ok\nreally

  The tool failed
    done
    well
"#;
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn colours_mark_added_and_removed() {
        let mut out = Output::memory(true);
        print_change(&sample(), now(), &mut out).unwrap();
        let text = out.contents();
        assert!(text.contains("\x1b[31m    - old\x1b[0m") && text.contains("\x1b[32m    + new\x1b[0m"), "{text:?}");
        // The program itself wrote all escape sequences.
        let escapes = text.matches('\x1b').count();
        let known_escapes: usize = ["0m", "1m", "2m", "31m", "32m", "33m", "36m"]
            .iter()
            .map(|c| text.matches(&format!("\x1b[{c}")).count())
            .sum();
        assert_eq!(escapes, known_escapes);
    }

    #[test]
    fn verification_is_shown_with_its_differences() {
        let mut applied = sample();
        applied.state = ChangeState::Applied;
        let diff = DiffBuilder::new().field("title", "Title", Some("Appr\u{1b}oved"), Some("Found")).finish();
        for (verification, expected) in [
            (Verification::from_diff(Diff::default()), "\nRead back: as approved\n"),
            (Verification::unreadable("gone\n"), "\nCould not be read back: gone\\n\n"),
            (Verification::from_diff(diff), "(differs) Update"),
        ] {
            applied.verification = Some(verification);
            let mut out = Output::memory(false);
            print_list(std::slice::from_ref(&applied), now(), &mut out).unwrap();
            print_change(&applied, now(), &mut out).unwrap();
            let text = out.contents();
            assert!(text.contains(expected), "{text}");
            let shows_differences =
                text.ends_with("found after the run (+)\n\n  Title\n    - Appr\\u{1b}oved\n    + Found\n");
            assert_eq!(shows_differences, applied.differs_from_approval(), "{text}");
        }
    }

    #[test]
    fn approved_change_names_what_it_waits_for() {
        let mut waiting = sample();
        waiting.state = ChangeState::Approved;
        for (until, expected) in [
            (None, "waits for chg_other, which has the same target and is running"),
            (Some("2027-01-01T00:06:00Z"), "until 00:06:00Z, or until somebody settles its outcome"),
        ] {
            let until = until.map(|until| until.parse().unwrap());
            waiting.waits_for = Some(BlockingChange { change: "chg_other".into(), until });
            let mut out = Output::memory(false);
            print_change(&waiting, now(), &mut out).unwrap();
            print_list(std::slice::from_ref(&waiting), now(), &mut out).unwrap();
            let text = out.contents();
            assert!(text.contains(expected) && text.contains(" (waits for chg_other) "), "{text}");
        }
    }

    #[test]
    fn list_has_one_line_per_change() {
        let mut out = Output::memory(false);
        print_list(&[sample(), sample()], now(), &mut out).unwrap();
        let text = out.contents();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], r"ID       STATE    AGE  PROPOSED BY  CLIENT            WHAT");
        assert_eq!(lines[1], r"chg_abc  pending  5m   local-agent  Cli\u{1b}[31ment  Update “Old”\u{7}");
    }

    #[test]
    fn summary_is_split_after_its_verb() {
        assert_eq!(
            split_summary(Operation::Create, "Create the branch feat in /srv"),
            ("Create", "the branch feat in /srv")
        );
        assert_eq!(split_summary(Operation::Update, "Write /srv/a.txt"), ("Write", "/srv/a.txt"));
        assert_eq!(split_summary(Operation::Call, "fs / note: Buy milk"), ("CALL", "fs / note: Buy milk"));
        assert_eq!(split_summary(Operation::Update, "Renumber"), ("Renumber", ""));
    }
}

//! Renders a change as lines of the screen: summary, proposer, terms, diff, arguments, decisions and result.

use jiff::Timestamp;
use ratatui::{
    style::Style,
    text::{Line, Span},
};

use super::{
    diff::{self, DiffLayout},
    paint::{Theme, wrap, wrap_words},
    types::{Detail, TrailEntry},
};
use crate::{
    changes::{
        arguments::{ArgumentLines, call_route, shows_arguments_only, tool_notes, without_arguments},
        forms::is_shown_in_full,
        render,
    },
    moment::{format_duration, format_local_time},
};
use countersign_domain::{
    changes::{Change, ChangeState, Diff, Editing, diff::text_lines},
    text::plural,
};

/// Maximum number of lines in a section. `countersign changes show` prints all lines.
const MAX_SECTION_LINES: usize = 4000;

struct DetailWriter {
    theme: Theme,
    width: usize,
    lines: Vec<Line<'static>>,
}

impl DetailWriter {
    fn push_text(&mut self, indent: usize, pieces: &[(String, Style)]) {
        let pad = Span::raw(" ".repeat(indent));
        self.lines.extend(wrap(pieces, self.width, &pad, &pad));
    }

    /// Adds prose, wrapped at words.
    fn push_prose(&mut self, indent: usize, pieces: &[(String, Style)]) {
        self.lines.extend(wrap_words(pieces, self.width, &Span::raw(" ".repeat(indent))));
    }

    /// Adds a message, escaped.
    fn push_message(&mut self, style: Style, text: &str) {
        self.push_prose(1, &[(self.theme.visible(text), style)]);
    }

    /// Adds a heading, escaped, after an empty line.
    fn push_heading(&mut self, text: &str) {
        if self.lines.last().is_some_and(|line| line.width() > 0) {
            self.lines.push(Line::default());
        }
        self.push_text(1, &[(self.theme.visible(text), self.theme.bold())]);
    }

    /// Adds arguments, which are foreign text.
    fn push_arguments(&mut self, arguments: &ArgumentLines) {
        if !arguments.lines.is_empty() {
            self.push_foreign_text(&arguments.lines.join("\n"));
        }
        if let Some(remark) = arguments.diff_note() {
            let remark = self.theme.visible(&remark);
            self.push_prose(3, &[(remark, self.theme.dim())]);
        }
    }

    /// Adds foreign text, escaped.
    fn push_foreign_text(&mut self, text: &str) {
        for (index, line) in text_lines(text).enumerate() {
            if index >= MAX_SECTION_LINES {
                return self.push_message(self.theme.warn(), "   (more in `countersign changes show`)");
            }
            let line = self.theme.visible_code(line);
            self.push_text(3, &[(line, Style::new())]);
        }
    }
}

/// Renders the lines, and returns how many of them must be seen before a decision ([`Detail::required_lines`]).
/// `approval_barrier` is the reason why the current user cannot approve the change.
pub fn render(
    Detail { change, timeline, .. }: &Detail,
    approval_barrier: Option<&str>,
    now: Timestamp,
    layout: DiffLayout,
    theme: Theme,
) -> (Vec<Line<'static>>, usize) {
    let mut out = DetailWriter { theme, width: layout.width, lines: Vec::new() };
    write_summary(&mut out, change, now);
    if let Some(barrier) = approval_barrier {
        out.push_message(theme.info(), barrier);
    }
    write_notes(&mut out, change);
    out.lines.push(Line::default());
    let has_no_diff = shows_arguments_only(change);
    if has_no_diff {
        // There is no diff, so the arguments come first.
        write_arguments(&mut out, change);
        out.lines.push(Line::default());
    }
    match &change.previous_diff {
        Some(previous) if has_no_diff => {
            write_both_diffs(&mut out, &without_arguments(previous), &without_arguments(&change.diff), layout);
        }
        Some(previous) => write_both_diffs(&mut out, previous, &change.diff, layout),
        None if has_no_diff => {
            for (label, text) in tool_notes(change) {
                out.push_heading(label);
                out.push_foreign_text(&text);
            }
        }
        None => out.lines.extend(diff::render(&change.diff, layout, theme)),
    }
    let mut required_lines = out.lines.len();
    if !has_no_diff {
        write_arguments(&mut out, change);
    }
    // If the diff does not show everything, the decision rests on the arguments.
    let is_shown = !change.diff.truncated && change.diff.fields.iter().all(is_shown_in_full);
    if !is_shown || !change.preview.is_live() {
        required_lines = out.lines.len();
    }
    write_decisions(&mut out, change);
    write_result(&mut out, change);
    if let Some(diff) = change.verification.as_ref().and_then(|verification| verification.diff.as_ref()) {
        out.push_heading(render::DIFFERENCES_HEADING);
        out.lines.extend(diff::render(diff, layout, theme));
    }
    if !timeline.is_empty() {
        out.push_heading("Timeline");
        for TrailEntry { at, event, actor } in timeline {
            let at = format_local_time(*at, "%m-%d %H:%M:%S");
            let label = format!("{at}  {:<16} ", theme.visible(event));
            out.push_text(3, &[(label, Style::new()), (theme.visible(actor), theme.dim())]);
        }
    }
    (out.lines, required_lines)
}

fn write_arguments(out: &mut DetailWriter, change: &Change) {
    if let Some(proposed) = &change.proposed_arguments {
        out.push_heading("Arguments, as edited: these will run");
        out.push_arguments(&ArgumentLines::new(change.arguments.get(), None));
        out.push_heading("Arguments, as the agent proposed them");
        out.push_arguments(&ArgumentLines::new(proposed.get(), None));
    } else {
        out.push_heading("Arguments");
        out.push_arguments(&ArgumentLines::for_change(change));
    }
}

fn write_summary(out: &mut DetailWriter, change: &Change, now: Timestamp) {
    let theme = out.theme;
    out.push_prose(1, &[(theme.visible(&change.summary), theme.bold())]);
    let target = format!(" {} {}", theme.visible(&change.target.entity_type), theme.visible(&change.target.label));
    out.push_prose(
        1,
        &[
            (change.state.as_str().to_owned(), theme.style(render::state_style(change.state))),
            ("  ".to_owned(), Style::new()),
            (change.operation.as_str().to_owned(), theme.style(render::operation_style(change.operation))),
            (target, Style::new()),
        ],
    );
    let proposer = &change.proposer;
    let client = proposer.client_name.as_deref().map_or_else(String::new, |name| format!(" with {name}"));
    let owner = proposer.owner.as_deref().map_or_else(String::new, |owner| format!(" of {owner}"));
    let age = format_duration(now.duration_since(change.created_at));
    let text = format!(
        "{} ({}), proposed by {}{owner}{client} over {}, {age} ago; {} v{}",
        change.tool_title,
        call_route(change),
        proposer.shown_name(),
        proposer.transport,
        change.id,
        change.version
    );
    out.push_message(theme.dim(), &text);
    let terms = &change.terms;
    let mut conditions = Vec::new();
    if change.state.awaits_decision() {
        conditions.push(format!("{} of {}", change.approvals(), plural(terms.quorum.max(1), "approval")));
        conditions.push(format!("expires in {}", format_duration(change.expires_at.duration_since(now))));
    }
    if !terms.reviewers.is_empty() {
        conditions.push(format!("decided by {}", terms.reviewers.join(", ")));
        let escalation = render::describe_escalation(terms, change.created_at, now);
        conditions.extend(escalation.filter(|_| change.state.awaits_decision()));
    }
    if terms.require_comment {
        conditions.push("needs a comment".to_owned());
    }
    match terms.edit {
        Editing::Forbidden => conditions.push("cannot be edited".to_owned()),
        Editing::NeedsOtherApprover => conditions.push("whoever edits it cannot approve it".to_owned()),
        Editing::Allowed => {}
    }
    if terms.undo_for > 0 {
        conditions.push(format!("an approval can be undone for {}s", terms.undo_for));
    }
    if !conditions.is_empty() {
        out.push_message(theme.info(), &conditions.join("; "));
    }
}

fn write_notes(out: &mut DetailWriter, change: &Change) {
    let theme = out.theme;
    for (style, text) in render::notes(change) {
        out.push_message(theme.style(style), &text);
    }
    if let Some(first) = &change.duplicate_of {
        let warning =
            format!("The same agent had already proposed the same call: {first}. Approving both runs it twice.");
        out.push_message(theme.warn(), &warning);
    }
    if change.state == ChangeState::Stale {
        out.push_message(theme.warn(), "What was shown no longer holds; f previews it again.");
    }
}

/// Adds the previous diff and the current one.
fn write_both_diffs(out: &mut DetailWriter, previous: &Diff, current: &Diff, layout: DiffLayout) {
    let (theme, before, after) = (out.theme, "Before the target changed:", "Now:");
    if !layout.is_split {
        out.push_message(theme.dim(), before);
        out.lines.extend(diff::render(previous, layout, theme));
        out.push_message(theme.warn(), after);
        out.lines.extend(diff::render(current, layout, theme));
        return;
    }
    let half_layout = DiffLayout { width: layout.column_width(), is_split: false, ..layout };
    let side = |title: &str, style, diff: &Diff| {
        let mut lines = vec![Line::styled(format!(" {title}"), style)];
        lines.extend(diff::render(diff, half_layout, theme));
        lines
    };
    let (left, right) = (side(before, theme.dim(), previous), side(after, theme.warn(), current));
    let bar = Span::styled(theme.symbol(" ║ ", " # "), theme.dim());
    out.lines.extend(diff::join_columns(&left, &right, layout.column_width(), &bar));
}

fn write_decisions(out: &mut DetailWriter, change: &Change) {
    let theme = out.theme;
    if !change.decisions.is_empty() {
        out.push_heading("Decisions");
    }
    for decision in &change.decisions {
        let (style, word) = render::decision_word(decision.verdict);
        let comment = render::comment_suffix(decision.comment.as_deref());
        let text = theme.visible(&format!(" by {} (version {}){comment}", decision.shown_voters(), decision.version));
        out.push_prose(3, &[(word.to_owned(), theme.style(style)), (text, Style::new())]);
    }
    if !change.edits.is_empty() {
        out.push_heading("Edits");
    }
    for edit in &change.edits {
        let comment = render::comment_suffix(edit.comment.as_deref());
        out.push_prose(3, &[(theme.visible(&format!("edited by {}{comment}", edit.by)), Style::new())]);
    }
}

fn write_result(out: &mut DetailWriter, change: &Change) {
    let Some((heading, blocks)) = render::result_blocks(change) else { return };
    out.push_heading(heading);
    blocks.iter().for_each(|text| out.push_foreign_text(text));
}

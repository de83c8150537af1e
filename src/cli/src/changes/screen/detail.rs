//! One change as lines of the screen: what, who, under which terms, the diff, the arguments, what became of it.

use jiff::Timestamp;
use ratatui::{
    style::Style,
    text::{Line, Span},
};
use serde_json::Value;

use super::{
    diff::{self, Look},
    paint::{Paint, words, wrap},
};
use crate::changes::{
    arguments::{Arguments, is_call, place, told_beside, without_arguments},
    render::{span, state_name},
};
use countersign_domain::{
    changes::{Change, ChangeState, Diff, Editing, Verdict, diff::text_lines},
    text::plural,
};

/// Lines of one section; the whole is in `countersign changes show`.
const MAX_SECTION: usize = 4000;

struct Writer {
    paint: Paint,
    width: usize,
    lines: Vec<Line<'static>>,
}

impl Writer {
    fn text(&mut self, indent: usize, pieces: &[(String, Style)]) {
        let pad = Span::raw(" ".repeat(indent));
        self.lines.extend(wrap(pieces, self.width, &pad, &pad));
    }

    /// Prose, in whole words.
    fn prose(&mut self, indent: usize, pieces: &[(String, Style)]) {
        self.lines.extend(words(pieces, self.width, &Span::raw(" ".repeat(indent))));
    }

    fn say(&mut self, style: Style, text: String) {
        self.prose(1, &[(text, style)]);
    }

    fn head(&mut self, text: &str) {
        if self.lines.last().is_some_and(|line| line.width() > 0) {
            self.lines.push(Line::default());
        }
        self.text(1, &[(text.to_owned(), self.paint.bold())]);
    }

    /// Arguments, which are somebody else's lines too.
    fn rows(&mut self, arguments: &Arguments) {
        if !arguments.lines.is_empty() {
            self.body(&arguments.lines.join("\n"));
        }
        if let Some(remark) = arguments.remark() {
            let remark = self.paint.safe(&remark);
            self.prose(3, &[(remark, self.paint.dim())]);
        }
    }

    /// Somebody else's lines.
    fn body(&mut self, text: &str) {
        for (at, line) in text_lines(text).enumerate() {
            if at >= MAX_SECTION {
                return self.say(self.paint.warn(), "   (more in `countersign changes show`)".to_owned());
            }
            let line = self.paint.code(line);
            self.text(3, &[(line, Style::new())]);
        }
    }
}

/// A change, and what is known beside it.
pub struct About<'a> {
    pub change: &'a Change,
    pub timeline: &'a [(Timestamp, String, String)],
    /// Why whoever looks at it cannot approve it.
    pub barred: Option<String>,
}

/// The lines, and how many of them are before the end of the diff.
pub fn lines(of: &About<'_>, now: Timestamp, look: Look, paint: Paint) -> (Vec<Line<'static>>, usize) {
    let &About { change, timeline, ref barred } = of;
    let mut out = Writer { paint, width: look.width, lines: Vec::new() };
    about(&mut out, change, now);
    if let Some(why) = barred {
        out.say(paint.info(), paint.safe(why));
    }
    notes(&mut out, change);
    out.lines.push(Line::default());
    let call = is_call(change);
    if call {
        // Nothing is compared: the arguments are what there is to see.
        arguments(&mut out, change);
        out.lines.push(Line::default());
    }
    match &change.previous_diff {
        Some(previous) if call => {
            both(&mut out, &without_arguments(previous), &without_arguments(&change.diff), look);
        }
        Some(previous) => both(&mut out, previous, &change.diff, look),
        None if call => {
            for (label, text) in told_beside(change) {
                let label = paint.safe(label);
                out.head(&label);
                out.body(&text);
            }
        }
        None => out.lines.extend(diff::lines(&change.diff, look, paint)),
    }
    let mut end = out.lines.len();
    if !call {
        arguments(&mut out, change);
    }
    // Where the diff does not show everything, the arguments are what is decided on.
    if change.diff.truncated || !change.preview.is_live() {
        end = out.lines.len();
    }
    people(&mut out, change);
    result(&mut out, change);
    if !timeline.is_empty() {
        out.head("Timeline");
        for (at, event, actor) in timeline {
            let at = at.to_zoned(jiff::tz::TimeZone::system()).strftime("%m-%d %H:%M:%S").to_string();
            let what = format!("{at}  {:<16} ", paint.safe(event));
            out.text(3, &[(what, Style::new()), (paint.safe(actor), paint.dim())]);
        }
    }
    (out.lines, end)
}

fn arguments(out: &mut Writer, change: &Change) {
    if let Some(proposed) = &change.proposed_arguments {
        out.head("Arguments, as edited: these will run");
        out.rows(&Arguments::beside(change.arguments.get(), None));
        out.head("Arguments, as the agent proposed them");
        out.rows(&Arguments::beside(proposed.get(), None));
    } else {
        out.head("Arguments");
        out.rows(&Arguments::of(change));
    }
}

fn about(out: &mut Writer, change: &Change, now: Timestamp) {
    let paint = out.paint;
    out.prose(1, &[(paint.safe(&change.summary), paint.bold())]);
    let target = format!(" {} {}", paint.safe(&change.target.entity_type), paint.safe(&change.target.label));
    out.prose(
        1,
        &[
            (state_name(change.state).to_owned(), paint.state(change.state)),
            ("  ".to_owned(), Style::new()),
            (change.operation.as_str().to_owned(), paint.operation(change.operation)),
            (target, Style::new()),
        ],
    );
    let who = &change.proposer;
    let client = who.client_name.as_deref().map_or_else(String::new, |name| format!(" with {name}"));
    let owner = who.owner.as_deref().map_or_else(String::new, |owner| format!(" of {owner}"));
    let age = span(now.duration_since(change.created_at));
    let text = format!(
        "{} ({}), proposed by {}{owner}{client} over {}, {age} ago; {} v{}",
        change.tool_title,
        place(change),
        who.principal,
        who.transport,
        change.id,
        change.version
    );
    out.say(paint.dim(), paint.safe(&text));
    let terms = &change.terms;
    let mut rules = Vec::new();
    if matches!(change.state, ChangeState::Pending | ChangeState::Stale) {
        let given = change.decisions.iter().filter(|d| d.verdict == Verdict::Approve).count();
        let needed = plural(usize::try_from(terms.quorum.max(1)).unwrap_or(usize::MAX), "approval");
        rules.push(format!("{given} of {needed}"));
        rules.push(format!("expires in {}", span(change.expires_at.duration_since(now))));
    }
    if !terms.reviewers.is_empty() {
        rules.push(format!("decided by {}", terms.reviewers.join(", ")));
    }
    if terms.require_comment {
        rules.push("needs a comment".to_owned());
    }
    match terms.edit {
        Editing::Forbidden => rules.push("cannot be edited".to_owned()),
        Editing::Other => rules.push("who edits it cannot approve it".to_owned()),
        Editing::Allowed => {}
    }
    if terms.undo_for > 0 {
        rules.push(format!("an approval can be undone for {}s", terms.undo_for));
    }
    if !rules.is_empty() {
        out.say(paint.info(), paint.safe(&rules.join("; ")));
    }
}

fn notes(out: &mut Writer, change: &Change) {
    let paint = out.paint;
    if let Some(why) = &change.review {
        let mark = why.mark.as_deref().map_or_else(String::new, |mark| format!("{mark}: "));
        let style = if why.mark.is_some() { paint.warn() } else { paint.dim() };
        out.say(style, paint.safe(&format!("{mark}reviewed because {}", why.reason)));
    }
    if let Some(first) = &change.duplicate_of {
        out.say(
            paint.warn(),
            paint.safe(&format!(
                "The same agent had already proposed the same call: {first}. Approving both runs it twice."
            )),
        );
    }
    if let Some(why) = &change.preview.failed {
        out.say(paint.bad(), paint.safe(&format!("The preview failed, so only the arguments are shown: {why}")));
        if change.terms.preview_required {
            out.say(paint.bad(), "The rule lets nobody approve it without a preview.".to_owned());
        }
    }
    if change.preview.failed.is_none() && is_call(change) {
        out.say(paint.dim(), "No preview is available for this tool: its arguments are shown.".to_owned());
    }
    if let Some(waits) = &change.waits_for {
        out.say(paint.warn(), paint.safe(&waits.sentence()));
    }
    if let Some(fault) = &change.fault {
        out.say(paint.warn(), paint.safe(&format!("{}: {}", fault.code, fault.message)));
    }
    if change.state == ChangeState::Stale {
        out.say(paint.warn(), "The target has changed since this was proposed; f previews it again.".to_owned());
    }
}

/// The diff that was shown before, and the one that holds now.
fn both(out: &mut Writer, previous: &Diff, now: &Diff, look: Look) {
    let (paint, before, after) = (out.paint, "Before the target changed:", "Now:");
    if !look.split {
        out.say(paint.dim(), before.to_owned());
        out.lines.extend(diff::lines(previous, look, paint));
        out.say(paint.warn(), after.to_owned());
        out.lines.extend(diff::lines(now, look, paint));
        return;
    }
    let half = look.width.saturating_sub(3) / 2;
    let look = Look { width: half, split: false, ..look };
    let side = |title: &str, style, diff: &Diff| {
        let mut lines = vec![Line::styled(format!(" {title}"), style)];
        lines.extend(diff::lines(diff, look, paint));
        lines
    };
    let (left, right) = (side(before, paint.dim(), previous), side(after, paint.warn(), now));
    for at in 0..left.len().max(right.len()) {
        let mut row = Line::default();
        if let Some(line) = left.get(at) {
            // The style of a line is that of its row; here it is half of one.
            row.extend(line.spans.iter().map(|span| span.clone().patch_style(line.style)));
        }
        row.push_span(Span::raw(" ".repeat(half.saturating_sub(row.width()))));
        row.push_span(Span::styled(paint.sign(" ║ ", " # "), paint.dim()));
        if let Some(line) = right.get(at) {
            row.extend(line.spans.iter().map(|span| span.clone().patch_style(line.style)));
        }
        out.lines.push(row);
    }
}

fn people(out: &mut Writer, change: &Change) {
    let paint = out.paint;
    if !change.decisions.is_empty() {
        out.head("Decisions");
    }
    for decision in &change.decisions {
        let (style, word) = match decision.verdict {
            Verdict::Approve => (paint.good(), "approved"),
            Verdict::Reject => (paint.bad(), "rejected"),
        };
        let comment =
            decision.comment.as_deref().filter(|c| !c.is_empty()).map_or_else(String::new, |c| format!(": {c}"));
        let text = paint.safe(&format!(" by {} (version {}){comment}", decision.reviewer, decision.version));
        out.prose(3, &[(word.to_owned(), style), (text, Style::new())]);
    }
    if !change.edits.is_empty() {
        out.head("Edits");
    }
    for edit in &change.edits {
        let comment = edit.comment.as_deref().filter(|c| !c.is_empty()).map_or_else(String::new, |c| format!(": {c}"));
        out.prose(3, &[(paint.safe(&format!("edited by {}{comment}", edit.by)), Style::new())]);
    }
}

fn result(out: &mut Writer, change: &Change) {
    let Some(raw) = &change.result else { return };
    let value: Value = serde_json::from_str(raw.get()).unwrap_or_default();
    let failed = value.get("isError").and_then(Value::as_bool).unwrap_or(false);
    out.head(if failed { "The tool failed" } else { "Result" });
    for block in value.get("content").and_then(Value::as_array).into_iter().flatten() {
        let text = block.get("text").and_then(Value::as_str);
        out.body(text.unwrap_or("(content that is not text)"));
    }
}

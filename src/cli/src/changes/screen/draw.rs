//! Draws the screen: a head line with counts, the list or one change, and a foot line with the prompt, status or hints.

use ratatui::{
    Frame,
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span},
    widgets::{Clear, Paragraph, Widget},
};

use super::{
    keys::HELP,
    model::{App, Grouping, ListedChange, Question, Row, Tone},
    paint::{Theme, truncate},
};
use crate::{
    changes::render::{self, span},
    output::columns,
};
use countersign_domain::{
    changes::{ChangeState, Verdict, visible::has_hidden},
    text::plural,
};

/// Draws the whole screen; call [`App::layout`] first.
pub fn screen(app: &App, frame: &mut Frame<'_>) {
    let area = frame.area();
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)]).areas(area);
    let buffer = frame.buffer_mut();
    head_line(app, head.width).render(head, buffer);
    match &app.detail {
        Some(detail) => {
            let lines: Vec<Line<'_>> =
                detail.lines.iter().skip(detail.scroll).take(usize::from(body.height)).cloned().collect();
            Paragraph::new(lines).render(body, buffer);
        }
        None => draw_list(app, body, buffer),
    }
    if app.help {
        let lines = HELP.iter().map(|(keys, what)| {
            Line::from(vec![Span::styled(format!(" {keys:<6}"), app.paint.bold()), Span::raw(format!(" {what}"))])
        });
        draw_panel(app, "Keys", lines.collect(), body, buffer);
    } else if !app.results.is_empty() {
        draw_panel(app, "Results", result_lines(app), body, buffer);
    }
    let cursor = draw_foot_line(app, foot, buffer);
    sanitize(buffer, app.paint);
    if let Some(column) = cursor {
        frame.set_cursor_position((column, foot.y));
    }
}

/// Makes sure that no cell holds a character that a terminal would obey or not show, whatever went wrong before.
fn sanitize(buffer: &mut Buffer, paint: Theme) {
    for cell in &mut buffer.content {
        let bad = |c: char| matches!(c, '\n' | '\t') || (!paint.unicode && !c.is_ascii());
        if has_hidden(cell.symbol()) || cell.symbol().chars().any(bad) {
            cell.set_symbol("?");
        }
    }
}

fn head_line(app: &App, width: u16) -> Line<'static> {
    let paint = app.paint;
    let (dot, style) = if app.live {
        (paint.symbol("● live", "live"), paint.good())
    } else {
        (paint.symbol("○ not connected", "not connected"), paint.bad())
    };
    let count = |state| app.counts.get(&state).copied().unwrap_or(0);
    let mut pieces = vec![
        (format!(" {dot} "), style),
        (format!(" pending {} ", count(ChangeState::Pending)), paint.bold()),
        (format!(" stale {} ", count(ChangeState::Stale)), Style::new()),
        (format!(" unknown {} ", count(ChangeState::OutcomeUnknown)), Style::new()),
    ];
    if !app.selected.is_empty() {
        pieces.push((format!(" selected {} ", app.selected.len()), paint.info()));
    }
    let mut view = format!(" [{}]", app.view.name());
    if app.grouping != Grouping::None {
        view.push_str(&format!(" {}", app.grouping.name()));
    }
    if !app.search.is_empty() {
        view.push_str(&format!(" /{}", paint.visible(&app.search)));
    }
    pieces.push((view, paint.info()));
    if app.busy > 0 || app.loading {
        pieces.push((paint.symbol("  …", "  ...").to_owned(), paint.dim()));
    }
    let who = format!("  {} ({})", paint.visible(&app.me.name), paint.visible(&app.me.role));
    pieces.push((who, paint.dim()));
    fit(pieces, width, paint)
}

/// Builds a line of pieces, cut to the width.
fn fit(pieces: Vec<(String, Style)>, width: u16, paint: Theme) -> Line<'static> {
    let mut room = usize::from(width);
    let cut = pieces.into_iter().map(|(text, style)| {
        let text = truncate(&text, room, paint);
        room = room.saturating_sub(columns(&text));
        Span::styled(text, style)
    });
    cut.collect()
}

fn draw_list(app: &App, area: Rect, buffer: &mut Buffer) {
    let paint = app.paint;
    if app.rows.is_empty() {
        let text = match (app.loading, app.search.is_empty()) {
            (true, _) => "Loading changes…",
            (_, false) => "Nothing matches the search. Esc clears it.",
            _ => "You're all caught up. What agents propose appears by itself.",
        };
        return Line::styled(
            format!(" {}", truncate(text, usize::from(area.width).saturating_sub(1), paint)),
            paint.dim(),
        )
        .render(area, buffer);
    }
    for (line, (at, row)) in app.rows.iter().enumerate().skip(app.top).take(usize::from(area.height)).enumerate() {
        let y = area.y + u16::try_from(line).unwrap_or(0);
        let row_area = Rect { y, height: 1, ..area };
        match row {
            Row::Group(name, number) => {
                let text = format!(" {} {} ({number})", paint.symbol("▾", "-"), paint.visible(name));
                Line::styled(truncate(&text, usize::from(area.width), paint), paint.bold()).render(row_area, buffer);
            }
            Row::Change(index) => {
                let Some(brief) = app.changes.get(*index) else { continue };
                change_row(app, brief, area.width).render(row_area, buffer);
                if at == app.cursor {
                    buffer.set_style(row_area, Style::new().add_modifier(Modifier::REVERSED));
                }
            }
        }
    }
}

/// Cuts foreign text and pads it to this width, with at least one space at its end.
fn padded(text: &str, width: usize, paint: Theme) -> String {
    let text = truncate(&paint.visible(text), width - 1, paint);
    let pad = width.saturating_sub(columns(&text));
    text + &" ".repeat(pad)
}

fn change_row(app: &App, brief: &ListedChange, width: u16) -> Line<'static> {
    let paint = app.paint;
    let wide = width >= 70;
    let selected = if app.selected.contains(&brief.id) { "x" } else { " " };
    let opened = if app.is_fully_seen(brief) { paint.symbol("·", ".") } else { " " };
    let mut pieces = vec![
        (format!("{selected}{opened}"), paint.info()),
        (format!("{:<8} ", truncate(brief.state.as_str(), 8, paint)), paint.style(render::state_style(brief.state))),
        (format!("{:>4} ", span(app.now.duration_since(brief.created_at))), paint.dim()),
    ];
    if wide {
        pieces.push((padded(&brief.proposer.principal, 15, paint), Style::new()));
    }
    if width >= 140 {
        pieces.push((padded(&format!("{}.{}", brief.provider, brief.tool), 28, paint), paint.dim()));
    }
    if brief.terms.quorum > 1 {
        pieces.push((format!("{}/{} ", brief.approvals(), brief.terms.quorum), paint.info()));
    }
    if brief.duplicate_of.is_some() {
        pieces.push(("duplicate ".to_owned(), paint.warn()));
    }
    if let Some(mark) = brief.review.as_ref().and_then(|why| why.mark.as_deref()) {
        pieces.push((format!("{} ", paint.visible(mark)), paint.warn()));
    }
    let (verb, rest) = render::title(brief.operation, &brief.summary);
    pieces.push((format!("{} ", paint.visible(verb)), paint.style(render::operation_style(brief.operation))));
    pieces.push((paint.visible(rest), Style::new()));
    fit(pieces, width, paint)
}

fn result_lines(app: &App) -> Vec<Line<'static>> {
    let lines = app.results.iter().map(|(name, how, worked)| {
        let style = if *worked { app.paint.good() } else { app.paint.bad() };
        let outcome = Span::styled(format!(" {}", app.paint.visible(how)), style);
        Line::from(vec![outcome, Span::raw("  "), Span::raw(app.paint.visible(name))])
    });
    lines.collect()
}

/// Draws lines over the body, cut to its height.
fn draw_panel(app: &App, title: &str, lines: Vec<Line<'static>>, area: Rect, buffer: &mut Buffer) {
    Clear.render(area, buffer);
    let mut all = vec![Line::styled(format!(" {title} (any key closes)"), app.paint.bold())];
    let room = usize::from(area.height).saturating_sub(2);
    let more = lines.len().saturating_sub(room);
    all.extend(lines.into_iter().take(room));
    if more > 0 {
        all.push(Line::styled(format!(" {more} more"), app.paint.dim()));
    }
    Paragraph::new(all).render(area, buffer);
}

/// Draws the foot line, and returns the cursor's column if a prompt is open.
fn draw_foot_line(app: &App, area: Rect, buffer: &mut Buffer) -> Option<u16> {
    let paint = app.paint;
    let width = usize::from(area.width);
    let (text, style) = match &app.prompt {
        Some(prompt) => {
            let question = question_text(app, &prompt.question);
            let question = truncate(&question, (width * 2 / 3).max(10).min(width), paint);
            let typed = paint.visible(&prompt.text);
            let room = width.saturating_sub(columns(&question) + 1);
            // Shows the end of the typed text, where the user looks.
            let starts = typed.char_indices().map(|(at, _)| typed.get(at..).unwrap_or_default());
            let tail = starts.chain([""]).find(|tail| columns(tail) <= room).unwrap_or_default();
            let text = format!("{question}{tail}");
            let column = columns(&text);
            Line::styled(text, paint.bold()).render(area, buffer);
            return Some(area.x + u16::try_from(column.min(width.saturating_sub(1))).unwrap_or(0));
        }
        None if !app.status.0.is_empty() => {
            let style = match app.status.1 {
                Tone::Plain => Style::new(),
                Tone::Good => paint.good(),
                Tone::Bad => paint.bad(),
            };
            (format!(" {}", paint.visible(&app.status.0)), style)
        }
        None => (hints(app), paint.dim()),
    };
    Line::styled(truncate(&text, width, paint), style).render(area, buffer);
    None
}

fn question_text(app: &App, question: &Question) -> String {
    let word = |verdict| if verdict == Verdict::Approve { "approval" } else { "rejection" };
    match question {
        Question::Search => " Search: ".to_owned(),
        Question::Comment { verdict: Verdict::Reject, many: false } => {
            " Why rejected (the agent reads it): ".to_owned()
        }
        Question::Comment { verdict, many: false } => format!(" Comment for the {}: ", word(*verdict)),
        Question::Comment { verdict, many: true } => {
            format!(" Comment for {} x {}: ", app.selected.len(), word(*verdict))
        }
        Question::UnreadDiff => " You have not seen the end of it. Approve? y/N ".to_owned(),
        Question::WithoutPreview => " Nobody sees what it would do. Approve without preview? y/N ".to_owned(),
        Question::Settle => " How did it really end? a applied, f failed, Esc ".to_owned(),
        Question::SettleComment { applied: true } => " It was applied. How do you know? ".to_owned(),
        Question::SettleComment { applied: false } => " It failed. How do you know? ".to_owned(),
        Question::EditComment { .. } => " Comment for the edit: ".to_owned(),
    }
}

fn hints(app: &App) -> String {
    let Some(detail) = &app.detail else {
        let more = if app.has_more && !app.loading { "There are more; / narrows. " } else { "" };
        // If there is room, the keys are explained.
        let keys = match (app.size.0, app.me.may_decide) {
            (..100, _) => "j k Enter  x A  / s g  ? help  q quit",
            (_, true) => {
                "j k move  Enter open  x select  A approve selected  / search  s what is shown  g group  ? help  q quit"
            }
            (_, false) => "j k move  Enter open  / search  s what is shown  g group  ? help  q quit",
        };
        return format!(" {more}{keys}");
    };
    let rows_below = detail.lines.len().saturating_sub(detail.scroll + app.body_rows());
    let more = if rows_below > 0 { format!(" {} below;", plural(rows_below, "line")) } else { String::new() };
    if let Some(left) =
        app.undo_time_left(detail.change.run_after).filter(|_| detail.change.state == ChangeState::Approved)
    {
        return format!("{more} approved: u undoes it, {}s left", left.as_secs() + 1);
    }
    let barred = app.me.current_approval_barrier(&detail.change).is_some();
    let keys = match detail.change.state {
        ChangeState::Pending if barred => "r reject  e edit  j k next  q back  ? help",
        ChangeState::Pending if app.me.may_decide && detail.change.preview.failed.is_some() => {
            "W approve without preview  f preview again  r reject  e edit  j k next  q back  ? help"
        }
        ChangeState::Pending if app.me.may_decide => "a approve  r reject  e edit  j k next  q back  ? help",
        ChangeState::Stale if app.me.may_decide => "f preview again  r reject  j k next  q back  ? help",
        ChangeState::OutcomeUnknown if app.me.may_decide => "o settle  j k next  q back  ? help",
        _ => "j k next  q back  ? help",
    };
    format!("{more} {keys}")
}

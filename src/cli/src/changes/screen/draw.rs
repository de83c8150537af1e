//! Draws the screen: a header with counts, the list or one change, and a footer with the prompt, status or hints.

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
    model::{App, DecisionResult, ListedChange, Question, Row},
    paint::{Theme, truncate},
};
use crate::{changes::render, moment::format_duration, output::columns};
use countersign_domain::{
    changes::{ChangeState, ReviewVerdict, VerificationOutcome, visible::has_hidden},
    text::plural,
};

/// Draws the whole screen; call [`App::layout`] first.
pub fn screen(app: &App, frame: &mut Frame<'_>) {
    let area = frame.area();
    let [header, body, footer] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)]).areas(area);
    let buffer = frame.buffer_mut();
    header_line(app, header.width).render(header, buffer);
    match &app.detail {
        Some(detail) => {
            let lines: Vec<Line<'_>> =
                detail.lines.iter().skip(detail.scroll).take(usize::from(body.height)).cloned().collect();
            Paragraph::new(lines).render(body, buffer);
        }
        None => draw_list(app, body, buffer),
    }
    if app.shows_help {
        let lines = HELP.iter().map(|(keys, meaning)| {
            Line::from(vec![Span::styled(format!(" {keys:<6}"), app.theme.bold()), Span::raw(format!(" {meaning}"))])
        });
        draw_panel(app, "Keys", lines.collect(), body, buffer);
    } else if !app.results.is_empty() {
        draw_panel(app, "Results", result_lines(app), body, buffer);
    }
    let cursor = draw_footer(app, footer, buffer);
    sanitize(buffer, app.theme);
    if let Some(column) = cursor {
        frame.set_cursor_position((column, footer.y));
    }
}

/// Replaces every character that a terminal would obey or hide, in case earlier escaping has a bug.
fn sanitize(buffer: &mut Buffer, theme: Theme) {
    for cell in &mut buffer.content {
        let is_forbidden = |c: char| matches!(c, '\n' | '\t') || (!theme.unicode && !c.is_ascii());
        if has_hidden(cell.symbol()) || cell.symbol().chars().any(is_forbidden) {
            cell.set_symbol("?");
        }
    }
}

fn header_line(app: &App, width: u16) -> Line<'static> {
    let theme = app.theme;
    let (dot, style) = if app.is_feed_connected {
        (theme.symbol("● live", "live"), theme.good())
    } else {
        (theme.symbol("○ not connected", "not connected"), theme.bad())
    };
    let count = |state| app.counts.get(&state).copied().unwrap_or(0);
    let mut pieces = vec![
        (format!(" {dot} "), style),
        (format!(" pending {} ", count(ChangeState::Pending)), theme.bold()),
        (format!(" stale {} ", count(ChangeState::Stale)), Style::new()),
        (format!(" unknown {} ", count(ChangeState::OutcomeUnknown)), Style::new()),
    ];
    if !app.selected.is_empty() {
        let selected = app.selected_changes();
        let seen_count = selected.iter().filter(|entry| app.is_fully_seen(entry)).count();
        pieces.push((format!(" selected {}, {seen_count} read ", app.selected.len()), theme.info()));
    }
    let mut view = format!(" [{}]", app.view().name);
    if !app.grouping.name().is_empty() {
        view.push_str(&format!(" {}", app.grouping.name()));
    }
    if !app.search.is_empty() {
        view.push_str(&format!(" /{}", theme.visible(&app.search)));
    }
    pieces.push((view, theme.info()));
    if app.requests_in_flight > 0 || app.is_loading {
        pieces.push((theme.symbol("  …", "  ...").to_owned(), theme.dim()));
    }
    let user = format!("  {} ({})", theme.visible(&app.me.name), theme.visible(&app.me.role));
    pieces.push((user, theme.dim()));
    fit(pieces, width, theme)
}

/// Builds a line of pieces, cut to the width.
fn fit(pieces: Vec<(String, Style)>, width: u16, theme: Theme) -> Line<'static> {
    let mut free_columns = usize::from(width);
    let cut = pieces.into_iter().map(|(text, style)| {
        let text = truncate(&text, free_columns, theme);
        free_columns = free_columns.saturating_sub(columns(&text));
        Span::styled(text, style)
    });
    cut.collect()
}

fn draw_list(app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = app.theme;
    if app.rows.is_empty() {
        let text = match (app.is_loading, app.search.is_empty()) {
            (true, _) => "Loading changes…",
            (_, false) => "Nothing matches the search. Esc clears it.",
            _ => "You're all caught up. What agents propose appears by itself.",
        };
        return Line::styled(
            format!(" {}", truncate(text, usize::from(area.width).saturating_sub(1), theme)),
            theme.dim(),
        )
        .render(area, buffer);
    }
    for (line, (at, row)) in app.rows.iter().enumerate().skip(app.first_row).take(usize::from(area.height)).enumerate()
    {
        let y = area.y + u16::try_from(line).unwrap_or(0);
        let row_area = Rect { y, height: 1, ..area };
        match row {
            Row::Group(name, number) => {
                let text = format!(" {} {} ({number})", theme.symbol("▾", "-"), theme.visible(name));
                Line::styled(truncate(&text, usize::from(area.width), theme), theme.bold()).render(row_area, buffer);
            }
            Row::Change(index) => {
                let Some(entry) = app.changes.get(*index) else { continue };
                change_row(app, entry, area.width).render(row_area, buffer);
                if at == app.cursor {
                    buffer.set_style(row_area, Style::new().add_modifier(Modifier::REVERSED));
                }
            }
        }
    }
}

/// Cuts foreign text and pads it to this width, with at least one space at its end.
fn padded(text: &str, width: usize, theme: Theme) -> String {
    let text = truncate(&theme.visible(text), width - 1, theme);
    let pad = width.saturating_sub(columns(&text));
    text + &" ".repeat(pad)
}

fn change_row(app: &App, entry: &ListedChange, width: u16) -> Line<'static> {
    let theme = app.theme;
    let is_wide = width >= 70;
    let selected = if app.selected.contains(&entry.id) { "x" } else { " " };
    let seen_mark = if app.is_fully_seen(entry) { theme.symbol("·", ".") } else { " " };
    let mut pieces = vec![
        (format!("{selected}{seen_mark}"), theme.info()),
        (format!("{:<8} ", truncate(entry.state.as_str(), 8, theme)), theme.style(render::state_style(entry.state))),
        (format!("{:>4} ", format_duration(app.now.duration_since(entry.created_at))), theme.dim()),
    ];
    if is_wide {
        pieces.push((padded(entry.proposer.shown_name(), 15, theme), Style::new()));
    }
    if width >= 140 {
        pieces.push((
            padded(&format!("{}.{}", entry.provider, entry.preview.subject(&entry.tool)), 28, theme),
            theme.dim(),
        ));
    }
    if entry.terms.quorum > 1 {
        pieces.push((format!("{}/{} ", entry.approvals(), entry.terms.quorum), theme.info()));
    }
    if entry.duplicate_of.is_some() {
        pieces.push(("duplicate ".to_owned(), theme.warn()));
    }
    if entry.verification.as_ref().is_some_and(|verification| verification.verified == VerificationOutcome::Differs) {
        pieces.push(("differs ".to_owned(), theme.bad()));
    }
    if let Some(mark) = entry.review.as_ref().and_then(|review| review.mark.as_deref()) {
        pieces.push((format!("{} ", theme.visible(mark)), theme.warn()));
    }
    let (verb, rest) = render::split_summary(entry.operation, &entry.summary);
    pieces.push((format!("{} ", theme.visible(verb)), theme.style(render::operation_style(entry.operation))));
    pieces.push((theme.visible(rest), Style::new()));
    fit(pieces, width, theme)
}

fn result_lines(app: &App) -> Vec<Line<'static>> {
    let lines = app.results.iter().map(|DecisionResult { summary, outcome, has_succeeded }| {
        let style = if *has_succeeded { app.theme.good() } else { app.theme.bad() };
        let outcome = Span::styled(format!(" {}", app.theme.visible(outcome)), style);
        Line::from(vec![outcome, Span::raw("  "), Span::raw(app.theme.visible(summary))])
    });
    lines.collect()
}

/// Draws lines over the body, cut to its height.
fn draw_panel(app: &App, title: &str, lines: Vec<Line<'static>>, area: Rect, buffer: &mut Buffer) {
    Clear.render(area, buffer);
    let mut all = vec![Line::styled(format!(" {title} (any key closes)"), app.theme.bold())];
    let rows = usize::from(area.height).saturating_sub(2);
    let hidden_lines = lines.len().saturating_sub(rows);
    all.extend(lines.into_iter().take(rows));
    if hidden_lines > 0 {
        all.push(Line::styled(format!(" {hidden_lines} more"), app.theme.dim()));
    }
    Paragraph::new(all).render(area, buffer);
}

/// Draws the footer, and returns the cursor's column if a prompt is open.
fn draw_footer(app: &App, area: Rect, buffer: &mut Buffer) -> Option<u16> {
    let theme = app.theme;
    let width = usize::from(area.width);
    let (text, style) = match &app.prompt {
        Some(prompt) => {
            let question = question_text(app, &prompt.question);
            let question = truncate(&question, (width * 2 / 3).max(10).min(width), theme);
            let typed = theme.visible(&prompt.text);
            let free_columns = width.saturating_sub(columns(&question) + 1);
            // Shows the end of the typed text, where the user looks.
            let starts = typed.char_indices().map(|(at, _)| typed.get(at..).unwrap_or_default());
            let tail = starts.chain([""]).find(|tail| columns(tail) <= free_columns).unwrap_or_default();
            let text = format!("{question}{tail}");
            let column = columns(&text);
            Line::styled(text, theme.bold()).render(area, buffer);
            return Some(area.x + u16::try_from(column.min(width.saturating_sub(1))).unwrap_or(0));
        }
        None if !app.status.0.is_empty() => (format!(" {}", theme.visible(&app.status.0)), theme.style(app.status.1)),
        None => (hints(app), theme.dim()),
    };
    Line::styled(truncate(&text, width, theme), style).render(area, buffer);
    None
}

fn question_text(app: &App, question: &Question) -> String {
    let noun = |verdict| if verdict == ReviewVerdict::Approve { "approval" } else { "rejection" };
    match question {
        Question::Search => " Search: ".to_owned(),
        Question::Comment { verdict: ReviewVerdict::Reject, is_bulk: false } => {
            " Why rejected (the agent reads it): ".to_owned()
        }
        Question::Comment { verdict, is_bulk: false } => format!(" Comment for the {}: ", noun(*verdict)),
        Question::Comment { verdict, is_bulk: true } => {
            format!(" Comment for {} x {}: ", app.selected.len(), noun(*verdict))
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
        let more_hint = if app.has_more && !app.is_loading { "There are more; / narrows. " } else { "" };
        // A wide screen also explains the keys.
        let keys = match (app.size.0, app.me.may_decide) {
            (..100, _) => "j k Enter  x A  / s g  ? help  q quit",
            (_, true) => {
                "j k move  Enter open  x select  A approve selected  / search  s what is shown  g group  ? help  q quit"
            }
            (_, false) => "j k move  Enter open  / search  s what is shown  g group  ? help  q quit",
        };
        return format!(" {more_hint}{keys}");
    };
    let rows_below = detail.lines.len().saturating_sub(detail.scroll + app.body_rows());
    let below_hint = if rows_below > 0 { format!(" {} below;", plural(rows_below, "line")) } else { String::new() };
    let undo_time = detail.change.run_after.map(|at| at.duration_since(app.now)).filter(|time| time.is_positive());
    if let Some(remaining) = undo_time.filter(|_| detail.change.state == ChangeState::Approved) {
        return format!("{below_hint} approved: u undoes it, {}s left", remaining.as_secs() + 1);
    }
    let is_barred = app.me.current_approval_barrier(&detail.change, app.now).is_some();
    let keys = match detail.change.state {
        ChangeState::Pending if is_barred => "r reject  e edit  j k next  q back  ? help",
        ChangeState::Pending if app.me.may_decide && detail.change.preview.failed.is_some() => {
            "W approve without preview  f preview again  r reject  e edit  j k next  q back  ? help"
        }
        ChangeState::Pending if app.me.may_decide => "a approve  r reject  e edit  j k next  q back  ? help",
        ChangeState::Stale if app.me.may_decide => "f preview again  r reject  j k next  q back  ? help",
        ChangeState::Approved if app.me.may_decide && detail.change.is_approved_step() => {
            "r stop its plan  j k next  q back  ? help"
        }
        ChangeState::OutcomeUnknown if app.me.may_decide => "o settle  j k next  q back  ? help",
        _ => "j k next  q back  ? help",
    };
    format!("{below_hint} {keys}")
}

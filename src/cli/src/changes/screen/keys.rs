//! Handles keys. Keys that the dashboard also has do the same in both.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;

use super::model::{Action, App, ListedChange, Prompt, Question};
use crate::output::{Style, indented};
use countersign_domain::changes::{Change, ChangeState, Editing, ReviewVerdict};

/// The keys and what they do, for the help panel.
pub const HELP: &[(&str, &str)] = &[
    ("j k", "next, previous change (in the list and in a change)"),
    ("Enter", "open the change"),
    ("Up Down PgUp PgDn Home End", "move, or scroll a change"),
    ("a", "approve what is shown"),
    ("W", "approve without a preview, if the preview failed"),
    ("r", "reject, with a reason the agent reads"),
    ("e", "edit the arguments in $VISUAL or $EDITOR"),
    ("u", "undo the approval while its grace period lasts"),
    ("f", "preview a stale change again"),
    ("o", "settle an unknown outcome"),
    ("x", "select, A approve all selected (opened ones only)"),
    ("b", "review the bundle: selects it and opens what is unread, A at the end"),
    ("X", "clear the selection; r in the list rejects all selected"),
    ("/", "search: words, tool: server: by: state: newer:2h older:1d"),
    ("s", "next view: inbox, pending, stale, unknown, all"),
    ("g", "group by target, tool, proposer, or not"),
    ("d", "diff side by side or unified"),
    ("z", "open or fold unchanged lines"),
    ("R", "reload; Ctrl-L redraws the screen"),
    ("Esc q", "back; q in the list quits, like Ctrl-C; Ctrl-Z suspends"),
];

impl App {
    /// Handles a key.
    pub fn handle_key(&mut self, key: KeyEvent) -> Option<Action> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Some(Action::Quit),
                KeyCode::Char('z') => return Some(Action::Suspend),
                KeyCode::Char('l') => return Some(Action::Repaint),
                _ => {}
            }
        }
        if self.prompt.is_some() {
            return self.handle_prompt_key(key);
        }
        if self.shows_help || !self.results.is_empty() {
            self.shows_help = false;
            self.results.clear();
            return None;
        }
        if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
            return None;
        }
        self.set_status(Style::Plain, "");
        self.expected_change = None;
        match key.code {
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('j') => return self.go_to_neighbour(1),
            KeyCode::Char('k') => return self.go_to_neighbour(-1),
            KeyCode::Char(key @ ('a' | 'W' | 'e' | 'f' | 'o')) => return self.act_on_shown(key),
            KeyCode::Char('r') => return self.reject(),
            KeyCode::Char('u') => return self.undo(),
            KeyCode::Char('x') => self.toggle_selection(),
            KeyCode::Char('b') => return self.review_bundle(),
            KeyCode::Char('X') => self.selected.clear(),
            KeyCode::Char('A') => return self.approve_selected(),
            KeyCode::Char('R') => {
                self.is_loading = true;
                return Some(Action::Load);
            }
            KeyCode::Char('d') => self.prefers_split = Some(!self.is_split()),
            KeyCode::Char('z') => self.is_unfolded = !self.is_unfolded,
            KeyCode::Char('/') => {
                self.detail = None;
                self.prompt = Some(Prompt { question: Question::Search, text: self.search.clone() });
            }
            code => {
                return if self.detail.is_some() { self.handle_detail_key(code) } else { self.handle_list_key(code) };
            }
        }
        None
    }

    fn handle_list_key(&mut self, code: KeyCode) -> Option<Action> {
        let page = isize::try_from(self.body_rows().saturating_sub(1)).unwrap_or(1).max(1);
        match code {
            KeyCode::Down => self.step(1),
            KeyCode::Up => self.step(-1),
            KeyCode::PageDown => self.step(page),
            KeyCode::PageUp => self.step(-page),
            KeyCode::Home => self.step(isize::MIN / 2),
            KeyCode::End => self.step(isize::MAX / 2),
            KeyCode::Enter | KeyCode::Right => return self.open_at_cursor(),
            KeyCode::Char(' ') => self.toggle_selection(),
            KeyCode::Char('s') => {
                self.view_index += 1;
                return self.reload();
            }
            KeyCode::Char('g') => {
                self.grouping = self.grouping.next();
                let keep = self.at_cursor().map(|entry| entry.id.clone());
                self.arrange(keep.as_deref());
            }
            KeyCode::Esc if !self.search.is_empty() => {
                self.search.clear();
                return self.reload();
            }
            KeyCode::Char('q') => return Some(Action::Quit),
            _ => {}
        }
        None
    }

    fn handle_detail_key(&mut self, code: KeyCode) -> Option<Action> {
        let rows = self.body_rows();
        let detail = self.detail.as_mut()?;
        let end = detail.lines.len().saturating_sub(rows);
        match code {
            KeyCode::Down => detail.scroll = (detail.scroll + 1).min(end),
            KeyCode::Up => detail.scroll = detail.scroll.saturating_sub(1),
            // One line of overlap stays visible.
            KeyCode::PageDown | KeyCode::Char(' ') => detail.scroll = (detail.scroll + rows.max(2) - 1).min(end),
            KeyCode::PageUp => detail.scroll = detail.scroll.saturating_sub(rows.max(2) - 1),
            KeyCode::Home => detail.scroll = 0,
            KeyCode::End => detail.scroll = end,
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::Left => self.detail = None,
            _ => {}
        }
        None
    }

    pub(super) fn reload(&mut self) -> Option<Action> {
        self.is_loading = true;
        (self.cursor, self.first_row) = (0, 0);
        self.selected.clear();
        Some(Action::Load)
    }

    /// Moves to the next change, and opens it if a change is on the screen.
    fn go_to_neighbour(&mut self, delta: isize) -> Option<Action> {
        let shown_id = self.detail.as_ref().map(|detail| detail.change.id.as_str());
        // If the shown change has left the list, the cursor is on the next one already.
        if delta > 0 && shown_id.is_some() && self.at_cursor().map(|entry| entry.id.as_str()) != shown_id {
            return self.open_at_cursor();
        }
        let before = self.cursor;
        self.step(delta);
        if self.detail.is_some() && self.cursor != before { self.open_at_cursor() } else { None }
    }

    /// Returns the id of the change on the screen, or of the one at the cursor.
    fn current_id(&self) -> Option<&str> {
        let shown_id = self.detail.as_ref().map(|detail| &detail.change.id);
        shown_id.or_else(|| self.at_cursor().map(|entry| &entry.id)).map(String::as_str)
    }

    fn open_at_cursor(&self) -> Option<Action> {
        self.at_cursor().map(|entry| Action::Open(entry.id.clone()))
    }

    fn toggle_selection(&mut self) {
        if let Some(id) = self.current_id().map(str::to_owned) {
            if !self.selected.remove(&id) {
                self.selected.insert(id);
            }
            if self.detail.is_none() {
                self.step(1);
            }
        }
    }

    /// Returns `true` if the current user's role can decide, and reports it otherwise.
    fn check_may_decide(&mut self) -> bool {
        if !self.me.may_decide {
            let text = format!("A {} cannot decide; use a reviewer's key.", self.me.role);
            self.set_status(Style::Red, text);
        }
        self.me.may_decide
    }

    /// Returns the change on the screen if the user may decide on it as it is shown. Otherwise reports why not, and returns
    /// the action to take instead: from the list, the one that opens the change first.
    pub(super) fn shown_change(&mut self) -> Result<Change, Option<Action>> {
        if !self.check_may_decide() {
            return Err(None);
        }
        let Some(detail) = &mut self.detail else {
            self.set_status(Style::Plain, "This is what it would do.");
            return Err(self.open_at_cursor());
        };
        if std::mem::take(&mut detail.changed_while_shown) {
            self.set_status(Style::Red, "It has just changed: look at it again, then decide.");
            return Err(None);
        }
        Ok(detail.change.clone())
    }

    /// Handles a key that acts on the change on the screen.
    fn act_on_shown(&mut self, key: char) -> Option<Action> {
        let change = match self.shown_change() {
            Ok(change) => change,
            Err(action) => return action,
        };
        match key {
            'a' => self.approve(&change),
            'W' => self.approve_without_preview(&change),
            'e' => self.edit(change),
            'f' => self.refresh(&change),
            _ if change.state == ChangeState::OutcomeUnknown => self.ask(Question::Settle),
            _ => self.report_wrong_state("settle", change.state),
        }
    }

    /// Opens a prompt.
    pub(super) fn ask(&mut self, question: Question) -> Option<Action> {
        self.prompt = Some(Prompt { question, text: String::new() });
        None
    }

    fn approve(&mut self, change: &Change) -> Option<Action> {
        match change.state {
            ChangeState::Stale => self.refresh(change),
            ChangeState::Pending if self.report_approval_barrier(change) => None,
            ChangeState::Pending if change.preview.failed.is_some() => {
                self.report_problem("The preview failed. W approves without preview, f tries again.")
            }
            ChangeState::Pending if !self.is_fully_seen(&ListedChange::from_change(change)) => {
                self.ask(Question::UnreadDiff)
            }
            ChangeState::Pending => self.approve_shown(change),
            state => self.report_wrong_state("approve", state),
        }
    }

    /// Returns `true` and reports why if somebody else has to approve the change.
    fn report_approval_barrier(&mut self, change: &Change) -> bool {
        let barrier = self.me.approval_barrier(&ListedChange::from_change(change), self.now);
        if let Some(barrier) = &barrier {
            self.set_status(Style::Red, barrier.as_str());
        }
        barrier.is_some()
    }

    /// Approves by the arguments alone, which has its own key and is confirmed.
    fn approve_without_preview(&mut self, change: &Change) -> Option<Action> {
        if change.state != ChangeState::Pending {
            return self.report_wrong_state("approve", change.state);
        }
        if self.report_approval_barrier(change) {
            return None;
        }
        if change.preview.failed.is_none() {
            return self.report(Style::Plain, "Its preview did not fail; a approves it.");
        }
        self.ask(Question::WithoutPreview)
    }

    pub(super) fn approve_shown(&mut self, change: &Change) -> Option<Action> {
        if change.terms.require_comment {
            return self.ask(Question::Comment { verdict: ReviewVerdict::Approve, is_bulk: false });
        }
        self.last_approved = Some(change.id.clone());
        Some(Self::decision_request(change, ReviewVerdict::Approve, ""))
    }

    fn reject(&mut self) -> Option<Action> {
        let is_bulk = self.detail.is_none() && !self.selected.is_empty();
        if is_bulk {
            if !self.check_may_decide() {
                return None;
            }
        } else {
            match self.shown_change() {
                Ok(change) if !change.state.awaits_decision() && !change.is_approved_step() => {
                    return self.report_wrong_state("reject", change.state);
                }
                Ok(_) => {}
                Err(action) => return action,
            }
        }
        self.ask(Question::Comment { verdict: ReviewVerdict::Reject, is_bulk })
    }

    fn report_wrong_state(&mut self, verb: &str, state: ChangeState) -> Option<Action> {
        let state = state.as_str();
        self.report_problem(format!("The change is {state}: there is nothing to {verb}."))
    }

    fn report_problem(&mut self, text: impl Into<String>) -> Option<Action> {
        self.report(Style::Red, text)
    }

    /// Shows a message on the status line, and does nothing else.
    fn report(&mut self, style: Style, text: impl Into<String>) -> Option<Action> {
        self.set_status(style, text);
        None
    }

    fn edit(&mut self, change: Change) -> Option<Action> {
        if !change.state.awaits_decision() {
            return self.report_wrong_state("edit", change.state);
        }
        if change.terms.edit == Editing::Forbidden {
            return self.report_problem("The rule for this change allows no edits; reject it and say why.");
        }
        let text = self.drafts.get(&change.id).cloned().unwrap_or_else(|| indented(change.arguments.get()));
        Some(Action::Editor { id: change.id, version: change.version, text })
    }

    fn undo(&mut self) -> Option<Action> {
        if !self.check_may_decide() {
            return None;
        }
        // From the list, undoes the last approval unless the cursor is on an approved change.
        let shown_change = self.detail.as_ref().map(|d| (&d.change.id, d.change.state, d.change.version));
        let at_cursor = self.at_cursor().filter(|_| shown_change.is_none());
        let last = self.changes.iter().find(|entry| Some(&entry.id) == self.last_approved.as_ref());
        let listed = [at_cursor, last].into_iter().flatten().map(|entry| (&entry.id, entry.state, entry.version));
        let approved = shown_change.into_iter().chain(listed).find(|(_, state, _)| *state == ChangeState::Approved);
        let Some((id, _, version)) = approved else {
            return self.report_problem("There is no approval to undo here.");
        };
        Some(Action::for_change(id, "undo", &json!({ "version": version }), "The approval was undone"))
    }

    fn refresh(&mut self, change: &Change) -> Option<Action> {
        if !change.state.awaits_decision() {
            return self.report_wrong_state("preview", change.state);
        }
        let done_message = "Previewed again; a approves what is shown now";
        Some(Action::for_change(&change.id, "refresh", &json!({ "version": change.version }), done_message))
    }

    /// Selects the waiting changes of the bundle at the cursor, and opens the first that was not read to its end. While a change
    /// is open, the same key goes on to the next unread one.
    fn review_bundle(&mut self) -> Option<Action> {
        let current = self.current_id()?;
        let bundle = self.bundles.iter().find(|bundle| bundle.waiting.iter().any(|id| id == current));
        let Some(members) = bundle.map(|bundle| bundle.waiting.clone()) else {
            return self.report_problem("This change is in no bundle.");
        };
        // Changes that the user has deselected while reviewing the bundle stay deselected.
        if !members.iter().any(|id| self.selected.contains(id)) {
            self.selected.clear();
            self.selected.extend(members.iter().cloned());
        }
        let listed = |id: &String| self.changes.iter().find(|entry| entry.id == *id);
        let unread = members.iter().filter(|id| self.selected.contains(*id));
        let unread = unread.filter_map(listed).find(|entry| !self.is_fully_seen(entry)).map(|entry| entry.id.clone());
        let Some(next) = unread else {
            let text = format!("All {} are read: A approves them, x takes out, X clears.", self.selected.len());
            return self.report(Style::Green, text);
        };
        self.detail = None;
        self.arrange(Some(&next));
        Some(Action::Open(next))
    }

    /// Returns the selected changes in the order of the list.
    pub(super) fn selected_changes(&self) -> Vec<&ListedChange> {
        self.changes.iter().filter(|entry| self.selected.contains(&entry.id)).collect()
    }

    /// Returns `true` if exactly this version was shown down to the end of its diff.
    pub fn is_fully_seen(&self, entry: &ListedChange) -> bool {
        let seen = self.fully_seen.get(&entry.id);
        seen.is_some_and(|(version, digest)| (*version, digest) == (entry.version, &entry.digest))
    }

    pub(super) fn approve_selected(&mut self) -> Option<Action> {
        if !self.check_may_decide() {
            return None;
        }
        let selected = self.selected_changes();
        if selected.is_empty() {
            return self.report_problem("Nothing is selected; x selects.");
        }
        let barrier =
            selected.iter().find_map(|entry| Some((entry.id.clone(), self.me.approval_barrier(entry, self.now)?)));
        if let Some((id, reason)) = barrier {
            self.arrange(Some(&id));
            return self.report_problem(format!("{reason} x deselects it."));
        }
        let without_preview = selected.iter().find(|entry| entry.preview.failed.is_some());
        if let Some(without_preview) = without_preview.map(|entry| entry.id.clone()) {
            self.arrange(Some(&without_preview));
            self.set_status(Style::Red, "The preview of this one failed: W approves it on its own, x deselects it.");
            return Some(Action::Open(without_preview));
        }
        let unread: Vec<String> =
            selected.iter().filter(|entry| !self.is_fully_seen(entry)).map(|entry| entry.id.clone()).collect();
        if let Some(first) = unread.first().cloned() {
            let text = format!(
                "{} of {} selected were not read to the end of their diff yet; this is one.",
                unread.len(),
                selected.len()
            );
            self.arrange(Some(&first));
            self.set_status(Style::Red, text);
            return Some(Action::Open(first));
        }
        self.ask(Question::Comment { verdict: ReviewVerdict::Approve, is_bulk: true })
    }
}

//! Handles the prompts at the bottom of the screen and their answers.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;

use super::model::{Action, App, Prompt, Question, typed_comment};
use crate::{changes::edit_body, output::Style};
use countersign_domain::changes::{ReviewVerdict, visible::has_visible_text};

/// The size limit of a typed line, in bytes. The gateway accepts longer comments, too.
const MAX_TYPED_BYTES: usize = 2000;
/// Maximum number of decisions in one request. The gateway accepts no more.
const MAX_DECISIONS: usize = 100;

impl App {
    /// Handles a key while a prompt is open.
    pub(super) fn handle_prompt_key(&mut self, key: KeyEvent) -> Option<Action> {
        let prompt = self.prompt.as_mut()?;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (&prompt.question, key.code) {
            (_, KeyCode::Esc) => self.prompt = None,
            (Question::UnreadDiff | Question::WithoutPreview, code) => {
                self.prompt = None;
                if matches!(code, KeyCode::Char('y' | 'Y')) {
                    // The change may have been replaced while the prompt was open.
                    let change = self.shown_change().ok()?;
                    return self.approve_shown(&change);
                }
            }
            (Question::Settle, KeyCode::Char(c @ ('a' | 'f'))) => {
                let question = Question::SettleComment { applied: c == 'a' };
                return self.ask(question);
            }
            (Question::Settle, _) => {}
            (_, KeyCode::Enter) => return self.submit_prompt(),
            (_, KeyCode::Backspace) => {
                prompt.text.pop();
            }
            (_, KeyCode::Char('u')) if control => prompt.text.clear(),
            (_, KeyCode::Char('w')) if control => {
                let kept_bytes = prompt.text.trim_end().rfind(char::is_whitespace).map_or(0, |at| at + 1);
                prompt.text.truncate(kept_bytes);
            }
            (_, KeyCode::Char(c)) if !control => push_char(&mut prompt.text, c),
            _ => {}
        }
        None
    }

    /// Inserts pasted text on one line.
    pub fn paste(&mut self, text: &str) {
        let Some(prompt) = self.prompt.as_mut() else { return };
        if !matches!(prompt.question, Question::UnreadDiff | Question::WithoutPreview | Question::Settle) {
            text.chars()
                .for_each(|c| push_char(&mut prompt.text, if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c }));
        }
    }

    fn submit_prompt(&mut self) -> Option<Action> {
        let Prompt { question, text } = self.prompt.take()?;
        match question {
            Question::Search => {
                text.trim().clone_into(&mut self.search);
                self.reload()
            }
            Question::Comment { verdict, is_bulk: true } => self.decide_selected(verdict, text),
            Question::Comment { verdict, is_bulk: false } => {
                let change = self.shown_change().ok()?;
                if change.terms.require_comment && !has_visible_text(&text) {
                    return self.ask_for_comment_again(Question::Comment { verdict, is_bulk: false });
                }
                if verdict == ReviewVerdict::Approve {
                    self.last_approved = Some(change.id.clone());
                }
                Some(Self::decision_request(&change, verdict, &text))
            }
            Question::SettleComment { applied } => {
                let change = self.shown_change().ok()?;
                let outcome = if applied { "applied" } else { "failed" };
                let body = json!({ "outcome": outcome, "comment": typed_comment(&text), "version": change.version });
                Some(Action::for_change(&change.id, "settle", &body, "Settled"))
            }
            Question::EditComment { id, version, arguments } => {
                let body = edit_body(&arguments, version, typed_comment(&text));
                let path = vec!["changes".into(), id, "edit".into()];
                Some(Action::Post {
                    path,
                    body,
                    done_message: "Edited and previewed again; a approves what is shown now",
                })
            }
            Question::UnreadDiff | Question::WithoutPreview | Question::Settle => None,
        }
    }

    fn ask_for_comment_again(&mut self, question: Question) -> Option<Action> {
        self.set_status(Style::Red, "The rule requires a comment.");
        self.ask(question)
    }

    /// Decides on all selected changes at once, each with its own version and digest.
    fn decide_selected(&mut self, verdict: ReviewVerdict, text: String) -> Option<Action> {
        let selected = self.selected_changes();
        let comment = typed_comment(&text);
        if comment.is_none() && selected.iter().any(|entry| entry.terms.require_comment) {
            return self.ask_for_comment_again(Question::Comment { verdict, is_bulk: true });
        }
        // A change may have been updated since the prompt was opened.
        if verdict == ReviewVerdict::Approve && selected.iter().any(|entry| !self.is_fully_seen(entry)) {
            return self.approve_selected();
        }
        let changes: Vec<_> = selected
            .iter()
            .map(|entry| json!({ "id": entry.id, "version": entry.version, "digest": entry.digest }))
            .collect();
        if changes.is_empty() {
            return None;
        }
        let bodies = changes
            .chunks(MAX_DECISIONS)
            .map(|changes| json!({ "decision": verdict, "comment": comment, "changes": changes }).to_string());
        Some(Action::Decide(bodies.collect()))
    }
}

fn push_char(text: &mut String, c: char) {
    if text.len() + c.len_utf8() <= MAX_TYPED_BYTES && !c.is_control() {
        text.push(c);
    }
}

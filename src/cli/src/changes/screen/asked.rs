//! The questions at the bottom of the screen, and what their answers do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;

use super::model::{Action, App, Ask, Prompt, Tone};
use countersign_domain::changes::{Verdict, visible::says_something};

/// Bytes of a line that is typed; the gateway takes no longer comment.
const MAX_TYPED: usize = 2000;

impl App {
    /// A key while something is asked at the bottom.
    pub(super) fn typed(&mut self, key: KeyEvent) -> Option<Action> {
        let prompt = self.prompt.as_mut()?;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (&prompt.ask, key.code) {
            (_, KeyCode::Esc) => self.prompt = None,
            (Ask::Unseen | Ask::WithoutPreview, code) => {
                self.prompt = None;
                if matches!(code, KeyCode::Char('y' | 'Y')) {
                    // It may have become another while it was asked.
                    let change = self.shown().ok()?;
                    return self.approve_shown(&change);
                }
            }
            (Ask::Settle, KeyCode::Char(c @ ('a' | 'f'))) => {
                self.prompt = Some(Prompt { ask: Ask::SettleComment { applied: c == 'a' }, text: String::new() });
            }
            (Ask::Settle, _) => {}
            (_, KeyCode::Enter) => return self.entered(),
            (_, KeyCode::Backspace) => {
                prompt.text.pop();
            }
            (_, KeyCode::Char('u')) if control => prompt.text.clear(),
            (_, KeyCode::Char('w')) if control => {
                let kept = prompt.text.trim_end().rfind(char::is_whitespace).map_or(0, |at| at + 1);
                prompt.text.truncate(kept);
            }
            (_, KeyCode::Char(c)) if !control => push(&mut prompt.text, c),
            _ => {}
        }
        None
    }

    /// Text that was pasted: on one line.
    pub fn pasted(&mut self, text: &str) {
        let Some(prompt) = self.prompt.as_mut() else { return };
        if !matches!(prompt.ask, Ask::Unseen | Ask::WithoutPreview | Ask::Settle) {
            text.chars().for_each(|c| push(&mut prompt.text, if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c }));
        }
    }

    fn entered(&mut self) -> Option<Action> {
        let Prompt { ask, text } = self.prompt.take()?;
        match ask {
            Ask::Search => {
                text.trim().clone_into(&mut self.search);
                self.reload()
            }
            Ask::Comment { verdict, many: true } => self.many(verdict, text),
            Ask::Comment { verdict, many: false } => {
                let change = self.shown().ok()?;
                if change.terms.require_comment && !says_something(&text) {
                    return self.again(Ask::Comment { verdict, many: false });
                }
                if verdict == Verdict::Approve {
                    self.approved_last = Some(change.id.clone());
                }
                Some(Self::decision(&change, verdict, &text))
            }
            Ask::SettleComment { applied } => {
                let change = self.shown().ok()?;
                let outcome = if applied { "applied" } else { "failed" };
                let comment = Some(text.trim()).filter(|c| !c.is_empty());
                let body = json!({ "outcome": outcome, "comment": comment, "version": change.version });
                Some(Action::on(&change.id, "settle", &body, "Settled"))
            }
            Ask::EditComment { id, version, arguments } => {
                let comment = json!(Some(text.trim()).filter(|c| !c.is_empty()));
                // As they were typed: a number with many digits must stay one.
                let body = format!("{{\"arguments\":{arguments},\"version\":{version},\"comment\":{comment}}}");
                let path = vec!["changes".into(), id, "edit".into()];
                Some(Action::Post { path, body, said: "Edited and previewed again; a approves what is shown now" })
            }
            Ask::Unseen | Ask::WithoutPreview | Ask::Settle => None,
        }
    }

    fn again(&mut self, ask: Ask) -> Option<Action> {
        self.say(Tone::Bad, "The rule requires a comment.");
        self.prompt = Some(Prompt { ask, text: String::new() });
        None
    }

    /// One decision on all that are selected; of each its own version and digest.
    fn many(&mut self, verdict: Verdict, text: String) -> Option<Action> {
        let chosen = self.chosen();
        let comment = Some(text.trim()).filter(|c| !c.is_empty());
        if comment.is_none() && chosen.iter().any(|b| b.terms.require_comment) {
            return self.again(Ask::Comment { verdict, many: true });
        }
        // It may have become another since the question.
        if verdict == Verdict::Approve && chosen.iter().any(|b| !self.opened_now(b)) {
            return self.approve_many();
        }
        let changes: Vec<_> =
            chosen.iter().take(100).map(|b| json!({ "id": b.id, "version": b.version, "digest": b.digest })).collect();
        if changes.is_empty() {
            return None;
        }
        let body = json!({ "decision": verdict, "comment": comment, "changes": changes }).to_string();
        Some(Action::Post { path: vec!["decisions".into()], body, said: "Decided" })
    }
}

fn push(text: &mut String, c: char) {
    if text.len() + c.len_utf8() <= MAX_TYPED && !c.is_control() {
        text.push(c);
    }
}

//! What a tool asks the client of its proposer while an approved change runs (elicitation, sampling, roots), where the
//! rule allows that ([`super::Terms::questions`]). Part of the change: a question is durable before its client sees it,
//! and an answer before the tool does, so that the trail tells what went into a call beside the approved arguments.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Questions of one change, answered or not.
pub const MAX_QUESTIONS: usize = 64;
/// Bytes of all questions and answers of one change.
pub const MAX_BYTES: usize = 1 << 20;

/// Who can be asked, and what was.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dialogue {
    /// The capabilities that the client declared and that count here, as a JSON object.
    pub client: Arc<RawValue>,
    /// Oldest first.
    #[serde(default)]
    pub questions: Vec<Question>,
    /// The client has taken its task back: whatever else is asked gets no answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub given_up: bool,
}

/// One thing that a tool asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// What its answer is known by: never used twice in a change.
    pub key: String,
    /// `elicitation/create`, `sampling/createMessage` or `roots/list`.
    pub method: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Arc<RawValue>>,
    pub at: Timestamp,
    /// Since when nobody need answer it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Timestamp>,
    /// What the client answered (a result object).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Arc<RawValue>>,
    /// Why there is no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<String>,
}

/// How a question ends: with an answer, or without one and why.
#[derive(Clone, Debug)]
pub struct ClosedQuestion {
    pub key: String,
    pub answer: Result<Arc<RawValue>, String>,
}

impl Question {
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.closed_at.is_none()
    }

    fn size(&self) -> usize {
        let raw = |raw: &Option<Arc<RawValue>>| raw.as_ref().map_or(0, |raw| raw.get().len());
        self.key.len() + self.method.len() + raw(&self.params) + raw(&self.answer)
    }
}

impl Dialogue {
    #[must_use]
    pub fn new(client: Arc<RawValue>) -> Self {
        Self { client, questions: Vec::new(), given_up: false }
    }

    /// Bytes of what was said so far.
    #[must_use]
    pub fn size(&self) -> usize {
        self.questions.iter().map(Question::size).sum()
    }

    /// Whether one more question of that size still fits.
    #[must_use]
    pub fn has_room_for_question(&self, bytes: usize) -> bool {
        self.questions.len() < MAX_QUESTIONS && self.size().saturating_add(bytes) <= MAX_BYTES
    }

    /// Whether answers of that size still fit.
    #[must_use]
    pub fn has_room_for_answers(&self, bytes: usize) -> bool {
        self.size().saturating_add(bytes) <= MAX_BYTES
    }

    /// What nobody has answered yet.
    pub fn open_questions(&self) -> impl Iterator<Item = &Question> {
        self.questions.iter().filter(|question| question.is_open())
    }

    /// Whether a question of that key was ever asked.
    #[must_use]
    pub fn has_question(&self, key: &str) -> bool {
        self.questions.iter().any(|question| question.key == key)
    }

    /// Ends questions; those that are not open stay as they are. How many were.
    pub(super) fn close(&mut self, closed: Vec<ClosedQuestion>, now: Timestamp) -> usize {
        let mut count = 0;
        for ClosedQuestion { key, answer } in closed {
            let Some(question) = self.questions.iter_mut().find(|q| q.key == key && q.is_open()) else { continue };
            question.closed_at = Some(now);
            match answer {
                Ok(answer) => question.answer = Some(answer),
                Err(why) => question.unanswered = Some(why),
            }
            count += 1;
        }
        count
    }

    /// Ends all that are open.
    pub(super) fn close_all(&mut self, why: &str, now: Timestamp) {
        for question in self.questions.iter_mut().filter(|question| question.is_open()) {
            question.closed_at = Some(now);
            question.unanswered = Some(why.to_owned());
        }
    }
}

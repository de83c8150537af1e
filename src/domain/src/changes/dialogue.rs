//! Questions that a tool asks its proposer's client while an approved change runs (elicitation, sampling, roots), if
//! the rule allows that ([`super::Terms::questions`]). They are part of the change: a question is durable before the
//! client sees it, and an answer before the tool does. The trail therefore shows all input of a call besides the
//! approved arguments.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// The maximum number of questions of one change, answered or not.
pub const MAX_QUESTIONS: usize = 64;
/// The maximum size of all questions and answers of one change, in bytes.
pub const MAX_DIALOGUE_BYTES: usize = 1 << 20;

/// The questions of a change and the client that can answer them.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Dialogue {
    /// The relevant capabilities that the client declared, as a JSON object.
    #[serde(rename = "client")]
    #[schema(value_type = Object)]
    pub client_capabilities: Arc<RawValue>,
    /// Oldest first.
    #[serde(default)]
    #[schema(required)]
    pub questions: Vec<Question>,
    /// The client cancelled its task, so further questions get no answer.
    #[serde(default, rename = "givenUp", skip_serializing_if = "std::ops::Not::not")]
    pub is_cancelled: bool,
}

/// A question that a tool asked.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The key that identifies its answer; unique within a change.
    pub key: String,
    /// `elicitation/create`, `sampling/createMessage` or `roots/list`.
    pub method: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub params: Option<Arc<RawValue>>,
    /// The time at which the tool asked.
    pub at: Timestamp,
    /// The time at which the question was closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Timestamp>,
    /// The client's answer (a result object).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub answer: Option<Arc<RawValue>>,
    /// The reason why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<String>,
}

/// The end of a question: an answer, or the reason why there is none.
#[derive(Clone, Debug)]
pub struct ClosedQuestion {
    pub key: String,
    pub answer: Result<Arc<RawValue>, String>,
}

impl Question {
    pub const fn is_open(&self) -> bool {
        self.closed_at.is_none()
    }

    fn size(&self) -> usize {
        let raw = |raw: &Option<Arc<RawValue>>| raw.as_ref().map_or(0, |raw| raw.get().len());
        self.key.len() + self.method.len() + raw(&self.params) + raw(&self.answer)
    }
}

impl Dialogue {
    pub fn new(client_capabilities: Arc<RawValue>) -> Self {
        Self { client_capabilities, questions: Vec::new(), is_cancelled: false }
    }

    /// Returns the bytes of all questions and answers.
    pub fn size(&self) -> usize {
        self.questions.iter().map(Question::size).sum()
    }

    /// Returns `true` if a further question of that size is within the limits.
    pub fn has_room_for_question(&self, bytes: usize) -> bool {
        self.questions.len() < MAX_QUESTIONS && self.size().saturating_add(bytes) <= MAX_DIALOGUE_BYTES
    }

    /// Returns `true` if answers of that size are within the limits.
    pub fn has_room_for_answers(&self, bytes: usize) -> bool {
        self.size().saturating_add(bytes) <= MAX_DIALOGUE_BYTES
    }

    /// Iterates over the questions that are still open.
    pub fn open_questions(&self) -> impl Iterator<Item = &Question> {
        self.questions.iter().filter(|question| question.is_open())
    }

    /// Returns `true` if a question with that key was asked.
    pub fn has_question(&self, key: &str) -> bool {
        self.questions.iter().any(|question| question.key == key)
    }

    /// Closes each question in `closed` that is still open, and returns their number.
    pub(super) fn close(&mut self, closed: Vec<ClosedQuestion>, now: Timestamp) -> usize {
        let mut count = 0;
        for ClosedQuestion { key, answer } in closed {
            let Some(question) = self.questions.iter_mut().find(|q| q.key == key && q.is_open()) else { continue };
            question.closed_at = Some(now);
            match answer {
                Ok(answer) => question.answer = Some(answer),
                Err(reason) => question.unanswered = Some(reason),
            }
            count += 1;
        }
        count
    }

    /// Closes all open questions without an answer.
    pub(super) fn close_all(&mut self, reason: &str, now: Timestamp) {
        for question in self.questions.iter_mut().filter(|question| question.is_open()) {
            question.closed_at = Some(now);
            question.unanswered = Some(reason.to_owned());
        }
    }
}

//! Questions that the tool of a running change asks the proposer's client, if the rule allows them (`questions: ask`). A
//! question is durable before a client sees it, and an answer is durable before the tool gets it. After
//! [`crate::ReviewTuning::answer_timeout`] a question ends without an answer, and the tool decides what that means.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use serde_json::value::RawValue;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    dialogue_channels::{DialogueAnswer, DialogueMessage, PendingMessage},
    review_core::ReviewCore,
};
use countersign_domain::{
    changes::{
        Change, Dialogue,
        dialogue::{ClosedQuestion, Question},
        machine::ChangeEvent,
    },
    questions::{ELICITATION, elicitation::params_for_client},
};
use countersign_protocol::{
    ErrorKind, McpError, RequestId, Revision, json::string, negotiate::ClientCapabilities, rpc_error::RpcError,
};
use countersign_provider::{
    Inquirer, question_channel,
    request::{Replier, UpstreamRequest},
};

/// The maximum number of questions of one change that wait for the Executor.
const QUESTION_QUEUE_CAPACITY: usize = 64;
/// The longest key of a question, in bytes; a longer one is replaced.
const MAX_KEY_BYTES: usize = 128;
/// The time after the start of a call in which questions may be open, in multiples of the timeout of one answer.
const DIALOGUE_TIMEOUT_FACTOR: u32 = 6;
/// The reasons why questions get no answer after the end of the dialogue.
const CANCELLED_REASON: &str = "its client has cancelled the task";
const STOPPING_REASON: &str = "the gateway is stopping";

struct OpenQuestion {
    key: String,
    method: String,
    reply: Replier,
    cancelled: CancellationToken,
    deadline: Instant,
}

/// An event in the dialogue of a running change.
pub(crate) enum DialogueEvent {
    Question(UpstreamRequest),
    Message(PendingMessage),
    /// A question has timed out, or its tool has withdrawn it.
    QuestionEnded,
    Stopping,
}

/// The questions of one running change.
pub(crate) struct RunningDialogue<'a> {
    core: &'a ReviewCore,
    /// The change as last stored.
    pub change: Arc<Change>,
    questions: mpsc::Receiver<UpstreamRequest>,
    messages: mpsc::Receiver<PendingMessage>,
    open: Vec<OpenQuestion>,
    /// The time after which no question stays open.
    dialogue_deadline: Instant,
    paused_since: Option<Instant>,
    is_stopping: bool,
}

impl Drop for RunningDialogue<'_> {
    fn drop(&mut self) {
        self.core.dialogue_channels.close(&self.change.id);
    }
}

impl<'a> RunningDialogue<'a> {
    /// Starts the dialogue. Returns `None` for a change whose tool may not ask.
    pub(crate) fn start(core: &'a ReviewCore, change: &Arc<Change>) -> Option<(Arc<dyn Inquirer>, Self)> {
        let dialogue = change.dialogue.as_ref()?;
        let capabilities = ClientCapabilities::from_declaration(dialogue.client_capabilities.get());
        if capabilities.accepts_no_requests() {
            return None;
        }
        let (inquirer, questions) = question_channel(capabilities, QUESTION_QUEUE_CAPACITY);
        let messages = core.dialogue_channels.open(&change.id);
        let running_dialogue = Self {
            core,
            change: Arc::clone(change),
            questions,
            messages,
            open: Vec::new(),
            dialogue_deadline: Instant::now()
                + core.repository.config.tuning.answer_timeout.saturating_mul(DIALOGUE_TIMEOUT_FACTOR),
            paused_since: None,
            is_stopping: false,
        };
        Some((inquirer, running_dialogue))
    }

    /// Returns `true` while the call waits for an answer; its timeout is paused then.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.open.is_empty()
    }

    /// Waits for the next event. Cancel-safe.
    pub(crate) async fn next(&mut self) -> DialogueEvent {
        let ends = self.open.iter().map(|open| timeout_at(open.deadline, open.cancelled.cancelled()));
        let mut ends: FuturesUnordered<_> = ends.collect();
        tokio::select! {
            Some(question) = self.questions.recv() => DialogueEvent::Question(question),
            Some(message) = self.messages.recv() => DialogueEvent::Message(message),
            Some(_) = ends.next() => DialogueEvent::QuestionEnded,
            () = self.core.repository.shutdown.stop.cancelled(), if !self.is_stopping => DialogueEvent::Stopping,
            else => std::future::pending().await,
        }
    }

    /// Handles an event completely and stores the result. Returns how long the call was paused if it continues now.
    pub(crate) async fn handle(&mut self, event: DialogueEvent) -> Duration {
        match event {
            DialogueEvent::Question(question) => self.store_question(question).await,
            DialogueEvent::Message((message, reply)) => {
                let stored = match message {
                    DialogueMessage::Answers { by, answers } => self.store_answers(by, answers).await,
                    DialogueMessage::Cancel { by } => {
                        self.close_questions(Some(by), |_| Some(Err(CANCELLED_REASON.to_owned())), true).await
                    }
                };
                let _ = reply.send(stored);
            }
            DialogueEvent::QuestionEnded => {
                let now = Instant::now();
                let reason = |open: &OpenQuestion| match open.cancelled.is_cancelled() {
                    true => Some("the tool withdrew its question"),
                    false => (open.deadline <= now).then_some("nobody answered in time"),
                };
                let _ = self.close_questions(None, |open| Some(Err(reason(open)?.to_owned())), false).await;
            }
            DialogueEvent::Stopping => {
                self.is_stopping = true;
                let _ = self.close_questions(None, |_| Some(Err(STOPPING_REASON.to_owned())), false).await;
            }
        }
        match (self.is_waiting(), self.paused_since) {
            (true, None) => self.paused_since = Some(Instant::now()),
            (false, Some(since)) => {
                self.paused_since = None;
                return since.elapsed();
            }
            _ => {}
        }
        Duration::ZERO
    }

    fn dialogue(&self) -> Option<&Dialogue> {
        self.change.dialogue.as_ref()
    }

    async fn store_question(&mut self, question: UpstreamRequest) {
        let UpstreamRequest { id, method, params, reply, cancelled } = question;
        let refuse = |reply: Replier, reason: &str| reply.answer(no_answer(&method, reason));
        let Some(dialogue) = self.dialogue() else { return };
        if dialogue.is_cancelled {
            return refuse(reply, CANCELLED_REASON);
        }
        if self.is_stopping {
            return refuse(reply, STOPPING_REASON);
        }
        let key = question_key(dialogue, &id);
        let params = params.as_deref().map(RawValue::get);
        let params = params_for_client(&self.change.provider, &method, params, Revision::MODERN, None);
        let params = match params.map(RawValue::from_string).transpose() {
            Ok(params) => params.map(Arc::from),
            Err(_) => return refuse(reply, "the question is not JSON"),
        };
        let size = key.len() + method.len() + params.as_ref().map_or(0, |params: &Arc<RawValue>| params.get().len());
        if !dialogue.has_room_for_question(size) {
            tracing::warn!(change = %self.change.id, "the tool of a running change asked more questions than a change may store");
            return refuse(reply, "the tool asked more questions than a change can store");
        }
        let stored = Question {
            key: key.clone(),
            method: method.clone(),
            params,
            at: self.core.repository.config.now(),
            closed_at: None,
            answer: None,
            unanswered: None,
        };
        if self.apply_event(ChangeEvent::Ask { question: stored }).await.is_err() {
            return refuse(reply, "the question could not be stored");
        }
        let deadline = (Instant::now() + self.core.repository.config.tuning.answer_timeout).min(self.dialogue_deadline);
        self.open.push(OpenQuestion { key, method, reply, cancelled, deadline });
    }

    async fn store_answers(&mut self, by: String, answers: Vec<(String, DialogueAnswer)>) -> Result<(), McpError> {
        let answers: Vec<_> =
            answers.into_iter().filter(|(key, _)| self.open.iter().any(|open| open.key == *key)).collect();
        let size: usize =
            answers.iter().map(|(_, answer)| answer.as_ref().map_or(0, |answer| answer.get().len())).sum();
        if size > 0 && !self.dialogue().is_some_and(|dialogue| dialogue.has_room_for_answers(size)) {
            return Err(McpError::new(ErrorKind::TooLarge, "The answers are larger than a change can store")
                .with("limit", countersign_domain::changes::dialogue::MAX_DIALOGUE_BYTES));
        }
        let answer_for = |open: &OpenQuestion| {
            let found = answers.iter().find(|(key, _)| *key == open.key);
            found.map(|(_, answer)| answer.clone())
        };
        self.close_questions(Some(by), answer_for, false).await
    }

    /// Closes the questions for which `answer_for` returns an answer or a reason: first in the store, then for the tool. If
    /// `is_cancelled` is set, later questions get no answer either.
    async fn close_questions(
        &mut self,
        by: Option<String>,
        answer_for: impl Fn(&OpenQuestion) -> Option<DialogueAnswer>,
        is_cancelled: bool,
    ) -> Result<(), McpError> {
        let (mut closed, mut replies, mut open) = (Vec::new(), Vec::new(), Vec::new());
        for question in std::mem::take(&mut self.open) {
            match answer_for(&question) {
                Some(answer) => {
                    closed.push(ClosedQuestion { key: question.key.clone(), answer: answer.clone() });
                    replies.push((question, answer));
                }
                None => open.push(question),
            }
        }
        self.open = open;
        if closed.is_empty() && !(is_cancelled && self.dialogue().is_some_and(|dialogue| !dialogue.is_cancelled)) {
            return Ok(());
        }
        let stored = self.apply_event(ChangeEvent::Answer { answered_by: by, closed, is_cancelled }).await;
        for (question, answer) in replies {
            question.reply.answer(match (&stored, answer) {
                (Ok(()), Ok(answer)) => Ok((*answer).to_owned()),
                (Ok(()), Err(reason)) => no_answer(&question.method, &reason),
                // An answer that is not in the audit trail must not reach the tool.
                (Err(_), _) => no_answer(&question.method, "its answer could not be stored"),
            });
        }
        stored
    }

    async fn apply_event(&mut self, event: ChangeEvent) -> Result<(), McpError> {
        let subject = match event {
            ChangeEvent::Ask { .. } => "question",
            ChangeEvent::Answer { is_cancelled: true, .. } => "cancellation",
            _ => "answer",
        };
        match self.core.repository.transitions.apply_event(&self.change, event).await {
            Ok(change) => {
                self.change = change;
                Ok(())
            }
            Err(error) => {
                tracing::error!(?error, change = %self.change.id, "the {subject} in the dialogue of a running change could not be stored");
                if let Ok(Some(change)) = self.core.repository.store.get(&self.change.id).await {
                    self.change = change;
                }
                let message = format!("The {subject} could not be stored; it was not used");
                Err(McpError::new(ErrorKind::StoreUnavailable, message))
            }
        }
    }
}

/// Returns the reply to a question without an answer: an elicitation counts as dismissed
/// (2025-11-25/client/elicitation, "Response Actions"); sampling fails, since a model's text cannot be made up.
fn no_answer(method: &str, reason: &str) -> Result<Box<RawValue>, RpcError> {
    if method == ELICITATION {
        return RawValue::from_string(r#"{"action":"cancel"}"#.to_owned())
            .map_err(|e| RpcError::new(-32603, e.to_string()));
    }
    Err(RpcError::new(-32603, format!("the client did not answer: {reason}")))
}

/// Derives a question's key from its request id, or generates one if the id was already used.
fn question_key(dialogue: &Dialogue, id: &RequestId) -> String {
    let mut key = string(id.as_json()).map_or_else(|| id.as_json().to_owned(), std::borrow::Cow::into_owned);
    if key.is_empty() || key.len() > MAX_KEY_BYTES || dialogue.has_question(&key) {
        key = nanoid::nanoid!(24);
    }
    key
}

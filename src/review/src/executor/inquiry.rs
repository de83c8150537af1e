//! What a running change's tool asks the client of its proposer, where the rule has that (`questions: ask`). A question
//! is durable before anybody can see it, an answer before the tool gets it. Nobody needs to be there: after
//! [`crate::PendingConfig::answer_timeout`] a question ends without an answer, and the tool decides what that means.

use std::{sync::Arc, time::Duration};

use futures_util::future::select_all;
use serde_json::value::RawValue;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    inner::Inner,
    inquiries::{Heard, Said, Word},
};
use countersign_domain::{
    changes::{
        Change, Dialogue,
        dialogue::{Closed, Question},
        machine::ChangeEvent,
    },
    questions::{ELICITATION, elicitation::asked_by, may_ask},
};
use countersign_protocol::{
    ErrorKind, McpError, RequestId, Revision, capabilities::ClientCapabilities, json::string, rpc_error::RpcError,
};
use countersign_provider::{
    Inquirer,
    request::{Replier, UpstreamRequest},
};

/// Questions of one change that wait for the Executor.
const QUEUE: usize = 64;
/// The longest key of a question, in bytes; what is longer gets another name.
const MAX_KEY: usize = 128;
/// A change waits for answers so many times the time for one, in all.
const STRETCH: u32 = 6;

/// The tool's side.
struct Asker {
    capabilities: ClientCapabilities,
    questions: mpsc::Sender<UpstreamRequest>,
}

impl Inquirer for Asker {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    fn ask(&self, question: UpstreamRequest) {
        if let Err(refused) =
            may_ask(&self.capabilities, &question.method, question.params.as_deref().map(RawValue::get))
        {
            return question.reply.answer(Err(refused));
        }
        // Dropped, it declines.
        let _ = self.questions.try_send(question);
    }
}

struct Open {
    key: String,
    method: String,
    reply: Replier,
    cancelled: CancellationToken,
    until: Instant,
}

/// What happens to questions.
pub(crate) enum Happened {
    Asked(UpstreamRequest),
    Said(Heard),
    TooLong,
    TakenBack,
    Stopping,
}

/// The questions of one running change.
pub(crate) struct Inquiry<'a> {
    inner: &'a Inner,
    /// As it was stored last.
    pub change: Arc<Change>,
    questions: mpsc::Receiver<UpstreamRequest>,
    words: mpsc::Receiver<Heard>,
    open: Vec<Open>,
    /// When all of it ends.
    end: Instant,
    stands_since: Option<Instant>,
    stopped: bool,
}

impl Drop for Inquiry<'_> {
    fn drop(&mut self) {
        self.inner.inquiries.close(&self.change.id);
    }
}

impl<'a> Inquiry<'a> {
    /// `None` for a change that may not ask.
    pub(crate) fn of(inner: &'a Inner, change: &Arc<Change>) -> Option<(Arc<dyn Inquirer>, Self)> {
        let dialogue = change.dialogue.as_ref()?;
        let capabilities = ClientCapabilities::declared(dialogue.client.get());
        if capabilities.asks_nothing() {
            return None;
        }
        let (asking, questions) = mpsc::channel(QUEUE);
        let words = inner.inquiries.open(&change.id);
        let inquiry = Self {
            inner,
            change: Arc::clone(change),
            questions,
            words,
            open: Vec::new(),
            end: Instant::now() + inner.config.answer_timeout.saturating_mul(STRETCH),
            stands_since: None,
            stopped: false,
        };
        Some((Arc::new(Asker { capabilities, questions: asking }), inquiry))
    }

    /// Whether the call waits for an answer: its time stands still.
    pub(crate) fn waits(&self) -> bool {
        !self.open.is_empty()
    }

    /// What happens next. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Happened {
        let due = self.open.iter().map(|open| open.until).min();
        let tokens: Vec<_> = self.open.iter().map(|open| Box::pin(open.cancelled.clone().cancelled_owned())).collect();
        let taken_back = async {
            match tokens.is_empty() {
                true => std::future::pending::<()>().await,
                false => drop(select_all(tokens).await),
            }
        };
        tokio::select! {
            Some(question) = self.questions.recv() => Happened::Asked(question),
            Some(said) = self.words.recv() => Happened::Said(said),
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Happened::TooLong,
            () = taken_back => Happened::TakenBack,
            () = self.inner.stop.cancelled(), if !self.stopped => Happened::Stopping,
        }
    }

    /// Acts on it, to its end: what it stores is stored. How long the call has stood still, when it goes on.
    pub(crate) async fn take(&mut self, happened: Happened) -> Duration {
        match happened {
            Happened::Asked(question) => self.asked(question).await,
            Happened::Said((Word::Answers { by, answers }, done)) => {
                let heard = self.answered(by, answers).await;
                let _ = done.send(heard);
            }
            Happened::Said((Word::GiveUp { by }, done)) => {
                let why = "its client has cancelled the task";
                let heard = self.close(Some(by), |_| Some(Err(why.to_owned())), true).await;
                let _ = done.send(heard);
            }
            Happened::TooLong => {
                let now = Instant::now();
                let late = |open: &Open| (open.until <= now).then(|| Err("nobody answered in time".to_owned()));
                let _ = self.close(None, late, false).await;
            }
            Happened::TakenBack => {
                let back = |open: &Open| {
                    open.cancelled.is_cancelled().then(|| Err("the tool withdrew its question".to_owned()))
                };
                let _ = self.close(None, back, false).await;
            }
            Happened::Stopping => {
                self.stopped = true;
                if self.waits() {
                    let _ = self.close(None, |_| Some(Err("the gateway is stopping".to_owned())), false).await;
                }
            }
        }
        match (self.waits(), self.stands_since) {
            (true, None) => self.stands_since = Some(Instant::now()),
            (false, Some(since)) => {
                self.stands_since = None;
                return since.elapsed();
            }
            _ => {}
        }
        Duration::ZERO
    }

    fn dialogue(&self) -> Option<&Dialogue> {
        self.change.dialogue.as_ref()
    }

    async fn asked(&mut self, question: UpstreamRequest) {
        let UpstreamRequest { id, method, params, reply, cancelled } = question;
        let refuse = |reply: Replier, why: &str| reply.answer(nothing(&method, why));
        let Some(dialogue) = self.dialogue() else { return };
        if dialogue.given_up || self.stopped {
            return refuse(reply, "its client has cancelled the task");
        }
        let key = key(dialogue, &id);
        let params = params.as_deref().map(RawValue::get);
        let params = asked_by(&self.change.provider, &method, params, Revision::MODERN, None);
        let params = match params.map(RawValue::from_string).transpose() {
            Ok(params) => params.map(Arc::from),
            Err(_) => return refuse(reply, "the question is not JSON"),
        };
        let size = key.len() + method.len() + params.as_ref().map_or(0, |params: &Arc<RawValue>| params.get().len());
        if !dialogue.has_room_for(size) {
            tracing::warn!(change = %self.change.id, "the tool of a running change asks for more than a change may keep");
            return refuse(reply, "the tool asked for more than a change may keep");
        }
        let stored = Question {
            key: key.clone(),
            method: method.clone(),
            params,
            at: self.inner.now(),
            closed_at: None,
            answer: None,
            unanswered: None,
        };
        if self.step(ChangeEvent::Ask { question: stored }).await.is_err() {
            return refuse(reply, "the question could not be stored");
        }
        let until = (Instant::now() + self.inner.config.answer_timeout).min(self.end);
        self.open.push(Open { key, method, reply, cancelled, until });
    }

    async fn answered(&mut self, by: String, answers: Vec<(String, Said)>) -> Result<(), McpError> {
        let answers: Vec<_> =
            answers.into_iter().filter(|(key, _)| self.open.iter().any(|open| open.key == *key)).collect();
        let size: usize = answers.iter().map(|(_, said)| said.as_ref().map_or(0, |answer| answer.get().len())).sum();
        if size > 0 && !self.dialogue().is_some_and(|dialogue| dialogue.has_answer_room(size)) {
            return Err(McpError::new(ErrorKind::TooLarge, "The answers are larger than a change may keep")
                .with("limit", countersign_domain::changes::dialogue::MAX_BYTES));
        }
        let answer = |open: &Open| {
            let found = answers.iter().find(|(key, _)| *key == open.key);
            found.map(|(_, said)| said.clone())
        };
        self.close(Some(by), answer, false).await
    }

    /// Ends the questions that `how` has an end for: durably, and then for the tool.
    async fn close(
        &mut self,
        by: Option<String>,
        how: impl Fn(&Open) -> Option<Result<Arc<RawValue>, String>>,
        given_up: bool,
    ) -> Result<(), McpError> {
        let (mut closed, mut replies, mut open) = (Vec::new(), Vec::new(), Vec::new());
        for question in std::mem::take(&mut self.open) {
            match how(&question) {
                Some(answer) => {
                    closed.push(Closed { key: question.key.clone(), answer: answer.clone() });
                    replies.push((question, answer));
                }
                None => open.push(question),
            }
        }
        self.open = open;
        if closed.is_empty() && !(given_up && self.dialogue().is_some_and(|dialogue| !dialogue.given_up)) {
            return Ok(());
        }
        let stored = self.step(ChangeEvent::Answer { by, closed, given_up }).await;
        for (question, answer) in replies {
            question.reply.answer(match (&stored, answer) {
                (Ok(()), Ok(answer)) => Ok((*answer).to_owned()),
                (Ok(()), Err(why)) => nothing(&question.method, &why),
                // What is not in the trail does not go into a call.
                (Err(_), _) => nothing(&question.method, "its answer could not be stored"),
            });
        }
        stored
    }

    async fn step(&mut self, event: ChangeEvent) -> Result<(), McpError> {
        match self.inner.step(&self.change, event, None).await {
            Ok(change) => {
                self.change = change;
                Ok(())
            }
            Err(error) => {
                tracing::error!(?error, change = %self.change.id, "a question of a running change could not be stored");
                if let Ok(Some(change)) = self.inner.store.get(&self.change.id).await {
                    self.change = change;
                }
                Err(McpError::new(ErrorKind::StoreUnavailable, "The answer could not be stored; it was not used"))
            }
        }
    }
}

/// What a tool gets in the place of an answer: a dialogue that nobody answered is one that was dismissed
/// (2025-11-25/client/elicitation, "Response Actions"); a model's text cannot be made up.
fn nothing(method: &str, why: &str) -> Result<Box<RawValue>, RpcError> {
    if method == ELICITATION {
        return RawValue::from_string(r#"{"action":"cancel"}"#.to_owned())
            .map_err(|e| RpcError::new(-32603, e.to_string()));
    }
    Err(RpcError::new(-32603, format!("the client did not answer: {why}")))
}

/// A question has no name but its id; one that was used already gets another.
fn key(dialogue: &Dialogue, id: &RequestId) -> String {
    let mut key = string(id.as_json()).map_or_else(|| id.as_json().to_owned(), std::borrow::Cow::into_owned);
    if key.is_empty() || key.len() > MAX_KEY || dialogue.has(&key) {
        key = nanoid::nanoid!(24);
    }
    key
}

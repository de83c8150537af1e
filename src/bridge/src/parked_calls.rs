//! Calls that go on at a handshake-era upstream while their stateless clients are asked for input
//! (2026-07-28/basic/patterns/mrtr; 2025-11-25/client/*).
//!
//! The retry may come in on another thread: it meets the call through channels. A call is never made twice: what cannot
//! be taken up again is an error that says so.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use serde_json::{json, value::RawValue};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    questions::{
        self,
        relay::{DeclinedQuestions, Hearer, Relay},
    },
    request_state::{Binding, StateKind, StateSealer, refused},
};
use countersign_protocol::{
    ErrorKind, McpError, RequestId,
    capabilities::ClientCapabilities,
    json::{members, string},
};
use countersign_provider::request::{Replier, UpstreamRequest};
use countersign_upstream::Response;

/// The time that a parked call waits for its client.
const MAX_CLIENT_WAIT: Duration = Duration::from_secs(300);

/// Parked calls of one principal at most.
const MAX_PER_PRINCIPAL: usize = 8;

/// The time to wait for further questions after one, so that they reach the client together.
const QUESTION_GATHER_TIME: Duration = Duration::from_millis(30);

/// For a client that comes back too late.
#[must_use]
pub fn ended() -> McpError {
    refused("the call has ended (a client has 5 minutes to answer), and its outcome is unknown")
}

/// Answers by the names of their questions.
pub type Answers = HashMap<String, Box<RawValue>>;

/// The answers and the state that a request carries in addition to its own parameters.
#[derive(Debug, Default)]
pub struct Input {
    pub answers: Answers,
    pub state: Option<String>,
}

impl Input {
    /// # Errors
    /// `-32602` for what cannot be read.
    pub fn parse(params: &str) -> Result<Self, McpError> {
        let invalid = |member: &str, what: &str| {
            Err(McpError::new(ErrorKind::InvalidParams, format!("`params.{member}` {what}")).with("member", member))
        };
        let mut input = Self::default();
        for found in members(params) {
            match found.key.as_ref() {
                "requestState" if input.state.is_some() => return invalid("requestState", "is given more than once"),
                "requestState" => match string(found.value) {
                    Some(state) => input.state = Some(state.into_owned()),
                    None => return invalid("requestState", "must be a string"),
                },
                "inputResponses" if !found.value.starts_with('{') => {
                    return invalid("inputResponses", "must be an object");
                }
                "inputResponses" => {
                    // What is no object is no answer: its question is asked again.
                    for answer in members(found.value).filter(|answer| answer.value.starts_with('{')) {
                        if let Ok(value) = RawValue::from_string(answer.value.to_owned()) {
                            input.answers.insert(answer.key.into_owned(), value);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(input)
    }
}

/// A question as the client gets it.
#[derive(Clone, Debug)]
pub struct ClientQuestion {
    pub key: String,
    pub method: String,
    pub params: Option<String>,
}

/// The next event of a call.
pub enum Event {
    Done(Result<Response, McpError>),
    Input(Vec<ClientQuestion>),
}

/// An upstream's question that has no answer yet.
struct OpenQuestion {
    asked: ClientQuestion,
    reply: Replier,
    cancelled: CancellationToken,
}

/// A call on its way. Dropped, it is cancelled at the upstream, and its questions are declined.
pub struct RunningCall {
    work: LocalBoxFuture<'static, Result<Response, McpError>>,
    requests: mpsc::Receiver<UpstreamRequest>,
    capabilities: ClientCapabilities,
    /// The client's own declaration as JSON text. `capabilities` may be a part of it.
    declared: Arc<str>,
    /// The name of the upstream that asks.
    server: String,
    declined: DeclinedQuestions,
    open: Vec<OpenQuestion>,
    outcome: Option<Result<Response, McpError>>,
    finished: bool,
    /// Answers that the client brought before they were asked for.
    ahead: Answers,
}

impl RunningCall {
    /// `work` is the call, and `requests` what its upstream asks meanwhile.
    #[must_use]
    pub fn new(
        work: LocalBoxFuture<'static, Result<Response, McpError>>,
        requests: mpsc::Receiver<UpstreamRequest>,
        capabilities: ClientCapabilities,
        declared: Arc<str>,
        server: String,
        ahead: Answers,
    ) -> Self {
        let (declined, open) = (DeclinedQuestions::default(), Vec::new());
        Self { work, requests, capabilities, declared, server, declined, open, outcome: None, finished: false, ahead }
    }

    /// Goes on until the call ends or there is something to ask.
    pub async fn advance(&mut self) -> Event {
        loop {
            if let Some(outcome) = self.outcome.take() {
                return Event::Done(outcome);
            }
            if !self.open_questions().is_empty() {
                break;
            }
            self.step().await;
        }
        let mut gathered = std::pin::pin!(tokio::time::sleep(QUESTION_GATHER_TIME));
        loop {
            tokio::select! {
                () = &mut gathered => break,
                () = self.step() => {}
            }
            if let Some(outcome) = self.outcome.take() {
                return Event::Done(outcome);
            }
        }
        match self.open_questions() {
            // All taken back meanwhile.
            asked if asked.is_empty() => Box::pin(self.advance()).await,
            asked => Event::Input(asked),
        }
    }

    /// Returns the questions that are open now.
    fn open_questions(&mut self) -> Vec<ClientQuestion> {
        self.open.retain(|question| !question.cancelled.is_cancelled());
        self.open.iter().map(|question| question.asked.clone()).collect()
    }

    /// One thing that happens: the call ends, or a question comes.
    async fn step(&mut self) {
        tokio::select! {
            biased;
            outcome = &mut self.work, if !self.finished => {
                self.finished = true;
                // What it asked just before counts.
                while let Ok(request) = self.requests.try_recv() {
                    self.take(request);
                }
                self.outcome = Some(outcome.and_then(|response| {
                    match self.declined.missing(&response, &self.declared, &self.server) {
                        Some(error) => Err(error),
                        None => Ok(response),
                    }
                }));
            }
            Some(request) = self.requests.recv() => self.take(request),
            else => std::future::pending().await,
        }
    }

    fn take(&mut self, request: UpstreamRequest) {
        let UpstreamRequest { id, method, params, reply, cancelled } = request;
        if let Err(refused) =
            questions::check_capabilities(&self.capabilities, &method, params.as_deref().map(RawValue::get))
        {
            self.declined.note(&method, params);
            return reply.answer(Err(refused));
        }
        let (key, named) = self.key(&id);
        // Numbers say nothing of what they ask; names may be known from an earlier call.
        if let Some(answer) = named.then(|| self.ahead.remove(&key)).flatten() {
            return reply.answer(Ok(answer));
        }
        let params = params.as_deref().map(RawValue::get);
        let params =
            questions::params_for_client(&self.server, &method, params, countersign_protocol::Revision::MODERN, None);
        self.open.push(OpenQuestion { asked: ClientQuestion { key, method, params }, reply, cancelled });
    }

    /// A question has no name but its id; whether it is one.
    fn key(&self, id: &RequestId) -> (String, bool) {
        let (mut key, named) = match string(id.as_json()) {
            Some(text) => (text.into_owned(), true),
            None => (id.as_json().to_owned(), false),
        };
        while self.open.iter().any(|question| question.asked.key == key) {
            key.push('\'');
        }
        (key, named)
    }

    fn answer(&mut self, mut answers: Answers) {
        let mut open = Vec::new();
        for question in std::mem::take(&mut self.open) {
            match answers.remove(&question.asked.key) {
                Some(answer) => question.reply.answer(Ok(answer)),
                None => open.push(question),
            }
        }
        self.open = open;
    }
}

/// A client that has come back for its call.
pub struct Resume {
    pub answers: Answers,
    pub hearer: Hearer,
    /// Gets what happened next and the ticket for the resume after it.
    pub reply: oneshot::Sender<(Event, u64)>,
}

/// Keeps a parked call until its client has its result, gives it up, or does not come.
pub async fn keep(
    mut running_call: RunningCall,
    relay: Arc<Relay>,
    mut place: Slot,
    mut resumes: mpsc::Receiver<Resume>,
) {
    loop {
        let mut patience = std::pin::pin!(tokio::time::sleep_until(place.deadline));
        let resume = loop {
            tokio::select! {
                biased;
                resume = resumes.recv() => break resume,
                () = &mut patience => {
                    tracing::debug!("a parked call was not resumed in time and is cancelled");
                    return;
                }
                () = place.given_up.cancelled() => {
                    tracing::debug!("a parked call is cancelled to make room for another");
                    return;
                }
                // It may end, or ask more, while nobody is there.
                () = running_call.step() => {}
            }
        };
        let Some(Resume { answers, hearer, mut reply }) = resume else { return };
        let before = running_call.open.len();
        running_call.answer(answers);
        let answered = before == 0 || running_call.open.len() < before;
        let event = if running_call.outcome.is_none() && !running_call.open_questions().is_empty() {
            // Incomplete: the rest is asked again.
            Event::Input(running_call.open_questions())
        } else {
            relay.turn_to(Some(hearer));
            let event = tokio::select! {
                event = running_call.advance() => event,
                // The stream of the retry was closed: that cancels the call (2026-07-28/basic/patterns/cancellation).
                () = reply.closed() => return,
            };
            relay.turn_to(None);
            event
        };
        let done = matches!(event, Event::Done(_));
        place.renew(answered);
        if reply.send((event, place.claim.ticket)).is_err() || done {
            return;
        }
    }
}

/// The parked call that a `requestState` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub call: CallId,
    /// Each is good once.
    pub ticket: u64,
}

type CallId = [u8; 16];

/// All parked calls of the process.
pub struct ParkedCalls {
    carrier: Arc<StateSealer>,
    /// The name of this gateway, if several serve its store.
    node: Option<String>,
    /// Distinguishes this process from earlier ones with the same key.
    run: [u8; 16],
    calls: Mutex<HashMap<CallId, ParkedCall>>,
    parked: AtomicU64,
}

struct ParkedCall {
    principal: String,
    upstream: String,
    /// They count up.
    number: u64,
    given_up: CancellationToken,
    resumes: mpsc::Sender<Resume>,
    /// The one that is good now; none while its client is there.
    ticket: Option<u64>,
}

impl ParkedCalls {
    #[must_use]
    pub fn new(node: Option<String>, carrier: Arc<StateSealer>) -> Arc<Self> {
        let (run, calls) = (*uuid::Uuid::new_v4().as_bytes(), Mutex::default());
        Arc::new(Self { carrier, node, run, calls, parked: AtomicU64::new(0) })
    }

    /// Calls that are parked now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.lock().len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `requestState` with which that call is taken up, once, by who brings the same request. Where there may be several
    /// gateways it begins with the name of this one and a dot: the call waits here.
    ///
    /// # Errors
    /// `INTERNAL_ERROR` where no random numbers are to be had.
    pub fn state(&self, claim: Claim, binding: &Binding) -> Result<String, McpError> {
        let claim = json!([self.run, claim.call, claim.ticket]).to_string();
        let sealed = self.carrier.seal(StateKind::ParkedCall, &claim, binding)?;
        Ok(match &self.node {
            Some(node) => format!("{node}.{sealed}"),
            None => sealed,
        })
    }

    /// Returns the claim in a state.
    ///
    /// # Errors
    /// `-32602` for one that was not given for this request.
    pub fn open(&self, state: &str, binding: &Binding) -> Result<Claim, McpError> {
        let named = self.node.as_ref().and_then(|node| state.strip_prefix(node.as_str())?.strip_prefix('.'));
        let claim = self.carrier.open(StateKind::ParkedCall, named.unwrap_or(state), binding)?;
        let (run, call, ticket): ([u8; 16], _, _) =
            serde_json::from_str(&claim).map_err(|_| refused("it names no call"))?;
        if run != self.run {
            return Err(refused("the gateway has been restarted, and the outcome of the call is unknown"));
        }
        Ok(Claim { call, ticket })
    }

    /// A place for one more. Beyond `most` at this upstream the oldest of them ends that nobody is there for.
    ///
    /// # Errors
    /// `OVERLOADED` for one too many of its principal.
    pub fn admit(
        self: &Arc<Self>,
        principal: &str,
        upstream: &str,
        most: usize,
    ) -> Result<(Slot, mpsc::Receiver<Resume>), McpError> {
        let call = *uuid::Uuid::new_v4().as_bytes();
        let mut calls = self.calls.lock();
        let here = |parked: &ParkedCall| parked.principal == principal && parked.upstream == upstream;
        if calls.values().filter(|parked| here(parked)).count() >= most {
            let idle = calls.iter().filter(|(_, parked)| here(parked) && parked.ticket.is_some());
            let oldest = idle.min_by_key(|(_, parked)| parked.number).map(|(call, _)| *call);
            if let Some(oldest) = oldest.and_then(|call| calls.remove(&call)) {
                oldest.given_up.cancel();
            }
        }
        if calls.values().filter(|parked| parked.principal == principal).count() >= MAX_PER_PRINCIPAL {
            let why = "too many calls wait for input already; answer one or let it expire";
            return Err(McpError::new(ErrorKind::Overloaded, why).with("limit", MAX_PER_PRINCIPAL));
        }
        let (resumes, receiver) = mpsc::channel(1);
        let given_up = CancellationToken::new();
        let parked = ParkedCall {
            principal: principal.to_owned(),
            upstream: upstream.to_owned(),
            number: self.parked.fetch_add(1, Ordering::Relaxed),
            given_up: given_up.clone(),
            resumes,
            ticket: Some(1),
        };
        calls.insert(call, parked);
        let deadline = tokio::time::Instant::now() + MAX_CLIENT_WAIT;
        Ok((Slot { parked_calls: Arc::clone(self), claim: Claim { call, ticket: 1 }, deadline, given_up }, receiver))
    }

    /// Takes a ticket, which is good once.
    ///
    /// # Errors
    /// `-32602` for one that is not good any more.
    pub fn redeem(&self, claim: &Claim) -> Result<mpsc::Sender<Resume>, McpError> {
        let mut calls = self.calls.lock();
        let parked = calls.get_mut(&claim.call).ok_or_else(ended)?;
        if parked.ticket != Some(claim.ticket) {
            return Err(refused("it has been used already"));
        }
        parked.ticket = None;
        Ok(parked.resumes.clone())
    }
}

/// A parked call's place in the [`ParkedCalls`], given back when it is dropped.
pub struct Slot {
    parked_calls: Arc<ParkedCalls>,
    pub claim: Claim,
    deadline: tokio::time::Instant,
    /// Its place is wanted by another call.
    given_up: CancellationToken,
}

impl Slot {
    /// Gives out the next ticket; the client has its time anew if it has answered something.
    fn renew(&mut self, answered: bool) {
        self.claim.ticket += 1;
        if answered {
            self.deadline = tokio::time::Instant::now() + MAX_CLIENT_WAIT;
        }
        if let Some(parked) = self.parked_calls.calls.lock().get_mut(&self.claim.call) {
            parked.ticket = Some(self.claim.ticket);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.parked_calls.calls.lock().remove(&self.claim.call);
    }
}

#[cfg(test)]
mod tests;

//! Calls that continue at a handshake-era upstream while their stateless clients are asked for input
//! (2026-07-28/basic/patterns/mrtr; 2025-11-25/client/*).
//!
//! The client's retry may arrive on another thread, so it reaches the call through channels. A call is never made
//! twice: if it cannot be resumed, the retry gets an error that says so.

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
    questions::{ClientQuestion, MessageRecipient, OpenQuestion, Relay, StatelessClient},
    request_state::{Binding, StateKind, StateSealer, invalid_state_error},
};
use countersign_protocol::{
    ErrorKind, McpError,
    json::{members, string},
};
use countersign_provider::request::UpstreamRequest;
use countersign_upstream::Response;

/// The time that a parked call waits for its client.
const MAX_CLIENT_WAIT: Duration = Duration::from_secs(300);

/// The maximum number of parked calls of one principal.
const MAX_CALLS_PER_PRINCIPAL: usize = 8;

/// The time to wait for further questions, so that they reach the client together.
const QUESTION_GATHER_TIME: Duration = Duration::from_millis(30);

/// Returns the error for a client that comes back too late.
pub fn ended_call_error() -> McpError {
    let minutes = MAX_CLIENT_WAIT.as_secs() / 60;
    invalid_state_error(&format!(
        "the call has ended (a client has {minutes} minutes to answer), and its outcome is unknown"
    ))
}

/// Answers by the keys of their questions.
pub type Answers = HashMap<String, Box<RawValue>>;

/// The answers and the state that a retry carries in addition to its own parameters.
#[derive(Debug, Default)]
pub struct RetryParams {
    pub answers: Answers,
    pub state: Option<String>,
}

impl RetryParams {
    /// Reads the answers and the state from the parameters of a request.
    ///
    /// # Errors
    /// `-32602` for members of a wrong type and for a duplicate `requestState`.
    pub fn parse(params: &str) -> Result<Self, McpError> {
        let invalid = |member: &str, problem: &str| {
            Err(McpError::new(ErrorKind::InvalidParams, format!("`params.{member}` {problem}")).with("member", member))
        };
        let mut retry_params = Self::default();
        for found in members(params) {
            match found.key.as_ref() {
                "requestState" if retry_params.state.is_some() => {
                    return invalid("requestState", "is given more than once");
                }
                "requestState" => match string(found.value) {
                    Some(state) => retry_params.state = Some(state.into_owned()),
                    None => return invalid("requestState", "must be a string"),
                },
                "inputResponses" if !found.value.starts_with('{') => {
                    return invalid("inputResponses", "must be an object");
                }
                "inputResponses" => {
                    // An answer that is not an object is ignored, so its question is asked again.
                    for answer in members(found.value).filter(|answer| answer.value.starts_with('{')) {
                        if let Ok(value) = RawValue::from_string(answer.value.to_owned()) {
                            retry_params.answers.insert(answer.key.into_owned(), value);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(retry_params)
    }
}

/// The next event of a call.
pub enum CallEvent {
    Done(Result<Response, McpError>),
    InputRequired(Vec<ClientQuestion>),
}

/// A call in progress. If it is dropped, it is cancelled at the upstream, and its questions are declined.
pub struct RunningCall {
    work: LocalBoxFuture<'static, Result<Response, McpError>>,
    requests: mpsc::Receiver<UpstreamRequest>,
    client: StatelessClient,
    open_questions: Vec<OpenQuestion>,
    outcome: Option<Result<Response, McpError>>,
    is_finished: bool,
    /// Answers that the client sent before the upstream asked for them.
    early_answers: Answers,
}

impl RunningCall {
    /// Creates the call from its future and the receiver of the upstream's questions.
    #[must_use]
    pub fn new(
        work: LocalBoxFuture<'static, Result<Response, McpError>>,
        requests: mpsc::Receiver<UpstreamRequest>,
        client: StatelessClient,
        early_answers: Answers,
    ) -> Self {
        Self { work, requests, client, open_questions: Vec::new(), outcome: None, is_finished: false, early_answers }
    }

    /// Runs the call until it ends or has questions for the client.
    pub async fn advance(&mut self) -> CallEvent {
        loop {
            while self.outcome.is_none() && self.list_open_questions().is_empty() {
                self.step().await;
            }
            let end = async {
                while self.outcome.is_none() {
                    self.step().await;
                }
            };
            // Waits for further questions, unless the call ends.
            _ = tokio::time::timeout(QUESTION_GATHER_TIME, end).await;
            if let Some(outcome) = self.outcome.take() {
                return CallEvent::Done(outcome);
            }
            // All questions may have been cancelled in the meantime.
            let questions = self.list_open_questions();
            if !questions.is_empty() {
                return CallEvent::InputRequired(questions);
            }
        }
    }

    /// Removes the cancelled questions and returns the open ones.
    fn list_open_questions(&mut self) -> Vec<ClientQuestion> {
        self.open_questions.retain(|question| !question.cancelled.is_cancelled());
        self.open_questions.iter().map(|question| question.content.clone()).collect()
    }

    /// Waits for one event: the end of the call or a question.
    async fn step(&mut self) {
        tokio::select! {
            biased;
            outcome = &mut self.work, if !self.is_finished => {
                self.is_finished = true;
                // Questions that arrived just before the end still count as asked.
                while let Ok(request) = self.requests.try_recv() {
                    self.take_question(request);
                }
                self.outcome = Some(outcome.and_then(|response| self.client.check_response(response)));
            }
            Some(request) = self.requests.recv() => self.take_question(request),
            else => std::future::pending().await,
        }
    }

    /// Adds a question of the upstream to the open ones, or answers it at once if it can. A key that is in use gets a `'`.
    fn take_question(&mut self, request: UpstreamRequest) {
        let Some(mut question) = self.client.accept(request) else { return };
        while self.open_questions.iter().any(|other| other.content.key == question.content.key) {
            question.content.key.push('\'');
        }
        // A numeric id does not identify a question.
        if question.has_string_id
            && let Some(answer) = self.early_answers.remove(&question.content.key)
        {
            return question.reply.answer(Ok(answer));
        }
        self.open_questions.push(question);
    }

    /// Passes the client's answers to the upstream.
    fn answer(&mut self, mut answers: Answers) {
        for question in std::mem::take(&mut self.open_questions) {
            match answers.remove(&question.content.key) {
                Some(answer) => question.reply.answer(Ok(answer)),
                None => self.open_questions.push(question),
            }
        }
    }
}

/// A client's retry, which resumes its parked call.
pub struct Retry {
    pub answers: Answers,
    pub recipient: MessageRecipient,
    /// Gets the next event and the ticket for the next retry.
    pub reply: oneshot::Sender<(CallEvent, u64)>,
}

/// Runs a parked call until its client has the result, cancels it, or does not come back in time.
pub async fn run_parked(
    mut running_call: RunningCall,
    relay: Arc<Relay>,
    mut slot: ParkedCallSlot,
    mut retries: mpsc::Receiver<Retry>,
) {
    loop {
        let mut timeout = std::pin::pin!(tokio::time::sleep_until(slot.deadline));
        let retry = loop {
            tokio::select! {
                biased;
                retry = retries.recv() => break retry,
                () = &mut timeout => {
                    tracing::debug!("a parked call was not resumed in time and is cancelled");
                    return;
                }
                () = slot.evicted.cancelled() => {
                    tracing::debug!("a parked call is cancelled to make room for another");
                    return;
                }
                // The call may end or ask more questions while its client is away.
                () = running_call.step() => {}
            }
        };
        let Some(Retry { answers, recipient, mut reply }) = retry else { return };
        let open_before = running_call.open_questions.len();
        running_call.answer(answers);
        // A retry that finds no open question waits for the result, which also keeps the call alive.
        let has_progressed = open_before == 0 || running_call.open_questions.len() < open_before;
        let event = if running_call.outcome.is_none() && !running_call.list_open_questions().is_empty() {
            // Some questions have no answer yet, so they are asked again.
            CallEvent::InputRequired(running_call.list_open_questions())
        } else {
            relay.redirect_to(Some(recipient));
            let event = tokio::select! {
                event = running_call.advance() => event,
                // The client closed the stream of its retry, which cancels the call
                // (2026-07-28/basic/patterns/cancellation).
                () = reply.closed() => return,
            };
            relay.redirect_to(None);
            event
        };
        let is_done = matches!(event, CallEvent::Done(_));
        slot.renew(has_progressed);
        if reply.send((event, slot.reference.ticket)).is_err() || is_done {
            return;
        }
    }
}

/// The reference to a parked call in a `requestState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkedCallRef {
    pub call: CallId,
    /// Numbers the retries. Each ticket can be used only once.
    pub ticket: u64,
}

type CallId = [u8; 16];

/// All parked calls of the process.
pub struct ParkedCalls {
    sealer: Arc<StateSealer>,
    /// The name of this gateway, if several gateways serve its store.
    node: Option<String>,
    /// A random id that distinguishes this process from earlier ones with the same key.
    run_id: [u8; 16],
    calls: Mutex<HashMap<CallId, ParkedCall>>,
    next_number: AtomicU64,
}

struct ParkedCall {
    principal: String,
    upstream: String,
    /// Numbers increase with each parked call.
    number: u64,
    evicted: CancellationToken,
    retries: mpsc::Sender<Retry>,
    /// The ticket that is valid now; `None` while the client's retry is in progress.
    ticket: Option<u64>,
}

impl ParkedCalls {
    pub fn new(node: Option<String>, sealer: Arc<StateSealer>) -> Arc<Self> {
        let (run_id, calls) = (*uuid::Uuid::new_v4().as_bytes(), Mutex::default());
        Arc::new(Self { sealer, node, run_id, calls, next_number: AtomicU64::new(0) })
    }

    /// Returns the number of parked calls.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.calls.lock().len()
    }

    /// Returns the `requestState` that resumes a call once, together with the same request. If several gateways may
    /// serve the store, it begins with the name of this gateway and a dot, because the call waits here.
    ///
    /// # Errors
    /// `INTERNAL_ERROR` if the operating system provides no random numbers.
    pub fn seal_reference(&self, reference: ParkedCallRef, binding: &Binding) -> Result<String, McpError> {
        let reference = json!([self.run_id, reference.call, reference.ticket]).to_string();
        let sealed = self.sealer.seal(StateKind::ParkedCall, &reference, binding)?;
        Ok(match &self.node {
            Some(node) => format!("{node}.{sealed}"),
            None => sealed,
        })
    }

    /// Returns the reference in a `requestState`.
    ///
    /// # Errors
    /// `-32602` for a state that was not issued for this request.
    pub fn unseal_reference(&self, state: &str, binding: &Binding) -> Result<ParkedCallRef, McpError> {
        // A state of another node arrives here if that node is gone.
        let sealed = match (&self.node, state.split_once('.')) {
            (Some(_), Some((_node, sealed))) => sealed,
            _ => state,
        };
        let reference = self.sealer.open(StateKind::ParkedCall, sealed, binding)?;
        let (run_id, call, ticket): ([u8; 16], _, _) =
            serde_json::from_str(&reference).map_err(|_| invalid_state_error("it names no call"))?;
        if run_id != self.run_id {
            let reason =
                "the gateway that made the call has been restarted or is gone, and the outcome of the call is unknown";
            return Err(invalid_state_error(reason));
        }
        Ok(ParkedCallRef { call, ticket })
    }

    /// Reserves a slot for one more parked call. With `limit` calls or more at this upstream, the oldest call whose
    /// client is away is evicted; if there is none, the limit is exceeded.
    ///
    /// # Errors
    /// `OVERLOADED` if the principal has too many parked calls.
    pub fn reserve_slot(
        self: &Arc<Self>,
        principal: &str,
        upstream: &str,
        limit: usize,
    ) -> Result<(ParkedCallSlot, mpsc::Receiver<Retry>), McpError> {
        let call = *uuid::Uuid::new_v4().as_bytes();
        let mut calls = self.calls.lock();
        let is_same = |parked: &ParkedCall| parked.principal == principal && parked.upstream == upstream;
        if calls.values().filter(|parked| is_same(parked)).count() >= limit {
            let idle = calls.iter().filter(|(_, parked)| is_same(parked) && parked.ticket.is_some());
            let oldest = idle.min_by_key(|(_, parked)| parked.number).map(|(call, _)| *call);
            if let Some(oldest) = oldest.and_then(|call| calls.remove(&call)) {
                oldest.evicted.cancel();
            }
        }
        if calls.values().filter(|parked| parked.principal == principal).count() >= MAX_CALLS_PER_PRINCIPAL {
            let message = "too many calls wait for input already; answer one or let it expire";
            return Err(McpError::new(ErrorKind::Overloaded, message).with("limit", MAX_CALLS_PER_PRINCIPAL));
        }
        let (retries, receiver) = mpsc::channel(1);
        let evicted = CancellationToken::new();
        let parked = ParkedCall {
            principal: principal.to_owned(),
            upstream: upstream.to_owned(),
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            evicted: evicted.clone(),
            retries,
            ticket: Some(1),
        };
        calls.insert(call, parked);
        let (reference, deadline) = (ParkedCallRef { call, ticket: 1 }, tokio::time::Instant::now() + MAX_CLIENT_WAIT);
        Ok((ParkedCallSlot { parked_calls: Arc::clone(self), reference, deadline, evicted }, receiver))
    }

    /// Redeems a ticket, which is valid only once.
    ///
    /// # Errors
    /// `-32602` for a ticket that is no longer valid.
    pub fn redeem(&self, reference: &ParkedCallRef) -> Result<mpsc::Sender<Retry>, McpError> {
        let mut calls = self.calls.lock();
        let parked = calls.get_mut(&reference.call).ok_or_else(ended_call_error)?;
        if parked.ticket != Some(reference.ticket) {
            return Err(invalid_state_error("it has been used already"));
        }
        parked.ticket = None;
        Ok(parked.retries.clone())
    }

    /// Makes the ticket of a retry valid again, because its client did not get the next one.
    pub fn restore_ticket(&self, reference: &ParkedCallRef) {
        if let Some(parked) = self.calls.lock().get_mut(&reference.call) {
            parked.ticket = Some(reference.ticket);
        }
    }
}

/// The slot of a parked call in [`ParkedCalls`], which is released when it is dropped.
pub struct ParkedCallSlot {
    parked_calls: Arc<ParkedCalls>,
    pub reference: ParkedCallRef,
    deadline: tokio::time::Instant,
    /// Cancelled when another call takes the slot.
    evicted: CancellationToken,
}

impl ParkedCallSlot {
    /// Issues the next ticket. The client's time starts again if its retry has brought the call forward.
    fn renew(&mut self, has_progressed: bool) {
        self.reference.ticket += 1;
        if has_progressed {
            self.deadline = tokio::time::Instant::now() + MAX_CLIENT_WAIT;
        }
        if let Some(parked) = self.parked_calls.calls.lock().get_mut(&self.reference.call) {
            parked.ticket = Some(self.reference.ticket);
        }
    }
}

impl Drop for ParkedCallSlot {
    fn drop(&mut self) {
        self.parked_calls.calls.lock().remove(&self.reference.call);
    }
}

#[cfg(test)]
mod tests;

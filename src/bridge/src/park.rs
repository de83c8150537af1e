//! Stateless clients before handshake-era upstreams: when the upstream asks something, its call goes on in a task of its
//! own, and the client is answered that input is needed. Its retry brings the answers and takes up the call again
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
    time::{Duration, Instant},
};

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, value::RawValue};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Ready, Verb, questions,
    relay::{Declined, Hearer, Relay},
    result::Glance,
    seal::{Binding, Broken, Claim, Sealer},
};
use countersign_domain::changes::digest::PartHasher;
use countersign_exchange::{context::Exchange, reply::Reply};
use countersign_protocol::{
    Era, ErrorKind, McpError, RequestId,
    arguments::{canonical_hash, canonical_text_hash, text_hash},
    capabilities::ClientCapabilities,
    json::{Op, members, string},
    outline::Object,
};
use countersign_provider::request::{Replier, UpstreamRequest};
use countersign_upstream::{Response, Upstream};

/// How long a call waits for its client.
const PATIENCE: Duration = Duration::from_secs(300);

/// Parked calls of one principal at most.
const MAX_PER_PRINCIPAL: usize = 8;

/// Parked calls of one principal at an upstream where each of them holds a link. One more ends the oldest: there are 4 of
/// those links, and the next call needs one.
const MAX_ON_NARROW_LINKS: usize = 3;

/// Bytes that a parked call takes beside its parameters.
const PARKED: usize = 4096;

/// How long more questions are waited for after one: several that are asked at once go to the client together.
const GATHER: Duration = Duration::from_millis(30);

/// Whether a request takes up a parked call, or is refused: no call is made of it, since that was made before.
#[must_use]
pub fn takes_up(exchange: &Exchange, upstream: &Upstream, params: &Object<'_>) -> bool {
    let legacy = || upstream.negotiated().is_some_and(|negotiated| negotiated.revision.era() == Era::Legacy);
    exchange.is_modern() && params.member("requestState").is_some() && legacy()
}

/// Calls a stateless client's upstream.
///
/// # Errors
/// Those of [`super::call`]; `-32602` for a `requestState` that is none of this request; `OVERLOADED` for one parked call
/// too many.
pub async fn call(ready: &Ready<'_>) -> Result<Reply, McpError> {
    let input = Input::of(ready.params())?;
    if let Some(state) = input.state {
        return resume(ready, &state, input.answers).await;
    }
    let outgoing = ready.outgoing(&[]);
    let upstream = Arc::clone(ready.call.upstream);
    if ready.caller.capabilities.asks_nothing() {
        let relay = Relay::new(ready.hearer(), false);
        let response = upstream.call(&ready.caller, &outgoing, Arc::clone(&relay) as _).await?;
        let declared = &ready.call.exchange.facts.capabilities;
        return match missing(&response, relay.declined(), declared, &upstream.config.name) {
            Some(error) => Err(error),
            None => ready.reply(response),
        };
    }
    let (relay, requests) = Relay::asking(ready.hearer(), false);
    let (caller, listener) = (ready.caller.clone(), Arc::clone(&relay));
    let mut course = RunningCall {
        work: Box::pin(async move { upstream.call(&caller, &outgoing, listener).await }),
        requests,
        capabilities: ready.caller.capabilities.clone(),
        declared: Arc::clone(&ready.call.exchange.facts.capabilities),
        server: ready.call.upstream.config.name.clone(),
        declined: Declined::default(),
        open: Vec::new(),
        outcome: None,
        finished: false,
        ahead: input.answers,
    };
    match course.advance().await {
        Event::Done(response) => ready.reply(response?),
        Event::Input(asked) => {
            relay.turn_to(None);
            let lot = &ready.call.bridge.parked;
            let upstream = ready.call.upstream;
            let most = if upstream.has_narrow_links() { MAX_ON_NARROW_LINKS } else { usize::MAX };
            let bytes = PARKED + 2 * ready.call.request.params.map_or(0, |params| params.get().len());
            let share = ready.call.exchange.services.state.memory.take(&ready.caller.principal.name, bytes)?;
            let (place, visits) = lot.admit(&ready.caller.principal.name, &upstream.config.name, most)?;
            let answer = input_required(ready, place.call, place.ticket, &asked)?;
            actix::spawn(async move {
                let _share = share;
                keep(course, relay, place, visits).await;
            });
            Ok(answer)
        }
    }
}

/// Takes up a parked call with what its client answers.
async fn resume(ready: &Ready<'_>, state: &str, answers: Answers) -> Result<Reply, McpError> {
    let lot = &ready.call.bridge.parked;
    let claim = lot.sealer.open(state, &binding(ready)).map_err(|broken| refused(broken.why()))?;
    let visits = lot.redeem(&claim)?;
    let (reply, event) = oneshot::channel();
    let visit = Resume { answers, hearer: ready.hearer(), reply };
    // A call that ends just now takes its channel with it.
    visits.send(visit).await.map_err(|_| refused(ENDED))?;
    match event.await.map_err(|_| refused(ENDED))? {
        (Event::Done(response), _) => ready.reply(response?),
        (Event::Input(asked), ticket) => input_required(ready, claim.call, ticket, &asked),
    }
}

/// The error of a call that failed after its upstream had asked for what the client did not declare: `-32021` with the
/// capability (2026-07-28/basic/index, "Capabilities"). An upstream that went on without it is passed through. `declared`
/// is all that the client says it can be asked for, as JSON text, whatever the configuration keeps back of it.
pub fn missing(response: &Response, declined: &Declined, declared: &str, server: &str) -> Option<McpError> {
    // Nearly always: nothing is parsed for it.
    if declined.is_empty() {
        return None;
    }
    let lacking = declined.lacking(&ClientCapabilities::declared(declared))?;
    if let Response::Result(result) = response
        && !Glance::at(result.get()).is_error
    {
        return None;
    }
    let message = format!("the server {server} cannot do this without a capability that the client did not declare");
    Some(
        McpError::new(ErrorKind::MissingCapability, message)
            .with("requiredCapabilities", lacking)
            .with("upstream", server),
    )
}

const ENDED: &str = "the call has ended (a client has 5 minutes to answer), and its outcome is unknown";

fn refused(why: &str) -> McpError {
    let message = format!("this requestState cannot be used: {why}; the call was not made again");
    McpError::new(ErrorKind::InvalidParams, message).with("member", "requestState")
}

impl Broken {
    const fn why(self) -> &'static str {
        match self {
            Self::OtherRun => "the gateway has been restarted, and the outcome of the call is unknown",
            Self::Invalid => "it is not valid for this client and this request",
            Self::Unavailable => "the gateway cannot check it right now",
        }
    }
}

/// Answers by the names of their questions.
type Answers = HashMap<String, Box<RawValue>>;

/// What a request brings beside its own parameters.
#[derive(Debug, Default)]
struct Input {
    answers: Answers,
    state: Option<String>,
}

impl Input {
    fn of(params: &str) -> Result<Self, McpError> {
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
struct Asked {
    key: String,
    method: String,
    params: Option<String>,
}

enum Event {
    Done(Result<Response, McpError>),
    Input(Vec<Asked>),
}

/// An upstream's question that has no answer yet.
struct Open {
    asked: Asked,
    reply: Replier,
    cancelled: CancellationToken,
}

/// A call on its way. Dropped, it is cancelled at the upstream, and its questions are declined.
struct RunningCall {
    work: LocalBoxFuture<'static, Result<Response, McpError>>,
    requests: mpsc::Receiver<UpstreamRequest>,
    capabilities: ClientCapabilities,
    /// What the client itself said, as JSON text, of which `capabilities` may be a part.
    declared: Arc<str>,
    /// Who asks.
    server: String,
    declined: Declined,
    open: Vec<Open>,
    outcome: Option<Result<Response, McpError>>,
    finished: bool,
    /// Answers that the client brought before they were asked for.
    ahead: Answers,
}

impl RunningCall {
    /// Goes on until the call ends or there is something to ask.
    async fn advance(&mut self) -> Event {
        loop {
            if let Some(outcome) = self.outcome.take() {
                return Event::Done(outcome);
            }
            if !self.asked().is_empty() {
                break;
            }
            self.step().await;
        }
        let mut gathered = std::pin::pin!(tokio::time::sleep(GATHER));
        loop {
            tokio::select! {
                () = &mut gathered => break,
                () = self.step() => {}
            }
            if let Some(outcome) = self.outcome.take() {
                return Event::Done(outcome);
            }
        }
        match self.asked() {
            // All taken back meanwhile.
            asked if asked.is_empty() => Box::pin(self.advance()).await,
            asked => Event::Input(asked),
        }
    }

    /// What is asked now.
    fn asked(&mut self) -> Vec<Asked> {
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
                    match missing(&response, &self.declined, &self.declared, &self.server) {
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
        if let Err(refused) = questions::may_ask(&self.capabilities, &method, params.as_deref().map(RawValue::get)) {
            self.declined.note(&method, params);
            return reply.answer(Err(refused));
        }
        let (key, named) = self.key(&id);
        // Numbers say nothing of what they ask; names may be known from an earlier call.
        if let Some(answer) = named.then(|| self.ahead.remove(&key)).flatten() {
            return reply.answer(Ok(answer));
        }
        let params = params.as_deref().map(RawValue::get);
        let params = questions::asked_by(&self.server, &method, params, countersign_protocol::Revision::MODERN, None);
        self.open.push(Open { asked: Asked { key, method, params }, reply, cancelled });
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
struct Resume {
    answers: Answers,
    hearer: Hearer,
    /// Gets what happened next and the ticket for the visit after it.
    reply: oneshot::Sender<(Event, u64)>,
}

/// Keeps a parked call until its client has its result, gives it up, or does not come.
async fn keep(mut course: RunningCall, relay: Arc<Relay>, mut place: Slot, mut visits: mpsc::Receiver<Resume>) {
    loop {
        let mut patience = std::pin::pin!(tokio::time::sleep_until(place.deadline));
        let visit = loop {
            tokio::select! {
                biased;
                visit = visits.recv() => break visit,
                () = &mut patience => {
                    tracing::debug!("a parked call was not resumed in time and is cancelled");
                    return;
                }
                () = place.given_up.cancelled() => {
                    tracing::debug!("a parked call is cancelled to make room for another");
                    return;
                }
                // It may end, or ask more, while nobody is there.
                () = course.step() => {}
            }
        };
        let Some(Resume { answers, hearer, mut reply }) = visit else { return };
        let before = course.open.len();
        course.answer(answers);
        let answered = before == 0 || course.open.len() < before;
        let event = if course.outcome.is_none() && !course.asked().is_empty() {
            // Incomplete: the rest is asked again.
            Event::Input(course.asked())
        } else {
            relay.turn_to(Some(hearer));
            let event = tokio::select! {
                event = course.advance() => event,
                // The stream of the retry was closed: that cancels the call (2026-07-28/basic/patterns/cancellation).
                () = reply.closed() => return,
            };
            relay.turn_to(None);
            event
        };
        let done = matches!(event, Event::Done(_));
        place.renew(answered);
        if reply.send((event, place.ticket)).is_err() || done {
            return;
        }
    }
}

/// All parked calls of the process.
#[derive(Default)]
pub struct ParkedCalls {
    sealer: Sealer,
    calls: Mutex<HashMap<[u8; 16], Parked>>,
    started: Option<Instant>,
    parked: AtomicU64,
}

struct Parked {
    principal: String,
    upstream: String,
    /// They count up.
    number: u64,
    given_up: CancellationToken,
    visits: mpsc::Sender<Resume>,
    /// The one that is good now; none while its client is there.
    ticket: Option<u64>,
}

impl ParkedCalls {
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { started: Some(Instant::now()), ..Self::default() })
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

    /// A place for one more. Beyond `most` at this upstream the oldest of them ends that nobody is there for.
    fn admit(
        self: &Arc<Self>,
        principal: &str,
        upstream: &str,
        most: usize,
    ) -> Result<(Slot, mpsc::Receiver<Resume>), McpError> {
        let call = *uuid::Uuid::new_v4().as_bytes();
        let mut calls = self.calls.lock();
        let here = |parked: &Parked| parked.principal == principal && parked.upstream == upstream;
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
        let (visits, receiver) = mpsc::channel(1);
        let given_up = CancellationToken::new();
        let parked = Parked {
            principal: principal.to_owned(),
            upstream: upstream.to_owned(),
            number: self.parked.fetch_add(1, Ordering::Relaxed),
            given_up: given_up.clone(),
            visits,
            ticket: Some(1),
        };
        calls.insert(call, parked);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        Ok((Slot { lot: Arc::clone(self), call, ticket: 1, deadline, given_up }, receiver))
    }

    /// Takes a ticket, which is good once.
    fn redeem(&self, claim: &Claim) -> Result<mpsc::Sender<Resume>, McpError> {
        let mut calls = self.calls.lock();
        let parked = calls.get_mut(&claim.call).filter(|_| claim.expires >= self.now());
        let parked = parked.ok_or_else(|| refused(ENDED))?;
        if parked.ticket != Some(claim.ticket) {
            return Err(refused("it has been used already"));
        }
        parked.ticket = None;
        Ok(parked.visits.clone())
    }

    /// Milliseconds since the start.
    fn now(&self) -> u64 {
        self.started.map_or(0, |started| u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// A parked call's place in the [`ParkedCalls`], given back when it is dropped.
struct Slot {
    lot: Arc<ParkedCalls>,
    call: [u8; 16],
    ticket: u64,
    deadline: tokio::time::Instant,
    /// Its place is wanted by another call.
    given_up: CancellationToken,
}

impl Slot {
    /// Gives out the next ticket; the client has its time anew if it has answered something.
    fn renew(&mut self, answered: bool) {
        self.ticket += 1;
        if answered {
            self.deadline = tokio::time::Instant::now() + PATIENCE;
        }
        if let Some(parked) = self.lot.calls.lock().get_mut(&self.call) {
            parked.ticket = Some(self.ticket);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.lot.calls.lock().remove(&self.call);
    }
}

/// `InputRequiredResult` (2026-07-28/basic/patterns/mrtr).
fn input_required(ready: &Ready<'_>, call: [u8; 16], ticket: u64, asked: &[Asked]) -> Result<Reply, McpError> {
    let lot = &ready.call.bridge.parked;
    let patience = u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX);
    let claim = Claim { call, ticket, expires: lot.now().saturating_add(patience) };
    let state = lot.sealer.seal(&claim, &binding(ready)).map_err(|_| {
        McpError::new(ErrorKind::Internal, "the call cannot be parked: the operating system gives no random numbers")
    })?;
    let requests = asked.iter().map(|asked| (asked.key.as_str(), asked.method.as_str(), asked.params.as_deref()));
    Ok(Reply::passed_on(input_result(requests, Some(&state), &ready.server_meta())))
}

/// A result that needs input, as JSON.
pub fn input_result<'q>(
    requests: impl Iterator<Item = (&'q str, &'q str, Option<&'q str>)>,
    state: Option<&str>,
    meta: &str,
) -> String {
    let mut out = String::from(r#"{"resultType":"input_required","inputRequests":{"#);
    for (at, (key, method, params)) in requests.enumerate() {
        if at > 0 {
            out.push(',');
        }
        out.push_str(&Value::from(key).to_string());
        out.push_str(r#":{"method":"#);
        out.push_str(&Value::from(method).to_string());
        if let Some(params) = params {
            out.push_str(r#","params":"#);
            out.push_str(params);
        }
        out.push('}');
    }
    out.push('}');
    if let Some(state) = state {
        out.push_str(&format!(r#","requestState":{}"#, Value::from(state)));
    }
    out.push_str(r#","_meta":"#);
    out.push_str(meta);
    out.push('}');
    out
}

/// What a state is good for: this principal, this method of this upstream, this name or URI, these arguments.
pub(super) fn binding(ready: &Ready<'_>) -> Binding {
    let call = &ready.call;
    let arguments = ready.params.object.member("arguments").unwrap_or("{}");
    // Written in another order they are the same; numbers that no double holds count as they are written.
    let arguments = match serde_json::from_str::<Value>(arguments) {
        Ok(value) => canonical_hash(&value),
        Err(_) => text_hash(arguments.as_bytes()),
    };
    // The parameters of a method that is not known have no arguments that could be told from the rest.
    let arguments = match call.verb {
        Verb::Extension => {
            let parts = ["_meta", "inputResponses", "requestState"].map(|key| (key, Op::Drop));
            canonical_text_hash(&ready.params.object.edit(&parts))
        }
        _ => arguments,
    };
    let parts = [
        ready.caller.principal.name.as_str(),
        call.upstream.config.name.as_str(),
        call.verb.method().unwrap_or_default(),
        call.subject.text(),
        &arguments,
    ];
    let mut hash = PartHasher::new("binding of a call");
    for part in parts {
        hash.part(part.as_bytes());
    }
    hash.bytes()
}

#[cfg(test)]
mod tests;

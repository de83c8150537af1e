//! One request on its way: on whose behalf, under which revision, and where what belongs to it is sent.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use serde_json::Value;

use super::{
    cancel::Cancel,
    facts::ClientFacts,
    shared::{Channel, Key, SessionShared},
};
use crate::services::Services;
use countersign_auth::Identity;
use countersign_domain::{changes::Proposer, policy::Asker, principal::Principal};
use countersign_protocol::{Era, ErrorKind, McpError, RequestId, Revision, encode, params::LoggingLevel};
use countersign_provider::{CallContext, NoProgress, ProgressSink};
use countersign_telemetry::metrics::Transport;

/// Where notifications that belong to one request go: always with the request, never to another stream.
#[derive(Clone)]
pub enum Related {
    /// The session's one ordered stream.
    Outbox(Arc<SessionShared>),
    /// A numbered SSE stream of a handshake-era HTTP session, opened by the first message.
    Stream(Arc<PostStream>),
    /// The response stream of one modern POST.
    Queue(Arc<ResponseQueue>),
    /// Nobody could receive them.
    Nowhere,
}

impl Related {
    /// Sends a message; `false` if it could not be queued.
    pub fn send(&self, message: Bytes) -> bool {
        match self {
            Self::Outbox(session) => match &session.channel {
                Channel::Outbox(outbox) => session.push(outbox, message),
                _ => false,
            },
            Self::Stream(stream) => stream.push(message),
            Self::Queue(queue) => queue.push(message),
            Self::Nowhere => false,
        }
    }
}

/// The SSE stream of one handshake-era POST. Most requests are answered without ever opening it.
pub struct PostStream {
    pub session: Arc<SessionShared>,
    number: OnceLock<u32>,
    opened: AtomicWaker,
    /// The POST does not wait for the answer any more: its client reads it from the stream, or not at all.
    left: AtomicBool,
}

impl PostStream {
    #[must_use]
    pub fn new(session: Arc<SessionShared>) -> Self {
        Self { session, number: OnceLock::new(), opened: AtomicWaker::new(), left: AtomicBool::new(false) }
    }

    /// Whoever polls with that context is woken when the stream is opened.
    pub fn watch(&self, cx: &Context<'_>) {
        self.opened.register(cx.waker());
    }

    /// The stream's number, opening it now if need be; `None` for a session without streams.
    pub fn open(&self) -> Option<u32> {
        let Channel::Streams(streams) = &self.session.channel else { return None };
        if let Some(number) = self.number() {
            return Some(number);
        }
        let number = *self.number.get_or_init(|| streams.open());
        self.opened.wake();
        Some(number)
    }

    /// From now on only a reader of the stream gets the answer.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Whether there is somebody to take the answer at the moment.
    #[must_use]
    pub fn is_attended(&self) -> bool {
        match (&self.session.channel, self.number()) {
            _ if !self.left.load(Ordering::Relaxed) => true,
            (Channel::Streams(streams), Some(number)) => streams.is_attended(number),
            _ => true,
        }
    }

    /// The stream's number, if anything was sent on it.
    pub fn number(&self) -> Option<u32> {
        self.number.get().copied()
    }

    fn push(&self, message: Bytes) -> bool {
        match (self.open(), &self.session.channel) {
            (Some(number), Channel::Streams(streams)) => {
                streams.push(number, message);
                true
            }
            _ => false,
        }
    }
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Bytes>,
    bytes: usize,
}

impl Waiting {
    fn take(&mut self) -> Vec<Bytes> {
        self.bytes = 0;
        self.messages.drain(..).collect()
    }
}

/// Messages on their way into one response; bounded in number and bytes, with a single reader.
pub struct ResponseQueue {
    max: usize,
    max_bytes: usize,
    messages: Mutex<Waiting>,
    reader: AtomicWaker,
}

impl ResponseQueue {
    #[must_use]
    pub fn new(max: usize, max_bytes: usize) -> Self {
        Self { max, max_bytes, messages: Mutex::default(), reader: AtomicWaker::new() }
    }

    fn push(&self, message: Bytes) -> bool {
        {
            let mut waiting = self.messages.lock();
            let bytes = waiting.bytes + message.len();
            if waiting.messages.len() >= self.max || (bytes > self.max_bytes && waiting.bytes > 0) {
                return false;
            }
            waiting.bytes = bytes;
            waiting.messages.push_back(message);
        }
        self.reader.wake();
        true
    }

    /// All messages that wait, or `Pending` while there are none.
    pub fn poll_take(&self, cx: &Context<'_>) -> Poll<Vec<Bytes>> {
        self.reader.register(cx.waker());
        let taken = self.messages.lock().take();
        if taken.is_empty() { Poll::Pending } else { Poll::Ready(taken) }
    }

    /// Puts back what was taken only to see that there is something.
    pub fn put_back(&self, taken: Vec<Bytes>) {
        let mut waiting = self.messages.lock();
        waiting.bytes += taken.iter().map(Bytes::len).sum::<usize>();
        taken.into_iter().rev().for_each(|message| waiting.messages.push_front(message));
    }

    /// What waits now.
    pub fn take(&self) -> Vec<Bytes> {
        self.messages.lock().take()
    }
}

/// One request and everything its handling needs to know.
#[derive(Clone)]
pub struct Exchange {
    pub services: Arc<Services>,
    pub session: Arc<SessionShared>,
    /// What the client said: of this request (modern), or in its handshake.
    pub facts: Arc<ClientFacts>,
    pub identity: Identity,
    pub transport: Transport,
    pub related: Related,
    /// The level a modern request asked for; a handshake session keeps its own.
    pub log_level: Option<LoggingLevel>,
    /// Headers of its HTTP request that some upstream's configuration wants passed on.
    pub headers: Option<Arc<ForwardedHeaders>>,
}

/// Names in lower case, and values.
pub type ForwardedHeaders = Vec<(Box<str>, Box<str>)>;

impl Exchange {
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.facts.revision
    }

    #[must_use]
    pub fn is_modern(&self) -> bool {
        self.revision().era() == Era::Modern
    }

    /// Whom a change is proposed by.
    #[must_use]
    pub fn proposer(&self) -> Proposer {
        let client = self.facts.client.as_ref();
        Proposer {
            principal: self.identity.principal.name.clone(),
            owner: self.identity.principal.owner.clone(),
            key_id: self.identity.principal.key_id.clone(),
            client_name: client.map(|c| c.name.clone()),
            client_version: client.map(|c| c.version.clone()),
            session: Some(self.session.short_id()),
            transport: self.transport.as_str().to_owned(),
            revision: (self.transport != Transport::Rest).then(|| self.revision().as_str().to_owned()),
        }
    }

    /// The context that a provider is called with.
    #[must_use]
    pub fn call_context(&self, cancel: &Cancel, progress_token: Option<&str>) -> CallContext {
        CallContext {
            principal: self.identity.principal.clone(),
            cancel: cancel.token(&self.session.ended),
            progress: self.progress(progress_token),
            change_id: None,
            inquirer: None,
        }
    }

    /// Where a call tells of its progress.
    #[must_use]
    pub fn progress(&self, token: Option<&str>) -> Arc<dyn ProgressSink> {
        match token {
            Some(token) => Arc::new(Progress {
                related: self.related.clone(),
                token: token.to_owned(),
                messages: self.revision().rules().annotations,
                last: Mutex::new(f64::NEG_INFINITY),
            }),
            None => Arc::new(NoProgress),
        }
    }

    /// Sends `notifications/message` with this request, if its client wants that level
    /// (2026-07-28/server/utilities/logging: only on requests that ask for it).
    pub fn log(&self, level: LoggingLevel, data: &Value) {
        let wanted =
            if self.is_modern() { self.log_level.is_some_and(|min| level >= min) } else { self.session.logs(level) };
        if wanted && self.transport != Transport::Rest {
            let params = serde_json::json!({ "level": level.as_str(), "logger": "countersign", "data": data });
            self.related.send(encode::notification("notifications/message", Some(&params.to_string())));
        }
    }
}

/// Who makes this request, as rules see it.
#[must_use]
pub fn asker(exchange: &Exchange) -> Asker<'_> {
    asker_of(&exchange.identity.principal, exchange.transport, &exchange.facts)
}

/// As [`asker`], before there is an exchange.
#[must_use]
pub fn asker_of<'a>(principal: &'a Principal, transport: Transport, facts: &'a ClientFacts) -> Asker<'a> {
    Asker {
        principal,
        transport: transport.as_str(),
        revision: facts.revision.as_str(),
        client: facts.client.as_ref().map(|client| client.name.as_str()),
    }
}

/// Sends `notifications/progress` with the request that asked for it.
struct Progress {
    related: Related,
    /// As JSON text, echoed as it came.
    token: String,
    messages: bool,
    last: Mutex<f64>,
}

impl ProgressSink for Progress {
    fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) {
        {
            // The value must rise with each notification (2026-07-28/basic/patterns/progress).
            let mut last = self.last.lock();
            if progress <= *last {
                return;
            }
            *last = progress;
        }
        let mut params = format!(r#"{{"progressToken":{},"progress":{}"#, self.token, Value::from(progress));
        if let Some(total) = total {
            params.push_str(&format!(r#","total":{}"#, Value::from(total)));
        }
        if let Some(message) = message.filter(|_| self.messages) {
            params.push_str(&format!(r#","message":{}"#, Value::from(message)));
        }
        params.push('}');
        self.related.send(encode::notification("notifications/progress", Some(&params)));
    }

    fn wanted(&self) -> bool {
        true
    }
}

/// The response to one request, ready for the wire.
#[derive(Clone, Debug)]
pub struct WireResponse {
    pub bytes: Bytes,
    /// What went wrong, if it was not a result: some endpoints speak of it in their status.
    pub error: Option<ErrorKind>,
    /// Seconds after which it may be tried again.
    pub retry_after: Option<u64>,
}

impl WireResponse {
    #[must_use]
    pub fn error(id: Option<&RequestId>, error: &McpError, revision: Revision) -> Self {
        Self {
            bytes: encode::error(id, error, revision),
            error: Some(error.kind),
            retry_after: error.data.get("retryAfter").and_then(Value::as_u64),
        }
    }

    #[must_use]
    pub fn result(bytes: Bytes) -> Self {
        Self { bytes, error: None, retry_after: None }
    }
}

/// Releases a request's id when it ends, however it ends.
pub struct InFlight<'a> {
    exchange: &'a Exchange,
    key: Key,
    pub cancel: Cancel,
    answered: AtomicBool,
}

impl<'a> InFlight<'a> {
    /// # Errors
    /// `-32600` for an id that is in use, `OVERLOADED` for one request too many.
    pub fn admit(exchange: &'a Exchange, id: &RequestId, max: usize) -> Result<Self, McpError> {
        use super::shared::AdmitFault;
        let Exchange { services, session, .. } = exchange;
        let (key, cancel) = session.admit(id, max).map_err(|fault| match fault {
            AdmitFault::DuplicateId => {
                McpError::new(ErrorKind::InvalidRequest, "a request with this id is still in flight")
            }
            AdmitFault::TooMany => {
                McpError::new(ErrorKind::Overloaded, "too many requests in flight").with("limit", max as u64)
            }
        })?;
        services.state.requests.fetch_add(1, Ordering::Relaxed);
        Ok(Self { exchange, key, cancel, answered: AtomicBool::new(false) })
    }

    /// The handler has finished: dropping this no longer means that the request was given up.
    pub fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.answered.load(Ordering::Relaxed) {
            self.cancel.cancel();
        }
        self.exchange.session.release(&self.key);
        self.exchange.services.state.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

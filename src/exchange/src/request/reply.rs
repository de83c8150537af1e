//! The result of a request, and the messages that belong to the request and precede its response. [`Reply::finish`]
//! adapts the result to the client's revision.

use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use crate::{
    bounds::memory::{EXEMPT_MESSAGE_BYTES, MemoryBudget, MemoryShare},
    session::{
        state::{Channel, SessionState},
        streams::GET_STREAM,
    },
};
use countersign_domain::principal::Principal;
use countersign_protocol::{ErrorKind, Revision, json::add_members};

/// `{"io.modelcontextprotocol/serverInfo": …}`, the `_meta` of all results that the gateway creates for stateless
/// clients.
pub const SERVER_META: &str = concat!(
    r#"{"io.modelcontextprotocol/serverInfo":{"name":"countersign","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#"","title":"Countersign"}}"#
);

/// The time for which a client may reuse a result (2026-07-28/server/utilities/caching).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHint {
    pub ttl_ms: u32,
    /// `true` if the result is the same for all principals.
    pub is_public: bool,
}

impl CacheHint {
    /// The hint for lists that change only with the gateway's configuration.
    pub const STATIC: Self = Self { ttl_ms: 60_000, is_public: true };
    /// The hint for live data, which must not be reused.
    pub const LIVE: Self = Self { ttl_ms: 0, is_public: false };
}

/// The result of a request.
#[derive(Debug, Default)]
pub struct Reply {
    /// A JSON object without members that only some revisions have.
    pub json: String,
    pub cache: Option<CacheHint>,
    /// An additional member of `_meta`, with its value as JSON text.
    pub meta: Option<(&'static str, String)>,
    /// The revision that the handshake has just negotiated.
    pub revision: Option<Revision>,
    /// The failure that the result describes.
    pub failure: Option<ErrorKind>,
    /// `true` if the call waits for a person's approval.
    pub is_pending: bool,
    /// The id of the change that was proposed for the request.
    pub change_id: Option<String>,
    /// `true` if the result goes to the client unchanged, for example because it comes from an upstream.
    pub is_verbatim: bool,
}

impl Reply {
    pub fn new(json: String) -> Self {
        Self { json, ..Self::default() }
    }

    /// Creates a result that goes to its client unchanged.
    pub fn verbatim(json: String) -> Self {
        Self { is_verbatim: true, ..Self::new(json) }
    }

    /// Sets the failure that the result describes, if any.
    #[must_use]
    pub fn with_failure(mut self, failure: Option<ErrorKind>) -> Self {
        self.failure = failure;
        self
    }

    #[must_use]
    pub fn with_cache_hint(mut self, hint: CacheHint) -> Self {
        self.cache = Some(hint);
        self
    }

    /// Returns the `result` for the client. A modern client gets `resultType`, the server's name in `_meta` and cache
    /// hints, too (2026-07-28/basic/index, "ResultType" and "Per-response protocol fields").
    pub fn finish(&self, revision: Revision) -> Cow<'_, str> {
        if self.is_verbatim || !revision.rules().result_type {
            return Cow::Borrowed(&self.json);
        }
        let meta = match &self.meta {
            None => SERVER_META.to_owned(),
            Some((key, value)) => add_members(SERVER_META, &[(key, value)]),
        };
        let mut members = vec![("resultType", r#""complete""#), ("_meta", meta.as_str())];
        let ttl;
        if let Some(hint) = self.cache {
            ttl = hint.ttl_ms.to_string();
            members.push(("ttlMs", &ttl));
            members.push(("cacheScope", if hint.is_public { r#""public""# } else { r#""private""# }));
        }
        Cow::Owned(add_members(&self.json, &members))
    }
}

/// The channel for the messages of one request. They are never sent on the stream of another request.
#[derive(Clone)]
pub enum RelatedChannel {
    /// The outbox of the session, which also carries all other messages in order.
    Outbox(Arc<SessionState>),
    /// The numbered SSE stream of a handshake-era HTTP request. The first message opens it.
    Stream(Arc<PostStream>),
    /// The response stream of one modern POST.
    Queue(Arc<ResponseQueue>),
    /// The client cannot receive such messages.
    None,
}

impl RelatedChannel {
    /// Sends a message. Returns `false` if it could not be queued.
    pub fn send(&self, message: Bytes) -> bool {
        match self {
            Self::Outbox(session) => session.push(GET_STREAM, message),
            Self::Stream(stream) => stream.open().is_some_and(|number| stream.session.push(number, message)),
            Self::Queue(queue) => queue.push(message),
            Self::None => false,
        }
    }
}

/// The SSE stream of one handshake-era POST. Most requests are answered without opening it.
pub struct PostStream {
    pub session: Arc<SessionState>,
    /// The number of the stream of the GET if the request was answered without opening this one.
    number: OnceLock<u32>,
    opened: AtomicWaker,
}

impl PostStream {
    pub fn new(session: Arc<SessionState>) -> Self {
        Self { session, number: OnceLock::new(), opened: AtomicWaker::new() }
    }

    /// Registers a task to be woken when the stream is opened.
    pub fn watch(&self, cx: &Context<'_>) {
        self.opened.register(cx.waker());
    }

    /// Returns the stream's number, and opens the stream if necessary. Returns `None` for a session without streams.
    pub fn open(&self) -> Option<u32> {
        let Channel::Streams(streams) = &self.session.channel else { return None };
        if let Some(number) = self.number() {
            return Some(number);
        }
        let number = *self.number.get_or_init(|| streams.open());
        self.opened.wake();
        Some(number)
    }

    /// Returns the stream's number if the stream was opened.
    pub fn number(&self) -> Option<u32> {
        self.number.get().copied()
    }

    /// Returns the stream's number if the stream was opened. Otherwise it stays closed, and later messages go to the stream of
    /// the GET.
    pub fn number_or_close(&self) -> Option<u32> {
        let number = *self.number.get_or_init(|| GET_STREAM);
        (number != GET_STREAM).then_some(number)
    }
}

#[derive(Default)]
struct PendingMessages {
    messages: VecDeque<Bytes>,
    bytes: usize,
    /// The memory of the principal that the messages take.
    share: Option<MemoryShare>,
}

/// The messages for one response, bounded in number and bytes, with a single reader.
pub struct ResponseQueue {
    max_messages: usize,
    max_bytes: usize,
    /// The memory in which the messages are counted and the principal whose share they take, if they are counted.
    memory: Option<(Arc<MemoryBudget>, Arc<Principal>)>,
    messages: Mutex<PendingMessages>,
    reader: AtomicWaker,
}

impl ResponseQueue {
    pub fn new(max_messages: usize, max_bytes: usize) -> Self {
        Self { max_messages, max_bytes, memory: None, messages: Mutex::default(), reader: AtomicWaker::new() }
    }

    /// Creates a queue like [`Self::new`], whose messages count as memory of the principal.
    pub fn with_memory(
        max_messages: usize,
        max_bytes: usize,
        memory: Arc<MemoryBudget>,
        principal: Arc<Principal>,
    ) -> Self {
        Self { memory: Some((memory, principal)), ..Self::new(max_messages, max_bytes) }
    }

    fn push(&self, message: Bytes) -> bool {
        {
            let mut pending = self.messages.lock();
            let bytes = pending.bytes + message.len();
            if pending.messages.len() >= self.max_messages || (bytes > self.max_bytes && pending.bytes > 0) {
                return false;
            }
            let counted = bytes.saturating_sub(EXEMPT_MESSAGE_BYTES);
            if let Some((memory, principal)) = self.memory.as_ref().filter(|_| counted > 0) {
                let share = pending.share.get_or_insert_with(|| memory.share(&principal.name));
                if !share.grow(counted.saturating_sub(share.bytes())) {
                    return false;
                }
            }
            pending.bytes = bytes;
            pending.messages.push_back(message);
        }
        self.reader.wake();
        true
    }

    /// Returns `Pending` while there are no messages.
    pub fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.reader.register(cx.waker());
        if self.messages.lock().messages.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Takes all pending messages.
    pub fn take(&self) -> Vec<Bytes> {
        std::mem::take(&mut *self.messages.lock()).messages.into()
    }
}

#[cfg(test)]
mod tests;

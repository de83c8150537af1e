//! Sends the messages that belong to one request and precede its answer.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use crate::{
    bounds::memory::{EXEMPT_BYTES, Memory, Share},
    session::shared::{Channel, SessionShared},
};
use countersign_domain::principal::Principal;

/// The channel for the messages of one request. They are never sent on the stream of another request.
#[derive(Clone)]
pub enum RelatedChannel {
    /// The session's only, ordered stream.
    Outbox(Arc<SessionShared>),
    /// The numbered SSE stream of a handshake-era HTTP request. The first message opens it.
    Stream(Arc<PostStream>),
    /// The response stream of one modern POST.
    Queue(Arc<ResponseQueue>),
    /// The client cannot receive such messages.
    Nowhere,
}

impl RelatedChannel {
    /// Sends a message. Returns `false` if it could not be queued.
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

/// The SSE stream of one handshake-era POST. Most requests are answered without opening it.
pub struct PostStream {
    pub session: Arc<SessionShared>,
    number: OnceLock<u32>,
    opened: AtomicWaker,
}

impl PostStream {
    #[must_use]
    pub fn new(session: Arc<SessionShared>) -> Self {
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

    /// Returns the stream's number if a message was sent on it.
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
struct PendingMessages {
    messages: VecDeque<Bytes>,
    bytes: usize,
    /// The memory of the principal that the messages take.
    share: Option<Share>,
}

impl PendingMessages {
    fn take(&mut self) -> Vec<Bytes> {
        self.bytes = 0;
        self.share = None;
        self.messages.drain(..).collect()
    }
}

/// The messages for one response, bounded in number and bytes, with a single reader.
pub struct ResponseQueue {
    max: usize,
    max_bytes: usize,
    /// The memory and the principal that the messages count for, if they are counted.
    owner: Option<(Arc<Memory>, Arc<Principal>)>,
    messages: Mutex<PendingMessages>,
    reader: AtomicWaker,
}

impl ResponseQueue {
    #[must_use]
    pub fn new(max: usize, max_bytes: usize) -> Self {
        Self { max, max_bytes, owner: None, messages: Mutex::default(), reader: AtomicWaker::new() }
    }

    /// Like [`Self::new`], for messages that count as memory of the principal.
    #[must_use]
    pub fn counted(max: usize, max_bytes: usize, memory: Arc<Memory>, principal: Arc<Principal>) -> Self {
        Self { owner: Some((memory, principal)), ..Self::new(max, max_bytes) }
    }

    fn push(&self, message: Bytes) -> bool {
        {
            let mut pending = self.messages.lock();
            let bytes = pending.bytes + message.len();
            if pending.messages.len() >= self.max || (bytes > self.max_bytes && pending.bytes > 0) {
                return false;
            }
            if let (Some((memory, principal)), counted @ 1..) = (&self.owner, bytes.saturating_sub(EXEMPT_BYTES)) {
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

    /// Takes all pending messages, or returns `Pending` while there are none.
    pub fn poll_take(&self, cx: &Context<'_>) -> Poll<Vec<Bytes>> {
        self.reader.register(cx.waker());
        let taken = self.messages.lock().take();
        if taken.is_empty() { Poll::Pending } else { Poll::Ready(taken) }
    }

    /// Puts back messages that were taken only to find out whether there are any.
    pub fn put_back(&self, taken: Vec<Bytes>) {
        let mut pending = self.messages.lock();
        pending.bytes += taken.iter().map(Bytes::len).sum::<usize>();
        taken.into_iter().rev().for_each(|message| pending.messages.push_front(message));
    }

    /// Takes all pending messages.
    pub fn take(&self) -> Vec<Bytes> {
        self.messages.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        session::{
            outbox::{Outbox, OutboxLimits},
            streams::Streams,
        },
        testing::identity,
    };
    use countersign_domain::principal::Role;
    use countersign_telemetry::metrics::Transport;

    fn session(transport: Transport, channel: Channel) -> Arc<SessionShared> {
        let identity = identity("ann", Role::Agent);
        Arc::new(SessionShared::new(transport, identity, channel, &CancellationToken::new()))
    }

    #[test]
    fn response_queue_is_bounded_but_accepts_one_long_message() {
        let queue = ResponseQueue::new(2, 10);
        let text = |n: usize| Bytes::from("x".repeat(n));
        assert!(queue.push(text(5)) && queue.push(text(5)));
        assert!(!queue.push(text(0)), "the queue has room for two messages");
        assert_eq!(queue.take().len(), 2);
        assert!(queue.push(text(100)), "a long message could never be sent otherwise");
        assert!(!queue.push(text(1)));
        let taken = queue.take();
        assert!(queue.push(text(1)));
        queue.put_back(taken);
        assert!(!queue.push(text(1)), "messages that were put back count");
        assert_eq!(queue.take().iter().map(Bytes::len).collect::<Vec<_>>(), [100, 1], "and comes first");
    }

    #[test]
    fn response_queue_takes_principals_memory_until_read() {
        let memory = Memory::new(40 << 10, 40 << 10);
        let principal = identity("ann", Role::Agent).principal;
        let queue = ResponseQueue::counted(100, 1 << 20, Arc::clone(&memory), principal);
        let message = || Bytes::from(vec![b'x'; 30 << 10]);
        assert!(queue.push(message()));
        assert_eq!(memory.used_by("ann"), (30 << 10) - EXEMPT_BYTES);
        assert!(!queue.push(message()), "there is no memory for another one");
        assert_eq!(queue.take().len(), 1);
        assert_eq!(memory.used_by("ann"), 0);
        assert!(queue.push(message()));
    }

    #[test]
    fn first_message_opens_stream_of_post() {
        let session = session(Transport::Http, Channel::Streams(Streams::new(10, 1000)));
        let stream = Arc::new(PostStream::new(Arc::clone(&session)));
        assert_eq!(stream.number(), None);
        let related = RelatedChannel::Stream(Arc::clone(&stream));
        assert!(related.send(Bytes::from("a")) && related.send(Bytes::from("b")));
        let number = stream.number().unwrap();
        let Channel::Streams(streams) = &session.channel else { unreachable!() };
        assert_eq!(streams.newest(number), Some(2), "both are on one stream");
        assert!(!RelatedChannel::Nowhere.send(Bytes::from("c")));
    }

    #[test]
    fn unread_message_of_request_ends_its_session() {
        let limits = OutboxLimits { messages: 1, bytes: 10, replay_frames: 0, replay_bytes: 0 };
        let session = session(Transport::WebSocket, Channel::Outbox(Outbox::new(limits)));
        let related = RelatedChannel::Outbox(Arc::clone(&session));
        assert!(related.send(Bytes::from("a")));
        assert!(!session.ended.is_cancelled());
        assert!(!related.send(Bytes::from("b")));
        assert!(session.ended.is_cancelled(), "a client that does not read loses its session");
        let none = self::session(Transport::Http, Channel::None);
        assert!(!RelatedChannel::Outbox(none).send(Bytes::from("a")));
    }
}

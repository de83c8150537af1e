//! The state that a session's requests share. Any thread can read it without a message to the session's actor.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;

use super::{
    facts::ClientFacts,
    outbox::{Outbox, PushError},
    questions::Questions,
    streams::{GET_STREAM, Streams},
};
use crate::bounds::{
    eviction::{self, Activity},
    memory::MemoryShare,
    slots::EvictableStream,
};
use countersign_domain::{
    policy::OwnedRequester,
    principal::{Credential, Identity, Principal},
    text::truncate,
};
use countersign_protocol::{Era, ErrorKind, McpError, RequestId, Revision, params::LoggingLevel};
use countersign_provider::{SessionNotes, Subscriber};
pub use countersign_telemetry::Transport;

/// The channels of a session to its client.
pub enum Channel {
    /// One ordered stream for answers and all other messages: WebSocket, stdio, HTTP + SSE of 2024-11-05.
    Outbox(Outbox),
    /// The SSE streams of handshake-era HTTP. Each message goes to exactly one of them.
    Streams(Streams),
    /// Stateless HTTP: each response and each subscription is a stream of its own.
    None,
}

/// The state of one session.
pub struct SessionState {
    /// 32 characters of a nanoid from a cryptographic source. If several gateways may serve the store, the name of the
    /// session's node and a dot come first.
    pub id: Arc<str>,
    pub transport: Transport,
    /// The principal that opened the session.
    principal: Arc<Principal>,
    /// See [`Self::identity`].
    identity: Mutex<Identity>,
    /// See [`Self::authorization`].
    authorization: Mutex<Option<Box<str>>>,
    pub created: Timestamp,
    pub channel: Channel,
    /// Cancelled when the session ends ([`SessionState::end`]) or when the gateway ends.
    pub ended: CancellationToken,
    /// The questions that the client has not answered yet.
    pub questions: Questions,
    /// The notes of modules about a handshake-era session.
    pub notes: Arc<SessionNotes>,
    facts: RwLock<Option<StoredFacts>>,
    initialized: AtomicBool,
    /// `true` once a result of the session has said how to open the dashboard.
    dashboard_hint_taken: AtomicBool,
    /// The time, by [`eviction::monotonic_ms`], at which the client last sent a message or read a stream.
    last_active: AtomicU64,
    /// The time, by [`eviction::monotonic_ms`], at which the client last sent a message.
    last_message: AtomicU64,
    log_level: AtomicU8,
    /// The requests in flight by their keys. There are few of them at a time.
    in_flight: Mutex<foldhash::HashMap<RequestKey, Cancellation>>,
    /// The number for the key of the next stateless request.
    next_request_number: AtomicU64,
    /// The subscribed URIs, each with its share of the principal's memory.
    subscriptions: Mutex<HashMap<String, MemoryShare>>,
}

/// The facts that the client stated, with their share of the principal's memory.
struct StoredFacts {
    facts: Arc<ClientFacts>,
    _share: MemoryShare,
}

/// The value of the log level while the client has set none.
const NO_LOG_LEVEL: u8 = u8::MAX;

/// The key of a request in flight within its session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestKey {
    /// The client's id, by which the client may cancel the request.
    Id(RequestId),
    /// A number of the gateway, for stateless requests: one connection may carry several clients with equal ids, behind a
    /// proxy or on HTTP/2 streams. Such a request is cancelled only by the end of its stream.
    Number(u64),
}

/// The cancellation of one request, by its client or by the end of its session.
///
/// Every request has one, and most requests need it only to wake the task that runs them. A [`CancellationToken`] takes
/// locks and an entry among its parent's children, so it is created only for handlers that pass it on.
#[derive(Clone, Default)]
pub struct Cancellation(Arc<CancellationState>);

#[derive(Default)]
struct CancellationState {
    is_cancelled: AtomicBool,
    waker: AtomicWaker,
    token: Mutex<Option<CancellationToken>>,
}

impl Cancellation {
    pub fn cancel(&self) {
        // The flag is set first, so that a token that is created meanwhile is cancelled, too.
        self.0.is_cancelled.store(true, Ordering::Release);
        self.0.waker.wake();
        if let Some(token) = &*self.0.token.lock() {
            token.cancel();
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// Waits until the request is cancelled. Only the task that waited last is woken.
    pub async fn cancelled(&self) {
        poll_fn(|cx| {
            if !self.is_cancelled() {
                self.0.waker.register(cx.waker());
            }
            if self.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Returns a token that many tasks may wait for. It is cancelled when the request is, or with the `parent` of the
    /// first call.
    #[must_use]
    pub fn token(&self, parent: &CancellationToken) -> CancellationToken {
        let mut token = self.0.token.lock();
        let token = token.get_or_insert_with(|| parent.child_token());
        if self.is_cancelled() {
            token.cancel();
        }
        token.clone()
    }
}

/// Wraps the token of another operation. [`Cancellation::token`] returns that same token.
impl From<CancellationToken> for Cancellation {
    fn from(token: CancellationToken) -> Self {
        Self(Arc::new(CancellationState { token: Mutex::new(Some(token)), ..CancellationState::default() }))
    }
}

impl SessionState {
    pub fn new(transport: Transport, identity: Identity, channel: Channel, parent: &CancellationToken) -> Self {
        let now = Timestamp::now();
        let end_token = parent.child_token();
        match &channel {
            Channel::Outbox(outbox) => outbox.set_end_token(end_token.clone()),
            Channel::Streams(streams) => streams.set_end_token(end_token.clone()),
            Channel::None => {}
        }
        Self {
            id: nanoid::nanoid!(32, &nanoid::alphabet::SAFE[2..]).into(),
            transport,
            principal: Arc::clone(&identity.principal),
            identity: Mutex::new(identity),
            authorization: Mutex::default(),
            created: now,
            channel,
            ended: end_token,
            questions: Questions::default(),
            notes: Arc::default(),
            facts: RwLock::new(None),
            initialized: AtomicBool::new(false),
            dashboard_hint_taken: AtomicBool::new(false),
            last_active: AtomicU64::new(eviction::monotonic_ms()),
            last_message: AtomicU64::new(eviction::monotonic_ms()),
            log_level: AtomicU8::new(NO_LOG_LEVEL),
            in_flight: Mutex::default(),
            next_request_number: AtomicU64::new(0),
            subscriptions: Mutex::default(),
        }
    }

    /// Prefixes the id with the name of its node, if several nodes may serve the store.
    #[must_use]
    pub fn with_node_prefix(self, node: Option<&str>) -> Self {
        match node {
            Some(node) => Self { id: format!("{node}.{}", self.id).into(), ..self },
            None => self,
        }
    }

    /// Returns the facts of the handshake, or of the latest request on a stateless connection.
    pub fn facts(&self) -> Option<Arc<ClientFacts>> {
        self.facts.read().as_ref().map(|stored| Arc::clone(&stored.facts))
    }

    /// Stores the facts that the client stated.
    pub fn set_facts(&self, facts: Arc<ClientFacts>, share: MemoryShare) {
        // The previous facts are dropped outside the lock, because their share takes a lock of its own.
        let _before = self.facts.write().replace(StoredFacts { facts, _share: share });
    }

    /// Returns `true` if exactly these facts are stored.
    pub fn has_facts(&self, facts: &Arc<ClientFacts>) -> bool {
        self.facts.read().as_ref().is_some_and(|stored| Arc::ptr_eq(&stored.facts, facts))
    }

    /// Returns `false` for the session of a stateless connection, which is for bookkeeping only.
    pub fn holds_state(&self) -> bool {
        !matches!(self.channel, Channel::None)
    }

    /// Returns `true` if the client has completed its handshake, or has sent a stateless request.
    pub fn is_established(&self) -> bool {
        !self.holds_state()
            || self.is_initialized()
            || self.facts.read().as_ref().is_some_and(|stored| stored.facts.revision.era() == Era::Modern)
    }

    /// Returns the revision that the handshake has negotiated, if there is one.
    pub fn legacy_revision(&self) -> Option<Revision> {
        self.facts.read().as_ref().map(|stored| stored.facts.revision).filter(|r| r.era() == Era::Legacy)
    }

    /// Notes that the client has sent `notifications/initialized`, or a request that may only follow it.
    pub fn mark_initialized(&self) {
        self.initialized.store(true, Ordering::Relaxed);
    }

    pub fn is_initialized(&self) -> bool {
        self.initialized.load(Ordering::Relaxed)
    }

    /// Returns `true` the first time. Only the first result of a session that waits for approval says how to open the
    /// dashboard.
    pub fn take_dashboard_hint(&self) -> bool {
        !self.dashboard_hint_taken.swap(true, Ordering::Relaxed)
    }

    /// Notes that the client has sent a message.
    pub fn touch(&self) {
        let now = eviction::monotonic_ms();
        self.last_active.store(now, Ordering::Relaxed);
        self.last_message.store(now, Ordering::Relaxed);
    }

    /// Notes that the client reads a stream, which keeps the session from expiring.
    pub fn touch_reader(&self) {
        self.last_active.store(eviction::monotonic_ms(), Ordering::Relaxed);
    }

    /// Returns the time for which the client has neither sent a message nor read a stream.
    pub fn idle(&self) -> Duration {
        Duration::from_millis(eviction::monotonic_ms().saturating_sub(self.last_active.load(Ordering::Relaxed)))
    }

    /// Returns the session's activity, which decides when it is evicted.
    pub fn activity(&self) -> Activity {
        if self.in_flight() > 0 {
            Activity::Busy
        } else if self.is_established() {
            Activity::Idle(self.last_message.load(Ordering::Relaxed))
        } else {
            Activity::Handshake
        }
    }

    /// Returns an evictable stream of this session. It ends when `end` is cancelled, and has the activity of the session.
    #[must_use]
    pub fn evictable(self: &Arc<Self>, end: CancellationToken) -> EvictableStream {
        let session = Arc::clone(self);
        EvictableStream::new(move || session.activity(), end)
    }

    /// Returns `true` if the client seems to have a connection open. Over handshake-era HTTP, this is a stream that is
    /// read or a request that is being answered.
    pub fn is_connected(&self) -> bool {
        match &self.channel {
            Channel::Outbox(outbox) => !outbox.is_detached(),
            Channel::Streams(streams) => streams.is_read() || self.in_flight() > 0,
            Channel::None => true,
        }
    }

    /// Returns the time of the last activity by the wall clock, for display.
    pub fn last_active(&self) -> Timestamp {
        Timestamp::now().saturating_sub(self.idle()).unwrap_or(self.created)
    }

    /// Sets the level below which log messages are not sent (2025-11-25/server/utilities/logging).
    pub fn set_log_level(&self, level: LoggingLevel) {
        self.log_level.store(level as u8, Ordering::Relaxed);
    }

    pub fn wants_log(&self, level: LoggingLevel) -> bool {
        level >= self.log_level().unwrap_or(LoggingLevel::Warning)
    }

    /// Returns the level that the client has set, if any.
    pub fn log_level(&self) -> Option<LoggingLevel> {
        LoggingLevel::ALL.get(usize::from(self.log_level.load(Ordering::Relaxed))).copied()
    }

    /// Registers a request in flight; [`Self::release_request`] must follow.
    ///
    /// # Errors
    /// `-32600` for an id that is in use, `OVERLOADED` if `max` requests are in flight.
    pub fn register_request(&self, id: &RequestId, max: usize) -> Result<(RequestKey, Cancellation), McpError> {
        let key = match self.channel {
            Channel::None => RequestKey::Number(self.next_request_number.fetch_add(1, Ordering::Relaxed)),
            Channel::Outbox(_) | Channel::Streams(_) => RequestKey::Id(id.clone()),
        };
        let mut in_flight = self.in_flight.lock();
        if in_flight.len() >= max {
            return Err(McpError::new(ErrorKind::Overloaded, "too many requests in flight").with("limit", max as u64));
        }
        let cancel = Cancellation::default();
        if self.ended.is_cancelled() {
            // [`Self::end`] has already cancelled the requests in flight, so this one is cancelled here.
            cancel.cancel();
        }
        match in_flight.entry(key.clone()) {
            std::collections::hash_map::Entry::Occupied(_) => {
                Err(McpError::new(ErrorKind::InvalidRequest, "a request with this id is still in flight"))
            }
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(cancel.clone());
                Ok((key, cancel))
            }
        }
    }

    /// Releases the key of a request that is no longer in flight.
    pub fn release_request(&self, key: &RequestKey) {
        let mut in_flight = self.in_flight.lock();
        in_flight.remove(key);
        if in_flight.is_empty() && in_flight.capacity() > 16 {
            in_flight.shrink_to_fit();
        }
    }

    /// Cancels a request of this session. Unknown ids are ignored (2025-11-25/basic/utilities/cancellation).
    pub fn cancel(&self, id: &RequestId) {
        if let Some(cancel) = self.in_flight.lock().get(&RequestKey::Id(id.clone())) {
            cancel.cancel();
        }
    }

    /// Ends the session and cancels all of its requests in flight.
    pub fn end(&self) {
        self.ended.cancel();
        self.in_flight.lock().values().for_each(Cancellation::cancel);
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.lock().len()
    }

    /// Stores a resource subscription.
    ///
    /// # Errors
    /// The errors of `share`, which takes the memory; `OVERLOADED` beyond `max` subscriptions.
    pub fn subscribe(
        &self,
        uri: &str,
        max: usize,
        share: impl FnOnce() -> Result<MemoryShare, McpError>,
    ) -> Result<(), McpError> {
        let mut subscriptions = self.subscriptions.lock();
        if subscriptions.contains_key(uri) {
            return Ok(());
        }
        if subscriptions.len() >= max {
            return Err(McpError::new(ErrorKind::Overloaded, "too many subscriptions").with("limit", max as u64));
        }
        subscriptions.insert(uri.to_owned(), share()?);
        Ok(())
    }

    pub fn unsubscribe(&self, uri: &str) {
        self.subscriptions.lock().remove(uri);
    }

    /// Removes and returns all subscriptions, for a session that ends.
    pub fn take_subscriptions(&self) -> Vec<String> {
        std::mem::take(&mut *self.subscriptions.lock()).into_keys().collect()
    }

    /// Queues a message in the outbox or in a stream, or drops one that the client can do without. Returns `false` if that
    /// fails. A client that does not read loses its session.
    pub(crate) fn push(&self, stream: u32, message: Bytes) -> bool {
        let queued = match &self.channel {
            Channel::Outbox(outbox) => outbox.push(message),
            Channel::Streams(streams) => streams.push(stream, message),
            Channel::None => Err(PushError::Closed),
        };
        match queued {
            Ok(()) | Err(PushError::Dispensable { is_first: false }) => true,
            Err(PushError::Dispensable { is_first: true }) => {
                tracing::warn!(
                    session = %self.short_id(),
                    "progress, logs and repeated notifications are dropped: more arrives than the client reads"
                );
                true
            }
            Err(PushError::Overflow) => {
                tracing::warn!(session = %self.short_id(), "the session ends: more arrives than its client reads");
                self.end();
                false
            }
            Err(PushError::Closed) => false,
        }
    }

    /// Sends a message that belongs to no request. A client that does not read loses its session.
    pub fn send_unsolicited(&self, message: Bytes) {
        self.push(GET_STREAM, message);
    }

    /// Returns the principal that opened the session.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// Returns the identity that keeps the session valid. Each message has the identity of its own request or connection.
    pub fn identity(&self) -> Identity {
        self.identity.lock().clone()
    }

    /// Replaces the identity by that of a connection that resumes the session, even if its token expires earlier.
    pub fn set_identity(&self, identity: Identity) {
        *self.identity.lock() = identity;
    }

    /// Replaces the token of the session by a newer one of its principal, unless the newer one expires earlier.
    pub fn renew(&self, identity: &Identity) {
        let mut current = self.identity.lock();
        if let (Credential::Token(old), Credential::Token(new)) = (&current.credential, &identity.credential)
            && !Arc::ptr_eq(old, new)
            && new.expires_at >= old.expires_at
        {
            *current = identity.clone();
        }
    }

    /// Returns the `Authorization` header with which other nodes may be asked on behalf of the client.
    pub fn authorization(&self) -> Option<Box<str>> {
        self.authorization.lock().clone()
    }

    /// Sets the header of [`Self::authorization`].
    pub fn set_authorization(&self, header: Option<Box<str>>) {
        *self.authorization.lock() = header;
    }

    /// Returns the part of the id that may be shown. The complete id would let others use the session.
    pub fn short_id(&self) -> String {
        format!("{}…", short_session_id(&self.id))
    }
}

/// Returns the part of a session id that may be shown, without the node's name, which all sessions of a gateway share.
pub fn short_session_id(id: &str) -> &str {
    truncate(id.split_once('.').map_or(id, |(_, random_part)| random_part), 8)
}

impl Subscriber for SessionState {
    fn id(&self) -> &Arc<str> {
        &self.id
    }

    fn principal(&self) -> &Principal {
        &self.principal
    }

    fn requester(&self) -> Option<OwnedRequester> {
        Some(self.facts()?.to_requester(self.identity().principal, self.transport))
    }

    fn send(&self, message: Bytes) {
        self.send_unsolicited(message);
    }
}

#[cfg(test)]
mod tests;

//! The state that a session's requests share. Any thread can read it without a message to the session's actor.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;

use super::{
    cancel::Cancel,
    facts::ClientFacts,
    outbox::Outbox,
    questions::Questions,
    streams::{GET_STREAM, Streams},
};
use crate::bounds::{
    eviction::{self, Hold},
    memory::Share,
    slots::Evictable,
};
use countersign_domain::principal::{Identity, Principal};
use countersign_protocol::{Era, ErrorKind, McpError, RequestId, Revision, params::LoggingLevel};
use countersign_provider::{SessionNotes, Subscriber};
pub use countersign_telemetry::Transport;

/// The channel for messages that belong to no request.
pub enum Channel {
    /// One ordered stream for answers and all other messages: WebSocket, stdio, the pair of 2024-11-05.
    Outbox(Outbox),
    /// The SSE streams of handshake-era HTTP. Each message goes to exactly one of them.
    Streams(Streams),
    /// Stateless HTTP has no such channel, because each subscription is a stream of its own.
    None,
}

/// The state of one session.
pub struct SessionShared {
    /// 32 characters of a nanoid from a cryptographic source. If several gateways may serve the store, the name of the
    /// session's node and a dot come first.
    pub id: Arc<str>,
    pub transport: Transport,
    pub identity: Identity,
    /// The `Authorization` header that opened the session, if other nodes may be asked on its behalf.
    pub authorization: Option<Box<str>>,
    pub created: Timestamp,
    pub channel: Channel,
    /// Cancelled when the session ends ([`SessionShared::end`]) or when the gateway ends.
    pub ended: CancellationToken,
    /// The questions that the client has not answered yet.
    pub questions: Questions,
    /// The notes of modules about a handshake-era session.
    pub notes: Arc<SessionNotes>,
    facts: RwLock<Option<StoredFacts>>,
    initialized: AtomicBool,
    /// The time, by [`eviction::now`], at which the client last sent a message or read a stream.
    last_active: AtomicU64,
    /// The time, by [`eviction::now`], at which the client last sent a message.
    last_message: AtomicU64,
    log_level: AtomicU8,
    /// The requests in flight by their keys. There are few of them at a time.
    in_flight: Mutex<HashMap<RequestKey, Cancel>>,
    last_number: AtomicU64,
    /// The subscribed URIs, each with its share of the principal's memory.
    subscriptions: Mutex<HashMap<String, Share>>,
}

/// The facts that the client stated, with their share of the principal's memory.
struct StoredFacts {
    facts: Arc<ClientFacts>,
    _share: Share,
}

/// The value of the log level while the client has set none.
const NO_LOG_LEVEL: u8 = u8::MAX;

/// The key of a request in flight within its session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestKey {
    /// The client's id, by which the client may cancel the request.
    Id(RequestId),
    /// A number of the gateway. One stateless connection may carry several clients with ids of their own, behind a
    /// proxy or on HTTP/2 streams. Such a request is cancelled only by the end of its stream.
    Number(u64),
}

/// The reason why a request is refused: its id is in use, or too many requests are in flight.
#[derive(Debug, PartialEq, Eq)]
pub enum AdmitFault {
    DuplicateId,
    TooMany,
}

impl SessionShared {
    #[must_use]
    pub fn new(transport: Transport, identity: Identity, channel: Channel, parent: &CancellationToken) -> Self {
        let now = Timestamp::now();
        let ended = parent.child_token();
        if let Channel::Outbox(outbox) = &channel {
            outbox.set_end_token(ended.clone());
        }
        Self {
            id: nanoid::nanoid!(32, &nanoid::alphabet::SAFE[2..]).into(),
            transport,
            identity,
            authorization: None,
            created: now,
            channel,
            ended,
            questions: Questions::default(),
            notes: Arc::default(),
            facts: RwLock::new(None),
            initialized: AtomicBool::new(false),
            last_active: AtomicU64::new(eviction::now()),
            last_message: AtomicU64::new(eviction::now()),
            log_level: AtomicU8::new(NO_LOG_LEVEL),
            in_flight: Mutex::default(),
            last_number: AtomicU64::new(0),
            subscriptions: Mutex::default(),
        }
    }

    /// Prefixes the id with the name of its node, if several nodes may serve the store.
    #[must_use]
    pub fn at_node(self, node: Option<&str>) -> Self {
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
    pub fn set_facts(&self, facts: Arc<ClientFacts>, share: Share) {
        // The previous facts are dropped outside the lock, because their share takes a lock of its own.
        let _before = self.facts.write().replace(StoredFacts { facts, _share: share });
    }

    /// Returns `true` if exactly these facts are stored.
    pub fn has_facts(&self, facts: &Arc<ClientFacts>) -> bool {
        self.facts.read().as_ref().is_some_and(|stored| Arc::ptr_eq(&stored.facts, facts))
    }

    /// Returns `true` if the client has completed its handshake, or has sent a stateless request.
    pub fn is_established(&self) -> bool {
        matches!(self.channel, Channel::None)
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

    /// Notes that the client has sent a message.
    pub fn touch(&self) {
        let now = eviction::now();
        self.last_active.store(now, Ordering::Relaxed);
        self.last_message.store(now, Ordering::Relaxed);
    }

    /// Notes that the client reads a stream, which keeps the session from expiring.
    pub fn touch_reader(&self) {
        self.last_active.store(eviction::now(), Ordering::Relaxed);
    }

    /// Returns the time for which the client has neither sent a message nor read a stream.
    pub fn idle(&self) -> Duration {
        Duration::from_millis(eviction::now().saturating_sub(self.last_active.load(Ordering::Relaxed)))
    }

    /// Returns the session's claim to its place.
    pub fn hold(&self) -> Hold {
        if self.in_flight() > 0 {
            Hold::Busy
        } else if self.is_established() {
            Hold::Idle(self.last_message.load(Ordering::Relaxed))
        } else {
            Hold::Handshake
        }
    }

    /// Returns an evictable stream of this session. It ends when `end` is cancelled, and is as busy as the session.
    #[must_use]
    pub fn evictable(self: &Arc<Self>, end: CancellationToken) -> Evictable {
        let session = Arc::clone(self);
        Evictable::new(move || session.hold(), end)
    }

    /// Returns `true` if the client seems to have a connection open: over handshake-era HTTP, a stream or a request
    /// that is being answered.
    pub fn is_connected(&self) -> bool {
        match &self.channel {
            Channel::Outbox(outbox) => !outbox.is_away(),
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

    /// Registers a request in flight; [`Self::release`] must follow.
    ///
    /// # Errors
    /// See [`AdmitFault`].
    pub fn admit(&self, id: &RequestId, max: usize) -> Result<(RequestKey, Cancel), AdmitFault> {
        let key = match self.channel {
            Channel::None => RequestKey::Number(self.last_number.fetch_add(1, Ordering::Relaxed)),
            Channel::Outbox(_) | Channel::Streams(_) => RequestKey::Id(id.clone()),
        };
        let mut in_flight = self.in_flight.lock();
        if in_flight.len() >= max {
            return Err(AdmitFault::TooMany);
        }
        let cancel = Cancel::default();
        if self.ended.is_cancelled() {
            // [`Self::end`] has already cancelled the requests in flight, so this one is cancelled here.
            cancel.cancel();
        }
        match in_flight.entry(key.clone()) {
            std::collections::hash_map::Entry::Occupied(_) => Err(AdmitFault::DuplicateId),
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(cancel.clone());
                Ok((key, cancel))
            }
        }
    }

    pub fn release(&self, key: &RequestKey) {
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
        self.in_flight.lock().values().for_each(Cancel::cancel);
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
        share: impl FnOnce() -> Result<Share, McpError>,
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

    /// Queues a message in the outbox. Returns `false` if that fails. A client that does not read loses its session.
    pub(crate) fn push(&self, outbox: &Outbox, message: Bytes) -> bool {
        let sent = outbox.push(message).is_ok();
        if !sent && outbox.overflowed() {
            tracing::warn!(session = %self.short_id(), "the session ends because its client does not read");
            self.end();
        }
        sent
    }

    /// Sends a message that belongs to no request. A client that does not read loses its session.
    pub fn send_unsolicited(&self, message: Bytes) {
        match &self.channel {
            Channel::Outbox(outbox) => _ = self.push(outbox, message),
            Channel::Streams(streams) => streams.push(GET_STREAM, message),
            Channel::None => {}
        }
    }

    /// Returns the principal that opened the session.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.identity.principal
    }

    /// Returns the part of the id that may be shown. The complete id would let others use the session.
    #[must_use]
    pub fn short_id(&self) -> String {
        format!("{}…", short_session_id(&self.id))
    }
}

/// Returns the part of a session id that may be shown, without the node's name, which all sessions of a gateway share.
#[must_use]
pub fn short_session_id(id: &str) -> String {
    id.split_once('.').map_or(id, |(_, random_part)| random_part).chars().take(8).collect()
}

impl Subscriber for SessionShared {
    fn id(&self) -> &Arc<str> {
        &self.id
    }

    fn principal(&self) -> &Principal {
        &self.identity.principal
    }

    fn send(&self, message: Bytes) {
        self.send_unsolicited(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bounds::memory::Memory,
        session::outbox::OutboxLimits,
        testing::{facts, identity},
    };
    use countersign_domain::principal::Role;

    fn session(channel: Channel) -> SessionShared {
        SessionShared::new(Transport::Http, identity("ann", Role::Agent), channel, &CancellationToken::new())
    }

    fn outbox() -> Channel {
        let limits = OutboxLimits { messages: 10, bytes: 1000, replay_frames: 0, replay_bytes: 0 };
        Channel::Outbox(Outbox::new(limits))
    }

    fn id() -> RequestId {
        RequestId::from_raw("1")
    }

    #[test]
    fn session_is_connected_while_its_client_can_be_seen() {
        let of_socket = session(outbox());
        assert!(of_socket.is_connected());
        let Channel::Outbox(socket) = &of_socket.channel else { panic!("no outbox") };
        socket.detach();
        assert!(!of_socket.is_connected());
        let over_http = session(Channel::Streams(Streams::new(10, 1000)));
        assert!(!over_http.is_connected());
        let (key, _) = over_http.admit(&id(), 10).unwrap();
        assert!(over_http.is_connected());
        over_http.release(&key);
        assert!(!over_http.is_connected());
        let Channel::Streams(streams) = &over_http.channel else { panic!("no streams") };
        let reader = streams.attach(GET_STREAM);
        assert!(reader.is_some() && over_http.is_connected());
        drop(reader);
        assert!(!over_http.is_connected());
    }

    #[test]
    fn request_id_is_unique_in_session_and_cancels_its_request() {
        let session = session(outbox());
        let (key, cancel) = session.admit(&id(), 10).unwrap();
        assert_eq!(session.admit(&id(), 10).err(), Some(AdmitFault::DuplicateId));
        session.cancel(&RequestId::from_raw("2"));
        session.cancel(&RequestId::from_raw("\"1\""));
        assert!(!cancel.is_cancelled(), "neither id is that of the request");
        session.cancel(&id());
        assert!(cancel.is_cancelled());
        session.release(&key);
        let (_, again) = session.admit(&id(), 10).unwrap();
        assert!(!again.is_cancelled());
    }

    #[test]
    fn clients_on_one_stateless_connection_may_use_equal_ids() {
        let session = session(Channel::None);
        let (first, cancel) = session.admit(&id(), 2).unwrap();
        let (second, _) = session.admit(&id(), 2).unwrap();
        assert_ne!(first, second);
        assert_eq!(session.admit(&id(), 2).err(), Some(AdmitFault::TooMany));
        session.cancel(&id());
        assert!(!cancel.is_cancelled(), "the ids of several clients may be equal");
    }

    #[test]
    fn end_of_session_cancels_its_requests() {
        let session = session(outbox());
        let (_, cancel) = session.admit(&id(), 10).unwrap();
        session.end();
        assert!(cancel.is_cancelled());
        let (_, late) = session.admit(&RequestId::from_raw("2"), 10).unwrap();
        assert!(late.is_cancelled(), "a request that arrives after the end is cancelled, too");
    }

    #[test]
    fn hold_is_busy_or_idle_or_handshake_by_state() {
        let (session, memory) = (session(outbox()), Memory::new(1000, 1000));
        assert_eq!(session.hold(), Hold::Handshake);
        session.set_facts(facts(Revision::V2025_11_25, "{}").into(), memory.share("ann"));
        assert_eq!(session.hold(), Hold::Handshake, "the handshake is not finished");
        session.mark_initialized();
        assert!(matches!(session.hold(), Hold::Idle(_)));
        let (key, _) = session.admit(&id(), 10).unwrap();
        assert_eq!(session.hold(), Hold::Busy);
        session.release(&key);
        assert!(matches!(session.hold(), Hold::Idle(_)));
        assert!(matches!(self::session(Channel::None).hold(), Hold::Idle(_)), "stateless clients have no handshake");
    }

    #[test]
    fn subscriptions_are_limited_counted_once_and_released() {
        let (session, memory) = (session(outbox()), Memory::new(100, 100));
        let subscribe = |uri: &str, max| session.subscribe(uri, max, || memory.take("ann", 60));
        subscribe("a:1", 2).unwrap();
        subscribe("a:1", 2).unwrap();
        assert_eq!(memory.used_by("ann"), 60, "a repeated subscription counts once");
        assert_eq!(subscribe("a:2", 2).unwrap_err().kind, ErrorKind::Overloaded, "the principal has no memory left");
        assert_eq!(subscribe("a:2", 1).unwrap_err().data["limit"], 1);
        session.unsubscribe("a:1");
        assert_eq!(memory.used_by("ann"), 0);
        subscribe("a:3", 1).unwrap();
        assert_eq!(session.take_subscriptions(), ["a:3"]);
        assert_eq!(memory.used_by("ann"), 0);
    }

    #[test]
    fn only_handshake_facts_set_legacy_revision() {
        let (session, memory) = (session(outbox()), Memory::new(1000, 1000));
        session.set_facts(facts(Revision::MODERN, "{}").into(), memory.take("ann", 10).unwrap());
        assert_eq!((session.legacy_revision(), session.is_established()), (None, true));
        session.set_facts(facts(Revision::V2025_06_18, "{}").into(), memory.take("ann", 20).unwrap());
        assert_eq!((session.legacy_revision(), memory.used_by("ann")), (Some(Revision::V2025_06_18), 20));
    }
}

//! What a session's requests share, readable from any thread without a hop to its actor.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;

use super::{
    ask::Questions,
    cancel::Cancel,
    outbox::Outbox,
    streams::{GET_STREAM, Streams},
};
pub use crate::telemetry::Transport;
use crate::{
    auth::{Identity, Principal},
    fast_map::FastMap,
    protocol::{
        Era, RequestId, Revision,
        params::{Implementation, LoggingLevel},
    },
};

/// What a client said of itself: in its handshake, or in the `_meta` of one modern request.
#[derive(Clone, Debug)]
pub struct ClientFacts {
    pub revision: Revision,
    /// Optional in the modern era. Self-reported: never used for a decision.
    pub client: Option<Implementation>,
    /// The same as JSON text, as the client wrote it.
    pub client_info: Option<Arc<str>>,
    /// The declared capabilities, as JSON text.
    pub capabilities: Arc<str>,
}

/// Where messages that belong to no request go.
pub enum Channel {
    /// One ordered stream both for answers and for everything else: WebSocket, stdio, the 2024-11-05 pair.
    Outbox(Outbox),
    /// Handshake-era HTTP: each message to exactly one SSE stream.
    Streams(Streams),
    /// Stateless HTTP has none: subscriptions are streams of their own.
    None,
}

/// See the module's page.
pub struct SessionShared {
    /// 32 characters of a nanoid from a cryptographic source.
    pub id: Arc<str>,
    pub transport: Transport,
    pub identity: Identity,
    pub created: Timestamp,
    pub channel: Channel,
    /// Cancelled when the session ends ([`SessionShared::end`]), or the gateway.
    pub ended: CancellationToken,
    /// What the client was asked and has not answered yet.
    pub questions: Questions,
    facts: RwLock<Option<Arc<ClientFacts>>>,
    initialized: AtomicBool,
    /// Idle time is told by a clock that nobody sets.
    began: Instant,
    /// Milliseconds after `began`.
    last_active: AtomicU64,
    log_level: AtomicU8,
    /// By ids that clients choose, of which there are few at a time.
    in_flight: Mutex<FastMap<Key, Cancel>>,
    numbered: AtomicU64,
    subscriptions: Mutex<HashSet<String>>,
}

/// No log level: the client has set none.
const UNSET: u8 = u8::MAX;

/// What a request in flight is known by in its session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// By its client's id, which cancels it.
    Id(RequestId),
    /// By a number of ours: on one stateless connection there may be several clients (behind a proxy, or on HTTP/2
    /// streams), each with ids of its own, and only the end of its stream cancels a request.
    Number(u64),
}

/// The id is in use by a request that has not been answered, or there are too many of them.
#[derive(Debug, PartialEq, Eq)]
pub enum AdmitFault {
    DuplicateId,
    TooMany,
}

impl SessionShared {
    #[must_use]
    pub fn new(transport: Transport, identity: Identity, channel: Channel, parent: &CancellationToken) -> Self {
        let now = Timestamp::now();
        Self {
            id: nanoid::nanoid!(32).into(),
            transport,
            identity,
            created: now,
            channel,
            ended: parent.child_token(),
            questions: Questions::default(),
            facts: RwLock::new(None),
            initialized: AtomicBool::new(false),
            began: Instant::now(),
            last_active: AtomicU64::new(0),
            log_level: AtomicU8::new(UNSET),
            in_flight: Mutex::default(),
            numbered: AtomicU64::new(0),
            subscriptions: Mutex::default(),
        }
    }

    /// What the client said in its handshake (or, for a stateless connection, in its latest request).
    pub fn facts(&self) -> Option<Arc<ClientFacts>> {
        self.facts.read().clone()
    }

    pub fn set_facts(&self, facts: Arc<ClientFacts>) {
        *self.facts.write() = Some(facts);
    }

    /// The negotiated handshake revision, once there is one.
    pub fn legacy_revision(&self) -> Option<Revision> {
        self.facts.read().as_ref().map(|f| f.revision).filter(|r| r.era() == Era::Legacy)
    }

    /// The client has sent `notifications/initialized` (or anything that only comes after it).
    pub fn mark_initialized(&self) {
        self.initialized.store(true, Ordering::Relaxed);
    }

    pub fn is_initialized(&self) -> bool {
        self.initialized.load(Ordering::Relaxed)
    }

    pub fn touch(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_active.store(since, Ordering::Relaxed);
    }

    /// For how long nothing was heard of its client.
    pub fn idle(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.last_active.load(Ordering::Relaxed)))
    }

    /// For people: by the wall clock as it is now.
    pub fn last_active(&self) -> Timestamp {
        Timestamp::now().saturating_sub(self.idle()).unwrap_or(self.created)
    }

    /// Log messages below this level are not sent (2025-11-25/server/utilities/logging).
    pub fn set_log_level(&self, level: LoggingLevel) {
        self.log_level.store(level as u8, Ordering::Relaxed);
    }

    pub fn logs(&self, level: LoggingLevel) -> bool {
        level >= self.log_level().unwrap_or(LoggingLevel::Warning)
    }

    /// The level that the client has set, if it has.
    pub fn log_level(&self) -> Option<LoggingLevel> {
        LoggingLevel::ALL.get(usize::from(self.log_level.load(Ordering::Relaxed))).copied()
    }

    /// Registers a request in flight; [`Self::release`] must follow.
    ///
    /// # Errors
    /// See [`AdmitFault`].
    pub fn admit(&self, id: &RequestId, max: usize) -> Result<(Key, Cancel), AdmitFault> {
        let key = match self.channel {
            Channel::None => Key::Number(self.numbered.fetch_add(1, Ordering::Relaxed)),
            Channel::Outbox(_) | Channel::Streams(_) => Key::Id(id.clone()),
        };
        let mut in_flight = self.in_flight.lock();
        if in_flight.len() >= max {
            return Err(AdmitFault::TooMany);
        }
        let cancel = Cancel::default();
        if self.ended.is_cancelled() {
            // It came too late for [`Self::end`] to find it.
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

    pub fn release(&self, key: &Key) {
        let mut in_flight = self.in_flight.lock();
        in_flight.remove(key);
        if in_flight.is_empty() && in_flight.capacity() > 16 {
            in_flight.shrink_to_fit();
        }
    }

    /// Cancels a request of this session; unknown ids are ignored (2025-11-25/basic/utilities/cancellation).
    pub fn cancel(&self, id: &RequestId) {
        if let Some(cancel) = self.in_flight.lock().get(&Key::Id(id.clone())) {
            cancel.cancel();
        }
    }

    /// Ends the session, and with it every request in flight.
    pub fn end(&self) {
        self.ended.cancel();
        self.in_flight.lock().values().for_each(Cancel::cancel);
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.lock().len()
    }

    /// Remembers a resource subscription; `false` if it is one too many.
    pub fn subscribe(&self, uri: &str, max: usize) -> bool {
        let mut subscriptions = self.subscriptions.lock();
        if subscriptions.contains(uri) {
            return true;
        }
        if subscriptions.len() >= max {
            return false;
        }
        subscriptions.insert(uri.to_owned());
        true
    }

    pub fn unsubscribe(&self, uri: &str) {
        self.subscriptions.lock().remove(uri);
    }

    /// The subscriptions of a session that ends.
    pub fn take_subscriptions(&self) -> Vec<String> {
        std::mem::take(&mut *self.subscriptions.lock()).into_iter().collect()
    }

    /// Queues a message in its outbox; `false` if it could not be. A peer that does not read ends its session.
    pub(super) fn push(&self, outbox: &Outbox, message: Bytes) -> bool {
        let sent = outbox.push(message).is_ok();
        if !sent && outbox.overflowed() {
            tracing::warn!(session = %self.short_id(), "client does not read, session ends");
            self.end();
        }
        sent
    }

    /// Sends a message that belongs to no request. A peer that does not read ends its session.
    pub fn send_unsolicited(&self, message: Bytes) {
        match &self.channel {
            Channel::Outbox(outbox) => _ = self.push(outbox, message),
            Channel::Streams(streams) => streams.push(GET_STREAM, message),
            Channel::None => {}
        }
    }

    /// Who opened it.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.identity.principal
    }

    /// What may be shown of the id: it is a bearer of the session, so never the whole of it.
    #[must_use]
    pub fn short_id(&self) -> String {
        self.id.chars().take(8).chain(['…']).collect()
    }
}

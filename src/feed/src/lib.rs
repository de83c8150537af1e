//! The feed: committed change events in order of their numbers, and session events, to any number of subscribers.
//!
//! Never decides what happens to a change, and never slows the one that announces it.
//!
//! [`Feed`] is a ring in memory with the store behind it: a [`FeedSubscription`] that falls behind the ring reads the
//! store and joins again, so that no change event is missed or repeated. Each [`FeedEvent`] is serialized once.

use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;
use tokio::sync::broadcast::{self, error::RecvError};

use countersign_domain::changes::{Change, ChangeState};
use countersign_store::{Store, StoreError, StoredEvent, Written};
use countersign_telemetry::ConnectionGuard;

/// Events read from the store at a time, for one subscriber that is behind.
const REPLAY: usize = 64;

/// Which change an event is about, for subscribers inside the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedChange {
    pub id: String,
    pub version: u64,
    pub state: ChangeState,
    /// Its proposer's principal.
    pub principal: String,
}

/// One event, as bytes that all subscribers share.
#[derive(Debug)]
pub struct FeedEvent {
    /// `None` for session events: they are live only and cannot be resumed after.
    pub seq: Option<u64>,
    /// `change.created`, `session.opened`, `hello`, …
    pub kind: Cow<'static, str>,
    /// The event's JSON, on one line: the payload of a WebSocket frame.
    pub json: Bytes,
    /// The same as a whole SSE event: `id` (numbered ones), `event`, `data`, blank line.
    pub sse: Bytes,
    /// `None` for session events.
    pub change: Option<FeedChange>,
}

impl FeedEvent {
    fn new(seq: Option<u64>, kind: Cow<'static, str>, json: &[u8], change: Option<FeedChange>) -> Self {
        let mut frame = BytesMut::with_capacity(json.len() + kind.len() + 48);
        if let Some(seq) = seq {
            frame.put_slice(format!("id: {seq}\n").as_bytes());
        }
        frame.put_slice(b"event: ");
        frame.put_slice(kind.as_bytes());
        frame.put_slice(b"\ndata: ");
        let start = frame.len();
        frame.put_slice(json);
        let end = frame.len();
        frame.put_slice(b"\n\n");
        let sse = frame.freeze();
        Self { seq, kind, json: sse.slice(start..end), sse, change }
    }

    /// What a subscriber without `since` hears first: where the feed stands.
    #[must_use]
    pub fn hello(seq: u64) -> Self {
        let json = format!(r#"{{"type":"hello","seq":{seq}}}"#);
        Self::new(None, "hello".into(), json.as_bytes(), None)
    }

    /// What a subscriber hears whose place lies before the oldest event that is kept: everything up to this number is
    /// gone, so what it knows is to be read again.
    fn reset(seq: u64) -> Self {
        let json = format!(r#"{{"type":"reset","seq":{seq}}}"#);
        Self::new(Some(seq), "reset".into(), json.as_bytes(), None)
    }

    /// Makes the event of a transition that was just committed.
    #[must_use]
    pub fn committed(written: &Written, kind: &'static str, change: &Change) -> Self {
        let change = FeedChange {
            id: change.id.clone(),
            version: change.version,
            state: change.state,
            principal: change.proposer.principal.clone(),
        };
        Self::new(Some(written.seq), kind.into(), &written.event, Some(change))
    }

    /// Makes an event of one that was read from the store, about that change.
    #[must_use]
    pub fn from_stored(event: StoredEvent, change: FeedChange) -> Self {
        Self::new(Some(event.seq), event.kind.into(), event.data.as_bytes(), Some(change))
    }

    fn stored(event: StoredEvent) -> Result<Self, StoreError> {
        #[derive(Deserialize)]
        struct Outer {
            change: Inner,
        }
        #[derive(Deserialize)]
        struct Inner {
            id: String,
            version: u64,
            state: ChangeState,
            proposer: Who,
        }
        #[derive(Deserialize)]
        struct Who {
            principal: String,
        }
        let Outer { change } = serde_json::from_str(&event.data)
            .map_err(|e| StoreError::BadRecord(format!("feed event {}: {e}", event.seq)))?;
        let change = FeedChange {
            id: change.id,
            version: change.version,
            state: change.state,
            principal: change.proposer.principal,
        };
        Ok(Self::from_stored(event, change))
    }
}

struct Live {
    /// The number of the last event that was announced.
    head: u64,
    /// `None` once the feed is closed.
    ring: Option<broadcast::Sender<Arc<FeedEvent>>>,
}

/// The handle to the feed. Cheap to clone.
#[derive(Clone)]
pub struct Feed {
    live: Arc<Mutex<Live>>,
    store: Arc<dyn Store>,
}

impl Feed {
    /// Makes the feed of a store. `head` is the number of the store's last event, `ring` how many events are kept in memory.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, head: u64, ring: usize) -> Self {
        let (ring, _) = broadcast::channel(ring.max(1));
        Self { live: Arc::new(Mutex::new(Live { head, ring: Some(ring) })), store }
    }

    /// The number of the last change event that was announced; 0 before the first.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.lock().head
    }

    /// Subscribers at this moment.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        self.lock().ring.as_ref().map_or(0, broadcast::Sender::receiver_count)
    }

    /// From now on, or, with `since`, everything after that number first. A `since` beyond the end of the feed
    /// (from another database) counts as the end. `None` once the feed is closed.
    #[must_use]
    pub fn subscribe(&self, since: Option<u64>) -> Option<FeedSubscription> {
        let live = self.lock();
        let events = live.ring.as_ref()?.subscribe();
        let last = since.unwrap_or(live.head);
        Some(FeedSubscription {
            events,
            store: Arc::clone(&self.store),
            last,
            behind: last < live.head,
            doubtful: (last > live.head).then_some(live.head),
            replay: VecDeque::new(),
            _counted: ConnectionGuard::subscriber(),
        })
    }

    /// Tells everybody who listens of a session. The event's `type` is `session.opened` or `session.closed`.
    pub fn publish_session(&self, event: &serde_json::Value) {
        let kind = event.get("type").and_then(serde_json::Value::as_str).unwrap_or("session").to_owned();
        let event = FeedEvent::new(None, kind.into(), event.to_string().as_bytes(), None);
        if let Some(ring) = &self.lock().ring {
            // An error means that nobody listens.
            let _ = ring.send(Arc::new(event));
        }
    }

    /// Announces an event that is durable. Only `PendingChanges` calls this, in order of the numbers.
    pub fn publish(&self, event: FeedEvent) {
        let mut live = self.lock();
        if let Some(seq) = event.seq {
            live.head = seq;
        }
        if let Some(ring) = &live.ring {
            let _ = ring.send(Arc::new(event));
        }
    }

    /// Ends the feed: subscribers get what is in the ring, and then the end.
    pub fn close(&self) {
        self.lock().ring = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One subscriber's place in the feed.
pub struct FeedSubscription {
    events: broadcast::Receiver<Arc<FeedEvent>>,
    store: Arc<dyn Store>,
    /// The last change event that was handed out.
    last: u64,
    /// What comes next is in the store and perhaps no longer in the ring.
    behind: bool,
    /// `last` is beyond what was announced then, which was this; the store knows whether it exists.
    doubtful: Option<u64>,
    replay: VecDeque<Arc<FeedEvent>>,
    _counted: ConnectionGuard,
}

impl FeedSubscription {
    /// The number of the last change event that was handed out, or was asked to start after.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.last
    }

    /// The next event; `None` when the feed is closed or the store cannot be read (subscribe again from
    /// [`FeedSubscription::position`]). Cancel-safe: nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Arc<FeedEvent>> {
        loop {
            if let Some(event) = self.replay.pop_front() {
                self.last = event.seq.unwrap_or(self.last);
                return Some(event);
            }
            if self.doubtful.is_some() || self.behind {
                if let Err(error) = self.catch_up().await {
                    if !matches!(error, StoreError::Closed) {
                        tracing::warn!(%error, "a feed subscriber cannot be served from the store");
                    }
                    return None;
                }
                continue;
            }
            match self.events.recv().await {
                Ok(event) => match event.seq {
                    None => return Some(event),
                    Some(seq) if seq <= self.last => {}
                    Some(seq) if seq == self.last + 1 => {
                        self.last = seq;
                        return Some(event);
                    }
                    Some(_) => self.behind = true,
                },
                Err(RecvError::Lagged(_)) => self.behind = true,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    async fn catch_up(&mut self) -> Result<(), StoreError> {
        if let Some(end) = self.doubtful {
            // An event may be durable, and read by someone, before it is announced.
            if self.last > self.store.heads().await?.event {
                self.last = end;
            }
            self.doubtful = None;
            return Ok(());
        }
        let events = self.store.events_after(self.last, REPLAY).await?;
        let all = events.len() < REPLAY;
        let pruned =
            events.first().filter(|first| first.seq > self.last + 1).map(|first| FeedEvent::reset(first.seq - 1));
        let replay = events.into_iter().map(|e| FeedEvent::stored(e).map(Arc::new)).collect::<Result<_, _>>()?;
        self.replay = replay;
        if let Some(reset) = pruned {
            self.replay.push_front(Arc::new(reset));
        }
        self.behind = !all;
        Ok(())
    }
}

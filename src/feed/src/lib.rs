//! The feed: committed change events in order of their sequence numbers, and live events without numbers, for any number
//! of subscribers.
//!
//! The feed never decides what happens to a change, and never delays the code that publishes events.
//!
//! [`Feed`] is a ring in memory backed by the store. A [`FeedSubscription`] that falls behind the ring reads from the
//! store until it catches up, so that no change event is missed or repeated. Each [`FeedEvent`] is serialized once.

use std::{borrow::Cow, collections::VecDeque, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::broadcast::{self, error::RecvError};

use countersign_domain::changes::{Change, ChangeState};
use countersign_store::{CommittedWrite, Heads, Store, StoreError, StoreFuture, StoredEvent};
use countersign_telemetry::GaugeGuard;

/// The number of events that a subscriber which is behind reads from the store at a time.
const CATCH_UP_BATCH: usize = 64;
/// The maximum number of tools that the JSON of a live event names.
const MAX_NAMED_TOOLS: usize = 20;
/// The maximum size of the names of all tools that a live event keeps in memory.
const MAX_TOOL_NAMES_BYTES: usize = 8 << 10;

/// The change that an event is about, for subscribers inside the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct FeedChange {
    pub id: String,
    pub version: u64,
    pub state: ChangeState,
    pub proposer: FeedProposer,
}

/// The proposer of a change in the feed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct FeedProposer {
    /// The principal's name.
    pub principal: String,
}

/// Parses the change in the JSON of a stored event.
///
/// # Errors
/// [`StoreError::BadRecord`] if the event is not the record of a transition.
pub fn parse_change<C: DeserializeOwned>(event: &StoredEvent) -> Result<C, StoreError> {
    #[derive(Deserialize)]
    struct EventData<C> {
        change: C,
    }
    let parsed = serde_json::from_str(&event.data);
    let EventData { change } = parsed.map_err(|e| StoreError::BadRecord(format!("feed event {}: {e}", event.seq)))?;
    Ok(change)
}

/// An event, as bytes that all subscribers share.
#[derive(Debug)]
pub struct FeedEvent {
    /// The sequence number; `None` for live events and `hello`, which are not stored. `reset` has the number that the
    /// next change event follows.
    pub seq: Option<u64>,
    /// The type of the event, such as `change.created`, `session.opened` or `hello`.
    pub kind: Cow<'static, str>,
    /// The event's JSON on one line, as sent in a WebSocket frame.
    pub json: Bytes,
    /// The complete SSE event: `id` (if numbered), `event`, `data`, blank line.
    pub sse: Bytes,
    /// The change that a change event is about; `None` for other events.
    pub change: Option<FeedChange>,
    /// All tools of a live event about tools, of which its JSON names only the first ones; empty if they are too many to keep.
    /// `None` for other events.
    pub tools: Option<Vec<String>>,
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
        Self { seq, kind, json: sse.slice(start..end), sse, change, tools: None }
    }

    /// Creates the first event for a subscriber that does not resume. It contains the current sequence number.
    pub fn hello(seq: u64) -> Self {
        let json = format!(r#"{{"type":"hello","seq":{seq}}}"#);
        Self::new(None, "hello".into(), json.as_bytes(), None)
    }

    /// Creates the event for a subscriber whose position is before the oldest stored event or beyond the last one. The
    /// subscriber must read the current state again and continue after `seq`.
    fn reset(seq: u64) -> Self {
        let json = format!(r#"{{"type":"reset","seq":{seq}}}"#);
        Self::new(Some(seq), "reset".into(), json.as_bytes(), None)
    }

    /// Creates the event of a transition that was just committed.
    pub fn from_committed(written: &CommittedWrite, kind: &'static str, change: &Change) -> Self {
        let change = FeedChange {
            id: change.id.clone(),
            version: change.version,
            state: change.state,
            proposer: FeedProposer { principal: change.proposer.principal.clone() },
        };
        Self::new(Some(written.seq), kind.into(), &written.event, Some(change))
    }

    /// Creates an event that was read from the store, about the given change.
    pub fn from_stored(event: StoredEvent, change: FeedChange) -> Self {
        Self::new(Some(event.seq), event.kind.into(), event.data.as_bytes(), Some(change))
    }
}

/// The state that all handles of the feed share.
struct FeedState {
    /// The sequence number of the last published change event.
    head: u64,
    /// `None` once the feed is closed.
    ring: Option<broadcast::Sender<Arc<FeedEvent>>>,
}

/// The handle to the feed. Cheap to clone.
#[derive(Clone)]
pub struct Feed {
    shared: Arc<Mutex<FeedState>>,
    store: Arc<dyn Store>,
}

impl Feed {
    /// Creates the feed of a store. `head` is the sequence number of the store's last event, and `ring_size` the number
    /// of events kept in memory.
    pub fn new(store: Arc<dyn Store>, head: u64, ring_size: usize) -> Self {
        let (ring, _) = broadcast::channel(ring_size.max(1));
        Self { shared: Arc::new(Mutex::new(FeedState { head, ring: Some(ring) })), store }
    }

    /// Returns the sequence number of the last published change event; 0 before the first.
    pub fn head(&self) -> u64 {
        self.shared.lock().head
    }

    /// Returns the current number of subscribers.
    #[cfg(any(test, feature = "testing"))]
    pub fn subscriber_count(&self) -> usize {
        self.shared.lock().ring.as_ref().map_or(0, broadcast::Sender::receiver_count)
    }

    /// Subscribes to new events, and to stored events after the number `since` if given. If the store has no event of
    /// that number yet, such as after a restore from a backup, the feed begins with a `reset` to its end. Returns `None`
    /// once the feed is closed.
    #[must_use]
    pub fn subscribe(&self, since: Option<u64>) -> Option<FeedSubscription> {
        let shared = self.shared.lock();
        let events = shared.ring.as_ref()?.subscribe();
        let position = since.unwrap_or(shared.head);
        Some(FeedSubscription {
            events,
            store: Arc::clone(&self.store),
            position,
            is_behind: position < shared.head,
            fallback_position: (position > shared.head).then_some(shared.head),
            backlog: VecDeque::new(),
            pending_heads: None,
            pending_events: None,
            _gauge_guard: GaugeGuard::subscriber(),
        })
    }

    /// Publishes a live event, such as `session.opened` or `rule.created`, to all subscribers. Its kind is the member
    /// `type` of the JSON. Of its `tools`, only the first ones are sent.
    pub fn publish_live(&self, event: &Value) {
        let kind = event.get("type").and_then(Value::as_str).unwrap_or("live").to_owned();
        let mut event = event.clone();
        let tools = event.get_mut("tools").and_then(Value::as_array_mut).map(|names| {
            let all_names = names.iter().filter_map(Value::as_str);
            // The ring keeps events for a long time, and a server may have thousands of tools.
            let fits = all_names.clone().map(str::len).sum::<usize>() <= MAX_TOOL_NAMES_BYTES;
            let tools = if fits { all_names.map(str::to_owned).collect() } else { Vec::new() };
            names.truncate(MAX_NAMED_TOOLS);
            tools
        });
        let live = FeedEvent::new(None, kind.into(), event.to_string().as_bytes(), None);
        self.publish(FeedEvent { tools, ..live });
    }

    /// Publishes an event. Only `PendingChanges` publishes change events, in order of the sequence numbers.
    pub fn publish(&self, event: FeedEvent) {
        let mut shared = self.shared.lock();
        if let Some(seq) = event.seq {
            shared.head = seq;
        }
        if let Some(ring) = &shared.ring {
            // An error means that there is no subscriber.
            let _ = ring.send(Arc::new(event));
        }
    }

    /// Closes the feed. Subscribers still receive the events in the ring.
    pub fn close(&self) {
        self.shared.lock().ring = None;
    }
}

/// A subscriber's position in the feed.
pub struct FeedSubscription {
    events: broadcast::Receiver<Arc<FeedEvent>>,
    store: Arc<dyn Store>,
    /// The sequence number of the last change event that was returned.
    position: u64,
    /// The next events must be read from the store, because the ring may no longer hold them.
    is_behind: bool,
    /// The published head when the subscription began, if `position` was beyond it. The subscriber is reset to it if the store
    /// has no event of that number either.
    fallback_position: Option<u64>,
    /// Events that were read from the store and not returned yet.
    backlog: VecDeque<Arc<FeedEvent>>,
    /// Reads that have not ended. They outlive a dropped [`FeedSubscription::next`], so that a caller who waits only briefly
    /// makes progress with a slow store, too.
    pending_heads: Option<StoreFuture<Heads>>,
    pending_events: Option<StoreFuture<Vec<StoredEvent>>>,
    _gauge_guard: GaugeGuard,
}

impl FeedSubscription {
    /// Returns the sequence number of the last returned change event, or the requested start.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next event. `None` means that the feed is closed or the store cannot be read; subscribe again from
    /// [`FeedSubscription::position`]. Cancel-safe: dropping the future loses no event, and a read of the store continues.
    pub async fn next(&mut self) -> Option<Arc<FeedEvent>> {
        loop {
            if let Some(event) = self.backlog.pop_front() {
                self.position = event.seq.unwrap_or(self.position);
                return Some(event);
            }
            if self.fallback_position.is_some() || self.is_behind {
                if let Err(error) = self.catch_up().await {
                    if !matches!(error, StoreError::Closed) {
                        tracing::warn!(%error, "the store cannot be read for a feed subscriber; the subscription ends");
                    }
                    return None;
                }
                continue;
            }
            match self.events.recv().await {
                Ok(event) => match event.seq {
                    None => return Some(event),
                    Some(seq) if seq <= self.position => {}
                    Some(seq) if seq == self.position + 1 => {
                        self.position = seq;
                        return Some(event);
                    }
                    Some(_) => self.is_behind = true,
                },
                Err(RecvError::Lagged(_)) => self.is_behind = true,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    async fn catch_up(&mut self) -> Result<(), StoreError> {
        if let Some(fallback_position) = self.fallback_position {
            // An event may be durable, and read by a client of this or another node, before this node publishes it.
            let heads = await_read(&mut self.pending_heads, || self.store.heads()).await?;
            if self.position > heads.event {
                self.backlog.push_back(Arc::new(FeedEvent::reset(fallback_position)));
            }
            self.fallback_position = None;
            return Ok(());
        }
        let read = || self.store.events_after(self.position, CATCH_UP_BATCH);
        let events = await_read(&mut self.pending_events, read).await?;
        let may_have_more = events.len() == CATCH_UP_BATCH;
        let reset =
            events.first().filter(|first| first.seq > self.position + 1).map(|first| FeedEvent::reset(first.seq - 1));
        let stored = events.into_iter().map(|event| {
            let change = parse_change(&event)?;
            Ok(FeedEvent::from_stored(event, change))
        });
        let events = reset.map(Ok).into_iter().chain(stored);
        self.backlog = events.map(|event| event.map(Arc::new)).collect::<Result<_, StoreError>>()?;
        self.is_behind = may_have_more;
        Ok(())
    }
}

/// Awaits the read in `reading`, which is started if there is none and stays there until it has ended.
async fn await_read<T>(
    reading: &mut Option<StoreFuture<T>>,
    start: impl FnOnce() -> StoreFuture<T>,
) -> Result<T, StoreError> {
    let answer = reading.get_or_insert_with(start).await;
    *reading = None;
    answer
}

//! Bounds the number of long-lived requests of each principal, so that none of them can exhaust the gateway's memory.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::eviction::{Activity, EvictionQueue};
use countersign_protocol::{ErrorKind, McpError};

/// The slots for long-lived requests of each principal at all endpoints (streams, feeds, listeners, waits), up to
/// `limits.max_streams`.
pub struct StreamSlots {
    max_per_principal: usize,
    /// The number for the next stream that may be evicted. None is used twice, because the slot of an evicted stream may be
    /// dropped long after the eviction.
    next_number: AtomicU64,
    principals: Mutex<HashMap<String, PrincipalStreams>>,
}

/// The open streams and waits of one principal.
#[derive(Default)]
struct PrincipalStreams {
    count: usize,
    /// The streams that may be evicted, by number.
    streams: HashMap<u64, EvictableStream>,
    queue: EvictionQueue<u64>,
}

/// A stream that may be evicted to make room for another one.
pub struct EvictableStream {
    /// Returns the activity of the stream.
    activity: Box<dyn Fn() -> Activity + Send + Sync>,
    /// Cancelled to end the stream.
    end: CancellationToken,
}

impl EvictableStream {
    /// Creates a stream that ends when `end` is cancelled.
    #[must_use]
    pub fn new(activity: impl Fn() -> Activity + Send + Sync + 'static, end: CancellationToken) -> Self {
        Self { activity: Box::new(activity), end }
    }
}

impl StreamSlots {
    pub fn new(max_per_principal: usize) -> Arc<Self> {
        Arc::new(Self { max_per_principal, next_number: AtomicU64::new(0), principals: Mutex::default() })
    }

    /// Takes a slot for a stream or wait that is never evicted. The slot is released when it is dropped.
    ///
    /// # Errors
    /// `OVERLOADED` if the principal has no slot left and none of its streams can be evicted.
    pub fn take(self: &Arc<Self>, principal: &str) -> Result<StreamSlot, McpError> {
        self.take_slot(principal, None, true)
    }

    /// Takes a slot like [`Self::take`] for a stream that may be evicted later.
    ///
    /// # Errors
    /// The errors of [`Self::take`].
    pub fn take_evictable(self: &Arc<Self>, principal: &str, stream: EvictableStream) -> Result<StreamSlot, McpError> {
        self.take_slot(principal, Some(stream), true)
    }

    /// Takes a free slot for a stream that may be evicted later. No other stream is evicted for it.
    ///
    /// # Errors
    /// `OVERLOADED` if the principal has no slot left.
    pub fn take_evictable_if_free(
        self: &Arc<Self>,
        principal: &str,
        stream: EvictableStream,
    ) -> Result<StreamSlot, McpError> {
        self.take_slot(principal, Some(stream), false)
    }

    fn take_slot(
        self: &Arc<Self>,
        principal: &str,
        stream: Option<EvictableStream>,
        may_evict: bool,
    ) -> Result<StreamSlot, McpError> {
        let mut principals = self.principals.lock();
        let principal_streams = principals.entry(principal.to_owned()).or_default();
        if principal_streams.count >= self.max_per_principal && !(may_evict && principal_streams.evict_one()) {
            let message = format!("{} streams and waits are open already (limits.max_streams)", self.max_per_principal);
            return Err(McpError::new(ErrorKind::Overloaded, message).with("limit", self.max_per_principal as u64));
        }
        principal_streams.count += 1;
        let number = stream.map(|stream| {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            let PrincipalStreams { streams, queue, count } = principal_streams;
            streams.insert(number, stream);
            queue.add(number, *count, |key| streams.get(key).map(|stream| (stream.activity)()));
            number
        });
        Ok(StreamSlot { slots: Arc::clone(self), principal: principal.to_owned(), number })
    }
}

impl PrincipalStreams {
    fn evict_one(&mut self) -> bool {
        let Self { streams, queue, .. } = self;
        let activity = |key: &u64| streams.get(key).map(|stream| (stream.activity)());
        let Some(stream) =
            queue.next(activity, || streams.keys().copied().collect()).and_then(|key| streams.remove(&key))
        else {
            return false;
        };
        tracing::debug!("a stream is evicted to make room for another one");
        stream.end.cancel();
        self.count -= 1;
        true
    }
}

/// A slot of [`StreamSlots`], which is released when it is dropped.
pub struct StreamSlot {
    slots: Arc<StreamSlots>,
    principal: String,
    /// The number of the stream, if it may be evicted.
    number: Option<u64>,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut principals = self.slots.principals.lock();
        let Some(principal_streams) = principals.get_mut(&self.principal) else { return };
        // An evicted stream has no slot to release.
        if self.number.is_none_or(|number| principal_streams.streams.remove(&number).is_some()) {
            principal_streams.count -= 1;
        }
        if principal_streams.count == 0 {
            principals.remove(&self.principal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_per_principal_and_dropped_slot_is_free() {
        let slots = StreamSlots::new(2);
        let held = [slots.take("alice").unwrap(), slots.take("alice").unwrap()];
        assert_eq!(slots.take("alice").err().unwrap().kind, ErrorKind::Overloaded);
        let _bob = slots.take("bob").unwrap();
        drop(held);
        let _again = slots.take("alice").unwrap();
        assert_eq!(slots.principals.lock().len(), 2);
    }

    #[test]
    fn limit_of_zero_admits_nothing() {
        let slots = StreamSlots::new(0);
        assert!(slots.take("alice").is_err());
        assert_eq!(slots.principals.lock().get("alice").map_or(0, |principal_streams| principal_streams.count), 0);
    }

    #[test]
    fn idle_stream_is_evicted_but_wait_is_not() {
        let slots = StreamSlots::new(2);
        let _wait = slots.take("alice").unwrap();
        let ends = [CancellationToken::new(), CancellationToken::new()];
        let stream = |activity, end: &CancellationToken| EvictableStream::new(move || activity, end.clone());
        let idle = slots.take_evictable("alice", stream(Activity::Idle(1), &ends[0])).unwrap();
        assert!(
            slots.take_evictable_if_free("alice", stream(Activity::Busy, &ends[1])).is_err() && !ends[0].is_cancelled()
        );
        let busy = slots.take_evictable("alice", stream(Activity::Busy, &ends[1])).unwrap();
        assert!(ends[0].is_cancelled());
        assert!(slots.take("alice").is_err());
        // The dropped slot of an evicted stream is not released a second time.
        drop(idle);
        assert!(slots.take("alice").is_err());
        drop(busy);
        assert!(slots.take("alice").is_ok());
        assert!(!ends[1].is_cancelled());
    }

    #[test]
    fn late_drop_of_evicted_stream_frees_no_newer_slot() {
        let slots = StreamSlots::new(1);
        let stream = || EvictableStream::new(|| Activity::Idle(1), CancellationToken::new());
        let evicted = slots.take_evictable("alice", stream()).unwrap();
        drop(slots.take_evictable("alice", stream()).unwrap());
        let _newer = slots.take_evictable("alice", stream()).unwrap();
        drop(evicted);
        assert!(slots.take_evictable_if_free("alice", stream()).is_err());
    }
}

//! Counts what each principal keeps open: one that opens ever more must not take the gateway's memory.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::eviction::{Hold, Queue};
use countersign_protocol::{ErrorKind, McpError};

/// Long-lived requests of each principal at every endpoint (streams, feeds, listeners, waits), up to
/// `limits.max_streams`.
pub struct StreamSlots {
    max: usize,
    open: Mutex<HashMap<String, Own>>,
}

/// The open streams and waits of one principal.
#[derive(Default)]
struct Own {
    count: usize,
    last: u64,
    /// Those of them whose places may be taken.
    streams: HashMap<u64, Evictable>,
    queue: Queue<u64>,
}

/// A stream that may have to make room for another.
pub struct Evictable {
    /// Returns the stream's claim to its place.
    hold: Box<dyn Fn() -> Hold + Send + Sync>,
    /// Ends it.
    end: CancellationToken,
}

impl Evictable {
    /// One that ends when `end` is cancelled.
    #[must_use]
    pub fn new(hold: impl Fn() -> Hold + Send + Sync + 'static, end: CancellationToken) -> Self {
        Self { hold: Box::new(hold), end }
    }
}

impl StreamSlots {
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default() })
    }

    /// A place for one of them, free again when dropped. It is never taken from it.
    ///
    /// # Errors
    /// `OVERLOADED` when the principal has all of its own, and none of them can go.
    pub fn take(self: &Arc<Self>, principal: &str) -> Result<StreamSlot, McpError> {
        self.take_for(principal, None)
    }

    /// Like [`Self::take`], for a stream that may lose its place to another one.
    ///
    /// # Errors
    /// The errors of [`Self::take`].
    pub fn take_for(self: &Arc<Self>, principal: &str, stream: Option<Evictable>) -> Result<StreamSlot, McpError> {
        let mut open = self.open.lock();
        let own = open.entry(principal.to_owned()).or_default();
        if own.count >= self.max && !own.evict_one() {
            let why = format!("{} streams and waits are open already (limits.max_streams)", self.max);
            return Err(McpError::new(ErrorKind::Overloaded, why).with("limit", self.max as u64));
        }
        own.count += 1;
        own.last += 1;
        let number = stream.map(|stream| {
            let number = own.last;
            own.streams.insert(number, stream);
            let Own { streams, queue, count, .. } = own;
            queue.joined(number, *count, |key| streams.get(key).map(|stream| (stream.hold)()));
            number
        });
        Ok(StreamSlot { slots: Arc::clone(self), principal: principal.to_owned(), number })
    }
}

impl Own {
    fn evict_one(&mut self) -> bool {
        let Self { streams, queue, .. } = self;
        let hold = |key: &u64| streams.get(key).map(|stream| (stream.hold)());
        let Some(stream) = queue.next(hold, || streams.keys().copied().collect()).and_then(|key| streams.remove(&key))
        else {
            return false;
        };
        tracing::debug!("a stream makes room for another");
        stream.end.cancel();
        self.count -= 1;
        true
    }
}

/// See [`StreamSlots::take`].
pub struct StreamSlot {
    slots: Arc<StreamSlots>,
    principal: String,
    /// The number of the stream, if its place may be taken.
    number: Option<u64>,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self.slots.open.lock();
        let Some(own) = open.get_mut(&self.principal) else { return };
        // One whose place was taken has none to give back.
        if self.number.is_none_or(|number| own.streams.remove(&number).is_some()) {
            own.count -= 1;
        }
        if own.count == 0 {
            open.remove(&self.principal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_principal_has_its_own_and_gets_them_back() {
        let slots = StreamSlots::new(2);
        let held = [slots.take("alice").unwrap(), slots.take("alice").unwrap()];
        assert_eq!(slots.take("alice").err().unwrap().kind, ErrorKind::Overloaded);
        let _bob = slots.take("bob").unwrap();
        drop(held);
        let _again = slots.take("alice").unwrap();
        assert_eq!(slots.open.lock().len(), 2);
    }

    #[test]
    fn a_limit_of_none_keeps_nothing() {
        let slots = StreamSlots::new(0);
        assert!(slots.take("alice").is_err());
        assert_eq!(slots.open.lock().get("alice").map_or(0, |own| own.count), 0);
    }

    #[test]
    fn a_stream_gives_its_place_up_and_a_wait_does_not() {
        let slots = StreamSlots::new(2);
        let _wait = slots.take("alice").unwrap();
        let ends = [CancellationToken::new(), CancellationToken::new()];
        let stream = |hold, end: &CancellationToken| Some(Evictable::new(move || hold, end.clone()));
        let idle = slots.take_for("alice", stream(Hold::Idle(1), &ends[0])).unwrap();
        let busy = slots.take_for("alice", stream(Hold::Busy, &ends[1])).unwrap();
        assert!(ends[0].is_cancelled());
        assert!(slots.take("alice").is_err());
        // Its end gives nothing back a second time.
        drop(idle);
        assert!(slots.take("alice").is_err());
        drop(busy);
        assert!(slots.take("alice").is_ok());
        assert!(!ends[1].is_cancelled());
    }
}

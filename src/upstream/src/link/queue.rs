//! What waits to be written to a server: bounded, so that one that does not read its stdin costs a bounded amount.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::link::wire::Line;
use countersign_provider::Permit;

/// What may wait, in bytes. One message always may, however long.
const MAX_BYTES: usize = 16 << 20;
/// What an entry costs beside its bytes.
const OVERHEAD: usize = 64;
/// What is handed to the writer at once, unless one message alone is longer.
const BATCH: usize = 64 << 10;

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
}

#[derive(Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<QueuedLine>,
    bytes: usize,
    closed: bool,
    /// The requests of what the writer has now.
    writing: Vec<u64>,
    /// Those of which it could not write a byte.
    unwritten: Vec<u64>,
    /// Those that might not go out any more when it was their turn.
    withheld: Vec<u64>,
}

/// One message that waits.
pub(super) struct QueuedLine {
    /// The request that it is, so that it can be taken back.
    pub id: Option<u64>,
    pub line: Bytes,
    /// See [`crate::link::Outgoing::permit`].
    pub permit: Option<Permit>,
}

impl QueuedLine {
    fn cost(&self) -> usize {
        self.line.len() + OVERHEAD
    }
}

impl Queue {
    /// Puts one message in. Callable from any thread.
    pub(super) fn push(&self, id: Option<u64>, line: Line) -> Result<(), Refused> {
        self.put(QueuedLine { id, line: line.into(), permit: None }, false)
    }

    /// Puts a request in, which is written only if it may be when it is its turn.
    pub(super) fn push_permitted(&self, id: u64, line: Line, permit: Option<Permit>) -> Result<(), Refused> {
        self.put(QueuedLine { id: Some(id), line: line.into(), permit }, false)
    }

    /// Puts in what is bounded by something else.
    pub(super) fn push_anyway(&self, line: Line) -> Result<(), Refused> {
        self.put(QueuedLine { id: None, line: line.into(), permit: None }, true)
    }

    fn put(&self, entry: QueuedLine, anyway: bool) -> Result<(), Refused> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Err(Refused::Closed);
        }
        if !anyway && !inner.waiting.is_empty() && inner.bytes + entry.cost() > MAX_BYTES {
            return Err(Refused::Full);
        }
        inner.bytes += entry.cost();
        inner.waiting.push_back(entry);
        drop(inner);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes a request back of which nothing was written; `false` if it was, or may have been.
    pub(super) fn withdraw(&self, id: u64) -> bool {
        let mut inner = self.inner.lock();
        let Some(at) = inner.waiting.iter().position(|entry| entry.id == Some(id)) else { return false };
        if let Some(entry) = inner.waiting.remove(at) {
            inner.bytes -= entry.cost();
        }
        true
    }

    /// Nothing more is taken; what waits is still written.
    pub(super) fn close(&self) {
        self.inner.lock().closed = true;
        self.changed.notify_one();
    }

    /// Nothing more is taken nor written. Returns the requests of which nothing was.
    pub(super) fn abandon(&self) -> Vec<u64> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.bytes = 0;
        let mut unsent = std::mem::take(&mut inner.unwritten);
        unsent.extend(inner.waiting.drain(..).filter_map(|entry| entry.id));
        drop(inner);
        self.changed.notify_one();
        unsent
    }

    /// Nothing of what [`Self::next`] gave last could be written.
    pub(super) fn unwritten(&self) {
        let mut inner = self.inner.lock();
        let writing = std::mem::take(&mut inner.writing);
        inner.unwritten.extend(writing);
    }

    /// What could not be written any more since it was asked last.
    pub(super) fn withheld(&self) -> Vec<u64> {
        std::mem::take(&mut self.inner.lock().withheld)
    }

    /// Returns the next message, for a writer that looks at its permit itself; `None` once the queue is closed and empty.
    pub(super) async fn pop(&self) -> Option<QueuedLine> {
        loop {
            {
                let mut inner = self.inner.lock();
                if let Some(entry) = inner.waiting.pop_front() {
                    inner.bytes -= entry.cost();
                    return Some(entry);
                }
                if inner.closed {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    /// The next lines, for the one writer, or none where some were withheld; `false` once it is closed and empty.
    pub(super) async fn next(&self, out: &mut BytesMut) -> bool {
        loop {
            {
                let mut inner = self.inner.lock();
                inner.writing.clear();
                while let Some(entry) = inner.waiting.front() {
                    if !out.is_empty() && out.len() + entry.line.len() > BATCH {
                        break;
                    }
                    let (cost, id) = (entry.cost(), entry.id);
                    let permitted = entry.permit.as_ref().is_none_or(Permit::is_valid);
                    if permitted {
                        out.reserve(entry.line.len() + 1);
                        out.put_slice(&entry.line);
                        out.put_u8(b'\n');
                    }
                    inner.bytes -= cost;
                    if permitted { &mut inner.writing } else { &mut inner.withheld }.extend(id);
                    inner.waiting.pop_front();
                }
                if !out.is_empty() || !inner.withheld.is_empty() {
                    return true;
                }
                if inner.closed {
                    return false;
                }
            }
            self.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: impl Into<Bytes>) -> Line {
        Line::of(text.into())
    }

    async fn next(queue: &Queue) -> Option<String> {
        let mut out = BytesMut::new();
        queue.next(&mut out).await.then(|| String::from_utf8(out.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn messages_are_lines_in_order() {
        let queue = Queue::default();
        queue.push(Some(1), line("{\"a\":\r\n 1}")).unwrap();
        queue.push(None, line("{}")).unwrap();
        assert_eq!(next(&queue).await.unwrap(), "{\"a\":   1}\n{}\n");
        queue.push(Some(2), line("[2]")).unwrap();
        queue.close();
        assert_eq!(queue.push(Some(3), line("3")), Err(Refused::Closed));
        assert_eq!(next(&queue).await.unwrap(), "[2]\n");
        assert_eq!(next(&queue).await, None);
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_can_be_taken_back() {
        let queue = Queue::default();
        let large = line(vec![b'1'; MAX_BYTES + 1]);
        queue.push(Some(1), large.clone()).unwrap();
        assert_eq!(queue.push(Some(2), line("2")), Err(Refused::Full));
        queue.push_anyway(line("3")).unwrap();
        assert!(queue.withdraw(1) && !queue.withdraw(1));
        queue.push(Some(4), line("4")).unwrap();
        assert_eq!(queue.push(Some(5), large), Err(Refused::Full));
        assert_eq!(next(&queue).await.unwrap(), "3\n4\n");
        assert!(!queue.withdraw(4));
        queue.push(Some(6), line("6")).unwrap();
        queue.unwritten();
        assert_eq!(queue.abandon(), [4, 6]);
        assert_eq!(next(&queue).await, None);
    }

    #[tokio::test]
    async fn what_waits_for_its_turn_is_written_only_if_it_still_may() {
        let queue = Queue::default();
        let permit = |holds: bool| Some(Permit(std::sync::Arc::new(move || holds)));
        queue.push_permitted(1, line("1"), permit(false)).unwrap();
        assert_eq!(next(&queue).await.unwrap(), "", "whoever waits for it is told at once");
        assert_eq!(queue.withheld(), [1]);
        queue.push_permitted(2, line("2"), permit(false)).unwrap();
        queue.push_permitted(3, line("3"), permit(true)).unwrap();
        queue.push(Some(4), line("4")).unwrap();
        assert_eq!(next(&queue).await.unwrap(), "3\n4\n");
        assert_eq!((queue.withheld(), queue.withheld()), (vec![2], vec![]));
        queue.unwritten();
        assert_eq!(queue.abandon(), [3, 4]);
    }

    #[tokio::test]
    async fn a_batch_is_not_much_longer_than_it_should_be() {
        let queue = Queue::default();
        for id in 0..4 {
            queue.push(Some(id), line(vec![b'1'; BATCH / 2])).unwrap();
        }
        assert!(next(&queue).await.unwrap().len() <= BATCH);
        assert!(queue.withdraw(3), "it still waits");
    }
}

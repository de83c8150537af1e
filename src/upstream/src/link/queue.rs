//! The queue of messages that wait to be written to a server. Their bytes are limited, because a server may not read.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use countersign_provider::Permit;

/// The maximum number of bytes of all waiting messages. One message is always accepted, however long it is.
const MAX_BYTES: usize = 16 << 20;
/// The number of bytes that are counted for a message in addition to its text.
const OVERHEAD_BYTES: usize = 64;

/// The reason why a message was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueError {
    Full,
    Closed,
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    changed: Notify,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<QueuedMessage>,
    bytes: usize,
    is_closed: bool,
}

/// A waiting message.
#[derive(Debug)]
pub(super) struct QueuedMessage {
    /// The id of a request, by which it can be withdrawn.
    pub id: Option<u64>,
    /// The message on one line, without a line end.
    pub text: Bytes,
    /// See [`crate::link::OutgoingRequest::permit`].
    pub permit: Option<Permit>,
}

impl QueuedMessage {
    /// Returns the number of bytes that the message counts in the queue.
    fn cost(&self) -> usize {
        self.text.len() + OVERHEAD_BYTES
    }
}

impl Queue {
    /// Appends a message. Callable from any thread.
    pub(super) fn push(&self, id: Option<u64>, text: Bytes, permit: Option<Permit>) -> Result<(), QueueError> {
        self.append(QueuedMessage { id, text, permit }, MAX_BYTES)
    }

    /// Appends a message regardless of the limit. The caller must limit such messages.
    pub(super) fn push_unlimited(&self, text: Bytes) -> Result<(), QueueError> {
        self.append(QueuedMessage { id: None, text, permit: None }, usize::MAX)
    }

    fn append(&self, message: QueuedMessage, max_bytes: usize) -> Result<(), QueueError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(QueueError::Closed);
        }
        if !state.waiting.is_empty() && state.bytes + message.cost() > max_bytes {
            return Err(QueueError::Full);
        }
        state.bytes += message.cost();
        state.waiting.push_back(message);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Withdraws a waiting request. Returns `false` if the writer has taken the request already.
    pub(super) fn withdraw(&self, id: u64) -> bool {
        let mut state = self.state.lock();
        let index = state.waiting.iter().position(|message| message.id == Some(id));
        let message = index.and_then(|index| state.waiting.remove(index));
        state.bytes -= message.as_ref().map_or(0, QueuedMessage::cost);
        message.is_some()
    }

    /// Accepts no more messages. The waiting ones are still written.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Closes the queue, and returns the ids of the requests that were not written.
    pub(super) fn abandon(&self) -> Vec<u64> {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.bytes = 0;
        let unsent = state.waiting.drain(..).filter_map(|message| message.id).collect();
        drop(state);
        self.changed.notify_one();
        unsent
    }

    /// Puts messages back after the writer could not write a single byte of them.
    pub(super) fn restore(&self, messages: Vec<QueuedMessage>) {
        let mut state = self.state.lock();
        for message in messages.into_iter().rev() {
            state.bytes += message.cost();
            state.waiting.push_front(message);
        }
    }

    /// Returns the next message, if one is waiting and meets the condition.
    pub(super) fn try_pop_if(&self, condition: impl FnOnce(&QueuedMessage) -> bool) -> Option<QueuedMessage> {
        let mut state = self.state.lock();
        let message = state.waiting.pop_front_if(|message| condition(message))?;
        state.bytes -= message.cost();
        Some(message)
    }

    /// Waits for the next message. Returns `None` once the queue is closed and empty.
    pub(super) async fn pop(&self) -> Option<QueuedMessage> {
        loop {
            if let Some(message) = self.try_pop_if(|_| true) {
                return Some(message);
            }
            if self.state.lock().is_closed {
                return self.try_pop_if(|_| true);
            }
            self.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(queue: &Queue) -> Option<String> {
        queue.pop().await.map(|message| String::from_utf8(message.text.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn messages_keep_their_order_until_queue_is_closed() {
        let queue = Queue::default();
        queue.push(Some(1), "1".into(), None).unwrap();
        queue.push(None, "2".into(), None).unwrap();
        assert_eq!(next(&queue).await.unwrap(), "1");
        queue.close();
        assert_eq!(queue.push(Some(3), "3".into(), None), Err(QueueError::Closed));
        assert_eq!(next(&queue).await.unwrap(), "2");
        assert_eq!(next(&queue).await, None);
    }

    #[tokio::test]
    async fn waiting_messages_are_limited_and_can_be_withdrawn() {
        let queue = Queue::default();
        let large = Bytes::from(vec![b'1'; MAX_BYTES + 1]);
        queue.push(Some(1), large.clone(), None).unwrap();
        assert_eq!(queue.push(Some(2), "2".into(), None), Err(QueueError::Full));
        queue.push_unlimited("3".into()).unwrap();
        assert!(queue.withdraw(1) && !queue.withdraw(1));
        queue.push(Some(4), "4".into(), None).unwrap();
        assert_eq!(queue.push(Some(5), large, None), Err(QueueError::Full));
        assert_eq!(next(&queue).await.unwrap(), "3");
        let unwritten = queue.pop().await.unwrap();
        assert!(!queue.withdraw(4));
        queue.push(Some(6), "6".into(), None).unwrap();
        queue.restore(vec![unwritten]);
        assert_eq!(queue.abandon(), [4, 6]);
        assert_eq!(next(&queue).await, None);
    }
}

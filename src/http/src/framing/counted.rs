//! Counts what the messages of a WebSocket hold of the room that there is for bodies ([`countersign_exchange::inflow`]).
//!
//! The bytes are counted as they come in, before the codec gathers them, and are held until the message is answered.

use std::{
    cell::RefCell,
    collections::VecDeque,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};

use actix_web_actors::ws::CloseCode;
use bytes::Bytes;

use countersign_exchange::inflow::{Held, Intake, SMALL};
use countersign_protocol::McpError;

/// What the pump takes for each message that it gets.
#[derive(Clone, Default)]
pub struct Room(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    /// For the messages that were let through, in their order.
    held: VecDeque<Option<Held>>,
    full: bool,
}

impl Room {
    /// What the next message holds.
    #[must_use]
    pub fn of_message(&self) -> Option<Held> {
        self.0.borrow_mut().held.pop_front().flatten()
    }

    /// Close code and reason, if there was no room for a message.
    #[must_use]
    pub fn close(&self) -> Option<(CloseCode, &'static str)> {
        self.0.borrow().full.then_some((CloseCode::Again, "no room for the message at the moment"))
    }
}

type Growing = Pin<Box<dyn Future<Output = (Held, Result<(), McpError>)>>>;

/// Counts pieces of a connection's input.
pub struct Counting {
    intake: Arc<Intake>,
    room: Room,
    /// Of the message that is coming in.
    held: Option<Held>,
    /// A piece that waits for room, with the number of messages that end in it.
    waits: Option<(Bytes, usize, Growing)>,
}

impl Counting {
    #[must_use]
    pub fn new(intake: Arc<Intake>) -> (Self, Room) {
        let room = Room::default();
        (Self { intake, room: room.clone(), held: None, waits: None }, room)
    }

    /// A piece that waited, once there is room for it. `Ready(None)` where none waits.
    ///
    /// # Errors
    /// There was no room for it in time.
    pub fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ()>>> {
        let Some((_, _, growing)) = &mut self.waits else { return Poll::Ready(None) };
        let (held, grown) = ready!(growing.as_mut().poll(cx));
        let Some((piece, ended, _)) = self.waits.take() else { return Poll::Ready(None) };
        if grown.is_err() {
            self.room.0.borrow_mut().full = true;
            return Poll::Ready(Some(Err(())));
        }
        self.held = Some(held);
        self.pass(ended);
        Poll::Ready(Some(Ok(piece)))
    }

    /// Counts a piece in which so many messages end; gives it back if there is room for it now.
    pub fn take(&mut self, piece: Bytes, ended: usize) -> Option<Bytes> {
        if self.held.is_none() && piece.len() <= SMALL {
            self.pass(ended);
            return Some(piece);
        }
        let mut held = self.held.take().unwrap_or_else(|| self.intake.hold());
        let bytes = piece.len();
        if held.try_grow(bytes) {
            self.held = Some(held);
            self.pass(ended);
            return Some(piece);
        }
        let growing = Box::pin(async move {
            let grown = held.grow(bytes).await;
            (held, grown)
        });
        self.waits = Some((piece, ended, growing));
        None
    }

    /// The first message that ends takes with it what was counted, the others nothing.
    fn pass(&mut self, ended: usize) {
        let mut state = self.room.0.borrow_mut();
        for _ in 0..ended {
            state.held.push_back(self.held.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use countersign_exchange::inflow::Inflow;

    fn counting(max: usize) -> (Counting, Room) {
        let inflow = Inflow::new(1 << 20, max, Duration::from_secs(5));
        Counting::new(inflow.intake())
    }

    fn piece(bytes: usize) -> Bytes {
        Bytes::from(vec![b'x'; bytes])
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_holds_its_bytes_until_it_is_answered() {
        let (mut counting, room) = counting(10_000);
        assert!(counting.take(piece(4000), 0).is_some());
        assert!(counting.take(piece(4000), 2).is_some());
        let first = room.of_message().unwrap();
        assert_eq!(first.bytes(), 8000);
        assert!(room.of_message().is_none(), "the second came with the same piece");
        // The next one waits for the first.
        assert!(counting.take(piece(4000), 1).is_none());
        drop(first);
        let passed = std::future::poll_fn(|cx| counting.poll_waiting(cx)).await.unwrap().unwrap();
        assert_eq!((passed.len(), room.of_message().unwrap().bytes()), (4000, 4000));
        assert!(room.close().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_finds_no_room_ends_the_input() {
        let (mut counting, room) = counting(10_000);
        assert!(counting.take(piece(8000), 1).is_some());
        let _held = room.of_message().unwrap();
        assert!(counting.take(piece(SMALL), 1).is_some(), "a small one needs none");
        assert!(room.of_message().is_none());
        assert!(counting.take(piece(8000), 1).is_none());
        assert!(std::future::poll_fn(|cx| counting.poll_waiting(cx)).await.unwrap().is_err());
        assert_eq!(room.close().map(|(code, _)| code), Some(CloseCode::Again));
    }
}

//! Sends the bytes of a WebSocket in slices, which shows that the peer takes them.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use bytes::Bytes;

use super::{SLICE_BYTES, input::Heartbeat};

/// The output of a WebSocket in slices. While the connection takes the slices of a large message, its peer is alive.
pub struct SlicedBody {
    body: BoxBody,
    /// The part of the last piece that the connection has not taken yet.
    rest: Bytes,
    heartbeat: Heartbeat,
}

impl SlicedBody {
    pub fn new(body: BoxBody, heartbeat: Heartbeat) -> Self {
        Self { body, rest: Bytes::new(), heartbeat }
    }
}

impl MessageBody for SlicedBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_next(cx)) {
                Some(Ok(piece)) => this.rest = piece,
                other => return Poll::Ready(other),
            }
        } else {
            (this.heartbeat)();
        }
        let slice = this.rest.len().min(SLICE_BYTES);
        Poll::Ready(Some(Ok(this.rest.split_to(slice))))
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, future::poll_fn, rc::Rc};

    use super::*;

    #[actix::test]
    async fn slices_of_a_large_message_are_heartbeats() {
        let beats = Rc::new(RefCell::new(0));
        let counter = Rc::clone(&beats);
        let heartbeat = Rc::new(move || *counter.borrow_mut() += 1);
        let body = BoxBody::new(Bytes::from(vec![b'x'; 2 * SLICE_BYTES + 1]));
        let mut body = SlicedBody::new(body, heartbeat);
        for (length, expected) in [(SLICE_BYTES, 0), (SLICE_BYTES, 1), (1, 2)] {
            let slice = poll_fn(|cx| Pin::new(&mut body).poll_next(cx)).await.unwrap().unwrap();
            assert_eq!((slice.len(), *beats.borrow()), (length, expected));
        }
        assert!(poll_fn(|cx| Pin::new(&mut body).poll_next(cx)).await.is_none());
    }
}

//! The body of a request, and what can be seen through it of the peer that sent it.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use actix_web::{HttpRequest, dev, error::PayloadError, web};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, future, stream};

use super::buffer::Buffer;
use crate::endpoint::McpEndpoint;
use countersign_exchange::inflow::Held;
use countersign_http::connections::Connection;
use countersign_protocol::{ErrorKind, McpError};

/// How often it is looked whether an HTTP/2 peer has reset its stream.
const LOOK: Duration = Duration::from_millis(250);

/// A request's body on its way in; afterwards, its sender.
pub struct Body {
    payload: dev::Payload,
    /// What it takes of the room that there is for bodies, until it is answered. One that came in one piece on HTTP/1.1
    /// takes none: it is no more than a connection's buffers may hold, and the only one of its connection.
    held: Option<Held>,
}

impl Body {
    #[must_use]
    pub fn new(payload: web::Payload) -> Self {
        Self { payload: payload.into_inner(), held: None }
    }

    /// Reads the whole body of that request within its bounds of size and time.
    ///
    /// # Errors
    /// `TOO_LARGE`, `TIMEOUT`, `INVALID_REQUEST` for one that broke off, or `OVERLOADED` where there is no room for it.
    pub async fn read(
        &mut self,
        request: &HttpRequest,
        endpoint: &McpEndpoint,
        max: usize,
        limit: Duration,
    ) -> Result<Bytes, McpError> {
        let connection = Connection::of(request);
        let connection = connection.as_deref();
        let intake = || endpoint.connections.intake_of(connection);
        let read = {
            let mut work = pin!(async {
                let first = self.first().await;
                let of_many = !matches!(self.payload, dev::Payload::H1 { .. });
                let held = if of_many { Some(intake().hold()) } else { None };
                let mut pieces = stream::iter(first).chain(&mut self.payload);
                read(&mut pieces, max, held, || intake().hold()).await
            });
            let mut waits = None;
            let work = future::poll_fn(|cx| {
                let read = work.as_mut().poll(cx);
                if read.is_pending() && waits.is_none() {
                    waits = connection.map(|connection| connection.place().wait_for_body());
                }
                read
            });
            tokio::time::timeout(limit, work).await
        };
        let (body, held) =
            read.unwrap_or_else(|_| Err(McpError::new(ErrorKind::Timeout, "the body did not arrive in time")))?;
        self.held = held;
        Ok(body)
    }

    /// Leaves what it takes of the room for bodies to whoever answers it.
    #[must_use]
    pub fn held(&mut self) -> Option<Held> {
        self.held.take()
    }

    /// What of the body can be had at once.
    ///
    /// On HTTP/1.1 the server asks a handler before it has looked at what follows the head, looks, and asks again, all
    /// in one turn of the connection's task. A waker left behind the first time would only cost that task a second
    /// turn with nothing to do.
    async fn first(&mut self) -> Option<Result<Bytes, PayloadError>> {
        if !matches!(self.payload, dev::Payload::H1 { .. }) {
            return None;
        }
        let mut asked = false;
        future::poll_fn(|_| match self.payload.poll_next_unpin(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(piece) => Poll::Ready(piece),
            Poll::Pending if std::mem::replace(&mut asked, true) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Resolves once the peer has taken its request back by resetting its HTTP/2 stream, or lost its connection. On
    /// HTTP/1.1 the server drops a request by itself when its connection ends; on HTTP/2 it does not, and all that
    /// shows it is the stream's receiving side.
    pub async fn taken_back(mut self) {
        if !matches!(self.payload, dev::Payload::H2 { .. }) {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LOOK).await;
            let seen = std::future::poll_fn(|cx| Poll::Ready(self.payload.poll_next_unpin(cx))).await;
            if matches!(seen, Poll::Ready(Some(Err(_)))) {
                return;
            }
        }
    }
}

/// Reads a body to its end, with what it holds by then; `held` is for one that counts even if it comes in one piece.
async fn read<S, E>(
    payload: &mut S,
    max: usize,
    mut held: Option<Held>,
    hold: impl FnOnce() -> Held,
) -> Result<(Bytes, Option<Held>), McpError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    let broken = |_| McpError::new(ErrorKind::InvalidRequest, "the body broke off");
    let too_large = || McpError::new(ErrorKind::TooLarge, "the body is too large").with("limit", max as u64);
    // Most bodies come in one piece, which is then not copied.
    let first = payload.next().await.transpose().map_err(broken)?.unwrap_or_default();
    if first.len() > max {
        return Err(too_large());
    }
    if let Some(held) = &mut held {
        held.grow(first.len()).await?;
    }
    let Some(second) = payload.next().await.transpose().map_err(broken)? else { return Ok((first, held)) };
    let mut held = match held {
        Some(held) => held,
        None => {
            let mut held = hold();
            held.grow(first.len()).await?;
            held
        }
    };
    let mut body = Buffer::new(first);
    let mut next = Some(second);
    while let Some(chunk) = next {
        if body.len() + chunk.len() > max {
            return Err(too_large());
        }
        // Nothing more is read until there is room.
        held.grow(chunk.len()).await?;
        body.push(&chunk, max);
        next = payload.next().await.transpose().map_err(broken)?;
    }
    Ok((body.freeze(), Some(held)))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;
    use countersign_config::Config;
    use countersign_exchange::inflow::Inflow;
    use countersign_session::limits;

    async fn of(chunks: &[&'static str], max: usize) -> Result<Bytes, ErrorKind> {
        let mut chunks = stream::iter(chunks.iter().map(|c| Ok::<_, ()>(Bytes::from_static(c.as_bytes()))));
        let read = read(&mut chunks, max, None, || limits::inflow(&Config::default().transports).intake().hold()).await;
        read.map(|(body, _)| body).map_err(|error| error.kind)
    }

    #[actix::test]
    async fn a_body_is_whole_and_bounded_however_it_is_cut() {
        assert_eq!(of(&[], 5).await, Ok(Bytes::new()));
        assert_eq!(of(&["12345"], 5).await, Ok("12345".into()));
        assert_eq!(of(&["12", "3", "45"], 5).await, Ok("12345".into()));
        assert_eq!(of(&["123456"], 5).await, Err(ErrorKind::TooLarge));
        assert_eq!(of(&["12", "345", "6"], 5).await, Err(ErrorKind::TooLarge));
    }

    #[actix::test]
    async fn one_that_breaks_off_is_no_body() {
        let mut chunks = stream::iter([Ok(Bytes::from_static(b"{}")), Err(())]);
        let read = read(&mut chunks, 5, None, || limits::inflow(&Config::default().transports).intake().hold()).await;
        assert_eq!(read.err().map(|error| error.kind), Some(ErrorKind::InvalidRequest));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_in_pieces_holds_its_bytes_and_one_in_one_piece_none() {
        let inflow = Inflow::new(1 << 20, 10_000, Duration::from_secs(5));
        let intake = inflow.intake();
        let of = async |sizes: &[usize], held: Option<Held>| {
            let mut pieces = stream::iter(sizes.iter().map(|size| Ok::<_, ()>(Bytes::from(vec![b'x'; *size]))));
            let read = read(&mut pieces, 1 << 20, held, || intake.hold()).await;
            read.map(|(_, held)| held).map_err(|error| error.kind)
        };
        assert!(of(&[6000], None).await.unwrap().is_none());
        // Of HTTP/2, where one connection may have many of them, each counts.
        assert_eq!(of(&[6000], Some(intake.hold())).await.unwrap().unwrap().bytes(), 6000);
        let held = of(&[2000, 3000, 1000], None).await.unwrap().unwrap();
        assert_eq!(held.bytes(), 6000);
        assert_eq!(of(&[2000, 3000], None).await.err(), Some(ErrorKind::Overloaded), "the other is not answered yet");
        drop(held);
        assert_eq!(of(&[2000, 3000], None).await.unwrap().unwrap().bytes(), 5000);
    }

    #[actix::test]
    async fn a_body_that_does_not_come_is_waited_for_so_long_only() {
        let served = crate::testing::Served::open("").await;
        let (_sender, payload) = actix_http::h1::Payload::create(false);
        let mut body = Body { payload: payload.into(), held: None };
        let request = actix_web::test::TestRequest::default().to_http_request();
        let read = body.read(&request, &served.endpoint, 100, Duration::from_millis(20)).await;
        assert_eq!(read.err().map(|error| error.kind), Some(ErrorKind::Timeout));
    }
}

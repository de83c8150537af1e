//! Reads the body of a request within its limits of size, time and memory.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use actix_web::{HttpRequest, dev::Payload, error::PayloadError};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, future, stream};

use crate::endpoint::McpEndpoint;
use countersign_exchange::inflow::Reservation;
use countersign_http::connections::Connection;
use countersign_protocol::{ErrorKind, McpError};

/// Reads the whole body of a request, of at most `max` bytes and within `limit`.
///
/// Also returns the body's reservation in the budget for bodies, which lasts until the request is answered. A body that arrives
/// in one piece on HTTP/1.1 needs no reservation: it fits into the buffers of its connection, which carries no other body.
///
/// # Errors
/// `TOO_LARGE`, `TIMEOUT`, `INVALID_REQUEST` if the body ended early, or `OVERLOADED` if the budget has no room.
pub async fn read(
    request: &HttpRequest,
    mut payload: Payload,
    endpoint: &McpEndpoint,
    max: usize,
    limit: Duration,
) -> Result<(Bytes, Option<Reservation>), McpError> {
    let connection = Connection::for_request(request);
    let intake = || connection.as_ref().map_or_else(|| endpoint.connections.intake(), |connection| connection.intake());
    let mut reading = pin!(async {
        let is_http1 = matches!(payload, Payload::H1 { .. });
        let first = if is_http1 { poll_first(&mut payload).await } else { None };
        let held = (!is_http1).then(|| intake().hold());
        let mut pieces = stream::iter(first).chain(&mut payload);
        read_pieces(&mut pieces, max, held, || intake().hold()).await
    });
    let mut awaited = None;
    let reading = future::poll_fn(|cx| {
        let read = reading.as_mut().poll(cx);
        if read.is_pending() && awaited.is_none() {
            awaited = connection.as_ref().map(|connection| connection.await_body());
        }
        read
    });
    tokio::time::timeout(limit, reading)
        .await
        .unwrap_or_else(|_| Err(McpError::new(ErrorKind::Timeout, "the body did not arrive in time")))
}

/// Returns the piece of an HTTP/1.1 body that is available at once.
///
/// The server calls a handler before it has read what follows the head, reads, and calls it again, all in one turn of the
/// connection's task. A waker that is registered the first time would only cost the task a second turn with nothing to do.
async fn poll_first(payload: &mut Payload) -> Option<Result<Bytes, PayloadError>> {
    let mut has_polled = false;
    future::poll_fn(|_| match payload.poll_next_unpin(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(piece) => Poll::Ready(piece),
        Poll::Pending if std::mem::replace(&mut has_polled, true) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Reads a body to its end. `held` is set for a body that is counted even if it arrives in one piece.
async fn read_pieces<S, E>(
    pieces: &mut S,
    max: usize,
    mut held: Option<Reservation>,
    hold: impl FnOnce() -> Reservation,
) -> Result<(Bytes, Option<Reservation>), McpError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    let broken = |_| McpError::new(ErrorKind::InvalidRequest, "the body broke off");
    let too_large = || McpError::new(ErrorKind::TooLarge, "the body is too large").with("limit", max as u64);
    // Most bodies arrive in one piece, which is not copied.
    let first = pieces.next().await.transpose().map_err(broken)?.unwrap_or_default();
    if first.len() > max {
        return Err(too_large());
    }
    if let Some(held) = &mut held {
        held.grow(first.len()).await?;
    }
    let Some(second) = pieces.next().await.transpose().map_err(broken)? else { return Ok((first, held)) };
    let mut held = match held {
        Some(held) => held,
        None => {
            let mut held = hold();
            held.grow(first.len()).await?;
            held
        }
    };
    let mut body = BytesMut::from(first);
    let mut next = Some(second);
    while let Some(piece) = next {
        if body.len() + piece.len() > max {
            return Err(too_large());
        }
        // Nothing more is read until there is room.
        held.grow(piece.len()).await?;
        body.extend_from_slice(&piece);
        next = pieces.next().await.transpose().map_err(broken)?;
    }
    Ok((body.freeze(), Some(held)))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;
    use countersign_config::Config;
    use countersign_exchange::inflow::BodyBudget;
    use countersign_session::limits;

    async fn read_chunks(chunks: &[&'static str], max: usize) -> Result<Bytes, ErrorKind> {
        let mut chunks = stream::iter(chunks.iter().map(|c| Ok::<_, ()>(Bytes::from_static(c.as_bytes()))));
        let read =
            read_pieces(&mut chunks, max, None, || limits::inflow(&Config::default().transports).intake().hold()).await;
        read.map(|(body, _)| body).map_err(|error| error.kind)
    }

    #[actix::test]
    async fn body_is_read_whole_within_its_limit() {
        assert_eq!(read_chunks(&[], 5).await, Ok(Bytes::new()));
        assert_eq!(read_chunks(&["12345"], 5).await, Ok("12345".into()));
        assert_eq!(read_chunks(&["12", "3", "45"], 5).await, Ok("12345".into()));
        assert_eq!(read_chunks(&["123456"], 5).await, Err(ErrorKind::TooLarge));
        assert_eq!(read_chunks(&["12", "345", "6"], 5).await, Err(ErrorKind::TooLarge));
    }

    #[actix::test]
    async fn interrupted_body_is_refused() {
        let mut chunks = stream::iter([Ok(Bytes::from_static(b"{}")), Err(())]);
        let read =
            read_pieces(&mut chunks, 5, None, || limits::inflow(&Config::default().transports).intake().hold()).await;
        assert_eq!(read.err().map(|error| error.kind), Some(ErrorKind::InvalidRequest));
    }

    #[tokio::test(start_paused = true)]
    async fn body_in_pieces_holds_its_bytes() {
        let inflow = BodyBudget::new(1 << 20, 10_000, Duration::from_secs(5));
        let intake = inflow.intake();
        let read = async |sizes: &[usize], held: Option<Reservation>| {
            let mut pieces = stream::iter(sizes.iter().map(|size| Ok::<_, ()>(Bytes::from(vec![b'x'; *size]))));
            let read = read_pieces(&mut pieces, 1 << 20, held, || intake.hold()).await;
            read.map(|(_, held)| held).map_err(|error| error.kind)
        };
        assert!(read(&[6000], None).await.unwrap().is_none());
        // On HTTP/2, a connection may carry many bodies, so each body is counted.
        assert_eq!(read(&[6000], Some(intake.hold())).await.unwrap().unwrap().bytes(), 6000);
        let held = read(&[2000, 3000, 1000], None).await.unwrap().unwrap();
        assert_eq!(held.bytes(), 6000);
        assert_eq!(
            read(&[2000, 3000], None).await.err(),
            Some(ErrorKind::Overloaded),
            "the first body still holds its bytes"
        );
        drop(held);
        assert_eq!(read(&[2000, 3000], None).await.unwrap().unwrap().bytes(), 5000);
    }

    #[actix::test]
    async fn missing_body_times_out() {
        let endpoint = crate::testing::TestEndpoint::open("").await;
        let (_sender, payload) = actix_http::h1::Payload::create(false);
        let request = actix_web::test::TestRequest::default().to_http_request();
        let read = read(&request, payload.into(), &endpoint.endpoint, 100, Duration::from_millis(20)).await;
        assert_eq!(read.err().map(|error| error.kind), Some(ErrorKind::Timeout));
    }
}

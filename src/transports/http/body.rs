//! The body of a request, and what can be seen through it of the peer that sent it.

use std::{
    task::{Context, Poll, Waker},
    time::Duration,
};

use actix_web::{dev, error::PayloadError, web};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, future, stream};

use crate::{
    deadline,
    protocol::{ErrorKind, McpError},
};

/// How often it is looked whether an HTTP/2 peer has reset its stream.
const LOOK: Duration = Duration::from_millis(250);

/// A request's body on its way in; afterwards, its sender.
pub struct Body(dev::Payload);

impl Body {
    #[must_use]
    pub fn new(payload: web::Payload) -> Self {
        Self(payload.into_inner())
    }

    /// Reads the whole body within its bounds of size and time.
    ///
    /// # Errors
    /// `TOO_LARGE`, `TIMEOUT`, or `INVALID_REQUEST` for one that broke off.
    pub async fn read(&mut self, max: usize, limit: Duration) -> Result<Bytes, McpError> {
        let work = async {
            let first = self.first().await;
            read(&mut stream::iter(first).chain(&mut self.0), max).await
        };
        match deadline::within(limit, work).await {
            Some(body) => body,
            None => Err(McpError::new(ErrorKind::Timeout, "the body did not arrive in time")),
        }
    }

    /// What of the body can be had at once.
    ///
    /// On HTTP/1.1 the server asks a handler before it has looked at what follows the head, looks, and asks again, all
    /// in one turn of the connection's task. A waker left behind the first time would only cost that task a second
    /// turn with nothing to do.
    async fn first(&mut self) -> Option<Result<Bytes, PayloadError>> {
        if !matches!(self.0, dev::Payload::H1 { .. }) {
            return None;
        }
        let mut asked = false;
        future::poll_fn(|_| match self.0.poll_next_unpin(&mut Context::from_waker(Waker::noop())) {
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
        if !matches!(self.0, dev::Payload::H2 { .. }) {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LOOK).await;
            let seen = std::future::poll_fn(|cx| Poll::Ready(self.0.poll_next_unpin(cx))).await;
            if matches!(seen, Poll::Ready(Some(Err(_)))) {
                return;
            }
        }
    }
}

async fn read<S, E>(payload: &mut S, max: usize) -> Result<Bytes, McpError>
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
    let Some(second) = payload.next().await.transpose().map_err(broken)? else { return Ok(first) };
    let mut body = BytesMut::from(first);
    let mut next = Some(second);
    while let Some(chunk) = next {
        if body.len() + chunk.len() > max {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
        next = payload.next().await.transpose().map_err(broken)?;
    }
    Ok(body.freeze())
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn of(chunks: &[&'static str], max: usize) -> Result<Bytes, ErrorKind> {
        let mut chunks = stream::iter(chunks.iter().map(|c| Ok::<_, ()>(Bytes::from_static(c.as_bytes()))));
        read(&mut chunks, max).await.map_err(|error| error.kind)
    }

    #[actix_web::test]
    async fn a_body_is_whole_and_bounded_however_it_is_cut() {
        assert_eq!(of(&[], 5).await, Ok(Bytes::new()));
        assert_eq!(of(&["12345"], 5).await, Ok("12345".into()));
        assert_eq!(of(&["12", "3", "45"], 5).await, Ok("12345".into()));
        assert_eq!(of(&["123456"], 5).await, Err(ErrorKind::TooLarge));
        assert_eq!(of(&["12", "345", "6"], 5).await, Err(ErrorKind::TooLarge));
    }

    #[actix_web::test]
    async fn one_that_breaks_off_is_no_body() {
        let mut chunks = stream::iter([Ok(Bytes::from_static(b"{}")), Err(())]);
        assert_eq!(read(&mut chunks, 5).await.err().map(|error| error.kind), Some(ErrorKind::InvalidRequest));
    }
}

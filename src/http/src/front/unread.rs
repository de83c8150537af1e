//! Counts what an answer still has to send as memory of the principal who asked for it, until the client has read it.
//!
//! Short answers pass as they are. Long ones go out in slices, so that no connection buffers a whole one; where there is
//! no memory, the connections that were left unread for longest are closed ([`countersign_exchange::memory`]).

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use actix_web::{
    HttpRequest, HttpResponse, ResponseError as _,
    body::{BodySize, BoxBody, MessageBody},
    dev::ServiceResponse,
    http::StatusCode,
};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    answer,
    authentication::{RequestAuthenticator, identify_agent},
    connections::{Connection, OfRequest},
    framing::InProgram,
    problem::Problem,
};
use countersign_exchange::{
    eviction::now,
    memory::{EXEMPT_BYTES, Memory, Share, Unread},
};
use countersign_protocol::{ErrorKind, McpError, Revision};
use countersign_runtime::{lanes::LARGE_MESSAGE_BYTES, reclaim};

/// Bytes that a connection is handed at a time.
const SLICE: usize = 32 << 10;

/// The answer with what it sends counted; a refusal where there is no memory for it.
pub fn count(
    authentication: &RequestAuthenticator,
    memory: &Arc<Memory>,
    response: ServiceResponse,
) -> ServiceResponse {
    let size = response.response().body().size();
    let is_long = match size {
        BodySize::None => false,
        BodySize::Sized(bytes) => bytes > EXEMPT_BYTES as u64,
        // A WebSocket has an outbox, which counts.
        BodySize::Stream => response.status() != StatusCode::SWITCHING_PROTOCOLS,
    };
    if !is_long || response.response().extensions().contains::<InProgram>() {
        return response;
    }
    let Some(share) = share(authentication, memory, response.request()) else { return response };
    let waiting = Waiting {
        rest: Bytes::new(),
        since: now(),
        closed: false,
        was_large: false,
        share,
        cut: cutter(response.request()),
    };
    let waiting = Arc::new(Piece(Mutex::new(waiting)));
    let (request, response) = response.into_parts();
    let (response, body) = response.into_parts();
    let source = match body.try_into_bytes() {
        Ok(whole) if waiting.hold(&whole) => None,
        Ok(_) => return ServiceResponse::new(request.clone(), overloaded(&request)),
        Err(pieces) => Some(pieces),
    };
    ServiceResponse::new(request, response.set_body(BoxBody::new(Counted { source, size, waiting })))
}

/// The memory of whoever asked; nothing of those who have shown no credential, who get nothing long.
fn share(authentication: &RequestAuthenticator, memory: &Arc<Memory>, request: &HttpRequest) -> Option<Share> {
    let identity =
        authentication.identify(request).or_else(|_| identify_agent(&authentication.authenticator, request)).ok()?;
    Some(memory.share(&identity.principal.name))
}

/// Breaks the connection of a request, where it carries nothing else.
fn cutter(request: &HttpRequest) -> Option<Arc<dyn Fn() + Send + Sync>> {
    match Connection::of(request)? {
        OfRequest::Http1(connection) if !connection.is_peers() => Some(connection.cutter()),
        OfRequest::Http1(_) | OfRequest::Http2(_) => None,
    }
}

fn overloaded(request: &HttpRequest) -> HttpResponse {
    let text = "the request was handled, but the gateway has no memory for its answer (limits.total_memory)";
    let error = McpError::new(ErrorKind::Overloaded, text);
    if request.path() == "/mcp" {
        return answer::refusal(&error, Revision::NEWEST_LEGACY);
    }
    Problem::from(error).error_response()
}

/// A body that is sent in slices, and counts until they are taken.
struct Counted {
    /// What comes piece by piece; a whole answer waits already.
    source: Option<BoxBody>,
    size: BodySize,
    waiting: Arc<Piece>,
}

/// A piece of a body that waits for its client.
struct Piece(Mutex<Waiting>);

struct Waiting {
    rest: Bytes,
    /// When the connection last took something.
    since: u64,
    closed: bool,
    /// There was a piece worth giving back to the system.
    was_large: bool,
    /// Covers the whole piece until its last slice is taken: that keeps all of it.
    share: Share,
    cut: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// What a long piece takes with what it was made of and the buffers of its connection, as `scripts/memory` shows.
const fn with_buffers(bytes: usize) -> usize {
    bytes.saturating_add(bytes / 2)
}

impl Piece {
    /// Keeps a piece for its client; `false` where there is no memory for it.
    fn hold(self: &Arc<Self>, piece: &Bytes) -> bool {
        let mut waiting = self.0.lock();
        waiting.since = now();
        let Waiting { share, since, .. } = &mut *waiting;
        let connection = || Arc::downgrade(self) as Weak<dyn Unread>;
        if !share.cover_messages(with_buffers(piece.len()), *since, connection) {
            return false;
        }
        waiting.rest = piece.clone();
        if piece.len() > LARGE_MESSAGE_BYTES {
            waiting.was_large = true;
            // What it was made of is free by now.
            reclaim::collect_after_large();
        }
        true
    }
}

impl Unread for Piece {
    fn since(&self) -> Option<u64> {
        let waiting = self.0.try_lock()?;
        (waiting.share.bytes() > 0).then_some(waiting.since)
    }

    fn close(&self) -> bool {
        let Some(mut waiting) = self.0.try_lock() else { return false };
        tracing::warn!("a client does not read, and there is no memory for its answer: its connection ends");
        waiting.closed = true;
        waiting.rest = Bytes::new();
        waiting.share.shrink_to(0);
        // What takes its place comes at once.
        reclaim::collect_before_large();
        if let Some(cut) = &waiting.cut {
            cut();
        }
        true
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // On the thread that made it.
        if self.waiting.0.lock().was_large {
            reclaim::collect_after_large();
        }
    }
}

impl MessageBody for Counted {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let this = &mut *self;
        loop {
            let mut waiting = this.waiting.0.lock();
            if waiting.closed {
                return Poll::Ready(Some(Err("the client did not read".into())));
            }
            if !waiting.rest.is_empty() {
                waiting.since = now();
                let slice = waiting.rest.len().min(SLICE);
                return Poll::Ready(Some(Ok(waiting.rest.split_to(slice))));
            }
            waiting.share.shrink_to(0);
            drop(waiting);
            let Some(source) = &mut this.source else { return Poll::Ready(None) };
            match ready!(Pin::new(source).poll_next(cx)) {
                Some(Ok(piece)) if piece.len() <= EXEMPT_BYTES => return Poll::Ready(Some(Ok(piece))),
                Some(Ok(piece)) if this.waiting.hold(&piece) => {}
                Some(Ok(_)) => return Poll::Ready(Some(Err("there is no memory for the answer".into()))),
                other => return Poll::Ready(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// A body of these pieces, or of one that waits already.
    fn counted(memory: &Arc<Memory>, whole: Option<&Bytes>, pieces: Vec<Bytes>) -> Counted {
        let share = memory.share("ann");
        let waiting = Waiting { rest: Bytes::new(), since: now(), closed: false, was_large: false, share, cut: None };
        let waiting = Arc::new(Piece(Mutex::new(waiting)));
        assert!(whole.is_none_or(|whole| waiting.hold(whole)));
        let pieces = futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::convert::Infallible>));
        let source = whole.is_none().then(|| BoxBody::new(actix_web::body::BodyStream::new(pieces)));
        Counted { source, size: BodySize::Stream, waiting }
    }

    async fn next(body: &mut Counted) -> Option<Result<Bytes, String>> {
        let piece = poll_fn(|cx| Pin::new(&mut *body).poll_next(cx)).await?;
        Some(piece.map_err(|error| error.to_string()))
    }

    #[actix::test]
    async fn answer_counts_until_its_last_slice_is_taken() {
        let long = Bytes::from(vec![b'x'; 2 * SLICE + 1]);
        let memory = Memory::new(1 << 20, 1 << 20);
        let streamed = vec![Bytes::from_static(b"short"), long.clone()];
        for (mut body, slices) in [
            (counted(&memory, Some(&long), Vec::new()), &[SLICE, SLICE, 1][..]),
            (counted(&memory, None, streamed), &[5, SLICE, SLICE, 1]),
        ] {
            for slice in slices {
                assert_eq!(next(&mut body).await.unwrap().unwrap().len(), *slice);
                assert_eq!(memory.used_by("ann") >= long.len(), *slice != 5);
            }
            assert_eq!((next(&mut body).await, memory.used_by("ann")), (None, 0));
        }
    }

    #[actix::test]
    async fn answer_that_is_closed_gives_its_memory_to_the_next() {
        let long = Bytes::from(vec![b'x'; 10 * SLICE]);
        let memory = Memory::new(15 * SLICE, 15 * SLICE);
        let mut unread = counted(&memory, Some(&long), Vec::new());
        assert!(next(&mut unread).await.is_some());
        // Both were left unread for as long in the same millisecond.
        let taken = now();
        while now() <= taken {
            std::thread::yield_now();
        }
        let mut read = counted(&memory, Some(&long), Vec::new());
        assert_eq!(next(&mut unread).await, Some(Err("the client did not read".into())));
        assert!(next(&mut read).await.unwrap().is_ok());
        assert_eq!(memory.used_total(), with_buffers(10 * SLICE));
        drop((unread, read));
        assert_eq!(memory.used_total(), 0);
    }
}

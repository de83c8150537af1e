//! Counts the unsent part of a response as memory of the requesting principal, until the client has read it.
//!
//! Short responses pass unchanged. Long responses are sent in slices, so that no connection buffers a whole response. If memory
//! runs out, the connections whose clients have not read for the longest time are closed ([`countersign_exchange::memory`]).

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use actix_web::{
    HttpRequest, HttpResponse, ResponseError as _,
    body::{BodySize, BoxBody, MessageBody},
    dev::ServiceResponse,
    http::{StatusCode, Version},
};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    answer,
    authentication::{RequestAuthenticator, identify_agent},
    connections::Connection,
    framing::EmbeddedBody,
    problem::Problem,
};
use countersign_exchange::{
    eviction::now,
    memory::{EXEMPT_BYTES, Memory, Share, Unread},
};
use countersign_protocol::{ErrorKind, McpError, Revision};
use countersign_runtime::{large_messages::LARGE_MESSAGE_BYTES, reclaim};

/// Size in bytes of the slices that a connection is given.
const SLICE_BYTES: usize = 32 << 10;

/// Counts the body of a response, or refuses the request if there is no memory for it.
pub fn count_response(
    authentication: &RequestAuthenticator,
    memory: &Arc<Memory>,
    response: ServiceResponse,
) -> ServiceResponse {
    let size = response.response().body().size();
    let is_long = match size {
        BodySize::None => false,
        BodySize::Sized(bytes) => bytes > EXEMPT_BYTES as u64,
        // The outbox of a WebSocket counts its own messages.
        BodySize::Stream => response.status() != StatusCode::SWITCHING_PROTOCOLS,
    };
    if !is_long || response.response().extensions().contains::<EmbeddedBody>() {
        return response;
    }
    let Some(share) = share(authentication, memory, response.request()) else { return response };
    let pending = PendingBody::new(share, cutter(response.request()));
    let (request, response) = response.into_parts();
    let (response, body) = response.into_parts();
    let source = match body.try_into_bytes() {
        Ok(whole) if pending.hold(&whole) => None,
        Ok(_) => return ServiceResponse::new(request.clone(), no_memory(&request)),
        Err(pieces) => Some(pieces),
    };
    ServiceResponse::new(request, response.set_body(BoxBody::new(CountedBody { source, size, pending })))
}

/// Returns the memory share of the requesting principal. Requests without a credential have no share, and get no long
/// responses.
fn share(authentication: &RequestAuthenticator, memory: &Arc<Memory>, request: &HttpRequest) -> Option<Share> {
    let identity =
        authentication.identify(request).or_else(|_| identify_agent(&authentication.authenticator, request)).ok()?;
    Some(memory.share(&identity.principal.name))
}

/// Returns a function that breaks the connection of a request, or `None` if the connection may carry other requests.
fn cutter(request: &HttpRequest) -> Option<Arc<dyn Fn() + Send + Sync>> {
    let connection = Connection::for_request(request)?;
    (request.version() < Version::HTTP_2 && !connection.is_peer()).then(|| connection.cutter())
}

fn no_memory(request: &HttpRequest) -> HttpResponse {
    let text = "the request was handled, but the gateway has no memory for its answer (limits.total_memory)";
    let error = McpError::new(ErrorKind::Overloaded, text);
    if request.path() == "/mcp" {
        return answer::refusal(&error, Revision::NEWEST_LEGACY);
    }
    Problem::from(error).error_response()
}

/// A body that is sent in slices, and is counted until the connection has taken all of them.
struct CountedBody {
    /// Yields the pieces of the body. `None` if the whole body is pending already.
    source: Option<BoxBody>,
    size: BodySize,
    pending: Arc<PendingBody>,
}

/// The piece of a body that waits for its client.
struct PendingBody(Mutex<PendingState>);

struct PendingState {
    rest: Bytes,
    /// Time when the connection last took a slice, by [`now`].
    since: u64,
    is_closed: bool,
    /// `true` if a piece was large enough that its memory is returned to the system at the end.
    was_large: bool,
    /// Covers the whole piece until its last slice is taken, because the slice keeps all of it.
    share: Share,
    cut: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// Estimates the memory of a long piece, including the values it was serialized from and the buffers of its connection. The
/// factor comes from measurements with `scripts/memory`.
const fn with_buffers(bytes: usize) -> usize {
    bytes.saturating_add(bytes / 2)
}

impl PendingBody {
    fn new(share: Share, cut: Option<Arc<dyn Fn() + Send + Sync>>) -> Arc<Self> {
        let state = PendingState { rest: Bytes::new(), since: now(), is_closed: false, was_large: false, share, cut };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Holds a piece for its client. Returns `false` if there is no memory for it.
    fn hold(self: &Arc<Self>, piece: &Bytes) -> bool {
        let mut state = self.0.lock();
        state.since = now();
        let PendingState { share, since, .. } = &mut *state;
        let unread = || Arc::downgrade(self) as Weak<dyn Unread>;
        if !share.cover_messages(with_buffers(piece.len()), *since, unread) {
            return false;
        }
        state.rest = piece.clone();
        if piece.len() > LARGE_MESSAGE_BYTES {
            state.was_large = true;
            // The values that the piece was serialized from are free by now.
            reclaim::collect_after_large();
        }
        true
    }
}

impl Unread for PendingBody {
    fn since(&self) -> Option<u64> {
        let state = self.0.try_lock()?;
        (state.share.bytes() > 0).then_some(state.since)
    }

    fn close(&self) -> bool {
        let Some(mut state) = self.0.try_lock() else { return false };
        tracing::warn!("a connection is closed: its client does not read, and there is no memory for its answer");
        state.is_closed = true;
        state.rest = Bytes::new();
        state.share.shrink_to(0);
        // Another body takes the memory at once.
        reclaim::collect_before_large();
        if let Some(cut) = &state.cut {
            cut();
        }
        true
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        // This drop runs on the thread that created the body, whose memory is collected.
        if self.pending.0.lock().was_large {
            reclaim::collect_after_large();
        }
    }
}

impl MessageBody for CountedBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let body = &mut *self;
        loop {
            let mut state = body.pending.0.lock();
            if state.is_closed {
                return Poll::Ready(Some(Err("the client did not read".into())));
            }
            if !state.rest.is_empty() {
                state.since = now();
                let slice = state.rest.len().min(SLICE_BYTES);
                return Poll::Ready(Some(Ok(state.rest.split_to(slice))));
            }
            state.share.shrink_to(0);
            drop(state);
            let Some(source) = &mut body.source else { return Poll::Ready(None) };
            match ready!(Pin::new(source).poll_next(cx)) {
                Some(Ok(piece)) if piece.len() <= EXEMPT_BYTES => return Poll::Ready(Some(Ok(piece))),
                Some(Ok(piece)) if body.pending.hold(&piece) => {}
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

    /// Creates a body that streams `pieces`, or a body for which `whole` is pending already.
    fn counted(memory: &Arc<Memory>, whole: Option<&Bytes>, pieces: Vec<Bytes>) -> CountedBody {
        let pending = PendingBody::new(memory.share("ann"), None);
        assert!(whole.is_none_or(|whole| pending.hold(whole)));
        let pieces = futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::convert::Infallible>));
        let source = whole.is_none().then(|| BoxBody::new(actix_web::body::BodyStream::new(pieces)));
        CountedBody { source, size: BodySize::Stream, pending }
    }

    async fn next(body: &mut CountedBody) -> Option<Result<Bytes, String>> {
        let piece = poll_fn(|cx| Pin::new(&mut *body).poll_next(cx)).await?;
        Some(piece.map_err(|error| error.to_string()))
    }

    #[actix::test]
    async fn answer_counts_until_its_last_slice_is_taken() {
        let long = Bytes::from(vec![b'x'; 2 * SLICE_BYTES + 1]);
        let memory = Memory::new(1 << 20, 1 << 20);
        let streamed = vec![Bytes::from_static(b"short"), long.clone()];
        for (mut body, slices) in [
            (counted(&memory, Some(&long), Vec::new()), &[SLICE_BYTES, SLICE_BYTES, 1][..]),
            (counted(&memory, None, streamed), &[5, SLICE_BYTES, SLICE_BYTES, 1]),
        ] {
            for slice in slices {
                assert_eq!(next(&mut body).await.unwrap().unwrap().len(), *slice);
                assert_eq!(memory.used_by("ann") >= long.len(), *slice != 5);
            }
            assert_eq!((next(&mut body).await, memory.used_by("ann")), (None, 0));
        }
    }

    #[actix::test]
    async fn memory_of_closed_answer_goes_to_next_answer() {
        let long = Bytes::from(vec![b'x'; 10 * SLICE_BYTES]);
        let memory = Memory::new(15 * SLICE_BYTES, 15 * SLICE_BYTES);
        let mut unread = counted(&memory, Some(&long), Vec::new());
        assert!(next(&mut unread).await.is_some());
        // Waits a millisecond, so that the two bodies have been unread for different times.
        let taken = now();
        while now() <= taken {
            std::thread::yield_now();
        }
        let mut read = counted(&memory, Some(&long), Vec::new());
        assert_eq!(next(&mut unread).await, Some(Err("the client did not read".into())));
        assert!(next(&mut read).await.unwrap().is_ok());
        assert_eq!(memory.used_total(), with_buffers(10 * SLICE_BYTES));
        drop((unread, read));
        assert_eq!(memory.used_total(), 0);
    }
}

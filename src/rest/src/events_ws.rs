//! `/events`: the feed over a WebSocket, one JSON object per text frame.
//!
//! The pump blocks when its peer stops reading. Therefore a separate task holds the state of the subscriber: its
//! position in the feed, the pings and the decision to evict. A limited outbox connects the two. The feed waits while
//! the outbox is full, and a peer that neither reads nor answers pings is evicted.

use std::{cell::Cell, rc::Rc, sync::Arc};

use actix_web::{HttpRequest, HttpResponse, web};
use actix_web_actors::ws::{self, CloseCode};
use bytes::Bytes;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Caller, Problem,
    events::{self, FeedAccess, FeedStep, FeedSubscriber},
};
use countersign_exchange::{
    body_budget::Reservation,
    memory::MemoryShare,
    outbox::{DrainedFrames, Outbox, OutboxLimits, Wake},
    slots::StreamSlot,
};
use countersign_http::framing::{
    pump::{self, Backend, Heartbeat, MessageLimits, MessageOutcome},
    sse::interval_from_now,
};
use countersign_protocol::ErrorKind;
use countersign_runtime::background;

/// Maximum size in bytes of a frame from a subscriber, who sends only pings and pongs.
const MAX_FRAME_BYTES: usize = 4096;
/// Maximum number of frames in the outbox, if `limits.outbox_messages` allows as many.
const MAX_OUTBOX_FRAMES: usize = 256;

/// Opens the feed over a WebSocket.
///
/// The events are those of `/api/events`. The gateway only sends events and reads no messages.
#[utoipa::path(get, path = "/events", operation_id = "openFeedSocket", params(events::SinceParams), responses(
    (status = 101, description = "Each text frame is a FeedEvent as JSON. The gateway sends pings; a subscriber that neither \
        reads nor answers them is disconnected with 1013."),
    (status = 426)))]
pub async fn upgrade(
    caller: Caller,
    request: HttpRequest,
    payload: web::Payload,
    feed: web::Data<FeedAccess>,
) -> Result<HttpResponse, Problem> {
    let since = events::read_since(&request)?;
    ws::handshake(&request).map_err(|error| Problem::upgrade_required(&error.to_string()))?;
    let permit = Arc::clone(&feed.web_sockets).try_acquire_owned();
    let permit = permit.or_else(|_| Arc::clone(&feed.reserved_web_sockets).try_acquire_owned()).map_err(|_| {
        Problem::new(ErrorKind::Overloaded, "too many WebSockets are open (transports.websocket.max_connections)")
    })?;
    let slot = feed.streams.take(&caller.principal.name)?;
    let (frames, bytes) = (feed.outbox_messages.clamp(1, MAX_OUTBOX_FRAMES), feed.outbox_bytes);
    let outgoing = Rc::new(Outgoing::new(frames, bytes, feed.memory.share(&caller.principal.name)));
    let (subscriber, hello) = FeedSubscriber::new(&feed, caller, since)?;
    if let Some(hello) = hello {
        // The first frame always fits: the outbox is empty, and so few bytes do not count as memory.
        let _ = outgoing.push(hello.json);
    }
    let disconnected = CancellationToken::new();
    let socket = SubscriberSocket {
        outgoing: Rc::clone(&outgoing),
        _disconnected: disconnected.clone().drop_guard(),
        _slots: (slot, permit),
    };
    let limits = MessageLimits { max_bytes: MAX_FRAME_BYTES, budget: None };
    let response = pump::start(&request, payload, socket, limits)
        .map_err(|error| Problem::upgrade_required(&error.to_string()))?;
    let pause = feed.ping_interval;
    background::spawn(async move {
        tokio::select! {
            biased;
            () = disconnected.cancelled() => {}
            () = outgoing.serve(subscriber, pause) => {}
        }
    });
    Ok(response)
}

/// The frames on their way to a subscriber, limited in number and bytes. Events that do not fit stay in the feed.
struct Outgoing {
    outbox: Outbox,
    max_frames: usize,
    max_bytes: usize,
    /// Notified when there is space again.
    space_freed: Notify,
    /// Time of the last heartbeat: a frame from the peer, or frames that it took from a full outbox.
    last_heartbeat: Cell<Instant>,
}

impl Outgoing {
    fn new(max_frames: usize, max_bytes: usize, share: MemoryShare) -> Self {
        // Limits of the outbox would end a subscriber that reads late. Here the feed waits instead.
        let limits = OutboxLimits { messages: usize::MAX, bytes: usize::MAX, replay_frames: 0, replay_bytes: 0 };
        Self {
            outbox: Outbox::with_share(limits, share),
            max_frames,
            max_bytes,
            space_freed: Notify::new(),
            last_heartbeat: Cell::new(Instant::now()),
        }
    }

    fn is_full(&self) -> bool {
        self.outbox.len() >= self.max_frames || self.outbox.bytes() >= self.max_bytes
    }

    /// Adds a frame. Returns `false` if there is no memory for it.
    fn push(&self, frame: Bytes) -> bool {
        self.outbox.push(frame).is_ok()
    }

    fn drain(&self, budget: usize) -> Option<DrainedFrames> {
        if self.is_full() {
            self.last_heartbeat.set(Instant::now());
        }
        let drained = self.outbox.drain(0, budget)?;
        self.space_freed.notify_one();
        Some(drained)
    }

    /// Runs the task of the subscriber, on the thread of the connection. Its end frees everything but the socket, which closes when
    /// the peer reads or when the kernel gives up on it.
    async fn serve(&self, mut subscriber: FeedSubscriber, ping_interval: std::time::Duration) {
        let mut pings = interval_from_now(ping_interval);
        loop {
            let full = self.is_full();
            let next = tokio::select! {
                biased;
                _ = pings.tick() => {
                    if self.last_heartbeat.get().elapsed() > ping_interval * 2 {
                        return self.evict(CloseCode::Again, "no answer to pings; reconnect with since");
                    }
                    self.outbox.ping();
                    continue;
                }
                () = self.space_freed.notified(), if full => continue,
                next = subscriber.next(!full) => next,
            };
            match next {
                FeedStep::Event(event) => {
                    if !self.push(event.json.clone()) {
                        return self.evict(CloseCode::Again, "no memory for the waiting events; reconnect with since");
                    }
                }
                FeedStep::ShuttingDown => {
                    return self.outbox.close(CloseCode::Away.into(), "the gateway is shutting down");
                }
                FeedStep::Ended => {
                    return self.outbox.close(CloseCode::Again.into(), "the feed ended; reconnect with since");
                }
                FeedStep::Unauthorized => return self.evict(CloseCode::Policy, "the credential is no longer valid"),
            }
        }
    }

    /// Drops the frames that the peer has not taken, and closes the connection. The peer can ask for them again.
    fn evict(&self, code: CloseCode, reason: &'static str) {
        tracing::debug!(reason, "a feed subscriber is evicted");
        self.outbox.abandon(code.into(), reason);
    }
}

/// The WebSocket of a subscriber. Holds the slots that last as long as the connection.
struct SubscriberSocket {
    outgoing: Rc<Outgoing>,
    _disconnected: DropGuard,
    _slots: (StreamSlot, OwnedSemaphorePermit),
}

impl Backend for SubscriberSocket {
    const SUBPROTOCOLS: &'static [&'static str] = &[];
    const UNSUPPORTED_REASON: &'static str = "the gateway only sends events here and reads no messages";

    fn on_open(&mut self, wake: Wake) {
        let _ = self.outgoing.outbox.attach(0, wake);
    }

    fn drain(&mut self, budget: usize) -> Option<DrainedFrames> {
        self.outgoing.drain(budget)
    }

    fn on_flushed(&mut self) {
        self.outgoing.outbox.confirm_taken(0);
    }

    fn on_message(&mut self, _: Bytes, _: Option<Reservation>) -> MessageOutcome {
        MessageOutcome::Unsupported
    }

    fn heartbeat(&self) -> Heartbeat {
        let outgoing = Rc::clone(&self.outgoing);
        Rc::new(move || outgoing.last_heartbeat.set(Instant::now()))
    }

    fn on_close(&mut self, _: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_exchange::memory::MemoryBudget;

    fn outgoing(max_frames: usize, max_bytes: usize) -> Outgoing {
        Outgoing::new(max_frames, max_bytes, MemoryBudget::new(1 << 20, 1 << 20).share("ann"))
    }

    #[tokio::test(start_paused = true)]
    async fn taking_frames_from_full_outbox_is_heartbeat() {
        let outgoing = outgoing(2, 100);
        let opened = outgoing.last_heartbeat.get();
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert!(outgoing.push(Bytes::from_static(b"1")));
        assert!(!outgoing.is_full());
        assert_eq!(outgoing.drain(1000).unwrap().frames.len(), 1);
        assert_eq!(outgoing.last_heartbeat.get(), opened, "the kernel may have taken that");
        for full in [&[1, 1][..], &[100], &[200]] {
            full.iter().for_each(|bytes| _ = outgoing.push(Bytes::from(vec![b'x'; *bytes])));
            assert!(outgoing.is_full(), "{full:?}");
            let before = outgoing.last_heartbeat.get();
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
            assert_eq!(outgoing.drain(1000).unwrap().frames.len(), full.len());
            assert!(outgoing.last_heartbeat.get() > before, "{full:?}");
            assert!(!outgoing.is_full());
        }
    }

    #[test]
    fn evicted_subscriber_receives_only_the_reason() {
        let outgoing = outgoing(2, 100);
        assert!(outgoing.push(Bytes::from_static(b"1")));
        outgoing.evict(CloseCode::Policy, "no more");
        assert!(!outgoing.push(Bytes::from_static(b"2")));
        let last = outgoing.drain(1000).unwrap();
        assert_eq!((last.frames.len(), last.close), (0, Some((1008, "no more"))));
    }
}

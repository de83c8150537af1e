//! `/events`: the feed over a WebSocket, one JSON object per text frame.
//!
//! The actor only pumps frames between socket and outbox: it runs inside the response body and freezes when its
//! peer stops reading. So the subscriber's state (its place in the feed, the heartbeat, the decision to evict) lives
//! in a task of its own, and the bounded outbox between them has at most one wake-up in flight: its waker. While the
//! outbox is full the feed waits; a peer that neither reads nor answers pings is evicted.

use std::{
    cell::RefCell,
    collections::VecDeque,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use actix::{Actor, ActorContext as _, AsyncContext as _, StreamHandler};
use actix_web::{HttpRequest, HttpResponse, rt, web};
use actix_web_actors::ws::{self, CloseCode, CloseReason, Message, ProtocolError, WebsocketContext};
use bytestring::ByteString;
use futures_util::Stream;
use jiff::Timestamp;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Caller, Problem, RestState, events};
use crate::transports::ws::inbound_frame_limit::{FrameBound, Verdict};
use countersign_auth::Credential;
use countersign_exchange::{services::RECHECK, slots::StreamSlot};
use countersign_protocol::ErrorKind;
use countersign_review::FeedSubscription;

/// Bytes of a frame from a subscriber, who has nothing to say but pings.
const MAX_FRAME: usize = 4096;
/// Frames that wait at a time, if `limits.outbox_messages` allows as many.
const MAX_FRAMES: usize = 256;

/// `GET /events?since=N` with an upgrade.
pub async fn upgrade(
    caller: Caller,
    request: HttpRequest,
    payload: web::Payload,
    state: web::Data<RestState>,
) -> Result<HttpResponse, Problem> {
    let since = events::since(&request)?;
    ws::handshake(&request).map_err(|error| Problem::upgrade_required(&error.to_string()))?;
    let permit = Arc::clone(&state.web_sockets).try_acquire_owned();
    let permit = permit.or_else(|_| Arc::clone(&state.reserved_web_sockets).try_acquire_owned()).map_err(|_| {
        Problem::new(ErrorKind::Overloaded, "too many WebSockets are open (transports.websocket.max_connections)")
    })?;
    let slot = state.streams.take(&caller.principal.name)?;
    let (subscription, hello) = events::subscribe(&state, since)?;
    let outbox = Rc::new(RefCell::new(Outbox::new(&state)));
    if let Some(hello) = hello {
        outbox.borrow_mut().push(text(hello.json));
    }
    let gone = CancellationToken::new();
    let (payload, verdict) = FrameBound::new(payload, MAX_FRAME);
    let pump = Pump { outbox: Rc::clone(&outbox), verdict, _gone: gone.clone().drop_guard(), _held: (slot, permit) };
    let response = ws::WsResponseBuilder::new(pump, &request, payload)
        .frame_size(MAX_FRAME)
        .start()
        .map_err(|error| Problem::upgrade_required(&error.to_string()))?;
    let subscriber = Subscriber { state, credential: caller.credential, subscription, outbox, gone };
    rt::spawn(subscriber.run());
    Ok(response)
}

fn text(json: web::Bytes) -> Message {
    Message::Text(ByteString::try_from(json).unwrap_or_default())
}

/// Frames on their way out, in number and bytes bounded. What does not fit stays in the feed.
struct Outbox {
    frames: VecDeque<Message>,
    bytes: usize,
    max_frames: usize,
    max_bytes: usize,
    closed: bool,
    /// Wakes the pump when there are frames, and the subscriber when there is room again.
    pump: Option<Waker>,
    room: Rc<Notify>,
    /// When the peer last gave a sign of life: a frame of its own, or reading on although much was waiting.
    last_sign: Instant,
}

impl Outbox {
    fn new(state: &RestState) -> Self {
        let limits = &state.config.limits;
        Self {
            frames: VecDeque::new(),
            bytes: 0,
            max_frames: limits.outbox_messages.clamp(1, MAX_FRAMES),
            max_bytes: limits.outbox_bytes,
            closed: false,
            pump: None,
            room: Rc::default(),
            last_sign: Instant::now(),
        }
    }

    fn is_full(&self) -> bool {
        self.frames.len() >= self.max_frames || self.bytes >= self.max_bytes
    }

    fn push(&mut self, frame: Message) {
        if !self.closed {
            self.bytes += size(&frame);
            self.frames.push_back(frame);
            self.wake_pump();
        }
    }

    fn pop(&mut self) -> Option<Message> {
        if self.is_full() {
            self.last_sign = Instant::now();
        }
        let frame = self.frames.pop_front()?;
        self.bytes -= size(&frame);
        self.room.notify_one();
        Some(frame)
    }

    /// Queues the last frame. What an evicted reader has not fetched is dropped: it can ask for it again.
    fn close(&mut self, code: CloseCode, why: &str, drop_rest: bool) {
        if drop_rest {
            self.frames = VecDeque::new();
            self.bytes = 0;
        }
        self.push(Message::Close(Some(CloseReason { code, description: Some(why.to_owned()) })));
        self.closed = true;
    }

    fn wake_pump(&mut self) {
        if let Some(waker) = self.pump.take() {
            waker.wake();
        }
    }
}

fn size(frame: &Message) -> usize {
    match frame {
        Message::Text(text) => text.len(),
        _ => 0,
    }
}

/// The outbox as the pump reads it.
struct Frames(Rc<RefCell<Outbox>>);

impl Stream for Frames {
    type Item = Message;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Message>> {
        let mut outbox = self.0.borrow_mut();
        match outbox.pop() {
            Some(frame) => Poll::Ready(Some(frame)),
            None if outbox.closed => Poll::Ready(None),
            None => {
                outbox.pump = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Moves frames. Holds what must live as long as the connection does.
struct Pump {
    outbox: Rc<RefCell<Outbox>>,
    /// Whether the input was ended by a frame that may not be.
    verdict: Verdict,
    _gone: DropGuard,
    _held: (StreamSlot, OwnedSemaphorePermit),
}

impl Actor for Pump {
    type Context = WebsocketContext<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.add_stream(Frames(Rc::clone(&self.outbox)));
    }
}

impl StreamHandler<Message> for Pump {
    fn handle(&mut self, frame: Message, context: &mut Self::Context) {
        match frame {
            Message::Close(reason) => {
                context.close(reason);
                context.stop();
            }
            other => context.write_raw(other),
        }
    }

    fn finished(&mut self, _: &mut Self::Context) {}
}

impl StreamHandler<Result<Message, ProtocolError>> for Pump {
    fn handle(&mut self, frame: Result<Message, ProtocolError>, context: &mut Self::Context) {
        self.outbox.borrow_mut().last_sign = Instant::now();
        let close = |code, why: &str| Some(CloseReason { code, description: Some(why.to_owned()) });
        let reason = match frame {
            Ok(Message::Ping(payload)) => return context.pong(&payload),
            Ok(Message::Pong(_) | Message::Nop) => return,
            Ok(Message::Close(reason)) => reason,
            Ok(Message::Text(_) | Message::Binary(_) | Message::Continuation(_)) => {
                close(CloseCode::Unsupported, "this socket only sends")
            }
            Err(ProtocolError::Overflow) => close(CloseCode::Size, "the frame is too large"),
            Err(_) => close(CloseCode::Protocol, "not a WebSocket frame"),
        };
        context.close(reason);
        context.stop();
    }

    fn finished(&mut self, context: &mut Self::Context) {
        if let Some((code, why)) = self.verdict.close() {
            context.close(Some(CloseReason { code, description: Some(why.to_owned()) }));
        }
        context.stop();
    }
}

/// The subscriber's own task, on the connection's thread; ends with the connection.
struct Subscriber {
    state: web::Data<RestState>,
    credential: Credential,
    subscription: FeedSubscription,
    outbox: Rc<RefCell<Outbox>>,
    gone: CancellationToken,
}

impl Subscriber {
    async fn run(mut self) {
        let pause = self.state.config.transports.websocket.ping_interval;
        let mut ticks = events::ticks(pause);
        let mut recheck = events::ticks(RECHECK);
        let shutdown = self.state.shutdown.child_token();
        let room = Rc::clone(&self.outbox.borrow().room);
        loop {
            let full = self.outbox.borrow().is_full();
            tokio::select! {
                biased;
                () = self.gone.cancelled() => return,
                () = shutdown.cancelled() => {
                    return self.end(CloseCode::Away, "the gateway is shutting down", false);
                }
                _ = ticks.tick() => {
                    if self.outbox.borrow().last_sign.elapsed() > pause * 2 {
                        return self.end(CloseCode::Again, "no answer to pings; reconnect with since", true);
                    }
                    if !full {
                        self.outbox.borrow_mut().push(Message::Ping(web::Bytes::new()));
                    }
                }
                _ = recheck.tick() => {
                    if !self.may_go_on() {
                        return self.end(CloseCode::Policy, "the credential no longer holds", true);
                    }
                }
                () = room.notified(), if full => {}
                event = self.subscription.next(), if !full => {
                    let Some(event) = event else {
                        return self.end(CloseCode::Again, "the feed ended; reconnect with since", false);
                    };
                    if !self.may_go_on() {
                        return self.end(CloseCode::Policy, "the credential no longer holds", true);
                    }
                    self.outbox.borrow_mut().push(text(event.json.clone()));
                }
            }
        }
    }

    fn may_go_on(&self) -> bool {
        self.state.sign_ins.still_valid(&self.credential, Timestamp::now()).is_ok()
    }

    /// Frees everything but the socket, which closes when the peer reads, or when the kernel gives up on it.
    fn end(self, code: CloseCode, why: &str, drop_rest: bool) {
        tracing::debug!(why, "a feed subscriber ends");
        self.outbox.borrow_mut().close(code, why, drop_rest);
    }
}

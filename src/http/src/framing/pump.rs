//! The actor of `actix-web-actors` behind `/ws` and `/events`, which only moves frames between a socket and a [`Backend`].
//!
//! It runs inside the body of the HTTP response, so it makes no progress while its peer does not read. Therefore it has no
//! timer, no queue and no state of its backend, only the frames of an incomplete message. The backend owns the outbox, notices
//! that the peer no longer reads, and ends the connection.

use std::{rc::Rc, sync::Arc};

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Handler, Message, StreamHandler, WrapFuture};
use actix_http::ws::Item;
use actix_web::{Error, HttpRequest, HttpResponse, body::BoxBody, web};
use actix_web_actors::ws::{self, CloseCode, CloseReason, ProtocolError, WebsocketContext};
use bytes::{Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;

pub use super::input::{Heartbeat, MessageLimits};
use super::{
    input::{InputState, LimitedInput, TOO_LARGE},
    output::SlicedBody,
};
use countersign_exchange::{
    body_budget::Reservation,
    outbox::{DrainedFrames, LARGE_DRAIN_BYTES, Wake},
};

/// Approximate number of bytes that the connection is given at a time.
const DRAIN_BYTES: usize = 64 * 1024;

/// The gateway's side of a WebSocket: the session of an agent, or a subscription to the feed.
pub trait Backend: Unpin + 'static {
    /// The subprotocols that the gateway supports on this endpoint.
    const SUBPROTOCOLS: &'static [&'static str];
    /// The reason in the close frame after an unsupported message.
    const UNSUPPORTED_REASON: &'static str;

    /// Starts to use the connection. `wake` makes the pump drain the outbox.
    fn on_open(&mut self, wake: Wake);
    /// Returns the next frames to send, of about `budget` bytes.
    fn drain(&mut self, budget: usize) -> Option<DrainedFrames>;
    /// Continues with later frames after the connection has taken a large drain.
    fn on_flushed(&mut self);
    /// Handles a text message. `reservation` keeps its bytes counted in the budget for bodies.
    fn on_message(&mut self, text: Bytes, reservation: Option<Reservation>) -> MessageOutcome;
    /// Returns the function that records a sign of life: a ping, a pong, or bytes of a large message in either direction.
    fn heartbeat(&self) -> Heartbeat;
    /// Cleans up after the connection has ended. `closed_by_peer` is `true` if the peer sent a close frame.
    fn on_close(&mut self, closed_by_peer: bool);
}

/// The outcome of a message.
pub enum MessageOutcome {
    Accepted,
    /// Nothing more is read from this peer until the future ends.
    Pending(LocalBoxFuture<'static, ()>),
    Unsupported,
}

struct Pump<B> {
    backend: B,
    heartbeat: Heartbeat,
    /// The first frames of a text message that is not complete.
    partial: BytesMut,
    max_message_bytes: usize,
    input: InputState,
    /// `true` once the peer has sent a close frame.
    closed_by_peer: bool,
}

impl<B: Backend> Pump<B> {
    /// Creates a pump. Also returns its input, which is read from `payload`.
    fn new<S>(backend: B, payload: S, limits: MessageLimits) -> (Self, LimitedInput<S>) {
        let (heartbeat, max_message_bytes) = (backend.heartbeat(), limits.max_bytes);
        let (payload, input) = LimitedInput::new(payload, limits, Rc::clone(&heartbeat));
        let partial = BytesMut::new();
        (Self { backend, heartbeat, partial, max_message_bytes, input, closed_by_peer: false }, payload)
    }
}

/// Switches the connection to WebSocket messages within these limits.
///
/// # Errors
/// The request is not a WebSocket handshake.
pub fn start<B: Backend>(
    request: &HttpRequest,
    payload: web::Payload,
    backend: B,
    limits: MessageLimits,
) -> Result<HttpResponse, Error> {
    let max = limits.max_bytes;
    let (pump, payload) = Pump::new(backend, payload, limits);
    let heartbeat = Rc::clone(&pump.heartbeat);
    let builder = ws::WsResponseBuilder::new(pump, request, payload).protocols(B::SUBPROTOCOLS).frame_size(max);
    let response = builder.start()?;
    Ok(response.map_body(|_, body| BoxBody::new(SlicedBody::new(body, heartbeat))))
}

impl<B: Backend> Actor for Pump<B> {
    type Context = WebsocketContext<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let addr = ctx.address();
        self.backend.on_open(Arc::new(move || addr.do_send(Drain)));
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.backend.on_close(self.closed_by_peer);
    }
}

/// Tells the pump that the outbox holds frames. At most one of these messages is in the mailbox.
#[derive(Message)]
#[rtype(result = "()")]
struct Drain;

impl<B: Backend> Handler<Drain> for Pump<B> {
    type Result = ();

    fn handle(&mut self, _: Drain, ctx: &mut Self::Context) {
        let Some(drained) = self.backend.drain(DRAIN_BYTES) else { return };
        if drained.ping {
            ctx.ping(b"");
        }
        let bytes: usize = drained.frames.iter().map(Bytes::len).sum();
        for frame in drained.frames {
            // All frames were built as text.
            if let Ok(text) = frame.try_into() {
                ctx.write_raw(ws::Message::Text(text));
            }
        }
        if let Some((code, reason)) = drained.close {
            close(ctx, CloseCode::from(code), reason);
        } else if bytes > LARGE_DRAIN_BYTES {
            // Later frames stay in the outbox until the connection has taken these.
            ctx.wait(tokio::task::yield_now().into_actor(self).map(|(), pump, _| pump.backend.on_flushed()));
        }
    }
}

fn close<B: Backend>(ctx: &mut WebsocketContext<Pump<B>>, code: CloseCode, reason: &str) {
    ctx.close(Some(CloseReason { code, description: Some(reason.to_owned()) }));
    ctx.stop();
}

impl<B: Backend> Pump<B> {
    fn handle_message(&mut self, message: Bytes, ctx: &mut WebsocketContext<Self>) {
        let reservation = self.input.take_reservation();
        match self.backend.on_message(message, reservation) {
            MessageOutcome::Accepted => {}
            MessageOutcome::Pending(pending) => ctx.wait(pending.into_actor(self)),
            MessageOutcome::Unsupported => close(ctx, CloseCode::Unsupported, B::UNSUPPORTED_REASON),
        }
    }

    fn handle_continuation(&mut self, item: Item, ctx: &mut WebsocketContext<Self>) {
        // The codec ensures that the frames of a message follow its first one.
        let last = matches!(item, Item::Last(_));
        let (Item::FirstText(chunk) | Item::Continue(chunk) | Item::Last(chunk)) = item else {
            return close(ctx, CloseCode::Unsupported, B::UNSUPPORTED_REASON);
        };
        if self.partial.len() + chunk.len() > self.max_message_bytes {
            return close(ctx, TOO_LARGE.0, TOO_LARGE.1);
        }
        self.partial.extend_from_slice(&chunk);
        if last {
            let whole = std::mem::take(&mut self.partial);
            // Only the whole message is text, because two frames may share a character.
            if std::str::from_utf8(&whole).is_err() {
                return close(ctx, CloseCode::Invalid, "not UTF-8 text");
            }
            self.handle_message(whole.freeze(), ctx);
        }
    }
}

impl<B: Backend> StreamHandler<Result<ws::Message, ProtocolError>> for Pump<B> {
    fn handle(&mut self, item: Result<ws::Message, ProtocolError>, ctx: &mut Self::Context) {
        match item {
            Ok(ws::Message::Text(text)) => self.handle_message(text.into_bytes(), ctx),
            Ok(ws::Message::Binary(_)) => close(ctx, CloseCode::Unsupported, B::UNSUPPORTED_REASON),
            Ok(ws::Message::Continuation(item)) => self.handle_continuation(item, ctx),
            Ok(ws::Message::Ping(data)) => {
                ctx.pong(&data);
                (self.heartbeat)();
            }
            Ok(ws::Message::Pong(_)) => (self.heartbeat)(),
            Ok(ws::Message::Close(reason)) => {
                self.closed_by_peer = true;
                ctx.close(reason);
                ctx.stop();
            }
            Ok(ws::Message::Nop) => {}
            Err(ProtocolError::Overflow) => close(ctx, TOO_LARGE.0, TOO_LARGE.1),
            Err(ProtocolError::Io(error)) => {
                // actix reports text that is not UTF-8 as an I/O error.
                tracing::debug!(%error, "a WebSocket message is not UTF-8, or its input broke off");
                close(ctx, CloseCode::Invalid, "not UTF-8 text");
            }
            Err(error) => {
                tracing::debug!(%error, "a WebSocket broke the protocol");
                close(ctx, CloseCode::Protocol, "protocol error");
            }
        }
    }

    fn finished(&mut self, ctx: &mut Self::Context) {
        match self.input.close_frame() {
            Some((code, reason)) => close(ctx, code, reason),
            None => ctx.stop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, pin::Pin, task::Poll};

    use actix_http::{error::PayloadError, ws::Codec};
    use actix_web_actors::ws::WebsocketContext;
    use futures_util::{FutureExt as _, Stream, StreamExt as _, poll};
    use tokio::sync::{
        mpsc::{UnboundedSender, unbounded_channel},
        oneshot,
    };

    use super::*;
    use countersign_exchange::outbox::{Outbox, OutboxLimits};

    const MAX: usize = 1000;

    /// A call that the backend has received.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum BackendCall {
        Opened,
        Text(String),
        Heartbeat,
        Closed { closed_by_peer: bool },
    }

    struct Recorder {
        calls: Rc<RefCell<Vec<BackendCall>>>,
        outbox: Arc<Outbox>,
        /// Keeps the next message pending until the test opens the gate.
        gate: Option<oneshot::Receiver<()>>,
    }

    impl Backend for Recorder {
        const SUBPROTOCOLS: &'static [&'static str] = &[];
        const UNSUPPORTED_REASON: &'static str = "not this";

        fn on_open(&mut self, wake: Wake) {
            self.calls.borrow_mut().push(BackendCall::Opened);
            assert!(self.outbox.attach(0, wake));
        }
        fn drain(&mut self, budget: usize) -> Option<DrainedFrames> {
            self.outbox.drain(0, budget)
        }
        fn on_flushed(&mut self) {
            self.outbox.confirm_taken(0);
        }
        fn on_message(&mut self, text: Bytes, _: Option<Reservation>) -> MessageOutcome {
            if text == "unsupported" {
                return MessageOutcome::Unsupported;
            }
            self.calls.borrow_mut().push(BackendCall::Text(String::from_utf8(text.to_vec()).unwrap()));
            match self.gate.take() {
                Some(gate) => MessageOutcome::Pending(gate.map(drop).boxed_local()),
                None => MessageOutcome::Accepted,
            }
        }
        fn heartbeat(&self) -> Heartbeat {
            let calls = Rc::clone(&self.calls);
            Rc::new(move || calls.borrow_mut().push(BackendCall::Heartbeat))
        }
        fn on_close(&mut self, closed_by_peer: bool) {
            self.calls.borrow_mut().push(BackendCall::Closed { closed_by_peer });
        }
    }

    /// A connection in memory, whose output is the body of the response.
    struct Socket {
        input: Option<UnboundedSender<Bytes>>,
        output: Pin<Box<dyn Stream<Item = Result<Bytes, Error>>>>,
        calls: Rc<RefCell<Vec<BackendCall>>>,
        outbox: Arc<Outbox>,
    }

    impl Socket {
        fn open(gate: Option<oneshot::Receiver<()>>) -> Self {
            let limits = OutboxLimits { messages: 100, bytes: 10 << 20, replay_frames: 0, replay_bytes: 0 };
            let (calls, outbox) = (Rc::default(), Arc::new(Outbox::new(limits)));
            let backend = Recorder { calls: Rc::clone(&calls), outbox: Arc::clone(&outbox), gate };
            let (input, mut pieces) = unbounded_channel();
            let payload = futures_util::stream::poll_fn(move |cx| pieces.poll_recv(cx)).map(Ok::<_, PayloadError>);
            let (pump, payload) = Pump::new(backend, payload, MessageLimits { max_bytes: MAX, budget: None });
            let output = Box::pin(WebsocketContext::with_codec(pump, payload, Codec::new().max_size(MAX)));
            Self { input: Some(input), output, calls, outbox }
        }

        /// Sends bytes and returns the output that follows.
        async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Vec<u8> {
            self.input.as_ref().unwrap().send(Bytes::copy_from_slice(bytes.as_ref())).unwrap();
            self.output().await
        }

        async fn output(&mut self) -> Vec<u8> {
            let mut out = Vec::new();
            while let Poll::Ready(Some(piece)) = poll!(self.output.next()) {
                out.extend_from_slice(&piece.unwrap());
            }
            out
        }

        fn calls(&self) -> Vec<BackendCall> {
            std::mem::take(&mut *self.calls.borrow_mut())
        }
    }

    /// Returns a client's frame, masked with zeros.
    fn frame(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
        let payload = payload.as_ref();
        let mut frame = vec![first, 0x80 | 126];
        frame.extend_from_slice(&u16::try_from(payload.len()).unwrap().to_be_bytes());
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(payload);
        frame
    }

    /// Returns a close frame of the gateway.
    fn close_frame(code: u16, reason: &str) -> Vec<u8> {
        let length = u8::try_from(reason.len() + 2).unwrap();
        [&[0x88, length], &code.to_be_bytes()[..], reason.as_bytes()].concat()
    }

    fn text(text: &str) -> BackendCall {
        BackendCall::Text(text.into())
    }

    #[actix::test]
    async fn messages_are_assembled_in_order_from_any_frames() {
        let mut socket = Socket::open(None);
        let cut = "a\u{e4}b".as_bytes();
        let frames = [
            frame(0x81, "whole"),
            frame(0x01, &cut[..2]),
            frame(0x89, "p"),
            frame(0x00, ""),
            frame(0x80, &cut[2..]),
            frame(0x81, ""),
            frame(0x8a, ""),
        ];
        let mut out = Vec::new();
        for byte in frames.concat() {
            out.extend(socket.send([byte]).await);
        }
        assert_eq!(out, [0x8a, 1, b'p'], "only the ping is answered, with its own payload");
        let calls = [
            BackendCall::Opened,
            text("whole"),
            BackendCall::Heartbeat,
            text("a\u{e4}b"),
            text(""),
            BackendCall::Heartbeat,
        ];
        assert_eq!(socket.calls(), calls);
    }

    #[actix::test]
    async fn invalid_message_closes_with_matching_code() {
        let half = vec![b'x'; MAX / 2 + 1];
        for (frames, close) in [
            (vec![frame(0x82, "b")], close_frame(1003, "not this")),
            (vec![frame(0x02, "b")], close_frame(1003, "not this")),
            (vec![frame(0x81, "unsupported")], close_frame(1003, "not this")),
            (vec![frame(0x02, "b"), frame(0x80, "b")], close_frame(1003, "not this")),
            (vec![frame(0x80, "x")], close_frame(1002, "protocol error")),
            (vec![frame(0x01, "x"), frame(0x81, "x")], close_frame(1002, "protocol error")),
            (vec![frame(0x01, &half), frame(0x80, &half)], close_frame(1009, "message too large")),
            (vec![frame(0x81, vec![b'x'; MAX + 1])], close_frame(1009, "message too large")),
            (vec![frame(0x81, [0xff])], close_frame(1007, "not UTF-8 text")),
            (vec![frame(0x01, [0xc3]), frame(0x80, "x")], close_frame(1007, "not UTF-8 text")),
            (vec![frame(0xc1, "x")], close_frame(1002, "reserved bits are set")),
            (vec![vec![0x81, 1, b'x']], close_frame(1002, "protocol error")),
        ] {
            let mut socket = Socket::open(None);
            assert_eq!(socket.send(frames.concat()).await, close, "{frames:x?}");
            assert_eq!(
                socket.calls(),
                [BackendCall::Opened, BackendCall::Closed { closed_by_peer: false }],
                "{frames:x?}"
            );
            assert!(socket.output.next().await.is_none(), "nothing comes after a close frame");
        }
    }

    #[actix::test]
    async fn close_frame_is_answered_and_reported() {
        let mut socket = Socket::open(None);
        let bye = [&1000_u16.to_be_bytes()[..], b"bye"].concat();
        assert_eq!(socket.send(frame(0x88, bye)).await, close_frame(1000, "bye"));
        assert_eq!(socket.calls(), [BackendCall::Opened, BackendCall::Closed { closed_by_peer: true }]);

        let mut broken = Socket::open(None);
        broken.send(&frame(0x81, "half a message")[..9]).await;
        broken.input = None;
        assert_eq!(broken.output().await, [0; 0]);
        assert_eq!(broken.calls(), [BackendCall::Opened, BackendCall::Closed { closed_by_peer: false }]);
    }

    #[actix::test]
    async fn pushed_frames_are_sent_in_order_before_close() {
        let mut socket = Socket::open(None);
        socket.outbox.push(Bytes::from_static(b"1")).unwrap();
        assert_eq!(socket.output().await, [0x81, 1, b'1'], "frames from before the connection are sent");
        socket.outbox.push(Bytes::from_static(b"2")).unwrap();
        socket.outbox.ping();
        socket.outbox.close(1001, "bye");
        assert_eq!(socket.output().await, [vec![0x89, 0, 0x81, 1, b'2'], close_frame(1001, "bye")].concat());
        assert_eq!(socket.calls(), [BackendCall::Opened, BackendCall::Closed { closed_by_peer: false }]);
    }

    #[actix::test]
    async fn frames_stay_in_outbox_until_connection_takes_them() {
        let mut socket = Socket::open(None);
        let half = Bytes::from(vec![b'x'; DRAIN_BYTES / 2 + 1]);
        for _ in 0..10 {
            socket.outbox.push(half.clone()).unwrap();
        }
        let piece = socket.output.next().await.unwrap().unwrap();
        assert!(piece.len() <= DRAIN_BYTES + 10, "{}", piece.len());
        assert_eq!(socket.outbox.len(), 9);
        let mut rest = 0;
        while !socket.outbox.is_empty() {
            rest += socket.output.next().await.unwrap().unwrap().len();
        }
        assert_eq!(rest, piece.len() * 9);
    }

    #[actix::test]
    async fn input_is_not_read_while_message_is_pending() {
        let (open, gate) = oneshot::channel();
        let mut socket = Socket::open(Some(gate));
        socket.send([frame(0x81, "first"), frame(0x81, "second")].concat()).await;
        socket.send(frame(0x81, "third")).await;
        assert_eq!(socket.calls(), [BackendCall::Opened, text("first")]);
        open.send(()).unwrap();
        socket.output().await;
        assert_eq!(socket.calls(), [text("second"), text("third")]);
    }
}

//! The actor of `actix-web-actors` behind `/ws` and `/events`, which only pumps frames between a socket and a [`Backend`].
//!
//! It runs inside the HTTP response body, so it stands still while its peer does not read. Therefore it has no timer, no
//! queue and no state of what it serves, only the frames of a message that is not complete yet. Whoever is behind it
//! owns the outbox, sees that nothing is read any more, and ends the connection.

use std::sync::Arc;

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Handler, Message, StreamHandler, WrapFuture};
use actix_http::ws::Item;
use actix_web::{Error, HttpRequest, HttpResponse, web};
use actix_web_actors::ws::{self, CloseCode, CloseReason, ProtocolError, WebsocketContext};
use bytes::{Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;

use super::{
    counted::{Counting, Room},
    inbound_frame_limit::{FrameBound, Verdict},
};
use countersign_exchange::{
    inflow::{Held, Intake},
    outbox::{Drained, LARGE_HANDOVER, Wake},
};

/// About as many bytes are handed to the connection at a time.
const BUDGET: usize = 64 * 1024;

/// What a WebSocket leads to: the session of an agent, or a subscription to the feed.
pub trait Backend: Unpin + 'static {
    /// The subprotocols that it speaks.
    const PROTOCOLS: &'static [&'static str];
    /// Why the connection is closed on a message that it does not take.
    const UNSUPPORTED: &'static str;

    /// The connection is open; `wake` makes the pump drain what waits.
    fn opened(&mut self, wake: Wake);
    /// What goes out next, about so many bytes of it.
    fn drain(&mut self, budget: usize) -> Option<Drained>;
    /// The connection has taken what was drained last, if that was much.
    fn taken(&mut self);
    /// A text message came in, with what it holds of the room for bodies.
    fn message(&mut self, text: Bytes, held: Option<Held>) -> Taken;
    /// A ping or a pong came in.
    fn sign_of_life(&mut self);
    /// The connection is gone; `farewell` where its peer closed it.
    fn closed(&mut self, farewell: bool);
}

/// What became of a message.
pub enum Taken {
    Done,
    /// Nothing more is read from this peer before: what would come meanwhile waits in its socket.
    Waits(LocalBoxFuture<'static, ()>),
    Unsupported,
}

struct Pump<B> {
    backend: B,
    /// What came of a text message that comes in several frames.
    partial: BytesMut,
    max: usize,
    /// Whether the input was ended by a frame that may not be.
    verdict: Verdict,
    /// What its messages hold of the room for bodies.
    room: Room,
    /// A close frame came in.
    farewell: bool,
}

/// Switches the connection over, for messages of at most `max` bytes. They are counted where there is an `intake`.
///
/// # Errors
/// The request is no WebSocket handshake.
pub fn start<B: Backend>(
    request: &HttpRequest,
    payload: web::Payload,
    backend: B,
    max: usize,
    intake: Option<Arc<Intake>>,
) -> Result<HttpResponse, Error> {
    let (pump, payload) = Pump::new(payload, backend, max, intake);
    ws::WsResponseBuilder::new(pump, request, payload).protocols(B::PROTOCOLS).frame_size(max).start()
}

impl<B: Backend> Pump<B> {
    /// The pump, and its input, which is bounded by frames.
    fn new<S>(payload: S, backend: B, max: usize, intake: Option<Arc<Intake>>) -> (Self, FrameBound<S>) {
        let (mut payload, verdict) = FrameBound::new(payload, max);
        let mut room = Room::default();
        if let Some(intake) = intake {
            let (counting, counted) = Counting::new(intake);
            payload = payload.counted(counting);
            room = counted;
        }
        (Self { backend, partial: BytesMut::new(), max, verdict, room, farewell: false }, payload)
    }
}

impl<B: Backend> Actor for Pump<B> {
    type Context = WebsocketContext<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let addr = ctx.address();
        self.backend.opened(Arc::new(move || addr.do_send(Drain)));
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.backend.closed(self.farewell);
    }
}

/// Sent by the outbox when something waits; at most one is under way.
#[derive(Message)]
#[rtype(result = "()")]
struct Drain;

impl<B: Backend> Handler<Drain> for Pump<B> {
    type Result = ();

    fn handle(&mut self, _: Drain, ctx: &mut Self::Context) {
        let Some(drained) = self.backend.drain(BUDGET) else { return };
        if drained.ping {
            ctx.ping(b"");
        }
        let bytes: usize = drained.frames.iter().map(Bytes::len).sum();
        for frame in drained.frames {
            // Everything that is sent was built as text.
            if let Ok(text) = frame.try_into() {
                ctx.write_raw(ws::Message::Text(text));
            }
        }
        if let Some((code, reason)) = drained.close {
            close(ctx, CloseCode::from(code), reason);
        } else if bytes > LARGE_HANDOVER {
            // The connection takes this first. What comes next stays in the outbox until it asks for more.
            ctx.wait(tokio::task::yield_now().into_actor(self).map(|(), pump, _| pump.backend.taken()));
        }
    }
}

fn close<B: Backend>(ctx: &mut WebsocketContext<Pump<B>>, code: CloseCode, reason: &str) {
    ctx.close(Some(CloseReason { code, description: Some(reason.to_owned()) }));
    ctx.stop();
}

impl<B: Backend> Pump<B> {
    fn message(&mut self, message: Bytes, ctx: &mut WebsocketContext<Self>) {
        let held = self.room.of_message();
        match self.backend.message(message, held) {
            Taken::Done => {}
            Taken::Waits(taken) => ctx.wait(taken.into_actor(self)),
            Taken::Unsupported => close(ctx, CloseCode::Unsupported, B::UNSUPPORTED),
        }
    }

    fn continuation(&mut self, item: Item, ctx: &mut WebsocketContext<Self>) {
        // The codec has seen to it that the frames of a message follow its first one.
        let last = matches!(item, Item::Last(_));
        let (Item::FirstText(chunk) | Item::Continue(chunk) | Item::Last(chunk)) = item else {
            return close(ctx, CloseCode::Unsupported, B::UNSUPPORTED);
        };
        if self.partial.len() + chunk.len() > self.max {
            return close(ctx, CloseCode::Size, "message too large");
        }
        self.partial.extend_from_slice(&chunk);
        if last {
            let whole = std::mem::take(&mut self.partial);
            // Only the whole is text: a character may stand in two frames.
            if std::str::from_utf8(&whole).is_err() {
                return close(ctx, CloseCode::Invalid, "not UTF-8 text");
            }
            self.message(whole.freeze(), ctx);
        }
    }
}

impl<B: Backend> StreamHandler<Result<ws::Message, ProtocolError>> for Pump<B> {
    fn handle(&mut self, item: Result<ws::Message, ProtocolError>, ctx: &mut Self::Context) {
        match item {
            Ok(ws::Message::Text(text)) => self.message(text.into_bytes(), ctx),
            Ok(ws::Message::Binary(_)) => close(ctx, CloseCode::Unsupported, B::UNSUPPORTED),
            Ok(ws::Message::Continuation(item)) => self.continuation(item, ctx),
            Ok(ws::Message::Ping(data)) => {
                ctx.pong(&data);
                self.backend.sign_of_life();
            }
            Ok(ws::Message::Pong(_)) => self.backend.sign_of_life(),
            Ok(ws::Message::Close(reason)) => {
                self.farewell = true;
                ctx.close(reason);
                ctx.stop();
            }
            Ok(ws::Message::Nop) => {}
            Err(ProtocolError::Overflow) => close(ctx, CloseCode::Size, "message too large"),
            Err(ProtocolError::Io(error)) => {
                tracing::debug!(%error, "websocket input ends");
                close(ctx, CloseCode::Invalid, "not UTF-8 text");
            }
            Err(error) => {
                tracing::debug!(%error, "websocket protocol error");
                close(ctx, CloseCode::Protocol, "protocol error");
            }
        }
    }

    fn finished(&mut self, ctx: &mut Self::Context) {
        match self.verdict.close().or_else(|| self.room.close()) {
            Some((code, reason)) => close(ctx, code, reason),
            None => ctx.stop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, pin::Pin, rc::Rc, task::Poll};

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

    /// What the pump told its backend.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Heard {
        Opened,
        Text(String),
        Sign,
        Closed { farewell: bool },
    }

    struct Recorder {
        heard: Rc<RefCell<Vec<Heard>>>,
        outbox: Arc<Outbox>,
        /// The next message is taken up when this says so.
        gate: Option<oneshot::Receiver<()>>,
    }

    impl Backend for Recorder {
        const PROTOCOLS: &'static [&'static str] = &[];
        const UNSUPPORTED: &'static str = "not this";

        fn opened(&mut self, wake: Wake) {
            self.heard.borrow_mut().push(Heard::Opened);
            assert!(self.outbox.attach(0, wake));
        }
        fn drain(&mut self, budget: usize) -> Option<Drained> {
            self.outbox.drain(0, budget)
        }
        fn taken(&mut self) {
            self.outbox.taken(0);
        }
        fn message(&mut self, text: Bytes, _: Option<Held>) -> Taken {
            if text == "unsupported" {
                return Taken::Unsupported;
            }
            self.heard.borrow_mut().push(Heard::Text(String::from_utf8(text.to_vec()).unwrap()));
            match self.gate.take() {
                Some(gate) => Taken::Waits(gate.map(drop).boxed_local()),
                None => Taken::Done,
            }
        }
        fn sign_of_life(&mut self) {
            self.heard.borrow_mut().push(Heard::Sign);
        }
        fn closed(&mut self, farewell: bool) {
            self.heard.borrow_mut().push(Heard::Closed { farewell });
        }
    }

    /// A connection in memory: frames go in as bytes, and come out as the body of the response.
    struct Socket {
        input: Option<UnboundedSender<Bytes>>,
        output: Pin<Box<dyn Stream<Item = Result<Bytes, Error>>>>,
        heard: Rc<RefCell<Vec<Heard>>>,
        outbox: Arc<Outbox>,
    }

    impl Socket {
        fn open(gate: Option<oneshot::Receiver<()>>) -> Self {
            let limits = OutboxLimits { messages: 100, bytes: 10 << 20, replay_frames: 0, replay_bytes: 0 };
            let (heard, outbox) = (Rc::default(), Arc::new(Outbox::new(limits)));
            let backend = Recorder { heard: Rc::clone(&heard), outbox: Arc::clone(&outbox), gate };
            let (input, mut pieces) = unbounded_channel();
            let payload = futures_util::stream::poll_fn(move |cx| pieces.poll_recv(cx)).map(Ok::<_, PayloadError>);
            let (pump, payload) = Pump::new(payload, backend, MAX, None);
            let output = Box::pin(WebsocketContext::with_codec(pump, payload, Codec::new().max_size(MAX)));
            Self { input: Some(input), output, heard, outbox }
        }

        /// What comes out for these bytes, until nothing more does.
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

        fn heard(&self) -> Vec<Heard> {
            std::mem::take(&mut *self.heard.borrow_mut())
        }
    }

    /// A client's frame, masked with zeros.
    fn frame(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
        let payload = payload.as_ref();
        let mut frame = vec![first, 0x80 | 126];
        frame.extend_from_slice(&u16::try_from(payload.len()).unwrap().to_be_bytes());
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(payload);
        frame
    }

    /// A close frame of the gateway.
    fn closes(code: u16, reason: &str) -> Vec<u8> {
        let length = u8::try_from(reason.len() + 2).unwrap();
        [&[0x88, length], &code.to_be_bytes()[..], reason.as_bytes()].concat()
    }

    fn text(text: &str) -> Heard {
        Heard::Text(text.into())
    }

    #[actix::test]
    async fn messages_arrive_whole_and_in_order_however_their_frames_are_cut() {
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
        assert_eq!(out, [0x8a, 1, b'p'], "a ping is answered with what it carries, and nothing else comes out");
        let heard = [Heard::Opened, text("whole"), Heard::Sign, text("a\u{e4}b"), text(""), Heard::Sign];
        assert_eq!(socket.heard(), heard);
    }

    #[actix::test]
    async fn what_is_no_message_closes_with_the_code_that_says_why() {
        let half = vec![b'x'; MAX / 2 + 1];
        for (frames, close) in [
            (vec![frame(0x82, "b")], closes(1003, "not this")),
            (vec![frame(0x02, "b")], closes(1003, "not this")),
            (vec![frame(0x81, "unsupported")], closes(1003, "not this")),
            (vec![frame(0x02, "b"), frame(0x80, "b")], closes(1003, "not this")),
            (vec![frame(0x80, "x")], closes(1002, "protocol error")),
            (vec![frame(0x01, "x"), frame(0x81, "x")], closes(1002, "protocol error")),
            (vec![frame(0x01, &half), frame(0x80, &half)], closes(1009, "message too large")),
            (vec![frame(0x81, vec![b'x'; MAX + 1])], closes(1009, "message too large")),
            (vec![frame(0x81, [0xff])], closes(1007, "not UTF-8 text")),
            (vec![frame(0x01, [0xc3]), frame(0x80, "x")], closes(1007, "not UTF-8 text")),
            (vec![frame(0xc1, "x")], closes(1002, "reserved bits are set")),
            (vec![vec![0x81, 1, b'x']], closes(1002, "protocol error")),
        ] {
            let mut socket = Socket::open(None);
            assert_eq!(socket.send(frames.concat()).await, close, "{frames:x?}");
            assert_eq!(socket.heard(), [Heard::Opened, Heard::Closed { farewell: false }], "{frames:x?}");
            assert!(socket.output.next().await.is_none(), "nothing comes after a close frame");
        }
    }

    #[actix::test]
    async fn a_farewell_is_answered_and_told_from_a_connection_that_broke() {
        let mut socket = Socket::open(None);
        let bye = [&1000_u16.to_be_bytes()[..], b"bye"].concat();
        assert_eq!(socket.send(frame(0x88, bye)).await, closes(1000, "bye"));
        assert_eq!(socket.heard(), [Heard::Opened, Heard::Closed { farewell: true }]);

        let mut broken = Socket::open(None);
        broken.send(&frame(0x81, "half a message")[..9]).await;
        broken.input = None;
        assert_eq!(broken.output().await, [0; 0]);
        assert_eq!(broken.heard(), [Heard::Opened, Heard::Closed { farewell: false }]);
    }

    #[actix::test]
    async fn what_is_pushed_goes_out_in_order_and_a_close_last() {
        let mut socket = Socket::open(None);
        socket.outbox.push(Bytes::from_static(b"1")).unwrap();
        assert_eq!(socket.output().await, [0x81, 1, b'1'], "what was there before is announced");
        socket.outbox.push(Bytes::from_static(b"2")).unwrap();
        socket.outbox.ping();
        socket.outbox.close(1001, "bye");
        assert_eq!(socket.output().await, [vec![0x89, 0, 0x81, 1, b'2'], closes(1001, "bye")].concat());
        assert_eq!(socket.heard(), [Heard::Opened, Heard::Closed { farewell: false }]);
    }

    #[actix::test]
    async fn a_connection_that_takes_nothing_leaves_what_waits_in_the_outbox() {
        let mut socket = Socket::open(None);
        let half = Bytes::from(vec![b'x'; BUDGET / 2 + 1]);
        for _ in 0..10 {
            socket.outbox.push(half.clone()).unwrap();
        }
        let piece = socket.output.next().await.unwrap().unwrap();
        assert!(piece.len() <= BUDGET + 10, "{}", piece.len());
        assert_eq!(socket.outbox.len(), 9);
        let mut rest = 0;
        while !socket.outbox.is_empty() {
            rest += socket.output.next().await.unwrap().unwrap().len();
        }
        assert_eq!(rest, piece.len() * 9);
    }

    #[actix::test]
    async fn nothing_more_is_read_before_a_message_was_taken_up() {
        let (open, gate) = oneshot::channel();
        let mut socket = Socket::open(Some(gate));
        socket.send([frame(0x81, "first"), frame(0x81, "second")].concat()).await;
        socket.send(frame(0x81, "third")).await;
        assert_eq!(socket.heard(), [Heard::Opened, text("first")]);
        open.send(()).unwrap();
        socket.output().await;
        assert_eq!(socket.heard(), [text("second"), text("third")]);
    }
}

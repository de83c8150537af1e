//! The actor of `actix-web-actors` behind `/ws`, which only pumps frames (`/events` has another in `rest/events_ws.rs`).
//!
//! It runs inside the HTTP response body, so it stands still while its peer does not read. Therefore it has no timer, no
//! queue and no state of the session, only the frames of a message that is not complete yet. The [`Session`] next to it
//! sees the overflow and cuts the connection.

use std::sync::Arc;

use actix::{Actor, ActorContext, Addr, AsyncContext, Handler, Message, StreamHandler, WrapFuture};
use actix_http::ws::Item;
use actix_web::{Error, HttpRequest, HttpResponse, web};
use actix_web_actors::ws::{self, CloseCode, CloseReason, ProtocolError, WebsocketContext};
use bytes::{Bytes, BytesMut};

use super::{
    SUBPROTOCOL,
    counted::{Counting, Room},
    inbound_frame_limit::{FrameBound, Verdict},
};
use crate::transports::next_pump_id;
use countersign_exchange::{
    inflow::Intake,
    shared::{Channel, SessionShared},
};
use countersign_runtime::lanes::LARGE;
use countersign_session::{
    Session,
    actor::{Attach, Disconnected, Inbound, Pump, SignOfLife, deliver},
    registry::RegisteredSession,
};

/// Bytes handed to the connection at a time.
const BUDGET: usize = 64 * 1024;

struct WsPump {
    session: Addr<Session>,
    shared: Arc<SessionShared>,
    id: u64,
    /// Of the session's outbox: which of its connections this is.
    turn: u64,
    cut: Arc<dyn Fn() + Send + Sync>,
    /// A text message that comes in several frames.
    partial: Option<BytesMut>,
    max: usize,
    /// Whether the input was ended by a frame that may not be.
    verdict: Verdict,
    /// What its messages hold of the room for bodies.
    room: Room,
    /// A close frame came in.
    farewell: bool,
}

/// Switches the connection over; the pump attaches itself to the session.
pub fn start(
    request: &HttpRequest,
    payload: web::Payload,
    entry: &RegisteredSession,
    turn: u64,
    cut: Arc<dyn Fn() + Send + Sync>,
    (max, intake): (usize, Arc<Intake>),
) -> Result<HttpResponse, Error> {
    let (payload, verdict) = FrameBound::new(payload, max);
    let (counting, room) = Counting::new(intake);
    let payload = payload.counted(counting);
    let pump = WsPump {
        session: entry.addr.clone(),
        shared: Arc::clone(&entry.shared),
        id: next_pump_id(),
        turn,
        cut,
        partial: None,
        max,
        verdict,
        room,
        farewell: false,
    };
    ws::WsResponseBuilder::new(pump, request, payload).protocols(&[SUBPROTOCOL]).frame_size(max).start()
}

impl Actor for WsPump {
    type Context = WebsocketContext<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let addr = ctx.address();
        let wake = Arc::new(move || addr.do_send(Wake));
        self.session.do_send(Attach(Pump { id: self.id, turn: self.turn, wake, cut: Arc::clone(&self.cut) }));
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.session.do_send(Disconnected { pump: self.id, farewell: self.farewell });
    }
}

/// Sent by the outbox when something waits; at most one is under way.
#[derive(Message)]
#[rtype(result = "()")]
struct Wake;

impl Handler<Wake> for WsPump {
    type Result = ();

    fn handle(&mut self, _: Wake, ctx: &mut Self::Context) {
        let Channel::Outbox(outbox) = &self.shared.channel else { return };
        let Some(drained) = outbox.drain(self.turn, BUDGET) else { return };
        if drained.ping {
            ctx.ping(b"");
        }
        for frame in drained.frames {
            // Everything that is sent was built as text.
            if let Ok(text) = frame.try_into() {
                ctx.write_raw(ws::Message::Text(text));
            }
        }
        if let Some((code, reason)) = drained.close {
            self.close(ctx, CloseCode::from(code), reason);
        }
    }
}

impl WsPump {
    fn close(&self, ctx: &mut WebsocketContext<Self>, code: CloseCode, reason: &str) {
        ctx.close(Some(CloseReason { code, description: Some(reason.to_owned()) }));
        ctx.stop();
    }

    fn message(&self, message: Bytes, ctx: &mut WebsocketContext<Self>) {
        let held = self.room.of_message();
        if message.len() <= LARGE {
            return self.session.do_send(Inbound { frame: message, held });
        }
        // Nothing more is read from this peer before it was taken up: what would come meanwhile waits in its socket.
        let session = self.session.clone();
        let taken = async move {
            // A session that has ended ends this connection too.
            let _ = deliver(&session, message, held).await;
        };
        ctx.wait(taken.into_actor(self));
    }

    fn continuation(&mut self, item: Item, ctx: &mut WebsocketContext<Self>) {
        let (chunk, last) = match item {
            Item::FirstText(chunk) => {
                self.partial = Some(BytesMut::new());
                (chunk, false)
            }
            Item::FirstBinary(_) => return self.close(ctx, CloseCode::Unsupported, "text frames only"),
            Item::Continue(chunk) => (chunk, false),
            Item::Last(chunk) => (chunk, true),
        };
        let Some(partial) = &mut self.partial else {
            return self.close(ctx, CloseCode::Protocol, "continuation of nothing");
        };
        if partial.len() + chunk.len() > self.max {
            return self.close(ctx, CloseCode::Size, "message too large");
        }
        partial.extend_from_slice(&chunk);
        if last && let Some(whole) = self.partial.take() {
            // Only the whole is text: a character may stand in two frames.
            if std::str::from_utf8(&whole).is_err() {
                return self.close(ctx, CloseCode::Invalid, "not UTF-8 text");
            }
            self.message(whole.freeze(), ctx);
        }
    }
}

impl StreamHandler<Result<ws::Message, ProtocolError>> for WsPump {
    fn handle(&mut self, item: Result<ws::Message, ProtocolError>, ctx: &mut Self::Context) {
        match item {
            Ok(ws::Message::Text(text)) => self.message(text.into_bytes(), ctx),
            Ok(ws::Message::Binary(_)) => self.close(ctx, CloseCode::Unsupported, "text frames only"),
            Ok(ws::Message::Continuation(item)) => self.continuation(item, ctx),
            Ok(ws::Message::Ping(data)) => {
                ctx.pong(&data);
                self.session.do_send(SignOfLife);
            }
            Ok(ws::Message::Pong(_)) => self.session.do_send(SignOfLife),
            Ok(ws::Message::Close(reason)) => {
                self.farewell = true;
                ctx.close(reason);
                ctx.stop();
            }
            Ok(ws::Message::Nop) => {}
            Err(ProtocolError::Overflow) => self.close(ctx, CloseCode::Size, "message too large"),
            Err(ProtocolError::Io(error)) => {
                tracing::debug!(%error, "websocket input ends");
                self.close(ctx, CloseCode::Invalid, "not UTF-8 text");
            }
            Err(error) => {
                tracing::debug!(%error, "websocket protocol error");
                self.close(ctx, CloseCode::Protocol, "protocol error");
            }
        }
    }

    fn finished(&mut self, ctx: &mut Self::Context) {
        match self.verdict.close().or_else(|| self.room.close()) {
            Some((code, reason)) => self.close(ctx, code, reason),
            None => ctx.stop(),
        }
    }
}

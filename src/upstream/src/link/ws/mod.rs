//! Upstreams over WebSocket, which is in no revision: as servers do it, the subprotocol is `mcp`, a message is one text
//! frame, and era and cancellation are as over stdio.

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use actix_codec::Framed;
use actix_http::ws::{self, CloseCode, CloseReason, Codec, Frame, Item};
use awc::{
    BoxedSocket,
    error::WsClientError,
    http::header::{CONTENT_TYPE, HeaderName, SEC_WEBSOCKET_PROTOCOL},
};
use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use futures_util::{
    SinkExt, StreamExt,
    future::LocalBoxFuture,
    stream::{SplitSink, SplitStream},
};
use tokio::{
    sync::mpsc::{self, Receiver},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Connector, Link, LinkError, LinkKind, Listener, Outgoing,
    http::{Place, client},
    mux::{Mux, SharedLink},
    queue::QueuedLine,
    received::MAX_MESSAGE,
};

/// How long connecting and the upgrade may take.
const OPENING: Duration = Duration::from_secs(10);

/// A ping goes out this often, and a server that has sent nothing at all for `SILENCE` is gone.
const PING: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(60);

/// How long the goodbye may take.
const CLOSING: Duration = Duration::from_secs(1);

/// Pongs that wait to be sent; a server that pings faster gets fewer.
const PONGS: usize = 16;

pub(crate) struct WsConnector {
    pub place: Place,
}

impl Connector for WsConnector {
    fn connect<'a>(&'a self, unsolicited: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
        Box::pin(async move {
            let late = |_| LinkError::Unreachable(format!("it opened no WebSocket within {} s", OPENING.as_secs()));
            let socket = tokio::time::timeout(OPENING, open(&self.place)).await.map_err(late)??;
            let link = SharedLink::new(unsolicited);
            let (sink, stream) = socket.split();
            let heard = Rc::new(Cell::new(Instant::now()));
            let (pongs, pings) = mpsc::channel(PONGS);
            let (mux, stop) = (&link.mux, &link.stop);
            actix_web::rt::spawn(read(Arc::clone(mux), stop.clone(), stream, pongs, Rc::clone(&heard)));
            actix_web::rt::spawn(write(Arc::clone(mux), stop.clone(), sink, pings, heard));
            Ok(Arc::new(link) as Arc<dyn Link>)
        })
    }

    fn kind(&self) -> LinkKind {
        LinkKind::Shared
    }

    fn probe_apart(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        self.place.shown.clone()
    }
}

type Socket = Framed<BoxedSocket, Codec>;

async fn open(place: &Place) -> Result<Socket, LinkError> {
    let uri = place.uri()?;
    let mut request = client::upgrading(&place.trust).ws(&uri).protocols(["mcp"]).max_frame_size(MAX_MESSAGE);
    for (name, value) in &place.headers {
        let name: &HeaderName = name;
        if *name != CONTENT_TYPE {
            request = request.set_header(name.clone(), value.clone());
        }
    }
    let (response, socket) = request.connect().await.map_err(|error| match error {
        WsClientError::InvalidResponseStatus(status) => {
            LinkError::Status { status: status.as_u16(), body: String::new() }
        }
        // Whatever breaks here, no request was sent yet.
        WsClientError::SendRequest(error) => match client::failed(&error) {
            LinkError::Lost(why) => LinkError::Unreachable(why),
            error => error,
        },
        error => LinkError::Protocol(format!("its answer to the WebSocket upgrade: {error}")),
    })?;
    match response.headers().get(SEC_WEBSOCKET_PROTOCOL) {
        None => Ok(socket),
        Some(protocol) if protocol.as_bytes() == b"mcp" => Ok(socket),
        Some(_) => Err(LinkError::Protocol("it chose a WebSocket subprotocol that was not offered".to_owned())),
    }
}

async fn read(
    mux: Arc<Mux>,
    stop: CancellationToken,
    mut stream: SplitStream<Socket>,
    pongs: mpsc::Sender<Bytes>,
    heard: Rc<Cell<Instant>>,
) {
    let reading = async {
        let mut parts: Option<BytesMut> = None;
        loop {
            let frame = match stream.next().await {
                Some(Ok(frame)) => frame,
                Some(Err(ws::ProtocolError::Overflow)) => return too_long(),
                Some(Err(ws::ProtocolError::Io(error))) if error.kind() != std::io::ErrorKind::InvalidData => {
                    return LinkError::Lost(error.to_string());
                }
                Some(Err(error)) => return LinkError::Protocol(format!("its frames are not WebSocket: {error}")),
                None => return LinkError::Lost("the server has closed the connection".to_owned()),
            };
            heard.set(Instant::now());
            match frame {
                Frame::Text(text) | Frame::Binary(text) => mux.receive_or_log(&text),
                Frame::Continuation(item) => match item {
                    Item::FirstText(part) | Item::FirstBinary(part) => parts = Some(BytesMut::from(&part[..])),
                    Item::Continue(part) => {
                        let Some(parts) = &mut parts else { continue };
                        parts.extend_from_slice(&part);
                        if parts.len() > MAX_MESSAGE {
                            return too_long();
                        }
                    }
                    Item::Last(part) => {
                        let Some(mut parts) = parts.take() else { continue };
                        parts.extend_from_slice(&part);
                        if parts.len() > MAX_MESSAGE {
                            return too_long();
                        }
                        mux.receive_or_log(&parts);
                    }
                },
                Frame::Ping(payload) => {
                    let _ = pongs.try_send(payload);
                }
                Frame::Pong(_) => {}
                Frame::Close(reason) => {
                    let code = reason.map_or(1005, |reason| u16::from(reason.code));
                    return LinkError::Lost(format!("the server has closed the connection ({code})"));
                }
            }
        }
    };
    let why = tokio::select! {
        () = stop.cancelled() => LinkError::Lost("the connection was closed".to_owned()),
        why = reading => why,
    };
    mux.end(why);
    stop.cancel();
}

fn too_long() -> LinkError {
    LinkError::Protocol(format!("a message is longer than {MAX_MESSAGE} bytes"))
}

async fn write(
    mux: Arc<Mux>,
    stop: CancellationToken,
    mut sink: SplitSink<Socket, ws::Message>,
    mut pings: Receiver<Bytes>,
    heard: Rc<Cell<Instant>>,
) {
    let mut ticks = tokio::time::interval(PING);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let writing = async {
        loop {
            let message = tokio::select! {
                message = mux.queue.pop() => {
                    let Some(QueuedLine { id, line, permit }) = message else {
                        return LinkError::Lost("the connection was closed".to_owned());
                    };
                    let utf8 = |_| LinkError::Unreachable("the request is not UTF-8".to_owned());
                    let text = Outgoing::check(permit.as_ref()).and_then(|()| ByteString::try_from(line).map_err(utf8));
                    match text {
                        Ok(text) => ws::Message::Text(text),
                        Err(why) => {
                            if let Some(id) = id {
                                mux.answer(id, Err(why));
                            }
                            continue;
                        }
                    }
                }
                Some(payload) = pings.recv() => ws::Message::Pong(payload),
                _ = ticks.tick() => {
                    if heard.get().elapsed() > SILENCE {
                        return LinkError::Lost(format!("it sent nothing for {} s", SILENCE.as_secs()));
                    }
                    ws::Message::Ping(Bytes::new())
                }
            };
            if let Err(error) = sink.send(message).await {
                return LinkError::Lost(error.to_string());
            }
        }
    };
    let why = tokio::select! {
        biased;
        () = stop.cancelled() => None,
        why = writing => Some(why),
    };
    match why {
        Some(why) => {
            mux.end(why);
            stop.cancel();
        }
        None => {
            let goodbye = ws::Message::Close(Some(CloseReason::from(CloseCode::Normal)));
            let _ = tokio::time::timeout(CLOSING, sink.send(goodbye)).await;
        }
    }
}

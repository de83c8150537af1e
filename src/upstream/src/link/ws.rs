//! Upstreams over WebSocket, which no revision specifies. As existing servers do, the subprotocol is `mcp`, a message
//! is one text frame, and eras and cancellations work as over stdio.

use std::{cell::Cell, sync::Arc, time::Duration};

use actix_codec::Framed;
use actix_http::ws::{self, CloseCode, CloseReason, Codec, Frame, Item};
use awc::{BoxedSocket, error::WsClientError, http::header::SEC_WEBSOCKET_PROTOCOL};
use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    LinkError, Listener, MAX_MESSAGE_BYTES,
    http::{HttpTarget, client},
    mux::{Mux, SingleStreamLink},
};
use countersign_runtime::background;

/// The time limit for connecting and the upgrade.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// The time after which a server that has sent nothing counts as gone.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit for sending the close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum number of waiting pongs. A server that pings faster gets fewer pongs.
const MAX_PONGS: usize = 16;

type Socket = Framed<BoxedSocket, Codec>;

/// Opens a link, whose tasks run on the thread of this call.
pub(super) async fn open_link(
    target: &HttpTarget,
    unsolicited: Arc<dyn Listener>,
) -> Result<SingleStreamLink, LinkError> {
    let timeout_error =
        |_| LinkError::Unreachable(format!("it opened no WebSocket within {} s", OPEN_TIMEOUT.as_secs()));
    let socket = tokio::time::timeout(OPEN_TIMEOUT, open(target)).await.map_err(timeout_error)??;
    let link = SingleStreamLink::new(&target.server, unsolicited);
    background::spawn(run(Arc::clone(&link.mux), link.stop.clone(), socket));
    Ok(link)
}

/// Opens the WebSocket. No account is used for it, because `oauth` is only for addresses of HTTP.
async fn open(target: &HttpTarget) -> Result<Socket, LinkError> {
    let uri = target.uri()?;
    let mut request =
        client::upgrading_client(&target.access.trust).ws(&uri).protocols(["mcp"]).max_frame_size(MAX_MESSAGE_BYTES);
    for (name, value) in &target.headers {
        request = request.set_header(name.clone(), value.clone());
    }
    let (response, socket) = request.connect().await.map_err(|error| match error {
        WsClientError::InvalidResponseStatus(status) => {
            LinkError::Status { status: status.as_u16(), body: String::new() }
        }
        WsClientError::SendRequest(error) => client::classify_send_error(&error).into_unsent(),
        error => LinkError::Protocol(format!("its answer to the WebSocket upgrade: {error}")),
    })?;
    match response.headers().get(SEC_WEBSOCKET_PROTOCOL) {
        None => Ok(socket),
        Some(protocol) if protocol.as_bytes() == b"mcp" => Ok(socket),
        Some(_) => Err(LinkError::Protocol("it chose a WebSocket subprotocol that was not offered".to_owned())),
    }
}

/// Reads and writes until the connection ends or `stop` is cancelled.
async fn run(mux: Arc<Mux>, stop: CancellationToken, socket: Socket) {
    let (mut sink, stream) = socket.split();
    let last_received = Cell::new(Instant::now());
    let (pongs, waiting_pongs) = mpsc::channel(MAX_PONGS);
    // The select is not biased, because a flood of frames would otherwise keep the writer from running.
    let end = tokio::select! {
        () = stop.cancelled() => None,
        end = read(&mux, stream, &pongs, &last_received) => Some(end),
        end = write(&mux, &mut sink, waiting_pongs, &last_received) => Some(end),
    };
    let is_lost = end.is_some();
    mux.end(end.unwrap_or_else(|| LinkError::Lost("the connection was closed".to_owned())));
    if !is_lost {
        let close = ws::Message::Close(Some(CloseReason::from(CloseCode::Normal)));
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, sink.send(close)).await;
    }
}

/// Reads frames until the connection ends, and returns the reason for the end.
async fn read(
    mux: &Mux,
    mut stream: SplitStream<Socket>,
    pongs: &Sender<Bytes>,
    last_received: &Cell<Instant>,
) -> LinkError {
    let too_long = || LinkError::Protocol(format!("a message is longer than {MAX_MESSAGE_BYTES} bytes"));
    let mut parts = BytesMut::new();
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
        last_received.set(Instant::now());
        match frame {
            Frame::Text(text) | Frame::Binary(text) => mux.receive_or_log(&text),
            Frame::Continuation(item) => {
                let (part, is_last) = match item {
                    Item::FirstText(part) | Item::FirstBinary(part) | Item::Continue(part) => (part, false),
                    Item::Last(part) => (part, true),
                };
                parts.extend_from_slice(&part);
                if parts.len() > MAX_MESSAGE_BYTES {
                    return too_long();
                }
                if is_last {
                    mux.receive_or_log(&std::mem::take(&mut parts));
                }
            }
            Frame::Ping(payload) => _ = pongs.try_send(payload),
            Frame::Pong(_) => {}
            Frame::Close(reason) => {
                let code = reason.map_or(1005, |reason| u16::from(reason.code));
                return LinkError::Lost(format!("the server has closed the connection ({code})"));
            }
        }
    }
}

/// Writes messages, pings and pongs until the connection ends, and returns the reason for the end.
async fn write(
    mux: &Mux,
    sink: &mut SplitSink<Socket, ws::Message>,
    mut pongs: Receiver<Bytes>,
    last_received: &Cell<Instant>,
) -> LinkError {
    let mut ticks = tokio::time::interval(PING_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            message = mux.next_permitted() => {
                let text = message.map(|message| ByteString::try_from(message.text));
                let Some(Ok(text)) = text else { return LinkError::Lost("the connection was closed".to_owned()) };
                ws::Message::Text(text)
            }
            Some(payload) = pongs.recv() => ws::Message::Pong(payload),
            _ = ticks.tick() => {
                if last_received.get().elapsed() > SILENCE_TIMEOUT {
                    return LinkError::Lost(format!("it sent nothing for {} s", SILENCE_TIMEOUT.as_secs()));
                }
                ws::Message::Ping(Bytes::new())
            }
        };
        if let Err(error) = sink.send(message).await {
            return LinkError::Lost(error.to_string());
        }
    }
}

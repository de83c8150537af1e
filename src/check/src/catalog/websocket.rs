//! Checks of WebSocket, which is in no revision, as servers and clients implement it.

use std::{sync::Arc, time::Duration};

use super::{Check, Outcome, Verdict, check};
use crate::{
    Target,
    probe::{Probe, QUIET_PERIOD},
    wire::{Frame, ProbeError, WebSocket, Wire},
};

const CUSTOM: (&str, &str) = ("basic/transports#custom-transports", "basic/transports/index#custom-transports");

pub(super) const CHECKS: &[Check] = &[
    check!(
        "websocket/subprotocol",
        WebSocket,
        Should,
        Both,
        WebSocket,
        CUSTOM,
        "The subprotocol `mcp` is chosen where the client offers it.",
        "Answer the upgrade with `Sec-WebSocket-Protocol: mcp`: clients refuse it otherwise.",
        subprotocol
    ),
    check!(
        "websocket/text-frames",
        WebSocket,
        Should,
        Both,
        WebSocket,
        CUSTOM,
        "Messages come as text.",
        "Send messages in text frames, one in each.",
        text_frames
    ),
    check!(
        "websocket/binary",
        WebSocket,
        Should,
        Both,
        WebSocket,
        CUSTOM,
        "A binary message does not go unanswered: it is taken for text, or the connection is closed.",
        "Close the connection with 1003 where you take no binary messages.",
        binary
    ),
    check!(
        "websocket/origin",
        WebSocket,
        Should,
        Both,
        WebSocket,
        ("basic/transports#security-warning", "basic/transports/streamable-http"),
        "An upgrade from a web page of another origin is refused.",
        "Compare `Origin` with those that you allow, and answer others with 403.",
        origin
    ),
];

async fn subprotocol(probe: Probe) -> Outcome {
    let conn = probe.connect().await?;
    let Wire::WebSocket(socket) = &conn.wire else { return Ok(Verdict::Skipped(String::new())) };
    Ok(Verdict::holds_if(socket.protocol.as_deref() == Some("mcp"), || format!("it chooses {:?}", socket.protocol)))
}

fn probe_request(probe: &Probe) -> String {
    let method = if probe.is_modern() { "server/discover" } else { "ping" };
    probe.message(Some(&7777.into()), method, serde_json::Value::Null).to_string()
}

async fn text_frames(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let Wire::WebSocket(socket) = &mut conn.wire else { return Ok(Verdict::Skipped(String::new())) };
    socket.send_text(probe_request(&probe).as_bytes()).await?;
    match socket.next_frame(probe.limit()).await? {
        Some(Frame::Text(text)) => {
            let one = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            Ok(Verdict::holds_if(one, || format!("it sends {text}")))
        }
        other => Ok(Verdict::Fails(format!("it sends {other:?}"))),
    }
}

async fn binary(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let Wire::WebSocket(socket) = &mut conn.wire else { return Ok(Verdict::Skipped(String::new())) };
    socket.send_binary(probe_request(&probe).as_bytes()).await?;
    match socket.next_frame(Duration::from_secs(2).max(QUIET_PERIOD)).await {
        Err(ProbeError::Closed) | Ok(Some(_)) => Ok(Verdict::Holds),
        Err(trouble) => Err(trouble),
        Ok(None) => Ok(Verdict::Fails("it says nothing".to_owned())),
    }
}

async fn origin(probe: Probe) -> Outcome {
    let Target::WebSocket { url, headers } = &probe.target else { return Ok(Verdict::Skipped(String::new())) };
    let mut headers = headers.clone();
    headers.push(("Origin".to_owned(), "https://evil.example".to_owned()));
    match WebSocket::open(url, &headers, &["mcp"], probe.limit(), Arc::clone(&probe.budget)).await {
        Err(ProbeError::Unreachable(_) | ProbeError::Closed) => Ok(Verdict::Holds),
        Err(trouble) => Err(trouble),
        Ok(_) => Ok(Verdict::Fails("it is taken".to_owned())),
    }
}

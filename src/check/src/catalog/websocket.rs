//! Checks of WebSocket. No revision defines this transport, so they follow what servers and clients implement.

use std::{sync::Arc, time::Duration};

use super::{Check, Group, Outcome, SpecPages, ensure, fail, skip};
use crate::{
    Target,
    probe::Probe,
    wire::{ProbeError, SocketMessage, WebSocket, Wire},
};

const CUSTOM: SpecPages = ("basic/transports#custom-transports", "basic/transports/index#custom-transports");

pub(super) const CHECKS: &[Check] = &[
    Check::new("websocket/subprotocol", Group::WebSocket, |probe| Box::pin(check_subprotocol(probe)))
        .should("The server selects the subprotocol `mcp` if the client offers it.")
        .advice("Answer the upgrade with `Sec-WebSocket-Protocol: mcp`: clients refuse it otherwise.")
        .spec(CUSTOM),
    Check::new("websocket/text-frames", Group::WebSocket, |probe| Box::pin(check_text_frames(probe)))
        .should("Messages are sent as text.")
        .advice("Send each message in a text frame of its own.")
        .spec(CUSTOM),
    Check::new("websocket/binary", Group::WebSocket, |probe| Box::pin(check_binary(probe)))
        .should("A binary message is treated as text, or the connection is closed.")
        .advice("Close the connection with 1003 if you do not accept binary messages.")
        .spec(CUSTOM),
    Check::new("websocket/origin", Group::WebSocket, |probe| Box::pin(check_origin(probe)))
        .should("An upgrade from a web page of another origin is refused.")
        .advice("Compare `Origin` with those that you allow, and answer others with 403.")
        .spec(("basic/transports#security-warning", "basic/transports/streamable-http")),
];

/// The time limit for the answer to a binary message.
const BINARY_ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Skips a check that has no WebSocket to test.
fn skip_other_transport() -> Outcome {
    skip("the server is not reached over WebSocket")
}

async fn check_subprotocol(probe: Probe) -> Outcome {
    let conn = probe.connect_without_handshake().await?;
    let Wire::WebSocket(socket) = &conn.wire else { return skip_other_transport() };
    ensure(socket.subprotocol.as_deref() == Some("mcp"), || format!("it chooses {:?}", socket.subprotocol))
}

async fn check_text_frames(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let Wire::WebSocket(socket) = &mut conn.wire else { return skip_other_transport() };
    socket.send_text(probe.harmless_request(7777).to_string().as_bytes()).await?;
    match socket.next_message(probe.answer_timeout()).await? {
        Some(SocketMessage::Text(text)) => {
            ensure(serde_json::from_str::<serde_json::Value>(&text).is_ok(), || format!("it sends {text}"))
        }
        other => fail(format!("it sends {other:?}")),
    }
}

async fn check_binary(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let Wire::WebSocket(socket) = &mut conn.wire else { return skip_other_transport() };
    socket.send_binary(probe.harmless_request(7777).to_string().as_bytes()).await?;
    match socket.next_message(BINARY_ANSWER_LIMIT).await {
        Err(ProbeError::Closed) | Ok(Some(_)) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(None) => fail("it neither answers nor closes the connection".to_owned()),
    }
}

async fn check_origin(probe: Probe) -> Outcome {
    let Target::WebSocket { url, headers } = &probe.target else { return skip_other_transport() };
    let mut headers = headers.clone();
    headers.push(("Origin".to_owned(), "https://evil.example".to_owned()));
    match WebSocket::open(url, &headers, &["mcp"], probe.answer_timeout(), Arc::clone(&probe.budget)).await {
        Err(ProbeError::Unreachable(_) | ProbeError::Closed) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => fail("it accepts the upgrade".to_owned()),
    }
}

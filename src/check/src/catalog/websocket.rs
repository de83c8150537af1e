//! Checks of WebSocket. No revision defines this transport, so they follow what servers and clients implement.

use std::{sync::Arc, time::Duration};

use super::{Check, Group, Outcome, SpecPages, ensure, fail, skip, truncate};
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
    match socket.subprotocol.as_deref() {
        Some("mcp") => Ok(()),
        Some(other) => fail(format!("it selects the subprotocol {}", truncate(other))),
        None => fail("it selects no subprotocol".to_owned()),
    }
}

async fn check_text_frames(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let Wire::WebSocket(socket) = &mut conn.wire else { return skip_other_transport() };
    socket.send_text(probe.harmless_request(7777).to_string().as_bytes()).await?;
    match socket.next_message(probe.options.timeout).await? {
        Some(SocketMessage::Text(text)) => {
            ensure(text.parse::<serde_json::Value>().is_ok(), || format!("it sends {}", truncate(&text)))
        }
        Some(SocketMessage::Binary) => fail("it sends a binary message".to_owned()),
        Some(SocketMessage::Close) => fail("it closes the connection".to_owned()),
        None => fail("it does not answer".to_owned()),
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
    match WebSocket::open(url, &headers, probe.options.timeout, Arc::clone(&probe.budget)).await {
        Err(error) if is_refusal(&error) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => fail("it accepts the upgrade".to_owned()),
    }
}

/// Returns `true` if the server refused the upgrade. A server that cannot be reached or has an internal error refuses nothing.
fn is_refusal(error: &ProbeError) -> bool {
    // Some servers answer 404. The path exists, because the run began with an upgrade without `Origin`.
    matches!(error, ProbeError::UpgradeRefused(400..=499) | ProbeError::Closed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, catalog::NotPassed};

    #[test]
    fn only_client_errors_refuse_an_upgrade() {
        for (error, expected) in [
            (ProbeError::UpgradeRefused(403), true),
            (ProbeError::UpgradeRefused(404), true),
            (ProbeError::Closed, true),
            (ProbeError::UpgradeRefused(200), false),
            (ProbeError::UpgradeRefused(500), false),
            (ProbeError::Unreachable("connection refused".to_owned()), false),
        ] {
            assert_eq!(is_refusal(&error), expected, "{error}");
        }
    }

    #[tokio::test]
    async fn unreachable_server_fails_the_check_of_origins() {
        let target = Target::WebSocket { url: "ws://127.0.0.1:1/ws".parse().unwrap(), headers: Vec::new() };
        let outcome = check_origin(Probe::new(&target, &Options::default())).await;
        assert!(matches!(outcome, Err(NotPassed::Failed(_))), "{outcome:?}");
    }
}

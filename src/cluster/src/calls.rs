//! Forwards requests that arrived over a connection with an outbox, such as a WebSocket, to the node that owns their call or
//! task. Each one is sent as a stateless client sends it over HTTP, with the credential of the connection.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use http::{
    Method,
    header::{self, HeaderName, HeaderValue},
    uri::PathAndQuery,
};
use serde_json::value::RawValue;

use crate::{
    forward::{self, Forwarder},
    peers,
};
use countersign_exchange::context::{Exchange, WireResponse};
use countersign_protocol::{
    ErrorKind, McpError, RequestId, encode,
    envelope::Request,
    event_stream::EventReader,
    headers::for_request as request_headers,
    json::{member, string},
    param_headers::MirroredHeaders,
};
use countersign_session::cluster::whole_body;

/// Maximum size in bytes of one message from the other node: twice the limit for a message from an upstream server.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// Forwards a request to the other node, and returns the answer. `mirrored_headers` are the headers that mirror arguments of
/// the call.
///
/// # Errors
/// `UPSTREAM_UNAVAILABLE` if the node does not answer or refuses the request, and `INVALID_PARAMS` if a value cannot be sent
/// in a header.
pub async fn forward_call(
    forwarder: Forwarder,
    exchange: &Exchange,
    mirrored_headers: MirroredHeaders,
    request: &Request<'_>,
) -> Result<WireResponse, McpError> {
    let unavailable = |error: &dyn std::fmt::Display| {
        tracing::warn!(node = forwarder.peer.node_id, %error, "a request could not be forwarded to the node that owns its call or task");
        forward::peer_unavailable()
    };
    let params = request.params.map(RawValue::get);
    let body = encode::request(&request.id, &request.method, params);
    let forwarded = build_request(&forwarder, exchange, mirrored_headers, request)?;
    let (head, body) = peers::send_request(&forwarder.peer, forwarded, Some(whole_body(body)))
        .await
        .map_err(|error| unavailable(&error))?;
    let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let answer = if content_type.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        read_answer(body, |message| exchange.related.send(message)).await
    } else {
        read_whole(body).await
    };
    let answer = answer.map_err(|error| unavailable(&error))?;
    if is_answer_to(&answer, &request.id) {
        return Ok(WireResponse::result(answer));
    }
    // The other node refused the request before reading it.
    let error = std::str::from_utf8(&answer).ok().and_then(|text| member(text, "error"));
    let reason = error.and_then(|error| member(error, "message")).and_then(string).map(Cow::into_owned);
    Err(reason.map_or_else(|| unavailable(&head.status), |text| McpError::new(ErrorKind::UpstreamUnavailable, text)))
}

/// Builds the request as a stateless client sends it.
fn build_request(
    forwarder: &Forwarder,
    exchange: &Exchange,
    mirrored_headers: MirroredHeaders,
    request: &Request<'_>,
) -> Result<http::Request<()>, McpError> {
    let invalid = |_| McpError::new(ErrorKind::InvalidParams, "a value of the request cannot be sent in a header");
    let mut forwarded = http::Request::new(());
    *forwarded.method_mut() = Method::POST;
    *forwarded.uri_mut() = forwarder.uri(PathAndQuery::from_static("/mcp")).ok_or_else(forward::peer_unavailable)?;
    let headers = forwarded.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    if let Some(authorization) = exchange.session.authorization() {
        headers.insert(header::AUTHORIZATION, HeaderValue::from_str(&authorization).map_err(invalid)?);
    }
    for (name, value) in request_headers(request, &request.meta()?) {
        headers.insert(name, HeaderValue::from_str(&value).map_err(invalid)?);
    }
    for (name, value) in mirrored_headers {
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
            headers.insert(name, HeaderValue::from_str(&value).map_err(invalid)?);
        }
    }
    forwarder.add_token(headers);
    Ok(forwarded)
}

type ReadError = Box<dyn std::error::Error>;

async fn read_whole(mut body: impl Stream<Item = Result<Bytes, h2::Error>> + Unpin) -> Result<Bytes, ReadError> {
    let mut all = BytesMut::new();
    while let Some(chunk) = body.next().await {
        all.extend_from_slice(&chunk?);
        if all.len() > MAX_ANSWER_BYTES {
            return Err("the answer of the node is too long".into());
        }
    }
    Ok(all.freeze())
}

/// Reads events until the answer of the request arrives. Passes earlier messages to `on_message`, which returns `false` if the
/// client no longer reads them.
async fn read_answer(
    mut body: impl Stream<Item = Result<Bytes, h2::Error>> + Unpin,
    on_message: impl Fn(Bytes) -> bool,
) -> Result<Bytes, ReadError> {
    let mut events = EventReader::new(MAX_ANSWER_BYTES);
    while let Some(chunk) = body.next().await {
        events.push(&chunk?);
        while let Some(event) = events.next_event().map_err(|_| "the answer of the node is too long")? {
            if !event.is_message() {
                continue;
            }
            let is_answer = member(std::str::from_utf8(&event.data)?, "method").is_none();
            let message = Bytes::from(event.data);
            if is_answer {
                return Ok(message);
            }
            if !on_message(message) {
                return Err("the client does not read".into());
            }
        }
    }
    Err("the answer broke off".into())
}

fn is_answer_to(message: &[u8], id: &RequestId) -> bool {
    std::str::from_utf8(message).ok().and_then(|text| member(text, "id")) == Some(id.as_json())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures_util::stream;

    use super::*;

    fn body(chunks: &[&'static str]) -> impl Stream<Item = Result<Bytes, h2::Error>> + Unpin {
        stream::iter(chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect::<Vec<_>>())
    }

    #[actix::test]
    async fn messages_before_the_answer_are_forwarded() {
        let forwarded = RefCell::new(Vec::new());
        let forward = |message: Bytes| {
            forwarded.borrow_mut().push(message);
            true
        };
        let stream = body(&[
            "id: 1\ndata:\n\nda",
            "ta: {\"method\":\"a\"}\n\n: x\n\n",
            "data: {\"id\":7,\"result\":{}}\n\n",
            "x",
        ]);
        let answer = read_answer(stream, forward).await.unwrap();
        assert_eq!(forwarded.take(), ["{\"method\":\"a\"}"]);
        assert!(is_answer_to(&answer, &RequestId::from(7)) && !is_answer_to(&answer, &RequestId::from(8)));
        let broken = read_answer(body(&["data: {\"method\":\"a\"}\n\n"]), forward).await;
        assert_eq!(broken.unwrap_err().to_string(), "the answer broke off");
        let unread = read_answer(body(&["data: {\"method\":\"a\"}\n\n"]), |_| false).await;
        assert_eq!(unread.unwrap_err().to_string(), "the client does not read");
    }
}

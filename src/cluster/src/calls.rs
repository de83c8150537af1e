//! Requests that came in by a connection with an outbox, such as a WebSocket, and are about what another node owns: they are
//! sent there as a stateless client sends them over HTTP, on behalf of whoever opened the connection.

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
    forward::{self, Forward},
    peers,
};
use countersign_exchange::context::{Exchange, ForwardedHeaders, WireResponse};
use countersign_protocol::{
    ErrorKind, McpError, RequestId, encode,
    envelope::Request,
    event_stream::EventReader,
    headers,
    json::{member, string},
};
use countersign_session::cluster::whole_body;
use countersign_upstream::link::incoming::MAX_MESSAGE;

/// Bytes of one message that comes back: what a server said, and what the other gateway said beside it.
const MAX: usize = 2 * MAX_MESSAGE;

/// Has the other node answer a request.
///
/// # Errors
/// `UPSTREAM_UNAVAILABLE` where it does not answer, and what else the other node refuses it for.
pub async fn answer(
    forward: Forward,
    exchange: &Exchange,
    mirrored: ForwardedHeaders,
    request: &Request<'_>,
) -> Result<WireResponse, McpError> {
    let silent = |error: &dyn std::fmt::Display| {
        tracing::warn!(node = forward.peer.node, %error, "a request could not be forwarded to the node that owns what it is about");
        forward::silent()
    };
    let params = request.params.map(RawValue::get);
    let body = encode::request(&request.id, &request.method, params);
    let onward = onward(&forward, exchange, mirrored, request)?;
    let (head, body) =
        peers::ask(&forward.peer, onward, Some(whole_body(body))).await.map_err(|error| silent(&error))?;
    let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let said = if kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        last(body, |message| exchange.related.send(message)).await
    } else {
        whole(body).await
    };
    let said = said.map_err(|error| silent(&error))?;
    if is_of(&said, &request.id) {
        return Ok(WireResponse::result(said));
    }
    // Refused before it was read.
    let error = std::str::from_utf8(&said).ok().and_then(|text| member(text, "error"));
    let why = error.and_then(|error| member(error, "message")).and_then(string).map(Cow::into_owned);
    Err(why.map_or_else(|| silent(&head.status), |why| McpError::new(ErrorKind::UpstreamUnavailable, why)))
}

/// The request as a stateless client sends it.
fn onward(
    forward: &Forward,
    exchange: &Exchange,
    mirrored: ForwardedHeaders,
    request: &Request<'_>,
) -> Result<http::Request<()>, McpError> {
    let unfit = |_| McpError::new(ErrorKind::InvalidParams, "the request names what no header can hold");
    let mut onward = http::Request::new(());
    *onward.method_mut() = Method::POST;
    *onward.uri_mut() = forward.uri(PathAndQuery::from_static("/mcp")).ok_or_else(forward::silent)?;
    let all = onward.headers_mut();
    all.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    all.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    if let Some(authorization) = &exchange.session.authorization {
        all.insert(header::AUTHORIZATION, HeaderValue::from_str(authorization).map_err(unfit)?);
    }
    for (name, value) in headers::for_request(request, &request.meta()?) {
        all.insert(name, HeaderValue::from_str(&value).map_err(unfit)?);
    }
    for (name, value) in mirrored {
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
            all.insert(name, HeaderValue::from_str(&value).map_err(unfit)?);
        }
    }
    forward.prove(all);
    Ok(onward)
}

type Fault = Box<dyn std::error::Error>;

async fn whole(mut body: impl Stream<Item = Result<Bytes, h2::Error>> + Unpin) -> Result<Bytes, Fault> {
    let mut all = BytesMut::new();
    while let Some(chunk) = body.next().await {
        all.extend_from_slice(&chunk?);
        if all.len() > MAX {
            return Err("its answer is too long".into());
        }
    }
    Ok(all.freeze())
}

/// What answers the request; `before` gets what comes before.
async fn last(
    mut body: impl Stream<Item = Result<Bytes, h2::Error>> + Unpin,
    before: impl Fn(Bytes) -> bool,
) -> Result<Bytes, Fault> {
    let mut events = EventReader::new(MAX);
    while let Some(chunk) = body.next().await {
        events.push(&chunk?);
        while let Some(event) = events.next_event().map_err(|_| "its answer is too long")? {
            if !event.is_message() {
                continue;
            }
            let is_answer = member(std::str::from_utf8(&event.data)?, "method").is_none();
            let message = Bytes::from(event.data);
            if is_answer {
                return Ok(message);
            }
            if !before(message) {
                return Err("its client does not read".into());
            }
        }
    }
    Err("it broke off".into())
}

fn is_of(message: &[u8], id: &RequestId) -> bool {
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
    async fn what_comes_before_the_answer_is_told_and_what_comes_after_is_not_waited_for() {
        let told = RefCell::new(Vec::new());
        let tell = |message: Bytes| {
            told.borrow_mut().push(message);
            true
        };
        let stream = body(&[
            "id: 1\ndata:\n\nda",
            "ta: {\"method\":\"a\"}\n\n: x\n\n",
            "data: {\"id\":7,\"result\":{}}\n\n",
            "x",
        ]);
        let said = last(stream, tell).await.unwrap();
        assert_eq!(told.take(), ["{\"method\":\"a\"}"]);
        assert!(is_of(&said, &RequestId::from(7)) && !is_of(&said, &RequestId::from(8)));
        let broken = last(body(&["data: {\"method\":\"a\"}\n\n"]), tell).await;
        assert_eq!(broken.unwrap_err().to_string(), "it broke off");
        let unread = last(body(&["data: {\"method\":\"a\"}\n\n"]), |_| false).await;
        assert_eq!(unread.unwrap_err().to_string(), "its client does not read");
    }
}

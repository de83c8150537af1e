//! Reads the answer to one request with any status, which is a JSON body or an event stream.

use std::{sync::Arc, time::Duration};

use actix_http::StatusCode;
use bytes::Bytes;
use futures_util::FutureExt;

use super::{
    HttpLink, LinkMode,
    client::{self, ExtraHeaders, HttpResponse, RequestHead},
    http1::Field,
    listen,
};
use crate::link::{
    LinkError, Listener, MAX_MESSAGE_BYTES, Response, UpstreamNotification, escape_excerpt, parse_messages,
    parse_response,
    wire::{cancelled_id, is_about_server},
};
use countersign_protocol::{
    ErrorKind, RequestId,
    envelope::Message,
    event_stream::{Event, EventReader},
    rpc_error::RpcError,
};
use countersign_provider::Permit;

/// The maximum number of attempts in a row to resume an interrupted stream on which nothing new arrives.
const MAX_RESUMES: u32 = 5;

/// The maximum number of bytes after an answer that are read to use the connection again.
const MAX_TRAILING_BYTES: usize = 64 << 10;
/// The time limit for reading the bytes after an answer.
const TRAILING_TIMEOUT: Duration = Duration::from_secs(2);

/// The time limit for a server to accept a message that has no answer.
pub(crate) const ACCEPT_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum number of bytes of an error without a JSON-RPC answer, which is logged.
const MAX_ERROR_BYTES: usize = 64 << 10;

impl HttpLink {
    /// Reads the response to the request with this id, and forwards the messages before it to `listener`.
    ///
    /// # Errors
    /// [`LinkError::SessionGone`], [`LinkError::Status`], [`LinkError::Protocol`] and [`LinkError::Lost`].
    pub(super) async fn read_response(
        &self,
        mut http: HttpResponse,
        mode: &LinkMode,
        id: u64,
        listener: &Arc<dyn Listener>,
    ) -> Result<Response, LinkError> {
        let status = http.status();
        let may_be_gone = status == StatusCode::NOT_FOUND && mode.session_id.is_some();
        if http.header(Field::ContentEncoding).is_some_and(|encoding| encoding != b"identity") {
            return Err(LinkError::Protocol("its answer is compressed, which the gateway did not request".to_owned()));
        }
        let mut response = if is_stream(&http) {
            // The future is boxed, so that other answers do not reserve its memory.
            match Box::pin(self.read_stream(http, mode, id, listener)).await {
                _ if may_be_gone => return Err(self.state.end_session()),
                Err(LinkError::Lost(_)) if !status.is_success() => return Err(status_error(status, b"")),
                response => response?,
            }
        } else {
            let body = read_body(&mut http, MAX_MESSAGE_BYTES).await;
            if may_be_gone {
                // In this era, 404 means that the session has ended. Some servers also use it for unknown methods.
                if !body.is_ok_and(|body| is_method_not_found(&body, id)) {
                    return Err(self.state.end_session());
                }
                Response::Error(RpcError::new(-32601, "Method not found"))
            } else {
                let body = body?;
                if status == StatusCode::BAD_REQUEST && mode.session_id.is_some() && is_session_refused(&body) {
                    return Err(self.state.end_session());
                }
                match self.handle_messages(&body, mode, id, listener) {
                    Ok(Some(response)) => response,
                    _ if !status.is_success() || body.is_empty() => return Err(status_error(status, &body)),
                    Ok(None) => {
                        return Err(LinkError::Protocol("its answer is not for the request that was sent".to_owned()));
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        if let Response::Error(error) = &mut response {
            error.status = Some(status.as_u16());
        }
        Ok(response)
    }

    /// Returns the response to `id` in the text, and forwards the other messages in order. A malformed message is an
    /// error only if the text has no valid one. A malformed request of a handshake-era server is answered instead.
    fn handle_messages(
        &self,
        text: &[u8],
        mode: &LinkMode,
        id: u64,
        listener: &Arc<dyn Listener>,
    ) -> Result<Option<Response>, LinkError> {
        let upstream = &*self.state.target.server;
        let (mut answer, mut error, mut has_message, mut is_cancelled) = (None, None, false, false);
        parse_messages(text, |message| {
            has_message |= message.is_ok();
            match message {
                Err(malformed) => {
                    tracing::debug!(upstream, "a malformed message is ignored: {}", malformed.reason);
                    if mode.is_modern || !self.state.open_requests.refuse_malformed(&malformed, &self.reply_sender()) {
                        error = Some(malformed.to_error());
                    }
                }
                Ok(Message::Response(response)) => {
                    // The stream identifies the request, so an error may have any id.
                    let is_awaited = response.outcome.is_err() || is_same_id(response.id.as_ref(), id);
                    if is_awaited && answer.is_none() {
                        answer = Some(parse_response(response.outcome));
                    } else {
                        tracing::debug!(upstream, other = ?response.id, id, "an answer to another request is ignored");
                    }
                }
                Ok(Message::Notification(notification)) if notification.method == "notifications/cancelled" => {
                    let is_own_request = mode.is_modern && is_same_id(cancelled_id(notification.params).as_ref(), id);
                    if is_own_request {
                        // A stateless server may end a subscription in this way.
                        is_cancelled = true;
                    } else {
                        self.state.open_requests.cancel(notification.params);
                    }
                }
                Ok(Message::Notification(notification)) => {
                    let notification = UpstreamNotification::from(notification);
                    if !mode.is_modern && is_about_server(&notification.method) {
                        self.state.unsolicited.handle_notification(notification);
                    } else {
                        listener.handle_notification(notification);
                    }
                }
                Ok(Message::Request(request)) if mode.is_modern => {
                    // 2026-07-28/basic/transports/streamable-http, "Receiving Messages".
                    tracing::debug!(upstream, method = %request.method, "a request of a stateless server is ignored");
                }
                Ok(Message::Request(request)) => {
                    if let Some(request) = self.state.open_requests.register(request, None, &self.reply_sender()) {
                        listener.handle_request(request);
                    }
                }
            }
        });
        match (answer, error) {
            (None, Some(error)) if !has_message => Err(error),
            (None, _) if is_cancelled => Err(LinkError::Lost("the server cancelled the request".to_owned())),
            (answer, _) => Ok(answer),
        }
    }

    /// Reads an event stream up to the response, and resumes it if it is interrupted.
    async fn read_stream(
        &self,
        mut http: HttpResponse,
        mode: &LinkMode,
        id: u64,
        listener: &Arc<dyn Listener>,
    ) -> Result<Response, LinkError> {
        let mut events = EventReader::new(MAX_MESSAGE_BYTES);
        let mut attempts = 0;
        loop {
            let end = loop {
                match next_event(&mut http, &mut events).await {
                    Ok(Some(event)) => {
                        attempts = 0;
                        if event.is_message()
                            && let Some(response) = self.handle_messages(&event.data, mode, id, listener)?
                        {
                            drain_response(http, events.has_unparsed_bytes());
                            return Ok(response);
                        }
                    }
                    Ok(None) => break LinkError::Lost("its stream ended before the answer".to_owned()),
                    Err(error @ LinkError::Lost(_)) => break error,
                    Err(error) => return Err(error),
                }
            };
            if mode.is_modern {
                return Err(end);
            }
            http = loop {
                attempts += 1;
                if attempts > MAX_RESUMES {
                    return Err(end);
                }
                match listen::resume(&self.state, &mut events, attempts).await {
                    Ok(Some(http)) => break http,
                    Ok(None) => return Err(end),
                    Err(error) => {
                        let upstream = &*self.state.target.server;
                        tracing::debug!(upstream, %error, "an interrupted stream could not be resumed");
                    }
                }
            };
        }
    }
}

fn is_same_id(id: Option<&RequestId>, expected: u64) -> bool {
    id.is_some_and(|id| id.as_json().parse() == Ok(expected))
}

/// Returns the error for a status without a JSON-RPC answer.
fn status_error(status: StatusCode, body: &[u8]) -> LinkError {
    LinkError::Status { status: status.as_u16(), body: escape_excerpt(body) }
}

/// Returns the next event of a stream, or `None` at its end.
///
/// # Errors
/// [`LinkError::Lost`]; [`LinkError::Protocol`] if an event is too long.
pub(crate) async fn next_event(
    response: &mut HttpResponse,
    events: &mut EventReader,
) -> Result<Option<Event>, LinkError> {
    let too_long = |_| LinkError::Protocol(format!("a message is longer than {MAX_MESSAGE_BYTES} bytes"));
    loop {
        if let Some(event) = events.next_event().map_err(too_long)? {
            return Ok(Some(event));
        }
        match response.chunk().await? {
            Some(chunk) => events.push(&chunk),
            None => return Ok(None),
        }
    }
}

/// Returns `true` if the body is an event stream.
pub(crate) fn is_stream(response: &HttpResponse) -> bool {
    const STREAM: &[u8] = b"text/event-stream";
    let kind = response.header(Field::ContentType).map(<[u8]>::trim_ascii);
    kind.is_some_and(|kind| {
        kind.get(..STREAM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(STREAM))
            && matches!(kind.get(STREAM.len()), None | Some(b';' | b' ' | b'\t'))
    })
}

/// Returns `true` if the body says that the server does not know the method of the request.
fn is_method_not_found(body: &[u8], id: u64) -> bool {
    has_error(body, |other, error| error.code == ErrorKind::MethodNotFound.number() && is_same_id(other, id))
}

/// Returns `true` if the body with the status 400 is an error without an id that names the session. Servers must answer 404 then
/// (2025-11-25/basic/transports, "Session Management"), but many copy examples of official SDKs that answer 400.
fn is_session_refused(body: &[u8]) -> bool {
    has_error(body, |id, error| {
        let text = error.message.to_ascii_lowercase();
        id.is_none() && (text.contains("session") || text.contains("not initialized"))
    })
}

/// Returns `true` if the body has an error that meets the condition, which gets the id of the request and the error.
fn has_error(body: &[u8], meets: impl Fn(Option<&RequestId>, &RpcError) -> bool) -> bool {
    let mut is_found = false;
    parse_messages(body, |message| {
        if let Ok(Message::Response(response)) = message
            && let Response::Error(error) = parse_response(response.outcome)
        {
            is_found |= meets(response.id.as_ref(), &error);
        }
    });
    is_found
}

/// Sends a message that has no answer, and waits until the server has accepted it with any success.
///
/// # Errors
/// As [`client::send`]; [`LinkError::Status`] for any other status.
pub(crate) async fn post(head: &RequestHead, message: &Bytes, permit: Option<&Permit>) -> Result<(), LinkError> {
    let sending = async {
        let mut response = client::send(head, ExtraHeaders::new(), message, permit).await?;
        accept_status(&mut response, |status| status.is_success()).await
    };
    let timeout_error =
        |_| LinkError::Lost(format!("a message was not accepted within {} s", ACCEPT_TIMEOUT.as_secs()));
    tokio::time::timeout(ACCEPT_TIMEOUT, sending).await.map_err(timeout_error)?
}

/// Checks the status of an answer whose body is not needed. The body is read unless it is a stream, so that the connection can
/// be used again.
///
/// # Errors
/// [`LinkError::Status`] if the status is not accepted.
pub(crate) async fn accept_status(
    response: &mut HttpResponse,
    accepts: impl FnOnce(StatusCode) -> bool,
) -> Result<(), LinkError> {
    let status = response.status();
    let body = if is_stream(response) { Ok(Bytes::new()) } else { read_body(response, MAX_ERROR_BYTES).await };
    if accepts(status) { Ok(()) } else { Err(status_error(status, &body.unwrap_or_default())) }
}

/// Reads the whole body of at most `max` bytes.
pub(crate) async fn read_body(response: &mut HttpResponse, max: usize) -> Result<Bytes, LinkError> {
    let too_long = || LinkError::Protocol(format!("its answer is longer than {max} bytes"));
    let length = response.length().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    if length.is_some_and(|length| length > max) {
        return Err(too_long());
    }
    // Most bodies are one chunk, which is not copied.
    let first = response.chunk().await?.unwrap_or_default();
    let Some(second) = response.chunk().await? else {
        return if first.len() > max { Err(too_long()) } else { Ok(first) };
    };
    let mut body = Vec::with_capacity(length.unwrap_or_default());
    let mut next = Some(second);
    body.extend_from_slice(&first);
    while let Some(chunk) = next {
        body.extend_from_slice(&chunk);
        if body.len() > max {
            return Err(too_long());
        }
        next = response.chunk().await?;
    }
    Ok(body.into())
}

/// Reads a stream to its end after the answer, so that its connection can be used again.
fn drain_response(mut response: HttpResponse, has_unparsed_bytes: bool) {
    if !has_unparsed_bytes && let Some(Ok(None) | Err(_)) = response.chunk().now_or_never() {
        return;
    }
    actix_web::rt::spawn(async move {
        let rest = async {
            let mut budget = MAX_TRAILING_BYTES;
            while let Ok(Some(chunk)) = response.chunk().await {
                match budget.checked_sub(chunk.len()) {
                    Some(remaining) => budget = remaining,
                    None => break,
                }
            }
        };
        let _ = tokio::time::timeout(TRAILING_TIMEOUT, rest).await;
    });
}

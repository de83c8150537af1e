//! Upstreams over the HTTP+SSE transport of 2024-11-05 (2024-11-05/basic/transports, "HTTP with SSE"): the first event
//! of one GET stream names the endpoint for POST requests, and all messages of the server arrive on that stream.
//!
//! The endpoint must have the same origin as the URL, because the server must not send the gateway and its credentials
//! elsewhere.

use std::{sync::Arc, time::Duration};

use actix_http::{StatusCode, header};
use awc::http::{Method as HttpMethod, Uri, header::HeaderValue};
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    LinkError, Listener, MAX_MESSAGE_BYTES, escape_beginning,
    handshake::HANDSHAKE_ID,
    http::{
        HttpTarget,
        answer::{self, accept_status, is_stream, next_event},
        client::{self, HttpResponse, RequestHead},
    },
    mux::{Mux, SingleStreamLink},
    queue::QueuedMessage,
};
use countersign_protocol::{Method, encode::notified_method, event_stream::EventReader};
use countersign_runtime::background;

/// The time limit for a server to open the stream and to name its endpoint.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of messages that are posted at the same time.
const MAX_CONCURRENT_POSTS: usize = 64;

/// Opens a link, whose tasks run on the thread of this call.
pub(super) async fn open_link(
    target: &HttpTarget,
    unsolicited: Arc<dyn Listener>,
) -> Result<SingleStreamLink, LinkError> {
    let timeout_error = |_| LinkError::Unreachable(format!("no endpoint within {} s", OPEN_TIMEOUT.as_secs()));
    let opening = tokio::time::timeout(OPEN_TIMEOUT, open(target)).await;
    let (response, events, endpoint) = opening.map_err(timeout_error)?.map_err(LinkError::into_unsent)?;
    let link = SingleStreamLink::new(&target.server, unsolicited);
    let post = RequestHead::for_messages(endpoint, target.headers.clone(), &target.access);
    background::spawn(run(Arc::clone(&link.mux), link.stop.clone(), response, events, post));
    Ok(link)
}

/// Opens the stream and reads it up to the endpoint.
async fn open(target: &HttpTarget) -> Result<(HttpResponse, EventReader, Uri), LinkError> {
    let uri = target.uri()?;
    let mut headers = target.headers.clone();
    headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    let mut response = client::request(HttpMethod::GET, uri.clone(), headers, &target.access).await?;
    accept_status(&mut response, |status| status == StatusCode::OK).await?;
    if !is_stream(&response) {
        return Err(LinkError::Protocol("a GET does not open an event stream there".to_owned()));
    }
    let mut events = EventReader::new(MAX_MESSAGE_BYTES);
    while let Some(event) = next_event(&mut response, &mut events).await? {
        if event.name == "endpoint" {
            let endpoint = resolve_endpoint(&uri, &event.data)?;
            return Ok((response, events, endpoint));
        }
        if !event.data.is_empty() {
            return Err(LinkError::Protocol("the first event on its stream is not `endpoint`".to_owned()));
        }
    }
    Err(LinkError::Protocol("its stream ended before the `endpoint`".to_owned()))
}

/// Resolves the endpoint relative to the URL of the stream.
fn resolve_endpoint(stream: &Uri, data: &[u8]) -> Result<Uri, LinkError> {
    let invalid = |what: &str| LinkError::Protocol(format!("the endpoint {} {what}", escape_beginning(data, 200)));
    let base = Url::parse(&stream.to_string()).map_err(|_| invalid("has no base"))?;
    let text = std::str::from_utf8(data).map_err(|_| invalid("is not a URL"))?.trim();
    let url = base.join(text).map_err(|_| invalid("is not a URL"))?;
    if url.origin() != base.origin() || !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("is not of the same origin as the stream"));
    }
    url.as_str().parse().map_err(|_| invalid("is not a URL"))
}

/// Reads and posts until the stream ends or `stop` is cancelled.
async fn run(mux: Arc<Mux>, stop: CancellationToken, response: HttpResponse, events: EventReader, head: RequestHead) {
    let end = tokio::select! {
        () = stop.cancelled() => LinkError::Lost("the connection was closed".to_owned()),
        end = read(&mux, response, events) => end,
        end = write(&mux, &head) => end,
    };
    mux.end(end);
}

/// Reads the stream to its end, and returns the reason for the end.
async fn read(mux: &Mux, mut response: HttpResponse, mut events: EventReader) -> LinkError {
    loop {
        match next_event(&mut response, &mut events).await {
            Ok(Some(event)) if event.is_message() => mux.receive_or_log(&event.data),
            Ok(Some(_)) => {}
            Ok(None) => return LinkError::Lost("the server has closed the stream".to_owned()),
            Err(error) => return error,
        }
    }
}

/// Posts messages until the session ends, and returns the reason for the end.
async fn write(mux: &Mux, head: &RequestHead) -> LinkError {
    let mut posts = FuturesUnordered::new();
    loop {
        let posted = tokio::select! {
            Some(posted) = posts.next(), if !posts.is_empty() => posted,
            message = mux.queue.pop(), if posts.len() < MAX_CONCURRENT_POSTS => {
                let Some(message) = message else { return LinkError::Lost("the connection was closed".to_owned()) };
                let ends_handshake = notified_method(&message.text) == Some(Method::Initialized);
                let post = post(mux, head, message);
                // The first request must not overtake this notification.
                if ends_handshake { post.await } else { posts.push(post); Ok(()) }
            }
        };
        if let Err(end) = posted {
            return end;
        }
    }
}

/// Posts one message, and fails its request if the server does not accept it.
///
/// # Errors
/// [`LinkError::Lost`] if the server no longer knows the session of the stream. Requests that it accepted before may still
/// run, so only the request of this message gets [`LinkError::SessionGone`], which allows that it is sent again.
async fn post(mux: &Mux, head: &RequestHead, message: QueuedMessage) -> Result<(), LinkError> {
    let QueuedMessage { id, text, permit } = message;
    let Err(error) = answer::post(head, &text, permit.as_ref()).await else { return Ok(()) };
    let is_gone = matches!(error, LinkError::Status { status: 404 | 410, .. });
    // Without a session, the status tells more: the endpoint is probably wrong.
    let error = if is_gone && id != Some(HANDSHAKE_ID) { LinkError::SessionGone } else { error };
    match id {
        Some(id) => _ = mux.answer(id, Err(error)),
        None => tracing::debug!(upstream = %mux.server, %error, "a message was not accepted"),
    }
    if is_gone { Err(LinkError::Lost("the server has ended the session".to_owned())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_must_have_the_same_origin() {
        let stream: Uri = "http://host:81/a/sse?x=1".parse().unwrap();
        let resolve = |text: &str| resolve_endpoint(&stream, text.as_bytes()).map(|uri| uri.to_string());
        assert_eq!(resolve("/messages?session=1").unwrap(), "http://host:81/messages?session=1");
        assert_eq!(resolve("messages").unwrap(), "http://host:81/a/messages");
        assert_eq!(resolve("?s=2").unwrap(), "http://host:81/a/sse?s=2");
        assert_eq!(resolve("http://host:81/m").unwrap(), "http://host:81/m");
        assert_eq!(resolve("http://HOST:81/m").unwrap(), "http://host:81/m");
        for foreign in [
            "http://host/m",
            "https://host:81/m",
            "http://evil:81/m",
            "//evil/m",
            "http://user@host:81/m",
            "http://host:81@evil/m",
            "\\\\evil\\m",
            "file:///etc/passwd",
            "javascript:1",
        ] {
            assert!(resolve(foreign).is_err(), "{foreign}");
        }
        assert!(resolve_endpoint(&stream, b"\xff").is_err());
    }
}

//! Upstreams over the HTTP+SSE transport of 2024-11-05 (1105/basic/transports, "HTTP with SSE"): one stream by GET, whose
//! first event names where to POST, and everything else comes on that stream.
//!
//! A server must not direct the gateway, and the credentials configured for it, elsewhere: the endpoint has to be of
//! the URL's own origin.

use std::{sync::Arc, time::Duration};

use actix_http::{StatusCode, header};
use awc::http::{
    Method, Uri,
    header::{HeaderMap, HeaderValue},
};
use futures_util::{StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    Connector, Link, LinkError, LinkKind, Listener,
    http::{
        Place,
        answer::{body, is_stream, too_long},
        client::{self, Extra, Head, HttpAnswer},
    },
    mux::{Mux, SharedLink},
    queue::QueuedLine,
    received::{self, MAX_MESSAGE, shown},
};
use countersign_protocol::Era;
use countersign_protocol::event_stream::EventReader;
use countersign_provider::Permit;

/// How long a server may take to open the stream and to name its endpoint.
const OPENING: Duration = Duration::from_secs(10);

/// How long it may take to accept one message.
const ACCEPT: Duration = Duration::from_secs(30);

/// Messages that are being posted at a time.
const AT_ONCE: usize = 64;

/// Bytes of an error to a message.
const MAX_ERROR: usize = 64 << 10;

pub(crate) struct SseConnector {
    pub place: Place,
}

impl Connector for SseConnector {
    fn connect<'a>(&'a self, unsolicited: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
        Box::pin(async move {
            let late = |_| LinkError::Unreachable(format!("no endpoint within {} s", OPENING.as_secs()));
            let opening = open(&self.place);
            let (response, events, endpoint) = tokio::time::timeout(OPENING, opening).await.map_err(late)??;
            let link = SharedLink::new(unsolicited);
            let (mux, stop) = (&link.mux, &link.stop);
            actix_web::rt::spawn(read(Arc::clone(mux), stop.clone(), response, events));
            actix_web::rt::spawn(write(Arc::clone(mux), stop.clone(), post_head(&self.place, endpoint)));
            Ok(Arc::new(link) as Arc<dyn Link>)
        })
    }

    fn kind(&self) -> LinkKind {
        LinkKind::Shared
    }

    fn probe_apart(&self) -> bool {
        false
    }

    fn era(&self) -> Option<Era> {
        Some(Era::Legacy)
    }

    fn describe(&self) -> String {
        self.place.shown.clone()
    }
}

/// Opens the stream and reads it up to the endpoint.
async fn open(place: &Place) -> Result<(HttpAnswer, EventReader, Uri), LinkError> {
    let uri = place.uri()?;
    let mut headers = place.headers.clone();
    headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    // Whatever breaks here, no request was sent yet.
    let sent = client::request(Method::GET, uri.clone(), headers, &place.trust).await;
    let mut response = sent.map_err(|error| match error {
        LinkError::Lost(why) => LinkError::Unreachable(why),
        error => error,
    })?;
    let status = response.status();
    if status != StatusCode::OK || !is_stream(&response) {
        let body = if is_stream(&response) { Vec::new() } else { beginning(&mut response).await };
        return Err(match status {
            StatusCode::OK => LinkError::Protocol("a GET does not open an event stream there".to_owned()),
            _ => LinkError::Status { status: status.as_u16(), body: shown(&body) },
        });
    }
    let mut events = EventReader::new(MAX_MESSAGE);
    loop {
        while let Some(event) = events.next_event().map_err(too_long)? {
            if event.name == "endpoint" {
                let endpoint = endpoint(&uri, &event.data)?;
                return Ok((response, events, endpoint));
            }
            if !event.data.is_empty() {
                return Err(LinkError::Protocol("the first event on its stream is not `endpoint`".to_owned()));
            }
        }
        match response.next().await {
            Some(Ok(chunk)) => events.push(&chunk),
            Some(Err(error)) => return Err(LinkError::Unreachable(error.to_string())),
            None => return Err(LinkError::Protocol("its stream ended before the `endpoint`".to_owned())),
        }
    }
}

async fn beginning(response: &mut HttpAnswer) -> Vec<u8> {
    body(response, MAX_ERROR).await.map(|body| body.to_vec()).unwrap_or_default()
}

/// Where to POST: relative to the URL of the stream, and of the same origin.
fn endpoint(stream: &Uri, data: &[u8]) -> Result<Uri, LinkError> {
    let wrong = |what: &str| LinkError::Protocol(format!("the endpoint {} {what}", received::beginning(data, 200)));
    let base = Url::parse(&stream.to_string()).map_err(|_| wrong("has no base"))?;
    let text = std::str::from_utf8(data).map_err(|_| wrong("is no URL"))?.trim();
    let url = base.join(text).map_err(|_| wrong("is no URL"))?;
    if url.origin() != base.origin() || !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("is not of the same origin as the stream"));
    }
    url.as_str().parse().map_err(|_| wrong("is no URL"))
}

fn post_head(place: &Place, endpoint: Uri) -> Arc<Head> {
    let mut headers: HeaderMap = place.headers.clone();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    Head::new(endpoint, headers, &place.trust)
}

async fn read(mux: Arc<Mux>, stop: CancellationToken, mut response: HttpAnswer, mut events: EventReader) {
    let reading = async {
        loop {
            loop {
                match events.next_event() {
                    Ok(Some(event)) if event.is_message() => mux.receive_or_log(&event.data),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => return too_long(error),
                }
            }
            match response.next().await {
                Some(Ok(chunk)) => events.push(&chunk),
                Some(Err(error)) => return client::cut(&error),
                None => return LinkError::Lost("the server has closed the stream".to_owned()),
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

async fn write(mux: Arc<Mux>, stop: CancellationToken, head: Arc<Head>) {
    let mut sending = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(()) = sending.next(), if !sending.is_empty() => {}
            message = mux.queue.pop(), if sending.len() < AT_ONCE => {
                let Some(message) = message else { return };
                // The first request must not overtake it.
                let ordered = memchr::memmem::find(&message.line, b"notifications/initialized").is_some();
                let sent = send(&mux, &stop, &head, message);
                if ordered { sent.await } else { sending.push(sent) }
            }
        }
    }
}

async fn send(mux: &Mux, stop: &CancellationToken, head: &Head, message: QueuedLine) {
    let QueuedLine { id, line, permit } = message;
    let posting = tokio::time::timeout(ACCEPT, post(head, line, permit));
    let late = || LinkError::Lost(format!("a message was not accepted within {} s", ACCEPT.as_secs()));
    let Err(error) = posting.await.unwrap_or_else(|_| Err(late())) else { return };
    match id {
        Some(id) => _ = mux.answer(id, Err(error.clone())),
        None => tracing::debug!(%error, "a message was not accepted"),
    }
    if matches!(error, LinkError::Status { status: 404 | 410, .. }) {
        // The session of that stream is no more.
        mux.end(LinkError::SessionGone);
        stop.cancel();
    }
}

async fn post(head: &Head, text: bytes::Bytes, permit: Option<Permit>) -> Result<(), LinkError> {
    let mut response = client::send(head, Extra::new(), &text, permit.as_ref()).await?;
    let status = response.status();
    if is_stream(&response) {
        return Ok(());
    }
    let body = beginning(&mut response).await;
    if status.is_success() { Ok(()) } else { Err(LinkError::Status { status: status.as_u16(), body: shown(&body) }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_of_the_same_origin() {
        let stream: Uri = "http://host:81/a/sse?x=1".parse().unwrap();
        let to = |text: &str| endpoint(&stream, text.as_bytes()).map(|uri| uri.to_string());
        assert_eq!(to("/messages?session=1").unwrap(), "http://host:81/messages?session=1");
        assert_eq!(to("messages").unwrap(), "http://host:81/a/messages");
        assert_eq!(to("?s=2").unwrap(), "http://host:81/a/sse?s=2");
        assert_eq!(to("http://host:81/m").unwrap(), "http://host:81/m");
        assert_eq!(to("http://HOST:81/m").unwrap(), "http://host:81/m");
        for elsewhere in [
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
            assert!(to(elsewhere).is_err(), "{elsewhere}");
        }
        assert!(endpoint(&stream, b"\xff").is_err());
    }
}

//! Streams by GET, which only the handshake era has: the one for what belongs to no request, and the rest of an
//! interrupted answer (2025-11-25/basic/transports, "Listening for Messages from the Server", "Resumability and
//! Redelivery").

use std::{sync::Arc, time::Duration};

use actix_http::{StatusCode, header};
use awc::http::{Method, header::HeaderValue};
use futures_util::StreamExt;

use super::{
    answer::is_stream,
    client::{self, HttpAnswer},
    link::Shared,
};
use crate::link::{
    LinkError,
    received::{self, MAX_MESSAGE, Received},
    server_requests::Queue,
};
use countersign_net::Backoff;
use countersign_protocol::event_stream::EventReader;

/// The pauses between two connections if the server names no time.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// The shortest pause that a server may ask for: one that closes its stream at once would keep the gateway busy.
const LEAST_RETRY: Duration = Duration::from_millis(100);
/// The longest pause that a server may ask for.
const MAX_RETRY: Duration = Duration::from_secs(86400);

/// Opens a stream by GET. `None` if the server has none.
async fn get(shared: &Shared, last: Option<&str>) -> Result<Option<HttpAnswer>, LinkError> {
    let mode = shared.mode();
    let mut headers = mode.plain.clone();
    headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    if let Some(value) = last.and_then(|last| HeaderValue::from_str(last).ok()) {
        headers.insert(header::HeaderName::from_static("last-event-id"), value);
    }
    let response = client::request(Method::GET, shared.uri.clone(), headers, &shared.trust).await?;
    match response.status() {
        StatusCode::NOT_FOUND if mode.session.is_some() => Err(shared.gone()),
        StatusCode::OK if is_stream(&response) => Ok(Some(response)),
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            Err(LinkError::Status { status: status.as_u16(), body: String::new() })
        }
        _ => Ok(None),
    }
}

/// The time that the server asked for, else one that grows with every failure.
fn pause(events: &EventReader, failures: u32) -> Duration {
    match events.retry_millis() {
        Some(retry) => Duration::from_millis(retry).clamp(LEAST_RETRY, MAX_RETRY),
        None => BACKOFF.step(failures.saturating_sub(1)),
    }
}

/// Takes an interrupted answer up again after the time that the server asked for. `None` if that is impossible.
///
/// # Errors
/// What may be better the next time; not [`LinkError::SessionGone`], which is final.
pub(super) async fn resume(
    shared: &Shared,
    events: &mut EventReader,
    attempt: u32,
) -> Result<Option<HttpAnswer>, LinkError> {
    let Some(last) = events.last_id().map(ToOwned::to_owned) else { return Ok(None) };
    tokio::time::sleep(pause(events, attempt)).await;
    match get(shared, Some(&last)).await {
        Ok(response) => {
            events.reset_for_reconnect();
            Ok(response)
        }
        Err(LinkError::SessionGone) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Hands on what the server sends outside of requests, until the session ends or the server has no such stream.
pub(super) async fn run(shared: Arc<Shared>, queue: Queue) {
    let closed = shared.closed.clone();
    tokio::select! {
        () = closed.cancelled() => {}
        () = listen(&shared, &queue) => {}
    }
}

async fn listen(shared: &Shared, queue: &Queue) {
    let mut events = EventReader::new(MAX_MESSAGE);
    let mut failures = 0;
    loop {
        let last = events.last_id().map(ToOwned::to_owned);
        let stream = get(shared, last.as_deref()).await;
        shared.listens.cancel();
        match stream {
            Ok(Some(response)) => {
                events.reset_for_reconnect();
                if read(shared, queue, response, &mut events).await {
                    failures = 0;
                } else {
                    failures += 1;
                }
            }
            Ok(None) | Err(LinkError::SessionGone) => return,
            Err(error) => {
                failures += 1;
                tracing::debug!(%error, failures, "the stream for unsolicited messages");
            }
        }
        tokio::time::sleep(pause(&events, failures)).await;
    }
}

/// Whether there was anything on it.
async fn read(shared: &Shared, queue: &Queue, mut response: HttpAnswer, events: &mut EventReader) -> bool {
    let mut any = false;
    while let Some(Ok(chunk)) = response.next().await {
        events.push(&chunk);
        loop {
            let event = match events.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(_) => {
                    tracing::warn!("an unsolicited message is longer than {MAX_MESSAGE} bytes");
                    return any;
                }
            };
            any = true;
            if event.is_message() {
                hand_on(shared, queue, &event.data);
            }
        }
    }
    any
}

fn hand_on(shared: &Shared, queue: &Queue, text: &[u8]) {
    let read = received::read(text, |received| match received {
        // A server must not, except on resumption, which has streams of its own here.
        Received::Answer { id, .. } => tracing::debug!(?id, "an answer on the stream for unsolicited messages"),
        Received::Notification(notification) if notification.method == "notifications/cancelled" => {
            shared.asked.cancel(notification.params.as_deref());
        }
        Received::Notification(notification) => shared.unsolicited.notification(notification),
        Received::Request { id, method, params } => {
            if let Some(request) = shared.asked.take(id, method, params, None, queue) {
                shared.unsolicited.request(request);
            }
        }
    });
    if let Err(unreadable) = read {
        tracing::debug!("not a message: {}", unreadable.why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_when_to_come_again_within_bounds() {
        let told = |retry: &str| {
            let mut events = EventReader::new(1024);
            events.push(format!("retry: {retry}\n\n").as_bytes());
            assert_eq!(events.next_event(), Ok(None));
            pause(&events, 1)
        };
        assert_eq!(told("500"), Duration::from_millis(500));
        assert_eq!(told("0"), LEAST_RETRY);
        assert_eq!(told("99999999999999"), MAX_RETRY);
        assert_eq!(pause(&EventReader::new(1), 1), BACKOFF.first);
    }
}

//! GET streams of the handshake era: the stream for messages outside of requests, and streams that resume an
//! interrupted answer (2025-11-25/basic/transports, "Listening for Messages from the Server", "Resumability and
//! Redelivery").

use std::{sync::Arc, time::Duration};

use actix_http::{StatusCode, header};
use awc::http::{Method, header::HeaderValue};
use tokio::time::Instant;

use super::{
    HttpLinkState,
    answer::{is_stream, next_event},
    client::{self, HttpResponse},
};
use crate::link::{
    LinkError, MAX_MESSAGE_BYTES, MIN_STREAM_TIME, UpstreamNotification, parse_messages, server_requests::ReplySender,
};
use countersign_net::Backoff;
use countersign_protocol::{envelope::Message, event_stream::EventReader};
use countersign_provider::List;

/// The pauses between two connections if the server requests no pause.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// The minimum pause that a server can request, because a server that closes its stream at once would keep the gateway
/// busy.
const MIN_RETRY: Duration = Duration::from_millis(100);
/// The maximum pause that a server can request.
const MAX_RETRY: Duration = Duration::from_secs(86400);

/// Opens a GET stream that continues after the event with the id `last_event_id`. Returns `None` if the server offers
/// no such stream.
async fn open_stream(state: &HttpLinkState, last_event_id: Option<&str>) -> Result<Option<HttpResponse>, LinkError> {
    let mode = state.mode();
    let mut headers = mode.headers.clone();
    headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    if let Some(value) = last_event_id.and_then(|id| HeaderValue::from_str(id).ok()) {
        headers.insert(header::HeaderName::from_static("last-event-id"), value);
    }
    let response = client::request(Method::GET, state.uri.clone(), headers, &state.target.access).await?;
    match response.status() {
        StatusCode::NOT_FOUND if mode.session_id.is_some() => Err(state.end_session()),
        StatusCode::OK if is_stream(&response) => Ok(Some(response)),
        status if is_temporary(status.as_u16()) => {
            Err(LinkError::Status { status: status.as_u16(), body: String::new() })
        }
        _ => Ok(None),
    }
}

/// Returns `true` for a status after which a later attempt may succeed. A conflict is one: the server may not know yet that the
/// previous stream has ended.
const fn is_temporary(status: u16) -> bool {
    matches!(status, 408 | 409 | 425 | 429 | 500 | 502..=599)
}

/// Returns the pause that the server requested, or else a pause that grows with each failure.
fn pause(events: &EventReader, failures: u32) -> Duration {
    match events.retry_millis() {
        Some(retry) => Duration::from_millis(retry).clamp(MIN_RETRY, MAX_RETRY),
        None => BACKOFF.pause_without_jitter(failures.saturating_sub(1)),
    }
}

/// The time from which all lists may be read again. It grows with each reading, for servers whose streams all end soon.
struct NextReading {
    earlier_readings: u32,
    at: Instant,
}

impl NextReading {
    /// Allows a reading at once.
    fn now() -> Self {
        Self { earlier_readings: 0, at: Instant::now() }
    }

    /// Delays the next reading after another one.
    fn delay(&mut self) {
        self.at = Instant::now() + BACKOFF.pause_without_jitter(self.earlier_readings);
        self.earlier_readings = self.earlier_readings.saturating_add(1);
    }
}

/// Resumes an interrupted answer after the requested pause. Returns `None` if that is impossible.
///
/// # Errors
/// Those of [`open_stream`] after which another attempt may succeed.
pub(super) async fn resume(
    state: &HttpLinkState,
    events: &mut EventReader,
    attempt: u32,
) -> Result<Option<HttpResponse>, LinkError> {
    let Some(last_event_id) = events.last_id().map(ToOwned::to_owned) else { return Ok(None) };
    tokio::time::sleep(pause(events, attempt)).await;
    match open_stream(state, Some(&last_event_id)).await {
        Ok(response) => {
            events.reset_for_reconnect();
            Ok(response)
        }
        Err(LinkError::SessionGone) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Forwards messages outside of requests, until the session ends or the server has no such stream.
pub(super) async fn run(state: Arc<HttpLinkState>, replies: ReplySender) {
    state.closed.run_until_cancelled(listen(&state, &replies)).await;
}

/// Keeps the GET stream open, and forwards its messages.
async fn listen(state: &HttpLinkState, replies: &ReplySender) {
    let mut events = EventReader::new(MAX_MESSAGE_BYTES);
    let mut failures = 0;
    // `true` if messages may have been missed since the lists were read.
    let mut has_gap = false;
    let mut next_reading = NextReading::now();
    loop {
        let last_event_id = events.last_id().map(ToOwned::to_owned);
        let stream = open_stream(state, last_event_id.as_deref()).await;
        state.listen_answered.cancel();
        failures += 1;
        match stream {
            Ok(Some(mut response)) => {
                let opened_at = Instant::now();
                events.reset_for_reconnect();
                loop {
                    let event = tokio::select! {
                        biased;
                        () = tokio::time::sleep_until(next_reading.at), if has_gap => {
                            has_gap = false;
                            next_reading.delay();
                            assume_changed_lists(state);
                            continue;
                        }
                        event = next_event(&mut response, &mut events) => event,
                    };
                    match event {
                        Ok(Some(event)) => {
                            failures = 0;
                            if event.is_message() {
                                forward(state, replies, &event.data);
                            }
                        }
                        Ok(None) => break,
                        Err(error) => {
                            tracing::info!(upstream = %state.target.server, %error, "the stream for unsolicited messages was interrupted");
                            break;
                        }
                    }
                }
                if opened_at.elapsed() >= MIN_STREAM_TIME {
                    failures = 0;
                    next_reading = NextReading::now();
                }
                // Without an id, the server cannot repeat what it announces until the next stream is open.
                has_gap |= events.last_id().is_none();
            }
            Ok(None) if last_event_id.is_some() => {
                // The server may still offer the stream, but no longer know the event.
                events.forget_last_id();
                has_gap = true;
            }
            Ok(None) | Err(LinkError::SessionGone) => return,
            Err(error) => {
                has_gap = true;
                tracing::debug!(upstream = %state.target.server, %error, failures, "cannot open the stream for unsolicited messages");
            }
        }
        tokio::time::sleep(pause(&events, failures)).await;
    }
}

/// Has all lists read again, because changes of them may have been missed.
fn assume_changed_lists(state: &HttpLinkState) {
    for list in List::ALL {
        let method = list.notification().to_owned();
        state.unsolicited.handle_notification(UpstreamNotification { method, params: None });
    }
}

/// Forwards the messages of one event.
fn forward(state: &HttpLinkState, replies: &ReplySender, text: &[u8]) {
    parse_messages(text, |message| match message {
        // Only a resumed stream may contain answers.
        Ok(Message::Response(response)) => {
            tracing::debug!(
                upstream = %state.target.server, id = ?response.id,
                "an answer on the stream for unsolicited messages is ignored"
            );
        }
        Ok(Message::Notification(notification)) if notification.method == "notifications/cancelled" => {
            state.open_requests.cancel(notification.params);
        }
        Ok(Message::Notification(notification)) => state.unsolicited.handle_notification(notification.into()),
        Ok(Message::Request(request)) => {
            if let Some(request) = state.open_requests.register(request, None, replies) {
                state.unsolicited.handle_request(request);
            }
        }
        Err(malformed) => {
            tracing::debug!(upstream = %state.target.server, "a message of the server is ignored: {}", malformed.reason);
            state.open_requests.refuse_malformed(&malformed, replies);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_statuses_are_temporary() {
        for status in [408, 409, 425, 429, 500, 502, 503, 504] {
            assert!(is_temporary(status), "{status}");
        }
        for status in [204, 302, 400, 404, 405, 406, 410, 501] {
            assert!(!is_temporary(status), "{status}");
        }
    }

    #[test]
    fn requested_pause_is_bounded() {
        let requested = |retry: &str| {
            let mut events = EventReader::new(1024);
            events.push(format!("retry: {retry}\n\n").as_bytes());
            assert_eq!(events.next_event(), Ok(None));
            pause(&events, 3)
        };
        assert_eq!(requested("500"), Duration::from_millis(500));
        assert_eq!(requested("0"), MIN_RETRY);
        assert_eq!(requested("99999999999999"), MAX_RETRY);
        assert_eq!(pause(&EventReader::new(1), 1), BACKOFF.first);
    }

    #[tokio::test(start_paused = true)]
    async fn lists_are_read_less_and_less_often() {
        let mut next_reading = NextReading::now();
        assert_eq!(next_reading.at, Instant::now());
        let delays = [(); 8].map(|()| {
            next_reading.delay();
            (next_reading.at - Instant::now()).as_secs()
        });
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}

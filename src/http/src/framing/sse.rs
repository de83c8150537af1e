//! Bodies of `text/event-stream` responses.
//!
//! A message is JSON on one line, so it is one `data:` line. Comments keep idle streams open.

use std::{convert::Infallible, time::Duration};

use actix_web::{HttpResponse, HttpResponseBuilder, http::header};
use bytes::Bytes;
use futures_util::stream;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use countersign_exchange::streams::EventId;

/// Starts a response that no proxy may delay, compress or store.
pub fn event_stream_response() -> HttpResponseBuilder {
    let mut response = HttpResponse::Ok();
    response
        .insert_header((header::CONTENT_TYPE, "text/event-stream"))
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .insert_header(("x-accel-buffering", "no"));
    response
}

/// The comment that keeps an idle stream open.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// Returns an interval whose first tick comes after one `period`. A late tick delays the next ones.
pub fn interval_from_now(period: Duration) -> Interval {
    let period = period.max(Duration::from_millis(10));
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Writes a message as an event. Events of the modern era have no id, because nothing can be resumed.
pub fn write_event(out: &mut Vec<u8>, id: Option<EventId>, message: &[u8]) {
    if let Some(id) = id {
        out.extend_from_slice(format!("id: {id}\n").as_bytes());
    }
    out.extend_from_slice(b"event: message\ndata: ");
    out.extend_from_slice(message);
    out.extend_from_slice(b"\n\n");
}

/// Responds with the pieces that `next` returns, until it returns `None`. `next` is only called while the socket accepts more
/// bytes.
pub fn stream_response<S: 'static>(state: S, next: impl AsyncFnMut(&mut S) -> Option<Bytes> + 'static) -> HttpResponse {
    event_stream_response().streaming(stream::unfold((state, next), |(mut state, mut next)| async move {
        let piece = next(&mut state).await?;
        Some((Ok::<_, Infallible>(piece), (state, next)))
    }))
}

/// Returns a complete event stream: the messages of `before`, then the answer `last`.
pub fn complete_response(before: Vec<Bytes>, last: Bytes) -> HttpResponse {
    let mut body = Vec::new();
    for message in before.iter().chain([&last]) {
        write_event(&mut body, None, message);
    }
    event_stream_response().body(body)
}

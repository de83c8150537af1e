//! `GET /api/events`: the feed as server-sent events.
//!
//! The stream holds nothing but its place in the feed: a reader that stops reading costs a socket until the kernel's
//! `TCP_USER_TIMEOUT` ends it, and one that comes back with `Last-Event-ID` misses nothing.

use std::time::Duration;

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    web::{self, Bytes},
};
use futures_util::stream;
use jiff::Timestamp;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{Caller, Problem, Query, RestState, query::parse_number};
use countersign_auth::Credential;
use countersign_exchange::{services::RECHECK, slots::StreamSlot};
use countersign_protocol::ErrorKind;
use countersign_review::{FeedEvent, FeedSubscription};

struct Reader {
    state: web::Data<RestState>,
    subscription: FeedSubscription,
    credential: Credential,
    keep_alive: Interval,
    recheck: Interval,
    first: Option<Bytes>,
    ended: bool,
    shutdown: CancellationToken,
    _slot: StreamSlot,
}

/// `GET /api/events?since=N`, or with `Last-Event-ID`.
pub async fn stream(
    caller: Caller,
    request: HttpRequest,
    state: web::Data<RestState>,
) -> Result<HttpResponse, Problem> {
    let since = since(&request)?;
    let slot = state.streams.take(&caller.principal.name)?;
    let (subscription, hello) = subscribe(&state, since)?;
    let pause = state.config.transports.http.sse_keep_alive;
    let reader = Reader {
        subscription,
        credential: caller.credential,
        keep_alive: ticks(pause),
        recheck: ticks(RECHECK),
        // Something at once in any case, so that the client sees the stream is open.
        first: Some(hello.map_or(Bytes::from_static(b":\n\n"), |hello| hello.sse)),
        ended: false,
        shutdown: state.shutdown.child_token(),
        _slot: slot,
        state,
    };
    let body = stream::unfold(reader, |mut reader| async move {
        let chunk = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), reader))
    });
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")))
        .insert_header((X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")))
        .insert_header(("x-accel-buffering", HeaderValue::from_static("no")))
        .streaming(body))
}

/// A place in the feed; a subscriber without `since` is told first where that is.
///
/// # Errors
/// `SHUTTING_DOWN` once the feed is closed.
pub fn subscribe(state: &RestState, since: Option<u64>) -> Result<(FeedSubscription, Option<FeedEvent>), Problem> {
    let subscription = state.changes.feed().subscribe(since);
    let subscription =
        subscription.ok_or_else(|| Problem::new(ErrorKind::ShuttingDown, "the gateway is shutting down"))?;
    let hello = since.is_none().then(|| FeedEvent::hello(subscription.position()));
    Ok((subscription, hello))
}

/// Where to begin: the header wins, since it is what a client that comes back has really seen.
///
/// # Errors
/// `INVALID_PARAMS` for what is not a number.
pub fn since(request: &HttpRequest) -> Result<Option<u64>, Problem> {
    let query = Query::read(request, &["since"])?.number("since")?;
    let Some(header) = request.headers().get("last-event-id").filter(|value| !value.is_empty()) else {
        return Ok(query);
    };
    let seen = header.to_str().ok().and_then(parse_number);
    seen.map(Some).ok_or_else(|| Problem::new(ErrorKind::InvalidParams, "Last-Event-ID is not an id of this feed"))
}

/// Ticks after each full pause.
#[must_use]
pub fn ticks(pause: Duration) -> Interval {
    let pause = pause.max(Duration::from_millis(10));
    let mut ticks = tokio::time::interval_at(Instant::now() + pause, pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Reader {
    /// What to send next; `None` at the end. The server asks only while the socket takes more.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.ended {
            return None;
        }
        let event = loop {
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => {
                    self.ended = true;
                    return Some(Bytes::from_static(b": the gateway is shutting down\n\n"));
                }
                event = self.subscription.next() => break event,
                _ = self.recheck.tick() => {
                    if !self.may_go_on() {
                        return None;
                    }
                }
                _ = self.keep_alive.tick() => return Some(Bytes::from_static(b":\n\n")),
            }
        };
        let event = event.filter(|_| self.may_go_on())?;
        self.keep_alive.reset();
        Some(event.sse.clone())
    }

    fn may_go_on(&self) -> bool {
        self.state.sign_ins.still_valid(&self.credential, Timestamp::now()).is_ok()
    }
}

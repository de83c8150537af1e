//! `GET /api/events`: the feed as server-sent events.
//!
//! The stream holds nothing but its place in the feed: a reader that stops reading costs a socket until the kernel's
//! `TCP_USER_TIMEOUT` ends it, and one that comes back with `Last-Event-ID` misses nothing.

use std::sync::Arc;

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS},
    web::{self, Bytes},
};
use jiff::Timestamp;
use tokio::{sync::Semaphore, time::Interval};
use tokio_util::sync::CancellationToken;

use super::{Caller, Problem, Query, query::parse_number};
use countersign_auth::{DashboardSignIns, authenticator::RECHECK};
use countersign_config::{LimitsConfig, TransportsConfig};
use countersign_domain::principal::Credential;
use countersign_exchange::{
    memory::Memory,
    slots::{StreamSlot, StreamSlots},
};
use countersign_feed::{Feed, FeedEvent, FeedSubscription};
use countersign_http::{
    framing::sse::{self, ticks},
    problem::shutting_down,
};
use countersign_protocol::ErrorKind;

/// What subscribers of the feed need, over either endpoint.
pub struct FeedAccess {
    pub feed: Feed,
    /// Rechecks the credential of whoever listens.
    pub sign_ins: Arc<DashboardSignIns>,
    /// Cancelled when draining begins: the feed takes no more subscribers.
    pub shutdown: CancellationToken,
    pub streams: Arc<StreamSlots>,
    /// What is kept for each principal.
    pub memory: Arc<Memory>,
    /// One permit for each WebSocket, shared with `/ws` (`transports.websocket.max_connections`).
    pub web_sockets: Arc<Semaphore>,
    /// More of them for reviewers, when agents have all the others (`transports.http.reserved_connections`).
    pub reserved_web_sockets: Arc<Semaphore>,
    pub limits: LimitsConfig,
    pub transports: TransportsConfig,
}

/// `GET /api/events?since=N`, or with `Last-Event-ID`.
pub async fn stream(
    caller: Caller,
    request: HttpRequest,
    feed: web::Data<FeedAccess>,
) -> Result<HttpResponse, Problem> {
    let since = since(&request)?;
    let slot = feed.streams.take(&caller.principal.name)?;
    let (subscriber, hello) = Subscriber::new(&feed, caller.credential, since)?;
    let reader = Reader {
        subscriber,
        keep_alive: ticks(feed.transports.http.sse_keep_alive),
        // Something at once in any case, so that the client sees the stream is open.
        first: Some(hello.map_or(Bytes::from_static(b":\n\n"), |hello| hello.sse)),
        ended: false,
        _slot: slot,
    };
    let mut response = sse::streaming(reader, Reader::next);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
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

/// A place in the feed, and whose it is: what the stream and the WebSocket are served from.
pub struct Subscriber {
    feed: web::Data<FeedAccess>,
    subscription: FeedSubscription,
    credential: Credential,
    recheck: Interval,
}

/// What a subscriber gets next.
pub enum Next {
    Event(Arc<FeedEvent>),
    /// The gateway has drained: what happened until then was told.
    ShuttingDown,
    /// The credential that it subscribed with no longer holds.
    Refused,
    /// It can subscribe again from where it is.
    Ended,
}

impl Subscriber {
    /// One without `since` is told first where the feed is.
    ///
    /// # Errors
    /// `SHUTTING_DOWN` once the gateway drains.
    pub fn new(
        feed: &web::Data<FeedAccess>,
        credential: Credential,
        since: Option<u64>,
    ) -> Result<(Self, Option<FeedEvent>), Problem> {
        let subscription = feed.feed.subscribe(since).filter(|_| !feed.shutdown.is_cancelled());
        let subscription = subscription.ok_or_else(|| Problem::from(shutting_down()))?;
        let hello = since.is_none().then(|| FeedEvent::hello(subscription.position()));
        Ok((Self { feed: feed.clone(), subscription, credential, recheck: ticks(RECHECK) }, hello))
    }

    /// The next event, while `ready` for one, or the end. Cancel-safe: nothing is lost if the future is dropped.
    pub async fn next(&mut self, ready: bool) -> Next {
        loop {
            let event = tokio::select! {
                biased;
                _ = self.recheck.tick() => None,
                event = self.subscription.next(), if ready => match event {
                    Some(event) => Some(event),
                    None if self.feed.shutdown.is_cancelled() => return Next::ShuttingDown,
                    None => return Next::Ended,
                },
            };
            if self.feed.sign_ins.check_credential(&self.credential, Timestamp::now()).is_err() {
                return Next::Refused;
            }
            if let Some(event) = event {
                return Next::Event(event);
            }
        }
    }
}

struct Reader {
    subscriber: Subscriber,
    keep_alive: Interval,
    first: Option<Bytes>,
    ended: bool,
    _slot: StreamSlot,
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
        let next = tokio::select! {
            biased;
            next = self.subscriber.next(true) => next,
            _ = self.keep_alive.tick() => return Some(Bytes::from_static(b":\n\n")),
        };
        match next {
            Next::Event(event) => {
                self.keep_alive.reset();
                Some(event.sse.clone())
            }
            Next::ShuttingDown => {
                self.ended = true;
                Some(Bytes::from_static(b": the gateway is shutting down\n\n"))
            }
            Next::Refused | Next::Ended => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn a_feed_begins_after_what_the_client_has_really_seen() {
        let of = |query: &str, last: Option<&str>| {
            let request = TestRequest::with_uri(&format!("/api/events{query}"));
            let request = last.into_iter().fold(request, |r, id| r.append_header(("last-event-id", id)));
            since(&request.to_http_request()).map_err(|problem| problem.error.kind)
        };
        for (query, last, expected) in [
            ("", None, Ok(None)),
            ("?since=", None, Ok(None)),
            ("?since=7", None, Ok(Some(7))),
            ("?since=7", Some(""), Ok(Some(7))),
            ("?since=7", Some("9"), Ok(Some(9))),
            ("", Some("0"), Ok(Some(0))),
            ("?since=x", Some("9"), Err(ErrorKind::InvalidParams)),
            ("?sinse=7", None, Err(ErrorKind::InvalidParams)),
            ("?since=7", Some("-1"), Err(ErrorKind::InvalidParams)),
            ("", Some("18446744073709551616"), Err(ErrorKind::InvalidParams)),
        ] {
            assert_eq!(of(query, last), expected, "{query} {last:?}");
        }
    }
}

//! `GET /api/events`: the feed as server-sent events.
//!
//! The stream only holds its position in the feed. A client that stops reading costs a socket until `TCP_USER_TIMEOUT` ends it,
//! and one that reconnects with `Last-Event-ID` misses nothing.

use std::{sync::Arc, time::Duration};

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS},
    web::{self, Bytes},
};
use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;
use tokio::{sync::Semaphore, time::Interval};
use tokio_util::sync::CancellationToken;
use utoipa::{IntoParams, ToSchema};

use super::{Caller, Problem, Query, query::parse_number};
use countersign_auth::{DashboardSignIns, authenticator::RECHECK_INTERVAL};
use countersign_domain::{policy::StandingRule, principal::Identity};
use countersign_exchange::{
    memory::MemoryBudget,
    slots::{StreamSlot, StreamSlots},
};
use countersign_feed::{Feed, FeedEvent, FeedSubscription};
use countersign_http::framing::sse::{self, interval_from_now};
use countersign_protocol::{ErrorKind, McpError};
use countersign_reload::{Loosening, ReloadOutcome};
use countersign_review::ChangeSummary;
use countersign_session::registry::SessionInfo;

/// The data of both endpoints of the feed.
pub struct FeedAccess {
    pub feed: Feed,
    /// Rechecks the credentials of subscribers.
    pub sign_ins: Arc<DashboardSignIns>,
    /// Cancelled when draining begins. The feed accepts no more subscribers then.
    pub shutdown: CancellationToken,
    pub streams: Arc<StreamSlots>,
    /// The memory of each principal.
    pub memory: Arc<MemoryBudget>,
    /// One permit for each WebSocket, shared with `/ws` (`transports.websocket.max_connections`).
    pub web_sockets: Arc<Semaphore>,
    /// Reserved permits of reviewers (`transports.http.reserved_connections`).
    pub reserved_web_sockets: Arc<Semaphore>,
    /// The maximum number of messages and of bytes that wait for a WebSocket (`limits.outbox_messages`, `limits.outbox_bytes`).
    pub outbox_messages: usize,
    pub outbox_bytes: usize,
    pub ping_interval: Duration,
    pub sse_keep_alive: Duration,
}

/// The start of a subscription.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SinceParams {
    /// The feed sends every change event after this number, and then live ones. If some of them are no longer stored
    /// (`changes.retention.events`), or the last event has a lower number because a backup was restored, a `reset` event comes
    /// first: read the current state again and go on from its number. Without `since`, the feed begins with a `hello` event,
    /// which has the current number.
    pub since: Option<u64>,
}

/// Streams the feed as server-sent events.
///
/// Event numbers have no gaps. A subscriber that reconnects with `Last-Event-ID` (or `since`) misses no change event and receives
/// none twice. Other events are live only.
#[utoipa::path(get, path = "/api/events", operation_id = "streamEvents",
    params(SinceParams, ("Last-Event-ID" = Option<u64>, Header, description = "Like `since`, which it overrides.")),
    responses((status = 200, body = FeedEventBody, content_type = "text/event-stream",
        description = "`id` is the number of a change event, `event` its type, `data` a FeedEvent. Comments keep the \
            connection alive.")))]
pub async fn stream(
    caller: Caller,
    request: HttpRequest,
    feed: web::Data<FeedAccess>,
) -> Result<HttpResponse, Problem> {
    let since = read_since(&request)?;
    let slot = feed.streams.take(&caller.principal.name)?;
    let (subscriber, hello) = FeedSubscriber::new(&feed, caller, since)?;
    let stream = SseStream {
        subscriber,
        keep_alive: interval_from_now(feed.sse_keep_alive),
        // Sent at once, so that the client sees that the stream is open.
        first: Some(hello.map_or(Bytes::from_static(b":\n\n"), |hello| hello.sse)),
        is_ended: false,
        _slot: slot,
    };
    let mut response = sse::stream_response(stream, SseStream::next);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

/// Returns the event to start after. The header wins, because it is the last event that a reconnecting client has received.
///
/// # Errors
/// `INVALID_PARAMS` for a value that is not a number.
pub fn read_since(request: &HttpRequest) -> Result<Option<u64>, Problem> {
    let query = Query::read(request, &["since"])?.number("since")?;
    let Some(header) = request.headers().get("last-event-id").filter(|value| !value.is_empty()) else {
        return Ok(query);
    };
    let last_id = header.to_str().ok().and_then(parse_number);
    last_id.map(Some).ok_or_else(|| Problem::new(ErrorKind::InvalidParams, "Last-Event-ID is not an id of this feed"))
}

/// A position in the feed with the identity of its subscriber, behind either endpoint.
pub struct FeedSubscriber {
    feed: web::Data<FeedAccess>,
    subscription: FeedSubscription,
    identity: Identity,
    recheck: Interval,
    /// Completes when the token of the subscriber is revoked or expires, and never for another credential.
    revoked: LocalBoxFuture<'static, McpError>,
}

/// The next step of a subscription.
pub enum FeedStep {
    Event(Arc<FeedEvent>),
    /// The gateway has drained, and all events were sent.
    ShuttingDown,
    /// The credential of the subscriber is no longer valid.
    Unauthorized,
    /// The subscription has ended, because the store could not be read, the credential could not be checked, or the feed was
    /// closed. The subscriber can subscribe again from its position.
    Ended,
}

impl FeedSubscriber {
    /// Subscribes to the events after `since`, or to new ones. In the latter case it also returns the first event, which names the
    /// position.
    ///
    /// # Errors
    /// `SHUTTING_DOWN` once the gateway drains.
    pub fn new(
        feed: &web::Data<FeedAccess>,
        Caller { principal, credential }: Caller,
        since: Option<u64>,
    ) -> Result<(Self, Option<FeedEvent>), Problem> {
        let subscription = feed.feed.subscribe(since).filter(|_| !feed.shutdown.is_cancelled());
        let subscription = subscription.ok_or_else(|| Problem::from(McpError::shutting_down()))?;
        let hello = since.is_none().then(|| FeedEvent::hello(subscription.position()));
        let identity = Identity { principal, credential };
        let subscriber = Self {
            feed: feed.clone(),
            subscription,
            recheck: interval_from_now(RECHECK_INTERVAL),
            revoked: feed.sign_ins.authenticator().wait_until_token_invalid(&identity),
            identity,
        };
        Ok((subscriber, hello))
    }

    /// Waits for the next event, if `is_ready` for one, or for the end. Cancel-safe: nothing is lost if the future is dropped.
    pub async fn next(&mut self, is_ready: bool) -> FeedStep {
        loop {
            let event = tokio::select! {
                biased;
                _ = &mut self.revoked => return FeedStep::Unauthorized,
                _ = self.recheck.tick() => None,
                event = self.subscription.next(), if is_ready => match event {
                    Some(event) => Some(event),
                    None if self.feed.shutdown.is_cancelled() => return FeedStep::ShuttingDown,
                    None => return FeedStep::Ended,
                },
            };
            match (self.feed.sign_ins.check_credential(&self.identity, Timestamp::now()), event) {
                (Err(error), _) if error.kind == ErrorKind::Unauthorized => return FeedStep::Unauthorized,
                // The credential may have been revoked, so the event is not sent.
                (Err(_), Some(_)) => return FeedStep::Ended,
                (Ok(()), Some(event)) => return FeedStep::Event(event),
                (_, None) => {}
            }
        }
    }
}

/// Describes an event of the feed; never constructed, like the types of its variants.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = FeedEvent)]
pub enum FeedEventBody {
    Change(Box<ChangeEventSchema>),
    Waiting(Box<WaitingEvent>),
    Session(SessionEvent),
    Hello(HelloEvent),
    Reset(ResetEvent),
    Rule(Box<RuleEvent>),
    Config(Box<ConfigEvent>),
    ServerStatus(ServerStatusEvent),
    ToolsWaiting(ToolsWaitingEvent),
    Acceptance(AcceptanceEvent),
    Webhook(WebhookEvent),
}

/// A transition of a change.
#[derive(ToSchema)]
#[schema(as = ChangeEvent)]
pub struct ChangeEventSchema {
    #[schema(pattern = r"^change\.[a-z_]+$", examples("change.created", "change.approved", "change.applied"))]
    pub r#type: String,
    pub seq: u64,
    pub at: Timestamp,
    /// A principal, or `system`.
    pub actor: String,
    #[schema(required)]
    pub comment: Option<String>,
    /// The change without its arguments and diff.
    pub change: ChangeSummary<'static>,
}

/// A change that nobody has decided on for some time: further reviewers may decide now, or it is announced again. The change is
/// not modified. Live only.
#[derive(ToSchema)]
pub struct WaitingEvent {
    #[schema(pattern = r"^change\.(escalated|reminder)$")]
    pub r#type: String,
    pub at: Timestamp,
    /// Always `system`.
    pub actor: String,
    #[schema(required)]
    pub comment: Option<String>,
    /// The change without its arguments and diff.
    pub change: ChangeSummary<'static>,
}

/// A session that opened or closed. Live only.
#[derive(ToSchema)]
pub struct SessionEvent {
    #[schema(pattern = r"^session\.(opened|closed)$")]
    pub r#type: String,
    pub at: Timestamp,
    pub session: SessionInfo,
}

/// The first event of a subscription without `since`.
#[derive(ToSchema)]
pub struct HelloEvent {
    #[schema(pattern = "^hello$")]
    pub r#type: String,
    /// The number of the last change event.
    pub seq: u64,
}

/// Requested events are no longer stored, or the feed ends before the requested number because a backup was restored. The
/// subscriber must read everything up to this number again.
#[derive(ToSchema)]
pub struct ResetEvent {
    #[schema(pattern = "^reset$")]
    pub r#type: String,
    /// The number that the next change event follows.
    pub seq: u64,
}

/// An event of a standing rule. Live only.
#[derive(ToSchema)]
pub struct RuleEvent {
    #[schema(pattern = r"^rule\.(created|revoked|expired|orphaned)$")]
    pub r#type: String,
    pub at: Timestamp,
    pub actor: String,
    /// The comment of a person, or the reason for the event.
    #[schema(required)]
    pub comment: Option<String>,
    /// The rule without its arguments, and without the values of `matching`.
    pub rule: StandingRule,
}

/// An event of the configuration. Live only. `config.waiting` has `at`, `digest` and `loosens`; the others have the members of
/// `last` of `GET /api/reload`, and after a decision the `digest`.
#[derive(ToSchema)]
pub struct ConfigEvent {
    #[schema(pattern = r"^config\.(waiting|applied|refused)$")]
    pub r#type: String,
    pub at: Timestamp,
    pub digest: Option<String>,
    pub loosens: Option<Vec<Loosening>>,
    #[serde(flatten)]
    pub outcome: Option<ReloadOutcome>,
}

/// A server that went up or down, or whose circuit breaker opened or closed. Live only.
#[derive(ToSchema)]
pub struct ServerStatusEvent {
    #[schema(pattern = r"^provider\.(up|down|breaker_opened|breaker_closed)$")]
    pub r#type: String,
    pub at: Timestamp,
    pub provider: String,
    /// The last error, with `provider.down` and `provider.breaker_opened`.
    #[schema(required)]
    pub error: Option<String>,
}

/// New and changed tools of a server that wait for a reviewer. Live only.
#[derive(ToSchema)]
pub struct ToolsWaitingEvent {
    #[schema(pattern = r"^provider\.tools_waiting$")]
    pub r#type: String,
    pub at: Timestamp,
    pub provider: String,
    /// The first of these tools.
    pub tools: Vec<String>,
    /// The number of new tools.
    pub new: u64,
    /// The number of changed tools.
    pub changed: u64,
}

/// Definitions of a server's tools that a reviewer has accepted, or whose acceptance was revoked. Live only.
#[derive(ToSchema)]
pub struct AcceptanceEvent {
    #[schema(pattern = r"^provider\.changed$")]
    pub r#type: String,
    pub at: Timestamp,
    pub provider: String,
    /// The reviewer, if known.
    #[schema(required)]
    pub actor: Option<String>,
    #[schema(rename = "what", examples("accepted", "revoked"))]
    pub action: String,
    /// The first of these tools.
    pub tools: Vec<String>,
    /// The number of these tools.
    pub count: u64,
}

/// A webhook whose deliveries fail, or succeed again. Live only.
#[derive(ToSchema)]
pub struct WebhookEvent {
    #[schema(pattern = r"^webhook\.(failing|recovered)$")]
    pub r#type: String,
    pub at: Timestamp,
    pub webhook: String,
    /// The error, with `webhook.failing`.
    #[schema(required)]
    pub error: Option<String>,
}

/// The stream of one subscriber.
struct SseStream {
    subscriber: FeedSubscriber,
    keep_alive: Interval,
    first: Option<Bytes>,
    is_ended: bool,
    _slot: StreamSlot,
}

impl SseStream {
    /// Returns the next bytes, or `None` at the end. Only called while the socket takes more.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.is_ended {
            return None;
        }
        let next = tokio::select! {
            biased;
            next = self.subscriber.next(true) => next,
            _ = self.keep_alive.tick() => return Some(Bytes::from_static(b":\n\n")),
        };
        match next {
            FeedStep::Event(event) => {
                self.keep_alive.reset();
                Some(event.sse.clone())
            }
            FeedStep::ShuttingDown => {
                self.is_ended = true;
                Some(Bytes::from_static(b": the gateway is shutting down\n\n"))
            }
            FeedStep::Unauthorized | FeedStep::Ended => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn feed_starts_after_last_received_event() {
        let start_after = |query: &str, last: Option<&str>| {
            let request = TestRequest::with_uri(&format!("/api/events{query}"));
            let request = last.into_iter().fold(request, |r, id| r.append_header(("last-event-id", id)));
            read_since(&request.to_http_request()).map_err(|problem| problem.error.kind)
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
            assert_eq!(start_after(query, last), expected, "{query} {last:?}");
        }
    }
}

//! Sends the event streams of both eras: the messages and the answer of a stateless request, and the numbered streams of a
//! handshake-era session.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use actix_web::HttpResponse;
use bytes::Bytes;
use futures_util::{Stream, future::LocalBoxFuture};
use tokio::{sync::watch, time::Interval};
use tokio_util::sync::CancellationToken;

use crate::endpoint::McpEndpoint;
use countersign_domain::principal::Identity;
use countersign_exchange::{
    outbox::ResumeError,
    reply::ResponseQueue,
    slots::StreamSlot,
    state::{Channel, SessionState},
    streams::{EventId, GET_STREAM, ReadOutcome, StreamReader},
};
use countersign_http::framing::sse::{KEEP_ALIVE, interval_from_now, stream_response, write_event};
use countersign_protocol::{ErrorKind, McpError};
use countersign_session::inbound::AnswerFuture;

/// The body of the response to a stateless request: its notifications as they arrive, then its answer. The body is dropped when
/// the client closes the stream, which cancels the request (2026-07-28/basic/patterns/cancellation).
pub struct QueueBody {
    work: Option<AnswerFuture>,
    queue: Arc<ResponseQueue>,
    ticks: Interval,
}

impl QueueBody {
    pub fn new(work: AnswerFuture, queue: Arc<ResponseQueue>, keep_alive: Duration) -> Self {
        Self { work: Some(work), queue, ticks: interval_from_now(keep_alive) }
    }
}

impl Stream for QueueBody {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(work) = &mut this.work else { return Poll::Ready(None) };
        let progress = work.as_mut().poll(cx);
        let mut out = Vec::new();
        if this.queue.poll_ready(cx).is_ready() {
            this.queue.take().iter().for_each(|message| write_event(&mut out, None, message));
        }
        if let Poll::Ready(answer) = progress {
            this.work = None;
            if let Some(answer) = answer {
                write_event(&mut out, None, &answer.bytes);
            }
        }
        if !out.is_empty() {
            return Poll::Ready(Some(Ok(out.into())));
        }
        if this.work.is_none() {
            return Poll::Ready(None);
        }
        this.ticks.poll_tick(cx).map(|_| Some(Ok(KEEP_ALIVE)))
    }
}

/// Reads one numbered stream of a handshake-era session.
struct EventStreamReader {
    endpoint: Arc<McpEndpoint>,
    session: Arc<SessionState>,
    number: u32,
    reader: u64,
    changed: watch::Receiver<()>,
    /// Number of the last event that was sent.
    last_sent: u64,
    /// `true` until the priming event is sent, whose id lets the client resume.
    must_prime: bool,
    ticks: Interval,
    /// The identity of the reader, whose key or token may differ from that of the session.
    identity: Identity,
    /// Completes when the token of the reader is revoked or expires.
    revoked: LocalBoxFuture<'static, McpError>,
    /// See [`EventStreamRequest::slot`].
    slot: Option<(StreamSlot, CancellationToken)>,
}

/// A request for the events of a session's stream.
pub struct EventStreamRequest<'a> {
    pub endpoint: &'a Arc<McpEndpoint>,
    pub session: &'a Arc<SessionState>,
    pub identity: &'a Identity,
    /// The number of the stream.
    pub stream: u32,
    /// The last event that the client has received; `None` requests only new events.
    pub after: Option<u64>,
    /// The slot of a GET stream, with the token that ends the stream if it is evicted.
    pub slot: Option<(StreamSlot, CancellationToken)>,
}

impl EventStreamRequest<'_> {
    /// Returns a response that streams the events. Events that were dropped at the limits are left out: replaying is
    /// optional, and no revision defines an answer for a gap (2025-11-25/basic/transports, "Resumability and Redelivery").
    ///
    /// # Errors
    /// `TooLate` if the stream is no longer held or has ended with event `after`, and `Ahead` for an event that the stream
    /// has not reached yet.
    pub fn respond(self) -> Result<HttpResponse, ResumeError> {
        let Self { endpoint, session, identity, stream: number, after, slot } = self;
        let Channel::Streams(streams) = &session.channel else { return Err(ResumeError::TooLate) };
        if after.is_some_and(|after| streams.newest_event(number).is_some_and(|newest| after > newest)) {
            return Err(ResumeError::Ahead);
        }
        // Clients resume a stream that ended without an answer again and again, as long as they get a stream.
        if after.is_some_and(|after| streams.has_ended_with(number, after)) {
            return Err(ResumeError::TooLate);
        }
        let StreamReader { number: reader, changed, newest_event } =
            streams.attach(number).ok_or(ResumeError::TooLate)?;
        let state = EventStreamReader {
            endpoint: Arc::clone(endpoint),
            session: Arc::clone(session),
            number,
            reader,
            changed,
            last_sent: after.unwrap_or(newest_event),
            must_prime: session.legacy_revision().is_some_and(|r| r.rules().sse_priming),
            ticks: interval_from_now(endpoint.transports.http.sse_keep_alive),
            identity: identity.clone(),
            revoked: endpoint.sessions.authenticator.wait_until_token_invalid(identity),
            slot,
        };
        Ok(stream_response(state, EventStreamReader::next))
    }
}

impl Drop for EventStreamReader {
    fn drop(&mut self) {
        // The stream counts its receivers, so this one goes first.
        self.changed = watch::channel(()).1;
        if let Channel::Streams(streams) = &self.session.channel {
            streams.detach(self.number);
        }
    }
}

impl EventStreamReader {
    async fn next(&mut self) -> Option<Bytes> {
        if std::mem::take(&mut self.must_prime) {
            let id = EventId { stream: self.number, event: self.last_sent };
            return Some(format!("id: {id}\nretry: 1000\ndata: \n\n").into());
        }
        let session = Arc::clone(&self.session);
        let Channel::Streams(streams) = &session.channel else { return None };
        let authenticator = Arc::clone(&self.endpoint.sessions.authenticator);
        loop {
            if authenticator.check(&self.identity).is_err_and(|error| error.kind == ErrorKind::Unauthorized) {
                return None;
            }
            match streams.read(self.number, self.reader, self.last_sent) {
                ReadOutcome::Events(events) => {
                    let mut out = Vec::new();
                    for (number, message) in events {
                        let id = EventId { stream: self.number, event: number };
                        write_event(&mut out, Some(id), &message);
                        self.last_sent = number;
                    }
                    session.touch_reader();
                    return Some(out.into());
                }
                ReadOutcome::End | ReadOutcome::Superseded => return None,
                ReadOutcome::Wait => {}
            }
            let evicted = async {
                match &self.slot {
                    Some((_, evicted)) => evicted.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.changed.changed() => changed.ok()?,
                () = session.ended.cancelled() => return None,
                () = evicted => return None,
                _ = &mut self.revoked => return None,
                () = self.endpoint.shutdown.cancelled(), if self.number == GET_STREAM => return None,
                _ = self.ticks.tick() => {
                    // A stream with a reader keeps its session from timing out.
                    session.touch_reader();
                    return Some(KEEP_ALIVE);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::Pin};

    use actix_web::body::{BoxBody, MessageBody};
    use futures_util::{FutureExt as _, StreamExt as _};
    use tokio::sync::oneshot;

    use super::*;
    use crate::testing::TestEndpoint;
    use countersign_exchange::{context::WireResponse, reply::RelatedChannel, streams::Streams};
    use countersign_telemetry::metrics::Transport;

    async fn next(body: &mut BoxBody) -> Option<String> {
        let piece = poll_fn(|cx| Pin::new(&mut *body).poll_next(cx)).await?;
        Some(String::from_utf8(piece.unwrap().to_vec()).unwrap())
    }

    /// Returns the next piece if it is available at once.
    fn ready(body: &mut BoxBody) -> Option<Option<String>> {
        next(body).now_or_never()
    }

    struct OpenedStream {
        endpoint: TestEndpoint,
        key: String,
        session: Arc<SessionState>,
    }

    impl OpenedStream {
        async fn open() -> Self {
            let endpoint = TestEndpoint::open("").await;
            let key = endpoint.key("ci");
            let channel = Channel::Streams(Streams::new(10, 10_000));
            let ended = &endpoint.endpoint.sessions.lifetimes.ended;
            let session = Arc::new(SessionState::new(Transport::Http, endpoint.identity(&key), channel, ended));
            Self { endpoint, key, session }
        }

        fn streams(&self) -> &Streams {
            let Channel::Streams(streams) = &self.session.channel else { panic!("no streams") };
            streams
        }

        fn read(
            &self,
            (stream, after): (u32, Option<u64>),
            end: Option<CancellationToken>,
        ) -> Result<BoxBody, ResumeError> {
            let slot = |end| (self.endpoint.endpoint.server.long_requests.slots.take("ci").unwrap(), end);
            let identity = self.endpoint.identity(&self.key);
            let request = EventStreamRequest {
                endpoint: &self.endpoint.endpoint,
                session: &self.session,
                identity: &identity,
                stream,
                after,
                slot: end.map(slot),
            };
            Ok(request.respond()?.into_body())
        }
    }

    #[actix::test]
    async fn stream_resumes_after_event_and_ends_after_answer() {
        let opened = OpenedStream::open().await;
        let streams = opened.streams();
        let number = streams.open();
        for message in ["one", "two"] {
            streams.push(number, Bytes::from_static(message.as_bytes())).unwrap();
        }
        let event = |event: u64, text: &str| format!("id: {number}-{event}\nevent: message\ndata: {text}\n\n");
        let mut body = opened.read((number, Some(1)), None).unwrap();
        assert_eq!(next(&mut body).await, Some(event(2, "two")));
        assert_eq!(ready(&mut body), None, "it waits for more");
        streams.push_last(number, Some(Bytes::from_static(b"answer")));
        assert_eq!(next(&mut body).await, Some(event(3, "answer")));
        assert_eq!(next(&mut body).await, None);

        let faults = [
            ((number, Some(4)), ResumeError::Ahead),
            ((number, Some(3)), ResumeError::TooLate),
            ((number + 1, Some(0)), ResumeError::TooLate),
        ];
        for (from, fault) in faults {
            assert_eq!(opened.read(from, None).err(), Some(fault), "{from:?}");
        }
    }

    #[actix::test]
    async fn get_stream_ends_with_everything_it_depends_on() {
        for cause in ["session", "eviction", "gateway", "reader", "key"] {
            let opened = OpenedStream::open().await;
            let eviction = CancellationToken::new();
            let mut body = opened.read((GET_STREAM, None), Some(eviction.clone())).unwrap();
            assert_eq!(ready(&mut body), None, "{cause}: it waits");
            match cause {
                "session" => opened.session.end(),
                "eviction" => eviction.cancel(),
                "gateway" => opened.endpoint.endpoint.shutdown.cancel(),
                "reader" => drop(opened.read((GET_STREAM, None), None).unwrap()),
                _ => {
                    opened.endpoint.revoke(&opened.key);
                    opened.streams().push(GET_STREAM, Bytes::from_static(b"secret")).unwrap();
                }
            }
            assert_eq!(next(&mut body).await, None, "{cause}");
        }
    }

    #[actix::test]
    async fn stream_of_request_outlives_shutdown() {
        let opened = OpenedStream::open().await;
        let number = opened.streams().open();
        let mut body = opened.read((number, Some(0)), None).unwrap();
        opened.endpoint.endpoint.shutdown.cancel();
        assert_eq!(ready(&mut body), None);
        opened.streams().push_last(number, Some(Bytes::from_static(b"answer")));
        assert!(next(&mut body).await.unwrap().ends_with("data: answer\n\n"));
    }

    #[actix::test]
    async fn notifications_precede_answer_and_none_follow() {
        let (answer, answered) = oneshot::channel::<Option<WireResponse>>();
        let queue = Arc::new(ResponseQueue::new(10, 1000));
        let related = RelatedChannel::Queue(Arc::clone(&queue));
        let work = Box::pin(async move { answered.await.unwrap() });
        let pause = Duration::from_secs(3600);
        let mut body = QueueBody::new(work, queue, pause).map(|piece| piece.unwrap());
        assert!(body.next().now_or_never().is_none());
        assert!(related.send(Bytes::from_static(b"1")) && related.send(Bytes::from_static(b"2")));
        let event = |text: &str| format!("event: message\ndata: {text}\n\n");
        assert_eq!(body.next().await.unwrap(), event("1") + &event("2"));
        assert!(related.send(Bytes::from_static(b"3")));
        answer.send(Some(WireResponse::result(Bytes::from_static(b"{}")))).ok().unwrap();
        assert_eq!(body.next().await.unwrap(), event("3") + &event("{}"));
        assert_eq!(body.next().await, None);
    }

    #[actix::test]
    async fn idle_stream_is_kept_open_and_cancelled_one_ends() {
        let (cancel, cancelled) = oneshot::channel::<()>();
        let work = Box::pin(cancelled.map(|_| None));
        let mut body = QueueBody::new(work, Arc::new(ResponseQueue::new(1, 1)), Duration::from_millis(10));
        for _ in 0..2 {
            assert_eq!(body.next().await, Some(Ok(KEEP_ALIVE)));
        }
        drop(cancel);
        assert_eq!(body.next().await, None);
    }
}

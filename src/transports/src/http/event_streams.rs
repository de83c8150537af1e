//! The event streams of both eras: what belongs to a stateless request with its answer, and the numbered streams of a
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
use futures_util::Stream;
use tokio::{sync::watch, time::Interval};
use tokio_util::sync::CancellationToken;

use super::modern::Work;
use crate::endpoint::McpEndpoint;
use countersign_domain::principal::Identity;
use countersign_exchange::{
    outbox::ResumeFault,
    related::ResponseQueue,
    shared::{Channel, SessionShared},
    slots::StreamSlot,
    streams::{EventId, GET_STREAM, Read},
};
use countersign_http::framing::sse::{KEEP_ALIVE, event, streaming, ticks};
use countersign_protocol::ErrorKind;

/// The response of a modern request: its notifications as they come, then its answer, then the end. Dropping it
/// (the client closed the stream) cancels the request (2026-07-28/basic/patterns/cancellation).
pub struct QueueBody {
    work: Option<Work>,
    queue: Arc<ResponseQueue>,
    ticks: Interval,
}

impl QueueBody {
    #[must_use]
    pub fn new(work: Work, queue: Arc<ResponseQueue>, keep_alive: Duration) -> Self {
        Self { work: Some(work), queue, ticks: ticks(keep_alive) }
    }
}

impl Stream for QueueBody {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(work) = &mut this.work else { return Poll::Ready(None) };
        let done = work.as_mut().poll(cx);
        let mut out = Vec::new();
        if let Poll::Ready(messages) = this.queue.poll_take(cx) {
            messages.iter().for_each(|message| event(&mut out, None, message));
        }
        if let Poll::Ready(answer) = done {
            this.work = None;
            if let Some(answer) = answer {
                event(&mut out, None, &answer.bytes);
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

/// A reader of one numbered stream of a handshake-era session.
struct LogReader {
    endpoint: Arc<McpEndpoint>,
    session: Arc<SessionShared>,
    number: u32,
    reader: u64,
    changed: watch::Receiver<()>,
    after: u64,
    prime: bool,
    ticks: Interval,
    /// Who reads; their key may be another than the one the session was opened with.
    identity: Identity,
    /// The GET stream's place among the principal's long-lived requests, and what ends it when that is taken.
    place: Option<(StreamSlot, CancellationToken)>,
}

/// A stream from after an event on; with `None`, from now on.
///
/// # Errors
/// `TooLate` if it is not held any more, `Ahead` for an event that it has not come to yet.
pub fn log(
    endpoint: &Arc<McpEndpoint>,
    session: &Arc<SessionShared>,
    identity: &Identity,
    (number, after): (u32, Option<u64>),
    place: Option<(StreamSlot, CancellationToken)>,
) -> Result<HttpResponse, ResumeFault> {
    let Channel::Streams(streams) = &session.channel else { return Err(ResumeFault::TooLate) };
    if after.is_some_and(|after| streams.newest(number).is_some_and(|newest| after > newest)) {
        return Err(ResumeFault::Ahead);
    }
    let (reader, changed, newest) = streams.attach(number).ok_or(ResumeFault::TooLate)?;
    let primes = session.legacy_revision().is_some_and(|r| r.rules().sse_priming);
    let state = LogReader {
        endpoint: Arc::clone(endpoint),
        session: Arc::clone(session),
        number,
        reader,
        changed,
        after: after.unwrap_or(newest),
        prime: primes,
        ticks: ticks(endpoint.transports.http.sse_keep_alive),
        identity: identity.clone(),
        place,
    };
    Ok(streaming(state, LogReader::next))
}

impl LogReader {
    async fn next(&mut self) -> Option<Bytes> {
        if std::mem::take(&mut self.prime) {
            let id = EventId { stream: self.number, event: self.after };
            return Some(format!("id: {id}\nretry: 1000\ndata: \n\n").into());
        }
        let session = Arc::clone(&self.session);
        let Channel::Streams(streams) = &session.channel else { return None };
        let authenticator = Arc::clone(&self.endpoint.server.long_requests.authenticator);
        loop {
            if authenticator.check(&self.identity).is_err_and(|error| error.kind == ErrorKind::Unauthorized) {
                return None;
            }
            match streams.read(self.number, self.reader, self.after) {
                Read::Events(events) => {
                    let mut out = Vec::new();
                    for (number, message) in events {
                        let id = EventId { stream: self.number, event: number };
                        event(&mut out, Some(id), &message);
                        self.after = number;
                    }
                    session.touch_reader();
                    return Some(out.into());
                }
                Read::End | Read::Superseded => return None,
                Read::Wait => {}
            }
            let standing = self.number == GET_STREAM;
            let taken = async {
                match &self.place {
                    Some((_, taken)) => taken.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.changed.changed() => changed.ok()?,
                () = session.ended.cancelled() => return None,
                () = taken => return None,
                () = self.endpoint.shutdown.cancelled(), if standing => return None,
                _ = self.ticks.tick() => {
                    // A stream that somebody listens to keeps its session from idling out.
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
    use crate::testing::Served;
    use countersign_exchange::{context::WireResponse, streams::Streams};
    use countersign_telemetry::metrics::Transport;

    async fn next(body: &mut BoxBody) -> Option<String> {
        let piece = poll_fn(|cx| Pin::new(&mut *body).poll_next(cx)).await?;
        Some(String::from_utf8(piece.unwrap().to_vec()).unwrap())
    }

    /// What can be had without waiting; nothing where the stream waits for more.
    fn ready(body: &mut BoxBody) -> Option<Option<String>> {
        next(body).now_or_never()
    }

    struct Opened {
        served: Served,
        key: String,
        session: Arc<SessionShared>,
    }

    impl Opened {
        async fn open() -> Self {
            let served = Served::open("").await;
            let key = served.key("ci");
            let channel = Channel::Streams(Streams::new(10, 10_000));
            let ended = &served.endpoint.sessions.lifetimes.ended;
            let session = Arc::new(SessionShared::new(Transport::Http, served.identity(&key), channel, ended));
            Self { served, key, session }
        }

        fn streams(&self) -> &Streams {
            let Channel::Streams(streams) = &self.session.channel else { panic!("no streams") };
            streams
        }

        fn read(&self, from: (u32, Option<u64>), end: Option<CancellationToken>) -> Result<BoxBody, ResumeFault> {
            let slot = |end| (self.served.endpoint.server.long_requests.slots.take("ci").unwrap(), end);
            let identity = self.served.identity(&self.key);
            let response = log(&self.served.endpoint, &self.session, &identity, from, end.map(slot))?;
            Ok(response.into_body())
        }
    }

    #[actix::test]
    async fn a_stream_goes_on_after_the_event_that_was_seen_and_ends_after_its_answer() {
        let opened = Opened::open().await;
        let streams = opened.streams();
        let number = streams.open();
        for message in ["one", "two"] {
            streams.push(number, Bytes::from_static(message.as_bytes()));
        }
        let event = |event: u64, text: &str| format!("id: {number}-{event}\nevent: message\ndata: {text}\n\n");
        let mut body = opened.read((number, Some(1)), None).unwrap();
        assert_eq!(next(&mut body).await, Some(event(2, "two")));
        assert_eq!(ready(&mut body), None, "it waits for more");
        streams.push_last(number, Some(Bytes::from_static(b"answer")));
        assert_eq!(next(&mut body).await, Some(event(3, "answer")));
        assert_eq!(next(&mut body).await, None);

        let faults = [((number, Some(4)), ResumeFault::Ahead), ((number + 1, Some(0)), ResumeFault::TooLate)];
        for (from, fault) in faults {
            assert_eq!(opened.read(from, None).err(), Some(fault), "{from:?}");
        }
    }

    #[actix::test]
    async fn a_standing_stream_ends_with_whatever_it_hangs_on() {
        for cause in ["session", "place", "gateway", "reader", "key"] {
            let opened = Opened::open().await;
            let place = CancellationToken::new();
            let mut body = opened.read((GET_STREAM, None), Some(place.clone())).unwrap();
            assert_eq!(ready(&mut body), None, "{cause}: it waits");
            match cause {
                "session" => opened.session.end(),
                "place" => place.cancel(),
                "gateway" => opened.served.endpoint.shutdown.cancel(),
                "reader" => drop(opened.read((GET_STREAM, None), None).unwrap()),
                _ => {
                    opened.served.revoke(&opened.key);
                    opened.streams().push(GET_STREAM, Bytes::from_static(b"secret"));
                }
            }
            assert_eq!(next(&mut body).await, None, "{cause}");
        }
    }

    #[actix::test]
    async fn a_requests_stream_outlives_the_beginning_of_the_end() {
        let opened = Opened::open().await;
        let number = opened.streams().open();
        let mut body = opened.read((number, Some(0)), None).unwrap();
        opened.served.endpoint.shutdown.cancel();
        assert_eq!(ready(&mut body), None);
        opened.streams().push_last(number, Some(Bytes::from_static(b"answer")));
        assert!(next(&mut body).await.unwrap().ends_with("data: answer\n\n"));
    }

    #[actix::test]
    async fn what_a_request_says_comes_before_its_answer_and_nothing_after_it() {
        let (answer, answered) = oneshot::channel::<Option<WireResponse>>();
        let queue = Arc::new(ResponseQueue::new(10, 1000));
        let work = Box::pin(async move { answered.await.unwrap() });
        let pause = Duration::from_secs(3600);
        let mut body = QueueBody::new(work, Arc::clone(&queue), pause).map(|piece| piece.unwrap());
        assert!(body.next().now_or_never().is_none());
        queue.put_back(vec![Bytes::from_static(b"1"), Bytes::from_static(b"2")]);
        let event = |text: &str| format!("event: message\ndata: {text}\n\n");
        assert_eq!(body.next().await.unwrap(), event("1") + &event("2"));
        queue.put_back(vec![Bytes::from_static(b"3")]);
        answer.send(Some(WireResponse::result(Bytes::from_static(b"{}")))).ok().unwrap();
        assert_eq!(body.next().await.unwrap(), event("3") + &event("{}"));
        assert_eq!(body.next().await, None);
    }

    #[actix::test]
    async fn an_idle_stream_is_kept_open_and_one_that_was_taken_back_ends_without_a_word() {
        let (taken_back, over) = oneshot::channel::<()>();
        let work = Box::pin(over.map(|_| None));
        let mut body = QueueBody::new(work, Arc::new(ResponseQueue::new(1, 1)), Duration::from_millis(10));
        for _ in 0..2 {
            assert_eq!(body.next().await, Some(Ok(KEEP_ALIVE)));
        }
        drop(taken_back);
        assert_eq!(body.next().await, None);
    }
}

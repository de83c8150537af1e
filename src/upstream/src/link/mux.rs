//! One ordered stream of messages for many requests: who gets what. Stdio, WebSocket and the 2024-11-05 pair use it.
//!
//! Responses go by id, `notifications/progress` by its token (which is the request's id), messages of a subscription
//! by `_meta["io.modelcontextprotocol/subscriptionId"]`, what is about the server as a whole (list changes, updated
//! resources) to the link's own listener, and all else to the one request in flight, if it is exactly one.
//!
//! The transport writes what [`Mux::queue`] gives it, calls [`Mux::receive`] for every message in the order of arrival, and
//! [`Mux::end`] once. Nothing here reads, writes or waits, so nothing that a server sends can stop it; everything that a
//! server can make grow is bounded.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    Link, LinkError, LinkKind, Listener, Negotiated, Outgoing, Response, UpstreamNotification,
    queue::{Queue, Refused},
    received::{beginning, response_of},
    server_requests::{self, Asked},
    wire::{Line, Whose, cancelled, cancelled_id, integer, notification, only_one, own_id},
};
use countersign_protocol::{
    Era, RequestId,
    envelope::{self, Incoming, Limits, Message},
};

/// Members of a batch: 2025-03-26 and older servers may answer in arrays.
const MAX_BATCH: usize = 1000;
/// The one request that stays open by its nature, and whose messages say that they are its own
/// (2026-07-28/basic/patterns/subscriptions).
const LISTEN: &str = "subscriptions/listen";

/// See the module's page.
pub(super) struct Mux {
    pub(super) queue: Queue,
    unsolicited: Arc<dyn Listener>,
    state: Mutex<State>,
    asked: Asked,
    /// Puts answers to the server's requests into the queue.
    send: server_requests::Queue,
    /// The server speaks the stateless era.
    modern: AtomicBool,
    ended: CancellationToken,
}

#[derive(Default)]
struct State {
    flights: HashMap<u64, Flight>,
    end: Option<LinkError>,
}

/// A request that waits for its answer.
struct Flight {
    listener: Arc<dyn Listener>,
    answer: oneshot::Sender<Result<Response, LinkError>>,
    listen: bool,
}

impl State {
    /// What belongs to nobody else belongs to the one request in flight.
    fn only(&self) -> Option<(u64, Arc<dyn Listener>)> {
        only_one(&self.flights, |flight| flight.listen).map(|(id, flight)| (id, flight.listener.clone()))
    }
}

impl Mux {
    pub(super) fn new(unsolicited: Arc<dyn Listener>) -> Arc<Self> {
        Arc::new_cyclic(|mux: &Weak<Self>| {
            let mux = mux.clone();
            let send = move |line| {
                if mux.upgrade().is_some_and(|mux| mux.queue.push(None, line) == Err(Refused::Full)) {
                    tracing::warn!(target: "countersign_upstream", "an answer is dropped: the server reads nothing");
                }
            };
            Self {
                queue: Queue::default(),
                unsolicited,
                state: Mutex::default(),
                asked: Asked::default(),
                send: Arc::new(send),
                modern: AtomicBool::new(false),
                ended: CancellationToken::new(),
            }
        })
    }

    pub(super) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    pub(super) fn opened(&self, negotiated: &Negotiated) {
        self.modern.store(negotiated.revision.era() == Era::Modern, Ordering::Relaxed);
    }

    /// Sends a request and waits for its answer. Dropped, it is cancelled at the server, or never sent.
    pub(super) async fn request(
        &self,
        outgoing: &Outgoing,
        listener: Arc<dyn Listener>,
    ) -> Result<Response, LinkError> {
        let (answer, answered) = oneshot::channel();
        let line = Line::of(outgoing.body.clone());
        {
            let mut state = self.state.lock();
            if let Some(end) = &state.end {
                return Err(unsent(end));
            }
            self.queue.push_permitted(outgoing.id, line, outgoing.permit.clone()).map_err(refused)?;
            let listen = &*outgoing.method == LISTEN;
            state.flights.insert(outgoing.id, Flight { listener, answer, listen });
        }
        // `handshake_revision` must not be cancelled (2025-11-25/basic/utilities/cancellation).
        let _cancel = Cancel { mux: self, id: outgoing.id, tell: &*outgoing.method != "initialize" };
        answered.await.unwrap_or_else(|_| Err(LinkError::Lost("another request took its id".to_owned())))
    }

    pub(super) fn notify(&self, method: &str, params: Option<&str>) -> Result<(), LinkError> {
        if let Some(end) = &self.state.lock().end {
            return Err(unsent(end));
        }
        self.queue.push(None, notification(method, params)).map_err(refused)
    }

    /// Tells those whose requests might not be written any more when it was their turn.
    pub(super) fn withhold(&self) {
        for id in self.queue.withheld() {
            self.answer(id, Err(LinkError::Withheld));
        }
    }

    fn cancel(&self, id: u64, tell: bool) {
        if self.state.lock().flights.remove(&id).is_none() {
            return;
        }
        self.asked.release(id);
        if !self.queue.withdraw(id) && tell {
            // As many as there are requests that were sent: those are bounded.
            let _ = self.queue.push_anyway(cancelled(id));
        }
    }

    /// Nothing can be sent any more: whoever waits learns why. The first reason counts.
    pub(super) fn end(&self, why: LinkError) {
        let (flights, unsent_ids) = {
            let mut state = self.state.lock();
            if state.end.is_some() {
                return;
            }
            state.end = Some(why.clone());
            (std::mem::take(&mut state.flights), self.queue.abandon())
        };
        for (id, flight) in flights {
            let error = if unsent_ids.contains(&id) { unsent(&why) } else { why.clone() };
            let _ = flight.answer.send(Err(error));
        }
        self.asked.end();
        self.ended.cancel();
    }

    /// Takes what the server wrote on one line.
    ///
    /// # Errors
    /// Why it is no message. Other requests are not harmed; one that it answers has failed.
    pub(super) fn receive(&self, line: &[u8]) -> Result<(), Cow<'static, str>> {
        // Some write it at the start of their output (RFC 8259, section 8.1, lets readers ignore it).
        let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        match envelope::parse(line, &Limits { max_batch: MAX_BATCH, ..Limits::default() }) {
            Ok(Incoming::Single(message)) => self.take(message),
            Ok(Incoming::Batch(messages)) => {
                let mut fault = None;
                for (at, message) in messages.into_iter().enumerate() {
                    let done = message.map_or_else(
                        |broken| {
                            let members: Vec<&RawValue> = serde_json::from_slice(line).unwrap_or_default();
                            let member = members.get(at).map_or("", |member| member.get());
                            Err(self.broken(member.as_bytes(), &broken.error.message))
                        },
                        |message| self.take(message),
                    );
                    fault = done.err().or(fault);
                }
                fault.map_or(Ok(()), Err)
            }
            Err(broken) => Err(self.broken(line, &broken.error.message)),
        }
    }

    /// Takes one message, and logs what is none.
    pub(super) fn receive_or_log(&self, text: &[u8]) {
        if let Err(why) = self.receive(text) {
            tracing::warn!(target: "countersign_upstream", text = %beginning(text, 200), "not a message: {why}");
        }
    }

    /// A message that is none may still say whose answer it was meant to be.
    fn broken(&self, message: &[u8], why: &str) -> Cow<'static, str> {
        #[derive(Deserialize)]
        struct Loose<'a> {
            #[serde(borrow)]
            id: Option<&'a RawValue>,
            #[serde(borrow)]
            method: Option<&'a RawValue>,
        }
        if let Ok(Loose { id: Some(id), method: None }) = serde_json::from_slice(message)
            && let Some(id) = integer(id)
        {
            self.answer(id, Err(LinkError::Protocol(why.to_owned())));
        }
        Cow::Owned(why.to_owned())
    }

    fn take(&self, message: Message<'_>) -> Result<(), Cow<'static, str>> {
        match message {
            Message::Response(response) => {
                let outcome = response_of(response.outcome);
                let id = match &response.id {
                    Some(id) => own_id(id),
                    // It could not read what it answers: with one request in flight it is clear which that was.
                    None => self.state.lock().only().map(|(id, _)| id),
                };
                let known = id.is_some_and(|id| self.answer(id, Ok(outcome)));
                if known { Ok(()) } else { Err("an answer to no request that is open".into()) }
            }
            Message::Notification(notification) => {
                self.notified(&notification.method, notification.params);
                Ok(())
            }
            Message::Request(request) => self.was_asked(request.id, request.method, request.params),
        }
    }

    /// Ends the request with that id; `false` where nobody waits for it (any more).
    pub(super) fn answer(&self, id: u64, outcome: Result<Response, LinkError>) -> bool {
        let flight = self.state.lock().flights.remove(&id);
        self.asked.release(id);
        flight.is_some_and(|flight| {
            let _ = flight.answer.send(outcome);
            true
        })
    }

    fn notified(&self, method: &str, params: Option<&RawValue>) {
        let listener = match Whose::of(method, params) {
            Whose::Cancelled => return self.was_cancelled(params),
            // Without its call it may still belong to a task, whose token outlives it: its owner knows.
            Whose::Progress(id) => id.and_then(|id| self.listener(id)),
            // For a subscription that has ended it is too late.
            Whose::Subscription(id) => match id.and_then(|id| self.listener(id)) {
                None => return,
                listener => listener,
            },
            Whose::Server => None,
            Whose::OnlyOne => self.state.lock().only().map(|(_, listener)| listener),
        };
        let notification = UpstreamNotification { method: method.to_owned(), params: params.map(RawValue::to_owned) };
        listener.as_ref().unwrap_or(&self.unsolicited).notification(notification);
    }

    fn listener(&self, id: u64) -> Option<Arc<dyn Listener>> {
        self.state.lock().flights.get(&id).map(|flight| flight.listener.clone())
    }

    /// The server takes back a question of its own, or ends a subscription
    /// (2026-07-28/basic/patterns/cancellation#behavior-requirements). Anything else is ignored.
    fn was_cancelled(&self, params: Option<&RawValue>) {
        if self.asked.cancel(params) {
            return;
        }
        let mut state = self.state.lock();
        if let Some(number) = cancelled_id(params).as_ref().and_then(own_id)
            && state.flights.get(&number).is_some_and(|flight| flight.listen)
            && let Some(flight) = state.flights.remove(&number)
        {
            let _ = flight.answer.send(Err(LinkError::Lost("the server ended the subscription".to_owned())));
        }
    }

    fn was_asked(
        &self,
        id: RequestId,
        method: Cow<'_, str>,
        params: Option<&RawValue>,
    ) -> Result<(), Cow<'static, str>> {
        if self.modern.load(Ordering::Relaxed) {
            // There, neither requests nor responses to them exist (2026-07-28/basic/transports/stdio).
            return Err("a request, which servers of this revision must not send".into());
        }
        let (call, listener) = self.state.lock().only().unzip();
        let params = params.map(RawValue::to_owned);
        if let Some(request) = self.asked.take(id, method.into_owned(), params, call, &self.send) {
            listener.as_ref().unwrap_or(&self.unsolicited).request(request);
        }
        Ok(())
    }
}

/// A link whose tasks do the rest. Dropped, it is closed.
pub(super) struct SharedLink {
    pub mux: Arc<Mux>,
    /// Has the tasks end the connection.
    pub stop: CancellationToken,
}

impl SharedLink {
    pub fn new(unsolicited: Arc<dyn Listener>) -> Self {
        Self { mux: Mux::new(unsolicited), stop: CancellationToken::new() }
    }
}

impl Drop for SharedLink {
    fn drop(&mut self) {
        self.close();
    }
}

impl Link for SharedLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Shared
    }

    fn request<'a>(
        &'a self,
        outgoing: &'a Outgoing,
        listener: Arc<dyn Listener>,
    ) -> LocalBoxFuture<'a, Result<Response, LinkError>> {
        Box::pin(self.mux.request(outgoing, listener))
    }

    fn notify<'a>(&'a self, method: &'a str, params: Option<&'a str>) -> LocalBoxFuture<'a, Result<(), LinkError>> {
        Box::pin(async move { self.mux.notify(method, params) })
    }

    fn opened(&self, negotiated: &Negotiated) {
        self.mux.opened(negotiated);
    }

    fn closed(&self) -> CancellationToken {
        self.mux.ended()
    }

    fn close(&self) {
        self.stop.cancel();
    }

    fn give_up(&self, why: LinkError) {
        self.mux.end(why);
        self.close();
    }
}

/// Returns what a request fails with that was not sent before the end of the link.
fn unsent(end: &LinkError) -> LinkError {
    LinkError::Unreachable(match end {
        LinkError::Unreachable(why) | LinkError::Lost(why) => why.clone(),
        other => other.to_string(),
    })
}

/// Returns what a request fails with that the queue did not take.
fn refused(refused: Refused) -> LinkError {
    LinkError::Unreachable(match refused {
        Refused::Full => "it reads nothing of what is sent to it".to_owned(),
        Refused::Closed => "the gateway is ending it".to_owned(),
    })
}

/// Cancels a request whose future is dropped; does nothing once it is answered.
struct Cancel<'a> {
    mux: &'a Mux,
    id: u64,
    tell: bool,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        self.mux.cancel(self.id, self.tell);
    }
}

#[cfg(test)]
mod tests;

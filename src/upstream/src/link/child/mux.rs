//! One ordered stream of messages for many requests: who gets what.
//!
//! The rules are those of [`crate::link::LinkKind::Shared`]. Nothing here reads, writes or waits, so nothing that a
//! server sends can stop it; everything that a server can make grow is bounded.

mod errors;

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use self::errors::{error_of, refused, unsent};
use super::queue::{Queue, Refused};
use crate::link::{
    LinkError, Listener, Negotiated, Outgoing, Response, UpstreamNotification,
    wire::{Line, Whose, cancelled, cancelled_id, integer, notification, only_one, own_id, response},
};
use countersign_protocol::{
    Era, RequestId,
    envelope::{self, Incoming, Limits, Message},
    rpc_error::RpcError,
};
use countersign_provider::request::{Replier, UpstreamRequest};

/// Requests of the server's that may be open at a time.
const MAX_ASKED: usize = 64;
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
    /// The server speaks the stateless era.
    modern: AtomicBool,
    ended: CancellationToken,
}

#[derive(Default)]
struct State {
    flights: HashMap<u64, Flight>,
    asked: HashMap<RequestId, Asked>,
    /// Distinguishes two requests of the server's with one id, one after the other.
    last_asked: u64,
    end: Option<LinkError>,
}

/// A request that waits for its answer.
struct Flight {
    listener: Arc<dyn Listener>,
    answer: oneshot::Sender<Result<Response, LinkError>>,
    listen: bool,
}

/// A request of the server's that waits for ours.
struct Asked {
    number: u64,
    /// The request in whose course it was asked.
    of: Option<u64>,
    cancelled: CancellationToken,
}

impl State {
    /// What belongs to nobody else belongs to the one request in flight.
    fn only(&self) -> Option<(u64, Arc<dyn Listener>)> {
        only_one(&self.flights, |flight| flight.listen).map(|(id, flight)| (id, flight.listener.clone()))
    }

    /// Whoever was asked on behalf of that request need not answer any more.
    fn release(&self, id: u64) {
        self.asked.values().filter(|asked| asked.of == Some(id)).for_each(|asked| asked.cancelled.cancel());
    }
}

impl Mux {
    pub(super) fn new(unsolicited: Arc<dyn Listener>) -> Arc<Self> {
        Arc::new(Self {
            queue: Queue::default(),
            unsolicited,
            state: Mutex::default(),
            modern: AtomicBool::new(false),
            ended: CancellationToken::new(),
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
        self: &Arc<Self>,
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
        // `initialize` must not be cancelled (2025-11-25/basic/utilities/cancellation).
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
            let flight = self.state.lock().flights.remove(&id);
            if let Some(flight) = flight {
                let _ = flight.answer.send(Err(LinkError::Withheld));
            }
        }
    }

    fn cancel(&self, id: u64, tell: bool) {
        {
            let mut state = self.state.lock();
            if state.flights.remove(&id).is_none() {
                return;
            }
            state.release(id);
        }
        if !self.queue.withdraw(id) && tell {
            // As many as there are requests that were sent: those are bounded.
            let _ = self.queue.push_anyway(cancelled(id));
        }
    }

    /// Nothing can be sent any more: whoever waits learns why. The first reason counts.
    pub(super) fn end(&self, why: LinkError) {
        let (flights, asked, unsent_ids) = {
            let mut state = self.state.lock();
            if state.end.is_some() {
                return;
            }
            state.end = Some(why.clone());
            let state = &mut *state;
            (std::mem::take(&mut state.flights), std::mem::take(&mut state.asked), self.queue.abandon())
        };
        for (id, flight) in flights {
            let error = if unsent_ids.contains(&id) { unsent(&why) } else { why.clone() };
            let _ = flight.answer.send(Err(error));
        }
        asked.into_values().for_each(|asked| asked.cancelled.cancel());
        self.ended.cancel();
    }

    /// Takes what the server wrote on one line.
    ///
    /// # Errors
    /// Why it is no message. Other requests are not harmed; one that it answers has failed.
    pub(super) fn receive(self: &Arc<Self>, line: &[u8]) -> Result<(), Cow<'static, str>> {
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

    fn take(self: &Arc<Self>, message: Message<'_>) -> Result<(), Cow<'static, str>> {
        match message {
            Message::Response(response) => {
                let outcome = match response.outcome {
                    Ok(result) => Ok(Response::Result(result.to_owned())),
                    Err(error) => error_of(error).map(Response::Error),
                };
                let id = match &response.id {
                    Some(id) => own_id(id),
                    // It could not read what it answers: with one request in flight it is clear which that was.
                    None => self.state.lock().only().map(|(id, _)| id),
                };
                let known = id.is_some_and(|id| self.answer(id, outcome));
                if known { Ok(()) } else { Err("an answer to no request that is open".into()) }
            }
            Message::Notification(notification) => {
                self.notified(&notification.method, notification.params);
                Ok(())
            }
            Message::Request(request) => self.asked(request.id, request.method, request.params),
        }
    }

    /// `false` where nobody waits for it (any more).
    fn answer(&self, id: u64, outcome: Result<Response, LinkError>) -> bool {
        let flight = {
            let mut state = self.state.lock();
            let flight = state.flights.remove(&id);
            state.release(id);
            flight
        };
        flight.is_some_and(|flight| {
            let _ = flight.answer.send(outcome);
            true
        })
    }

    fn notified(&self, method: &str, params: Option<&RawValue>) {
        let listener = match Whose::of(method, params) {
            Whose::Cancelled => return self.cancelled(cancelled_id(params)),
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
    fn cancelled(&self, id: Option<RequestId>) {
        let Some(id) = id else { return };
        let mut state = self.state.lock();
        if let Some(asked) = state.asked.remove(&id) {
            asked.cancelled.cancel();
        } else if let Some(number) = own_id(&id)
            && state.flights.get(&number).is_some_and(|flight| flight.listen)
            && let Some(flight) = state.flights.remove(&number)
        {
            let _ = flight.answer.send(Err(LinkError::Lost("the server ended the subscription".to_owned())));
        }
    }

    fn asked(
        self: &Arc<Self>,
        id: RequestId,
        method: Cow<'_, str>,
        params: Option<&RawValue>,
    ) -> Result<(), Cow<'static, str>> {
        if self.modern.load(Ordering::Relaxed) {
            // There, neither requests nor responses to them exist (2026-07-28/basic/transports/stdio).
            return Err("a request, which servers of this revision must not send".into());
        }
        if method == "ping" {
            return self
                .queue
                .push(None, response(&id, Ok("{}")))
                .map_err(|_| "a ping, while it reads nothing of what is sent to it".into());
        }
        let cancelled = CancellationToken::new();
        let (number, listener) = {
            let mut state = self.state.lock();
            if state.asked.contains_key(&id) {
                return Err("a request with the id of another that is open".into());
            }
            if state.asked.len() >= MAX_ASKED || state.end.is_some() {
                drop(state);
                let error = RpcError::new(-32603, format!("more than {MAX_ASKED} requests are open"));
                let _ = self.queue.push(None, response(&id, Err(&error)));
                return Err("more requests than may be open".into());
            }
            state.last_asked += 1;
            let number = state.last_asked;
            let (of, listener) = match state.only() {
                Some((of, listener)) => (Some(of), listener),
                None => (None, self.unsolicited.clone()),
            };
            state.asked.insert(id.clone(), Asked { number, of, cancelled: cancelled.clone() });
            (number, listener)
        };
        let mux: Weak<Self> = Arc::downgrade(self);
        let its_id = id.clone();
        let send = move |answer: Result<Box<RawValue>, RpcError>| {
            if let Some(mux) = mux.upgrade() {
                mux.reply(&its_id, number, answer);
            }
        };
        listener.request(UpstreamRequest {
            id,
            method: method.into_owned(),
            params: params.map(RawValue::to_owned),
            reply: Replier::new(send),
            cancelled,
        });
        Ok(())
    }

    fn reply(&self, id: &RequestId, number: u64, answer: Result<Box<RawValue>, RpcError>) {
        {
            let mut state = self.state.lock();
            // It was taken back, or the link has ended.
            if state.asked.get(id).is_none_or(|asked| asked.number != number) {
                return;
            }
            state.asked.remove(id);
        }
        let line = response(id, answer.as_ref().map(|result| result.get()));
        if self.queue.push(None, line) == Err(Refused::Full) {
            tracing::warn!(target: "countersign_upstream", "an answer is dropped: the server reads nothing");
        }
    }
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

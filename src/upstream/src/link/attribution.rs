//! Whose message is it? For links with one ordered stream for everything ([`super::LinkKind::Shared`]): WebSocket and the
//! 2024-11-05 pair use this; nothing here knows a transport. `child/mux.rs` goes by the same rules ([`Whose`]) for stdio. Its
//! queue can take back what was not written, and what belongs to nobody goes elsewhere there: late progress to the link's own
//! listener, a message of an ended subscription to nobody, and an answer that is none fails its request.
//!
//! Responses go by id, `notifications/progress` by its token (which is the request's id), messages of a subscription
//! by `_meta["io.modelcontextprotocol/subscriptionId"]`, what is about the server as a whole (list changes, updated
//! resources) to the link's own listener, and all else to the one request in flight, if it is exactly one. A
//! `subscriptions/listen` does not count as in flight: it always is.
//!
//! The transport gives an outbox that its writer empties, calls [`Attribution::received`] for every message in the
//! order of arrival, and [`Attribution::broken`] once at the end.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Link, LinkError, LinkKind, Listener, Negotiated, Outgoing, Response, UpstreamNotification,
    received::{self, Received},
    server_requests::{self, Asked},
    wire::{Line, Whose, cancelled, cancelled_id, notification, only_one, own_id},
};
use countersign_protocol::{Era, RequestId};
use countersign_provider::Permit;

/// Messages that wait for the transport's writer.
pub const OUTBOX: usize = 1024;

/// What the transport's writer has to write: one JSON-RPC message without line breaks.
#[derive(Clone, Debug)]
pub struct Message {
    /// Of a request of ours: what [`Attribution::failed`] wants if it cannot be written.
    pub request: Option<u64>,
    pub text: Bytes,
    /// See [`Outgoing::permit`].
    pub permit: Option<Permit>,
}

impl From<Line> for Message {
    fn from(line: Line) -> Self {
        Self { request: None, text: line.into(), permit: None }
    }
}

/// See the module's page.
pub struct Attribution {
    outbox: mpsc::Sender<Message>,
    unsolicited: Arc<dyn Listener>,
    pending: Mutex<HashMap<u64, Pending>>,
    asked: Asked,
    send: server_requests::Queue,
    modern: AtomicBool,
    closed: CancellationToken,
    end: OnceLock<LinkError>,
}

struct Pending {
    listener: Arc<dyn Listener>,
    done: oneshot::Sender<Result<Response, LinkError>>,
    listens: bool,
}

impl Attribution {
    /// The link's bookkeeping, and what its writer has to write. `closed` is cancelled when the link is closed, also by
    /// itself (a server that asks faster than it reads): the transport then ends and calls [`Self::broken`].
    #[must_use]
    pub fn new(unsolicited: Arc<dyn Listener>, closed: CancellationToken) -> (Arc<Self>, mpsc::Receiver<Message>) {
        let (outbox, messages) = mpsc::channel::<Message>(OUTBOX);
        let (answers, ended) = (outbox.clone(), closed.clone());
        let send: server_requests::Queue = Arc::new(move |message| {
            if answers.try_send(message.into()).is_err() {
                // It asks and cancels faster than it reads: nothing good comes of that connection.
                ended.cancel();
            }
        });
        let own = Self {
            outbox,
            unsolicited,
            pending: Mutex::default(),
            asked: Asked::default(),
            send,
            modern: AtomicBool::new(false),
            closed,
            end: OnceLock::new(),
        };
        (Arc::new(own), messages)
    }

    /// As [`super::Link::opened`].
    pub fn opened(&self, negotiated: &Negotiated) {
        self.modern.store(negotiated.revision.era() == Era::Modern, Ordering::Relaxed);
    }

    /// As [`super::Link::closed`].
    pub fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    /// As [`super::Link::request`].
    ///
    /// # Errors
    /// [`LinkError::Unreachable`] if the link had ended before, else what [`Attribution::broken`] says.
    pub async fn request(&self, outgoing: &Outgoing, listener: Arc<dyn Listener>) -> Result<Response, LinkError> {
        let gone = || LinkError::Unreachable("the connection has ended".to_owned());
        // The place in the outbox comes first: what waits for it was not sent.
        let place = tokio::select! {
            biased;
            () = self.closed.cancelled() => return Err(gone()),
            place = self.outbox.reserve() => place.map_err(|_| gone())?,
        };
        Outgoing::check(outgoing.permit.as_ref())?;
        let (done, answer) = oneshot::channel();
        let listens = &*outgoing.method == "subscriptions/listen";
        {
            let mut pending = self.pending.lock();
            // `broken` drains under this lock after it has set the end.
            if self.end.get().is_some() {
                return Err(gone());
            }
            pending.insert(outgoing.id, Pending { listener, done, listens });
        }
        let mut guard = Guard { of: self, id: outgoing.id, cancels: &*outgoing.method != "initialize", armed: true };
        let (text, permit) = (outgoing.body.clone(), outgoing.permit.clone());
        place.send(Message { request: Some(outgoing.id), text, permit });
        let answer = answer.await;
        guard.armed = false;
        answer.unwrap_or_else(|_| Err(LinkError::Lost("the connection has ended".to_owned())))
    }

    /// As [`super::Link::notify`].
    ///
    /// # Errors
    /// [`LinkError::Unreachable`] if the link has ended.
    pub async fn notify(&self, method: &str, params: Option<&str>) -> Result<(), LinkError> {
        let sent = tokio::select! {
            biased;
            () = self.closed.cancelled() => false,
            sent = self.outbox.send(notification(method, params).into()) => sent.is_ok(),
        };
        if sent { Ok(()) } else { Err(LinkError::Unreachable("the connection has ended".to_owned())) }
    }

    /// One message (or batch) has arrived. What is none is logged and left: servers print all sorts of things.
    pub fn received(&self, text: &[u8]) {
        let outcome = received::read(text, |received| match received {
            Received::Answer { id, response } => self.answered(id.as_ref(), response),
            Received::Notification(notification) => self.notified(notification),
            Received::Request { id, method, params } => self.was_asked(id, method, params),
        });
        if let Err(unreadable) = outcome {
            tracing::warn!(text = %received::beginning(text, 200), "not a message: {}", unreadable.why);
        }
    }

    /// One request could not be sent, and why; the link goes on.
    pub fn failed(&self, id: u64, why: LinkError) {
        if let Some(pending) = self.pending.lock().remove(&id) {
            let _ = pending.done.send(Err(why));
        }
    }

    /// The connection has ended, and why. Every request in flight fails with that; the first reason counts.
    pub fn broken(&self, why: &LinkError) {
        let why = self.end.get_or_init(|| why.clone());
        let pending: Vec<_> = self.pending.lock().drain().collect();
        for (_, pending) in pending {
            let _ = pending.done.send(Err(why.clone()));
        }
        self.asked.end();
        self.closed.cancel();
    }

    fn answered(&self, id: Option<&RequestId>, response: Response) {
        let mut pending = self.pending.lock();
        let id = match id {
            Some(id) => own_id(id),
            // It could not read the id of what it answers: that was the only one, or nobody knows.
            None => alone(&pending).map(|(id, _)| id),
        };
        let found = id.and_then(|id| pending.remove(&id));
        drop(pending);
        match found {
            Some(pending) => {
                let _ = pending.done.send(Ok(response));
            }
            None => tracing::debug!(?id, "an answer that no request waits for: late, repeated or with a wrong id"),
        }
    }

    fn notified(&self, notification: UpstreamNotification) {
        let listener = match Whose::of(&notification.method, notification.params.as_deref()) {
            Whose::Cancelled => return self.was_cancelled(notification.params.as_deref()),
            // Without a request that has that token it is late, and nobody else's.
            Whose::Progress(id) => match id.and_then(|id| self.listener(id)) {
                None => return tracing::debug!("progress that no request waits for"),
                listener => listener,
            },
            Whose::Subscription(id) => id.and_then(|id| self.listener(id)),
            Whose::Server => None,
            Whose::OnlyOne => self.only_one(),
        };
        listener.as_ref().unwrap_or(&self.unsolicited).notification(notification);
    }

    fn was_asked(&self, id: RequestId, method: String, params: Option<Box<RawValue>>) {
        let Some(request) = self.asked.take(id, method, params, &self.send) else { return };
        if self.modern.load(Ordering::Relaxed) {
            // 2026-07-28/basic/transports/stdio: servers send no requests. Dropped, it declines.
            tracing::debug!(method = request.method, "a stateless server must not send requests");
            return;
        }
        self.only_one().as_ref().unwrap_or(&self.unsolicited).request(request);
    }

    fn was_cancelled(&self, params: Option<&RawValue>) {
        if self.asked.cancel(params) || !self.modern.load(Ordering::Relaxed) {
            return;
        }
        // A stateless server ends a subscription so (2026-07-28/basic/patterns/cancellation, "Behavior Requirements").
        let Some(id) = cancelled_id(params).and_then(|id| own_id(&id)) else { return };
        let mut pending = self.pending.lock();
        if pending.get(&id).is_some_and(|pending| pending.listens)
            && let Some(ended) = pending.remove(&id)
        {
            drop(pending);
            let _ = ended.done.send(Err(LinkError::Lost("the server has ended the subscription".to_owned())));
        }
    }

    fn listener(&self, id: u64) -> Option<Arc<dyn Listener>> {
        self.pending.lock().get(&id).map(|pending| Arc::clone(&pending.listener))
    }

    fn only_one(&self) -> Option<Arc<dyn Listener>> {
        let pending = self.pending.lock();
        alone(&pending).map(|(_, pending)| Arc::clone(&pending.listener))
    }
}

/// A link whose transport's tasks do the rest: dropped, it is closed.
pub struct SharedLink(pub Arc<Attribution>);

impl Link for SharedLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Shared
    }

    fn request<'a>(
        &'a self,
        outgoing: &'a Outgoing,
        listener: Arc<dyn Listener>,
    ) -> LocalBoxFuture<'a, Result<Response, LinkError>> {
        Box::pin(self.0.request(outgoing, listener))
    }

    fn notify<'a>(&'a self, method: &'a str, params: Option<&'a str>) -> LocalBoxFuture<'a, Result<(), LinkError>> {
        Box::pin(self.0.notify(method, params))
    }

    fn opened(&self, negotiated: &Negotiated) {
        self.0.opened(negotiated);
    }

    fn closed(&self) -> CancellationToken {
        self.0.closed()
    }

    fn close(&self) {
        self.0.closed.cancel();
    }

    fn give_up(&self, why: LinkError) {
        self.0.broken(&why);
    }
}

impl Drop for SharedLink {
    fn drop(&mut self) {
        self.close();
    }
}

fn alone(pending: &HashMap<u64, Pending>) -> Option<(u64, &Pending)> {
    only_one(pending, |pending| pending.listens)
}

/// Removes a request whose future is dropped, and tells the upstream.
struct Guard<'a> {
    of: &'a Attribution,
    id: u64,
    cancels: bool,
    armed: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.armed && self.of.pending.lock().remove(&self.id).is_some() && self.cancels {
            (self.of.send)(cancelled(self.id));
        }
    }
}

#[cfg(test)]
mod tests;

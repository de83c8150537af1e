//! Demultiplexes one ordered stream of messages for many requests. Stdio, WebSocket and the transport of 2024-11-05 use
//! it.
//!
//! A response is attributed by its id, `notifications/progress` by its token, which is the id of the request, and a
//! message of a subscription by `_meta["io.modelcontextprotocol/subscriptionId"]`. A message about the server as a
//! whole (list changes, updated resources) goes to the link's own listener, and any other message to the only request
//! in flight, if there is exactly one.
//!
//! The transport writes the messages of [`Mux::queue`], calls [`Mux::receive`] for each message in the order of
//! arrival, and [`Mux::end`] once. Nothing here reads, writes or waits, so a server cannot block it, and everything
//! that a server can cause to grow is limited.

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
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    Link, LinkError, Listener, MalformedMessage, NegotiatedSession, OutgoingRequest, Response, UpstreamNotification,
    escape_beginning, parse_messages, parse_response,
    queue::{Queue, QueueError, QueuedMessage},
    server_requests::{OpenRequests, ReplySender},
    wire::{Attribution, cancelled_id, encode_cancellation, gateway_id},
};
use countersign_protocol::{
    Era, encode,
    envelope::{Message, Notification, Request},
};

/// The method that opens a subscription. Its request stays open until the subscription ends, and the messages of the
/// subscription name the id of the request (2026-07-28/basic/patterns/subscriptions).
const LISTEN_METHOD: &str = "subscriptions/listen";

/// The requests in flight on one stream.
pub(super) struct Mux {
    /// The configured name of the server, for logs.
    pub(super) server: Arc<str>,
    pub(super) queue: Queue,
    unsolicited: Arc<dyn Listener>,
    state: Mutex<MuxState>,
    open_requests: OpenRequests,
    /// Queues answers to the server's requests.
    replies: ReplySender,
    /// `true` if the server speaks the stateless era.
    is_modern: AtomicBool,
    ended: CancellationToken,
}

#[derive(Default)]
struct MuxState {
    pending: HashMap<u64, PendingRequest>,
    /// The reason why the link has ended.
    end: Option<LinkError>,
}

/// A request that waits for its answer.
struct PendingRequest {
    listener: Arc<dyn Listener>,
    answer: oneshot::Sender<Result<Response, LinkError>>,
    /// `true` for a subscription, whose messages name its id.
    is_listen: bool,
}

impl MuxState {
    /// Returns the id and the listener of the only request in flight, if there is exactly one besides subscriptions.
    fn only_request(&self) -> Option<(u64, Arc<dyn Listener>)> {
        let mut calls = self.pending.iter().filter(|(_, request)| !request.is_listen);
        let (id, request) = calls.next()?;
        calls.next().is_none().then(|| (*id, Arc::clone(&request.listener)))
    }

    /// Returns the error of a new request if the link has ended.
    fn check_open(&self) -> Result<(), LinkError> {
        self.end.as_ref().map_or(Ok(()), |end| Err(unsent_error(end)))
    }
}

impl Mux {
    pub(super) fn new(server: &str, unsolicited: Arc<dyn Listener>) -> Arc<Self> {
        Arc::new_cyclic(|mux: &Weak<Self>| {
            let mux = mux.clone();
            let send = move |text| {
                if let Some(mux) = mux.upgrade()
                    && mux.queue.push(None, text, None) == Err(QueueError::Full)
                {
                    tracing::warn!(
                        target: "countersign_upstream", upstream = %mux.server,
                        "an answer to a request of the server is dropped, because the server does not read"
                    );
                }
            };
            Self {
                server: server.into(),
                queue: Queue::default(),
                unsolicited,
                state: Mutex::default(),
                open_requests: OpenRequests::new(server),
                replies: Arc::new(send),
                is_modern: AtomicBool::new(false),
                ended: CancellationToken::new(),
            }
        })
    }

    /// Sends a request and waits for its answer. If the future is dropped, the request is withdrawn or cancelled.
    async fn request(&self, outgoing: &OutgoingRequest, listener: Arc<dyn Listener>) -> Result<Response, LinkError> {
        let (answer, answered) = oneshot::channel();
        {
            let mut state = self.state.lock();
            state.check_open()?;
            let queued = self.queue.push(Some(outgoing.id), outgoing.body.clone(), outgoing.permit.clone());
            queued.map_err(queue_error)?;
            let is_listen = &*outgoing.method == LISTEN_METHOD;
            state.pending.insert(outgoing.id, PendingRequest { listener, answer, is_listen });
        }
        // `initialize` must not be cancelled (2025-11-25/basic/utilities/cancellation).
        let _cancel = CancelOnDrop { mux: self, id: outgoing.id, notifies_server: &*outgoing.method != "initialize" };
        answered.await.unwrap_or_else(|_| Err(LinkError::Lost("another request took its id".to_owned())))
    }

    fn send_initialized(&self) -> Result<(), LinkError> {
        self.state.lock().check_open()?;
        self.queue.push(None, encode::notification("notifications/initialized", None), None).map_err(queue_error)
    }

    /// Returns the next message to write, or `None` once the queue is closed and empty. Requests whose permit has expired fail
    /// instead.
    pub(super) async fn next_permitted(&self) -> Option<QueuedMessage> {
        loop {
            let message = self.queue.pop().await?;
            match (OutgoingRequest::check_permit(message.permit.as_ref()), message.id) {
                (Ok(()), _) => return Some(message),
                (Err(error), Some(id)) => _ = self.answer(id, Err(error)),
                (Err(_), None) => {}
            }
        }
    }

    /// Ends the link for this reason, unless it has ended before, and fails all requests.
    pub(super) fn end(&self, reason: LinkError) {
        let (pending, unsent) = {
            let mut state = self.state.lock();
            if state.end.is_some() {
                return;
            }
            state.end = Some(reason.clone());
            (std::mem::take(&mut state.pending), self.queue.abandon())
        };
        for (id, request) in pending {
            let error = if unsent.contains(&id) { unsent_error(&reason) } else { reason.clone() };
            let _ = request.answer.send(Err(error));
        }
        self.open_requests.end();
        self.ended.cancel();
    }

    /// Handles a message or a batch of the server.
    ///
    /// # Errors
    /// Returns the reason why a message is ignored. Only the request that it was meant to answer fails.
    pub(super) fn receive(&self, text: &[u8]) -> Result<(), Cow<'static, str>> {
        let mut result = Ok(());
        parse_messages(text, |message| {
            let handled = match message {
                Ok(message) => self.handle(message),
                Err(malformed) => {
                    self.handle_malformed(&malformed);
                    Err(malformed.reason)
                }
            };
            if handled.is_err() {
                result = handled;
            }
        });
        result
    }

    /// Handles a message, and logs why it is ignored.
    pub(super) fn receive_or_log(&self, text: &[u8]) {
        if let Err(reason) = self.receive(text) {
            tracing::warn!(
                target: "countersign_upstream", upstream = %self.server, text = %escape_beginning(text, 200),
                "a message of the server is ignored: {reason}"
            );
        }
    }

    /// Fails the request that a malformed message was meant to answer, or refuses the request that it was meant to be.
    fn handle_malformed(&self, malformed: &MalformedMessage<'_>) {
        if let Some(id) = malformed.answered_request() {
            self.answer(id, Err(LinkError::Protocol(malformed.reason.to_string())));
        } else if !self.is_modern.load(Ordering::Relaxed) {
            self.open_requests.refuse_malformed(malformed, &self.replies);
        }
    }

    /// Handles a message, or returns the reason why it is ignored.
    fn handle(&self, message: Message<'_>) -> Result<(), Cow<'static, str>> {
        match message {
            Message::Response(response) => {
                let id = match &response.id {
                    Some(id) => gateway_id(id),
                    // The server could not read the id of the request.
                    None => self.state.lock().only_request().map(|(id, _)| id),
                };
                let is_known = id.is_some_and(|id| self.answer(id, Ok(parse_response(response.outcome))));
                if is_known { Ok(()) } else { Err("it answers a request that is not open".into()) }
            }
            Message::Notification(notification) => {
                self.handle_notification(notification);
                Ok(())
            }
            Message::Request(request) => self.handle_request(request),
        }
    }

    /// Ends the request with that id. Returns `false` if nobody waits for its answer.
    pub(super) fn answer(&self, id: u64, outcome: Result<Response, LinkError>) -> bool {
        let request = self.state.lock().pending.remove(&id);
        self.open_requests.end_call(id);
        request.is_some_and(|request| {
            let _ = request.answer.send(outcome);
            true
        })
    }

    /// Passes a notification to the listener that it is attributed to.
    fn handle_notification(&self, notification: Notification<'_>) {
        let listener = match Attribution::from_notification(&notification.method, notification.params) {
            Attribution::Cancelled => return self.handle_cancellation(notification.params),
            // Progress may belong to a task, whose token is valid after its call has ended.
            Attribution::Progress(id) => id.and_then(|id| self.listener(id)),
            // Messages of a subscription that has ended are ignored.
            Attribution::Subscription(id) => match id.and_then(|id| self.listener(id)) {
                None => return,
                listener => listener,
            },
            Attribution::Server => None,
            Attribution::OnlyRequest => self.state.lock().only_request().map(|(_, listener)| listener),
        };
        listener.as_ref().unwrap_or(&self.unsolicited).handle_notification(UpstreamNotification::from(notification));
    }

    /// Returns the listener of an open request.
    fn listener(&self, id: u64) -> Option<Arc<dyn Listener>> {
        self.state.lock().pending.get(&id).map(|request| request.listener.clone())
    }

    /// Cancels a request of the server, or ends a subscription
    /// (2026-07-28/basic/patterns/cancellation#behavior-requirements).
    fn handle_cancellation(&self, params: Option<&RawValue>) {
        if self.open_requests.cancel(params) {
            return;
        }
        let mut state = self.state.lock();
        if let Some(id) = cancelled_id(params).as_ref().and_then(gateway_id)
            && state.pending.get(&id).is_some_and(|request| request.is_listen)
            && let Some(request) = state.pending.remove(&id)
        {
            let _ = request.answer.send(Err(LinkError::Lost("the server ended the subscription".to_owned())));
        }
    }

    /// Passes a request of the server to the listener of the only call, or to the link's own listener.
    fn handle_request(&self, request: Request<'_>) -> Result<(), Cow<'static, str>> {
        if self.is_modern.load(Ordering::Relaxed) {
            // Servers of this era send no requests, and nobody answers them (2026-07-28/basic/transports/stdio).
            return Err("servers of this revision must not send requests".into());
        }
        let (call, listener) = self.state.lock().only_request().unzip();
        if let Some(request) = self.open_requests.register(request, call, &self.replies) {
            listener.as_ref().unwrap_or(&self.unsolicited).handle_request(request);
        }
        Ok(())
    }
}

/// A link whose tasks read and write its stream. It is closed when it is dropped.
pub(super) struct SingleStreamLink {
    pub mux: Arc<Mux>,
    /// Cancelled to have the tasks end the connection.
    pub stop: CancellationToken,
}

impl SingleStreamLink {
    pub fn new(server: &str, unsolicited: Arc<dyn Listener>) -> Self {
        Self { mux: Mux::new(server, unsolicited), stop: CancellationToken::new() }
    }
}

impl Drop for SingleStreamLink {
    fn drop(&mut self) {
        self.close();
    }
}

impl Link for SingleStreamLink {
    fn request<'a>(
        &'a self,
        outgoing: &'a OutgoingRequest,
        listener: Arc<dyn Listener>,
    ) -> LocalBoxFuture<'a, Result<Response, LinkError>> {
        Box::pin(self.mux.request(outgoing, listener))
    }

    fn send_initialized(&self) -> LocalBoxFuture<'_, Result<(), LinkError>> {
        Box::pin(async { self.mux.send_initialized() })
    }

    fn complete_handshake(&self, negotiated: &NegotiatedSession) {
        self.mux.is_modern.store(negotiated.revision.era() == Era::Modern, Ordering::Relaxed);
    }

    fn closed(&self) -> CancellationToken {
        self.mux.ended.clone()
    }

    fn close(&self) {
        self.stop.cancel();
    }

    fn abandon(&self, reason: LinkError) {
        self.mux.end(reason);
        self.close();
    }
}

/// Returns the error of a request that was not sent before the link ended.
fn unsent_error(end: &LinkError) -> LinkError {
    LinkError::Unreachable(match end {
        LinkError::Unreachable(reason) | LinkError::Lost(reason) => reason.clone(),
        other => other.to_string(),
    })
}

/// Returns the error of a request that the queue did not accept.
fn queue_error(error: QueueError) -> LinkError {
    LinkError::Unreachable(match error {
        QueueError::Full => "it does not read its input".to_owned(),
        QueueError::Closed => "the gateway is ending it".to_owned(),
    })
}

/// Cancels a request whose future is dropped. Does nothing after the answer.
struct CancelOnDrop<'a> {
    mux: &'a Mux,
    id: u64,
    /// `true` if the server must be notified of the cancellation.
    notifies_server: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.mux.state.lock().pending.remove(&self.id).is_none() {
            return;
        }
        self.mux.open_requests.end_call(self.id);
        if !self.mux.queue.withdraw(self.id) && self.notifies_server {
            // The number of sent requests limits these messages.
            let _ = self.mux.queue.push_unlimited(encode_cancellation(self.id));
        }
    }
}

#[cfg(test)]
mod tests;

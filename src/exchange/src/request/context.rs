//! One request in progress: its principal, its revision, and the channel for messages that belong to it.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;

use super::reply::RelatedChannel;
use crate::session::{
    facts::ClientFacts,
    state::{Cancellation, RequestKey, SessionState},
};
use countersign_domain::{changes::Proposer, policy::Requester, principal::Identity};
use countersign_protocol::{Era, ErrorKind, McpError, RequestId, Revision, encode, params::LoggingLevel};
use countersign_provider::{CallContext, NoProgress, ProgressSink, SessionNotes};
use countersign_telemetry::metrics::Transport;

/// One request and everything that its handling needs to know.
#[derive(Clone)]
pub struct Exchange {
    pub session: Arc<SessionState>,
    /// The facts that the client stated in this request (modern) or in its handshake.
    pub facts: Arc<ClientFacts>,
    pub identity: Identity,
    pub transport: Transport,
    /// The channel for messages that belong to this request, such as its progress.
    pub related: RelatedChannel,
    /// The log level that a modern request asks for. A handshake-era session keeps its own level.
    pub log_level: Option<LoggingLevel>,
    /// The headers of the HTTP request that the configuration of some upstream forwards.
    pub headers: Option<Arc<ForwardedHeaders>>,
}

/// HTTP headers as pairs of lower-case names and values.
pub type ForwardedHeaders = Vec<(Box<str>, Box<str>)>;

impl Exchange {
    pub fn revision(&self) -> Revision {
        self.facts.revision
    }

    pub fn is_modern(&self) -> bool {
        self.revision().era() == Era::Modern
    }

    /// Returns the requester in the form that policy rules use.
    pub fn requester(&self) -> Requester<'_> {
        self.facts.requester(&self.identity.principal, self.transport)
    }

    /// Returns the proposer of a change that this request proposes.
    pub fn proposer(&self) -> Proposer {
        let client = self.facts.client.as_ref();
        let principal = &self.identity.principal;
        Proposer {
            principal: principal.name.clone(),
            role: principal.role,
            owner: principal.owner.clone(),
            key_id: principal.key_id.clone(),
            claims: principal.claims.clone(),
            key_creators: principal.key_creators.clone(),
            client_name: client.map(|c| c.name.clone()),
            client_version: client.map(|c| c.version.clone()),
            session: Some(self.session.short_id()),
            transport: self.transport.as_str().to_owned(),
            revision: self.facts.revision_over(self.transport).map(str::to_owned),
        }
    }

    /// Returns the context for a call to a provider.
    pub fn call_context(&self, cancel: &Cancellation, progress_token: Option<&str>) -> CallContext {
        CallContext {
            cancel: cancel.token(&self.session.ended),
            progress: self.progress(progress_token),
            session_notes: self.notes().cloned(),
            ..CallContext::new(self.identity.principal.clone())
        }
    }

    /// Returns the notes of modules about the session; `None` for a request outside a handshake-era session.
    pub fn notes(&self) -> Option<&Arc<SessionNotes>> {
        (!self.is_modern() && self.transport != Transport::Rest).then_some(&self.session.notes)
    }

    /// Returns the sink for the progress of a call.
    pub fn progress(&self, token: Option<&str>) -> Arc<dyn ProgressSink> {
        match token {
            Some(token) => Arc::new(Progress {
                related: self.related.clone(),
                token: token.to_owned(),
                has_messages: self.revision().rules().annotations,
                last_progress: Mutex::new(f64::NEG_INFINITY),
            }),
            None => Arc::new(NoProgress),
        }
    }

    /// Sends `notifications/message` with this request, if its client wants that level
    /// (2026-07-28/server/utilities/logging: only with requests that ask for it).
    pub fn log(&self, level: LoggingLevel, data: &Value) {
        let is_wanted = if self.is_modern() {
            self.log_level.is_some_and(|min| level >= min)
        } else {
            self.session.wants_log(level)
        };
        if is_wanted {
            let params = serde_json::json!({ "level": level.as_str(), "logger": "countersign", "data": data });
            self.related.send(encode::notification("notifications/message", Some(&params.to_string())));
        }
    }
}

/// Sends `notifications/progress` with a request.
struct Progress {
    related: RelatedChannel,
    /// The client's progress token, as unchanged JSON text.
    token: String,
    /// `true` if the client's revision has messages in progress notifications.
    has_messages: bool,
    last_progress: Mutex<f64>,
}

impl ProgressSink for Progress {
    fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) {
        {
            // The value must rise with each notification (2026-07-28/basic/patterns/progress).
            let mut last = self.last_progress.lock();
            if progress <= *last {
                return;
            }
            *last = progress;
        }
        let mut params = format!(r#"{{"progressToken":{},"progress":{}"#, self.token, Value::from(progress));
        if let Some(total) = total {
            params.push_str(&format!(r#","total":{}"#, Value::from(total)));
        }
        if let Some(message) = message.filter(|_| self.has_messages) {
            params.push_str(&format!(r#","message":{}"#, Value::from(message)));
        }
        params.push('}');
        self.related.send(encode::notification("notifications/progress", Some(&params)));
    }

    fn has_listener(&self) -> bool {
        true
    }
}

/// The response to one request, ready for the wire.
#[derive(Clone, Debug)]
pub struct WireResponse {
    pub bytes: Bytes,
    /// The kind of the error, if the response is one. Some endpoints choose their HTTP status by it.
    pub error: Option<ErrorKind>,
    /// The number of seconds after which the request may be tried again.
    pub retry_after: Option<u64>,
    /// The `WWW-Authenticate` header of the error ([`McpError::challenge`]).
    pub challenge: Option<Cow<'static, str>>,
}

impl WireResponse {
    pub fn error(id: Option<&RequestId>, error: &McpError, revision: Revision) -> Self {
        Self {
            bytes: encode::error(id, error, revision),
            error: Some(error.kind),
            retry_after: error.data.get("retryAfter").and_then(Value::as_u64),
            challenge: error.challenge(),
        }
    }

    pub fn result(bytes: Bytes) -> Self {
        Self { bytes, error: None, retry_after: None, challenge: None }
    }
}

/// Counts the requests that are being answered, and bounds the number for each session.
pub struct RequestSlots {
    running: AtomicUsize,
    max_per_session: usize,
}

impl RequestSlots {
    pub const fn new(max_per_session: usize) -> Self {
        Self { running: AtomicUsize::new(0), max_per_session }
    }

    /// Returns the number of requests that are being answered at all endpoints.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }
}

/// A request in flight. Its id is released when this is dropped.
pub struct InFlightRequest<'a> {
    slots: &'a RequestSlots,
    session: &'a SessionState,
    key: RequestKey,
    pub cancel: Cancellation,
    /// `true` once the handler has finished. Otherwise the drop means that the request was abandoned, and cancels it.
    pub is_answered: bool,
}

impl<'a> InFlightRequest<'a> {
    /// Registers a request of a session.
    ///
    /// # Errors
    /// `-32600` for an id that is in use, `OVERLOADED` if too many requests are in flight.
    pub fn register(slots: &'a RequestSlots, session: &'a SessionState, id: &RequestId) -> Result<Self, McpError> {
        let (key, cancel) = session.register_request(id, slots.max_per_session)?;
        slots.running.fetch_add(1, Ordering::Relaxed);
        Ok(Self { slots, session, key, cancel, is_answered: false })
    }
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.cancel.cancel();
        }
        self.session.release_request(&self.key);
        self.slots.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{TestClients, take_sent_messages};

    #[test]
    fn progress_only_rises_and_has_message_if_revision_allows() {
        let clients = TestClients::default();
        for (revision, has_message) in [(Revision::V2025_11_25, true), (Revision::V2024_11_05, false)] {
            let exchange = clients.exchange(revision, "{}");
            let progress = exchange.progress(Some(r#""t""#));
            assert!(progress.has_listener());
            for value in [1.0, 1.0, 0.5, 2.0] {
                progress.progress(value, Some(4.0), Some("so far"));
            }
            let messages = take_sent_messages(&exchange);
            let values: Vec<_> =
                messages.iter().map(|message| message["params"]["progress"].as_f64().unwrap()).collect();
            assert_eq!(values, [1.0, 2.0]);
            assert_eq!(
                (&messages[0]["params"]["progressToken"], &messages[0]["params"]["total"]),
                (&json!("t"), &json!(4.0))
            );
            assert_eq!(messages[0]["params"].get("message").is_some(), has_message, "{revision:?}");
            assert!(!exchange.progress(None).has_listener());
        }
    }

    #[test]
    fn log_message_is_sent_if_client_wants_its_level() {
        use LoggingLevel::{Debug, Error, Notice, Warning};
        let clients = TestClients::default();
        let modern = |log_level| Exchange { log_level, ..clients.exchange(Revision::MODERN, "{}") };
        let legacy = |level: Option<LoggingLevel>| {
            let exchange = clients.exchange(Revision::V2025_11_25, "{}");
            level.into_iter().for_each(|level| exchange.session.set_log_level(level));
            exchange
        };
        for (exchange, level, is_sent) in [
            (modern(None), Error, false),
            (modern(Some(Warning)), Notice, false),
            (modern(Some(Warning)), Warning, true),
            (legacy(None), Notice, false),
            (legacy(None), Error, true),
            (legacy(Some(Debug)), Notice, true),
        ] {
            exchange.log(level, &json!(1));
            assert_eq!(
                take_sent_messages(&exchange).len(),
                usize::from(is_sent),
                "{:?} {level:?}",
                exchange.revision()
            );
        }
    }

    #[test]
    fn request_id_is_in_use_until_request_ends() {
        let clients = TestClients::default();
        let exchange = clients.exchange(Revision::V2025_11_25, "{}");
        let id = |n: u8| RequestId::from_raw(&n.to_string());
        let slots = RequestSlots::new(2);
        let register = |n| InFlightRequest::register(&slots, &exchange.session, &id(n));
        let first = register(1).unwrap();
        assert_eq!(register(1).err().unwrap().kind, ErrorKind::InvalidRequest);
        let mut second = register(2).unwrap();
        let error = register(3).err().unwrap();
        assert_eq!((error.kind, error.data["limit"].as_u64()), (ErrorKind::Overloaded, Some(2)));
        assert_eq!((slots.running(), exchange.session.in_flight()), (2, 2));
        // The drop cancels a request without an answer, and not an answered one.
        let (unanswered, answered) = (first.cancel.clone(), second.cancel.clone());
        second.is_answered = true;
        drop((first, second));
        assert!(unanswered.is_cancelled() && !answered.is_cancelled());
        assert_eq!((slots.running(), exchange.session.in_flight()), (0, 0));
        assert!(register(1).is_ok());
    }

    #[test]
    fn proposer_contains_only_short_session_id() {
        let clients = TestClients::default();
        let exchange = clients.exchange(Revision::V2025_11_25, "{}");
        let proposer = exchange.proposer();
        assert_eq!((proposer.principal.as_str(), proposer.client_name.as_deref()), ("ann", Some("test")));
        assert_eq!((proposer.transport.as_str(), proposer.revision.as_deref()), ("websocket", Some("2025-11-25")));
        let session = proposer.session.unwrap();
        assert!(exchange.session.id.starts_with(session.trim_end_matches('…')) && session.chars().count() == 9);
        let rest = Exchange { transport: Transport::Rest, ..exchange };
        assert_eq!(rest.proposer().revision, None, "plain HTTP has no revision");
    }
}

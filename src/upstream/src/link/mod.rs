//! Connections to upstreams over each transport: requests, answers and messages outside of requests.

pub mod child;
pub mod connectors;
pub mod detect;
pub mod handshake;
pub(crate) mod http;
mod mux;
mod queue;
pub(crate) mod server_requests;
mod sse;
mod wire;
mod ws;

use std::{borrow::Cow, collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use compact_str::CompactString;
use futures_util::future::LocalBoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::credentials::AuthorizationError;
use countersign_protocol::{
    Era, ErrorKind, RequestId, Revision, encode,
    envelope::{self, EnvelopeError, Incoming, Limits, Message, Notification},
    json::member,
    redact::redact,
    rpc_error::RpcError,
    task,
};
use countersign_provider::{Permit, request::UpstreamRequest};

/// A request to an upstream.
#[derive(Clone, Debug)]
pub struct OutgoingRequest {
    /// Unique among all requests of the upstream ([`crate::server::Upstream::next_request_id`]). It is the JSON-RPC id.
    /// If the caller wants progress, it is also the progress token, by which a link attributes the progress.
    pub id: u64,
    pub method: CompactString,
    /// The whole JSON-RPC request on one line.
    pub body: Bytes,
    /// The value of `Mcp-Name`: `params.name`, `params.uri` or `params.taskId`
    /// (2026-07-28/basic/transports/streamable-http). Only sent in the stateless era.
    pub name: Option<CompactString>,
    /// `Mcp-Param-*`, and headers of the client that the configuration forwards. Only sent over HTTP.
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// `true` if the request only reads, so that it may be sent twice.
    pub is_repeatable: bool,
    /// `true` if the request asks for a task and its sender wants the result of the task
    /// (2025-11-25/basic/utilities/tasks).
    pub waits_for_task: bool,
    /// See [`countersign_provider::CallContext::permit`].
    pub permit: Option<Permit>,
}

impl OutgoingRequest {
    /// Creates a request. `params` is a JSON object.
    #[must_use]
    pub fn new(id: u64, method: &str, params: Option<&str>) -> Self {
        Self {
            id,
            method: method.into(),
            body: encode::request(&RequestId::from(id.cast_signed()), method, params),
            name: None,
            headers: Vec::new(),
            is_repeatable: false,
            waits_for_task: false,
            permit: None,
        }
    }

    /// Checks the permit right before the bytes are sent, with nothing to wait for in between.
    ///
    /// # Errors
    /// [`LinkError::PermitExpired`]
    pub(crate) fn check_permit(permit: Option<&Permit>) -> Result<(), LinkError> {
        if permit.is_none_or(Permit::is_valid) { Ok(()) } else { Err(LinkError::PermitExpired) }
    }
}

/// The answer to one request, in the upstream's own text.
#[derive(Clone, Debug)]
pub enum Response {
    /// The `result` member, byte for byte.
    Result(Box<RawValue>),
    Error(RpcError),
}

/// The reason why a request got no answer. Requests that certainly were not sent may be sent again. The text continues
/// a sentence that begins with the server's name.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    /// Nothing was sent: the connection was refused, the host is unknown, TLS failed, or the child cannot be started.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// The permit has expired ([`OutgoingRequest::permit`]), and nothing was sent that a server could execute.
    #[error("did not get the call, because the permit for the change expired first")]
    PermitExpired,
    /// The request may have been sent, and then the connection broke, the stream ended or the child died.
    #[error("lost the connection: {0}")]
    Lost(String),
    /// The answer is invalid, too long or of a wrong type.
    #[error("does not speak the protocol: {0}")]
    Protocol(String),
    /// The upstream's session has ended (HTTP 404 to a request with its id, or a 400 that names the session), and the request was
    /// not executed.
    #[error("has ended its session")]
    SessionGone,
    /// The account cannot be used for the request, which was not executed.
    #[error("{0}")]
    Unauthorized(AuthorizationError),
    /// An HTTP status without a JSON-RPC answer in the body.
    #[error("answered with HTTP status {status}")]
    Status {
        status: u16,
        /// The first kilobyte of the body for the log, with escaped control characters.
        body: String,
    },
}

impl LinkError {
    /// Returns `true` if the server has examined the request and does not accept it.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Status { status, .. } => detect::is_client_error(*status),
            error => matches!(error, Self::Protocol(_)),
        }
    }

    /// Converts the error of opening a connection, on which no request was sent yet.
    fn into_unsent(self) -> Self {
        match self {
            Self::Lost(reason) => Self::Unreachable(reason),
            error => error,
        }
    }
}

/// A notification from an upstream, with `params` in its own text.
#[derive(Clone, Debug)]
pub struct UpstreamNotification {
    pub method: String,
    pub params: Option<Box<RawValue>>,
}

/// Receives the messages that an upstream sends with one request before its response, in order, or messages outside of
/// requests. Neither method may block, because the link is read on the same thread.
pub trait Listener: Send + Sync {
    /// Receives a notification. It is ignored by default.
    fn handle_notification(&self, _notification: UpstreamNotification) {}

    /// Receives a request. It is declined by default, because dropping a request declines it.
    fn handle_request(&self, _request: UpstreamRequest) {}
}

/// Ignores what an upstream sends with a request.
pub struct SilentListener;

impl Listener for SilentListener {}

/// Determines how messages of an upstream are attributed to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Each request has its own stream: Streamable HTTP. In the handshake era, another stream carries the other messages. In the
    /// stateless era, there are none.
    Streams,
    /// One ordered stream for everything: stdio, WebSocket, the transport of 2024-11-05. Progress is attributed by its
    /// token, messages of a subscription by its id, and any other message to the only request in flight.
    SingleStream,
}

/// The result of the handshake or discovery on a link.
#[derive(Clone, Debug)]
pub struct NegotiatedSession {
    pub revision: Revision,
    /// The server's `capabilities`.
    pub capabilities: Arc<RawValue>,
    pub server_info: Option<Arc<RawValue>>,
    pub instructions: Option<String>,
}

impl NegotiatedSession {
    /// Returns `true` if tools of the upstream may run as tasks.
    pub fn has_tasks(&self) -> bool {
        let capabilities = self.capabilities.get();
        match self.revision.era() {
            Era::Modern => task::is_extension_declared(capabilities),
            Era::Legacy => {
                let requests = member(capabilities, "tasks").and_then(|tasks| member(tasks, "requests"));
                let tools = requests.and_then(|requests| member(requests, "tools"));
                tools.is_some_and(|tools| member(tools, "call").is_some())
            }
        }
    }

    /// Returns `true` if the gateway must request a task for a call of this tool
    /// (2025-11-25/basic/utilities/tasks, "Tool-Level Negotiation"). Stateless servers decide that themselves.
    pub fn requires_task(&self, definition: Option<&RawValue>) -> bool {
        // A definition may be long, so it is read last.
        self.revision.era() == Era::Legacy
            && self.has_tasks()
            && definition.is_some_and(|definition| task::task_support(definition.get()).as_deref() == Some("required"))
    }
}

/// A connection to an upstream. If the future of a request is dropped, the request is cancelled at the upstream, as its
/// transport and revision specify, and a late answer is ignored.
pub trait Link: Send + Sync + 'static {
    /// Sends a request and waits for its response without a time limit. Messages that arrive before it go to
    /// `listener`. It may be called on any actix thread, and the future stays on that thread.
    fn request<'a>(
        &'a self,
        outgoing: &'a OutgoingRequest,
        listener: Arc<dyn Listener>,
    ) -> LocalBoxFuture<'a, Result<Response, LinkError>>;

    /// Sends `notifications/initialized`, which ends a handshake.
    fn send_initialized(&self) -> LocalBoxFuture<'_, Result<(), LinkError>>;

    /// Completes the handshake or discovery. Later requests conform to the negotiated revision, and a transport that
    /// needs a stream for messages outside of requests opens it.
    fn complete_handshake(&self, negotiated: &NegotiatedSession);

    /// Returns a token that is cancelled when the link has ended for any reason.
    fn closed(&self) -> CancellationToken;

    /// Ends the link in order, by DELETE of a session, closing of stdin or a close frame. Returns at once.
    fn close(&self);

    /// Ends the link like [`Link::close`], and fails its pending requests with `reason`.
    fn abandon(&self, reason: LinkError) {
        drop(reason);
        self.close();
    }
}

/// Opens links to one upstream over one transport.
pub trait Connector: Send + Sync + 'static {
    /// Opens a link on which nothing was sent yet. `unsolicited` receives messages outside of requests.
    ///
    /// # Errors
    /// [`LinkError::Unreachable`]
    fn connect<'a>(&'a self, unsolicited: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>>;

    /// Returns how messages on the links are attributed to requests.
    fn kind(&self) -> LinkKind;

    /// Returns the configured name of the server, for logs.
    fn server_name(&self) -> &str {
        ""
    }

    /// Returns the era, if the transport determines it.
    fn era(&self) -> Option<Era> {
        None
    }

    /// Returns a connector for the older transport that the server may speak at the same address instead.
    fn fallback(&self) -> Option<Arc<dyn Connector>> {
        None
    }

    /// Returns the command without secrets, or the URL without user, password and query, for the status.
    fn describe(&self) -> String;

    /// Returns the lines on stderr that describe the state of the server.
    fn stderr(&self) -> StderrSummary {
        StderrSummary::default()
    }
}

/// Lines that a server's program wrote to its stderr, without secrets and control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StderrSummary {
    /// The first line of the latest output that looks like an error.
    pub error: Option<String>,
    /// The last lines of the process that wrote last.
    pub last_lines: VecDeque<String>,
}

/// The maximum number of bytes of one message from an upstream.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// A stream for messages outside of requests that ends sooner counts as a failure, so that the next one is opened after a longer
/// pause.
pub(crate) const MIN_STREAM_TIME: Duration = Duration::from_secs(5);
/// The maximum number of messages in a batch, which servers of 2025-03-26 and before may send.
const MAX_BATCH: usize = 1000;

/// Text that is not a message.
#[derive(Debug)]
pub struct MalformedMessage<'a> {
    pub text: &'a [u8],
    pub reason: Cow<'static, str>,
    /// The code of the error that answers it if it was meant to be a request.
    code: i64,
}

/// The members that show what a malformed message was meant to be.
#[derive(Deserialize)]
struct IdentifyingMembers<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
}

impl<'a> MalformedMessage<'a> {
    fn new(text: &'a [u8], fault: &EnvelopeError) -> Self {
        Self { text, reason: fault.error.message.clone(), code: fault.error.kind.number() }
    }

    /// Returns `None` for text that is not an object, or that has one of the members twice.
    fn identify(&self) -> Option<IdentifyingMembers<'_>> {
        serde_json::from_slice(self.text).ok()
    }

    /// Returns the id of the gateway's request that the message was meant to answer, if it names one.
    pub fn answered_request(&self) -> Option<u64> {
        let IdentifyingMembers { id, method: None } = self.identify()? else { return None };
        wire::parse_gateway_id(id?)
    }

    /// Returns the id of the server's request that the message was meant to be, and the error that answers it.
    pub fn refused_request(&self) -> Option<(RequestId, RpcError)> {
        let IdentifyingMembers { id, method: Some(_) } = self.identify()? else { return None };
        Some((RequestId::from_json(id?.get())?, RpcError::new(self.code, self.reason.clone())))
    }

    /// Returns [`LinkError::Lost`] if the end of the text seems to be missing, and [`LinkError::Protocol`] otherwise.
    pub fn to_error(&self) -> LinkError {
        if serde_json::from_slice::<serde::de::IgnoredAny>(self.text).is_err_and(|error| error.is_eof()) {
            LinkError::Lost("its answer broke off".to_owned())
        } else {
            LinkError::Protocol(self.reason.to_string())
        }
    }
}

/// Parses one message, or all messages of a batch in order (2025-03-26/basic/index, "Batching").
pub fn parse_messages<'a>(text: &'a [u8], mut handle: impl FnMut(Result<Message<'a>, MalformedMessage<'a>>)) {
    // Some servers write a byte order mark, which readers may ignore (RFC 8259, section 8.1).
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    match envelope::parse(text, &Limits { max_batch: MAX_BATCH, ..Limits::default() }) {
        Ok(Incoming::Single(message)) => handle(Ok(message)),
        Ok(Incoming::Batch(messages)) => {
            let has_faults = messages.iter().any(Result::is_err);
            let texts: Vec<&RawValue> =
                if has_faults { serde_json::from_slice(text).unwrap_or_default() } else { Vec::new() };
            for (index, message) in messages.into_iter().enumerate() {
                let text = texts.get(index).map_or("", |text| text.get()).as_bytes();
                handle(message.map_err(|fault| MalformedMessage::new(text, &fault)));
            }
        }
        Err(fault) => handle(Err(MalformedMessage::new(text, &fault))),
    }
}

impl From<Notification<'_>> for UpstreamNotification {
    fn from(notification: Notification<'_>) -> Self {
        Self { method: notification.method.into_owned(), params: notification.params.map(ToOwned::to_owned) }
    }
}

/// Copies the payload of a response.
pub fn parse_response(outcome: Result<&RawValue, &RawValue>) -> Response {
    #[derive(Deserialize)]
    struct ErrorObject {
        code: i64,
        #[serde(default)]
        message: String,
        data: Option<Box<RawValue>>,
    }
    let error = match outcome {
        Ok(result) => return Response::Result(result.to_owned()),
        Err(error) => error,
    };
    Response::Error(match serde_json::from_str::<ErrorObject>(error.get()) {
        Ok(ErrorObject { code, message, data }) => RpcError { code, message, data, status: None },
        // A malformed error is still an error, and its text is kept.
        Err(_) => RpcError {
            code: ErrorKind::Internal.number(),
            message: "the server answered with a malformed error".to_owned(),
            data: Some(error.to_owned()),
            status: None,
        },
    })
}

/// The maximum number of bytes in which secrets are redacted. Excerpts are much shorter, so that this limit cuts no
/// visible secret.
const MAX_REDACTED_BYTES: usize = 64 << 10;

/// Returns the first kilobyte of an upstream's text on one line, without secrets and control characters.
pub fn escape_excerpt(bytes: &[u8]) -> String {
    escape_beginning(bytes, 1024)
}

/// Returns the first `max` bytes as [`escape_excerpt`] does. Secrets are redacted before the text is cut, because
/// a cut could leave the beginning of a secret.
pub fn escape_beginning(bytes: &[u8], max: usize) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_REDACTED_BYTES)]);
    let text = redact(&text);
    let text = &text[..text.floor_char_boundary(max)];
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests;

//! One connection to an upstream, whatever it runs over: what a request on it is, and what comes back.

pub mod child;
pub mod detect;
pub mod handshake;
pub mod http;
mod mux;
mod queue;
pub mod received;
pub(crate) mod server_requests;
pub mod sse;
mod wire;
pub mod ws;

use std::sync::Arc;

use bytes::Bytes;
use compact_str::CompactString;
use futures_util::future::LocalBoxFuture;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use countersign_protocol::{Era, Revision, rpc_error::RpcError};
use countersign_provider::{Permit, request::UpstreamRequest};

/// A request on its way to an upstream.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Unique among all requests of the upstream ([`crate::server::Upstream::mint`]); the JSON-RPC id, and the progress token
    /// where the caller wants progress, so that a link can tell whose progress it is.
    pub id: u64,
    pub method: CompactString,
    /// The whole JSON-RPC request, as one line.
    pub body: Bytes,
    /// What `Mcp-Name` says of it: `params.name`, `params.uri` or `params.taskId`
    /// (2026-07-28/basic/transports/streamable-http). Only sent in the stateless era.
    pub name: Option<CompactString>,
    /// `Mcp-Param-*` and headers of the client's that the configuration forwards: HTTP only.
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// It only reads: asking twice does no harm.
    pub repeatable: bool,
    /// See [`countersign_provider::CallContext::permit`].
    pub permit: Option<Permit>,
}

impl Outgoing {
    /// `params` is a JSON object.
    #[must_use]
    pub fn new(id: u64, method: &str, params: Option<&str>) -> Self {
        let mut body = String::with_capacity(method.len() + params.map_or(0, str::len) + 64);
        body.push_str(r#"{"jsonrpc":"2.0","id":"#);
        body.push_str(&id.to_string());
        body.push_str(r#","method":"#);
        // Methods come from clients too, where neither side's declared extension is known to the gateway.
        body.push_str(&serde_json::Value::from(method).to_string());
        if let Some(params) = params {
            body.push_str(r#","params":"#);
            body.push_str(params);
        }
        body.push('}');
        Self {
            id,
            method: method.into(),
            body: body.into(),
            name: None,
            headers: Vec::new(),
            repeatable: false,
            permit: None,
        }
    }

    /// Looks whether it may still go out: right before its bytes do, with nothing to wait for in between.
    ///
    /// # Errors
    /// [`LinkError::Withheld`]
    pub(crate) fn check(permit: Option<&Permit>) -> Result<(), LinkError> {
        if permit.is_none_or(Permit::is_valid) { Ok(()) } else { Err(LinkError::Withheld) }
    }
}

/// The answer to one request, as the upstream wrote it.
#[derive(Clone, Debug)]
pub enum Response {
    /// The `result` member, byte for byte.
    Result(Box<RawValue>),
    Error(RpcError),
}

/// Why a request got no answer. What was certainly not sent may be sent again. Its text goes on after a server's name.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    /// Nothing of it left the gateway: refused connection, unknown host, failed TLS, a child that cannot be started.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// It may not go out any more ([`Outgoing::permit`]): nothing that a server could act on was sent.
    #[error("was not sent the call: the lease of this gateway had run out")]
    Withheld,
    /// It was sent, or may have been, and then the connection broke, the stream ended or the child died.
    #[error("lost the connection: {0}")]
    Lost(String),
    /// What came back is no answer: garbage, too long, of a wrong type.
    #[error("does not speak the protocol: {0}")]
    Protocol(String),
    /// The upstream's session has ended (HTTP 404 to a request with its id): nothing was done.
    #[error("has ended its session")]
    SessionGone,
    /// An HTTP status without a JSON-RPC answer in the body.
    #[error("answered with HTTP status {status}")]
    Status {
        status: u16,
        /// The first kilobyte of the body, for the log; control characters are made visible.
        body: String,
    },
}

/// A notification from an upstream. `params` are as it wrote them.
#[derive(Clone, Debug)]
pub struct UpstreamNotification {
    pub method: String,
    pub params: Option<Box<RawValue>>,
}

/// Receives what an upstream sends with one request before its response, in order; also what belongs to none.
/// Neither method may block: they are called from where the link is read.
pub trait Listener: Send + Sync {
    fn notification(&self, notification: UpstreamNotification);
    fn request(&self, request: UpstreamRequest);
}

/// How messages of an upstream are attributed to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Every request has a stream of its own and nothing else exists: stateless HTTP.
    Stateless,
    /// A stream for each request, and one for the rest: handshake-era Streamable HTTP.
    Streams,
    /// One ordered stream for everything: stdio, WebSocket, the 2024-11-05 pair. Progress is attributed by its token,
    /// messages of a subscription by its id, and all else to the one request in flight, if it is one.
    Shared,
}

/// What opening a link has settled.
#[derive(Clone, Debug)]
pub struct Negotiated {
    pub revision: Revision,
    /// The server's `capabilities` member.
    pub capabilities: Arc<RawValue>,
    /// `serverInfo`, where it was given.
    pub server_info: Option<Arc<RawValue>>,
    pub instructions: Option<String>,
    /// How long `server/discover` may be reused, in milliseconds (2026-07-28/server/utilities/caching).
    pub ttl_ms: Option<u64>,
}

/// See the module's page. Dropping the future of a request cancels it at the upstream, in the manner of its transport
/// and revision; a late answer is dropped.
pub trait Link: Send + Sync + 'static {
    fn kind(&self) -> LinkKind;

    /// Sends a request and waits for its response, without any limit of time. What arrives before it goes to
    /// `listener`. Called from any actix thread; the future stays on it.
    fn request<'a>(
        &'a self,
        outgoing: &'a Outgoing,
        listener: Arc<dyn Listener>,
    ) -> LocalBoxFuture<'a, Result<Response, LinkError>>;

    /// Sends a notification. `params` is a JSON object.
    fn notify<'a>(&'a self, method: &'a str, params: Option<&'a str>) -> LocalBoxFuture<'a, Result<(), LinkError>>;

    /// The handshake is done (or discovery is): from now on requests carry what that revision wants, and what a
    /// server sends outside of requests is listened to where the transport has that (the GET stream).
    fn opened(&self, negotiated: &Negotiated);

    /// Ended, for whatever reason; nothing can be sent any more.
    fn closed(&self) -> CancellationToken;

    /// Ends it in order: DELETE of a session, closing of stdin, a close frame. Returns at once.
    fn close(&self);

    /// Ends it as [`Link::close`] does; whatever waits for an answer on it fails with `why` now.
    fn give_up(&self, why: LinkError) {
        drop(why);
        self.close();
    }
}

/// Makes links to one upstream over one transport.
pub trait Connector: Send + Sync + 'static {
    /// A link on which nothing was sent yet. `unsolicited` receives what belongs to no request.
    ///
    /// # Errors
    /// [`LinkError::Unreachable`] where that shows already.
    fn connect<'a>(&'a self, unsolicited: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>>;

    fn kind(&self) -> LinkKind;

    /// A server may die of a question it does not know: era detection uses a link of its own and throws it away.
    fn probe_apart(&self) -> bool;

    /// The era, where the transport alone says it.
    fn era(&self) -> Option<Era> {
        None
    }

    /// The older transport that a server at the same place may speak instead.
    fn fallback(&self) -> Option<Arc<dyn Connector>> {
        None
    }

    /// What stands in logs and on the dashboard: the command without secrets, or the URL without user, password and query.
    fn describe(&self) -> String;

    /// What the server wrote beside the protocol.
    fn stderr(&self) -> Stderr {
        Stderr::default()
    }
}

/// Lines that a server's program wrote to its stderr, as they may be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stderr {
    /// The first line of the latest trouble that looks like an error.
    pub error: Option<String>,
    pub last: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::LinkError;

    #[test]
    fn what_went_wrong_makes_a_sentence_after_the_server_s_name() {
        let said = |error: LinkError| format!("the server files {error}");
        assert_eq!(
            said(LinkError::Lost("its process was killed by signal 9".into())),
            "the server files lost the connection: its process was killed by signal 9"
        );
        assert_eq!(said(LinkError::SessionGone), "the server files has ended its session");
    }
}

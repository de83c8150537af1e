//! Upstreams over Streamable HTTP of all revisions.
//!
//! Each request is one POST, sent from the caller's own thread over kept-alive connections of that thread. Each
//! difference between the eras has one place. This file sets the headers and [`answer`] reads streams, while
//! [`session_tasks`] and [`listen`] only serve the handshake era (sessions, GET streams, answers to the server's
//! requests).
//!
//! Redirects are not followed, because they would take the configured credentials elsewhere. There are no cookies.

pub(crate) mod answer;
mod authorization;
pub(crate) mod client;
pub(crate) mod http1;
mod listen;
mod session_tasks;
pub(crate) mod trust;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use awc::http::{
    Uri,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use futures_util::future::LocalBoxFuture;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;
use url::Url;

use self::{
    authorization::Access,
    client::{ExtraHeaders, RequestHead},
    http1::Field,
    session_tasks::SessionTask,
    trust::TlsTrust,
};
use super::{
    Link, LinkError, Listener, NegotiatedSession, OutgoingRequest, Response,
    server_requests::{OpenRequests, ReplySender},
    wire,
};
use countersign_config::{Authorities, Secret};
use countersign_protocol::{Era, Method, Revision, encode, headers::encode_value};
use countersign_runtime::background;

static VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
static METHOD_HEADER: HeaderName = HeaderName::from_static("mcp-method");
static NAME_HEADER: HeaderName = HeaderName::from_static("mcp-name");
static SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

/// The time limit for the answer to the first GET of a session. The opening waits for it, because some servers send
/// their first message there.
const LISTEN_TIMEOUT: Duration = Duration::from_millis(500);

/// The URI of requests, and the headers that all of them have.
#[derive(Clone)]
pub(crate) struct HttpTarget {
    /// The configured name of the server, for logs.
    pub server: Arc<str>,
    pub uri: Result<Uri, String>,
    pub headers: HeaderMap,
    /// The URL without user, password and query.
    pub label: String,
    pub access: Access,
}

impl HttpTarget {
    /// Creates the target. An invalid URL or header is reported when a link is opened.
    pub fn new(server: &str, url: &Url, configured: &[(String, Secret)], authorities: Option<&Authorities>) -> Self {
        let mut url_without_user = url.clone();
        let _ = url_without_user.set_username("");
        let _ = url_without_user.set_password(None);
        url_without_user.set_fragment(None);
        let mut label = url_without_user.clone();
        label.set_query(None);

        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, HeaderValue::from_static(countersign_net::USER_AGENT));
        let mut uri = url_without_user.as_str().parse::<Uri>().map_err(|error| error.to_string());
        let authorization = countersign_net::basic_authorization(url);
        if let Some(Ok(value)) = authorization.map(|value| HeaderValue::from_str(&value)) {
            headers.insert(header::AUTHORIZATION, value);
        }
        for (name, Secret(value)) in configured {
            match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
                (Ok(name), Ok(value)) => _ = headers.insert(name, value),
                // The error omits the value, which is a secret.
                _ => uri = Err(format!("the configured header `{name}` is not an HTTP header")),
            }
        }
        let access = Access { trust: TlsTrust::new(authorities), credentials: None };
        Self { server: server.into(), uri, headers, label: label.to_string(), access }
    }

    pub fn uri(&self) -> Result<Uri, LinkError> {
        self.uri.clone().map_err(LinkError::Unreachable)
    }
}

/// A link over Streamable HTTP. In the stateless era, a link is only a set of headers. In the handshake era, it is a
/// session.
pub(super) struct HttpLink {
    state: Arc<HttpLinkState>,
    /// The queue of background work of a handshake-era session.
    tasks: OnceLock<Sender<SessionTask>>,
}

/// The part of a link that its background tasks use too.
struct HttpLinkState {
    target: HttpTarget,
    uri: Uri,
    mode: ArcSwap<LinkMode>,
    unsolicited: Arc<dyn Listener>,
    open_requests: OpenRequests,
    /// Cancelled when the server has answered the first GET.
    listen_answered: CancellationToken,
    closed: CancellationToken,
}

/// The era, the session, and the headers that follow from them.
struct LinkMode {
    is_modern: bool,
    session_id: Option<HeaderValue>,
    /// Headers of a GET or DELETE.
    headers: HeaderMap,
    post: RequestHead,
}

impl LinkMode {
    /// Creates the mode of a link to a URI. `revision` is `None` before the handshake.
    fn new(
        target: &HttpTarget,
        uri: &Uri,
        is_modern: bool,
        revision: Option<Revision>,
        session_id: Option<HeaderValue>,
    ) -> Self {
        let mut headers = target.headers.clone();
        if let Some(revision) = revision.filter(|revision| revision.rules().version_header) {
            headers.insert(VERSION_HEADER.clone(), HeaderValue::from_static(revision.as_str()));
        }
        if let Some(session_id) = &session_id {
            headers.insert(SESSION_HEADER.clone(), session_id.clone());
        }
        let post = RequestHead::for_messages(uri.clone(), headers.clone(), &target.access);
        Self { is_modern, session_id, headers, post }
    }
}

impl HttpLinkState {
    fn mode(&self) -> Arc<LinkMode> {
        self.mode.load_full()
    }

    /// Sets the mode (see [`LinkMode::new`]).
    fn set_mode(&self, is_modern: bool, revision: Option<Revision>, session_id: Option<HeaderValue>) {
        self.mode.store(Arc::new(LinkMode::new(&self.target, &self.uri, is_modern, revision, session_id)));
    }

    /// Ends the session. Returns [`LinkError::SessionGone`] for the request that found out.
    fn end_session(&self) -> LinkError {
        self.closed.cancel();
        self.open_requests.end();
        LinkError::SessionGone
    }
}

impl HttpLink {
    pub(super) fn new(target: &HttpTarget, unsolicited: Arc<dyn Listener>) -> Result<Self, LinkError> {
        let uri = target.uri()?;
        let state = HttpLinkState {
            target: target.clone(),
            // Discovery belongs to the stateless era; a handshake changes the mode.
            mode: ArcSwap::from_pointee(LinkMode::new(target, &uri, true, Some(Revision::MODERN), None)),
            uri,
            unsolicited,
            open_requests: OpenRequests::new(&target.server),
            listen_answered: CancellationToken::new(),
            closed: CancellationToken::new(),
        };
        Ok(Self { state: Arc::new(state), tasks: OnceLock::new() })
    }

    /// Queues background work. Does nothing without a session, or if the queue is full of answers that the server does
    /// not take.
    fn queue_task(&self, task: SessionTask) {
        if let Some(tasks) = self.tasks.get() {
            let _ = tasks.try_send(task);
        }
    }

    /// Returns the sender of answers to the server's requests.
    fn reply_sender(&self) -> ReplySender {
        let (tasks, state) = (self.tasks.get().cloned(), Arc::downgrade(&self.state));
        Arc::new(move |message| {
            let Some(tasks) = &tasks else { return };
            if tasks.try_send(SessionTask::Post(message)).is_err()
                && let Some(state) = state.upgrade().filter(|state| !state.closed.is_cancelled())
            {
                tracing::warn!(
                    upstream = %state.target.server,
                    "the gateway ends the session, because the server sends requests but does not accept the answers"
                );
                state.end_session();
            }
        })
    }

    /// Sends a request, and begins the session if it is `initialize`.
    async fn send(&self, outgoing: &OutgoingRequest, listener: Arc<dyn Listener>) -> Result<Response, LinkError> {
        if self.state.closed.is_cancelled() {
            return Err(LinkError::Unreachable("the session has ended".to_owned()));
        }
        let is_handshake = &*outgoing.method == "initialize";
        if is_handshake {
            // The handshake era begins here, even after a `server/discover` of the stateless era.
            self.state.set_mode(false, None, None);
            self.tasks.get_or_init(|| session_tasks::start(Arc::clone(&self.state)));
        }
        let mode = self.state.mode();
        let mut cancel = CancelOnDrop { link: self, id: (!mode.is_modern && !is_handshake).then_some(outgoing.id) };
        let answer = async {
            let extra = additional_headers(mode.is_modern, outgoing)?;
            let response = client::send(&mode.post, extra, &outgoing.body, outgoing.permit.as_ref()).await?;
            if is_handshake && let Some(session_id) = response.header(Field::SessionId) {
                // 2025-11-25/basic/transports, "Session Management": visible ASCII only.
                let is_visible = !session_id.is_empty() && session_id.iter().all(u8::is_ascii_graphic);
                let Some(session_id) = HeaderValue::from_bytes(session_id).ok().filter(|_| is_visible) else {
                    return Err(LinkError::Protocol(
                        "its session id contains characters that are not allowed".to_owned(),
                    ));
                };
                self.state.set_mode(false, None, Some(session_id));
            }
            self.read_response(response, &mode, outgoing.id, &listener).await
        };
        let answer = answer.await;
        cancel.id = None;
        answer
    }

    /// Ends the handshake, and opens the GET stream.
    async fn begin_session(&self) -> Result<(), LinkError> {
        let message = encode::notification("notifications/initialized", None);
        session_tasks::post(&self.state, &self.state.mode(), message).await?;
        background::spawn(listen::run(Arc::clone(&self.state), self.reply_sender()));
        // Some servers send requests that belong to a call there, and forget them if nobody listens.
        let _ = tokio::time::timeout(LISTEN_TIMEOUT, self.state.listen_answered.cancelled()).await;
        Ok(())
    }
}

/// Returns the headers that only this request has. The configuration forwards none that the gateway itself sets.
fn additional_headers(is_modern: bool, outgoing: &OutgoingRequest) -> Result<ExtraHeaders, LinkError> {
    let mut extra = ExtraHeaders::with_capacity(outgoing.headers.len() + 2);
    for (name, value) in &outgoing.headers {
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) else {
            return Err(LinkError::Unreachable(format!("`{name}` cannot be sent as an HTTP header")));
        };
        extra.push((name, value));
    }
    if is_modern {
        let method = match Method::parse(&outgoing.method) {
            Some(method) => HeaderValue::from_static(method.as_str()),
            None => encode_header_value(&outgoing.method)?,
        };
        extra.push((METHOD_HEADER.clone(), method));
        if let Some(name) = &outgoing.name {
            extra.push((NAME_HEADER.clone(), encode_header_value(name)?));
        }
    }
    Ok(extra)
}

/// Encodes a text as the value of a header (2026-07-28/basic/transports/streamable-http).
fn encode_header_value(text: &str) -> Result<HeaderValue, LinkError> {
    HeaderValue::from_str(&encode_value(text)).map_err(|error| LinkError::Unreachable(error.to_string()))
}

/// Cancels a handshake-era request whose future is dropped, because closing its stream does not
/// (2025-11-25/basic/transports, "Sending Messages to the Server").
struct CancelOnDrop<'a> {
    link: &'a HttpLink,
    /// `None` if nothing needs to be cancelled.
    id: Option<u64>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.link.queue_task(SessionTask::Post(wire::encode_cancellation(id)));
        }
    }
}

impl Link for HttpLink {
    fn request<'a>(
        &'a self,
        outgoing: &'a OutgoingRequest,
        listener: Arc<dyn Listener>,
    ) -> LocalBoxFuture<'a, Result<Response, LinkError>> {
        Box::pin(self.send(outgoing, listener))
    }

    fn send_initialized(&self) -> LocalBoxFuture<'_, Result<(), LinkError>> {
        Box::pin(self.begin_session())
    }

    fn complete_handshake(&self, negotiated: &NegotiatedSession) {
        let is_modern = negotiated.revision.era() == Era::Modern;
        let session_id = self.state.mode.load().session_id.clone().filter(|_| !is_modern);
        self.state.set_mode(is_modern, Some(negotiated.revision), session_id);
    }

    fn closed(&self) -> CancellationToken {
        self.state.closed.clone()
    }

    fn close(&self) {
        if !self.state.closed.is_cancelled() {
            self.state.end_session();
            self.queue_task(SessionTask::End);
        }
    }
}

impl Drop for HttpLink {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;

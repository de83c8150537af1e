//! Upstreams over Streamable HTTP of all revisions.
//!
//! Each request is one POST, sent from the caller's own thread over kept-alive connections of that thread. Each difference
//! between the eras has one place. This file sets the headers and [`answer`] reads streams, while [`session_tasks`] and
//! [`listen`] only serve the handshake era (sessions, GET streams, answers to the server's requests).
//!
//! Redirects are not followed, because they would take the configured credentials elsewhere. There are no cookies.

pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod http1;
mod listen;
mod session_tasks;
pub(crate) mod trust;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use awc::http::{
    Method as HttpMethod, Uri,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use base64::Engine;
use futures_util::future::LocalBoxFuture;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;
use url::Url;

use self::{
    client::{ExtraHeaders, RequestHead},
    http1::Field,
    session_tasks::SessionTask,
    trust::Trust,
};
use super::{
    Connector, Link, LinkError, LinkKind, Listener, NegotiatedSession, Outgoing, Response,
    server_requests::{OpenRequests, ReplySender},
    sse::SseConnector,
    wire,
    ws::WsConnector,
};
use countersign_config::{Authorities, Secret, UpstreamConfig, UpstreamTarget, UrlTransport};
use countersign_protocol::{Era, Method, Revision, encode, headers::encode_value};

static VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
static METHOD_HEADER: HeaderName = HeaderName::from_static("mcp-method");
static NAME_HEADER: HeaderName = HeaderName::from_static("mcp-name");
static SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

/// Time limit for the answer to the first GET of a session. The opening waits for it, because some servers send their first
/// message there.
const LISTEN_TIMEOUT: Duration = Duration::from_millis(500);

/// Creates the connector for one URL of a server, by the configured transport or else by the URL's scheme.
#[must_use]
pub fn connector(url: &Url, config: &Arc<UpstreamConfig>) -> Arc<dyn Connector> {
    let (headers, transport) = match &config.target {
        UpstreamTarget::Url { headers, transport, .. } => (&headers[..], *transport),
        UpstreamTarget::Command { .. } => (&[][..], UrlTransport::Auto),
    };
    let target = HttpTarget::new(url, headers, config.authorities.as_ref());
    match transport {
        UrlTransport::WebSocket => Arc::new(WsConnector { target }),
        UrlTransport::Auto if matches!(url.scheme(), "ws" | "wss") => Arc::new(WsConnector { target }),
        UrlTransport::Sse => Arc::new(SseConnector { target }),
        UrlTransport::Auto => HttpConnector::new(target, true),
        UrlTransport::StreamableHttp => HttpConnector::new(target, false),
    }
}

/// The URI of requests, and the headers that all of them have.
#[derive(Clone)]
pub(crate) struct HttpTarget {
    pub uri: Result<Uri, String>,
    pub headers: HeaderMap,
    /// The URL without user, password and query.
    pub label: String,
    pub trust: Arc<Trust>,
}

impl HttpTarget {
    /// Creates the target. An invalid URL or header is reported when a link is opened.
    pub fn new(url: &Url, configured: &[(String, Secret)], authorities: Option<&Authorities>) -> Self {
        let mut url_without_user = url.clone();
        let _ = url_without_user.set_username("");
        let _ = url_without_user.set_password(None);
        url_without_user.set_fragment(None);
        let mut label = url_without_user.clone();
        label.set_query(None);

        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, HeaderValue::from_static(countersign_net::USER_AGENT));
        let mut uri = url_without_user.as_str().parse::<Uri>().map_err(|error| error.to_string());
        if !url.username().is_empty() || url.password().is_some() {
            let decode = |text: &str| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>();
            let mut credentials = decode(url.username());
            credentials.push(b':');
            credentials.extend(decode(url.password().unwrap_or_default()));
            let value = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(credentials));
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(header::AUTHORIZATION, value);
            }
        }
        for (name, Secret(value)) in configured {
            match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
                (Ok(name), Ok(value)) => _ = headers.insert(name, value),
                // The error omits the value, which is a secret.
                _ => uri = Err(format!("the configured header `{name}` is not an HTTP header")),
            }
        }
        Self { uri, headers, label: label.to_string(), trust: Trust::new(authorities) }
    }

    pub fn uri(&self) -> Result<Uri, LinkError> {
        self.uri.clone().map_err(LinkError::Unreachable)
    }
}

struct HttpConnector {
    target: HttpTarget,
    /// `true` if the server may speak the transport of 2024-11-05 at the same URL instead.
    has_fallback: bool,
    /// `true` if the last opened link is stateless.
    is_stateless: Arc<AtomicBool>,
}

impl HttpConnector {
    fn new(target: HttpTarget, has_fallback: bool) -> Arc<Self> {
        Arc::new(Self { target, has_fallback, is_stateless: Arc::default() })
    }
}

impl Connector for HttpConnector {
    fn connect<'a>(&'a self, unsolicited: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
        let link = HttpLink::new(&self.target, unsolicited, &self.is_stateless);
        Box::pin(std::future::ready(link.map(|link| Arc::new(link) as Arc<dyn Link>)))
    }

    fn kind(&self) -> LinkKind {
        if self.is_stateless.load(Ordering::Relaxed) { LinkKind::Stateless } else { LinkKind::Streams }
    }

    fn fallback(&self) -> Option<Arc<dyn Connector>> {
        self.has_fallback.then(|| Arc::new(SseConnector { target: self.target.clone() }) as Arc<dyn Connector>)
    }

    fn describe(&self) -> String {
        self.target.label.clone()
    }
}

/// A link over Streamable HTTP. In the stateless era, a link is only a set of headers. In the handshake era, it is a session.
struct HttpLink {
    pub shared: Arc<SharedLinkState>,
    is_stateless: Arc<AtomicBool>,
    /// The queue of background work of a handshake-era session.
    tasks: OnceLock<Sender<SessionTask>>,
}

/// The part of a link that its background tasks use too.
struct SharedLinkState {
    pub uri: Uri,
    pub trust: Arc<Trust>,
    /// The configured headers.
    configured_headers: HeaderMap,
    mode: ArcSwap<Mode>,
    pub unsolicited: Arc<dyn Listener>,
    pub open_requests: OpenRequests,
    /// Cancelled when the server has answered the first GET.
    pub listen_answered: CancellationToken,
    pub closed: CancellationToken,
}

/// The era, the session, and the headers that follow from them.
struct Mode {
    pub modern: bool,
    pub session_id: Option<HeaderValue>,
    /// Headers of a GET or DELETE.
    pub headers: HeaderMap,
    pub post: RequestHead,
}

impl SharedLinkState {
    pub fn mode(&self) -> Arc<Mode> {
        self.mode.load_full()
    }

    /// Sets the mode. `revision` is `None` before the handshake.
    fn set_mode(&self, modern: bool, revision: Option<Revision>, session_id: Option<HeaderValue>) {
        let mut headers = self.configured_headers.clone();
        if let Some(revision) = revision.filter(|revision| revision.rules().version_header) {
            headers.insert(VERSION_HEADER.clone(), HeaderValue::from_static(revision.as_str()));
        }
        if let Some(session_id) = &session_id {
            headers.insert(SESSION_HEADER.clone(), session_id.clone());
        }
        let post = RequestHead::for_messages(self.uri.clone(), headers.clone(), &self.trust);
        self.mode.store(Arc::new(Mode { modern, session_id, headers, post }));
    }

    /// Ends the session, and returns the error of all later requests.
    pub fn end(&self) -> LinkError {
        self.closed.cancel();
        self.open_requests.end();
        LinkError::SessionGone
    }
}

impl HttpLink {
    pub fn new(
        target: &HttpTarget,
        unsolicited: Arc<dyn Listener>,
        is_stateless: &Arc<AtomicBool>,
    ) -> Result<Self, LinkError> {
        let (uri, trust) = (target.uri()?, Arc::clone(&target.trust));
        let post = RequestHead::new(HttpMethod::POST, uri.clone(), HeaderMap::new(), &trust);
        let shared = SharedLinkState {
            uri,
            trust,
            configured_headers: target.headers.clone(),
            mode: ArcSwap::from_pointee(Mode { modern: true, session_id: None, headers: HeaderMap::new(), post }),
            unsolicited,
            open_requests: OpenRequests::default(),
            listen_answered: CancellationToken::new(),
            closed: CancellationToken::new(),
        };
        // Discovery belongs to the stateless era; a handshake changes the mode.
        shared.set_mode(true, Some(Revision::MODERN), None);
        Ok(Self { shared: Arc::new(shared), is_stateless: Arc::clone(is_stateless), tasks: OnceLock::new() })
    }

    /// Queues background work. Does nothing without a session, or if the queue is full of answers that the server does not
    /// take.
    fn queue_task(&self, task: SessionTask) {
        if let Some(tasks) = self.tasks.get() {
            let _ = tasks.try_send(task);
        }
    }

    /// Returns the sender of answers to the server's requests.
    pub fn reply_sender(&self) -> ReplySender {
        let (tasks, shared) = (self.tasks.get().cloned(), Arc::downgrade(&self.shared));
        Arc::new(move |message| {
            let Some(tasks) = &tasks else { return };
            if tasks.try_send(SessionTask::Post(message)).is_err()
                && let Some(shared) = shared.upgrade().filter(|shared| !shared.closed.is_cancelled())
            {
                tracing::warn!(
                    "the gateway ends the session of a server that sends requests but does not accept the answers"
                );
                shared.end();
            }
        })
    }

    async fn send(&self, outgoing: &Outgoing, listener: Arc<dyn Listener>) -> Result<Response, LinkError> {
        if self.shared.closed.is_cancelled() {
            return Err(LinkError::Unreachable("the session has ended".to_owned()));
        }
        let is_handshake = &*outgoing.method == "initialize";
        if is_handshake {
            // The handshake era begins here, even after a `server/discover` of the stateless era.
            self.shared.set_mode(false, None, None);
            self.tasks.get_or_init(|| session_tasks::start(Arc::clone(&self.shared)));
        }
        let mode = self.shared.mode();
        let mut cancel = CancelOnDrop { link: self, id: (!mode.modern && !is_handshake).then_some(outgoing.id) };
        let answer = async {
            let extra = additional_headers(mode.modern, outgoing)?;
            let response = client::send(&mode.post, extra, &outgoing.body, outgoing.permit.as_ref()).await?;
            if is_handshake && let Some(session_id) = response.field(Field::Session) {
                // 2025-11-25/basic/transports, "Session Management": visible ASCII only.
                let is_visible = !session_id.is_empty() && session_id.iter().all(u8::is_ascii_graphic);
                let Some(session_id) = HeaderValue::from_bytes(session_id).ok().filter(|_| is_visible) else {
                    return Err(LinkError::Protocol(
                        "its session id contains characters that are not allowed".to_owned(),
                    ));
                };
                self.shared.set_mode(false, None, Some(session_id));
            }
            self.answer(response, &mode, outgoing.id, &listener).await
        };
        let answer = answer.await;
        cancel.id = None;
        answer
    }

    async fn send_notification(&self, method: &str, params: Option<&str>) -> Result<(), LinkError> {
        let message = encode::notification(method, params);
        session_tasks::post(&self.shared, &self.shared.mode(), message, method).await?;
        if method == "notifications/initialized" {
            self.queue_task(SessionTask::Listen(self.reply_sender()));
            if self.tasks.get().is_some() {
                // Some servers send requests that belong to a call there, and forget them if nobody listens.
                let _ = tokio::time::timeout(LISTEN_TIMEOUT, self.shared.listen_answered.cancelled()).await;
            }
        }
        Ok(())
    }
}

/// Returns the headers that only this request has.
fn additional_headers(modern: bool, outgoing: &Outgoing) -> Result<ExtraHeaders, LinkError> {
    let mut extra = ExtraHeaders::with_capacity(outgoing.headers.len() + 2);
    for (name, value) in &outgoing.headers {
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) else {
            return Err(LinkError::Unreachable(format!("`{name}` cannot be sent as an HTTP header")));
        };
        // The gateway itself sets the headers of the protocol.
        if !modern || (name != METHOD_HEADER && (name != NAME_HEADER || outgoing.name.is_none())) {
            extra.push((name, value));
        }
    }
    if modern {
        let method = match Method::parse(&outgoing.method) {
            Some(method) => HeaderValue::from_static(method.as_str()),
            None => header_value(&outgoing.method)?,
        };
        extra.push((METHOD_HEADER.clone(), method));
        if let Some(name) = &outgoing.name {
            extra.push((NAME_HEADER.clone(), header_value(name)?));
        }
    }
    Ok(extra)
}

fn header_value(text: &str) -> Result<HeaderValue, LinkError> {
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
            self.link.queue_task(SessionTask::Post(wire::cancellation(id)));
        }
    }
}

impl Link for HttpLink {
    fn request<'a>(
        &'a self,
        outgoing: &'a Outgoing,
        listener: Arc<dyn Listener>,
    ) -> LocalBoxFuture<'a, Result<Response, LinkError>> {
        Box::pin(self.send(outgoing, listener))
    }

    fn notify<'a>(&'a self, method: &'a str, params: Option<&'a str>) -> LocalBoxFuture<'a, Result<(), LinkError>> {
        Box::pin(self.send_notification(method, params))
    }

    fn complete_handshake(&self, negotiated: &NegotiatedSession) {
        let modern = negotiated.revision.era() == Era::Modern;
        self.is_stateless.store(modern, Ordering::Relaxed);
        let session_id = self.shared.mode.load().session_id.clone().filter(|_| !modern);
        self.shared.set_mode(modern, Some(negotiated.revision), session_id);
    }

    fn closed(&self) -> CancellationToken {
        self.shared.closed.clone()
    }

    fn close(&self) {
        if !self.shared.closed.is_cancelled() {
            self.shared.end();
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

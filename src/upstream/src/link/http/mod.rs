//! Upstreams over Streamable HTTP of all revisions.
//!
//! Each request is one POST, sent from the caller's own thread over kept-alive connections of that thread. Each difference
//! between the eras has one place. [`link`] sets the headers and [`answer`] reads streams, while [`session_tasks`] and
//! [`listen`] only serve the handshake era (sessions, GET streams, answers to the server's requests).
//!
//! Redirects are not followed, because they would take the configured credentials elsewhere. There are no cookies.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use awc::http::{
    Uri,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use base64::Engine;
use futures_util::future::LocalBoxFuture;
use url::Url;

use super::{Connector, Link, LinkError, LinkKind, Listener, sse::SseConnector, ws::WsConnector};
use countersign_config::{Authorities, Secret, UpstreamConfig, UpstreamTarget, UrlTransport};

pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod head;
pub(crate) mod http1;
mod link;
mod listen;
mod session_tasks;
pub(crate) mod trust;

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
    pub trust: Arc<trust::Trust>,
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
                (Ok(name), Ok(value)) => headers.insert(name, value),
                // The error omits the value, which is a secret.
                _ => {
                    uri = Err(format!("the configured header `{name}` is not an HTTP header"));
                    continue;
                }
            };
        }
        Self { uri, headers, label: label.to_string(), trust: trust::Trust::new(authorities) }
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
        Box::pin(async move {
            let link = link::HttpLink::new(&self.target, unsolicited, &self.is_stateless)?;
            Ok(Arc::new(link) as Arc<dyn Link>)
        })
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

#[cfg(test)]
mod tests;

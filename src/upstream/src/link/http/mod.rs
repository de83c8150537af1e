//! Upstreams over HTTP: Streamable HTTP of all its revisions.
//!
//! One POST for each request, from the caller's own thread and with that thread's kept-alive connections. What differs
//! by era is in one place each: headers in [`link`], what a stream may carry in [`answer`], and everything that only
//! the handshake era has (a session, a GET stream, answers to the server's own requests) in [`chores`] and [`listen`].
//!
//! Redirects are not followed: they would take the configured credentials elsewhere. There are no cookies.

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
mod chores;
pub(crate) mod client;
pub(crate) mod head;
pub(crate) mod http1;
mod link;
mod listen;
pub(crate) mod trust;

/// The connector for one URL of a server: by the configured transport, else by the URL's scheme.
#[must_use]
pub fn connector(url: &Url, config: &Arc<UpstreamConfig>) -> Arc<dyn Connector> {
    let (headers, transport) = match &config.target {
        UpstreamTarget::Url { headers, transport, .. } => (&headers[..], *transport),
        UpstreamTarget::Command { .. } => (&[][..], UrlTransport::Auto),
    };
    let place = Place::new(url, headers, config.authorities.as_ref());
    match transport {
        UrlTransport::WebSocket => Arc::new(WsConnector { place }),
        UrlTransport::Auto if matches!(url.scheme(), "ws" | "wss") => Arc::new(WsConnector { place }),
        UrlTransport::Sse => Arc::new(SseConnector { place }),
        UrlTransport::Auto => HttpConnector::new(place, true),
        UrlTransport::StreamableHttp => HttpConnector::new(place, false),
    }
}

/// Where requests go, and the headers that all of them have.
#[derive(Clone)]
pub(crate) struct Place {
    pub uri: Result<Uri, String>,
    pub headers: HeaderMap,
    pub shown: String,
    pub trust: Arc<trust::Trust>,
}

impl Place {
    /// What is wrong with it shows when it is connected to; the configuration is checked before.
    pub fn new(url: &Url, configured: &[(String, Secret)], authorities: Option<&Authorities>) -> Self {
        let mut plain = url.clone();
        let _ = plain.set_username("");
        let _ = plain.set_password(None);
        plain.set_fragment(None);
        let mut shown = plain.clone();
        shown.set_query(None);

        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, HeaderValue::from_static(countersign_net::USER_AGENT));
        let mut uri = plain.as_str().parse::<Uri>().map_err(|error| error.to_string());
        if let Some(host) = host(&plain) {
            headers.insert(header::HOST, host);
        }
        if !url.username().is_empty() || url.password().is_some() {
            let decode = |text: &str| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>();
            let mut pair = decode(url.username());
            pair.push(b':');
            pair.extend(decode(url.password().unwrap_or_default()));
            let value = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair));
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(header::AUTHORIZATION, value);
            }
        }
        for (name, Secret(value)) in configured {
            match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
                (Ok(name), Ok(value)) => headers.insert(name, value),
                // The value is a secret.
                _ => {
                    uri = Err(format!("the configured header `{name}` is not an HTTP header"));
                    continue;
                }
            };
        }
        Self { uri, headers, shown: shown.to_string(), trust: trust::Trust::new(authorities) }
    }

    pub fn uri(&self) -> Result<Uri, LinkError> {
        self.uri.clone().map_err(LinkError::Unreachable)
    }
}

fn host(url: &Url) -> Option<HeaderValue> {
    let host = url.host_str()?;
    let text = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    HeaderValue::from_str(&text).ok()
}

struct HttpConnector {
    place: Place,
    /// The 2024-11-05 pair may be at the same URL.
    older: bool,
    /// The server turned out to be stateless.
    stateless: Arc<AtomicBool>,
}

impl HttpConnector {
    fn new(place: Place, older: bool) -> Arc<Self> {
        Arc::new(Self { place, older, stateless: Arc::new(AtomicBool::new(false)) })
    }
}

impl Connector for HttpConnector {
    fn connect<'a>(&'a self, unsolicited: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
        Box::pin(async move {
            let link = link::HttpLink::new(&self.place, unsolicited, &self.stateless)?;
            Ok(Arc::new(link) as Arc<dyn Link>)
        })
    }

    fn kind(&self) -> LinkKind {
        kind(&self.stateless)
    }

    fn probe_apart(&self) -> bool {
        false
    }

    fn fallback(&self) -> Option<Arc<dyn Connector>> {
        self.older.then(|| Arc::new(SseConnector { place: self.place.clone() }) as Arc<dyn Connector>)
    }

    fn describe(&self) -> String {
        self.place.shown.clone()
    }
}

fn kind(stateless: &AtomicBool) -> LinkKind {
    if stateless.load(Ordering::Relaxed) { LinkKind::Stateless } else { LinkKind::Streams }
}

#[cfg(test)]
mod tests;

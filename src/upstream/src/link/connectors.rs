//! The connectors of one server: of its command, or of each of its URLs.

use std::{path::Path, sync::Arc};

use awc::http::header;
use futures_util::future::LocalBoxFuture;
use url::Url;

use super::{
    Connector, Link, LinkError, LinkKind, Listener,
    child::ChildConnector,
    http::{HttpLink, HttpTarget},
    sse, ws,
};
use crate::credentials::Credentials;
use countersign_config::{UpstreamConfig, UpstreamTarget, UrlTransport};
use countersign_protocol::Era;

/// Creates the connectors of a server. `data` contains the folders of commands, and `max_message` limits their messages, in
/// bytes. Requests to URLs carry the token of the credentials.
pub(crate) fn create_connectors(
    config: &Arc<UpstreamConfig>,
    data: &Path,
    max_message: usize,
    credentials: Option<&Arc<dyn Credentials>>,
) -> Vec<Arc<dyn Connector>> {
    match &config.target {
        UpstreamTarget::Command { .. } => vec![Arc::new(ChildConnector::new(config, data, max_message))],
        UpstreamTarget::Url { urls, .. } => {
            let connector = |url| Arc::new(UrlConnector::new(url, config, credentials.cloned())) as Arc<dyn Connector>;
            urls.iter().map(connector).collect()
        }
    }
}

/// Opens links to one URL.
pub struct UrlConnector {
    pub(super) target: HttpTarget,
    /// Never [`UrlTransport::Auto`] for a WebSocket. For other URLs, `Auto` is Streamable HTTP, but the server may speak the
    /// transport of 2024-11-05 at the same URL instead.
    pub(super) transport: UrlTransport,
}

impl UrlConnector {
    /// Creates a connector that uses the configured transport, or else that of the URL's scheme.
    pub fn new(url: &Url, config: &UpstreamConfig, credentials: Option<Arc<dyn Credentials>>) -> Self {
        let (headers, transport) = match &config.target {
            UpstreamTarget::Url { headers, transport, .. } => (&headers[..], *transport),
            UpstreamTarget::Command { .. } => (&[][..], UrlTransport::Auto),
        };
        let transport = match transport {
            UrlTransport::Auto if matches!(url.scheme(), "ws" | "wss") => UrlTransport::WebSocket,
            configured => configured,
        };
        let mut target = HttpTarget::new(&config.name, url, headers, config.authorities.as_ref());
        // With a configured `Authorization` header, no account is used.
        target.access.credentials = credentials.filter(|_| !target.headers.contains_key(header::AUTHORIZATION));
        Self { target, transport }
    }
}

impl Connector for UrlConnector {
    fn connect<'a>(&'a self, unsolicited: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
        Box::pin(async move {
            let link: Arc<dyn Link> = match self.transport {
                UrlTransport::Auto | UrlTransport::StreamableHttp => {
                    Arc::new(HttpLink::new(&self.target, unsolicited)?)
                }
                UrlTransport::Sse => Arc::new(sse::open_link(&self.target, unsolicited).await?),
                UrlTransport::WebSocket => Arc::new(ws::open_link(&self.target, unsolicited).await?),
            };
            Ok(link)
        })
    }

    fn kind(&self) -> LinkKind {
        match self.transport {
            UrlTransport::Sse | UrlTransport::WebSocket => LinkKind::SingleStream,
            UrlTransport::Auto | UrlTransport::StreamableHttp => LinkKind::Streams,
        }
    }

    fn server_name(&self) -> &str {
        &self.target.server
    }

    fn era(&self) -> Option<Era> {
        (self.transport == UrlTransport::Sse).then_some(Era::Legacy)
    }

    fn fallback(&self) -> Option<Arc<dyn Connector>> {
        (self.transport == UrlTransport::Auto)
            .then(|| Arc::new(Self { target: self.target.clone(), transport: UrlTransport::Sse }) as Arc<dyn Connector>)
    }

    fn describe(&self) -> String {
        self.target.label.clone()
    }
}

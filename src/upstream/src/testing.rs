//! Fakes and helpers for the tests of links and their users.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "it is only built for tests")]

pub mod accounts;
pub mod fake;

use std::sync::Arc;

use parking_lot::Mutex;

use futures_util::future::LocalBoxFuture;
use tokio_util::sync::CancellationToken;

use awc::http::{
    Method, StatusCode,
    header::{HeaderName, HeaderValue},
};

use crate::{
    catalog::{Catalog, usable_definitions::UsableDefinitions},
    link::{
        Connector, Link, LinkError, LinkKind, Listener, MAX_MESSAGE_BYTES, NegotiatedSession, OutgoingRequest,
        Response, UpstreamNotification,
        http::{HttpTarget, answer, client, http1::Field},
    },
    server::Upstream,
};
use countersign_config::{Secret, UpstreamConfig};
use countersign_protocol::{Era, Revision, rpc_error::RpcError};
use countersign_provider::request::UpstreamRequest;

/// Records notifications and requests.
#[derive(Default)]
pub struct RecordingListener {
    notifications: Mutex<Vec<UpstreamNotification>>,
    requests: Mutex<Vec<UpstreamRequest>>,
}

impl RecordingListener {
    pub fn methods(&self) -> Vec<String> {
        self.notifications.lock().iter().map(|n| n.method.clone()).collect()
    }

    pub fn take_request(&self) -> UpstreamRequest {
        self.requests.lock().remove(0)
    }
}

impl Listener for RecordingListener {
    fn handle_notification(&self, notification: UpstreamNotification) {
        self.notifications.lock().push(notification);
    }

    fn handle_request(&self, request: UpstreamRequest) {
        self.requests.lock().push(request);
    }
}

pub fn negotiated(revision: Revision) -> NegotiatedSession {
    let capabilities: Box<serde_json::value::RawValue> = serde_json::from_str("{}").unwrap();
    NegotiatedSession { revision, capabilities: Arc::from(capabilities), server_info: None, instructions: None }
}

/// Returns the answer of a scripted server to one request.
pub type Script = Box<dyn Fn(&str, &OutgoingRequest) -> Result<Response, LinkError> + Send + Sync>;

/// A connector whose links answer from a script. It records what was sent.
pub struct ScriptedConnector {
    pub kind: LinkKind,
    pub fallback: Option<Arc<ScriptedConnector>>,
    /// `true` if the transport belongs to the handshake era.
    pub legacy_only: bool,
    pub script: Arc<Script>,
    pub sent_methods: Arc<Mutex<Vec<String>>>,
}

impl ScriptedConnector {
    /// Creates a connector. `script` receives the method and the request.
    pub fn new(
        kind: LinkKind,
        script: impl Fn(&str, &OutgoingRequest) -> Result<Response, LinkError> + Send + Sync + 'static,
    ) -> Self {
        let script: Script = Box::new(script);
        Self { kind, fallback: None, legacy_only: false, script: Arc::new(script), sent_methods: Arc::default() }
    }

    /// Returns the methods that were sent, with `connect` and `close` of links.
    pub fn sent_methods(&self) -> Vec<String> {
        self.sent_methods.lock().clone()
    }
}

impl Connector for ScriptedConnector {
    fn connect<'a>(&'a self, _: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
        self.sent_methods.lock().push("connect".to_owned());
        let link = ScriptedLink {
            script: Arc::clone(&self.script),
            sent_methods: Arc::clone(&self.sent_methods),
            closed: CancellationToken::new(),
        };
        Box::pin(async move { Ok(Arc::new(link) as Arc<dyn Link>) })
    }

    fn kind(&self) -> LinkKind {
        self.kind
    }

    fn era(&self) -> Option<Era> {
        self.legacy_only.then_some(Era::Legacy)
    }

    fn fallback(&self) -> Option<Arc<dyn Connector>> {
        self.fallback.clone().map(|fallback| fallback as Arc<dyn Connector>)
    }

    fn describe(&self) -> String {
        "scripted".to_owned()
    }
}

struct ScriptedLink {
    script: Arc<Script>,
    sent_methods: Arc<Mutex<Vec<String>>>,
    closed: CancellationToken,
}

impl Link for ScriptedLink {
    fn request<'a>(
        &'a self,
        outgoing: &'a OutgoingRequest,
        _: Arc<dyn Listener>,
    ) -> LocalBoxFuture<'a, Result<Response, LinkError>> {
        self.sent_methods.lock().push(outgoing.method.to_string());
        Box::pin(async move { (self.script)(&outgoing.method, outgoing) })
    }

    fn send_initialized(&self) -> LocalBoxFuture<'_, Result<(), LinkError>> {
        self.sent_methods.lock().push("notifications/initialized".to_owned());
        Box::pin(async { Ok(()) })
    }

    fn complete_handshake(&self, negotiated: &NegotiatedSession) {
        self.sent_methods.lock().push(format!("opened {}", negotiated.revision.as_str()));
    }

    fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    fn close(&self) {
        self.sent_methods.lock().push("close".to_owned());
        self.closed.cancel();
    }
}

pub fn result(json: &str) -> Result<Response, LinkError> {
    Ok(Response::Result(serde_json::from_str(json).unwrap()))
}

pub fn error(code: i64, data: Option<&str>) -> Result<Response, LinkError> {
    let data = data.map(|data| serde_json::from_str(data).unwrap());
    Ok(Response::Error(RpcError { code, message: "no".to_owned(), data, status: None }))
}

/// Returns an upstream that is connected to that server and has read its lists.
pub async fn connected_upstream(config: UpstreamConfig, server: &Arc<fake::FakeServer>) -> Arc<Upstream> {
    let upstream = Upstream::new(Arc::new(config), vec![Arc::clone(server) as _]);
    upstream.start();
    upstream.wait_until_settled().await;
    upstream
}

/// Returns an upstream with these lists that was never connected.
pub fn disconnected_upstream(config: UpstreamConfig, negotiated: NegotiatedSession, catalog: Catalog) -> Arc<Upstream> {
    let upstream = Upstream::new(Arc::new(config), Vec::new());
    replace_catalog(&upstream, catalog);
    upstream.negotiated.store(Some(Arc::new(negotiated)));
    upstream
}

/// Marks the lists of the upstream as read.
pub fn mark_lists_read(upstream: &Upstream) {
    upstream.mark_reached();
}

/// Replaces the lists of the upstream.
pub fn replace_catalog(upstream: &Upstream, catalog: Catalog) {
    upstream.definitions.store(Arc::new(UsableDefinitions::build(&upstream.config, &upstream.names, &catalog)));
    upstream.catalog.store(Arc::new(catalog));
}

/// Returns the URIs that clients watch.
pub fn watched_uris(upstream: &Upstream) -> Vec<String> {
    upstream.resource_watches.uris().into_iter().collect()
}

/// Resets the upstream to the state before it was first reached.
pub fn mark_never_reached(upstream: &Upstream) {
    upstream.negotiated.store(None);
}

/// The HTTP/1.1 client without a link, for `scripts/bench client`.
pub struct HttpPost(client::RequestHead);

impl HttpPost {
    /// Creates a client that sends `headers` with every request.
    ///
    /// # Errors
    /// As for a configured server.
    pub fn new(url: &url::Url, headers: &[(&str, &str)]) -> Result<Self, LinkError> {
        let configured: Vec<_> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), Secret((*value).to_owned()))).collect();
        let target = HttpTarget::new("benchmark", url, &configured, None);
        Ok(Self(client::RequestHead::new(Method::POST, target.uri()?, target.headers, &target.access)))
    }

    /// Sends a request like a stateless link, and reads the whole answer.
    ///
    /// # Errors
    /// As for a link.
    pub async fn send(&self, method: &'static str, name: &str, body: &bytes::Bytes) -> Result<bytes::Bytes, LinkError> {
        let mut extra = client::ExtraHeaders::new();
        extra.push((HeaderName::from_static("mcp-method"), HeaderValue::from_static(method)));
        extra.push((HeaderName::from_static("mcp-name"), HeaderValue::from_str(name).unwrap()));
        let mut response = client::send(&self.0, extra, body, None).await?;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.header(Field::ContentEncoding).is_none());
        answer::read_body(&mut response, MAX_MESSAGE_BYTES).await
    }
}

//! A fake server for tests, whose links are in memory and whose answers come from a closure.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json, value::RawValue};
use tokio_util::sync::CancellationToken;

use crate::credentials::AuthorizationError;
use crate::link::{
    Connector, Link, LinkError, LinkKind, Listener, NegotiatedSession, OutgoingRequest, Response, UpstreamNotification,
};
use countersign_protocol::{Era, rpc_error::RpcError};
use countersign_provider::request::UpstreamRequest;

/// The answer to a request.
pub type FakeReply = LocalBoxFuture<'static, Result<Response, LinkError>>;
type Answers = Box<dyn Fn(ReceivedRequest) -> FakeReply + Send + Sync>;

/// A request as received by the server.
pub struct ReceivedRequest {
    pub method: String,
    pub params: Value,
    /// Headers that accompany the request over HTTP.
    pub headers: Vec<(Box<str>, Box<str>)>,
    pub listener: Arc<dyn Listener>,
    /// The link that the request arrived on.
    pub link: Arc<FakeLink>,
}

/// A server whose behaviour is set by the test.
pub struct FakeServer {
    kind: LinkKind,
    era: Mutex<Era>,
    pub capabilities: Mutex<Value>,
    pub version: Mutex<&'static str>,
    pub lists: Mutex<HashMap<&'static str, Value>>,
    /// The tools that are listed for clients that can be asked questions.
    pub tools_for_askable_clients: Mutex<Option<Value>>,
    /// Answers everything except the handshake and the lists.
    answers: Mutex<Answers>,
    pub links: Mutex<Vec<Arc<FakeLink>>>,
    /// Methods in order of arrival, without those of the handshake.
    pub log: Mutex<Vec<String>>,
    /// The number of requests whose futures were dropped before the answer.
    pub dropped_requests: AtomicUsize,
    /// `true` if connections are refused.
    pub unreachable: Mutex<bool>,
    /// Set if connections are refused because their account cannot be used.
    pub refusal: Mutex<Option<AuthorizationError>>,
    /// Set if the server does not speak its own transport, but that of this one.
    pub fallback: Mutex<Option<Arc<FakeServer>>>,
    weak_self: std::sync::Weak<FakeServer>,
}

impl FakeServer {
    pub fn new(era: Era, kind: LinkKind) -> Arc<Self> {
        Arc::new_cyclic(|weak_self| Self {
            kind,
            era: Mutex::new(era),
            capabilities: Mutex::new(json!({ "tools": { "listChanged": true } })),
            version: Mutex::new("1"),
            lists: Mutex::new(HashMap::from([("tools/list", tools(&["echo"]))])),
            tools_for_askable_clients: Mutex::default(),
            answers: Mutex::new(Box::new(|_| Box::pin(std::future::ready(ok(json!({ "content": [] })))))),
            links: Mutex::default(),
            log: Mutex::default(),
            dropped_requests: AtomicUsize::new(0),
            unreachable: Mutex::new(false),
            refusal: Mutex::default(),
            fallback: Mutex::default(),
            weak_self: weak_self.clone(),
        })
    }

    pub fn answer_with(&self, answers: impl Fn(ReceivedRequest) -> FakeReply + Send + Sync + 'static) {
        *self.answers.lock() = Box::new(answers);
    }

    /// Replaces the server by one of another era, which refuses the requests on links that are open.
    pub fn change_era(&self, era: Era) {
        *self.era.lock() = era;
    }

    /// Returns the number of links that were ever opened.
    pub fn link_count(&self) -> usize {
        self.links.lock().len()
    }

    /// Returns the maximum number of concurrent calls on one link.
    pub fn max_concurrent_calls(&self) -> usize {
        self.links.lock().iter().map(|link| link.peak.load(Ordering::SeqCst)).max().unwrap_or(0)
    }

    /// Returns the open links.
    pub fn open_links(&self) -> Vec<Arc<FakeLink>> {
        self.links.lock().iter().filter(|link| !link.closed.is_cancelled()).cloned().collect()
    }

    pub fn request_count(&self, method: &str) -> usize {
        self.log.lock().iter().filter(|m| *m == method).count()
    }

    /// Ends the sessions of all links, as a restart of the server does.
    pub fn end_sessions(&self) {
        self.links.lock().iter().for_each(|link| link.session_ended.store(true, Ordering::SeqCst));
    }

    pub fn set_unreachable(&self, unreachable: bool) {
        *self.unreachable.lock() = unreachable;
    }
}

/// One connection to the server.
pub struct FakeLink {
    server: Arc<FakeServer>,
    /// The era of the server when the link was opened.
    era: Era,
    pub closed: CancellationToken,
    pub unsolicited: Arc<dyn Listener>,
    /// The reason for which the link was abandoned.
    abandon_reason: Mutex<Option<LinkError>>,
    /// Every request gets [`LinkError::SessionGone`].
    session_ended: AtomicBool,
    /// The capabilities that `initialize` declared.
    pub declared: Mutex<Value>,
    pub in_flight: AtomicUsize,
    /// The maximum number of concurrent calls.
    pub peak: AtomicUsize,
}

impl FakeLink {
    /// Sends a notification that belongs to no request.
    pub fn send_notification(&self, method: &str, params: Value) {
        self.unsolicited.handle_notification(notification(method, params));
    }
}

impl Connector for FakeServer {
    fn connect<'a>(&'a self, unsolicited: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
        Box::pin(async move {
            if *self.unreachable.lock() {
                return Err(LinkError::Unreachable("refused".into()));
            }
            if let Some(failure) = &*self.refusal.lock() {
                self.log.lock().push("refused".to_owned());
                return Err(LinkError::Unauthorized(failure.clone()));
            }
            if self.fallback.lock().is_some() {
                return Err(LinkError::Status { status: 404, body: String::new() });
            }
            let mut links = self.links.lock();
            let link = Arc::new(FakeLink {
                server: self.weak_self.upgrade().unwrap(),
                era: *self.era.lock(),
                closed: CancellationToken::new(),
                unsolicited,
                abandon_reason: Mutex::default(),
                session_ended: AtomicBool::new(false),
                declared: Mutex::default(),
                in_flight: AtomicUsize::new(0),
                peak: AtomicUsize::new(0),
            });
            links.push(Arc::clone(&link));
            Ok(Arc::new(FakeLinkHandle(link)) as Arc<dyn Link>)
        })
    }

    fn kind(&self) -> LinkKind {
        self.kind
    }

    fn era(&self) -> Option<Era> {
        // The transport determines the era, so that tests of the handshake era need no probe.
        Some(*self.era.lock()).filter(|era| *era == Era::Legacy)
    }

    fn fallback(&self) -> Option<Arc<dyn Connector>> {
        self.fallback.lock().clone().map(|fallback| fallback as Arc<dyn Connector>)
    }

    fn describe(&self) -> String {
        "fake".into()
    }
}

struct FakeLinkHandle(Arc<FakeLink>);

/// Counts a request until its future is dropped.
struct InFlight {
    link: Arc<FakeLink>,
    is_answered: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.link.in_flight.fetch_sub(1, Ordering::SeqCst);
        if !self.is_answered {
            self.link.server.dropped_requests.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Link for FakeLinkHandle {
    fn request<'a>(
        &'a self,
        outgoing: &'a OutgoingRequest,
        listener: Arc<dyn Listener>,
    ) -> LocalBoxFuture<'a, Result<Response, LinkError>> {
        let link = Arc::clone(&self.0);
        let server = Arc::clone(&link.server);
        let body: Value = serde_json::from_slice(&outgoing.body).unwrap();
        let params = body["params"].clone();
        let method = outgoing.method.to_string();
        let server_era = *server.era.lock();
        match method.as_str() {
            "initialize" if server_era == Era::Modern => return Box::pin(std::future::ready(refuse(server_era))),
            "initialize" => {
                *link.declared.lock() = params["capabilities"].clone();
                let result = json!({
                    "protocolVersion": "2025-11-25", "capabilities": *server.capabilities.lock(),
                    "serverInfo": { "name": "fake", "version": *server.version.lock() },
                });
                return Box::pin(std::future::ready(ok(result)));
            }
            "server/discover" => {
                let result = json!({
                    "resultType": "complete", "supportedVersions": ["2026-07-28"],
                    "capabilities": *server.capabilities.lock(),
                });
                return Box::pin(std::future::ready(ok(result)));
            }
            _ => {}
        }
        if *server.unreachable.lock() {
            return Box::pin(std::future::ready(Err(LinkError::Unreachable("refused".into()))));
        }
        if link.session_ended.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(Err(LinkError::SessionGone)));
        }
        server.log.lock().push(method.clone());
        if link.era != server_era {
            return Box::pin(std::future::ready(refuse(server_era)));
        }
        if let Some(key) = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"]
            .into_iter()
            .find(|key| *key == method)
        {
            let page = params["cursor"].as_str().map_or(0, |cursor| cursor.parse::<usize>().unwrap());
            let more = server.tools_for_askable_clients.lock().clone().filter(|_| *link.declared.lock() != json!({}));
            if let Some(tools) = more.filter(|_| key == "tools/list") {
                return Box::pin(std::future::ready(ok(tools)));
            }
            let answer = match server.lists.lock().get(key) {
                Some(Value::Array(pages)) => ok(pages[page].clone()),
                Some(page) => ok(page.clone()),
                None => Ok(Response::Error(RpcError::new(-32601, "no such method"))),
            };
            return Box::pin(std::future::ready(answer));
        }
        let peak = link.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        link.peak.fetch_max(peak, Ordering::SeqCst);
        let in_flight = InFlight { link: Arc::clone(&link), is_answered: false };
        // As at a real server over HTTP, a call has a connection of its own, which stays when the link closes.
        let ends_with_link = server.kind == LinkKind::SingleStream;
        let answer = (server.answers.lock())(ReceivedRequest {
            method,
            params,
            headers: outgoing.headers.clone(),
            listener,
            link: Arc::clone(&link),
        });
        Box::pin(async move {
            // The whole guard is moved into the future, and not only its field.
            let mut in_flight = in_flight;
            let answer = tokio::select! {
                biased;
                answer = answer => answer,
                () = link.closed.cancelled(), if ends_with_link => {
                    Err(link.abandon_reason.lock().clone().unwrap_or(LinkError::Lost("closed".into())))
                }
            };
            in_flight.is_answered = true;
            answer
        })
    }

    fn send_initialized(&self) -> LocalBoxFuture<'_, Result<(), LinkError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn complete_handshake(&self, _: &NegotiatedSession) {}

    fn closed(&self) -> CancellationToken {
        self.0.closed.clone()
    }

    fn close(&self) {
        self.0.closed.cancel();
    }

    fn abandon(&self, abandon_reason: LinkError) {
        *self.0.abandon_reason.lock() = Some(abandon_reason);
        self.close();
    }
}

pub fn ok(result: Value) -> Result<Response, LinkError> {
    Ok(Response::Result(RawValue::from_string(result.to_string()).unwrap()))
}

/// Refuses a request of the other era as an HTTP server of this era does.
fn refuse(era: Era) -> Result<Response, LinkError> {
    let (code, message) = match era {
        Era::Modern => (-32602, "`_meta` is missing"),
        Era::Legacy => (-32000, "Bad Request: Server not initialized"),
    };
    Ok(Response::Error(RpcError { status: Some(400), ..RpcError::new(code, message) }))
}

/// Returns a `tools/list` result of tools with these names.
pub fn tools(names: &[&str]) -> Value {
    let tools: Vec<_> = names.iter().map(|name| json!({ "name": name, "inputSchema": { "type": "object" } })).collect();
    json!({ "tools": tools })
}

pub fn notification(method: &str, params: Value) -> UpstreamNotification {
    UpstreamNotification { method: method.into(), params: Some(RawValue::from_string(params.to_string()).unwrap()) }
}

/// Creates a server's question, and the receiver of its answer.
pub fn question() -> (UpstreamRequest, tokio::sync::oneshot::Receiver<Result<Box<RawValue>, RpcError>>) {
    let (sender, answer) = tokio::sync::oneshot::channel();
    let request = UpstreamRequest {
        id: countersign_protocol::RequestId::from_raw("\"q\""),
        method: "elicitation/create".into(),
        params: None,
        reply: countersign_provider::request::Replier::new(move |answer| drop(sender.send(answer))),
        cancelled: CancellationToken::new(),
    };
    (request, answer)
}

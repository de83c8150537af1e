//! Tokens on each kind of request, against a server that records them.

use std::sync::Arc;

use actix_web::{
    App, HttpRequest, HttpResponse, HttpServer,
    dev::ServerHandle,
    web::{self, Data},
};
use awc::http::{Method, Uri, header::AUTHORIZATION};
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use url::Url;

use super::*;
use crate::{
    credentials::AuthorizationHeaders,
    link::{Connector, Link, OutgoingRequest, Response, connectors::UrlConnector, handshake},
    testing::{RecordingListener, accounts::FakeAccount, negotiated},
    tests::wait_until,
};
use countersign_config::{Secret, UpstreamConfig, UpstreamTarget, UrlTransport};
use countersign_protocol::{Revision, negotiate::ClientCapabilities};

/// A server that accepts one token.
#[derive(Default)]
struct TokenServer {
    accepted: Mutex<String>,
    /// The status of refusals.
    refusal: Mutex<u16>,
    /// The method and the token of each request.
    received: Mutex<Vec<(String, String)>>,
}

impl TokenServer {
    fn tokens_of(&self, method: &str) -> Vec<String> {
        let received = self.received.lock();
        received.iter().filter(|(other, _)| other == method).map(|(_, token)| token.clone()).collect()
    }
}

async fn answer(request: HttpRequest, body: web::Payload, server: Data<TokenServer>) -> HttpResponse {
    // The body of a request for an upgrade does not end.
    let body = if request.method() == Method::POST { body.to_bytes().await.unwrap() } else { Bytes::new() };
    let values: Vec<&str> = request.headers().get_all(AUTHORIZATION).map(|value| value.to_str().unwrap()).collect();
    let token = values.join(" and ");
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let method = message["method"].as_str().unwrap_or(request.method().as_str()).to_owned();
    server.received.lock().push((method.clone(), token.clone()));
    if token != format!("Bearer {}", server.accepted.lock()) {
        let status = StatusCode::from_u16(*server.refusal.lock()).unwrap();
        return HttpResponse::build(status)
            .append_header((WWW_AUTHENTICATE, "Basic realm=\"a\""))
            .append_header((WWW_AUTHENTICATE, "Bearer scope=\"b\""))
            .append_header(("DPoP-Nonce", "n1"))
            .finish();
    }
    let events = |text: String| HttpResponse::Ok().content_type("text/event-stream").body(text);
    match (request.path(), method.as_str()) {
        ("/sse", "GET") => {
            let opening = futures_util::stream::once(async { Ok::<_, std::io::Error>("event: endpoint\ndata: /posts\n\n".into()) });
            let stream = futures_util::StreamExt::chain(opening, futures_util::stream::pending());
            HttpResponse::Ok().content_type("text/event-stream").streaming(stream)
        }
        (_, "initialize") => HttpResponse::Ok().insert_header(("mcp-session-id", "s1")).json(json!({
            "jsonrpc": "2.0", "id": message["id"],
            "result": { "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": { "name": "s", "version": "1" } },
        })),
        // The stream breaks off before the answer and is resumed.
        (_, "resumed") => events("id: 7\nretry: 100\ndata: \n\n".to_owned()),
        (_, "GET") if request.headers().contains_key("last-event-id") => {
            events(format!("data: {}\n\n", json!({ "jsonrpc": "2.0", "id": 5, "result": {} })))
        }
        (_, "GET") => HttpResponse::MethodNotAllowed().finish(),
        (_, "DELETE") => HttpResponse::NoContent().finish(),
        _ if message["id"].is_null() => HttpResponse::Accepted().finish(),
        _ => HttpResponse::Ok()
            .insert_header(("DPoP-Nonce", "n2"))
            .json(json!({ "jsonrpc": "2.0", "id": message["id"], "result": {} })),
    }
}

async fn start() -> (Data<TokenServer>, u16, ServerHandle) {
    let server =
        Data::new(TokenServer { accepted: Mutex::new("good".into()), refusal: Mutex::new(401), ..Default::default() });
    let data = server.clone();
    let http = HttpServer::new(move || App::new().app_data(data.clone()).default_service(web::to(answer)))
        .workers(1)
        .shutdown_timeout(0)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .unwrap();
    let port = http.addrs()[0].port();
    let running = http.run();
    let handle = running.handle();
    actix_web::rt::spawn(running);
    (server, port, handle)
}

fn connector(
    url: &str,
    transport: UrlTransport,
    headers: Vec<(String, Secret)>,
    account: &Arc<FakeAccount>,
) -> UrlConnector {
    let url: Url = url.parse().unwrap();
    let target = UpstreamTarget::Url { urls: vec![url.clone()], headers, transport };
    UrlConnector::new(&url, &UpstreamConfig::new("s", target), Some(Arc::clone(account) as _))
}

/// Opens a stateless link.
async fn open(port: u16, account: &Arc<FakeAccount>, headers: Vec<(String, Secret)>) -> Arc<dyn Link> {
    let url = format!("http://127.0.0.1:{port}/mcp");
    let connector = connector(&url, UrlTransport::StreamableHttp, headers, account);
    let link = connector.connect(Arc::new(RecordingListener::default())).await.unwrap();
    link.complete_handshake(&negotiated(Revision::MODERN));
    link
}

async fn call(link: &dyn Link, outgoing: &OutgoingRequest) -> Result<Response, LinkError> {
    link.request(outgoing, Arc::new(RecordingListener::default())).await
}

#[actix::test]
async fn each_request_of_a_session_carries_the_token() {
    let (server, port, handle) = start().await;
    let account = FakeAccount::new("good");
    let url = format!("http://127.0.0.1:{port}/mcp");
    let connector = connector(&url, UrlTransport::StreamableHttp, Vec::new(), &account);
    let listener = Arc::new(RecordingListener::default());
    let (link, _) = handshake::open(&connector, None, &ClientCapabilities::default(), listener).await.unwrap();
    assert!(call(&*link, &OutgoingRequest::new(4, "tools/list", None)).await.is_ok());
    assert!(call(&*link, &OutgoingRequest::new(5, "resumed", None)).await.is_ok());
    // A request whose future is dropped is cancelled by a message of its own.
    drop(link.request(&OutgoingRequest::new(6, "tools/call", None), Arc::new(RecordingListener::default())));
    link.close();
    wait_until(|| !server.tokens_of("DELETE").is_empty()).await;
    for method in ["initialize", "notifications/initialized", "tools/list", "resumed", "GET", "DELETE"] {
        let tokens = server.tokens_of(method);
        assert!(!tokens.is_empty() && tokens.iter().all(|token| token == "Bearer good"), "{method}: {tokens:?}");
    }
    assert_eq!(server.tokens_of("GET").len(), 2, "the stream of the session and the resumed one");
    assert!(account.refusals.lock().is_empty());
    handle.stop(false).await;
}

#[actix::test]
async fn sse_opening_carries_the_token() {
    let (server, port, handle) = start().await;
    let account = FakeAccount::new("old");
    account.renewed.lock().push("good".into());
    let sse = connector(&format!("http://127.0.0.1:{port}/sse"), UrlTransport::Sse, Vec::new(), &account);
    let link = sse.connect(Arc::new(RecordingListener::default())).await.unwrap();
    assert_eq!(server.tokens_of("GET"), ["Bearer old", "Bearer good"]);
    link.send_initialized().await.unwrap();
    wait_until(|| !server.tokens_of("notifications/initialized").is_empty()).await;
    assert_eq!(server.tokens_of("notifications/initialized"), ["Bearer good"]);
    link.close();
    handle.stop(false).await;
}

#[actix::test]
async fn refused_request_is_repeated_with_a_better_token() {
    let (server, port, handle) = start().await;
    for status in [401, 403] {
        *server.refusal.lock() = status;
        let account = FakeAccount::new("old");
        account.renewed.lock().extend(["older".to_owned(), "good".to_owned()]);
        let link = open(port, &account, Vec::new()).await;
        let forwarded = vec![("authorization".into(), "Bearer of-the-client".into())];
        let outgoing = OutgoingRequest { headers: forwarded, ..OutgoingRequest::new(1, "tools/call", None) };
        assert!(call(&*link, &outgoing).await.is_ok());
        assert_eq!(server.tokens_of("tools/call"), ["Bearer old", "Bearer older", "Bearer good"]);
        let refusal = account.refusals.lock()[0].clone();
        let challenges = vec!["Basic realm=\"a\"".to_owned(), "Bearer scope=\"b\"".to_owned()];
        assert_eq!(refusal, HttpRefusal { status, challenges, dpop_nonce: Some("n1".into()) });
        server.received.lock().clear();
    }
    // The number of refusals is bounded.
    let account = FakeAccount::new("bad");
    account.renewed.lock().extend((0..20).map(|n| n.to_string()));
    let link = open(port, &account, Vec::new()).await;
    let refused = call(&*link, &OutgoingRequest::new(1, "tools/call", None)).await;
    assert!(matches!(refused, Err(LinkError::Unauthorized(AuthorizationError::Refused(_)))), "{refused:?}");
    assert_eq!(server.tokens_of("tools/call").len(), MAX_REFUSALS as usize);
    // Without a token the person is asked, and nothing more is sent.
    account.renewed.lock().clear();
    for _ in 0..2 {
        let refused = call(&*link, &OutgoingRequest::new(2, "tools/list", None)).await;
        assert!(matches!(refused, Err(LinkError::Unauthorized(AuthorizationError::ConsentNeeded(_)))), "{refused:?}");
    }
    assert_eq!(server.tokens_of("tools/list").len(), 1);
    handle.stop(false).await;
}

#[actix::test]
async fn request_with_a_permit_is_sent_once() {
    let (server, port, handle) = start().await;
    for (status, unavailable) in [(401, false), (403, false), (401, true)] {
        *server.refusal.lock() = status;
        let account = FakeAccount::new("old");
        account.renewed.lock().push("good".into());
        let link = open(port, &account, Vec::new()).await;
        let permit = {
            // The authorization server fails after the request was sent.
            let account = Arc::clone(&account);
            Permit(Arc::new(move || {
                *account.unavailable.lock() = unavailable;
                true
            }))
        };
        let approved = OutgoingRequest { permit: Some(permit), ..OutgoingRequest::new(1, "tools/call", None) };
        let refused = call(&*link, &approved).await;
        assert!(matches!(refused, Err(LinkError::Unauthorized(AuthorizationError::Refused(_)))), "{refused:?}");
        assert_eq!(std::mem::take(&mut *server.received.lock()).len(), 1);
    }
    handle.stop(false).await;
}

#[actix::test]
async fn configured_authorization_header_excludes_the_account() {
    let (server, port, handle) = start().await;
    let account = FakeAccount::new("good");
    let configured = vec![("Authorization".to_owned(), Secret("Bearer configured".into()))];
    let link = open(port, &account, configured).await;
    let refused = call(&*link, &OutgoingRequest::new(1, "tools/call", None)).await;
    assert!(matches!(refused, Err(LinkError::Status { status: 401, .. })), "{refused:?}");
    assert_eq!(server.tokens_of("tools/call"), ["Bearer configured"]);
    handle.stop(false).await;
}

/// An account whose token is bound to a key.
struct BoundAccount(Arc<FakeAccount>);

impl Credentials for BoundAccount {
    fn authorize<'a>(
        &'a self,
        method: &'a str,
        uri: &'a Uri,
    ) -> LocalBoxFuture<'a, Result<AuthorizationHeaders, AuthorizationError>> {
        Box::pin(async move {
            let mut headers = self.0.authorize(method, uri).await?;
            headers.push((DPOP.clone(), format!("{method} {uri}").parse().unwrap()));
            Ok(headers)
        })
    }

    fn handle_refusal<'a>(
        &'a self,
        refusal: &'a HttpRefusal,
        headers: &'a AuthorizationHeaders,
        attempt: u32,
    ) -> LocalBoxFuture<'a, Result<(), AuthorizationError>> {
        self.0.handle_refusal(refusal, headers, attempt)
    }

    fn learn_nonce(&self, nonce: &str) {
        self.0.learn_nonce(nonce);
    }

    fn prepare(&self) -> LocalBoxFuture<'_, Result<(), AuthorizationError>> {
        self.0.prepare()
    }
}

#[actix::test]
async fn nonce_of_an_answer_is_learned() {
    let (_server, port, handle) = start().await;
    let account = FakeAccount::new("good");
    let url: Url = format!("http://127.0.0.1:{port}/mcp").parse().unwrap();
    let target = UpstreamTarget::Url { urls: vec![url.clone()], headers: Vec::new(), transport: UrlTransport::Auto };
    let bound = Arc::new(BoundAccount(Arc::clone(&account)));
    let connector = UrlConnector::new(&url, &UpstreamConfig::new("s", target), Some(bound));
    let link = connector.connect(Arc::new(RecordingListener::default())).await.unwrap();
    link.complete_handshake(&negotiated(Revision::MODERN));
    assert!(call(&*link, &OutgoingRequest::new(1, "tools/call", None)).await.is_ok());
    assert_eq!(*account.nonces.lock(), ["n2"]);
    handle.stop(false).await;
}

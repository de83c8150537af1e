//! TLS and HTTP/2, against a server with a certificate of its own, and the end of a session.

use std::{
    process::Command,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use bytes::Bytes;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::*;
use crate::{
    link::{Connector, OutgoingRequest, Response, connectors::UrlConnector},
    testing::{RecordingListener, negotiated},
};
use countersign_config::{Authorities, UpstreamConfig, UpstreamTarget, UrlTransport};
use countersign_protocol::Revision;
use countersign_provider::Permit;

/// Sends a message when it is dropped, which is when its stream ends.
struct DropSignal(UnboundedSender<()>);

impl Drop for DropSignal {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

async fn answer(request: HttpRequest, body: Bytes, ended: web::Data<UnboundedSender<()>>) -> HttpResponse {
    let message: Value = serde_json::from_slice(&body).unwrap();
    let version = format!("{:?}", request.version());
    let host = request.connection_info().host().to_owned();
    let result = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"version": version, "host": host}});
    if message["method"] == "withheld" {
        let _ = ended.send(());
    }
    if message["method"] == "endless" {
        let signal = DropSignal(ended.as_ref().clone());
        // An actix server notices a closed HTTP/2 stream only when it writes to the stream.
        let stream = futures_util::stream::unfold(signal, |signal| async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let event = b"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n";
            Some((Ok::<_, std::io::Error>(Bytes::from_static(event)), signal))
        });
        return HttpResponse::Ok().content_type("text/event-stream").streaming(stream);
    }
    if message["method"] == "stream" {
        // The answer comes after a batch with a malformed message.
        let batch = r#"[{"jsonrpc":"2.0","method":"notifications/message"},7]"#;
        let events = format!("data: {batch}\n\ndata: {result}\n\n");
        return HttpResponse::Ok().content_type("text/event-stream").body(events);
    }
    HttpResponse::Ok().json(result)
}

/// Creates a certificate for localhost with the system's openssl.
fn certificate(dir: &std::path::Path) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            "basicConstraints=CA:FALSE",
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (CertificateDer::from_pem_file(&cert).unwrap(), PrivateKeyDer::from_pem_file(&key).unwrap())
}

#[actix::test]
async fn tls_is_verified_and_http2_used_if_offered() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(dir.path());
    let (ended, mut has_ended) = unbounded_channel::<()>();
    let authorities = Authorities { file: "ca.pem".into(), certificates: vec![cert.clone()] };
    for (http2, version) in [(true, "HTTP/2.0"), (false, "HTTP/1.1")] {
        let mut tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.clone()], key.clone_key())
            .unwrap();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let ended = ended.clone();
        let server = HttpServer::new(move || {
            App::new().app_data(web::Data::new(ended.clone())).route("/mcp", web::post().to(answer))
        })
        .workers(1)
        .shutdown_timeout(0)
        .disable_signals();
        // The server always offers HTTP/2, so the client is configured to refuse it.
        let server = server.bind_rustls_0_23(("127.0.0.1", 0), tls).unwrap();
        let url = Url::parse(&format!("https://localhost:{}/mcp", server.addrs()[0].port())).unwrap();
        let running = server.run();
        let handle = running.handle();
        actix_web::rt::spawn(running);

        let open = async |trust: &Arc<trust::TlsTrust>| {
            let access = Access { trust: Arc::clone(trust), credentials: None };
            let target = HttpTarget { access, ..HttpTarget::new("s", &url, &[], None) };
            let transport = UrlTransport::Auto;
            let connector = UrlConnector { target, transport };
            let link = connector.connect(Arc::new(RecordingListener::default())).await.unwrap();
            link.complete_handshake(&negotiated(Revision::MODERN));
            link
        };
        let public = open(&trust::TlsTrust::new(None)).await;
        let refused =
            public.request(&OutgoingRequest::new(1, "json", None), Arc::new(RecordingListener::default())).await;
        assert!(matches!(&refused, Err(LinkError::Unreachable(_))), "{refused:?}");

        let mut trust = trust::TlsTrust::new(Some(&authorities));
        if !http2 {
            let config = trust.http1_config();
            Arc::get_mut(&mut trust).unwrap().config = config;
        }
        let link = open(&trust).await;
        for (id, method) in [(2, "json"), (3, "stream"), (4, "json")] {
            let answer =
                link.request(&OutgoingRequest::new(id, method, None), Arc::new(RecordingListener::default())).await;
            let Ok(Response::Result(result)) = answer else { panic!("{answer:?}") };
            let result: Value = serde_json::from_str(result.get()).unwrap();
            assert_eq!(
                (result["version"].as_str(), result["host"].as_str()),
                (Some(version), Some(&url[url::Position::BeforeHost..url::Position::AfterPort]))
            );
        }
        // The request is not sent, although the connection is open.
        let withheld =
            OutgoingRequest { permit: Some(Permit(Arc::new(|| false))), ..OutgoingRequest::new(7, "withheld", None) };
        let refused = link.request(&withheld, Arc::new(RecordingListener::default())).await;
        assert!(matches!(refused, Err(LinkError::PermitExpired)), "{refused:?}");
        let permitted =
            OutgoingRequest { permit: Some(Permit(Arc::new(|| true))), ..OutgoingRequest::new(8, "json", None) };
        assert!(link.request(&permitted, Arc::new(RecordingListener::default())).await.is_ok());
        assert!(has_ended.try_recv().is_err());
        // Dropping a request only closes its own stream.
        let listener = Arc::new(RecordingListener::default());
        {
            let outgoing = OutgoingRequest::new(5, "endless", None);
            let mut endless = link.request(&outgoing, listener.clone());
            while listener.methods().is_empty() {
                assert!(tokio::time::timeout(Duration::from_millis(5), &mut endless).await.is_err());
            }
            assert!(has_ended.try_recv().is_err());
        }
        tokio::time::timeout(Duration::from_secs(20), has_ended.recv()).await.unwrap();
        assert!(
            link.request(&OutgoingRequest::new(6, "json", None), Arc::new(RecordingListener::default())).await.is_ok()
        );
        // The client remembers the version of HTTP, so that it opens no connection in vain.
        assert_eq!(trust.is_http2.load(Ordering::Relaxed), http2);
        handle.stop(false).await;
    }
}

#[actix::test]
async fn expired_permit_stops_call_when_connection_is_ready() {
    let server = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    server.set_nonblocking(true).unwrap();
    let url = Url::parse(&format!("http://{}/mcp", server.local_addr().unwrap())).unwrap();
    let target = UpstreamTarget::Url { urls: vec![url.clone()], headers: Vec::new(), transport: UrlTransport::Auto };
    let connector = UrlConnector::new(&url, &UpstreamConfig::new("s", target), None);
    let link = connector.connect(Arc::new(RecordingListener::default())).await.unwrap();
    link.complete_handshake(&negotiated(Revision::MODERN));
    // The permit is valid until the server accepts the connection.
    let connection = Arc::new(std::sync::Mutex::new(None));
    let accepted = Arc::clone(&connection);
    let permit = Permit(Arc::new(move || {
        let Ok((stream, _)) = server.accept() else { return true };
        *accepted.lock().unwrap() = Some(stream);
        false
    }));
    let outgoing = OutgoingRequest { permit: Some(permit), ..OutgoingRequest::new(1, "tools/call", None) };
    let refused = link.request(&outgoing, Arc::new(RecordingListener::default()));
    let refused = tokio::time::timeout(Duration::from_secs(30), refused).await.unwrap();
    assert!(matches!(refused, Err(LinkError::PermitExpired)), "{refused:?}");
    let mut stream = connection.lock().unwrap().take().unwrap();
    stream.set_nonblocking(false).unwrap();
    assert_eq!(std::io::Read::read(&mut stream, &mut [0]).unwrap(), 0, "the stream ends without a single byte");
}

#[actix::test]
async fn own_authorities_apply_to_one_server_over_each_transport() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(dir.path());
    let tls = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(vec![cert.clone()], key).unwrap();
    let server = HttpServer::new(|| {
        App::new()
            .app_data(web::Data::new(unbounded_channel::<()>().0))
            .route("/mcp", web::post().to(answer))
            .route("/sse", web::get().to(|| async { HttpResponse::Forbidden().finish() }))
    })
    .workers(1)
    .shutdown_timeout(0)
    .disable_signals();
    let server = server.bind_rustls_0_23(("127.0.0.1", 0), tls).unwrap();
    let port = server.addrs()[0].port();
    let running = server.run();
    let handle = running.handle();
    actix_web::rt::spawn(running);
    let connector_for = |scheme: &str, path: &str, transport, trusted: bool| {
        let url = Url::parse(&format!("{scheme}://localhost:{port}/{path}")).unwrap();
        let target = UpstreamTarget::Url { urls: vec![url.clone()], headers: Vec::new(), transport };
        let mut config = UpstreamConfig::new("s", target);
        config.authorities = trusted.then(|| Authorities { file: "ca.pem".into(), certificates: vec![cert.clone()] });
        UrlConnector::new(&url, &config, None)
    };
    let post = |trusted: bool| {
        let connector = connector_for("https", "mcp", UrlTransport::StreamableHttp, trusted);
        async move {
            let link = connector.connect(Arc::new(RecordingListener::default())).await.unwrap();
            link.complete_handshake(&negotiated(Revision::MODERN));
            link.request(&OutgoingRequest::new(1, "json", None), Arc::new(RecordingListener::default())).await
        }
    };
    assert!(matches!(post(true).await, Ok(Response::Result(_))));
    let refused = post(false).await;
    assert!(
        matches!(refused, Err(LinkError::Unreachable(_))),
        "the authorities only apply to that server: {refused:?}"
    );
    // Only the TLS handshake succeeds, because the server speaks neither of these transports.
    for (scheme, path, transport, status) in
        [("wss", "none", UrlTransport::Auto, 404), ("https", "sse", UrlTransport::Sse, 403)]
    {
        let open = |trusted| {
            let connector = connector_for(scheme, path, transport, trusted);
            async move { connector.connect(Arc::new(RecordingListener::default())).await.map(drop) }
        };
        let refused = open(false).await;
        assert!(matches!(refused, Err(LinkError::Unreachable(_))), "{scheme}: {refused:?}");
        let answered = open(true).await;
        assert!(
            matches!(&answered, Err(LinkError::Status { status: s, .. }) if *s == status),
            "{scheme}: {answered:?}"
        );
    }
    handle.stop(false).await;
}

#[actix::test]
async fn session_ends_if_server_takes_no_answers() {
    let server = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}/mcp", server.local_addr().unwrap()).parse().unwrap();
    let target = HttpTarget::new("s", &url, &[], None);
    let link = HttpLink::new(&target, Arc::new(RecordingListener::default())).unwrap();
    link.tasks.get_or_init(|| session_tasks::start(Arc::clone(&link.state)));
    let send = link.reply_sender();
    for _ in 0..session_tasks::MAX_WAITING {
        send(wire::encode_cancellation(1));
    }
    assert!(!link.state.closed.is_cancelled());
    // Messages in flight leave the queue, which makes room for as many new ones.
    server.set_nonblocking(true).unwrap();
    let mut connections = Vec::new();
    while connections.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        connections.extend(server.accept());
    }
    for _ in 0..=2 * session_tasks::MAX_CONCURRENT_POSTS {
        send(wire::encode_cancellation(1));
    }
    assert!(link.state.closed.is_cancelled());
    while let Ok(connection) = server.accept() {
        connections.push(connection);
    }
    assert!(connections.len() <= session_tasks::MAX_CONCURRENT_POSTS, "{}", connections.len());
}

/// Sends a malformed request before the answer to each request, and passes answers of the gateway on.
async fn ask_malformed(body: Bytes, answers: web::Data<UnboundedSender<Value>>) -> HttpResponse {
    let message: Value = serde_json::from_slice(&body).unwrap();
    if message.get("method").is_none() {
        answers.send(message).unwrap();
        return HttpResponse::Accepted().finish();
    }
    let malformed = json!({"jsonrpc": "2.0", "id": "y", "method": 5});
    let result = json!({"jsonrpc": "2.0", "id": message["id"], "result": {}});
    HttpResponse::Ok().content_type("text/event-stream").body(format!("data: {malformed}\n\ndata: {result}\n\n"))
}

#[actix::test]
async fn malformed_request_is_answered_and_call_continues() {
    let (sender, mut answers) = unbounded_channel::<Value>();
    let server = HttpServer::new(move || {
        App::new().app_data(web::Data::new(sender.clone())).route("/mcp", web::post().to(ask_malformed))
    })
    .workers(1)
    .shutdown_timeout(0)
    .disable_signals();
    let server = server.bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}/mcp", server.addrs()[0]).parse().unwrap();
    let running = server.run();
    let handle = running.handle();
    actix_web::rt::spawn(running);
    let target = HttpTarget::new("s", &url, &[], None);
    let link = HttpLink::new(&target, Arc::new(RecordingListener::default())).unwrap();
    link.state.set_mode(false, None, None);
    link.tasks.get_or_init(|| session_tasks::start(Arc::clone(&link.state)));
    let outgoing = OutgoingRequest::new(1, "tools/call", None);
    let answer = link.request(&outgoing, Arc::new(RecordingListener::default())).await;
    assert!(matches!(answer, Ok(Response::Result(_))), "{answer:?}");
    let error = json!({"code": -32600, "message": "`method` must be a string"});
    assert_eq!(answers.recv().await.unwrap(), json!({"jsonrpc": "2.0", "id": "y", "error": error}));
    handle.stop(false).await;
}

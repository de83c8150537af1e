//! HTTP/2 connections to other nodes of the store, over which requests are forwarded. A connection carries many requests, so that
//! streams which stay open for hours need no socket each, and a reset ends only one stream.
//!
//! Each thread has its own connections. A connection ends, with its pending requests, when the store no longer lists the other
//! node as alive or the node does not answer pings. It also ends after a minute without a stream.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use actix_codec::{AsyncRead, AsyncWrite};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use h2::{
    Reason, SendStream,
    client::{Builder, SendRequest},
};
use http::Uri;
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, ServerName},
};
use socket2::SockRef;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;

use countersign_http::{
    http2::{ALPN, ReceivedBody, STREAM_WINDOW, send_piece, wait_until_unresponsive},
    tls,
};
use countersign_net::tls::pinned_config;
use countersign_session::cluster::Body;
use countersign_store::{Nodes, nodes::PeerAddress};

/// Maximum time that a request waits for a connection, including the TLS and HTTP/2 handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of checks whether a peer is gone or its connection is idle.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time that sent data may stay unacknowledged before the connection fails (`TCP_USER_TIMEOUT`).
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of pings, and maximum time until the answer.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which a connection without a stream is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of reset streams for which late frames are still accepted.
const MAX_RESET_STREAMS: usize = 1000;

/// The reason why a request could not be forwarded.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("{0}")]
    Connect(#[from] io::Error),
    #[error("the node does not speak HTTP/2 at its address")]
    NoHttp2,
    #[error("{0}")]
    Http2(#[from] h2::Error),
    #[error("the body of the request broke off: {0}")]
    RequestBody(String),
}

impl PeerError {
    /// Returns `true` if nothing listens at the address, so that the process which held the session has ended.
    pub fn is_connection_refused(&self) -> bool {
        matches!(self, Self::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

thread_local! {
    static CONNECTIONS: RefCell<Vec<Rc<PeerConnection>>> = const { RefCell::new(Vec::new()) };
    /// A lock for each node, so that concurrent requests wait for the same new connection.
    static CONNECT_LOCKS: RefCell<HashMap<String, Rc<tokio::sync::Mutex<()>>>> = RefCell::default();
}

/// A connection to another node.
struct PeerConnection {
    address: PeerAddress,
    requests: SendRequest<Bytes>,
    open_streams: Cell<usize>,
    /// Maximum number of streams: the lower of the two sides' settings.
    max_streams: Cell<usize>,
    /// Time when the last stream ended.
    idle_since: Cell<Instant>,
}

/// The right to one stream on a connection, which is free again when it is dropped.
struct PeerStreamSlot(Rc<PeerConnection>);

/// The body of a response. Its stream's slot is free once the body is dropped.
pub struct ResponseBody {
    body: ReceivedBody,
    _slot: PeerStreamSlot,
}

impl Stream for ResponseBody {
    type Item = Result<Bytes, h2::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let chunk = ready!(Pin::new(&mut self.body).poll_next(cx));
        // After a complete response, a node resets the stream like this if it does not read the rest of the request (RFC
        // 9113, 8.1).
        let is_end = matches!(&chunk, Some(Err(error)) if error.is_reset() && error.reason() == Some(Reason::NO_ERROR));
        Poll::Ready(chunk.filter(|_| !is_end))
    }
}

impl PeerStreamSlot {
    fn new(connection: Rc<PeerConnection>) -> Self {
        connection.open_streams.set(connection.open_streams.get() + 1);
        Self(connection)
    }
}

impl Drop for PeerStreamSlot {
    fn drop(&mut self) {
        self.0.open_streams.set(self.0.open_streams.get() - 1);
        self.0.idle_since.set(Instant::now());
    }
}

/// Another node, as the store lists it.
#[derive(Clone)]
pub struct Peer {
    pub nodes: Arc<dyn Nodes>,
    pub node_id: String,
    pub address: PeerAddress,
    /// The URL of the address.
    pub url: Uri,
    /// Maximum number of streams on one connection, by the setting of this node.
    pub max_streams: u32,
}

impl Peer {
    /// Returns `true` if the lease of the other node has expired or its URL has changed. A renewed certificate does not matter.
    /// Returns `false` while this node does not hold its own lease, because it then cannot know.
    pub fn is_gone(&self) -> bool {
        self.nodes.holds_claim(None)
            && self.nodes.peer(&self.node_id).is_none_or(|address| address.url != self.address.url)
    }

    /// Waits until the node is gone.
    pub async fn wait_until_gone(&self) {
        while !self.is_gone() {
            sleep(CHECK_INTERVAL).await;
        }
    }
}

/// Sends a request with its body. Returns the head of the response, and its body as it arrives.
///
/// # Errors
/// Fails if no response arrives. The other node may still have received the request.
pub async fn send_request(
    peer: &Peer,
    request: http::Request<()>,
    body: Option<Body>,
) -> Result<(http::response::Parts, ResponseBody), PeerError> {
    let is_bodiless = body.is_none();
    let (mut slot, (response, stream)) = start_request(peer, &request, is_bodiless).await?;
    let response = async { Ok(response.await?) };
    let response = match body {
        None => match response.await {
            // The node accepted no more streams, and did not process this one (RFC 9113, 8.7).
            Err(PeerError::Http2(error)) if error.reason() == Some(Reason::REFUSED_STREAM) => {
                let (new_slot, (response, _)) = start_request(peer, &request, is_bodiless).await?;
                slot = new_slot;
                response.await.map_err(PeerError::from)
            }
            response => response,
        },
        Some(body) => {
            tokio::pin!(response);
            tokio::select! {
                biased;
                // A refusal may arrive before the whole body was sent.
                response = &mut response => response,
                sent = send_body(body, stream) => match sent {
                    Ok(()) => response.await,
                    Err(error) => Err(error),
                },
            }
        }
    };
    let (head, body) = response?.into_parts();
    Ok((head, ResponseBody { body: ReceivedBody(body), _slot: slot }))
}

type StartedRequest = (PeerStreamSlot, (h2::client::ResponseFuture, SendStream<Bytes>));

/// Starts a request on a connection, or on another one if the first had ended before the request was sent.
async fn start_request(
    peer: &Peer,
    request: &http::Request<()>,
    is_bodiless: bool,
) -> Result<StartedRequest, PeerError> {
    match start_request_on(reserve_stream(peer).await?, request, is_bodiless).await {
        Err(error) if is_connection_error(&error) => {
            Ok(start_request_on(reserve_stream(peer).await?, request, is_bodiless).await?)
        }
        started => Ok(started?),
    }
}

/// Reserves a stream on a connection that has room for one more, or on a new connection.
async fn reserve_stream(peer: &Peer) -> Result<PeerStreamSlot, PeerError> {
    let find = || {
        let has_room = |connection: &&Rc<PeerConnection>| {
            connection.address == peer.address && connection.open_streams.get() < connection.max_streams.get()
        };
        CONNECTIONS.with_borrow(|all| all.iter().find(has_room).cloned()).map(PeerStreamSlot::new)
    };
    if let Some(slot) = find() {
        return Ok(slot);
    }
    let lock = CONNECT_LOCKS.with_borrow_mut(|all| Rc::clone(all.entry(peer.node_id.clone()).or_default()));
    // The limit includes the attempts of earlier requests. Otherwise the requests to a node that does not answer would fail one
    // after another.
    let attempt = timeout(CONNECT_TIMEOUT, async {
        let _guard = lock.lock().await;
        match find() {
            Some(slot) => Ok(slot),
            None => connect(peer).await.map(PeerStreamSlot::new),
        }
    });
    attempt.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Returns `true` if the error means that the connection has ended, and not that the request is at fault.
fn is_connection_error(error: &h2::Error) -> bool {
    error.is_io() || error.is_go_away() || error.is_remote() || error.is_library()
}

async fn start_request_on(
    slot: PeerStreamSlot,
    request: &http::Request<()>,
    is_bodiless: bool,
) -> Result<StartedRequest, h2::Error> {
    let mut copy = http::Request::new(());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = http::Version::HTTP_2;
    *copy.headers_mut() = request.headers().clone();
    let requests = slot.0.requests.clone().ready().await;
    match requests.and_then(|mut requests| requests.send_request(copy, is_bodiless)) {
        Ok(started) => Ok((slot, started)),
        Err(error) => {
            if is_connection_error(&error) {
                remove_connection(&slot.0);
            }
            Err(error)
        }
    }
}

/// Removes the connection from those of this thread.
fn remove_connection(connection: &Rc<PeerConnection>) {
    CONNECTIONS.with_borrow_mut(|all| all.retain(|other| !Rc::ptr_eq(other, connection)));
}

async fn connect(peer: &Peer) -> Result<Rc<PeerConnection>, PeerError> {
    let tcp = connect_tcp(&peer.url).await?;
    if peer.url.scheme_str() != Some("https") {
        return handshake(peer, tcp).await;
    }
    let name = ServerName::try_from(host(&peer.url)?.to_owned()).map_err(io::Error::other)?;
    let tls = TlsConnector::from(tls_config(&peer.address, &[ALPN])?).connect(name, tcp).await?;
    if tls.get_ref().1.alpn_protocol() != Some(ALPN) {
        return Err(PeerError::NoHttp2);
    }
    handshake(peer, tls).await
}

async fn connect_tcp(url: &Uri) -> Result<TcpStream, io::Error> {
    let default = if url.scheme_str() == Some("https") { 443 } else { 80 };
    let tcp = TcpStream::connect((host(url)?, url.port_u16().unwrap_or(default))).await?;
    tcp.set_nodelay(true)?;
    SockRef::from(&tcp).set_tcp_user_timeout(Some(TCP_USER_TIMEOUT))?;
    Ok(tcp)
}

/// Returns the host of a URL, without the brackets of an IPv6 address.
fn host(url: &Uri) -> Result<&str, io::Error> {
    let host = url.host().ok_or_else(|| io::Error::other("the address of the node has no host"))?;
    Ok(host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host))
}

/// Performs the HTTP/2 handshake, adds the connection to those of this thread, and starts the task that drives it.
async fn handshake<T>(peer: &Peer, io: T) -> Result<Rc<PeerConnection>, PeerError>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    // A client that does not read its stream must not delay the streams of other clients.
    let window = STREAM_WINDOW.saturating_mul(peer.max_streams).min(i32::MAX as u32);
    let handshake = Builder::new()
        .enable_push(false)
        // The resets of a node's clients are not the node's fault, so their number is not limited.
        .max_local_error_reset_streams(None)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(window)
        .handshake(io);
    let (requests, mut driver) = handshake.await?;
    let ping_pong = driver.ping_pong();
    let max_streams = usize::try_from(peer.max_streams).unwrap_or(usize::MAX);
    let connection = Rc::new(PeerConnection {
        address: peer.address.clone(),
        requests,
        open_streams: Cell::new(0),
        max_streams: Cell::new(max_streams),
        idle_since: Cell::new(Instant::now()),
    });
    CONNECTIONS.with_borrow_mut(|all| all.push(Rc::clone(&connection)));
    let (weak, peer) = (Rc::downgrade(&connection), peer.clone());
    tokio::task::spawn_local(async move {
        let is_idle = |connection: Rc<PeerConnection>| {
            connection.open_streams.get() == 0 && connection.idle_since.get().elapsed() >= IDLE_TIMEOUT
        };
        let idle = async {
            while !weak.upgrade().is_none_or(is_idle) {
                sleep(CHECK_INTERVAL).await;
            }
        };
        let driven = poll_fn(|cx| {
            let poll = Pin::new(&mut driver).poll(cx);
            if let Some(connection) = weak.upgrade() {
                connection.max_streams.set(driver.max_concurrent_send_streams().min(max_streams));
            }
            poll
        });
        tokio::select! {
            ended = driven => tracing::debug!(node = peer.node_id, ?ended, "a connection to another node ended"),
            // Pending requests fail with the connection.
            () = peer.wait_until_gone() => {}
            () = idle => {}
            () = wait_until_unresponsive(ping_pong, PING_INTERVAL) => {
                tracing::warn!(node = peer.node_id, "another node has a lease but does not answer pings");
            }
        }
        if let Some(connection) = weak.upgrade() {
            remove_connection(&connection);
        }
    });
    Ok(connection)
}

/// Sends a body as it arrives.
async fn send_body(mut body: Body, mut stream: SendStream<Bytes>) -> Result<(), PeerError> {
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| {
            stream.send_reset(Reason::CANCEL);
            PeerError::RequestBody(error.to_string())
        })?;
        // A node that stops accepting the body has already answered.
        if !send_piece(&mut stream, piece).await? {
            return Ok(());
        }
    }
    stream.send_data(Bytes::new(), true)?;
    Ok(())
}

/// Returns the TLS configuration for connections to a node that offer these protocols. The node's certificate must be
/// the one that the store lists, or be signed by a public authority. The listed certificate can be trusted, because
/// only nodes write to the store.
///
/// # Errors
/// Fails if the program was built with public authorities that cannot be used.
pub fn tls_config(peer: &PeerAddress, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, io::Error> {
    let pinned = peer.certificate.clone();
    pinned_config(move |certificate| has_fingerprint(certificate, &pinned), protocols).map_err(io::Error::other)
}

fn has_fingerprint(certificate: &CertificateDer<'_>, fingerprint: &str) -> bool {
    !fingerprint.is_empty() && tls::fingerprint(certificate) == fingerprint
}

#[cfg(test)]
mod tests {
    use futures_util::{future::join3, stream};
    use tokio::{net::TcpListener, sync::watch};

    use super::*;
    use countersign_domain::changes::Claimant;
    use countersign_store::{
        StoreFuture,
        nodes::{Introduction, Node, ServerStates, StoreUpdates},
    };

    /// The nodes as this one sees them: the address of the only other node. Without it, this node has no lease, so nobody is
    /// gone.
    struct FakeNodes(Option<PeerAddress>);

    impl Nodes for FakeNodes {
        fn holds_claim(&self, _: Option<&Claimant>) -> bool {
            self.0.is_some()
        }
        fn peer(&self, _: &str) -> Option<PeerAddress> {
            self.0.clone()
        }
        fn subscribe_updates(&self) -> watch::Receiver<StoreUpdates> {
            watch::channel(StoreUpdates::default()).1
        }
        fn introduce(&self, _: Introduction) {}
        fn set_server_states(&self, _: ServerStates) {}
        fn list(&self) -> StoreFuture<Vec<Node>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    #[actix::test]
    async fn requests_to_a_silent_node_fail_at_the_same_time() {
        // The connection is accepted by the system, but nobody answers the TLS handshake.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let address = PeerAddress { url, certificate: "sha256:00".into() };
        let (nodes, url) = (Arc::new(FakeNodes(None)), address.url.parse().unwrap());
        let peer = Peer { nodes, node_id: "silent".into(), address, url, max_streams: 1 };
        let send = || send_request(&peer, http::Request::new(()), None);
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        let (first, second, third) = join3(send(), send(), send()).await;
        for failed in [first.map(drop), second.map(drop), third.map(drop)] {
            let error = failed.unwrap_err();
            assert!(matches!(&error, PeerError::Connect(error) if error.kind() == io::ErrorKind::TimedOut), "{error}");
        }
        assert!(began.elapsed() < 2 * CONNECT_TIMEOUT, "{:?}", began.elapsed());
    }

    #[actix::test]
    async fn refusal_before_the_end_of_a_request_arrives_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::task::spawn_local(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            let mut h2 = h2::server::handshake(tcp).await.unwrap();
            while let Some(Ok((_unread, mut respond))) = h2.accept().await {
                let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
                stream.send_data(Bytes::from_static(b"refused"), true).unwrap();
            }
        });
        let address = PeerAddress { url: url.clone(), certificate: String::new() };
        let (nodes, parsed_url) = (Arc::new(FakeNodes(None)), url.parse().unwrap());
        let peer = Peer { nodes, node_id: "full".into(), address, url: parsed_url, max_streams: 2 };
        let request = || http::Request::post(&url).body(()).unwrap();
        let endless = stream::iter([Ok(Bytes::from_static(b"part"))]).chain(stream::pending()).boxed_local();
        let (_, body) = send_request(&peer, request(), Some(endless)).await.unwrap();
        // The node resets the first stream before it receives the second request.
        let (_, other_body) = send_request(&peer, request(), None).await.unwrap();
        for body in [body, other_body] {
            let chunks: Vec<_> = body.map(Result::unwrap).collect().await;
            assert_eq!(chunks, ["refused"]);
        }
    }

    #[test]
    fn peer_is_gone_if_its_url_changes_but_not_its_certificate() {
        let address = |url: &str, certificate: &str| PeerAddress { url: url.into(), certificate: certificate.into() };
        let is_gone = |listed| {
            let (nodes, address) = (Arc::new(FakeNodes(Some(listed))), address("https://a", "old"));
            Peer { nodes, node_id: "a".into(), address, url: Uri::from_static("https://a"), max_streams: 1 }.is_gone()
        };
        assert!(!is_gone(address("https://a", "renewed")));
        assert!(is_gone(address("https://b", "old")));
    }

    #[test]
    fn certificate_matches_only_its_own_fingerprint() {
        let certificate = CertificateDer::from(b"pinned".to_vec());
        assert!(has_fingerprint(&certificate, &tls::fingerprint(&certificate)));
        assert!(!has_fingerprint(&certificate, &tls::fingerprint(&CertificateDer::from(b"another".to_vec()))));
        assert!(!has_fingerprint(&certificate, ""));
    }

    #[test]
    fn host_of_url_has_no_brackets() {
        let host_of = |url: &str| host(&url.parse().unwrap()).map(str::to_owned).ok();
        assert_eq!(host_of("http://[::1]:8080").as_deref(), Some("::1"));
        assert_eq!(host_of("https://gateway.example").as_deref(), Some("gateway.example"));
        assert_eq!(host_of("/nowhere"), None);
    }
}

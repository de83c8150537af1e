//! Connections of HTTP/2 to other gateways of the same store, by which requests are forwarded. One of them
//! carries many requests, so that streams which stay open for hours take no socket each at either end, and one that is given up
//! ends alone.
//!
//! Each thread has its own. They last as long as the other gateway lives, as the store says: what waits there ends with it.

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
    Reason, RecvStream, SendStream,
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
    http2::{ALPN, STREAM_WINDOW, wait_until_unresponsive},
    tls,
};
use countersign_net::tls::pinned_config;
use countersign_session::cluster::Body;
use countersign_store::{Nodes, nodes::Peer};

/// For a connection to the other gateway.
const CONNECT: Duration = Duration::from_secs(3);
/// How often it is looked whether that one lives.
const LOOK: Duration = Duration::from_millis(500);
/// One that acknowledges nothing for so long is gone.
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// How often it is asked whether it is there, and how long it may take to say so.
const PING: Duration = Duration::from_secs(10);
/// How long a connection stays without a stream on it.
const IDLE: Duration = Duration::from_secs(60);
/// Streams that were given up, and on which something may still come.
const RESETS: usize = 1000;

/// Bytes of a request that are given to the connection at a time.
const CHUNK: usize = 16 << 10;

/// Why a request could not be forwarded.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("{0}")]
    Connect(#[from] io::Error),
    #[error("it does not speak HTTP/2 at the address that it names")]
    NoHttp2,
    #[error("{0}")]
    Http2(#[from] h2::Error),
    #[error("the request broke off: {0}")]
    Request(String),
}

impl PeerError {
    /// Whether nothing listens at its address: the process that held the session has ended.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

thread_local! {
    static LINKS: RefCell<Vec<Rc<Link>>> = const { RefCell::new(Vec::new()) };
    /// By node: whoever connects to it, for the others who wait for that.
    static CONNECTING: RefCell<HashMap<String, Rc<tokio::sync::Mutex<()>>>> = RefCell::default();
}

/// One connection.
struct Link {
    to: Peer,
    requests: SendRequest<Bytes>,
    /// Streams on it, and how many there may be, as both sides have it.
    open: Cell<usize>,
    max: Cell<usize>,
    /// When the last of them ended.
    idle_since: Cell<Instant>,
}

/// One stream's place on a connection.
struct Place(Rc<Link>);

impl Place {
    fn on(link: Rc<Link>) -> Self {
        link.open.set(link.open.get() + 1);
        Self(link)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.idle_since.set(Instant::now());
    }
}

/// Another gateway, as the store names it.
#[derive(Clone)]
pub struct PeerNode {
    pub nodes: Arc<dyn Nodes>,
    pub node: String,
    pub address: Peer,
    /// How many streams one connection may have, as far as this side is asked.
    pub max_streams: u32,
}

impl PeerNode {
    /// Whether its lease is over, or it is reached elsewhere by now. A node that does not hold its own lease cannot tell.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.nodes.holds(None) && self.nodes.peer(&self.node).as_ref() != Some(&self.address)
    }
}

/// Sends a request with its body, and gives the head of the answer, and its body as it comes.
///
/// # Errors
/// See [`PeerError`]. The other gateway may have got the request.
pub async fn ask(
    peer: &PeerNode,
    request: http::Request<()>,
    body: Option<Body>,
) -> Result<(http::response::Parts, Coming), PeerError> {
    let bodiless = body.is_none();
    let (mut place, (answer, stream)) = begin(peer, &request, bodiless).await?;
    let answer = async { Ok(answer.await?) };
    let answer = match body {
        None => match answer.await {
            // It took no more streams, and did nothing with this one (RFC 9113, 8.7).
            Err(PeerError::Http2(error)) if error.reason() == Some(Reason::REFUSED_STREAM) => {
                let (again, (answer, _)) = begin(peer, &request, bodiless).await?;
                place = again;
                answer.await.map_err(PeerError::from)
            }
            answer => answer,
        },
        Some(body) => {
            tokio::pin!(answer);
            tokio::select! {
                biased;
                // Sooner than the whole body, where it is a refusal.
                answer = &mut answer => answer,
                sent = send(body, stream) => match sent {
                    Ok(()) => answer.await,
                    Err(error) => Err(error),
                },
            }
        }
    };
    let (head, body) = answer?.into_parts();
    Ok((head, Coming { body, _place: place }))
}

type Begun = (Place, (h2::client::ResponseFuture, SendStream<Bytes>));

/// Begins it on a connection. One that had ended before anything of it was sent, unnoticed, is replaced.
async fn begin(peer: &PeerNode, request: &http::Request<()>, bodiless: bool) -> Result<Begun, PeerError> {
    match begin_on(free(peer).await?, request, bodiless).await {
        Err(error) if has_ended(&error) => Ok(begin_on(free(peer).await?, request, bodiless).await?),
        begun => Ok(begun?),
    }
}

/// A place on a connection that has room for one more stream; on a new one, if need be.
async fn free(peer: &PeerNode) -> Result<Place, PeerError> {
    let find = || {
        let has_room = |link: &Link| link.to == peer.address && link.open.get() < link.max.get();
        LINKS.with_borrow(|links| links.iter().find(|link| has_room(link)).cloned()).map(Place::on)
    };
    if let Some(place) = find() {
        return Ok(place);
    }
    let turn = CONNECTING.with_borrow_mut(|all| Rc::clone(all.entry(peer.node.clone()).or_default()));
    let _turn = turn.lock().await;
    match find() {
        Some(place) => Ok(place),
        None => Ok(Place::on(connect(peer).await?)),
    }
}

/// Whether the connection is none any more, and not the request at fault.
fn has_ended(error: &h2::Error) -> bool {
    error.is_io() || error.is_go_away() || error.is_remote() || error.is_library()
}

async fn begin_on(place: Place, request: &http::Request<()>, bodiless: bool) -> Result<Begun, h2::Error> {
    let mut whole = http::Request::new(());
    *whole.method_mut() = request.method().clone();
    *whole.uri_mut() = request.uri().clone();
    *whole.version_mut() = http::Version::HTTP_2;
    *whole.headers_mut() = request.headers().clone();
    let requests = place.0.requests.clone().ready().await;
    match requests.and_then(|mut requests| requests.send_request(whole, bodiless)) {
        Ok(begun) => Ok((place, begun)),
        Err(error) => {
            if has_ended(&error) {
                forget(&place.0);
            }
            Err(error)
        }
    }
}

fn forget(link: &Rc<Link>) {
    LINKS.with_borrow_mut(|links| links.retain(|one| !Rc::ptr_eq(one, link)));
}

async fn connect(peer: &PeerNode) -> Result<Rc<Link>, PeerError> {
    let url: Uri = peer.address.url.parse().map_err(|error| io::Error::other(format!("its address: {error}")))?;
    let opened = timeout(CONNECT, async {
        let tcp = tcp(&url).await?;
        if url.scheme_str() != Some("https") {
            return speak(peer, tcp).await;
        }
        let name = host(&url)?;
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let tls = TlsConnector::from(config(&peer.address, &[ALPN])?).connect(name, tcp).await?;
        if tls.get_ref().1.alpn_protocol() != Some(ALPN) {
            return Err(PeerError::NoHttp2);
        }
        speak(peer, tls).await
    });
    opened.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

async fn tcp(url: &Uri) -> Result<TcpStream, io::Error> {
    let default = if url.scheme_str() == Some("https") { 443 } else { 80 };
    let tcp = TcpStream::connect((host(url)?, url.port_u16().unwrap_or(default))).await?;
    tcp.set_nodelay(true)?;
    SockRef::from(&tcp).set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(tcp)
}

/// Without the brackets of an address.
fn host(url: &Uri) -> Result<&str, io::Error> {
    let host = url.host().ok_or_else(|| io::Error::other("its address names no host"))?;
    Ok(host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host))
}

/// A new connection, which this thread has from now on.
async fn speak<T>(peer: &PeerNode, io: T) -> Result<Rc<Link>, PeerError>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    // Who does not read one stream holds up none of the others.
    let window = STREAM_WINDOW.saturating_mul(peer.max_streams).min(i32::MAX as u32);
    let handshake = Builder::new()
        .enable_push(false)
        // What its clients give up in the middle is no fault of the other gateway, however often they do.
        .max_local_error_reset_streams(None)
        .max_concurrent_reset_streams(RESETS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(window)
        .handshake(io);
    let (requests, mut connection) = handshake.await?;
    let ping_pong = connection.ping_pong();
    let max = usize::try_from(peer.max_streams).unwrap_or(usize::MAX);
    let link = Rc::new(Link {
        to: peer.address.clone(),
        requests,
        open: Cell::new(0),
        max: Cell::new(max),
        idle_since: Cell::new(Instant::now()),
    });
    LINKS.with_borrow_mut(|links| links.push(Rc::clone(&link)));
    // It ends by itself once nobody has it.
    let (one, peer) = (Rc::downgrade(&link), peer.clone());
    tokio::task::spawn_local(async move {
        let needed = async {
            while !peer.is_gone() {
                let idle = |link: Rc<Link>| link.open.get() == 0 && link.idle_since.get().elapsed() >= IDLE;
                if one.upgrade().is_none_or(idle) {
                    return;
                }
                sleep(LOOK).await;
            }
        };
        let driven = poll_fn(|cx| {
            let ended = Pin::new(&mut connection).poll(cx);
            if let Some(link) = one.upgrade() {
                link.max.set(connection.max_concurrent_send_streams().min(max));
            }
            ended
        });
        tokio::select! {
            ended = driven => tracing::debug!(node = peer.node, ?ended, "a connection to another node ended"),
            // What waits on it fails with it.
            () = needed => {}
            () = wait_until_unresponsive(ping_pong, PING) => tracing::warn!(node = peer.node, "another node lives, but is not reached"),
        }
        if let Some(link) = one.upgrade() {
            forget(&link);
        }
    });
    Ok(link)
}

/// Sends the body as it comes.
async fn send(mut body: Body, mut stream: SendStream<Bytes>) -> Result<(), PeerError> {
    while let Some(piece) = body.next().await {
        let mut piece = piece.map_err(|error| {
            stream.send_reset(Reason::CANCEL);
            PeerError::Request(error.to_string())
        })?;
        while !piece.is_empty() {
            stream.reserve_capacity(piece.len().min(CHUNK));
            // Where it takes no more, it has answered.
            let Some(room) = poll_fn(|cx| stream.poll_capacity(cx)).await else { return Ok(()) };
            let part = piece.split_to(room?.min(piece.len()));
            stream.send_data(part, false)?;
        }
    }
    stream.send_data(Bytes::new(), true)?;
    Ok(())
}

/// The body of an answer.
pub struct Coming {
    body: RecvStream,
    _place: Place,
}

impl Stream for Coming {
    type Item = Result<Bytes, h2::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let read = ready!(self.body.poll_data(cx));
        Poll::Ready(read.map(|read| {
            let bytes = read?;
            self.body.flow_control().release_capacity(bytes.len())?;
            Ok(bytes)
        }))
    }
}

/// Returns TLS to that gateway with these protocols: its certificate is the one that it names in the store, which only gateways
/// write to, or one that the public authorities vouch for.
///
/// # Errors
/// The public authorities cannot be used, which is a fault of the build.
pub fn config(peer: &Peer, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, io::Error> {
    let named = peer.certificate.clone();
    pinned_config(move |certificate| is_named(certificate, &named), protocols).map_err(io::Error::other)
}

fn is_named(certificate: &CertificateDer<'_>, fingerprint: &str) -> bool {
    !fingerprint.is_empty() && tls::fingerprint(certificate) == fingerprint
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_is_named_by_its_fingerprint_only() {
        let own = CertificateDer::from(b"of this gateway".to_vec());
        assert!(is_named(&own, &tls::fingerprint(&own)));
        assert!(!is_named(&own, &tls::fingerprint(&CertificateDer::from(b"of another".to_vec()))));
        assert!(!is_named(&own, ""));
    }

    #[test]
    fn an_address_is_that_of_a_host_without_its_brackets() {
        let of = |url: &str| host(&url.parse().unwrap()).map(str::to_owned).ok();
        assert_eq!(of("http://[::1]:8080").as_deref(), Some("::1"));
        assert_eq!(of("https://gateway.example").as_deref(), Some("gateway.example"));
        assert_eq!(of("/nowhere"), None);
    }
}

//! Counts connections, and knows the socket behind each request.
//!
//! Over the limit a connection is still accepted, to be told so with a 503 instead of a silent refusal.

use std::{
    any::Any,
    cell::{Cell, OnceCell, RefCell},
    net::SocketAddr,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::Addr;
use actix_web::{dev::Extensions, rt::net::TcpStream};
use socket2::{SockRef, Socket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    attach::{Users, users::UserGuard},
    config::TransportsConfig,
    session::{
        Session, SessionShared,
        actor::{EndSession, close},
    },
    telemetry::{ConnectionGuard, Transport},
};

/// A peer that acknowledges nothing for so long is gone; also one whose receive window stays shut.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// The counts of all connections, by what they are used for.
pub struct Connections {
    http: AtomicUsize,
    max_http: usize,
    /// One permit for each WebSocket of any door.
    pub web_sockets: Arc<Semaphore>,
    /// One permit for each WebSocket session that waits for its client to come back: as many as may be connected.
    pub waiting: Arc<Semaphore>,
    max_web_sockets: usize,
    /// Second descriptors of sockets that are open, and may be.
    handles: AtomicUsize,
    max_handles: usize,
    users: Users,
}

impl Connections {
    #[must_use]
    pub fn new(config: &TransportsConfig, users: Users) -> Self {
        Self {
            http: AtomicUsize::new(0),
            web_sockets: Arc::new(Semaphore::new(config.websocket.max_connections)),
            waiting: Arc::new(Semaphore::new(config.websocket.max_connections)),
            max_http: config.http.max_connections,
            max_web_sockets: config.websocket.max_connections,
            handles: AtomicUsize::new(0),
            max_handles: raise_open_files() / 3,
            users,
        }
    }

    /// A second descriptor of a socket, while there are plenty: without one a peer that does not read is cut by
    /// `TCP_USER_TIMEOUT` instead of at once.
    fn handle(self: &Arc<Self>, stream: &TcpStream) -> Option<Arc<Handle>> {
        let taken = self.handles.fetch_add(1, Ordering::Relaxed);
        // From here on the count is given back when the handle is dropped, or by this guard's end.
        let counted = Counted(Arc::clone(self));
        if taken >= self.max_handles {
            return None;
        }
        let descriptor = stream.as_fd().try_clone_to_owned().ok()?;
        Some(Arc::new(Handle { socket: Socket::from(descriptor), _counted: counted }))
    }

    /// Both limits together, with room for those that are only told that they are too many.
    #[must_use]
    pub fn accepted_at_most(&self) -> usize {
        self.max_http.saturating_add(self.max_web_sockets).saturating_add(256)
    }
}

/// One of the second descriptors, as long as it is open.
struct Counted(Arc<Connections>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.handles.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Another descriptor of a connection's socket.
struct Handle {
    socket: Socket,
    _counted: Counted,
}

/// Lets the process have as many open files as it may (many systems start it with 1024, which the default limits of
/// connections exceed), and gives that number.
fn raise_open_files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

/// One TCP connection; lives in its connection data.
pub struct Connection {
    counts: Arc<Connections>,
    pub peer: Option<SocketAddr>,
    /// Another handle of the socket, to cut a peer that does not read.
    socket: Option<Arc<Handle>>,
    /// Counted over the limit when it was accepted, and ever since.
    refused: Cell<bool>,
    web_socket: RefCell<Option<OwnedSemaphorePermit>>,
    gauge: Cell<Option<ConnectionGuard>>,
    /// Whoever is connected keeps a detached gateway from ending by itself.
    _user: UserGuard,
    /// The bookkeeper of stateless requests on this connection, from the first of them on.
    session: OnceCell<(Arc<SessionShared>, Addr<Session>)>,
}

impl Connection {
    /// For [`actix_web::HttpServer::on_connect`]: counts the connection and sets its socket up.
    pub fn register(counts: &Arc<Connections>, io: &dyn Any, data: &mut Extensions) {
        let stream = io.downcast_ref::<TcpStream>().or_else(|| {
            io.downcast_ref::<actix_tls::accept::rustls_0_23::TlsStream<TcpStream>>().map(|tls| tls.get_ref().0)
        });
        let socket = stream.and_then(|stream| {
            let socket = SockRef::from(stream);
            if let Err(error) = socket.set_tcp_user_timeout(Some(USER_TIMEOUT)) {
                tracing::debug!(%error, "no TCP_USER_TIMEOUT");
            }
            counts.handle(stream)
        });
        let open = counts.http.fetch_add(1, Ordering::Relaxed) + 1;
        data.insert(Self {
            counts: Arc::clone(counts),
            peer: stream.and_then(|s| s.peer_addr().ok()),
            socket,
            refused: Cell::new(open > counts.max_http),
            web_socket: RefCell::default(),
            _user: counts.users.enter(),
            gauge: Cell::new(Some(ConnectionGuard::connection(Transport::Http))),
            session: OnceCell::new(),
        });
    }

    /// The connection becomes a WebSocket, if there is room for one more.
    #[must_use]
    pub fn upgrade(&self) -> bool {
        let Ok(permit) = Arc::clone(&self.counts.web_sockets).try_acquire_owned() else { return false };
        if self.web_socket.replace(Some(permit)).is_none() {
            self.counts.http.fetch_sub(1, Ordering::Relaxed);
        }
        self.gauge.set(Some(ConnectionGuard::connection(Transport::WebSocket)));
        true
    }

    /// The connection stays what it was: the upgrade was refused after all.
    pub fn not_upgraded(&self) {
        if self.web_socket.take().is_some() {
            self.counts.http.fetch_add(1, Ordering::Relaxed);
            self.gauge.set(Some(ConnectionGuard::connection(Transport::Http)));
        }
    }

    /// Whether it is one too many. One that was stays so only while there are too many.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        if self.refused.get() && self.counts.http.load(Ordering::Relaxed) <= self.counts.max_http {
            self.refused.set(false);
        }
        self.refused.get()
    }

    /// Breaks the connection without a word; from any thread.
    #[must_use]
    pub fn cutter(&self) -> Arc<dyn Fn() + Send + Sync> {
        let socket = self.socket.clone();
        Arc::new(move || {
            if let Some(handle) = &socket {
                // It may be gone already, which is what was wanted.
                let _ = handle.socket.shutdown(std::net::Shutdown::Both);
            }
        })
    }

    /// The bookkeeper of this connection, made by `open` for its first stateless request.
    pub fn session(&self, open: impl FnOnce() -> (Arc<SessionShared>, Addr<Session>)) -> &Arc<SessionShared> {
        &self.session.get_or_init(open).0
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.web_socket.get_mut().is_none() {
            self.counts.http.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some((shared, addr)) = self.session.get() {
            shared.end();
            addr.do_send(EndSession { code: close::GOING_AWAY, reason: "connection closed" });
        }
    }
}

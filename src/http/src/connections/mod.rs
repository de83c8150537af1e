//! Counts connections, and knows the socket behind each request.
//!
//! Over the limit a connection gets the place of another ([`places`]). Where none can go it is still accepted, to
//! be told so with a 503 instead of a silent refusal.

pub mod places;

use std::{
    cell::{Cell, OnceCell},
    net::SocketAddr,
    ops::Deref,
    os::fd::AsFd,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_web::{HttpMessage as _, HttpRequest, rt::net::TcpStream};
use socket2::{SockRef, Socket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use countersign_attach::{Users, users::UserGuard};
use countersign_config::TransportsConfig;
use countersign_exchange::{
    inflow::{Inflow, Intake},
    shared::SessionShared,
};
use countersign_telemetry::{ConnectionGuard, Transport};
use places::{Place, Places, Wire};

/// A peer that acknowledges nothing for so long is gone; also one whose receive window stays shut.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// The counts of all connections, by what they are used for.
pub struct Connections {
    places: Places,
    max_http: usize,
    /// Bytes of bodies that are held.
    inflow: Arc<Inflow>,
    /// One permit for each WebSocket of any endpoint.
    pub web_sockets: Arc<Semaphore>,
    /// One permit for each WebSocket that only reviewers get.
    pub reserved: Arc<Semaphore>,
    max_web_sockets: usize,
    /// Second descriptors of sockets that are open, and may be.
    handles: AtomicUsize,
    max_handles: usize,
    users: Users,
}

impl Connections {
    #[must_use]
    pub fn new(config: &TransportsConfig, inflow: Arc<Inflow>, users: Users) -> Self {
        Self {
            places: Places::new(config.http.max_connections, config.http.reserved_connections),
            inflow,
            reserved: Arc::new(Semaphore::new(config.http.reserved_connections)),
            web_sockets: Arc::new(Semaphore::new(config.websocket.max_connections)),
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

    /// The bytes that one more connection holds of bodies.
    #[must_use]
    pub fn intake(&self) -> Arc<Intake> {
        self.inflow.intake()
    }

    /// Those of this one; of another that nobody knows where there is none.
    #[must_use]
    pub fn intake_of(&self, connection: Option<&Connection>) -> Arc<Intake> {
        connection.map_or_else(|| self.intake(), Connection::intake)
    }

    /// A place for one more WebSocket, if need be another's; `None` where all have calls in flight.
    fn web_socket(&self) -> Option<OwnedSemaphorePermit> {
        let free = Arc::clone(&self.web_sockets).try_acquire_owned().ok();
        free.or_else(|| self.places.evict_web_socket())
    }

    /// Both limits together, with room for those that are only told that they are too many.
    #[must_use]
    pub fn accepted_at_most(&self) -> usize {
        let reserved = self.reserved.available_permits();
        self.max_http.saturating_add(self.max_web_sockets).saturating_add(reserved).saturating_add(256)
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

impl Wire for Handle {
    fn cut(&self) {
        // It may be gone already, which is what was wanted.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    fn has_unread(&self) -> bool {
        rustix::io::ioctl_fionread(&self.socket).is_ok_and(|bytes| bytes > 0)
    }
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

/// Ends the session of stateless requests when their connection is closed.
pub type EndSession = Box<dyn Fn()>;

/// One TCP connection; lives in its connection data.
pub struct Connection {
    counts: Arc<Connections>,
    pub peer: Option<SocketAddr>,
    /// Another handle of the socket, to cut a peer that does not read.
    socket: Option<Arc<Handle>>,
    /// Counted over the limit when it was accepted, and ever since.
    refused: Cell<bool>,
    place: Arc<Place>,
    intake: OnceCell<Arc<Intake>>,
    gauge: Cell<Option<ConnectionGuard>>,
    /// Whoever is connected keeps a detached gateway from ending by itself.
    _user: UserGuard,
    /// The bookkeeper of stateless requests on this connection, from the first of them on.
    session: OnceCell<(Arc<SessionShared>, EndSession)>,
}

impl Connection {
    /// Counts the connection and sets its socket up.
    pub fn open(counts: &Arc<Connections>, stream: &TcpStream) -> Self {
        if let Err(error) = SockRef::from(stream).set_tcp_user_timeout(Some(USER_TIMEOUT)) {
            tracing::debug!(%error, "no TCP_USER_TIMEOUT");
        }
        let socket = counts.handle(stream);
        let wire = socket.as_ref().map(|handle| Arc::clone(handle) as Arc<dyn Wire>);
        let (place, room) = counts.places.enter(wire);
        Self {
            counts: Arc::clone(counts),
            peer: stream.peer_addr().ok(),
            socket,
            refused: Cell::new(!room),
            place,
            intake: OnceCell::new(),
            _user: counts.users.add_user(),
            gauge: Cell::new(Some(ConnectionGuard::connection(Transport::Http))),
            session: OnceCell::new(),
        }
    }

    /// The connection that a request came by.
    #[must_use]
    pub fn of(request: &HttpRequest) -> Option<OfRequest<'_>> {
        match request.conn_data() {
            Some(connection) => Some(OfRequest::Http1(connection)),
            None => request.extensions().get::<Rc<Self>>().map(|connection| OfRequest::Http2(Rc::clone(connection))),
        }
    }

    /// Another gateway of the same store hands requests on by it: it stays, and what it brings is of many.
    pub fn is_of_peer(&self) {
        self.place.is_of_peer();
    }

    #[must_use]
    pub fn is_peers(&self) -> bool {
        self.place.peer()
    }

    /// The connection becomes a WebSocket, if there is room for one more.
    #[must_use]
    pub fn upgrade(&self) -> bool {
        let Some(permit) = self.counts.web_socket() else { return false };
        self.counts.places.upgrade(&self.place, permit);
        self.gauge.set(Some(ConnectionGuard::connection(Transport::WebSocket)));
        true
    }

    /// The connection stays what it was: the upgrade was refused after all.
    pub fn not_upgraded(&self) {
        self.counts.places.not_upgraded(&self.place);
        self.gauge.set(Some(ConnectionGuard::connection(Transport::Http)));
    }

    /// The connection carries that session's stream or messages from now on, and is as busy as it.
    pub fn carries(&self, session: &Arc<SessionShared>) {
        self.place.carries(session);
    }

    /// Somebody with a reviewer's credential speaks on it: it gets one of the places kept for them, if one is free.
    pub fn is_reviewers(&self) -> bool {
        let reserved = self.counts.places.reserve(&self.place);
        if reserved {
            self.refused.set(false);
        }
        reserved
    }

    /// What all threads see of it.
    #[must_use]
    pub const fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// What it holds of bodies; of another gateway, what this one request does.
    fn intake(&self) -> Arc<Intake> {
        if self.is_peers() {
            self.counts.intake()
        } else {
            Arc::clone(self.intake.get_or_init(|| self.counts.intake()))
        }
    }

    /// Whether it is one too many. One that was stays so only while there are too many.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        if self.refused.get() && !self.counts.places.is_over() {
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
                handle.cut();
            }
        })
    }

    /// The bookkeeper of this connection, made by `open` for its first stateless request.
    pub fn session(&self, open: impl FnOnce() -> (Arc<SessionShared>, EndSession)) -> &Arc<SessionShared> {
        let (session, _) = self.session.get_or_init(|| {
            let opened = open();
            self.place.carries(&opened.0);
            opened
        });
        session
    }
}

/// See [`Connection::of`].
pub enum OfRequest<'a> {
    Http1(&'a Connection),
    Http2(Rc<Connection>),
}

impl Deref for OfRequest<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match self {
            Self::Http1(connection) => connection,
            Self::Http2(connection) => connection,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counts.places.leave(&self.place);
        if let Some((_, end)) = self.session.get() {
            end();
        }
    }
}

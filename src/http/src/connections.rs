//! Counts connections, keeps them within their limits, and finds the connection of each request.
//!
//! A new connection over the limit evicts another one ([`countersign_exchange::eviction`]). If none can be evicted, the new one
//! is still accepted, so that it can be refused with a 503. A limited number of connections that have sent a reviewer's
//! credential hold reserved places, and are never evicted.

use std::{
    borrow::Cow,
    cell::{Cell, OnceCell},
    collections::HashMap,
    net::{Shutdown, SocketAddr},
    os::fd::AsFd,
    rc::Rc,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::{HttpMessage as _, HttpRequest, rt::net::TcpStream};
use parking_lot::Mutex;
use socket2::{SockRef, Socket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::either::Either;

use countersign_attach::{Users, users::UserGuard};
use countersign_config::TransportsConfig;
use countersign_exchange::{
    body_budget::{BodyBudget, ConnectionBudget},
    eviction::{self, Activity, EvictionQueue},
    state::SessionState,
};
use countersign_telemetry::{GaugeGuard, Transport};

/// The byte stream of a connection, with or without TLS.
pub(crate) type ByteStream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Breaks a connection at once, from any thread.
pub type ConnectionCutter = Arc<dyn Fn() + Send + Sync>;

/// Time after which a peer that acknowledges nothing, or keeps its receive window shut, counts as gone.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// All connections: those for HTTP requests, and those for WebSockets.
pub struct Connections {
    max_http: usize,
    max_web_sockets: usize,
    max_reserved: usize,
    /// Number of connections that hold places reserved for reviewers.
    reserved: AtomicUsize,
    next_number: AtomicU64,
    http: Mutex<ConnectionGroup>,
    web_sockets: Mutex<ConnectionGroup>,
    /// One permit for each WebSocket of any endpoint.
    pub web_socket_permits: Arc<Semaphore>,
    /// One permit for each WebSocket that is reserved for reviewers.
    pub reserved_permits: Arc<Semaphore>,
    /// Limits the bytes of request bodies in memory.
    body_budget: Arc<BodyBudget>,
    /// The number of connections that may have a second descriptor each, so that enough descriptors remain for everything
    /// else.
    max_second_descriptors: usize,
    users: Users,
}

impl Connections {
    pub fn new(config: &TransportsConfig, body_budget: Arc<BodyBudget>, users: Users) -> Self {
        Self {
            max_http: config.http.max_connections,
            max_web_sockets: config.websocket.max_connections,
            max_reserved: config.http.reserved_connections,
            reserved: AtomicUsize::new(0),
            next_number: AtomicU64::new(0),
            http: Mutex::default(),
            web_sockets: Mutex::default(),
            web_socket_permits: Arc::new(Semaphore::new(config.websocket.max_connections)),
            reserved_permits: Arc::new(Semaphore::new(config.http.reserved_connections)),
            body_budget,
            max_second_descriptors: raise_open_file_limit() / 3,
            users,
        }
    }

    /// Creates the budget of a new connection for the bytes of request bodies.
    pub fn new_budget(&self) -> Arc<ConnectionBudget> {
        self.body_budget.connection_budget()
    }

    /// Returns the number of connections to accept: all limits together, and some more that are refused with a 503.
    pub fn max_accepted(&self) -> usize {
        self.max_http.saturating_add(self.max_web_sockets).saturating_add(self.max_reserved).saturating_add(256)
    }

    /// Counts a connection, and evicts another one if there are too many. Also returns `true` if there is room for it.
    fn add(&self, socket: Option<Socket>) -> (Arc<ConnectionState>, bool) {
        let state = Arc::new(ConnectionState {
            number: self.next_number.fetch_add(1, Relaxed),
            socket,
            last_active: AtomicU64::new(eviction::monotonic_ms()),
            ..ConnectionState::default()
        });
        let (evicted, has_room) = {
            let mut http = self.http.lock();
            // The eviction comes first, so that the new connection cannot evict itself.
            let evicted = if http.counted >= self.max_http { http.evict() } else { None };
            http.insert(Arc::clone(&state));
            (evicted, http.counted <= self.max_http)
        };
        if let Some(evicted) = evicted {
            tracing::debug!("a connection is evicted for a new one");
            evicted.cut();
        }
        (state, has_room)
    }

    fn remove(&self, state: &ConnectionState) {
        // A `cutter` may keep the state for longer.
        drop(state.web_socket_permit.lock().take());
        if state.is_reserved.swap(false, Relaxed) {
            self.reserved.fetch_sub(1, Relaxed);
        }
        if self.http.lock().remove(state.number).is_none() {
            self.web_sockets.lock().remove(state.number);
        }
    }

    fn is_over_limit(&self) -> bool {
        self.http.lock().counted > self.max_http
    }

    /// Gives a connection one of the reserved places. Returns `false` if all of them are taken.
    fn reserve(&self, state: &ConnectionState) -> bool {
        if state.is_reserved.load(Relaxed) {
            return true;
        }
        let max = self.max_reserved;
        if self.reserved.fetch_update(Relaxed, Relaxed, |n| (n < max).then_some(n + 1)).is_err() {
            return false;
        }
        state.is_reserved.store(true, Relaxed);
        let mut http = self.http.lock();
        if http.all.contains_key(&state.number) && !state.is_uncounted.swap(true, Relaxed) {
            http.counted -= 1;
        }
        true
    }

    /// Evicts a WebSocket and returns its permit. Returns `None` if every WebSocket has calls in flight.
    fn evict_web_socket(&self) -> Option<OwnedSemaphorePermit> {
        let evicted = self.web_sockets.lock().evict()?;
        tracing::debug!("a WebSocket is evicted for a new one");
        let permit = evicted.web_socket_permit.lock().take();
        match evicted.session() {
            // The session sends a close frame first.
            Some(session) => session.end(),
            None => evicted.cut(),
        }
        permit
    }
}

/// Raises the limit of open files to the maximum for this process, and returns it. Many systems start it with 1024, which
/// the default limits of connections exceed.
fn raise_open_file_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

/// The connections of one kind.
#[derive(Default)]
struct ConnectionGroup {
    /// Number of connections that count towards the limit. Those of reviewers do not.
    counted: usize,
    all: HashMap<u64, Arc<ConnectionState>>,
    queue: EvictionQueue<u64>,
}

impl ConnectionGroup {
    fn insert(&mut self, state: Arc<ConnectionState>) {
        let number = state.number;
        state.is_uncounted.store(false, Relaxed);
        self.counted += 1;
        self.all.insert(number, state);
        let Self { counted, all, queue } = self;
        queue.add(number, *counted, |number| all.get(number).map(|state| state.activity()));
    }

    fn remove(&mut self, number: u64) -> Option<Arc<ConnectionState>> {
        let state = self.all.remove(&number)?;
        self.counted -= usize::from(!state.is_uncounted.swap(true, Relaxed));
        Some(state)
    }

    fn evict(&mut self) -> Option<Arc<ConnectionState>> {
        let Self { all, queue, .. } = self;
        let activity = |number: &u64| all.get(number).map(|state| state.activity());
        let number = queue.next(activity, || all.keys().copied().collect())?;
        self.remove(number)
    }
}

/// The part of a connection that all threads share.
#[derive(Default)]
pub struct ConnectionState {
    number: u64,
    /// A second descriptor of the socket, with which any thread can cut a peer that does not read. Without one the connection
    /// is not evicted, and such a peer is cut by `TCP_USER_TIMEOUT`.
    socket: Option<Socket>,
    open_requests: AtomicUsize,
    /// Number of open requests whose bodies have not arrived yet.
    awaited_bodies: AtomicUsize,
    has_completed_request: AtomicBool,
    /// Time of the last complete request, by [`eviction::monotonic_ms`].
    last_active: AtomicU64,
    /// `true` if the connection holds a reserved place.
    is_reserved: AtomicBool,
    /// `true` if another gateway opened the connection.
    is_peer: AtomicBool,
    /// `true` if the connection was evicted or removed, or holds a reserved place.
    is_uncounted: AtomicBool,
    /// The session whose stream or messages the connection carries.
    session: Mutex<Option<Weak<SessionState>>>,
    web_socket_permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl ConnectionState {
    /// Returns the activity by which a connection is chosen for eviction.
    fn activity(&self) -> Activity {
        let open = self.open_requests.load(Relaxed);
        let is_working = open > self.awaited_bodies.load(Relaxed);
        let is_protected = is_working || self.is_peer.load(Relaxed) || self.is_reserved.load(Relaxed);
        let Some(socket) = self.socket.as_ref().filter(|_| !is_protected) else { return Activity::Busy };
        // These bytes are a request that the thread of the connection has not read yet. Unread bytes of an open request do not
        // protect it.
        if open == 0 && rustix::io::ioctl_fionread(socket).is_ok_and(|bytes| bytes > 0) {
            return Activity::Busy;
        }
        let last_active = self.last_active.load(Relaxed);
        match self.session().map(|session| session.activity()) {
            Some(Activity::Idle(session_active)) => Activity::Idle(last_active.max(session_active)),
            Some(activity) => activity,
            None if self.has_completed_request.load(Relaxed) => Activity::Idle(last_active),
            None => Activity::Handshake,
        }
    }

    fn session(&self) -> Option<Arc<SessionState>> {
        self.session.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Breaks the connection at once.
    fn cut(&self) {
        if let Some(socket) = &self.socket {
            // An error means that the socket is closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Counts a request of a connection as open until it is dropped.
pub struct OpenRequest(Arc<ConnectionState>);

impl OpenRequest {
    fn new(state: &Arc<ConnectionState>) -> Self {
        state.open_requests.fetch_add(1, Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.last_active.store(eviction::monotonic_ms(), Relaxed);
        self.0.has_completed_request.store(true, Relaxed);
        self.0.open_requests.fetch_sub(1, Relaxed);
    }
}

/// Counts the body of an open request as awaited until it is dropped. The connection can be evicted meanwhile.
pub struct AwaitedBody(Arc<ConnectionState>);

impl AwaitedBody {
    fn new(state: &Arc<ConnectionState>) -> Self {
        state.awaited_bodies.fetch_add(1, Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for AwaitedBody {
    fn drop(&mut self) {
        self.0.awaited_bodies.fetch_sub(1, Relaxed);
    }
}

/// Ends the session of stateless requests when their connection is closed.
pub type SessionEnder = Box<dyn Fn()>;

/// One TCP connection, kept in the connection data of actix-web.
pub struct Connection {
    connections: Arc<Connections>,
    pub peer: Option<SocketAddr>,
    state: Arc<ConnectionState>,
    /// `true` if the limit was exceeded when the connection was accepted, and has been ever since.
    is_refused: Cell<bool>,
    budget: OnceCell<Arc<ConnectionBudget>>,
    gauge: Cell<Option<GaugeGuard>>,
    /// Keeps a detached gateway running while a client is connected.
    _user: UserGuard,
    /// The session that stateless requests of this connection share, from the first of them on.
    stateless_session: OnceCell<(Arc<SessionState>, SessionEnder)>,
}

impl Connection {
    /// Counts a new connection, and sets the options of its socket.
    pub fn open(connections: &Arc<Connections>, stream: &TcpStream) -> Self {
        if let Err(error) = SockRef::from(stream).set_tcp_user_timeout(Some(TCP_USER_TIMEOUT)) {
            tracing::debug!(%error, "cannot set TCP_USER_TIMEOUT");
        }
        let open = connections.http.lock().all.len() + connections.web_sockets.lock().all.len();
        let descriptor = (open < connections.max_second_descriptors).then(|| stream.as_fd().try_clone_to_owned().ok());
        let (state, has_room) = connections.add(descriptor.flatten().map(Socket::from));
        Self {
            connections: Arc::clone(connections),
            peer: stream.peer_addr().ok(),
            state,
            is_refused: Cell::new(!has_room),
            budget: OnceCell::new(),
            gauge: Cell::new(Some(GaugeGuard::connection(Transport::Http))),
            _user: connections.users.add_user(),
            stateless_session: OnceCell::new(),
        }
    }

    /// Returns the connection of a request. It is borrowed from a request over HTTP/1, and cloned from one over HTTP/2.
    #[must_use]
    pub fn for_request(request: &HttpRequest) -> Option<Cow<'_, Rc<Self>>> {
        match request.conn_data() {
            Some(connection) => Some(Cow::Borrowed(connection)),
            None => request.extensions().get().cloned().map(Cow::Owned),
        }
    }

    /// Marks the connection as opened by another gateway of the same store, which forwards requests of many clients. Such a
    /// connection is never evicted.
    pub fn mark_as_peer(&self) {
        self.state.is_peer.store(true, Relaxed);
    }

    pub fn is_peer(&self) -> bool {
        self.state.is_peer.load(Relaxed)
    }

    /// Counts a request as open.
    #[must_use]
    pub fn open_request(&self) -> OpenRequest {
        OpenRequest::new(&self.state)
    }

    /// Counts the body of an open request as awaited.
    #[must_use]
    pub fn await_body(&self) -> AwaitedBody {
        AwaitedBody::new(&self.state)
    }

    /// Returns the permit for a new WebSocket, and evicts another WebSocket if necessary. Returns `None` if every WebSocket has
    /// calls in flight.
    #[must_use]
    pub fn web_socket_permit(&self) -> Option<OwnedSemaphorePermit> {
        let free = Arc::clone(&self.connections.web_socket_permits).try_acquire_owned().ok();
        free.or_else(|| self.connections.evict_web_socket())
    }

    /// Counts the connection as a WebSocket from now on.
    pub fn upgrade(&self, permit: OwnedSemaphorePermit) {
        *self.state.web_socket_permit.lock() = Some(permit);
        let removed = self.connections.http.lock().remove(self.state.number);
        if let Some(state) = removed {
            self.connections.web_sockets.lock().insert(state);
        }
        self.gauge.set(Some(GaugeGuard::connection(Transport::WebSocket)));
    }

    /// Binds the connection to the session whose stream or messages it carries: it is as busy as the session from now on.
    pub fn bind_session(&self, session: &Arc<SessionState>) {
        *self.state.session.lock() = Some(Arc::downgrade(session));
    }

    /// Gives a reserved place to a connection that has sent a reviewer's credential. Returns `false` if all are taken.
    pub fn reserve_reviewer_place(&self) -> bool {
        let is_reserved = self.connections.reserve(&self.state);
        if is_reserved {
            self.is_refused.set(false);
        }
        is_reserved
    }

    /// Returns the budget for the bytes of request bodies: of the connection, or of one request if the connection is a peer's.
    pub fn budget(&self) -> Arc<ConnectionBudget> {
        let new = || self.connections.new_budget();
        if self.is_peer() { new() } else { Arc::clone(self.budget.get_or_init(new)) }
    }

    /// Returns `true` if the connection exceeds the limit. Its requests are refused until there are fewer connections.
    pub fn is_refused(&self) -> bool {
        if self.is_refused.get() && !self.connections.is_over_limit() {
            self.is_refused.set(false);
        }
        self.is_refused.get()
    }

    /// Returns the cutter of the connection.
    pub fn cutter(&self) -> ConnectionCutter {
        let state = Arc::clone(&self.state);
        Arc::new(move || state.cut())
    }

    /// Returns the session that stateless requests of this connection share. `open` creates it for the first of them.
    pub fn stateless_session(&self, open: impl FnOnce() -> (Arc<SessionState>, SessionEnder)) -> &Arc<SessionState> {
        let (session, _) = self.stateless_session.get_or_init(|| {
            let opened = open();
            self.bind_session(&opened.0);
            opened
        });
        session
    }
}

/// Returns the cutter of the connection of a request.
pub fn cutter(request: &HttpRequest) -> ConnectionCutter {
    Connection::for_request(request).map_or_else(|| Arc::new(|| ()) as _, |connection| connection.cutter())
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.remove(&self.state);
        if let Some((_, end)) = self.stateless_session.get() {
            end();
        }
    }
}

#[cfg(test)]
mod tests;

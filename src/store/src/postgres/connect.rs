//! Connections to the server: its address, and a pool for reads and small writes.
//!
//! The pool lives on its own thread, so that callers may be on any thread or in any runtime. Blocking calls wait
//! outside any runtime.

use std::{
    fmt,
    future::{Future, poll_fn},
    net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket},
    path::PathBuf,
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread::{self, JoinHandle, Thread},
    time::Duration,
};

use deadpool_postgres::{ClientWrapper, Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use futures_util::future::LocalBoxFuture;
use rustls::{ClientConfig, RootCertStore};
use tokio::{
    runtime::Handle,
    sync::{
        OnceCell,
        mpsc::{UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::LocalSet,
    time::Instant,
};
use tokio_postgres::{
    AsyncMessage, Config,
    config::{Host, SslMode, TargetSessionAttrs},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    error,
    rows::{take_heads, transaction},
    silence::SilenceDetector,
};
use crate::{
    StoreError, StoreFuture,
    health::Health,
    sql::{BACKGROUND_TIMEOUT, Database},
};
use countersign_net::tls;

/// The maximum connections for reads and small writes, in addition to the writer's connection.
const POOL_SIZE: usize = 8;
/// The timeout for getting a free connection from the pool, and for opening a new one.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout for an answer, which is longer than the server's limit for statements.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);

/// The timeout for the acknowledgment of sent data, after which the connection counts as lost.
const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum time for finding out the outcome of a transaction whose commit was not answered, and the pause between attempts.
const MAX_LOOKUP_TIME: Duration = Duration::from_secs(20);
const LOOKUP_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The settings of each connection, which take precedence over those of the role and the database. The limits end
/// statements, waits for locks, idle transactions and dead connections. A frozen node with an open transaction blocks
/// the others for three seconds, which is less than a lease. A transaction that may be idle for longer sets its own
/// limit. The isolation level lets a write continue after it has waited for a row that another transaction changed.
const SETTINGS: &str = "-c statement_timeout=30000 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=3000 \
     -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c timezone=UTC \
     -c default_transaction_isolation=read\\ committed";

/// Parses an address. Servers on other machines are reached with TLS unless the address says otherwise. Errors do not
/// repeat the address, because it may hold a password.
///
/// # Errors
/// [`StoreError::Unreachable`]
pub(crate) fn parse(url: &str) -> Result<Config, StoreError> {
    let (head, parameters) = split_parameters(url);
    // The driver knows fewer modes than libpq, and our TLS configuration always verifies certificates.
    let supported = |parameter| match parameter {
        "sslmode=verify-full" | "sslmode=verify-ca" => "sslmode=require",
        other => other,
    };
    let parameters: Vec<&str> = parameters.split('&').map(supported).collect();
    let mut config: Config = format!("{head}{}", parameters.join("&"))
        .parse()
        .map_err(|_| StoreError::Unreachable("the address is not a valid PostgreSQL address".into()))?;
    if !parameters.iter().any(|parameter| parameter.starts_with("sslmode=")) {
        let is_local = |host: &Host| match host {
            Host::Unix(_) => true,
            Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
        };
        config.ssl_mode(if config.get_hosts().iter().all(is_local) { SslMode::Disable } else { SslMode::Require });
    }
    if config.get_password().is_none()
        && let Ok(password) = std::env::var("PGPASSWORD")
    {
        config.password(password);
    }
    let options = config.get_options().map(|options| format!("{SETTINGS} {options}"));
    config.options(options.unwrap_or_else(|| SETTINGS.to_owned()));
    config.application_name("countersign").connect_timeout(CONNECT_TIMEOUT).tcp_user_timeout(USER_TIMEOUT);
    config.keepalives(true).keepalives_idle(Duration::from_secs(10)).keepalives_interval(Duration::from_secs(5));
    // If the address names several servers, the driver uses the one that accepts writes.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    Ok(config)
}

/// Splits an address after the `?` before its parameters. As in the driver, the first `@` ends the credentials, which may
/// contain `?`.
fn split_parameters(url: &str) -> (&str, &str) {
    let after_credentials = url.split_once('@').map_or(url, |(_, rest)| rest);
    let parameters = after_credentials.split_once('?').map_or("", |(_, parameters)| parameters);
    (url.strip_suffix(parameters).unwrap_or(url), parameters)
}

/// A pooled connection in use. If its work is not completed, dropping closes it, because a transaction may be open or
/// an answer outstanding.
struct PooledConnection(Option<Object>);

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            drop(Object::take(client));
        }
    }
}

fn unreachable(error: impl fmt::Display) -> StoreError {
    StoreError::Unreachable(error.to_string())
}

/// Returns a TLS connector that trusts the authorities in the file, or the public authorities.
fn tls_connector(authorities: Option<&PathBuf>) -> Result<MakeRustlsConnect, StoreError> {
    let roots = match authorities {
        None => tls::public_roots(),
        Some(path) => {
            let authorities = tls::read_authorities(path);
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(
                authorities.map_err(|error| unreachable(format!("{}: {error}", path.display())))?,
            );
            roots
        }
    };
    Ok(MakeRustlsConnect::new(ClientConfig::clone(&tls::client_config(roots, &[]))))
}

/// Runs a future on a new thread with its own runtime. Returns once the future reports whether it started.
///
/// # Errors
/// The error that the future reports, or [`StoreError::Unreachable`] if the thread cannot be started.
pub(super) fn spawn_runtime<W: Future<Output = ()>>(
    name: &str,
    work: impl FnOnce(mpsc::SyncSender<Result<(), StoreError>>) -> W + Send + 'static,
) -> Result<JoinHandle<()>, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unreachable)?;
    let (ready, start_result) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(name.into());
    let thread = thread.spawn(move || runtime.block_on(work(ready))).map_err(unreachable)?;
    start_result.recv().unwrap_or(Err(StoreError::Closed))?;
    Ok(thread)
}

/// Builds a future that the pool's thread runs.
type Job = Box<dyn FnOnce() -> LocalBoxFuture<'static, ()> + Send>;

/// Opens connections, and owns the pool and its thread. Dropping the connector closes the connections.
pub(crate) struct PgConnector {
    config: Config,
    tls: MakeRustlsConnect,
    pool: Pool,
    handle: Handle,
    pub health: Arc<Health>,
    pub(super) silence: SilenceDetector,
    /// The schema is up to date.
    pub migrated: OnceCell<()>,
    jobs: UnboundedSender<Job>,
}

impl PgConnector {
    /// Returns the address from which this machine reaches the server, determined by a socket that sends nothing.
    pub fn outward_address(&self) -> Option<IpAddr> {
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        self.config.get_hosts().iter().find_map(|host| {
            let Host::Tcp(name) = host else { return None };
            let server = (name.as_str(), port).to_socket_addrs().ok()?.next()?;
            let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
            let socket = UdpSocket::bind(any).ok()?;
            socket.connect(server).ok()?;
            Some(socket.local_addr().ok()?.ip())
        })
    }

    /// Starts the pool's thread without connecting.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the thread cannot be started or the authorities cannot be read.
    pub fn start(config: &Config, authorities: Option<&PathBuf>) -> Result<Arc<Self>, StoreError> {
        let tls = tls_connector(authorities)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unreachable)?;
        let handle = runtime.handle().clone();
        let pool = pool(config, &tls, POOL_SIZE)?;
        let (jobs, mut queue) = unbounded_channel::<Job>();
        let work = async move {
            // The loop ends once the connector is dropped.
            while let Some(job) = queue.recv().await {
                tokio::task::spawn_local(job());
            }
        };
        std::thread::Builder::new()
            .name("store-read".into())
            .spawn(move || LocalSet::new().block_on(&runtime, work))
            .map_err(unreachable)?;
        Ok(Arc::new(Self {
            config: config.clone(),
            tls,
            pool,
            handle,
            health: Arc::default(),
            silence: SilenceDetector::default(),
            migrated: OnceCell::new(),
            jobs,
        }))
    }

    /// Creates a separate pool, so that its users do not wait for the store's own reads.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`]
    pub fn create_pool(&self, connections: usize) -> Result<Pool, StoreError> {
        pool(&self.config, &self.tls, connections)
    }

    /// Runs a future on the pool's thread.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Runs statements on the pool's thread with a pooled connection. The answer may be awaited in any runtime.
    /// `timeout_error` is [`error::no_answer`] for reads, and [`error::unknown_outcome`] for writes.
    pub fn run_async<T: Send + 'static>(
        self: &Arc<Self>,
        timeout_error: fn() -> StoreError,
        work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        let (reply, answer) = oneshot::channel();
        let connector = Arc::clone(self);
        let job = move || -> LocalBoxFuture<'static, ()> {
            Box::pin(async move {
                // The query is skipped if the caller has given up.
                if !reply.is_closed() {
                    let _ = reply.send(connector.with_connection(BACKGROUND_TIMEOUT, timeout_error, work).await);
                }
            })
        };
        // If the thread has ended, the reply channel is dropped, and the caller gets `Closed`.
        let _ = self.jobs.send(Box::new(job));
        Box::pin(async move { answer.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// Runs a future on the calling thread until it is ready, while the pool's thread serves the connections. Must not
    /// be called on the pool's thread.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        struct Unpark(Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let _entered = self.handle.enter();
        // The calling thread may run a task, whose cooperative budget would be used up and never renewed here.
        let mut work = pin!(tokio::task::unconstrained(work));
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match work.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Runs statements with a pooled connection for at most `limit`. Fails with `timeout_error` if the statements had
    /// started by then.
    async fn with_connection<T>(
        &self,
        limit: Duration,
        timeout_error: fn() -> StoreError,
        work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let end = Instant::now() + limit;
        let taken = tokio::time::timeout_at(end, take_connection(&self.pool)).await;
        let mut connection = PooledConnection(Some(taken.unwrap_or_else(|_| Err(error::no_answer()))?));
        let client = connection.0.as_ref().ok_or(StoreError::Closed)?;
        let result = self.silence.answer(end.saturating_duration_since(Instant::now()), work(client)).await;
        if result.is_some() {
            drop(connection.0.take());
        } else {
            // The idle connections in the pool may be dead as well.
            self.pool.retain(|_, _| false);
        }
        let result = result.unwrap_or_else(|| Err(timeout_error()));
        if let Err(error) = &result {
            self.health.record_damage(error);
        }
        result
    }

    /// Opens a connection outside the pool, in the caller's runtime.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`]
    pub async fn connect(&self) -> Result<ClientWrapper, StoreError> {
        self.listen(|_| ()).await
    }

    /// Opens a connection like [`Self::connect`], and passes the payload of each notification to the callback.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`]
    pub async fn listen(&self, on_notification: impl Fn(&str) + Send + 'static) -> Result<ClientWrapper, StoreError> {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, self.config.connect(self.tls.clone()));
        let (client, mut connection) = connecting.await.map_err(|_| error::no_answer())??;
        let task = tokio::spawn(async move {
            while let Some(received) = poll_fn(|cx| connection.poll_message(cx)).await {
                match received {
                    Ok(AsyncMessage::Notification(notification)) => on_notification(notification.payload()),
                    // Notices, such as that of a rollback without a transaction, tell an operator nothing.
                    Ok(_) => {}
                    Err(error) => return tracing::warn!(%error, "a connection to PostgreSQL ended"),
                }
            }
        });
        Ok(ClientWrapper::new(client, task))
    }
}

impl Database for Arc<PgConnector> {
    type Connection = ClientWrapper;

    fn read<T>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.block_on(self.with_connection(limit, error::no_answer, work))
    }

    fn write<T>(&self, work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.block_on(self.with_connection(BACKGROUND_TIMEOUT, error::unknown_outcome, work))
    }

    fn write_in_background(
        &self,
        work: impl AsyncFnOnce(&ClientWrapper) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let writing = self.run_async(error::unknown_outcome, work);
        self.spawn(async move {
            if let Err(error) = writing.await {
                tracing::debug!(%error, "a write in the background failed");
            }
        });
        Ok(())
    }

    fn transaction<T>(&self, work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.write(async |client| transaction(client, work(client)).await)
    }

    fn confirmed_transaction(
        &self,
        work: impl AsyncFnOnce(&ClientWrapper) -> Result<bool, StoreError>,
        is_written: impl AsyncFn(&ClientWrapper) -> Result<bool, StoreError>,
    ) -> Result<bool, StoreError> {
        let result = self.transaction(work);
        let Err(StoreError::OutcomeUnknown) = result else { return result };
        let found = repeat_look_up(|| {
            self.transaction(async |client| {
                // The lost transaction holds this lock until it ends.
                take_heads(client).await?;
                is_written(client).await
            })
        });
        match found {
            Ok(true) => Ok(true),
            Ok(false) => Err(StoreError::Unreachable("the connection ended before the commit".into())),
            Err(error) => {
                tracing::error!(%error, "it cannot be found out whether the write to a key was committed; check with `countersign keys list`");
                Err(StoreError::OutcomeUnknown)
            }
        }
    }

    fn repeatable_transaction<T>(
        &self,
        limit: Duration,
        work: impl AsyncFn(&ClientWrapper) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let end = Instant::now() + limit;
        let attempt =
            |limit| {
                self.block_on(self.with_connection(limit, error::unknown_outcome, async |client| {
                    transaction(client, work(client)).await
                }))
            };
        let first_result = attempt(limit);
        let remaining = end.saturating_duration_since(Instant::now());
        match first_result {
            _ if remaining.is_zero() => first_result,
            // The failure of the second attempt does not reveal whether the first one was committed.
            Err(StoreError::OutcomeUnknown) => attempt(remaining).map_err(|_| error::unknown_outcome()),
            Err(StoreError::Unreachable(_)) => attempt(remaining),
            first_result => first_result,
        }
    }
}

/// Looks up the outcome of a commit that was not answered, again until the server answers or [`MAX_LOOKUP_TIME`] is over. Blocks.
///
/// # Errors
/// The error of the last attempt.
pub fn repeat_look_up<T, E>(look_up: impl Fn() -> Result<T, E>) -> Result<T, E> {
    let end = Instant::now() + MAX_LOOKUP_TIME;
    loop {
        match look_up() {
            Err(_) if Instant::now() <= end => thread::sleep(LOOKUP_RETRY_DELAY),
            result => return result,
        }
    }
}

fn pool(config: &Config, tls: &MakeRustlsConnect, connections: usize) -> Result<Pool, StoreError> {
    let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(config.clone(), tls.clone(), manager);
    Pool::builder(manager)
        .max_size(connections)
        .runtime(deadpool_postgres::Runtime::Tokio1)
        .wait_timeout(Some(CONNECT_TIMEOUT))
        .create_timeout(Some(CONNECT_TIMEOUT))
        .build()
        .map_err(unreachable)
}

/// Takes a connection from the pool. Must be called on the thread of [`PgConnector`].
pub(super) async fn take_connection(pool: &Pool) -> Result<Object, StoreError> {
    let connection = tokio::time::timeout(CONNECT_TIMEOUT, pool.get()).await.map_err(|_| error::no_answer())?;
    connection.map_err(|error| match error {
        deadpool_postgres::PoolError::Backend(error) => error.into(),
        other => unreachable(other),
    })
}

#[cfg(test)]
mod tests;

//! Runs a gateway, and ends it in order.
//!
//! At the end, another node takes the lead, no new work is accepted, streams get their final event, and running calls
//! get a deadline. Then the store and the connections to servers are closed, which ends the calls that still run. The
//! sessions end last, so that their clients get the answers.

mod endpoints;
mod notify;
mod providers;
mod review;
mod sealers;
mod start;
mod stdio;
mod storage;
#[cfg(test)]
mod tests;
mod token_key;

use std::{
    io::{IsTerminal, Write},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use actix::Arbiter;
use actix_web::dev::ServerHandle;
use jiff::Timestamp;
use tokio::signal::unix::SignalKind;
use tokio_util::sync::CancellationToken;

pub use self::notify::unready_reasons;
use self::{endpoints::HttpTask, notify::ServiceManager, start::start};
use countersign_attach::{Users, gateway_file, hello, socket};
use countersign_auth::{codes, stored_credentials::StoredCredentials};
use countersign_config::{Config, Environment, Flags, LoadedConfig};
use countersign_docs::DocsError;
use countersign_exchange::context::RequestSlots;
use countersign_http::tls::ServerCertificate;
use countersign_protocol::McpError;
use countersign_reload::{ConfigSource, ReloadCause, Reloader, watch};
use countersign_review::StartError;
use countersign_routing::table::RouteError;
use countersign_rulings::{rule_counts::RuleCounts, standing_rules::StandingRuleService};
use countersign_runtime::{
    background,
    data_dir::{DataLock, LockError},
};
use countersign_session::McpServer;
use countersign_store::StoreError;
use countersign_telemetry::Metrics;
use countersign_tracker::TrackerError;
use countersign_transports::{endpoint::McpEndpoint, lines};
use countersign_webhooks::Webhooks;

/// The maximum time that running calls get at the end of a gateway that serves stdin.
const MAX_STDIO_DRAIN: Duration = Duration::from_millis(300);
/// The maximum time for the answers of the calls that are ended with the connections to servers.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_millis(500);
/// The interval at which the number of running requests is checked.
const REQUEST_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Options of this process beyond its configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The gateway is detached, because `countersign stdio` started it. It ends some time after its last user, and
    /// uses another port if the configured one is taken.
    pub detached: bool,
    /// The gateway also serves MCP on stdin and stdout, and ends with stdin.
    pub stdio: bool,
    /// The operator accepts the configured policy, so that it needs no reviewer's consent.
    pub accept_policy: bool,
}

/// The reason why the gateway could not start, or ended too early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{0}")]
    Lock(#[from] LockError),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Changes(#[from] StartError),
    #[error("the tracker cannot start: {0}")]
    Tracker(#[from] TrackerError),
    #[error("the documents cannot be served: {0}")]
    Docs(#[from] DocsError),
    #[error("{0}")]
    Routes(#[from] RouteError),
    #[error("cannot listen on {address}: {source}{}", port_hint(source))]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("the TLS certificate or key cannot be used: {0}")]
    Tls(String),
    #[error(
        "{} sets no key, although the configuration file did when the gateway ran last: a program may not have written its \
         keys yet. If that is meant, write `mcpServers: {{}}` into the file, or start once with \
         `countersign serve --accept-policy`",
        .0.display()
    )]
    EmptiedFile(PathBuf),
    #[error("the start with this policy could not be recorded in the audit trail: {0}")]
    Policy(String),
    #[error("the key that seals the state of requests cannot be used: {0}")]
    StateKey(std::io::Error),
    #[error("secrets.key or secrets.key_file cannot be used: {0}")]
    KeyFile(std::io::Error),
    #[error(
        "another gateway of this store encrypts stored tokens with another key: `secrets` must have the same \
         content for all of them. To change the key, stop all gateways first"
    )]
    OtherTokenKey,
    #[error("{0}")]
    Socket(#[from] socket::SocketError),
    #[error("the gateway file in the data directory cannot be written: {0}")]
    GatewayFile(std::io::Error),
    #[error("stdin and stdout cannot be served: {0}")]
    Stdio(String),
    #[error("a core part of the gateway ended unexpectedly; the store recovers at the next start")]
    CoreEnded,
}

fn port_hint(source: &std::io::Error) -> &'static str {
    if source.kind() == std::io::ErrorKind::AddrInUse {
        "; another program has the port, choose one with --listen 127.0.0.1:PORT"
    } else {
        ""
    }
}

/// A running gateway.
pub struct RunningGateway {
    pub config: Arc<Config>,
    pub endpoint: Arc<McpEndpoint>,
    pub credentials: Arc<StoredCredentials>,
    pub standing_rules: Arc<StandingRuleService>,
    pub rule_counts: Arc<RuleCounts>,
    pub reloader: Arc<Reloader>,
    /// The TLS certificate; `None` without TLS.
    pub certificate: Option<Arc<ServerCertificate>>,
    pub users: Users,
    pub options: Options,
    pub http_server: ServerHandle,
    pub http_task: HttpTask,
    pub threads: Vec<Arbiter>,
    pub webhooks: Arc<Webhooks>,
    // The file is removed before the lock is released, so that nobody finds a gateway that no longer holds the lock.
    pub gateway_file: Option<gateway_file::PublishedFile>,
    pub _lock: DataLock,
}

impl RunningGateway {
    /// Creates a link that signs a reviewer in once.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`; `INTERNAL_ERROR` if there is no source of randomness.
    fn sign_in_link(&self) -> Result<String, McpError> {
        let code = codes::create(self.credentials.writer(), Timestamp::now())?;
        Ok(self.endpoint.server.reviews.address.sign_in_link(&code))
    }

    /// Runs until the gateway has to end, then ends it in order.
    ///
    /// # Errors
    /// As [`Self::wait_for_end`].
    async fn run_until_end(mut self, manager: Arc<ServiceManager>) -> Result<(), ServeError> {
        // The manager may request a reload as soon as it knows that the gateway serves.
        background::spawn(watch_config(&self, &manager));
        if let Some(certificate) = &self.certificate {
            background::spawn(watch_certificate(Arc::clone(certificate), self.endpoint.shutdown.child_token()));
        }
        manager.notify_ready(&notify::describe(&self.endpoint.server));
        let mut threads: Vec<_> = self.threads.iter().map(Arbiter::handle).collect();
        threads.extend(self.endpoint.server.reviews.changes.threads());
        background::spawn(notify::run(Arc::clone(&manager), Arc::clone(&self.endpoint), threads));
        let result = self.wait_for_end().await;
        manager.notify_stopping();
        self.shut_down().await;
        result
    }

    /// Waits for a signal, the end of stdin or of the last user, a newer program, or the failure of a core part.
    ///
    /// # Errors
    /// [`ServeError::CoreEnded`] if a core part failed, [`ServeError::Stdio`] if stdin cannot be served.
    async fn wait_for_end(&mut self) -> Result<(), ServeError> {
        let linger = self.config.transports.stdio.linger;
        let endpoint = Arc::clone(&self.endpoint);
        let serve_stdio = async {
            if !self.options.stdio {
                return std::future::pending().await;
            }
            let not_unicode = |name| ServeError::Stdio(format!("environment variable {name} is not Unicode"));
            let key = hello::agent_key(&Environment::from_process()).map_err(not_unicode)?;
            let identity = stdio::stdio_identity(&endpoint.sessions.authenticator, key.as_deref())
                .map_err(|error| ServeError::Stdio(error.message.to_string()))?;
            lines::serve(Arc::clone(&endpoint), identity, tokio::io::stdin(), tokio::io::stdout()).await;
            Ok::<(), ServeError>(())
        };
        let core_failure = async {
            loop {
                tokio::time::sleep(Duration::from_millis(500)).await;
                if !is_working(&endpoint.server) {
                    return;
                }
            }
        };
        tokio::select! {
            signal = wait_for_signal() => tracing::info!(signal, "the gateway is ending"),
            served = serve_stdio => served.map(|()| tracing::info!("stdin has ended"))?,
            () = self.users.wait_until_idle(linger), if self.options.detached => tracing::info!("the gateway ends because nobody uses it"),
            () = endpoint.shutdown.cancelled() => {}
            _ = &mut self.http_task => tracing::error!("the HTTP server ended"),
            // Nothing restarts an actor that has panicked, so the process ends, and the store recovers at the next start.
            () = core_failure => return Err(ServeError::CoreEnded),
        }
        Ok(())
    }

    /// Ends the gateway in the order that the header of this module describes.
    async fn shut_down(mut self) {
        let server = &self.endpoint.server;
        // The client of a stdio server waits for its end, so running calls get little time.
        let drain = self.config.limits.drain.min(if self.options.stdio { MAX_STDIO_DRAIN } else { Duration::MAX });
        self.gateway_file = None;
        // Deliveries in flight finish before this node resigns, so that the next leader's deliveries do not overtake
        // them. Another node then leads while running calls end.
        self.webhooks.drain().await;
        server.reviews.changes.nodes().resign();
        self.endpoint.shutdown.cancel();
        if !wait_for_requests(&server.slots, drain).await {
            tracing::warn!(requests = server.slots.running(), "requests were still running at the deadline");
        }
        self.standing_rules.record_uses().await;
        self.rule_counts.write().await;
        server.reviews.changes.shutdown(drain).await;
        // The calls that still run fail with the connections to their servers. Their clients get the errors before the
        // sessions end.
        server.routing.upstreams.stop().await;
        wait_for_requests(&server.slots, LAST_ANSWERS_TIMEOUT).await;
        // A request stops running shortly before its answer is queued.
        tokio::time::sleep(REQUEST_POLL_INTERVAL).await;
        self.endpoint.sessions.lifetimes.ended.cancel();
        // Connections that sessions do not close in time end with the process.
        let _ = tokio::time::timeout(Duration::from_millis(500), self.http_server.stop(true)).await;
        drop(self.http_server.stop(false));
        for thread in &self.threads {
            thread.stop();
        }
        tracing::info!("the gateway has ended");
    }
}

/// Waits until no request is running, for at most `max_wait`. Returns `false` if some requests still run then.
async fn wait_for_requests(slots: &RequestSlots, max_wait: Duration) -> bool {
    let all_answered = async {
        while slots.running() > 0 {
            tokio::time::sleep(REQUEST_POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(max_wait, all_answered).await.is_ok()
}

/// Reads the files of the certificate again, on a blocking thread, because reading them may block.
async fn renew_certificate(certificate: &Arc<ServerCertificate>) {
    let certificate = Arc::clone(certificate);
    let _ = background::spawn_blocking(move || certificate.renew()).await;
}

/// Renews the certificate whenever its files change, until the gateway ends.
async fn watch_certificate(certificate: Arc<ServerCertificate>, shutdown: CancellationToken) {
    let renewals = watch::watch_files(certificate.files(), async || renew_certificate(&certificate).await);
    let _ = shutdown.run_until_cancelled(renewals).await;
}

/// Watches the configuration until the gateway ends, and tells the service manager when SIGHUP begins and ends a
/// reload.
fn watch_config(running: &RunningGateway, manager: &Arc<ServiceManager>) -> impl Future<Output = ()> + use<> {
    let (reloader, endpoint, manager) =
        (Arc::clone(&running.reloader), Arc::clone(&running.endpoint), Arc::clone(manager));
    let shutdown = endpoint.shutdown.child_token();
    let certificate = running.certificate.clone();
    let reload = async move || {
        manager.notify_reloading();
        if let Some(certificate) = &certificate {
            renew_certificate(certificate).await;
        }
        reloader.reload(ReloadCause::Signal).await;
        manager.notify_ready(&notify::describe(&endpoint.server));
    };
    watch::run(Arc::clone(&running.reloader), shutdown, reload)
}

/// Returns `true` if the router and the parts that handle changes still run.
fn is_working(server: &McpServer) -> bool {
    server.reviews.changes.is_healthy() && server.routing.router.connected()
}

/// Waits for SIGTERM or SIGINT, and returns its name.
async fn wait_for_signal() -> &'static str {
    use tokio::signal::unix::signal;
    let wait = |kind| async move {
        match signal(kind) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = wait(SignalKind::terminate()) => "SIGTERM",
        () = wait(SignalKind::interrupt()) => "SIGINT",
    }
}

/// Runs a gateway on this thread until it ends. At a terminal, it prints a link that signs in to the dashboard.
///
/// # Errors
/// Returns a [`ServeError`].
pub fn run(loaded: LoadedConfig, flags: Flags, options: Options, metrics: Metrics) -> Result<(), ServeError> {
    let system = actix::System::new();
    let result = system.block_on(async move {
        let manager = Arc::new(ServiceManager::from_process());
        let running = start(loaded, ConfigSource::from_process(flags), options, metrics).await?;
        let is_attended = !options.stdio && !options.detached;
        if is_attended && std::io::stderr().is_terminal() {
            match running.sign_in_link() {
                // The link is not logged, because it is a secret for the person at this terminal.
                Ok(link) => {
                    countersign_telemetry::logs::flush();
                    let text = format!("Sign in to the dashboard (this link works once, within 10 minutes): {link}");
                    // Empty lines separate it from the log.
                    drop(writeln!(std::io::stderr(), "\n{text}\n"));
                }
                Err(error) => tracing::warn!(%error, "no sign-in link could be created; run `countersign open`"),
            }
        } else if is_attended {
            tracing::info!("`countersign open` signs you in to the dashboard");
        }
        running.run_until_end(manager).await
    });
    // Dropping the runtime would wait for a thread that may be blocked on stdin.
    std::mem::forget(system);
    result
}

//! Puts the gateway together, runs it, and takes it apart again in order.
//!
//! Start: lock, store, changes, providers, endpoints. End: another node leads, no new work, streams say their last word,
//! running calls get a deadline, sessions are cut, the store is closed.

use std::{
    io::{IsTerminal, Write},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Arbiter};
use actix_web::{App, dev::ServerHandle, web};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::signal::unix::SignalKind;
use tokio_util::sync::CancellationToken;

use crate::{
    live::{LiveGateway, check_acceptances},
    nodes::{self, Follower},
};
use countersign_attach::{GatewayFile, Users, gateway_file, hello, proof::ProofSecret, socket, start as attach};
use countersign_auth::{
    Authenticator, DashboardSignIns, Keyring, OriginRules, attempts::FailedAttempts, codes,
    stored_credentials::StoredCredentials,
};
use countersign_bridge::{
    Bridge,
    carried::{Carrier, key_of},
};
use countersign_cluster::StoreNodes;
use countersign_config::{Config, Environment, Flags, LoadedConfig};
use countersign_docs::{Docs, DocsError};
use countersign_domain::{
    policy::{ConfiguredReviewers, Policy},
    principal::{Identity, Principal},
};
use countersign_exchange::{memory::Memory, slots::StreamSlots};
use countersign_http::{
    authentication::RequestAuthenticator,
    connections::Connections,
    front::Front,
    proof::{self, GatewayProof},
    server, tls as http_tls,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_reload::{ConfigSource, InitialConfig, Reloader, watch};
use countersign_rest::{
    Accounts, Admission, FeedAccess, ProvidersView, RestData, RoutedProviders, SessionsView, dashboard,
};
use countersign_review::{
    Changes, PendingConfig, StartError,
    gateway_tools::{GatewayTools, pending_output_schema},
};
use countersign_routing::{
    PublishedTable, RouteDirectory, RouteTable, RouteTarget, Router,
    actor::{PublishProviders, RefreshRulings},
    table::{Aliases, RouteError},
};
use countersign_rulings::{
    standing_rules::{self, StandingRuleCache, StandingRules},
    tool_acceptance::{RebuildRoutes, ToolAcceptances},
};
use countersign_session::{
    McpServer, Registry, Sessions,
    address::GatewayAddress,
    cluster::Cluster,
    lifetimes::SessionLifetimes,
    limits::{self, SessionLimits},
    long_requests::LongRequests,
    server::{Reviews, Routing},
    status::GatewayStatus,
};
use countersign_store::{LockError, PinStore, Place, Store, StoreError, lock::DataLock, lock_data_dir};
use countersign_telemetry::{self, Metrics, metrics::Breaker};
use countersign_tracker::{Tracker, TrackerError};
use countersign_transports::{endpoint::McpEndpoint, http, lines, ws};
use countersign_upstream::Upstreams;
use countersign_webhooks::Webhooks;

/// How long calls may still run where stdin is served.
const STDIO_DRAIN: Duration = Duration::from_millis(300);

/// Before a store that cannot be reached at the start is tried again; twice as long each time, up to the second.
const FIRST_STORE_PAUSE: Duration = Duration::from_millis(250);
const MAX_STORE_PAUSE: Duration = Duration::from_secs(5);

/// How this process serves, beyond its configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Started by `countersign stdio`: ends by itself some time after its last user, and takes any free port where
    /// the configured one is taken.
    pub detached: bool,
    /// Serve MCP on this process's own stdin and stdout too, and end when they do.
    pub stdio: bool,
    /// The operator means the policy of the configuration: nothing of it waits for consent.
    pub accept_policy: bool,
}

/// Why the gateway could not start.
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
    #[error("that a looser policy is meant could not be put on record: {0}")]
    Policy(String),
    #[error("the key for what servers have clients carry cannot be used: {0}")]
    StateKey(std::io::Error),
    #[error("{0}")]
    Socket(#[from] socket::SocketError),
    #[error("a thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error("stdin and stdout are not served: {0}")]
    Agent(String),
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

/// A gateway that runs.
pub struct Running {
    config: Arc<Config>,
    endpoint: Arc<McpEndpoint>,
    /// The address that is really bound.
    pub address: SocketAddr,
    keys: Arc<StoredCredentials>,
    standing: Arc<StandingRules>,
    users: Users,
    options: Options,
    server: ServerHandle,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
    core: Vec<Arbiter>,
    webhooks: Arc<Webhooks>,
    // In this order: what others find us by goes before the lock that says we are there.
    file: Option<gateway_file::PublishedFile>,
    _lock: DataLock,
}

/// Starts everything; returns when the endpoints are open. Must run inside an actix system.
///
/// # Errors
/// See [`ServeError`]; nothing is left running then.
pub async fn start(
    loaded: LoadedConfig,
    source: ConfigSource,
    options: Options,
    metrics: Metrics,
) -> Result<Running, ServeError> {
    let config = &loaded.config;
    // Proved before anything is opened.
    let tls = config.tls.as_ref().map(http_tls::server_config).transpose().map_err(ServeError::Tls)?;
    // A limit on the size of files is an error of the write that meets it, and not the end of the process.
    let over_limit = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    drop(tokio::signal::unix::signal(over_limit).inspect_err(|error| tracing::warn!(%error, "SIGXFSZ is not caught")));
    let mut lock = lock_data_dir(&config.data)?;
    let place = Place::configured(&config.data, config.store_server())?;
    let patience = config.store.as_ref().map_or(Duration::ZERO, |server| server.start_timeout);
    let store = open_store(&place, patience).await?;
    place.claim_directory(loaded.source_file("store.url"))?;
    let keys = Arc::new(StoredCredentials::open(&place)?);
    let (salt, carrier) = match store.nodes().secret() {
        Some(secret) => (nodes::consent_salt(&secret), Carrier::new(nodes::state_key(&secret))),
        None => {
            let key = key_of(&config.data).map_err(ServeError::StateKey)?;
            (nodes::consent_salt(&key), Carrier::new(key))
        }
    };
    let carrier = carrier.ok_or_else(|| ServeError::StateKey(std::io::ErrorKind::InvalidData.into()))?;
    let opening = InitialConfig::new(loaded, salt, store.policies().await?, options.accept_policy);
    let config = Arc::new(opening.config().clone());
    let shutdown = CancellationToken::new();
    let users = Users::default();

    let routes: Arc<PublishedTable> = Arc::new(PublishedTable::from_pointee(RouteTable::empty()));
    let registry = Arc::new(Registry::default());
    let directory = Arc::new(RouteDirectory(Arc::clone(&routes)));
    let pins = Arc::new(PinStore::open(Arc::clone(&store)).await?);
    let people = Arc::new(
        ConfiguredReviewers::new(&config.policy.groups).with_keys(Arc::new(Keyring::new(Arc::clone(&keys) as _))),
    );
    let nodes = store.nodes();
    let pending = PendingConfig {
        people: Arc::clone(&people) as _,
        clock: Arc::new(move || nodes.now()),
        ..(&config.changes).into()
    };
    let changes = Changes::start(Arc::clone(&store), directory, pending).await?;
    // After it, because what a restored backup allowed is ended there.
    let board = StandingRuleCache::open(&store).await?;
    let router_thread = Arbiter::new();
    let router = {
        let policy = Policy::new(&config.policy)
            .with_pins(Arc::clone(&pins) as _)
            .with_standing_rules(Arc::clone(&board) as _, Arc::clone(&people) as _);
        start_router(&router_thread, &config, &routes, &registry, policy)?
    };
    let built_in = providers(&config, &place, &changes, &routes)?;
    let upstreams = Arc::new(Upstreams::new(&config.data, config.transports.stdio.max_message_size));
    check_acceptances(&pins, &config.upstreams).await;
    let mut all = built_in.clone();
    all.extend(upstreams.apply(&config.upstreams).into_iter().map(RouteTarget::Upstream));
    router.send(PublishProviders(all)).await.map_err(|_| ServeError::CoreEnded)??;
    let webhooks = Arc::new(Webhooks::new(changes.feed().clone()));
    let live = LiveGateway {
        router: router.clone(),
        built_in,
        upstreams: Arc::clone(&upstreams),
        pins: Arc::clone(&pins),
        store: Arc::clone(&store),
        people: Arc::clone(&people),
        webhooks: Arc::clone(&webhooks),
    };
    let feed = changes.feed().clone();
    let tell = Box::new(move |event: &serde_json::Value| feed.publish_session(event));
    let reloads = Arc::new(Reloader::new(source, opening, Box::new(live), tell));
    reloads.record_start().await.map_err(ServeError::Policy)?;

    let authenticator = Arc::new(Authenticator::new(&config, Arc::clone(&keys) as _));
    let started = Instant::now();
    let in_force = Arc::clone(&reloads);
    let status = GatewayStatus {
        started,
        shutdown: shutdown.clone(),
        changes: changes.clone(),
        routes: Arc::clone(&routes),
        upstreams: Arc::clone(&upstreams),
        registry: Arc::clone(&registry),
        inflow: limits::inflow(&config.transports),
        metrics,
        config: Box::new(move || in_force.config()),
    };
    let nodes = Arc::clone(changes.nodes());
    let lifetimes = Arc::new(SessionLifetimes::new(Arc::clone(&nodes)));
    let memory = Memory::new(config.limits.principal_memory, config.limits.total_memory);
    let bridge = Bridge::new(carrier, Arc::clone(&memory), lifetimes.node());
    let long_requests = LongRequests {
        slots: StreamSlots::new(config.limits.max_streams),
        authenticator: Arc::clone(&authenticator),
        shutdown: shutdown.clone(),
    };
    let routing = Routing {
        routes: Arc::clone(&routes),
        router: router.clone(),
        upstreams,
        first_connection: config.limits.first_connection,
        started,
    };
    let gateway_address = Arc::new(GatewayAddress::new(&config));
    let reviews = Reviews::new(&config, changes.clone(), Arc::clone(&gateway_address));
    let mut server = McpServer::new(&config, memory, long_requests, routing, reviews, bridge, Arc::new(status));
    server.cluster = cluster(&config, &lifetimes, &shutdown);
    let sessions = Arc::new(Sessions::new(Arc::new(server), registry, lifetimes, SessionLimits::new(&config)));
    let inflow = Arc::clone(&sessions.server.status.inflow);
    let connections = Arc::new(Connections::new(&config.transports, inflow, users.clone()));
    let endpoint = McpEndpoint::new(&config.transports, Arc::clone(&sessions), Arc::clone(&connections));
    let (endpoint, secret) = (Arc::new(endpoint), ProofSecret::new());

    let feed = changes.feed().clone();
    let definitions =
        Arc::new(ToolAcceptances::new(Arc::clone(&routes), Arc::clone(&pins), rebuild(&router), feed.clone()));
    let followed = Arc::clone(&store);
    let standing = Arc::new(StandingRules::new(standing_rules::StandingRulesDeps {
        store,
        cache: board,
        reviewers: Arc::clone(&people) as _,
        routes: Arc::clone(&routes),
        rebuild: rebuild(&router),
        feed: feed.clone(),
    }));
    let webhooks_thread = Arbiter::new();
    let listen = |source| ServeError::Listen { address: config.listen, source };
    let socket = attach::bind_port(config.listen, options.detached).map_err(listen)?;
    let address = socket.local_addr().map_err(listen)?;
    gateway_address.bind(address);
    // Before the endpoints open, so that nobody is told of none; links need the port.
    let dashboard = gateway_address.dashboard();
    webhooks
        .start(
            (place.deliveries()?, Arc::clone(&nodes)),
            &config.webhooks,
            &dashboard,
            webhooks_thread.handle(),
            &shutdown.child_token(),
        )
        .await?;
    let (tls, certificate) = tls.map(|tls| (tls.config, tls.fingerprint)).unzip();
    let lapsing = Arc::clone(&sessions);
    let follower = Follower {
        nodes: Arc::clone(&nodes),
        store: followed,
        routes: Arc::clone(&routes),
        pins,
        standing: Arc::clone(&standing),
        rebuild: rebuild(&router),
        feed: feed.clone(),
        reloads: Arc::clone(&reloads),
        url: nodes::url(&config, address, &*nodes),
        certificate: certificate.unwrap_or_default(),
        end_lapsed_sessions: Box::new(move || lapsing.lifetimes.end_lapsed()),
    };
    // Other nodes find it from the first session on.
    follower.introduce().await?;
    let proof = GatewayProof(secret.clone());
    let origins = Arc::new(OriginRules::new(&config));
    let sign_ins = Arc::new(DashboardSignIns::new(Arc::clone(&authenticator), Arc::clone(&keys), &origins));
    let authentication = Arc::new(RequestAuthenticator::new(authenticator, sign_ins, origins, &config));
    let memory = Arc::clone(&endpoint.server.memory);
    let providers =
        RoutedProviders { routes: Arc::clone(&routes), request_timeout: config.transports.http.request_timeout };
    let rest = RestData {
        admission: web::Data::new(Admission {
            authentication: Arc::clone(&authentication),
            http: config.transports.http.clone(),
        }),
        accounts: web::Data::new(Accounts {
            authentication: Arc::clone(&authentication),
            codes: Arc::clone(&keys),
            attempts: FailedAttempts::default(),
            people,
            request_timeout: config.transports.http.request_timeout,
        }),
        feed: web::Data::new(FeedAccess {
            feed: feed.clone(),
            sign_ins: Arc::clone(&authentication.sign_ins),
            shutdown: shutdown.child_token(),
            streams: Arc::clone(&endpoint.server.long_requests.slots),
            memory: Arc::clone(&memory),
            web_sockets: Arc::clone(&connections.web_sockets),
            reserved_web_sockets: Arc::clone(&connections.reserved),
            limits: config.limits.clone(),
            transports: config.transports.clone(),
        }),
        streams: web::Data::from(Arc::clone(&endpoint.server.long_requests.slots)),
        changes: web::Data::new(changes.clone()),
        sessions: web::Data::from(Arc::clone(&sessions.registry) as Arc<dyn SessionsView>),
        providers: web::Data::from(Arc::new(providers) as Arc<dyn ProvidersView>),
        reloads: web::Data::from(Arc::clone(&reloads)),
        definitions: web::Data::from(definitions),
        standing: web::Data::from(Arc::clone(&standing)),
        webhooks: web::Data::from(Arc::clone(&webhooks)),
    };
    let front = Front::new(authentication, memory);
    let (server, serving) = open_endpoints(&config, &endpoint, rest, proof, front, (socket, tls)).map_err(listen)?;
    actix::spawn(crate::server_status_events::run(routes, feed, shutdown.clone()));
    actix::spawn(Arc::clone(&standing).run(shutdown.child_token()));
    let lines_thread = Arbiter::new();
    let listener = socket::Listener::bind(&config.data, &lock)?;
    serve_socket(&lines_thread, Arc::clone(&endpoint), listener, users.clone());
    let said = GatewayFile::from_process(&config, address, options.detached, secret);
    actix::spawn(follower.run(shutdown.child_token()));
    if let Err(error) = lock.describe(&format!("pid {}, {}", said.pid, said.url)) {
        tracing::debug!(%error, "the lock's note was not written");
    }
    let file = said.publish(&config.data, &lock).map_err(ServeError::Thread)?;
    actix::spawn(watch::run(reloads, shutdown.child_token()));
    tracing::info!(url = %said.url, data = %config.data.display(), "countersign serves");
    Ok(Running {
        config,
        endpoint,
        address,
        keys,
        standing,
        users,
        options,
        server,
        serving,
        core: vec![router_thread, lines_thread, webhooks_thread],
        webhooks,
        file: Some(file),
        _lock: lock,
    })
}

/// Leads to the other nodes, where several may serve the store.
fn cluster(
    config: &Config,
    lifetimes: &Arc<SessionLifetimes>,
    shutdown: &CancellationToken,
) -> Option<Box<dyn Cluster>> {
    let nodes = Arc::clone(&lifetimes.nodes);
    nodes.claimant()?;
    let lifetimes = Arc::clone(lifetimes);
    let check_own_session = move || {
        // What the loss of a lease has ended is not found any more.
        lifetimes.end_lapsed();
        if lifetimes.nodes.live() > 1 { lifetimes.check_lease() } else { Ok(()) }
    };
    Some(Box::new(StoreNodes {
        nodes,
        max_streams: config.transports.http.max_concurrent_streams,
        check_own_session: Box::new(check_own_session),
        shutdown: shutdown.clone(),
    }))
}

/// Opens the store; one that cannot be reached is tried again until the time is over.
async fn open_store(place: &Place, patience: Duration) -> Result<Arc<dyn Store>, ServeError> {
    let end = Instant::now() + patience;
    let mut pause = FIRST_STORE_PAUSE;
    loop {
        match place.open() {
            Err(error @ StoreError::Unreachable(_)) if Instant::now() + pause < end => {
                let seconds = end.saturating_duration_since(Instant::now()).as_secs();
                tracing::warn!(%error, "trying again for {seconds} s (store.start_timeout)");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_STORE_PAUSE);
            }
            opened => return Ok(opened?),
        }
    }
}

fn start_router(
    thread: &Arbiter,
    config: &Config,
    routes: &Arc<PublishedTable>,
    registry: &Arc<Registry>,
    policy: Policy,
) -> Result<Addr<Router>, ServeError> {
    let aliases = Aliases::new(&config.routes)?;
    let router = Router::new(Arc::clone(routes), policy, aliases, pending_output_schema(), Arc::clone(registry) as _);
    Ok(Router::start_in_arbiter(&thread.handle(), move |_| router))
}

fn providers(
    config: &Config,
    place: &Place,
    changes: &Changes,
    routes: &Arc<PublishedTable>,
) -> Result<Vec<RouteTarget>, ServeError> {
    let mut all: Vec<RouteTarget> = Vec::new();
    if config.modules.tracker.enabled {
        all.push(RouteTarget::Module(Tracker::open(&place.room()?, &config.modules.tracker)?));
    }
    if config.modules.docs.enabled {
        all.push(RouteTarget::Module(Docs::open(&config.data, &config.modules.docs)?));
    }
    let routes = Arc::clone(routes);
    let count = move || routes.load().providers().len();
    all.push(RouteTarget::Module(GatewayTools::new(changes.clone(), config.limits.max_wait, count)));
    for provider in &all {
        // What is compiled in cannot be away: its breaker is closed for good.
        countersign_telemetry::metrics::set_breaker_state(provider.name(), Breaker::Closed);
    }
    Ok(all)
}

/// Rules upon all tools anew.
fn rebuild(router: &Addr<Router>) -> RebuildRoutes {
    let router = router.clone();
    Box::new(move || -> BoxFuture<'static, ()> {
        let sent = router.send(RefreshRulings);
        Box::pin(async move {
            match sent.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "the routes could not be built anew"),
                Err(error) => tracing::error!(%error, "the router does not answer"),
            }
        })
    })
}

type Serving = tokio::task::JoinHandle<std::io::Result<()>>;

fn open_endpoints(
    config: &Config,
    endpoint: &Arc<McpEndpoint>,
    rest: RestData,
    proof: GatewayProof,
    front: Front,
    (socket, tls): (std::net::TcpListener, Option<rustls::ServerConfig>),
) -> std::io::Result<(ServerHandle, Serving)> {
    let (data, proof) = (web::Data::from(Arc::clone(endpoint)), web::Data::new(proof));
    let http = config.transports.http.clone();
    let serving = server::Serving {
        workers: workers(http.workers),
        http,
        connections: Arc::clone(&endpoint.connections),
        drain: config.limits.drain,
        has_peers: endpoint.sessions.lifetimes.nodes.claimant().is_some(),
    };
    let app = move || {
        App::new()
            .app_data(data.clone())
            .app_data(proof.clone())
            .configure(http::routes)
            .configure(proof::routes)
            .service(web::resource("/ws").route(web::get().to(ws::upgrade)))
            .configure(|config| countersign_rest::routes(&rest, config))
            .configure(dashboard::routes)
            .default_service(web::to(countersign_rest::not_found))
            .wrap(front.clone())
    };
    let server = server::serve(app, serving, socket, tls)?;
    let handle = server.handle();
    Ok((handle, tokio::spawn(server)))
}

/// As many as are configured. Else half the cores: the other half is for what it talks to on the same machine.
fn workers(configured: usize) -> usize {
    if configured > 0 {
        return configured;
    }
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

/// The attach socket: each connection is a stdio session, on a thread of its own.
fn serve_socket(thread: &Arbiter, endpoint: Arc<McpEndpoint>, listener: socket::Listener, users: Users) {
    thread.spawn(async move {
        loop {
            let stream = tokio::select! {
                stream = listener.accept() => stream,
                () = endpoint.shutdown.cancelled() => return,
            };
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::error!(%error, "the attach socket is unusable");
                    return;
                }
            };
            let endpoint = Arc::clone(&endpoint);
            let user = users.add_user();
            actix::spawn(async move {
                let (reader, mut writer) = stream.into_split();
                let mut reader = tokio::io::BufReader::with_capacity(64 << 10, reader);
                let admit = |hello: hello::Hello| {
                    stdio_identity(&endpoint.server.long_requests.authenticator, hello.key.as_deref())
                        .map_err(|e| e.to_string())
                };
                match hello::receive(&mut reader, &mut writer, admit).await {
                    Ok(Some(identity)) => lines::serve(Arc::clone(&endpoint), identity, reader, writer).await,
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%error, "an attached process went away"),
                }
                drop(user);
            });
        }
    });
}

/// Who a process on stdio or the socket is: the holder of its key, or in `auth.mode: local` the local agent. The
/// socket is for this user only, as loopback is in that mode. A key that may decide is refused: an agent that holds it
/// could decide, and what it proposes would be its reviewer's own.
fn stdio_identity(authenticator: &Authenticator, key: Option<&str>) -> Result<Identity, McpError> {
    let identity = match key {
        Some(key) => authenticator.identify_key(key, None)?,
        None => authenticator.identify_local_process()?,
    };
    let Principal { name, role, .. } = &*identity.principal;
    if !role.may_decide() {
        return Ok(identity);
    }
    let without = match authenticator.identify_local_process() {
        Ok(_) => ", or start it without COUNTERSIGN_KEY: here an agent needs no key",
        Err(_) => "",
    };
    let message = format!(
        "the key of {name} may decide on changes (role {}), and an agent must not hold such a key. Give the agent a key \
         of its own, `export COUNTERSIGN_AGENT_KEY=$(countersign keys create --role agent --name NAME)`{without}",
        role.as_str()
    );
    Err(McpError::new(ErrorKind::Forbidden, message))
}

impl Running {
    /// A link that signs a reviewer in once.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn sign_in_link(&self) -> Result<String, McpError> {
        let code = codes::create(self.keys.keys(), Timestamp::now())?;
        Ok(self.endpoint.server.reviews.address.sign_in_link(&code))
    }

    /// Serves until something ends it, then ends in order.
    ///
    /// # Errors
    /// [`ServeError::CoreEnded`] when a core part died.
    pub async fn until_end(mut self) -> Result<(), ServeError> {
        let ended = self.wait_for_end().await;
        self.end().await;
        ended
    }

    async fn wait_for_end(&mut self) -> Result<(), ServeError> {
        let linger = self.config.transports.stdio.linger;
        let endpoint = Arc::clone(&self.endpoint);
        let stdio = async {
            if !self.options.stdio {
                return std::future::pending().await;
            }
            let unreadable = |name| ServeError::Agent(format!("environment variable {name} is not Unicode"));
            let key = hello::agent_key(&Environment::from_process()).map_err(unreadable)?;
            let identity = stdio_identity(&endpoint.server.long_requests.authenticator, key.as_deref())
                .map_err(|error| ServeError::Agent(error.message.to_string()))?;
            lines::serve(Arc::clone(&endpoint), identity, tokio::io::stdin(), tokio::io::stdout()).await;
            Ok::<(), ServeError>(())
        };
        let core = async {
            loop {
                tokio::time::sleep(Duration::from_millis(500)).await;
                if !endpoint.server.reviews.changes.is_healthy() || !endpoint.server.routing.router.connected() {
                    return;
                }
            }
        };
        tokio::select! {
            signal = signal() => tracing::info!(signal, "ending"),
            served = stdio => served.map(|()| tracing::info!("stdin has ended"))?,
            () = self.users.wait_until_idle(linger), if self.options.detached => tracing::info!("nobody uses this gateway"),
            () = endpoint.shutdown.cancelled() => {}
            _ = &mut self.serving => tracing::error!("the HTTP server ended"),
            // Supervision does not survive a panic: the process ends, and the store recovers at the next start.
            () = core => return Err(ServeError::CoreEnded),
        }
        Ok(())
    }

    async fn end(mut self) {
        let server = &self.endpoint.server;
        // Who ends the process of a stdio server waits for it; what is still held then is given up.
        let drain = self.config.limits.drain.min(if self.options.stdio { STDIO_DRAIN } else { Duration::MAX });
        self.file = None;
        // First: what is running may take long, and another node does meanwhile what this one led. Before that, receivers
        // answer what is on its way to them, so that nothing overtakes it.
        self.webhooks.drain().await;
        server.reviews.changes.nodes().resign();
        self.endpoint.shutdown.cancel();
        let quiet = async {
            while server.slots.running() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(drain, quiet).await.is_err() {
            tracing::warn!(requests = server.slots.running(), "requests were still running at the deadline");
        }
        self.standing.record_uses().await;
        server.reviews.changes.shutdown(drain).await;
        server.routing.upstreams.stop().await;
        self.endpoint.sessions.lifetimes.ended.cancel();
        // Sessions close their connections; whoever does not let go is cut with the process.
        let _ = tokio::time::timeout(Duration::from_millis(500), self.server.stop(true)).await;
        drop(self.server.stop(false));
        for thread in &self.core {
            thread.stop();
        }
        tracing::info!("ended");
    }
}

async fn signal() -> &'static str {
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

/// Runs a gateway to its end on this thread, telling a person at a terminal where to go.
///
/// # Errors
/// See [`ServeError`].
pub fn run(loaded: LoadedConfig, flags: Flags, options: Options, metrics: Metrics) -> Result<(), ServeError> {
    let system = actix::System::new();
    let ended = system.block_on(async move {
        let running = start(loaded, ConfigSource::from_process(flags), options, metrics).await?;
        let attended = !options.stdio && !options.detached;
        if attended && std::io::stderr().is_terminal() {
            match running.sign_in_link() {
                // Not through the log: it is a secret for the person at this terminal.
                Ok(link) => {
                    countersign_telemetry::logs::flush();
                    drop(writeln!(std::io::stderr(), "Sign in to the dashboard (this link works once): {link}"));
                }
                Err(error) => tracing::warn!(%error, "no sign-in link"),
            }
        } else if attended {
            tracing::info!("`countersign open` signs you in to the dashboard");
        }
        running.until_end().await
    });
    // A read of stdin may still be under way in a thread of its own, and dropping the runtime would wait for it.
    std::mem::forget(system);
    ended
}

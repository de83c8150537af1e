//! Starts a gateway: takes the lock, then opens the store, the changes, the providers and at last the endpoints.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Arbiter};
use actix_web::{App, dev::ServerHandle, web};
use tokio::signal::unix::SignalKind;
use tokio_util::sync::CancellationToken;

use super::{
    Options, RunningGateway, ServeError,
    rebuilding::route_rebuilder,
    sealers::{self, Sealers},
    stdio, token_key,
};
use crate::{
    live::{LiveGateway, bind_acceptances},
    nodes::{self, NodeSync},
    server_accounts::{self, AuditedAccounts},
};
use countersign_attach::{GatewayFile, Users, proof::ProofSecret, socket, start as attach};
use countersign_auth::{
    Authenticator, DashboardSignIns, OriginRules, ProviderSignIns, attempts::FailedAttempts,
    stored_credentials::StoredCredentials, tokens::oidc::OidcClient,
};
use countersign_bridge::Bridge;
use countersign_cluster::StoreCluster;
use countersign_config::{AuthMode, Config, LoadedConfig, load::variable_name};
use countersign_docs::Docs;
use countersign_domain::policy::{Policy, Reviewers};
use countersign_exchange::{memory::Memory, slots::StreamSlots};
use countersign_http::{
    connections::Connections,
    front::Front,
    guard::RequestAuthenticator,
    proof::{self, GatewayProof},
    server, tls as http_tls,
};
use countersign_reload::{ConfigSource, InitialConfig, Reloader};
use countersign_rest::{
    AccessData, AgentCommand, FeedAccess, RestData, RoutedServers, ServerAccounts, ServerTrials, ServersView,
    SessionsView, SignInData, dashboard,
};
use countersign_review::{
    Changes, ReviewConfig,
    gateway_tools::{GatewayTools, change_output_schema},
};
use countersign_routing::{
    PublishedTable, RouteDirectory, RouteTable, RouteTarget, Router, actor::PublishProviders, table::Aliases,
};
use countersign_rulings::{
    rule_counts::RuleCounts,
    standing_rules::{self, StandingRuleCache, StandingRuleService},
    tool_acceptance::ToolAcceptances,
};
use countersign_runtime::{
    data_dir::lock_data_dir,
    installation::{Installation, program_path},
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
use countersign_store::{PinStore, Store, StoreError, StoreLocation};
use countersign_telemetry::{self, Metrics, metrics::CircuitState};
use countersign_tracker::Tracker;
use countersign_transports::{endpoint::McpEndpoint, http, ws};
use countersign_webhooks::Webhooks;

/// The delay after the first failed attempt to reach the store. Each further delay is twice as long.
const FIRST_STORE_RETRY_DELAY: Duration = Duration::from_millis(250);
/// The maximum delay between two attempts to reach the store.
const MAX_STORE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Starts all parts, and returns when the endpoints are open. Must run inside an actix system.
///
/// # Errors
/// Returns a [`ServeError`]. The process must then end, because some parts may still be running.
pub async fn start(
    loaded: LoadedConfig,
    source: ConfigSource,
    options: Options,
    metrics: Metrics,
) -> Result<RunningGateway, ServeError> {
    let config = &loaded.config;
    // The TLS files and keys are checked before anything is opened.
    let tls = config.tls.as_ref().map(http_tls::server_config).transpose().map_err(ServeError::Tls)?;
    let token_secret = sealers::read_token_secret(config)?;
    catch_file_size_signal();
    let mut lock = lock_data_dir(&config.data)?;
    let location = StoreLocation::configured(&config.data, config.store_server())?;
    let start_timeout = config.store.as_ref().map_or(Duration::ZERO, |server| server.start_timeout);
    let store = open_store(&location, start_timeout).await?;
    location.claim_directory(loaded.source_file("store.url"))?;
    let credentials = Arc::new(StoredCredentials::open(&location)?);
    let sealers = Sealers::open(config, token_secret, &*store, &credentials).await?;
    let agent_command = agent_command(&source, config);
    let initial = InitialConfig::new(loaded, sealers.consent_salt, store.policies().await?, options.accept_policy);
    let config = Arc::new(initial.config().clone());
    let shutdown = CancellationToken::new();
    let users = Users::default();

    let routes: Arc<PublishedTable> = Arc::new(PublishedTable::from_pointee(RouteTable::default()));
    let registry = Arc::new(Registry::default());
    let directory = Arc::new(RouteDirectory(Arc::clone(&routes)));
    let pins = Arc::new(PinStore::open(Arc::clone(&store)).await?);
    let reviewers = Arc::new(Reviewers::new(&config.policy.groups).with_keys(Arc::clone(credentials.keyring()) as _));
    reviewers.set_issuers(config.auth.tokens.iter().map(|issuer| issuer.issuer.as_str()));
    let nodes = store.nodes();
    let review_config = ReviewConfig {
        reviewers: Arc::clone(&reviewers),
        clock: Arc::new(move || nodes.now()),
        bundle_window: config.bundle_window,
        ..(&config.changes).into()
    };
    let changes = Changes::start(Arc::clone(&store), directory, review_config).await?;
    // The start of the changes ends the standing rules of a restored backup, so the rules are read after it.
    let rule_cache = StandingRuleCache::open(&store).await?;
    let router_thread = Arbiter::new();
    let router = {
        let policy = Policy::new(&config.policy)
            .with_pins(Arc::clone(&pins) as _)
            .with_standing_rules(Arc::clone(&rule_cache) as _, Arc::clone(&reviewers) as _);
        start_router(&router_thread, &config, &routes, &registry, policy)?
    };
    let modules = open_modules(&config, &location, &changes, &routes)?;
    let (accounts, upstreams) = server_accounts::open(&config, &location, sealers.account)?;
    bind_acceptances(&pins, &config.upstreams).await;
    let mut providers = modules.clone();
    providers.extend(upstreams.apply(&config.upstreams).into_iter().map(RouteTarget::Upstream));
    router.send(PublishProviders(providers)).await.map_err(|_| ServeError::CoreEnded)??;
    let webhooks = Arc::new(Webhooks::new(changes.feed().clone()));
    let authenticator = Arc::new(Authenticator::new(&config, Arc::clone(&credentials) as _));
    let oidc_client = OidcClient::new(&config, sealers.sign_in);
    let provider_sign_ins = Arc::new(ProviderSignIns::new(oidc_client, Arc::clone(&credentials)));
    accounts.set_identity_provider(Arc::clone(&provider_sign_ins) as _);
    let live = LiveGateway {
        router: router.clone(),
        modules,
        upstreams: Arc::clone(&upstreams),
        accounts: Arc::clone(&accounts),
        pins: Arc::clone(&pins),
        store: Arc::clone(&store),
        reviewers: Arc::clone(&reviewers),
        webhooks: Arc::clone(&webhooks),
        authenticator: Arc::clone(&authenticator),
        provider_sign_ins: Arc::clone(&provider_sign_ins),
    };
    let feed = changes.feed().clone();
    let reload_feed = feed.clone();
    let publish = Box::new(move |event: &serde_json::Value| reload_feed.publish_live(event));
    let reloader = Arc::new(Reloader::new(source, initial, Box::new(live), publish));
    reloader.record_start().await.map_err(ServeError::Policy)?;

    let started_at = Instant::now();
    let config_source = Arc::clone(&reloader);
    let status = GatewayStatus {
        started_at,
        shutdown: shutdown.clone(),
        changes: changes.clone(),
        routes: Arc::clone(&routes),
        upstreams: Arc::clone(&upstreams),
        registry: Arc::clone(&registry),
        body_budget: limits::body_budget(&config.transports),
        metrics,
        config: Box::new(move || config_source.config()),
    };
    let nodes = Arc::clone(changes.nodes());
    let lifetimes = Arc::new(SessionLifetimes::new(Arc::clone(&nodes)));
    let memory = Memory::new(config.limits.principal_memory, config.limits.total_memory);
    let bridge = Bridge::new(sealers.state, Arc::clone(&memory), lifetimes.node());
    let long_requests = LongRequests {
        slots: StreamSlots::new(config.limits.max_streams),
        authenticator: Arc::clone(&authenticator),
        shutdown: shutdown.clone(),
    };
    let routing = Routing {
        routes: Arc::clone(&routes),
        router: router.clone(),
        upstreams,
        long_requests,
        first_connection: config.limits.first_connection,
        started_at,
    };
    let gateway_address = Arc::new(GatewayAddress::new(&config));
    let reviews = Reviews::new(&config, changes.clone(), Arc::clone(&gateway_address), &routing);
    let mut server = McpServer::new(&config, memory, routing, reviews, bridge, Arc::new(status));
    server.cluster = build_cluster(&config, &lifetimes, &shutdown);
    let sessions = Arc::new(Sessions::new(Arc::new(server), registry, lifetimes, SessionLimits::new(&config)));
    let body_budget = Arc::clone(&sessions.server.status.body_budget);
    let connections = Arc::new(Connections::new(&config.transports, body_budget, users.clone()));
    let endpoint = McpEndpoint::new(&config.transports, Arc::clone(&sessions), Arc::clone(&connections));
    let (endpoint, proof_secret) = (Arc::new(endpoint), ProofSecret::new());

    let acceptances =
        Arc::new(ToolAcceptances::new(Arc::clone(&routes), Arc::clone(&pins), route_rebuilder(&router), feed.clone()));
    let server_accounts = Arc::new(AuditedAccounts {
        accounts: Arc::clone(&accounts),
        holders: Arc::clone(credentials.keyring()) as _,
        store: Arc::clone(&store),
    });
    let standing_rules = Arc::new(StandingRuleService::new(standing_rules::StandingRuleServiceDeps {
        store: Arc::clone(&store),
        cache: rule_cache,
        reviewers: Arc::clone(&reviewers) as _,
        routes: Arc::clone(&routes),
        rebuild: route_rebuilder(&router),
        feed: feed.clone(),
    }));
    let rule_counts = Arc::new(RuleCounts::new(location.rule_counts()?, Arc::clone(&nodes), Arc::clone(&routes)));
    let webhooks_thread = Arbiter::new();
    let listen_error = |source| ServeError::Listen { address: config.listen, source };
    let socket = attach::bind_port(config.listen, options.detached).map_err(listen_error)?;
    let address = socket.local_addr().map_err(listen_error)?;
    gateway_address.set_listen_address(address);
    accounts.set_base_url(&gateway_address.base_url());
    // The webhooks start before the endpoints, so that they miss no event, and after the port is bound, which their
    // links contain.
    let dashboard_url = gateway_address.dashboard_url();
    webhooks
        .start(
            (location.deliveries()?, Arc::clone(&nodes)),
            &config.webhooks,
            &dashboard_url,
            webhooks_thread.handle(),
            &shutdown.child_token(),
        )
        .await?;
    let (tls, certificate) = tls.map(|tls| (tls.config, tls.fingerprint)).unzip();
    let node_sync = NodeSync {
        nodes: Arc::clone(&nodes),
        store,
        routes: Arc::clone(&routes),
        pins,
        standing_rules: Arc::clone(&standing_rules),
        rebuild_routes: route_rebuilder(&router),
        changes: changes.clone(),
        reloader: Arc::clone(&reloader),
        url: nodes::node_url(&config, address, &*nodes),
        certificate: certificate.unwrap_or_default(),
        end_lapsed_sessions: Box::new({
            let sessions = Arc::clone(&sessions);
            move || sessions.lifetimes.end_lapsed_epoch()
        }),
    };
    // Other nodes must be able to find this node as soon as it has a session.
    node_sync.introduce().await?;
    token_key::check_again(&sealers.token_key_fingerprint, &credentials)?;
    let proof = GatewayProof(proof_secret.clone());
    let origins = Arc::new(OriginRules::new(&config));
    let sign_ins = Arc::new(DashboardSignIns::new(Arc::clone(&authenticator), Arc::clone(&credentials), &origins));
    let authentication = Arc::new(RequestAuthenticator::new(authenticator, sign_ins, origins));
    let memory = Arc::clone(&endpoint.server.memory);
    let routed_servers =
        RoutedServers { routes: Arc::clone(&routes), request_timeout: config.transports.http.request_timeout };
    let rest = RestData {
        access: web::Data::new(AccessData {
            authentication: Arc::clone(&authentication),
            http: config.transports.http.clone(),
        }),
        sign_in: web::Data::new(SignInData {
            authentication: Arc::clone(&authentication),
            credentials: Arc::clone(&credentials),
            provider_sign_ins: Arc::clone(&provider_sign_ins),
            attempts: FailedAttempts::default(),
            reviewers,
        }),
        server_accounts: web::Data::from(server_accounts as Arc<dyn ServerAccounts>),
        feed: web::Data::new(FeedAccess {
            feed: feed.clone(),
            sign_ins: Arc::clone(&authentication.sign_ins),
            shutdown: shutdown.child_token(),
            streams: Arc::clone(&endpoint.server.long_requests.slots),
            memory: Arc::clone(&memory),
            web_sockets: Arc::clone(&connections.web_socket_permits),
            reserved_web_sockets: Arc::clone(&connections.reserved_permits),
            outbox_messages: config.limits.outbox_messages,
            outbox_bytes: config.limits.outbox_bytes,
            ping_interval: config.transports.websocket.ping_interval,
            sse_keep_alive: config.transports.http.sse_keep_alive,
        }),
        agent_command: web::Data::new(agent_command),
        streams: web::Data::from(Arc::clone(&endpoint.server.long_requests.slots)),
        changes: web::Data::new(changes.clone()),
        sessions: web::Data::from(Arc::clone(&sessions.registry) as Arc<dyn SessionsView>),
        servers: web::Data::from(Arc::new(routed_servers) as Arc<dyn ServersView>),
        reloader: web::Data::from(Arc::clone(&reloader)),
        acceptances: web::Data::from(acceptances),
        standing_rules: web::Data::from(Arc::clone(&standing_rules)),
        rule_counts: web::Data::from(Arc::clone(&rule_counts)),
        trials: web::Data::new(ServerTrials::new(config.transports.stdio.max_message_size)),
        webhooks: web::Data::from(Arc::clone(&webhooks)),
    };
    let front = Front::new(authentication, memory);
    let (http_server, http_task) =
        open_endpoints(&config, &endpoint, rest, proof, front, (socket, tls)).map_err(listen_error)?;
    actix::spawn(crate::server_status_events::run(routes, feed, shutdown.clone()));
    actix::spawn(Arc::clone(&standing_rules).run(shutdown.child_token()));
    actix::spawn(Arc::clone(&rule_counts).run(shutdown.child_token()));
    actix::spawn(provider_sign_ins.run(shutdown.child_token()));
    let lines_thread = Arbiter::new();
    let listener = socket::Listener::bind(&config.data, &lock)?;
    stdio::serve_socket(&lines_thread, Arc::clone(&endpoint), listener, users.clone(), options.detached);
    let gateway_file = GatewayFile::from_process(&config, address, options.detached, proof_secret);
    actix::spawn(node_sync.run(shutdown.child_token()));
    if let Err(error) = lock.describe(&format!("pid {}, {}", gateway_file.pid, gateway_file.url)) {
        tracing::debug!(%error, "the description of the lock was not written");
    }
    let published_file = gateway_file.publish(&config.data, &lock).map_err(ServeError::GatewayFile)?;
    tracing::info!(url = %gateway_file.url, data = %config.data.display(), "countersign serves");
    Ok(RunningGateway {
        config,
        endpoint,
        credentials,
        standing_rules,
        rule_counts,
        reloader,
        users,
        options,
        http_server,
        http_task,
        threads: vec![router_thread, lines_thread, webhooks_thread],
        webhooks,
        gateway_file: Some(published_file),
        _lock: lock,
    })
}

/// Returns the command with which agents of this machine attach to this gateway. It names the configuration file and the data
/// directory if they are not the default ones.
fn agent_command(source: &ConfigSource, config: &Config) -> AgentCommand {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    let program = program_path().unwrap_or_else(|_| "countersign".into());
    let (program, first) = Installation::from_path(&program).start_command(program);
    let mut arguments: Vec<String> = first.iter().chain(&["stdio"]).map(|&argument| argument.to_owned()).collect();
    let file = source.env.var("COUNTERSIGN_CONFIG").ok().flatten().map(PathBuf::from);
    if let Some(file) = source.flags.config.clone().or(file) {
        arguments.extend(["--config".to_owned(), absolute(&file)]);
    }
    if source.flags.data.is_some() || matches!(source.env.var(&variable_name("data")), Ok(Some(_))) {
        arguments.extend(["--data".to_owned(), absolute(&config.data)]);
    }
    AgentCommand { program, arguments, needs_key: config.auth.mode == AuthMode::Keys }
}

/// Catches SIGXFSZ, so that a write beyond the limit on file sizes fails instead of ending the process.
fn catch_file_size_signal() {
    let kind = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    if let Err(error) = tokio::signal::unix::signal(kind) {
        tracing::warn!(%error, "SIGXFSZ is not caught");
    }
}

/// Returns the client that forwards requests to other nodes, or `None` if the store admits only one node.
fn build_cluster(
    config: &Config,
    lifetimes: &Arc<SessionLifetimes>,
    shutdown: &CancellationToken,
) -> Option<Box<dyn Cluster>> {
    let nodes = Arc::clone(&lifetimes.nodes);
    nodes.claimant()?;
    let lifetimes = Arc::clone(lifetimes);
    let check_own_lease = move || {
        // A session of an epoch whose lease has lapsed must not be found any more.
        lifetimes.end_lapsed_epoch();
        if lifetimes.nodes.live_count() > 1 { lifetimes.check_lease() } else { Ok(()) }
    };
    Some(Box::new(StoreCluster {
        nodes,
        max_streams: config.transports.http.max_concurrent_streams,
        check_own_lease: Box::new(check_own_lease),
        shutdown: shutdown.clone(),
    }))
}

/// Opens the store, and tries again until the timeout if it cannot be reached.
async fn open_store(location: &StoreLocation, timeout: Duration) -> Result<Arc<dyn Store>, ServeError> {
    let end = Instant::now() + timeout;
    let mut delay = FIRST_STORE_RETRY_DELAY;
    loop {
        match location.open() {
            Err(error @ StoreError::Unreachable(_)) if Instant::now() + delay < end => {
                let seconds = end.saturating_duration_since(Instant::now()).as_secs();
                tracing::warn!(%error, "trying again for {seconds} s (store.start_timeout)");
                tokio::time::sleep(delay).await;
                delay = (delay * 2).min(MAX_STORE_RETRY_DELAY);
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
    let router = Router::new(Arc::clone(routes), policy, aliases, change_output_schema(), Arc::clone(registry) as _);
    Ok(Router::start_in_arbiter(&thread.handle(), move |_| router))
}

/// Opens the modules.
fn open_modules(
    config: &Config,
    location: &StoreLocation,
    changes: &Changes,
    routes: &Arc<PublishedTable>,
) -> Result<Vec<RouteTarget>, ServeError> {
    let mut modules: Vec<RouteTarget> = Vec::new();
    if config.modules.tracker.enabled {
        modules.push(RouteTarget::Module(Tracker::open(&location.module_storage()?, &config.modules.tracker)?));
    }
    if config.modules.docs.enabled {
        modules.push(RouteTarget::Module(Docs::open(&config.data, &config.modules.docs)?));
    }
    let routes = Arc::clone(routes);
    let provider_count = move || routes.load().providers().len();
    modules.push(RouteTarget::Module(GatewayTools::new(changes.clone(), config.limits.max_wait, provider_count)));
    for module in &modules {
        // Modules are always available, so their breakers stay closed.
        countersign_telemetry::metrics::set_breaker_state(module.name(), CircuitState::Closed);
    }
    Ok(modules)
}

/// The task of the HTTP server, which ends with the server.
pub type HttpTask = tokio::task::JoinHandle<std::io::Result<()>>;

/// Starts the HTTP server with all endpoints.
fn open_endpoints(
    config: &Config,
    endpoint: &Arc<McpEndpoint>,
    rest: RestData,
    proof: GatewayProof,
    front: Front,
    (socket, tls): (std::net::TcpListener, Option<rustls::ServerConfig>),
) -> std::io::Result<(ServerHandle, HttpTask)> {
    let (data, proof) = (web::Data::from(Arc::clone(endpoint)), web::Data::new(proof));
    let http = config.transports.http.clone();
    let settings = server::ServerSettings {
        workers: worker_count(http.workers),
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
    let server = server::serve(app, settings, socket, tls)?;
    let handle = server.handle();
    Ok((handle, tokio::spawn(server)))
}

/// Returns the configured number of workers, or half the number of cores, which leaves the rest to other programs.
fn worker_count(configured: usize) -> usize {
    if configured > 0 {
        return configured;
    }
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

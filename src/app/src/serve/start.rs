//! Starts a gateway: opens the storage, then starts the changes, the providers and at last the endpoints.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

use actix::Arbiter;
use actix_web::web;
use tokio_util::sync::CancellationToken;

use super::{
    Options, RunningGateway, ServeError,
    endpoints::{HttpEndpoints, feed_access},
    providers::Providers,
    review::Review,
    stdio::AttachServer,
    storage::Storage,
    token_key,
};
use crate::{
    nodes::{self, NodeSync},
    reload_target::ReloadTarget,
    server_accounts::{self, AuditedAccounts},
};
use countersign_attach::{
    GatewayFile, Users, gateway_file::PublishedFile, proof::ProofSecret, socket::Listener, start as attach,
};
use countersign_auth::{
    Authenticator, DashboardSignIns, OriginRules, ProviderSignIns, attempts::FailedAttempts,
    stored_credentials::StoredCredentials, tokens::oidc::OidcClient,
};
use countersign_config::{AuthMode, Config, LoadedConfig, load::variable_name};
use countersign_http::{front::Front, guard::RequestAuthenticator, proof::GatewayProof, tls::ServerCertificate};
use countersign_reload::{ConfigSource, InitialConfig, Reloader};
use countersign_rest::{
    AccessData, AgentCommand, RestData, RoutedServers, ServerAccounts, ServerSource, ServerTrials, SessionSource,
    SignInData,
};
use countersign_rulings::{
    rule_counts::RuleCounts,
    standing_rules::{StandingRuleService, StandingRuleServiceDeps},
    tool_acceptance::ToolAcceptances,
};
use countersign_runtime::{
    background,
    data_dir::DataLock,
    installation::{Installation, program_path},
    sealing::Sealer,
};
use countersign_store::{Store, StoreError, StoreLocation};
use countersign_telemetry::Metrics;
use countersign_transports::endpoint::McpEndpoint;
use countersign_webhooks::{WebhookContext, Webhooks};

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
    // The TLS files are checked before anything is opened, as is the key of stored tokens in `Storage::open`.
    let certificate = loaded.config.tls.as_ref().map(ServerCertificate::read).transpose().map_err(ServeError::Tls)?;
    let certificate = certificate.map(Arc::new);
    let tls = certificate.as_ref().map(ServerCertificate::server_config).transpose().map_err(ServeError::Tls)?;
    let Storage { mut lock, location, store, credentials, sealers } =
        Storage::open(&loaded, options.accept_policy).await?;
    let agent_command = agent_command(&source, &loaded.config);
    // Read before the policies, so that each decision at another node is either part of them or applied later.
    let last_read_entry = Arc::new(AtomicU64::new(store.heads().await?.audit.seq));
    let initial = InitialConfig::new(loaded, sealers.consent_salt, store.policies().await?, options.accept_policy);
    let config = initial.config();
    let (shutdown, users) = (CancellationToken::new(), Users::default());

    let review = Review::start(&config, &store, &credentials).await?;
    let identification = Identification::new(&config, &credentials, sealers.sign_in);
    let sign_ins = &identification.provider_sign_ins;
    let servers = server_accounts::open(&config, &location, sealers.account, sign_ins)?;
    let providers = Providers::start(&config, &location, servers, &review).await?;
    let webhooks = Arc::new(Webhooks::new(review.changes.feed().clone()));
    let core = GatewayCore { config, store, credentials, review, providers, identification, webhooks, shutdown };
    let GatewayCore { config, store, credentials, review, providers, identification, shutdown, .. } = &core;
    let reloader = core.start_reloader(source, initial, &last_read_entry).await?;
    let endpoint = core.create_endpoint(&reloader, metrics, sealers.state, users.clone());
    let rulings = Rulings::new(&location, Arc::clone(store), review, providers)?;

    let listen_error = |source| ServeError::Listen { address: config.listen, source };
    let socket = attach::bind_port(config.listen, options.detached).map_err(listen_error)?;
    let address = socket.local_addr().map_err(listen_error)?;
    let gateway_address = &endpoint.server.reviews.address;
    gateway_address.set_listen_address(address);
    providers.accounts.set_base_url(&gateway_address.base_url());
    // The webhooks start before the endpoints, so that they miss no event, and after the port is bound, which their
    // links contain.
    let webhooks_thread = core.start_webhooks(&location, &gateway_address.dashboard_url()).await?;
    let nodes = Arc::clone(review.changes.nodes());
    let node_sync = NodeSync {
        url: nodes::node_url(config, address, &*nodes),
        certificate: certificate.clone(),
        last_read_entry,
        nodes,
        store: Arc::clone(store),
        routes: Arc::clone(&providers.routes),
        pins: Arc::clone(&review.pins),
        standing_rules: Arc::clone(&rulings.standing_rules),
        rebuild_routes: providers.route_rebuilder(),
        changes: review.changes.clone(),
        reloader: Arc::clone(&reloader),
        lifetimes: Arc::clone(&endpoint.sessions.lifetimes),
    };
    // Other nodes must be able to find this node as soon as it has a session.
    node_sync.introduce().await?;
    token_key::check_again(&sealers.token_key_fingerprint, credentials)?;

    let authentication = core.create_authentication();
    let rest = core.create_rest_data(&endpoint, &reloader, &rulings, &authentication, agent_command);
    let proof_secret = ProofSecret::new();
    let proof = GatewayProof(proof_secret.clone());
    let front = Front::new(authentication, Arc::clone(&endpoint.server.memory));
    let endpoints = HttpEndpoints { agents: Arc::clone(&endpoint), rest, proof, front };
    let (http_server, http_task) = endpoints.serve(config, socket, tls).map_err(listen_error)?;
    let (routes, feed) = (Arc::clone(&providers.routes), review.changes.feed().clone());
    background::spawn(crate::server_status_events::run(routes, feed, shutdown.clone()));
    background::spawn(Arc::clone(&rulings.standing_rules).run(shutdown.child_token()));
    background::spawn(Arc::clone(&rulings.rule_counts).run(shutdown.child_token()));
    background::spawn(Arc::clone(&identification.provider_sign_ins).run(shutdown.child_token()));
    let lines_thread = Arbiter::new();
    let attach_server = AttachServer {
        endpoint: Arc::clone(&endpoint),
        listener: Listener::bind(&config.data, &lock)?,
        users: users.clone(),
        is_detached: options.detached,
    };
    lines_thread.spawn(attach_server.run());
    background::spawn(node_sync.run(shutdown.child_token()));
    let gateway_file = GatewayFile::from_process(config, address, options.detached, proof_secret);
    let published_file = publish_gateway_file(&gateway_file, config, &mut lock)?;
    Ok(RunningGateway {
        config: core.config,
        endpoint,
        credentials: core.credentials,
        standing_rules: rulings.standing_rules,
        rule_counts: rulings.rule_counts,
        reloader,
        certificate,
        users,
        options,
        http_server,
        http_task,
        threads: vec![core.providers.router_thread, lines_thread, webhooks_thread],
        webhooks: core.webhooks,
        gateway_file: Some(published_file),
        _lock: lock,
    })
}

/// The core of the gateway, which starts first: the store, the changes, the providers and the identification of callers.
/// The other parts are built from it, and each receives only what it uses.
pub(super) struct GatewayCore {
    pub config: Arc<Config>,
    store: Arc<dyn Store>,
    credentials: Arc<StoredCredentials>,
    pub review: Review,
    pub providers: Providers,
    pub identification: Identification,
    webhooks: Arc<Webhooks>,
    pub shutdown: CancellationToken,
}

impl GatewayCore {
    /// Creates the reloader of the parts that a new configuration changes, and records the start in the audit trail.
    async fn start_reloader(
        &self,
        source: ConfigSource,
        initial: InitialConfig,
        last_read_entry: &Arc<AtomicU64>,
    ) -> Result<Arc<Reloader>, ServeError> {
        let Self { review, providers, identification, .. } = self;
        let target = ReloadTarget {
            router: providers.router.clone(),
            modules: providers.modules.clone(),
            upstreams: Arc::clone(&providers.upstreams),
            accounts: Arc::clone(&providers.accounts),
            pins: Arc::clone(&review.pins),
            store: Arc::clone(&self.store),
            last_read_entry: Arc::clone(last_read_entry),
            reviewers: Arc::clone(&review.reviewers),
            webhooks: Arc::clone(&self.webhooks),
            authenticator: Arc::clone(&identification.authenticator),
            provider_sign_ins: Arc::clone(&identification.provider_sign_ins),
        };
        let feed = review.changes.feed().clone();
        let publish = Box::new(move |event: &serde_json::Value| feed.publish_live(event));
        let reloader = Arc::new(Reloader::new(source, initial, Box::new(target), publish));
        reloader.record_start().await.map_err(ServeError::Policy)?;
        Ok(reloader)
    }

    /// Starts the webhooks, and returns their thread.
    async fn start_webhooks(&self, location: &StoreLocation, dashboard_url: &str) -> Result<Arbiter, StoreError> {
        let thread = Arbiter::new();
        let context = WebhookContext {
            store: location.deliveries()?,
            nodes: Arc::clone(self.review.changes.nodes()),
            thread: thread.handle(),
            dashboard_url: dashboard_url.into(),
            shutdown: self.shutdown.child_token(),
        };
        self.webhooks.start(context, &self.config.webhooks).await?;
        Ok(thread)
    }

    /// Creates the authentication of HTTP requests.
    fn create_authentication(&self) -> Arc<RequestAuthenticator> {
        let (authenticator, credentials) = (&self.identification.authenticator, &self.credentials);
        let origins = Arc::new(OriginRules::new(&self.config));
        let sign_ins = Arc::new(DashboardSignIns::new(Arc::clone(authenticator), Arc::clone(credentials), &origins));
        Arc::new(RequestAuthenticator { authenticator: Arc::clone(authenticator), sign_ins, origins })
    }

    /// Creates the data of the REST endpoints.
    fn create_rest_data(
        &self,
        endpoint: &McpEndpoint,
        reloader: &Arc<Reloader>,
        rulings: &Rulings,
        authentication: &Arc<RequestAuthenticator>,
        agent_command: AgentCommand,
    ) -> RestData {
        let Self { config, credentials, review, providers, .. } = self;
        let server_accounts = AuditedAccounts {
            accounts: Arc::clone(&providers.accounts),
            holders: Arc::clone(credentials.keyring()) as _,
            store: Arc::clone(&self.store),
        };
        let routed_servers = RoutedServers {
            routes: Arc::clone(&providers.routes),
            request_timeout: config.transports.http.request_timeout,
        };
        RestData {
            access: web::Data::new(AccessData {
                authentication: Arc::clone(authentication),
                http: config.transports.http.clone(),
            }),
            sign_in: web::Data::new(SignInData {
                authentication: Arc::clone(authentication),
                credentials: Arc::clone(credentials),
                provider_sign_ins: Arc::clone(&self.identification.provider_sign_ins),
                attempts: FailedAttempts::default(),
                reviewers: Arc::clone(&review.reviewers),
            }),
            server_accounts: web::Data::from(Arc::new(server_accounts) as Arc<dyn ServerAccounts>),
            feed: web::Data::new(feed_access(config, endpoint, &authentication.sign_ins)),
            agent_command: web::Data::new(agent_command),
            changes: web::Data::new(review.changes.clone()),
            sessions: web::Data::from(Arc::clone(&endpoint.sessions.registry) as Arc<dyn SessionSource>),
            servers: web::Data::from(Arc::new(routed_servers) as Arc<dyn ServerSource>),
            reloader: web::Data::from(Arc::clone(reloader)),
            acceptances: web::Data::from(Arc::clone(&rulings.acceptances)),
            standing_rules: web::Data::from(Arc::clone(&rulings.standing_rules)),
            rule_counts: web::Data::from(Arc::clone(&rulings.rule_counts)),
            trials: web::Data::new(ServerTrials::new(config.transports.stdio.max_message_size)),
            webhooks: web::Data::from(Arc::clone(&self.webhooks)),
        }
    }
}

/// The parts that identify callers by their keys, tokens and sign-ins.
pub(super) struct Identification {
    pub authenticator: Arc<Authenticator>,
    provider_sign_ins: Arc<ProviderSignIns>,
}

impl Identification {
    fn new(config: &Config, credentials: &Arc<StoredCredentials>, sign_in_sealer: Sealer) -> Self {
        let client = OidcClient::new(config, sign_in_sealer);
        Self {
            authenticator: Arc::new(Authenticator::new(config, Arc::clone(credentials) as _)),
            provider_sign_ins: Arc::new(ProviderSignIns::new(client, Arc::clone(credentials))),
        }
    }
}

/// The decisions of reviewers about tools and future calls, and the counts of the policy's rules.
struct Rulings {
    acceptances: Arc<ToolAcceptances>,
    standing_rules: Arc<StandingRuleService>,
    rule_counts: Arc<RuleCounts>,
}

impl Rulings {
    fn new(
        location: &StoreLocation,
        store: Arc<dyn Store>,
        review: &Review,
        providers: &Providers,
    ) -> Result<Self, StoreError> {
        let (routes, feed) = (&providers.routes, review.changes.feed());
        let (pins, rebuild) = (Arc::clone(&review.pins), providers.route_rebuilder());
        let acceptances = ToolAcceptances::new(Arc::clone(routes), pins, rebuild, feed.clone());
        let standing_rules = StandingRuleService::new(StandingRuleServiceDeps {
            store,
            cache: Arc::clone(&review.rule_cache),
            reviewers: Arc::clone(&review.reviewers),
            routes: Arc::clone(routes),
            rebuild: providers.route_rebuilder(),
            feed: feed.clone(),
        });
        let nodes = Arc::clone(review.changes.nodes());
        let rule_counts = RuleCounts::new(location.rule_counts()?, nodes, Arc::clone(routes));
        Ok(Self {
            acceptances: Arc::new(acceptances),
            standing_rules: Arc::new(standing_rules),
            rule_counts: Arc::new(rule_counts),
        })
    }
}

/// Describes the holder of the lock, and publishes the gateway's address in the data directory.
fn publish_gateway_file(file: &GatewayFile, config: &Config, lock: &mut DataLock) -> Result<PublishedFile, ServeError> {
    if let Err(error) = lock.describe(&format!("pid {}, {}", file.pid, file.url)) {
        tracing::debug!(%error, "the description of the lock was not written");
    }
    let published = file.publish(&config.data, lock).map_err(ServeError::GatewayFile)?;
    tracing::info!(url = %file.url, data = %config.data.display(), "countersign serves");
    Ok(published)
}

/// Returns the command with which agents of this machine attach to this gateway. It names the configuration file and the data
/// directory if they are not the default ones.
fn agent_command(source: &ConfigSource, config: &Config) -> AgentCommand {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    let program = program_path().unwrap_or_else(|_| "countersign".into());
    let (program, runner_arguments) = Installation::from_path(&program).start_command(program);
    let mut arguments: Vec<String> =
        runner_arguments.iter().chain(&["stdio"]).map(|&argument| argument.to_owned()).collect();
    let file_of_environment = source.env.var("COUNTERSIGN_CONFIG").ok().flatten().map(PathBuf::from);
    if let Some(file) = source.flags.config.clone().or(file_of_environment) {
        arguments.extend(["--config".to_owned(), absolute(&file)]);
    }
    if source.flags.data.is_some() || matches!(source.env.var(&variable_name("data")), Ok(Some(_))) {
        arguments.extend(["--data".to_owned(), absolute(&config.data)]);
    }
    let needs_key = config.auth.mode == AuthMode::Keys;
    AgentCommand { program: program.display().to_string(), arguments, needs_key }
}

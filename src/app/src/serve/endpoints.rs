//! Builds the endpoint of agents, and serves all endpoints over HTTP.

use std::{io, net::TcpListener, sync::Arc, time::Instant};

use actix_web::{App, dev::ServerHandle, web};
use tokio_util::sync::CancellationToken;

use super::start::GatewayCore;
use countersign_attach::Users;
use countersign_auth::DashboardSignIns;
use countersign_bridge::{Bridge, StateSealer};
use countersign_cluster::StoreCluster;
use countersign_config::Config;
use countersign_exchange::{memory::MemoryBudget, slots::StreamSlots};
use countersign_http::{
    connections::Connections,
    front::Front,
    proof::{self, GatewayProof},
    server,
};
use countersign_reload::Reloader;
use countersign_rest::{FeedAccess, RestData, dashboard};
use countersign_session::{
    McpServer, Sessions,
    address::GatewayAddress,
    cluster::Cluster,
    lifetimes::SessionLifetimes,
    limits::{self, SessionLimits},
    long_requests::LongRequests,
    server::{Reviews, Routing},
    status::GatewayStatus,
};
use countersign_telemetry::Metrics;
use countersign_transports::{endpoint::McpEndpoint, http, ws};

impl GatewayCore {
    /// Creates the endpoint of agents, with the server that answers their requests and the sessions.
    pub(super) fn create_endpoint(
        &self,
        reloader: &Arc<Reloader>,
        metrics: Metrics,
        state_sealer: StateSealer,
        users: Users,
    ) -> Arc<McpEndpoint> {
        let Self { config, review, providers, identification, shutdown, .. } = self;
        let (reloader, body_budget) = (Arc::clone(reloader), limits::body_budget(&config.transports));
        let status = GatewayStatus {
            started_at: Instant::now(),
            shutdown: shutdown.clone(),
            changes: review.changes.clone(),
            routes: Arc::clone(&providers.routes),
            upstreams: Arc::clone(&providers.upstreams),
            registry: Arc::clone(&providers.registry),
            body_budget: Arc::clone(&body_budget),
            metrics,
            config: Box::new(move || reloader.config()),
        };
        let long_requests = LongRequests {
            slots: StreamSlots::new(config.limits.max_streams),
            authenticator: Arc::clone(&identification.authenticator),
            shutdown: shutdown.clone(),
        };
        let routing = Routing {
            routes: Arc::clone(&providers.routes),
            router: providers.router.clone(),
            upstreams: Arc::clone(&providers.upstreams),
            long_requests,
            first_connection: config.limits.first_connection,
            started_at: status.started_at,
        };
        let lifetimes = Arc::new(SessionLifetimes::new(Arc::clone(review.changes.nodes())));
        let memory = MemoryBudget::new(config.limits.principal_memory, config.limits.total_memory);
        let bridge = Bridge::new(state_sealer, Arc::clone(&memory), lifetimes.node());
        let reviews = Reviews::new(config, review.changes.clone(), Arc::new(GatewayAddress::new(config)), &routing);
        let mut server = McpServer::new(config, memory, routing, reviews, bridge, Arc::new(status));
        server.cluster = build_cluster(config, &lifetimes, shutdown);
        let registry = Arc::clone(&providers.registry);
        let sessions = Arc::new(Sessions::new(Arc::new(server), registry, lifetimes, SessionLimits::new(config)));
        let connections = Arc::new(Connections::new(&config.transports, body_budget, users));
        Arc::new(McpEndpoint::new(&config.transports, sessions, connections))
    }
}

/// Returns the client that forwards requests to other nodes, or `None` if the store admits only one node.
fn build_cluster(
    config: &Config,
    lifetimes: &Arc<SessionLifetimes>,
    shutdown: &CancellationToken,
) -> Option<Box<dyn Cluster>> {
    lifetimes.nodes.claimant()?;
    Some(Box::new(StoreCluster {
        lifetimes: Arc::clone(lifetimes),
        max_streams: config.transports.http.max_concurrent_streams,
        shutdown: shutdown.clone(),
    }))
}

/// Returns what the endpoints of the feed use, which share the limits of agents' streams and WebSockets.
pub(super) fn feed_access(config: &Config, endpoint: &McpEndpoint, sign_ins: &Arc<DashboardSignIns>) -> FeedAccess {
    let McpEndpoint { server, connections, .. } = endpoint;
    FeedAccess {
        feed: server.reviews.changes.feed().clone(),
        sign_ins: Arc::clone(sign_ins),
        shutdown: endpoint.shutdown.child_token(),
        streams: Arc::clone(&server.long_requests.slots),
        memory: Arc::clone(&server.memory),
        web_sockets: Arc::clone(&connections.web_socket_permits),
        reserved_web_sockets: Arc::clone(&connections.reserved_permits),
        outbox_messages: config.limits.outbox_messages,
        outbox_bytes: config.limits.outbox_bytes,
        ping_interval: config.transports.websocket.ping_interval,
        sse_keep_alive: config.transports.http.sse_keep_alive,
    }
}

/// The task of the HTTP server, which ends with the server.
pub type HttpTask = tokio::task::JoinHandle<io::Result<()>>;

/// The endpoints that the HTTP server serves, and the middleware of their requests.
pub(super) struct HttpEndpoints {
    pub agents: Arc<McpEndpoint>,
    pub rest: RestData,
    pub proof: GatewayProof,
    pub front: Front,
}

impl HttpEndpoints {
    /// Starts the HTTP server on the socket.
    pub(super) fn serve(
        self,
        config: &Config,
        socket: TcpListener,
        tls: Option<rustls::ServerConfig>,
    ) -> io::Result<(ServerHandle, HttpTask)> {
        let Self { agents, rest, proof, front } = self;
        let http = config.transports.http.clone();
        let settings = server::ServerSettings {
            workers: worker_count(http.workers),
            http,
            connections: Arc::clone(&agents.connections),
            drain: config.limits.drain,
            has_peers: agents.sessions.lifetimes.nodes.claimant().is_some(),
        };
        let (agents, proof) = (web::Data::from(agents), web::Data::new(proof));
        let app = move || {
            App::new()
                .app_data(agents.clone())
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
}

/// Returns the configured number of workers, or half the number of cores, which leaves the rest to other programs.
fn worker_count(configured: usize) -> usize {
    if configured > 0 {
        return configured;
    }
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

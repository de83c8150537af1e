//! A gateway for tests. Everything is real except that it has no endpoints.
#![allow(clippy::unwrap_used, clippy::panic, reason = "it is only built for tests")]

use std::{
    sync::{Arc, atomic::AtomicI64},
    time::Instant,
};

use actix::Actor as _;
use tokio_util::sync::CancellationToken;

use crate::{
    gateway::{
        address::GatewayAddress,
        limits::{SessionLimits, body_budget},
        long_requests::LongRequests,
        registry::Registry,
        server::{McpServer, Reviews, Routing},
        status::GatewayStatus,
    },
    sessions::{Sessions, lifetimes::SessionLifetimes},
};
use countersign_auth::{Authenticator, stored_credentials::StoredCredentials};
use countersign_bridge::{Bridge, StateSealer};
use countersign_config::{Config, Environment, Flags, load};
use countersign_domain::policy::Policy;
use countersign_exchange::{memory::MemoryBudget, slots::StreamSlots, testing::TestClients};
use countersign_provider::testing::FakeProvider;
use countersign_review::{gateway_tools::change_output_schema, testing as review};
use countersign_routing::{
    PublishedTable, RouteDirectory, RouteTable, RouteTarget, Router, actor::PublishProviders, table::Aliases,
};
use countersign_telemetry::Metrics;
use countersign_upstream::Upstreams;

/// A gateway for tests without providers at first. It must be created inside an actix system.
pub struct Gateway {
    pub config: Arc<Config>,
    pub server: Arc<McpServer>,
    pub sessions: Arc<Sessions>,
    pub clients: TestClients,
    pub keys: Arc<StoredCredentials>,
    /// The data directory, which is deleted with the gateway.
    _data: tempfile::TempDir,
}

impl Gateway {
    /// Creates a gateway from a configuration in YAML.
    pub async fn new(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, config).unwrap();
        let flags = Flags { config: Some(file), data: Some(dir.path().into()), ..Flags::default() };
        let loaded = load(&flags, &Environment::new(dir.path(), &[])).unwrap_or_else(|error| panic!("{error}"));
        let config = Arc::new(loaded.config);
        let routes = Arc::new(PublishedTable::from_pointee(RouteTable::default()));
        let review_config = review::config(&Arc::new(AtomicI64::new(0)));
        let changes = review::start(dir.path(), Arc::new(RouteDirectory(Arc::clone(&routes))), review_config).await;
        let registry = Arc::new(Registry::default());
        let (policy, aliases) = (Policy::new(&config.policy), Aliases::new(&config.routes).unwrap());
        let clients = Arc::clone(&registry) as _;
        let router = Router::new(Arc::clone(&routes), policy, aliases, change_output_schema(), clients).start();
        let upstreams = Arc::new(Upstreams::with_connectors(Arc::new(|_, _| Vec::new()), None));
        let keys = Arc::new(StoredCredentials::in_directory(dir.path()).unwrap());
        let (started_at, shutdown) = (Instant::now(), CancellationToken::new());
        let config_in_force = Arc::clone(&config);
        let status = GatewayStatus {
            started_at,
            shutdown: shutdown.clone(),
            changes: changes.clone(),
            routes: Arc::clone(&routes),
            upstreams: Arc::clone(&upstreams),
            registry: Arc::clone(&registry),
            body_budget: body_budget(&config.transports),
            metrics: Metrics::install().unwrap(),
            config: Box::new(move || Arc::clone(&config_in_force)),
        };
        let lifetimes = Arc::new(SessionLifetimes::new(Arc::clone(changes.nodes())));
        let memory = MemoryBudget::new(config.limits.principal_memory, config.limits.total_memory);
        let clients = TestClients { memory: Arc::clone(&memory), ended: lifetimes.ended.clone() };
        let bridge = Bridge::new(StateSealer::new([7; 32]).unwrap(), Arc::clone(&memory), None);
        let long_requests = LongRequests {
            slots: StreamSlots::new(config.limits.max_streams),
            authenticator: Arc::new(Authenticator::new(&config, Arc::clone(&keys) as _)),
            shutdown,
        };
        let first_connection = config.limits.first_connection;
        let routing = Routing { routes, router, upstreams, long_requests, first_connection, started_at };
        let reviews = Reviews::new(&config, changes, Arc::new(GatewayAddress::new(&config)), &routing);
        let server = McpServer::new(&config, memory, routing, reviews, bridge, Arc::new(status));
        let server = Arc::new(server);
        let sessions = Sessions::new(Arc::clone(&server), registry, lifetimes, SessionLimits::new(&config));
        Self { config, server, sessions: Arc::new(sessions), clients, keys, _data: dir }
    }

    /// Publishes these providers and removes all others.
    pub async fn offer(&self, providers: Vec<RouteTarget>) {
        self.server.routing.router.send(PublishProviders { providers, strict: true }).await.unwrap().unwrap();
    }

    /// Publishes only this module.
    pub async fn offer_module(&self, module: FakeProvider) -> Arc<FakeProvider> {
        let module = Arc::new(module);
        self.offer(vec![RouteTarget::Module(Arc::clone(&module) as _)]).await;
        module
    }
}

//! The parts of the gateway that answer MCP requests, grouped by subject. The functions that pass a request on to its
//! handler see all of them ([`RequestScope`]), and a handler gets only the parts that it uses.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix::Addr;

use crate::gateway::{
    address::GatewayAddress,
    answered_page_requests::AnsweredPageRequests,
    callers::{DecidingKeys, Limiter},
    cluster::Cluster,
    limits::RequestLimits,
    local_tasks::LocalTasks,
    long_requests::LongRequests,
    status::GatewayStatus,
};
use countersign_bridge::Bridge;
use countersign_config::{Config, RetentionConfig};
use countersign_exchange::{
    context::{Exchange, RequestSlots},
    facts::ClientFacts,
    memory::MemoryBudget,
    state::SessionState,
};
use countersign_review::Changes;
use countersign_routing::{PublishedTable, RouteDirectory, RouteTable, Router, actor::Unsubscribe};
use countersign_runtime::large_messages::LargeMessageThreads;
use countersign_upstream::Upstreams;

/// The parts with which handlers find routes of tools, prompts and resources, and wait for upstreams that were just
/// started.
#[derive(Clone)]
pub struct Routing {
    pub routes: Arc<PublishedTable>,
    pub router: Addr<Router>,
    pub upstreams: Arc<Upstreams>,
    pub long_requests: LongRequests,
    /// The longest time until an upstream's first answer (`limits.first_connection`).
    pub first_connection: Duration,
    /// The time at which the gateway was started.
    pub started_at: Instant,
}

/// The parts with which handlers propose changes and follow them.
pub struct Reviews {
    pub changes: Changes,
    /// The providers that make the previews of changes.
    pub directory: RouteDirectory,
    pub long_requests: LongRequests,
    /// The time that a change waits for a decision if its rule does not set one.
    pub expire_after: Duration,
    pub retention: RetentionConfig,
    pub address: Arc<GatewayAddress>,
    /// Changes whose clients have answered the request to open the page.
    pub answered_page_requests: AnsweredPageRequests,
}

impl Reviews {
    pub fn new(config: &Config, changes: Changes, address: Arc<GatewayAddress>, routing: &Routing) -> Self {
        Self {
            changes,
            directory: RouteDirectory(Arc::clone(&routing.routes)),
            long_requests: routing.long_requests.clone(),
            expire_after: config.changes.expire_after,
            retention: config.changes.retention,
            address,
            answered_page_requests: AnsweredPageRequests::default(),
        }
    }
}

/// Runs admitted calls: those of upstreams over the bridge, those of modules within their limits.
#[derive(Clone)]
pub struct CallRunner {
    pub bridge: Arc<Bridge>,
    pub limits: RequestLimits,
    /// Limits the rate of each principal.
    pub limiter: Arc<Limiter>,
    pub long_requests: LongRequests,
}

/// The parts of the gateway that answer MCP requests.
pub struct McpServer {
    pub limits: RequestLimits,
    /// The slots of requests that are being answered.
    pub slots: RequestSlots,
    pub long_requests: LongRequests,
    /// The memory budget of each principal.
    pub memory: Arc<MemoryBudget>,
    /// The threads for large messages.
    pub large_messages: Arc<LargeMessageThreads>,
    pub routing: Routing,
    pub reviews: Arc<Reviews>,
    pub runner: CallRunner,
    /// Tool calls that run in the gateway as tasks.
    pub local_tasks: LocalTasks,
    /// Keys that called tools although they may decide on changes.
    pub deciding_keys: DecidingKeys,
    pub status: Arc<GatewayStatus>,
    /// The other nodes, if several gateways serve the store.
    pub cluster: Option<Box<dyn Cluster>>,
}

impl McpServer {
    pub fn new(
        config: &Config,
        memory: Arc<MemoryBudget>,
        routing: Routing,
        reviews: Reviews,
        bridge: Bridge,
        status: Arc<GatewayStatus>,
    ) -> Self {
        let (limits, nodes) = (RequestLimits::new(config), Arc::clone(reviews.changes.nodes()));
        let limiter = Arc::new(Limiter::new(&config.limits, Box::new(move || nodes.live_count())));
        let long_requests = routing.long_requests.clone();
        let runner = CallRunner { bridge: Arc::new(bridge), limits, limiter, long_requests: long_requests.clone() };
        Self {
            limits,
            slots: RequestSlots::new(config.limits.max_in_flight),
            long_requests,
            local_tasks: LocalTasks::new(Arc::clone(&memory)),
            deciding_keys: DecidingKeys::default(),
            memory,
            large_messages: LargeMessageThreads::new(config.limits.large_threads),
            routing,
            reviews: Arc::new(reviews),
            runner,
            status,
            cluster: None,
        }
    }

    /// Stores the facts that a stateless client states, so that people can see them. Each request carries them anyway,
    /// so nothing is lost if the principal has no memory left.
    pub fn publish_facts(&self, session: &SessionState, facts: &Arc<ClientFacts>) {
        if let Ok(share) = self.memory.take(&session.principal().name, facts.size()) {
            session.set_facts(Arc::clone(facts), share);
        }
    }

    /// Ends the subscriptions of a session, and what upstreams hold for it.
    pub fn release_session(&self, session: &SessionState) {
        self.routing.upstreams.close_session(&session.id);
        let uris = session.take_subscriptions();
        if !uris.is_empty() {
            self.routing.router.do_send(Unsubscribe { session: session.id.clone(), uris });
        }
    }
}

/// The parts with which a request is answered: its exchange, the server and the route table. Handlers get only those
/// that they use.
pub struct RequestScope {
    pub exchange: Exchange,
    pub server: Arc<McpServer>,
    /// The routes that were published when the request had been read. Only a wait for an upstream replaces them.
    pub table: Arc<RouteTable>,
}

//! The parts of the gateway that answer MCP requests, grouped by subject. Code below the handlers takes only the part
//! that it uses.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix::Addr;

use crate::{
    address::GatewayAddress,
    cluster::Cluster,
    limits::RequestLimits,
    long_requests::LongRequests,
    state::{deciding_keys::DecidingKeys, limiter::Limiter, local_tasks::LocalTasks, opened_pages::OpenedPages},
    status::GatewayStatus,
};
use countersign_bridge::Bridge;
use countersign_config::{Config, RetentionConfig};
use countersign_domain::principal::Principal;
use countersign_exchange::{context::RequestSlots, facts::ClientFacts, memory::Memory, shared::SessionShared};
use countersign_feed::Feed;
use countersign_provider::Meter;
use countersign_review::Changes;
use countersign_routing::{PublishedTable, Router};
use countersign_runtime::large_messages::LargeMessageThreads;
use countersign_upstream::Upstreams;

/// Finds the routes of tools, prompts and resources, and waits for servers that were just started.
#[derive(Clone)]
pub struct Routing {
    pub routes: Arc<PublishedTable>,
    pub router: Addr<Router>,
    pub upstreams: Arc<Upstreams>,
    /// The longest time until a server's first answer (`limits.first_connection`).
    pub first_connection: Duration,
    /// The time at which the gateway was started.
    pub started: Instant,
}

/// Proposes calls for review and follows their changes.
pub struct Reviews {
    pub changes: Changes,
    pub feed: Feed,
    /// The time that a change waits for a decision if its rule does not set one.
    pub expire_after: Duration,
    pub retention: RetentionConfig,
    pub address: Arc<GatewayAddress>,
    /// Changes whose clients were already asked to open the page.
    pub opened_pages: OpenedPages,
    /// Keys that called tools although they may decide on changes.
    pub deciding_keys: DecidingKeys,
}

impl Reviews {
    #[must_use]
    pub fn new(config: &Config, changes: Changes, address: Arc<GatewayAddress>) -> Self {
        Self {
            feed: changes.feed().clone(),
            changes,
            expire_after: config.changes.expire_after,
            retention: config.changes.retention,
            address,
            opened_pages: OpenedPages::default(),
            deciding_keys: DecidingKeys::default(),
        }
    }
}

/// The parts of the gateway that answer MCP requests.
pub struct McpServer {
    pub limits: RequestLimits,
    /// The places of requests that are being answered.
    pub slots: RequestSlots,
    pub limiter: Arc<Limiter>,
    pub long_requests: LongRequests,
    /// The memory budget of each principal.
    pub memory: Arc<Memory>,
    /// The threads for large messages.
    pub large_messages: Arc<LargeMessageThreads>,
    pub routing: Routing,
    pub reviews: Reviews,
    pub bridge: Arc<Bridge>,
    /// Tool calls that run in the gateway as tasks.
    pub local_tasks: LocalTasks,
    pub status: Arc<GatewayStatus>,
    /// The other nodes, if several gateways serve the store.
    pub cluster: Option<Box<dyn Cluster>>,
}

impl McpServer {
    #[must_use]
    pub fn new(
        config: &Config,
        memory: Arc<Memory>,
        long_requests: LongRequests,
        routing: Routing,
        reviews: Reviews,
        bridge: Bridge,
        status: Arc<GatewayStatus>,
    ) -> Self {
        Self {
            limits: RequestLimits::new(config),
            slots: RequestSlots::new(config.limits.max_in_flight),
            limiter: Arc::new(Limiter::new(&config.limits)),
            long_requests,
            memory,
            large_messages: LargeMessageThreads::new(config.limits.large_threads),
            routing,
            reviews,
            bridge: Arc::new(bridge),
            local_tasks: LocalTasks::default(),
            status,
            cluster: None,
        }
    }

    /// Returns a meter that charges the time that a module takes for a call to the principal's rate limit, even if the
    /// client has disconnected by then.
    #[must_use]
    pub fn meter(&self, principal: &Arc<Principal>) -> Meter {
        let (limiter, nodes) = (Arc::clone(&self.limiter), Arc::clone(self.reviews.changes.nodes()));
        let principal = Arc::clone(principal);
        Meter(Arc::new(move |time| limiter.charge(&principal.name, time, nodes.live_count())))
    }

    /// Stores the facts that a stateless client states, so that people can see them. Each request carries them anyway,
    /// so nothing is lost if the principal has no memory left.
    pub fn publish_facts(&self, session: &SessionShared, facts: &Arc<ClientFacts>) {
        if let Ok(share) = self.memory.take(&session.principal().name, facts.size()) {
            session.set_facts(Arc::clone(facts), share);
        }
    }
}

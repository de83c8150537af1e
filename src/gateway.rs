//! Everything that the doors share: one value, made at start, held by whoever serves a request.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix::Addr;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    attach::{Users, proof::Secret},
    auth::{Authenticator, Identity, Principal, authenticator::Credential},
    bridge::{carried::Carrier, park::Lot},
    config::Config,
    ending::Ending,
    lanes::Lanes,
    middleware::rate_limit::Limiter,
    pending::{Changes, Feed},
    protocol::{ErrorKind, McpError, Revision, envelope, params::keys},
    providers::{CallContext, NoProgress, Provider},
    reload::Reloads,
    rest::{ProviderInfo, ProvidersView, SessionInfo, SessionsView},
    router::{Published, Router},
    session::{
        Channel, ClientFacts, Registry, SessionShared, Transport,
        handlers::{lifecycle, reviewed::Reviewed, tasks::local::Locals},
        memory::Memory,
        outbox::{Outbox, OutboxLimits},
        slots::{Evictable, StreamSlot, StreamSlots},
    },
    telemetry::Metrics,
    transports::connections::Connections,
    upstream::Upstreams,
};

/// How often it is asked whether the key behind something that stays open still holds.
pub const RECHECK: Duration = Duration::from_secs(1);

/// See the module's page.
pub struct Gateway {
    pub config: Arc<Config>,
    pub routes: Arc<Published>,
    pub router: Addr<Router>,
    pub registry: Arc<Registry>,
    pub changes: Changes,
    pub feed: Feed,
    pub authenticator: Arc<Authenticator>,
    pub limiter: Limiter,
    /// Where large messages are handled.
    pub lanes: Arc<Lanes>,
    pub connections: Arc<Connections>,
    /// The configuration that is in force; `config` is that of the start.
    pub reloads: Arc<Reloads>,
    pub metrics: Metrics,
    pub upstreams: Arc<Upstreams>,
    pub started: Instant,
    /// Draining has begun: nothing new is taken, streams say their last word.
    pub shutdown: Ending,
    /// The end: sessions that are still there are cut.
    pub ended: CancellationToken,
    /// `{"io.modelcontextprotocol/serverInfo": …}`, which every modern result carries.
    pub server_meta: String,
    /// Tasks of upstreams that clients may ask for.
    pub tasks: crate::bridge::tasks::Tasks,
    /// What is kept for each principal.
    pub memory: Arc<Memory>,
    /// Places for requests that stay open, at whatever door.
    pub streams: Arc<StreamSlots>,
    /// Requests that are being answered, at every door.
    pub requests: AtomicUsize,
    /// Calls that wait for what their stateless clients answer.
    pub parked: Arc<Lot>,
    /// Seals what stateless upstreams have their clients carry.
    pub carrier: Carrier,
    /// Calls that wait for a person.
    pub reviewed: Reviewed,
    /// Calls that run here as tasks.
    pub local_tasks: Locals,
    /// The address that is really bound, once it is.
    pub listening: OnceLock<SocketAddr>,
    /// What the terminal knows this gateway by.
    pub proof: Option<Secret>,
}

/// What [`Gateway::new`] is made of.
pub struct Parts {
    pub config: Arc<Config>,
    pub routes: Arc<Published>,
    pub router: Addr<Router>,
    pub registry: Arc<Registry>,
    pub changes: Changes,
    pub feed: Feed,
    pub authenticator: Arc<Authenticator>,
    pub reloads: Arc<Reloads>,
    pub metrics: Metrics,
    pub upstreams: Arc<Upstreams>,
    pub shutdown: Ending,
    pub users: Users,
    pub carrier: Carrier,
}

impl Gateway {
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts {
            config,
            routes,
            router,
            registry,
            changes,
            feed,
            authenticator,
            reloads,
            metrics,
            upstreams,
            shutdown,
            users,
            carrier,
        } = parts;
        Self {
            limiter: Limiter::new(&config.limits),
            lanes: Lanes::new(config.limits.large_threads),
            connections: Arc::new(Connections::new(&config.transports, users)),
            started: Instant::now(),
            ended: CancellationToken::new(),
            server_meta: json!({ (keys::SERVER_INFO): lifecycle::server_info(Revision::MODERN) }).to_string(),
            tasks: crate::bridge::tasks::Tasks::default(),
            memory: Memory::new(config.limits.principal_memory),
            streams: StreamSlots::new(config.limits.max_streams),
            requests: AtomicUsize::new(0),
            parked: Lot::new(),
            carrier,
            reviewed: Reviewed::default(),
            local_tasks: Locals::default(),
            listening: OnceLock::new(),
            proof: Secret::new(),
            config,
            routes,
            router,
            registry,
            changes,
            feed,
            authenticator,
            reloads,
            metrics,
            upstreams,
            shutdown,
        }
    }

    #[must_use]
    pub fn envelope_limits(&self) -> envelope::Limits {
        envelope::Limits { max_depth: self.config.limits.max_depth, max_batch: self.config.limits.max_batch }
    }

    /// Where a person at this machine reaches the gateway.
    #[must_use]
    pub fn reached_at(&self) -> SocketAddr {
        let address = self.listening.get().copied().unwrap_or(self.config.listen);
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        SocketAddr::new(ip, address.port())
    }

    /// Bounds the work of one request by `transports.http.request_timeout`.
    ///
    /// # Errors
    /// `TIMEOUT`, or what the work itself says.
    pub async fn in_time<T>(&self, work: impl Future<Output = Result<T, McpError>>) -> Result<T, McpError> {
        let limit = self.config.transports.http.request_timeout;
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            Err(McpError::new(ErrorKind::Timeout, "the request took too long")
                .with("timeoutMs", u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)))
        })
    }

    /// Takes one of a principal's places for requests that stay open.
    ///
    /// # Errors
    /// `OVERLOADED` when all are taken.
    pub fn long_lived(&self, principal: &Principal) -> Result<StreamSlot, McpError> {
        self.streams.take(&principal.name)
    }

    /// The same for a stream that may have to make room for another one later.
    ///
    /// # Errors
    /// `OVERLOADED` when all are taken, and none of them can go.
    pub fn long_lived_stream(&self, principal: &Principal, stream: Evictable) -> Result<StreamSlot, McpError> {
        self.streams.take_for(&principal.name, Some(stream))
    }

    /// Keeps what a stateless client says of itself for people to see. Its request carries it anyway, so a principal
    /// that has no memory left only shows none.
    pub fn show_facts(&self, session: &SessionShared, facts: &Arc<ClientFacts>) {
        if let Ok(share) = self.memory.take(&session.principal().name, facts.size()) {
            session.set_facts(Arc::clone(facts), share);
        }
    }

    /// Makes room for one more session of a principal that holds state: beyond `limits.max_sessions` another one ends.
    ///
    /// # Errors
    /// `OVERLOADED` where all of them have calls in flight.
    pub fn room_for_session(&self, principal: &Principal) -> Result<(), McpError> {
        let max = self.config.limits.max_sessions;
        // Few sessions in all are few of anybody's, which spares the counting.
        let room = || self.registry.count_of(&principal.name) < max || self.registry.evict_one_of(&principal.name);
        if self.registry.len() < max || room() {
            return Ok(());
        }
        Err(McpError::new(ErrorKind::Overloaded, "too many sessions (limits.max_sessions)").with("limit", max as u64))
    }

    /// A session of a connection with an outbox; `replay` frames and bytes are kept for a client that comes back.
    #[must_use]
    pub fn outbox_session(&self, transport: Transport, identity: Identity, replay: (usize, usize)) -> SessionShared {
        let limits = OutboxLimits {
            messages: self.config.limits.outbox_messages,
            bytes: self.config.limits.outbox_bytes,
            replay_frames: replay.0,
            replay_bytes: replay.1,
        };
        let outbox = if replay.0 > 0 {
            Outbox::counted(limits, self.memory.share(&identity.principal.name))
        } else {
            Outbox::new(limits)
        };
        SessionShared::new(transport, identity, Channel::Outbox(outbox), &self.ended)
    }

    /// Whether what a client was authenticated by still holds.
    ///
    /// # Errors
    /// `UNAUTHORIZED` for a key that was revoked since.
    pub fn holds(&self, identity: &Identity) -> Result<(), McpError> {
        match &identity.credential {
            Credential::Key(hash) => self.authenticator.recheck(hash).map(drop),
            Credential::Loopback | Credential::SignIn(_) => Ok(()),
        }
    }

    /// Resolves once a client's key was revoked: for what stays open long.
    pub async fn revoked(&self, identity: &Identity) -> McpError {
        if !matches!(identity.credential, Credential::Key(_)) {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(RECHECK).await;
            match self.holds(identity) {
                Err(error) if error.kind == ErrorKind::Unauthorized => return error,
                _ => {}
            }
        }
    }

    /// Requests that are being answered, at every door.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Prometheus text, with the gauges that are read rather than counted.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        use crate::telemetry::{
            Queue,
            metrics::{body_bytes, queue_length},
        };
        let mut queued = 0;
        self.registry.for_each(|session| {
            if let Channel::Outbox(outbox) = &session.channel {
                queued += outbox.len();
            }
        });
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float; queues are far below 2^52")]
        queue_length(Queue::Outbox).set(queued as f64);
        #[expect(clippy::cast_precision_loss, reason = "so are bodies")]
        body_bytes().set(self.connections.body_bytes() as f64);
        self.upstreams.measure();
        self.metrics.render()
    }

    /// Tells the feed of a session that came or went.
    pub fn session_event(&self, kind: &'static str, session: &SessionShared) {
        if matches!(session.channel, Channel::None) && session.facts().is_none() {
            return;
        }
        let event = json!({ "type": kind, "at": Timestamp::now().to_string(), "session": session_info(session) });
        self.feed.publish_session(&event);
    }
}

fn session_info(session: &SessionShared) -> SessionInfo {
    let facts = session.facts();
    let client = facts.as_ref().and_then(|f| f.client.as_ref());
    SessionInfo {
        id: session.id.to_string(),
        transport: session.transport.as_str().to_owned(),
        revision: facts.as_ref().map(|f| f.revision.as_str().to_owned()),
        client_name: client.map(|c| c.name.clone()),
        client_version: client.map(|c| c.version.clone()),
        principal: session.principal().name.clone(),
        created_at: session.created,
        last_active_at: session.last_active(),
        in_flight: session.in_flight(),
    }
}

impl SessionsView for Gateway {
    fn sessions(&self) -> Vec<SessionInfo> {
        let mut all = Vec::new();
        self.registry.for_each(|session| all.push(session_info(session)));
        all
    }
}

impl ProvidersView for Gateway {
    fn providers(&self) -> BoxFuture<'_, Vec<ProviderInfo>> {
        Box::pin(self.provider_infos())
    }
}

impl Gateway {
    async fn provider_infos(&self) -> Vec<ProviderInfo> {
        let table = self.routes.load_full();
        let count = |provider: &Arc<dyn Provider>| {
            table.tools().iter().filter(|route| route.provider.name() == provider.name()).count()
        };
        let context = CallContext {
            principal: Arc::new(Principal::local_agent()),
            cancel: CancellationToken::new(),
            progress: Arc::new(NoProgress),
            change_id: None,
            inquirer: None,
        };
        let mut infos = Vec::new();
        for provider in table.providers() {
            let resources = self.in_time(provider.resources(&context)).await;
            let upstream = provider.upstream().map(|upstream| upstream.status());
            infos.push(ProviderInfo {
                name: provider.name().to_owned(),
                kind: if upstream.is_some() { "upstream" } else { "module" },
                status: match &upstream {
                    Some(upstream) => upstream.status,
                    None if resources.is_ok() => "up",
                    None => "down",
                },
                upstream,
                tools: count(provider),
                resources: resources.map_or(0, |r| r.len()),
                prompts: provider.prompts().len(),
                warnings: table.warnings(provider.name()),
            });
        }
        infos
    }
}

//! What every exchange needs, whatever came in and over whatever transport.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix::Addr;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    bounds::{
        inflow::Inflow,
        memory::Memory,
        slots::{Evictable, StreamSlot, StreamSlots},
    },
    session::{
        facts::ClientFacts,
        outbox::{Outbox, OutboxLimits},
        shared::{Channel, SessionShared},
    },
};
use countersign_auth::Authenticator;
use countersign_config::Config;
use countersign_domain::principal::{Credential, Identity, Principal};
use countersign_feed::Feed;
use countersign_protocol::{ErrorKind, McpError, envelope};
use countersign_reload::Reloads;
use countersign_review::Changes;
use countersign_routing::{Published, Router};
use countersign_runtime::lanes::Lanes;
use countersign_telemetry::{Metrics, metrics::Transport};
use countersign_upstream::Upstreams;

/// How often it is asked whether the key behind something that stays open still holds.
pub const RECHECK: Duration = Duration::from_secs(1);

/// See the module's page. Made once, at the start.
pub struct Services {
    pub config: Arc<Config>,
    pub routes: Arc<Published>,
    pub router: Addr<Router>,
    pub changes: Changes,
    pub feed: Feed,
    pub authenticator: Arc<Authenticator>,
    /// The configuration that is in force; `config` is that of the start.
    pub reloads: Arc<Reloads>,
    pub metrics: Metrics,
    pub upstreams: Arc<Upstreams>,
    /// Draining has begun: nothing new is taken, streams say their last word.
    pub shutdown: CancellationToken,
    /// `{"io.modelcontextprotocol/serverInfo": …}`, which every modern result carries.
    pub server_meta: String,
    pub state: State,
}

/// What comes about while requests are served.
pub struct State {
    pub started: Instant,
    /// The end: sessions that are still there are cut.
    pub ended: CancellationToken,
    /// What ends sessions that clients reach through any node, and the epoch of this node since which they live.
    sessions: Mutex<(u64, CancellationToken)>,
    /// Where large messages are handled.
    pub lanes: Arc<Lanes>,
    /// Bytes of bodies that are held.
    pub inflow: Arc<Inflow>,
    /// What is kept for each principal.
    pub memory: Arc<Memory>,
    /// Places for requests that stay open, whatever they came in by.
    pub streams: Arc<StreamSlots>,
    /// Requests that are being answered.
    pub requests: AtomicUsize,
    /// The address that is really bound, once it is.
    pub listening: OnceLock<SocketAddr>,
}

impl State {
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let ended = CancellationToken::new();
        Self {
            started: Instant::now(),
            sessions: Mutex::new((0, ended.child_token())),
            ended,
            lanes: Lanes::new(config.limits.large_threads),
            inflow: Inflow::new(&config.transports),
            memory: Memory::new(config.limits.principal_memory, config.limits.total_memory),
            streams: StreamSlots::new(config.limits.max_streams),
            requests: AtomicUsize::new(0),
            listening: OnceLock::new(),
        }
    }
}

impl Services {
    #[must_use]
    pub fn envelope_limits(&self) -> envelope::Limits {
        envelope::Limits { max_depth: self.config.limits.max_depth, max_batch: self.config.limits.max_batch }
    }

    /// Where a person at this machine reaches the gateway.
    #[must_use]
    pub fn reached_at(&self) -> SocketAddr {
        let address = self.state.listening.get().copied().unwrap_or(self.config.listen);
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
        self.state.streams.take(&principal.name)
    }

    /// The same for a stream that may have to make room for another one later.
    ///
    /// # Errors
    /// `OVERLOADED` when all are taken, and none of them can go.
    pub fn long_lived_stream(&self, principal: &Principal, stream: Evictable) -> Result<StreamSlot, McpError> {
        self.state.streams.take_for(&principal.name, Some(stream))
    }

    /// Keeps what a stateless client says of itself for people to see. Its request carries it anyway, so a principal
    /// that has no memory left only shows none.
    pub fn show_facts(&self, session: &SessionShared, facts: &Arc<ClientFacts>) {
        if let Ok(share) = self.state.memory.take(&session.principal().name, facts.size()) {
            session.set_facts(Arc::clone(facts), share);
        }
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
        let outbox = Outbox::counted(limits, self.state.memory.share(&identity.principal.name));
        // Nobody else is asked for the session of a program on this machine, and so nobody says that it is gone.
        let ended = if transport == Transport::Stdio { self.state.ended.clone() } else { self.sessions_ended() };
        SessionShared::new(transport, identity, Channel::Outbox(outbox), &ended).at_node(self.node().as_deref())
    }

    /// Cancelled at the end, and when this node loses its lease while other nodes live: they have told clients by then that
    /// its sessions are gone. Looks whether that has happened.
    #[must_use]
    pub fn sessions_ended(&self) -> CancellationToken {
        let since = self.changes.nodes().sessions_since();
        let mut sessions = self.state.sessions.lock();
        if sessions.0 != since {
            let before = std::mem::replace(&mut *sessions, (since, self.state.ended.child_token()));
            before.1.cancel();
        }
        sessions.1.clone()
    }

    /// Refuses what opens or goes on with a session while this node does not hold its lease: nobody knows then whether other
    /// nodes count it as gone.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub fn check_lease(&self) -> Result<(), McpError> {
        if self.changes.nodes().holds(None) {
            return Ok(());
        }
        let text = "this gateway does not reach its database, and so serves no sessions at the moment; try again";
        Err(McpError::new(ErrorKind::StoreUnavailable, text).with("retryAfter", 1))
    }

    /// What this gateway is called among those that serve its store, where there may be several.
    #[must_use]
    pub fn node(&self) -> Option<String> {
        self.changes.nodes().claimant().map(|claimant| claimant.node)
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

    /// Requests that are being answered, at every endpoint.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, facts, identity};
    use countersign_auth::keys;
    use countersign_domain::principal::Role;
    use countersign_protocol::{Era, Revision};

    #[actix::test]
    async fn what_takes_too_long_is_told_its_limit() {
        let bench = Bench::new("transports: { http: { request_timeout: 10ms } }").await;
        let error = bench.services.in_time(std::future::pending::<Result<(), _>>()).await.unwrap_err();
        assert_eq!((error.kind, error.data["timeoutMs"].as_u64()), (ErrorKind::Timeout, Some(10)));
        assert_eq!(bench.services.in_time(std::future::ready(Ok(1))).await.unwrap(), 1);
    }

    #[actix::test]
    async fn a_key_holds_while_it_is_there() {
        let bench = Bench::new("").await;
        let new = keys::create("ann", Role::Agent, jiff::Timestamp::now()).unwrap();
        let by_key = Identity { credential: Credential::Key(new.hash), ..identity("ann", Role::Agent) };
        assert_eq!(bench.services.holds(&by_key).unwrap_err().kind, ErrorKind::Unauthorized);
        assert_eq!(bench.services.revoked(&by_key).await.kind, ErrorKind::Unauthorized);
        bench.services.holds(&identity("ann", Role::Agent)).unwrap();
        bench.keys.keys().insert(&new.key, &new.hash).unwrap();
        let other = Bench::new("").await;
        other.keys.keys().insert(&new.key, &new.hash).unwrap();
        other.services.holds(&by_key).unwrap();
    }

    #[actix::test]
    async fn streams_of_one_principal_are_bounded_and_another_has_its_own() {
        let bench = Bench::new("limits: { max_streams: 1 }").await;
        let (ann, bob) = (identity("ann", Role::Agent), identity("bob", Role::Agent));
        let held = bench.services.long_lived(&ann.principal).unwrap();
        assert_eq!(bench.services.long_lived(&ann.principal).err().unwrap().kind, ErrorKind::Overloaded);
        bench.services.long_lived(&bob.principal).unwrap();
        drop(held);
        bench.services.long_lived(&ann.principal).unwrap();
    }

    #[actix::test]
    async fn what_a_stateless_client_says_of_itself_is_shown_where_there_is_memory_for_it() {
        let bench = Bench::new("").await;
        let session = bench.session("ann", Era::Modern);
        let facts = Arc::new(facts(Revision::MODERN, "{}"));
        let all = bench.services.config.limits.principal_memory;
        let full = bench.services.state.memory.take("ann", all).unwrap();
        bench.services.show_facts(&session, &facts);
        assert!(session.facts().is_none());
        drop(full);
        bench.services.show_facts(&session, &facts);
        assert!(session.has_facts(&facts));
        assert_eq!(bench.services.state.memory.of("ann"), facts.size());
    }

    #[actix::test]
    async fn a_gateway_that_listens_everywhere_is_reached_at_loopback() {
        let bench = Bench::new("").await;
        bench.services.state.listening.set("0.0.0.0:81".parse().unwrap()).unwrap();
        assert_eq!(bench.services.reached_at(), "127.0.0.1:81".parse().unwrap());
    }
}

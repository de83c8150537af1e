//! Requests for tests, without a gateway: the services that one has, over a temporary directory, and exchanges whose
//! client is the test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "it is only built for tests")]

use std::sync::{Arc, atomic::AtomicI64};

use actix::Actor as _;
use bytes::Bytes;
use serde_json::Value;

use crate::{
    request::{
        context::Exchange,
        related::{Related, ResponseQueue},
    },
    services::{Services, State},
    session::{
        facts::ClientFacts,
        shared::{Channel, SessionShared},
    },
};
use countersign_auth::{Authenticator, stored::Stored};
use countersign_config::{Environment, Flags, load};
use countersign_domain::{
    policy::Policy,
    principal::{Credential, Identity, Principal, Role},
};
use countersign_protocol::{
    Era, Revision,
    envelope::{self, Incoming, Message, Request},
    params::Implementation,
};
use countersign_provider::testing::Fake;
use countersign_reload::{Opening, Reloads, Source, testing::Unmoved};
use countersign_review::{gateway_tools::pending_output_schema, testing as review};
use countersign_routing::{
    Directory, Published, RouteTable, Router, Target, actor::PublishProviders, subscribers::Clients, table::Aliases,
};
use countersign_telemetry::{Metrics, metrics::Transport};
use countersign_upstream::Upstreams;
use tokio_util::sync::CancellationToken;

/// The services of a gateway, as that configuration has them. Must be made inside an actix system.
pub struct Bench {
    pub services: Arc<Services>,
    /// Seconds added to the wall clock of changes.
    pub skew: Arc<AtomicI64>,
    pub keys: Arc<Stored>,
    dir: tempfile::TempDir,
}

/// Nobody is told of lists that change.
struct NoClients;

impl Clients for NoClients {
    fn tell_all(&self, _: &Bytes) {}
}

impl Bench {
    /// Of a configuration in YAML, without providers.
    pub async fn new(config: &str) -> Self {
        Self::with(config, Arc::new(NoClients)).await
    }

    /// The same with the sessions that are told of lists that change.
    pub async fn with(config: &str, clients: Arc<dyn Clients>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, config).unwrap();
        let flags = Flags { config: Some(file), data: Some(dir.path().into()), ..Flags::default() };
        let source = Source { flags, env: Environment::of(dir.path(), &[]) };
        let loaded = load(&source.flags, &source.env).unwrap_or_else(|error| panic!("{error}"));
        let config = Arc::new(loaded.config.clone());
        let routes = Arc::new(Published::from_pointee(RouteTable::empty()));
        let skew = Arc::new(AtomicI64::new(0));
        let changes = review::start(dir.path(), Arc::new(Directory(Arc::clone(&routes))), review::config(&skew)).await;
        let (policy, aliases) = (Policy::new(&config.policy), Aliases::new(&config.routes).unwrap());
        let router = Router::new(Arc::clone(&routes), policy, aliases, pending_output_schema(), clients).start();
        let keys = Arc::new(Stored::in_directory(dir.path()).unwrap());
        let services = Services {
            routes,
            router,
            feed: changes.feed().clone(),
            changes,
            authenticator: Arc::new(Authenticator::new(&config, Arc::clone(&keys) as _)),
            reloads: Arc::new(Reloads::new(
                source,
                Opening::first(loaded, [0; 16]),
                Box::new(Unmoved),
                Box::new(|_| ()),
            )),
            metrics: Metrics::install().unwrap(),
            upstreams: Arc::new(Upstreams::with(Box::new(|_| Vec::new()))),
            shutdown: CancellationToken::new(),
            server_meta: r#"{"io.modelcontextprotocol/serverInfo":{"name":"countersign"}}"#.to_owned(),
            state: State::new(&config),
            config,
        };
        Self { services: Arc::new(services), skew, keys, dir }
    }

    /// Publishes these providers, and no others.
    pub async fn offer(&self, providers: Vec<Target>) {
        self.services.router.send(PublishProviders(providers)).await.unwrap().unwrap();
    }

    /// Publishes this module alone.
    pub async fn offer_module(&self, module: Fake) -> Arc<Fake> {
        let module = Arc::new(module);
        self.offer(vec![Target::Module(Arc::clone(&module) as _)]).await;
        module
    }

    /// A session of that principal: of a connection with an outbox in the handshake era, for bookkeeping only in the
    /// other.
    #[must_use]
    pub fn session(&self, principal: &str, era: Era) -> Arc<SessionShared> {
        let identity = identity(principal, Role::Agent);
        let session = match era {
            Era::Legacy => self.services.outbox_session(Transport::WebSocket, identity, (0, 0)),
            Era::Modern => SessionShared::new(Transport::Http, identity, Channel::None, &self.services.state.ended),
        };
        Arc::new(session)
    }

    /// A request of the agent `ann`, whose client speaks that revision and declares those capabilities.
    #[must_use]
    pub fn exchange(&self, revision: Revision, capabilities: &str) -> Exchange {
        self.exchange_of("ann", revision, capabilities)
    }

    /// The same of another agent.
    #[must_use]
    pub fn exchange_of(&self, principal: &str, revision: Revision, capabilities: &str) -> Exchange {
        let session = self.session(principal, revision.era());
        let facts = Arc::new(facts(revision, capabilities));
        let related = match revision.era() {
            Era::Legacy => {
                let share = self.services.state.memory.take(principal, facts.size()).unwrap();
                session.set_facts(Arc::clone(&facts), share);
                session.mark_initialized();
                Related::Outbox(Arc::clone(&session))
            }
            Era::Modern => Related::Queue(Arc::new(ResponseQueue::new(100, 1 << 20))),
        };
        Exchange {
            services: Arc::clone(&self.services),
            identity: session.identity.clone(),
            transport: session.transport,
            session,
            facts,
            related,
            log_level: None,
            headers: None,
            table: self.services.routes.load_full(),
        }
    }

    /// The directory that everything is kept in.
    #[must_use]
    pub fn data(&self) -> &std::path::Path {
        self.dir.path()
    }
}

/// That principal, from this very machine.
#[must_use]
pub fn identity(principal: &str, role: Role) -> Identity {
    let principal = Principal { name: principal.to_owned(), role, key_id: None, owner: None };
    Identity { principal: Arc::new(principal), credential: Credential::Loopback }
}

/// What a client `test` says of itself.
#[must_use]
pub fn facts(revision: Revision, capabilities: &str) -> ClientFacts {
    ClientFacts {
        revision,
        client: Some(Implementation { name: "test".into(), version: "1".into(), title: None }),
        client_info: Some(r#"{"name":"test","version":"1"}"#.into()),
        capabilities: capabilities.into(),
    }
}

/// The messages that the client of an exchange was sent and has not taken yet.
#[must_use]
pub fn sent(exchange: &Exchange) -> Vec<Value> {
    let messages = match (&exchange.related, &exchange.session.channel) {
        (Related::Queue(queue), _) => queue.take(),
        (_, Channel::Outbox(outbox)) => outbox.drain(0, usize::MAX).map(|drained| drained.frames).unwrap_or_default(),
        _ => Vec::new(),
    };
    messages.iter().map(|message| serde_json::from_slice(message).unwrap()).collect()
}

/// A request as it comes in.
#[must_use]
pub fn request<'a>(text: &'a str) -> Request<'a> {
    let limits = envelope::Limits { max_depth: 64, max_batch: 10 };
    match envelope::parse(text.as_bytes(), &limits) {
        Ok(Incoming::Single(Message::Request(request))) => request,
        _ => panic!("no request: {text}"),
    }
}

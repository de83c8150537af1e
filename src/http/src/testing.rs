//! What the endpoints are served from, for tests: all of it real, in a folder of its own, with neither a port nor a
//! server behind it.

use std::{net::SocketAddr, sync::Arc};

use actix::Actor as _;
use actix_web::{
    App,
    http::{StatusCode, header::HeaderMap},
    test::{self, TestRequest},
    web,
};
use bytes::Bytes;
use jiff::Timestamp;

use crate::{services::HttpServices, transports};
use countersign_attach::Users;
use countersign_auth::{Authenticator, Credential, Identity, keys, stored::Stored};
use countersign_bridge::{Bridge, carried::Carrier};
use countersign_config::{Config, Flags, load};
use countersign_domain::{
    policy::{People, Policy},
    principal::Role,
};
use countersign_exchange::services::{Services, State};
use countersign_reload::{Reloads, Source, apply::Live};
use countersign_review::{Changes, PendingConfig, gateway_tools::pending_output_schema};
use countersign_routing::{Directory, Published, RouteTable, Router, table::Aliases};
use countersign_session::{Registry, SessionServices};
use countersign_store::{PinStore, SqliteOptions, SqliteStore, Store};
use countersign_telemetry::Metrics;
use countersign_upstream::Upstreams;
use countersign_webhooks::Webhooks;
use tokio_util::sync::CancellationToken;

/// See the module's page.
pub struct Served {
    pub services: Arc<HttpServices>,
    keys: Arc<Stored>,
    _dir: tempfile::TempDir,
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    /// The code of its error, if it is one.
    pub fn code(&self) -> Option<String> {
        let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        Some(body["error"]["data"]["code"].as_str()?.to_owned())
    }
}

impl Served {
    pub async fn open(adjust: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config { data: dir.path().to_owned(), ..Config::default() };
        adjust(&mut config);
        let config = Arc::new(config);
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(dir.path(), SqliteOptions::default()).unwrap());
        let keys = Arc::new(Stored::open(dir.path()).unwrap());
        let routes = Arc::new(Published::from_pointee(RouteTable::empty()));
        let registry = Arc::new(Registry::default());
        let pending = PendingConfig::from(&config.changes);
        let changes =
            Changes::start(Arc::clone(&store), Arc::new(Directory(Arc::clone(&routes))), pending).await.unwrap();
        let policy = Policy::new(&config.policy);
        let clients = Arc::clone(&registry) as _;
        let router =
            Router::new(Arc::clone(&routes), policy, Aliases::default(), pending_output_schema(), clients).start();
        let upstreams = Arc::new(Upstreams::new(dir.path(), 1 << 20));
        let live = Live {
            router: router.clone(),
            built_in: Vec::new(),
            upstreams: Arc::clone(&upstreams),
            pins: Arc::new(PinStore::open(Arc::clone(&store)).await.unwrap()),
            store,
            people: Arc::new(People::new(&config.policy.groups)),
            webhooks: Arc::new(Webhooks::none(changes.feed().clone())),
        };
        let flags = Flags { data: Some(dir.path().into()), ..Flags::default() };
        let source = Source { flags, ..Source::default() };
        let loaded = load(&source.flags, &source.env).unwrap();
        let shared = Services {
            routes,
            router,
            feed: changes.feed().clone(),
            changes,
            authenticator: Arc::new(Authenticator::new(&config, Arc::clone(&keys) as _)),
            reloads: Arc::new(Reloads::new(source, loaded, Box::new(live), Box::new(|_| ()))),
            metrics: Metrics::install().unwrap(),
            upstreams,
            shutdown: CancellationToken::new(),
            server_meta: "{}".into(),
            state: State::new(&config),
            config: Arc::clone(&config),
        };
        let bridge = Bridge::new(Carrier::open(dir.path()).unwrap());
        let sessions = SessionServices::new(&config, Arc::new(shared), bridge, registry);
        Self { services: Arc::new(HttpServices::new(sessions, Users::default())), keys, _dir: dir }
    }

    /// A new key, as it stands in `Authorization`.
    pub fn key(&self, name: &str) -> String {
        let new = keys::create(name, Role::Agent, Timestamp::now()).unwrap();
        self.keys.keys().insert(&new.key, &new.hash).unwrap();
        format!("Bearer {}", new.secret)
    }

    /// Who has that key.
    pub fn identity(&self, key: &str) -> Identity {
        self.services.authenticator.identify(Some(key.as_bytes()), None).unwrap()
    }

    /// From now on the key is none.
    pub fn revoke(&self, key: &str) {
        let Identity { principal, credential: Credential::Key(hash) } = self.identity(key) else { panic!("no key") };
        self.keys.keys().revoke(principal.key_id.as_deref().unwrap(), Timestamp::now()).unwrap();
        self.services.authenticator.forget(&hash);
    }

    /// Sends a request from this machine to the MCP and plain endpoints.
    pub async fn ask(&self, request: TestRequest) -> Reply {
        let app = App::new().app_data(web::Data::from(Arc::clone(&self.services))).configure(transports::http::routes);
        let app = test::init_service(app).await;
        let request = request.peer_addr(SocketAddr::from(([127, 0, 0, 1], 1))).to_request();
        let response = test::call_service(&app, request).await;
        let (status, headers) = (response.status(), response.headers().clone());
        Reply { status, headers, body: test::read_body(response).await }
    }
}

//! Tests the endpoints over real sockets, with real changes and a fake provider.

mod absence;
mod api;
mod bundles;
mod decisions;
mod feed;
mod first_steps;
mod plans;
mod policy_edits;
mod previews;
mod routes;
mod rules;
mod security;
mod server_accounts;
mod server_edits;
mod servers;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_web::{App, HttpServer, dev::ServerHandle, web};
use async_trait::async_trait;
use futures_util::future::FutureExt as _;
use jiff::Timestamp;
use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

use super::*;
use countersign_auth::{
    Authenticator, DashboardSignIns, OriginRules, ProviderSignIns,
    attempts::FailedAttempts,
    codes,
    keys::{self, KeyStore},
    stored_credentials::StoredCredentials,
    tokens::oidc::OidcClient,
};
use countersign_config::{Config, Flags, load};
use countersign_domain::{
    changes::{Change, ChangeState, Proposer, Terms, testing::proposer},
    policy::{Policy, PolicyConfig, PolicyDefault, Reviewers},
    principal::Role,
};
use countersign_exchange::{memory::MemoryBudget, slots::StreamSlots};
use countersign_http::{front::Front, guard::RequestAuthenticator};
use countersign_provider::{
    ToolDef,
    testing::{FakeDirectory, FakeProvider, upstream_tool},
};
use countersign_reload::{ConfigSource, InitialConfig, ReloadCause, testing::UnchangingGateway};
use countersign_review::{
    PlanProposal, Proposal, ReviewConfig,
    testing::{plan_proposal, proposal},
};
use countersign_routing::{
    PublishedTable, RouteTable,
    table::{Aliases, TableInputs},
};
use countersign_rulings::standing_rules::{StandingRuleCache, StandingRuleService, StandingRuleServiceDeps};
use countersign_runtime::sealing::{KEY_LEN, Sealer};
use countersign_session::registry::SessionInfo;
use countersign_store::{PinStore, Store, StoreLocation};

/// Returns a function that builds and publishes the routes of the only provider, as the router would.
fn route_builder(
    routes: Arc<PublishedTable>,
    provider: Arc<FakeProvider>,
    policy: Arc<Mutex<PolicyConfig>>,
    pins: Arc<PinStore>,
    rule_cache: Arc<StandingRuleCache>,
    people: Arc<Reviewers>,
) -> Arc<dyn Fn() + Send + Sync> {
    Arc::new(move || {
        let config = policy.lock().unwrap().clone();
        let rules = Policy::new(&config)
            .with_pins(Arc::clone(&pins) as _)
            .with_standing_rules(Arc::clone(&rule_cache) as _, Arc::clone(&people) as _);
        people.set_groups(&config.groups);
        let providers = [countersign_routing::RouteTarget::Module(Arc::clone(&provider) as _)];
        let table = RouteTable::build(&TableInputs {
            providers: &providers,
            policy: &rules,
            aliases: &Aliases::default(),
            pending_schema: &Arc::new(json!({})),
            previous: Some(&routes.load()),
            strict: true,
        });
        routes.store(Arc::new(table.unwrap()));
    })
}

struct FakeSources;

impl SessionSource for FakeSources {
    fn list_sessions(&self) -> Vec<SessionInfo> {
        let session = |id: &str, seconds: i64| SessionInfo {
            id: id.into(),
            transport: "http".into(),
            revision: Some("2025-11-25".into()),
            client_name: Some("<script>".into()),
            client_version: None,
            principal: "local-agent".into(),
            created_at: Timestamp::from_second(seconds).unwrap(),
            last_active_at: Timestamp::from_second(seconds).unwrap(),
            connected: true,
            in_flight: 0,
        };
        vec![session("older-secret-session-id", 1), session("newer-secret-session-id", 2)]
    }
}

#[async_trait]
impl ServerSource for FakeSources {
    async fn list_servers(&self) -> Vec<ServerInfo> {
        vec![ServerInfo {
            name: "pretend".into(),
            kind: "module",
            status: "up",
            tools: 1,
            resources: 0,
            prompts: 0,
            details: vec!["one: 2 things".into()],
            warnings: vec!["<b>odd</b>".into()],
            upstream: None,
        }]
    }
}

/// The endpoints of this crate on a port of their own.
pub(super) struct Endpoints {
    pub address: SocketAddr,
    pub changes: Changes,
    pub stored: Arc<StoredCredentials>,
    pub provider: Arc<FakeProvider>,
    /// The policy that decides on calls.
    pub policy: Arc<Mutex<PolicyConfig>>,
    pub data: RestData,
    rebuild_routes: Arc<dyn Fn() + Send + Sync>,
    server: ServerHandle,
    dir: tempfile::TempDir,
}

/// A response of the server.
#[derive(Debug)]
pub(super) struct Reply {
    pub status: u16,
    pub head: String,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
    /// Checks that the response is a problem document, and returns its code.
    #[track_caller]
    pub fn problem(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let json = self.json();
        assert_eq!(json["status"], status);
        assert!(json["title"].is_string() && json["detail"].is_string() && json["type"] == "about:blank", "{json}");
        json["code"].as_str().unwrap().to_owned()
    }
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (n, value) = line.split_once(':')?;
            n.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

impl Endpoints {
    pub async fn open() -> Self {
        Self::open_with(|_| {}).await
    }

    pub async fn open_with(adjust: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config { data: dir.path().to_owned(), ..Config::default() };
        adjust(&mut config);
        let config = Arc::new(config);
        let store: Arc<dyn Store> = StoreLocation::directory(dir.path()).open().unwrap();
        let provider = Arc::new(FakeProvider { is_module: false, ..FakeProvider::new("pretend") });
        let policy = Arc::new(Mutex::new(PolicyConfig::from(PolicyDefault::ReviewWrites)));
        let pins = Arc::new(PinStore::open(Arc::clone(&store)).await.unwrap());
        let routes = Arc::new(PublishedTable::from_pointee(RouteTable::default()));
        let rule_cache = StandingRuleCache::open(&store).await.unwrap();
        let stored = Arc::new(StoredCredentials::open(&StoreLocation::directory(dir.path())).unwrap());
        let keys = Arc::clone(stored.keyring());
        let people = Arc::new(Reviewers::new(&config.policy.groups).with_keys(keys));
        let (table, routed, rules) = (Arc::clone(&routes), Arc::clone(&provider), Arc::clone(&policy));
        let rebuild_routes =
            route_builder(table, routed, rules, Arc::clone(&pins), Arc::clone(&rule_cache), Arc::clone(&people));
        rebuild_routes();
        let directory = Arc::new(FakeDirectory(Arc::clone(&provider)));
        let review_config = ReviewConfig {
            reviewers: Arc::clone(&people),
            bundle_window: config.bundle_window,
            ..ReviewConfig::from(&config.changes)
        };
        let changes = Changes::start(Arc::clone(&store), directory, review_config).await.unwrap();
        let authenticator = Arc::new(Authenticator::new(&config, Arc::clone(&stored) as Arc<dyn KeyStore>));
        let origins = Arc::new(OriginRules::new(&config));
        let sign_ins = Arc::new(DashboardSignIns::new(Arc::clone(&authenticator), Arc::clone(&stored) as _, &origins));
        let authentication = Arc::new(RequestAuthenticator { authenticator, sign_ins, origins });
        let memory = MemoryBudget::new(config.limits.principal_memory, config.limits.total_memory);
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, "").unwrap();
        let flags = Flags { config: Some(file), data: Some(dir.path().into()), ..Flags::default() };
        let source = ConfigSource { flags, ..ConfigSource::default() };
        let loaded = load(&source.flags, &source.env).unwrap();
        let reloader = Arc::new(Reloader::new(
            source,
            InitialConfig::for_empty_store(loaded, [0; 16]),
            Box::new(UnchangingGateway),
            Box::new(|_| ()),
        ));
        let rebuild = || {
            let rebuild_routes = Arc::clone(&rebuild_routes);
            Box::new(move || {
                rebuild_routes();
                async {}.boxed()
            }) as countersign_rulings::tool_acceptance::RouteRebuilder
        };
        let rule_counts = RuleCounts::new(
            StoreLocation::directory(dir.path()).rule_counts().unwrap(),
            store.nodes(),
            Arc::clone(&routes),
        );
        let standing_rules = StandingRuleService::new(StandingRuleServiceDeps {
            store,
            cache: rule_cache,
            reviewers: Arc::clone(&people) as _,
            routes: Arc::clone(&routes),
            rebuild: rebuild(),
            feed: changes.feed().clone(),
        });
        let sealer = Sealer::new(&[7; KEY_LEN]).unwrap();
        let data = RestData {
            access: web::Data::new(AccessData {
                authentication: Arc::clone(&authentication),
                http: config.transports.http.clone(),
            }),
            sign_in: web::Data::new(SignInData {
                authentication: Arc::clone(&authentication),
                credentials: Arc::clone(&stored),
                provider_sign_ins: Arc::new(ProviderSignIns::new(
                    OidcClient::new(&config, sealer),
                    Arc::clone(&stored),
                )),
                attempts: FailedAttempts::default(),
                reviewers: people,
            }),
            server_accounts: web::Data::from(Arc::<server_accounts::FakeAccounts>::default() as Arc<dyn ServerAccounts>),
            feed: web::Data::new(FeedAccess {
                feed: changes.feed().clone(),
                sign_ins: Arc::clone(&authentication.sign_ins),
                shutdown: CancellationToken::new(),
                streams: StreamSlots::new(config.limits.max_streams),
                memory: Arc::clone(&memory),
                web_sockets: Arc::new(Semaphore::new(config.transports.websocket.max_connections)),
                reserved_web_sockets: Arc::new(Semaphore::new(0)),
                outbox_messages: config.limits.outbox_messages,
                outbox_bytes: config.limits.outbox_bytes,
                ping_interval: config.transports.websocket.ping_interval,
                sse_keep_alive: config.transports.http.sse_keep_alive,
            }),
            agent_command: web::Data::new(AgentCommand {
                program: "/usr/bin/countersign".into(),
                arguments: vec!["stdio".into()],
                needs_key: false,
            }),
            changes: web::Data::new(changes.clone()),
            sessions: web::Data::from(Arc::new(FakeSources) as Arc<dyn SessionSource>),
            servers: web::Data::from(Arc::new(FakeSources) as Arc<dyn ServerSource>),
            reloader: web::Data::from(reloader),
            acceptances: web::Data::new(ToolAcceptances::new(routes, pins, rebuild(), changes.feed().clone())),
            standing_rules: web::Data::new(standing_rules),
            rule_counts: web::Data::new(rule_counts),
            trials: web::Data::new(ServerTrials::new(1 << 20)),
            webhooks: web::Data::new(Webhooks::new(changes.feed().clone())),
        };
        let served = data.clone();
        let server = HttpServer::new(move || {
            App::new()
                .configure(|config| crate::routes(&served, config))
                .default_service(web::to(not_found))
                .wrap(Front::new(Arc::clone(&authentication), Arc::clone(&memory)))
        })
        .workers(1)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .unwrap();
        let address = server.addrs()[0];
        let server = server.run();
        let handle = server.handle();
        actix_web::rt::spawn(server);
        Self { address, changes, stored, provider, policy, data, rebuild_routes, server: handle, dir }
    }

    pub async fn close(self) {
        self.data.feed.shutdown.cancel();
        self.server.stop(false).await;
        self.changes.shutdown(Duration::from_secs(5)).await;
    }

    pub fn key(&self, name: &str, role: Role) -> String {
        let new = keys::create(name, role, Timestamp::now()).unwrap();
        self.stored.writer().insert(&new.key, &new.hash).unwrap();
        new.secret
    }

    pub fn code(&self) -> String {
        codes::create(self.stored.writer(), Timestamp::now()).unwrap()
    }

    /// Writes the configuration file, and reloads it.
    pub async fn configure(&self, yaml: &str) {
        std::fs::write(self.dir.path().join("c.yaml"), yaml).unwrap();
        self.data.reloader.reload(ReloadCause::File).await;
    }

    pub async fn propose_by(&self, principal: &str) -> Arc<Change> {
        self.propose_with(principal, |_| {}).await
    }

    pub async fn propose(&self, principal: &str, hash: &str, terms: Terms) -> Arc<Change> {
        self.propose_with(principal, |proposal| (proposal.tool_hash, proposal.terms) = (hash.into(), terms)).await
    }

    pub async fn propose_with(&self, principal: &str, adjust: impl FnOnce(&mut Proposal)) -> Arc<Change> {
        let proposer =
            Proposer { client_name: Some("test".into()), revision: Some("2025-11-25".into()), ..proposer(principal) };
        let raw = |text: &str| RawValue::from_string(text.into()).unwrap();
        // These numbers survive only as the text that was sent.
        let arguments = raw(r#"{"n":1.10,"big":123456789012345678901234567890}"#);
        let mut preview = self.provider.current_preview(&arguments);
        (preview.target.id, preview.target.label) = (Some("Thing 1".into()), "Thing 1".into());
        let mut proposal = proposal(proposer, (self.provider.name, "write"), arguments, preview);
        adjust(&mut proposal);
        self.changes.propose(proposal).await.unwrap()
    }

    /// Sends exactly these bytes, and reads until the server closes the connection.
    pub async fn raw(&self, request: &[u8]) -> Reply {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        // The server may answer and close the connection before it has read everything.
        let _ = socket.write_all(request).await;
        let mut bytes = Vec::new();
        let _ = socket.read_to_end(&mut bytes).await;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, head: head.to_owned(), text: body.to_owned() }
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Reply {
        let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        request.push_str(body.unwrap_or_default());
        self.raw(request.as_bytes()).await
    }

    pub async fn get(&self, path: &str, key: &str) -> Reply {
        self.send("GET", path, &[("Authorization", &format!("Bearer {key}"))], None).await
    }

    pub async fn post(&self, path: &str, key: &str, body: &Value) -> Reply {
        let authorization = format!("Bearer {key}");
        let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
        self.send("POST", path, &headers, Some(&body.to_string())).await
    }

    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Signs in as a browser does, and returns the cookie and the secret of the page.
    pub async fn sign_in(&self, body: &Value) -> (String, String) {
        let headers = [("Origin", self.origin()), ("Content-Type", "application/json".into())];
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let reply = self.send("POST", "/api/sign-in", &headers, Some(&body.to_string())).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let cookie = reply.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        (cookie, reply.json()["secret"].as_str().unwrap().to_owned())
    }

    /// Waits until a change has the state.
    pub async fn wait_for_state(&self, id: &str, state: ChangeState) -> Arc<Change> {
        let mut version = 0;
        loop {
            let change = self.changes.wait(id, version, Duration::from_secs(60)).await.unwrap().unwrap();
            if change.state == state {
                return change;
            }
            assert!(change.version > version, "the change stays {:?}", change.state);
            version = change.version;
        }
    }
}

pub(super) fn decision(verdict: &str, change: &Change) -> Value {
    json!({ "decision": verdict, "version": change.version, "digest": change.digest, "comment": "because" })
}

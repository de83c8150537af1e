//! Tests of servers whose persons use accounts of their own.

use std::collections::HashMap;

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;

use super::*;
use crate::{
    credentials::{AccountHolder, AuthorizationError, Credentials},
    link::{Link, LinkError},
    registry::Upstreams,
    server::{Phase, accounts::AccountCredentials},
    testing::accounts::{FakeAccounts, person},
};
use countersign_config::{AccountKind, OAuthGrant, UpstreamOAuth};
use countersign_protocol::ErrorKind;
use countersign_provider::{CallContext, Provider};
use countersign_telemetry::metrics::CircuitState;

/// Opens links with the token of an account.
struct AccountConnector {
    server: Arc<FakeServer>,
    credentials: Arc<dyn Credentials>,
}

impl Connector for AccountConnector {
    fn connect<'a>(&'a self, unsolicited: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
        Box::pin(async move {
            let uri = "http://s.example/".parse().unwrap();
            self.credentials.authorize("POST", &uri).await.map_err(LinkError::Unauthorized)?;
            self.server.connect(unsolicited).await
        })
    }

    fn kind(&self) -> LinkKind {
        self.server.kind()
    }

    fn describe(&self) -> String {
        self.server.describe()
    }
}

/// A server, as each account sees it.
struct Bench {
    upstreams: Upstreams,
    accounts: Arc<FakeAccounts>,
    servers: Arc<Mutex<HashMap<AccountHolder, Vec<Arc<FakeServer>>>>>,
}

/// The tools of this person's account cannot be read at first.
const PERSON_WITHOUT_TOOLS: &str = "zoe";

fn consent_needed() -> AuthorizationError {
    AuthorizationError::ConsentNeeded("requires an account".into())
}

impl Bench {
    /// Starts the required server `s`, to which these persons have connected.
    async fn start(account: AccountKind, connected: &[&str]) -> Self {
        Self::start_with(UpstreamOAuth { account, ..Default::default() }, connected).await
    }

    async fn start_with(oauth: UpstreamOAuth, connected: &[&str]) -> Self {
        let (accounts, servers) = (Arc::new(FakeAccounts::default()), Arc::<Mutex<HashMap<_, Vec<_>>>>::default());
        connected.iter().for_each(|name| accounts.connect(&person(name)));
        let known = Arc::clone(&servers);
        let connectors = Arc::new(move |_: &Arc<UpstreamConfig>, account: Option<&AccountCredentials>| {
            let AccountCredentials { holder, credentials } = account.unwrap().clone();
            let server = modern();
            let own_tool = format!("of_{}", holder.as_str());
            server.lists.lock().insert("tools/list", fake::tools(&["echo", &own_tool]));
            if holder == person(PERSON_WITHOUT_TOOLS) {
                server.lists.lock().insert("tools/list", json!({ "garbage": true }));
            }
            if holder == AccountHolder::Gateway {
                *server.refusal.lock() = Some(consent_needed());
            }
            known.lock().entry(holder).or_default().push(Arc::clone(&server));
            vec![Arc::new(AccountConnector { server, credentials }) as Arc<dyn Connector>]
        });
        let upstreams = Upstreams::with_connectors(connectors, Some(Arc::clone(&accounts) as _));
        upstreams.apply(&[UpstreamConfig { oauth: Some(oauth), required: true, ..config("s") }]);
        upstreams.wait_until_settled(Duration::from_secs(60)).await;
        Self { upstreams, accounts, servers }
    }

    fn configured(&self) -> Arc<Upstream> {
        self.upstreams.get("s").unwrap()
    }

    async fn server_of(&self, name: &str) -> Result<Arc<Upstream>, McpError> {
        self.configured().for_principal(&agent(name).principal).await
    }

    /// Returns what the person's account reaches, the latest connector last.
    fn servers(&self, holder: &AccountHolder) -> Vec<Arc<FakeServer>> {
        self.servers.lock().get(holder).cloned().unwrap_or_default()
    }

    fn server(&self, name: &str) -> Arc<FakeServer> {
        self.servers(&person(name)).pop().unwrap()
    }

    fn connect(&self, holder: &AccountHolder) {
        self.accounts.connect(holder);
        self.upstreams.reconnect_account("s", holder);
    }

    fn disconnect(&self, name: &str) {
        self.accounts.disconnect(&person(name));
        self.upstreams.reconnect_account("s", &person(name));
    }

    fn tools(&self) -> Vec<String> {
        self.configured().tools().into_iter().map(|def| def.name).collect()
    }

    async fn end(self) {
        self.upstreams.stop().await;
    }
}

#[track_caller]
fn assert_needs_connection<T>(result: Result<T, McpError>) {
    let error = result.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Authorization, "{error}");
    assert_eq!(error.data["connectUrl"], "https://gateway.example/#/servers/s/connect");
    assert_eq!((&error.data["upstream"], &error.data["outcome"]), (&json!("s"), &json!("not_applied")));
}

#[actix::test]
async fn refusal_without_a_token_asks_for_a_connection() {
    let bench = Bench::start(AccountKind::Person, &[]).await;
    let configured = bench.configured();
    wait_until(|| configured.needs_consent()).await;
    assert_eq!(bench.tools(), ["s__connect"]);
    assert_eq!(configured.status().status, "needs_connection");
    assert!(bench.upstreams.missing_required(|_| true).is_empty(), "an unready gateway could not be used to connect");
    assert_needs_connection(bench.server_of("ann").await);
    assert_needs_connection(configured.check_available(&agent("ann").principal).await);
    // Nothing is attempted without an account.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(bench.servers(&AccountHolder::Gateway)[0].request_count("refused"), 1);
    assert!(bench.servers(&person("ann")).is_empty());

    bench.connect(&person("ann"));
    wait_until(|| bench.tools() == ["s__echo", "s__of_ann"]).await;
    assert!(!configured.needs_consent() && matches!(configured.phase(), Phase::Up));
    assert!(call(&bench.server_of("ann").await.unwrap(), &agent("ann")).await.is_ok());
    assert_needs_connection(bench.server_of("bob").await);
    bench.end().await;
}

#[actix::test]
async fn enterprise_grant_waits_for_a_person() {
    let oauth = UpstreamOAuth { grant: OAuthGrant::Enterprise, ..Default::default() };
    let bench = Bench::start_with(oauth, &[]).await;
    wait_until(|| bench.configured().needs_consent()).await;
    assert_eq!(bench.servers(&AccountHolder::Gateway)[0].request_count("refused"), 0, "the gateway has no account");
    // A person who signs in has an account without connecting it.
    *bench.accounts.account(&person("ann")).token.lock() = Some("token".to_owned());
    assert!(call(&bench.server_of("ann").await.unwrap(), &agent("ann")).await.is_ok());
    wait_until(|| bench.tools() == ["s__echo", "s__of_ann"]).await;
    bench.end().await;
}

#[actix::test]
async fn persons_share_no_link_and_no_list() {
    let bench = Bench::start(AccountKind::Person, &["ann", "bob"]).await;
    wait_until(|| bench.tools() == ["s__echo", "s__of_ann"]).await;
    assert!(bench.servers(&AccountHolder::Gateway)[0].log.lock().is_empty(), "stored accounts need no attempt");
    let (ann, bob) = (bench.server_of("ann").await.unwrap(), bench.server_of("bob").await.unwrap());
    assert!(!Arc::ptr_eq(&ann, &bob) && Arc::ptr_eq(&ann, &bench.server_of("ann").await.unwrap()));
    for (upstream, name) in [(&ann, "ann"), (&bob, "bob"), (&bob, "bob")] {
        assert!(call(upstream, &agent(name)).await.is_ok());
    }
    let calls = |name: &str| bench.server(name).request_count("tools/call");
    assert_eq!((calls("ann"), calls("bob")), (1, 2));
    // The Executor and previews use the account of the proposer too.
    let context = CallContext::new(Arc::clone(&agent("ann").principal));
    Provider::call(&*bench.configured(), "s__echo", serde_json::from_str("{}").unwrap(), &context).await.unwrap();
    assert!(bench.configured().check_available(&context.principal).await.is_ok());
    assert_eq!((calls("ann"), calls("bob")), (2, 2));
    assert_eq!((bench.server("ann").link_count(), bench.server("bob").link_count()), (1, 1), "one link each");
    let offers = |name: &str, tool: &str| {
        let lists = bench.configured().account_lists(&agent(name).principal);
        lists.is_none_or(|lists| lists.tool_names.contains(tool))
    };
    assert!(offers("ann", "s__of_ann") && !offers("bob", "s__of_ann") && offers("bob", "s__echo"));
    assert!(offers("eve", "s__of_ann"), "her lists are unknown");
    bench.end().await;
}

#[actix::test]
async fn change_waits_until_tools_of_own_account_are_read() {
    let bench = Bench::start(AccountKind::Person, &["ann", PERSON_WITHOUT_TOOLS]).await;
    wait_until(|| bench.tools() == ["s__echo", "s__of_ann"]).await;
    let (configured, caller) = (bench.configured(), agent(PERSON_WITHOUT_TOOLS));
    let unavailable = configured.check_available(&caller.principal).await.unwrap_err();
    assert_eq!(unavailable.kind, ErrorKind::UpstreamUnavailable);
    assert!(matches!(bench.server_of(PERSON_WITHOUT_TOOLS).await.unwrap().phase(), Phase::Up));
    bench.server(PERSON_WITHOUT_TOOLS).lists.lock().insert("tools/list", fake::tools(&["echo"]));
    assert_eq!(configured.check_available(&caller.principal).await, Ok(()));
    bench.end().await;
}

#[actix::test]
async fn lists_follow_the_first_account_then_the_next() {
    let bench = Bench::start(AccountKind::Person, &["ann", "bob"]).await;
    wait_until(|| bench.tools() == ["s__echo", "s__of_ann"]).await;
    let mut events = bench.configured().events();
    bench.server("ann").lists.lock().insert("tools/list", fake::tools(&["new"]));
    bench.server("ann").open_links()[0].send_notification("notifications/tools/list_changed", json!({}));
    wait_until(|| bench.tools() == ["s__new"]).await;
    assert!(events.try_recv().is_ok());
    bench.disconnect("ann");
    wait_until(|| bench.tools() == ["s__echo", "s__of_bob"]).await;
    bench.disconnect("bob");
    wait_until(|| matches!(bench.configured().phase(), Phase::ConsentNeeded(_))).await;
    assert_eq!(bench.tools(), ["s__echo", "s__of_bob"], "known lists stay");
    bench.end().await;
}

#[actix::test]
async fn disconnect_closes_the_links_of_one_person() {
    let bench = Bench::start(AccountKind::Person, &["ann", "bob"]).await;
    wait_until(|| bench.tools() == ["s__echo", "s__of_ann"]).await;
    let (ann, bob) = (bench.server_of("ann").await.unwrap(), bench.server_of("bob").await.unwrap());
    let server = bench.server("ann");
    bench.disconnect("ann");
    wait_until(|| server.open_links().is_empty()).await;
    assert!(call(&ann, &agent("ann")).await.is_err());
    assert_needs_connection(bench.server_of("ann").await);
    assert!(Arc::ptr_eq(&bob, &bench.server_of("bob").await.unwrap()));
    assert!(call(&bob, &agent("bob")).await.is_ok());
    bench.connect(&person("ann"));
    let again = bench.server_of("ann").await.unwrap();
    assert!(!Arc::ptr_eq(&ann, &again) && call(&again, &agent("ann")).await.is_ok());
    bench.end().await;
}

#[actix::test]
async fn upstream_of_a_person_is_closed_when_idle() {
    let bench = Bench::start(AccountKind::Person, &["ann", "bob", "eve"]).await;
    wait_until(|| bench.tools() == ["s__echo", "s__of_ann"]).await;
    let bob = bench.server_of("bob").await.unwrap();
    let eve = bench.server_of("eve").await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(599)).await;
    assert!(Arc::ptr_eq(&eve, &bench.server_of("eve").await.unwrap()));
    tokio::time::advance(Duration::from_secs(2)).await;
    bench.configured().personal_upstreams().unwrap().close_idle();
    tokio::time::resume();
    assert!(bob.stop.is_cancelled() && !eve.stop.is_cancelled());
    assert!(!bench.server_of("ann").await.unwrap().stop.is_cancelled(), "the lists are read with this account");
    assert!(!Arc::ptr_eq(&bob, &bench.server_of("bob").await.unwrap()));
    bench.end().await;
}

#[actix::test]
async fn refused_call_makes_accounts_necessary() {
    let bench = Bench::start(AccountKind::Person, &[]).await;
    // This server answers everybody, but for calls.
    let server = modern();
    server.answer_with(|_| Box::pin(std::future::ready(Err(LinkError::Unauthorized(consent_needed())))));
    let connectors = Arc::new(move |_: &Arc<UpstreamConfig>, _: Option<&AccountCredentials>| {
        vec![Arc::clone(&server) as Arc<dyn Connector>]
    });
    let upstreams = Upstreams::with_connectors(connectors, Some(Arc::clone(&bench.accounts) as _));
    upstreams.apply(&[UpstreamConfig { oauth: Some(UpstreamOAuth::default()), ..config("s") }]);
    upstreams.wait_until_settled(Duration::from_secs(60)).await;
    let configured = upstreams.get("s").unwrap();
    let used = configured.for_principal(&agent("ann").principal).await.unwrap();
    assert!(Arc::ptr_eq(&configured, &used), "no account is needed yet");
    for _ in 0..20 {
        assert_needs_connection(call(&configured, &agent("ann")).await);
    }
    assert_eq!(configured.breaker_state(), CircuitState::Closed, "a refusal is not a failure of the server");
    assert_needs_connection(configured.for_principal(&agent("ann").principal).await);
    assert!(!configured.needs_consent(), "its lists are known");
    upstreams.stop().await;
    bench.end().await;
}

#[actix::test]
async fn account_of_the_gateway_serves_everybody() {
    let bench = Bench::start(AccountKind::Gateway, &[]).await;
    let configured = bench.configured();
    wait_until(|| configured.needs_consent()).await;
    assert_eq!(bench.tools(), ["s__connect"]);
    *bench.servers(&AccountHolder::Gateway)[0].refusal.lock() = None;
    bench.connect(&AccountHolder::Gateway);
    wait_until(|| bench.tools() == ["s__echo", "s__of_"]).await;
    for name in ["ann", "bob"] {
        assert!(Arc::ptr_eq(&configured, &bench.server_of(name).await.unwrap()));
        assert!(call(&configured, &agent(name)).await.is_ok());
    }
    bench.end().await;
}

#[actix::test]
async fn absent_authorization_server_is_an_outage() {
    let bench = Bench::start(AccountKind::Person, &["ann"]).await;
    wait_until(|| bench.tools() == ["s__echo", "s__of_ann"]).await;
    *bench.accounts.account(&person("bob")).unavailable.lock() = true;
    let error = bench.server_of("bob").await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::UpstreamUnavailable);
    assert!(!error.data.contains_key("connectUrl"), "{:?}", error.data);
    bench.end().await;
}

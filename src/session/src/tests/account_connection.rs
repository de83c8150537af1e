//! Calls of tools at a server that each person has to connect first.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::bench::{Bench, ask, ask_error, pause, respond};
use crate::gateway::server::RequestScope;
use countersign_config::{UpstreamConfig, UpstreamOAuth, UpstreamTarget};
use countersign_exchange::testing::take_sent_messages;
use countersign_protocol::{Era, Revision};
use countersign_routing::RouteTarget;
use countersign_telemetry::metrics::Transport;
use countersign_upstream::{
    Connector, Link, LinkError, LinkKind, Listener, Upstreams,
    credentials::{AccountHolder, AuthorizationError},
    server::accounts::AccountCredentials,
    testing::{
        accounts::{FakeAccounts, person},
        fake::{FakeServer, tools},
    },
};

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::MODERN;
/// Capabilities of a client that can open pages.
const PAGES: &str = r#"{"elicitation":{"url":{}}}"#;
const PAGE: &str = "https://gateway.example/#/servers/s/connect";

/// A server that refuses requests without an account.
struct Refusing;

impl Connector for Refusing {
    fn connect<'a>(&'a self, _: Arc<dyn Listener>) -> LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
        let failure = AuthorizationError::ConsentNeeded("requires your consent".to_owned());
        Box::pin(async { Err(LinkError::Unauthorized(failure)) })
    }

    fn kind(&self) -> LinkKind {
        LinkKind::Streams
    }

    fn describe(&self) -> String {
        "fake".to_owned()
    }
}

/// A gateway with the server `s`, at which each person needs an account.
struct AccountBench {
    bench: Bench,
    upstreams: Upstreams,
    accounts: Arc<FakeAccounts>,
    /// The server as each person reaches it.
    servers: Arc<Mutex<BTreeMap<AccountHolder, Arc<FakeServer>>>>,
}

impl AccountBench {
    /// Creates the gateway. The persons `ann` and `bob` have different tools at the server.
    async fn new(config: &str) -> Self {
        let (bench, accounts) = (Bench::new(config).await, Arc::<FakeAccounts>::default());
        let server = |names: &[&str]| {
            let server = FakeServer::new(Era::Modern, LinkKind::Streams);
            server.lists.lock().insert("tools/list", tools(names));
            server
        };
        let servers = BTreeMap::from([(person("ann"), server(&["echo", "purge"])), (person("bob"), server(&["echo"]))]);
        let servers = Arc::new(Mutex::new(servers));
        let reached = Arc::clone(&servers);
        let connectors = move |_: &Arc<UpstreamConfig>, account: Option<&AccountCredentials>| {
            let server = account.and_then(|account| reached.lock().get(&account.holder).cloned());
            vec![server.map_or_else(|| Arc::new(Refusing) as Arc<dyn Connector>, |server| server as _)]
        };
        let upstreams = Upstreams::with_connectors(Arc::new(connectors), Some(Arc::clone(&accounts) as _));
        let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: BTreeMap::default(), cwd: None };
        let config = UpstreamConfig { oauth: Some(UpstreamOAuth::default()), ..UpstreamConfig::new("s", target) };
        bench.offer(upstreams.apply(&[config]).into_iter().map(RouteTarget::Upstream).collect()).await;
        let this = Self { bench, upstreams, accounts, servers };
        this.wait_for_tool("s__connect").await;
        this
    }

    async fn connect(&self, name: &str) {
        self.accounts.connect(&person(name));
        self.upstreams.reconnect_account("s", &person(name));
        self.wait_for_tool("s__echo").await;
    }

    async fn wait_for_tool(&self, name: &str) {
        while self.bench.server.routing.routes.load().find_tool(name).is_none() {
            pause().await;
        }
    }

    fn client(&self, name: &str, revision: Revision, capabilities: &str) -> RequestScope {
        self.bench.client_of(name, revision, capabilities)
    }

    fn call_count(&self, name: &str) -> usize {
        self.servers.lock()[&person(name)].request_count("tools/call")
    }
}

fn echo() -> Value {
    json!({ "name": "s__echo", "arguments": {} })
}

fn tool_names(list: &Value) -> Vec<&str> {
    list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[actix::test]
async fn call_waits_for_the_lists_of_a_new_account() {
    let bench = AccountBench::new("policy: { default: allow }\nlimits: { first_connection: 5s }").await;
    // The gateway has been running for longer than an upstream may take to connect.
    tokio::time::sleep(Duration::from_secs(6)).await;
    // Another node connected the account, so that this one is not told.
    bench.accounts.connect(&person("ann"));
    let result = ask(&bench.client("ann", MODERN, "{}"), "tools/call", &echo()).await;
    assert!(result["content"].is_array(), "{result}");
}

#[actix::test]
async fn stateless_client_is_asked_to_open_page_once() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    bench.connect("ann").await;
    let client = bench.client("bob", MODERN, PAGES);
    let result = ask(&client, "tools/call", &echo()).await;
    assert_eq!(result["resultType"], "input_required");
    let request = &result["inputRequests"]["connect-account"];
    assert_eq!((&request["method"], &request["params"]["mode"]), (&json!("elicitation/create"), &json!("url")));
    assert_eq!(request["params"]["url"], PAGE);
    let mut retry = echo();
    retry["inputResponses"] = json!({ "connect-account": { "action": "decline" } });
    let result = ask(&client, "tools/call", &retry).await;
    assert_eq!(result["structuredContent"]["reason"], "connection_required", "{result}");
    bench.connect("bob").await;
    retry["inputResponses"]["connect-account"]["action"] = "accept".into();
    let result = ask(&client, "tools/call", &retry).await;
    assert_eq!((&result["resultType"], result.get("inputRequests")), (&json!("complete"), None));
    assert_eq!((bench.call_count("ann"), bench.call_count("bob")), (0, 1), "each person has a server of their own");
}

#[actix::test]
async fn call_does_not_wait_for_account_that_was_refused() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    bench.connect("ann").await;
    *bench.accounts.account(&person("bob")).connected_at.lock() = Some(Timestamp::now());
    let mut retry = echo();
    retry["inputResponses"] = json!({ "connect-account": { "action": "accept" } });
    let client = bench.client("bob", MODERN, PAGES);
    let retried = ask(&client, "tools/call", &retry);
    let result = tokio::time::timeout(Duration::from_secs(10), retried).await.unwrap();
    assert_eq!(result["structuredContent"]["reason"], "connection_required", "{result}");
}

#[actix::test]
async fn handshake_client_gets_elicitation_error() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    bench.connect("ann").await;
    let client = bench.client("bob", LEGACY, PAGES);
    let (number, code, data) = ask_error(&client, "tools/call", &echo()).await;
    assert_eq!((number, code.as_str(), &data["connectUrl"]), (-32042, "AUTHORIZATION", &json!(PAGE)));
    let elicitation = &data["elicitations"][0];
    assert_eq!((&elicitation["mode"], &elicitation["url"]), (&json!("url"), &json!(PAGE)));
    assert!(elicitation["message"].is_string());
    bench.connect("bob").await;
    let notification = loop {
        let mut messages = take_sent_messages(&client.exchange).into_iter();
        if let Some(found) = messages.find(|message| message["method"] == "notifications/elicitation/complete") {
            break found;
        }
        pause().await;
    };
    assert_eq!(notification["params"]["elicitationId"], elicitation["elicitationId"]);
    assert!(ask(&client, "tools/call", &echo()).await["content"].is_array());
}

#[actix::test]
async fn plain_http_client_gets_error_with_link() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    bench.connect("ann").await;
    let mut client = bench.client("bob", MODERN, "{}");
    client.exchange.transport = Transport::Rest;
    let (_, code, data) = ask_error(&client, "tools/call", &echo()).await;
    assert_eq!((code.as_str(), &data["connectUrl"]), ("AUTHORIZATION", &json!(PAGE)));
}

#[actix::test]
async fn other_client_gets_result_with_link() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    bench.connect("ann").await;
    for revision in [MODERN, LEGACY, Revision::V2025_06_18] {
        let result = ask(&bench.client("bob", revision, "{}"), "tools/call", &echo()).await;
        assert!(result["content"][0]["text"].as_str().unwrap().contains(PAGE), "{result}");
        let expected = json!({ "pending": true, "reason": "connection_required", "server": "s", "connectUrl": PAGE });
        assert_eq!((&result["structuredContent"], result.get("isError")), (&expected, None));
    }
    let task = json!({ "name": "s__echo", "arguments": {}, "task": {} });
    assert_eq!(ask_error(&bench.client("bob", LEGACY, "{}"), "tools/call", &task).await.1, "AUTHORIZATION");
}

#[actix::test]
async fn result_with_link_is_error_for_tool_with_output_schema() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    let mut list = tools(&["echo"]);
    list["tools"][0]["outputSchema"] = json!({ "type": "object", "required": ["x"] });
    bench.servers.lock()[&person("ann")].lists.lock().insert("tools/list", list);
    bench.connect("ann").await;
    let result = ask(&bench.client("bob", LEGACY, "{}"), "tools/call", &echo()).await;
    assert_eq!((result.get("structuredContent"), &result["isError"]), (None, &json!(true)));
    assert!(result["content"][0]["text"].as_str().unwrap().contains(PAGE), "{result}");
}

#[actix::test]
async fn reviewed_call_is_proposed_only_once_connected() {
    let bench = AccountBench::new("policy: { default: review_all }").await;
    bench.connect("ann").await;
    let client = bench.client("bob", LEGACY, "{}");
    let result = ask(&client, "tools/call", &echo()).await;
    assert_eq!(result["structuredContent"]["reason"], "connection_required", "{result}");
    assert!(bench.bench.changes().await.is_empty());
    bench.connect("bob").await;
    let result = ask(&client, "tools/call", &echo()).await;
    assert_eq!(result["structuredContent"]["status"], "pending", "{result}");
    assert_eq!(bench.bench.change().await.tool, "s__echo");
}

#[actix::test]
async fn unconnected_server_has_only_tool_connect() {
    let bench = AccountBench::new("").await;
    let client = bench.client("ann", MODERN, "{}");
    assert_eq!(tool_names(&ask(&client, "tools/list", &json!({})).await), ["s__connect"]);
    for name in ["s__connect", "s__echo"] {
        let result = ask(&client, "tools/call", &json!({ "name": name })).await;
        assert_eq!(result["structuredContent"]["connectUrl"], PAGE, "{name}: {result}");
    }
    bench.connect("ann").await;
    // The client may still have the old list.
    for client in [client, bench.client("ann", MODERN, "{}")] {
        let result = ask(&client, "tools/call", &json!({ "name": "s__connect" })).await;
        assert!(result["content"][0]["text"].as_str().unwrap().contains("is connected"), "{result}");
    }
    assert_eq!(bench.call_count("ann"), 0);
}

#[actix::test]
async fn list_omits_tools_that_persons_account_lacks() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    bench.connect("ann").await;
    bench.connect("bob").await;
    let list = async |name| ask(&bench.client(name, MODERN, "{}"), "tools/list", &json!({})).await;
    let before = list("bob").await;
    assert_eq!(tool_names(&before), ["s__echo", "s__purge"], "the lists of bob's account are not known yet");
    assert_eq!(before["cacheScope"], "private");
    ask(&bench.client("bob", MODERN, "{}"), "tools/call", &echo()).await;
    assert_eq!(tool_names(&list("bob").await), ["s__echo"]);
    assert_eq!(tool_names(&list("ann").await), ["s__echo", "s__purge"]);
}

#[actix::test]
async fn change_of_own_lists_is_announced_to_its_person_only() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    bench.connect("ann").await;
    bench.connect("bob").await;
    let [ann, bob] = ["ann", "bob"].map(|name| bench.client(name, LEGACY, "{}"));
    for client in [&ann, &bob] {
        bench.bench.sessions.registry.insert(Arc::clone(&client.exchange.session));
    }
    // The lists of bob's account are read when it is used.
    ask(&bob, "tools/call", &echo()).await;
    while !take_sent_messages(&bob.exchange).iter().any(|sent| sent["method"] == "notifications/tools/list_changed") {
        pause().await;
    }
    assert!(take_sent_messages(&ann.exchange).is_empty());
}

impl AccountBench {
    /// Gives `ann` two prompts and two templates at the server, `bob` one of each, and each of them a resource.
    fn set_lists(&self) {
        for (holder, names) in [("ann", &["greet", "purge"][..]), ("bob", &["greet"])] {
            let server = Arc::clone(&self.servers.lock()[&person(holder)]);
            *server.capabilities.lock() = json!({ "tools": {}, "prompts": {}, "resources": { "subscribe": true } });
            let prompts: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
            let template = |name: &&str| json!({ "name": name, "uriTemplate": format!("x://{name}/{{id}}") });
            let templates: Vec<_> = names.iter().map(template).collect();
            let resource = json!({ "name": holder, "uri": format!("x://{holder}") });
            let mut lists = server.lists.lock();
            lists.insert("prompts/list", json!({ "prompts": prompts }));
            lists.insert("resources/templates/list", json!({ "resourceTemplates": templates }));
            lists.insert("resources/list", json!({ "resources": [resource] }));
        }
    }
}

#[actix::test]
async fn lists_omit_entries_that_persons_account_lacks() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    bench.set_lists();
    bench.connect("ann").await;
    bench.connect("bob").await;
    ask(&bench.client("bob", MODERN, "{}"), "tools/call", &echo()).await;
    for (method, member) in [("prompts/list", "prompts"), ("resources/templates/list", "resourceTemplates")] {
        for (name, count) in [("ann", 2), ("bob", 1)] {
            let list = ask(&bench.client(name, MODERN, "{}"), method, &json!({})).await;
            assert_eq!(list[member].as_array().unwrap().len(), count, "{name}: {list}");
            assert_eq!(list["cacheScope"], "private");
        }
    }
}

#[actix::test]
async fn resources_are_those_of_the_persons_own_account() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    bench.set_lists();
    bench.connect("ann").await;
    bench.connect("bob").await;
    for (name, expected) in [("ann", &["ann"][..]), ("bob", &["bob"]), ("eve", &[])] {
        let list = ask(&bench.client(name, MODERN, "{}"), "resources/list", &json!({})).await;
        let of_server = list["resources"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap());
        let of_server: Vec<_> = of_server.filter(|name| ["ann", "bob"].contains(name)).collect();
        assert_eq!(of_server, expected, "{list}");
    }
}

#[actix::test]
async fn subscription_to_resource_of_person_is_refused() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    bench.set_lists();
    bench.connect("ann").await;
    let client = bench.client("ann", LEGACY, "{}");
    let uri = bench.bench.server.routing.routes.load().templates()[0].def.uri_template.replace("{id}", "1");
    let response = respond(&client, 1, "resources/subscribe", &json!({ "uri": uri })).await.unwrap();
    let message = response["error"]["message"].as_str().unwrap();
    assert!(message.contains("an account of their own"), "{response}");
    assert_eq!(response["error"]["data"]["code"], "INVALID_REQUEST");
}

#[actix::test]
async fn request_for_prompt_gets_error_with_link() {
    let bench = AccountBench::new("policy: { default: allow }").await;
    for server in bench.servers.lock().values() {
        *server.capabilities.lock() = json!({ "tools": {}, "prompts": {} });
        server.lists.lock().insert("prompts/list", json!({ "prompts": [{ "name": "greet" }] }));
    }
    bench.connect("ann").await;
    let get = json!({ "name": "s__greet" });
    for capabilities in ["{}", PAGES] {
        let (_, code, data) = ask_error(&bench.client("bob", MODERN, capabilities), "prompts/get", &get).await;
        assert_eq!((code.as_str(), &data["connectUrl"]), ("AUTHORIZATION", &json!(PAGE)));
    }
    ask(&bench.client("ann", MODERN, "{}"), "prompts/get", &get).await;
}

//! A gateway with one module, and clients that tests play.

use std::{ops::Deref, sync::Arc};

use serde_json::{Value, json};

use crate::{gateway::server::RequestScope, inbound, testing::Gateway};
use countersign_domain::{
    changes::{Change, ChangeState, ReviewVerdict},
    policy::{Policy, PolicyDefault},
    principal::Role,
};
use countersign_exchange::testing::{identity, request};
use countersign_protocol::Revision;
use countersign_provider::{
    ToolDef,
    testing::{FakeProvider, prompt, resource, tool},
};
use countersign_review::{ChangeFilter, testing::decision};
use countersign_routing::{actor::Reconfigure, table::Aliases};

/// A gateway with the module `f`, which has the tools `read`, `write` (reviewed unless the policy says otherwise) and
/// `wait`, two resources and a prompt.
pub struct Bench {
    gateway: Gateway,
    pub fake: Arc<FakeProvider>,
}

impl Deref for Bench {
    type Target = Gateway;

    fn deref(&self) -> &Gateway {
        &self.gateway
    }
}

impl Bench {
    /// Creates the gateway from a configuration in YAML.
    pub async fn new(config: &str) -> Self {
        let gateway = Gateway::new(config).await;
        let mut read = tool("read", &json!({ "n": { "type": "integer" } }));
        read.annotations.read_only_hint = true;
        let mut write = tool("write", &json!({ "target": { "type": "string" } }));
        write.input_schema["required"] = json!(["target"]);
        let wait = ToolDef { long_running: true, ..ToolDef { name: "wait".into(), ..read.clone() } };
        let fake = FakeProvider::new("f");
        fake.tools.lock().unwrap().extend([read, write, wait]);
        fake.resources.lock().unwrap().extend([resource("f://a", "a"), resource("f://b", "private")]);
        fake.prompts.lock().unwrap().push(prompt("greet", "whom"));
        let fake = gateway.offer_module(fake).await;
        Self { gateway, fake }
    }

    /// Returns a client of the agent `ann` with its own connection.
    pub fn client(&self, revision: Revision, capabilities: &str) -> RequestScope {
        self.client_of("ann", revision, capabilities)
    }

    pub fn client_of(&self, principal: &str, revision: Revision, capabilities: &str) -> RequestScope {
        let exchange = self.clients.exchange_of(principal, revision, capabilities);
        let server = Arc::clone(&self.server);
        RequestScope { exchange, table: server.routing.routes.load_full(), server }
    }

    /// Returns a client of `ann` with another role.
    pub fn client_as(&self, role: Role, revision: Revision) -> RequestScope {
        let mut client = self.client(revision, "{}");
        client.exchange.identity = identity("ann", role);
        client
    }

    /// Returns all changes, newest first.
    pub async fn changes(&self) -> Vec<Arc<Change>> {
        self.server.reviews.changes.list(ChangeFilter::default(), 100, None).await.unwrap().items
    }

    /// Waits until there is exactly one change, and returns it.
    pub async fn change(&self) -> Arc<Change> {
        loop {
            if let [change] = self.changes().await.as_slice() {
                return Arc::clone(change);
            }
            pause().await;
        }
    }

    pub async fn decide(&self, change: &Change, verdict: ReviewVerdict) {
        self.server.reviews.changes.decide(decision(change, "alice", verdict)).await.unwrap();
    }

    /// Applies a policy that allows every call.
    pub async fn allow_all_calls(&self) {
        let policy = Policy::new(&PolicyDefault::Allow.into());
        let reconfigure = Reconfigure { policy, aliases: Aliases::default() };
        self.server.routing.router.send(reconfigure).await.unwrap().unwrap();
    }

    /// Waits until the change is in the state, and returns it.
    pub async fn wait_for_state(&self, id: &str, state: ChangeState) -> Arc<Change> {
        loop {
            let change = self.server.reviews.changes.get(id).await.unwrap().unwrap();
            if change.state == state {
                return change;
            }
            pause().await;
        }
    }
}

pub async fn pause() {
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
}

/// Waits until the fake provider has received so many calls.
pub async fn wait_for_calls(bench: &Bench, count: usize) {
    while bench.fake.call_count() < count {
        pause().await;
    }
}

/// Returns the response to a request with this id, or `None` if its client cancelled it.
pub async fn respond(client: &RequestScope, id: u64, method: &str, params: &Value) -> Option<Value> {
    let text = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
    let answer = inbound::answer(client, &request(&text)).await?;
    Some(serde_json::from_slice(&answer.bytes).unwrap())
}

/// Returns the result of a request.
pub async fn ask(client: &RequestScope, method: &str, params: &Value) -> Value {
    let response = respond(client, 1, method, params).await.unwrap();
    response.get("result").unwrap_or_else(|| panic!("{response}")).clone()
}

/// Returns the JSON-RPC code, the gateway's code and the data of a request's error.
pub async fn ask_error(client: &RequestScope, method: &str, params: &Value) -> (i64, String, Value) {
    let response = respond(client, 1, method, params).await.unwrap();
    let error = response.get("error").unwrap_or_else(|| panic!("{response}"));
    let code = error["data"]["code"].as_str().unwrap_or_default().to_owned();
    (error["code"].as_i64().unwrap(), code, error["data"].clone())
}

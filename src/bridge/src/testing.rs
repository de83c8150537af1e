//! A fake client, a fake server and the bridge between them.

use std::sync::Arc;

use serde_json::{Value, json, value::RawValue};

use crate::{Bridge, Call, CallFlags, RequestedItem, call, request_state::StateSealer};
use countersign_config::{UpstreamConfig, UpstreamTarget};
use countersign_exchange::{
    context::Exchange,
    reply::Reply,
    testing::{TestClients, request, take_sent_messages},
};
use countersign_protocol::{Era, McpError, RequestId, envelope::Response};
use countersign_upstream::{
    LinkKind, Upstream,
    testing::{connected_upstream, fake::FakeServer},
};

/// The capabilities of a client that can show forms and open pages.
pub const ELICITATION_CAPABILITIES: &str = r#"{"elicitation":{"form":{},"url":{}}}"#;

/// A client and a server with the bridge between them.
pub struct Fixture {
    pub clients: TestClients,
    pub bridge: Arc<Bridge>,
    pub server: Arc<FakeServer>,
    pub upstream: Arc<Upstream>,
}

/// Connects a fake server `s` of an era with these capabilities.
async fn connect_server(
    era: Era,
    kind: LinkKind,
    capabilities: &Value,
    adjust: impl FnOnce(&mut UpstreamConfig),
) -> (Arc<FakeServer>, Arc<Upstream>) {
    let server = FakeServer::new(era, kind);
    *server.capabilities.lock() = capabilities.clone();
    let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
    let mut config = UpstreamConfig::new("s", target);
    adjust(&mut config);
    let upstream = connected_upstream(config, &server).await;
    (server, upstream)
}

impl Fixture {
    /// Creates a fixture whose server has only tools.
    pub async fn new(era: Era) -> Self {
        Self::with_config(era, &json!({ "tools": {} }), |_| {}).await
    }

    /// Creates a fixture whose server has these capabilities. `adjust` changes the configuration of the upstream.
    pub async fn with_config(era: Era, capabilities: &Value, adjust: impl FnOnce(&mut UpstreamConfig)) -> Self {
        Self::with_link_kind(era, LinkKind::Streams, capabilities, adjust).await
    }

    /// Creates a fixture like [`Self::with_config`], whose server has links of this kind.
    pub async fn with_link_kind(
        era: Era,
        kind: LinkKind,
        capabilities: &Value,
        adjust: impl FnOnce(&mut UpstreamConfig),
    ) -> Self {
        let clients = TestClients::default();
        let (server, upstream) = connect_server(era, kind, capabilities, adjust).await;
        let bridge = Arc::new(Bridge::new(StateSealer::new([7; 32]).unwrap(), Arc::clone(&clients.memory), None));
        Self { clients, bridge, server, upstream }
    }

    /// Calls the server's tool with these parameters of a client.
    pub async fn call(&self, exchange: &Exchange, params: &Value) -> Result<Reply, McpError> {
        self.call_tool(exchange, params, None).await
    }

    /// Calls the server's tool, which has this definition.
    pub async fn call_tool(
        &self,
        exchange: &Exchange,
        params: &Value,
        definition: Option<&RawValue>,
    ) -> Result<Reply, McpError> {
        let text = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
        let request = request(&text);
        let flags =
            CallFlags::for_tool(exchange, &request.outlined_params().object, Some((&self.upstream, definition)));
        let base = Call::new(exchange, &self.bridge, &self.upstream, RequestedItem::Tool("echo"), &request);
        call(Call { flags, definition, ..base }).await
    }

    /// Returns the result of a tool call that must succeed.
    pub async fn call_result(&self, exchange: &Exchange, params: &Value) -> Value {
        value(&self.call(exchange, params).await.unwrap())
    }

    /// Returns the number of tool calls that the server received.
    pub fn call_count(&self) -> usize {
        self.server.request_count("tools/call")
    }
}

/// Returns the JSON of a reply.
pub fn value(reply: &Reply) -> Value {
    serde_json::from_str(&reply.json).unwrap()
}

/// Waits for the next request of the gateway to the client.
pub async fn next_question(exchange: &Exchange) -> Value {
    loop {
        let question = take_sent_messages(exchange).into_iter().find(|message| message.get("id").is_some());
        if let Some(question) = question {
            return question;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// Answers a request of the gateway on behalf of the client.
pub fn answer(exchange: &Exchange, question: &Value, answer: Result<Value, Value>) {
    let raw = |value: Value| RawValue::from_string(value.to_string()).unwrap();
    let answer = answer.map(raw).map_err(raw);
    let outcome = answer.as_ref().map(|raw| &**raw).map_err(|raw| &**raw);
    let id = Some(RequestId::from_raw(&question["id"].to_string()));
    exchange.session.questions.deliver_answer(&Response { id, outcome });
}

//! What the policy says of a call while no gateway runs: its configuration, the modules that are compiled in, and what
//! the store keeps of servers' tools and of reviewers' words. The rules are asked as a gateway asks them, through a route
//! table; what only the servers could tell is said to be unknown.

use std::sync::Arc;

use futures_util::future::{BoxFuture, ready};
use serde::Serialize;
use serde_json::{json, value::RawValue};

use super::exit::{Exit, Failure};
use countersign_auth::{
    Keyring,
    keyring::{Held, HeldKeys},
};
use countersign_config::{Config, UpstreamConfig};
use countersign_docs::Docs;
use countersign_domain::{
    changes::Preview,
    policy::{
        People, PinSource, Pins, Policy, StandingRule, StandingSource,
        pins::{Definition, Pin},
    },
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, Module, Provider, ToolDef, ToolResult};
use countersign_rest::policy::{TestBody, Tested};
use countersign_review::gateway_tools::GatewayTools;
use countersign_routing::{RouteTable, Target, table::Aliases};
use countersign_store::{Place, Said, StoreError};
use countersign_tracker::Tracker;
use countersign_upstream::{Names, is_let_through};

/// The answer as a gateway gives it, with what could not be known.
#[derive(Serialize)]
struct TestedOffline {
    #[serde(flatten)]
    tested: Tested,
    unknown: Vec<String>,
}

/// `body` is that of `POST /api/policy/test`; the answer is JSON.
pub fn answer(config: &Config, body: &str) -> Result<String, Failure> {
    let body: TestBody = serde_json::from_str(body).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    let mut unknown = Vec::new();
    let place = Place::configured(&config.data, config.store_server())?;
    let said = place.said()?.unwrap_or_else(|| {
        unknown.push("there is no store yet, so nobody has accepted a definition or given a standing rule".to_owned());
        Said::default()
    });
    let offline = Offline::new(config, said);
    let Some(tool) = body.tool() else {
        let message = "only a gateway that runs can say what becomes of resources, prompts and methods: start it";
        return Err(Failure::new(Exit::Usage, message.to_owned()));
    };
    let table = offline.table(tool, &mut unknown)?;
    let tested = body.ask(&table)?;
    serde_json::to_string(&TestedOffline { tested, unknown })
        .map_err(|error| Failure::new(Exit::Internal, error.to_string()))
}

struct Offline<'a> {
    config: &'a Config,
    pins: Arc<Pins>,
    policy: Policy,
}

impl<'a> Offline<'a> {
    fn new(config: &'a Config, said: Said) -> Self {
        let Said { pins, rules, keys } = said;
        let pins = Arc::new(pins);
        let now = jiff::Timestamp::now();
        let rules = rules.into_iter().map(|rule| Arc::new(rule.timed(now))).collect();
        let people = People::new(&config.policy.groups).with_keys(Arc::new(Keyring::new(Arc::new(Kept(keys)))));
        let policy = Policy::new(&config.policy)
            .with_pins(Arc::new(Kept(Arc::clone(&pins))))
            .with_standing_rules(Arc::new(Kept::<Rules>(rules)), Arc::new(people));
        Self { config, pins, policy }
    }

    /// The tools that are known, and this one, if it may be some server's.
    fn table(&self, tool: &str, unknown: &mut Vec<String>) -> Result<RouteTable, Failure> {
        let wrong = |error: &dyn std::fmt::Display| Failure::new(Exit::Config, error.to_string());
        let aliases = Aliases::new(&self.config.routes).map_err(|error| wrong(&error))?;
        let mut servers = Vec::new();
        if self.config.modules.tracker.enabled {
            let tools = Tracker::offers(&self.config.modules.tracker).map_err(|error| wrong(&error))?;
            servers.push(Remembered::module("tracker", tools));
        }
        if self.config.modules.docs.enabled {
            servers.push(Remembered::module("docs", Docs::offers()));
        }
        servers.push(Remembered::module("gateway", GatewayTools::offers(self.config.limits.max_wait)));
        let modules = servers.len();
        servers.extend(self.config.upstreams.iter().map(|server| Remembered::server(server, &self.pins)));
        let build = |servers: &[Remembered]| {
            let providers: Vec<Target> =
                servers.iter().map(|server| Target::Module(Arc::new(server.clone()))).collect();
            RouteTable::build(1, &providers, &self.policy, &aliases, &json!({})).map_err(|error| wrong(&error))
        };
        let table = build(&servers)?;
        if let Some(route) = table.tool(tool) {
            if let Some(pin) = self.pins.pin(route.provider.name(), &route.name) {
                let how = if pin.accepted.is_some() { "accepted" } else { "seen first" };
                unknown.push(format!(
                    "whether {} still offers {} as it was {how}; another definition would be reviewed",
                    route.provider.name(),
                    route.name
                ));
            }
            return Ok(table);
        }
        let Some(at) = self.guess(tool)? else { return Ok(table) };
        let (Some(config), Some(server)) = (self.config.upstreams.get(at), servers.get_mut(modules + at)) else {
            return Ok(table);
        };
        server.tools.extend(nothing_known(tool));
        let counts = if config.trust_annotations { ", which would count (trust_annotations)" } else { "" };
        let why = if self.pins.knows(&config.name) { "of this tool" } else { "of this server" };
        unknown.push(format!(
            "what {tool} says of itself{counts}: no definition {why} was ever pinned, so it is judged as one that says nothing"
        ));
        build(&servers)
    }

    /// The server whose tool this may be.
    fn guess(&self, tool: &str) -> Result<Option<usize>, Failure> {
        let named = |server: &UpstreamConfig| Names::new(server).own(tool).map(|own| is_let_through(server, own));
        let longest = self.config.upstreams.iter().filter(|s| named(s).is_some()).map(|s| s.prefix.len()).max();
        let mut may: Vec<(usize, &UpstreamConfig)> = self.config.upstreams.iter().enumerate().collect();
        may.retain(|(_, server)| named(server).is_some() && Some(server.prefix.len()) == longest);
        let left_out = may.iter().find(|(_, server)| named(server) == Some(false)).map(|(_, server)| &server.name);
        may.retain(|(_, server)| named(server) == Some(true));
        match (may.as_slice(), left_out) {
            ([(at, _)], _) => Ok(Some(*at)),
            ([], None) => Ok(None),
            ([], Some(server)) => {
                let message = format!("the configuration of {server} leaves {tool} out (tools.allow, tools.deny)");
                Err(Failure::new(Exit::Failed, message))
            }
            (several, _) => {
                let names: Vec<&str> = several.iter().map(|(_, server)| server.name.as_str()).collect();
                let message = format!(
                    "only a running gateway knows which of these servers has {tool}: {}; start it, or set their prefix",
                    names.join(", ")
                );
                Err(Failure::new(Exit::Failed, message))
            }
        }
    }
}

/// A definition that says nothing of the tool but its name.
fn nothing_known(tool: &str) -> Option<ToolDef> {
    definition(&json!({ "name": tool, "inputSchema": { "type": "object" } }).to_string())
}

/// A definition as it was pinned, under the name that clients use.
fn definition(text: &str) -> Option<ToolDef> {
    let raw: Arc<RawValue> = RawValue::from_string(text.to_owned()).ok()?.into();
    Names::identity().tool(&raw).ok()
}

/// A server or a module, as far as its tools are known.
#[derive(Clone)]
struct Remembered {
    name: String,
    target: String,
    trusted: bool,
    module: bool,
    tools: Vec<ToolDef>,
}

impl Remembered {
    fn module(name: &str, tools: Vec<ToolDef>) -> Self {
        Self { name: name.to_owned(), target: String::new(), trusted: false, module: true, tools }
    }

    fn server(config: &UpstreamConfig, pins: &Pins) -> Self {
        let names = Names::new(config);
        let pinned = pins.servers.get(&config.name).into_iter().flatten();
        let let_through = |tool: &str| names.own(tool).is_some_and(|own| is_let_through(config, own));
        let tools = pinned
            .filter(|(tool, _)| let_through(tool))
            .filter_map(|(_, pin): (&String, &Pin)| definition(pin.text.as_deref()?))
            .collect();
        let target = config.target.fingerprint();
        Self { name: config.name.clone(), target, trusted: config.trust_annotations, module: false, tools }
    }
}

impl Module for Remembered {}

impl Provider for Remembered {
    fn name(&self) -> &str {
        &self.name
    }
    fn tools(&self) -> Vec<ToolDef> {
        self.tools.clone()
    }
    fn call<'a>(
        &'a self,
        _: &'a str,
        _: &'a RawValue,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<ToolResult, McpError>> {
        Box::pin(ready(Err(nobody_here())))
    }
    fn preview<'a>(
        &'a self,
        _: &'a str,
        _: &'a RawValue,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<Preview, McpError>> {
        Box::pin(ready(Err(nobody_here())))
    }
    fn is_module(&self) -> bool {
        self.module
    }
    fn target(&self) -> &str {
        &self.target
    }
    fn trust_annotations(&self) -> bool {
        self.trusted
    }
}

fn nobody_here() -> McpError {
    McpError::new(ErrorKind::UpstreamUnavailable, "no gateway runs")
}

type Rules = Vec<Arc<StandingRule>>;

/// What the store keeps.
struct Kept<T>(T);

impl PinSource for Kept<Arc<Pins>> {
    fn pins(&self) -> Arc<Pins> {
        Arc::clone(&self.0)
    }
    fn observe(&self, _: &str, _: &[Definition]) {}
}

impl StandingSource for Kept<Rules> {
    fn of_tool(&self, provider: &str, tool: &str) -> Rules {
        let speaks = |rule: &&Arc<StandingRule>| !rule.is_over() && rule.provider == provider && rule.tool == tool;
        self.0.iter().filter(speaks).cloned().collect()
    }
}

impl HeldKeys for Kept<Held> {
    fn held(&self) -> Result<Held, StoreError> {
        Ok(self.0.clone())
    }
}

//! Tests the policy while no gateway runs. The answer rests on the configuration, the built-in modules, and the tool
//! definitions, the reviewers' decisions and the policy in the store. The rules are evaluated through a route table, as in a
//! gateway; facts that only a running server could provide are reported as unknown.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::{json, value::RawValue};

use super::exit::{Exit, Failure};
use countersign_auth::{Keyring, keyring::ValidKeySource};
use countersign_config::{Config, UpstreamConfig};
use countersign_docs::Docs;
use countersign_domain::{
    changes::{Absence, Preview},
    policy::{
        PinSource, Pins, Policy, Reviewers, StandingRule, StandingRuleSource,
        pins::{Definition, ToolPin},
    },
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, Module, Provider, ToolDef, ToolResult};
use countersign_reload::predict_initial_config;
use countersign_rest::policy::{PolicyTest, PolicyTestRequest};
use countersign_review::gateway_tools::tool_definitions;
use countersign_routing::{
    RouteTable, RouteTarget,
    table::{Aliases, TableInputs},
};
use countersign_store::{ReviewerRecords, StoreError, StoreLocation, people::Holders};
use countersign_tracker::Tracker;
use countersign_upstream::{Names, is_tool_allowed};

/// A decision of the policy, as a gateway returns it, with the facts that could not be known.
#[derive(Serialize)]
struct OfflineDecision {
    #[serde(flatten)]
    decision: PolicyTest,
    unknown: Vec<String>,
}

/// Answers a `POST /api/policy/test`, as JSON.
pub fn test_policy(config: &Config, request: PolicyTestRequest) -> Result<String, Failure> {
    let mut unknown = Vec::new();
    let location = StoreLocation::configured(&config.data, config.store_server())?;
    let records = location.reviewer_records()?.unwrap_or_else(|| {
        unknown.push("there is no store yet, so nobody has accepted a definition or given a standing rule".to_owned());
        ReviewerRecords::default()
    });
    let (config, held_back) = predict_initial_config(config, records.policy.as_ref());
    if !held_back.is_empty() {
        let mut keys: Vec<&str> = held_back.iter().map(|loosening| loosening.key.as_str()).collect();
        keys.dedup();
        unknown.push(format!(
            "whether a reviewer consents to what the file loosens ({}); without consent the policy is stricter, as tested here",
            keys.join(", ")
        ));
    }
    let offline = OfflinePolicy::new(&config, records);
    let Some(tool) = request.tool.as_deref() else {
        let message = "resources, prompts and methods can be tested only while the gateway runs: start it";
        return Err(Failure::new(Exit::Usage, message));
    };
    let table = offline.table(tool, &mut unknown)?;
    let tested = request.evaluate(&table)?;
    serde_json::to_string(&OfflineDecision { decision: tested, unknown })
        .map_err(|error| Failure::new(Exit::Internal, error))
}

struct OfflinePolicy<'a> {
    config: &'a Config,
    pins: Arc<Pins>,
    policy: Policy,
}

impl<'a> OfflinePolicy<'a> {
    fn new(config: &'a Config, records: ReviewerRecords) -> Self {
        let ReviewerRecords { pins, rules, holders, .. } = records;
        let pins = Arc::new(pins);
        let now = jiff::Timestamp::now();
        let rules = rules.into_iter().map(|rule| Arc::new(rule.with_deadline(now))).collect();
        let reviewers =
            Reviewers::new(&config.policy.groups).with_keys(Arc::new(Keyring::new(Arc::new(StoredSource(holders)))));
        reviewers.set_issuers(config.auth.tokens.iter().map(|issuer| issuer.issuer.as_str()));
        let policy = Policy::new(&config.policy)
            .with_pins(Arc::new(StoredSource(Arc::clone(&pins))))
            .with_standing_rules(Arc::new(StoredSource::<Rules>(rules)), Arc::new(reviewers));
        Self { config, pins, policy }
    }

    /// Builds the route table of all known tools, and of this one if it may belong to a server.
    fn table(&self, tool: &str, unknown: &mut Vec<String>) -> Result<RouteTable, Failure> {
        let aliases = Aliases::new(&self.config.routes).map_err(config_failure)?;
        let mut servers = Vec::new();
        if self.config.modules.tracker.enabled {
            let tools = Tracker::tool_definitions(&self.config.modules.tracker).map_err(config_failure)?;
            servers.push(PinnedServer::module("tracker", tools));
        }
        if self.config.modules.docs.enabled {
            servers.push(PinnedServer::module("docs", Docs::tool_definitions()));
        }
        servers.push(PinnedServer::module("gateway", tool_definitions(self.config.limits.max_wait)));
        let modules = servers.len();
        servers.extend(self.config.upstreams.iter().map(|server| PinnedServer::upstream(server, &self.pins)));
        let build = |servers: &[PinnedServer]| {
            let providers: Vec<RouteTarget> =
                servers.iter().map(|server| RouteTarget::Module(Arc::new(server.clone()))).collect();
            let inputs = TableInputs {
                providers: &providers,
                policy: &self.policy,
                aliases: &aliases,
                pending_schema: &Arc::new(json!({})),
                previous: None,
                strict: true,
            };
            RouteTable::build(&inputs).map_err(config_failure)
        };
        let table = build(&servers)?;
        if let Some(route) = table.find_tool(tool) {
            if let Some(pin) = self.pins.pin(route.provider.name(), &route.name) {
                let pin_state = if pin.accepted.is_some() { "accepted" } else { "seen first" };
                unknown.push(format!(
                    "whether {} still offers {} as it was {pin_state}; another definition would be reviewed",
                    route.provider.name(),
                    route.name
                ));
            }
            return Ok(table);
        }
        let Some(at) = self.guess_server(tool)? else { return Ok(table) };
        let (Some(config), Some(server)) = (self.config.upstreams.get(at), servers.get_mut(modules + at)) else {
            return Ok(table);
        };
        let definition = json!({ "name": tool, "inputSchema": { "type": "object" } }).to_string();
        server.tools.extend(pinned_definition(&definition));
        let counts = if config.trust_annotations { ", which would count (trust_annotations)" } else { "" };
        let scope = if self.pins.has_server(&config.name) { "of this tool" } else { "of this server" };
        unknown.push(format!(
            "what {tool} declares{counts}: no definition {scope} was ever pinned, so the tool is treated as one without annotations"
        ));
        build(&servers)
    }

    /// Returns the index of the server that may have this tool.
    fn guess_server(&self, tool: &str) -> Result<Option<usize>, Failure> {
        let candidate = |(at, server): (usize, &'a UpstreamConfig)| {
            let names = Names::new(server);
            Some((at, server, is_tool_allowed(server, names.upstream_name(tool)?)))
        };
        let mut candidates: Vec<_> = self.config.upstreams.iter().enumerate().filter_map(candidate).collect();
        let longest = candidates.iter().map(|(_, server, _)| server.prefix.len()).max();
        candidates.retain(|(_, server, _)| Some(server.prefix.len()) == longest);
        let (allowing, excluding): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|(_, _, allows)| *allows);
        match (allowing.as_slice(), excluding.first()) {
            ([(at, ..)], _) => Ok(Some(*at)),
            ([], None) => Ok(None),
            ([], Some((_, server, _))) => {
                let name = &server.name;
                let message = format!("the configuration of {name} excludes {tool} (tools.allow, tools.deny)");
                Err(Failure::new(Exit::Failed, message))
            }
            (several, _) => {
                let names: Vec<&str> = several.iter().map(|(_, server, _)| server.name.as_str()).collect();
                let message = format!(
                    "only a running gateway knows which of these servers has {tool}: {}; start it, or set their prefix",
                    names.join(", ")
                );
                Err(Failure::new(Exit::Failed, message))
            }
        }
    }
}

fn config_failure(error: impl fmt::Display) -> Failure {
    Failure::new(Exit::Config, error)
}

/// Builds the definition that was pinned, under the name that clients use.
fn pinned_definition(text: &str) -> Option<ToolDef> {
    let raw: Arc<RawValue> = RawValue::from_string(text.to_owned()).ok()?.into();
    Names::identity().parse_tool(&raw).ok()
}

/// A server with the tools that are pinned in the store, or a module with its own.
#[derive(Clone)]
struct PinnedServer {
    name: String,
    target: String,
    is_trusted: bool,
    is_module: bool,
    tools: Vec<ToolDef>,
}

impl PinnedServer {
    fn module(name: &str, tools: Vec<ToolDef>) -> Self {
        Self { name: name.to_owned(), target: String::new(), is_trusted: false, is_module: true, tools }
    }

    fn upstream(config: &UpstreamConfig, pins: &Pins) -> Self {
        let names = Names::new(config);
        let pinned = pins.servers.get(&config.name).into_iter().flatten();
        let is_allowed = |tool: &str| names.upstream_name(tool).is_some_and(|own| is_tool_allowed(config, own));
        let tools = pinned
            .filter(|(tool, _)| is_allowed(tool))
            .filter_map(|(_, pin): (&String, &ToolPin)| pinned_definition(pin.text.as_deref()?))
            .collect();
        let target = config.target.fingerprint();
        Self { name: config.name.clone(), target, is_trusted: config.trust_annotations, is_module: false, tools }
    }
}

impl Module for PinnedServer {}

#[async_trait]
impl Provider for PinnedServer {
    fn name(&self) -> &str {
        &self.name
    }
    fn tools(&self) -> Vec<ToolDef> {
        self.tools.clone()
    }
    async fn call(&self, _: &str, _: &RawValue, _: &CallContext) -> Result<ToolResult, McpError> {
        Err(no_gateway_error())
    }
    async fn preview(&self, _: &str, _: &RawValue, _: &CallContext) -> Result<Preview, McpError> {
        Err(no_gateway_error())
    }
    fn is_module(&self) -> bool {
        self.is_module
    }
    fn target_fingerprint(&self) -> &str {
        &self.target
    }
    fn has_trusted_annotations(&self) -> bool {
        self.is_trusted
    }
}

fn no_gateway_error() -> McpError {
    McpError::new(ErrorKind::UpstreamUnavailable, "no gateway runs")
}

type Rules = Vec<Arc<StandingRule>>;

/// A source that returns what was read from the store.
struct StoredSource<T>(T);

impl PinSource for StoredSource<Arc<Pins>> {
    fn pins(&self) -> Arc<Pins> {
        Arc::clone(&self.0)
    }
    fn observe(&self, _: &str, _: &[Definition]) {}
}

impl StandingRuleSource for StoredSource<Rules> {
    fn find_rules(&self, provider: &str, concerns: &dyn Fn(&str) -> bool) -> Rules {
        let applies =
            |rule: &&Arc<StandingRule>| !rule.has_ended() && rule.provider == provider && concerns(&rule.tool);
        self.0.iter().filter(applies).cloned().collect()
    }
}

impl ValidKeySource for StoredSource<Holders> {
    fn holders(&self) -> Result<Holders, StoreError> {
        Ok(self.0.clone())
    }

    fn newest_holders(&self) -> Result<Holders, StoreError> {
        self.holders()
    }

    fn absences(&self) -> Result<Vec<Absence>, StoreError> {
        Ok(Vec::new())
    }
}

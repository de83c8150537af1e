//! Opening, identity and state of the gateway itself: `initialize`, `server/discover`, log level, and our own
//! `health/check`, `info/server`, `metrics/get`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{Handling, extension::SERVED_HERE, services::SessionServices};
use countersign_bridge::tasks;
use countersign_exchange::{
    facts::{self, ClientFacts, FactLimits},
    reply::{CacheHint, Reply},
};
use countersign_protocol::{Era, ErrorKind, McpError, Revision, envelope::Request, json, negotiate, params};
use countersign_routing::RouteTable;

/// What a model is told of this server.
pub const INSTRUCTIONS: &str = "Countersign lets you read freely and puts a person between you and every write. \
A tool that writes answers at once with a pending change and its id: nothing has happened yet. A person sees the \
change as a diff and approves or rejects it. Call `wait_for_change` with the id to wait for the decision, or \
`get_change` to look; a rejection carries the reviewer's reason. Do not repeat a write because it is pending; \
withdraw it with `withdraw_change` if you no longer want it.";

/// What the gateway can do, for one revision: exactly what works.
#[must_use]
pub fn capabilities(revision: Revision) -> Value {
    let mut out = json!({
        "tools": { "listChanged": true },
        "resources": { "subscribe": true, "listChanged": true },
        "prompts": { "listChanged": true },
        "logging": {},
    });
    if revision.rules().completions_capability {
        out["completions"] = json!({});
    }
    out
}

/// The gateway's capabilities as JSON text, with what it does not know and yet passes on: extensions and experimental
/// capabilities that both the client and an upstream declare. Of several upstreams the first one's words count.
fn capabilities_with(table: &RouteTable, revision: Revision, client: &str) -> String {
    let own = capabilities(revision).to_string();
    let mut members = Vec::new();
    let with_tasks = revision >= Revision::V2025_11_25;
    if with_tasks && revision == Revision::V2025_11_25 {
        members.push(("tasks", r#"{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}"#.to_owned()));
    }
    for kind in ["experimental", "extensions"] {
        let declared = json::member(client, kind).unwrap_or("{}");
        let mut shared: Vec<(String, String)> = Vec::new();
        // Said to everybody: a client declares it with each request on which it wants tasks.
        if kind == "extensions" && with_tasks && revision == Revision::MODERN {
            shared.push((tasks::ask::EXTENSION.to_owned(), "{}".to_owned()));
        }
        for negotiated in table.providers().iter().filter_map(|p| p.upstream()?.negotiated()) {
            let offered = json::member(negotiated.capabilities.get(), kind).unwrap_or("{}");
            for theirs in json::members(offered) {
                let known = SERVED_HERE.contains(&&*theirs.key) || shared.iter().any(|(key, _)| *key == theirs.key);
                if !known && json::members(declared).any(|ours| ours.key == theirs.key) {
                    shared.push((theirs.key.into_owned(), theirs.value.to_owned()));
                }
            }
        }
        if !shared.is_empty() {
            let shared: Vec<_> = shared.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            members.push((kind, json::add_members("{}", &shared)));
        }
    }
    let members: Vec<_> = members.iter().map(|(kind, text)| (*kind, text.as_str())).collect();
    json::add_members(&own, &members)
}

/// The gateway's name and version; newer revisions also have a title and a description.
#[must_use]
pub fn server_info(revision: Revision) -> Value {
    let mut out = json!({ "name": "countersign", "version": env!("CARGO_PKG_VERSION") });
    if revision.rules().structured_content {
        out["title"] = "Countersign".into();
    }
    out
}

/// `{"io.modelcontextprotocol/serverInfo": …}`, which every result of the stateless era carries.
#[must_use]
pub fn server_meta() -> String {
    json!({ (params::keys::SERVER_INFO): server_info(Revision::MODERN) }).to_string()
}

/// The handshake (2025-11-25/basic/lifecycle#initialization).
pub fn initialize(exchange: &Handling, request: &Request<'_>) -> Result<Reply, McpError> {
    let session = &exchange.session;
    if session.legacy_revision().is_some() {
        return Err(McpError::new(ErrorKind::InvalidRequest, "this session is already initialized"));
    }
    let params: params::Initialize<'_> = params::parse(request.params)?;
    let revision = negotiate::initialize(&params.protocol_version, exchange.services.config.strict_versions)?;
    let limits = FactLimits::from(&exchange.services.config.limits);
    limits.check("capabilities", params.capabilities.get())?;
    let facts = Arc::new(ClientFacts {
        revision,
        client: Some(limits.cut(params.client_info)),
        client_info: facts::info_of(request.params).map(|info| limits.info(info).into()),
        capabilities: params.capabilities.get().into(),
    });
    let share = exchange.services.state.memory.take(&exchange.identity.principal.name, facts.size())?;
    session.set_facts(facts, share);
    let table = exchange.services.routes.load();
    let result = json!({
        "protocolVersion": revision.as_str(),
        "serverInfo": server_info(revision),
        "instructions": instructions(exchange, &table),
    });
    let capabilities = capabilities_with(&table, revision, params.capabilities.get());
    let result = json::add_members(&result.to_string(), &[("capabilities", &capabilities)]);
    Ok(Reply::new(result).negotiated(revision))
}

/// 2026-07-28/server/discover.
pub fn discover(exchange: &Handling) -> Reply {
    let table = exchange.services.routes.load();
    let result = json!({
        "supportedVersions": negotiate::supported(Some(Era::Modern)),
        "instructions": instructions(exchange, &table),
    });
    let capabilities = capabilities_with(&table, Revision::MODERN, &exchange.facts.capabilities);
    let result = json::add_members(&result.to_string(), &[("capabilities", &capabilities)]);
    // What servers say is left out for whoever sees nothing of them, as their tools are.
    Reply::new(result).cached(CacheHint::of_tools(&table))
}

/// What a model is told of the gateway, and of the servers that it sees behind it.
fn instructions(exchange: &Handling, table: &RouteTable) -> String {
    let servers = table.briefings(&exchange.identity.principal);
    [INSTRUCTIONS, &*servers].concat()
}

/// 2025-11-25/server/utilities/logging.
pub fn set_level(exchange: &Handling, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::SetLevel = params::parse(request.params)?;
    exchange.session.set_log_level(params.level);
    Ok(Reply::new("{}".into()))
}

/// Live, and able to take work.
pub fn health_of(services: &SessionServices) -> Value {
    let nodes = services.changes.nodes();
    let draining = services.shutdown.is_cancelled();
    let store = match services.changes.store_trouble() {
        // A gateway that ends closes its store.
        _ if !draining && !services.changes.is_healthy() => "failed",
        Some(trouble) => trouble.word(),
        // The database has not answered for so long that other nodes count this one as gone.
        None if !draining && !nodes.holds(None) => "unreachable",
        None => "ok",
    };
    let table = services.routes.load();
    let listed = |server: &str| table.tools().iter().any(|route| route.provider.name() == server);
    let missing = services.upstreams.missing(listed);
    let ready = store == "ok" && !draining && missing.is_empty() && table.generation > 0;
    let mut health = json!({
        "status": if ready { "ok" } else if draining { "draining" } else { "unavailable" },
        "live": true,
        "ready": ready,
        "checks": {
            // Or `disk_full`, `locked`, `damaged`, `failed`, `unreachable`.
            "store": store,
            "draining": draining,
            // Only those that are required.
            "upstreams": if missing.is_empty() { json!("ok") } else { json!({ "missing": missing }) },
        },
    });
    // Where others may serve the same store.
    if nodes.claimant().is_some() {
        health["checks"]["nodes"] = json!({ "live": nodes.live(), "otherConfiguration": nodes.differing() });
    }
    health
}

/// Our own `health/check`: what `GET /health` says.
pub fn health(exchange: &Handling) -> Reply {
    Reply::new(health_of(&exchange.sessions).to_string())
}

/// What `GET /info` says too. Nothing in it is private.
#[must_use]
pub fn info_of(services: &SessionServices) -> Value {
    let table = services.routes.load();
    json!({
        "name": "countersign",
        "title": "Countersign",
        "version": env!("CARGO_PKG_VERSION"),
        "protocolVersions": Revision::ALL.map(Revision::as_str),
        "transports": {
            "streamableHttp": "/mcp",
            "websocket": "/ws",
            "sse": { "stream": "/sse", "messages": "/messages" },
            "http": "/tools",
            "stdio": "countersign stdio",
        },
        "providers": table.providers().iter().map(|p| p.name()).collect::<Vec<_>>(),
        "tools": table.tools().len(),
        "prompts": table.prompts().len(),
        "policy": services.reloads.config().policy.default.as_str(),
        "policyMode": services.reloads.config().policy.mode,
        "uptimeSeconds": services.state.started.elapsed().as_secs(),
    })
}

/// Our own `info/server`.
pub fn info(exchange: &Handling) -> Reply {
    Reply::new(info_of(&exchange.sessions).to_string())
}

/// Our own `metrics/get`: what `GET /metrics` says, as text.
pub fn metrics(exchange: &Handling) -> Reply {
    let text = exchange.sessions.render_metrics();
    Reply::new(json!({ "contentType": "text/plain; version=0.0.4", "text": text }).to_string())
}

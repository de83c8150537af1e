//! Handshake, discovery and log level, and the gateway's own method `metrics/get`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    extension_methods::{EXTENSION_KINDS, shared_extensions},
    lists::hint_for_tools,
};
use crate::gateway::{limits::RequestLimits, status::GatewayStatus};
use countersign_exchange::{
    context::Exchange,
    facts::ClientFacts,
    memory::MemoryBudget,
    reply::{CacheHint, Reply},
};
use countersign_protocol::{Era, ErrorKind, McpError, Revision, envelope::Request, json, negotiate, params, task};
use countersign_routing::RouteTable;

/// The gateway's own instructions for models.
pub const INSTRUCTIONS: &str = "Countersign lets you read freely and puts a person between you and every write. \
A tool that writes answers at once with a pending change and its id: nothing has happened yet. A person sees the \
change as a diff and approves or rejects it. Call `wait_for_change` with the id to wait for the decision, or \
`get_change` to look; a rejection carries the reviewer's reason. Do not repeat a write because it is pending; \
withdraw it with `withdraw_change` if you no longer want it. Propose writes that belong together with `propose_plan`.";

/// Returns the capabilities of the gateway in one revision.
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

/// Adds the gateway's capabilities to a result, and returns it as JSON text. They include the extensions and experimental
/// capabilities that both the client and an upstream declare. If several upstreams declare the same one, the first one's
/// declaration is used.
fn add_capabilities(result: &Value, table: &RouteTable, revision: Revision, client_capabilities: &str) -> String {
    let own_capabilities = capabilities(revision).to_string();
    let mut members = Vec::new();
    if revision == Revision::V2025_11_25 {
        members.push(("tasks", r#"{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}"#.to_owned()));
    }
    for kind in EXTENSION_KINDS {
        let mut shared: Vec<(String, String)> = Vec::new();
        // Every client is offered tasks, because a client declares the extension only in requests that want them.
        if kind == "extensions" && revision == Revision::MODERN {
            shared.push((task::TASKS_EXTENSION.to_owned(), "{}".to_owned()));
        }
        for negotiated in table.providers().iter().filter_map(|p| p.upstream()?.negotiated()) {
            for extension in shared_extensions(kind, client_capabilities, &negotiated) {
                if !shared.iter().any(|(key, _)| *key == extension.key) {
                    shared.push((extension.key.into_owned(), extension.value.to_owned()));
                }
            }
        }
        if !shared.is_empty() {
            let shared: Vec<_> = shared.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            members.push((kind, json::add_members("{}", &shared)));
        }
    }
    let members: Vec<_> = members.iter().map(|(kind, text)| (*kind, text.as_str())).collect();
    json::add_members(&result.to_string(), &[("capabilities", &json::add_members(&own_capabilities, &members))])
}

/// Returns the gateway's name and version. Newer revisions also have a title.
pub fn server_info(revision: Revision) -> Value {
    let mut out = json!({ "name": "countersign", "version": env!("CARGO_PKG_VERSION") });
    if revision.rules().structured_content {
        out["title"] = "Countersign".into();
    }
    out
}

/// Answers the handshake (2025-11-25/basic/lifecycle#initialization).
pub fn initialize(
    exchange: &Exchange,
    table: &RouteTable,
    limits: &RequestLimits,
    memory: &Arc<MemoryBudget>,
    request: &Request<'_>,
) -> Result<Reply, McpError> {
    let session = &exchange.session;
    if session.legacy_revision().is_some() {
        return Err(McpError::new(ErrorKind::InvalidRequest, "this session is already initialized"));
    }
    let params: params::InitializeParams<'_> = params::parse(request.params)?;
    let revision = negotiate::handshake_revision(&params.protocol_version, limits.strict_versions)?;
    let limits = limits.facts;
    limits.check_capabilities("capabilities", params.capabilities.get())?;
    let facts = Arc::new(ClientFacts {
        revision,
        client: Some(limits.shorten_names(params.client_info)),
        client_info: request.outlined_params().object.member("clientInfo").map(|info| limits.shorten_info(info).into()),
        capabilities: params.capabilities.get().into(),
    });
    let share = memory.take(&exchange.identity.principal.name, facts.size())?;
    session.set_facts(facts, share);
    let result = json!({
        "protocolVersion": revision.as_str(),
        "serverInfo": server_info(revision),
        "instructions": instructions(exchange, table),
    });
    let result = add_capabilities(&result, table, revision, params.capabilities.get());
    Ok(Reply { revision: Some(revision), ..Reply::new(result) })
}

/// Answers `server/discover` (2026-07-28/server/discover).
pub fn discover(exchange: &Exchange, table: &RouteTable) -> Reply {
    let result = json!({
        "supportedVersions": negotiate::supported_versions(Some(Era::Modern)),
        "instructions": instructions(exchange, table),
    });
    let result = add_capabilities(&result, table, Revision::MODERN, &exchange.facts.capabilities);
    // The instructions of servers vary by principal exactly as their tools do, and the extensions by client.
    let hint = hint_for_tools(table);
    Reply::new(result).with_cache_hint(CacheHint { is_public: hint.is_public && !has_extensions(table), ..hint })
}

/// Returns `true` if a server has extensions or experimental capabilities, which are offered to clients that declare them too.
fn has_extensions(table: &RouteTable) -> bool {
    table.providers().iter().filter_map(|provider| provider.upstream()?.negotiated()).any(|negotiated| {
        EXTENSION_KINDS.iter().any(|kind| json::member(negotiated.capabilities.get(), kind).is_some())
    })
}

/// Returns the instructions of the gateway and of the servers that are visible to the principal.
fn instructions(exchange: &Exchange, table: &RouteTable) -> String {
    let servers = table.instructions_for(&exchange.identity.principal);
    [INSTRUCTIONS, &*servers].concat()
}

/// Sets the log level of the session (2025-11-25/server/utilities/logging).
pub fn set_log_level(exchange: &Exchange, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::SetLevelParams = params::parse(request.params)?;
    exchange.session.set_log_level(params.level);
    Ok(Reply::new("{}".into()))
}

/// Answers the gateway's own `metrics/get` with the content of `GET /metrics`, as text.
pub fn metrics(status: &GatewayStatus) -> Reply {
    let text = status.render_metrics();
    Reply::new(json!({ "contentType": "text/plain; version=0.0.4", "text": text }).to_string())
}

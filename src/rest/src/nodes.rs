//! Lists the gateways that share the store of this gateway.

use std::collections::HashSet;

use actix_web::{HttpResponse, web};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Caller, Problem, json_response};
use countersign_review::Changes;
use countersign_store::nodes::Node;

/// A gateway of the store.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Node)]
struct NodeInfo {
    /// The id of its data directory.
    id: String,
    /// Increases whenever the node joins, after a restart or after its lease expired.
    #[schema(minimum = 1)]
    epoch: u64,
    /// The address of its endpoints; empty until the node has announced it.
    url: String,
    version: String,
    started_at: Timestamp,
    /// The end of its lease by the clock of the store; `null` if no other gateway can serve the store.
    #[schema(required)]
    lease_until: Option<Timestamp>,
    live: bool,
    /// `true` for the leader, which runs the tasks of the store.
    leads: bool,
    /// `true` for the node that responds.
    #[serde(rename = "here")]
    is_self: bool,
    /// Number of changes that the node runs.
    running: u64,
    /// `true` if its configuration is that of the node that responds, or `null` if the versions differ.
    #[schema(required)]
    same_configuration: Option<bool>,
    /// Servers that the node does not reach.
    unreachable: Vec<String>,
    /// Servers that only this node of the list reaches; empty if no other node is live.
    #[serde(rename = "onlyHere")]
    exclusive_servers: Vec<String>,
    /// Servers with an open circuit breaker.
    breakers_open: Vec<String>,
}

#[derive(Serialize, ToSchema)]
struct NodeList {
    nodes: Vec<NodeInfo>,
}

/// Lists the gateways that share the store of this one.
///
/// The oldest is first. Nodes that have ended stay in the list for about a day. An embedded store has only this gateway.
#[utoipa::path(get, path = "/api/nodes", operation_id = "listNodes", responses(
    (status = 200, description = "All nodes", body = NodeList)))]
pub async fn list(_: Caller, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let nodes = changes.nodes().list().await.map_err(|error| {
        tracing::warn!(%error, "the nodes cannot be listed");
        error.to_mcp()
    })?;
    let own_introduction =
        nodes.iter().find(|node| node.is_self).map(|node| node.introduction.clone()).unwrap_or_default();
    let info = |node: &Node| NodeInfo {
        same_configuration: (own_introduction.version == node.introduction.version)
            .then(|| own_introduction.configuration == node.introduction.configuration),
        unreachable: node.server_states.down.clone(),
        exclusive_servers: exclusive_servers(node, &nodes),
        breakers_open: open_breakers(node),
        id: node.id.clone(),
        epoch: node.epoch,
        url: node.introduction.url.clone(),
        version: node.introduction.version.clone(),
        started_at: node.started_at,
        lease_until: node.lease_until,
        live: node.is_alive,
        leads: node.is_leader,
        is_self: node.is_self,
        running: node.running,
    };
    Ok(json_response(&NodeList { nodes: nodes.iter().map(info).collect() }))
}

/// Returns the servers that the node reaches and no other live node does.
fn exclusive_servers(node: &Node, nodes: &[Node]) -> Vec<String> {
    let other_nodes: Vec<&Node> = nodes.iter().filter(|other| other.is_alive && other.id != node.id).collect();
    if !node.is_alive || other_nodes.is_empty() {
        return Vec::new();
    }
    let reached: HashSet<&String> = other_nodes.iter().flat_map(|other| &other.server_states.up).collect();
    node.server_states.up.iter().filter(|name| !reached.contains(name)).cloned().collect()
}

/// Returns the servers with an open circuit breaker, each once.
fn open_breakers(node: &Node) -> Vec<String> {
    let mut names: Vec<String> = node.server_states.open.iter().map(|(name, _)| name.clone()).collect();
    names.dedup();
    names
}

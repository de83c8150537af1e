//! The gateways that serve this one's store.

use std::collections::HashSet;

use actix_web::{HttpResponse, web};
use jiff::Timestamp;
use serde::Serialize;

use super::{Caller, Problem, json_ok};
use countersign_review::Changes;
use countersign_store::nodes::Node;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeInfo {
    id: String,
    /// Rises whenever it joins, after a restart or after its lease ran out.
    epoch: u64,
    url: String,
    version: String,
    started_at: Timestamp,
    /// None where no other gateway can serve the store.
    lease_until: Option<Timestamp>,
    live: bool,
    /// It does what one node does at a time.
    leads: bool,
    /// It is the one that answers.
    here: bool,
    /// Changes that it runs.
    running: u64,
    /// Its configuration is that of the node that answers; none where its version is another, and so nobody can say.
    same_configuration: Option<bool>,
    /// Servers that it does not reach.
    unreachable: Vec<String>,
    /// Servers that no other node that lives reaches; empty where there is no other.
    only_here: Vec<String>,
    /// Servers at which a circuit breaker of it is open.
    breakers_open: Vec<String>,
}

/// `GET /api/nodes`, the longest there first; those that are gone for about a day.
pub async fn list(_: Caller, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    #[derive(Serialize)]
    struct NodeList {
        nodes: Vec<NodeInfo>,
    }
    let nodes = changes.nodes().list().await.map_err(|error| {
        tracing::warn!(%error, "the nodes cannot be listed");
        error.to_mcp()
    })?;
    let own = nodes.iter().find(|node| node.here).map(|node| node.says.clone()).unwrap_or_default();
    let told = |node: &Node| NodeInfo {
        same_configuration: (own.version == node.says.version).then(|| own.configuration == node.says.configuration),
        unreachable: node.reach.down.clone(),
        only_here: only_here(node, &nodes),
        breakers_open: open(node),
        id: node.id.clone(),
        epoch: node.epoch,
        url: node.says.url.clone(),
        version: node.says.version.clone(),
        started_at: node.started_at,
        lease_until: node.lease_until,
        live: node.live,
        leads: node.leads,
        here: node.here,
        running: node.running,
    };
    Ok(json_ok(&NodeList { nodes: nodes.iter().map(told).collect() }))
}

/// What it reaches and no other node that lives does.
fn only_here(node: &Node, nodes: &[Node]) -> Vec<String> {
    let others: Vec<&Node> = nodes.iter().filter(|other| other.live && other.id != node.id).collect();
    if !node.live || others.is_empty() {
        return Vec::new();
    }
    let elsewhere: HashSet<&String> = others.iter().flat_map(|other| &other.reach.up).collect();
    node.reach.up.iter().filter(|name| !elsewhere.contains(name)).cloned().collect()
}

/// Each server once, however many of its addresses there are.
fn open(node: &Node) -> Vec<String> {
    let mut names: Vec<String> = node.reach.open.iter().map(|(name, _)| name.clone()).collect();
    names.dedup();
    names
}

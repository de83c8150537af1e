//! The gateways that serve this one's store.

use actix_web::{HttpResponse, web};
use jiff::Timestamp;
use serde::Serialize;

use super::{Caller, Problem, RestState, json_ok};
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
    /// Its configuration is that of the node that answers.
    same_configuration: bool,
}

/// `GET /api/nodes`, the longest there first; those that are gone for about a day.
pub async fn list(_: Caller, state: web::Data<RestState>) -> Result<HttpResponse, Problem> {
    #[derive(Serialize)]
    struct NodeList {
        nodes: Vec<NodeInfo>,
    }
    let nodes = state.changes.nodes().list().await.map_err(|error| {
        tracing::warn!(%error, "the nodes cannot be listed");
        error.to_mcp()
    })?;
    let own = nodes.iter().find(|node| node.here).map(|node| node.says.configuration.clone());
    let told = |node: Node| NodeInfo {
        same_configuration: own.as_ref() == Some(&node.says.configuration),
        id: node.id,
        epoch: node.epoch,
        url: node.says.url,
        version: node.says.version,
        started_at: node.started_at,
        lease_until: node.lease_until,
        live: node.live,
        leads: node.leads,
        here: node.here,
        running: node.running,
    };
    Ok(json_ok(&NodeList { nodes: nodes.into_iter().map(told).collect() }))
}

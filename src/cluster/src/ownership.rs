//! Finds the node that owns the session, parked call or task that a request names. Each of these names begins with its node.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::forward;
use countersign_protocol::{
    McpError,
    envelope::Request,
    json::{member, string},
};
use countersign_session::cluster::ForwardTarget;
use countersign_store::Nodes;

/// Returns the node that the name of a session or task begins with.
#[must_use]
pub fn node_of(name: &str) -> Option<&str> {
    name.split_once('.').map(|(node, _)| node)
}

/// Returns the names in a request that may begin with their node: the request state of the parked call that it resumes
/// (`ParkedCalls::seal_reference` of the bridge), or the ids of servers' tasks (`Task::alias` of the bridge).
#[must_use]
pub fn owned_names<'a>(request: &Request<'a>) -> Vec<Cow<'a, str>> {
    let Some(params) = request.params.map(RawValue::get) else { return Vec::new() };
    let text = |name| member(params, name).and_then(string);
    if let Some(state) = text("requestState") {
        return vec![state];
    }
    match &*request.method {
        "tasks/get" | "tasks/update" | "tasks/cancel" => text("taskId").into_iter().collect(),
        "subscriptions/listen" => {
            let task_ids = member(params, "notifications").and_then(|notifications| member(notifications, "taskIds"));
            task_ids.and_then(|task_ids| serde_json::from_str(task_ids).ok()).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Finds the first of the names that another live node owns, and returns that node.
///
/// # Errors
/// `UPSTREAM_UNAVAILABLE` if the store cannot tell which nodes are alive.
pub async fn find_owner(nodes: &dyn Nodes, names: &[Cow<'_, str>]) -> Result<Option<ForwardTarget>, McpError> {
    let Some(own) = nodes.claimant() else { return Ok(None) };
    let other_nodes = || names.iter().filter_map(|name| node_of(name)).filter(|node| *node != own.node);
    let find_live_owner = || {
        other_nodes().find_map(|node| {
            let peer = nodes.peer(node)?;
            Some(ForwardTarget { node: node.to_owned(), url: peer.url, certificate_fingerprint: peer.certificate })
        })
    };
    if other_nodes().next().is_none() {
        return Ok(None);
    }
    if let Some(found) = find_live_owner() {
        return Ok(Some(found));
    }
    // The owner may have joined after this node last read the list of nodes.
    nodes.refresh().await.map_err(|error| {
        tracing::warn!(%error, "cannot find out whether the node that owns a session, call or task is alive");
        forward::peer_unavailable()
    })?;
    Ok(find_live_owner())
}

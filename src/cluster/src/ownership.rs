//! Finds the node that owns what a request names. The names of sessions, parked calls and tasks begin with their node.

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

/// Returns the names of the parked call that a request resumes, by its request state (`ParkedCalls::state` of the bridge), or of
/// the tasks of servers (`Task::alias` of the bridge).
#[must_use]
pub fn names_of<'a>(request: &Request<'a>) -> Vec<Cow<'a, str>> {
    let Some(params) = request.params.map(RawValue::get) else { return Vec::new() };
    let text = |name| member(params, name).and_then(string);
    if let Some(state) = text("requestState") {
        return vec![state];
    }
    match &*request.method {
        "tasks/get" | "tasks/update" | "tasks/cancel" => text("taskId").into_iter().collect(),
        "subscriptions/listen" => {
            let named = member(params, "notifications").and_then(|notifications| member(notifications, "taskIds"));
            named.and_then(|named| serde_json::from_str(named).ok()).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Finds the first other node that owns one of the names.
///
/// # Errors
/// `UPSTREAM_UNAVAILABLE` if the store cannot tell which nodes are alive.
pub async fn find(nodes: &dyn Nodes, names: &[Cow<'_, str>]) -> Result<Option<ForwardTarget>, McpError> {
    let Some(own) = nodes.claimant() else { return Ok(None) };
    let others = || names.iter().filter_map(|name| node_of(name)).filter(|node| *node != own.node);
    let known = || {
        others().find_map(|node| {
            let peer = nodes.peer(node)?;
            Some(ForwardTarget { node: node.to_owned(), url: peer.url, certificate: peer.certificate })
        })
    };
    if others().next().is_none() {
        return Ok(None);
    }
    if let Some(found) = known() {
        return Ok(Some(found));
    }
    // A node may have joined that this one does not know yet.
    nodes.refresh().await.map_err(|error| {
        tracing::warn!(%error, "cannot find out whether the node of a session is alive");
        forward::peer_unavailable()
    })?;
    Ok(known())
}

//! Which node owns what a request names. The names of sessions, parked calls and tasks begin with their node.

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

/// Returns what a request names that one node owns: the call that waits there and that it takes up, by the state that it
/// brings (`ParkedCalls::state` of the bridge), or the tasks of servers (`Task::alias` there).
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

/// Finds the owner of the first of what has these names that is not of this node.
///
/// # Errors
/// `UPSTREAM_UNAVAILABLE` where nobody can tell at the moment which nodes live.
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
    // Of a node that has just joined this one has not heard yet.
    nodes.refresh().await.map_err(|error| {
        tracing::warn!(%error, "whether the node of a session lives cannot be told");
        forward::silent()
    })?;
    Ok(known())
}

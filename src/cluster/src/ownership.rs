//! Finds the node that owns the session, parked call or task that a request names. Each of these names begins with its node.

use std::borrow::Cow;

use serde_json::value::RawValue;

use countersign_protocol::{
    ErrorKind, McpError,
    envelope::Request,
    json::{member, string},
};
use countersign_session::cluster::ForwardTarget;
use countersign_store::Nodes;

/// Returns the node that the name of a session or task begins with.
pub fn node_of(name: &str) -> Option<&str> {
    name.split_once('.').map(|(node, _)| node)
}

/// Returns the names in a request that may begin with their node: the request state of the parked call that it resumes
/// (`ParkedCalls::seal_reference` of the bridge), or the ids of servers' tasks (`Task::alias` of the bridge).
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

/// Finds the first of the names that another live node owns, and returns that node. Returns `None` if this node owns
/// one of the names.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store cannot tell which nodes are alive.
pub async fn find_owner(nodes: &dyn Nodes, names: &[Cow<'_, str>]) -> Result<Option<ForwardTarget>, McpError> {
    let Some(own) = nodes.claimant() else { return Ok(None) };
    let owners = || names.iter().filter_map(|name| node_of(name));
    let find_live_owner = || {
        owners().find_map(|node| {
            let peer = nodes.peer(node)?;
            Some(ForwardTarget { node: node.to_owned(), url: peer.url, certificate_fingerprint: peer.certificate })
        })
    };
    if owners().next().is_none() || owners().any(|node| node == own.node) {
        return Ok(None);
    }
    if let Some(found) = find_live_owner() {
        return Ok(Some(found));
    }
    // The owner may have joined after this node last read the list of nodes.
    nodes.refresh().await.map_err(|error| {
        tracing::warn!(%error, "cannot find out whether the node that owns a session, call or task is alive");
        let text = "the store does not answer, so the gateway to which this request belongs is not known; try again";
        McpError::new(ErrorKind::StoreUnavailable, text).with("retryAfter", 1)
    })?;
    Ok(find_live_owner())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::watch;

    use super::*;
    use countersign_domain::changes::Claimant;
    use countersign_store::{
        StoreError, StoreFuture,
        nodes::{Introduction, Node, PeerAddress, ServerStates, StoreUpdates},
    };

    /// A node with one peer, whose store does not answer.
    struct FakeNodes;

    impl Nodes for FakeNodes {
        fn claimant(&self) -> Option<Claimant> {
            Some(Claimant { node: "own".into(), epoch: 1 })
        }
        fn peer(&self, node: &str) -> Option<PeerAddress> {
            (node == "live").then(|| PeerAddress { url: "http://live".into(), certificate: String::new() })
        }
        fn refresh(&self) -> StoreFuture<()> {
            Box::pin(async { Err(StoreError::Closed) })
        }
        fn subscribe_updates(&self) -> watch::Receiver<StoreUpdates> {
            watch::channel(StoreUpdates::default()).1
        }
        fn introduce(&self, _: Introduction) {}
        fn set_server_states(&self, _: ServerStates) {}
        fn list(&self) -> StoreFuture<Vec<Node>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    #[test]
    fn unknown_owner_is_an_error_of_the_store() {
        let error = find_owner(&FakeNodes, &["other.session".into()]).now_or_never().unwrap().err().unwrap();
        assert_eq!((error.kind, error.kind.status()), (ErrorKind::StoreUnavailable, 503));
        assert!(find_owner(&FakeNodes, &["own.session".into()]).now_or_never().unwrap().unwrap().is_none());
    }

    #[test]
    fn request_for_tasks_of_several_nodes_keeps_own_ones() {
        let target = |names: &[Cow<'_, str>]| {
            let owner = find_owner(&FakeNodes, names).now_or_never().unwrap().unwrap();
            owner.map(|owner| owner.node)
        };
        assert_eq!(target(&["live.task".into(), "own.task".into()]), None);
        assert_eq!(target(&["gone.task".into(), "live.task".into()]).as_deref(), Some("live"));
    }
}

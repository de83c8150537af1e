//! Deletes webhooks that were removed from the configuration. Each new leader does this, because the previous leader
//! may have ended before it deleted them.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tokio::time::sleep;

use super::{WebhookContext, Webhooks};
use countersign_domain::changes::Claimant;
use countersign_runtime::background;
use countersign_store::{StoreError, nodes::Node, webhooks::Deliveries};

/// The interval between checks for leadership.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The time during which the configuration of a node that is gone is still taken into account.
const RECENT_NODE_AGE: SignedDuration = SignedDuration::from_hours(24);

impl Webhooks {
    /// Deletes removed webhooks once whenever this node becomes the leader. Waits as long as a node that was alive within
    /// the last day has another configuration or version, which may be newer.
    pub(super) async fn delete_removed(self: Arc<Self>) {
        let Some(context) = self.context.get() else { return };
        let mut is_clean = false;
        loop {
            if !context.nodes.is_leader() {
                is_clean = false;
            } else if !is_clean {
                let _guard = self.replace_lock.lock().await;
                match self.clean_up(context).await {
                    Ok(has_cleaned_up) => is_clean = has_cleaned_up,
                    Err(error) => tracing::warn!(%error, "removed webhooks could not be deleted; retrying"),
                }
            }
            tokio::select! {
                () = context.shutdown.cancelled() => return,
                () = sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// Deletes all webhooks that are not configured. Returns `false` if the nodes do not agree yet.
    async fn clean_up(&self, WebhookContext { store, nodes, .. }: &WebhookContext) -> Result<bool, StoreError> {
        // Read before the check, so that the deletion fails if another node becomes the leader in between.
        let claimant = nodes.claimant();
        if !nodes_agree(&nodes.list().await?, nodes.now()) {
            return Ok(false);
        }
        let names = self.names.lock().clone();
        delete_others(store_of_leader(store, claimant.as_ref()), names).await.map(|()| true)
    }
}

/// Deletes all webhooks except the named ones.
pub(super) async fn delete_others(store: Arc<dyn Deliveries>, names: Vec<String>) -> Result<(), StoreError> {
    let retained = background::spawn_blocking(move || store.retain_only(&names)).await;
    retained.unwrap_or(Err(StoreError::Closed))
}

/// Returns the handle by which the leader writes. A single node has no claimant, and needs no other handle.
pub(super) fn store_of_leader(store: &Arc<dyn Deliveries>, claimant: Option<&Claimant>) -> Arc<dyn Deliveries> {
    claimant.map_or_else(|| Arc::clone(store), |claimant| store.for_leader(claimant))
}

/// Returns `true` if all live and recent nodes report the same configuration and version.
fn nodes_agree(nodes: &[Node], now: Timestamp) -> bool {
    let mut recent = nodes.iter().filter(|node| {
        let ended_at = node.lease_until.filter(|_| !node.is_alive);
        ended_at.is_none_or(|ended_at| now.duration_since(ended_at) < RECENT_NODE_AGE)
    });
    let Some(first) = recent.next().map(|node| &node.introduction) else { return false };
    !first.configuration.is_empty()
        && recent.all(|node| {
            (&node.introduction.configuration, &node.introduction.version) == (&first.configuration, &first.version)
        })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::testing::{FakeNodes, pending_delivery, webhook_context};
    use countersign_feed::Feed;
    use countersign_store::{
        StoreLocation,
        nodes::{Introduction, ServerStates},
    };

    fn node(configuration: &str, version: &str, gone_for_hours: Option<i64>) -> Node {
        let introduction =
            Introduction { version: version.into(), configuration: configuration.into(), ..Introduction::default() };
        let gone_for = SignedDuration::from_hours(gone_for_hours.unwrap_or(0));
        Node {
            id: String::new(),
            epoch: 1,
            introduction,
            server_states: ServerStates::default(),
            started_at: Timestamp::UNIX_EPOCH,
            lease_until: Some(Timestamp::now() - gone_for),
            is_alive: gone_for_hours.is_none(),
            is_leader: false,
            is_self: false,
            running: 0,
        }
    }

    /// Waits long enough for several checks.
    async fn wait_for_several_checks() {
        sleep(CHECK_INTERVAL * 3).await;
    }

    #[actix::test]
    async fn new_leader_drops_removed_webhooks_after_config_converges() {
        let dir = tempfile::tempdir().unwrap();
        let location = StoreLocation::directory(dir.path());
        let webhooks = Arc::new(Webhooks::new(Feed::new(location.open().unwrap(), 0, 1)));
        let store = location.deliveries().unwrap();
        for name in ["stays", "goes"] {
            store.position(name, 0).unwrap();
            store.enqueue(name, 1, &[pending_delivery(1, "a")]).unwrap();
        }
        let pending_count = |name: &str| store.pending(name).unwrap().len();
        let own_node = || node("own", "2", None);
        let nodes = Arc::new(FakeNodes::default());
        *nodes.list.lock().unwrap() = vec![own_node()];
        *webhooks.names.lock() = vec!["stays".to_owned()];
        let context = webhook_context(Arc::clone(&store), Arc::clone(&nodes) as _, &CancellationToken::new());
        assert!(webhooks.context.set(context).is_ok());
        tokio::time::pause();
        actix::spawn(webhooks.delete_removed());
        wait_for_several_checks().await;
        assert_eq!(pending_count("goes"), 1, "the node is not the leader");
        // The other configuration may be newer: that of a live node, of a crashed leader, or of a node that reports none yet.
        let others =
            [node("other", "2", None), node("own", "1", None), node("other", "2", Some(23)), node("", "", None)];
        for other in others {
            *nodes.list.lock().unwrap() = vec![own_node(), other];
            nodes.leads.store(true, Ordering::SeqCst);
            wait_for_several_checks().await;
            assert_eq!((pending_count("stays"), pending_count("goes")), (1, 1), "{:?}", nodes.list.lock().unwrap());
        }
        *nodes.list.lock().unwrap() = vec![own_node(), node("own", "2", Some(1)), node("other", "1", Some(25))];
        while pending_count("goes") > 0 {
            wait_for_several_checks().await;
        }
        assert_eq!(pending_count("stays"), 1);
    }
}

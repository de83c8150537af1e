//! The changes in the store, as this node reads, writes and announces them.

use std::sync::Arc;

use super::{
    ReviewConfig, actor::shared_state::SharedChangeState, shutdown::Shutdown, transition_writer::TransitionWriter,
};
use countersign_feed::Feed;
use countersign_store::{Nodes, Store};

/// The store with the writer and the feed of its changes. The upkeep and the recording of outcomes need nothing else.
pub(super) struct StoredChanges {
    pub config: Arc<ReviewConfig>,
    pub store: Arc<dyn Store>,
    pub nodes: Arc<dyn Nodes>,
    /// Writes transitions, which `PendingChanges` announces on the feed.
    pub transitions: TransitionWriter,
    pub shared: Arc<SharedChangeState>,
    pub feed: Feed,
    /// The signals that end the work on changes.
    pub shutdown: Shutdown,
}

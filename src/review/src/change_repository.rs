//! The stored changes of this node: where it reads them, writes their transitions and announces them.

use std::sync::Arc;

use super::{
    MAX_ID_BYTES, ReviewConfig, actor::indexes::ChangeIndexes, shutdown::Shutdown, store_error,
    transition_writer::TransitionWriter,
};
use countersign_domain::changes::Change;
use countersign_feed::Feed;
use countersign_protocol::McpError;
use countersign_store::{Nodes, Store};

/// The store of the changes, with the writer and the feed of their transitions. The upkeep and the recording of outcomes need
/// nothing else.
pub(super) struct ChangeRepository {
    pub config: Arc<ReviewConfig>,
    pub store: Arc<dyn Store>,
    pub nodes: Arc<dyn Nodes>,
    /// Writes transitions, which `PendingChanges` announces on the feed.
    pub transitions: TransitionWriter,
    pub indexes: Arc<ChangeIndexes>,
    pub feed: Feed,
    /// The signals that end the work on changes.
    pub shutdown: Shutdown,
}

impl ChangeRepository {
    /// Returns a change, or `None` if there is none with that id.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn find(&self, id: &str) -> Result<Option<Arc<Change>>, McpError> {
        if id.len() > MAX_ID_BYTES {
            return Ok(None);
        }
        self.store.get(id).await.map_err(store_error)
    }
}

//! The state shared by all [`super::Changes`] handles, the Executor and the upkeep tasks.

use std::{sync::Arc, time::Instant};

use actix::ArbiterHandle;
use tokio::sync::Notify;

use super::{
    ReviewConfig,
    actor::{proposal_rate::ProposalRate, shared_state::SharedChangeState},
    dialogue_channels::DialogueChannels,
    shutdown::Shutdown,
    transition_writer::TransitionWriter,
    waiting_reasons::WaitingReasons,
};
use countersign_feed::Feed;
use countersign_provider::ProviderDirectory;
use countersign_store::{Nodes, Store};

pub(super) struct Inner {
    pub config: Arc<ReviewConfig>,
    pub store: Arc<dyn Store>,
    pub nodes: Arc<dyn Nodes>,
    pub directory: Arc<dyn ProviderDirectory>,
    pub transitions: TransitionWriter,
    pub shared: Arc<SharedChangeState>,
    pub feed: Feed,
    /// Notified when the feed must be read, because a transition is missing or the outcome of a write is unknown.
    pub feed_gap: Arc<Notify>,
    pub dialogue_channels: DialogueChannels,
    pub waiting_reasons: WaitingReasons,
    pub proposal_rate: ProposalRate,
    pub started: Instant,
    /// The thread of the Executor, of rechecks and decisions, and of the upkeep and the feed.
    pub executor_thread: ArbiterHandle,
    /// The thread of `PendingChanges`.
    pub actor_thread: ArbiterHandle,
    pub shutdown: Shutdown,
}

//! The state shared by all [`super::Changes`] handles, the Executor and the upkeep tasks.

use std::{sync::Arc, time::Instant};

use actix::ArbiterHandle;
use tokio::sync::Notify;

use super::{
    ReviewConfig,
    actor::{open_changes::SharedChangeState, proposal_rate::ProposalRate},
    commit::TransitionWriter,
    dialogues::Dialogues,
    shutdown::Shutdown,
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
    pub open: Arc<SharedChangeState>,
    pub feed: Feed,
    /// Notified when the feed must be read, because a transition is missing or the outcome of a write is unknown.
    pub feed_gap: Arc<Notify>,
    pub dialogues: Dialogues,
    pub waiting_reasons: WaitingReasons,
    pub proposal_rate: ProposalRate,
    pub started: Instant,
    /// The thread of the Executor, of rechecks and decisions, and of the upkeep and the feed.
    pub executor: ArbiterHandle,
    pub writer: ArbiterHandle,
    pub shutdown: Shutdown,
}

//! The core of the reviews, which all [`super::Changes`] handles and the Executor share.

use std::{sync::Arc, time::Instant};

use actix::ArbiterHandle;

use super::{
    actor::proposal_rate::ProposalRate, change_repository::ChangeRepository, dialogue_channels::DialogueChannels,
    waiting_reasons::WaitingReasons,
};
use countersign_protocol::McpError;
use countersign_provider::ProviderDirectory;

pub(super) struct ReviewCore {
    pub repository: Arc<ChangeRepository>,
    pub directory: Arc<dyn ProviderDirectory>,
    pub dialogue_channels: DialogueChannels,
    pub waiting_reasons: WaitingReasons,
    pub proposal_rate: ProposalRate,
    pub started: Instant,
    /// The thread of the Executor, of rechecks and decisions, and of the upkeep and the feed.
    pub executor_thread: ArbiterHandle,
    /// The thread of `PendingChanges`.
    pub actor_thread: ArbiterHandle,
}

impl ReviewCore {
    /// Admits changes that the principal proposes together ([`ProposalRate::admit`]).
    ///
    /// # Errors
    /// `RATE_LIMITED`
    pub fn admit_proposals(&self, principal: &str, changes: usize) -> Result<(), McpError> {
        self.proposal_rate.admit(principal, changes, self.repository.nodes.live_count())
    }

    /// Returns `true` right after the start, when providers may still be connecting.
    pub fn is_starting(&self) -> bool {
        self.started.elapsed() < self.repository.config.tuning.provider_startup_timeout
    }
}

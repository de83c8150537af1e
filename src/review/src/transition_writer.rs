//! Sends a transition to the store and waits for the answer: write slot, actor, reply.

use std::{sync::Arc, time::Duration};

use actix::Addr;
use tokio::sync::{Semaphore, oneshot};

use super::{
    ReviewConfig,
    actor::{PendingChanges, TransitionError, TransitionResult, WriteChange, WriteSlot},
    draft,
};
use countersign_domain::changes::{
    Change,
    machine::{self, ChangeEvent, EventKind},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::large_messages::offload;
use countersign_store::{StoreError, TransitionDraft};

/// Writes transitions through the bounded queue of the actor.
pub(super) struct TransitionWriter {
    config: Arc<ReviewConfig>,
    /// The only sender to the actor: each clone of an address would add its own mailbox capacity.
    pub addr: Addr<PendingChanges>,
    slots: Arc<Semaphore>,
    /// One permit for each KiB of drafts that the queue may hold.
    queue_space: Arc<Semaphore>,
}

impl TransitionWriter {
    pub(super) fn new(config: &Arc<ReviewConfig>, addr: Addr<PendingChanges>) -> Self {
        Self {
            addr,
            slots: Arc::new(Semaphore::new(config.tuning.max_queued_writes)),
            queue_space: Arc::new(Semaphore::new(config.tuning.max_queued_bytes / 1024)),
            config: Arc::clone(config),
        }
    }

    /// Applies one event to exactly this version of the change, and returns when the transition is durable and announced.
    /// Waits for the queue and the store without a time limit: the gateway's own work must know the outcome.
    pub(super) async fn apply_event(&self, change: &Arc<Change>, event: ChangeEvent) -> TransitionResult {
        let draft = self.draft_transition(change, event).await?;
        self.write_without_timeout(draft).await
    }

    /// Like [`Self::apply_event`], for a change whose node is gone.
    pub(super) async fn apply_event_to_orphan(&self, change: &Arc<Change>, event: ChangeEvent) -> TransitionResult {
        let draft = TransitionDraft { ends_orphaned_claim: true, ..self.draft_transition(change, event).await? };
        self.write_without_timeout(draft).await
    }

    /// Like [`Self::apply_event`], for endpoints: refuses if the queue is full, and stops waiting after the write timeout.
    pub(super) async fn apply_event_for_endpoint(&self, change: &Arc<Change>, event: ChangeEvent) -> TransitionResult {
        let draft = self.draft_transition(change, event).await?;
        if draft.kind == EventKind::Edited {
            self.check_size(&draft).map_err(TransitionError::Refused)?;
        }
        self.write_for_endpoint(draft).await
    }

    /// Serializes the next transition. A large change is serialized on another thread, so that it delays no other
    /// request.
    async fn draft_transition(
        &self,
        change: &Arc<Change>,
        event: ChangeEvent,
    ) -> Result<TransitionDraft, TransitionError> {
        let edited_bytes = if let ChangeEvent::Edit { call, .. } = &event { call.arguments.get().len() } else { 0 };
        let size = change.estimated_size() + edited_bytes;
        let (change, now) = (Arc::clone(change), self.config.now());
        let draft = move || {
            let transition = machine::apply(&change, event, now).map_err(TransitionError::Illegal)?;
            draft::to_draft(transition).map_err(TransitionError::Refused)
        };
        offload(size, draft).await.map_err(TransitionError::Refused)?
    }

    /// Rejects a change that is larger than the limit.
    ///
    /// # Errors
    /// `TOO_LARGE`
    pub(super) fn check_size(&self, draft: &TransitionDraft) -> Result<(), McpError> {
        let (size, max) = (draft.body.len(), self.config.tuning.max_change_bytes);
        if size <= max {
            return Ok(());
        }
        Err(McpError::new(ErrorKind::TooLarge, "The change is too large to be reviewed")
            .with("max", max)
            .with("size", size))
    }

    /// Writes the draft, or refuses if the queue is full. Stops waiting after the write timeout.
    pub(super) async fn write_for_endpoint(&self, draft: TransitionDraft) -> TransitionResult {
        let full = |_| {
            TransitionError::Refused(McpError::new(
                ErrorKind::Overloaded,
                "Too many changes are being written; try again",
            ))
        };
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(full)?;
        let space = Arc::clone(&self.queue_space).try_acquire_many_owned(self.queue_share(&draft)).map_err(full)?;
        let write_result =
            tokio::time::timeout(self.config.tuning.write_timeout, self.send(draft, (slot, space))).await;
        // The transition may still be written after the timeout.
        write_result.unwrap_or(Err(TransitionError::Store(StoreError::OutcomeUnknown)))
    }

    async fn write_without_timeout(&self, draft: TransitionDraft) -> TransitionResult {
        let closed_error = |_| TransitionError::Store(StoreError::Closed);
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(closed_error)?;
        let space =
            Arc::clone(&self.queue_space).acquire_many_owned(self.queue_share(&draft)).await.map_err(closed_error)?;
        self.send(draft, (slot, space)).await
    }

    async fn send(&self, draft: TransitionDraft, write_slot: WriteSlot) -> TransitionResult {
        let (reply, answer) = oneshot::channel();
        // The write slots limit the messages in the mailbox, so its own capacity does not matter.
        self.addr.do_send(WriteChange { draft, write_slot, reply });
        // A missing answer means that the actor or the store has ended.
        answer.await.unwrap_or(Err(TransitionError::Store(StoreError::OutcomeUnknown)))
    }

    /// Waits until all transitions are written and announced, for at most five seconds.
    pub(super) async fn drain(&self) {
        // All slots are free then.
        let drained = self.slots.acquire_many(u32::try_from(self.config.tuning.max_queued_writes).unwrap_or(u32::MAX));
        if tokio::time::timeout(Duration::from_secs(5), drained).await.is_err() {
            tracing::warn!("some transitions had not reached the store when the gateway stopped");
        }
    }

    /// Returns the draft's share of the queue in KiB, at most all of it, so that it never waits forever.
    fn queue_share(&self, draft: &TransitionDraft) -> u32 {
        u32::try_from((draft.body.len() / 1024 + 1).min(self.config.tuning.max_queued_bytes / 1024)).unwrap_or(u32::MAX)
    }
}

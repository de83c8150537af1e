//! The way of a transition to the store and back: admission, the actor, the answer.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{
    actor::{Admission, AdvanceChange, ProposeChange, WriteFailure},
    inner::Inner,
    record,
};
use countersign_domain::changes::{
    Change,
    machine::{self, ChangeEvent, EventKind, IllegalTransition},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::lanes::{LARGE, aside};
use countersign_store::{Draft, StoreError, WriteError};

/// Why a step was not taken.
#[derive(Debug)]
pub(super) enum StepError {
    Illegal(IllegalTransition),
    /// Somebody else was quicker.
    Conflict,
    /// There is such a change (only when it is new).
    Duplicate,
    /// Another change to the same target is running.
    Busy,
    /// The claim does not hold: the lease of its node has run out, or has not yet.
    Fenced,
    /// Refused before the store; for the client as it is.
    Refused(McpError),
    Store(StoreError),
}

impl From<WriteFailure> for StepError {
    fn from(failure: WriteFailure) -> Self {
        match failure {
            WriteFailure::Refused(error) => Self::Refused(error),
            WriteFailure::Write(WriteError::Conflict) => Self::Conflict,
            WriteFailure::Write(WriteError::Duplicate) => Self::Duplicate,
            WriteFailure::Write(WriteError::Busy) => Self::Busy,
            WriteFailure::Write(WriteError::Fenced) => Self::Fenced,
            WriteFailure::Write(WriteError::Store(error)) => Self::Store(error),
        }
    }
}

impl Inner {
    /// Takes one step from exactly this state of the change, and returns when it is durable and announced.
    /// Waits for a place in the queue and for the store as long as it takes: for the gateway's own work, which
    /// must know how it ended.
    pub(super) async fn step(
        &self,
        change: &Arc<Change>,
        event: ChangeEvent,
        key_id: Option<&str>,
    ) -> Result<Arc<Change>, StepError> {
        let draft = self.draft(change, event, key_id).await?;
        let admission = self.admit_waiting(&draft).await?;
        self.send(draft, admission).await
    }

    /// As [`Inner::step`], of a change whose node is gone.
    pub(super) async fn step_for_orphan(
        &self,
        change: &Arc<Change>,
        event: ChangeEvent,
    ) -> Result<Arc<Change>, StepError> {
        let draft = Draft { orphan: true, ..self.draft(change, event, None).await? };
        let admission = self.admit_waiting(&draft).await?;
        self.send(draft, admission).await
    }

    /// As [`Inner::step`], for endpoints: refuses where the queue is full, and gives up waiting after the time-out.
    pub(super) async fn step_for_endpoint(
        &self,
        change: &Arc<Change>,
        event: ChangeEvent,
        key_id: Option<&str>,
    ) -> Result<Arc<Change>, StepError> {
        let draft = self.draft(change, event, key_id).await?;
        if draft.kind == EventKind::Edited {
            self.check_size(&draft).map_err(StepError::Refused)?;
        }
        self.write_for_endpoint(draft).await
    }

    /// The next step of a change, written down; of a large one away from this thread, which others wait for.
    async fn draft(&self, change: &Arc<Change>, event: ChangeEvent, key_id: Option<&str>) -> Result<Draft, StepError> {
        let edited = if let ChangeEvent::Edit { arguments, .. } = &event { arguments.get().len() } else { 0 };
        let weight = change.weight() + edited;
        let draft = |change: &Change, event, now, key_id: Option<&str>| {
            let transition = machine::apply(change, event, now).map_err(StepError::Illegal)?;
            record::draft(transition, key_id).map_err(StepError::Refused)
        };
        if weight <= LARGE {
            return draft(change, event, self.now(), key_id);
        }
        let (change, now, key_id) = (Arc::clone(change), self.now(), key_id.map(str::to_owned));
        aside(weight, move || draft(&change, event, now, key_id.as_deref())).await.map_err(StepError::Refused)?
    }

    /// Whether a change may be this large.
    ///
    /// # Errors
    /// `TOO_LARGE`
    pub(super) fn check_size(&self, draft: &Draft) -> Result<(), McpError> {
        let (size, max) = (draft.body.len(), self.config.max_change_bytes);
        if size <= max {
            return Ok(());
        }
        Err(McpError::new(ErrorKind::TooLarge, "The change is too large to be reviewed")
            .with("max", max)
            .with("size", size))
    }

    pub(super) async fn write_for_endpoint(&self, draft: Draft) -> Result<Arc<Change>, StepError> {
        let admission = self.admit(&draft)?;
        match tokio::time::timeout(self.config.write_timeout, self.send(draft, admission)).await {
            Ok(result) => result,
            // It may yet be written.
            Err(_) => Err(StepError::Store(StoreError::OutcomeUnknown)),
        }
    }

    async fn send(&self, draft: Draft, admission: Admission) -> Result<Arc<Change>, StepError> {
        let (reply, answer) = oneshot::channel();
        // The mailbox's own capacity is not relied on: the admission bounds what is in it.
        if draft.kind == EventKind::Created {
            self.addr.do_send(ProposeChange { draft, admission, reply });
        } else {
            self.addr.do_send(AdvanceChange { draft, admission, reply });
        }
        match answer.await {
            Ok(result) => result.map_err(StepError::from),
            // The actor or the store ended with the answer.
            Err(_) => Err(StepError::Store(StoreError::OutcomeUnknown)),
        }
    }

    fn admit(&self, draft: &Draft) -> Result<Admission, StepError> {
        let full = |_| {
            StepError::Refused(McpError::new(ErrorKind::Overloaded, "Too many changes are being written; try again"))
        };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(full)?;
        let bytes = Arc::clone(&self.place_bytes).try_acquire_many_owned(self.kibibytes(draft)).map_err(full)?;
        Ok(Admission { _place: place, _bytes: bytes })
    }

    async fn admit_waiting(&self, draft: &Draft) -> Result<Admission, StepError> {
        let closed = |_| StepError::Store(StoreError::Closed);
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(closed)?;
        let bytes = Arc::clone(&self.place_bytes).acquire_many_owned(self.kibibytes(draft)).await.map_err(closed)?;
        Ok(Admission { _place: place, _bytes: bytes })
    }

    /// What a draft takes of the queue's bytes: never more than there are, or it would wait for ever.
    fn kibibytes(&self, draft: &Draft) -> u32 {
        u32::try_from((draft.body.len() / 1024 + 1).min(self.config.queue_bytes / 1024)).unwrap_or(u32::MAX)
    }
}

//! Compares a change with its target as it is now: when it is approved, and just before it runs.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::{
    review_core::ReviewCore,
    step_dependency::{self, StepDependency},
    store_error,
    truncation::{to_fault, truncate_headlines},
    upkeep::votes,
};
use countersign_domain::{
    changes::{Change, ChangeFault, Preview, ServerIdentity, StateEffect, machine::ChangeEvent},
    policy::{Decision, Verdict},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    CallContext, Provider,
    previews::{
        self, PreviewRequest,
        compose::{ComputedPreview, StateBefore},
    },
};
use countersign_runtime::background;

/// The comparison of a change with its target.
pub(super) enum Comparison {
    /// The target and the server are as shown. The provider may run the call.
    Same(SameTarget),
    /// The target changed, or another server or definition would run the call.
    Moved(Box<Divergence>),
}

/// A target that is as the change shows it, with the provider that would run the call.
pub(super) struct SameTarget {
    pub provider: Arc<dyn Provider>,
    /// The values that the provider's recipe has read of the target, if any. The verification compares with them.
    pub before: Option<StateBefore>,
    /// The fingerprint of the target now, if it differs from that of the diff: an earlier step of the same plan has written the
    /// target since, as the diff shows.
    pub moved_fingerprint: Option<String>,
}

/// The current preview of a change whose target or server is no longer the one that was shown.
pub(super) struct Divergence {
    pub preview: Preview,
    pub served_by: ServerIdentity,
    /// The reason why the diff that was shown is no longer valid.
    pub fault: ChangeFault,
}

impl Divergence {
    /// Returns `true` if only the target changed: the server and definition are those that were shown.
    pub(super) fn has_same_server(&self, change: &Change) -> bool {
        change.served_by.fingerprint == self.served_by.fingerprint
    }
}

/// Returns the event that stops a plan because of a step that cannot run.
pub(super) fn stop_plan_event(fault: &ChangeFault) -> ChangeEvent {
    ChangeEvent::StopPlan { reason: format!("it could not be prepared: {}", fault.message), reviewer: None }
}

/// The reason why a call cannot be previewed.
pub(super) enum PreviewError {
    /// The call can no longer be made: the tool's definition changed, or the preview can never succeed again.
    Impossible(McpError),
    /// The provider cannot be asked at the moment.
    Unavailable(McpError),
}

impl PreviewError {
    fn provider_unavailable(change: &Change, message: &'static str) -> Self {
        let error = McpError::new(ErrorKind::UpstreamUnavailable, message);
        Self::Unavailable(error.with("provider", change.provider.as_str()))
    }

    /// Creates the error for a tool with another definition, which the arguments were never checked against.
    fn definition_changed() -> Self {
        Self::Impossible(McpError::new(
            ErrorKind::ChangeStale,
            "The tool's definition has changed since this was proposed; propose it again",
        ))
    }

    /// Returns the reason why the change does not run yet, if a person must do something about it.
    pub(super) fn reason_to_wait(&self) -> Option<ChangeFault> {
        match self {
            Self::Unavailable(error) if error.kind == ErrorKind::Authorization => Some(to_fault(error)),
            _ => None,
        }
    }

    pub(super) fn into_error(self) -> McpError {
        let (Self::Impossible(error) | Self::Unavailable(error)) = self;
        error
    }
}

impl ReviewCore {
    /// Returns the decision that policy makes now on a change with these arguments; `None` if it has none.
    ///
    /// # Errors
    /// `POLICY_DENIED` if policy denies the call, and `INTERNAL` if it could not be asked.
    pub(super) async fn judge(
        &self,
        change: &Arc<Change>,
        arguments: &Arc<RawValue>,
    ) -> Result<Option<Decision>, McpError> {
        let (directory, change, arguments) = (Arc::clone(&self.directory), Arc::clone(change), Arc::clone(arguments));
        // Evaluating a condition may take long.
        let decision = background::spawn_blocking(move || directory.judge_change(&change, &arguments)).await;
        match decision.map_err(|_| McpError::new(ErrorKind::Internal, "The policy could not be evaluated"))? {
            Some(Decision { verdict: Verdict::Deny, reason, .. }) => {
                let message = format!("The policy denies the call with these arguments: {reason}");
                Err(McpError::new(ErrorKind::PolicyDenied, message))
            }
            decision => Ok(decision),
        }
    }

    /// Returns the reason why a change must not run, if policy now denies its call.
    ///
    /// # Errors
    /// `INTERNAL` if policy could not be asked.
    pub(super) async fn find_denial(&self, change: &Arc<Change>) -> Result<Option<ChangeFault>, McpError> {
        match self.judge(change, &change.arguments).await {
            Ok(_) => Ok(None),
            Err(denial) if denial.kind == ErrorKind::PolicyDenied => Ok(Some(to_fault(&denial))),
            Err(error) => Err(error),
        }
    }

    /// Returns the event that must come before an approved change runs, because votes are no longer valid or policy now denies the
    /// call; `None` if the approval still holds.
    pub(super) async fn find_objection(&self, change: &Arc<Change>) -> Result<Option<ChangeEvent>, McpError> {
        if let Some(void) = votes::void_event(&self.repository, change)? {
            return Ok(Some(void));
        }
        let denial = self.find_denial(change).await?;
        Ok(denial.map(|fault| {
            // Nobody has approved an allowed step, so nobody needs to look at it again.
            if change.is_allowed_step() { stop_plan_event(&fault) } else { ChangeEvent::MarkStale { fault } }
        }))
    }

    /// Previews the change again as its proposer and compares. The returned provider is the one that was compared: if
    /// another one takes its name later, calls of this one fail.
    pub(super) async fn recheck(&self, change: &Change) -> Result<Comparison, PreviewError> {
        let (provider, ComputedPreview { preview, before, .. }) =
            self.preview_as_proposer(change, &change.arguments).await?;
        let mut preview = truncate_headlines(preview);
        let dependency = step_dependency::compose_over_plan(&self.repository, change, &mut preview)
            .await
            .map_err(|error| PreviewError::Unavailable(store_error(error)))?;
        let served_by = provider.server_identity();
        let same_server = change.served_by.fingerprint == served_by.fingerprint;
        let is_unmoved = preview.fingerprint == change.fingerprint && preview.target.lock_key == change.target.lock_key;
        // If the fingerprint has changed, so may have what the diff does not show: what a truncated one leaves out, or what the
        // effect of the call depends on.
        let shows_target = !preview.diff.truncated && preview.state_effect != StateEffect::Dependent;
        let is_as_shown = || (is_unmoved || shows_target) && change.shows(&preview);
        let same_target = match dependency {
            StepDependency::Independent => is_unmoved,
            StepDependency::BeforeEarlierSteps => is_unmoved || is_as_shown(),
            StepDependency::AfterEarlierSteps => is_as_shown(),
            StepDependency::AfterEdits => is_unmoved && change.shows(&preview),
        };
        // The message names no addresses, because the proposer reads it.
        let message = match (same_server, same_target) {
            (true, true) => {
                let moved_fingerprint = (!is_unmoved).then_some(preview.fingerprint);
                return Ok(Comparison::Same(SameTarget { provider, before, moved_fingerprint }));
            }
            (true, false) => "The target has changed since the diff was made",
            (false, _) => "The server has another command or address than when the diff was made",
        };
        let fault = ChangeFault::new(ErrorKind::ChangeStale, message);
        Ok(Comparison::Moved(Box::new(Divergence { preview, served_by, fault })))
    }

    /// Checks that the tool's known definition is the one that was shown. No server is asked.
    fn check_definition(&self, change: &Change) -> Result<(), PreviewError> {
        match self.directory.tool_hash(&change.provider, &change.tool) {
            Some(hash) if hash == change.tool_hash => Ok(()),
            // The provider was not reached since the start, so the missing hash proves nothing about the tool.
            None if !self.directory.has_tools(&change.provider) => {
                let message = "The provider of this change has not been reached yet";
                Err(PreviewError::provider_unavailable(change, message))
            }
            _ => Err(PreviewError::definition_changed()),
        }
    }

    /// Previews the change's tool with these arguments, as the proposer.
    pub(super) async fn preview_as_proposer(
        &self,
        change: &Change,
        arguments: &RawValue,
    ) -> Result<(Arc<dyn Provider>, ComputedPreview), PreviewError> {
        let Some(provider) = self.directory.provider(&change.provider) else {
            return Err(PreviewError::provider_unavailable(change, "The provider of this change is not available"));
        };
        self.check_definition(change)?;
        let proposer = Arc::new(change.proposer.to_agent());
        provider.check_available(&proposer).await.map_err(PreviewError::Unavailable)?;
        let has_definition = provider.has_definition(&change.tool, &change.tool_hash).await;
        if !has_definition.map_err(PreviewError::Unavailable)? {
            return Err(PreviewError::definition_changed());
        }
        let cancel = CancellationToken::new();
        // Dropping the guard tells the provider that the answer is no longer needed.
        let _cancel_on_drop = cancel.clone().drop_guard();
        let context = CallContext { cancel, ..CallContext::new(proposer) };
        let (tool, shown_fingerprint) = (&change.tool, &change.fingerprint);
        let arguments_only = change.plan.is_some() && previews::shows_arguments_only(&provider, tool, arguments);
        let preview = async {
            if arguments_only {
                let preview = previews::preview_arguments_only(&provider, tool, arguments, &context).await?;
                return Ok(ComputedPreview { preview, transient_error: None, before: None });
            }
            let directory = &*self.directory;
            let request = PreviewRequest { directory, provider: &provider, tool, arguments, context: &context };
            previews::recheck(request, shown_fingerprint).await
        };
        let preview = AssertUnwindSafe(preview).catch_unwind();
        match tokio::time::timeout(self.repository.config.tuning.preview_timeout, preview).await {
            Ok(Ok(Ok(computed))) => {
                // Reading the target may take long, and another definition may have become known meanwhile.
                self.check_definition(change)?;
                Ok((provider, computed))
            }
            Ok(Ok(Err(error))) if error.kind.is_transient() => Err(PreviewError::Unavailable(error)),
            Ok(Ok(Err(error))) => Err(PreviewError::Impossible(error)),
            Ok(Err(_panic)) => {
                tracing::error!(change = %change.id, provider = %change.provider, tool = %change.tool, "a preview panicked");
                Err(PreviewError::Unavailable(McpError::new(ErrorKind::Internal, "The preview failed")))
            }
            Err(_) => Err(PreviewError::Unavailable(McpError::new(ErrorKind::Timeout, "The preview took too long"))),
        }
    }
}

//! Edits of a change's arguments by a reviewer. Edited arguments are checked like the arguments of a call and
//! previewed as the proposer, and the votes start over.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{
    checks::{
        RequestResult, apply_event, check_decidable, check_request, check_reviewer, check_sign_in, is_proposer, load,
        refusal_error,
    },
    propose::check_reviewable,
};
use crate::{
    ChangeEdit, ChangeRequestError, Changes, recheck::PreviewError, review_core::ReviewCore,
    revised_terms::revise_terms, step_dependency::compose_over_plan, store_error, truncation::truncate_headlines,
};
use countersign_domain::changes::{
    Change, Editing, arguments,
    machine::{ChangeEvent, RevisedCall},
    plan::{find_references, has_references},
    visible,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{ProviderDirectory, previews::compose::ComputedPreview};
use countersign_runtime::{crash::crash_point, large_messages::offload};

impl Changes {
    /// Replaces the arguments of a pending or stale change. They are checked against the tool's schema and previewed as
    /// the proposer, and votes start over. Continues if the future is dropped.
    ///
    /// # Errors
    /// `SHUTTING_DOWN`, `FORBIDDEN`, `INVALID_PARAMS` (the comment is too long), `SELF_APPROVAL`, `EDIT_FORBIDDEN`,
    /// `SIGN_IN_REQUIRED`, `CHANGE_NOT_FOUND`, `CHANGE_NOT_PENDING`, `VERSION_CONFLICT`, `CHANGE_STALE`, `CHANGE_EXPIRED`,
    /// `VALIDATION_FAILED`, `POLICY_DENIED`, `TOO_LARGE`, `OVERLOADED`, the provider's error about the preview, and the errors
    /// of the store. All conflicts carry the current change.
    pub async fn edit(&self, edit: ChangeEdit) -> RequestResult {
        check_request(&self.core, &edit.reviewer, edit.comment.as_deref())?;
        let core = Arc::clone(&self.core);
        self.core.run_on_executor(async move { edit_now(&core, edit).await }).await
    }
}

async fn edit_now(core: &ReviewCore, edit: ChangeEdit) -> RequestResult {
    let ChangeEdit { id, reviewer, arguments, version, comment } = edit;
    let comment = visible::visible_comment(comment);
    let change = load(core, &id).await?;
    if change.terms.edit == Editing::Forbidden {
        let message = "The rule for this change lets nobody edit its arguments; reject it and say why";
        return Err(refusal_error(ErrorKind::EditForbidden, message, &change));
    }
    if is_proposer(&reviewer, &change) {
        return Err(refusal_error(ErrorKind::SelfApproval, "The proposer of a change cannot edit it", &change));
    }
    check_reviewer(core, &reviewer, &change)?;
    check_decidable(core, &change, version).await?;
    check_sign_in(core, &reviewer, &change)?;
    let arguments: Arc<RawValue> = arguments.into();
    let (edited_change, edited_arguments) = (Arc::clone(&change), Arc::clone(&arguments));
    let (directory, max) = (Arc::clone(&core.directory), core.repository.config.tuning.max_change_bytes);
    let bytes = change.arguments.get().len() + arguments.get().len();
    let prepared = async {
        offload(bytes, move || check_arguments(&*directory, max, &edited_change, &edited_arguments)).await??;
        let (_, terms) = revise_terms(core, &change, &arguments).await?;
        let (provider, ComputedPreview { preview, .. }) =
            core.preview_as_proposer(&change, &arguments).await.map_err(PreviewError::into_error)?;
        let mut preview = truncate_headlines(preview);
        compose_over_plan(&core.repository, &change, &mut preview).await.map_err(store_error)?;
        Ok(RevisedCall { arguments, preview, served_by: provider.server_identity(), terms: Box::new(terms) })
    };
    let call = prepared.await.map_err(|error| ChangeRequestError { error, current: Some(Arc::clone(&change)) })?;
    let event = ChangeEvent::Edit { editor: (*reviewer).clone(), comment, call };
    crash_point("before_edit");
    let edited = apply_event(core, &change, event).await;
    crash_point("after_edit");
    edited
}

/// Checks edited arguments like those of every reviewed call, and that they differ from the current ones.
fn check_arguments(
    directory: &dyn ProviderDirectory,
    max: usize,
    change: &Change,
    edited: &RawValue,
) -> Result<(), McpError> {
    check_reviewable(edited, max, ErrorKind::ValidationFailed)?;
    if arguments::are_equal(&change.arguments, edited) {
        return Err(McpError::new(
            ErrorKind::ValidationFailed,
            "The change already has these arguments; approve it without an edit",
        ));
    }
    if let Some(plan) = change.plan.as_ref().filter(|_| has_references(edited)) {
        // The schema is checked once the references are filled in.
        return find_references(edited, plan.index as usize)
            .map(drop)
            .map_err(|e| McpError::new(ErrorKind::ValidationFailed, e.to_string()));
    }
    directory.validate(&change.provider, &change.tool, edited)
}

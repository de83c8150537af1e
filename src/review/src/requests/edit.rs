//! Edits of a change's arguments by a reviewer. Edited arguments are checked like the arguments of a call and
//! previewed as the proposer, and the votes start over.

use std::{collections::BTreeSet, sync::Arc};

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
    step_dependency::compose_over_plan, store_error, truncation::truncate_headlines,
};
use countersign_domain::{
    changes::{
        Change, ChangeState, Editing, SignInTerms, Terms, arguments,
        machine::{ChangeEvent, RevisedCall},
        plan::{find_references, has_references},
        visible,
    },
    policy::{Decision, Verdict, terms::stricter_terms},
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
        let (_, terms) = terms_for_arguments(core, &change, &arguments).await?;
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

/// Returns the verdict of policy on a change with these arguments, whether edited, filled in or its own, and the terms of its
/// review. The terms of the proposal are combined with those that policy sets now, so that new arguments cannot avoid a rule.
pub(crate) async fn terms_for_arguments(
    core: &ReviewCore,
    change: &Arc<Change>,
    arguments: &Arc<RawValue>,
) -> Result<(Verdict, Terms), McpError> {
    let Some(Decision { verdict, reason, terms: current_terms, .. }) = core.judge(change, arguments).await? else {
        return Ok((Verdict::Allow, change.terms.clone()));
    };
    let terms = if change.is_allowed_step() && change.state == ChangeState::Approved {
        // Policy asked for no review when the step was proposed, so the terms are those that policy sets now.
        Terms { expire_after: change.terms.expire_after, ..Terms::clone(&current_terms) }
    } else if verdict == Verdict::Allow {
        change.terms.clone()
    } else {
        combine_terms(&change.terms, &current_terms).ok_or_else(|| {
            McpError::new(
                ErrorKind::PolicyDenied,
                format!(
                    "With these arguments, the call requires other reviewers or another sign-in ({reason}); reject the \
                     change and say why"
                ),
            )
            .with("reviewers", current_terms.reviewers.as_slice())
        })?
    };
    Ok((verdict, terms))
}

/// Combines two sets of terms; of each term, the stricter value counts. Returns `None` if they name different reviewers, or
/// kinds of authentication that have nothing in common, because then nobody may decide.
fn combine_terms(before: &Terms, now: &Terms) -> Option<Terms> {
    let set = |terms: &Terms| terms.reviewers.iter().cloned().collect::<BTreeSet<_>>();
    let reviewers = match (before.reviewers.is_empty(), now.reviewers.is_empty()) {
        (_, true) => before.reviewers.clone(),
        (true, false) => now.reviewers.clone(),
        (false, false) if set(before) == set(now) => before.reviewers.clone(),
        (false, false) => return None,
    };
    if let (Some(SignInTerms { acr, .. }), Some(now)) = (&before.sign_in, &now.sign_in)
        && !acr.is_empty()
        && !now.acr.is_empty()
        && !acr.iter().any(|acr| now.acr.contains(acr))
    {
        return None;
    }
    // These were fixed by the proposal: the time of expiry, and the client's capabilities for questions.
    Some(Terms {
        reviewers,
        expire_after: before.expire_after,
        on_expiry: before.on_expiry,
        questions: before.questions,
        ..stricter_terms(before, now)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edited_call_has_the_stricter_terms_of_both_rules() {
        let plain = Terms::default();
        let strict = Terms {
            reviewers: vec!["dba".into(), "admin".into()],
            quorum: 2,
            require_comment: true,
            edit: Editing::Forbidden,
            undo_for: 30,
            preview_required: true,
            ..Terms::default()
        };
        assert_eq!(combine_terms(&plain, &strict).unwrap(), strict);
        assert_eq!(combine_terms(&strict, &plain).unwrap(), strict);
        let reordered = Terms { reviewers: vec!["admin".into(), "dba".into()], ..plain.clone() };
        assert_eq!(combine_terms(&strict, &reordered).unwrap(), strict);
        let others = Terms { reviewers: vec!["legal".into()], ..plain };
        assert_eq!(combine_terms(&strict, &others), None);
        let signing_in = |acr: &[&str]| {
            let acr = acr.iter().map(|acr| (*acr).to_owned()).collect();
            Terms { sign_in: Some(SignInTerms { max_age: None, acr }), ..Terms::default() }
        };
        assert_eq!(combine_terms(&signing_in(&["a", "b"]), &signing_in(&["b"])), Some(signing_in(&["b"])));
        assert_eq!(combine_terms(&signing_in(&[]), &signing_in(&["b"])), Some(signing_in(&["b"])));
        assert_eq!(combine_terms(&signing_in(&["a"]), &signing_in(&["b"])), None);
    }
}

//! Prepares an approved step of a plan: checks that it is its turn and that policy still allows it, and fills in the results of
//! earlier steps.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{RetryReason, commit_transition};
use crate::{
    recheck::{PreviewError, stop_plan_event},
    requests::propose::check_reviewable,
    review_core::ReviewCore,
    revised_terms::revise_terms,
    store_error,
    truncation::{to_fault, truncate_headlines},
    upkeep::expiry,
};
use countersign_domain::{
    changes::{
        Change, PlanStep, Terms,
        machine::{ChangeEvent, RevisedCall},
        plan::{PlanProgress, fill_references},
    },
    policy::Verdict,
};
use countersign_protocol::{ErrorKind, McpError, json};

/// The result of preparing an approved change.
pub(super) enum Preparation {
    /// The change may run as it was approved.
    AsApproved,
    /// The step must wait for its plan. `upkeep::plans` sends it again when the plan advances.
    NotItsTurn,
    /// The step cannot be prepared at the moment.
    Unavailable(McpError),
    /// This event must be applied first: it shows the step to reviewers again, or stops its plan.
    Needs(Box<ChangeEvent>),
}

/// Prepares a step of a plan. A change outside a plan runs as it was approved. `is_own` tells whether this node is to run the
/// change; otherwise it stands in for a node that may be gone.
pub(super) async fn prepare(core: &ReviewCore, change: &Arc<Change>, is_own: bool) -> Result<Preparation, RetryReason> {
    let Some(plan) = &change.plan else { return Ok(Preparation::AsApproved) };
    let steps = match core.repository.store.plan_states(&plan.id).await {
        Ok(steps) => steps,
        Err(error) => return Ok(Preparation::Unavailable(store_error(error))),
    };
    match PlanProgress::from_steps(&steps) {
        PlanProgress::Ready { step, at } if steps.get(step).is_some_and(|step| step.change == change.id) => {
            // An approval of the plan can still be undone, and the store would refuse the claim.
            if at.is_some_and(|at| at > core.repository.config.now()) {
                return Err(RetryReason::TargetOccupied);
            }
        }
        _ => return Ok(Preparation::NotItsTurn),
    }
    if !check_later_steps(core, plan, is_own).await? {
        return Ok(Preparation::NotItsTurn);
    }
    let has_references = change.has_open_references();
    if !has_references && !change.is_allowed_step() {
        return Ok(Preparation::AsApproved);
    }
    let prepared = if change.is_allowed_step() && !proposer_may_call(core, change)? {
        let reason = "its proposer, whose call policy allowed, may no longer make it: the key or the person was revoked, or has \
                      another role now";
        Ok(Some(ChangeEvent::StopPlan { reason: reason.into(), reviewer: None }))
    } else if has_references {
        fill_in_results(core, change).await
    } else {
        check_policy(core, change).await
    };
    match prepared {
        Ok(None) => Ok(Preparation::AsApproved),
        Err(error) if error.kind.is_transient() => Ok(Preparation::Unavailable(error)),
        // The node that is to run the step does this itself if it is alive. If it is gone, the leader does it.
        Ok(Some(_)) | Err(_) if !is_own && !core.repository.nodes.is_leader() => Err(RetryReason::Unavailable),
        Ok(Some(event)) => Ok(Preparation::Needs(Box::new(event))),
        Err(error) => Ok(Preparation::Needs(Box::new(stop_plan_event(&to_fault(&error))))),
    }
}

/// Returns `true` if the proposer of an allowed step may still make calls. Nobody approved the call, so only the proposer's own
/// rights permit it.
fn proposer_may_call(core: &ReviewCore, change: &Change) -> Result<bool, RetryReason> {
    core.repository.config.reviewers.may_still_call(&change.proposer.to_agent()).map_err(|error| {
        tracing::error!(%error, change = %change.id, "the rights of a proposer cannot be checked; trying again");
        RetryReason::Unavailable
    })
}

/// Takes back the approvals of later steps that no longer hold, because a step runs only while all later ones are approved.
/// Returns `true` if there were none.
async fn check_later_steps(core: &ReviewCore, plan: &PlanStep, is_own: bool) -> Result<bool, RetryReason> {
    if plan.last {
        return Ok(true);
    }
    let unreadable = |error: McpError| {
        tracing::error!(%error, plan = %plan.id, "the later steps of a plan cannot be checked; trying again");
        RetryReason::Unavailable
    };
    let steps = core.repository.store.plan(&plan.id).await.map_err(|error| unreadable(store_error(error)))?;
    let mut are_valid = true;
    for step in steps.iter().filter(|step| step.plan.as_ref().is_some_and(|later| later.index > plan.index)) {
        // Policy cannot be asked about the tools of a server that is still connecting.
        if core.is_starting() && !core.directory.has_tools(&step.provider) {
            return Err(RetryReason::ProviderStarting);
        }
        let Some(event) = core.find_objection(step).await.map_err(unreadable)? else { continue };
        if !is_own && !core.repository.nodes.is_leader() {
            // The node that is to run the step does this itself if it is alive. If it is gone, the leader does it.
            return Err(RetryReason::Unavailable);
        }
        commit_transition(core, step, event).await?;
        are_valid = false;
    }
    Ok(are_valid)
}

/// Fills in the results of earlier steps, and previews the call with them.
async fn fill_in_results(core: &ReviewCore, change: &Arc<Change>) -> Result<Option<ChangeEvent>, McpError> {
    let Some(plan) = &change.plan else { return Ok(None) };
    let steps = core.repository.store.plan(&plan.id).await.map_err(store_error)?;
    let results: Vec<Option<String>> = steps.iter().map(|step| result_value(step)).collect();
    let invalid = |text: String| McpError::new(ErrorKind::ValidationFailed, text);
    let filled = fill_references(&change.arguments, plan.index as usize, |from| results.get(from)?.as_deref());
    let filled = filled.map_err(|e| invalid(e.to_string()))?;
    let arguments: Arc<RawValue> = RawValue::from_string(filled).map_err(|e| invalid(e.to_string()))?.into();
    check_reviewable(&arguments, core.repository.config.tuning.max_change_bytes, ErrorKind::ValidationFailed)?;
    core.directory.validate(&change.provider, &change.tool, &arguments)?;
    let judged = revise_terms(core, change, &arguments).await?;
    let comment = "Filled in the results of earlier steps of its plan";
    preview_again(core, change, comment, arguments, judged).await.map(Some)
}

/// Returns an event if policy no longer allows a step that it allowed when the plan was proposed.
async fn check_policy(core: &ReviewCore, change: &Arc<Change>) -> Result<Option<ChangeEvent>, McpError> {
    if core.directory.tool_hash(&change.provider, &change.tool).is_none() {
        // The policy cannot be asked about a tool that is not known yet.
        return Err(McpError::new(
            ErrorKind::UpstreamUnavailable,
            "The provider of this step does not offer its tool now",
        ));
    }
    let judged = revise_terms(core, change, &change.arguments).await?;
    if judged.0 == Verdict::Allow {
        return Ok(None);
    }
    let arguments = Arc::clone(&change.arguments);
    let comment = "The policy asks for a review of this step now";
    preview_again(core, change, comment, arguments, judged).await.map(Some)
}

/// Previews the call with these arguments, and returns the event that shows it to reviewers again.
async fn preview_again(
    core: &ReviewCore,
    change: &Change,
    comment: &str,
    arguments: Arc<RawValue>,
    (verdict, terms): (Verdict, Terms),
) -> Result<ChangeEvent, McpError> {
    let (provider, computed) = core.preview_as_proposer(change, &arguments).await.map_err(PreviewError::into_error)?;
    // A step that policy allowed has waited for the others, so its own time may be over.
    let expires_at = expiry::expiry_time(&core.repository, change).await.map_err(store_error)?;
    Ok(ChangeEvent::Fill {
        comment: comment.to_owned(),
        call: RevisedCall {
            arguments,
            preview: truncate_headlines(computed.preview),
            served_by: provider.server_identity(),
            terms: Box::new(terms),
        },
        is_allowed: verdict == Verdict::Allow,
        expires_at,
    })
}

/// Returns the value to which references to a step point: the structured content of its result, or else the JSON in its only
/// text.
fn result_value(step: &Change) -> Option<String> {
    let result = step.result.as_ref()?.get();
    if let Some(structured) = json::member(result, "structuredContent").filter(|value| *value != "null") {
        return Some(structured.to_owned());
    }
    let mut blocks = json::elements(json::member(result, "content")?);
    let (Some((_, block)), None) = (blocks.next(), blocks.next()) else { return None };
    let text = json::string(json::member(block, "text")?)?;
    serde_json::from_str::<&RawValue>(&text).ok().map(|value| value.get().to_owned())
}

//! Turns the calls of a plan into changes: all at once, or one by one.

use std::sync::Arc;

use super::{
    checks::into_client_error,
    propose::{
        CallIdentity, answer_repeat, draft_change, find_by_key, find_existing, key_conflict_error, write_new_change,
    },
};
use crate::{Changes, Proposal, actor::TransitionError, review_core::ReviewCore, store_error};
use countersign_domain::changes::{
    Change, PlanStep,
    machine::ChangeEvent,
    plan::{
        MAX_REASON_BYTES, MAX_STEPS, MAX_TITLE_BYTES, PlanProgress, StepState, compose_over, find_references,
        is_written_by,
    },
    visible::has_visible_text,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::crash::crash_point;
use countersign_store::TransitionDraft;

/// The maximum number of attempts to store a step, if other steps of its plan arrive at the same time.
const MAX_ATTEMPTS: usize = 8;

/// A plan whose calls an agent proposes all at once.
pub struct PlanProposal {
    pub title: String,
    /// The agent's reason for the plan.
    pub reason: Option<String>,
    /// The proposals of the steps, in order.
    pub steps: Vec<Proposal>,
}

/// A plan as an agent announces it with one of its calls.
#[derive(Clone, Debug)]
pub struct PlanAnnouncement {
    /// See [`countersign_domain::changes::plan::plan_id`].
    pub id: String,
    pub title: String,
    /// `true` if no call of the plan follows.
    pub last: bool,
}

impl Changes {
    /// Stores the steps of a new plan, in this order. A plan that a crash leaves without its last step never runs, and expires.
    /// If a plan with the same calls has the same idempotency key in its first step, that plan is returned, after the steps that
    /// it lacks were stored.
    ///
    /// # Errors
    /// The errors of [`Changes::propose`]; without a key, the steps that were already stored are withdrawn. `INVALID_PARAMS` for
    /// a plan without steps or with too many, or for a title or reason that is too long; `PLAN_STOPPED` if the plan with the same
    /// key has stopped before its last step was stored.
    pub async fn propose_plan(&self, plan: PlanProposal) -> Result<Vec<Arc<Change>>, McpError> {
        let core = &*self.core;
        core.repository.shutdown.check_open()?;
        check_texts(&plan.title, plan.reason.as_deref())?;
        let steps = &plan.steps;
        let Some(first_step) = steps.first().filter(|_| steps.len() <= MAX_STEPS) else {
            return Err(invalid_params_error(format!("A plan has 1 to {MAX_STEPS} calls")));
        };
        crash_point("before_propose");
        let mut is_counted = false;
        for _ in 0..MAX_ATTEMPTS {
            let stored = match find_existing(core, first_step).await? {
                Some(first) => {
                    let calls: Vec<_> = steps.iter().map(CallIdentity::from_proposal).collect();
                    find_repeated_steps(core, &first, &calls).await?
                }
                None => Vec::new(),
            };
            let missing = steps.len() - stored.len();
            if missing == 0 {
                return Ok(stored);
            }
            if !is_counted {
                core.admit_proposals(&first_step.proposer.principal, missing)?;
                is_counted = true;
            }
            let drafts = prepare_missing_steps(core, &plan, &stored)?;
            let is_repeatable = first_step.idempotency_key.is_some();
            if let Some(steps) = store_missing_steps(core, stored, drafts, is_repeatable).await? {
                return Ok(steps);
            }
        }
        Err(McpError::new(ErrorKind::Overloaded, "Another request is storing the same plan; repeat the call"))
    }

    /// Returns the steps of the plan that the principal has proposed with this idempotency key, if all of them are stored. See
    /// [`Changes::find_repeated`].
    ///
    /// # Errors
    /// `IDEMPOTENCY_CONFLICT` if it was another plan; `PLAN_STOPPED` as for [`Changes::propose_plan`]; the errors of the store.
    pub async fn find_repeated_plan(
        &self,
        principal: &str,
        key: &str,
        calls: &[CallIdentity<'_>],
    ) -> Result<Option<Vec<Arc<Change>>>, McpError> {
        let Some(first) = find_by_key(&self.core, principal, key).await? else { return Ok(None) };
        let steps = find_repeated_steps(&self.core, &first, calls).await?;
        Ok((steps.len() == calls.len()).then_some(steps))
    }

    /// Stores the next step of a plan whose calls come one by one. No step runs before the last one is stored.
    ///
    /// # Errors
    /// The errors of [`Changes::propose`]; `PLAN_STOPPED` if a step has ended without being applied; `INVALID_PARAMS` if the plan is
    /// complete or has too many steps; `OVERLOADED` if too many steps arrive at the same time.
    pub async fn propose_step(
        &self,
        mut proposal: Proposal,
        announcement: PlanAnnouncement,
    ) -> Result<Arc<Change>, McpError> {
        let core = &*self.core;
        core.repository.shutdown.check_open()?;
        check_texts(&announcement.title, None)?;
        crash_point("before_propose");
        let principal = proposal.proposer.principal.clone();
        if let Some(existing) = find_existing(core, &proposal).await? {
            return answer_repeat(existing, CallIdentity::from_proposal(&proposal), Some(&announcement.id));
        }
        core.admit_proposals(&principal, 1)?;
        let PlanAnnouncement { id, title, last } = announcement;
        let original_preview = proposal.preview.clone();
        for _ in 0..MAX_ATTEMPTS {
            let steps = core.repository.store.plan(&id).await.map_err(store_error)?;
            let index = next_index(&steps)?;
            if index as usize + 1 == MAX_STEPS && !last {
                return Err(invalid_params_error(format!(
                    "A plan has at most {MAX_STEPS} calls; this must be the last one"
                )));
            }
            // Only a check: the references are filled in when the step runs.
            find_references(&proposal.arguments, index as usize)
                .map_err(|error| McpError::new(ErrorKind::ValidationFailed, error.to_string()))?;
            proposal.preview = original_preview.clone();
            compose_preview(&mut proposal, steps.iter().map(|step| &**step));
            proposal.plan = Some(PlanStep { id: id.clone(), title: title.clone(), reason: None, index, last });
            match write_new_change(core, draft_change(core, proposal.clone())?).await {
                Err(TransitionError::Duplicate) => {
                    // Another call of the plan took the place, unless it was this call.
                    if let Some(existing) = find_existing(core, &proposal).await? {
                        return answer_repeat(existing, CallIdentity::from_proposal(&proposal), Some(&id));
                    }
                }
                written => return written.map_err(into_client_error),
            }
        }
        Err(McpError::new(
            ErrorKind::Overloaded,
            "Too many calls of the plan arrive at the same time; send them in order",
        ))
    }

    /// Stops a plan of the principal by withdrawing its stored steps, because one of its calls was refused.
    pub async fn refuse_plan(&self, id: &str, principal: &str, reason: &str) {
        match self.core.repository.store.plan(id).await {
            Ok(mut steps) => {
                steps.retain(|step| step.proposer.principal == principal);
                stop_plan(&self.core, &steps, reason).await;
            }
            Err(error) => tracing::warn!(%error, plan = id, "the steps of a refused plan could not be read"),
        }
    }
}

/// Prepares the steps of a plan that follow those that are `stored`, before the first of them is stored.
fn prepare_missing_steps(
    core: &ReviewCore,
    plan: &PlanProposal,
    stored: &[Arc<Change>],
) -> Result<Vec<TransitionDraft>, McpError> {
    let PlanProposal { title, reason, steps } = plan;
    let id = match stored.first().and_then(|step| step.plan.as_ref()) {
        Some(plan) => plan.id.clone(),
        None => format!("plan_{}", nanoid::nanoid!(24, &nanoid::alphabet::SAFE[2..])),
    };
    let longest_expiry = steps.iter().map(|step| step.expire_after).max().unwrap_or_default();
    let mut drafts: Vec<TransitionDraft> = Vec::with_capacity(steps.len());
    for (position, proposal) in steps.iter().enumerate().skip(stored.len()) {
        let mut proposal = proposal.clone();
        let earlier = stored.iter().map(|step| &**step).chain(drafts.iter().map(|draft| &*draft.change));
        compose_preview(&mut proposal, earlier);
        if proposal.terms.quorum == 0 {
            // An allowed step waits as long as those that people decide on.
            proposal.expire_after = longest_expiry;
        }
        proposal.plan = Some(PlanStep {
            id: id.clone(),
            title: title.clone(),
            reason: reason.clone(),
            index: u32::try_from(position).unwrap_or(u32::MAX),
            last: position + 1 == steps.len(),
        });
        match draft_change(core, proposal) {
            Ok(draft) => drafts.push(draft),
            Err(error) => {
                drafts.iter().for_each(|draft| core.repository.indexes.duplicates.remove(&draft.change.id));
                return Err(error.with("step", position));
            }
        }
    }
    Ok(drafts)
}

/// Stores the steps of a plan that follow those that are `stored`, and returns all. Returns `None` if another request has stored
/// one of them meanwhile. If one cannot be stored and the call cannot be repeated, those before it are withdrawn.
async fn store_missing_steps(
    core: &ReviewCore,
    mut stored: Vec<Arc<Change>>,
    drafts: Vec<TransitionDraft>,
    is_repeatable: bool,
) -> Result<Option<Vec<Arc<Change>>>, McpError> {
    let mut drafts = drafts.into_iter();
    while let Some(draft) = drafts.next() {
        match write_new_change(core, draft).await {
            Ok(change) => stored.push(change),
            Err(error) => {
                drafts.for_each(|draft| core.repository.indexes.duplicates.remove(&draft.change.id));
                if matches!(error, TransitionError::Duplicate) {
                    return Ok(None);
                }
                if !is_repeatable {
                    stop_plan(core, &stored, "the plan could not be stored as a whole").await;
                }
                return Err(into_client_error(error).with("step", stored.len()));
            }
        }
    }
    Ok(Some(stored))
}

/// Returns the steps that were stored for the same idempotency key, if they are the first ones of these calls. If there
/// are fewer steps than calls, the plan can still continue.
async fn find_repeated_steps(
    core: &ReviewCore,
    first: &Change,
    calls: &[CallIdentity<'_>],
) -> Result<Vec<Arc<Change>>, McpError> {
    let steps = match &first.plan {
        Some(plan) => core.repository.store.plan(&plan.id).await.map_err(store_error)?,
        None => Vec::new(),
    };
    let is_complete = steps.last().and_then(|step| step.plan.as_ref()).is_some_and(|plan| plan.last);
    let has_all = steps.len() == calls.len();
    if steps.is_empty()
        || steps.len() > calls.len()
        || is_complete != has_all
        || !steps.iter().zip(calls).all(|(step, call)| call.is_origin_of(step))
    {
        return Err(key_conflict_error(first));
    }
    if !has_all {
        next_index(&steps)?;
    }
    Ok(steps)
}

/// Returns the position of the next step.
///
/// # Errors
/// `INVALID_PARAMS` if the plan is complete; `PLAN_STOPPED` if it has stopped.
fn next_index(steps: &[Arc<Change>]) -> Result<u32, McpError> {
    let states: Vec<StepState> = steps.iter().filter_map(|step| StepState::from_change(step)).collect();
    let Some(newest) = states.last() else { return Ok(0) };
    if newest.last {
        return Err(invalid_params_error("The plan is complete: a call of it was marked as the last one"));
    }
    // Retention may have deleted old steps.
    let has_all = newest.index as usize + 1 == states.len();
    if matches!(PlanProgress::from_steps(&states), PlanProgress::Stopped { .. }) || !has_all {
        return Err(McpError::new(ErrorKind::PlanStopped, "The plan has stopped; propose a new one with another id"));
    }
    Ok(newest.index + 1)
}

/// Updates the preview of a proposal to what it will show after the earlier steps.
fn compose_preview<'a>(proposal: &mut Proposal, earlier: impl Iterator<Item = &'a Change>) {
    let writers: Vec<&Change> =
        earlier.filter(|step| is_written_by(step, &proposal.provider, &proposal.preview)).collect();
    compose_over(&mut proposal.preview, writers);
}

/// Stops a plan by withdrawing the first of these steps that can be withdrawn. `upkeep::plans` withdraws the others.
async fn stop_plan(core: &ReviewCore, steps: &[Arc<Change>], reason: &str) {
    for step in steps {
        let event = ChangeEvent::StopPlan { reason: reason.to_owned(), reviewer: None };
        match core.repository.transitions.apply_event(step, event).await {
            Ok(_) => return,
            Err(error) => tracing::debug!(?error, change = %step.id, "a step of a refused plan could not be withdrawn"),
        }
    }
}

/// Checks the size of the title and the reason of a plan.
fn check_texts(title: &str, reason: Option<&str>) -> Result<(), McpError> {
    if title.len() > MAX_TITLE_BYTES || !has_visible_text(title) {
        return Err(invalid_params_error(format!("The title of a plan has 1 to {MAX_TITLE_BYTES} bytes")));
    }
    if reason.is_some_and(|reason| reason.len() > MAX_REASON_BYTES) {
        return Err(invalid_params_error(format!("The reason for a plan has at most {MAX_REASON_BYTES} bytes")));
    }
    Ok(())
}

fn invalid_params_error(message: impl Into<std::borrow::Cow<'static, str>>) -> McpError {
    McpError::new(ErrorKind::InvalidParams, message)
}

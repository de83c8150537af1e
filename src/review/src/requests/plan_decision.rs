//! Plans as reviewers see them, and decisions on all steps of a plan at once.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use utoipa::ToSchema;

use super::{
    checks::{ReviewerRight, check_request, find_reviewer_right, refusal_error, version_conflict_error},
    decide::{check_decision, record_decision},
};
use crate::{ChangeDecision, ChangeRequestError, Changes, MAX_ID_BYTES, review_core::ReviewCore, store_error};
use countersign_domain::{
    changes::{Change, Proposer, ReviewVerdict, person::Person, plan::StepState},
    principal::Principal,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_store::unread_result_error;

/// A plan: the calls that an agent announced together, as changes in the order in which they run.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// `plan_` and 24 characters.
    pub id: String,
    pub title: String,
    /// The agent's reason for the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub proposer: Proposer,
    /// The sum of the versions of its changes, which grows with each of their transitions.
    pub version: u64,
    /// `true` if the last step is stored. No step runs before.
    pub is_complete: bool,
    /// The reason why the rest of the plan does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// The steps, in order.
    pub changes: Vec<Arc<Change>>,
}

/// A decision on a plan as it comes from an endpoint.
#[derive(Clone, Debug)]
pub struct PlanDecision {
    pub id: String,
    pub reviewer: Arc<Principal>,
    pub verdict: ReviewVerdict,
    pub comment: Option<String>,
    /// The version of the plan that was shown, if the endpoint has it.
    pub version: Option<u64>,
    /// The digests of all steps that were shown, by the ids of their changes.
    pub digests: BTreeMap<String, String>,
}

impl Plan {
    /// Creates the view of the plan with these steps, or returns `None` if there are none.
    fn new(id: &str, changes: Vec<Arc<Change>>) -> Option<Self> {
        let states: Vec<StepState> = changes.iter().filter_map(|change| StepState::from_change(change)).collect();
        // The step that ended first stopped the plan; others were withdrawn for that reason.
        let ended_steps = states.iter().zip(&changes).filter(|(step, _)| step.stops_plan());
        let stopped = ended_steps.min_by_key(|(_, change)| change.updated_at).map(|(step, _)| step.describe_end());
        let first = changes.first()?;
        let step = first.plan.as_ref()?;
        Some(Self {
            id: id.to_owned(),
            title: step.title.clone(),
            reason: step.reason.clone(),
            proposer: first.proposer.clone(),
            version: changes.iter().map(|change| change.version).sum(),
            is_complete: states.last().is_some_and(|step| step.last),
            stopped,
            changes,
        })
    }
}

impl Changes {
    /// Returns a plan, or `None` if there is none with that id.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn plan(&self, id: &str) -> Result<Option<Plan>, McpError> {
        let found = load(&self.core, id).await?;
        Ok(found.map(|mut plan| {
            plan.changes = plan.changes.into_iter().map(|change| self.core.waiting_reasons.add_to(change)).collect();
            plan
        }))
    }

    /// Approves or rejects all steps of a plan that wait for this reviewer, each with the checks of [`Changes::decide`]. If a
    /// check fails, or a step is not as it was shown, nothing is decided. If a step changes or the store fails while the decisions
    /// are recorded, the earlier ones stay. An approval leaves out the steps that the reviewer has approved, or has edited if the
    /// editor may not approve. A rejection also withdraws the approved steps that have not begun.
    ///
    /// # Errors
    /// Those of [`Changes::decide`], about the first step that fails; `NOT_FOUND`; `VERSION_CONFLICT` if the plan is no longer as
    /// it was shown; `CHANGE_NOT_PENDING` if no step waits, if the plan has stopped, or for an approval of a plan without its last
    /// step; `FORBIDDEN` if the waiting steps are for other reviewers.
    pub async fn decide_plan(&self, decision: PlanDecision) -> Result<Plan, ChangeRequestError> {
        check_request(&self.core, &decision.reviewer, decision.comment.as_deref())?;
        let core = Arc::clone(&self.core);
        self.core.run_on_executor(async move { decide_now(&core, decision).await }).await
    }
}

async fn load(core: &ReviewCore, id: &str) -> Result<Option<Plan>, McpError> {
    if id.len() > MAX_ID_BYTES {
        return Ok(None);
    }
    let steps = core.repository.store.plan(id).await.map_err(store_error)?;
    Ok(Plan::new(id, steps))
}

/// Checks all decisions before it records the first one.
async fn decide_now(core: &ReviewCore, decision: PlanDecision) -> Result<Plan, ChangeRequestError> {
    let PlanDecision { id, reviewer, verdict, comment, version, digests } = decision;
    let not_found = || McpError::new(ErrorKind::NotFound, "Plan not found");
    let plan = load(core, &id).await?.ok_or_else(not_found)?;
    check_shown(&plan, version, &digests)?;
    let approves = verdict == ReviewVerdict::Approve;
    let not_pending = |message: String| Err(McpError::new(ErrorKind::ChangeNotPending, message).into());
    if let Some(reason) = &plan.stopped {
        return not_pending(format!("The plan has stopped: {reason}"));
    }
    if approves && !plan.is_complete {
        return not_pending("The plan is not complete: the agent has not sent its last call yet".into());
    }
    let is_open = |step: &Change| step.state.awaits_decision() || (!approves && step.is_approved_step());
    let waiting: Vec<&Arc<Change>> = plan.changes.iter().filter(|step| is_open(step)).collect();
    let mut to_decide: Vec<&Arc<Change>> = Vec::new();
    for step in waiting.iter().copied() {
        if awaits_reviewer(core, step, &reviewer, approves)? {
            to_decide.push(step);
        }
    }
    if to_decide.is_empty() {
        let Some(step) = waiting.first() else { return not_pending("No step of the plan waits for a decision".into()) };
        let message = "No step of the plan waits for you: the rest is for other reviewers, or has your vote or edit";
        return Err(refusal_error(ErrorKind::Forbidden, message, step));
    }
    let mut checked = Vec::with_capacity(to_decide.len());
    for step in to_decide {
        let decision = ChangeDecision {
            id: step.id.clone(),
            reviewer: Arc::clone(&reviewer),
            verdict,
            comment: comment.clone(),
            version: step.version,
            digest: Some(step.digest.clone()),
            bulk: true,
        };
        checked.push(check_decision(core, decision).await?);
    }
    let (mut is_decided, mut refusal) = (false, None);
    for (step, event) in checked {
        match record_decision(core, &step, event).await {
            Ok(_) => is_decided = true,
            // The first rejection stops the plan, which may have withdrawn this step. An approved step may have begun to run.
            Err(refused) if !approves && refused.current.as_ref().is_some_and(|now| !now.state.awaits_decision()) => {
                refusal.get_or_insert(refused);
            }
            // The error of the store says that nothing was changed, which is true of this step only.
            Err(refused) if is_decided && refused.error.kind == ErrorKind::StoreUnavailable => {
                let message = "The store failed after some steps of the plan were decided; look at the plan again";
                return Err(McpError::new(ErrorKind::StoreUnavailable, message).with("outcome", "unknown").into());
            }
            Err(refused) => return Err(refused),
        }
    }
    if let Some(refused) = refusal.filter(|_| !is_decided) {
        return Err(refused);
    }
    let decided = load(core, &id).await.map_err(|_| unread_result_error())?;
    decided.ok_or_else(|| not_found().into())
}

/// Rejects a decision unless all steps of the plan were shown as they are now.
fn check_shown(
    plan: &Plan,
    version: Option<u64>,
    digests: &BTreeMap<String, String>,
) -> Result<(), ChangeRequestError> {
    let differs = |step: &&Arc<Change>| digests.get(&step.id) != Some(&step.digest);
    if let Some(step) = plan.changes.iter().find(differs) {
        return Err(version_conflict_error(step));
    }
    if digests.len() != plan.changes.len() || version.is_some_and(|version| version != plan.version) {
        let message = "The plan is no longer as it was shown; look at it again and decide then";
        return Err(McpError::new(ErrorKind::VersionConflict, message).with("version", plan.version).into());
    }
    Ok(())
}

/// Returns `true` if this reviewer may still decide on the step. An approval counts only once for each person, and that of an
/// editor may not count.
fn awaits_reviewer(core: &ReviewCore, step: &Change, reviewer: &Principal, approves: bool) -> Result<bool, McpError> {
    let person = Person::from_principal(reviewer);
    let is_barred_editor = !step.terms.editors_may_approve() && step.editors_could_include(person);
    if approves && (is_barred_editor || step.approvers_could_include(person)) {
        return Ok(false);
    }
    Ok(match find_reviewer_right(core, reviewer, step)? {
        None => false,
        Some(ReviewerRight::Own) => true,
        Some(ReviewerRight::Deputy(absent)) => !approves || step.may_be_approved_by_deputy_of(&absent),
    })
}

//! The preview of a step in the light of the earlier steps of its plan.

use super::inner::Inner;
use countersign_domain::changes::{
    Change, ChangeState, Preview,
    plan::{compose_over, is_written_by},
};
use countersign_store::StoreError;

/// Tells whether earlier steps of the plan write what the preview of a step has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanState {
    /// No earlier step does, or the change is no step.
    Independent,
    /// Earlier steps do, and none of them has run.
    BeforeEarlierSteps,
    /// Earlier steps do, and some have run, so that the target has moved.
    AfterEarlierSteps,
    /// No earlier step that does has run, but the arguments of one were edited, so that the step may show what other calls
    /// would have left.
    AfterEdits,
}

/// Shows the preview of a step as it will be after the earlier steps that have not run yet.
pub(super) async fn compose_over_plan(
    inner: &Inner,
    change: &Change,
    preview: &mut Preview,
) -> Result<PlanState, StoreError> {
    let Some(plan) = change.plan.as_ref().filter(|plan| plan.index > 0) else { return Ok(PlanState::Independent) };
    let mut writers = inner.store.plan(&plan.id).await?;
    writers.retain(|step| step.plan.as_ref().is_some_and(|earlier| earlier.index < plan.index));
    let is_edited = writers.iter().any(|step| !step.edits.is_empty());
    writers.retain(|step| is_written_by(step, &change.provider, preview));
    let has_run = |step: &Change| step.state == ChangeState::Applied;
    compose_over(preview, writers.iter().filter(|step| !has_run(step)).map(|step| &**step));
    Ok(match writers.iter().any(|step| has_run(step)) {
        true => PlanState::AfterEarlierSteps,
        false if is_edited => PlanState::AfterEdits,
        false if writers.is_empty() => PlanState::Independent,
        false => PlanState::BeforeEarlierSteps,
    })
}

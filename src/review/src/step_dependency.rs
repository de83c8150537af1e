//! Previews a step of a plan as the earlier steps will leave its target.

use super::change_repository::ChangeRepository;
use countersign_domain::changes::{
    Change, ChangeState, Preview,
    plan::{compose_over, is_written_by},
};
use countersign_store::StoreError;

/// The dependency of a step on what earlier steps of its plan write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepDependency {
    /// No earlier step writes what the preview has read, or the change is not a step.
    Independent,
    /// Earlier steps write it, and none of them has run.
    BeforeEarlierSteps,
    /// Earlier steps write it, and some of them have run, so that the target has moved.
    AfterEarlierSteps,
    /// No step that writes it has run, but the arguments of an earlier step were edited. The step may have been shown as the
    /// original calls would leave it.
    AfterEdits,
}

/// Updates the preview of a step to what it will show after the earlier steps that have not run yet.
pub(super) async fn compose_over_plan(
    repository: &ChangeRepository,
    change: &Change,
    preview: &mut Preview,
) -> Result<StepDependency, StoreError> {
    let Some(plan) = change.plan.as_ref().filter(|plan| plan.index > 0) else { return Ok(StepDependency::Independent) };
    let mut writers = repository.store.plan(&plan.id).await?;
    writers.retain(|step| step.plan.as_ref().is_some_and(|earlier| earlier.index < plan.index));
    let is_edited = writers.iter().any(|step| !step.edits.is_empty());
    writers.retain(|step| is_written_by(step, &change.provider, preview));
    let has_run = |step: &Change| step.state == ChangeState::Applied;
    compose_over(preview, writers.iter().filter(|step| !has_run(step)).map(|step| &**step));
    Ok(match writers.iter().any(|step| has_run(step)) {
        true => StepDependency::AfterEarlierSteps,
        false if is_edited => StepDependency::AfterEdits,
        false if writers.is_empty() => StepDependency::Independent,
        false => StepDependency::BeforeEarlierSteps,
    })
}

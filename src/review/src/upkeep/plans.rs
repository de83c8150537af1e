//! Advances plans. The next step of a plan goes to the Executor once all steps are approved, and the rest of a plan is withdrawn
//! once a step has ended without being applied. Every node does it; the versions of the changes decide which one is first.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::{
    actor::{ApprovedChange, PlanUpdate, TransitionError},
    change_repository::ChangeRepository,
};
use countersign_domain::changes::{
    Change,
    machine::ChangeEvent,
    plan::{PlanProgress, StepState},
};
use countersign_runtime::crash::crash_point;
use countersign_store::StoreError;

/// The interval at which all open plans are checked for steps to withdraw.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Advances the plans whose steps have changed, and all open plans at the start, until the gateway closes.
pub(crate) async fn run(
    repository: Arc<ChangeRepository>,
    mut updates: UnboundedReceiver<PlanUpdate>,
    approved: UnboundedSender<ApprovedChange>,
) {
    // The plans to advance, and whether this node runs their next step.
    let mut plans: BTreeMap<String, bool> = BTreeMap::new();
    let mut check = tokio::time::interval(CHECK_INTERVAL);
    let mut is_start = true;
    loop {
        tokio::select! {
            () = repository.shutdown.stop.cancelled() => return,
            update = updates.recv() => match update {
                Some(update) => *plans.entry(update.plan).or_default() |= update.is_own,
                None => return,
            },
            _ = check.tick() => {
                match repository.store.open_plans().await {
                    Ok(open) if is_start => {
                        is_start = false;
                        let is_alone = repository.nodes.live_count() <= 1;
                        plans.extend(open.into_iter().map(|plan| (plan, is_alone)));
                    }
                    Ok(open) => withdraw_stopped(&repository, &open).await,
                    Err(error) => {
                        tracing::warn!(%error, "the open plans could not be read; trying again");
                        check.reset_after(repository.config.tuning.retry_delay);
                    }
                }
            }
            // Plans that could not be advanced.
            () = tokio::time::sleep(repository.config.tuning.retry_delay), if !plans.is_empty() => {}
        }
        while let Ok(update) = updates.try_recv() {
            *plans.entry(update.plan).or_default() |= update.is_own;
        }
        for (plan, is_own) in std::mem::take(&mut plans) {
            if let Err(error) = advance(&repository, &plan, is_own, &approved).await {
                if matches!(error, StoreError::Closed) {
                    return;
                }
                tracing::warn!(%error, plan, "a plan could not be advanced; trying again");
                plans.insert(plan, is_own);
            }
        }
    }
}

/// Passes the next step to the Executor if it may run, or withdraws the rest of the plan if it has stopped.
async fn advance(
    repository: &ChangeRepository,
    plan: &str,
    is_own: bool,
    approved: &UnboundedSender<ApprovedChange>,
) -> Result<(), StoreError> {
    let steps = repository.store.plan_states(plan).await?;
    match PlanProgress::from_steps(&steps) {
        PlanProgress::Stopped { .. } => withdraw_rest(repository, plan).await,
        PlanProgress::Ready { step, at } => {
            let Some(StepState { change, version, .. }) = steps.get(step) else { return Ok(()) };
            let Some(change) = repository.store.get(change).await?.filter(|change| change.version == *version) else {
                return Ok(());
            };
            let next = ApprovedChange::for_step(&change, at, repository.config.now());
            // An error means that the Executor has stopped; the next start runs the step.
            let _ = approved.send(if is_own { next } else { next.with_handover_delay() });
            Ok(())
        }
        PlanProgress::Waiting | PlanProgress::Finished => Ok(()),
    }
}

/// Withdraws the rest of those plans that have stopped.
async fn withdraw_stopped(repository: &ChangeRepository, plans: &[String]) {
    for plan in plans {
        if let Err(error) = withdraw_rest(repository, plan).await {
            tracing::warn!(%error, plan, "a plan could not be checked; trying again later");
        }
    }
}

/// Withdraws the steps of a stopped plan that have not run. Does nothing if the plan has not stopped.
async fn withdraw_rest(repository: &ChangeRepository, plan: &str) -> Result<(), StoreError> {
    let steps = repository.store.plan_states(plan).await?;
    let PlanProgress::Stopped { reason } = PlanProgress::from_steps(&steps) else { return Ok(()) };
    for step in steps.iter().filter(|step| step.can_be_withdrawn()) {
        loop {
            let change = repository.store.get(&step.change).await?;
            let can_be_withdrawn =
                |change: &Arc<Change>| StepState::from_change(change).is_some_and(|step| step.can_be_withdrawn());
            let Some(change) = change.filter(can_be_withdrawn) else { break };
            crash_point("before_plan_stop");
            let stop = ChangeEvent::StopPlan { reason: reason.clone(), reviewer: None };
            match repository.transitions.apply_event(&change, stop).await {
                Ok(_) => {
                    crash_point("after_plan_stop");
                    break;
                }
                // A decision that came at the same time has changed the version.
                Err(TransitionError::Conflict) => {}
                Err(TransitionError::Store(error)) => return Err(error),
                Err(error) => return Err(StoreError::BadRecord(format!("{}: {error:?}", change.id))),
            }
        }
    }
    Ok(())
}

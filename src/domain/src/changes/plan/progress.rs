//! The progress of a plan, derived from the states of its steps.

use jiff::Timestamp;

use crate::changes::{Change, ChangeState};

/// The state of one step of a plan, in the order of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepState {
    pub change: String,
    pub version: u64,
    pub state: ChangeState,
    pub index: u32,
    /// `true` if no step follows.
    pub last: bool,
    /// The time until which its approval can be undone.
    pub run_after: Option<Timestamp>,
}

impl StepState {
    /// Returns the state of a change that is a step of a plan.
    pub fn from_change(change: &Change) -> Option<Self> {
        let plan = change.plan.as_ref()?;
        Some(Self {
            change: change.id.clone(),
            version: change.version,
            state: change.state,
            index: plan.index,
            last: plan.last,
            run_after: change.run_after,
        })
    }

    /// Returns `true` if the step has ended without being applied.
    pub fn stops_plan(&self) -> bool {
        self.state.is_final() && self.state != ChangeState::Applied
    }

    /// Describes the end of a step that stops its plan.
    pub fn describe_end(&self) -> String {
        format!("step {} of its plan ({}) {}", self.index + 1, self.change, describe_state(self.state))
    }

    /// Returns `true` if the step has not begun to run. It is withdrawn if its plan stops.
    pub const fn can_be_withdrawn(&self) -> bool {
        self.state.awaits_decision() || matches!(self.state, ChangeState::Approved)
    }
}

/// The progress of a plan, which determines the step that may run now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanProgress {
    /// A step ended without being applied, so that the rest never runs.
    Stopped { reason: String },
    /// The plan waits for its last step, for a decision, for the end of a run or for the settling of an outcome.
    Waiting,
    /// The step at the position `step` may run, from `at` on if an approval of the plan can be undone until then.
    Ready { step: usize, at: Option<Timestamp> },
    /// All steps are applied.
    Finished,
}

impl PlanProgress {
    /// Determines the progress of the plan with these steps, given in the order of the plan.
    pub fn from_steps(steps: &[StepState]) -> Self {
        // Steps are also withdrawn because another one has ended, which is then the reason.
        let ended_steps = steps.iter().filter(|step| step.stops_plan());
        if let Some(ended_step) = ended_steps.min_by_key(|step| step.state == ChangeState::Withdrawn) {
            return Self::Stopped { reason: ended_step.describe_end() };
        }
        if !is_complete(steps) {
            return Self::Waiting;
        }
        let Some(step) = steps.iter().position(|step| step.state != ChangeState::Applied) else {
            return Self::Finished;
        };
        let rest = &steps[step..];
        if rest.iter().any(|step| step.state != ChangeState::Approved) {
            return Self::Waiting;
        }
        Self::Ready { step, at: rest.iter().filter_map(|step| step.run_after).max() }
    }
}

/// Returns `true` if all steps up to the last one are stored.
fn is_complete(steps: &[StepState]) -> bool {
    steps.last().is_some_and(|step| step.last)
        && steps.iter().enumerate().all(|(position, step)| step.index as usize == position)
}

/// Returns the end of a sentence about a step that stops its plan.
const fn describe_state(state: ChangeState) -> &'static str {
    match state {
        ChangeState::Rejected => "was rejected",
        ChangeState::Expired => "expired",
        ChangeState::Withdrawn => "was withdrawn",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(states: &[ChangeState]) -> Vec<StepState> {
        let step = |(position, state): (usize, &ChangeState)| StepState {
            change: format!("chg_{position}"),
            version: 1,
            state: *state,
            index: u32::try_from(position).unwrap(),
            last: position + 1 == states.len(),
            run_after: None,
        };
        states.iter().enumerate().map(step).collect()
    }

    #[test]
    fn first_open_step_is_ready_once_all_are_approved() {
        use ChangeState::{Applied, Approved, Executing, OutcomeUnknown, Pending, Stale};
        let progress = |states: &[ChangeState]| PlanProgress::from_steps(&steps(states));
        assert_eq!(progress(&[Approved, Approved]), PlanProgress::Ready { step: 0, at: None });
        assert_eq!(progress(&[Applied, Approved]), PlanProgress::Ready { step: 1, at: None });
        assert_eq!(progress(&[Applied, Applied]), PlanProgress::Finished);
        for open in [Pending, Stale, Executing, OutcomeUnknown] {
            assert_eq!(progress(&[open, Approved]), PlanProgress::Waiting, "{open:?}");
            assert_eq!(progress(&[Approved, open]), PlanProgress::Waiting, "{open:?}");
            assert_eq!(progress(&[Applied, open, Approved]), PlanProgress::Waiting, "{open:?}");
        }
        assert_eq!(progress(&[]), PlanProgress::Waiting);
    }

    #[test]
    fn undo_of_any_approval_delays_the_next_step() {
        let mut plan = steps(&[ChangeState::Approved; 3]);
        plan[1].run_after = Some(Timestamp::from_second(7).unwrap());
        plan[2].run_after = Some(Timestamp::from_second(5).unwrap());
        assert_eq!(PlanProgress::from_steps(&plan), PlanProgress::Ready { step: 0, at: plan[1].run_after });
    }

    #[test]
    fn incomplete_plan_waits_and_failed_step_stops_it() {
        use ChangeState::{Applied, Approved, Expired, Failed, Pending, Rejected, Withdrawn};
        let mut incomplete = steps(&[Approved, Approved]);
        incomplete[1].last = false;
        assert_eq!(PlanProgress::from_steps(&incomplete), PlanProgress::Waiting);
        assert_eq!(PlanProgress::from_steps(&steps(&[Approved, Approved, Approved])[1..]), PlanProgress::Waiting);
        for (end, described) in
            [(Rejected, "was rejected"), (Expired, "expired"), (Withdrawn, "was withdrawn"), (Failed, "failed")]
        {
            let PlanProgress::Stopped { reason } = PlanProgress::from_steps(&steps(&[Applied, end, Pending])) else {
                panic!("{end:?} must stop the plan")
            };
            assert_eq!(reason, format!("step 2 of its plan (chg_1) {described}"));
            incomplete[0].state = end;
            assert!(matches!(PlanProgress::from_steps(&incomplete), PlanProgress::Stopped { .. }), "{end:?}");
        }
    }
}

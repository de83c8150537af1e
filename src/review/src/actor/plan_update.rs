//! Announces to `upkeep::plans` that the state of a step has changed.

/// A changed state of a step. Another step of the plan may run now, or the plan stops.
#[derive(Debug)]
pub(crate) struct PlanUpdate {
    /// The id of the plan.
    pub plan: String,
    /// `true` if this node made the transition. It then also runs the next step.
    pub is_own: bool,
}

//! Announces to `upkeep::plans` that the state of a step has changed.

/// A plan with a step whose state has changed, so that another step may run, or the plan stops.
#[derive(Debug)]
pub(crate) struct MovedPlan {
    pub id: String,
    /// `true` if this node made the transition. It then also runs the next step.
    pub is_own: bool,
}

//! The news that a step of a plan has moved.

/// A plan one of whose steps has moved, so that another one may run, or none.
#[derive(Debug)]
pub(crate) struct MovedPlan {
    pub id: String,
    /// This node made the transition, so that it runs the next step.
    pub is_own: bool,
}

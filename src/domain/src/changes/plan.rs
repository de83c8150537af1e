//! Plans: calls that an agent announces together, which are reviewed together and run in order. A plan has no state of its own:
//! its progress follows from the states of the changes that are its steps.

mod composition;
mod progress;
mod references;

pub use composition::{compose_over, is_written_by};
pub use progress::{PlanProgress, StepState};
pub use references::{MAX_REFERENCES, ReferenceError, fill_references, find_references, has_references};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Change, ChangeState, Preview,
    digest::{PartHasher, hex},
};

/// The maximum number of steps of a plan.
pub const MAX_STEPS: usize = 50;
/// The maximum size of the title of a plan, in bytes.
pub const MAX_TITLE_BYTES: usize = 200;
/// The maximum size of the reason for a plan, in bytes.
pub const MAX_REASON_BYTES: usize = 2000;
/// The maximum size of the id that an agent gives a plan, in bytes.
pub const MAX_CLIENT_ID_BYTES: usize = 128;

/// The place of a change in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStep {
    /// The id of the plan: `plan_` and 24 characters.
    pub id: String,
    /// The agent's name for the plan.
    pub title: String,
    /// The agent's reason for the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The position of the step, from 0.
    pub index: u32,
    /// `true` if no step follows.
    pub last: bool,
}

impl PlanStep {
    /// Returns the number of the step for people, from 1.
    pub const fn number(&self) -> u32 {
        self.index + 1
    }
}

/// Returns the id of the plan that a principal calls `client_id`. Different principals never share a plan.
pub fn plan_id(principal: &str, client_id: &str) -> String {
    let mut hasher = PartHasher::new("countersign.plan.1");
    hasher.add_part(principal.as_bytes()).add_part(client_id.as_bytes());
    format!("plan_{}", &hex(&hasher.finish_bytes())[..24])
}

impl Change {
    /// Returns `true` for a step of a plan that policy allows without a review.
    pub const fn is_allowed_step(&self) -> bool {
        self.plan.is_some() && self.terms.quorum == 0
    }

    /// Returns `true` for a step of a plan that is approved and has not begun to run.
    pub const fn is_approved_step(&self) -> bool {
        self.plan.is_some() && matches!(self.state, ChangeState::Approved)
    }

    /// Returns `true` if a preview shows a reviewer exactly what the change shows.
    pub fn shows(&self, preview: &Preview) -> bool {
        let Preview { note, operation, target, summary, diff, .. } = preview.clone();
        Self { preview: note, operation, target, summary, diff, ..self.clone() }.review_digest() == self.digest
    }

    /// Returns `true` if the change is a step whose arguments still refer to results of earlier steps.
    pub fn has_open_references(&self) -> bool {
        self.plan.is_some() && has_references(&self.arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_ids_are_scoped_to_their_principal() {
        assert_eq!(plan_id("agent", "a"), plan_id("agent", "a"));
        assert_eq!(plan_id("agent", "a").len(), 29);
        assert_ne!(plan_id("agent", "a"), plan_id("other", "a"));
        assert_ne!(plan_id("ab", "c"), plan_id("a", "bc"));
    }
}

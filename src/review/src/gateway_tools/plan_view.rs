//! A plan as the agent that proposed it sees it.

use std::{fmt::Write as _, sync::Arc};

use schemars::JsonSchema;
use serde::Serialize;

use super::view::{ListedChange, to_result};
use countersign_domain::changes::{Change, PlanStep};
use countersign_provider::{ToolResult, text::one_line};

/// The place of a change in its plan.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("additionalProperties" = true))]
pub(super) struct PlanPlace<'a> {
    plan_id: &'a str,
    title: &'a str,
    /// The position, from 0.
    step: u32,
    /// No call of the plan follows.
    last: bool,
}

impl<'a> PlanPlace<'a> {
    pub(super) fn new(plan: &'a PlanStep) -> Self {
        Self { plan_id: &plan.id, title: &plan.title, step: plan.index, last: plan.last }
    }
}

/// Describes the place of a change in its plan for a model.
pub(super) fn plan_note(plan: &PlanStep) -> String {
    let place = format!("It is step {} (counted from 0) of the plan {}.", plan.index, plan.id);
    let rule =
        "Nothing of a plan runs before all its steps are approved; they run in order, and the first failure ends it.";
    if plan.last {
        return format!("{place} {rule}");
    }
    format!("{place} {rule} Its other steps follow.")
}

/// The `structuredContent` of the answer to `propose_plan`.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("additionalProperties" = true))]
pub(super) struct PlanView<'a> {
    /// The id of the plan (`plan_…`).
    plan_id: &'a str,
    /// The steps, in order.
    changes: Vec<ListedChange<'a>>,
    /// The next step for the agent.
    next_step: &'a str,
}

/// Returns the answer to `propose_plan`, with the steps of the plan in order.
pub fn plan_result(steps: &[Arc<Change>]) -> ToolResult {
    let plan_id = steps.first().and_then(|step| step.plan.as_ref()).map_or("", |plan| &plan.id);
    let mut text = format!("Plan proposed. ID: {plan_id}\n");
    for (position, step) in steps.iter().enumerate() {
        let summary = one_line(&step.for_proposer().summary, 400).into_owned();
        let _ = writeln!(text, "- step {position}: {} [{}] {summary}", step.id, step.state.as_str());
    }
    let last = steps.last().map_or("", |step| &step.id);
    let next_step = format!(
        "call wait_for_change with {{\"changeId\": \"{last}\"}} to wait for the last step, and get_change for the others. The \
         steps run in order once all of them are approved. Do not propose the same calls again."
    );
    let _ = write!(text, "Nothing has been changed yet.\nNext: {next_step}");
    let changes = steps.iter().map(|step| ListedChange::new(step)).collect();
    let view = PlanView { plan_id, changes, next_step: &next_step };
    to_result(&text, &view)
}

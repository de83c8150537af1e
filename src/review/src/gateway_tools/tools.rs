//! The gateway's tools as they are listed. A model learns here how to work with changes that wait for a person.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};

use super::{
    plan_view::PlanView,
    view::{ChangeView, ListView},
};
use countersign_domain::changes::{
    ChangeState,
    plan::{MAX_REASON_BYTES, MAX_STEPS, MAX_TITLE_BYTES},
};
use countersign_protocol::annotations::ToolAnnotations;
use countersign_provider::{ToolDef, schema::Limit};

/// The longest cursor of `list_changes`.
pub(super) const MAX_CURSOR_CHARS: usize = 64;
/// The wait of `wait_for_change` in seconds if the caller names none. It is below the timeout of common clients (60 s).
const DEFAULT_WAIT_SECONDS: u64 = 45;

const READ_ONLY: ToolAnnotations = ToolAnnotations::READ_ONLY;

/// Returns the longest and the default wait, in seconds.
pub(super) fn wait_bounds(max_wait: Duration) -> (u64, u64) {
    let max = max_wait.as_secs().max(1);
    (max, DEFAULT_WAIT_SECONDS.min(max))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ChangeIdArgs {
    /// # Change
    /// The id of the change, as the answer to the write gave it: chg_ and 24 characters.
    #[schemars(length(min = 5, max = 64))]
    pub change_id: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct WithdrawArgs {
    /// # Change
    /// The id of the change, as the answer to the write gave it: chg_ and 24 characters.
    #[schemars(length(min = 5, max = 64))]
    pub change_id: String,
    /// # Reason
    /// Why you no longer want the change. Reviewers see it in the change's timeline.
    #[schemars(length(max = 1000))]
    pub reason: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ListArgs {
    /// # Status
    /// Only changes with this status; `open` for all that have not ended.
    #[schemars(extend("enum" = status_names()))]
    pub status: Option<String>,
    /// # Limit
    /// The most changes to return.
    #[serde(default)]
    pub limit: Limit<20, 100>,
    /// # Cursor
    /// The nextCursor of the page before, with the same status.
    #[schemars(length(max = MAX_CURSOR_CHARS))]
    pub cursor: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct WaitArgs {
    /// # Change
    /// The id of the change, as the answer to the write gave it: chg_ and 24 characters.
    #[schemars(length(min = 5, max = 64))]
    pub change_id: String,
    /// # Time-out
    /// How many seconds to wait at most.
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<f64>,
    /// # Until
    /// `done` waits for the outcome, `decided` only for the person's decision.
    #[serde(default)]
    pub until: WaitGoal,
}

/// The name of the tool with which an agent proposes several calls together.
pub const PROPOSE_PLAN: &str = "propose_plan";

/// The arguments of [`PROPOSE_PLAN`].
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProposePlanArgs {
    /// # Title
    /// What the plan achieves, in a few words for the reviewer.
    #[schemars(length(min = 1, max = MAX_TITLE_BYTES))]
    pub title: String,
    /// # Reason
    /// Why it is wanted, for the reviewer.
    #[schemars(length(max = MAX_REASON_BYTES))]
    pub reason: Option<String>,
    /// # Calls
    /// The calls, in the order in which they run.
    #[schemars(length(min = 1, max = MAX_STEPS))]
    pub calls: Vec<PlannedCall>,
}

/// One call of a plan.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlannedCall {
    /// # Tool
    /// The name of the tool, as in the list of tools.
    #[schemars(length(min = 1))]
    pub name: String,
    /// # Arguments
    /// The arguments of the call.
    #[schemars(with = "Option<Map<String, Value>>")]
    pub arguments: Option<Box<RawValue>>,
}

/// The event that ends a wait: the outcome, or the decision.
#[derive(Clone, Copy, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum WaitGoal {
    #[default]
    Done,
    Decided,
}

fn status_names() -> Vec<&'static str> {
    std::iter::once("open").chain(ChangeState::VARIANTS.iter().map(|state| state.as_str())).collect()
}

/// Defines a tool that takes arguments of the type `A` and answers with the type `R`.
fn tool_def<A: JsonSchema, R: JsonSchema>(
    name: &str,
    title: &str,
    description: &str,
    annotations: ToolAnnotations,
) -> ToolDef {
    let mut tool = ToolDef::for_types::<A, R>(name, title, description, annotations);
    tool.input_schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    ToolDef { self_service: true, long_running: name == "wait_for_change", ..tool }
}

/// Returns the definitions of the tools. `max_wait` is the longest wait that they accept.
pub fn tool_definitions(max_wait: Duration) -> Vec<ToolDef> {
    let (max, default) = wait_bounds(max_wait);
    let mut wait = tool_def::<WaitArgs, ChangeView<'_>>(
        "wait_for_change",
        "Wait for change",
        &format!(
            "Waits until a change that you proposed is decided and done, for at most timeoutSeconds (up to {max}), \
             and answers as get_change does. If timedOut is true, nothing is wrong: call it again, or go on with \
             work that does not depend on the change."
        ),
        READ_ONLY,
    );
    let timeout = &mut wait.input_schema["properties"]["timeoutSeconds"];
    (timeout["maximum"], timeout["default"]) = (max.into(), default.into());
    vec![
        tool_def::<ChangeIdArgs, ChangeView<'_>>(
            "get_change",
            "Get change",
            "Shows the state of a change that you proposed. Behind this gateway a write may become a pending change: \
             nothing is altered until a person approves it. The answer says the status, who decided and why, the \
             result once it was applied, and what to do next. After a rejection, heed the reviewer's reason.",
            READ_ONLY,
        ),
        tool_def::<ListArgs, ListView<'_>>(
            "list_changes",
            "List changes",
            "Lists the changes that you proposed, newest first. `open` are those that have not ended: pending, stale, \
             approved, executing or of unknown outcome. Look here before you propose something again.",
            READ_ONLY,
        ),
        wait,
        tool_def::<WithdrawArgs, ChangeView<'_>>(
            "withdraw_change",
            "Withdraw change",
            "Takes back a change that you proposed and that nobody has decided yet. Nothing is altered. Use it when \
             the change is no longer wanted, or before you propose a corrected one.",
            ToolAnnotations { read_only_hint: false, ..READ_ONLY },
        ),
        tool_def::<ProposePlanArgs, PlanView<'_>>(
            PROPOSE_PLAN,
            "Propose plan",
            "Proposes several calls that belong together, so that a person reviews them as one plan. Nothing runs until all \
             of them are approved; then they run in the order of `calls`, and the first failure ends the plan. An argument \
             can stand for a string or a number that an earlier call returns: {\"$from\": 0, \"pointer\": \"/id\"} is the \
             member `id` of the first call's structured result. A call that the policy denies refuses the whole plan.",
            ToolAnnotations {
                read_only_hint: false,
                destructive_hint: true,
                idempotent_hint: false,
                open_world_hint: true,
            },
        ),
    ]
}

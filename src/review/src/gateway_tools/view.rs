//! A change as an agent sees it: its structured form with the schema, and the answers that contain it. They show only what a
//! proposer may see ([`ProposerView`]).

use std::borrow::Cow;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};

use super::{
    plan_view::PlanPlace,
    schema::{decisions_schema, diff_schema, fault_schema},
    text::{change_text, next_step},
};
use countersign_domain::changes::{
    AbsentPerson, Change, ChangeFault, ChangeState, Diff, Operation, ReviewDecision, proposer_view::ProposerView,
};
use countersign_provider::{ToolResult, schema::output_schema, text::tool_result};

/// The `structuredContent` of all answers that contain a change.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("additionalProperties" = true))]
pub(super) struct ChangeView<'a> {
    #[serde(flatten)]
    common: ListedChange<'a>,
    version: u64,
    /// The id of the thing that it would alter, or null if it does not exist yet.
    entity_id: Option<&'a str>,
    provider: &'a str,
    /// The values before and after, field by field.
    #[schemars(schema_with = "diff_schema")]
    diff: Cow<'a, Diff>,
    /// Your open change that asked for the same call when this one was proposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate_of: Option<&'a str>,
    /// The decisions, with their reasons.
    #[schemars(schema_with = "decisions_schema")]
    decisions: Vec<ReviewDecision>,
    /// The reason why it failed, expired, went stale or ended unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fault_schema")]
    fault: Option<Cow<'a, ChangeFault>>,
    /// The plan of which the change is a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<PlanPlace<'a>>,
    /// The answer of the tool, once the change was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Map<String, Value>")]
    result: Option<&'a RawValue>,
    /// The next step for the agent.
    next_step: String,
    /// Only set in answers to a wait: the wait ended before the change reached the requested state.
    #[serde(skip_serializing_if = "Option::is_none")]
    timed_out: Option<bool>,
}

impl<'a> ChangeView<'a> {
    pub(super) fn new(change: &'a Change) -> Self {
        let ProposerView { entity_id, diff, fault, .. } = change.for_proposer();
        Self {
            common: ListedChange::new(change),
            version: change.version,
            entity_id,
            provider: &change.provider,
            diff,
            duplicate_of: change.duplicate_of.as_deref(),
            // An agent must not learn which key a reviewer used, nor the reviewer's ids.
            decisions: change
                .decisions
                .iter()
                .map(|d| ReviewDecision {
                    key_id: None,
                    token: None,
                    other_names: Vec::new(),
                    deputy_for: d.deputy_for.as_ref().map(AbsentPerson::names_only),
                    ..d.clone()
                })
                .collect(),
            fault,
            plan: change.plan.as_ref().map(PlanPlace::new),
            result: change.result.as_deref(),
            next_step: next_step(change),
            timed_out: None,
        }
    }
}

/// A change in a list. A whole change has the same members, too.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "", extend("additionalProperties" = true))]
pub(super) struct ListedChange<'a> {
    /// The id of the change (`chg_…`), for get_change, wait_for_change and withdraw_change.
    change_id: &'a str,
    /// The state of the change. `pending` and `stale` wait for a person; `applied`, `failed`, `rejected`, `expired` and
    /// `withdrawn` are final; `outcome_unknown` waits for a person to say how it ended.
    #[schemars(with = "String", extend("enum" = ChangeState::VARIANTS))]
    status: ChangeState,
    #[schemars(with = "String", extend("enum" = Operation::VARIANTS))]
    operation: Operation,
    /// The kind of thing that it would alter, such as `issue`.
    entity_type: &'a str,
    /// The name of the thing that it would alter, as people call it.
    label: Cow<'a, str>,
    /// The effect of the change, in one sentence.
    summary: Cow<'a, str>,
    /// The tool that was called.
    tool: &'a str,
    /// The time at which it was proposed.
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    /// The time of the last change of its status.
    #[schemars(with = "String", extend("format" = "date-time"))]
    updated_at: Timestamp,
    /// The time at which it expires if nobody has decided.
    #[schemars(with = "String", extend("format" = "date-time"))]
    expires_at: Timestamp,
}

impl<'a> ListedChange<'a> {
    pub(super) fn new(change: &'a Change) -> Self {
        let ProposerView { operation, entity_type, label, summary, .. } = change.for_proposer();
        Self {
            change_id: &change.id,
            status: change.state,
            operation,
            entity_type,
            label,
            summary,
            tool: &change.tool,
            created_at: change.created_at,
            updated_at: change.updated_at,
            expires_at: change.expires_at,
        }
    }
}

/// The `structuredContent` of the answer to `list_changes`.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("additionalProperties" = true))]
pub(super) struct ListView<'a> {
    pub changes: Vec<ListedChange<'a>>,
    /// Give it as `cursor` for the next page; null at the end.
    pub next_cursor: Option<&'a str>,
}

/// Returns the JSON Schema of the answer to a reviewed write ([`change_result`]). It has no `timedOut`, which only the
/// answer to a wait contains. Its root is an object.
pub fn change_output_schema() -> Value {
    let mut schema = output_schema::<ChangeView<'_>>();
    schema["title"] = "Change".into();
    schema["description"] = "A proposed write, and where it stands.".into();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.remove("timedOut");
    }
    schema
}

/// Returns the answer to a reviewed or repeated write, for a change in any state.
pub fn change_result(change: &Change) -> ToolResult {
    to_result(&change_text(change), &ChangeView::new(change))
}

/// Like [`change_result`], with a hint for the agent's user after the next step. Some clients show a model only the text,
/// and others only the structured content, so both contain the hint.
pub fn change_result_with_hint(change: &Change, hint: &str) -> ToolResult {
    let text = format!("{}\n{hint}", change_text(change));
    let mut view = ChangeView::new(change);
    view.next_step = format!("{} {hint}", view.next_step);
    to_result(&text, &view)
}

/// Returns the answer with this text, and with the view if it can be serialized.
pub(super) fn to_result(text: &str, view: &impl Serialize) -> ToolResult {
    tool_result(text, view).unwrap_or_else(|_| ToolResult::text(text, None))
}

/// Returns the answer to a wait: the change, and whether the wait timed out.
pub(super) fn wait_result(change: &Change, timed_out: bool) -> ToolResult {
    let mut text = change_text(change);
    if timed_out {
        text.insert_str(0, "The wait ended before the change reached the requested state.\n");
    }
    let view = ChangeView { timed_out: Some(timed_out), ..ChangeView::new(change) };
    to_result(&text, &view)
}

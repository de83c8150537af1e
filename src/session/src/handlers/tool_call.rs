//! One `tools/call`: what it states, the parts of the gateway that carry it out, and its outcome.

use std::{borrow::Cow, sync::Arc};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    reviewed::finished_call::{FinishedCall, outcome_of},
    upstream_wait::RouteFinder,
};
use crate::gateway::{
    local_tasks::LocalTasks,
    server::{CallRunner, Reviews},
};
use countersign_bridge::{CallFlags, tasks};
use countersign_domain::{
    changes::{
        CHANGE_ID_PREFIX, Change,
        plan::{MAX_CLIENT_ID_BYTES, MAX_TITLE_BYTES, plan_id},
    },
    text::truncate,
};
use countersign_exchange::{context::Exchange, reply::Reply, state::Cancellation};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    envelope::Request,
    json::{string, trusted_raw_value},
    params::keys,
    task,
};
use countersign_provider::{CallContext, ToolResult};
use countersign_review::{
    PlanAnnouncement,
    gateway_tools::{PROPOSE_PLAN, change_result},
};
use countersign_routing::{RouteTable, ToolRoute};

/// A `tools/call` whose tool was found.
#[derive(Clone, Copy)]
pub(super) struct RoutedCall<'a> {
    pub scope: ToolCallScope<'a>,
    pub request: &'a Request<'a>,
    pub route: &'a Arc<ToolRoute>,
    /// A JSON object, which is empty if the request has no arguments.
    pub arguments: &'a RawValue,
    pub flags: CallFlags,
}

/// The options of a request whose call may become a change, or continues one.
pub(super) struct ReviewOptions<'a> {
    pub idempotency_key: Option<Cow<'a, str>>,
    /// The agent's reason for the call.
    pub reason: Option<Cow<'a, str>>,
    /// The token as JSON text.
    pub progress_token: Option<&'a str>,
    /// `true` if the client accepts a task as the answer.
    pub accepts_task: bool,
    /// `requestState` of a call that its client has repeated.
    pub request_state: Option<Cow<'a, str>>,
    /// The plan of which the call is a step.
    pub plan: Option<PlanAnnouncement>,
}

impl<'a> ReviewOptions<'a> {
    /// Reads the options from the request of a call.
    ///
    /// # Errors
    /// `INVALID_PARAMS`.
    pub fn new(call: &RoutedCall<'a>) -> Result<Self, McpError> {
        let RoutedCall { scope: ToolCallScope { exchange, .. }, request, .. } = *call;
        let accepts_task = match exchange.is_modern() {
            true => task::is_extension_declared(&exchange.facts.capabilities),
            false => tasks::is_requested(exchange, &request.outlined_params().object),
        };
        let meta = request.meta()?;
        Ok(Self {
            idempotency_key: meta.idempotency_key,
            reason: meta.reason,
            progress_token: meta.progress_token,
            accepts_task,
            request_state: request_state(exchange, request),
            plan: meta.plan.map(|plan| parse_announcement(exchange, plan)).transpose()?,
        })
    }
}

/// The plan that a call names in its `_meta`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanMeta<'a> {
    /// The id that the agent gives the plan.
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    title: Cow<'a, str>,
    #[serde(default)]
    last: bool,
}

/// Parses the plan that a call names. `json` is an object.
///
/// # Errors
/// `INVALID_PARAMS` if it has another form, or a text in it is empty or too long.
fn parse_announcement(exchange: &Exchange, json: &str) -> Result<PlanAnnouncement, McpError> {
    let invalid = |problem: String| {
        let member = format!("_meta.{}", keys::PLAN);
        McpError::new(ErrorKind::InvalidParams, format!("`params.{member}` {problem}")).with("member", member)
    };
    let plan: PlanMeta<'_> = serde_json::from_str(json)
        .map_err(|_| invalid("must have `id` and `title`, both strings, and may have `last`, a boolean".into()))?;
    for (name, text, max) in [("id", &plan.id, MAX_CLIENT_ID_BYTES), ("title", &plan.title, MAX_TITLE_BYTES)] {
        if !(1..=max).contains(&text.len()) {
            return Err(invalid(format!("must have a `{name}` of 1 to {max} bytes")));
        }
    }
    let id = plan_id(&exchange.identity.principal.name, &plan.id);
    Ok(PlanAnnouncement { id, title: plan.title.into_owned(), last: plan.last })
}

/// One `tools/call` and the parts of the gateway that carry it out.
#[derive(Clone, Copy)]
pub struct ToolCallScope<'a> {
    pub exchange: &'a Exchange,
    pub cancel: &'a Cancellation,
    /// See [`crate::gateway::server::RequestScope::table`].
    pub table: &'a RouteTable,
    pub runner: &'a CallRunner,
    pub reviews: &'a Arc<Reviews>,
    pub local_tasks: &'a LocalTasks,
}

impl ToolCallScope<'_> {
    /// Returns the context of the calls that a preview makes, whose time is charged to the principal.
    pub(super) fn preview_context(&self) -> CallContext {
        let meter = Some(self.runner.limiter.meter(&self.exchange.identity.principal));
        CallContext { meter, ..self.exchange.call_context(self.cancel, None) }
    }
}

/// The outcome of a call that the gateway runs or puts under review.
pub(super) enum ToolOutcome {
    /// The call ran, or its change has ended.
    Finished(FinishedCall),
    /// The call waits for a person's decision.
    Pending(Arc<Change>),
    /// The change ran, and the call ended with a protocol error.
    Failed(McpError),
    /// The result that asks a stateless client for input. `pending` is `true` if a person also has to approve the call.
    NeedsInput { result: String, pending: bool },
}

impl ToolOutcome {
    /// Returns the outcome of a call from the current state of its change.
    pub fn from_change(change: Arc<Change>) -> Self {
        match outcome_of(&change) {
            Some(Ok(finished)) => Self::Finished(finished),
            Some(Err(error)) => Self::Failed(error),
            None => Self::Pending(change),
        }
    }

    /// Returns the answer to the call, in the form of the revision.
    ///
    /// # Errors
    /// The protocol error of a call that failed with one.
    pub fn into_reply(self, revision: Revision) -> Result<Reply, McpError> {
        let to_reply =
            |result: &ToolResult, includes_structure| Reply::new(result.to_json(revision, includes_structure));
        Ok(match self {
            Self::Finished(FinishedCall { result, failure, fits_output_schema, change_id }) => {
                Reply { failure, change_id, ..to_reply(&result, fits_output_schema) }
            }
            Self::Pending(change) => pending_reply(&change, &change_result(&change), revision),
            Self::NeedsInput { result, pending } => Reply { is_pending: pending, ..Reply::verbatim(result) },
            Self::Failed(error) => return Err(error),
        })
    }
}

/// Returns the answer to a call whose change is pending.
pub(super) fn pending_reply(change: &Change, result: &ToolResult, revision: Revision) -> Reply {
    Reply { is_pending: true, change_id: Some(change.id.clone()), ..Reply::new(result.to_json(revision, true)) }
}

/// Returns `true` for the tool that proposes a whole plan.
pub(super) fn is_plan_tool(route: &ToolRoute) -> bool {
    route.def.self_service && route.def.name == PROPOSE_PLAN && route.provider.is_module()
}

/// Returns `true` if the `_meta` of a call has this member, valid or not.
pub(super) fn has_meta(request: &Request<'_>, key: &str) -> bool {
    request.outlined_params().meta.is_some_and(|meta| meta.member(key).is_some())
}

/// Returns the `requestState` of a call that its stateless client has repeated.
pub(super) fn request_state<'a>(exchange: &Exchange, request: &'a Request<'_>) -> Option<Cow<'a, str>> {
    request.outlined_params().object.member("requestState").filter(|_| exchange.is_modern()).and_then(string)
}

/// Returns the `inputResponses` of a call that its stateless client has repeated, a JSON object.
pub(super) fn input_responses<'a>(exchange: &Exchange, request: &'a Request<'_>) -> Option<&'a str> {
    let responses = request.outlined_params().object.member("inputResponses")?;
    (exchange.is_modern() && responses.starts_with('{')).then_some(responses)
}

/// Returns `true` if the `requestState` of a call names a change. Every state counts for modules, which issue no others;
/// [`super::reviewed::resume`] refuses foreign ones.
pub(super) fn continues_change(exchange: &Exchange, request: &Request<'_>, route: &ToolRoute) -> bool {
    let is_module = route.provider.upstream().is_none();
    request_state(exchange, request).is_some_and(|state| is_module || state.starts_with(CHANGE_ID_PREFIX))
}

/// Returns the arguments of a call. They may be omitted, which counts as an empty object.
pub(super) fn arguments_or_empty(arguments: Option<&RawValue>) -> Result<&RawValue, McpError> {
    arguments
        .or_else(|| trusted_raw_value("{}"))
        .ok_or_else(|| McpError::new(ErrorKind::Internal, "an empty object is not JSON"))
}

/// Returns the arguments of a call with those that its module has noted for the session (`SessionNotes`), such as the active
/// project. Returns `None` if there are none.
pub(super) fn complete_arguments(
    exchange: &Exchange,
    route: &ToolRoute,
    arguments: &RawValue,
) -> Result<Option<Box<RawValue>>, McpError> {
    let Some(notes) = exchange.notes().filter(|_| route.provider.upstream().is_none()) else { return Ok(None) };
    route.provider.as_provider().complete_arguments(&route.def.name, arguments, notes)
}

/// Finds the tool of a call, if need be after a wait for its server.
///
/// # Errors
/// `TOOL_NOT_FOUND` with the nearest name; the errors of [`RouteFinder::find_tool`].
pub(super) async fn find_route(finder: &mut RouteFinder<'_>, name: &str) -> Result<Arc<ToolRoute>, McpError> {
    if let Some(route) = finder.table.find_tool(name) {
        return Ok(route);
    }
    Box::pin(finder.find_tool(name)).await?.ok_or_else(|| {
        let nearest = finder.table.nearest_tool(name, finder.principal);
        let name = truncate(name, 128);
        let suggestion = nearest.as_ref().map(|nearest| format!(". Did you mean {nearest}?")).unwrap_or_default();
        let error =
            McpError::new(ErrorKind::ToolNotFound, format!("Unknown tool: {name}{suggestion}")).with("tool", name);
        match nearest {
            Some(nearest) => error.with("didYouMean", nearest),
            None => error,
        }
    })
}

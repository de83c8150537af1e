//! `tools/list` and `tools/call`, and what becomes of a call: it runs, or it becomes a pending change.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{
    arrival,
    asking::Asking,
    cache_hint,
    page::page,
    reviewed::{
        self,
        ending::Settled,
        missing_arguments::{self, Missing},
    },
    tasks,
};
use crate::{
    Handling,
    owned::OwnedRequest,
    policy::{self, Admitted, Counted, Gate, Judged},
};
use countersign_bridge::{self, request::Subject, tasks as foreign};
use countersign_domain::{changes::Change, policy::Verdict};
use countersign_exchange::{cancel::Cancel, context::Exchange, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    envelope::Request,
    json::{MemberEdit, edit, string, trusted_raw_value},
    outline::Outline,
    params,
};
use countersign_provider::{CallContext, ToolResult};
use countersign_review::gateway_tools::pending_result;
use countersign_routing::{RouteTable, ToolRoute, validate};
use countersign_telemetry::metrics::Transport;

/// `tools/list`: stably ordered, rendered when the table was built.
pub fn list(exchange: &Exchange, table: &RouteTable, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let revision = exchange.revision();
    table.refresh_stale_lists();
    let principal = &exchange.identity.principal;
    let tools: Vec<_> = table.tools().iter().filter(|route| route.is_visible_to(principal)).collect();
    let json =
        page("tools", &tools, |route| route.list_entry(revision), params.cursor.as_deref(), table.versions.tools)?;
    Ok(Reply::new(json).cached(cache_hint::for_tools(table)))
}

/// A call whose arguments the gateway checks.
pub(super) struct Call<'a> {
    /// A JSON object; absent is an empty one.
    pub arguments: Option<&'a RawValue>,
    pub idempotency_key: Option<&'a str>,
    /// Raw JSON.
    pub progress_token: Option<&'a str>,
    /// Its client takes a task for an answer.
    pub task: bool,
    /// `requestState` of a call that is made again.
    pub state: Option<&'a str>,
    /// `inputResponses` of such a call, as JSON.
    pub responses: Option<&'a str>,
}

/// What became of a call.
pub(super) enum ToolOutcome {
    /// It ran; a failure of the tool itself is in here too.
    Done(ToolResult, Option<ErrorKind>),
    /// It waits for a person.
    Pending(Arc<Change>),
    /// Its change is over: it ran, or a person said no.
    Settled(Box<Settled>, Arc<Change>),
    /// Its change ran, and the call ended with an error of the protocol.
    Failed(McpError),
    /// It lacks arguments, which the client is asked for: a result of the stateless era. Nothing was proposed.
    Lacks(String),
    /// It waits for a person, and the client is asked something meanwhile: a result of the stateless era.
    Asks(String, Arc<Change>),
}

impl ToolOutcome {
    /// What went wrong, if the call itself failed.
    fn failure(&self) -> Option<ErrorKind> {
        match self {
            Self::Done(_, failure) => *failure,
            Self::Settled(settled, _) => settled.failure,
            Self::Failed(error) => Some(error.kind),
            Self::Pending(_) | Self::Asks(..) | Self::Lacks(_) => None,
        }
    }

    /// The change that was proposed for it.
    fn change(&self) -> Option<&Arc<Change>> {
        match self {
            Self::Pending(change) | Self::Asks(_, change) | Self::Settled(_, change) => Some(change),
            Self::Done(..) | Self::Failed(_) | Self::Lacks(_) => None,
        }
    }

    /// A person has to approve it.
    const fn is_pending(&self) -> bool {
        matches!(self, Self::Pending(_) | Self::Asks(..))
    }
}

/// How far a call has come.
enum Stage {
    Found(Arc<ToolRoute>),
    Decided(Gate),
}

impl Stage {
    fn route(&self) -> &Arc<ToolRoute> {
        match self {
            Self::Found(route) => route,
            Self::Decided(Gate::Review(judged)) => &judged.route,
            Self::Decided(Gate::Open(admitted)) => admitted.route(),
        }
    }
}

/// `tools/call`. It is found, decided on and carried out, each once. A module's arguments are checked before policy is
/// asked, an upstream's by the upstream itself, except those of a one-shot client and those that a person is to see.
pub async fn call_request(exchange: &Handling, request: &Request<'_>, cancel: &Cancel) -> Result<Reply, McpError> {
    let params = request.tool_call()?;
    note_key(exchange);
    let route = find(exchange, &params.name).await?;
    let is_module = route.provider.upstream().is_none();
    let completed;
    let completed_request;
    let (request, params) = match is_module.then(|| in_session(exchange, &route, request, params.arguments)) {
        Some(Err(error)) if is_the_tools_own(error.kind) => return Ok(failed(exchange, &route, &error)),
        Some(Err(error)) => return Err(error),
        Some(Ok(Some(whole))) => {
            completed = whole;
            completed_request = completed.as_request();
            (&completed_request, completed_request.tool_call()?)
        }
        Some(Ok(None)) | None => (request, params),
    };
    let wants_task = params.task.is_some() && foreign::wanted(exchange, &request.outlined_params().object);
    if is_module && !wants_task {
        return finish(exchange, request, Stage::Found(route), params.arguments, cancel).await;
    }
    if is_module && !route.ruling.may_review() {
        return Err(tasks::local::refused());
    }
    let arguments = given(params.arguments)?;
    if exchange.transport == Transport::Rest {
        validate::check_arguments(&route, arguments)?;
    }
    // Where a server has asked for input, the answers go to this very server, and the call goes on.
    let retry = countersign_bridge::is_retry(&request.outlined_params().object);
    let judged = match retry {
        true => policy::judge(exchange, &route, arguments).await?,
        false => judge(exchange, &route, arguments).await?,
    };
    let counted = match judged.route.provider.upstream() {
        Some(upstream)
            if retry && countersign_bridge::takes_up(exchange, upstream, &request.outlined_params().object) =>
        {
            Counted::Before
        }
        _ => Counted::NotYet,
    };
    let admitted = match judged.carry_out(exchange, counted) {
        Ok(Gate::Open(admitted)) => admitted,
        Ok(review) => return finish(exchange, request, Stage::Decided(review), params.arguments, cancel).await,
        Err(error) => return Ok(countersign_bridge::failed(&error)),
    };
    let route = admitted.route();
    let runs_here = match route.provider.upstream() {
        Some(upstream) => route.ruling.may_review() && !foreign::runs_there(upstream, route.def.raw.as_deref()),
        None => true,
    };
    if wants_task && runs_here {
        return tasks::local::start(exchange, request, admitted);
    }
    call_admitted(exchange, request, admitted, cancel).await
}

fn note_key(exchange: &Handling) {
    exchange.server.reviews.deciding_keys.note_call(&exchange.identity.principal, exchange.transport.as_str());
}

/// The call of a module's tool as it is meant in its session, where that is more than it says.
fn in_session(
    exchange: &Handling,
    route: &ToolRoute,
    request: &Request<'_>,
    arguments: Option<&RawValue>,
) -> Result<Option<OwnedRequest>, McpError> {
    let Some(notes) = exchange.notes() else { return Ok(None) };
    let Some(whole) = route.provider.complete_arguments(&route.def.name, given(arguments)?, notes)? else {
        return Ok(None);
    };
    let params = request.params.map_or("{}", RawValue::get);
    let params = RawValue::from_string(edit(params, &[("arguments", MemberEdit::Set(whole.get()))]))
        .map_err(|_| McpError::new(ErrorKind::InvalidParams, "`params` are not JSON"))?;
    Ok(Some(OwnedRequest::of(&Request {
        id: request.id.clone(),
        method: request.method.clone(),
        params: Some(&params),
        outline: Outline::new(params.get()),
    })))
}

/// The result of a module's call that failed.
fn failed(exchange: &Handling, route: &ToolRoute, error: &McpError) -> Reply {
    let json = encode(&ToolResult::error(error), exchange.revision(), route.allows_structured_error());
    Reply::new(json).failing(Some(error.kind))
}

/// Runs a call that policy has let through: it is not asked again.
///
/// # Errors
/// Those of the call.
pub async fn call_admitted(
    exchange: &Handling,
    request: &Request<'_>,
    admitted: Admitted,
    cancel: &Cancel,
) -> Result<Reply, McpError> {
    let Some(call) = bridged(exchange, admitted.route(), request) else {
        let params = request.tool_call()?;
        return finish(exchange, request, Stage::Decided(Gate::Open(admitted)), params.arguments, cancel).await;
    };
    match countersign_bridge::call(call).await {
        Err(error) if error.passthrough.is_none() && is_the_tools_own(error.kind) => {
            Ok(countersign_bridge::failed(&error))
        }
        outcome => outcome,
    }
}

/// The call as the bridge takes it; `None` where the tool is a module's.
fn bridged<'a>(
    exchange: &'a Handling,
    route: &'a ToolRoute,
    request: &'a Request<'a>,
) -> Option<countersign_bridge::Call<'a>> {
    let upstream = route.provider.upstream()?;
    Some(countersign_bridge::Call {
        exchange,
        bridge: &exchange.server.bridge,
        upstream,
        verb: countersign_bridge::Verb::Tool,
        subject: Subject::Name(upstream.names.own_name(&route.def.name).unwrap_or(&route.def.name)),
        uri: None,
        request,
        definition: route.def.raw.as_deref(),
        headers: &route.param_headers,
        reads: route.is_read_only(),
    })
}

/// A call that the gateway itself runs or puts under review.
async fn finish(
    exchange: &Handling,
    request: &Request<'_>,
    stage: Stage,
    arguments: Option<&RawValue>,
    cancel: &Cancel,
) -> Result<Reply, McpError> {
    let meta = request.meta()?;
    let object = request.outlined_params().object;
    let modern = exchange.is_modern();
    let of_retry = |key: &str| if modern { object.member(key) } else { None };
    let state = of_retry("requestState").and_then(string);
    let call = Call {
        arguments,
        idempotency_key: meta.idempotency_key.as_deref(),
        progress_token: meta.progress_token,
        task: if modern { foreign::declares(&exchange.facts.capabilities) } else { foreign::wanted(exchange, &object) },
        state: state.as_deref(),
        responses: of_retry("inputResponses").filter(|responses| responses.starts_with('{')),
    };
    // Bad arguments are an error of the protocol in old revisions and for one-shot clients, and a result that a model can
    // read in newer ones (2025-11-25/server/tools#error-handling).
    let lists_errors = stage.route().allows_structured_error();
    let outcome = match self::call(exchange, &call, stage, cancel).await {
        Err(error)
            if error.kind == ErrorKind::ValidationFailed
                && exchange.transport != Transport::Rest
                && exchange.revision().rules().invalid_arguments_are_tool_errors =>
        {
            ToolOutcome::Done(ToolResult::error(&error), Some(error.kind))
        }
        outcome => outcome?,
    };
    let failure = outcome.failure();
    let pending = outcome.is_pending();
    let change_id = outcome.change().map(|change| change.id.clone());
    let revision = exchange.revision();
    let json = match outcome {
        ToolOutcome::Pending(change) if call.task => {
            return Ok(Reply { pending, ..tasks::created(exchange, &change, call.progress_token) });
        }
        ToolOutcome::Lacks(question) => return Ok(Reply::passed_on(question)),
        ToolOutcome::Asks(question, _) => return Ok(Reply { pending, ..Reply::passed_on(question) }),
        ToolOutcome::Failed(error) => return Err(error),
        ToolOutcome::Settled(settled, _) => encode(&settled.result, revision, settled.structured),
        ToolOutcome::Done(result, failure) => {
            // Where an error's shape would break the tool's own output schema, its text says it all.
            encode(&result, revision, failure.is_none() || lists_errors)
        }
        ToolOutcome::Pending(change) => encode(&pending_result(&change), revision, true),
    };
    Ok(Reply { failure, pending, change_id, ..Reply::new(json) })
}

/// Decides on a call. While its tool's server is not tried, the tool that the configuration has answer in its place gets
/// it, if the policy lets this very call through there too. What is reviewed never goes anywhere else than where it was
/// shown to go.
async fn judge(exchange: &Handling, route: &Arc<ToolRoute>, arguments: &RawValue) -> Result<Judged, McpError> {
    let judged = policy::judge(exchange, route, arguments).await?;
    let refuses = |route: &ToolRoute| route.provider.upstream().is_some_and(|upstream| upstream.is_refusing());
    if judged.verdict() == Verdict::Allow
        && refuses(route)
        && let Some(other) = exchange.table.fallback_of(route)
        && !refuses(&other)
        && let Ok(instead) = policy::judge(exchange, &other, arguments).await
        && instead.verdict() == Verdict::Allow
    {
        tracing::debug!(tool = %route.name, instead = %other.name, "another server answers for one that is not tried");
        return Ok(instead);
    }
    Ok(judged)
}

/// The arguments of a call, which may be left out where a tool takes none.
fn given(arguments: Option<&RawValue>) -> Result<&RawValue, McpError> {
    arguments
        .or_else(|| trusted_raw_value("{}"))
        .ok_or_else(|| McpError::new(ErrorKind::Internal, "an empty object is not JSON"))
}

async fn find(exchange: &Handling, name: &str) -> Result<Arc<ToolRoute>, McpError> {
    if let Some(route) = exchange.table.find_tool(name) {
        return Ok(route);
    }
    Box::pin(arrival::tool(exchange, name)).await?.ok_or_else(|| {
        let near = exchange.server.routing.routes.load().nearest_tool(name, &exchange.identity.principal);
        let name: String = name.chars().take(128).collect();
        let meant = near.as_ref().map(|near| format!(". Did you mean {near}?")).unwrap_or_default();
        let error = McpError::new(ErrorKind::ToolNotFound, format!("Unknown tool: {name}{meant}")).with("tool", name);
        match near {
            Some(near) => error.with("didYouMean", near),
            None => error,
        }
    })
}

/// Checks the arguments of a call, decides on it unless that was done, and lets it run or puts it under review.
async fn call(exchange: &Handling, call: &Call<'_>, stage: Stage, cancel: &Cancel) -> Result<ToolOutcome, McpError> {
    let raw = given(call.arguments)?;
    let filled;
    let (stage, raw) = match validate::check_arguments(stage.route(), raw) {
        Ok(()) => (stage, raw),
        Err(wrong) => {
            let route = Arc::clone(stage.route());
            let judged = match stage {
                // What runs already as a task asks for nothing any more.
                Stage::Decided(Gate::Open(_)) => return Err(wrong),
                Stage::Decided(Gate::Review(judged)) => Some(judged),
                Stage::Found(_) => None,
            };
            match missing_arguments::ask_for(exchange, &route, judged, raw, call).await {
                Some(Missing::Asks(question)) => return Ok(ToolOutcome::Lacks(question)),
                Some(Missing::Filled(whole)) => {
                    validate::check_arguments(&route, &whole)?;
                    filled = whole;
                    // With other arguments it is another call.
                    (Stage::Found(route), &*filled)
                }
                None => return Err(wrong),
            }
        }
    };
    match carry_out(exchange, call, stage, raw, cancel).await {
        Err(error) if is_the_tools_own(error.kind) => {
            Ok(ToolOutcome::Done(ToolResult::error(&error), Some(error.kind)))
        }
        outcome => outcome,
    }
}

/// Carries out a call whose arguments fit.
async fn carry_out(
    exchange: &Handling,
    call: &Call<'_>,
    stage: Stage,
    raw: &RawValue,
    cancel: &Cancel,
) -> Result<ToolOutcome, McpError> {
    let gate = match stage {
        Stage::Decided(gate) => gate,
        Stage::Found(route) => {
            let judged = judge(exchange, &route, raw).await?;
            // Another server answers for its own, and may want other arguments.
            if !Arc::ptr_eq(&judged.route, &route) {
                validate::check_arguments(&judged.route, raw)?;
            }
            judged.carry_out(exchange, Counted::NotYet)?
        }
    };
    match gate {
        Gate::Open(admitted) => run(exchange, &admitted, raw, call, cancel).await,
        // Boxed, so that calls which are let through need not carry its room.
        Gate::Review(judged) => Box::pin(reviewed::review(exchange, &judged, raw, call, cancel)).await,
    }
}

/// Failures that the model can act on; the others are the gateway's.
#[must_use]
pub fn is_the_tools_own(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::Internal
            | ErrorKind::InvalidRequest
            | ErrorKind::InvalidParams
            | ErrorKind::MethodNotFound
            | ErrorKind::MissingCapability
            | ErrorKind::Overloaded
            | ErrorKind::RateLimited
            | ErrorKind::StoreUnavailable
            | ErrorKind::ShuttingDown
            | ErrorKind::Timeout
            | ErrorKind::Cancelled
            | ErrorKind::Unauthorized
            | ErrorKind::Forbidden
    )
}

async fn run(
    exchange: &Handling,
    admitted: &Admitted,
    arguments: &RawValue,
    call: &Call<'_>,
    cancel: &Cancel,
) -> Result<ToolOutcome, McpError> {
    let route = admitted.route();
    let asking = route.def.long_running.then(|| Asking::of(exchange, call.responses)).flatten();
    let (inquirer, mut asking) = asking.unzip();
    let meter = Some(exchange.server.meter(&exchange.identity.principal));
    let context = CallContext { inquirer, meter, ..exchange.call_context(cancel, call.progress_token) };
    let work = route.provider.call(&route.def.name, arguments, &context);
    let result = if route.def.long_running {
        // Bounded by the tool itself; here only their number is.
        let server = &exchange.server;
        let _slot = server.long_requests.admit(&exchange.identity.principal)?;
        let asks = async {
            match &mut asking {
                Some(asking) => asking.serve().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = work => result?,
            asks = asks => return Ok(ToolOutcome::Lacks(asks)),
            // It waits for a person, who will not hurry because the gateway ends.
            () = server.long_requests.shutdown.cancelled() => {
                return Err(McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down; ask again later"));
            }
            revoked = server.long_requests.wait_until_revoked(&exchange.identity) => return Err(revoked),
        }
    } else {
        exchange.server.limits.in_time(work).await?
    };
    let failure = result.is_error.then_some(ErrorKind::ToolExecution);
    Ok(ToolOutcome::Done(result, failure))
}

/// A tool result in the client's revision.
#[must_use]
pub fn encode(result: &ToolResult, revision: Revision, structured: bool) -> String {
    let mut out = String::with_capacity(result.content.get().len() + 64);
    out.push_str(r#"{"content":"#);
    out.push_str(result.content.get());
    if structured
        && revision.rules().structured_content
        && let Some(content) = &result.structured_content
    {
        out.push_str(r#","structuredContent":"#);
        out.push_str(content.get());
    }
    if result.is_error {
        out.push_str(r#","isError":true"#);
    }
    out.push('}');
    out
}

//! `tools/list` and `tools/call`, and what becomes of a call: it runs, or it becomes a pending change.

use std::sync::Arc;

use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};

use super::{
    arrival,
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
    middleware::policy::{self, Gate},
};
use countersign_bridge::{self, request::Subject, tasks as foreign};
use countersign_domain::{
    changes::Change,
    policy::{Decision, Verdict},
};
use countersign_exchange::{
    cancel::Cancel,
    reply::{CacheHint, Reply},
};
use countersign_protocol::{ErrorKind, McpError, Revision, edit::string, envelope::Request, params};
use countersign_provider::ToolResult;
use countersign_review::gateway_tools::pending_result;
use countersign_routing::{ToolRoute, validate};

/// `tools/list`: stably ordered, rendered when the table was built.
pub fn list(exchange: &Handling, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::ListParams<'_> = params::parse(request.params)?;
    let table = exchange.services.routes.load();
    let revision = exchange.revision();
    table.refresh();
    let principal = &exchange.identity.principal;
    let tools: Vec<_> = table.tools().iter().filter(|route| route.visible_to(principal)).collect();
    let json = page("tools", &tools, |route| route.listed(revision), params.cursor.as_deref(), table.versions.tools)?;
    Ok(Reply::new(json).cached(CacheHint::of_tools(&table)))
}

/// A call as every endpoint makes it.
pub struct Call<'a> {
    pub name: &'a str,
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
pub enum ToolOutcome {
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
    #[must_use]
    pub fn failure(&self) -> Option<ErrorKind> {
        match self {
            Self::Done(_, failure) => *failure,
            Self::Settled(settled, _) => settled.failure,
            Self::Failed(error) => Some(error.kind),
            Self::Pending(_) | Self::Asks(..) | Self::Lacks(_) => None,
        }
    }
}

impl ToolOutcome {
    /// A person has to approve it.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        matches!(self, Self::Pending(_) | Self::Asks(..))
    }
}

/// `tools/call`.
pub async fn call_request(exchange: &Handling, request: &Request<'_>, cancel: &Cancel) -> Result<Reply, McpError> {
    let params = params::CallTool::of(request)?;
    let route = find(exchange, &params.name).await?;
    let wants_task = params.task.is_some() && foreign::wanted(exchange, &request.object().object);
    if route.provider.upstream().is_some() {
        let empty;
        let arguments = match params.arguments {
            Some(arguments) => arguments,
            None => {
                empty = no_arguments()?;
                &empty
            }
        };
        let decision = match policy::judge(exchange, &route, arguments).await {
            Ok(decision) => decision,
            Err(error) => return Ok(countersign_bridge::failed(&error)),
        };
        match decision.verdict {
            Verdict::Allow => {
                let retry = countersign_bridge::response_cache::is_retry(&request.object().object);
                let other = if retry { None } else { stand_in(exchange, &route, arguments).await };
                let allowed = match &other {
                    Some((other, decision)) => policy::carry_out(exchange, other, decision).map(|_| other),
                    None => policy::carry_out(exchange, &route, &decision).map(|_| &route),
                };
                let route = match allowed {
                    Ok(route) => route,
                    Err(error) => return Ok(countersign_bridge::failed(&error)),
                };
                if wants_task
                    && let Some(upstream) = route.provider.upstream()
                    && route.ruling.may_review()
                    && !foreign::runs_there(upstream, route.def.raw.as_deref())
                {
                    return tasks::local::start(exchange, request, route);
                }
                return call_allowed(exchange, request, route, cancel).await;
            }
            // It is validated, previewed and proposed like any other.
            Verdict::Review => {}
            Verdict::Deny => {
                if let Err(error) = policy::carry_out(exchange, &route, &decision) {
                    return Ok(countersign_bridge::failed(&error));
                }
            }
        }
    } else if wants_task {
        if !route.ruling.may_review() {
            return Err(tasks::local::refused());
        }
        let arguments = params.arguments.map_or_else(no_arguments, |raw| Ok(raw.to_owned()))?;
        let decision = policy::judge(exchange, &route, &arguments).await?;
        if decision.verdict == Verdict::Allow {
            policy::carry_out(exchange, &route, &decision)?;
            return tasks::local::start(exchange, request, &route);
        }
    }
    finish(exchange, request, &params.name, None, params.arguments, cancel).await
}

/// Runs a call that policy has let through to this tool: it is not asked again, and the call counts once.
///
/// # Errors
/// Those of the call.
pub async fn call_allowed(
    exchange: &Handling,
    request: &Request<'_>,
    route: &Arc<ToolRoute>,
    cancel: &Cancel,
) -> Result<Reply, McpError> {
    let Some(upstream) = route.provider.upstream() else {
        let params = params::CallTool::of(request)?;
        return finish(exchange, request, &route.name, Some(route), params.arguments, cancel).await;
    };
    let call = countersign_bridge::Call {
        exchange,
        bridge: &exchange.sessions.bridge,
        upstream,
        verb: countersign_bridge::Verb::Tool,
        subject: Subject::Name(upstream.names.own(&route.def.name).unwrap_or(&route.def.name)),
        uri: None,
        request,
        definition: route.def.raw.as_deref(),
        headers: &route.param_headers,
        reads: route.only_reads(),
    };
    match countersign_bridge::call(call).await {
        Err(error) if error.foreign.is_none() && is_the_tools_own(error.kind) => Ok(countersign_bridge::failed(&error)),
        outcome => outcome,
    }
}

/// A call that the gateway itself runs or puts under review; `allowed` is where policy has let it through to already.
async fn finish(
    exchange: &Handling,
    request: &Request<'_>,
    name: &str,
    allowed: Option<&Arc<ToolRoute>>,
    arguments: Option<&RawValue>,
    cancel: &Cancel,
) -> Result<Reply, McpError> {
    let meta = request.meta()?;
    let object = request.object().object;
    let modern = exchange.is_modern();
    let of_retry = |key: &str| if modern { object.member(key) } else { None };
    let state = of_retry("requestState").and_then(string);
    let call = Call {
        name,
        arguments,
        idempotency_key: meta.idempotency_key.as_deref(),
        progress_token: meta.progress_token,
        task: if modern { foreign::declares(&exchange.facts.capabilities) } else { foreign::wanted(exchange, &object) },
        state: state.as_deref(),
        responses: of_retry("inputResponses").filter(|responses| responses.starts_with('{')),
    };
    let outcome = call_or_explain(exchange, &call, allowed, cancel).await?;
    let failure = outcome.failure();
    let pending = outcome.is_pending();
    let revision = exchange.revision();
    let json = match outcome {
        ToolOutcome::Pending(change) if call.task => {
            return Ok(tasks::created(exchange, &change, call.progress_token).pending(pending));
        }
        ToolOutcome::Lacks(question) => return Ok(Reply::passed_on(question)),
        ToolOutcome::Asks(question, _) => return Ok(Reply::passed_on(question).pending(pending)),
        ToolOutcome::Failed(error) => return Err(error),
        ToolOutcome::Settled(settled, _) => encode(&settled.result, revision, settled.structured),
        ToolOutcome::Done(result, failure) => {
            // An error's shape would break the tool's own output schema; its text says it all.
            encode(&result, revision, failure.is_none())
        }
        ToolOutcome::Pending(change) => encode(&pending_result(&change), revision, true),
    };
    Ok(Reply::new(json).failing(failure).pending(pending))
}

/// While a tool's server is not tried, the tool that the configuration has answer in its place, if the policy lets this
/// very call through there too (which is counted by who sends it there). What is reviewed never goes anywhere else than
/// where it was shown to go.
async fn stand_in(exchange: &Handling, route: &ToolRoute, arguments: &RawValue) -> Option<(Arc<ToolRoute>, Decision)> {
    let upstream = route.provider.upstream()?;
    if upstream.config.fallback.is_none() || !upstream.is_refusing() {
        return None;
    }
    let other = exchange.services.routes.load().fallback_of(route)?;
    if other.provider.upstream().is_some_and(|upstream| upstream.is_refusing()) {
        return None;
    }
    let decision = policy::judge(exchange, &other, arguments).await.ok()?.into_owned();
    if decision.verdict != Verdict::Allow {
        return None;
    }
    tracing::debug!(tool = %route.name, instead = %other.name, "another server answers for one that is not tried");
    Some((other, decision))
}

fn no_arguments() -> Result<Box<RawValue>, McpError> {
    to_raw_value(&json!({})).map_err(|e| McpError::new(ErrorKind::Internal, e.to_string()))
}

async fn find(exchange: &Handling, name: &str) -> Result<Arc<ToolRoute>, McpError> {
    if let Some(route) = exchange.services.routes.load().tool(name) {
        return Ok(route);
    }
    Box::pin(arrival::tool(exchange, name)).await?.ok_or_else(|| {
        let near = exchange.services.routes.load().nearest_tool(name, &exchange.identity.principal);
        let name: String = name.chars().take(128).collect();
        let meant = near.as_ref().map(|near| format!(". Did you mean {near}?")).unwrap_or_default();
        let error = McpError::new(ErrorKind::ToolNotFound, format!("Unknown tool: {name}{meant}")).with("tool", name);
        match near {
            Some(near) => error.with("didYouMean", near),
            None => error,
        }
    })
}

/// Bad arguments are an error of the protocol in old revisions, and a result that a model can read in newer ones
/// (2025-11-25/server/tools#error-handling).
async fn call_or_explain(
    exchange: &Handling,
    call: &Call<'_>,
    allowed: Option<&Arc<ToolRoute>>,
    cancel: &Cancel,
) -> Result<ToolOutcome, McpError> {
    match self::call(exchange, call, allowed, cancel).await {
        Err(error)
            if error.kind == ErrorKind::ValidationFailed
                && exchange.revision().rules().invalid_arguments_are_tool_errors =>
        {
            Ok(ToolOutcome::Done(ToolResult::error(&error), Some(error.kind)))
        }
        outcome => outcome,
    }
}

/// Validates a call, asks the policy unless it has let the call through already (to `allowed`), and lets it run or puts
/// it under review.
///
/// # Errors
/// `TOOL_NOT_FOUND`, `VALIDATION_FAILED`, and what has nothing to do with the tool (time, load, the store).
pub async fn call(
    exchange: &Handling,
    call: &Call<'_>,
    allowed: Option<&Arc<ToolRoute>>,
    cancel: &Cancel,
) -> Result<ToolOutcome, McpError> {
    let route = match allowed {
        Some(route) => Arc::clone(route),
        None => find(exchange, call.name).await?,
    };
    let empty;
    let raw = match call.arguments {
        Some(raw) => raw,
        None => {
            empty = no_arguments()?;
            &empty
        }
    };
    let filled;
    let raw = match validate::check(&route, raw) {
        Ok(()) => raw,
        // What runs already as a task asks for nothing any more.
        Err(wrong) if allowed.is_some() => return Err(wrong),
        Err(wrong) => match missing_arguments::ask_for(exchange, &route, raw, call).await {
            Some(Missing::Asks(question)) => return Ok(ToolOutcome::Lacks(question)),
            Some(Missing::Filled(whole)) => {
                validate::check(&route, &whole)?;
                filled = whole;
                &filled
            }
            None => return Err(wrong),
        },
    };
    let outcome = if allowed.is_some() {
        run(exchange, &route, raw, call, cancel).await
    } else {
        match gate(exchange, &route, raw).await {
            Ok((route, Gate::Open)) => run(exchange, &route, raw, call, cancel).await,
            // Boxed, so that calls which are let through need not carry its room.
            Ok((route, Gate::Review(decision))) => {
                Box::pin(reviewed::review(exchange, &route, raw, call, decision, cancel)).await
            }
            Err(Refused::ByPolicy(error)) => {
                return Ok(ToolOutcome::Done(ToolResult::error(&error), Some(error.kind)));
            }
            Err(Refused::ByStandIn(error)) => Err(error),
        }
    };
    match outcome {
        Err(error) if is_the_tools_own(error.kind) => {
            Ok(ToolOutcome::Done(ToolResult::error(&error), Some(error.kind)))
        }
        outcome => outcome,
    }
}

/// Why a call goes nowhere.
enum Refused {
    ByPolicy(McpError),
    /// The tool that stands in for another one does not take these arguments.
    ByStandIn(McpError),
}

/// Where a call goes, and whether it goes through; counted once, for the tool that it goes to.
async fn gate(exchange: &Handling, route: &Arc<ToolRoute>, raw: &RawValue) -> Result<(Arc<ToolRoute>, Gate), Refused> {
    let decision = policy::judge(exchange, route, raw).await.map_err(Refused::ByPolicy)?;
    if decision.verdict == Verdict::Allow
        && let Some((other, decision)) = stand_in(exchange, route, raw).await
    {
        validate::check(&other, raw).map_err(Refused::ByStandIn)?;
        let gate = policy::carry_out(exchange, &other, &decision).map_err(Refused::ByPolicy)?;
        return Ok((other, gate));
    }
    let gate = policy::carry_out(exchange, route, &decision).map_err(Refused::ByPolicy)?;
    Ok((Arc::clone(route), gate))
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
    route: &ToolRoute,
    arguments: &RawValue,
    call: &Call<'_>,
    cancel: &Cancel,
) -> Result<ToolOutcome, McpError> {
    let context = exchange.call_context(cancel, call.progress_token);
    let work = route.provider.call(&route.def.name, arguments, &context);
    let result = if route.def.long_running {
        // Bounded by the tool itself; here only their number is.
        let services = &exchange.services;
        let _slot = services.long_lived(&exchange.identity.principal)?;
        tokio::select! {
            result = work => result?,
            // It waits for a person, who will not hurry because the gateway ends.
            () = services.shutdown.cancelled() => {
                return Err(McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down; ask again later"));
            }
            revoked = services.revoked(&exchange.identity) => return Err(revoked),
        }
    } else {
        exchange.services.in_time(work).await?
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

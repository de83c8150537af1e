//! The handlers of all methods. A handler returns a plain [`Reply`], and [`Reply::finish`] adapts it to the client's
//! revision.

mod cache_hint;
mod client_questions;
pub mod lifecycle;
pub mod listen;
pub mod page;
pub mod prompts;
pub mod resources;
pub mod reviewed;
pub mod tasks;
pub mod tools;
pub mod upstream_wait;

use std::time::Duration;

use crate::{
    RequestScope,
    server::{McpServer, Routing},
};
use countersign_exchange::{cancel::Cancel, reply::Reply};
use countersign_protocol::{ErrorKind, McpError, Method, envelope::Request, params};
use countersign_routing::RouteTable;
use tasks::TaskSources;
use tools::ToolCallScope;
use upstream_wait::RouteFinder;

/// Runs the handler of a method that exists in the exchange's revision. Each handler gets only the parts of the gateway
/// that it uses.
///
/// # Errors
/// Protocol errors. A failure that the tool itself reports is a result.
pub async fn handle(
    scope: &RequestScope,
    method: Method,
    request: &Request<'_>,
    cancel: &Cancel,
) -> Result<Reply, McpError> {
    let RequestScope { exchange, server, table } = scope;
    let McpServer { limits, memory, routing, reviews, runner, local_tasks, status, .. } = &**server;
    let (routes, bridge) = (&routing.routes, &runner.bridge);
    let finder = RouteFinder { principal: &exchange.identity.principal, table, routing };
    let tasks = TaskSources { reviews, local: local_tasks, upstream: &bridge.tasks };
    if is_list(method) {
        wait_for_first_answers(routing).await;
    }
    match method {
        Method::Ping => Ok(Reply::new("{}".into())),
        Method::Initialize => lifecycle::initialize(exchange, &routes.load(), limits, memory, request),
        Method::Discover => Ok(lifecycle::discover(exchange, &routes.load())),
        Method::HealthCheck => Ok(lifecycle::health(status)),
        Method::ServerInfo => Ok(lifecycle::info(status)),
        Method::MetricsGet => Ok(lifecycle::metrics(status)),
        Method::ToolsList => tools::list(exchange, &routes.load(), request),
        Method::ToolsCall => {
            server.deciding_keys.note_call(&exchange.identity.principal, exchange.transport.as_str());
            let scope = ToolCallScope { exchange, cancel, table, runner, reviews };
            tools::call_request(scope, finder, local_tasks, request).await
        }
        Method::ResourcesList => resources::list(exchange, &routes.load_full(), limits, request, cancel).await,
        Method::ResourceTemplatesList => resources::templates(exchange, &routes.load(), request),
        Method::ResourcesRead => resources::read(exchange, finder, limits, bridge, request, cancel).await,
        Method::ResourcesSubscribe => resources::subscribe(exchange, finder, limits, memory, request, cancel).await,
        Method::ResourcesUnsubscribe => resources::unsubscribe(exchange, routing, limits, request).await,
        Method::PromptsList => prompts::list(exchange, &routes.load(), request),
        Method::PromptsGet => prompts::get(exchange, finder, limits, bridge, request, cancel).await,
        Method::Complete => prompts::complete(exchange, finder, limits, bridge, request, cancel).await,
        Method::SetLevel => lifecycle::set_level(exchange, request),
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel | Method::TasksResult | Method::TasksList => {
            Box::pin(tasks::handle(exchange, tasks, method, request)).await
        }
        Method::Listen => Box::pin(listen::listen(exchange, finder, limits, memory, tasks, request, cancel)).await,
        // These are notifications that were sent with an id. No revision defines them as requests.
        _ => Err(McpError::new(ErrorKind::MethodNotFound, "not a request")),
    }
}

const fn is_list(method: Method) -> bool {
    matches!(method, Method::ToolsList | Method::PromptsList | Method::ResourcesList | Method::ResourceTemplatesList)
}

/// The time after the gateway's start in which lists wait for servers that have not connected yet.
const STARTUP_PERIOD: Duration = Duration::from_secs(10);
/// The longest time that a list waits for such servers.
const MAX_LIST_WAIT: Duration = Duration::from_secs(5);
/// The time that the router needs to publish a server's first answer.
const PUBLISH_DELAY: Duration = Duration::from_millis(150);

/// Waits for the first answers of servers. Many clients request lists only once, often while the gateway is still
/// starting and servers have not answered yet.
async fn wait_for_first_answers(routing: &Routing) {
    if routing.started.elapsed() < STARTUP_PERIOD && !routing.routes.load().is_complete() {
        routing.upstreams.wait_until_settled(MAX_LIST_WAIT).await;
        tokio::time::sleep(PUBLISH_DELAY).await;
    }
}

/// Returns `true` if one call may answer several equal requests of a batch: it only reads and has no progress token.
#[must_use]
pub fn is_shareable_read(table: &RouteTable, request: &Request<'_>) -> bool {
    if !request.meta().is_ok_and(|meta| meta.progress_token.is_none()) {
        return false;
    }
    match Method::parse(&request.method) {
        Some(
            Method::Ping
            | Method::ToolsList
            | Method::ResourcesList
            | Method::ResourceTemplatesList
            | Method::ResourcesRead
            | Method::PromptsList
            | Method::PromptsGet
            | Method::Complete,
        ) => true,
        Some(Method::ToolsCall) => params::parse::<params::CallTool<'_>>(request.params).is_ok_and(|call| {
            table.find_tool(&call.name).is_some_and(|route| {
                route.ruling.always_allows() && route.def.annotations.read_only_hint && !route.def.long_running
            })
        }),
        _ => false,
    }
}

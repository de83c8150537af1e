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

use crate::{RequestScope, server::Routing};
use countersign_exchange::{cancel::Cancel, reply::Reply};
use countersign_protocol::{ErrorKind, McpError, Method, envelope::Request, params};
use countersign_routing::RouteTable;

/// Runs the handler of a method that exists in the exchange's revision.
///
/// # Errors
/// Protocol errors. A failure that the tool itself reports is a result.
pub async fn handle(
    exchange: &RequestScope,
    method: Method,
    request: &Request<'_>,
    cancel: &Cancel,
) -> Result<Reply, McpError> {
    if is_list(method) {
        wait_for_first_answers(&exchange.server.routing).await;
    }
    let RequestScope { server, .. } = exchange;
    match method {
        Method::Ping => Ok(Reply::new("{}".into())),
        Method::Initialize => lifecycle::initialize(exchange, request),
        Method::Discover => Ok(lifecycle::discover(exchange, &server.routing.routes.load())),
        Method::HealthCheck => Ok(lifecycle::health(&server.status)),
        Method::ServerInfo => Ok(lifecycle::info(&server.status)),
        Method::MetricsGet => Ok(lifecycle::metrics(&server.status)),
        Method::ToolsList => tools::list(exchange, &server.routing.routes.load(), request),
        Method::ToolsCall => tools::call_request(exchange, request, cancel).await,
        Method::ResourcesList => resources::list(exchange, request, cancel).await,
        Method::ResourceTemplatesList => resources::templates(exchange, &server.routing.routes.load(), request),
        Method::ResourcesRead => resources::read(exchange, request, cancel).await,
        Method::ResourcesSubscribe => resources::subscribe(exchange, request, cancel).await,
        Method::ResourcesUnsubscribe => resources::unsubscribe(exchange, request).await,
        Method::PromptsList => prompts::list(exchange, &server.routing.routes.load(), request),
        Method::PromptsGet => prompts::get(exchange, request, cancel).await,
        Method::Complete => prompts::complete(exchange, request, cancel).await,
        Method::SetLevel => lifecycle::set_level(exchange, request),
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel | Method::TasksResult | Method::TasksList => {
            Box::pin(tasks::handle(exchange, method, request)).await
        }
        Method::Listen => Box::pin(listen::listen(exchange, request, cancel)).await,
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

//! Waits for servers that are still on their way when the gateway has just started: what is asked of one comes to it, and
//! is not told that there is no such thing.
//!
//! A server has `limits.first_connection` from its start (or from when it was configured); whoever asks later, or waits
//! until then, is told when to ask again, unless somebody else may have what is asked for. Waiting takes one of the principal's places for requests that stay open, and
//! nothing is decided by it: the policy is asked afterwards, as always.

use std::{sync::Arc, time::Duration};

use crate::{
    Handling,
    long_requests::LongRequests,
    server::{McpServer, Routing},
};
use countersign_domain::principal::Principal;
use countersign_protocol::{ErrorKind, McpError};
use countersign_routing::{
    RouteTable, RouteTarget, ToolRoute,
    table::PromptRoute,
    unreached_upstreams::{AwaitedUpstream, NameKind},
};

/// When to ask again for a server that did not come in time: about when it is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// The tool of that name, or `None` if there is none.
///
/// # Errors
/// `UPSTREAM_UNAVAILABLE` where its server was not reached yet.
pub async fn find_tool(exchange: &Handling, name: &str) -> Result<Option<Arc<ToolRoute>>, McpError> {
    lookup(exchange, |table| lookup_tool(table, name)).await
}

/// The prompt of that name.
///
/// # Errors
/// The errors of [`find_tool`].
pub async fn find_prompt(exchange: &Handling, name: &str) -> Result<Option<Arc<PromptRoute>>, McpError> {
    let find = |table: &RouteTable| match table.prompt(name) {
        Some(route) => Lookup::There(route),
        None => Lookup::missing(table.unreached_upstream(name, NameKind::Prompt)),
    };
    lookup(exchange, find).await
}

/// Whose a resource is.
///
/// # Errors
/// The errors of [`find_tool`].
pub async fn find_resource(exchange: &Handling, uri: &str) -> Result<Option<RouteTarget>, McpError> {
    let find = |table: &RouteTable| match (table.unreached_upstream_of_uri(uri), table.provider_for_uri(uri)) {
        (Some(expected), guessed) => Lookup::Awaited(expected.clone(), guessed.filter(|_| !expected.is_certain)),
        (None, Some(provider)) => Lookup::There(provider),
        (None, None) => Lookup::Nowhere,
    };
    lookup(exchange, find).await
}

/// Waits for the server of a resource that is to be subscribed to. One that does not come has no say in what happens.
pub async fn wait_for_resource(exchange: &Handling, uri: &str) {
    let _ = find_resource(exchange, uri).await;
}

/// Waits, before anything else is looked at, for the server of a tool that is not there yet. Whether it came says the call
/// itself.
pub async fn wait_for_tool(routing: &Routing, long_requests: &LongRequests, principal: &Principal, name: &str) {
    let table = routing.routes.load_full();
    let _ = wait(routing, long_requests, principal, table, |table| lookup_tool(table, name)).await;
}

fn lookup_tool(table: &RouteTable, name: &str) -> Lookup<Arc<ToolRoute>> {
    match table.find_tool(name) {
        Some(route) => Lookup::There(route),
        None => Lookup::missing(table.unreached_upstream(name, NameKind::Tool)),
    }
}

enum Lookup<T> {
    There(T),
    Nowhere,
    /// Also what it leads to if the server does not come.
    Awaited(AwaitedUpstream, Option<T>),
}

impl<T> Lookup<T> {
    fn missing(expected: Option<AwaitedUpstream>) -> Self {
        expected.map_or(Self::Nowhere, |expected| Self::Awaited(expected, None))
    }
}

async fn lookup<T>(exchange: &Handling, find: impl Fn(&RouteTable) -> Lookup<T>) -> Result<Option<T>, McpError> {
    // Nearly always it is there.
    match find(&exchange.table) {
        Lookup::There(found) => return Ok(Some(found)),
        Lookup::Nowhere => return Ok(None),
        Lookup::Awaited(..) => {}
    }
    let McpServer { routing, long_requests, .. } = &*exchange.server;
    let principal = &exchange.identity.principal;
    Box::pin(wait(routing, long_requests, principal, Arc::clone(&exchange.table), find)).await
}

async fn wait<T>(
    routing: &Routing,
    long_requests: &LongRequests,
    principal: &Principal,
    mut table: Arc<RouteTable>,
    find: impl Fn(&RouteTable) -> Lookup<T>,
) -> Result<Option<T>, McpError> {
    let mut place = None;
    loop {
        let (expected, otherwise) = match find(&table) {
            Lookup::There(found) => return Ok(Some(found)),
            Lookup::Nowhere => return Ok(None),
            Lookup::Awaited(expected, otherwise) => (expected, otherwise),
        };
        let left = routing.first_connection.saturating_sub(expected.upstream.age());
        if place.is_none() {
            place = long_requests.admit(principal).ok();
        }
        if left.is_zero() || place.is_none() {
            return otherwise.map(Some).ok_or_else(|| unavailable(&expected));
        }
        tokio::select! {
            () = table.superseded.cancelled() => {}
            () = tokio::time::sleep(left) => {}
            () = long_requests.shutdown.cancelled() => {
                return Err(McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down"));
            }
        }
        table = routing.routes.load_full();
    }
}

fn unavailable(AwaitedUpstream { upstream, is_certain }: &AwaitedUpstream) -> McpError {
    let name = upstream.config.name.as_str();
    let why = match is_certain {
        true => format!("the server {name} was not reached yet; ask again later"),
        false => format!("nobody has that, unless the server {name} does, which was not reached yet; ask again later"),
    };
    McpError::new(ErrorKind::UpstreamUnavailable, why)
        .with("upstream", name)
        .with("retryAfter", AGAIN.as_secs())
        .with("outcome", "not_applied")
}

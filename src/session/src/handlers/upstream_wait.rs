//! Waits for servers that have not connected yet shortly after the gateway's start, so that a request for one of their
//! tools is not refused as unknown.
//!
//! A server has `limits.first_connection` from its start, or from its configuration, to connect. After that, a request
//! gets an error that says when to try again, unless another provider may have the name. The wait takes one of the
//! principal's slots for long requests. It decides nothing: the policy is asked afterwards, as always.

use std::{borrow::Cow, sync::Arc, time::Duration};

use crate::server::Routing;
use countersign_domain::principal::Principal;
use countersign_protocol::{ErrorKind, McpError};
use countersign_routing::{
    RouteTable, RouteTarget, ToolRoute,
    table::PromptRoute,
    unreached_upstreams::{AwaitedUpstream, NameKind},
};

/// The time after which a client should ask again for a server that was not reached in time. The server is tried again
/// at about that time.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Finds routes for a principal: first in the table that travels with its request, then, after a wait, in newer ones.
pub struct RouteFinder<'a> {
    pub principal: &'a Principal,
    /// The table that was searched last.
    pub table: Cow<'a, Arc<RouteTable>>,
    pub routing: &'a Routing,
}

impl RouteFinder<'_> {
    /// Returns the tool with this name, or `None` if there is none.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE` if its server was not reached yet.
    pub async fn find_tool(&mut self, name: &str) -> Result<Option<Arc<ToolRoute>>, McpError> {
        self.find(|table| lookup_tool(table, name)).await
    }

    /// Returns the prompt with this name.
    ///
    /// # Errors
    /// The errors of [`Self::find_tool`].
    pub async fn find_prompt(&mut self, name: &str) -> Result<Option<Arc<PromptRoute>>, McpError> {
        self.find(|table| match table.prompt(name) {
            Some(route) => Lookup::Found(route),
            None => Lookup::missing(table.unreached_upstream(name, NameKind::Prompt)),
        })
        .await
    }

    /// Returns the provider of a resource.
    ///
    /// # Errors
    /// The errors of [`Self::find_tool`].
    pub async fn find_resource(&mut self, uri: &str) -> Result<Option<RouteTarget>, McpError> {
        self.find(|table| match (table.unreached_upstream_of_uri(uri), table.provider_for_uri(uri)) {
            (Some(expected), fallback) => Lookup::Awaited(expected.clone(), fallback.filter(|_| !expected.is_certain)),
            (None, Some(provider)) => Lookup::Found(provider),
            (None, None) => Lookup::NotFound,
        })
        .await
    }

    async fn find<T>(&mut self, find: impl Fn(&RouteTable) -> Lookup<T>) -> Result<Option<T>, McpError> {
        // Nearly always the table already has the route.
        match find(&self.table) {
            Lookup::Found(found) => Ok(Some(found)),
            Lookup::NotFound => Ok(None),
            Lookup::Awaited(..) => Box::pin(wait(self.routing, self.principal, self.table.to_mut(), find)).await,
        }
    }
}

/// Waits for the server of a tool before anything else of the request is checked. The call itself finds out whether the
/// server connected.
pub async fn wait_for_tool(routing: &Routing, principal: &Principal, name: &str) {
    let _ = wait(routing, principal, &mut routing.routes.load_full(), |table| lookup_tool(table, name)).await;
}

fn lookup_tool(table: &RouteTable, name: &str) -> Lookup<Arc<ToolRoute>> {
    match table.find_tool(name) {
        Some(route) => Lookup::Found(route),
        None => Lookup::missing(table.unreached_upstream(name, NameKind::Tool)),
    }
}

enum Lookup<T> {
    Found(T),
    NotFound,
    /// The server that may have the name, and the route to use if that server does not connect.
    Awaited(AwaitedUpstream, Option<T>),
}

impl<T> Lookup<T> {
    fn missing(expected: Option<AwaitedUpstream>) -> Self {
        expected.map_or(Self::NotFound, |expected| Self::Awaited(expected, None))
    }
}

async fn wait<T>(
    routing: &Routing,
    principal: &Principal,
    table: &mut Arc<RouteTable>,
    find: impl Fn(&RouteTable) -> Lookup<T>,
) -> Result<Option<T>, McpError> {
    let mut slot = None;
    loop {
        let (expected, fallback) = match find(table) {
            Lookup::Found(found) => return Ok(Some(found)),
            Lookup::NotFound => return Ok(None),
            Lookup::Awaited(expected, fallback) => (expected, fallback),
        };
        let remaining = routing.first_connection.saturating_sub(expected.upstream.age());
        if slot.is_none() {
            slot = routing.long_requests.admit(principal).ok();
        }
        if remaining.is_zero() || slot.is_none() {
            return fallback.map(Some).ok_or_else(|| unavailable(&expected));
        }
        tokio::select! {
            () = table.superseded.cancelled() => {}
            () = tokio::time::sleep(remaining) => {}
            () = routing.long_requests.shutdown.cancelled() => {
                return Err(McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down"));
            }
        }
        *table = routing.routes.load_full();
    }
}

fn unavailable(AwaitedUpstream { upstream, is_certain }: &AwaitedUpstream) -> McpError {
    let name = upstream.config.name.as_str();
    let message = match is_certain {
        true => format!("the server {name} was not reached yet; ask again later"),
        false => format!(
            "no connected provider has this name; the server {name} may have it, but was not reached yet; ask again later"
        ),
    };
    McpError::new(ErrorKind::UpstreamUnavailable, message)
        .with("upstream", name)
        .with("retryAfter", RETRY_AFTER.as_secs())
        .with("outcome", "not_applied")
}

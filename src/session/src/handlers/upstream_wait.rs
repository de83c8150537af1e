//! Waits for upstreams that have not connected yet shortly after the gateway's start, so that a request for one of
//! their tools is not refused as unknown.
//!
//! An upstream has `limits.first_connection` from its start, or from its configuration, to connect. Where people use
//! accounts of their own, the time begins once the account of the caller's person works. After that, a request gets an
//! error that says when to try again, unless another provider may have the name. The wait takes one of the principal's
//! slots for long requests. It decides nothing: the policy is asked afterwards, as always.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::gateway::server::Routing;
use countersign_domain::principal::Principal;
use countersign_protocol::{ErrorKind, McpError};
use countersign_routing::{
    RouteTable, RouteTarget, ToolRoute,
    table::PromptRoute,
    unreached_upstreams::{AwaitedUpstream, NameKind},
};

/// The time after which a client should ask again for an upstream that was not reached in time. The upstream is tried
/// again at about that time.
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
    /// `UPSTREAM_UNAVAILABLE` if its upstream was not reached yet; `AUTHORIZATION` if a person must connect it first.
    pub async fn find_tool(&mut self, name: &str) -> Result<Option<Arc<ToolRoute>>, McpError> {
        self.find_route(|table| lookup_tool(table, name)).await
    }

    /// Returns the prompt with this name.
    ///
    /// # Errors
    /// The errors of [`Self::find_tool`].
    pub async fn find_prompt(&mut self, name: &str) -> Result<Option<Arc<PromptRoute>>, McpError> {
        self.find_route(|table| match table.prompt(name) {
            Some(route) => Lookup::Found(route),
            None => Lookup::for_missing_name(table.unreached_upstream(name, NameKind::Prompt)),
        })
        .await
    }

    /// Returns the provider of a resource.
    ///
    /// # Errors
    /// The errors of [`Self::find_tool`].
    pub async fn find_resource(&mut self, uri: &str) -> Result<Option<RouteTarget>, McpError> {
        self.find_route(|table| match (table.unreached_upstream_of_uri(uri), table.provider_for_uri(uri)) {
            (Some(awaited), fallback) => Lookup::Awaited(awaited.clone(), fallback.filter(|_| !awaited.is_certain)),
            (None, Some(provider)) => Lookup::Found(provider),
            (None, None) => Lookup::NotFound,
        })
        .await
    }

    async fn find_route<T>(&mut self, find: impl Fn(&RouteTable) -> Lookup<T>) -> Result<Option<T>, McpError> {
        // Nearly always the table already has the route.
        match find(&self.table) {
            Lookup::Found(found) => Ok(Some(found)),
            Lookup::NotFound => Ok(None),
            Lookup::Awaited(..) => {
                Box::pin(wait_for_route(self.routing, self.principal, self.table.to_mut(), find)).await
            }
        }
    }
}

/// Waits for the upstream of a tool before anything else of the request is checked. `table` becomes the table that was
/// searched last. The call itself finds out whether the upstream connected.
pub async fn wait_for_tool(routing: &Routing, principal: &Principal, table: &mut Arc<RouteTable>, name: &str) {
    let _ = wait_for_route(routing, principal, table, |table| lookup_tool(table, name)).await;
}

fn lookup_tool(table: &RouteTable, name: &str) -> Lookup<Arc<ToolRoute>> {
    match table.find_tool(name) {
        Some(route) => Lookup::Found(route),
        None => Lookup::for_missing_name(table.unreached_upstream(name, NameKind::Tool)),
    }
}

/// The result of a search in one route table.
enum Lookup<T> {
    Found(T),
    NotFound,
    /// The upstream that may have the name, and the route to use if that upstream does not connect.
    Awaited(AwaitedUpstream, Option<T>),
}

impl<T> Lookup<T> {
    fn for_missing_name(awaited: Option<AwaitedUpstream>) -> Self {
        awaited.map_or(Self::NotFound, |awaited| Self::Awaited(awaited, None))
    }
}

/// Waits until the upstream that may have the route connects, or its time is up.
async fn wait_for_route<T>(
    routing: &Routing,
    principal: &Principal,
    table: &mut Arc<RouteTable>,
    find: impl Fn(&RouteTable) -> Lookup<T>,
) -> Result<Option<T>, McpError> {
    let mut slot = None;
    let mut account_works_since: Option<Instant> = None;
    loop {
        let (awaited, fallback) = match find(table) {
            Lookup::Found(found) => return Ok(Some(found)),
            Lookup::NotFound => return Ok(None),
            Lookup::Awaited(awaited, fallback) => (awaited, fallback),
        };
        let upstream = &awaited.upstream;
        if awaited.is_certain && (upstream.needs_consent() || upstream.has_personal_accounts()) {
            let own_upstream = upstream.for_principal(principal).await?;
            // An upstream counts as reached a moment before its phase is `Up`.
            if own_upstream.was_reached() {
                account_works_since.get_or_insert_with(Instant::now);
            }
        }
        let waited = account_works_since.map_or_else(|| upstream.age(), |since| since.elapsed());
        let remaining = routing.first_connection.saturating_sub(waited);
        if slot.is_none() {
            slot = routing.long_requests.slots.take(&principal.name).ok();
        }
        if remaining.is_zero() || slot.is_none() {
            return fallback.map(Some).ok_or_else(|| unavailable_error(&awaited));
        }
        tokio::select! {
            () = table.superseded.cancelled() => {}
            () = tokio::time::sleep(remaining) => {}
            () = routing.long_requests.shutdown.cancelled() => {
                return Err(McpError::shutting_down());
            }
        }
        *table = routing.routes.load_full();
    }
}

fn unavailable_error(AwaitedUpstream { upstream, is_certain }: &AwaitedUpstream) -> McpError {
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

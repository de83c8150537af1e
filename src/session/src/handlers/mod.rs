//! The handlers of all methods. A handler returns a plain [`Reply`], and [`Reply::finish`] adapts it to the client's
//! revision. Unless its comment says more, a handler fails with `-32602` for invalid parameters, and with the errors of
//! the policy and of the provider.
//!
//! [`Reply`]: countersign_exchange::reply::Reply
//! [`Reply::finish`]: countersign_exchange::reply::Reply::finish

pub mod account_connection;
mod admitted_call;
mod client_questions;
pub mod extension_methods;
pub mod lifecycle;
pub mod listen;
pub mod lists;
pub mod prompts;
pub mod resources;
pub mod reviewed;
pub mod tasks;
pub mod tool_call;
pub mod tools;
pub mod upstream_wait;

use crate::gateway::limits::RequestLimits;
use countersign_exchange::{context::Exchange, state::Cancellation};
use countersign_protocol::{Method, envelope::Request, params};
use countersign_routing::RouteTable;
use upstream_wait::RouteFinder;

/// A request about prompts or resources, or for news of them, and the parts of the gateway that handlers of such requests use.
pub struct ItemRequest<'a> {
    pub exchange: &'a Exchange,
    pub request: &'a Request<'a>,
    pub cancel: &'a Cancellation,
    pub finder: RouteFinder<'a>,
    pub limits: &'a RequestLimits,
}

/// Returns `true` if one call may answer several equal requests of a batch: it only reads, and has no progress token and no plan.
pub fn is_shareable_read(table: &RouteTable, request: &Request<'_>) -> bool {
    if !request.meta().is_ok_and(|meta| meta.progress_token.is_none() && meta.plan.is_none()) {
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
        Some(Method::ToolsCall) => params::parse::<params::CallToolParams<'_>>(request.params).is_ok_and(|call| {
            table
                .find_tool(&call.name)
                .is_some_and(|route| route.ruling.always_allows() && route.is_read_only() && !route.def.long_running)
        }),
        _ => false,
    }
}

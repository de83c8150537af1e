//! A POST request to the MCP endpoint, as the handlers of both eras get it.

use std::sync::Arc;

use actix_web::{HttpRequest, web};

use super::{HeaderView, names};
use crate::endpoint::McpEndpoint;
use countersign_domain::principal::Identity;
use countersign_exchange::{body_budget::Reservation, context::ForwardedHeaders};
use countersign_http::answer::AcceptedMedia;
use countersign_protocol::{McpError, RequestId, envelope::Message, headers, params::Meta};
use countersign_routing::RouteTable;
use countersign_session::owned_messages::OwnedRequest;

/// A POST request whose headers were checked.
pub struct Post<'a> {
    pub endpoint: &'a web::Data<McpEndpoint>,
    pub request: &'a HttpRequest,
    pub identity: Identity,
    /// The session that the headers name ([`handshake_session_id`]).
    pub session_id: Option<&'a str>,
    pub accepts: AcceptedMedia,
    /// The reservation of its body in the budget for bodies.
    pub reservation: Option<Reservation>,
}

/// A large request, which is answered on a thread for large messages ([`countersign_runtime::large_messages`]).
pub struct LargeRequest {
    pub request: Arc<OwnedRequest>,
    /// The comparison of its arguments with the headers that mirror them.
    pub mirror_check: Result<MirrorCheck, McpError>,
}

/// The outcome of comparing the arguments of a call with the headers that mirror them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorCheck {
    Passed,
    /// The tool may belong to a server whose definitions have not arrived yet.
    UnknownTool,
}

/// Returns the headers of the request that the configuration forwards to upstreams, or `None` if it forwards none.
pub fn forwarded_headers(table: &RouteTable, request: &HttpRequest) -> Option<Arc<ForwardedHeaders>> {
    let names = &table.headers.forwarded;
    if names.is_empty() {
        return None;
    }
    let value = |name: &String| request.headers().get(name.as_str())?.to_str().ok();
    Some(Arc::new(names.iter().filter_map(|name| Some((name.as_str().into(), value(name)?.into()))).collect()))
}

/// Returns the `Mcp-Session-Id` header, or `Some("")` if it is not text.
pub fn session_id(request: &HttpRequest) -> Option<&str> {
    request.headers().get(&names::SESSION_ID).map(|v| v.to_str().unwrap_or_default())
}

/// Returns the session that a POST names. A POST whose version header names a stateless revision has none, whatever its
/// `Mcp-Session-Id` (2026-07-28/basic/transports/streamable-http, "Earlier Streamable HTTP Revisions": ignore it).
pub fn handshake_session_id(request: &HttpRequest) -> Option<&str> {
    let all = request.headers();
    let is_stateless =
        || all.contains_key(&names::PROTOCOL_VERSION) && headers::is_modern(&HeaderView(all), &Meta::default());
    session_id(request).filter(|_| !is_stateless())
}

/// Returns the id of a request.
pub const fn request_id<'a>(message: &'a Message<'_>) -> Option<&'a RequestId> {
    if let Message::Request(request) = message { Some(&request.id) } else { None }
}

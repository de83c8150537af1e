//! Forwards requests that arrived over a connection with an outbox to the node that owns their subject.

use crate::gateway::{
    cluster::{Cluster, ForwardTarget, OwnerLookup},
    server::RequestScope,
};
use countersign_exchange::{
    context::{Exchange, InFlightRequest, WireResponse},
    state::Channel,
};
use countersign_protocol::{
    McpError,
    envelope::Request,
    json::string,
    param_headers::{self, MirroredHeaders},
};
use countersign_routing::RouteTable;

/// Finds the owner of the subject of a request that arrived over a connection with an outbox. A request that arrived
/// over HTTP was already forwarded by its transport.
pub(super) fn find_forward_target<'a>(
    cluster: &'a dyn Cluster,
    exchange: &Exchange,
    request: &Request<'a>,
) -> Option<OwnerLookup<'a>> {
    if !exchange.is_modern() || !matches!(exchange.session.channel, Channel::Outbox(_)) {
        return None;
    }
    cluster.owner_of_call(request)
}

/// Returns the headers that mirror arguments of a call, as the definition of its tool demands.
fn mirrored_headers(table: &RouteTable, request: &Request<'_>) -> MirroredHeaders {
    let params = request.outlined_params().object;
    let name = params.member("name").and_then(string).filter(|_| request.method == "tools/call");
    let route = name.and_then(|name| table.find_tool(&name));
    route.map_or_else(Vec::new, |route| param_headers::for_call(&route.param_headers, params.member("arguments")))
}

/// Forwards a request to the owner, and waits for the answer until the client cancels its request or the session ends.
/// Returns `None` for a cancelled request.
pub(super) async fn forward_to_owner(
    scope: &RequestScope,
    cluster: &dyn Cluster,
    target: ForwardTarget,
    request: &Request<'_>,
) -> Option<WireResponse> {
    let RequestScope { exchange, server, table } = scope;
    let (revision, mirrored) = (exchange.revision(), mirrored_headers(table, request));
    let error = |error: &McpError| Some(WireResponse::error(Some(&request.id), error, revision));
    let mut in_flight = match InFlightRequest::register(&server.slots, &exchange.session, &request.id) {
        Ok(in_flight) => in_flight,
        Err(refusal) => return error(&refusal),
    };
    let answer = tokio::select! {
        // A cancelled request gets no answer, even if there is one.
        biased;
        () = in_flight.cancel.cancelled() => return None,
        answer = cluster.call(target, exchange, mirrored, request) => answer,
    };
    in_flight.is_answered = true;
    answer.map_or_else(|failed| error(&failed), Some)
}

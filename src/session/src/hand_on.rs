//! What another gateway of the same store keeps: a call that waits there for its client, the task of a server. A stateless
//! request that comes in by a connection with an outbox and is about such a thing is answered by that gateway; on HTTP the
//! transport hands it on by itself, before it is read.

use futures_util::future::LocalBoxFuture;

use countersign_exchange::{
    context::{Exchange, InFlight, WireResponse},
    shared::Channel,
};
use countersign_protocol::{McpError, envelope::Request};

/// The way to other gateways of the same store.
pub trait HandOn: Send + Sync {
    /// Looks which gateway keeps what this is about; `None` where that can be none but this one.
    fn hand_on<'a>(&self, exchange: &'a Exchange, request: &'a Request<'a>) -> Option<Looked<'a>>;
}

/// The answer of the gateway that keeps it; `None` where that is this one, or nobody knows it. What belongs to the request
/// before its answer is sent meanwhile.
pub type Looked<'a> = LocalBoxFuture<'a, Result<Option<Answer<'a>>, McpError>>;

/// What the other one says.
pub type Answer<'a> = LocalBoxFuture<'a, Result<WireResponse, McpError>>;

/// See [`HandOn::hand_on`].
pub fn elsewhere<'a>(way: Option<&dyn HandOn>, exchange: &'a Exchange, request: &'a Request<'a>) -> Option<Looked<'a>> {
    if !exchange.is_modern() || !matches!(exchange.session.channel, Channel::Outbox(_)) {
        return None;
    }
    way?.hand_on(exchange, request)
}

/// Waits for it, as for what this gateway answers: until its client takes the request back, or the session ends.
pub async fn answered(exchange: &Exchange, request: &Request<'_>, answer: Answer<'_>) -> Option<WireResponse> {
    let revision = exchange.revision();
    let error = |error: &McpError| Some(WireResponse::error(Some(&request.id), error, revision));
    let in_flight = match InFlight::admit(exchange, &request.id, exchange.services.config.limits.max_in_flight) {
        Ok(in_flight) => in_flight,
        Err(refused) => return error(&refused),
    };
    let answer = tokio::select! {
        biased;
        answer = answer => answer,
        () = in_flight.cancel.cancelled() => return None,
    };
    in_flight.answered();
    answer.map_or_else(|failed| error(&failed), Some)
}

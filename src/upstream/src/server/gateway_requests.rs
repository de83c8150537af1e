//! Requests that the gateway sends for itself, such as lists, subscriptions and probes. No client waits for them.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use super::{Upstream, connection::UpstreamConnection};
use crate::link::{
    Link, LinkError, Listener, OutgoingRequest, Response,
    detect::{may_be_other_era, may_lack_meta},
    handshake::add_meta_for,
};
use countersign_protocol::{Era, negotiate::ClientCapabilities, rpc_error::RpcError};

/// The reason why a request that the gateway sent for itself failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GatewayRequestError {
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("answered {}: {}", .0.code, .0.message)]
    Rpc(RpcError),
    #[error("did not answer in time")]
    Timeout,
    #[error("{0}")]
    Malformed(String),
}

impl GatewayRequestError {
    /// Returns `true` if the server may speak another era than the link on which it refused the request, whose
    /// parameters are known to be valid.
    pub(crate) fn may_be_other_era(&self, era: Era) -> bool {
        let (status, code) = match self {
            Self::Rpc(error) => (error.status, Some(error.code)),
            Self::Link(LinkError::Status { status, .. }) => (Some(*status), None),
            _ => return false,
        };
        may_be_other_era(era, status, code) || may_lack_meta(era, status, code)
    }
}

impl Upstream {
    /// Sends a request for the gateway itself. Neither the circuit breaker nor the limit of calls applies to it.
    pub(crate) async fn send_gateway_request(
        &self,
        connection: &UpstreamConnection,
        method: &str,
        params: &str,
        limit: Duration,
    ) -> Result<Box<RawValue>, GatewayRequestError> {
        let (link, listener) = (&*connection.link, Arc::clone(&connection.calls));
        let answer = send_request(link, connection.era, self.next_request_id(), method, params, listener);
        let answer = tokio::time::timeout(limit, answer).await.unwrap_or(Err(GatewayRequestError::Timeout));
        if matches!(answer, Ok(_) | Err(GatewayRequestError::Rpc(_))) {
            connection.timeout_streak.record_answer();
        }
        answer
    }
}

/// Sends a request of the gateway itself, which has no client that could be asked, without a time limit.
pub(crate) async fn send_request(
    link: &dyn Link,
    era: Era,
    id: u64,
    method: &str,
    params: &str,
    listener: Arc<dyn Listener>,
) -> Result<Box<RawValue>, GatewayRequestError> {
    let params = match era {
        Era::Modern => add_meta_for(params, &ClientCapabilities::default()),
        Era::Legacy => params.to_owned(),
    };
    match link.request(&OutgoingRequest::new(id, method, Some(&params)), listener).await? {
        Response::Result(result) => Ok(result),
        Response::Error(error) => Err(GatewayRequestError::Rpc(error)),
    }
}

//! The gateway's own requests, such as lists, subscriptions and probes, for which no client waits.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use super::{Upstream, connection::UpstreamConnection};
use crate::link::{LinkError, Listener, Outgoing, Response, handshake::with_meta_for};
use countersign_protocol::{Era, negotiate::ClientCapabilities, rpc_error::RpcError};

/// The reason why a request of the gateway itself failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OwnRequestError {
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("answered {}: {}", .0.code, .0.message)]
    Rpc(RpcError),
    #[error("did not answer in time")]
    Timeout,
    #[error("{0}")]
    Malformed(String),
}

impl Upstream {
    /// Sends a request of the gateway itself, to which neither the circuit breaker nor the limit of calls applies.
    pub(crate) async fn ask(
        &self,
        connection: &UpstreamConnection,
        method: &str,
        params: &str,
    ) -> Result<Box<RawValue>, OwnRequestError> {
        let answer = self.ask_with_timeout(connection, method, params, self.config.timeout).await;
        if matches!(answer, Ok(_) | Err(OwnRequestError::Rpc(_))) {
            connection.timeout_streak.record_answer();
        }
        answer
    }

    /// Sends a request like [`Self::ask`], with another time limit.
    pub(crate) async fn ask_with_timeout(
        &self,
        connection: &UpstreamConnection,
        method: &str,
        params: &str,
        limit: Duration,
    ) -> Result<Box<RawValue>, OwnRequestError> {
        let params = match connection.era {
            Era::Modern => with_gateway_meta(params),
            Era::Legacy => params.to_owned(),
        };
        let outgoing = Outgoing { repeatable: true, ..Outgoing::new(self.next_request_id(), method, Some(&params)) };
        let listener: Arc<dyn Listener> = Arc::clone(&connection.calls) as _;
        match tokio::time::timeout(limit, connection.link.request(&outgoing, listener)).await {
            Err(_) => Err(OwnRequestError::Timeout),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(Response::Error(error))) => Err(OwnRequestError::Rpc(error)),
            Ok(Ok(Response::Result(result))) => Ok(result),
        }
    }
}

/// Adds `_meta` for a request of the gateway itself, which has no client that could be asked.
pub(crate) fn with_gateway_meta(params: &str) -> String {
    with_meta_for(params, &ClientCapabilities::default())
}

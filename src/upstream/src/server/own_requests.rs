//! Requests of the gateway's own, which no client waits for: lists, subscriptions, signs of life.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use super::{Upstream, held::Held};
use crate::link::{LinkError, Listener, Outgoing, Response, handshake::client_info};
use countersign_protocol::{
    Era, Revision,
    capabilities::ClientCapabilities,
    json::{Op, merge_meta},
    params::keys,
    rpc_error::RpcError,
};

/// Why something that the gateway itself asked for was not answered.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AskError {
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("answered {}: {}", .0.code, .0.message)]
    Rpc(RpcError),
    #[error("did not answer in time")]
    Timeout,
    #[error("{0}")]
    Garbage(String),
}

impl Upstream {
    /// A request of the gateway's own: neither the breaker nor the bounds of calls are for it.
    pub(crate) async fn ask(&self, held: &Held, method: &str, params: &str) -> Result<Box<RawValue>, AskError> {
        let answer = self.ask_within(held, method, params, self.config.timeout).await;
        if matches!(answer, Ok(_) | Err(AskError::Rpc(_))) {
            held.silence.broken();
        }
        answer
    }

    /// As [`Self::ask`], within another time.
    pub(crate) async fn ask_within(
        &self,
        held: &Held,
        method: &str,
        params: &str,
        limit: Duration,
    ) -> Result<Box<RawValue>, AskError> {
        let params = match held.era {
            Era::Modern => stamped(params),
            Era::Legacy => params.to_owned(),
        };
        let outgoing = Outgoing { repeatable: true, ..Outgoing::new(self.mint(), method, Some(&params)) };
        let listener: Arc<dyn Listener> = Arc::clone(&held.traffic) as _;
        match tokio::time::timeout(limit, held.link.request(&outgoing, listener)).await {
            Err(_) => Err(AskError::Timeout),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(Response::Error(error))) => Err(AskError::Rpc(error)),
            Ok(Ok(Response::Result(result))) => Ok(result),
        }
    }
}

/// The parameters of a request of the gateway's own, which has no client that could be asked
/// (2026-07-28/basic/index#meta).
pub(crate) fn stamped(params: &str) -> String {
    stamped_for(params, &ClientCapabilities::default())
}

/// As [`stamped`], for a client that can be asked that much.
pub(crate) fn stamped_for(params: &str, capabilities: &ClientCapabilities) -> String {
    let version = format!("\"{}\"", Revision::MODERN.as_str());
    let capabilities = capabilities.to_json(Revision::MODERN).to_string();
    merge_meta(
        params,
        &[
            (keys::PROTOCOL_VERSION, Op::Set(&version)),
            (keys::CLIENT_INFO, Op::Set(client_info())),
            (keys::CLIENT_CAPABILITIES, Op::Set(&capabilities)),
        ],
    )
}

//! Requests that a server sends while it runs a call.

use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use countersign_protocol::{RequestId, rpc_error::RpcError};

/// A request from an upstream: elicitation, sampling, roots, or one that the gateway does not know.
/// `ping` never gets here: links answer it.
pub struct UpstreamRequest {
    /// The id that the upstream chose, which is unique among its open requests on this link.
    pub id: RequestId,
    pub method: String,
    pub params: Option<Box<RawValue>>,
    /// Sends the answer. If it is dropped unused, the request is declined with `-32601`.
    pub reply: Replier,
    /// Cancelled when the upstream cancels its request.
    pub cancelled: CancellationToken,
}

/// Answers one request of an upstream, at most once.
pub struct Replier(Option<AnswerSender>);

/// A function that queues an answer on its link.
type AnswerSender = Box<dyn FnOnce(Result<Box<RawValue>, RpcError>) + Send>;

impl Replier {
    /// Wraps `send`, which must not block: it only queues the answer on the link.
    pub fn new(send: impl FnOnce(Result<Box<RawValue>, RpcError>) + Send + 'static) -> Self {
        Self(Some(Box::new(send)))
    }

    pub fn answer(mut self, answer: Result<Box<RawValue>, RpcError>) {
        if let Some(send) = self.0.take() {
            send(answer);
        }
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        if let Some(send) = self.0.take() {
            send(Err(RpcError::new(-32601, "no client can answer this here")));
        }
    }
}

//! Messages of calls to the upstream's actor: opening a link, and running an approved change.

use std::sync::{Arc, atomic::Ordering};

use actix::{Handler, Message, ResponseFuture};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::execute;
use crate::{
    link::{LinkError, LinkKind, handshake},
    server::{
        Upstream, UpstreamActor,
        connection::{LinkCalls, UpstreamConnection},
        endpoint::Endpoint,
        pool::{OpeningSender, PoolKey},
    },
};
use countersign_protocol::{McpError, negotiate::ClientCapabilities};
use countersign_provider::{CallContext, ToolResult};
use countersign_runtime::background;

impl Upstream {
    /// Requests a new link for the pool of an endpoint.
    pub(super) fn request_link(&self, open: OpenLink) {
        match self.actor.get() {
            // The send is unbounded, because the pool limits the number of openings. A bounded send could be dropped
            // together with its caller, which would leave an entry in the pool.
            Some(actor) => actor.do_send(open),
            None => open.finish(Err(LinkError::Unreachable("it is not started".into()))),
        }
    }
}

/// Opens a link. A call that needs a link of its own sends this message, and the pool receives the result.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct OpenLink {
    pub endpoint: Arc<Endpoint>,
    pub key: PoolKey,
    /// The capabilities of the caller.
    pub capabilities: ClientCapabilities,
    /// The id of the opening ([`LeaseOutcome::MustOpen`](crate::server::pool::LeaseOutcome)).
    pub id: u64,
    pub result_sender: OpeningSender,
}

impl OpenLink {
    /// Reports the result to the pool.
    fn finish(&self, result: Result<Arc<UpstreamConnection>, LinkError>) {
        self.endpoint.pool.finish_opening(&self.key, self.id, result, &self.result_sender);
    }
}

impl Handler<OpenLink> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, open: OpenLink, _: &mut Self::Context) {
        let upstream = Arc::clone(&self.0);
        background::spawn(async move {
            let opening = upstream.stop.run_until_cancelled(open_link(&upstream, &open));
            let result = opening.await.unwrap_or_else(|| Err(LinkError::Unreachable("it is being closed".into())));
            if let Err(error) = &result {
                tracing::info!(upstream = %upstream.config.name, %error, "cannot open another link to the upstream");
                // A server that refuses the handshake may be of the stateless era now. A program may refuse a second process.
                if error.is_refusal() && open.endpoint.kind() != LinkKind::SingleStream {
                    upstream.era_doubted.notify_one();
                }
            }
            open.finish(result);
        });
    }
}

/// Opens a link with the capabilities of the caller, or with none for the common connection. If another version of the server
/// answers than the one whose tools are known, the tools are read again first.
///
/// # Errors
/// As [`handshake::open`]; [`LinkError::Unreachable`] if another version answers, and the tools have changed.
async fn open_link(upstream: &Arc<Upstream>, open: &OpenLink) -> Result<Arc<UpstreamConnection>, LinkError> {
    let known_session =
        upstream.negotiated().ok_or_else(|| LinkError::Unreachable("it has not been reached yet".into()))?;
    let calls = LinkCalls::new(upstream.weak_self.clone(), matches!(open.key, PoolKey::Session(_)));
    let no_capabilities = ClientCapabilities::default();
    let capabilities = if open.key == PoolKey::Common { &no_capabilities } else { &open.capabilities };
    let connector = open.endpoint.connector();
    let tools_version = upstream.tools_version.load(Ordering::Acquire);
    let (link, negotiated) =
        handshake::open(&*connector, Some(&known_session), capabilities, Arc::clone(&calls) as _).await?;
    let connection = Arc::new(UpstreamConnection::new(link, connector.kind(), calls, &negotiated));
    let is_known_version =
        negotiated.server_info.as_deref().map(RawValue::get) == known_session.server_info.as_deref().map(RawValue::get);
    if !is_known_version {
        let is_same = upstream.has_same_tools(tools_version, Some(upstream.reread_limit())).await;
        // If they cannot be read, the last known ones count.
        if !is_same && !upstream.has_same_tools(tools_version, None).await {
            connection.close();
            return Err(LinkError::Unreachable("it has been replaced, and its tools have changed".into()));
        }
    }
    Ok(connection)
}

/// Runs an approved change once. The Executor's thread sends this message, which fails as
/// [`countersign_provider::Provider::call`] does.
#[derive(Message)]
#[rtype(result = "Result<ToolResult, McpError>")]
pub(crate) struct Execute {
    /// The name of the tool that clients use.
    pub tool: Box<str>,
    pub arguments: Box<RawValue>,
    pub context: CallContext,
    /// Cancelled when the sender no longer waits for the result.
    pub dropped: CancellationToken,
}

impl Handler<Execute> for UpstreamActor {
    type Result = ResponseFuture<Result<ToolResult, McpError>>;

    fn handle(&mut self, execute: Execute, _: &mut Self::Context) -> Self::Result {
        let upstream = Arc::clone(&self.0);
        Box::pin(async move { execute::execute_change(&upstream, execute).await })
    }
}

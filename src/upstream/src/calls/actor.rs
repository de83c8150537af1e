//! What calls have the upstream's actor do, on the upstreams' thread: open a link, run an approved change.

use std::sync::Arc;

use actix::{Handler, Message, ResponseFuture};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::execute;
use crate::{
    link::{LinkError, handshake},
    server::{
        Upstream, UpstreamActor,
        held::{Held, Traffic},
        pool::{Key, Opened},
    },
};
use countersign_protocol::{McpError, capabilities::ClientCapabilities};
use countersign_provider::{CallContext, ToolResult};

impl Upstream {
    /// Has a link opened for the pool of an endpoint.
    pub(crate) fn have_opened(
        &self,
        endpoint: usize,
        key: Key,
        capabilities: ClientCapabilities,
        id: u64,
        opened: Opened,
    ) {
        let open = OpenLink { endpoint, key, capabilities, id, opened };
        match self.actor.get() {
            // The pool bounds how many are under way, and the caller may be gone before a bounded send is through,
            // which would leave its entry for ever.
            Some(actor) => actor.do_send(open),
            None => self.failed(open, LinkError::Unreachable("it is not started".into())),
        }
    }

    fn failed(&self, open: OpenLink, error: LinkError) {
        if let Some(endpoint) = self.endpoints.get(open.endpoint) {
            endpoint.pool.opened(&open.key, open.id, Err(error), &open.opened);
        }
    }
}

/// Sent by a call that needs a link of its own; the pool is told of the end.
#[derive(Message)]
#[rtype(result = "()")]
struct OpenLink {
    endpoint: usize,
    key: Key,
    capabilities: ClientCapabilities,
    id: u64,
    opened: Opened,
}

impl Handler<OpenLink> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, open: OpenLink, _: &mut Self::Context) {
        let upstream = Arc::clone(&self.0);
        actix::spawn(async move {
            let work = open_link(&upstream, &open);
            let result = tokio::select! {
                result = work => result,
                () = upstream.stop.cancelled() => Err(LinkError::Unreachable("it is being closed".into())),
            };
            match result {
                Ok(held) => {
                    if let Some(endpoint) = upstream.endpoints.get(open.endpoint) {
                        endpoint.pool.opened(&open.key, open.id, Ok(held), &open.opened);
                    }
                }
                Err(error) => {
                    tracing::info!(upstream = %upstream.config.name, %error, "no further connection to it");
                    upstream.failed(open, error);
                }
            }
        });
    }
}

async fn open_link(upstream: &Arc<Upstream>, open: &OpenLink) -> Result<Arc<Held>, LinkError> {
    let endpoint =
        upstream.endpoints.get(open.endpoint).ok_or_else(|| LinkError::Unreachable("it has no address".into()))?;
    let known = upstream.negotiated().ok_or_else(|| LinkError::Unreachable("it has not been reached yet".into()))?;
    let traffic = Traffic::new(upstream.me.clone(), matches!(open.key, Key::Session(_)));
    let plain = ClientCapabilities::default();
    let capabilities = if open.key == Key::Plain { &plain } else { &open.capabilities };
    let connector = endpoint.connector();
    let (link, negotiated) =
        handshake::open(&*connector, known.revision.era(), Some(&known), capabilities, Arc::clone(&traffic) as _)
            .await?;
    Ok(Arc::new(Held::new(link, traffic, &negotiated)))
}

/// Sent by the Executor's thread: runs an approved change, once. Fails as [`countersign_provider::Provider::call`] does.
#[derive(Message)]
#[rtype(result = "Result<ToolResult, McpError>")]
pub(crate) struct Execute {
    /// The exposed name.
    pub tool: Box<str>,
    pub arguments: Box<RawValue>,
    pub context: CallContext,
    /// The other side has gone.
    pub dropped: CancellationToken,
}

impl Handler<Execute> for UpstreamActor {
    type Result = ResponseFuture<Result<ToolResult, McpError>>;

    fn handle(&mut self, execute: Execute, _: &mut Self::Context) -> Self::Result {
        let upstream = Arc::clone(&self.0);
        Box::pin(async move { execute::run(&upstream, execute).await })
    }
}

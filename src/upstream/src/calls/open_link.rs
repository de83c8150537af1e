//! Opens links for the pool of an endpoint.

use std::sync::{Arc, atomic::Ordering};

use serde_json::value::RawValue;

use crate::{
    link::{LinkError, LinkKind, handshake},
    server::{
        Upstream,
        connection::{LinkCalls, UpstreamConnection},
        endpoint::Endpoint,
        pool::{OpeningSender, PoolKey},
    },
};
use countersign_protocol::negotiate::ClientCapabilities;

/// An order to open a link for a call, whose pool receives the result.
pub(super) struct OpenLink {
    pub endpoint: Arc<Endpoint>,
    pub key: PoolKey,
    /// The capabilities of the caller.
    pub capabilities: ClientCapabilities,
    /// The id of the opening ([`LeaseOutcome::MustOpen`](crate::server::pool::LeaseOutcome)).
    pub id: u64,
    pub result_sender: OpeningSender,
}

impl Upstream {
    /// Opens a link on the thread of the upstreams, even if the call that needs it is dropped meanwhile, which would leave an
    /// entry in the pool.
    pub(super) fn open_in_background(&self, open: OpenLink) {
        let weak_self = self.weak_self.clone();
        self.spawn_on_thread(move || async move {
            let Some(upstream) = weak_self.upgrade() else { return };
            let opening = upstream.stop.run_until_cancelled(open_link(&upstream, &open));
            let result = opening.await.unwrap_or_else(|| Err(LinkError::Unreachable("it is being closed".into())));
            if let Err(error) = &result {
                tracing::info!(upstream = %upstream.config.name, %error, "cannot open another link to the upstream");
                // A server that refuses the handshake may be of the stateless era now. A program may refuse a second process.
                if error.is_refusal() && open.endpoint.kind() != LinkKind::SingleStream {
                    upstream.era_doubted.notify_one();
                }
            }
            open.endpoint.pool.finish_opening(&open.key, open.id, result, &open.result_sender);
        });
    }
}

/// Opens a link with the capabilities of the caller, or with none for the common connection. If another version of the server
/// answers than the one whose tools are known, the tools are read again first.
///
/// # Errors
/// As [`handshake::open`]; [`LinkError::Unreachable`] if another version answers, and the tools have changed.
async fn open_link(upstream: &Upstream, open: &OpenLink) -> Result<Arc<UpstreamConnection>, LinkError> {
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

//! Finds the node that owns the session, call or task that a request names, and forwards the request to that node. Implements
//! [`countersign_session::cluster::Cluster`] for transports and sessions. A single node has no cluster.
//!
//! A forwarded request carries a token for its target, which only nodes of the store can create. The target answers the request
//! and never forwards it again. Both nodes authenticate the client.
//!
//! [`ownership`] finds the owner. [`peers`] keeps the connections to other nodes. [`forward`] sends HTTP requests over them,
//! and [`calls`] requests that arrived over another transport. [`tunnel`] forwards WebSockets.

pub mod calls;
pub mod forward;
pub mod ownership;
pub mod peers;
pub mod tunnel;

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use tokio_util::sync::CancellationToken;

use countersign_exchange::context::{Exchange, WireResponse};
use countersign_protocol::{McpError, envelope::Request, param_headers::MirroredHeaders};
use countersign_session::cluster::{Body, Cluster, ForwardTarget, OwnerLookup};
use countersign_store::Nodes;
use forward::Forwarder;

/// The gateways that share one store.
pub struct StoreCluster {
    pub nodes: Arc<dyn Nodes>,
    /// Maximum number of streams of one connection to a peer (`transports.http.max_concurrent_streams`).
    pub max_streams: u32,
    /// Returns an error while other nodes may consider this node gone, so that its sessions must not be used.
    pub check_own_lease: Box<dyn Fn() -> Result<(), McpError> + Send + Sync>,
    /// Cancelled when this gateway ends, which ends the tunnels.
    pub shutdown: CancellationToken,
}

impl StoreCluster {
    fn forwarder_for(&self, target: ForwardTarget) -> Option<Forwarder> {
        Forwarder::new(&self.nodes, self.max_streams, target)
    }
}

impl Cluster for StoreCluster {
    fn is_valid_forward_token(&self, token: &[u8]) -> bool {
        forward::is_valid_token(&*self.nodes, token)
    }

    fn owner_of_session<'a>(&'a self, session: &'a str, is_forwarded: bool) -> OwnerLookup<'a> {
        Box::pin(async move {
            let claimant = self.nodes.claimant();
            if claimant.is_some_and(|claimant| ownership::node_of(session) == Some(&claimant.node)) {
                return (self.check_own_lease)().map(|()| None);
            }
            if is_forwarded {
                return Ok(None);
            }
            ownership::find_owner(&*self.nodes, &[session.into()]).await
        })
    }

    fn owner_of_call<'a>(&'a self, request: &Request<'a>) -> Option<OwnerLookup<'a>> {
        let names = ownership::owned_names(request);
        (!names.is_empty()).then(|| Box::pin(async move { ownership::find_owner(&*self.nodes, &names).await }) as _)
    }

    fn is_session_lost(&self, session: &str) -> bool {
        let (Some(own), Some(node)) = (self.nodes.claimant(), ownership::node_of(session)) else { return false };
        node != own.node && self.nodes.peer(node).is_none()
    }

    fn forward<'a>(
        &'a self,
        target: ForwardTarget,
        http: http::Request<Option<Body>>,
    ) -> LocalBoxFuture<'a, Result<http::Response<Body>, McpError>> {
        Box::pin(async move { self.forwarder_for(target).ok_or_else(forward::session_not_found)?.send(http).await })
    }

    fn tunnel<'a>(
        &'a self,
        target: ForwardTarget,
        http: http::Request<Option<Body>>,
        protocols: &'a [&'a str],
    ) -> LocalBoxFuture<'a, Result<http::Response<Body>, McpError>> {
        Box::pin(async move {
            let forwarder = self.forwarder_for(target).ok_or_else(forward::peer_unavailable)?;
            tunnel::open(forwarder, self.shutdown.child_token(), http, protocols).await
        })
    }

    fn call<'a>(
        &'a self,
        target: ForwardTarget,
        exchange: &'a Exchange,
        mirrored_headers: MirroredHeaders,
        request: &'a Request<'a>,
    ) -> LocalBoxFuture<'a, Result<WireResponse, McpError>> {
        Box::pin(async move {
            let forwarder = self.forwarder_for(target).ok_or_else(forward::peer_unavailable)?;
            calls::forward_call(forwarder, exchange, mirrored_headers, request).await
        })
    }
}

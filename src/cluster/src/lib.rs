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

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use countersign_exchange::context::{Exchange, WireResponse};
use countersign_protocol::{McpError, envelope::Request, param_headers::MirroredHeaders};
use countersign_session::{
    cluster::{Body, Cluster, ForwardTarget, OwnerLookup},
    lifetimes::SessionLifetimes,
};
use countersign_store::Nodes;
use forward::Forwarder;

/// The gateways that share one store.
pub struct StoreCluster {
    /// The lease of this node, and the other nodes.
    pub lifetimes: Arc<SessionLifetimes>,
    /// Maximum number of streams of one connection to a peer (`transports.http.max_concurrent_streams`).
    pub max_streams: u32,
    /// Cancelled when this gateway ends, which ends the tunnels.
    pub shutdown: CancellationToken,
}

impl StoreCluster {
    fn nodes(&self) -> &Arc<dyn Nodes> {
        &self.lifetimes.nodes
    }

    /// Checks that no other node may consider this node gone, because its sessions must not be used then.
    fn check_own_lease(&self) -> Result<(), McpError> {
        // A session of an epoch whose lease has lapsed must not be found any more.
        self.lifetimes.end_lapsed_epoch();
        if self.nodes().live_count() > 1 { self.lifetimes.check_lease() } else { Ok(()) }
    }

    fn forwarder_for(&self, target: ForwardTarget) -> Option<Forwarder> {
        Forwarder::new(self.nodes(), self.max_streams, target)
    }
}

#[async_trait(?Send)]
impl Cluster for StoreCluster {
    fn is_valid_forward_token(&self, token: &[u8]) -> bool {
        forward::is_valid_token(&**self.nodes(), token)
    }

    async fn owner_of_session(&self, session: &str, is_forwarded: bool) -> Result<Option<ForwardTarget>, McpError> {
        let claimant = self.nodes().claimant();
        if claimant.is_some_and(|claimant| ownership::node_of(session) == Some(&claimant.node)) {
            return self.check_own_lease().map(|()| None);
        }
        if is_forwarded {
            return Ok(None);
        }
        ownership::find_owner(&**self.nodes(), &[session.into()]).await
    }

    fn owner_of_call<'a>(&'a self, request: &Request<'a>) -> Option<OwnerLookup<'a>> {
        let names = ownership::owned_names(request);
        (!names.is_empty()).then(|| Box::pin(async move { ownership::find_owner(&**self.nodes(), &names).await }) as _)
    }

    fn is_session_lost(&self, session: &str) -> bool {
        let (Some(own), Some(node)) = (self.nodes().claimant(), ownership::node_of(session)) else { return false };
        node != own.node && self.nodes().peer(node).is_none()
    }

    async fn forward(
        &self,
        target: ForwardTarget,
        http: http::Request<Option<Body>>,
    ) -> Result<http::Response<Body>, McpError> {
        self.forwarder_for(target).ok_or_else(forward::session_not_found)?.send(http).await
    }

    async fn tunnel(
        &self,
        target: ForwardTarget,
        http: http::Request<Option<Body>>,
        protocols: &[&str],
    ) -> Result<http::Response<Body>, McpError> {
        let forwarder = self.forwarder_for(target).ok_or_else(forward::peer_unavailable)?;
        tunnel::open(forwarder, self.shutdown.child_token(), http, protocols).await
    }

    async fn call(
        &self,
        target: ForwardTarget,
        exchange: &Exchange,
        mirrored_headers: MirroredHeaders,
        request: &Request<'_>,
    ) -> Result<WireResponse, McpError> {
        let forwarder = self.forwarder_for(target).ok_or_else(forward::peer_unavailable)?;
        calls::forward_call(forwarder, exchange, mirrored_headers, request).await
    }
}

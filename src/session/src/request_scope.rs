//! A request and the parts of the gateway that its handler may use.

use std::{ops::Deref, sync::Arc};

use crate::server::McpServer;
use countersign_exchange::context::Exchange;
use countersign_routing::RouteTable;

/// A request with the parts of the gateway that its handler may use. Functions that need only the [`Exchange`] take an
/// [`Exchange`].
#[derive(Clone)]
pub struct RequestScope {
    pub exchange: Exchange,
    pub server: Arc<McpServer>,
    /// The routes that were published when the request had been read. Only a wait for a server replaces them.
    pub table: Arc<RouteTable>,
}

impl Deref for RequestScope {
    type Target = Exchange;

    fn deref(&self) -> &Exchange {
        &self.exchange
    }
}

//! One request on its way through this crate: its exchange, and what its handler may use.

use std::{ops::Deref, sync::Arc};

use crate::server::McpServer;
use countersign_exchange::context::Exchange;
use countersign_routing::RouteTable;

/// A request with the parts of the gateway that its handler may use. Functions that need only the [`Exchange`] take
/// that.
#[derive(Clone)]
pub struct Handling {
    pub exchange: Exchange,
    pub server: Arc<McpServer>,
    /// The routes as they were once the request had been read. Only waiting for a server replaces them.
    pub table: Arc<RouteTable>,
}

impl Deref for Handling {
    type Target = Exchange;

    fn deref(&self) -> &Exchange {
        &self.exchange
    }
}

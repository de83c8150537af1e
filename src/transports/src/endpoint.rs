//! The shared data of the endpoints of agents.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use countersign_config::TransportsConfig;
use countersign_http::connections::Connections;
use countersign_session::{McpServer, Sessions};

/// The data of the endpoints, which all workers share.
pub struct McpEndpoint {
    pub transports: TransportsConfig,
    pub server: Arc<McpServer>,
    pub sessions: Arc<Sessions>,
    pub connections: Arc<Connections>,
    /// Cancelled when the gateway begins to drain.
    pub shutdown: CancellationToken,
}

impl McpEndpoint {
    #[must_use]
    pub fn new(transports: &TransportsConfig, sessions: Arc<Sessions>, connections: Arc<Connections>) -> Self {
        let server = Arc::clone(&sessions.server);
        Self {
            transports: transports.clone(),
            shutdown: server.long_requests.shutdown.clone(),
            server,
            sessions,
            connections,
        }
    }
}

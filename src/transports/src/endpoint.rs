//! The shared data of the endpoints of agents.
//!
//! To add a transport:
//! 1. Add a variant to `Transport` in `src/telemetry/src/metrics.rs`, and its name to `TRANSPORTS` in
//!    `src/rest/assets/js/core/vocab.js`.
//! 2. Write a file beside `lines.rs` that gets an [`McpEndpoint`]. It identifies its caller before it reads a message, and
//!    counts and bounds what it reads. A connection does as `lines.rs`: it opens a session with an outbox, attaches itself and
//!    delivers each message to the actor of the session. A single request does as `http/session.rs`: it builds a
//!    `MessageSource` and awaits the answer.
//! 3. Read its section of `transports` in `src/config/src/read.rs` (`every_key_is_documented_in_the_default_file`).
//! 4. Start it in `HttpEndpoints::serve` of `src/app/src/serve/endpoints.rs`, or beside `AttachServer` of
//!    `src/app/src/serve/stdio.rs`.
//! 5. Add it to `Wire` in `src/check/src/wire/mod.rs` and to `gateway_complies_on_all_transports_and_revisions`, which fails
//!    until every revision works over it.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use countersign_config::TransportsConfig;
use countersign_http::connections::Connections;
use countersign_protocol::McpError;
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

    /// Checks that the gateway is not shutting down.
    ///
    /// # Errors
    /// That of [`McpError::shutting_down`].
    pub fn check_open(&self) -> Result<(), McpError> {
        if self.shutdown.is_cancelled() { Err(McpError::shutting_down()) } else { Ok(()) }
    }
}

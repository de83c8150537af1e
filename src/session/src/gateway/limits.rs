//! The configured limits of requests and sessions.

use std::time::Duration;

use countersign_config::{Config, TransportsConfig};
use countersign_exchange::{body_budget::BodyBudget, facts::FactLimits, outbox::OutboxLimits};
use countersign_protocol::{ErrorKind, McpError, envelope};

/// The limits of one request.
#[derive(Clone, Copy)]
pub struct RequestLimits {
    pub envelope: envelope::Limits,
    pub facts: FactLimits,
    /// The maximum number of bytes of a URI.
    pub max_uri: usize,
    /// The maximum number of resources that one session or `subscriptions/listen` may watch.
    pub max_subscriptions: usize,
    /// The number of members of a batch that run at the same time.
    pub batch_concurrency: usize,
    /// The longest time for the work of a request that does not stay open.
    pub timeout: Duration,
    /// `true` if a client's protocol version must be a known one.
    pub strict_versions: bool,
}

impl RequestLimits {
    pub fn new(config: &Config) -> Self {
        let limits = &config.limits;
        Self {
            envelope: envelope::Limits { max_depth: limits.max_depth, max_batch: limits.max_batch },
            facts: FactLimits { max_text_chars: limits.max_client_text, max_capability_bytes: limits.max_capabilities },
            max_uri: limits.max_uri,
            max_subscriptions: limits.max_subscriptions,
            batch_concurrency: limits.batch_concurrency.max(1),
            timeout: config.transports.http.request_timeout,
            strict_versions: config.strict_versions,
        }
    }

    /// Bounds the work of one request by `transports.http.request_timeout`.
    ///
    /// # Errors
    /// `TIMEOUT`, or the error of the work itself.
    pub async fn with_timeout<T>(&self, work: impl Future<Output = Result<T, McpError>>) -> Result<T, McpError> {
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|_| {
            Err(McpError::new(ErrorKind::Timeout, "the request took too long")
                .with("timeoutMs", u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX)))
        })
    }
}

/// The limits of sessions.
#[derive(Clone, Copy)]
pub struct SessionLimits {
    /// The maximum number of sessions of one principal that hold state.
    pub max_sessions: usize,
    /// The time after which an idle session ends.
    pub idle_timeout: Duration,
    /// The limits of an outbox that keeps no messages for replay.
    pub outbox: OutboxLimits,
    /// The maximum number of WebSocket sessions that wait for their clients to come back.
    pub max_waiting: usize,
}

impl SessionLimits {
    pub const fn new(config: &Config) -> Self {
        let limits = &config.limits;
        Self {
            max_sessions: limits.max_sessions,
            idle_timeout: limits.session_idle,
            outbox: OutboxLimits {
                messages: limits.outbox_messages,
                bytes: limits.outbox_bytes,
                replay_frames: 0,
                replay_bytes: 0,
            },
            max_waiting: config.transports.websocket.max_connections,
        }
    }
}

/// Creates the configured budget for the bytes of bodies. It has room at least for the longest body or message.
pub fn body_budget(config: &TransportsConfig) -> std::sync::Arc<BodyBudget> {
    let TransportsConfig { http, websocket, stdio } = config;
    let longest = http.max_body.max(websocket.max_message_size).max(stdio.max_message_size);
    BodyBudget::new(http.max_body_bytes.max(longest), http.max_connection_body_bytes.max(longest), http.body_wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix::test]
    async fn timeout_error_states_limit() {
        let limits = RequestLimits { timeout: Duration::from_millis(10), ..RequestLimits::new(&Config::default()) };
        let error = limits.with_timeout(std::future::pending::<Result<(), _>>()).await.unwrap_err();
        assert_eq!((error.kind, error.data["timeoutMs"].as_u64()), (ErrorKind::Timeout, Some(10)));
        assert_eq!(limits.with_timeout(std::future::ready(Ok(1))).await.unwrap(), 1);
    }
}

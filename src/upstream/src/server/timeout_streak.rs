//! Detects a server that stopped answering on a shared stream. A child process that hangs does not end by itself, and
//! every caller that shares it would have to wait for a timeout. After several consecutive timeouts the server is
//! probed. Without an answer, the connection is abandoned, its calls fail, and a new one is opened.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use super::{Upstream, connection::UpstreamConnection, own_requests::OwnRequestError};
use crate::link::{LinkError, LinkKind};
use countersign_protocol::Era;

/// Consecutive timeouts before the server is probed.
const TIMEOUTS_BEFORE_PROBE: u32 = 3;
/// Time limit of a probe. A server that works sequentially may still be busy with a request.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The consecutive timeouts on one connection.
#[derive(Debug, Default)]
pub struct TimeoutStreak {
    timeouts: AtomicU32,
    probed: AtomicBool,
}

impl TimeoutStreak {
    /// Resets the count after any answer.
    pub fn record_answer(&self) {
        // The count is usually zero already: many threads read it, and a needless write would be contended.
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a timeout. Returns `true` if the server must be probed now.
    fn record_timeout(&self) -> bool {
        self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_BEFORE_PROBE
            && !self.probed.swap(true, Ordering::AcqRel)
    }
}

impl Upstream {
    /// Records that a call on the connection timed out, and starts a probe if necessary.
    pub(crate) fn record_call_timeout(&self, connection: &Arc<UpstreamConnection>) {
        // On other links each request has its own stream.
        if connection.kind != LinkKind::Shared || !connection.timeout_streak.record_timeout() {
            return;
        }
        let (weak_self, connection) = (self.weak_self.clone(), Arc::clone(connection));
        actix::spawn(async move {
            if let Some(upstream) = weak_self.upgrade() {
                upstream.probe(&connection).await;
            }
        });
    }

    async fn probe(&self, connection: &UpstreamConnection) {
        // The stateless era has no ping (2026-07-28/changelog).
        let method = if connection.era == Era::Modern { "server/discover" } else { "ping" };
        match self.ask_with_timeout(connection, method, "{}", PROBE_TIMEOUT).await {
            Err(OwnRequestError::Timeout) => {
                tracing::warn!(
                    upstream = %self.config.name,
                    "it no longer answers, not even {method}; the gateway closes the connection"
                );
                connection.abandon(LinkError::Lost("it no longer answered, and is started again".to_owned()));
            }
            // The connection has ended already.
            Err(OwnRequestError::Link(_)) => {}
            // An error proves that the server is alive too.
            Ok(_) | Err(OwnRequestError::Rpc(_) | OwnRequestError::Malformed(_)) => {
                connection.timeout_streak.record_answer();
                connection.timeout_streak.probed.store(false, Ordering::Release);
            }
        }
    }
}
